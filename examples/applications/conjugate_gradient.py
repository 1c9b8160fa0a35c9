"""Conjugate gradients for a symmetric system of equations.

    python examples/applications/conjugate_gradient.py [--workers 4] [--size 2000]

The matrix comes in blocks of rows.  Every step multiplies it by one vector, which
travels; the matrix does not.
"""

from __future__ import annotations

import argparse

import dask
import dask.array as da
import numpy as np
from scipy.sparse.linalg import cg

import dasktile


def data(size: int = 2000, seed: int = 0) -> tuple[da.Array, da.Array]:
    """A positive definite matrix, and a right-hand side."""
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(size, size)) / np.sqrt(size)
    matrix = half @ half.T + np.eye(size)
    return (
        da.from_array(matrix, chunks=(size // 8, size)),
        da.from_array(rng.normal(size=size), chunks=size // 8),
    )


def build(a: da.Array, b: da.Array, steps: int = 12) -> da.Array:
    """The solution after some steps."""
    x = da.zeros_like(b)
    residual = direction = b
    left = residual @ residual
    for _ in range(steps):
        product = a @ direction
        far = left / (direction @ product)
        x = x + far * direction
        residual = residual - far * product
        before, left = left, residual @ residual
        direction = residual + left / before * direction
    return x


def check(found: np.ndarray, a: da.Array, b: da.Array) -> bool:
    """Whether SciPy is there after as many steps, and the equations hold nearly."""
    matrix, right = a.compute(), b.compute()
    solution, _ = cg(matrix, right, rtol=0, maxiter=12)
    left_over = np.linalg.norm(matrix @ found - right) / np.linalg.norm(right)
    return np.allclose(found, solution) and left_over < 1e-3


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
    print("as SciPy:", check(found, *inputs))


if __name__ == "__main__":
    main()
