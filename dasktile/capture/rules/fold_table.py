"""The table of supported reductions and their functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dasktile._compat.dask import (
    arg_agg,
    arg_chunk,
    arg_combine,
    available,
    chunk_argmax,
    chunk_argmin,
    chunk_max,
    chunk_min,
    chunk_topk,
    count_block,
    mean_agg,
    mean_chunk,
    mean_combine,
    moment_agg,
    moment_chunk,
    moment_combine,
    nanarg_agg,
    nanargmax_block,
    nanargmin_block,
    nanmax_skip,
    nanmin_skip,
    nannumel,
    numel,
    topk_aggregate,
)
from dasktile.capture.rules.trees import Call

Function = Callable[..., Any]
Keywords = frozenset[str]


@dataclass(frozen=True, slots=True)
class Reduction:
    """A supported reduction.

    Parameters
    ----------
    op
        Name of the operation.
    first, between, last
        Allowed keywords of the functions that begin (the step), combine and finish.
    combines
        The functions that may combine.
    combine
        Returns the combining function, given the calls that begin and finish.  It is needed for
        a tree of one level, whose graph has none.
    kinds
        Kinds of dtype (:attr:`numpy.dtype.kind`) that may be reduced.
    work
        Operations per element.
    """

    op: str
    first: Keywords
    between: Keywords
    last: Keywords
    combines: tuple[Function, ...]
    combine: Callable[[Call, Call], Function]
    kinds: str = "biufc"
    work: float = 1.0

    def name(self, first: Call) -> str:
        """Name of the operation, given the call of its step."""
        op = "moment" if first.keywords.get("order", 2) != 2 else self.op
        return f"nan{op}" if first.keywords.get("sum") is np.nansum else op

    def partial(self, dtype: np.dtype[Any], first: Call) -> float:
        """Bytes of a partial result per element of the result."""
        items = 1
        if first.function is moment_chunk:
            items = first.keywords.get("order", 2)
        if first.function in _COUNTING and not has_one_count(first):
            items += 1
        return float(items * dtype.itemsize)


def has_one_count(first: Call) -> bool:
    """Whether a step counts the elements of its tile, and their number is the same everywhere."""
    return first.function in _COUNTING and first.keywords.get("numel") in (None, numel)


def with_one_count(partial: Any) -> Any:
    """The same partial result, with its equal counts in the memory of one."""
    counts = partial["n"]
    # those of masked arrays differ
    if type(counts) is not np.ndarray or counts.size < 2:
        return partial
    return {**partial, "n": np.broadcast_to(counts.flat[0], counts.shape)}


def is_supported(reduction: Reduction, first: Call, between: Call | None, last: Call) -> bool:
    """Whether the calls of a graph are those of a supported reduction, with equal arguments."""
    if first.args or last.args or not set(first.keywords) <= reduction.first:
        return False
    if not set(last.keywords) <= reduction.last:
        return False
    if between is not None:
        known = any(between.function is function for function in reduction.combines)
        if not known or between.args or not set(between.keywords) <= reduction.between:
            return False
    calls = [call for call in (first, between, last) if call is not None]
    for keyword, default in (("order", 2), ("k", None)):
        if len({call.keywords.get(keyword, default) for call in calls}) != 1:
            return False
    skips_nan = first.keywords.get("sum") is np.nansum
    counts = (None, nannumel if skips_nan else numel)
    if not any(first.keywords.get("numel") is count for count in counts[skips_nan:]):
        return False
    if any(call.keywords.get("sum", np.sum) not in (np.sum, np.nansum) for call in calls):
        return False
    if first.function is moment_chunk:
        # in an integer dtype the moments of every block are rounded
        return all(_kind(call) in "fc" for call in (first, last))
    return True


def is_precise(dtype: np.dtype[Any], first: Call) -> bool:
    """Whether the dtype of a sum is precise enough for any grouping of its elements."""
    if first.keywords.get("dtype") is not None:
        dtype = np.dtype(first.keywords["dtype"])
    elif first.function not in SUMS:
        return True
    return dtype.kind in "biufc" and not (dtype.kind == "f" and dtype.itemsize < 4)


def _kind(call: Call) -> str:
    dtype = call.keywords.get("dtype")
    return "f" if dtype is None else np.dtype(dtype).kind


def _as_last(_: Call, last: Call) -> Function:
    return partial(last.function, **last.keywords)


def _as_first(first: Call, _: Call) -> Function:
    return partial(first.function, **first.keywords)


def _mean_combine(_: Call, __: Call) -> Function:
    return mean_combine


def _moment_combine(first: Call, _: Call) -> Function:
    keywords: dict[str, Any] = {"order": first.keywords.get("order", 2)}
    if first.keywords.get("sum") is np.nansum:
        # blocks of NaN only have an undefined mean, which is skipped
        keywords["sum"] = np.nansum
    return partial(moment_combine, **keywords)


_NONE: Keywords = frozenset()
_DTYPE: Keywords = frozenset({"dtype"})
_K: Keywords = frozenset({"k"})
_MEAN: Keywords = frozenset({"sum", "numel"})
_MOMENT: Keywords = frozenset({"sum", "order"})


def _plain(op: str, last: Function) -> Reduction:
    return Reduction(op, _DTYPE, _DTYPE, _DTYPE, (last,), _as_last)


def _extremum(op: str, first: Function) -> Reduction:
    return Reduction(op, _NONE, _NONE, _NONE, (first,), _as_first, kinds="biufcmM")


_REDUCTIONS: Mapping[tuple[Function, Function], Reduction] = {
    (np.sum, np.sum): _plain("sum", np.sum),
    (np.prod, np.prod): _plain("prod", np.prod),
    (np.any, np.any): _plain("any", np.any),
    (np.all, np.all): _plain("all", np.all),
    (np.nansum, np.sum): _plain("nansum", np.sum),
    (np.nanprod, np.prod): _plain("nanprod", np.prod),
    (np.count_nonzero, np.sum): _plain("count_nonzero", np.sum),
    (count_block, np.sum): _plain("count", np.sum),
    (np.min, np.min): _extremum("min", np.min),
    (np.max, np.max): _extremum("max", np.max),
    (chunk_min, np.min): _extremum("min", chunk_min),
    (chunk_max, np.max): _extremum("max", chunk_max),
    (nanmin_skip, nanmin_skip): _extremum("nanmin", nanmin_skip),
    (nanmax_skip, nanmax_skip): _extremum("nanmax", nanmax_skip),
    (mean_chunk, mean_agg): Reduction(
        "mean",
        _MEAN | _DTYPE,
        _MEAN,
        _DTYPE,
        (mean_combine,),
        _mean_combine,
        work=2.0,
    ),
    (moment_chunk, moment_agg): Reduction(
        "var",
        _MOMENT | _DTYPE | {"numel", "implicit_complex_dtype"},
        _MOMENT,
        _MOMENT | _DTYPE | {"ddof"},
        (moment_combine,),
        _moment_combine,
        work=6.0,
    ),
    (chunk_topk, topk_aggregate): Reduction("topk", _K, _K, _K, (chunk_topk,), _as_first, work=4.0),
}

#: Supported reductions, by the functions that begin and finish.
REDUCTIONS: Mapping[tuple[Function, Function], Reduction] = {
    functions: reduction
    for functions, reduction in _REDUCTIONS.items()
    if available(*functions, *reduction.combines)
}

#: Functions that begin a reduction.
FIRST_STEPS = tuple(first for first, _ in REDUCTIONS)

#: Functions that begin a reduction whose partial results have counts.
_COUNTING = frozenset({mean_chunk, moment_chunk})

#: Functions that add or multiply in the dtype of the array if no dtype is given.
SUMS = frozenset({np.sum, np.prod, np.nansum, np.nanprod})


@dataclass(frozen=True, slots=True)
class ArgReduction:
    """A reduction to the position of an extremum: its name, and the search within a block."""

    op: str
    search: Function


def in_this_process(function: Any) -> Any:
    """A function by which arg reductions are known, for a copy of it from another process.

    Dask's wrappers of ``np.argmin`` and ``np.argmax`` have the names of these, so that they are
    pickled by value.
    """
    for known in (chunk_argmin, chunk_argmax):
        same = (
            getattr(known, name, known) == getattr(function, name, function)
            for name in ("__code__", "__wrapped__")
        )
        if all(same):
            return known
    return function


# The functions of NumPy and dask may return the position of a NaN if all numbers of a slice are
# infinite; the result then depends on the chunks.


def nanargmin(x: Any, axis: int | None, keepdims: bool = False) -> Any:
    """Position of the least number; any position in slices of NaN only."""
    return chunk_argmax(x == np.nanmin(x, axis=axis, keepdims=True), axis, keepdims)


def nanargmax(x: Any, axis: int | None, keepdims: bool = False) -> Any:
    """Position of the greatest number; any position in slices of NaN only."""
    return chunk_argmax(x == np.nanmax(x, axis=axis, keepdims=True), axis, keepdims)


_ARG_REDUCTIONS: Mapping[tuple[Function, Function, Function], ArgReduction] = {
    (np.min, chunk_argmin, arg_agg): ArgReduction("argmin", chunk_argmin),
    (np.max, chunk_argmax, arg_agg): ArgReduction("argmax", chunk_argmax),
    (np.nanmin, nanargmin_block, nanarg_agg): ArgReduction("nanargmin", nanargmin),
    (np.nanmax, nanargmax_block, nanarg_agg): ArgReduction("nanargmax", nanargmax),
}

#: Supported reductions to a position, by the functions for the value, for the position, and the
#: one that finishes.
ARG_REDUCTIONS: Mapping[tuple[Function, Function, Function], ArgReduction] = {
    functions: reduction
    for functions, reduction in _ARG_REDUCTIONS.items()
    if available(*functions, arg_chunk, arg_combine, chunk_argmax)
}
