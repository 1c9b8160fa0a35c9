"""Elementwise functions: their arguments are broadcast, and NumPy says what type results have."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from dasktile.capture.rules.pointwise import is_pointwise
from dasktile.lower.known import KnownResult, known_array
from dasktile.lower.result_rules.given import Given, of_common_type

#: Functions that keep the type of numbers of eight bytes and more.
_SUMS = (operator.add, operator.sub, operator.mul, np.add, np.subtract, np.multiply)


def is_elementwise(task: Any) -> bool:
    """Whether a task calls an elementwise function of Dask or NumPy.

    Parameters
    ----------
    task
        The task.
    """
    if task.kwargs:
        return is_pointwise(task.func, task.kwargs, len(task.args), table_only=True)
    try:
        return _is_elementwise(task.func, len(task.args))
    except TypeError:  # an unhashable callable
        return False


@lru_cache(maxsize=512)
def _is_elementwise(function: Callable[..., Any], arguments: int) -> bool:
    return is_pointwise(function, {}, arguments, table_only=True)


def elementwise(function: Callable[..., Any], given: Given) -> KnownResult | None:
    """The result of an elementwise function.

    Parameters
    ----------
    function, given
        The function, with what it wraps, and its arguments.
    """
    sources = given.sources
    if given.is_listed or not sources or not all(each.is_array for each in sources):
        return None
    shape = np.broadcast_shapes(
        *(each.shapes[0] if isinstance(each, KnownResult) else np.shape(each)
          for each in given.arguments)
    )  # fmt: skip
    if any(each.dtype is None for each in sources):
        is_sum = function in _SUMS and not given.literals
        return of_common_type(shape, sources) if is_sum else None
    return known_array(shape, result_type(function, given))


def result_type(function: Callable[..., Any], given: Given) -> np.dtype[Any]:
    """The type of what a function returns, found by a call with arrays of one element.

    Parameters
    ----------
    function
        A function of Dask or NumPy.
    given
        Its arguments, whose types are known.
    """
    kinds = tuple(
        (len(each.shapes[0]), each.dtype) if isinstance(each, KnownResult) else (each, type(each))
        for each in given.arguments
    )
    places = tuple(isinstance(each, KnownResult) for each in given.arguments)
    options = tuple(sorted(given.keywords.items()))
    try:
        return _known_type(function, kinds, places, options)
    except TypeError:  # an unhashable argument
        return _found_type(function, kinds, places, options)


def _found_type(
    function: Callable[..., Any],
    kinds: tuple[Any, ...],
    places: tuple[bool, ...],
    options: tuple[tuple[str, Any], ...],
) -> np.dtype[Any]:
    small = [
        np.zeros((1,) * kind[0], kind[1]) if is_array else kind[0]
        for kind, is_array in zip(kinds, places, strict=True)
    ]
    with np.errstate(all="ignore"):
        return np.asarray(function(*small, **dict(options))).dtype


_known_type = lru_cache(maxsize=1024)(_found_type)
