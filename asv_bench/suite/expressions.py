"""The expressions that are planned: small in bytes and large in blocks, never computed."""

from __future__ import annotations

from collections.abc import Callable

import dask.array as da


def _square(blocks: int) -> da.Array:
    """A matrix that is cut along its rows."""
    return da.ones((400 * blocks, 400 * blocks), chunks=(400, -1))


def _rows(blocks: int, columns: int = 50) -> da.Array:
    """A table that is cut along its rows."""
    return da.ones((1000 * blocks, columns), chunks=(1000, columns))


def matmul(blocks: int) -> da.Array:
    return _square(blocks) @ (_square(blocks) + 1)


def chain(blocks: int) -> da.Array:
    """A chain of products, one of them shared."""
    x = _square(blocks) @ (_square(blocks) + 1)
    return x @ x.T + x


def gram(blocks: int) -> da.Array:
    """The covariance of the columns of a table."""
    x = _rows(blocks)
    centred = x - x.mean(axis=0)
    return centred.T @ centred


def regression(blocks: int) -> da.Array:
    """A step of logistic regression."""
    x, w = _rows(blocks), da.ones(50, chunks=50)
    predicted = 1 / (1 + da.exp(-(x @ w)))
    return w - 0.1 * (x.T @ (predicted - 1))


def attention(blocks: int) -> da.Array:
    """Attention with a softmax, rows cut along the words."""
    q, k, v = (_rows(blocks, 64) + number for number in range(3))
    scores = da.exp(q @ k.T)
    return (scores / scores.sum(axis=1, keepdims=True)) @ v


def distances(blocks: int) -> da.Array:
    """The nearest of 40 points for every row of a table."""
    x, centres = _rows(blocks), da.ones((40, 50), chunks=(10, 50))
    return ((x[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2).argmin(axis=1)


def transposed_add(blocks: int) -> da.Array:
    x = _square(blocks)
    return (x + x.T).sum(axis=0)


def fft2(blocks: int) -> da.Array:
    """A Fourier transform along both axes, with a change of chunks between them."""
    rows = da.fft.fft(_square(blocks), axis=1)
    return da.fft.fft(rows.rechunk((-1, 400)), axis=0)


#: All expressions by name; each takes the number of blocks along an axis.
EXPRESSIONS: dict[str, Callable[[int], da.Array]] = {
    function.__name__: function
    for function in (
        *(matmul, chain, gram, regression),
        *(attention, distances, transposed_add, fft2),
    )
}
