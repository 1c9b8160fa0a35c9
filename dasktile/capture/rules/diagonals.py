"""Recognisers of ``da.diagonal`` and ``da.diag``: one element of each of many rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.utils import key_split

from dasktile._compat.dask import Task
from dasktile.capture.base import ArrayInfo, GraphView, Input, Operation, Recogniser
from dasktile.capture.rules.blockwise import free_labels, identity
from dasktile.capture.rules.positions import INTEGERS
from dasktile.capture.rules.provenance import Trace
from dasktile.capture.rules.reshapes import PerTile
from dasktile.ir import AxisMap, Kind, bounds


@dataclass(frozen=True, slots=True, eq=False)
class OnDiagonal:
    """A matrix with the elements of a vector on its diagonal, and zeros beside it.

    Parameters
    ----------
    like
        An array of the type and data type of the zeros.
    """

    like: Any


def diagonal(view: GraphView, name: str) -> Operation | None:
    """A diagonal of each matrix of an array: two of its axes run along one label."""
    layer, new = view.layers[name], view.array(name)
    if new is None or not new.shape or isinstance(layer, Blockwise) or not layer:
        return None
    if getattr(next(iter(layer.values())), "func", None) not in (np.diagonal, np.diag):
        return None
    trace = Trace(view, name)
    found = None
    edges = bounds(new.chunks[-1])
    for place in np.ndindex(*new.numblocks):
        block = _diagonal_of(trace, trace.tasks.get((name, *place)), len(new.shape))
        if block is None:
            return None
        source, axes, at, (row, column) = block
        *others, number = place
        if [at[axis] for axis in range(len(at)) if axis not in axes] != others:
            return None
        starts = [bounds(source.chunks[axis])[at[axis]] for axis in axes]
        rest = [source.chunks[axis][at[axis]] - skipped
                for axis, skipped in zip(axes, (row, column), strict=True)]  # fmt: skip
        if min(rest) != new.chunks[-1][number]:
            return None
        first = (starts[0] + row - edges[number], starts[1] + column - edges[number])
        if found is not None and found != (source, axes, first):
            return None
        found = source, axes, first
    if found is None:
        return None
    source, axes, first = found
    free = [axis for axis in range(len(source.shape)) if axis not in axes]
    if source.dtype != new.dtype or [source.chunks[axis] for axis in free] != [*new.chunks[:-1]]:
        return None
    last = len(free)
    maps = [AxisMap(None)] * len(source.shape)
    for label, axis in enumerate(free):
        maps[axis] = AxisMap(label)
    for axis, start in zip(axes, first, strict=True):
        maps[axis] = AxisMap(last, start)
    return Operation(
        op=key_split(name),
        kind=Kind.MAP,
        labels=free_labels(new.chunks),
        out=identity(last + 1),
        kernel=PerTile(diagonal_of_tile, (), axes, {}),
        inputs=(Input(source.name, tuple(maps)),),
    )


def _diagonal_of(
    trace: Trace, task: Any, ndim: int
) -> tuple[ArrayInfo, tuple[int, int], tuple[int, ...], tuple[int, int]] | None:
    """The array, the two axes, the block, and the first row and column in the block."""
    if not isinstance(task, Task) or task.kwargs or not task.args:
        return None
    key = next(iter(task.dependencies), None)
    source = trace.source(key) if len(task.dependencies) == 1 else None
    numbers = task.args[1:]
    if source is None or len(source.shape) != ndim + 1:
        return None
    if task.func is np.diag and not numbers:
        numbers = (0, 0, 1)
    if len(numbers) != 3 or not all(isinstance(number, INTEGERS) for number in numbers):
        return None
    offset, one, two = map(int, numbers)
    if not 0 <= one < two <= ndim:
        return None
    assert isinstance(key, tuple)
    return source, (one, two), tuple(map(int, key[1:])), (max(0, -offset), max(0, offset))


def diagonal_of_tile(tile: Any, one: int, two: int) -> Any:
    """The diagonal of a tile; a copy, as a view would keep the tile in memory."""
    return np.diagonal(tile, 0, one, two).copy()


def on_diagonal(view: GraphView, name: str) -> Operation | None:
    """A matrix made of its diagonal."""
    layer, new = view.layers[name], view.array(name)
    if new is None or len(new.shape) != 2 or isinstance(layer, Blockwise):
        return None
    if getattr(next(iter(layer.values()), None), "func", None) is not np.diag:
        return None
    trace = Trace(view, name)
    names, like = set(), np.empty(0, new.dtype)
    for place in np.ndindex(*new.numblocks):
        task = trace.tasks.get((name, *place))
        if not isinstance(task, Task):
            return None
        if place[0] == place[1]:
            key = next(iter(task.dependencies), None)
            source = trace.source(key) if key is not None else None
            if source is None or task.func is not np.diag or len(task.args) != 1 or task.kwargs:
                return None
            if key != (source.name, place[0]) or source.dtype != new.dtype:
                return None
            names.add(source.name)
            continue
        shape = tuple(sizes[at] for sizes, at in zip(new.chunks, place, strict=True))
        if task.func is not np.zeros_like or len(task.args) != 1 or task.dependencies:
            return None
        like = task.args[0]
        if set(task.kwargs) != {"shape"} or tuple(task.kwargs["shape"]) != shape:
            return None
    (source_name,) = names if len(names) == 1 else ("",)
    source = view.array(source_name) if source_name else None
    if source is None or new.chunks != source.chunks * 2 or like.dtype != new.dtype:
        return None
    return Operation(
        op=key_split(name),
        kind=Kind.MAP,
        labels=free_labels(new.chunks),
        out=identity(2),
        kernel=OnDiagonal(like),
        inputs=(Input(source_name, identity(1)),),
    )


RECOGNISERS: tuple[Recogniser, ...] = (diagonal, on_diagonal)
