"""k-means: three of Lloyd's steps.

    python examples/applications/kmeans.py [--workers 4] [--size 40000]

The points have chunks along their coordinates.  Distances need all coordinates of a point, and
centres are sums over points, so the best plan reads points by rows and moves only centres.
"""

from __future__ import annotations

import argparse

import dask
import dask.array as da
import numpy as np
from sklearn.cluster import KMeans

import dasktile


def data(size: int = 40_000, seed: int = 0) -> tuple[da.Array, da.Array]:
    """Points around 16 places, and the first 16 points, to start from."""
    rng = np.random.default_rng(seed)
    places = rng.normal(scale=3, size=(16, 32))
    points = places[rng.integers(16, size=size)] + rng.normal(size=(size, 32))
    return da.from_array(points, chunks=(size, 4)), da.from_array(points[:16])


def build(x: da.Array, centres: da.Array, steps: int = 3) -> da.Array:
    """Centres after some steps."""
    labels = da.arange(len(centres))
    for _ in range(steps):
        # the squares of the points are the same for all centres
        distances = (centres**2).sum(axis=1) - 2 * (x @ centres.T)
        nearest = distances.argmin(axis=1)
        member = (nearest[:, None] == labels).astype(float)
        centres = (member.T @ x) / member.sum(axis=0)[:, None]
    return centres


def check(found: np.ndarray, x: da.Array, centres: da.Array) -> bool:
    """Whether scikit-learn goes the same way from the same centres."""
    model = KMeans(len(centres), init=centres.compute(), n_init=1, max_iter=3, tol=0)
    return np.allclose(found, model.fit(x.compute()).cluster_centers_)


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
