"""Cholesky's factor of a symmetric matrix, block column by block column.

    python examples/applications/cholesky.py [--workers 4] [--size 2000]

The matrix comes in rows.  Every step divides a column by the factor of the block on the
diagonal and subtracts the column's outer product from what is left, which gets smaller.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import dask
import dask.array as da
import numpy as np

import dasktile


def data(size: int = 2000, seed: int = 0) -> tuple[da.Array]:
    """A positive definite matrix."""
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(size, size)) / np.sqrt(size)
    return (da.from_array(half @ half.T + np.eye(size), chunks=(size // 8, size)),)


def inverse(lower: np.ndarray) -> np.ndarray:
    """Of a triangular matrix, transposed."""
    return np.linalg.inv(lower).swapaxes(-1, -2)


def small(function: Callable[[np.ndarray], np.ndarray], block: da.Array) -> da.Array:
    """A function of one small matrix."""
    return da.apply_gufunc(function, "(i,j)->(i,j)", block, output_dtypes=float, allow_rechunk=True)


def build(a: da.Array, columns: int = 4) -> da.Array:
    """The lower triangular matrix whose product with its transpose is `a`."""
    step = -(-len(a) // columns)
    done = []
    rest = a
    while len(rest):
        corner = small(np.linalg.cholesky, rest[:step, :step])
        below = rest[step:, :step] @ small(inverse, corner)
        above = da.zeros((len(a) - len(rest), corner.shape[1]), chunks=step)
        done.append(da.concatenate([above, corner, below]))
        rest = rest[step:, step:] - below @ below.T
    return da.concatenate(done, axis=1)


def check(found: np.ndarray, a: da.Array) -> bool:
    """Whether it is NumPy's."""
    return np.allclose(found, np.linalg.cholesky(a.compute()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--size", type=int, default=2000)
    arguments = parser.parse_args()
    inputs = data(arguments.size)
    result = build(*inputs)
    explanation = dasktile.explain(result, workers=arguments.workers)
    print(str(explanation).partition("\n\n")[0])  # the rest is a table of all arrays
    (found,) = dask.compute(dasktile.optimize(result, workers=arguments.workers))
    print("as NumPy:", check(found, *inputs))


if __name__ == "__main__":
    main()
