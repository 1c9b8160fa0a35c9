"""The structure of a graph: all of it that a plan may depend on, without names of keys and data.

Graphs with the same structure have the same tasks but for the names in their keys, the numbers in
their blocks, and constants that are no integers.  Sizes, chunks, data types, integers, slices,
positions, functions and the layout of stored arrays are part of it.  Functions count by module and
name: what else decides of them, as declarations of the user, is in the captured program.
"""

from __future__ import annotations

import inspect
import marshal
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
from dask.blockwise import Blockwise, BlockwiseDep
from dask.highlevelgraph import HighLevelGraph, Layer
from dask.utils import key_split

from dasktile._compat.dask import Alias, DataNode, GraphNode, Task, TaskRef
from dasktile.capture.base import GraphView
from dasktile.capture.rules.sources import store_of
from dasktile.schedule.placement import MARK, PART, SLICE_PREFIX, decode, is_written, token

Key = Any

#: Bytes of the arrays of integers in a graph beyond which it has no structure: they may be
#: positions, and to read more of them takes too long.
MOST_BYTES = 2**25

#: Tokens in names, which stand for what a name is made of.
_TOKEN = re.compile(r"[0-9a-f]{32}")

#: Values that decide by themselves.
_PLAIN = (type(None), bool, bytes, type(...))

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
    #: What is decided by each name, in the order of the numbers.
    facts: list[Any] = field(default_factory=list)
    _splits: dict[str, int] = field(default_factory=dict)
    _tokens: dict[str, int] = field(default_factory=dict)
    _functions: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    _bytes: int = 0

    def number(self, head: Any) -> int:
        """The number of the head of a key, or of the name of a layer."""
        number = self.heads.get(head)
        if number is None:
            number = self.heads[head] = len(self.heads)
            self.facts.append(self._facts(head))
        return number

    def key(self, key: Key) -> Any:
        """A key with a number in place of its head."""
        if type(key) is tuple and key:
            return (self.number(key[0]), *map(self._index, key[1:]))
        return self.number(key)

    def literal(self, value: Any) -> Any:
        """What decides of a value that is part of a task."""
        kind = type(value)
        if kind is int or kind in _PLAIN:
            return value
        if kind is str:
            return self._text(value)
        if kind is float or kind is complex:
            return kind.__name__
        if kind is tuple or kind is list or kind is set or kind is frozenset:
            items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
            return (kind.__name__, *map(self.literal, items))
        if kind is slice:
            return ("slice", *map(self.literal, (value.start, value.stop, value.step)))
        if kind is range:
            return ("range", value.start, value.stop, value.step)
        if isinstance(value, (GraphNode, TaskRef)):
            return self.task(value)
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, (np.dtype, np.generic)):
            return self._scalar(value)
        if isinstance(value, BlockwiseDep):
            return self._blockwise_dep(value)
        if callable(value):
            return self.function(value)
        return self._object(value)

    def task(self, task: Any) -> Any:
        """A task without names."""
        kind = type(task)
        if kind is TaskRef:
            return ("ref", self.key(task.key))
        if kind is Alias:
            return ("alias", self.key(task.target))
        if kind is DataNode:
            return ("data", self.literal(task.value))
        if isinstance(task, Task):
            return (
                kind.__name__,
                self.function(task.func),
                tuple(map(self.literal, task.args)),
                tuple((name, self.literal(value)) for name, value in task.kwargs.items()),
                bool(getattr(task, "_data_producer", False)),
            )
        raise NoStructureError(f"a task of type {kind.__name__}")

    def function(self, function: Any) -> Any:
        """What decides of a function: its module and name, and what it was called with."""
        known = self._functions.get(id(function))
        if known is None:
            # the function is kept, so that no other one gets its id
            known = self._functions[id(function)] = (function, self._function(function))
        return known[1]

    def _function(self, function: Any) -> Any:
        if isinstance(function, (partial, *_curried(function))):
            options = sorted(function.keywords.items())
            return (
                "partial",
                self.function(function.func),
                tuple(map(self.literal, function.args)),
                tuple((name, self.literal(value)) for name, value in options),
            )
        if hasattr(function, "first") and hasattr(function, "funcs"):
            return ("compose", *map(self.function, (function.first, *function.funcs)))
        if isinstance(function, types.MethodType):
            return ("method", self.function(function.__func__), self.literal(function.__self__))
        name = _name(function)
        if isinstance(function, _FUNCTIONS):
            return ("function", *name, inspect.iscoroutinefunction(function))
        return ("callable", *name, *self._object(function))

    def _facts(self, head: Any) -> Any:
        """What is decided by a name: its placement, and which names Dask would shorten alike."""
        split = self._splits.setdefault(key_split(head), len(self._splits))
        if not isinstance(head, str):
            return (split, type(head).__name__)
        operation, mark, _ = head.partition(MARK)
        written = (_TOKEN.sub("", operation), is_written(head)) if mark else ()
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
            array, axes = placement.follow
            follow = self._token(array), axes
        return placement.mesh, repr(placement.sharding), placement.predicted, follow

    def _token(self, text: str) -> int:
        return self._tokens.setdefault(text, len(self._tokens))

    def _own_token(self, head: str) -> tuple[int, int]:
        """Numbers of the token that placements have for an array, and of the one in its name."""
        return self._token(token(head)), self._token(head.rpartition("-")[2])

    def _index(self, part: Any) -> Any:
        return part if type(part) is int else self.literal(part)

    def _text(self, text: str) -> Any:
        if text in self.heads:
            return ("ref", self.heads[text])
        return _TOKEN.sub("", text) if len(text) >= 32 else text

    def _mapping(self, value: Mapping[Any, Any]) -> Any:
        # the tasks of a fused one, by their keys
        is_graph = any(isinstance(item, (GraphNode, TaskRef)) for item in value.values())
        name: Callable[[Any], Any] = self.key if is_graph else self.literal
        return ("dict", *((name(key), self.literal(item)) for key, item in value.items()))

    def _array(self, array: np.ndarray[Any, Any]) -> Any:
        described = ("array", array.dtype.str, array.shape)
        if array.dtype.kind not in "iub" or array.dtype.hasobject:
            return described
        self._bytes += array.nbytes
        if self._bytes > MOST_BYTES:
            raise NoStructureError("many integers")
        return (*described, blake2b(np.ascontiguousarray(array)).digest())

    def _scalar(self, value: Any) -> Any:
        if isinstance(value, np.dtype):
            return ("dtype", value.str)
        exact = isinstance(value, (np.integer, np.bool_))
        return (value.dtype.str, int(value) if exact else "")

    def _blockwise_dep(self, dep: BlockwiseDep) -> Any:
        kind = type(dep).__name__
        values = getattr(dep, "values", getattr(dep, "mapping", None))
        return (kind, _chunks(getattr(dep, "chunks", ())), dep.numblocks, self.literal(values))

    def _object(self, value: Any) -> Any:
        """An object of an unknown type: an array-like, maybe in a store."""
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        known = [*_name(type(value)), _plain(shape), str(dtype)]
        store = store_of(value)
        if store is not None:
            known += [*_name(type(store)), _plain(store.chunks), str(getattr(store, "dtype", ""))]
        return tuple(known)


