"""Chunks in which arrays of xarray objects are handed over.

Whoever writes such an object to a store with one task for each chunk needs chunks that are
all equal but for the last, and none that shares a chunk of the store with another.  Tiles
need not be like that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import accumulate

#: Chunks for each tile that may be cut of it where the input had no more.
_MOST = 2

#: Share of a tile by which tiles may differ and still be made equal by moving their edges.
_NEAR = 1 / 16


def storable(
    tiles: tuple[int, ...], own: tuple[int, ...], encoded: Collection[int] = ()
) -> tuple[int, ...]:
    """Chunks along a dimension, as like tiles as can be, that can be written side by side.

    Parameters
    ----------
    tiles
        The sizes of the tiles.
    own
        The chunks that the input has.
    encoded
        Sizes of the chunks that the input says it is to be stored in.

    Returns
    -------
    The tiles where they can be, else what they can be cut into without moving anything,
    else tiles of which only the edges have moved, else the chunks of the input.  Where
    these cannot be written either, the tiles.
    """
    # what did not fit the input's chunks is not dasktile's to mend
    stored = [size for size in encoded if _fits(own, size)]

    def can_be(chunks: Sequence[int]) -> bool:
        return _uniform(chunks) and all(_fits(chunks, size) for size in stored)

    size, largest = sum(tiles), max(tiles, default=0)
    if can_be(tiles):
        return tiles
    pieces = _equal(size, math.gcd(*_edges(tiles)))
    if len(pieces) <= max(len(own), _MOST * len(tiles)) and can_be(pieces):
        return pieces
    rounded = _equal(size, largest)
    near = largest - min(tiles) <= max(1, _NEAR * largest)
    if near and len(rounded) == len(tiles) and can_be(rounded):
        return rounded
    if can_be(own) or not all(_fits(tiles, size) for size in stored):
        return own
    return tiles


def _edges(chunks: Sequence[int]) -> list[int]:
    """Where chunks meet."""
    return list(accumulate(chunks))[:-1]


def _fits(chunks: Sequence[int], size: int) -> bool:
    """True where no two chunks share one of the store's of a size."""
    return all(edge % size == 0 for edge in _edges(chunks))


def _uniform(chunks: Sequence[int]) -> bool:
    return len(set(chunks[:-1])) <= 1 and chunks[-1] <= chunks[0]


def _equal(size: int, part: int) -> tuple[int, ...]:
    """So much in equal parts, the last of which may be smaller."""
    if not 0 < part < size:
        return (size,)
    return (part,) * (size // part) + ((size % part,) if size % part else ())
