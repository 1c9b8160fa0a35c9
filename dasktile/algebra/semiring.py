"""The join and the reduction of an extended Einstein summation: checks, aliases and dtypes."""

from __future__ import annotations

import builtins
import contextlib
import functools
import itertools
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dask.array as da
import numpy as np
from dask.array.ufunc import ufunc as dask_ufunc
from dask.utils import funcname

from dasktile.capture.rules.blockwise import Contract
from dasktile.capture.rules.einsums import EinSum, Recipe, reduced_labels
from dasktile.lower.kernels.einsums import spread

#: Reductions by ufuncs that are associative and commutative.
_UFUNCS = (
    *(np.add, np.multiply, np.maximum, np.minimum, np.fmax, np.fmin),
    *(np.logical_and, np.logical_or, np.logical_xor),
    *(np.bitwise_and, np.bitwise_or, np.bitwise_xor),
    *(np.logaddexp, np.logaddexp2, np.hypot, np.gcd, np.lcm),
)

#: Other functions that are the same reductions.
_ALIASES: dict[Any, np.ufunc] = {
    **dict.fromkeys((builtins.sum, np.sum, da.sum, operator.add), np.add),
    **dict.fromkeys((np.prod, da.prod, operator.mul), np.multiply),
    **dict.fromkeys((builtins.max, np.max, da.max), np.maximum),
    **dict.fromkeys((builtins.min, np.min, da.min), np.minimum),
    **dict.fromkeys((builtins.any, np.any, da.any), np.logical_or),
    **dict.fromkeys((builtins.all, np.all, da.all), np.logical_and),
    operator.and_: np.bitwise_and,
    operator.or_: np.bitwise_or,
    operator.xor: np.bitwise_xor,
}

#: Joins and reductions for which every order of contraction gives the same values: the join
#: distributes over the reduction, and no intermediate value overflows or is undefined.
_SEMIRINGS = (
    (np.logical_and, np.logical_or),
    (np.bitwise_and, np.bitwise_or),
    (np.minimum, np.maximum),
    (np.maximum, np.minimum),
)


#: Labels up to which a join is tried on arrays with two elements along each label; such arrays
#: have 2 ** labels elements.
_TRIED = 10


@dataclass(frozen=True, slots=True)
class Algebra:
    """The functions of an einsum.

    Parameters
    ----------
    join, reduce
        Ufuncs where the functions are ufuncs or aliases of them.
    product
        Dtype of a sum of products that is a contraction; None for any other functions.
    """

    join: Callable[..., Any]
    reduce: Callable[..., Any]
    product: np.dtype[Any] | None = None

    @property
    def distributes(self) -> bool:
        """True where operands may be contracted two at a time, in any order."""
        pair = (self.join, self.reduce)
        return self.product is not None or any(pair == known for known in _SEMIRINGS)

    def recipe(
        self, arrays: Sequence[da.Array], spec: tuple[tuple[int, ...], ...], output: tuple[int, ...]
    ) -> Recipe:
        """The operation for operands with these labels."""
        if self.product is not None:
            return Contract(spec, output, self.product)
        function = _of_many(self.join, len(arrays))
        dtype = _joined_dtype(function, [array.dtype for array in arrays], spec, self.join)
        recipe = EinSum(spec, output, function, self.reduce, dtype)
        if reduced_labels(recipe):
            recipe = replace(recipe, dtype=reduced_dtype(self.reduce, dtype))
        return recipe


def algebra_of(
    arrays: Sequence[da.Array], join: Callable[..., Any], reduce: Callable[..., Any]
) -> Algebra:
    join, reduce = _known(join), _known(reduce)
    if isinstance(reduce, np.ufunc) and not any(reduce is known for known in _UFUNCS):
        allowed = ", ".join(known.__name__ for known in _UFUNCS)
        raise ValueError(
            f"reduce must be associative and commutative, of the ufuncs one of {allowed};"
            f" got {reduce.__name__}"
        )
    _of_many(join, len(arrays))
    if (join, reduce) == (np.multiply, np.add):
        dtypes = [array.dtype for array in arrays]
        if all(dtype.kind == "b" for dtype in dtypes):
            # NumPy multiplies booleans by "and", and adds them by "or"
            return Algebra(np.logical_and, np.logical_or)
        if all(dtype.kind in "biufc" for dtype in dtypes):
            return Algebra(join, reduce, np.result_type(*dtypes))
    return Algebra(join, reduce)


