"""Values in the tasks of a graph as far as a plan depends on them: without names."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
from dask.blockwise import BlockwiseDep
from dask.utils import key_split
from tlz import curry  # type: ignore[import-untyped]
from tlz.functoolz import Compose  # type: ignore[import-untyped]

from dasktile._compat.dask import Alias, DataNode, GraphNode, Task, TaskRef, blockwise_token
from dasktile.capture.constants import Constants
from dasktile.capture.references import Key
from dasktile.capture.rules.sources import is_partial, store_of
from dasktile.capture.seen import is_plain
from dasktile.capture.user_kernels import lookup
from dasktile.schedule.placement import MARK, PART, SLICE_PREFIX, decode, is_written, token

#: Start of the keys that stand for arguments in the task of a Blockwise layer.
_ARGUMENT = blockwise_token(0).rstrip("0")

#: Bytes of the arrays of integers in a graph beyond which it has no structure: they may be
#: positions, and to read more of them takes too long.
MOST_BYTES = 2**25

#: Tokens in names, which stand for what a name is made of.
TOKEN = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

#: Letters of a token, and of a short one.
_LONG, SHORT = 32, 10

#: Short tokens, of arrays that placements in names follow, or texts that look like them.
SHORT_TOKEN = re.compile(rf"(?:(?<=_f)|(?<![0-9a-f]))[0-9a-f]{{{SHORT}}}(?![0-9a-f])")

#: Tokens of both kinds in names.
NAME_TOKEN = re.compile(rf"{TOKEN.pattern}|(?<=_f)[0-9a-f]{{{SHORT}}}(?=\.)")

#: Modules of arguments whose blocks differ only in what is read here.
_BLOCKWISE_DEPS = {"dask.blockwise", "dask.layers"}

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, type, np.ufunc)


class NoStructureError(Exception):
    """A graph has no structure that is quickly read."""


@dataclass
class Names:
    """Numbers in place of names, in the order in which the names are met.

    Parameters
    ----------
    data
        Names of layers whose arrays are data.
    """

    data: Collection[str] = ()
    heads: dict[Any, int] = field(default_factory=dict)
    #: What each name decides, in the order of the numbers.
    facts: list[Any] = field(default_factory=list)
    #: What the tasks have beside the structure.
    constants: Constants = field(default_factory=Constants)
    _tokens: dict[str, int] = field(default_factory=dict)
    _functions: dict[int, tuple[Any, int, Any]] = field(default_factory=dict)
    _kinds: dict[type, tuple[str, str]] = field(default_factory=dict)
    _bytes: int = 0
    _rules: _Rules = field(default_factory=lambda: _Rules())

    def number(self, head: Any) -> int:
        """The number of the head of a key, or of the name of a layer."""
        number = self.heads.get(head)
        if number is None:
            number = self.heads[head] = len(self.heads)
            self.facts.append(self._facts(head))
        return number

    def key(self, key: Key) -> Any:
        """A key with a number in place of its head."""
        if type(key) is not tuple or not key:
            return self.number(key)
        try:
            number = self.heads[key[0]]
        except KeyError:
            number = self.number(key[0])
        if len(key) == 1 or type(key[-1]) is type(key[1]) is int:
            # other parts between two integers are no names
            return number, key[1:]
        return number, self.literals(key[1:])

    def literal(self, value: Any) -> Any:
        """What decides of a value that is part of a task."""
        return self._rules[type(value)](self, value)

    def literals(self, values: Iterable[Any]) -> list[Any]:
        """What decides of some values."""
        rules = self._rules
        return [
            value if type(value) is int else rules[type(value)](self, value) for value in values
        ]

    def _same(self, value: Any) -> Any:
        return value

    def _fraction(self, value: Any) -> Any:
        self.constants.value(value)
        return "fraction"

    def _tuple(self, value: tuple[Any, ...]) -> Any:
        """A tuple, which may be a key or a task."""
        first = value[0] if value else None
        if type(first) is str and first in self.heads:
            return ("ref", self.key(value))
        if first is not None and callable(first):
            return ("legacy", self.function(first), self.literals(value[1:]))
        return ("tuple", self.literals(value))

    def _list(self, value: list[Any]) -> Any:
        # a function, or the user, may change it
        self.constants.identity(value)
        return ("list", self.literals(value))

    def _set(self, value: Iterable[Any]) -> Any:
        self.constants.value(type(value).__name__)
        # its order may be another one
        self.constants.identity(value)
        return ("set", self.literals(sorted(value, key=repr)))

    def _slice(self, value: slice) -> Any:
        parts = value.start, value.stop, value.step
        if type(value.start) is type(value.stop) is int and value.step is None:
            return parts
        return ("slice", self.literals(parts))

    def _range(self, value: range) -> Any:
        return ("range", value.start, value.stop, value.step)

    def _ref(self, value: Any) -> Any:
        return ("ref", self._read(value.key))

    def _alias(self, value: Any) -> Any:
        return ("ref", self._read(value.target))

    def _read(self, key: Key) -> Any:
        """A key that a task reads."""
        number = self.heads.get(key[0]) if type(key) is tuple and key else self.heads.get(key)
        if number is None and not _is_argument(key):
            self.constants.cannot("a task reads what is not in the graph")
        return self.key(key)

    def _data(self, value: Any) -> Any:
        return ("data", self.literal(value.value))

    def _task(self, task: Any) -> Any:
        return (
            type(task).__name__,
            self.function(task.func),
            self.literals(task.args),
            [(name, self.literal(value)) for name, value in task.kwargs.items()],
            bool(task.data_producer),
        )

    def _future(self, value: Any) -> Any:
        self.constants.cannot("a future among the arguments of a task")
        return ("ref", self.key(value.key))

    def _unknown(self, value: Any) -> Any:
        raise NoStructureError(f"a task of type {type(value).__name__}")

    def _other(self, value: Any) -> Any:
        return self.function(value) if callable(value) else self._object(value)

    def function(self, function: Any) -> Any:
        """What decides of a function: its module and name, and what it was called with."""
        known = self._functions.get(id(function))
        if known is None:
            own = self._function(function)
            use = lookup(function)
            if use is not None:
                self.constants.value(repr(use))
            if _consists_of_others(function):
                self.constants.identity(function)
            else:
                self.constants.function(function)
            # the function is kept, so that no other one gets its id
            known = self._functions[id(function)] = (own, len(self._functions), function)
        self.constants.value(known[1])
        return known[0]

    def _function(self, function: Any) -> Any:
        if is_partial(function):
            options = sorted(function.keywords.items())
            return (
                "partial",
                self.function(function.func),
                self.literals(function.args),
                [(name, self.literal(value)) for name, value in options],
            )
        if hasattr(function, "first") and hasattr(function, "funcs"):
            return ("compose", *map(self.function, (function.first, *function.funcs)))
        if isinstance(function, types.MethodType):
            return ("method", self.function(function.__func__), self.literal(function.__self__))
        name = _name(function)
        if isinstance(function, _FUNCTIONS):
            return ("function", *name, inspect.iscoroutinefunction(function))
        return ("callable", *name, self._described(function))

    def _name_of(self, kind: type) -> Any:
        name = self._kinds.get(kind)
        if name is None:
            name = self._kinds[kind] = _name(kind)
        return name

    def _facts(self, head: Any) -> Any:
        """What a name decides: the placement, and the operation, by which Dask orders tasks."""
        split = key_split(head)
        if not isinstance(head, str):
            self.constants.value(repr(head))
            return (split, type(head).__name__)
        self.constants.value(NAME_TOKEN.sub("", head))
        operation, mark, _ = head.partition(MARK)
        written = (TOKEN.sub("", operation), is_written(head)) if mark else ()
        whole = head.partition(PART)[0]
        return (
            split,
            self._own_token(head),
            self._own_token(whole) if whole != head else (),
            head.startswith(SLICE_PREFIX),
            written,
            self._placement(head),
        )

    def _placement(self, head: str) -> Any:
        placement = decode(head)
        if placement is None:
            return ()
        follow: Any = ()
        if placement.follow is not None:
            leader = placement.follow
            follow = self._token(leader.token), leader.dims, leader.numbers
        return (
            placement.mesh,
            repr(placement.sharding),
            placement.predicted,
            follow,
            placement.planned_for,
        )

    def _token(self, text: str) -> int:
        return self._tokens.setdefault(text, len(self._tokens))

    def _own_token(self, head: str) -> tuple[int, int]:
        """Numbers of the token that placements have for an array, and of the one in its name."""
        return self._token(token(head)), self._token(head.rpartition("-")[2])

    def _text(self, text: str) -> Any:
        if text in self.heads:
            return ("ref", self.heads[text])
        short = TOKEN.sub("", text) if len(text) >= _LONG else text
        # a short token in it may be that of a name, for which it must not be taken
        if short != text or (len(text) >= SHORT and SHORT_TOKEN.search(text)):
            self.constants.text(text)
        return short

    def _mapping(self, value: Mapping[Any, Any]) -> Any:
        if type(value) is not dict:
            # there may be more to it than its items
            self.constants.object(value)
        else:
            self.constants.identity(value)
        # the tasks of a fused one, by their keys
        is_graph = any(isinstance(item, (GraphNode, TaskRef)) for item in value.values())
        name: Callable[[Any], Any] = self.key if is_graph else self.literal
        for key in value if is_graph else ():
            self.key(key)
        return ("dict", *((name(key), self.literal(item)) for key, item in value.items()))

    def _array(self, array: np.ndarray[Any, Any]) -> Any:
        described = ("array", array.dtype.str, array.shape)
        are_integers = array.dtype.kind in "iub"
        if are_integers and type(array) is np.ndarray:
            self.constants.identity(array)
        else:
            self.constants.array(array)
        if not are_integers:
            return described
        self._bytes += array.nbytes
        if self._bytes > MOST_BYTES:
            raise NoStructureError("many integers")
        return (*described, blake2b(array.tobytes()).digest())

    def _scalar(self, value: Any) -> Any:
        dtype = value if isinstance(value, np.dtype) else value.dtype
        if not is_plain(dtype):
            self.constants.cannot(f"a value of the data type {dtype}")
        if isinstance(value, np.dtype):
            return ("dtype", value.str)
        # differences of times are integers by their class
        exact = dtype.kind in "iub"
        if not exact:
            self.constants.array(np.asarray(value))
        return (value.dtype.str, int(value) if exact else "")

    def data_block(self, block: Any) -> None:
        """Note a block of data: its elements are constants, unless it is a future."""
        value = block.value if isinstance(block, DataNode) else block
        if isinstance(value, np.ndarray):
            self.constants.array(value)
        elif self._rules[type(value)] is not Names._future:
            self.constants.object(value)

    def _blockwise_dep(self, dep: BlockwiseDep) -> Any:
        kind = type(dep).__name__
        values = getattr(dep, "values", getattr(dep, "mapping", None))
        if type(dep).__module__ not in _BLOCKWISE_DEPS:
            self.constants.object(dep)
        return (kind, repr(getattr(dep, "chunks", ())), dep.numblocks, self.literal(values))

    def _object(self, value: Any) -> Any:
        """An object of an unknown type: an array-like, maybe in a store."""
        self.constants.object(value)
        return self._described(value)

    def _described(self, value: Any) -> Any:
        """The type of an object, and what it says of its shape."""
        shape = getattr(value, "shape", None)
        if shape is None:
            return self._name_of(type(value))
        known = [*_name(type(value)), _plain(shape), str(getattr(value, "dtype", None))]
        store = store_of(value)
        if store is not None:
            known += [*_name(type(store)), _plain(store.chunks), str(getattr(store, "dtype", ""))]
        return tuple(known)


class _Rules(dict[type, Any]):
    """By type, the method of `Names` that is called with a value."""

    def __missing__(self, kind: type) -> Any:
        rule = _LITERALS.get(kind)
        if rule is None:
            rule = next((own for parent, own in _PARENTS if issubclass(kind, parent)), None)
        if rule is None:
            is_future = kind.__name__ == "Future" and kind.__module__.startswith("distributed")
            rule = Names._future if is_future else Names._other
        self[kind] = rule
        return rule


#: Methods for values of a type.
_LITERALS: dict[type, Any] = {
    **dict.fromkeys((type(None), bool, int, bytes, type(...)), Names._same),
    **dict.fromkeys((float, complex), Names._fraction),
    **dict.fromkeys((set, frozenset), Names._set),
    str: Names._text,
    tuple: Names._tuple,
    list: Names._list,
    slice: Names._slice,
    range: Names._range,
    TaskRef: Names._ref,
    Alias: Names._alias,
    DataNode: Names._data,
}

#: The same for values of other types, by a type that theirs is derived from.
_PARENTS: tuple[tuple[Any, Any], ...] = (
    (Task, Names._task),
    (GraphNode, Names._unknown),
    (Mapping, Names._mapping),
    (np.ndarray, Names._array),
    ((np.dtype, np.generic), Names._scalar),
    (BlockwiseDep, Names._blockwise_dep),
)


def _consists_of_others(function: Any) -> bool:
    """Whether all that decides of a function are other functions, and what it was called with."""
    return type(function) in (partial, types.MethodType, curry, Compose)


def _name(function: Any) -> tuple[str, str]:
    own = function if hasattr(function, "__qualname__") else type(function)
    if isinstance(function, np.ufunc):
        return "numpy", function.__name__
    return str(getattr(own, "__module__", "")), str(own.__qualname__)


def _plain(sizes: Any) -> Any:
    return tuple(map(_plain, sizes)) if isinstance(sizes, (tuple, list)) else str(sizes)


def _is_argument(key: Key) -> bool:
    """Whether a key stands for an argument of the task of a Blockwise layer."""
    return isinstance(key, str) and key.startswith(_ARGUMENT)
