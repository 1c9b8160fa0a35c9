"""The array expressions that dask-ml's estimators and dask-glm's solvers run.

Data are tall, in blocks of rows.
"""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import delayed

from benchmarks.corpus.inputs import Source, random, scaled

Collections = list[Any]

#: Rows of a block, and columns of the data.
_ROWS, _FEATURES = 5000, 40


def _data(
    size: float, source: Source, blocks: int = 150, features: int = _FEATURES
) -> tuple[da.Array, int]:
    rows = _ROWS * scaled(blocks, size)
    return source("ml_x", (rows, features), (_ROWS, features)), rows


def pca_full(size: float = 1, source: Source = random) -> Collections:
    """decomposition/pca.py, solver full: centred data, its singular values and vectors."""
    x, _ = _data(size, source, 80)
    _, s, v = da.linalg.svd(x - x.mean(0))
    return [s, v]


def pca_randomized(size: float = 1, source: Source = random) -> Collections:
    """decomposition/pca.py, solver randomized: a compressed decomposition, and the variance."""
    x, _ = _data(size, source, 60)
    x = x - x.mean(0)
    u, s, v = da.linalg.svd_compressed(x, 5, n_power_iter=2, seed=1)
    return [s, v, x.var(ddof=1, axis=0).sum(), u * s]


def truncated_svd(size: float = 1, source: Source = random) -> Collections:
    """decomposition/truncated_svd.py, algorithm tsqr: scores, and the variance they explain."""
    x, _ = _data(size, source, 80)
    u, s, v = da.linalg.svd(x)
    scores = u[:, :5] * s[:5]
    explained = scores.var(axis=0)
    return [scores, v[:5], explained, explained / x.var(axis=0).sum()]


def standard_scaler(size: float = 1, source: Source = random) -> Collections:
    """preprocessing/data.py, StandardScaler: means and deviations, then scaled data."""
    x, _ = _data(size, source, 100)
    mean, variance = x.mean(0), x.var(0)
    return [mean, variance, (x - mean) / da.sqrt(variance)]


def kmeans_step(size: float = 1, source: Source = random) -> Collections:
    """cluster/k_means.py, Lloyd's loop: labels by delayed blocks, new centres, shift."""
    x, _ = _data(size, source)
    centres = np.random.default_rng(1).random((8, x.shape[1]))
    nearest = delayed(_nearest, pure=True)
    labels = da.concatenate(
        [
            da.from_delayed(nearest(block, centres), (rows,), np.int64)
            for block, rows in zip(x.to_delayed().flatten(), x.chunks[0], strict=True)
        ]
    )
    sums = da.blockwise(
        _sums, "ij", x, "ij", labels.astype(np.int32), "i", len(centres), None,
        adjust_chunks={"i": len(centres)}, dtype=x.dtype,
    )  # fmt: skip
    total = da.from_delayed(sum(sums.to_delayed().flatten()), centres.shape, x.dtype)
    counts = da.maximum(da.bincount(labels, minlength=len(centres)), 1)
    return [total / counts[:, None]]


def _nearest(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    distances = -2 * x @ centres.T + (centres**2).sum(axis=1)
    return np.asarray(distances.argmin(axis=1))


def _sums(x: np.ndarray, labels: np.ndarray, count: int) -> np.ndarray:
    result = np.zeros((count, x.shape[1]))
    np.add.at(result, labels, x)
    return result


def linear_gradient(size: float = 1, source: Source = random) -> Collections:
    """linear_model/glm.py, LinearRegression: dask-glm's normal family, loss and gradient."""
    x, rows = _data(size, source)
    y = source("ml_y", (rows,), (_ROWS,))
    beta = np.random.default_rng(1).random(x.shape[1])
    predicted = x.dot(beta)
    gradient = 2 * x.T.dot(predicted) - 2 * x.T.dot(y)
    return [((y - predicted) ** 2).sum(), gradient]


def logistic_gradient(size: float = 1, source: Source = random) -> Collections:
    """linear_model/glm.py, LogisticRegression: dask-glm's gradient descent, loss and gradient."""
    x, rows = _data(size, source)
    y = source("ml_y", (rows,), (_ROWS,)) > 0.5
    predicted = x.dot(np.random.default_rng(1).normal(size=x.shape[1]))
    odds = da.exp(predicted)
    loss = da.log1p(odds).sum() - da.dot(y.astype(float), predicted)
    return [loss, x.T.dot(odds / (1 + odds) - y)]


def newton_step(size: float = 1, source: Source = random) -> Collections:
    """linear_model/glm.py, solver newton: dask-glm's gradient and Hessian of a logistic loss."""
    x, rows = _data(size, source)
    y = source("ml_y", (rows,), (_ROWS,)) > 0.5
    chances = 1 / (1 + da.exp(-x.dot(np.random.default_rng(1).normal(size=x.shape[1]))))
    weights = chances * (1 - chances)
    return [x.T.dot(chances - y), da.dot(x.T * weights, x)]


def _distances(x: da.Array, y: da.Array) -> da.Array:
    """Squared Euclidean distances, as of metrics/pairwise.py."""
    squares = -2 * da.dot(x, y.T) + (x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1)[None, :]
    return da.maximum(squares, 0)


def pairwise_distances(size: float = 1, source: Source = random) -> Collections:
    """metrics/pairwise.py, euclidean_distances: of many rows to many others."""
    blocks = scaled(14, size, axes=2)
    x, y = (source(f"ml_{name}", (300 * blocks, 64), (300, 64)) for name in ("a", "b"))
    return [da.sqrt(_distances(x, y)).min(axis=1)]


def rbf_kernel(size: float = 1, source: Source = random) -> Collections:
    """metrics/pairwise.py, rbf_kernel: of the data with itself."""
    blocks = scaled(14, size, axes=2)
    x = source("ml_a", (300 * blocks, 64), (300, 64))
    return [da.exp(-_distances(x, x) / 64)]
