"""Recognisers of reshapes in row-major order, of repeats, and of coarsening."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import MaterializedLayer
from dask.utils import M, apply, funcname, key_split

from dasktile._compat.dask import DataNode, Task, chunk_coarsen
from dasktile.capture.base import ArrayInfo, GraphView, Input, NotRecognised, Operation
from dasktile.capture.references import reference
from dasktile.capture.rules.pointwise import is_scalar
from dasktile.capture.rules.provenance import Trace
from dasktile.capture.settings import SETTINGS
from dasktile.ir import AxisMap, Kind, Label, Role, bounds


@dataclass(frozen=True, slots=True)
class Reshape:
    """Every tile is a window of the input, in another shape."""


@dataclass(frozen=True, slots=True, eq=False)
class PerTile:
    """A function of one tile of the input, called with the same other arguments for all.

    Parameters
    ----------
    function
        The function.
    before, after, kwargs
        Its arguments before the tile, those after it, and those that have names.
    """

    function: Callable[..., Any]
    before: tuple[Any, ...]
    after: tuple[Any, ...]
    kwargs: Mapping[str, Any]


#: Functions of which the result for some elements does not depend on other elements.
_REDUCTIONS = (
    *(np.sum, np.prod, np.mean, np.std, np.var, np.min, np.max, np.median, np.any, np.all),
    *(np.nansum, np.nanprod, np.nanmean, np.nanstd, np.nanvar, np.nanmin, np.nanmax),
    *(np.nanmedian, np.ptp, np.count_nonzero),
)


# --- reshape ---------------------------------------------------------------------------


def reshape(view: GraphView, name: str) -> Operation | None:
    """A layer of reshapes of blocks that together reshape the array."""
    layer, new = view.layers[name], view.array(name)
    if new is None or not isinstance(layer, MaterializedLayer) or not layer.mapping:
        return None
    if not _is_reshape(next(iter(layer.mapping.values()))):
        return None
    trace = Trace(view, name)
    old: ArrayInfo | None = None
    made, read = _Loops(new), _Loops(new)
    for place in np.ndindex(*new.numblocks):
        task = trace.tasks.get((name, *place))
        if not isinstance(task, Task) or not _is_reshape(task):
            return None
        key, shape = reference(task.args[0]), _value(task.args[1])
        source = trace.source(key)
        if source is None or (old is not None and source is not old):
            return None
        if old is None:
            old, read = source, _Loops(source)
        expected = tuple([sizes[number] for sizes, number in zip(new.chunks, place, strict=True)])
        if ((shape,) if isinstance(shape, int) else tuple(shape)) != expected:
            return None
        if read.of(tuple(map(int, key[1:]))) != made.of(place):
            return None
    if old is None or old.dtype != new.dtype:
        return None
    size = math.prod(new.shape)
    return _reshaped(old, new) if size and math.prod(old.shape) == size else None


def _is_reshape(task: Any) -> bool:
    return (
        isinstance(task, Task)
        and task.func in (M.reshape, np.reshape)
        and len(task.args) == 2
        and not task.kwargs
    )


class _Loops:
    """The elements of blocks in row-major order, as loops over flat positions in the array.

    The loops of a block are the first position, and (count, stride) from the innermost loop
    outwards; loops that continue one another are merged.  Two blocks have the same elements in
    the same order if and only if their loops are equal.
    """

    def __init__(self, array: ArrayInfo):
        #: For every axis, from the last to the first: stride, chunk sizes, position of every chunk.
        self._axes: list[tuple[int, tuple[int, ...], list[int]]] = []
        stride = 1
        for sizes, size in zip(reversed(array.chunks), reversed(array.shape), strict=True):
            self._axes.append((stride, sizes, [stride * edge for edge in bounds(sizes)]))
            stride *= size

    def of(self, place: tuple[int, ...]) -> tuple[int, list[tuple[int, int]]]:
        start = 0
        end = 0  # the stride of a loop that continues the last one
        loops: list[tuple[int, int]] = []
        for (stride, sizes, starts), number in zip(self._axes, reversed(place), strict=True):
            start += starts[number]
            count = sizes[number]
            if count == 1:
                continue
            if loops and end == stride:
                loops[-1] = (loops[-1][0] * count, loops[-1][1])
            else:
                loops.append((count, stride))
            end = stride * count
        return start, loops


def _value(node: Any) -> Any:
    return node.value if isinstance(node, DataNode) else node


def _reshaped(old: ArrayInfo, new: ArrayInfo) -> Operation | None:
    labels: list[Label] = []
    reads = [AxisMap(None)] * len(old.shape)
    out = [AxisMap(None)] * len(new.shape)
    for sources, targets in groups(old.shape, new.shape):
        outer, inner = old.shape[sources[0]], new.shape[targets[0]]
        size = 1 if outer % inner and inner % outer else min(outer, inner)
        width = inner // size
        cuts = _cuts(new, targets, size, width)
        if cuts is None:
            return None
        if size > 1:
            out[targets[0]] = AxisMap(len(labels), 0, width, width)
            reads[sources[0]] = AxisMap(len(labels), 0, outer // size, outer // size)
            labels.append(Label(size, Role.FREE, cuts))
    return Operation(
        op=key_split(new.name),
        kind=Kind.VIEW,
        labels=tuple(labels),
        out=tuple(out),
        kernel=Reshape(),
        inputs=(Input(old.name, tuple(reads)),),
    )


def _cuts(
    new: ArrayInfo, targets: tuple[int, ...], size: int, width: int
) -> tuple[int, ...] | None:
    """The cuts of the loop of a group of output axes that match the chunks of the graph.

    If the chunks are finer than the iterations of the loop, these are the coarser cuts that
    are possible.  None if tiles would then be too large or too few, see the settings.
    """
    edges = [edge for edge in bounds(new.chunks[targets[0]]) if edge % width == 0]
    cuts = tuple((hi - lo) // width for lo, hi in itertools.pairwise(edges))
    if len(cuts) == len(new.chunks[targets[0]]) and all(
        len(new.chunks[axis]) == 1 for axis in targets[1:]
    ):
        return cuts
    finest = math.prod(new.shape[axis] for axis in targets) // size
    largest = math.prod(max(new.chunks[axis]) for axis in targets)
    coarse = finest > SETTINGS.reshape_coarsening * largest
    return None if coarse or size < SETTINGS.reshape_iterations else cuts


def groups(
    old: tuple[int, ...], new: tuple[int, ...]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The shortest groups of consecutive axes of two shapes with equal products.

    Axes of size one are in no group.
    """
    sources = [axis for axis, size in enumerate(old) if size != 1]
    targets = [axis for axis, size in enumerate(new) if size != 1]
    pairs: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    while sources and targets:
        source_run, target_run = [sources.pop(0)], [targets.pop(0)]
        source_size, target_size = old[source_run[0]], new[target_run[0]]
        while source_size != target_size:
            if source_size < target_size:
                source_run.append(sources.pop(0))
                source_size *= old[source_run[-1]]
            else:
                target_run.append(targets.pop(0))
                target_size *= new[target_run[-1]]
        pairs.append((tuple(source_run), tuple(target_run)))
    return pairs