def _curried(function: Any) -> tuple[type, ...]:
    """The type of a curried function."""
    return (type(function),) if type(function).__name__ == "curry" else ()


def _name(function: Any) -> tuple[str, str]:
    own = function if hasattr(function, "__qualname__") else type(function)
    if isinstance(function, np.ufunc):
        return "numpy", function.__name__
    return str(getattr(own, "__module__", "")), str(own.__qualname__)


def _plain(sizes: Any) -> Any:
    return tuple(map(_plain, sizes)) if isinstance(sizes, (tuple, list)) else str(sizes)


def _chunks(chunks: Any) -> Any:
    return repr(chunks)


def structure(graph: HighLevelGraph, names: Names) -> bytes:
    """The structure of a graph, as a digest.

    Parameters
    ----------
    graph
        The graph.
    names
        The numbers of the names, those of its layers are added in their order.

    Raises
    ------
    NoStructureError
        If a graph has parts of an unknown kind.
    """
    view = GraphView(graph)
    for name in graph.layers:
        names.number(name)
    digest = blake2b(digest_size=32)
    for name, layer in graph.layers.items():
        reads = sorted(names.number(read) for read in graph.dependencies.get(name, ()))
        own = _layer(view, name, layer, names)
        digest.update(_dumped((names.number(name), reads, _notes(layer, names), own)))
    digest.update(_dumped(names.facts))
    return digest.digest()


def _dumped(value: Any) -> bytes:
    # version 2 writes equal values alike
    return marshal.dumps(value, 2)


def _notes(layer: Layer, names: Names) -> Any:
    """What is decided by the annotations of a layer."""
    notes = layer.collection_annotations or {}
    dtype, chunks = notes.get("dtype"), notes.get("chunks")
    own = layer.annotations
    return (
        getattr(dtype, "str", str(dtype)),
        bool(getattr(dtype, "hasobject", False)),
        _chunks(chunks),
        str(notes.get("chunk_type")),
        None if own is None else names.literal(own),
    )


def _layer(view: GraphView, name: str, layer: Layer, names: Names) -> Any:
    kind = type(layer).__name__
    if isinstance(layer, Blockwise):
        return (kind, _blockwise(layer, names))
    tasks: Mapping[Any, Any] = layer
    is_plain = all(isinstance(task, GraphNode) for task in layer.values())
    if not is_plain:
        futures = [key for key, value in layer.items() if _is_future(value)]
        if len(futures) == len(layer):
            return (kind, "futures", tuple(map(names.key, futures)))
        tasks = view.tasks(name)
    if name in names.data:
        return (kind, "data", tuple(map(names.key, tasks)))
    return (kind, tuple((names.key(key), names.task(task)) for key, task in tasks.items()))


def _is_future(value: Any) -> bool:
    kind = type(value)
    return kind.__name__ == "Future" and kind.__module__.startswith("distributed")


def _blockwise(layer: Blockwise, names: Names) -> Any:
    def argument(part: Any, symbols: Sequence[Any] | None) -> Any:
        if symbols is not None:
            dep = layer.io_deps.get(part)
            return names.number(part) if dep is None else names.literal(dep)
        return names.literal(part)

    blocks = layer.output_blocks
    return (
        names.number(layer.output),
        layer.output_indices,
        tuple((argument(part, symbols), symbols) for part, symbols in layer.indices),
        tuple(
            tuple(count)
            for part, count in layer.numblocks.items()
            if part not in layer.io_deps
        ),
        names.task(layer.task),
        layer.concatenate,
        tuple((symbol, _chunks(size)) for symbol, size in layer.new_axes.items()),
        None if blocks is None else sorted(map(tuple, blocks)),
    )
