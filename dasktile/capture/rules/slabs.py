"""Layers that only move elements, as slabs of whole arrays, from their blocks."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer

from dasktile._compat.dask import Task, TaskRef
from dasktile.capture.base import ArrayInfo, GraphView
from dasktile.capture.references import Key
from dasktile.capture.rules.positions import (
    NotTraceable,
    Positions,
    TracedBlock,
    is_item,
    is_transposition,
    joined,
    same_positions,
)
from dasktile.capture.rules.provenance import Trace
from dasktile.ir import bounds

#: Types of the parts of an index that is the same for all blocks.
_PLAIN = frozenset({slice, int, type(None)})


@dataclass(frozen=True, slots=True)
class Slab:
    """A part of the output, whole along all axes but one, whose elements are of one array.

    Parameters
    ----------
    name
        The array.
    sources
        For every output axis, its input axis; None if the input repeats along it.
    fixed
        Pairs of an input axis that is no output axis, and the position along it.
    runs
        The positions along every output axis.
    lo, hi
        The bounds along the one axis, in elements.
    """

    name: str
    sources: tuple[int | None, ...]
    fixed: tuple[tuple[int, int], ...]
    runs: tuple[list[Positions], ...]
    lo: int
    hi: int


def slabs_of(view: GraphView, trace: Trace, info: ArrayInfo) -> tuple[list[Slab], int]:
    """An array as consecutive slabs along an axis, and that axis.

    Parameters
    ----------
    view
        The graph.
    trace
        The blocks of the array, as positions.
    info
        The array.

    Raises
    ------
    NotTraceable
        If the tasks of its layer do not only move elements axis by axis.
    """
    whole = (
        _turned(view, trace, view.layers[info.name], info)
        or _indexed(trace, info)
        or _divided(trace, info)
    )
    return _slabs(view, trace, info) if whole is None else ([whole], 0)


def _signature(block: TracedBlock) -> tuple[Any, ...]:
    return block.name, tuple([axis.source for axis in block.axes]), block.fixed


def _slabs(view: GraphView, trace: Trace, info: ArrayInfo) -> tuple[list[Slab], int]:
    """The output as consecutive slabs along an axis, and that axis."""
    blocks: dict[tuple[int, ...], TracedBlock] = {}
    first: dict[tuple[int, ...], tuple[Any, ...]] = {}
    places = itertools.product(*map(range, info.numblocks))
    for place, expected in zip(places, itertools.product(*info.chunks), strict=True):
        block = trace.block((info.name, *place))
        if not isinstance(block, TracedBlock) or block.shape != expected:
            raise NotTraceable("a block whose shape is not that of its chunk")
        blocks[place], first[place] = block, _signature(block)
    different = set(first.values())
    for source in {name for name, _, _ in different}:
        origin = view.array(source)
        if origin is None or origin.dtype != info.dtype or not all(map(all, origin.chunks)):
            raise NotTraceable("an input of another dtype, or with empty chunks")

    # blocks of one array, as in most layers, need no look at each axis
    varying = [
        axis
        for axis in range(len(info.shape) if len(different) > 1 else 0)
        if any(
            first[place] != first[(*place[:axis], 0, *place[axis + 1 :])]
            for place in blocks
            if place[axis]
        )
    ]
    if len(varying) > 1:
        raise NotTraceable("several arrays, arranged along several axes")
    axis = varying[0] if varying else 0
    starts = [0]
    if varying:
        line = [
            first[tuple(i if k == axis else 0 for k in range(len(info.shape)))]
            for i in range(info.numblocks[axis])
        ]
        starts += [i for i in range(1, len(line)) if line[i] != line[i - 1]]
    edges = bounds(info.chunks[axis]) if info.shape else (0, 1)
    stops = [*starts[1:], len(edges) - 1]
    groups: list[list[tuple[tuple[int, ...], TracedBlock]]] = [[] for _ in starts]
    slab_of = [n for n, (a, b) in enumerate(zip(starts, stops, strict=True)) for _ in range(b - a)]
    for place, block in blocks.items():
        groups[slab_of[place[axis]] if varying else 0].append((place, block))
    return [
        _slab(group, len(info.shape), edges[start], edges[stop])
        for group, start, stop in zip(groups, starts, stops, strict=True)
    ], axis


def _turned(view: GraphView, trace: Trace, layer: Layer, info: ArrayInfo) -> Slab | None:
    """A layer that transposes each block, from its first block; None for other layers."""
    if not isinstance(layer, Blockwise) or not info.shape:
        return None
    if not is_transposition(getattr(layer.task, "func", None)):
        return None
    arrays = [(source, labels) for source, labels in layer.indices if labels is not None]
    block = trace.block((info.name, *(0,) * len(info.shape)))
    if len(arrays) != 1 or not isinstance(block, TracedBlock) or block.fixed:
        return None
    source, labels = arrays[0]
    origin = view.array(source) if isinstance(source, str) else None
    axes = tuple(axis.source for axis in block.axes)
    if origin is None or origin.dtype != info.dtype or block.name != source:
        return None
    order = tuple(axis for axis in axes if axis is not None)
    if sorted(order) != list(range(len(labels))) or len(order) != len(axes):
        return None
    read = tuple(labels[axis] for axis in order)
    if read != tuple(layer.output_indices) or len(set(read)) < len(read):
        return None
    if info.chunks != tuple(origin.chunks[axis] for axis in order):
        return None
    runs: tuple[list[Positions], ...] = tuple([range(size)] for size in info.shape)
    return Slab(block.name, axes, (), runs, 0, info.shape[0])


def _indexed(trace: Trace, info: ArrayInfo) -> Slab | None:
    """A layer that takes the same index of each block, from the index; None for other layers.

    The index is that of whole axes, of new ones, and of the only element of others, as where an
    axis is added to a vector for a product of matrices.
    """
    first = trace.tasks.get((info.name, *(0,) * len(info.shape)))
    if not info.shape or type(first) is not Task or not is_item(first.func):
        return None
    read, index = first.args if len(first.args) == 2 else (None, None)
    origin = trace.source(read.key) if type(read) is TaskRef else None
    if origin is None or origin.dtype != info.dtype or type(index) is not tuple:
        return None
    kinds = tuple(map(type, index))
    if not _PLAIN.issuperset(kinds) or len(origin.shape) != len(index) - index.count(None):
        return None
    sources: list[int | None] = []
    fixed = []
    axes = iter(range(len(origin.shape)))
    for entry in index:
        axis = None if entry is None else next(axes)
        if axis is None or entry == slice(None):
            sources.append(axis)
        elif entry == 0 and origin.chunks[axis] == (1,):
            fixed.append((axis, 0))
        else:
            return None
    chunks = tuple((1,) if axis is None else origin.chunks[axis] for axis in sources)
    if info.chunks != chunks or not all(map(all, origin.chunks)):
        return None
    keys = list(itertools.product((info.name,), *map(range, info.numblocks)))
    columns = dict(zip(sources, list(zip(*keys, strict=True))[1:], strict=True))
    numbers = [columns.get(axis, itertools.repeat(0)) for axis in range(len(origin.shape))]
    reads = zip(itertools.repeat(origin.name), *numbers, strict=False)
    if not _all_take(list(map(trace.tasks.get, keys)), first.func, reads, index):
        return None
    runs: tuple[list[Positions], ...] = tuple([range(size)] for size in info.shape)
    return Slab(origin.name, tuple(sources), tuple(fixed), runs, 0, info.shape[0])


def _divided(trace: Trace, info: ArrayInfo) -> Slab | None:
    """A layer that cuts the blocks of an array into smaller ones, from its chunks; None for others.

    Dask makes such a layer where an array is used with another one of smaller chunks.
    """
    first = trace.target((info.name, *(0,) * len(info.shape)))
    if not info.shape or type(first) is not Task or not is_item(first.func):
        return None
    read = first.args[0] if first.args else None
    origin = trace.source(read.key) if type(read) is TaskRef else None
    if origin is None or origin.shape != info.shape or origin.dtype != info.dtype:
        return None
    if not all(map(all, origin.chunks)):
        return None
    #: For every axis and number of a block, the number of the block that it is cut from, and where.
    cuts: list[list[tuple[int, slice]]] = []
    for sizes, own in zip(origin.chunks, info.chunks, strict=True):
        edges = bounds(sizes)
        along = []
        for lo, hi in itertools.pairwise(bounds(own)):
            number = bisect_right(edges, lo) - 1
            if hi > edges[number + 1]:
                return None
            along.append((number, slice(lo - edges[number], hi - edges[number])))
        cuts.append(along)
    kinds = (slice,) * len(info.shape)
    places = itertools.product(*map(range, info.numblocks))
    for place, cut in zip(places, itertools.product(*cuts), strict=True):
        numbers, index = zip(*cut, strict=True)
        task = trace.target((info.name, *place))
        if not _takes(task, first.func, (origin.name, *numbers), index, kinds):
            return None
    runs: tuple[list[Positions], ...] = tuple([range(size)] for size in info.shape)
    return Slab(origin.name, tuple(range(len(runs))), (), runs, 0, info.shape[0])


def _takes(
    task: Any, function: Any, key: Key, index: tuple[Any, ...], kinds: tuple[type, ...]
) -> bool:
    """Whether a task calls a function with the block of a key and an index of these types."""
    if type(task) is not Task or task.func is not function or task.kwargs or len(task.args) != 2:
        return False
    read, other = task.args
    if type(read) is not TaskRef or read.key != key:
        return False
    if other is index:
        return True
    # types first, as arrays have no truth value, and True is no number of an element
    return type(other) is tuple and tuple(map(type, other)) == kinds and other == index


def _all_take(
    tasks: Sequence[Any], function: Any, keys: Iterable[Key], index: tuple[Any, ...]
) -> bool:
    """As :func:`_takes` for every task, of the same index and the block of its own key."""
    if set(map(type, tasks)) != {Task}:
        return False
    args = [task.args for task in tasks if task.func is function and not task.kwargs]
    if len(args) < len(tasks) or set(map(len, args)) != {2}:
        return False
    reads, indices = zip(*args, strict=True)
    if set(map(type, reads)) != {TaskRef}:
        return False
    if not all(read.key == key for read, key in zip(reads, keys, strict=False)):
        return False
    # types first, as arrays have no truth value, and True is no number of an element
    kinds = tuple(map(type, index))
    return all(
        other is index
        or (type(other) is tuple and tuple(map(type, other)) == kinds and other == index)
        for other in indices
    )


def _slab(group: list[tuple[tuple[int, ...], TracedBlock]], ndim: int, lo: int, hi: int) -> Slab:
    name, sources, fixed = _signature(group[0][1])
    along: list[dict[int, Positions]] = [{} for _ in range(ndim)]
    for place, block in group:
        for by_block, number, part in zip(along, place, block.axes, strict=True):
            known = by_block.setdefault(number, part.positions)
            if known is not part.positions and not same_positions(known, part.positions):
                raise NotTraceable("positions along one axis depend on another axis")
    runs = tuple(joined(_evenly(by_block[i]) for i in sorted(by_block)) for by_block in along)
    return Slab(name, sources, fixed, runs, lo, hi)


def _evenly(index: Positions) -> Positions:
    """Positions as a range if they have a constant step."""
    if isinstance(index, range) or not len(index):
        return index
    start, stop = int(index[0]), int(index[-1])
    if len(index) == 1:
        return range(start, start + 1)
    step = int(index[1]) - start
    if not step or (stop - start) != step * (len(index) - 1) or (np.diff(index) != step).any():
        return index
    return range(start, stop + (1 if step > 0 else -1), step)
