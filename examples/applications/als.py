"""Matrix factorisation by alternating least squares, where most ratings are missing.

    python examples/applications/als.py [--workers 4] [--size 4000]

Users' factors need the ratings by rows, films' factors need them by columns.  Ratings are large and
factors are small, so the best plan keeps the ratings in rows and sends sums over a film's ratings.
"""

from __future__ import annotations

import argparse

import dask
import dask.array as da
import numpy as np
from sklearn.linear_model import Ridge

import dasktile

RANK, PENALTY = 4, 0.1


def data(size: int = 4000, seed: int = 0) -> tuple[da.Array, da.Array, da.Array]:
    """Ratings of films by users, which of them there are, and factors to start from."""
    rng = np.random.default_rng(seed)
    films = size // 4
    ratings = rng.normal(size=(size, RANK)) @ rng.normal(size=(RANK, films))
    known = (rng.random((size, films)) < 0.2).astype(float)
    ratings = known * (ratings + 0.1 * rng.normal(size=(size, films)))
    chunks = (size // 4, films // 4)
    start = da.from_array(rng.normal(size=(films, RANK)))
    return da.from_array(ratings, chunks=chunks), da.from_array(known, chunks=chunks), start


def factors(ratings: da.Array, known: da.Array, others: da.Array) -> da.Array:
    """For every row of ratings, the ridge regression on the others' factors that it knows."""
    squares = others[:, :, None] * others[:, None, :]
    left = da.tensordot(known, squares, axes=1) + PENALTY * np.eye(RANK)
    return da.apply_gufunc(solve, "(i,j),(i)->(j)", left, ratings @ others, output_dtypes=float)


def solve(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """One small system of equations for every row."""
    return np.linalg.solve(left, right[..., None])[..., 0]


def build(
    ratings: da.Array, known: da.Array, films: da.Array, steps: int = 4
) -> tuple[da.Array, da.Array]:
    """Factors of users and of films after some steps."""
    for _ in range(steps):
        users = factors(ratings, known, films)
        films = factors(ratings.T, known.T, users)
    return users, films


def check(
    found: tuple[np.ndarray, np.ndarray], ratings: da.Array, known: da.Array, start: da.Array
) -> bool:
    """Whether each of some films is the users' best, and known ratings come out but for noise."""
    users, films = found
    ratings, known = ratings.compute(), known.compute() > 0
    for film in range(5):
        rated = known[:, film]
        model = Ridge(PENALTY, fit_intercept=False).fit(users[rated], ratings[rated, film])
        if not np.allclose(films[film], model.coef_):
            return False
    missed = (ratings - users @ films.T)[known]
    return np.sqrt((missed**2).mean()) < 0.11


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--size", type=int, default=4000)
    arguments = parser.parse_args()
    inputs = data(arguments.size)
    result = build(*inputs)
    explanation = dasktile.explain(result, workers=arguments.workers)
    print(str(explanation).partition("\n\n")[0])  # the rest is a table of all arrays
    (found,) = dask.compute(dasktile.optimize(result, workers=arguments.workers))
    print("as scikit-learn:", check(found, *inputs))


if __name__ == "__main__":
    main()
