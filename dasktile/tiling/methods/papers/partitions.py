"""EinDecomp's partition vectors and their costs (sections 6 to 8.1 of the paper).

All costs are upper bounds, in elements: every input of every kernel call counts as moved.  The
functions take numbers or NumPy arrays.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

#: A number, or an array of numbers.
Amount = float | npt.NDArray[np.float64]


def vectors(parts: int, labels: int) -> list[tuple[int, ...]]:
    """All partition vectors: powers of two, one per label, whose product is `parts`.

    Parameters
    ----------
    parts
        Number of kernel calls, a power of two.
    labels
        Number of distinct labels.
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
    """Elements sent to the kernel calls: a tile of every input for each call.

    Parameters
    ----------
    calls
        Kernel calls, N(d).
    *tiles
        Elements of one tile of every input.
    """
    return calls * sum(tiles, np.float64(0.0))


def aggregation_cost(calls: Amount, partials: Amount, tile: Amount) -> Amount:
    """Elements of partial results sent to where they are combined.

    Parameters
    ----------
    calls
        Kernel calls, N(d).
    partials
        Partial results of one tile of the result.
    tile
        Elements of that tile.
    """
    return calls / partials * (partials - 1) * tile


def repartition_cost(size: Amount, made: Amount, read: Amount, common: Amount) -> Amount:
    """Elements sent where a consumer reads other tiles than its producer makes.

    Parameters
    ----------
    size
        Elements of the array.
    made, read
        Elements of one tile as the producer makes it, and as the consumer reads it.
    common
        Elements in the intersection of two overlapping tiles.
    """
    extracted = np.where(np.not_equal(made, common), size / read * made, 0.0)
    return size / read * (read / common - 1) * (read + made) + extracted
