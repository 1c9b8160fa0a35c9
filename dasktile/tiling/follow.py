"""Nodes that follow a persisted array: each block of work is where a block of the array is.

A mesh gives every worker a box.  The blocks of a persisted array are on whichever workers the
scheduler chose, and no box fits.  A node may therefore *follow* such an array: its labels along
the array's axes have the array's cuts, and every block of work runs on the worker that has the
array's block.  Of a slice, a stencil or a padded array, which is a little shorter or longer, the
last block is; from other blocks, each block reads a few elements at its edges.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from dasktile.ir import AxisMap, Follow, Kind, Node, Program, Role, bounds
from dasktile.ir.disjoint import root
from dasktile.tiling.blocks import Blocks
from dasktile.tiling.strided import steps_of

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

#: Kinds of node whose blocks may be anywhere.
_KINDS = frozenset({Kind.MAP, Kind.CONTRACT, Kind.FOLD, Kind.SCAN, Kind.VIEW, Kind.SOURCE})

#: The last block of an axis that follows a persisted one over its longest block, at most (chosen:
#: longer than that by what is padded, or by a halo).
LONGEST_LAST = 1.5

#: Ways in which the axes of a persisted array may run along the dimensions of one node, at most
#: (chosen: more than three axes of one size along the same data are rare).
MOST_ASSIGNED = 4

#: Roles of the labels that may be cut as a persisted array is.
_ROLES = frozenset({Role.FREE, Role.REDUCE, Role.SCAN, Role.PINNED})


@dataclass(frozen=True, slots=True, eq=False)
class Followed:
    """The blocks that workers compute, hold and need where a node follows an array.

    Parameters
    ----------
    work, held
        Blocks of the loop nest and of the result.
    needs
        For every edge, what is read.
    partials
        Elements of partial results, and of carries, that are sent between workers.
    """

    work: Blocks
    held: Blocks
    needs: tuple[Blocks, ...]
    partials: float = 0.0


def resident(node: Node, workers: int) -> Followed:
    """A persisted array with fixed placement."""
    counts = tuple(map(len, node.chunks))
    owned = np.zeros((workers, math.prod(counts)), dtype=bool)
    for block, places in enumerate(node.homes or ()):
        owned[list(places), block] = True
    edges = tuple(np.asarray(bounds(sizes), dtype=np.int64) for sizes in node.chunks)
    blocks = Blocks(edges, owned.reshape(workers, *counts))
    return Followed(blocks, blocks, ())


def leaders(program: Program) -> list[int]:
    """Indices of the nodes that others may follow, in descending order of bytes."""
    indices = [
        index
        for index, node in enumerate(program.nodes)
        if node.homes is not None and all(node.homes) and len(node.homes) > 1
    ]
    return sorted(indices, key=lambda index: (-program.nodes[index].nbytes, index))


def near_classes(program: Program) -> tuple[tuple[int, ...], ...]:
    """Group labels that run along the same axis of the same data, shifted by some elements maybe.

    For every node and label, its group.
    """
    offsets = list(accumulate((len(node.labels) for node in program.nodes), initial=0))
    parent = list(range(offsets[-1]))
    for index, node in enumerate(program.nodes):
        for edge in node.edges:
            for made, read in zip(program.nodes[edge.producer].out, edge.axes, strict=True):
                if made.label is None or not made.identity or not _is_shift(read):
                    continue
                assert read.label is not None
                reader = root(parent, offsets[index] + read.label)
                maker = root(parent, offsets[edge.producer] + made.label)
                parent[max(reader, maker)] = min(reader, maker)
    return tuple(
        tuple(root(parent, first + label) for label in range(len(node.labels)))
        for first, node in zip(offsets, program.nodes, strict=False)
    )


def _is_shift(axis: AxisMap) -> bool:
    """Whether iterations read one element after the other, and some around it maybe."""
    return axis.label is not None and axis.step == 1 and not axis.breaks and not axis.parts


def cuts_along(sizes: tuple[int, ...], length: int) -> tuple[int, ...] | None:
    """The cuts of an axis of some length that follows one that is cut into blocks.

    The last block is shorter or longer; None if it would be empty, or far longer, as for slices
    that leave out whole blocks.

    Parameters
    ----------
    sizes
        Sizes of the blocks.
    length
        The length of the other axis.
    """
    if length == sum(sizes):
        return sizes
    last = length - sum(sizes[:-1])
    return (*sizes[:-1], last) if 0 < last <= LONGEST_LAST * max(sizes) else None


def candidates(
    program: Program,
    members: Sequence[Sequence[int]],
    leading: Sequence[int],
    index: int,
    retile: bool,
    most: int,
) -> Iterator[Follow]:
    """Ways in which a node may follow an array.

    Parameters
    ----------
    program, members
        What is tiled, and the result of :func:`near_classes`.
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
    by_block = not retile and _reads_by_block(program, node)
    if (node.kind not in _KINDS and not by_block) or not node.labels or 0 in node.shape:
        return iter(())

    def matching(leader: int, axis: int, sizes: tuple[int, ...]) -> list[int]:
        return [
            label
            for label, klass in enumerate(members[index])
            if klass == members[leader][axis] and _cuttable(node, label, sizes, retile, by_block)
        ]

    return _along_leaders(program, leading, matching, most)