# --- repeat ----------------------------------------------------------------------------


def repeat(view: GraphView, name: str) -> Operation | None:
    """`numpy.repeat` of every block, with one count for all elements."""
    layer, new = view.layers[name], view.array(name)
    if new is None or not isinstance(layer, Blockwise) or layer.io_deps:
        return None
    if getattr(layer.task, "func", None) is not np.repeat:
        return None
    trace = Trace(view, name)
    repeats: set[tuple[str, int, int]] = set()
    for place in np.ndindex(*new.numblocks):
        task = trace.tasks.get((name, *place))
        if not isinstance(task, Task) or task.func is not np.repeat or len(task.args) != 2:
            return None
        key, times = reference(task.args[0]), _value(task.args[1])
        axis = _value(task.kwargs.get("axis"))
        if type(times) is not int or type(axis) is not int or set(task.kwargs) != {"axis"}:
            return None
        source = trace.source(key)
        if source is None or tuple(key[1:]) != place:
            return None
        repeats.add((source.name, times, axis % len(new.shape)))
    if len(repeats) != 1:
        return None
    ((source_name, times, axis),) = repeats
    old = view.array(source_name)
    if old is None or times < 1 or old.dtype != new.dtype or not math.prod(new.shape):
        return None
    expected = list(old.chunks)
    expected[axis] = tuple(times * size for size in old.chunks[axis])
    if tuple(expected) != new.chunks:
        return None
    return Operation(
        op=key_split(name),
        kind=Kind.VIEW,
        labels=tuple(
            Label(size, Role.FREE, cuts) for size, cuts in zip(old.shape, old.chunks, strict=True)
        ),
        out=tuple(
            AxisMap(number, 0, times, times) if number == axis else AxisMap(number)
            for number in range(len(new.shape))
        ),
        kernel=PerTile(np.repeat, (), (times,), {"axis": axis}),
        inputs=(Input(source_name, tuple(AxisMap(n) for n in range(len(old.shape)))),),
    )


