"""Principal components: centred data, their covariance, their scores.

    python examples/applications/pca.py [--workers 4] [--size 40000]

The covariance of columns is small, and a sum over rows; scores stay with the rows.
"""

from __future__ import annotations

import argparse

import dask
import dask.array as da
import numpy as np
from sklearn.decomposition import PCA

import dasktile


def data(size: int = 40_000, seed: int = 0) -> tuple[da.Array]:
    """Points in 64 dimensions that vary less and less along hidden axes."""
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.normal(size=(64, 64)))[0]
    points = rng.normal(size=(size, 64)) * 0.8 ** np.arange(64) @ axes + 1
    return (da.from_array(points, chunks=(size // 4, 16)),)


def largest(symmetric: np.ndarray) -> np.ndarray:
    """Eigenvectors in columns, those of large eigenvalues first."""
    return np.linalg.eigh(symmetric)[1][..., ::-1]


def build(x: da.Array, components: int = 4) -> tuple[da.Array, da.Array, da.Array]:
    """The axes along which the points vary most, how much, and where the points are."""
    centred = x - x.mean(axis=0)
    covariance = centred.T @ centred / (len(x) - 1)
    vectors = da.apply_gufunc(
        largest, "(i,j)->(i,j)", covariance, output_dtypes=float, allow_rechunk=True
    )
    vectors = vectors[:, :components]
    scores = centred @ vectors
    return vectors, scores.var(axis=0, ddof=1), scores


def check(found: tuple[np.ndarray, np.ndarray, np.ndarray], x: da.Array) -> bool:
    """Whether axes, but for their sign, variances and scores are scikit-learn's."""
    vectors, variance, scores = found
    model = PCA(len(variance), svd_solver="full").fit(x.compute())
    sign = np.sign((vectors * model.components_.T).sum(axis=0))
    return (
        np.allclose(sign * vectors, model.components_.T, atol=1e-6)
        and np.allclose(variance, model.explained_variance_)
        and np.allclose(sign * scores, model.transform(x.compute()), atol=1e-6)
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
