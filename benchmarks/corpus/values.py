"""Results of the corpus as NumPy arrays, and whether two of them agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr


def flattened(results: Sequence[Any]) -> list[np.ndarray]:
    """The arrays of computed collections: those of datasets are sorted by name."""
    arrays: list[np.ndarray] = []
    for result in results:
        if isinstance(result, xr.Dataset):
            arrays += [np.asarray(result[name].values) for name in sorted(map(str, result))]
        else:
            arrays.append(np.asarray(result))
    return arrays


def _numbers(array: np.ndarray) -> np.ndarray:
    # Booleans cannot be subtracted
    return array.astype(np.result_type(array, float))


def _largest(array: np.ndarray) -> float:
    return float(np.nanmax(np.abs(array), initial=0))


def agree(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> bool:
    """Whether two lists of arrays agree, up to rounding; sums in other orders round otherwise."""
    return len(first) == len(second) and all(
        left.shape == right.shape
        and left.dtype == right.dtype
        and np.allclose(
            _numbers(left),
            _numbers(right),
            rtol=(rounding := 1e-3 if left.dtype == np.float32 else 1e-6),
            # elements may cancel: relative to the largest one, or to inputs, which are below 1
            atol=rounding * max(1e-2 * _largest(_numbers(left)), 1e-3),
            equal_nan=True,
        )
        for left, right in zip(first, second, strict=True)
    )
