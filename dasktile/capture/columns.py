"""Values in the same place in many tasks, read together: `Names.literal` of each takes longer.

What is returned decides of the values as the literals of all of them do.  It is a tag, and what
decides by the rule of that tag; which one is used depends on nothing but the values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from operator import attrgetter
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from dasktile._compat.dask import Alias, GraphNode, Task, TaskRef
from dasktile.capture.literals import Names
from dasktile.capture.references import Key

#: Types of which values decide by themselves.
_PLAIN = {bool, int, type(None)}

#: Types of the first item of a tuple that is neither a key nor a task.
_NO_HEADS = {*_PLAIN, slice, tuple, list, TaskRef, Alias}

#: Types of values in one place beyond which each is read alone.
_MOST_KINDS = 4

#: Types of functions that are described by `Names.function`, as others are.
_FUNCTIONS = {type, FunctionType, BuiltinFunctionType}

#: Types of which one value is often in many tasks.
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
    if not _are_known(names, keys):
        return "each key", list(map(names.key, keys))
    if any(type(key) is not tuple for key in keys):
        texts = bytes(type(key) is str for key in keys)
        return (
            "with texts",
            texts,
            keys_column(names, [key if type(key) is tuple else (key,) for key in keys]),
        )
    counts, items = _one_or_all(map(len, keys)), list(chain.from_iterable(keys))
    if type(counts) is int:
        heads = items[::counts]
        del items[::counts]
    else:
        heads, items = [key[0] for key in keys], list(chain.from_iterable(key[1:] for key in keys))
    if not set(map(type, items)) <= {int}:
        return "each key", list(map(names.key, keys))
    heads = heads[:1] if len(set(heads)) == 1 else heads
    return "keys", [names.heads[head] for head in heads], counts, items


def column(names: Names, values: Sequence[Any]) -> Any:
    """What decides of values in the same place in some tasks.

    Parameters
    ----------
    names
        Numbers in place of names.
    values
        The values.
    """
    distinct: Collection[type] = set(map(type, values))
    if len(distinct) == 1:
        [kind] = distinct
        return _of_kind(names, kind, values)
    if not 1 < len(distinct) <= _MOST_KINDS:
        return "each", names.literals(values)
    kinds = list(map(type, values))
    distinct = dict.fromkeys(kinds)
    numbers = {kind: number for number, kind in enumerate(distinct)}
    own: list[list[Any]] = [[] for _ in distinct]
    places = bytes(map(numbers.__getitem__, kinds))
    for place, value in zip(places, values, strict=True):
        own[place].append(value)
    parts = [_of_kind(names, kind, part) for kind, part in zip(distinct, own, strict=True)]
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
        return "lists", _items(names, values)
    elif kind is tuple and all(values):
        return _tuples(names, values)
    elif kind is dict and all(values):
        return _dicts(names, values)
    elif issubclass(kind, Task):
        return "tasks", kind.__name__, _tasks(names, values)
    elif kind in _FUNCTIONS:
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
    keys = set(map(tuple, values))
    items = [list(value.values()) for value in values]
    is_graph = any(
        issubclass(kind, (GraphNode, TaskRef))
        for kind in set(map(type, chain.from_iterable(items)))
    )
    if len(keys) > 1 or is_graph:
        return "each", names.literals(values)
    return "dicts", names.literals(*keys), _items(names, items)


def _items(names: Names, values: Sequence[Sequence[Any]]) -> Any:
    """Items of sequences: those of all of them, or those in each place of them."""
    lengths = _one_or_all(map(len, values))
    flat = list(chain.from_iterable(values))
    if type(lengths) is int and len(set(map(type, flat))) > 1:
        return "places", lengths, [column(names, place) for place in zip(*values, strict=True)]
    return "items", lengths, column(names, flat)


def _functions(names: Names, functions: Sequence[Any]) -> Any:
    """Functions, each described once, and which one each of them is."""
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
