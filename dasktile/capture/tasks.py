"""The tasks of a dask graph with the sizes of their results, for planning their order.

Sizes are those of the chunks of layers.  Fused tasks have the key of the last of them.  The size
of a slice is computed from its index.  The size of any other result (such as the partial result
of a sum) is estimated as that of its largest input.  Where a task trims the edges of what it has
made, as those of ``map_overlap`` do, its result keeps the memory of the edges, too.
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
    fused_tasks,
    getitem,
    resolve_aliases,
)
from dasktile.capture.base import ArrayInfo, GraphView
from dasktile.capture.corrections import called_function, correct_arrays
from dasktile.capture.references import references
from dasktile.capture.rules.fold_table import REDUCTIONS
from dasktile.capture.rules.stencils import read_trim

#: Names of functions that multiply matrices.
_PRODUCTS = frozenset({"matmul", "_matmul", "tensordot", "_tensordot", "dot", "chunk_einsum"})

#: The functions of the first step of reductions.
_STEPS = frozenset(first for first, _ in REDUCTIONS)


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks that run, in an order in which inputs come before their readers.

    Parameters
    ----------
    keys
        Keys of the tasks.
    reads
        For every task, the positions in `keys` of its inputs.
    sizes
        Size of every result in bytes.
    work
        Floating-point operations of every task; zero except for products.
    names
        Name of the operation of every task; tasks of one name take similar time.
    wanted
        Positions of the tasks whose results are requested.
    views
        For every task whose result is a view of its input, the position of that input; -1 for
        any other task.
    memory
        For every task, the bytes of the array that it has made and whose memory its result takes.
    """

    keys: tuple[Hashable, ...]
    reads: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    work: tuple[float, ...]
    names: tuple[str, ...]
    wanted: tuple[int, ...]
    views: tuple[int, ...]
    memory: tuple[int, ...]


def without_aliases(dsk: Mapping[Any, GraphNode], wanted: Iterable[Hashable]) -> dict[Any, Any]:
    """The tasks without aliases, except those that are requested.

    Distributed would run every alias as a task.
    """
    keys = set(wanted)
    readers: dict[Any, set[Any]] = {key: set() for key in dsk}
    for key, node in dsk.items():
        for read in node.dependencies:
            readers.setdefault(read, set()).add(key)
    resolved = resolve_aliases(dict(dsk), keys, readers)
    names = {}
    for key in resolved:
        target = key
        while isinstance(alias := resolved.get(target), Alias) and target not in keys:
            target = alias.target
        if target != key:
            names[key] = target
    return {
        key: node.substitute(names) if not names.keys().isdisjoint(node.dependencies) else node
        for key, node in resolved.items()
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
        The graph before optimisation, whose layers describe the arrays.
    dsk
        The tasks that will run.
    wanted
        Requested keys.
    known
        Measured bytes of a result, None if it was not measured.
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
        tuple(tuple(place[read] for read in reads) for reads in inputs.values()),
        tuple(sizes),
        tuple(shapes.operations(key, reads) for key, reads in inputs.items()),
        tuple(key_split(key) for key in place),
        tuple(dict.fromkeys(place[key] for key in roots if key in place)),
        tuple(
            place[reads[0]] if len(reads) == 1 and shapes.is_view(key, reads[0]) else -1
            for key, reads in inputs.items()
        ),
        tuple(max(size, shapes.trimmed_size(key)) for key, size in zip(place, sizes, strict=True)),
    )


def _is_slice(index: Any) -> bool:
    """Whether an index of NumPy gives a view."""
    entries = index if isinstance(index, tuple) else (index,)
    return all(isinstance(entry, slice | int | np.integer) or entry is None for entry in entries)


def _last(key: Any, node: GraphNode | None) -> tuple[Any, GraphNode | None]:
    """The task that makes the result of a task, of fused ones the last, and its block's key."""
    while fused := fused_tasks(node):
        last = node.args[1]  # type: ignore[union-attr]
        while isinstance(node := fused.get(last), Alias):
            last = node.target
        # tasks of which one layer is made have no blocks of their own
        key = last if isinstance(last, tuple) else key
    return key, node


def _read_key(argument: Any) -> Any:
    """The key of the result that is an argument of a task, None for other arguments."""
    if isinstance(argument, Alias):
        return argument.target
    return argument.key if isinstance(argument, TaskRef) else None


def _reached(
    dsk: Mapping[Any, GraphNode], roots: Sequence[Any], real: Callable[[Any], Any]
) -> dict[Any, list[Any]]:
    """The inputs of each task; inputs come before their readers, independent of names."""
    ordered: dict[Any, list[Any]] = {}
    visited: dict[Any, list[Any]] = {}
    stack = list(reversed(roots))
    while stack:
        key = stack[-1]
        if key in ordered or key not in dsk:
            stack.pop()
        elif key not in visited:
            reads = dict.fromkeys(real(read) for read in references(dsk[key]))
            visited[key] = [read for read in reads if read in dsk]
            stack.extend(reversed(visited[key]))
        else:
            ordered[key] = visited[key]
            stack.pop()
    return ordered


