"""The layers of flox's group-by: a step that reduces every block, and trees of partial results.

With the method ``map-reduce`` there is one tree, in which the partial result of every block has all
groups.  With ``cohorts`` there is a tree for every cohort, a set of groups that occur in the same
blocks.  Both are read as one reduction over all groups.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer

from dasktile._compat.dask import DataNode, GraphNode, Task, TaskRef, blockwise_token
from dasktile._compat.flox import FloxNames, flox_names
from dasktile.capture.base import ArrayInfo, GraphView, added_axes
from dasktile.capture.references import Key
from dasktile.capture.rules.trees import Blocks, Call, nested_keys, read_tree, unwrap

#: Aggregations of flox that depend on the order of blocks, but not on their grouping.
ORDERED = ("nanfirst", "nanlast")

_CHUNK_KEYWORDS = {
    *("func", "reindex", "fill_value", "dtype", "user_dtype"),
    *("axis", "expected_groups", "engine", "sort"),
}


@dataclass(frozen=True, slots=True)
class GroupStep:
    """The layer that reduces every block by groups.

    Parameters
    ----------
    function
        Called with a block of the array and one of the group numbers.
    call
        The call of flox's function within it.
    array, by
        The array, and the number of the group of every element along its last axes.
    """

    function: Callable[..., Any]
    call: Call
    array: ArrayInfo
    by: ArrayInfo

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes that are reduced, the last ones of the array."""
        return tuple(map(int, self.call.keywords["axis"]))


@dataclass(frozen=True, slots=True)
class GroupReduction:
    """A reduction of all blocks.

    Parameters
    ----------
    step
        Its first layer.
    aggregate
        The call of flox's function that finishes.
    groups
        All groups of the result in order, in an index of pandas.
    every
        Whether the partial result of every block has all groups.
    whole
        Whether every block is reduced; blocks without any group are in no cohort.
    in_order
        Whether partial results are combined in the order of their blocks.
    """

    step: GroupStep
    aggregate: Call
    groups: Any
    every: bool
    whole: bool = True
    in_order: bool = True


def extracting(layer: Layer) -> Blockwise | None:
    """A layer that takes one result of flox's aggregations from each block; None for any other."""
    flox = flox_names()
    if flox is None or not isinstance(layer, Blockwise):
        return None
    if layer.task.func is not flox.extract or set(layer.task.kwargs) != {"key"}:
        return None
    is_plain = len(layer.indices) == 1 and not layer.concatenate and not layer.annotations
    return layer if is_plain else None


def read_inputs(layer: Blockwise, view: GraphView) -> tuple[ArrayInfo, ArrayInfo] | None:
    """The array and the group numbers, along its last axes, that a layer reads block by block."""
    if layer.annotations or layer.output_blocks:
        return None
    if added_axes(layer) or layer.io_deps or layer.concatenate or len(layer.indices) != 2:
        return None
    (source, symbols), (by, last) = layer.indices
    if not isinstance(source, str) or not isinstance(by, str) or not symbols or not last:
        return None
    if symbols != layer.output_indices or last != symbols[len(symbols) - len(last) :]:
        return None
    tokens = tuple(TaskRef(blockwise_token(place)) for place in range(2))
    if layer.task.args != tokens or layer.task.kwargs:
        return None
    array, numbers = view.array(source), view.array(by)
    if array is None or numbers is None or numbers.dtype.kind not in "iu":
        return None
    if array.dtype.kind not in "biufc" or any(0 in sizes for sizes in array.chunks):
        return None
    if any(tuple(layer.numblocks[each.name]) != each.numblocks for each in (array, numbers)):
        return None
    return array, numbers


def _read_step(view: GraphView, flox: FloxNames, name: str) -> GroupStep | None:
    layer = view.layers.get(name)
    inputs = read_inputs(layer, view) if isinstance(layer, Blockwise) else None
    if inputs is None or not isinstance(layer, Blockwise):
        return None
    array, numbers = inputs
    call = step_call(flox, layer.task.func)
    if call.function is not flox.chunk or call.args or not set(call.keywords) <= _CHUNK_KEYWORDS:
        return None
    axes = call.keywords.get("axis")
    reduced = len(axes) if isinstance(axes, tuple) else 0
    ndim = len(array.shape)
    if not 0 < reduced <= len(numbers.shape) or axes != tuple(range(ndim - reduced, ndim)):
        return None
    return GroupStep(layer.task.func, call, array, numbers)


