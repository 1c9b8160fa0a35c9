"""Operations of one task per tile: sources, and block functions that Dask maps.

Creation and mapped functions stay Blockwise layers, which Dask fuses with their readers, unless
each worker reads its own copy of an operand.  Reads of stored arrays do not: Dask would fuse a
Blockwise read into each of its readers, and read the tile from the file once for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, product
from typing import Any

from dask.blockwise import Blockwise, BlockwiseDep
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.typing import Key

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
from dasktile.capture.base import added_axes
from dasktile.capture.rules.blockwise import Map
from dasktile.capture.rules.sources import Create, InMemory, Read
from dasktile.ir import Chunks, bounds
from dasktile.lower.emit import EmittedLayers, LoweringContext, emit

#: Getters whose arguments after the slices are `asarray` and `lock`.
_GETTERS = (getter, getter_nofancy, getter_inline)


@emit.register
def _create(kernel: Create, context: LoweringContext) -> EmittedLayers:
    emitted = EmittedLayers()
    emitted.add(context.name, created(kernel, context.name, context.tiling.chunks), set())
    return emitted


def created(kernel: Create, name: str, chunks: Chunks) -> Blockwise:
    """A layer that creates an array of one value with these chunks."""
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
def _map(kernel: Map, context: LoweringContext) -> EmittedLayers:
    layer, node, tiling = kernel.layer, context.node, context.tiling
    sizes = {symbol: tiling.cuts[label] for symbol, label in kernel.labels.items()}
    arrays: dict[int, tuple[str, tuple[int, ...]]] = {}
    for edge, position, name in zip(node.edges, kernel.positions, context.inputs, strict=True):
        blocks = (1 if axis.label is None else len(tiling.cuts[axis.label]) for axis in edge.axes)
        arrays[position] = (name, tuple(blocks))
    emitted = _instantiated(layer, context, sizes, arrays)
    if context.copied:
        written = emitted.layers[context.name]
        emitted.layers[context.name] = MaterializedLayer(_reading_copies(written, context))
    return emitted


def _reading_copies(
    layer: Mapping[Any, GraphNode], context: LoweringContext
) -> dict[Any, GraphNode]:
    """The tasks of a layer, each reading the copies of its home worker."""
    node = context.node
    column_of = {axis.label: column for column, axis in enumerate(node.out)}
    copied = {context.inputs[edge] for edge in context.copied}
    tasks = {}
    for key, task in layer.items():
        _, *block = key
        # labels that are in no axis of the output have one block
        full = [
            block[column_of[label]] if label in column_of else 0
            for label in range(len(node.labels))
        ]
        place = context.home_position(full)
        own: dict[Key, Key | GraphNode] = {
            read: (read[0], place, *read[1:])
            for read in task.dependencies
            if type(read) is tuple and read[0] in copied
        }
        tasks[key] = task.substitute(own)
    return tasks


def _instantiated(
    layer: Blockwise,
    context: LoweringContext,
    sizes: Mapping[str, Sequence[int]],
    arrays: Mapping[int, tuple[str, tuple[int, ...]]],
) -> EmittedLayers:
    """A copy of a Blockwise layer with other numbers of blocks.

    Parameters
    ----------
    layer
        The layer.
    context
        The node to write.
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
            reads |= _layers_of(argument, layer.output, context.graph)
        elif argument in layer.io_deps:
            argument = _shapes(layer.io_deps[argument], symbols, sizes, context.node.name)
        elif position in arrays:
            argument, blocks = arrays[position]
            numblocks[argument] = blocks
            reads.add(argument)
        else:
            raise TypeError(f"{context.node.name!r} reads {argument!r}, for which it has no edge")
        indices.append((argument, symbols))
    new_axes: dict[str, Any] = {
        symbol: tuple(sizes[symbol]) if symbol in sizes else size
        for symbol, size in added_axes(layer).items()
    }
    emitted = EmittedLayers()
    written = Blockwise(
        context.name,
        layer.output_indices,
        layer.task.substitute({}, key=context.name),
        indices,
        numblocks=numblocks,
        concatenate=layer.concatenate,
        new_axes=new_axes,
        annotations=layer.annotations,
    )
    emitted.add(context.name, written, reads)
    return emitted


