"""Neighbouring blocks that are joined on their worker before they are cut.

Thin blocks of a long array, each cut into pieces for many tiles, make far more pieces than there
are blocks and tiles: hourly maps, each cut for the time series of many places.  If the blocks of
a worker are joined first, a few at a time, there are as many fewer pieces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dasktile.ir import Chunks, bounds
from dasktile.lower.reshard import Windows, lengths, pieces

#: Neighbouring blocks along one axis.
Group = Sequence[int]

#: Pieces that remain at most, as a share of those before; otherwise no blocks are joined (chosen).
MOST_REMAINING = 0.5


def block_groups(
    chunks: Chunks, windows: Windows, runs: Sequence[Sequence[int]], most_pieces: float
) -> tuple[int, list[Group]] | None:
    """The axis along which blocks are joined first, and the groups; None if that is not worth it.

    Blocks of a group have one home, and every window reads all of them or none.  The axis is that
    along which most blocks could be joined.  The groups are the smallest ones with which there are
    no more pieces than blocks and tiles.  They have no more elements than the largest tile.

    Parameters
    ----------
    chunks, windows
        The blocks, and the windows of the new tiles, as for `reshard`.
    runs
        For every axis, the number of blocks of each part of the mesh; empty if they have one home.
    most_pieces
        Pieces over blocks and tiles up to which no blocks are joined.
    """
    if any(abs(step) != 1 for axis in windows for _, _, step in axis):
        return None
    blocks = math.prod(map(len, chunks)) + math.prod(map(len, windows))
    before = _count(chunks, windows)
    if before <= most_pieces * blocks:
        return None
    segments = [_segments(*each) for each in zip(chunks, windows, runs, strict=True)]
    axis = min(range(len(chunks)), key=lambda axis: len(segments[axis]) / len(chunks[axis]))
    tile = math.prod(max(sizes, default=0) for sizes in lengths(windows))
    others = math.prod(max(sizes) for at, sizes in enumerate(chunks) if at != axis)
    best: list[Group] | None = None
    size = 2
    while size < 2 * max(map(len, segments[axis])):
        groups = [group for segment in segments[axis] for group in _divided(segment, size)]
        joined = tuple(sum(chunks[axis][block] for block in group) for group in groups)
        if max(joined) * others > tile:
            break
        count = _count((*chunks[:axis], joined, *chunks[axis + 1 :]), windows)
        if count <= MOST_REMAINING * before:
            best = groups
        if count <= blocks:
            break
        size *= 2
    return None if best is None else (axis, best)


def _count(chunks: Chunks, windows: Windows) -> int:
    """The pieces of blocks that are not whole blocks."""
    parts = [
        [piece for window in pieces(axis, sizes) for piece in window]
        for axis, sizes in zip(windows, chunks, strict=True)
    ]
    whole = math.prod(sum(piece.cut is None for piece in axis) for axis in parts)
    return math.prod(map(len, parts)) - whole


def _segments(
    sizes: Sequence[int], windows: Sequence[tuple[int, int, int]], runs: Sequence[int]
) -> list[list[int]]:
    """The longest runs of neighbouring blocks of one home that the same windows read."""
    readers: list[list[int]] = [[] for _ in sizes]
    for number, parts in enumerate(pieces(windows, sizes)):
        for piece in parts:
            readers[piece.block].append(number)
    starts = set(bounds(runs))
    segments: list[list[int]] = []
    for block, reading in enumerate(readers):
        if block == 0 or block in starts or reading != readers[block - 1]:
            segments.append([])
        segments[-1].append(block)
    return segments


def _divided(segment: Sequence[int], size: int) -> list[Group]:
    """Parts of nearly equal length, of at most `size` blocks."""
    count = -(-len(segment) // size)
    ends = [len(segment) * part // count for part in range(count + 1)]
    return [segment[lo:hi] for lo, hi in zip(ends[:-1], ends[1:], strict=True)]
