"""Chunks of the arrays of xarray objects after tiling.

Writing such an object to a store, one task for each chunk, requires uniform chunks (the last may be
smaller), none of which shares a chunk of the store with another.  Tiles need not be uniform.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import accumulate

#: Largest number of chunks per tile, unless the input has more chunks.
_MOST_PER_TILE = 2

#: Largest difference of tile sizes, as a share of the largest, at which their boundaries are
#: shifted to make them uniform.
_NEARLY_UNIFORM = 1 / 16


def storable(
    tiles: tuple[int, ...], own: tuple[int, ...], encoded: Collection[int] = ()
) -> tuple[int, ...]:
    """Chunks along a dimension that a store accepts, as similar to the tiles as possible.

    Parameters
    ----------
    tiles
        Sizes of the tiles.
    own
        Chunk sizes of the input.
    encoded
        Chunk sizes in the encodings of the input's variables.

    Returns
    -------
    The tiles, if they are the chunks of the input.  Else the first of these that a store accepts:
    the tiles; the tiles cut into smaller chunks, which moves nothing; the tiles with shifted
    boundaries; the chunks of the input.  If it accepts none, the tiles.
    """
    # an encoding that the input's own chunks do not fit cannot be written in any case
    stored = [size for size in encoded if _fits(own, size)]

    def accepted(chunks: Sequence[int]) -> bool:
        return _uniform(chunks) and all(_fits(chunks, size) for size in stored)

    size, largest = sum(tiles), max(tiles, default=0)
    # the input's chunks are as the user made them
    if accepted(tiles) or tiles == own:
        return tiles
    pieces = _equal(size, math.gcd(*_edges(tiles)))
    if len(pieces) <= max(len(own), _MOST_PER_TILE * len(tiles)) and accepted(pieces):
        return pieces
    rounded = _equal(size, largest)
    near = largest - min(tiles) <= max(1, _NEARLY_UNIFORM * largest)
    if near and len(rounded) == len(tiles) and accepted(rounded):
        return rounded
    if accepted(own) or not all(_fits(tiles, size) for size in stored):
        return own
    return tiles


def _edges(chunks: Sequence[int]) -> list[int]:
    """Positions of the boundaries between chunks."""
    return list(accumulate(chunks))[:-1]


def _fits(chunks: Sequence[int], size: int) -> bool:
    """True if no two chunks share a chunk of the store, whose chunks have `size` elements."""
    return all(edge % size == 0 for edge in _edges(chunks))


def _uniform(chunks: Sequence[int]) -> bool:
    return len(set(chunks[:-1])) <= 1 and chunks[-1] <= chunks[0]


def _equal(size: int, part: int) -> tuple[int, ...]:
    """`size` elements in chunks of `part` elements; the last may be smaller."""
    if not 0 < part < size:
        return (size,)
    return (part,) * (size // part) + ((size % part,) if size % part else ())
