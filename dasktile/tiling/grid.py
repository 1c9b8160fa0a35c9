"""Positions at which labels may be cut: axis classes, and the boundaries of existing data."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dasktile.ir import Chunks, Kind, Node, Program, Role, bounds, near_even
from dasktile.ir.disjoint import root
from dasktile.tiling.settings import CandidateLimits


class Soft(tuple[int, ...]):
    """Positions at which cuts are placed first; further cuts are placed between them."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Steps:
    """Cuts of an axis that is read with a step, at the iterations of the label that reads it.

    Parameters
    ----------
    size, grid
        The length of the axis that is read, and its positions.
    start, step
        The first element that is read, and the distance of two.
    """

    size: int
    grid: Grid
    start: int
    step: int

    def split(self, size: int, parts: int) -> tuple[int, ...]:
        """The first iterations that read behind each boundary of `parts` parts of the axis."""
        inner = split(self.size, parts, self.grid)[1:-1]
        return (0, *(min(max(-((self.start - at) // self.step), 0), size) for at in inner), size)


#: Positions at which a label may be cut, 0 and its size included.  A tuple allows only these
#: positions, :class:`Soft` these first, a number its multiples (see :func:`unit`: about a whole
#: number of them make up the label), :class:`Steps` those where another axis is cut, and None any.
Grid = tuple[int, ...] | int | Steps | None


@dataclass(frozen=True, slots=True)
class Axes:
    """The labels of a program, grouped into classes that are best cut at the same positions.

    Parameters
    ----------
    members
        For every node, the class of each of its labels.
    grids
        For every node and label, the positions at which it may be cut.  Labels of stored
        and pinned data may be cut at their own boundaries only.  The other labels of a class
        are cut at these boundaries too where the parts are even enough.
    kept
        The same for the node's array in other chunks than it was made in: the positions of
        its class.
    free
        False where all labels keep the cuts of the input graph.
    """

    members: tuple[tuple[int, ...], ...]
    grids: tuple[tuple[Grid, ...], ...]
    kept: tuple[tuple[Grid, ...], ...]
    free: bool = True


#: Smallest over largest of blocks that are divided by their number, not by their sizes (chosen).
NEARLY_EQUAL = 0.9


@lru_cache(maxsize=65536, typed=True)
def split(size: int, parts: int, grid: Grid) -> tuple[int, ...]:
    """Boundaries of `parts` near-even parts of a label, on the positions of `grid`.

    The boundaries of n parts are among those of a multiple of n, so that a coarse tile is a union
    of fine ones; of multiples of a number that does not divide the length, not always.

    Returns
    -------
    ``parts + 1`` boundaries; parts may be empty where the grid is too coarse.
    """
    ideal = tuple(part * size // parts for part in range(parts + 1))
    if grid is None:
        return ideal
    if isinstance(grid, Steps):
        return grid.split(size, parts)
    if isinstance(grid, int):
        units = -(-size // grid)
        if units % parts == 0:
            return tuple(min(size, part * (units // parts) * grid) for part in range(parts + 1))
        if parts % units == 0:
            edges = tuple(min(size, unit * grid) for unit in range(units + 1))
            return _divided(edges, parts // units)
        # the last unit counts as a whole one, so that these are among the boundaries of whole units
        edges = tuple(min(size, part * units * grid // parts) for part in range(parts + 1))
        return edges if edges[-2] < size else ideal
    if isinstance(grid, Soft) and parts >= len(grid) > 1:
        finer = _divided(grid, -(-parts // (len(grid) - 1)))
        return finer if len(finer) == parts + 1 else split(size, parts, finer)
    positions = np.asarray(grid)
    cells = np.diff(positions)
    if len(cells) and cells.min() >= NEARLY_EQUAL * cells.max():
        # by number: arrays of as many blocks, as with and without a halo, are cut at the same ones
        numbers = bounds(near_even(len(cells), parts, rounded=True))
        return tuple(int(positions[number]) for number in numbers)
    ideal_positions = np.asarray(ideal)
    right = np.clip(np.searchsorted(positions, ideal_positions), 0, len(positions) - 1)
    left = np.maximum(right - 1, 0)
    nearer = np.where(
        ideal_positions - positions[left] < positions[right] - ideal_positions, left, right
    )
    return tuple(int(position) for position in positions[nearer])


def _divided(cells: Sequence[int], count: int) -> tuple[int, ...]:
    """Boundaries of cells, each cut into `count` near-even parts."""
    inner = [
        lo + part * (hi - lo) // count
        for lo, hi in itertools.pairwise(cells)
        for part in range(count)
    ]
    return (*inner, cells[-1])


def unit(size: int, workers: int, limits: CandidateLimits) -> int | None:
    """A length whose multiples cut a label evenly for the workers and for fractions of them.

    Zarr can store chunks of one length, the last one shorter.  The shortest such length is
    returned, since it allows the finest cuts; None where rounding up to whole units would give
    uneven parts.
    """
    counts = []
    count = workers
    while count * limits.fine_enough <= size and count <= 64 * workers:
        counts.append(count)
        count *= 2
    for slack in (0.0, 0.5):
        for count in reversed(counts):
            length = -(-size // count)
            if length * count - size <= slack * length and -(-size // length) == count:
                return length
    return None


@lru_cache(maxsize=65536, typed=True)
def sizes(size: int, parts: int, grid: Grid) -> tuple[int, ...]:
    """Chunk sizes of the parts of :func:`split` that are not empty."""
    edges = split(size, parts, grid)
    lengths = tuple(hi - lo for lo, hi in zip(edges[:-1], edges[1:], strict=True) if hi > lo)
    return lengths or (size,)


def cuts_of(grid: Grid, size: int, counts: Iterable[int]) -> object:
    """Equal for grids that cut a label alike into each of some numbers of parts.

    Labels that read an axis with a step, as those of many groups do, differ in where they start,
    and most of them are cut alike.

    Parameters
    ----------
    grid, size
        The positions at which the label may be cut, and its size.
    counts
        The numbers of parts.
    """
    if not isinstance(grid, Steps):
        return grid
    return tuple(split(size, count, grid) for count in counts)


def own_axes(program: Program) -> Axes:
    """The boundaries of the input graph: no label may be cut elsewhere."""
    members = axis_classes(program)
    grids = tuple(tuple(bounds(label.cuts) for label in node.labels) for node in program.nodes)
    return Axes(members, grids, grids, free=False)


def free_axes(
    program: Program,
    workers: int,
    limits: CandidateLimits,
    final: Sequence[Chunks | None] = (),
) -> Axes:
    """Boundaries for a new tiling: those of stored and pinned data, free for all other labels.

    Those of outputs that must have some chunks, as in :attr:`Space.final`, are preferred, too,
    along the same axes of all arrays.
    """
    members = axis_classes(program)
    weights_by_class: dict[int, dict[tuple[int, ...], int]] = {}
    fixed: dict[tuple[int, int], tuple[int, ...]] = {}
    for index, node in enumerate(program.nodes):
        for position, grid in _fixed_grids(node):
            fixed[index, position] = grid
            if len(grid) > 2:
                weights = weights_by_class.setdefault(members[index][position], {})
                weights[grid] = weights.get(grid, 0) + node.nbytes
    for index, chunks in zip(program.outputs, final, strict=False):
        node = program.nodes[index]
        for axis, sizes in zip(node.out, chunks or (), strict=False):
            if axis.label is not None and axis.identity and len(sizes) > 1:
                weights = weights_by_class.setdefault(members[index][axis.label], {})
                weights[bounds(sizes)] = weights.get(bounds(sizes), 0) + node.nbytes
    _prefer_merged(program, members, weights_by_class)
    shared: dict[int, Grid] = {}
    for klass, weights in weights_by_class.items():
        common = tuple(sorted(set.intersection(*(set(grid) for grid in weights))))
        heaviest = max(weights, key=lambda grid: (weights[grid], grid))
        choices = [
            grid for grid in (common, heaviest) if _even_enough(grid[-1], grid, workers, limits)
        ]
        if choices:
            shared[klass] = Soft(choices[0])

    def kept_at(index: int, position: int) -> Grid:
        klass, label = members[index][position], program.nodes[index].labels[position]
        return shared[klass] if klass in shared else unit(label.size, workers, limits)

    def made_at(index: int, position: int) -> Grid:
        return fixed.get((index, position), kept_at(index, position))

    for klass, size, steps in _read_with_steps(program, members, made_at):
        # before the next label is looked at, which may read this one with a step
        if klass not in shared and _even_enough(size, steps, workers, limits):
            shared[klass] = steps
    kept, grids = (
        tuple(
            tuple(grid_at(index, position) for position in range(len(node.labels)))
            for index, node in enumerate(program.nodes)
        )
        for grid_at in (kept_at, made_at)
    )
    return Axes(members, grids, kept)


def _read_with_steps(
    program: Program,
    members: Sequence[Sequence[int]],
    grid_at: Callable[[int, int], Grid],
) -> Iterator[tuple[int, int, Steps]]:
    """Labels that read every s-th element of an axis from end to end: class, size, where to cut.

    Those of outputs are left out: their tiles would have several lengths, which Zarr cannot store.
    """
    outputs = {
        members[index][axis.label]
        for index in program.outputs
        for axis in program.nodes[index].out
        if axis.label is not None
    }
    for node, classes in zip(program.nodes, members, strict=True):
        for edge in node.edges:
            producer = program.nodes[edge.producer]
            for made, read, length in zip(producer.out, edge.axes, producer.shape, strict=True):
                if made.label is None or not made.identity or read.label is None:
                    continue
                if read.step < 2 or read.width > 1 or not 0 <= read.start < read.step:
                    continue
                klass, size = classes[read.label], node.labels[read.label].size
                if klass not in outputs and read.start + read.step * size >= length:
                    grid = grid_at(edge.producer, made.label)
                    yield klass, size, Steps(length, grid, read.start, read.step)


def _prefer_merged(
    program: Program,
    members: Sequence[Sequence[int]],
    weights_by_class: dict[int, dict[tuple[int, ...], int]],
) -> None:
    """Prefer the positions of an axis for those that it was merged into by a reshape, too."""
    merged: dict[int, dict[tuple[int, ...], int]] = {}
    for index, node in enumerate(program.nodes):
        for edge in node.edges:
            producer = program.nodes[edge.producer]
            for made, read, size in zip(producer.out, edge.axes, producer.shape, strict=True):
                if made.label is None or made.width == 1:
                    continue
                if read.label is None or not read.identity or node.labels[read.label].size != size:
                    continue
                before = members[edge.producer][made.label]
                klass = members[index][read.label]
                if klass in weights_by_class:
                    # boundaries of its own data are preferred
                    continue
                weights = merged.setdefault(klass, {})
                for grid, weight in weights_by_class.get(before, {}).items():
                    positions = tuple(at * made.width for at in grid)
                    weights[positions] = max(weights.get(positions, 0), weight)
    weights_by_class.update({klass: weights for klass, weights in merged.items() if weights})


def _fixed_grids(node: Node) -> list[tuple[int, tuple[int, ...]]]:
    """Labels of a node that may be cut at fixed boundaries only, with these boundaries."""
    grids = []
    for position, label in enumerate(node.labels):
        if label.role is Role.PINNED or node.kind is Kind.OPAQUE:
            grids.append((position, bounds(label.cuts)))
        elif node.stored is not None:
            for axis, stored in zip(node.out, node.stored, strict=True):
                if axis.label == position and axis.identity:
                    grids.append((position, bounds(stored)))
    return grids


def _even_enough(size: int, grid: Grid, workers: int, limits: CandidateLimits) -> bool:
    """Whether parts of a label for all workers, cut at these positions, are near to the mean."""
    largest = max(hi - lo for lo, hi in itertools.pairwise(split(size, workers, grid)))
    return largest * workers <= limits.even_enough * size


def axis_classes(program: Program) -> tuple[tuple[int, ...], ...]:
    """Group labels that run along the same axis of the same data.

    Two labels are in one class where an edge maps one onto the other: the consumer's label
    covers an axis of the producer from end to end, and this axis is a label of the producer.
    """
    offsets: list[int] = []
    total = 0
    for node in program.nodes:
        offsets.append(total)
        total += len(node.labels)
    parent = list(range(total))

    for index, node in enumerate(program.nodes):
        for edge in node.edges:
            producer = program.nodes[edge.producer]
            for made, read in zip(producer.out, edge.axes, strict=True):
                if made.label is None or read.label is None:
                    continue
                if not (made.identity and read.identity):
                    continue
                if producer.labels[made.label].size != node.labels[read.label].size:
                    continue
                reader = root(parent, offsets[index] + read.label)
                maker = root(parent, offsets[edge.producer] + made.label)
                parent[max(reader, maker)] = min(reader, maker)
    return tuple(
        tuple(root(parent, offsets[index] + position) for position in range(len(node.labels)))
        for index, node in enumerate(program.nodes)
    )
