"""The blocks that workers compute, hold and need where a node follows a persisted array."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dasktile.ir import AxisMap, Follow, Groups, Node, Picks, Role, bounds
from dasktile.tiling.blocks import Blocks
from dasktile.tiling.boxes import spans_of
from dasktile.tiling.strided import steps_of

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


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
    owned = _arranged(grid, follow, [cut[label] for label in order])
    edges = {label: np.asarray(bounds(follow.cuts[axis] or ())) for label, axis in cut.items()}

    def blocks(
        maps: Sequence[AxisMap],
        shape: Sequence[int],
        have: Bools,
        seen: list[int],
        picks: Picks | None = None,
    ) -> Blocks:
        """Blocks of an array with these axes; `have` is indexed by the labels `seen`."""
        block_edges: list[Ints] = []
        places: list[int] = []
        steps = steps_of(maps, [label.size for label in node.labels])
        for column, (axis, size) in enumerate(zip(maps, shape, strict=True)):
            is_taken = picks is not None and column == picks.axis and picks.label in edges
            label = picks.label if picks is not None and is_taken else axis.label
            if label in edges:
                at = 1 + seen.index(label)
                places.append(label)
                if picks is not None and is_taken:
                    taken = spans_of(picks, edges[label][:-1], edges[label][1:])
                    read, have = _parts_of(*taken, have, at)
                else:
                    read, have = _read(axis, size, edges[label], have, at)
            elif axis.label is None:
                block_edges.append(np.array([0, size]))
                continue
            else:
                read = np.array(axis.interval(0, node.labels[axis.label].size, size))
            block_edges.append(steps[column].before(read) if steps else read)
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
        if edge.picks is not None:
            read.add(edge.picks.label)
        seen = [label for label in order if label in read]
        gone = tuple(1 + position for position, label in enumerate(order) if label not in read)
        have = owned
        if edge.within is not None and edge.within[0] in edges:
            label, lo, hi = edge.within
            reading = (edges[label][:-1] < hi) & (edges[label][1:] > lo)
            shape_along = [1] * owned.ndim
            shape_along[1 + order.index(label)] = -1
            have = owned & reading.reshape(shape_along)
        needs.append(blocks(edge.axes, shape, np.asarray(have.any(axis=gone)), seen, edge.picks))
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
        is_summed = gone == (len(order),) and order[-1] == len(node.labels) - 1
        if node.groups is not None and is_summed:
            partials = _groups_sent(
                node, node.groups, owned, parts, [edges[each] for each in order]
            )
    for position, label in enumerate(order):
        if node.labels[label].role is Role.SCAN:
            partials += _carried(node, owned, order, position, edges)
    return Followed(work, held, tuple(needs), partials)


def _groups_sent(
    node: Node, groups: Groups, owned: Bools, parts: Bools, edges: Sequence[Ints]
) -> float:
    """Elements of partial results by groups that workers send: those of the groups in their blocks.

    `owned` says for every worker which blocks it has along the labels with these edges, of which
    the last one is reduced, and `parts` of which results it sends a part.
    """
    present = [groups.present(lo, hi) for lo, hi in itertools.pairwise(edges[-1].tolist())]
    column = {group: place for place, group in enumerate(sorted(set().union(*present)))}
    found = np.zeros((len(present), len(column)), dtype=np.float32)
    for block, own in enumerate(present):
        found[block, [column[group] for group in own]] = 1.0
    sent = ((owned.astype(np.float32) @ found > 0).sum(axis=-1) * parts).astype(np.float64)
    for bound in reversed(edges[:-1]):
        sent = sent @ np.diff(bound)
    cut = math.prod(int(bound[-1]) for bound in edges[:-1])
    return float(sent.sum()) * node.size / max(1, groups.count * cut)


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
    first = axis.start + axis.step * edges[:-1]
    last = axis.start + axis.step * (edges[1:] - 1)
    if axis.step < 0:
        first, last, have = last[::-1], first[::-1], np.flip(have, place)
    lo, hi = np.clip(first, 0, size), np.clip(last + axis.width, 0, size)
    if axis.width <= abs(axis.step):
        # what is between two blocks counts for the first of them
        return np.append(lo, hi[-1:]), have
    return _parts_of(lo, hi, have, place)


def _parts_of(lo: Ints, hi: Ints, have: Bools, place: int) -> tuple[Ints, Bools]:
    """Boundaries of ranges that overlap, and which workers read each part between them.

    `have` says which workers have the blocks that read the ranges, which are its axis `place`.
    """
    parts = np.unique(np.concatenate([lo, hi]))
    reads = (lo[:, None] <= parts[:-1]) & (parts[1:] <= hi[:, None])
    read = np.tensordot(have.astype(np.int64), reads.astype(np.int64), axes=(place, 0)) > 0
    return parts, np.moveaxis(read, -1, place)


def followed_copy(node: Node, follow: Follow, array: Node, workers: int) -> Followed:
    """The same for an array that is kept in the blocks of a persisted array."""
    grid = _owners(array, workers)
    cut = {place: axis for axis, place in enumerate(follow.dims) if place is not None}
    places = sorted(cut)
    owned = _arranged(grid, follow, [cut[place] for place in places])
    edges = tuple(
        np.asarray(bounds(follow.cuts[cut[place]] or ()) if place in cut else (0, size))
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


def _arranged(owned: Bools, follow: Follow, axes: Sequence[int]) -> Bools:
    """The blocks along these axes of an array that others follow, in this order of the axes.

    All other axes of the array have one block.
    """
    for axis, numbers in enumerate(follow.numbers):
        if numbers is not None:
            owned = np.asarray(owned.take(numbers, axis=1 + axis))
    lone = tuple(1 + axis for axis in range(owned.ndim - 1) if axis not in axes)
    left = [axis for axis in range(owned.ndim - 1) if axis in axes]
    squeezed = (
        owned.reshape(len(owned), *(owned.shape[1 + axis] for axis in left)) if lone else owned
    )
    return np.transpose(squeezed, (0, *(1 + left.index(axis) for axis in axes)))
