"""A linear support vector machine, by gradient descent on the squared hinge loss.

    python examples/applications/svm.py [--workers 4] [--size 40000]

The samples come in blocks of columns.  What each misses of its margin is a vector that is as
long as there are samples; read by rows, it stays with them.
"""

from __future__ import annotations

import argparse

import dask
import dask.array as da
import numpy as np
from sklearn.svm import LinearSVC

import dasktile

#: Weight of the losses against that of ``w @ w / 2``.
C = 0.01


def data(size: int = 40_000, seed: int = 0) -> tuple[da.Array, da.Array]:
    """Samples with 32 features, and labels that are one or minus one."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(size, 32))
    labels = np.sign(features @ rng.normal(size=32) / 6 + rng.normal(size=size))
    return da.from_array(features, chunks=(size, 4)), da.from_array(labels, chunks=size)


def build(x: da.Array, y: da.Array, steps: int = 8) -> da.Array:
    """Weights after some steps; the loss curves by at most two for every sample."""
    w = da.zeros(x.shape[1], chunks=-1)
    for _ in range(steps):
        missing = da.maximum(0, 1 - y * (x @ w))
        gradient = w - 2 * C * (x.T @ (y * missing))
        w = w - gradient / (1 + 2 * C * len(x))
    return w


def check(found: np.ndarray, x: da.Array, y: da.Array) -> bool:
    """Whether the loss is least there."""
    model = LinearSVC(C=C, fit_intercept=False, dual=False, tol=1e-8).fit(x.compute(), y.compute())
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