def kept(
    program: Program,
    members: Sequence[Sequence[int]],
    leading: Sequence[int],
    index: int,
    most: int,
) -> Iterator[Follow]:
    """Ways in which a node's array may be kept in the blocks of a persisted array.

    The parameters are those of :func:`candidates`.  The dims of each are axes of the node's array.
    """
    node = program.nodes[index]
    classes = [
        members[index][axis.label] if axis.label is not None and axis.identity else -1
        for axis in node.out
    ]

    def matching(leader: int, axis: int, sizes: tuple[int, ...]) -> list[int]:
        return [
            place
            for place, klass in enumerate(classes)
            if klass == members[leader][axis] and cuts_along(sizes, node.shape[place]) is not None
        ]

    return _along_leaders(program, leading, matching, most)


def _along_leaders(
    program: Program,
    leading: Sequence[int],
    matching: Callable[[int, int, tuple[int, ...]], Sequence[int]],
    most: int,
) -> Iterator[Follow]:
    """Ways to follow arrays; `matching` has the dimensions that may run along an axis of one."""
    offered = 0
    for leader in leading:
        array = program.nodes[leader]
        matches = {
            axis: matching(leader, axis, sizes)
            for axis, sizes in enumerate(array.chunks)
            if len(sizes) > 1
        }
        for dims in _assigned(matches, len(array.shape)):
            yield Follow(array.name, leader, dims)
            offered += 1
        if offered >= most:
            return


def _assigned(matches: Mapping[int, Sequence[int]], axes: int) -> Iterator[tuple[int | None, ...]]:
    """Ways to give each of some axes, of so many, another one of the dimensions that match it."""
    ways = (way for way in itertools.product(*matches.values()) if len(set(way)) == len(way))
    for way in itertools.islice(ways, MOST_ASSIGNED):
        along = dict(zip(matches, way, strict=True))
        yield tuple(along.get(axis) for axis in range(axes))


def _reads_by_block(program: Program, node: Node) -> bool:
    """Whether every block of a node that keeps its chunks reads just one block of each input."""
    return bool(node.edges) and all(
        edge.within is None
        and not edge.spread
        and edge.chunks is not None
        and edge.chunks == program.nodes[edge.producer].chunks
        and len(edge.axes) == len(edge.chunks)
        and all(
            axis.label is not None and axis.identity and node.labels[axis.label].cuts == sizes
            for axis, sizes in zip(edge.axes, edge.chunks, strict=True)
        )
        for edge in node.edges
    )


