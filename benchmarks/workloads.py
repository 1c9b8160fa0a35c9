"""The expressions of benchmarks and tests: common array computations in typical chunks.

Every function takes ``source(name, shape, chunks)``, which creates an input array, so that the
same expression runs on arrays generated, read from files or in memory.  Functions that call
dask.array take the module as ``xp``, so that packages with the same functions can replace it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask._task_spec import DataNode
from dask.highlevelgraph import HighLevelGraph

Source = Callable[[str, tuple[int, ...], tuple[int, ...]], da.Array]
Workload = Callable[[Source], Sequence[da.Array]]


def generated(name: str, shape: tuple[int, ...], chunks: tuple[int, ...]) -> da.Array:
    """A generated input, which can be generated in any tiles."""
    return da.ones(shape, chunks=chunks, name=f"{name}-{shape}-{chunks}")


def persisted(name: str, shape: tuple[int, ...], chunks: tuple[int, ...]) -> da.Array:
    """An input in memory; its blocks are broadcast views of a single number."""
    like = da.zeros(shape, chunks=chunks)
    key = f"persisted-{name}-{shape}-{chunks}"
    blocks = {
        (key, *block): DataNode((key, *block), np.broadcast_to(np.float64(1), _extent(like, block)))
        for block in np.ndindex(*like.numblocks)
    }
    return da.Array(HighLevelGraph.from_collections(key, blocks), key, like.chunks, like.dtype)


def _extent(array: da.Array, block: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sizes[position] for sizes, position in zip(array.chunks, block, strict=True))


def matmul(source: Source) -> Sequence[da.Array]:
    a, b = (source(name, (4000, 4000), (1000, 1000)) for name in "ab")
    return (a @ b,)


def chain(source: Source) -> Sequence[da.Array]:
    """(A B) + (C (D E)), square."""
    a, b, c, d, e = (source(name, (4000, 4000), (1000, 1000)) for name in "abcde")
    return (a @ b + c @ (d @ e),)


def skewed_chain(source: Source) -> Sequence[da.Array]:
    """(A B) + (C (D E)), with side lengths that differ by a factor of 100."""
    s, t = 4000, 400
    shapes = {"a": (s, t), "b": (t, s), "c": (s, t), "d": (t, 10 * s), "e": (10 * s, s)}
    a, b, c, d, e = (source(name, shape, (t, t)) for name, shape in shapes.items())
    return (a @ b + c @ (d @ e),)


def gram_rows(source: Source) -> Sequence[da.Array]:
    x = source("x", (320_000, 256), (10_000, 256))
    return (x.T @ x,)


def gram_columns(source: Source) -> Sequence[da.Array]:
    x = source("x", (320_000, 256), (320_000, 8))
    return (x.T @ x,)


def row_product(source: Source) -> Sequence[da.Array]:
    """A, chunked by rows, times B, chunked by rows."""
    a, b = (source(name, (4000, 4000), (250, 4000)) for name in "ab")
    return (a @ b,)


def transposed_sum(source: Source) -> Sequence[da.Array]:
    x = source("x", (4000, 4000), (500, 4000))
    return (x + x.T,)


def transposed_add(source: Source) -> Sequence[da.Array]:
    """C = A + B; D = A.T + B.T; C + D."""
    a, b = (source(name, (4000, 4000), (250, 4000)) for name in "ab")
    return ((a + b) + (a.T + b.T),)


def zscores(source: Source) -> Sequence[da.Array]:
    x = source("x", (200_000, 64), (10_000, 16))
    return ((x - x.mean(axis=0)) / x.std(axis=0),)


def logistic_regression(
    source: Source,
    chunks: tuple[int, int] = (20_000, 64),
    features: int = 64,
    steps: int = 5,
    *,
    xp: Any = da,
) -> Sequence[da.Array]:
    """Gradient descent on a tall design matrix."""
    x = source("x", (400_000, features), chunks)
    y = source("y", (400_000,), chunks[:1])
    w = source("w", (features,), (features,))
    for _ in range(steps):
        p = 1 / (1 + xp.exp(-(x @ w)))
        w = w - 1e-3 * (x.T @ (p - y))
    return (w,)


def logistic_regression_columns(source: Source) -> Sequence[da.Array]:
    """`logistic_regression` on a matrix chunked along its features."""
    return logistic_regression(source, (400_000, 32), 128)


def mlp(
    source: Source, batch: int = 2048, hidden: int = 2048, layers: int = 3, *, xp: Any = da
) -> Sequence[da.Array]:
    """Forward and backward through a perceptron; returns the gradients."""
    x = source("x", (batch, hidden), (512, 512))
    weights = [source(f"w{layer}", (hidden, hidden), (512, 512)) for layer in range(layers)]
    activations = [x]
    for weight in weights:
        activations.append(xp.maximum(activations[-1] @ weight, 0))
    error = activations[-1] - 1
    gradients = []
    for weight, before, after in zip(
        weights[::-1], activations[-2::-1], activations[:0:-1], strict=True
    ):
        error = error * (after > 0)
        gradients.append(before.T @ error)
        error = error @ weight.T
    return gradients


def two_axes(source: Source) -> Sequence[da.Array]:
    """One matrix used by rows and by columns, as alternating least squares does."""
    a = source("a", (20_000, 4000), (2500, 4000))
    m = source("m", (4000, 32), (4000, 32))
    u = a @ m
    return (u, a.T @ u)


def anomalies(source: Source) -> Sequence[da.Array]:
    """A field chunked along time, minus its mean over time, then a mean over space."""
    field = source("field", (400, 180, 360), (10, 180, 360))
    deviation = field - field.mean(axis=0)
    return (deviation.std(axis=0), deviation.mean(axis=(1, 2)))


def regrid(source: Source) -> Sequence[da.Array]:
    """Every map of a field chunked along time, times a dense regridding matrix."""
    field = source("field", (200, 90, 180), (10, 90, 180))
    matrix = source("matrix", (1000, 90, 180), (250, 45, 90))
    return (da.einsum("tyx,kyx->tk", field, matrix),)


def attention(source: Source, *, xp: Any = da) -> Sequence[da.Array]:
    """Softmax(Q K') V over batch and heads."""
    q, k, v = (source(name, (8, 8, 512, 64), (2, 8, 128, 64)) for name in "qkv")
    scores = xp.einsum("bhqd,bhkd->bhqk", q, k) / 8
    weights = xp.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return (xp.einsum("bhqk,bhkd->bhqd", weights, v),)


def kmeans(source: Source, *, xp: Any = da) -> Sequence[da.Array]:
    """One step: distances to the centres, nearest, new centres."""
    x = source("x", (400_000, 32), (20_000, 8))
    centres = source("centres", (16, 32), (16, 32))
    distances = (x**2).sum(axis=1, keepdims=True) - 2 * x @ centres.T + (centres**2).sum(axis=1)
    nearest = distances.argmin(axis=1)
    member = (nearest[:, None] == xp.arange(16, chunks=16)[None, :]).astype(float)
    return ((member.T @ x) / member.sum(axis=0)[:, None],)


def fft2(source: Source, *, xp: Any = da) -> Sequence[da.Array]:
    x = source("x", (4096, 4096), (512, 4096))
    rows = xp.fft.fft(x.rechunk({1: -1}), axis=1)
    return (xp.fft.fft(rows.rechunk((x.shape[0], x.shape[1] // 8)), axis=0),)


def climatology(source: Source) -> Sequence[da.Array]:
    """A field chunked along time, minus its mean over time, regridded by a dense matrix."""
    field = source("field", (3200, 6000), (200, 6000))
    weights = source("weights", (6000, 1200), (1500, 300))
    return ((field - field.mean(axis=0)) @ weights,)


WORKLOADS: dict[str, Workload] = {
    function.__name__: function
    for function in (
        matmul, chain, skewed_chain, gram_rows, gram_columns, row_product, transposed_sum,
        transposed_add, zscores, logistic_regression, logistic_regression_columns, mlp, two_axes,
        anomalies, regrid, attention, kmeans, fft2,
    )
}  # fmt: skip