def _shapes(
    dep: BlockwiseDep, symbols: Sequence[str], sizes: Mapping[str, Sequence[int]], name: str
) -> ArrayChunkShapeDep:
    if type(dep) is not ArrayChunkShapeDep:
        raise TypeError(
            f"{name!r} has an argument of each block that is undefined for other tiles: "
            f"{type(dep).__name__}"
        )
    chunks: list[tuple[int, ...]] = []
    for symbol, old in zip(symbols, dep.chunks, strict=True):
        new = tuple(sizes.get(symbol, old))
        if sum(new) != sum(old):
            raise TypeError(
                f"{name!r}: the chunks of an axis of size {sum(old)} add up to {sum(new)}"
            )
        chunks.append(new)
    return ArrayChunkShapeDep(tuple(chunks))


def _layers_of(argument: Any, name: str, graph: HighLevelGraph) -> set[str]:
    """The layers of the input graph that contain the keys of an argument."""
    if isinstance(argument, TaskRef):
        keys = [argument.key]
    elif isinstance(argument, GraphNode):
        keys = list(argument.dependencies)
    else:
        return set()
    layers = set()
    for key in keys:
        candidates = sorted(graph.dependencies.get(name, ()), key=str)
        holders = [other for other in candidates if other == key or key in graph.layers[other]]
        if not holders:
            raise TypeError(f"{name!r} reads {key!r}, which is in none of its dependencies")
        layers.add(holders[0])
    return layers


def _slices(chunks: Chunks) -> list[tuple[slice, ...]]:
    """The slices of an array that its blocks are, in C order."""
    axes = []
    for sizes in chunks:
        edges = bounds(sizes)
        axes.append([slice(*pair) for pair in pairwise(edges)])
    return list(product(*axes))


def _per_tile(
    context: LoweringContext, task: Callable[[tuple[Any, ...], tuple[slice, ...]], GraphNode]
) -> MaterializedLayer:
    chunks = context.tiling.chunks
    blocks = product([context.name], *(range(len(sizes)) for sizes in chunks))
    return MaterializedLayer(
        {key: task(key, part) for key, part in zip(blocks, _slices(chunks), strict=True)}
    )


@emit.register
def _read(kernel: Read, context: LoweringContext) -> EmittedLayers:
    source: Any
    if kernel.source is None:
        source = DataNode(f"{context.name}-array", kernel.array)
    else:
        source = TaskRef(kernel.source)
    args: tuple[Any, ...] = ()
    kwargs = dict(kernel.kwargs)
    if kernel.getter in _GETTERS and set(kwargs) <= {"asarray", "lock"} and kwargs:
        # by position: Dask drops a getter's keyword arguments where it fuses slices
        args, kwargs = (kwargs.get("asarray", True), kwargs.get("lock")), {}

    def task(key: tuple[Any, ...], part: tuple[slice, ...]) -> GraphNode:
        return Task(key, kernel.getter, source, part, *args, _data_producer=True, **kwargs)

    emitted = EmittedLayers()
    reads = set() if kernel.source is None else {kernel.source}
    emitted.add(context.name, _per_tile(context, task), reads)
    return emitted


@emit.register
def _in_memory(kernel: InMemory, context: LoweringContext) -> EmittedLayers:
    def task(key: tuple[Any, ...], part: tuple[slice, ...]) -> GraphNode:
        # with the ellipsis, the block of an array without axes stays an array
        index: Any = (*part, ...)
        return DataNode(key, kernel.array[index])

    emitted = EmittedLayers()
    emitted.add(context.name, _per_tile(context, task), set())
    return emitted