def _cuttable(node: Node, label: int, sizes: tuple[int, ...], retile: bool, by_block: bool) -> bool:
    """True where a label may have the cuts of a persisted axis, and needs about its blocks."""
    loop = node.labels[label]
    cuts = cuts_along(sizes, loop.size)
    if cuts is None or loop.role not in _ROLES:
        return False
    if (loop.role is Role.PINNED or not retile) and loop.cuts != cuts:
        return False
    for maps in (node.out, *(edge.axes for edge in node.edges)):
        along = [axis for axis in maps if axis.label == label]
        if len(along) > 1 or not all(map(_is_shift, along)):
            return False
    if not all(axis.identity for axis in node.out if axis.label == label):
        return False
    return by_block or all(edge.chunks is None for edge in node.edges)


def followed(
    node: Node,
    follow: Follow,
    array: Node,
    shapes: Sequence[tuple[int, ...]],
    workers: int,
    most: float,
) -> Followed | None:
    """The blocks that workers compute, hold and need if a node follows an array.

    None where the busiest worker would have more than `most` times the mean work.
    """
    grid = _owners(array, workers)
    cut = {label: axis for axis, label in enumerate(follow.dims) if label is not None}
    order = [label for label in range(len(node.labels)) if label in cut]
    # (workers, blocks along the followed labels in their order)
    owned = _arranged(grid, [cut[label] for label in order])
    edges = {
        label: _edges_along(array.chunks[axis], node.labels[label].size)
        for label, axis in cut.items()
    }

    def blocks(
        maps: Sequence[AxisMap], shape: Sequence[int], have: Bools, seen: list[int]
    ) -> Blocks:
        """Blocks of an array with these axes; `have` is indexed by the labels `seen`."""
        block_edges: list[Ints] = []
        # followed axes are read element by element
        steps = steps_of(maps, [label.size for label in node.labels])
        for column, (axis, size) in enumerate(zip(maps, shape, strict=True)):
            if axis.label in edges:
                read, have = _read(axis, size, edges[axis.label], have, 1 + seen.index(axis.label))
                block_edges.append(read)
            elif axis.label is None:
                block_edges.append(np.array([0, size]))
            else:
                span = np.array(axis.interval(0, node.labels[axis.label].size, size))
                block_edges.append(steps[column].before(span) if steps else span)
        places = [axis.label for axis in maps if axis.label in edges]
        arranged = np.moveaxis(
            have, [1 + seen.index(label) for label in places], range(1, 1 + len(places))
        )
        counts = (len(bound) - 1 for bound in block_edges)
        return Blocks(tuple(block_edges), arranged.reshape(workers, *counts), steps)

    maps = tuple(AxisMap(label) for label in range(len(node.labels)))
    work = blocks(maps, tuple(label.size for label in node.labels), owned, order)
    volume = work.volume()
    if volume.max() * workers > most * max(volume.sum(), 1.0):
        return None
    needs = []
    for edge, shape in zip(node.edges, shapes, strict=True):
        read = {axis.label for axis in edge.axes}
        seen = [label for label in order if label in read]
        gone = tuple(1 + position for position, label in enumerate(order) if label not in read)
        have = owned
        if edge.within is not None and edge.within[0] in edges:
            label, lo, hi = edge.within
            reading = (edges[label][:-1] < hi) & (edges[label][1:] > lo)
            shape_along = [1] * owned.ndim
            shape_along[1 + order.index(label)] = -1
            have = owned & reading.reshape(shape_along)
        needs.append(blocks(edge.axes, shape, np.asarray(have.any(axis=gone)), seen))
    shown = {axis.label for axis in node.out}
    gone = tuple(1 + position for position, label in enumerate(order) if label not in shown)
    seen = [label for label in order if label in shown]
    first = owned
    for axis in reversed(gone):
        first = np.asarray(first.take(0, axis=axis))
    held = blocks(node.out, node.shape, first, seen)
    partials = 0.0
    if gone:
        # every other worker with a part sends it to the worker where the sum ends
        parts = np.logical_and(owned.any(axis=gone), ~first)
        partials = float(blocks(node.out, node.shape, parts, seen).volume().sum())
    for position, label in enumerate(order):
        if node.labels[label].role is Role.SCAN:
            partials += _carried(node, owned, order, position, edges)
    return Followed(work, held, tuple(needs), partials)


