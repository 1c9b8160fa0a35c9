"""Logistic regression by gradient descent, as one expression of many steps.

    python examples/logistic_regression.py [--workers 4] [--rows 200000] [--steps 5]

The design matrix has chunks along its features.  Read from files, it is read by rows
instead, and only gradients and weights move.  If it is in memory already, dasktile does not
move it, because that would cost more than the sums of ``x @ w`` in every step.
"""

from __future__ import annotations

import argparse

import dask.array as da
import numpy as np

import dasktile


def fit(x: da.Array, y: da.Array, steps: int, rate: float = 1.0) -> da.Array:
    """Weights after some steps of gradient descent."""
    w = da.zeros(x.shape[1], chunks=-1)
    for _ in range(steps):
        p = 1 / (1 + da.exp(-(x @ w)))
        w = w - rate / len(x) * (x.T @ (p - y))
    return w


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    truth = rng.normal(size=32)
    features = rng.normal(size=(arguments.rows, 32))
    labels = (features @ truth + rng.normal(size=arguments.rows) > 0).astype(float)
    x = da.from_array(features, chunks=(arguments.rows, 8))
    y = da.from_array(labels, chunks=arguments.rows // 8)
    w = fit(x, y, arguments.steps)
    print(dasktile.explain(w, workers=arguments.workers))
    found = dasktile.optimize(w, workers=arguments.workers).compute()
    direction = found @ truth / np.linalg.norm(found) / np.linalg.norm(truth)
    print(f"cosine of the angle to the true weights: {direction:.3f}")


if __name__ == "__main__":
    main()
