"""The tasks that a dask graph comes to, with the bytes that they make, for planning their order.

Sizes are read off the chunks that layers say they have.  Tasks that Dask has made one have the
key of the last of them, and slices of a tile are computed from their index.  What is left (the
partial results of a sum, say) counts as large as the largest array that it is made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.highlevelgraph import HighLevelGraph
from dask.sizeof import sizeof
from dask.utils import key_split

from dasktile._compat.dask import (
    Alias,
    DataNode,
    GraphNode,
    Task,
    TaskRef,
    getitem,
    resolve_aliases,
)
from dasktile.capture.base import GraphView
from dasktile.capture.corrections import called, correct
from dasktile.capture.references import references
from dasktile.capture.rules.fold_table import RULES

#: Functions that multiply matrices.
_PRODUCTS = frozenset({"matmul", "_matmul", "tensordot", "_tensordot", "dot", "chunk_einsum"})

#: The functions that reductions begin with.
_STEPS = frozenset(first for first, _ in RULES)


@dataclass(frozen=True, slots=True)
class Tasks:
    """What runs, every task after what it reads.

    Parameters
    ----------
    keys
        Of the tasks.
    reads
        For every task, the positions in `keys` of those whose results it reads.
    sizes
        Bytes of every result.
    work
        Floating-point operations of every task, as far as known: those of products.
    names
        What a person calls every task, and tasks that take as long.
    wanted
        Positions of the tasks whose results are asked for.
    views
        For every task whose result is a view of what it reads, the position of that; -1 for
        others.
    """

    keys: tuple[Hashable, ...]
    reads: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    work: tuple[float, ...]
    names: tuple[str, ...]
    wanted: tuple[int, ...]
    views: tuple[int, ...]


def without_aliases(dsk: Mapping[Any, GraphNode], wanted: Iterable[Hashable]) -> dict[Any, Any]:
    """The same tasks without those that only give another name, except what is wanted.

    Distributed would run each of them as a task.
    """
    keys = set(wanted)
    readers: dict[Any, set[Any]] = {key: set() for key in dsk}
    for key, node in dsk.items():
        for read in node.dependencies:
            readers.setdefault(read, set()).add(key)
    found = resolve_aliases(dict(dsk), keys, readers)
    names = {}
    for key in found:
        target = key
        while isinstance(one := found.get(target), Alias) and target not in keys:
            target = one.target
        if target != key:
            names[key] = target
    return {
        key: node.substitute(names) if not names.keys().isdisjoint(node.dependencies) else node
        for key, node in found.items()
        if key not in names
    }


def tasks(
    graph: HighLevelGraph,
    dsk: Mapping[Any, GraphNode],
    wanted: Iterable[Hashable],
    known: Callable[[Any], int | None] = lambda key: None,
) -> Tasks:
    """Read tasks and their sizes off a graph.

    Parameters
    ----------
    graph
        As it was before it was optimised: it says what arrays the keys are blocks of.
    dsk
        The tasks that will run.
    wanted
        Keys that are asked for.
    known
        Bytes of results that somebody has seen.
    """
    shapes = _Shapes(graph, dsk)

    def real(key: Any) -> Any:
        while isinstance(node := dsk.get(key), Alias):
            key = node.target
        return key

    roots = [real(key) for key in wanted]
    inputs = _reached(dsk, roots, real)
    place = {key: number for number, key in enumerate(inputs)}
    sizes = []
    for key in place:
        size = known(key)
        sizes.append(shapes.size(key) if size is None else size)
    return Tasks(
        tuple(place),
        tuple(tuple(place[read] for read in found) for found in inputs.values()),
        tuple(sizes),
        tuple(shapes.operations(key, found) for key, found in inputs.items()),
        tuple(key_split(key) for key in place),
        tuple(dict.fromkeys(place[key] for key in roots if key in place)),
        tuple(
            place[found[0]] if len(found) == 1 and _is_view(dsk[key]) else -1
            for key, found in inputs.items()
        ),
    )


def _is_view(node: GraphNode) -> bool:
    """Whether a task's result is memory of what it reads."""
    if not isinstance(node, Task):
        return False
    name = getattr(node.func, "__name__", "")
    if name in ("getitem", "getitem_any"):
        index = node.args[1] if len(node.args) == 2 else None
        index = index if isinstance(index, tuple) else (index,)
        return all(isinstance(one, slice | int | np.integer) or one is None for one in index)
    return name == "transpose"


def _reached(
    dsk: Mapping[Any, GraphNode], roots: Sequence[Any], real: Callable[[Any], Any]
) -> dict[Any, list[Any]]:
    """What each task reads; tasks come after what they read, whatever their names."""
    found: dict[Any, list[Any]] = {}
    begun: dict[Any, list[Any]] = {}
    stack = list(reversed(roots))
    while stack:
        key = stack[-1]
        if key in found or key not in dsk:
            stack.pop()
        elif key not in begun:
            reads = dict.fromkeys(real(read) for read in references(dsk[key]))
            begun[key] = [read for read in reads if read in dsk]
            stack.extend(reversed(begun[key]))
        else:
            found[key] = begun[key]
            stack.pop()
    return found


