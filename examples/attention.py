"""Attention over batch and heads, written with ``da.einsum``.

    python examples/attention.py [--workers 4] [--length 512]

``da.einsum`` re-chunks its inputs if a block of the result would be larger than those of the
inputs, so better chunks of the inputs alone do not help.  dasktile writes the products itself, cut
along batch and heads, which are not summed over.
"""

from __future__ import annotations

import argparse

import dask.array as da
import numpy as np

import dasktile


def attention(q: da.Array, k: da.Array, v: da.Array) -> da.Array:
    """Softmax of the scaled scores of queries and keys, times the values."""
    scores = da.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(q.shape[-1])
    weights = da.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return da.einsum("bhqk,bhkd->bhqd", weights, v)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    shape, chunks = (4, 8, arguments.length, 64), (4, 8, arguments.length // 4, 64)
    q, k, v = (da.from_array(rng.normal(size=shape), chunks=chunks) for _ in range(3))
    out = attention(q, k, v)
    print(dasktile.explain(out, workers=arguments.workers))
    tiled = dasktile.optimize(out, workers=arguments.workers).compute()
    scores = np.einsum("hqd,hkd->hqk", q[0].compute(), k[0].compute()) / 8
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    print("as NumPy:", np.allclose(tiled[0], weights @ v[0].compute()))


if __name__ == "__main__":
    main()
