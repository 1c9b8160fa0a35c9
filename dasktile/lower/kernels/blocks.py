"""Operations of one task per tile: sources, and block functions that Dask maps.

Creation and mapped functions stay Blockwise layers, which Dask fuses with their
neighbours.  Reads do not: Dask would fuse a Blockwise read into each of its consumers,
and read the tile again for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, product
from typing import Any

from dask.blockwise import Blockwise, BlockwiseDep
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from dasktile._compat.dask import (
    ArrayChunkShapeDep,
    DataNode,
    GraphNode,
    Task,
    TaskRef,
    getter,
    getter_inline,
    getter_nofancy,
)
from dasktile.capture.rules.blockwise import Map
from dasktile.capture.rules.sources import Create, InMemory, Read
from dasktile.ir import Chunks, bounds
from dasktile.lower.emit import Emission, Emitted, emit

#: Getters whose arguments after the slices are `asarray` and `lock`.
_GETTERS = (getter, getter_nofancy, getter_inline)


@emit.register
def _create(kernel: Create, emission: Emission) -> Emitted:
    emitted = Emitted()
    emitted.add(emission.name, created(kernel, emission.name, emission.tiling.chunks), set())
    return emitted


def created(kernel: Create, name: str, chunks: Chunks) -> Blockwise:
    """A layer that makes an array of one value in these chunks."""
    layer = kernel.layer
    return Blockwise(
        name,
        layer.output_indices,
        layer.task.substitute({}, key=name),
        [(ArrayChunkShapeDep(chunks), layer.output_indices)],
        numblocks={},
        annotations=layer.annotations,
    )


@emit.register
def _map(kernel: Map, emission: Emission) -> Emitted:
    layer, node, tiling = kernel.layer, emission.node, emission.tiling
    sizes = {symbol: tiling.cuts[label] for symbol, label in kernel.labels.items()}
    arrays: dict[int, tuple[str, tuple[int, ...]]] = {}
    for edge, position, name in zip(node.edges, kernel.positions, emission.inputs, strict=True):
        blocks = (1 if axis.label is None else len(tiling.cuts[axis.label]) for axis in edge.axes)
        arrays[position] = (name, tuple(blocks))
    return _instantiated(layer, emission, sizes, arrays)


def _instantiated(
    layer: Blockwise,
    emission: Emission,
    sizes: Mapping[str, Sequence[int]],
    arrays: Mapping[int, tuple[str, tuple[int, ...]]],
) -> Emitted:
    """A Blockwise layer again, with other numbers of blocks.

    Parameters
    ----------
    layer
        The layer.
    emission
        What is to be written.
    sizes
        Chunk sizes along the layer's index symbols; others have one block.
    arrays
        For every array argument, by its place in ``layer.indices``: the layer to read
        instead, and its numbers of blocks.
    """
    indices: list[tuple[Any, Any]] = []
    numblocks: dict[str, tuple[int, ...]] = {}
    reads: set[str] = set()
    argument: Any
    for position, (argument, symbols) in enumerate(layer.indices):
        if symbols is None:
            reads |= _layers_of(argument, layer.output, emission.graph)
        elif argument in layer.io_deps:
            argument = _shapes(layer.io_deps[argument], symbols, sizes, emission.node.name)
        elif position in arrays:
            argument, blocks = arrays[position]
            numblocks[argument] = blocks
            reads.add(argument)
        else:
            raise TypeError(f"{emission.node.name!r} reads {argument!r}, which no edge stands for")
        indices.append((argument, symbols))
    new_axes: dict[str, Any] = {
        symbol: tuple(sizes[symbol]) if symbol in sizes else size
        for symbol, size in layer.new_axes.items()
    }
    emitted = Emitted()
    written = Blockwise(
        emission.name,
        layer.output_indices,
        layer.task.substitute({}, key=emission.name),
        indices,
        numblocks=numblocks,
        concatenate=layer.concatenate,
        new_axes=new_axes,
        annotations=layer.annotations,
    )
    emitted.add(emission.name, written, reads)
    return emitted


def _shapes(
    dep: BlockwiseDep, symbols: Sequence[str], sizes: Mapping[str, Sequence[int]], name: str
) -> ArrayChunkShapeDep:
    if type(dep) is not ArrayChunkShapeDep:
        raise TypeError(
            f"{name!r} depends on the block in a way that has no meaning for other tiles: "
            f"{type(dep).__name__}"
        )
    chunks: list[tuple[int, ...]] = []
    for symbol, before in zip(symbols, dep.chunks, strict=True):
        now = tuple(sizes.get(symbol, before))
        if sum(now) != sum(before):
            raise TypeError(f"{name!r}: an axis of {sum(before)} is cut as one of {sum(now)}")
        chunks.append(now)
    return ArrayChunkShapeDep(tuple(chunks))


def _layers_of(argument: Any, name: str, graph: HighLevelGraph) -> set[str]:
    """The layers of the input graph that hold what an argument refers to."""
    if isinstance(argument, TaskRef):
        keys = [argument.key]
    elif isinstance(argument, GraphNode):
        keys = list(argument.dependencies)
    else:
        return set()
    found = set()
    for key in keys:
        candidates = sorted(graph.dependencies.get(name, ()))
        holders = [other for other in candidates if other == key or key in graph.layers[other]]
        if not holders:
            raise TypeError(f"{name!r} reads {key!r}, which is in none of its dependencies")
        found.add(holders[0])
    return found


def _slices(chunks: Chunks) -> list[tuple[slice, ...]]:
    """The part of an array that each block is, in C order."""
    axes = []
    for sizes in chunks:
        edges = bounds(sizes)
        axes.append([slice(*pair) for pair in pairwise(edges)])
    return list(product(*axes))


def _per_tile(
    emission: Emission, task: Callable[[tuple[Any, ...], tuple[slice, ...]], GraphNode]
) -> MaterializedLayer:
    chunks = emission.tiling.chunks
    blocks = product([emission.name], *(range(len(sizes)) for sizes in chunks))
    return MaterializedLayer(
        {key: task(key, part) for key, part in zip(blocks, _slices(chunks), strict=True)}
    )


@emit.register
def _read(kernel: Read, emission: Emission) -> Emitted:
    source: Any
    if kernel.source is None:
        source = DataNode(f"{emission.name}-array", kernel.array)
    else:
        source = TaskRef(kernel.source)
    args: tuple[Any, ...] = ()
    kwargs = dict(kernel.kwargs)
    if kernel.getter in _GETTERS and set(kwargs) <= {"asarray", "lock"} and kwargs:
        # by position: where Dask fuses slices it forgets a getter's keyword arguments
        args, kwargs = (kwargs.get("asarray", True), kwargs.get("lock")), {}

    def task(key: tuple[Any, ...], part: tuple[slice, ...]) -> GraphNode:
        return Task(key, kernel.getter, source, part, *args, _data_producer=True, **kwargs)

    emitted = Emitted()
    reads = set() if kernel.source is None else {kernel.source}
    emitted.add(emission.name, _per_tile(emission, task), reads)
    return emitted


@emit.register
def _in_memory(kernel: InMemory, emission: Emission) -> Emitted:
    def task(key: tuple[Any, ...], part: tuple[slice, ...]) -> GraphNode:
        # the ellipsis keeps an array of no axes an array
        index: Any = (*part, ...)
        return DataNode(key, kernel.array[index])

    emitted = Emitted()
    emitted.add(emission.name, _per_tile(emission, task), set())
    return emitted
