"""Logistic regression by gradient descent.

    python examples/applications/logistic_regression.py [--workers 4] [--size 40000]

The design matrix comes in blocks of columns, which would have to send ``x @ w`` of all
samples in every step.  Read by rows, only gradients travel.
"""

from __future__ import annotations

import argparse

import dask
import dask.array as da
import numpy as np
from sklearn.linear_model import LogisticRegression

import dasktile

ALPHA = 100.0


def data(size: int = 40_000, seed: int = 0) -> tuple[da.Array, da.Array]:
    """Samples with 32 features, and labels that are one or zero."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(size, 32))
    odds = features @ (rng.normal(size=32) / 6)
    labels = (odds + rng.logistic(size=size) > 0).astype(float)
    return da.from_array(features, chunks=(size, 4)), da.from_array(labels, chunks=size)


def build(x: da.Array, y: da.Array, steps: int = 8) -> da.Array:
    """Weights after some steps; the loss curves by at most a quarter for every sample."""
    w = da.zeros(x.shape[1], chunks=-1)
    for _ in range(steps):
        p = 1 / (1 + da.exp(-(x @ w)))
        gradient = x.T @ (p - y) + ALPHA * w
        w = w - gradient / (len(x) / 4 + ALPHA)
    return w


def check(found: np.ndarray, x: da.Array, y: da.Array) -> bool:
    """Whether the loss is least there."""
    model = LogisticRegression(C=1 / ALPHA, fit_intercept=False, tol=1e-8)
    model.fit(x.compute(), y.compute())
    return np.allclose(found, model.coef_[0], rtol=1e-3, atol=1e-3)


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