def _known(function: Callable[..., Any]) -> Callable[..., Any]:
    """The ufunc of a function that is an alias of one; otherwise the function."""
    if isinstance(function, dask_ufunc):
        return function._ufunc
    try:
        return _ALIASES.get(function, function)
    except TypeError:  # an unhashable callable
        return function


def _of_many(join: Callable[..., Any], count: int) -> Callable[..., Any]:
    """A join as a function of `count` arrays."""
    if not isinstance(join, np.ufunc) or (join.nin == count and join.nout == 1):
        return join
    if join.nin == 2 and any(join is known for known in _UFUNCS):
        return functools.partial(chained, join)
    raise ValueError(
        f"join {join.__name__} takes {join.nin} arrays and returns {join.nout};"
        f" it must take {count} operands and return one array"
    )


def chained(function: Callable[[Any, Any], Any], *values: Any) -> Any:
    """Apply a function of two arrays to any number of arrays, from left to right."""
    return functools.reduce(function, values)


def _joined_dtype(
    function: Callable[..., Any],
    dtypes: Sequence[np.dtype[Any]],
    spec: tuple[tuple[int, ...], ...],
    join: Callable[..., Any],
) -> np.dtype[Any]:
    """Dtype of the result of a join, found by calling it with two elements along each label."""
    order = sorted({*itertools.chain(*spec)})
    size = 2 if len(order) <= _TRIED else 1
    views = [
        spread(_ones((size,) * len(labels), dtype), labels, order)
        for dtype, labels in zip(dtypes, spec, strict=True)
    ]
    given = f"arrays of {', '.join(map(str, dtypes))}"
    with _quiet():
        try:
            values = np.asanyarray(function(*views))
        except Exception as error:
            raise TypeError(
                f"join {funcname(join)} must work on {len(views)} arrays that broadcast, element"
                f" by element; of {given} it raised {type(error).__name__}: {error}"
            ) from error
    full = (size,) * len(order)
    fits = len(values.shape) <= len(full) and all(
        actual in (1, expected)
        for actual, expected in zip(values.shape[::-1], full[::-1], strict=False)
    )
    if not fits:
        raise ValueError(
            f"join {funcname(join)} must work element by element; of {given} that broadcast to"
            f" {full} it made one of {values.shape}"
        )
    return values.dtype


def reduced_dtype(reduce: Callable[..., Any], dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Dtype of the result of a reduction of values of `dtype`."""
    ones = _ones((2,), dtype)
    requirement = (
        f"reduce {funcname(reduce)} must work on pairs of arrays of {dtype}, element by element"
    )
    with _quiet():
        try:
            if isinstance(reduce, np.ufunc):
                return np.asarray(reduce.reduce(ones)).dtype
            result = np.asanyarray(reduce(ones, ones))
            second_result = np.asanyarray(reduce(result, result))
        except Exception as error:
            raise TypeError(f"{requirement}; it raised {type(error).__name__}: {error}") from error
    if result.shape != ones.shape:
        raise ValueError(
            f"{requirement}; of two of shape {ones.shape} it made one of {result.shape}"
        )
    if second_result.dtype != result.dtype or not np.can_cast(dtype, result.dtype, "safe"):
        raise TypeError(
            f"{requirement}, and make what it takes; of {dtype} it made {result.dtype}, and of that"
            f" {second_result.dtype}"
        )
    return result.dtype


def _ones(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    return (np.ones if dtype.kind in "biufcO" else np.zeros)(shape, dtype)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
