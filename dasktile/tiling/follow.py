"""Nodes that follow a persisted array: each block of work is where a block of the array is.

A mesh gives every worker a box.  The blocks of a persisted array are on whichever workers the
scheduler chose, and no box fits.  A node may therefore *follow* such an array: its labels along
the array's axes have the array's cuts, and every block of work runs on the worker that has the
array's block.  Of a slice, a stencil or a padded array, which is a little shorter or longer, the
last block is; from other blocks, each block reads a few elements at its edges.  Slices that leave
out whole blocks, reversed arrays and arrays one behind the other have other numbers of blocks; so
have nodes that keep their own chunks.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dasktile.ir import Chunks, Follow, Kind, Node, Program, Role, bounds
from dasktile.ir.block_numbers import Numbers, are_short, unless_all
from dasktile.tiling.lines import Lines, Part, is_line

#: Kinds of node whose blocks may be anywhere.
_KINDS = frozenset({Kind.MAP, Kind.CONTRACT, Kind.FOLD, Kind.SCAN, Kind.VIEW, Kind.SOURCE})

#: The last block of an axis that follows a persisted one over its longest block, at most (chosen:
#: longer than that by what is padded, or by a halo).
LONGEST_LAST = 1.5

#: Distance from the nearest boundary, as a share of a block, from which a label that begins there
#: is cut where blocks begin, and not as they are (chosen: halos and differences are shifted less).
FAR = 0.25

#: Blocks of a label over those of the axis that it follows, at most (chosen: of a label that reads
#: here and there in no order, each iteration would be a block).
MOST_CUTS = 4

#: Ways in which the axes of a persisted array may run along the dimensions of one node, at most
#: (chosen: more than three axes of one size along the same data are rare).
MOST_ASSIGNED = 4

#: Roles of the labels that may be cut as a persisted array is.
_ROLES = frozenset({Role.FREE, Role.REDUCE, Role.SCAN, Role.PINNED})


def leaders(program: Program) -> list[int]:
    """Indices of the nodes that others may follow, in descending order of bytes."""
    indices = [
        index
        for index, node in enumerate(program.nodes)
        if node.homes is not None and all(node.homes) and len(node.homes) > 1
    ]
    return sorted(indices, key=lambda index: (-program.nodes[index].nbytes, index))


@dataclass(frozen=True, slots=True)
class _Cut:
    """The blocks of a dimension: their sizes, and the number of the block that each follows."""

    sizes: tuple[int, ...]
    numbers: Numbers


def _cut(parts: Sequence[Part], sizes: tuple[int, ...], own: tuple[int, ...] | None) -> _Cut | None:
    """How a label is cut that follows an axis in blocks of these sizes.

    It has its `own` cuts, if these are given, or about those of the axis.  None where its last
    block would be empty or far longer than they are, or not all parts of it are whole blocks.
    """
    if len(parts) > 1:
        found = _one_by_one(parts, sizes) or _in_blocks(parts, sizes)
    elif abs(parts[0].along.step) == 1:
        exact = _scaled(parts[0], sizes) if _is_far(parts[0], sizes) else None
        found = exact or _nearest(parts[0], sizes)
    else:
        found = _scaled(parts[0], sizes)
    if own is None or (found is not None and own == found.sizes):
        return found
    return _Cut(own, _numbers_of(parts, sizes, own))


def _one_by_one(parts: Sequence[Part], sizes: tuple[int, ...]) -> _Cut | None:
    """The cut of a label whose parts are whole blocks."""
    cuts: list[int] = []
    numbers: list[int] = []
    for part in parts:
        found = _nearest(part, sizes) if abs(part.along.step) == 1 else None
        if found is None or not _is_exact(part, sizes, found.numbers):
            return None
        cuts += found.sizes
        numbers += found.numbers
    return _Cut(tuple(cuts), tuple(numbers))


def _is_far(part: Part, sizes: tuple[int, ...]) -> bool:
    """Whether a part of a label begins far from where a block does."""
    edges = bounds(sizes)
    first = float(part.along.first + (part.along.step < 0))
    after = min(max(bisect_left(edges, first), 1), len(sizes))
    return min(abs(first - edges[after - 1]), abs(edges[after] - first)) > FAR * sizes[after - 1]


def _in_blocks(parts: Sequence[Part], sizes: tuple[int, ...]) -> _Cut | None:
    """Blocks of the iterations that read in one block, of a label whose parts begin anywhere."""
    steps = [(part.hi - part.lo, part.along.first, part.along.step) for part in parts]
    if not all(isinstance(first, int) and isinstance(step, int) for _, first, step in steps):
        return None
    places = np.concatenate([int(first) + int(step) * np.arange(n) for n, first, step in steps])
    if len(places) == 0 or places.min() < 0 or places.max() >= sum(sizes):
        return None
    blocks = np.searchsorted(bounds(sizes), places, side="right") - 1
    starts = np.flatnonzero(np.diff(blocks, prepend=-1))
    if len(starts) > MOST_CUTS * len(sizes):
        return None
    cuts = np.diff(np.append(starts, len(blocks)))
    return _Cut(tuple(cuts.tolist()), tuple(blocks[starts].tolist()))


def _nearest(part: Part, sizes: tuple[int, ...]) -> _Cut | None:
    """Neighbouring blocks that begin about where a part of a label does, and are as long.

    The last one is shorter or longer, so that labels that are shifted a little have equal cuts.
    """
    along, length = part.along, part.hi - part.lo
    numbers = range(len(sizes))[:: int(along.step)]
    first = along.first if along.step > 0 else sum(sizes) - 1 - along.first
    edges = bounds([sizes[number] for number in numbers])
    after = min(max(bisect_left(edges, first), 1), len(sizes) - 1)
    begin = after - (2 * first <= edges[after - 1] + edges[after]) if len(sizes) > 1 else 0
    left = numbers[begin:]
    if length == edges[-1] - edges[begin]:
        return _Cut(tuple(sizes[number] for number in left), tuple(left))
    # all blocks that are left, or those that are as long, or else the fewest
    longest = LONGEST_LAST * max(sizes)
    fewest = bisect_left(edges, edges[begin] + length - longest, begin) - begin + 1
    enough = bisect_left(edges, edges[begin] + length) - begin
    is_exact = edges[min(begin + enough, len(edges) - 1)] == edges[begin] + length
    for count in (len(left), enough, fewest) if is_exact else (len(left), fewest):
        last = length - (edges[min(begin + count, len(edges)) - 1] - edges[begin])
        if count <= len(left) and 0 < last <= longest:
            before = tuple(sizes[number] for number in left[: count - 1])
            return _Cut((*before, last), tuple(left[:count]))
    return None


def _scaled(part: Part, sizes: tuple[int, ...]) -> _Cut | None:
    """Blocks of the iterations that read in each block, of a label that reads with a step."""
    along, length = part.along, part.hi - part.lo
    step, first, numbers = along.step, along.first, range(len(sizes))
    if step < 0:
        step, first, numbers = -step, sum(sizes) - 1 - first, numbers[::-1]
    edges = bounds([sizes[number] for number in numbers])
    # the first iteration that reads at or after each edge
    at = [min(max(-((first - edge) // step), 0), length) for edge in edges]
    cuts = [(hi - lo, number) for lo, hi, number in zip(at, at[1:], numbers, strict=False)]
    cuts = [(size, number) for size, number in cuts if size]
    if at[0] != 0 or at[-1] != length or not cuts:
        return None
    return _Cut(tuple(size for size, _ in cuts), tuple(number for _, number in cuts))


def _is_exact(part: Part, sizes: tuple[int, ...], numbers: Numbers) -> bool:
    """Whether a part of a label begins and ends where these blocks do."""
    start = bounds(sizes)[numbers[0] + (part.along.step < 0)]
    first = part.along.first + (part.along.step < 0)
    return start == first and sum(sizes[number] for number in numbers) == part.hi - part.lo


def _numbers_of(parts: Sequence[Part], sizes: tuple[int, ...], cuts: tuple[int, ...]) -> Numbers:
    """The blocks, of these sizes, in which the middles of the blocks of a label are."""
    found = []
    edges = bounds(sizes)
    for lo, hi in itertools.pairwise(bounds(cuts)):
        middle = (lo + max(lo, hi - 1)) // 2
        part = next((part for part in parts if middle < part.hi), parts[-1])
        place = part.along.first + part.along.step * (middle - part.lo)
        found.append(min(max(bisect_right(edges, place) - 1, 0), len(sizes) - 1))
    return tuple(found)


def candidates(
    program: Program,
    lines: Lines,
    leading: Sequence[int],
    index: int,
    retile: bool,
    most: int,
) -> Iterator[Follow]:
    """Ways in which a node may follow an array.

    Parameters
    ----------
    program, lines
        What is tiled, and the result of :func:`~dasktile.tiling.lines.lines_of`.
    leading
        The result of :func:`leaders`.
    index
        The node.
    retile
        False where labels keep their own cuts.
    most
        Number of ways after which no further array is tried.
    """
    node = program.nodes[index]
    by_block = _reads_by_block(node)
    if (node.kind not in _KINDS and not by_block) or not node.labels or 0 in node.shape:
        return iter(())

    cuttable = [label for label in range(len(node.labels)) if _is_cuttable(node, label, by_block)]

    def matching(leader: int, axis: int, sizes: tuple[int, ...]) -> dict[int, _Cut]:
        found = {}
        for label in cuttable:
            loop, along = node.labels[label], lines.labels[index][label]
            parts = lines.between(along, loop.size, lines.labels[leader][axis])
            keeps = loop.role is Role.PINNED or not retile
            cut = _cut(parts, sizes, loop.cuts if keeps else None) if parts else None
            if cut is not None:
                found[label] = cut
        return found

    return _along_leaders(program, leading, matching, most)


def kept(
    program: Program,
    lines: Lines,
    leading: Sequence[int],
    index: int,
    chunks: Chunks | None,
    most: int,
) -> Iterator[Follow]:
    """Ways in which a node's array may be kept where the blocks of a persisted array are.

    The dims of each are axes of the node's array.

    Parameters
    ----------
    program, lines, leading, index, most
        As for :func:`candidates`.
    chunks
        The chunks that the array must have; None for those of the persisted array.
    """
    node = program.nodes[index]

    def matching(leader: int, axis: int, sizes: tuple[int, ...]) -> dict[int, _Cut]:
        found = {}
        for place, (out, size) in enumerate(zip(node.out, node.shape, strict=True)):
            if out.label is None or not out.identity:
                continue
            along = lines.labels[index][out.label]
            parts = lines.between(along, size, lines.labels[leader][axis])
            cut = _cut(parts, sizes, None if chunks is None else chunks[place]) if parts else None
            if cut is not None:
                found[place] = cut
        return found

    return _along_leaders(program, leading, matching, most)


def _along_leaders(
    program: Program,
    leading: Sequence[int],
    matching: Callable[[int, int, tuple[int, ...]], Mapping[int, _Cut]],
    most: int,
) -> Iterator[Follow]:
    """Ways to follow arrays.

    `matching` has the dimensions that may run along an axis of one, and their blocks.
    """
    offered = 0
    for leader in leading:
        array = program.nodes[leader]
        matches = {
            axis: matching(leader, axis, sizes)
            for axis, sizes in enumerate(array.chunks)
            if len(sizes) > 1
        }
        for dims in _assigned(matches, len(array.shape)):
            cut = [None if dim is None else matches[axis][dim] for axis, dim in enumerate(dims)]
            numbers = tuple(
                None if each is None else unless_all(each.numbers, len(sizes))
                for each, sizes in zip(cut, array.chunks, strict=True)
            )
            if are_short(numbers):
                cuts = tuple(None if each is None else each.sizes for each in cut)
                yield Follow(array.name, leader, dims, numbers, cuts)
                offered += 1
        if offered >= most:
            return


def _assigned(matches: Mapping[int, Iterable[int]], axes: int) -> Iterator[tuple[int | None, ...]]:
    """Ways to give each of some axes, of so many, another one of the dimensions that match it."""
    ways = (
        way for way in itertools.product(*map(tuple, matches.values())) if len(set(way)) == len(way)
    )
    for way in itertools.islice(ways, MOST_ASSIGNED):
        along = dict(zip(matches, way, strict=True))
        yield tuple(along.get(axis) for axis in range(axes))


def _reads_by_block(node: Node) -> bool:
    """Whether every block of a node that keeps its chunks reads just one block of each input."""
    return bool(node.edges) and all(
        edge.within is None
        and not edge.spread
        and edge.chunks is not None
        and len(edge.axes) == len(edge.chunks)
        and all(
            axis.label is not None and axis.identity and node.labels[axis.label].cuts == sizes
            for axis, sizes in zip(edge.axes, edge.chunks, strict=True)
        )
        for edge in node.edges
    )


def _is_cuttable(node: Node, label: int, by_block: bool) -> bool:
    """Whether a label may be cut as a persisted axis is, so that blocks need about its blocks."""
    if node.labels[label].role not in _ROLES:
        return False
    if not by_block and any(edge.chunks is not None for edge in node.edges):
        return False
    for maps in (node.out, *(edge.axes for edge in node.edges)):
        along = [axis for axis in maps if axis.label == label]
        if len(along) > 1 or not all(map(is_line, along)):
            return False
    return all(axis.identity for axis in node.out if axis.label == label)
