"""Writing assignments to elements of an array for other tiles."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from dask.highlevelgraph import MaterializedLayer
from dask.typing import Key

from dasktile._compat.dask import Alias, Task, TaskRef
from dasktile.capture.rules.assignments import Assign, Positions
from dasktile.ir import bounds
from dasktile.lower.emit import EmittedLayers, LoweringContext, emit

#: An index along one axis of a tile.
Index = slice | Positions


@emit.register
def emit_assign(kernel: Assign, context: LoweringContext) -> EmittedLayers:
    """Write a task for every tile with some of the elements; others are those of the input."""
    emitted = EmittedLayers()
    name, [source] = context.name, context.inputs
    parts = [
        [_index(positions, lo, hi) for lo, hi in itertools.pairwise(bounds(cuts))]
        for positions, cuts in zip(kernel.positions, context.tiling.cuts, strict=True)
    ]
    tasks: dict[Key, Any] = {}
    for block in itertools.product(*(range(len(each)) for each in parts)):
        index = [each[at] for each, at in zip(parts, block, strict=True)]
        key: Key = (name, *block)
        if any(part is None for part in index):
            tasks[key] = Alias(key, (source, *block))
        else:
            tasks[key] = Task(key, assigned, TaskRef((source, *block)), tuple(index), kernel.value)
    emitted.add(name, MaterializedLayer(tasks), {source})
    return emitted


def _index(positions: Positions, lo: int, hi: int) -> Index | None:
    """The positions that are in a tile, counted from its start; a slice if they are even."""
    first, last = np.searchsorted(positions, (lo, hi))
    within = positions[first:last] - lo
    if not len(within):
        return None
    steps = np.diff(within)
    if len(steps) and (steps != steps[0]).any():
        return within
    step = int(steps[0]) if len(steps) else 1
    return slice(int(within[0]), int(within[-1]) + 1, step)


def assigned(tile: Any, index: tuple[Index, ...], value: Any) -> Any:
    """A copy of a tile with a value at all combinations of positions."""
    result = tile.copy()
    if sum(not isinstance(part, slice) for part in index) > 1:
        # several arrays of positions would be read as points
        every = (_positions(part, size) for part, size in zip(index, tile.shape, strict=True))
        result[np.ix_(*every)] = value
    else:
        result[index] = value
    return result


def _positions(index: Index, size: int) -> Positions:
    return np.arange(size)[index] if isinstance(index, slice) else index
