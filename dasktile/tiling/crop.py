"""The part of a program of which some blocks are needed.

If the results need only a range of an array, as ``(m @ m.T)[:100]``, Dask computes only the blocks
in it.  Tiles for the whole array would be too large, and most workers would have none of the range.
So the program is cropped to the needed ranges, that program is tiled, and the blocks around the
ranges, which are not computed, are put back.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from dasktile.ir import (
    AxisMap,
    Chunks,
    Edge,
    Kind,
    Label,
    Node,
    Picks,
    Program,
    Range,
    Ranges,
    Role,
    axis_ranges,
    bounds,
)
from dasktile.tiling.needed import Needed


def needed_ranges(program: Program, needed: Mapping[str, Needed]) -> tuple[Ranges, ...] | None:
    """For every node, the range of every label that contains all that is needed.

    A range consists of whole blocks of the input.  Those of a node of which nothing is needed are
    empty.

    Parameters
    ----------
    program
        The program.
    needed
        By the name of an array, which of its blocks are needed, for arrays of which not all are.

    Returns
    -------
    The ranges; None if they are all that there is.
    """
    count = len(program.nodes)
    found: list[Ranges] = [()] * count
    reads: list[list[_Read]] = [[] for _ in range(count)]
    outputs, is_less = set(program.outputs), False
    for index in range(count - 1, -1, -1):
        node = program.nodes[index]
        blocks = needed.get(node.name)
        ranges = whole = tuple((0, label.size) for label in node.labels)
        is_read = True
        if blocks is not None and index not in outputs:
            is_read = bool(reads[index]) or bool(blocks.any())
            ranges = _ranges(node, blocks, reads[index]) if is_read else _nothing(node)
            is_read = is_needed(node, ranges)
        found[index] = ranges
        is_less |= ranges != whole
        for edge in node.edges if is_read else ():
            part = _part_read(edge, ranges, program.nodes[edge.producer].shape)
            if part is not None:
                reads[edge.producer].append((node, edge, part))
    return tuple(found) if is_less else None


def _nothing(node: Node) -> Ranges:
    """The ranges of a node of which nothing is needed."""
    return ((0, 0),) * len(node.labels)


def is_needed(node: Node, ranges: Ranges) -> bool:
    """Whether something is needed of a node; a node without labels is taken for needed.

    Parameters
    ----------
    node, ranges
        The node, and the needed range of each of its labels.
    """
    return ranges != _nothing(node) or not any(label.size for label in node.labels)


#: A node that reads an array, the edge by which it does, and the range along every axis.
_Read = tuple[Node, Edge, Sequence[Range]]


def _part_read(edge: Edge, ranges: Ranges, shape: Sequence[int]) -> Sequence[Range] | None:
    """What iterations in some ranges read along every axis of an array; None if nothing."""
    if edge.within is not None:
        label, lo, hi = edge.within
        first, last = ranges[label]
        ranges = (*ranges[:label], (max(lo, first), min(hi, last)), *ranges[label + 1 :])
        if ranges[label][0] >= ranges[label][1]:
            return None
    part = []
    for axis, size in zip(edge.axes, shape, strict=True):
        lo, hi = (0, size) if axis.label is None else ranges[axis.label]
        part.append(axis.interval(lo, hi, size) if lo < hi else (0, 0))
    is_empty = any(lo >= hi for (lo, hi), size in zip(part, shape, strict=True) if size)
    return None if is_empty else part


def _ranges(node: Node, needed: Needed, reads: Sequence[_Read]) -> Ranges:
    """The needed range of every label of a node of which others read a part."""
    ranges = [(0, label.size) for label in node.labels]
    labels = [axis.label for axis in node.out]
    for place, axis in enumerate(node.out):
        number = axis.label
        if number is None or labels.count(number) > 1:
            continue
        label = node.labels[number]
        if label.role in (Role.WHOLE, Role.REDUCE) or 0 in label.cuts or 0 in node.chunks[place]:
            continue
        edges = bounds(node.chunks[place])
        cuts = {axis.width * cut for cut in bounds(label.cuts)}.intersection(edges)
        numbers = np.flatnonzero(needed.any(axis=_others(needed, place)))
        parts = [(edges[numbers[0]], edges[numbers[-1] + 1])] if len(numbers) else []
        for reader, edge, part in reads:
            if edge.chunks is not None:
                cuts.intersection_update(bounds(edge.chunks[place]))
            # what an unchanged operation reads is in the graph only, unless a map says it
            is_known = reader.kind is not Kind.OPAQUE or edge.axes[place].label is not None
            if is_known or not len(numbers):
                parts.append(part[place])
        ends = sorted(cuts)
        lo = ends[bisect_right(ends, min(lo for lo, _ in parts)) - 1]
        hi = ends[bisect_left(ends, max(hi for _, hi in parts))]
        # each part of a running reduction needs all before it
        start = 0 if label.role is Role.SCAN else lo // axis.width
        ranges[number] = (start, hi // axis.width)
    return tuple(ranges)


def _others(blocks: Needed, place: int) -> tuple[int, ...]:
    """All axes but one."""
    return tuple(other for other in range(blocks.ndim) if other != place)


def is_all_needed(node: Node, ranges: Ranges, needed: Needed) -> bool:
    """Whether all blocks of an array in some ranges are needed.

    Parameters
    ----------
    node
        The node of the array.
    ranges
        The range of every label.
    needed
        For every block of the array, whether it is needed.
    """
    places = []
    for (lo, hi), sizes in zip(axis_ranges(node, ranges), node.chunks, strict=True):
        edges = bounds(sizes)
        places.append(slice(bisect_right(edges, lo) - 1, bisect_left(edges, hi)))
    return bool(needed[tuple(places)].all())


# --- the cropped program ---------------------------------------------------------------


def crop(program: Program, ranges: Sequence[Ranges]) -> Program:
    """The program of the needed ranges only.

    Parameters
    ----------
    program
        The program.
    ranges
        For every node, the needed range of every label.
    """
    along = [axis_ranges(node, own) for node, own in zip(program.nodes, ranges, strict=True)]
    nodes = tuple(
        _cropped(node, own, edges_read(program, index, own), along)
        if is_needed(node, own)
        else _never_read(node)
        for index, (node, own) in enumerate(zip(program.nodes, ranges, strict=True))
    )
    return Program(nodes, program.outputs, is_part=True)


def edges_read(program: Program, index: int, ranges: Ranges) -> list[bool]:
    """For every edge of a node, whether iterations in the ranges read something.

    Parameters
    ----------
    program, index
        The node.
    ranges
        The range of each of its labels.
    """
    return [
        _part_read(edge, ranges, program.nodes[edge.producer].shape) is not None
        for edge in program.nodes[index].edges
    ]


def _never_read(node: Node) -> Node:
    """A node in place of one whose array is not needed: it costs nothing."""
    ones = (1,) * len(node.shape)
    return Node(
        node.name,
        node.op,
        Kind.SOURCE,
        tuple(Label(1, Role.FREE, (1,)) for _ in ones),
        tuple(map(AxisMap, range(len(ones)))),
        ones,
        node.dtype,
        node.itemsize,
        ((1,),) * len(ones),
        work=0.0,
        copy=node.copy,
    )


def _cropped(
    node: Node, ranges: Ranges, is_read: Sequence[bool], along: Sequence[Sequence[Range]]
) -> Node:
    """A node of the ranges only, without the edges that are not read.

    `along` are, for all nodes, the ranges of the axes.
    """
    labels = tuple(
        Label(hi - lo, label.role, within(label.cuts, lo, hi))
        for (lo, hi), label in zip(ranges, node.labels, strict=True)
    )
    place = axis_ranges(node, ranges)
    return replace(
        node,
        labels=labels,
        shape=tuple(hi - lo for lo, hi in place),
        chunks=_chunks_within(node.chunks, place),
        stored=None if node.stored is None else _chunks_within(node.stored, place),
        homes=_homes_within(node, place),
        edges=tuple(
            replace(
                _cropped_edge(edge, ranges, along[edge.producer]),
                first=_first_blocks(node, edge, ranges, along[edge.producer]),
            )
            for edge, read in zip(node.edges, is_read, strict=True)
            if read
        ),
    )


def within(sizes: Sequence[int], lo: int, hi: int) -> tuple[int, ...]:
    """The sizes of the pieces in a range, and of the parts in it of those at its ends.

    Parameters
    ----------
    sizes
        The sizes of all pieces.
    lo, hi
        The range.
    """
    if (lo, hi) == (0, sum(sizes)):
        return tuple(sizes)
    pieces = ((max(start, lo), min(stop, hi)) for start, stop in pairwise(bounds(sizes)))
    return tuple(stop - start for start, stop in pieces if start < stop)


def _chunks_within(chunks: Chunks, place: Sequence[Range]) -> Chunks:
    """The chunks in a range of every axis."""
    return tuple(within(sizes, lo, hi) for sizes, (lo, hi) in zip(chunks, place, strict=True))


def _homes_within(node: Node, place: Sequence[Range]) -> tuple[tuple[int, ...], ...] | None:
    """The homes of the blocks in a range of every axis."""
    if node.homes is None:
        return None
    counts = tuple(map(len, node.chunks))
    numbers = np.arange(len(node.homes)).reshape(counts)
    blocks = []
    for (lo, hi), sizes in zip(place, node.chunks, strict=True):
        edges = bounds(sizes)
        # an axis with empty blocks is never cut
        is_whole = (lo, hi) == (0, edges[-1])
        blocks.append(slice(None) if is_whole else slice(edges.index(lo), edges.index(hi)))
    return tuple(node.homes[number] for number in numbers[tuple(blocks)].ravel().tolist())


def _cropped_edge(edge: Edge, ranges: Ranges, place: Sequence[Range]) -> Edge:
    """An edge between the ranges of a node and those of the array that it reads."""
    within = edge.within
    if within is not None:
        label, lo, hi = within
        first, last = ranges[label]
        lo, hi = (min(max(at, first), last) - first for at in (lo, hi))
        within = (label, lo, hi)
    return replace(
        edge,
        axes=tuple(_moved(axis, ranges, own) for axis, own in zip(edge.axes, place, strict=True)),
        chunks=None if edge.chunks is None else _chunks_within(edge.chunks, place),
        within=within,
        picks=None if edge.picks is None else _picked(edge.picks, ranges, place),
    )


def _first_blocks(
    node: Node, edge: Edge, ranges: Ranges, place: Sequence[Range]
) -> tuple[int, ...]:
    """The block in a range of an array that belongs to the node's first one, along every axis.

    Empty where they are cropped alike, or an array is not read in as many blocks as the node has;
    behind all blocks where it is not in the range.
    """
    cuts = tuple(label.cuts for label in node.labels)
    if edge.chunks is None or tuple(map(len, cuts)) != tuple(map(len, edge.chunks)):
        return ()
    # empty blocks are never cut off
    made = [_numbers(bounds(sizes), *part) for sizes, part in zip(cuts, ranges, strict=True)]
    read = [_numbers(bounds(sizes), *part) for sizes, part in zip(edge.chunks, place, strict=True)]
    if made == read:
        return ()
    first = tuple(own - other for (own, _), (other, _) in zip(made, read, strict=True))
    # without the block of the node's first one, no blocks belong together
    return first if min(first, default=0) >= 0 else tuple(map(len, edge.chunks))


def _numbers(edges: Sequence[int], lo: int, hi: int) -> Range:
    """The blocks of an axis that are in a range of it: the first, and that after the last."""
    whole = (lo, hi) == (0, edges[-1])
    return (0, len(edges) - 1) if whole else (bisect_right(edges, lo) - 1, bisect_left(edges, hi))


def _moved(axis: AxisMap, ranges: Ranges, place: Range) -> AxisMap:
    """The map between a range of a label and one of an axis."""
    if axis.label is None:
        return axis
    (first, last), lo = ranges[axis.label], place[0]
    if axis.breaks:
        breaks = tuple(at - lo for at in axis.breaks[first : last + 1])
        longest = max(stop - start for start, stop in pairwise(breaks))
        return replace(axis, breaks=breaks, step=longest, width=longest)
    if axis.parts and (first, last, lo) != (0, axis.parts[-1][0], 0):
        start = axis.interval(first, last, place[1])[0] - lo
        parts = [(at - first, end - lo) for at, end in axis.parts if first < at <= last]
        return replace(axis, parts=((0, start), *parts) if start else tuple(parts))
    return replace(axis, start=axis.start + axis.step * first - lo)


def _picked(picks: Picks, ranges: Ranges, place: Sequence[Range]) -> Picks:
    """The elements in a range of an axis that the iterations in a range of the label read."""
    (first, last), lo = ranges[picks.label], place[picks.axis][0]
    runs, start = [], 0
    for element, stop in picks.runs:
        if start < last and stop > first:
            runs.append((element - lo, min(stop, last) - first))
        start = stop
    return replace(picks, runs=tuple(runs))
