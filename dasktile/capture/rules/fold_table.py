"""What is known of the functions that reductions are made of."""

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
class Rule:
    """A family of reductions.

    Parameters
    ----------
    op
        Its name.
    first, between, last
        Keywords that the function of the step, the one that combines and the one that
        finishes may have.
    combines
        The functions that may combine; any other makes it another reduction.
    combine
        Makes the combining function of the calls that begin and finish, for a tree of
        one level, whose graph has none.
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
        """Bytes of a partial per element of the result."""
        items = 1
        if first.function is mean_chunk:
            items = 2
        elif first.function is moment_chunk:
            items = 1 + first.keywords.get("order", 2)
        return float(items * dtype.itemsize)


def agree(rule: Rule, first: Call, between: Call | None, last: Call) -> bool:
    """Whether the calls of a reduction are what the rule is about, and fit together."""
    if first.args or last.args or not set(first.keywords) <= rule.first:
        return False
    if not set(last.keywords) <= rule.last:
        return False
    if between is not None:
        known = any(between.function is function for function in rule.combines)
        if not known or between.args or not set(between.keywords) <= rule.between:
            return False
    calls = [call for call in (first, between, last) if call is not None]
    for keyword, default in (("order", 2), ("k", None)):
        if len({call.keywords.get(keyword, default) for call in calls}) != 1:
            return False
    missing = first.keywords.get("sum") is np.nansum
    counts = (None, nannumel if missing else numel)
    if not any(first.keywords.get("numel") is count for count in counts[missing:]):
        return False
    if any(call.keywords.get("sum", np.sum) not in (np.sum, np.nansum) for call in calls):
        return False
    if first.function is moment_chunk:
        # with integers, every block's moments are rounded
        return all(_kind(call) in "fc" for call in (first, last))
    return True


def accumulates(dtype: np.dtype[Any], first: Call) -> bool:
    """Whether sums of any grouping are equally good in the type they are made in."""
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
        # blocks without any number have an undefined mean, which counts for nothing
        keywords["sum"] = np.nansum
    return partial(moment_combine, **keywords)


_NONE: Keywords = frozenset()
_DTYPE: Keywords = frozenset({"dtype"})
_K: Keywords = frozenset({"k"})
_MEAN: Keywords = frozenset({"sum", "numel"})
_MOMENT: Keywords = frozenset({"sum", "order"})


def _plain(op: str, last: Function) -> Rule:
    return Rule(op, _DTYPE, _DTYPE, _DTYPE, (last,), _as_last)


def _extremum(op: str, first: Function) -> Rule:
    return Rule(op, _NONE, _NONE, _NONE, (first,), _as_first, kinds="biufcmM")


_RULES: Mapping[tuple[Function, Function], Rule] = {
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
    (mean_chunk, mean_agg): Rule(
        "mean",
        _MEAN | _DTYPE,
        _MEAN,
        _DTYPE,
        (mean_combine,),
        _mean_combine,
        work=2.0,
    ),
    (moment_chunk, moment_agg): Rule(
        "var",
        _MOMENT | _DTYPE | {"numel", "implicit_complex_dtype"},
        _MOMENT,
        _MOMENT | _DTYPE | {"ddof"},
        (moment_combine,),
        _moment_combine,
        work=6.0,
    ),
    (chunk_topk, topk_aggregate): Rule("topk", _K, _K, _K, (chunk_topk,), _as_first, work=4.0),
}

#: Reductions by the function of the step and the one that finishes.
RULES: Mapping[tuple[Function, Function], Rule] = {
    functions: rule for functions, rule in _RULES.items() if available(*functions, *rule.combines)
}

#: Functions that add or multiply in the type of the array where none is given.
SUMS = frozenset({np.sum, np.prod, np.nansum, np.nanprod})


@dataclass(frozen=True, slots=True)
class Argument:
    """A reduction to the place of an extremum: its name, and how a block is searched."""

    op: str
    search: Function


# NumPy's own, and dask's, may return the place of a NaN where all numbers of a slice are
# infinite, and then the answer depends on the chunks.


def nanargmin(x: Any, axis: int | None, keepdims: bool = False) -> Any:
    """Place of the least number; of slices without any number, any place."""
    return chunk_argmax(x == np.nanmin(x, axis=axis, keepdims=True), axis, keepdims)


def nanargmax(x: Any, axis: int | None, keepdims: bool = False) -> Any:
    """Place of the greatest number; of slices without any number, any place."""
    return chunk_argmax(x == np.nanmax(x, axis=axis, keepdims=True), axis, keepdims)


_ARGUMENTS: Mapping[tuple[Function, Function, Function], Argument] = {
    (np.min, chunk_argmin, arg_agg): Argument("argmin", chunk_argmin),
    (np.max, chunk_argmax, arg_agg): Argument("argmax", chunk_argmax),
    (np.nanmin, nanargmin_block, nanarg_agg): Argument("nanargmin", nanargmin),
    (np.nanmax, nanargmax_block, nanarg_agg): Argument("nanargmax", nanargmax),
}

#: By the functions for the value and for the place, and the one that finishes.
ARGUMENTS: Mapping[tuple[Function, Function, Function], Argument] = {
    functions: argument
    for functions, argument in _ARGUMENTS.items()
    if available(*functions, arg_chunk, arg_combine, chunk_argmax)
}