def step_call(flox: FloxNames, function: Callable[..., Any]) -> Call:
    """The call of a step, without the axis that is added to its result.

    Parameters
    ----------
    flox
        Names of flox.
    function
        What the tasks of the step call.
    """
    outer = unwrap(function)
    steps: Any = getattr(outer.function, "funcs", ())
    if outer.args or len(steps) != 1 or steps[0] is not flox.expand:
        return outer
    inner = unwrap(outer.function.first)  # type: ignore[attr-defined]
    return Call(inner.function, inner.args, {**inner.keywords, **outer.keywords})


def _is_aggregate(flox: FloxNames, call: Call) -> bool:
    """Whether a call finishes a reduction by flox's ways of combining that are supported."""
    if call.function is not flox.aggregate or call.args:
        return False
    if not {"combine", "agg", "expected_groups", "fill_value", "reindex"} <= set(call.keywords):
        return False
    combine, strategy = unwrap(call.keywords["combine"]), call.keywords["reindex"]
    own = {flox.combine: {"reindex"}, flox.grouped: {"engine", "sort"}}
    # first and last integers, of which none is missing
    by_groups = call.keywords["agg"].name in ORDERED
    return (
        combine.function in (own if by_groups else (flox.combine,))
        and not combine.args
        and set(combine.keywords) == own[combine.function]
        and isinstance(strategy, flox.strategy)
        and strategy.array_type in flox.arrays  # type: ignore[attr-defined]
        and call.keywords["expected_groups"] is not None
    )


def read_map_reduce(view: GraphView, flox: FloxNames, name: str) -> GroupReduction | None:
    """A reduction of all blocks in one tree; None if it is none.

    Parameters
    ----------
    view, flox
        The graph, and names of flox.
    name
        The layer that finishes the reduction.
    """

    def blocks(view: GraphView, name: str) -> Blocks | None:
        step = _read_step(view, flox, name)
        return None if step is None else step.array.numblocks

    first = next(iter(view.layers[name].values()), None)
    function = first[0] if isinstance(first, tuple) and first else getattr(first, "func", None)
    if function is None or unwrap(function).function is not flox.aggregate:
        return None
    tree = read_tree(view, name, blocks)
    step = None if tree is None else _read_step(view, flox, tree.step)
    if tree is None or step is None or tree.last.axes != step.axes or tree.last.concatenates:
        return None
    call = tree.last.call
    if not _is_aggregate(flox, call):
        return None
    between, combine = tree.between, unwrap(call.keywords["combine"])
    if between is not None and (
        between.concatenates
        or between.call.function is not combine.function
        or set(between.call.keywords) != {"agg", *combine.keywords}
    ):
        return None
    if (combine.function is flox.grouped) is not (unwrap(step.function).function is flox.chunk):
        return None
    every: Any = call.keywords["reindex"].blockwise
    groups = call.keywords["expected_groups"]
    if not isinstance(every, bool) or every is not step.call.keywords.get("reindex"):
        return None
    if every and not groups.equals(step.call.keywords.get("expected_groups")):
        return None
    return GroupReduction(step, call, groups, bool(every))


