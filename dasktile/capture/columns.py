"""The values that many tasks have in the same place, read at once.

This takes less time than to call `Names.literal` for each value.  Two lists of as many values for
which the same is returned have the same literals; the reverse need not hold.  What is returned is a
tag, and a description in the form that the tag names:

- ``"keys"``, ``"read"``: numbers of the heads (one if all have the same), lengths, block numbers;
- ``"kinds"``: the type of each value as a number, and a column for each type;
- ``"places"``, ``"items"``: lengths of sequences, and a column for each place, or one of all items;
- ``"each"``: the literals of the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from dasktile._compat.dask import Alias, GraphNode, Task, TaskRef
from dasktile.capture.literals import Names
from dasktile.capture.references import Key

#: Types whose values are part of the structure as they are.
_PLAIN = {bool, int, type(None)}

#: Types of values; a tuple that starts with one of them is read as a plain tuple.
_NO_HEADS = {*_PLAIN, slice, tuple, list, TaskRef, Alias}

#: Types of values in one place up to which these are read by type; of more, one by one.
_MOST_KINDS = 4

#: Types of functions, which are described by `Names.function`.
_FUNCTION_TYPES = {type, FunctionType, BuiltinFunctionType}

#: Types of which many tasks often share one object.
_SHARED = (str, np.dtype)

_START, _STOP, _STEP = map(attrgetter, ("start", "stop", "step"))


def keys_column(names: Names, keys: Sequence[Key]) -> Any:
    """Keys with numbers in place of their heads.

    Parameters
    ----------
    names
        The numbers.
    keys
        The keys.
    """
    if len(keys) == 1 or not _are_known(names, keys):
        return "each key", list(map(names.key, keys))
    if set(map(type, keys)) != {tuple}:
        texts = bytes(type(key) is str for key in keys)
        return (
            "with texts",
            texts,
            keys_column(names, [key if type(key) is tuple else (key,) for key in keys]),
        )
    lengths, items = _one_or_all(map(len, keys)), list(chain.from_iterable(keys))
    if type(lengths) is int:
        heads = items[::lengths]
        del items[::lengths]
    else:
        heads, items = [key[0] for key in keys], list(chain.from_iterable(key[1:] for key in keys))
    if not set(map(type, items)) <= {int}:
        return "each key", list(map(names.key, keys))
    heads = heads[:1] if len(set(heads)) == 1 else heads
    return "keys", [names.heads[head] for head in heads], lengths, items


def column(names: Names, values: Sequence[Any]) -> Any:
    """What decides of values in the same place in some tasks.

    Parameters
    ----------
    names
        Numbers in place of names.
    values
        The values.
    """
    different = set(map(type, values))
    if len(values) < 2 or len(different) > _MOST_KINDS:
        return "each", names.literals(values)
    if len(different) == 1:
        [kind] = different
        return _of_kind(names, kind, values)
    kinds = list(map(type, values))
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    by_kind: list[list[Any]] = [[] for _ in numbers]
    places = bytes(map(numbers.__getitem__, kinds))
    for place, value in zip(places, values, strict=True):
        by_kind[place].append(value)
    parts = [_of_kind(names, kind, part) for kind, part in zip(numbers, by_kind, strict=True)]
    return "kinds", places, parts


def _of_kind(names: Names, kind: type, values: Sequence[Any]) -> Any:
    """As `column`, of values of one type."""
    if kind in _PLAIN:
        return "plain", list(values)
    if kind is slice:
        parts = [list(map(part, values)) for part in (_START, _STOP, _STEP)]
        return "slices", [column(names, part) for part in parts]
    if kind is TaskRef or kind is Alias:
        keys = [value.key if kind is TaskRef else value.target for value in values]
        if _are_known(names, keys):
            return "read", keys_column(names, keys)
    elif kind is list and all(values):
        names.constants.identities(values)
        return "lists", _items(names, values)
    elif kind is tuple and all(values):
        return _tuples(names, values)
    elif kind is dict and all(values):
        return _dicts(names, values)
    elif issubclass(kind, Task):
        return "tasks", kind.__name__, _tasks(names, values)
    elif kind in _FUNCTION_TYPES:
        return "functions", _functions(names, values)
    elif issubclass(kind, _SHARED) and len(set(map(id, values))) == 1:
        return "same", names.literal(values[0])
    return "each", names.literals(values)


def _tasks(names: Names, tasks: Sequence[Any]) -> Any:
    """Tasks of one type."""
    options = [task.kwargs for task in tasks]
    return (
        _functions(names, [task.func for task in tasks]),
        _items(names, [task.args for task in tasks]),
        [list(each) for each in options] if any(options) else (),
        names.literals(chain.from_iterable(each.values() for each in options)),
        _one_or_all([bool(task.data_producer) for task in tasks]),
    )


def _tuples(names: Names, values: Sequence[tuple[Any, ...]]) -> Any:
    """Tuples with items: keys, tasks as tuples, or others."""
    firsts = [value[0] for value in values]
    kinds = set(map(type, firsts))
    if kinds <= _NO_HEADS:
        return "tuples", _items(names, values)
    if kinds == {str} and _are_known(names, values):
        return "read", keys_column(names, values)
    if all(map(callable, firsts)):
        rest = [value[1:] for value in values]
        return "legacy", _functions(names, firsts), _items(names, rest)
    return "each", names.literals(values)


def _dicts(names: Names, values: Sequence[dict[Any, Any]]) -> Any:
    """Dicts with items: options of functions, or others."""
    # keys of other types may be equal, and differ
    are_texts = set(map(type, chain.from_iterable(values))) == {str}
    keys = set(map(tuple, values)) if are_texts else set()
    items = [list(value.values()) for value in values]
    kinds = set(map(type, chain.from_iterable(items)))
    if len(keys) != 1 or any(issubclass(kind, (GraphNode, TaskRef)) for kind in kinds):
        return "each", names.literals(values)
    names.constants.identities(values)
    return "dicts", names.literals(*keys), _items(names, items)


def _items(names: Names, values: Sequence[Sequence[Any]]) -> Any:
    """Items of sequences: those of all of them, or those in each place of them."""
    lengths = _one_or_all(map(len, values))
    flat = list(chain.from_iterable(values))
    if type(lengths) is int and len(set(map(type, flat))) > 1:
        return "places", lengths, [column(names, place) for place in zip(*values, strict=True)]
    return "items", lengths, column(names, flat)


def _functions(names: Names, functions: Sequence[Any]) -> Any:
    """A description of each different function, and the number of that of each value."""
    own = dict(zip(map(id, functions), functions, strict=True))
    described = list(map(names.function, own.values()))
    numbers = {each: number for number, each in enumerate(own)}
    return described, _one_or_all([numbers[id(function)] for function in functions])


def _are_known(names: Names, keys: Sequence[Key]) -> bool:
    """Whether keys are texts, or tuples, whose heads have numbers."""
    if not set(map(type, keys)) <= {tuple, str} or not all(keys):
        return False
    heads = {key[0] if type(key) is tuple else key for key in keys}
    return heads <= names.heads.keys()


def _one_or_all(values: Iterable[Any]) -> Any:
    """The only value that occurs; a list of all if there are several, or none."""
    values = list(values)
    return values[0] if len(set(values)) == 1 else values
