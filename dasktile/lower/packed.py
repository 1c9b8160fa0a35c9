"""Tasks packed by columns: what they share once, and the numbers in them as bytes.

The tasks of a layer differ in the numbers of blocks in their keys, and hardly in anything else.
Packed, each place in them is a column of all tasks.  To pickle columns, and to make tasks of them
again, takes a fraction of the time that every number in every task takes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence, Set
from typing import Any

from dasktile._compat.dask import DataNode, Task, TaskRef
from dasktile.lower.anchored import Anchored

#: How values are packed, and their parts.
Packed = tuple[Any, ...]

#: Codes of arrays of integers from 0 on, the shortest first.
_CODES = "BHI"


def pack_tasks(tasks: Mapping[Any, Any], whole: Set[int]) -> Packed:
    """The columns of tasks by their keys, of which `unpack_tasks` makes equal ones.

    Parameters
    ----------
    tasks
        The tasks.
    whole
        Identities of objects that are not taken apart.
    """
    keys = None if _have_keys([tasks]) else _pack(list(tasks), whole)
    return keys, _pack(list(tasks.values()), whole)


def unpack_tasks(packed: Packed) -> dict[Any, Any]:
    """The tasks of columns, by their keys."""
    keys, values = packed
    tasks = _unpack(values)
    own = [task.key for task in tasks] if keys is None else _unpack(keys)
    return dict(zip(own, tasks, strict=True))


def _have_keys(dicts: Collection[Mapping[Any, Any]]) -> bool:
    """Whether the keys of dicts are those that the tasks in them have, too."""
    return all(
        # keys that are equal may have numbers of other types
        type(task) in (Task, Anchored) and task.key is key
        for each in dicts
        for key, task in each.items()
    )


# Packing


def _pack(values: Sequence[Any], whole: Set[int]) -> Packed:
    """The columns of some values: tasks, references, data, tuples and dicts are taken apart."""
    if len(set(map(type, values))) != 1:
        return _pack_by_form(values, list(map(type, values)), whole)
    kind, first = type(values[0]), values[0]
    if kind is int:
        return _pack_integers(values)
    if kind is TaskRef:
        return "references", _pack([value.key for value in values], whole)
    if kind is str and values.count(first) == len(values):
        return "same", first, len(values)
    count = len(set(map(id, values)))
    if count == 1:
        return "same", first, len(values)
    if count <= len(values) // 4:
        own = {id(value): value for value in values}
        place = {each: at for at, each in enumerate(own)}
        places = _pack_integers([place[id(value)] for value in values])
        return "several", _pack(list(own.values()), whole), places
    if kind is tuple:
        lengths = list(map(len, values))
        if len(set(lengths)) > 1:
            return _pack_by_form(values, lengths, whole)
        return "tuples", _columns(values, whole)
    if whole.isdisjoint(map(id, values)):
        if kind is Task or kind is Anchored:
            return _pack_tasks(values, whole)
        if kind is DataNode:
            keys = _pack([value.key for value in values], whole)
            return "data", keys, _pack([value.value for value in values], whole)
        if kind is dict:
            return _pack_dicts(values, whole)
    return "each", list(values)


def _columns(values: Collection[Collection[Any]], whole: Set[int]) -> list[Packed]:
    """The columns of collections of one length."""
    return [_pack(column, whole) for column in zip(*values, strict=True)]


def _pack_by_form(values: Sequence[Any], forms: Sequence[Hashable], whole: Set[int]) -> Packed:
    """The columns of values of several forms, those of each form apart."""
    members: dict[Hashable, list[Any]] = {}
    for form, value in zip(forms, values, strict=True):
        members.setdefault(form, []).append(value)
    if 2 * len(members) >= len(values):
        return "each", list(values)
    numbers = {form: number for number, form in enumerate(members)}
    parts = [_pack(each, whole) for each in members.values()]
    return "forms", _pack_integers([numbers[form] for form in forms]), parts


def _pack_integers(values: Sequence[int]) -> Packed:
    for code in _CODES:
        try:
            return "integers", code, array(code, values).tobytes()
        except OverflowError:
            pass
    return "each", list(values)


def _pack_tasks(tasks: Sequence[Task], whole: Set[int]) -> Packed:
    forms = [
        (
            id(task.func),
            task.data_producer,
            len(task.args),
            tuple(task.kwargs) if task.kwargs else (),
        )
        for task in tasks
    ]
    if len(set(forms)) > 1:
        return _pack_by_form(tasks, forms, whole)
    _, is_producer, _, names = forms[0]
    form = type(tasks[0]), tasks[0].func, is_producer, names
    keys = _pack([task.key for task in tasks], whole)
    args = _columns([task.args for task in tasks], whole)
    options = _columns([task.kwargs.values() for task in tasks], whole) if names else []
    return "tasks", form, keys, args, options


def _pack_dicts(dicts: Sequence[dict[Any, Any]], whole: Set[int]) -> Packed:
    lengths = list(map(len, dicts))
    if len(set(lengths)) > 1:
        return _pack_by_form(dicts, lengths, whole)
    if not lengths[0]:
        return "each", list(dicts)
    keys = None if _have_keys(dicts) else _columns(dicts, whole)
    return "dicts", keys, _columns([each.values() for each in dicts], whole)


# Making values of columns


def _unpack(packed: Packed) -> list[Any]:
    """The values of columns."""
    how, *parts = packed
    return _UNPACKERS[how](*parts)


def _rows(columns: Sequence[Packed]) -> list[tuple[Any, ...]]:
    return list(zip(*map(_unpack, columns), strict=True))


def _same(value: Any, count: int) -> list[Any]:
    return [value] * count


def _several(different: Packed, places: Packed) -> list[Any]:
    return list(map(_unpack(different).__getitem__, _unpack(places)))


def _integers(code: str, numbers: bytes) -> list[int]:
    return array(code, numbers).tolist()


def _references(keys: Packed) -> list[TaskRef]:
    return list(map(TaskRef, _unpack(keys)))


def _data(keys: Packed, values: Packed) -> list[DataNode]:
    return list(map(DataNode, _unpack(keys), _unpack(values)))


def _tasks(
    form: tuple[Any, ...], keys: Packed, args: Sequence[Packed], options: Sequence[Packed]
) -> list[Task]:
    kind, function, is_producer, names = form
    own = _unpack(keys)
    rows = _rows(args) if args else [()] * len(own)
    if not names:
        return [
            kind(key, function, *row, _data_producer=is_producer)
            for key, row in zip(own, rows, strict=True)
        ]
    return [
        kind(
            key, function, *row, _data_producer=is_producer, **dict(zip(names, values, strict=True))
        )
        for key, row, values in zip(own, rows, _rows(options), strict=True)
    ]


def _dicts(keys: Sequence[Packed] | None, columns: Sequence[Packed]) -> list[dict[Any, Any]]:
    rows = _rows(columns)
    if keys is None:
        return [{task.key: task for task in row} for row in rows]
    return [dict(zip(*item, strict=True)) for item in zip(_rows(keys), rows, strict=True)]


def _forms(numbers: Packed, parts: Sequence[Packed]) -> list[Any]:
    members = [iter(_unpack(part)) for part in parts]
    return [next(members[number]) for number in _unpack(numbers)]


#: By how values are packed, what makes them of the parts.
_UNPACKERS: dict[str, Callable[..., list[Any]]] = {
    "each": list,
    "same": _same,
    "several": _several,
    "integers": _integers,
    "references": _references,
    "tuples": _rows,
    "data": _data,
    "tasks": _tasks,
    "dicts": _dicts,
    "forms": _forms,
}
