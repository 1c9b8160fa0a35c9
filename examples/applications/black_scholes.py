"""Black and Scholes' prices of European options.

    python examples/applications/black_scholes.py [--workers 4] [--size 1000000]

Every option is priced on its own.  The inputs come from different files, in different
chunks; read in the same ones, nothing moves.
"""

from __future__ import annotations

import argparse

import dask
import dask.array as da
import numpy as np
from scipy.special import ndtr
from scipy.stats import lognorm

import dasktile

RATE, VOLATILITY = 0.02, 0.3


def data(size: int = 1_000_000, seed: int = 0) -> tuple[da.Array, da.Array, da.Array]:
    """Prices of shares today, prices agreed on, and the years until then."""
    rng = np.random.default_rng(seed)
    now, strike, years = rng.uniform([[10], [10], [0.1]], [[50], [50], [3]], size=(3, size))
    return (
        da.from_array(now, chunks=size // 4),
        da.from_array(strike, chunks=size // 5),
        da.from_array(years, chunks=size // 10),
    )


def build(now: da.Array, strike: da.Array, years: da.Array) -> tuple[da.Array, da.Array]:
    """What the right to buy is worth, and what the right to sell."""
    spread = VOLATILITY * da.sqrt(years)
    upper = (da.log(now / strike) + (RATE + VOLATILITY**2 / 2) * years) / spread
    lower = upper - spread
    discounted = strike * da.exp(-RATE * years)
    call = now * ndtr(upper) - discounted * ndtr(lower)
    return call, call + discounted - now


def check(
    found: tuple[np.ndarray, np.ndarray], now: da.Array, strike: da.Array, years: da.Array
) -> bool:
    """Whether they are the discounted mean of what is paid, for the first few."""
    few = (np.asarray(x[:5]) for x in (now, strike, years, *found))
    for s, k, t, call, put in zip(*few, strict=True):
        median = s * np.exp((RATE - VOLATILITY**2 / 2) * t)
        then = lognorm(VOLATILITY * np.sqrt(t), scale=median)
        discount = np.exp(-RATE * t)
        right = np.isclose(call, discount * then.expect(lambda x, k=k: x - k, lb=k))
        if not right or not np.isclose(put, discount * then.expect(lambda x, k=k: k - x, ub=k)):
            return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--size", type=int, default=1_000_000)
    arguments = parser.parse_args()
    inputs = data(arguments.size)
    result = build(*inputs)
    explanation = dasktile.explain(result, workers=arguments.workers)
    print(str(explanation).partition("\n\n")[0])  # the rest is a table of all arrays
    (found,) = dask.compute(dasktile.optimize(result, workers=arguments.workers))
    print("as the integral:", check(found, *inputs))


if __name__ == "__main__":
    main()
