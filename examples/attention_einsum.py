"""Multi-head attention, every step of it an extended Einstein summation.

    python examples/attention_einsum.py [--workers 4] [--length 256]

The projections and products are sums of products.  Softmax adds three more summations: the maximum
of the scores over the keys, the exponential of scores minus maximum, and the sum that the weights
are divided by.  All steps share the same labels, and dasktile chooses for all of them together
along which labels the work is divided.
"""

from __future__ import annotations

import argparse

import dask.array as da
import numpy as np

import dasktile
from dasktile import einsum


def weight(score: np.ndarray, largest: np.ndarray) -> np.ndarray:
    return np.exp(score - largest)


def softmax(x: da.Array) -> da.Array:
    """Along the last axis."""
    largest = einsum("...k->...", x, reduce=np.maximum)
    weights = einsum("...k,...->...k", x, largest, join=weight)
    total = einsum("...k->...", weights)
    return einsum("...k,...->...k", weights, total, join=np.divide)


def attention(x: da.Array, wq: da.Array, wk: da.Array, wv: da.Array, wo: da.Array) -> da.Array:
    """Self-attention of sequences.

    Parameters
    ----------
    x
        (batch, sequence, attribute).
    wq, wk, wv, wo
        (attribute, head, depth): how every head projects, and back.
    """
    q = einsum("bsa,ahd->bhsd", x, wq)
    k = einsum("bsa,ahd->bhsd", x, wk)
    v = einsum("bsa,ahd->bhsd", x, wv)
    scores = einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(wq.shape[-1])
    seen = einsum("bhqk,bhkd->bhqd", softmax(scores), v)
    return einsum("bhsd,ahd->bsa", seen, wo)


def in_numpy(x: np.ndarray, *weights: np.ndarray) -> np.ndarray:
    wq, wk, wv, wo = weights
    q, k, v = (np.einsum("bsa,ahd->bhsd", x, w, optimize=True) for w in (wq, wk, wv))
    scores = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(wq.shape[-1]))
    scores /= scores.sum(axis=-1, keepdims=True)
    return np.einsum("bhsd,ahd->bsa", scores @ v, wo, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    batch, heads, depth = 4, 8, 32
    x = rng.normal(size=(batch, arguments.length, heads * depth))
    weights = [rng.normal(size=(heads * depth, heads, depth)) / 16 for _ in range(4)]
    out = attention(
        da.from_array(x, chunks=(batch, arguments.length // 4, -1)),
        *(da.from_array(w, chunks=(-1, heads // 4, -1)) for w in weights),
    )
    print(dasktile.explain(out, workers=arguments.workers))
    tiled = dasktile.optimize(out, workers=arguments.workers).compute()
    print("as NumPy:", np.allclose(tiled, in_numpy(x, *weights)))


if __name__ == "__main__":
    main()