def _carried(
    node: Node,
    owned: Bools,
    order: Sequence[int],
    position: int,
    edges: Mapping[int, Ints],
) -> float:
    """Elements of the carries that workers send each other.

    `owned` says for every worker which blocks it has along the labels in `order`, of which the one
    at `position` is scanned.
    """
    blocks = np.moveaxis(owned, 1 + position, 1)
    received = (blocks[:, 1:] & ~blocks[:, :-1]).sum(axis=(0, 1))
    for label in reversed(order):
        if label != order[position]:
            received = received @ np.diff(edges[label])
    uncut = (label.size for at, label in enumerate(node.labels) if at not in order)
    return float(received) * math.prod(uncut)


def _read(axis: AxisMap, size: int, edges: Ints, have: Bools, place: int) -> tuple[Ints, Bools]:
    """Boundaries of what blocks of a label read along an axis, and which workers read each part.

    `have` says which workers have the blocks, which are its axis `place`.
    """
    lo = np.clip(edges[:-1] + axis.start, 0, size)
    hi = np.clip(edges[1:] + axis.start + axis.width - 1, 0, size)
    if axis.width == 1:
        return np.append(lo, hi[-1:]), have
    parts = np.unique(np.concatenate([lo, hi]))
    reads = (lo[:, None] <= parts[:-1]) & (parts[1:] <= hi[:, None])
    read = np.tensordot(have.astype(np.int64), reads.astype(np.int64), axes=(place, 0)) > 0
    return parts, np.moveaxis(read, -1, place)


def _edges_along(sizes: tuple[int, ...], length: int) -> Ints:
    """Boundaries of the blocks of an axis that follows another one."""
    cuts = cuts_along(sizes, length)
    assert cuts is not None, "candidates have cuts"
    return np.asarray(bounds(cuts), dtype=np.int64)


def followed_copy(node: Node, follow: Follow, array: Node, workers: int) -> Followed:
    """The same for an array that is kept in the blocks of a persisted array."""
    grid = _owners(array, workers)
    cut = {place: axis for axis, place in enumerate(follow.dims) if place is not None}
    places = sorted(cut)
    owned = _arranged(grid, [cut[place] for place in places])
    edges = tuple(
        _edges_along(array.chunks[cut[place]], size) if place in cut else np.array([0, size])
        for place, size in enumerate(node.shape)
    )
    blocks = Blocks(edges, owned.reshape(workers, *(len(bound) - 1 for bound in edges)))
    return Followed(blocks, blocks, (blocks,))


def _owners(array: Node, workers: int) -> Bools:
    """The worker that computes each block: the first one that has the block."""
    counts = tuple(map(len, array.chunks))
    owned = np.zeros((workers, math.prod(counts)), dtype=bool)
    for block, places in enumerate(array.homes or ()):
        if places:
            owned[places[0], block] = True
    return owned.reshape(workers, *counts)


def _arranged(owned: Bools, axes: Sequence[int]) -> Bools:
    """Blocks along these axes of an array, in this order; all other axes have one block."""
    lone = tuple(1 + axis for axis in range(owned.ndim - 1) if axis not in axes)
    left = [axis for axis in range(owned.ndim - 1) if axis in axes]
    squeezed = (
        owned.reshape(len(owned), *(owned.shape[1 + axis] for axis in left)) if lone else owned
    )
    return np.transpose(squeezed, (0, *(1 + left.index(axis) for axis in axes)))
