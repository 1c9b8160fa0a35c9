"""Where labels may be cut: axis classes, and the boundaries that data already has."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dasktile.ir import Kind, Node, Program, Role, bounds

#: A class follows boundaries that data already has as long as its largest part stays
#: within this factor of the mean: moving nothing is worth a little imbalance.
EVEN_ENOUGH = 1.25

#: A uniform part must be so many elements at least: then rounding up costs two per cent.
FINE_ENOUGH = 50


class Soft(tuple[int, ...]):
    """Positions that cuts follow as long as there are enough of them."""

    __slots__ = ()


#: Positions at which a label may be cut, 0 and its size included: exactly those, or
#: (:class:`Soft`) those first; a number is multiples of it; None is anywhere.
Grid = tuple[int, ...] | int | None


@dataclass(frozen=True, slots=True)
class Axes:
    """The labels of a program, grouped into classes that are best cut alike.

    Parameters
    ----------
    members
        For every node, the class of each of its labels.
    grids
        For every node and label, the boundaries it keeps to.  Stored chunks and pinned
        labels keep theirs strictly; the rest of a class follows where that is even
        enough.
    kept
        The same for a copy of the node's array in other chunks: those of its class.
    free
        False where all labels keep the cuts that they have.
    """

    members: tuple[tuple[int, ...], ...]
    grids: tuple[tuple[Grid, ...], ...]
    kept: tuple[tuple[Grid, ...], ...]
    free: bool = True


@lru_cache(maxsize=65536, typed=True)
def split(size: int, parts: int, grid: Grid) -> tuple[int, ...]:
    """Boundaries of `parts` near-even parts of a label, on the positions of `grid`.

    The boundaries of few parts are among those of any multiple of them, so that a
    coarse tile is always a union of fine ones.

    Returns
    -------
    ``parts + 1`` boundaries; parts may be empty where the grid is too coarse.
    """
    ideal = tuple(part * size // parts for part in range(parts + 1))
    if grid is None:
        return ideal
    if isinstance(grid, int):
        units = -(-size // grid)
        if units % parts == 0:
            return tuple(min(size, part * (units // parts) * grid) for part in range(parts + 1))
        if parts % units == 0:
            cells = tuple(min(size, unit * grid) for unit in range(units + 1))
            return _divided(cells, parts // units)
        return ideal
    if isinstance(grid, Soft) and parts >= len(grid) > 1:
        finer = _divided(grid, -(-parts // (len(grid) - 1)))
        return finer if len(finer) == parts + 1 else split(size, parts, finer)
    positions = np.asarray(grid)
    wanted = np.asarray(ideal)
    right = np.clip(np.searchsorted(positions, wanted), 0, len(positions) - 1)
    left = np.maximum(right - 1, 0)
    nearer = np.where(wanted - positions[left] < positions[right] - wanted, left, right)
    return tuple(int(position) for position in positions[nearer])


def _divided(cells: Sequence[int], count: int) -> tuple[int, ...]:
    """Boundaries of cells, each cut into `count` near-even parts."""
    inner = [
        lo + part * (hi - lo) // count
        for lo, hi in itertools.pairwise(cells)
        for part in range(count)
    ]
    return (*inner, cells[-1])


def unit(size: int, workers: int) -> int | None:
    """A length whose multiples cut a label evenly for any part of the workers.

    Chunks of one length, the last one shorter, are what Zarr can store.  The more units
    the better for finer cuts; none where rounding up to whole units would be uneven.
    """
    counts = []
    count = workers
    while count * FINE_ENOUGH <= size and count <= 64 * workers:
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
    """Chunk sizes of :func:`split`, empty parts left out."""
    edges = split(size, parts, grid)
    lengths = tuple(hi - lo for lo, hi in zip(edges[:-1], edges[1:], strict=True) if hi > lo)
    return lengths or (size,)


def own_axes(program: Program) -> Axes:
    """Every label keeps to the boundaries it has in the input's own graph."""
    members = axis_classes(program)
    grids = tuple(tuple(bounds(label.cuts) for label in node.labels) for node in program.nodes)
    return Axes(members, grids, grids, free=False)


def free_axes(program: Program, workers: int) -> Axes:
    """Boundaries for tiling anew: those of stored and pinned data, elsewhere free."""
    members = axis_classes(program)
    wanted: dict[int, dict[tuple[int, ...], int]] = {}
    fixed: dict[tuple[int, int], tuple[int, ...]] = {}
    for index, node in enumerate(program.nodes):
        for position, grid in _fixed_grids(node):
            fixed[index, position] = grid
            if len(grid) > 2:
                weights = wanted.setdefault(members[index][position], {})
                weights[grid] = weights.get(grid, 0) + node.nbytes
    shared: dict[int, Grid] = {}
    for klass, weights in wanted.items():
        common = tuple(sorted(set.intersection(*(set(grid) for grid in weights))))
        heaviest = max(weights, key=lambda grid: (weights[grid], grid))
        choices = [grid for grid in (common, heaviest) if _even_enough(grid, workers)]
        if choices:
            shared[klass] = Soft(choices[0])
    kept = tuple(
        tuple(
            shared[klass] if klass in shared else unit(label.size, workers)
            for klass, label in zip(classes, node.labels, strict=True)
        )
        for node, classes in zip(program.nodes, members, strict=True)
    )
    grids = tuple(
        tuple(fixed.get((index, position), grid) for position, grid in enumerate(row))
        for index, row in enumerate(kept)
    )
    return Axes(members, grids, kept)


def _fixed_grids(node: Node) -> list[tuple[int, tuple[int, ...]]]:
    """Labels of a node that are only ever cut at certain boundaries."""
    grids = []
    for position, label in enumerate(node.labels):
        if label.role is Role.PINNED or node.kind is Kind.OPAQUE:
            grids.append((position, bounds(label.cuts)))
        elif node.stored is not None:
            for axis, stored in zip(node.out, node.stored, strict=True):
                if axis.label == position and axis.identity:
                    grids.append((position, bounds(stored)))
    return grids


def _even_enough(grid: Sequence[int], workers: int) -> bool:
    size = grid[-1]
    edges = split(size, workers, tuple(grid))
    largest = max(hi - lo for lo, hi in zip(edges[:-1], edges[1:], strict=True))
    return largest * workers <= EVEN_ENOUGH * size


def axis_classes(program: Program) -> tuple[tuple[int, ...], ...]:
    """Group labels that run along the same axis of the same data.

    Two labels are in one class where an edge ties them one to one: a consumer's label
    that walks a producer's axis from end to end, which is itself a label of the producer.
    """
    offsets: list[int] = []
    total = 0
    for node in program.nodes:
        offsets.append(total)
        total += len(node.labels)
    parent = list(range(total))

    def find(item: int) -> int:
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

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
                reader = find(offsets[index] + read.label)
                maker = find(offsets[edge.producer] + made.label)
                parent[max(reader, maker)] = min(reader, maker)
    return tuple(
        tuple(find(offsets[index] + position) for position in range(len(node.labels)))
        for index, node in enumerate(program.nodes)
    )
