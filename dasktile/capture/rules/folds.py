"""Recognisers of tree reductions: sums, extrema, moments, counts and histograms.

A reduction is recognised only if its functions are in :mod:`.fold_table`.  For these any
grouping of the elements gives the same value; floating-point results differ only by the order
of the additions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.blockwise import Blockwise
from dask.core import flatten
from dask.utils import funcname
from tlz import compose  # type: ignore[import-untyped]

from dasktile._compat.dask import (
    GraphNode,
    Task,
    arg_agg,
    arg_chunk,
    arg_combine,
    argtopk_aggregate,
    bincount_agg,
    concatenate2,
    histogram_counts,
    nanarg_agg,
)
from dasktile.capture.base import ArrayInfo, GraphView, Input, NotRecognised, Operation
from dasktile.capture.references import reference
from dasktile.capture.rules.fold_table import (
    ARG_REDUCTIONS,
    REDUCTIONS,
    Reduction,
    has_one_count,
    in_this_process,
    is_precise,
    is_supported,
    with_one_count,
)
from dasktile.capture.rules.scans import recognise_scan
from dasktile.capture.rules.trees import (
    Blocks,
    Level,
    Step,
    Tree,
    bind,
    read_level,
    read_step,
    read_tree,
    unwrap,
)
from dasktile.capture.titles import call_of
from dasktile.ir import AxisMap, Kind, Label, Role, bounds


@dataclass(frozen=True, slots=True)
class Fold:
    """A tree reduction.

    Parameters
    ----------
    chunk
        Computes the partial result of one tile; takes a tile of every input.
    combine, aggregate
        Take a nested list of neighbouring partial results, one level of lists for each of
        `axes`, and return a partial result or the finished tile.
    axes
        Labels reduced, in ascending order.
    symbols
        For every input, the labels of its axes; along some it may have a single block.  Empty if
        every input has all labels in order.
    """

    chunk: Callable[..., Any]
    combine: Callable[[Any], Any]
    aggregate: Callable[[Any], Any]
    axes: tuple[int, ...]
    symbols: tuple[tuple[int, ...], ...] = field(default=(), kw_only=True)


@dataclass(frozen=True, slots=True)
class ArgFold:
    """A reduction to the position of an extremum.

    Parameters
    ----------
    chunk
        Called with a tile, the reduced axes and the position of the tile: its first index
        along the one reduced axis, or ``(first indices, shape)`` where positions are those
        in the flattened array.
    combine, aggregate, axes
        As of a :class:`Fold`.
    flat
        Shape of the array where positions are those in the flattened array, else None.
    """

    chunk: Callable[..., Any]
    combine: Callable[[Any], Any]
    aggregate: Callable[[Any], Any]
    axes: tuple[int, ...]
    flat: tuple[int, ...] | None


def recognise_fold(view: GraphView, name: str) -> Operation | NotRecognised | None:
    """Sums, extrema, means, moments, the `k` largest, counts, histograms."""
    level = read_level(view, name)
    if level is None:
        return None
    last = level.call.function
    if last is arg_agg or last is nanarg_agg:
        return _arg_fold(view, name)
    if last is argtopk_aggregate:
        return _largest_positions(view, name, level)
    if last is bincount_agg:
        return _bincount(view, name)
    if all(known is not last for _, known in REDUCTIONS):
        return None
    tree = read_tree(view, name, _step_blocks)
    step = read_step(view, tree.step) if tree else None
    array = _whole(view, step.inputs) if step else None
    if tree is None or step is None or array is None or len(step.inputs) != 1:
        return None
    if step.axis != tree.last.axes or step.keepdims is not True:
        return None
    if _is_histogram(view, step.inputs[0]):
        return _histogram(view, name, tree, step)
    read = read_reduction(step, tree, array.dtype)
    if not isinstance(read, tuple):
        return read
    return _operation(view, name, *read, array, tree, step)


def read_reduction(
    step: Step, tree: Tree, dtype: np.dtype[Any]
) -> tuple[Reduction, Fold] | NotRecognised | None:
    """The supported reduction that a tree computes, and its functions.

    Parameters
    ----------
    step, tree
        The layer that computes the partial results, and those that combine them.
    dtype
        Of the array that is reduced.
    """
    reduction = REDUCTIONS.get((step.call.function, tree.last.call.function))
    combine = tree.between.call if tree.between else None
    if reduction is None:
        title = call_of(funcname(step.call.function))
        return NotRecognised(f"reductions with the chunk function {title} are not supported")
    if not is_supported(reduction, step.call, combine, tree.last.call):
        return NotRecognised(
            f"{reduction.name(step.call)} with these arguments depends on the chunks"
        )
    if dtype.kind not in reduction.kinds:
        return NotRecognised(f"{reduction.op} of {dtype} is not supported")
    if not is_precise(dtype, step.call):
        dtype = step.call.keywords.get("dtype") or dtype
        return NotRecognised(f"{reduction.op} of {dtype} is rounded differently in other chunks")
    axes = tree.last.axes
    first = partial(step.call.function, **step.call.keywords, axis=axes, keepdims=True)
    if tree.between is not None:
        combined = tree.between.function
    else:
        combined = bind(reduction.combine(step.call, tree.last.call), tree.last)
    if has_one_count(step.call):
        first, combined = (compose(with_one_count, function) for function in (first, combined))
    return reduction, Fold(first, combined, tree.last.function, tuple(sorted(axes)))


def _operation(
    view: GraphView,
    name: str,
    reduction: Reduction,
    fold: Fold,
    array: ArrayInfo,
    tree: Tree,
    step: Step,
) -> Operation | None:
    out = view.array(name)
    if out is None:
        return None
    kept = {"k": abs(step.call.keywords["k"])} if "k" in step.call.keywords else {}
    size = kept.get("k", 1)
    if kept and (len(fold.axes) != 1 or size > array.shape[fold.axes[0]]):
        return None
    maps, shape = _output(array, fold.axes, tree.last.keepdims, size)
    if shape != out.shape:
        return None
    return Operation(
        reduction.name(step.call),
        Kind.FOLD,
        _labels(array, fold.axes),
        maps,
        fold,
        (Input(array.name, tuple(AxisMap(axis) for axis in range(len(array.shape)))),),
        partial=reduction.partial(out.dtype, step.call),
        work=reduction.work,
    )


def _output(
    array: ArrayInfo, axes: tuple[int, ...], keepdims: bool, size: int = 1
) -> tuple[tuple[AxisMap, ...], tuple[int, ...]]:
    """Maps and shape of the result of a reduction over these axes."""
    kept = [axis for axis in range(len(array.shape)) if keepdims or axis not in axes]
    maps = tuple(AxisMap(None if axis in axes else axis) for axis in kept)
    return maps, tuple(size if axis in axes else array.shape[axis] for axis in kept)


def _labels(array: ArrayInfo, axes: tuple[int, ...]) -> tuple[Label, ...]:
    return tuple(
        Label(size, Role.REDUCE if axis in axes else Role.FREE, cuts)
        for axis, (size, cuts) in enumerate(zip(array.shape, array.chunks, strict=True))
    )


def _whole(view: GraphView, names: tuple[str, ...]) -> ArrayInfo | None:
    """The first of these arrays, if all have known, equal, nonempty chunks."""
    arrays = [view.array(name) for name in names]
    first = arrays[0]
    if first is None or not first.shape or any(0 in sizes for sizes in first.chunks):
        return None
    if any(array is None or array.chunks != first.chunks for array in arrays):
        return None
    return first


def _step_blocks(view: GraphView, name: str) -> Blocks | None:
    if not isinstance(view.layers.get(name), Blockwise):
        return None
    step = read_step(view, name)
    array = _whole(view, step.inputs) if step else None
    return step.blocks if step and array and array.numblocks == step.blocks else None


# Positions of extrema


def _largest_positions(view: GraphView, name: str, level: Level) -> NotRecognised:
    """The positions of the `k` largest elements: unchanged, read apart along the other axes."""
    reason = "which of equal elements argtopk returns depends on the chunks"
    out, below = view.array(name), name
    while (source := view.array(below)) is out or source is None:
        names = view.dependencies(below)
        if not names:
            return NotRecognised(reason)
        below = names[0]
    if out is None or len(source.shape) != len(out.shape) or len(level.axes) != 1:
        return NotRecognised(reason)
    axes = range(len(out.shape))
    maps = tuple(AxisMap(None if axis in level.axes else axis) for axis in axes)
    # all elements are compared, not only those of the result
    work = max(1.0, math.prod(source.shape) / max(1, math.prod(out.shape)))
    read = Input(source.name, maps)
    return NotRecognised(
        reason, Operation("argtopk", Kind.FOLD, (), maps, None, (read,), work=work)
    )


def _arg_fold(view: GraphView, name: str) -> Operation | NotRecognised | None:
    tree = read_tree(view, name, _arg_blocks)
    if tree is None:
        return None
    task = next(iter(view.tasks(tree.step).values()))
    array = view.array(view.dependencies(tree.step)[0])
    out = view.array(name)
    assert isinstance(task, Task) and array is not None
    first, last, axes = unwrap(task.func), tree.last.call, tree.last.axes
    searches = tuple(map(in_this_process, first.args))
    reduction = ARG_REDUCTIONS.get((*searches, last.function)) if len(searches) == 2 else None
    combine = tree.between.call if tree.between else None
    if combine is not None and combine.function is not arg_combine:
        return None
    calls = [last] if combine is None else [last, combine]
    if reduction is None or any(call.keywords for call in (first, *calls)):
        return None
    if any(tuple(map(in_this_process, call.args)) != searches[1:] for call in calls):
        return None
    ndim = len(array.shape)
    if array.dtype.kind not in "biufc" or not tree.last.concatenates or task.args[1] != axes:
        return None
    flat = len(axes) == ndim
    if flat and not _returns_first(array):
        return NotRecognised(
            f"{reduction.op} over several axes: which of equal elements is returned depends on"
            " the chunks"
        )
    maps, shape = _output(array, axes, tree.last.keepdims)
    if out is None or shape != out.shape:
        return None
    search = reduction.search
    order = (_sorted_by_position,) if flat and ndim > 1 else ()
    joined = partial(concatenate2, axes=sorted(axes))
    fold = ArgFold(
        partial(arg_chunk, searches[0], search),
        compose(partial(arg_combine, search, axis=axes, keepdims=True), *order, joined),
        compose(
            partial(last.function, search, axis=axes, keepdims=tree.last.keepdims),
            *order,
            joined,
        ),
        tuple(sorted(axes)),
        array.shape if flat else None,
    )
    inputs = (Input(array.name, tuple(AxisMap(axis) for axis in range(ndim))),)
    return Operation(reduction.op, Kind.FOLD, _labels(array, axes), maps, fold, inputs,
                 partial=array.dtype.itemsize + 8.0)  # fmt: skip


def _arg_blocks(view: GraphView, name: str) -> Blocks | None:
    """Number of blocks of a layer that computes the extremum of every block; None for others."""
    layer, sources = view.layers.get(name), view.dependencies(name)
    if layer is None or isinstance(layer, Blockwise) or layer.annotations or len(sources) != 1:
        return None
    first = next(iter(layer.values()), None)
    if isinstance(first, tuple) and first and callable(first[0]):
        function = first[0]
    elif isinstance(first, Task):
        function = first.func
    else:
        return None
    if unwrap(function).function is not arg_chunk:
        return None
    array = _whole(view, sources)
    if array is None:
        return None
    tasks = view.tasks(name)
    starts = [bounds(sizes)[:-1] for sizes in array.chunks]
    blocks = list(itertools.product(*map(range, array.numblocks)))
    if len(blocks) != len(tasks):
        return None
    for block in blocks:
        task = tasks.get((name, *block))
        if not isinstance(task, Task) or len(task.args) != 3 or task.func is not function:
            return None
        ref, axes, place = task.args
        if reference(ref) != (array.name, *block) or not isinstance(axes, tuple):
            return None
        corner = tuple(start[number] for start, number in zip(starts, block, strict=True))
        flat = len(axes) == len(array.shape)
        if place != ((corner, array.shape) if flat else corner[axes[0]]):
            return None
    return array.numblocks


def _returns_first(array: ArrayInfo) -> bool:
    """Whether dask's tree returns the first of equal extrema in the flattened array.

    It returns the first within a block, and that of the first block.  Blocks follow one another
    in the flattened array only if a single axis is cut and all axes before it have size one.
    Otherwise the result among equal elements depends on the chunks.
    """
    cut = [axis for axis, count in enumerate(array.numblocks) if count > 1]
    return not cut or (len(cut) == 1 and all(size == 1 for size in array.shape[: cut[0]]))


def _sorted_by_position(data: Any) -> Any:
    """Partial results of a flattened array sorted by position: the first of equals comes first."""
    order = data["arg"].ravel().argsort()

    def sorted_values(values: Any) -> Any:
        return values.ravel()[order].reshape((-1,) + (1,) * (values.ndim - 1))

    if isinstance(data, dict):
        return {field: sorted_values(values) for field, values in data.items()}
    return sorted_values(data)


# Counts


def _bincount(view: GraphView, name: str) -> Operation | None:
    tree = read_tree(view, name, _step_blocks)
    step = read_step(view, tree.step) if tree else None
    array = _whole(view, step.inputs) if step else None
    out = view.array(name)
    if tree is None or step is None or array is None or out is None or tree.last.concatenates:
        return None
    if tree.last.call.args or set(tree.last.call.keywords) != {"dtype"}:
        return None
    call, between = step.call, tree.between
    if call.function is not np.bincount or call.args or set(call.keywords) != {"minlength"}:
        return None
    if between is not None and (
        between.call.function is not bincount_agg
        or dict(between.call.keywords) != dict(tree.last.call.keywords)
    ):
        return None
    if step.axis is not None or step.keepdims is not None or array.dtype.kind not in "biu":
        return None
    # without minlength the number of bins depends on the values
    if out.shape != (call.keywords["minlength"],) or 0 in out.shape:
        return None
    chunk = partial(np.bincount, minlength=call.keywords["minlength"])
    combine = bind(partial(bincount_agg, **tree.last.call.keywords), tree.last)
    fold = Fold(chunk, combine, tree.last.function, (0,))
    inputs = tuple(Input(source, (AxisMap(0),)) for source in step.inputs)
    return Operation("bincount", Kind.FOLD, _labels(array, (0,)), (AxisMap(None),), fold, inputs,
                 partial=float(out.dtype.itemsize), work=2.0)  # fmt: skip


def _is_histogram(view: GraphView, name: str) -> bool:
    layer = view.layers.get(name)
    if layer is None or isinstance(layer, Blockwise) or not len(layer):
        return False
    task = next(iter(layer.values()))
    return isinstance(task, Task) and task.func is histogram_counts


def _histogram(view: GraphView, name: str, tree: Tree, step: Step) -> Operation | None:
    """A histogram: one row for every block, and a sum over the rows."""
    rows, out = step.inputs[0], view.array(name)
    if tree.last.axes != (0,) or tree.last.keepdims or out is None or len(out.shape) != 1:
        return None
    if step.call.function is not np.sum or tree.last.call.function is not np.sum:
        return None
    if view.layers[rows].annotations or not is_precise(out.dtype, step.call):
        return None
    counts = _histogram_rows(view, rows)
    bins = None if counts is None else _known_bins(counts.bins)
    array = None if counts is None else _whole(view, counts.sources)
    if counts is None or bins is None or array is None or array.dtype.kind not in "biuf":
        return None
    if not _row_by_row(view.tasks(rows), rows, counts, array.numblocks):
        return None
    axes = tuple(range(len(array.shape)))
    dtype = np.dtype(tree.last.call.keywords.get("dtype", out.dtype))
    fold = Fold(
        partial(histogram_block, bins),
        partial(add_rows, dtype=dtype, keepdims=True),
        partial(add_rows, dtype=dtype, keepdims=False),
        axes,
    )
    maps = tuple(AxisMap(axis) for axis in axes)
    return Operation("histogram", Kind.FOLD, _labels(array, axes), (AxisMap(None),), fold,
                 tuple(Input(source, maps) for source in counts.sources),
                 partial=float(dtype.itemsize), work=8.0)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Counts:
    """The arguments that the tasks of all rows of a histogram share.

    Parameters
    ----------
    sources
        The arrays whose blocks are counted: the data, and weights if there are any.
    positions
        Their positions among the arguments.
    bins
        The argument with the edges of the bins.
    """

    sources: tuple[str, ...]
    positions: tuple[int, ...]
    bins: Any


def _histogram_rows(view: GraphView, rows: str) -> _Counts | None:
    """The shared arguments, from the first task."""
    head = view.tasks(rows).get((rows, 0, 0))
    if not isinstance(head, Task) or len(head.args) not in (2, 3):
        return None
    positions = (0, 2)[: len(head.args) - 1]
    keys = [reference(head.args[place]) for place in positions]
    if not all(isinstance(key, tuple) for key in keys):
        return None
    return _Counts(tuple(key[0] for key in keys), positions, head.args[1])


def _known_bins(bins: Any) -> Any:
    """The edges of the bins; None if a task computes them."""
    if not isinstance(bins, GraphNode):
        return bins
    return None if bins.dependencies else bins({})


def _row_by_row(
    tasks: Mapping[Any, Any], rows: str, counts: _Counts, numblocks: tuple[int, ...]
) -> bool:
    """Whether there is one task for each block, in order, that computes its row."""
    blocks = list(itertools.product(*map(range, numblocks)))
    return len(blocks) == len(tasks) and all(
        _counts_block(tasks.get((rows, row, 0)), counts, block) for row, block in enumerate(blocks)
    )


def _counts_block(task: Any, counts: _Counts, block: tuple[int, ...]) -> bool:
    if not isinstance(task, Task) or task.func is not histogram_counts or task.kwargs:
        return False
    if len(task.args) != len(counts.sources) + 1 or task.args[1] is not counts.bins:
        return False
    return all(
        reference(task.args[place]) == (source, *block)
        for place, source in zip(counts.positions, counts.sources, strict=True)
    )


def histogram_block(bins: Any, x: Any, weights: Any = None) -> Any:
    """The histogram of one tile, as a row."""
    return histogram_counts(x, bins, weights)


def add_rows(rows: Any, dtype: npt.DTypeLike, keepdims: bool) -> Any:
    """Add histograms in nested lists."""
    histograms: Iterator[Any] = flatten([rows])
    return np.sum(np.concatenate(list(histograms)), axis=0, dtype=dtype, keepdims=keepdims)


RECOGNISERS = (recognise_fold, recognise_scan)
