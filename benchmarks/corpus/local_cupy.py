"""The operations of dask-cuda's dask_cuda/benchmarks/local_cupy*.py, on NumPy arrays.

The arrays of the originals are in memory before an operation starts.
"""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from scipy.ndimage import convolve

from benchmarks.corpus.inputs import Source, random, scaled

Collections = list[Any]


def _square(
    name: str, size: float, source: Source, count: int = 20, block: int = 250, axes: int = 2
) -> da.Array:
    side = block * scaled(count, size, axes=axes)
    return source(f"cupy_{name}", (side, side), (block, block))


def _column(name: str, size: float, source: Source) -> da.Array:
    length = 100_000 * scaled(250, size)
    return source(f"cupy_{name}", (length,), (100_000,), law="normal")


def transpose_sum(size: float = 1, source: Source = random) -> Collections:
    """local_cupy.py, transpose_sum: the sum of a matrix and its transpose."""
    x = _square("x", size, source)
    return [(x + x.T).sum()]


def dot(size: float = 1, source: Source = random) -> Collections:
    """local_cupy.py, dot: a product of two matrices."""
    x, y = (_square(name, size, source, 8, 300, axes=3) for name in "xy")
    return [x.dot(y)]


def svd(size: float = 1, source: Source = random) -> Collections:
    """local_cupy.py, svd: a tall matrix, in blocks of rows."""
    rows = 2500 * scaled(120, size)
    return list(np.linalg.svd(source("cupy_tall", (rows, 40), (2500, 40))))


def fft(size: float = 1, source: Source = random) -> Collections:
    """local_cupy.py, fft: along whole columns."""
    blocks = scaled(200, size, axes=1)
    x = source("cupy_columns", (2000, 20 * blocks), (2000, 20))
    return [np.fft.fft(x, axis=0)]


def sum_all(size: float = 1, source: Source = random) -> Collections:
    """local_cupy.py, sum: over all elements."""
    return [_square("x", size, source, 28).sum()]


def mean_all(size: float = 1, source: Source = random) -> Collections:
    """local_cupy.py, mean: over all elements."""
    return [_square("x", size, source, 28).mean()]


def strided(size: float = 1, source: Source = random) -> Collections:
    """local_cupy.py, slice: a copy of every third row."""
    return [_square("x", size, source)[::3].copy()]


def column_sum(size: float = 1, source: Source = random) -> Collections:
    """local_cupy.py, col_sum: two vectors added."""
    x, y = (_column(name, size, source) for name in "xy")
    return [x + y]


def column_mask(size: float = 1, source: Source = random) -> Collections:
    """local_cupy.py, col_mask: the elements of one vector where another is large."""
    x, y = (_column(name, size, source) for name in "xy")
    return [x[y > 1]]


def column_gather(size: float = 1, source: Source = random) -> Collections:
    """local_cupy.py, col_gather: elements of a vector, at positions that are a dask array."""
    blocks = scaled(60, size)
    x = source("cupy_gathered", (20_000 * blocks,), (20_000,), law="normal")
    # positions from 0 to 255 would all be in the first block
    low, high = (source(f"cupy_index_{name}", (4000,), (400,), "i8", "bytes") for name in "lh")
    return [x[(low * 256 + high) * x.shape[0] // 65536]]


def map_overlap(size: float = 1, source: Source = random) -> Collections:
    """local_cupy_map_overlap.py: a mean filter with a halo."""
    kernel = 1
    x = _square("x", size, source, 12)
    return [x.map_overlap(_mean_filter, kernel, boundary="none", width=2 * kernel + 1)]


def _mean_filter(block: np.ndarray, width: int) -> np.ndarray:
    return np.asarray(convolve(block, np.full((width, width), 1 / width**2)))
