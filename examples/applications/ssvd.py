"""Stochastic singular values: a large matrix times a few random vectors.

    python examples/applications/ssvd.py [--workers 4] [--size 40000]

A tall factor ``y`` is made orthonormal by the Cholesky factor of the small ``y.T @ y``, so
that rows never meet, and the rest is as small as the number of singular values wanted.
"""

from __future__ import annotations

import argparse

import dask
import dask.array as da
import numpy as np
from sklearn.utils.extmath import randomized_svd

import dasktile

#: Singular values wanted, and random vectors beyond them.
RANK, MORE = 6, 6


def data(size: int = 40_000, seed: int = 0) -> tuple[da.Array, da.Array]:
    """A matrix of 100 columns whose singular values fall fast, and the random vectors."""
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.normal(size=(size, 100)))[0]
    right = np.linalg.qr(rng.normal(size=(100, 100)))[0]
    matrix = left * 0.5 ** np.arange(100.0) @ right
    random = rng.normal(size=(100, RANK + MORE))
    return da.from_array(matrix, chunks=(size // 4, 25)), da.from_array(random)


def inverse_root(gram: np.ndarray) -> np.ndarray:
    """What makes vectors orthonormal whose inner products are given."""
    return np.linalg.inv(np.linalg.cholesky(gram)).swapaxes(-1, -2)


def rotation(gram: np.ndarray) -> np.ndarray:
    """Eigenvectors in columns, those of large eigenvalues first."""
    return np.linalg.eigh(gram)[1][..., ::-1]


def orthonormal(y: da.Array) -> da.Array:
    """The same space as that of the columns; twice, for accuracy."""
    for _ in range(2):
        y = y @ da.apply_gufunc(inverse_root, "(i,j)->(i,j)", y.T @ y, output_dtypes=float)
    return y


def build(a: da.Array, random: da.Array) -> tuple[da.Array, da.Array, da.Array]:
    """Left vectors, singular values, right vectors: ``u * s @ v.T`` is nearly `a`."""
    q = orthonormal(a @ random)
    b = q.T @ a
    turn = da.apply_gufunc(
        rotation, "(i,j)->(i,j)", b @ b.T, output_dtypes=float, allow_rechunk=True
    )[:, :RANK]
    v = b.T @ turn
    s = da.sqrt((v**2).sum(axis=0))
    return q @ turn, s, v / s


def check(found: tuple[np.ndarray, np.ndarray, np.ndarray], a: da.Array, random: da.Array) -> bool:
    """Whether singular values, and what they and their vectors make, are scikit-learn's."""
    u, s, v = found
    left, values, right = randomized_svd(a.compute(), RANK, n_oversamples=MORE, random_state=0)
    return np.allclose(s, values, rtol=1e-2) and np.allclose(
        u * s @ v.T, left * values @ right, atol=1e-3 * values[0]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--size", type=int, default=40_000)
    arguments = parser.parse_args()
    inputs = data(arguments.size)
    result = build(*inputs)
    explanation = dasktile.explain(result, workers=arguments.workers)
    print(str(explanation).partition("\n\n")[0])  # the rest is a table of all arrays
    (found,) = dask.compute(dasktile.optimize(result, workers=arguments.workers))
    print("as scikit-learn:", check(found, *inputs))


if __name__ == "__main__":
    main()