# --- coarsen ---------------------------------------------------------------------------


def coarsen(view: GraphView, name: str) -> Operation | NotRecognised | None:
    """A reduction of neighbouring elements, block by block."""
    new = view.array(name)
    if new is None or not isinstance(view.layers[name], MaterializedLayer):
        return None
    trace = Trace(view, name)
    places = list(np.ndindex(*new.numblocks))
    first = _coarsening(trace.tasks.get((name, *places[0]))) if places else None
    source = trace.source(first[1]) if first is not None else None
    if first is None or source is None:
        return None
    reduction, _, axes, kwargs = first
    for place in places:
        # the axes and keywords of all blocks are one object of da.coarsen
        call = (reduction, (source.name, *place), axes, kwargs)
        if _coarsening(trace.tasks.get((name, *place))) != call:
            return None
    factors = [axes.get(axis, 1) for axis in range(len(new.shape))]
    for sizes, wide, factor in zip(new.chunks, source.chunks, factors, strict=True):
        # what remains of the last block is left out
        edges = bounds(wide)[: len(sizes) + 1]
        if edges[-1] - (inner := factor * sum(sizes)) >= factor or edges[-1] < inner:
            return None
        if [*edges[:-1], inner] != [factor * edge for edge in bounds(sizes)]:
            return None
    full = dict(enumerate(factors))
    operation = Operation(
        op=key_split(name),
        kind=Kind.MAP,
        labels=tuple(
            Label(size, Role.FREE, cuts) for size, cuts in zip(new.shape, new.chunks, strict=True)
        ),
        out=tuple(AxisMap(axis) for axis in range(len(new.shape))),
        kernel=PerTile(chunk_coarsen, (reduction,), (full, True), kwargs),
        inputs=(
            Input(
                source.name,
                tuple(AxisMap(axis, 0, factor, factor) for axis, factor in full.items()),
            ),
        ),
        work=float(math.prod(factors)),
    )
    is_known = any(reduction is known for known in _REDUCTIONS)
    if is_known and set(kwargs) <= {"dtype", "ddof"} and all(map(is_scalar, kwargs.values())):
        return operation
    return NotRecognised(
        f"the result of {funcname(reduction)} in coarsen may depend on the chunks", operation
    )


def _coarsening(task: Any) -> tuple[Any, Any, dict[int, int], dict[str, Any]] | None:
    """The function, the block that it reads, the factors by axis, and keywords."""
    if not isinstance(task, Task) or task.func is not apply or len(task.args) != 3:
        return None
    function, arguments, keywords = map(_value, task.args)
    arguments = getattr(arguments, "args", ())
    if function is not chunk_coarsen or len(arguments) != 4 or not isinstance(keywords, Mapping):
        return None
    reduction, block, axes, _ = map(_value, arguments)
    if not isinstance(axes, Mapping):
        return None
    return reduction, reference(block), dict(axes), dict(keywords)
