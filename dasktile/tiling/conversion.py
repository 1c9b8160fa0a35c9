"""Conversion of a producer's tiles into those that a reader needs: tasks and pieces."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dasktile.ir import AxisMap, Chunks, Edge, bounds
from dasktile.tiling.strided import Strided, part_intervals

Table = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

#: Windows, pieces, whole blocks and windows of one piece; whether the windows are the blocks.
Counts = tuple[int, int, int, int, bool]

_Value = TypeVar("_Value", bound=Hashable)


#: Tasks that cut and join a producer's tiles for a reader, and pieces per window, each by the
#: producer's choice and the reader's.  Both are 0 where the tiles are read unchanged.
Conversion = tuple[Table, Table]


def conversion_tables(
    edge: Edge,
    shape: Sequence[int],
    made: Sequence[Chunks],
    used: Sequence[Sequence[tuple[int, ...]]],
) -> Conversion:
    """The conversion for every pair of a producer's chunks and a reader's cuts.

    Parameters
    ----------
    edge
        The read.
    shape
        Shape of the producer's array.
    made
        Its chunks, for each choice.
    used
        Chunk sizes of the reader's labels, for each choice.
    """
    counts = np.ones((4, len(made), len(used)))
    exact = np.ones((len(made), len(used)), dtype=bool)
    for position, size in enumerate(shape):
        axis = AxisMap(0) if edge.chunks is not None else edge.axes[position]
        along: tuple[tuple[int, ...] | None, ...]
        if edge.chunks is not None:
            along = (edge.chunks[position],) * len(used)
        elif axis.label is None:
            along = (None,) * len(used)
        else:
            along = tuple(cuts[axis.label] for cuts in used)
        of_axis, unchanged = _axis_tables(
            axis, size, tuple(chunks[position] for chunks in made), along
        )
        counts *= of_axis
        exact &= unchanged
    nonempty, pieces, whole, single = counts
    tasks = np.where(exact, 0.0, pieces - whole + nonempty - single)
    joined = np.where(exact, 0.0, np.maximum(pieces, 1) / np.maximum(nonempty, 1))
    return tasks, joined


@lru_cache(maxsize=4096)
def _axis_tables(
    axis: AxisMap,
    size: int,
    made: tuple[tuple[int, ...], ...],
    used: tuple[tuple[int, ...] | None, ...],
) -> tuple[Table, Bools]:
    """Counts of :func:`_axis_pieces` for pairs of choices, and whether windows are the blocks."""
    if axis.label is not None and axis.step > 1 and axis.width == 1 and not _has_runs(axis):
        step = Strided(axis.start, axis.step)
        blocks = (step.before(np.asarray(bounds(chunks))).tolist() for chunks in made)
        return _tables_by_number(tuple(map(tuple, blocks)), used)
    return _for_pairs(lambda chunks, cuts: _axis_pieces(axis, cuts, size, chunks), made, used)


@lru_cache(maxsize=4096)
def _tables_by_number(
    made: tuple[tuple[int, ...], ...], used: tuple[tuple[int, ...] | None, ...]
) -> tuple[Table, Bools]:
    """The same where single elements are read with a step, by their numbers at block boundaries.

    Slices with several starts share these, as most of their elements are in the same blocks.
    """

    def pieces_of(blocks: tuple[int, ...], cuts: tuple[int, ...] | None) -> Counts:
        edges = np.asarray(bounds(cuts or ()))
        filled, pieces = _pieces(np.asarray(blocks), edges[:-1], edges[1:])
        nonempty, single = np.count_nonzero(filled), np.count_nonzero(pieces == 1)
        return int(nonempty), int(pieces.sum()), 0, int(single), False

    return _for_pairs(pieces_of, made, used)


def _for_pairs(
    counts: Callable[[tuple[int, ...], tuple[int, ...] | None], Counts],
    made: Sequence[tuple[int, ...]],
    used: Sequence[tuple[int, ...] | None],
) -> tuple[Table, Bools]:
    """Counts for pairs of a producer's choice and a reader's; equal pairs are counted once."""
    rows, row_of = _distinct(made)
    columns, column_of = _distinct(used)
    known = np.array([[counts(row, cuts) for cuts in columns] for row in rows], dtype=float)
    by_pair = known[np.ix_(row_of, column_of)]
    return np.moveaxis(by_pair[:, :, :4], 2, 0), by_pair[:, :, 4] > 0


class Conversions:
    """`conversion_tables` of one program, each of which is found once.

    Searches with several settings often cut arrays alike, and so do nodes that differ in what they
    read.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, Conversion] = {}

    def tables(
        self,
        edge: Edge,
        shape: Sequence[int],
        made: tuple[Chunks, ...],
        used: tuple[tuple[tuple[int, ...], ...], ...],
    ) -> Conversion:
        """What `conversion_tables` returns, which must not be changed."""
        key = edge.axes, edge.chunks, tuple(shape), made, used
        if key not in self._known:
            self._known[key] = conversion_tables(edge, shape, made, used)
        return self._known[key]


