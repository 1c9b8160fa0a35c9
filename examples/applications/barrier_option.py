"""A barrier option by Monte Carlo: worthless once the share falls below the barrier.

    python examples/applications/barrier_option.py [--workers 4] [--size 100000]

Random numbers keep their chunks, since others would be other numbers.  Paths are sums of
them along time, and every path is looked at on its own.
"""

from __future__ import annotations

import argparse

import dask
import dask.array as da
import numpy as np
from scipy.special import ndtr

import dasktile

START, STRIKE, BARRIER = 100.0, 100.0, 90.0
RATE, VOLATILITY, YEARS = 0.05, 0.2, 1.0


def data(size: int = 100_000, seed: int = 0) -> tuple[da.Array]:
    """Normal numbers, one for every path and each of 100 days."""
    rng = da.random.default_rng(seed)
    return (rng.standard_normal((size, 100), chunks=(size // 16, 100)),)


def build(normal: da.Array) -> tuple[da.Array, da.Array]:
    """What a down-and-out call is worth, and the standard error."""
    day = YEARS / normal.shape[1]
    steps = (RATE - VOLATILITY**2 / 2) * day + VOLATILITY * np.sqrt(day) * normal
    paths = START * da.exp(da.cumsum(steps, axis=1))
    alive = paths.min(axis=1) > BARRIER
    paid = np.exp(-RATE * YEARS) * da.where(alive, da.maximum(paths[:, -1] - STRIKE, 0), 0)
    return paid.mean(), paid.std() / np.sqrt(len(normal))


def check(found: tuple[float, float], normal: da.Array) -> bool:
    """Whether it is what Merton's formula says, up to four standard errors.

    The formula watches the share all the time; days see it as if the barrier were lower
    (Broadie, Glasserman and Kou 1997).
    """
    worth, error = found
    day = YEARS / normal.shape[1]
    barrier = BARRIER * np.exp(-0.5826 * VOLATILITY * np.sqrt(day))
    mirrored = barrier**2 / START
    power = 2 * RATE / VOLATILITY**2 - 1
    exact = call(START) - (barrier / START) ** power * call(mirrored)
    return abs(worth - exact) < 4 * error


def call(price: float) -> float:
    """Black and Scholes' price of a call."""
    spread = VOLATILITY * np.sqrt(YEARS)
    upper = (np.log(price / STRIKE) + (RATE + VOLATILITY**2 / 2) * YEARS) / spread
    return price * ndtr(upper) - STRIKE * np.exp(-RATE * YEARS) * ndtr(upper - spread)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--size", type=int, default=100_000)
    arguments = parser.parse_args()
    inputs = data(arguments.size)
    result = build(*inputs)
    explanation = dasktile.explain(result, workers=arguments.workers)
    print(str(explanation).partition("\n\n")[0])  # the rest is a table of all arrays
    (found,) = dask.compute(dasktile.optimize(result, workers=arguments.workers))
    print("as the formula:", check(found, *inputs))


if __name__ == "__main__":
    main()
