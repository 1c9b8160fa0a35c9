"""Recogniser of flox's group-by with the method ``blockwise``: no group is in two blocks.

flox chooses it for ``resample`` where blocks end with a group, and for medians and quantiles.
Every task computes the groups of its block, with functions that treat all lanes along the other
axes independently.  Where the labels are in order, elements of a group are neighbours, and tiles
may contain any number of groups.  Otherwise the labels must be in one block, which is not cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from tlz import compose  # type: ignore[import-untyped]

from dasktile._compat.dask import Task, TaskRef, blockwise_token
from dasktile._compat.flox import FloxNames, flox_names
from dasktile.capture.base import (
    ArrayInfo,
    GraphView,
    Input,
    NotRecognised,
    Operation,
    added_axes,
)
from dasktile.capture.rules.blockwise import Map
from dasktile.capture.rules.group_trees import extracting, known_blocks, read_inputs
from dasktile.capture.rules.groups import is_same
from dasktile.capture.rules.trees import Call, unwrap
from dasktile.capture.settings import SETTINGS
from dasktile.capture.steps import group_by_title
from dasktile.ir import AxisMap, Kind, Label, Role, bounds

#: Aggregations of flox that treat all lanes independently, with operations per element.
_WORK: Mapping[str, float] = {
    **dict.fromkeys(("sum", "nansum", "prod", "nanprod", "min", "nanmin", "max", "nanmax"), 2.0),
    **dict.fromkeys(("all", "any", "count", "first", "nanfirst", "last", "nanlast"), 2.0),
    **dict.fromkeys(("mean", "nanmean"), 4.0),
    **dict.fromkeys(("var", "nanvar", "std", "nanstd"), 8.0),
    **dict.fromkeys(("median", "nanmedian", "quantile", "nanquantile"), 20.0),
}

_KEYWORDS = {"agg", "fill_value", "reindex", "axis", "expected_groups", "engine", "sort"}


def whole_groups(view: GraphView, name: str) -> Operation | NotRecognised | None:
    """Any aggregation by groups that are whole within blocks."""
    flox, layer, out = flox_names(), extracting(view.layers[name]), view.array(name)
    if flox is None or out is None or layer is None:
        return None
    source, symbols = layer.indices[0]
    step = view.layers.get(str(source))
    if symbols is None or not isinstance(step, Blockwise) or not out.shape:
        return None
    call, inputs = unwrap(step.task.func), read_inputs(step, view)
    if call.function is not flox.reduce or call.args or set(call.keywords) != _KEYWORDS:
        return None
    key, agg = layer.task.kwargs["key"], call.keywords["agg"]
    if inputs is None or agg.name != key:
        return None
    title = group_by_title(key, call.keywords["axis"])
    if reason := _unsupported(flox, agg):
        return NotRecognised(f"{title}: {reason}")
    array, numbers = inputs
    ndim, new = len(array.shape), tuple(added_axes(layer))
    if call.keywords["axis"] != (ndim - 1,) or len(numbers.shape) != 1:
        return NotRecognised(f"{title}: the labels are along several axes")
    if layer.output_indices != (*new, *symbols) or len(symbols) != ndim:
        return None
    if numbers.chunks[0] != array.chunks[-1]:
        return None
    if out.chunks[len(new) : -1] != array.chunks[:-1] or any(
        len(sizes) > 1 for sizes in out.chunks[: len(new)]
    ):
        return None
    groups = _along_groups(view, call, array, numbers, out.chunks[-1])
    if groups is None:
        return NotRecognised(
            f"{title}: elements of a group must be neighbours, or all in one block"
        )
    label, read = groups
    labels = (
        *(
            Label(size, Role.FREE, cuts)
            for size, cuts in zip(array.shape[:-1], array.chunks[:-1], strict=True)
        ),
        label,
    )
    along = tuple(AxisMap(axis) for axis in range(ndim - 1))
    last = AxisMap(ndim - 1) if label.role is Role.FREE else AxisMap(None)
    tokens = tuple(TaskRef(blockwise_token(place)) for place in range(2))
    function = compose(partial(flox.extract, key=key), step.task.func)
    rewritten = Blockwise(
        name,
        layer.output_indices,
        Task(name, function, *tokens),
        [(array.name, symbols), (numbers.name, symbols[-1:])],
        {each.name: each.numblocks for each in inputs},
        new_axes=added_axes(layer),
    )
    return Operation(
        op=f"groupby_{key}",
        kind=Kind.MAP,
        labels=labels,
        out=(*(AxisMap(None) for _ in new), *along, last),
        kernel=Map(rewritten, {symbol: at for at, symbol in enumerate(symbols)}, (0, 1)),
        inputs=(Input(array.name, (*along, read)), Input(numbers.name, (read,))),
        work=_WORK[key] * array.shape[-1] / max(label.size, 1),
    )


def _unsupported(flox: FloxNames, agg: Any) -> str:
    """Why an aggregation may depend on other lanes; empty if it does not."""
    known = flox.reductions.get(agg.name)
    if known is None or agg.name not in _WORK:
        return "the result may depend on the blocks"
    # a count that masks groups with few elements may follow
    same = all(map(is_same, agg.numpy, known.numpy))
    if not same or not set(agg.numpy[len(known.numpy) :]) <= {"nanlen"}:
        return "it is an aggregation of the user's own"
    return ""


def _along_groups(
    view: GraphView, call: Call, array: ArrayInfo, numbers: ArrayInfo, groups: tuple[int, ...]
) -> tuple[Label, AxisMap] | None:
    """The label of the groups, and the elements that each of its iterations reads.

    Where these are not known, the label of the elements, which is whole; None if it may not be.

    Parameters
    ----------
    view, call, array, numbers
        The graph, the call for each block, and the arrays that it reads.
    groups
        Number of groups of every block.
    """
    last = len(array.shape) - 1
    breaks = None
    if call.keywords["expected_groups"] is None and call.keywords["reindex"].blockwise is False:
        breaks = _breaks(view, numbers, groups)
    if breaks is not None:
        return Label(sum(groups), Role.FREE, groups), _windows(last, breaks)
    if len(array.chunks[-1]) == 1:
        return Label(array.shape[-1], Role.WHOLE, array.chunks[-1]), AxisMap(last)
    return None


def _breaks(view: GraphView, numbers: ArrayInfo, groups: tuple[int, ...]) -> tuple[int, ...] | None:
    """Where groups begin, and the end; None if they are not one after the other.

    The groups of every block are those that `groups` counts.
    """
    if isinstance(view.layers[numbers.name], Blockwise):
        return None
    blocks = known_blocks(view, numbers)
    if blocks is None:
        return None
    known = np.concatenate([blocks[at,] for at in range(len(blocks))])
    if known[0] < 0 or (np.diff(known) < 0).any():
        return None
    starts = np.flatnonzero(np.diff(known, prepend=-1))
    if len(starts) != sum(groups) or len(starts) > SETTINGS.runs:
        return None
    breaks = (*starts.tolist(), len(known))
    if [breaks[at] for at in bounds(groups)] != list(bounds(numbers.chunks[0])):
        return None
    return breaks


def _windows(label: int, breaks: tuple[int, ...]) -> AxisMap:
    """The map by which the iterations of a label read windows one after the other."""
    sizes = [hi - lo for lo, hi in pairwise(breaks)]
    width = max(sizes)
    if all(size == width for size in sizes[1:-1]):
        return AxisMap(label, breaks[1] - width, width, width)
    return AxisMap(label, 0, width, width, breaks)


RECOGNISERS = (whole_groups,)
