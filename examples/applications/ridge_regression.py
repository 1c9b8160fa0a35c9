"""Ridge regression by gradient descent.

    python examples/applications/ridge_regression.py [--workers 4] [--size 40000]

The design matrix comes in blocks of columns.  Read by rows instead, a step sends nothing but
the sum of the gradient, one number for every feature.
"""

from __future__ import annotations

import argparse

import dask
import dask.array as da
import numpy as np
from sklearn.linear_model import Ridge

import dasktile

ALPHA = 10.0


def data(size: int = 40_000, seed: int = 0) -> tuple[da.Array, da.Array]:
    """Samples with 64 features, and a noisy linear function of them."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(size, 64))
    target = features @ rng.normal(size=64) + rng.normal(size=size)
    return da.from_array(features, chunks=(size, 8)), da.from_array(target, chunks=size)


def build(x: da.Array, y: da.Array, steps: int = 7) -> da.Array:
    """Weights after some steps; the features are independent and of variance one."""
    w = da.zeros(x.shape[1], chunks=-1)
    for _ in range(steps):
        gradient = x.T @ (x @ w - y) + ALPHA * w
        w = w - gradient / (len(x) + ALPHA)
    return w


def check(found: np.ndarray, x: da.Array, y: da.Array) -> bool:
    """Whether these are the weights of the closed form."""
    model = Ridge(ALPHA, fit_intercept=False).fit(x.compute(), y.compute())
    return np.allclose(found, model.coef_, rtol=1e-4, atol=1e-4)


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