@dataclass
class _Shapes:
    """The shape and the bytes of an element of results, as far as they are known."""

    graph: HighLevelGraph
    dsk: Mapping[Any, GraphNode]

    def __post_init__(self) -> None:
        self._view = GraphView(self.graph)
        correct(self._view)
        # tasks that Dask made one, and steps on the way, have the last part of a layer's name
        self._layers = {_token(name): name for name in reversed(list(self.graph.layers))}
        self._known: dict[Any, tuple[tuple[int, ...], int] | None] = {}
        self._sizes: dict[Any, int] = {}

    def of(self, key: Any) -> tuple[tuple[int, ...], int] | None:
        """The shape of a result and the bytes of an element."""
        if key not in self._known:
            self._known[key] = None  # a circle would be no graph
            self._known[key] = self._of(key)
        return self._known[key]

    def _of(self, key: Any) -> tuple[tuple[int, ...], int] | None:
        node = self.dsk.get(key)
        if isinstance(node, Alias):
            return self.of(node.target)
        if isinstance(node, DataNode):
            value = node()
            return (value.shape, value.dtype.itemsize) if isinstance(value, np.ndarray) else None
        name, *block = key if isinstance(key, tuple) else (key,)
        layer = name if isinstance(name, str) and name in self.graph.layers else None
        info = None if layer is None else self._view.array(layer)
        if info is None and isinstance(name, str):
            # a step on the way to an array has the token of its name
            layer = self._layers.get(_token(name))
            info = None if layer is None else self._view.array(layer)
        if layer is not None and info is not None and (layer == name or len(block) > 0):
            block = block[len(block) - len(info.chunks) :] if info.chunks else []
            if len(block) == len(info.chunks):
                try:
                    shape = [sizes[at] for sizes, at in zip(info.chunks, block, strict=True)]
                except (IndexError, TypeError):
                    # a step on the way: its blocks are at most as large
                    shape = [max(sizes, default=0) for sizes in info.chunks]
                return self._begun(layer, shape), info.dtype.itemsize
        return self._sliced(node)

    def _begun(self, layer: str, shape: Sequence[int]) -> tuple[int, ...]:
        """What the first step of a reduction makes, of which layers say that it is a block."""
        function, keywords = called(self.graph.layers[layer])
        axes = keywords.get("axis")
        if function in _STEPS and keywords.get("keepdims") is True and isinstance(axes, tuple):
            return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
        return tuple(shape)

    def _sliced(self, node: GraphNode | None) -> tuple[tuple[int, ...], int] | None:
        if not isinstance(node, Task) or getattr(node.func, "__name__", "") != getitem.__name__:
            return None
        if len(node.args) != 2 or not isinstance(node.args[0], TaskRef):
            return None
        source, index = self.of(node.args[0].key), node.args[1]
        if source is None:
            return None
        index = index if isinstance(index, tuple) else (index,)
        if len(index) != len(source[0]) or not all(isinstance(one, slice) for one in index):
            return None
        pairs = zip(index, source[0], strict=True)
        return tuple(len(range(*one.indices(size))) for one, size in pairs), source[1]

    def size(self, key: Any) -> int:
        """Bytes of a result."""
        stack = [key]
        while stack:
            at = stack[-1]
            if at in self._sizes:
                stack.pop()
                continue
            node = self.dsk.get(at)
            found = self.of(at)
            if found is not None:
                self._sizes[at] = math.prod(found[0]) * found[1]
            elif node is None:
                self._sizes[at] = 0
            elif isinstance(node, DataNode):
                self._sizes[at] = int(sizeof(node()))
            else:
                missing = [read for read in node.dependencies if read not in self._sizes]
                if missing:
                    stack.extend(missing)
                    continue
                self._sizes[at] = max((self._sizes[read] for read in node.dependencies), default=0)
            stack.pop()
        return self._sizes[key]

    def operations(self, key: Any, inputs: Sequence[Any]) -> float:
        """Floating-point operations of a product of two matrices, from the sizes of all three."""
        node = self.dsk[key]
        name = getattr(getattr(node, "func", None), "__name__", "")
        if name not in _PRODUCTS or not 1 <= len(inputs) <= 2:
            return 0.0
        shapes = [self.of(inputs[0]), self.of(inputs[-1]), self.of(key)]
        if any(shape is None for shape in shapes):
            return 0.0
        elements = [math.prod(shape[0]) for shape in shapes if shape is not None]
        return 2.0 * math.sqrt(math.prod(elements))


def _token(name: str) -> str:
    return name.rpartition("-")[2]