def _distinct(values: Sequence[_Value]) -> tuple[list[_Value], list[int]]:
    """The distinct ones of some values, and for every value the number of the one it equals."""
    number: dict[_Value, int] = {}
    numbers = [number.setdefault(value, len(number)) for value in values]
    return list(number), numbers


@lru_cache(maxsize=65536)
def _axis_pieces(
    axis: AxisMap, cuts: tuple[int, ...] | None, size: int, made: tuple[int, ...]
) -> Counts:
    """Counts along one axis: windows, pieces, whole blocks and windows of one piece.

    The last entry is True where the windows are exactly the blocks.
    """
    if axis.identity and cuts == made and min(made, default=0) > 0:
        return (len(made), len(made), len(made), len(made), True)
    edges = np.asarray(bounds(made))
    lo, hi, plain = _ranges(axis, cuts, size)
    filled, pieces = _pieces(edges, lo, hi)
    whole, exact = 0, False
    if plain:
        begins = np.searchsorted(edges, lo, side="left")
        ends = np.searchsorted(edges, hi, side="right") - 1
        whole = int(np.where(filled, np.maximum(ends - begins, 0), 0).sum())
        exact = len(lo) == len(made) and bool((lo == edges[:-1]).all() and (hi == edges[1:]).all())
    nonempty, single = np.count_nonzero(filled), np.count_nonzero(pieces == 1)
    return int(nonempty), int(pieces.sum()), whole, int(single), exact


def _pieces(edges: Ints, lo: Ints, hi: Ints) -> tuple[Bools, Ints]:
    """Which ranges are not empty, and the number of blocks that each is in."""
    filled = hi > lo
    first = np.searchsorted(edges, lo, side="right") - 1
    last = np.searchsorted(edges, np.maximum(hi - 1, lo), side="right") - 1
    return filled, np.where(filled, last - first + 1, 0)


def _has_runs(axis: AxisMap) -> bool:
    """Whether a map has windows of several sizes."""
    return bool(axis.breaks or axis.parts)


@lru_cache(maxsize=65536)
def _ranges(
    axis: AxisMap, cuts: tuple[int, ...] | None, size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], bool]:
    """The elements that each block reads of an axis: the first, and the one after the last.

    The last entry is True where all elements between are read, in ascending order.  The ranges are
    those of :func:`dasktile.ir.windows`.
    """
    if axis.label is None or cuts is None:
        return np.zeros(1, dtype=np.int64), np.array([size], dtype=np.int64), True
    edges = np.asarray(bounds(cuts), dtype=np.int64)
    if axis.breaks:
        lo = np.asarray(axis.breaks, dtype=np.int64)[edges]
        lo, hi = lo[:-1], lo[1:]
    elif axis.parts:
        lo, hi = part_intervals(axis, edges[:-1], edges[1:])
    else:
        first, last = axis.start + axis.step * edges[:-1], axis.start + axis.step * (edges[1:] - 1)
        lo, hi = np.minimum(first, last), np.maximum(first, last) + axis.width
        if axis.width > 1 or abs(axis.step) == 1:  # others read no further than their axis
            lo = np.clip(lo, 0, size)
            hi = np.maximum(lo, np.minimum(hi, size))
    empty = edges[1:] == edges[:-1]
    plain = axis.step == 1 or (axis.step > 0 and axis.width > 1)
    return np.where(empty, 0, lo), np.where(empty, 0, hi), plain
