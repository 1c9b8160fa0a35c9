"""EinDecomp's partition vectors and what it says they move (sections 6 to 8.1 of its paper).

All counts are of elements and upper bounds: every input of every kernel call is taken to
travel.  The functions take numbers or whole arrays of them.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

#: One number, or many at once.
Amount = float | npt.NDArray[np.float64]


def vectors(parts: int, labels: int) -> list[tuple[int, ...]]:
    """All partition vectors: powers of two, one per label, whose product is `parts`.

    Parameters
    ----------
    parts
        Kernel calls wanted, a power of two.
    labels
        Distinct labels.
    """
    if parts < 1 or parts & (parts - 1):
        raise ValueError(f"parts must be a power of two; got {parts}")
    if not labels:
        return [()] if parts == 1 else []
    power = parts.bit_length() - 1
    return [
        tuple(2**count for count in counts)
        for counts in itertools.product(range(power, -1, -1), repeat=labels)
        if sum(counts) == power
    ]


def join_cost(calls: Amount, *tiles: Amount) -> Amount:
    """Elements that travel into the kernel calls: a tile of every input for each call.

    Parameters
    ----------
    calls
        Kernel calls, N(d).
    *tiles
        Elements of one tile of every input.
    """
    return calls * sum(tiles, np.float64(0.0))


def aggregation_cost(calls: Amount, partials: Amount, tile: Amount) -> Amount:
    """Elements of partial results that travel to where they are combined.

    Parameters
    ----------
    calls
        Kernel calls, N(d).
    met
        Partial results that make one tile of the result.
    tile
        Elements of that tile.
    """
    return calls / partials * (partials - 1) * tile


def repartition_cost(size: Amount, made: Amount, read: Amount, common: Amount) -> Amount:
    """Elements that travel where a consumer wants other tiles than its producer made.

    Parameters
    ----------
    size
        Elements of the array.
    made, read
        Elements of one tile as the producer makes it, and as the consumer reads it.
    common
        Elements that two tiles which overlap have in common.
    """
    extracted = np.where(np.not_equal(made, common), size / read * made, 0.0)
    return size / read * (read / common - 1) * (read + made) + extracted