@dataclass
class _Shapes:
    """The shapes and item sizes of results, where they are known."""

    graph: HighLevelGraph
    dsk: Mapping[Any, GraphNode]

    def __post_init__(self) -> None:
        self._view = GraphView(self.graph)
        correct_arrays(self._view)
        # fused tasks and intermediate steps have the token of a layer's name
        self._layers = {_token(name): name for name in reversed(list(self.graph.layers))}
        self._known: dict[Any, tuple[tuple[int, ...], int] | None] = {}
        self._sizes: dict[Any, int] = {}
        #: By layer: the array whose edges it trims, None for other layers.
        self._trims: dict[str, ArrayInfo | None] = {}

    def of(self, key: Any) -> tuple[tuple[int, ...], int] | None:
        """The shape of a result and the bytes of an element; None if unknown."""
        if key not in self._known:
            self._known[key] = None  # ends the recursion of a cyclic graph
            self._known[key] = self._of(key)
        return self._known[key]

    def _of(self, key: Any) -> tuple[tuple[int, ...], int] | None:
        node = self.dsk.get(key)
        if isinstance(node, Alias):
            return self.of(node.target)
        if (sliced := self._sliced(_last(key, node)[1])) is not None:
            # the layer of an intermediate step may have chunks that are not those of its tasks
            return sliced
        if isinstance(node, DataNode):
            value = node()
            return (value.shape, value.dtype.itemsize) if isinstance(value, np.ndarray) else None
        name, *block = key if isinstance(key, tuple) else (key,)
        layer = name if isinstance(name, str) and name in self.graph.layers else None
        info = None if layer is None else self._view.array(layer)
        if info is None and isinstance(name, str):
            # an intermediate step of an array has the token of its name
            layer = self._layers.get(_token(name))
            info = None if layer is None else self._view.array(layer)
        if layer is not None and info is not None and (layer == name or len(block) > 0):
            block = block[len(block) - len(info.chunks) :] if info.chunks else []
            if len(block) == len(info.chunks):
                try:
                    shape = [
                        sizes[number] for sizes, number in zip(info.chunks, block, strict=True)
                    ]
                except (IndexError, TypeError):
                    # an intermediate step: its blocks are at most this large
                    shape = [max(sizes, default=0) for sizes in info.chunks]
                return self._block_shape(layer, shape), info.dtype.itemsize
        return None

    def _block_shape(self, layer: str, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of a block; for the first step of a reduction, that of the partial result.

        Layers describe that step as if it did not reduce.
        """
        function, keywords = called_function(self.graph.layers[layer])
        axes = keywords.get("axis")
        if function in _STEPS and keywords.get("keepdims") is True and isinstance(axes, tuple):
            return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
        return tuple(shape)

    def _sliced(self, node: GraphNode | None) -> tuple[tuple[int, ...], int] | None:
        if not isinstance(node, Task) or getattr(node.func, "__name__", "") != getitem.__name__:
            return None
        read = _read_key(node.args[0]) if len(node.args) == 2 else None
        source = None if read is None else self.of(read)
        if source is None:
            return None
        index = node.args[1]
        index = index if isinstance(index, tuple) else (index,)
        if len(index) != len(source[0]) or not all(isinstance(entry, slice) for entry in index):
            return None
        pairs = zip(index, source[0], strict=True)
        return tuple(len(range(*entry.indices(size))) for entry, size in pairs), source[1]

    def is_view(self, key: Any, read: Any) -> bool:
        """Whether the result of a task shares the memory of its only input."""
        node = self.dsk[key]
        if not isinstance(node, Task):
            return False
        name = getattr(node.func, "__name__", "")
        if name not in ("getitem", "getitem_any"):
            return name == "transpose"
        if len(node.args) != 2 or not _is_slice(node.args[1]):
            return False
        # Dask's own function copies a small part of an array, so that the rest can be freed
        return node.func is not getitem or 2 * self.size(key) > self.size(read)

    def size(self, key: Any) -> int:
        """Bytes of a result."""
        stack = [key]
        while stack:
            current = stack[-1]
            if current in self._sizes:
                stack.pop()
                continue
            node = self.dsk.get(current)
            array = self.of(current)
            if array is not None:
                self._sizes[current] = math.prod(array[0]) * array[1]
            elif node is None:
                self._sizes[current] = 0
            elif isinstance(node, DataNode):
                self._sizes[current] = int(sizeof(node()))
            else:
                missing = [read for read in node.dependencies if read not in self._sizes]
                if missing:
                    stack.extend(missing)
                    continue
                self._sizes[current] = max(
                    (self._sizes[read] for read in node.dependencies), default=0
                )
            stack.pop()
        return self._sizes[key]

    def trimmed_size(self, key: Any) -> int:
        """Bytes of the block whose edges a task trims; 0 if it trims none."""
        last, _ = _last(key, self.dsk.get(key))
        name, *block = last if isinstance(last, tuple) else (last,)
        if name not in self.graph.layers:
            return 0
        if name not in self._trims:
            trimming = read_trim(self._view, name)
            self._trims[name] = None if trimming is None else self._view.array(trimming[2])
        info = self._trims[name]
        if info is None or len(block) != len(info.chunks):
            return 0
        try:
            shape = [sizes[number] for sizes, number in zip(info.chunks, block, strict=True)]
        except (IndexError, TypeError):
            return 0
        return math.prod(shape) * info.dtype.itemsize

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
