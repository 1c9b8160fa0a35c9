"""Blocks that functions make of numbers alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from dasktile.lower.known import KnownResult, known_array
from dasktile.lower.result_rules.given import Given, Rule

#: Methods of generators of random numbers that return an array of the size that they are given.
_DRAWS = frozenset(
    [
        "random",
        "random_sample",
        "uniform",
        "normal",
        "standard_normal",
        "integers",
        "randint",
        "exponential",
        "standard_exponential",
        "gamma",
        "standard_gamma",
        "beta",
        "binomial",
        "poisson",
        "lognormal",
        "laplace",
        "logistic",
        "chisquare",
        "f",
        "geometric",
        "gumbel",
        "hypergeometric",
        "logseries",
        "negative_binomial",
        "noncentral_chisquare",
        "noncentral_f",
        "pareto",
        "power",
        "rayleigh",
        "standard_cauchy",
        "standard_t",
        "triangular",
        "vonmises",
        "wald",
        "weibull",
        "zipf",
    ]
)


def random_numbers(given: Given) -> KnownResult | None:
    """Random numbers, given a generator, a name, a state, a shape, and arguments.

    Parameters
    ----------
    given
        The arguments of Dask's function.
    """
    if len(given.arguments) != 6 or given.sources:
        return None
    _, name, _, shape, _, options = given.arguments
    if name not in _DRAWS or not isinstance(shape, tuple):
        return None
    # other numbers have eight bytes, be they integers or not
    return known_array(shape, options.get("dtype") or np.float64)


def uniform(given: Given) -> KnownResult | None:
    """Equal elements in the memory of one, as their readers see them.

    Parameters
    ----------
    given
        The arguments; one of them is the shape.
    """
    options = given.keywords
    shapes = [each for each in (options.get("shape"), *given.literals) if isinstance(each, tuple)]
    if given.sources or not shapes or options.get("dtype") is None:
        return None
    return known_array(shapes[0], options["dtype"])


def _zeros(given: Given) -> KnownResult | None:
    shape, dtype = given.option("shape"), given.option("dtype", 1)
    shape = (shape,) if isinstance(shape, int) else shape
    if given.sources or not isinstance(shape, tuple):
        return None
    return known_array(shape, dtype or np.float64)


def _zeros_like(given: Given) -> KnownResult | None:
    """Zeros of a given shape, of the type of an array among the literals: a meta."""
    options, literals = given.keywords, given.literals
    like = getattr(literals[0], "dtype", None) if literals else None
    dtype = options.get("dtype", like)
    if options.get("shape") is None or dtype is None or given.sources:
        return None
    return known_array(tuple(options["shape"]), dtype)


def _eye(given: Given) -> KnownResult | None:
    """Ones on a diagonal."""
    rows, columns = given.option("N"), given.option("M", 1)
    if given.sources or rows is None:
        return None
    shape = int(rows), int(rows if columns is None else columns)
    return known_array(shape, given.option("dtype", 3) or np.float64)


def _range(given: Given) -> KnownResult | None:
    """Numbers from a first to a last one by steps; Dask says how many there are."""
    length, dtype = given.option("length", 3), given.option("dtype", 4)
    return None if given.sources or dtype is None else known_array((int(length),), dtype)


def filled(like: Any, options: Any) -> KnownResult | None:
    """Equal elements, before the first block of a running sum.

    Parameters
    ----------
    like
        The arguments of `numpy.full_like`, a meta, the value and its type.
    options
        The others.
    """
    shape = dict(options).get("shape")
    if type(like) is not tuple or not isinstance(shape, tuple):
        return None
    return known_array(shape, like[-1])


def _percentiles(given: Given) -> KnownResult | None:
    """Percentiles of a block, and the number of its elements."""
    wanted = [each for each in given.literals if isinstance(each, np.ndarray)]
    return KnownResult((wanted[0].shape, (1,)), 8, is_array=False) if len(wanted) == 1 else None


RULES: dict[str, Rule] = {
    "dask._apply_random_func": random_numbers,
    "numpy.zeros": _zeros,
    "numpy.zeros_like": _zeros_like,
    "numpy.eye": _eye,
    "dask.arange": _range,
    "dask.percentile": _percentiles,
}
