"""Recogniser of flox's group-by, as xarray's ``groupby`` and ``resample`` build it.

flox computes a partial result of every block, a dict with the groups and one or more arrays with a
row for each of them, and combines these in trees (:mod:`~dasktile.capture.rules.group_trees`); a
last layer takes the array out.  Partial results may have different groups: flox's own functions
combine them, for which they add rows of neutral elements.

Only aggregations are recognised for which any grouping of the blocks gives the same value, apart
from rounding, and any order, except that partial results of ``nanfirst`` and ``nanlast`` are
combined in the order of their blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from tlz import compose  # type: ignore[import-untyped]

from dasktile._compat.flox import FloxNames, flox_names
from dasktile.capture.base import (
    ArrayInfo,
    GraphView,
    Input,
    NotRecognised,
    Operation,
    added_axes,
)
from dasktile.capture.rules.folds import Fold
from dasktile.capture.rules.group_trees import (
    ORDERED,
    GroupReduction,
    GroupStep,
    extracting,
    known_blocks,
    read_cohorts,
    read_map_reduce,
)
from dasktile.capture.rules.trees import unwrap
from dasktile.capture.settings import SETTINGS
from dasktile.capture.steps import group_by_title
from dasktile.ir import AxisMap, Groups, Kind, Label, Role

#: Supported aggregations of flox, with operations per element.
_WORK: Mapping[str, float] = {
    **dict.fromkeys(ORDERED, 2.0),
    **dict.fromkeys(("sum", "nansum", "prod", "nanprod", "min", "nanmin", "max", "nanmax"), 2.0),
    **dict.fromkeys(("all", "any", "count"), 2.0),
    **dict.fromkeys(("mean", "nanmean"), 4.0),
    **dict.fromkeys(("var", "nanvar", "std", "nanstd"), 8.0),
}

#: Those that add or multiply in the dtype of the partial results.
_SUMS = ("sum", "prod", "mean", "var", "std")

#: The arrays of a partial result of a variance: deviations, sum and count.
MOMENTS = 3


@dataclass(frozen=True, slots=True)
class GroupFold(Fold):
    """A reduction by groups along the last labels.

    Parameters
    ----------
    piece
        ``piece(partial result, slices)`` is its part for slices of the labels.
    ordered
        True if partial results must be combined in the order of their blocks.
    """

    piece: Callable[[Any, tuple[slice, ...]], Any]
    ordered: bool


def recognise_groups(view: GraphView, name: str) -> Operation | NotRecognised | None:
    """Sums, means, extrema, variances and counts of groups."""
    flox, layer, out = flox_names(), extracting(view.layers[name]), view.array(name)
    if flox is None or out is None or layer is None or added_axes(layer):
        return None
    key = layer.task.kwargs["key"]
    source, symbols = layer.indices[0]
    if symbols is None or not isinstance(source, str) or source not in view.layers:
        return None
    reduced = read_map_reduce(view, flox, source) or read_cohorts(view, flox, source)
    if reduced is None:
        return NotRecognised("", _unchanged(view, out))
    step, agg = reduced.step, reduced.aggregate.keywords["agg"]
    if key != agg.name:
        return None
    reason = _unsupported(flox, agg, step)
    if not reason and not reduced.whole:
        # tiles would be read that Dask does not compute
        reason = "blocks without any group are not read"
    if not reason and key in ORDERED and not (reduced.in_order and len(step.axes) == 1):
        reason = "the result depends on the order of blocks"
    if reason:
        title = group_by_title(key, step.axes)
        return NotRecognised(f"{title}: {reason}", _unchanged(view, out))
    kept = len(step.array.shape) - len(step.axes)
    shape = (*step.array.shape[:kept], len(reduced.groups))
    if layer.output_indices != (*symbols[:kept], symbols[-1]) or out.shape != shape:
        return None
    maps = _label_maps(step)
    if maps is None:
        return None
    labels = tuple(
        Label(size, Role.FREE if axis < kept else Role.REDUCE, cuts)
        for axis, (size, cuts) in enumerate(zip(step.array.shape, step.array.chunks, strict=True))
    )
    every = tuple(AxisMap(axis) for axis in range(len(labels)))
    return Operation(
        op=f"groupby_{key}",
        kind=Kind.FOLD,
        labels=labels,
        out=(*every[:kept], AxisMap(None)),
        kernel=_kernel(flox, reduced),
        inputs=(Input(step.array.name, every), Input(step.by.name, maps)),
        partial=_partial_bytes(agg),
        work=_WORK[key],
        groups=_groups(view, reduced),
    )


def _unchanged(view: GraphView, out: ArrayInfo) -> Operation | None:
    """What is known of another reduction by groups: it reads the axes that it keeps apart.

    None if it reads no array with these axes in several blocks, or if its blocks have different
    groups, for which it may not read all blocks.
    """
    if out.numblocks[-1] > 1:
        return None
    stack, seen = [*view.dependencies(out.name)], {out.name}
    reads: list[Input] = []
    work = 1.0
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        array = view.array(name)
        if array is None:
            stack += view.dependencies(name)
            continue
        if len(array.shape) != len(out.shape):
            continue
        kept = [
            axis
            for axis in range(len(out.shape) - 1)
            if array.chunks[axis] == out.chunks[axis] and out.numblocks[axis] > 1
        ]
        if kept:
            axes = range(len(array.shape))
            reads.append(Input(name, tuple(AxisMap(a if a in kept else None) for a in axes)))
            work += math.prod(array.shape) / max(1, math.prod(out.shape))
    maps = (*(AxisMap(axis) for axis in range(len(out.shape) - 1)), AxisMap(None))
    return (
        Operation("groupby", Kind.FOLD, (), maps, None, tuple(reads), work=work) if reads else None
    )


def _unsupported(flox: FloxNames, agg: Any, step: GroupStep) -> str:
    """Why an aggregation depends on the chunks; empty if it does not."""
    known = flox.reductions.get(agg.name)
    if agg.name not in _WORK or known is None:
        return "the result depends on the order of blocks"
    counts = len(agg.chunk) - len(known.chunk)
    if agg.finalize is not known.finalize or agg.num_new_vector_dims or counts not in (0, 1):
        return "it is an aggregation of the user's own"
    # a count that masks groups with few elements may follow
    for own, theirs in ((agg.chunk, known.chunk), (agg.combine, known.combine)):
        extra = own[len(theirs) :]
        same = all(map(is_same, own[: len(theirs)], theirs))
        if not same or len(extra) != counts or not set(extra) <= {"nanlen", "sum"}:
            return "it is an aggregation of the user's own"
    if agg.chunk != step.call.keywords["func"]:
        return "its partial results are not those of its aggregation"
    for dtype in map(np.dtype, agg.dtype["intermediate"]):
        if dtype.kind not in "biufc":
            return f"partial results of {dtype} are not supported"
        rounded = dtype.kind == "f" and dtype.itemsize < 4
        if rounded and agg.name.removeprefix("nan") in _SUMS:
            return f"{dtype} is rounded differently in other chunks"
    return ""


def is_same(function: Any, known: Any) -> bool:
    """Whether a function or the name of one is the known one, of which it may be a copy."""
    if not isinstance(known, partial):
        return bool(function == known)
    own, theirs = unwrap(function), unwrap(known)
    return (own.function, own.args, own.keywords) == (
        theirs.function,
        theirs.args,
        theirs.keywords,
    )


def _partial_bytes(agg: Any) -> float:
    """Bytes of a partial result per element of the result."""
    sizes = [np.dtype(dtype).itemsize for dtype in agg.dtype["intermediate"]]
    if agg.name.removeprefix("nan") in ("var", "std"):
        sizes[0] *= MOMENTS
    return float(sum(sizes))


def _label_maps(step: GroupStep) -> tuple[AxisMap, ...] | None:
    """For every axis of the group numbers, the label of the array that it lies along."""
    maps = []
    first = len(step.array.shape) - len(step.by.shape)
    for axis, (size, chunks) in enumerate(zip(step.by.shape, step.by.chunks, strict=True), first):
        if size == step.array.shape[axis] and chunks == step.array.chunks[axis]:
            maps.append(AxisMap(axis))
        elif size == 1:
            maps.append(AxisMap(None))
        else:
            return None
    return tuple(maps)


def _kernel(flox: FloxNames, reduced: GroupReduction) -> GroupFold:
    step, call = reduced.step, reduced.aggregate
    agg, axes = call.keywords["agg"], step.axes
    strategy = flox.strategy(reduced.every, call.keywords["reindex"].array_type)
    combine = call.keywords["combine"]
    if unwrap(combine).function is flox.combine:
        combine = partial(flox.combine, reindex=strategy)
    aggregate = partial(
        flox.aggregate,
        combine=combine,
        agg=agg,
        expected_groups=reduced.groups,
        axis=axes,
        keepdims=True,
        fill_value=call.keywords["fill_value"],
        reindex=strategy,
    )
    ndim = len(step.array.shape)
    return GroupFold(
        chunk=step.function,
        combine=partial(combine, agg=agg, axis=axes, keepdims=True),
        aggregate=compose(partial(flox.extract, key=agg.name), aggregate),
        axes=axes,
        piece=partial(partial_of_lanes, kept=ndim - len(axes)),
        symbols=(tuple(range(ndim)), tuple(range(ndim - len(step.by.shape), ndim))),
        ordered=agg.name in ORDERED,
    )


def partial_of_lanes(
    result: Mapping[str, Any], index: tuple[slice, ...], kept: int
) -> Mapping[str, Any]:
    """A partial result by groups for a part of the axes that are kept, which come first."""
    lanes = index[:kept]
    return {**result, "intermediates": [values[lanes] for values in result["intermediates"]]}


def _groups(view: GraphView, reduced: GroupReduction) -> Groups | None:
    """The groups along the reduced label, if partial results have only those of their tile."""
    step = reduced.step
    if reduced.every or len(step.by.shape) != 1 or isinstance(view.layers[step.by.name], Blockwise):
        return None
    blocks = known_blocks(view, step.by)
    if blocks is None:
        return None
    numbers = np.concatenate([blocks[at,] for at in range(len(blocks))])
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
    if len(starts) > SETTINGS.runs:
        return None
    ends = np.append(starts[1:], len(numbers))
    return Groups(
        len(reduced.groups),
        tuple(zip(numbers[starts].tolist(), ends.tolist(), strict=True)),
    )


RECOGNISERS = (recognise_groups,)
