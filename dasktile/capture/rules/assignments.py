"""Recogniser of ``x[index] = value``: one value that is assigned to elements of an array.

Dask writes a task for every block with some of the elements, with the index in the block.  They
are the elements at certain positions along every axis, which any tile has some of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.blockwise import Blockwise

from dasktile._compat.dask import Alias, DataNode, Task, setitem
from dasktile.capture.base import ArrayInfo, GraphView, Input, Operation, Recogniser
from dasktile.capture.references import head_of, reference
from dasktile.capture.rules.blockwise import free_labels, identity
from dasktile.ir import Kind, bounds

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Assign:
    """One value assigned to the elements at all combinations of some positions.

    Parameters
    ----------
    positions
        Along every axis, ascending.
    value
        An array without axes.
    """

    positions: tuple[Positions, ...]
    value: npt.NDArray[Any]


def assignment(view: GraphView, name: str) -> Operation | None:
    """A value assigned to slices, positions or elements at known masks."""
    layer, info = view.layers[name], view.array(name)
    if info is None or not info.shape or isinstance(layer, Blockwise):
        return None
    if all(getattr(task, "func", _called(task)) is not setitem for task in layer.values()):
        return None
    tasks = view.tasks(name)
    blocks = {key: task for key, task in tasks.items() if head_of(key) == name}
    values = {
        key: task.value
        for key, task in tasks.items()
        if isinstance(task, DataNode) and head_of(key) != name
    }
    if len(blocks) + len(values) != len(tasks) or len(values) != 1:
        return None
    [value] = values.values()
    if type(value) is not np.ndarray or value.ndim:
        return None
    source = _source(view, name, info)
    if source is None or len(blocks) != np.prod(info.numblocks, dtype=int):
        return None
    positions = _positions(info, source.name, blocks, next(iter(values)))
    if positions is None:
        return None
    return Operation(
        op="setitem",
        kind=Kind.MAP,
        labels=free_labels(info.chunks),
        out=identity(len(info.shape)),
        kernel=Assign(positions, value),
        inputs=(Input(source.name, identity(len(info.shape))),),
        repeatable=True,
    )


def _called(task: Any) -> Any:
    return task[0] if type(task) is tuple and task else None


def _source(view: GraphView, name: str, info: ArrayInfo) -> ArrayInfo | None:
    """The array whose elements are assigned to; None if it is not of the same kind."""
    names = view.dependencies(name)
    source = view.array(names[0]) if len(names) == 1 else None
    if source is None or source.dtype != info.dtype or source.chunks != info.chunks:
        return None
    return source


def _positions(
    info: ArrayInfo, source: str, blocks: Mapping[Any, Any], value: Any
) -> tuple[Positions, ...] | None:
    """The positions along every axis, if the tasks of all blocks assign to their combinations."""
    found: list[dict[int, Positions]] = [{} for _ in info.shape]
    unchanged: list[tuple[int, ...]] = []
    for key, task in blocks.items():
        place = tuple(map(int, key[1:]))
        shape = [sizes[at] for sizes, at in zip(info.chunks, place, strict=True)]
        if isinstance(task, Alias):
            if task.target != (source, *place):
                return None
            unchanged.append(place)
            continue
        index = _index(task, (source, *place), value, len(shape))
        if index is None:
            return None
        for axis, (part, size) in enumerate(zip(index, shape, strict=True)):
            within = _within(part, size)
            if within is None:
                return None
            if not np.array_equal(found[axis].setdefault(place[axis], within), within):
                return None
    nothing = np.zeros(0, dtype=np.int64)
    if any(all(len(found[axis].get(at, nothing)) for axis, at in enumerate(place))
           for place in unchanged):  # fmt: skip
        return None
    return tuple(
        np.concatenate([nothing, *(start + parts[at] for at, start in enumerate(bounds(sizes)[:-1])
                                   if at in parts)])
        for parts, sizes in zip(found, info.chunks, strict=True)
    )  # fmt: skip


def _index(task: Any, block: Any, value: Any, ndim: int) -> list[Any] | None:
    """The index of the task of a block; None for another task."""
    if not isinstance(task, Task) or task.func is not setitem or len(task.args) != 3 or task.kwargs:
        return None
    index = task.args[2]
    if isinstance(index, DataNode):
        index = index.value
    elif isinstance(index, Task) and not index.dependencies:
        index = index({})
    if reference(task.args[0]) != block or reference(task.args[1]) != value:
        return None
    return list(index) if isinstance(index, list) and len(index) == ndim else None


def _within(index: Any, size: int) -> Positions | None:
    """The positions of an index in a block, ascending; None for other indices."""
    if isinstance(index, (slice, int, np.integer)):
        return np.sort(np.atleast_1d(np.arange(size, dtype=np.int64)[index]))
    if type(index) is not np.ndarray or index.ndim != 1:
        return None
    if index.dtype.kind == "b":
        return np.flatnonzero(index).astype(np.int64) if len(index) == size else None
    # the size of the block stands for no position
    return np.unique(index[index < size]).astype(np.int64) if index.dtype.kind in "iu" else None


RECOGNISERS: tuple[Recogniser, ...] = (assignment,)
