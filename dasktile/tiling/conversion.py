"""Conversion of a producer's tiles into those that a reader needs: tasks and pieces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dasktile.ir import AxisMap, Chunks, Edge, bounds, windows

Table = npt.NDArray[np.float64]


def conversion_tables(
    edge: Edge,
    shape: Sequence[int],
    made: Sequence[Chunks],
    used: Sequence[Sequence[tuple[int, ...]]],
) -> tuple[Table, Table]:
    """:func:`conversion_tasks` for every pair of a producer's chunks and a reader's cuts.

    Returns
    -------
    Tasks, and pieces per window, both (producer's choices, reader's choices); both are 0 where
    the reader reads the producer's tiles unchanged.
    """
    counts = np.ones((4, len(made), len(used)))
    exact = np.ones((len(made), len(used)), dtype=bool)
    for position, size in enumerate(shape):
        rows = [chunks[position] for chunks in made]
        columns = [_reads(edge, position, cuts) for cuts in used]
        known = {
            (row, column): _axis_pieces(*column, size, row)
            for row in dict.fromkeys(rows)
            for column in dict.fromkeys(columns)
        }
        pieces_by_pair = np.array([[known[row, column] for column in columns] for row in rows])
        counts *= np.moveaxis(pieces_by_pair[:, :, :4], 2, 0)
        exact &= pieces_by_pair[:, :, 4] > 0
    nonempty, pieces, whole, single = counts
    tasks = np.where(exact, 0.0, pieces - whole + nonempty - single)
    joined = np.where(exact, 0.0, np.maximum(pieces, 1) / np.maximum(nonempty, 1))
    return tasks, joined


def _reads(
    edge: Edge, position: int, cuts: Sequence[tuple[int, ...]]
) -> tuple[AxisMap, tuple[int, ...] | None]:
    """The map by which an edge reads one axis, and the cuts of the mapped label."""
    if edge.chunks is not None:
        return AxisMap(0), edge.chunks[position]
    axis = edge.axes[position]
    return axis, None if axis.label is None else cuts[axis.label]


def conversion_of(
    edge: Edge, cuts: Sequence[tuple[int, ...]], shape: Sequence[int], made: Chunks
) -> tuple[float, float] | None:
    """Number of tasks that cut and join a producer's tiles for a reader, and pieces per window.

    None where the reader reads the tiles unchanged.

    Parameters
    ----------
    edge
        The read.
    cuts
        Chunk sizes of the reader's labels.
    shape, made
        Shape and chunks of the producer's array.
    """
    by_axis = [
        _axis_pieces(*_reads(edge, position, cuts), size, made[position])
        for position, size in enumerate(shape)
    ]
    if all(exact for *_, exact in by_axis):
        return None
    nonempty, pieces, whole, single = (
        math.prod(axis[position] for axis in by_axis) for position in range(4)
    )
    return float(pieces - whole + nonempty - single), max(pieces, 1) / max(nonempty, 1)


@lru_cache(maxsize=65536)
def _axis_pieces(
    axis: AxisMap, cuts: tuple[int, ...] | None, size: int, made: tuple[int, ...]
) -> tuple[int, int, int, int, bool]:
    """Counts along one axis: windows, pieces, whole blocks and windows of one piece.

    The last entry is True where the windows are exactly the blocks.
    """
    edges = np.asarray(bounds(made))
    ranges = windows(axis, cuts, size)
    lo = np.array([min(start, stop + 1) if step < 0 else start for start, stop, step in ranges])
    hi = np.array([max(start + 1, stop) if step < 0 else stop for start, stop, step in ranges])
    filled = hi > lo
    first = np.searchsorted(edges, lo, side="right") - 1
    last = np.searchsorted(edges, np.maximum(hi - 1, lo), side="right") - 1
    pieces = np.where(filled, last - first + 1, 0)
    plain = np.array([step == 1 for _, _, step in ranges])
    begins = np.searchsorted(edges, lo, side="left")
    ends = np.searchsorted(edges, hi, side="right") - 1
    whole = np.where(filled & plain, np.maximum(ends - begins, 0), 0)
    exact = len(ranges) == len(made) and bool(
        np.all(plain) and np.all(lo == edges[:-1]) and np.all(hi == edges[1:])
    )
    return (int(filled.sum()), int(pieces.sum()), int(whole.sum()),
            int((pieces == 1).sum()), exact)  # fmt: skip