def read_cohorts(view: GraphView, flox: FloxNames, name: str) -> GroupReduction | None:
    """A reduction with a tree for every set of groups, all in one layer; None if it is none.

    Parameters
    ----------
    view, flox
        The graph, and names of flox.
    name
        The layer that finishes the trees.
    """
    sources, out = view.dependencies(name), view.array(name)
    step = _read_step(view, flox, sources[0]) if len(sources) == 1 else None
    if step is None or out is None or step.call.keywords.get("reindex") is not False:
        return None
    kept, tasks = len(step.array.shape) - len(step.axes), view.tasks(name)
    ends: dict[int, Call] = {}
    read: dict[int, set[Blocks]] = {}
    in_order = True
    free = list(itertools.product(*map(range, step.array.numblocks[:kept])))
    zeros = (0,) * (len(step.axes) - 1)
    for cohort, block in itertools.product(range(out.numblocks[-1]), free):
        found = _leaves(flox, tasks, (name, *block, *zeros, cohort), sources[0])
        if found is None:
            return None
        call, blocks = found
        # every lane of blocks is reduced alike, each block once
        if any(other[:kept] != block for other in blocks) or len(set(blocks)) != len(blocks):
            return None
        in_order &= blocks == sorted(blocks)
        reduced = {other[kept:] for other in blocks}
        if read.setdefault(cohort, reduced) != reduced:
            return None
        first = ends.setdefault(cohort, call)
        if first.keywords["agg"] is not call.keywords["agg"]:
            return None
        if not first.keywords["expected_groups"].equals(call.keywords["expected_groups"]):
            return None
    calls = [ends[cohort] for cohort in range(len(ends))]
    if not calls or any(each.keywords["agg"] is not calls[0].keywords["agg"] for each in calls):
        return None
    parts = [call.keywords["expected_groups"] for call in calls]
    groups = parts[0].append(parts[1:])
    if not groups.is_unique or tuple(map(len, parts)) != out.chunks[-1]:
        return None
    if not _read_all(view, step, parts, [read[cohort] for cohort in range(len(parts))]):
        return None
    whole = len(set().union(*read.values())) == math.prod(step.array.numblocks[kept:])
    return GroupReduction(step, calls[0], groups, every=False, whole=whole, in_order=in_order)


def _leaves(
    flox: FloxNames, tasks: Mapping[Key, GraphNode], key: Key, step: str
) -> tuple[Call, list[Blocks]] | None:
    """The call that finishes a tree, and the blocks that it reduces, in the order of the tree.

    None for other tasks.
    """
    last = tasks.get(key)
    if type(last) is not Task or last.kwargs:
        return None
    call = unwrap(last.func)
    if not _is_aggregate(flox, call):
        return None
    agg, axes = call.keywords["agg"], call.keywords.get("axis")
    if not isinstance(axes, tuple):
        return None
    blocks: list[Blocks] = []
    stack = nested_keys(last.args[0], len(axes)) if len(last.args) == 1 else []
    while stack:
        below = stack.pop()
        task = tasks.get(below)
        if type(task) is not Task or task.kwargs or len(task.args) != 1:
            return None
        inner = unwrap(task.func)
        if inner.args or inner.keywords.get("agg") is not agg:
            return None
        if inner.function is flox.combine and inner.keywords.get("axis") == axes:
            stack += nested_keys(task.args[0], len(axes)) or [()]
            continue
        if inner.function is not flox.reindex:
            return None
        selected = inner.keywords.get("unique_groups")
        if selected is None or not selected.equals(call.keywords["expected_groups"]):
            return None
        [source] = task.dependencies or [()]
        if not isinstance(source, tuple) or source[:1] != (step,):
            return None
        blocks.append(tuple(map(int, source[1:])))
    # the last reference of every task is followed first
    return (call, blocks[::-1]) if blocks else None


def _read_all(
    view: GraphView, step: GroupStep, parts: Sequence[Any], read: Sequence[set[Blocks]]
) -> bool:
    """Whether every cohort reads all blocks that have any of its groups."""
    numbers = known_blocks(view, step.by)
    if (
        numbers is None
        or len(step.axes) != len(step.by.shape)
        or step.by.shape != tuple(step.array.shape[axis] for axis in step.axes)
    ):
        return False
    cohort_of: dict[int, int] = {
        int(group): cohort for cohort, part in enumerate(parts) for group in part
    }
    return all(
        block in read[cohort_of[group]]
        for block, values in numbers.items()
        for group in map(int, np.unique(values))
        if group in cohort_of
    )


def known_blocks(view: GraphView, array: ArrayInfo) -> dict[Blocks, Any] | None:
    """The blocks of an array that is in the graph; None for other arrays."""
    blocks = {}
    for key, task in view.tasks(array.name).items():
        value = task.value if isinstance(task, DataNode) else None
        if not isinstance(value, np.ndarray):
            return None
        blocks[tuple(key[1:])] = value
    return blocks if len(blocks) == np.prod(array.numblocks, dtype=int) else None
