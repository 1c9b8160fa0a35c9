"""Window views: a layer holds tiles with their halo, of which its readers make views.

``sliding_window_view`` takes no time, and its result shares the memory of its input.  As a result
of a task it is counted, sent and written to disk with all its windows.  So the layer of such an
array holds the extended tiles instead, and every task that reads it makes the view itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer, MaterializedLayer

from dasktile._compat.dask import Alias, GraphNode, Task, TaskRef, blockwise_token
from dasktile.capture.base import added_axes
from dasktile.capture.references import head_of
from dasktile.ir import Chunks
from dasktile.lower.layers import in_place_of
from dasktile.lower.reshard import Windows


@dataclass(frozen=True, slots=True)
class WindowView:
    """The windows of an extended tile, along new last axes.

    Keys of such tiles are those of the view: with a 0 for each axis of windows.

    Parameters
    ----------
    window_shape, axis
        As for :func:`numpy.lib.stride_tricks.sliding_window_view`, both as tuples.
    ndim
        Number of axes of a tile.
    """

    window_shape: tuple[int, ...]
    axis: tuple[int, ...]
    ndim: int

    @property
    def halo(self) -> tuple[int, ...]:
        """For every axis of a tile, the elements that it has more than its view."""
        more = [0] * self.ndim
        for axis, window in zip(self.axis, self.window_shape, strict=True):
            more[axis] = window - 1
        return tuple(more)

    def held(self, chunks: Chunks) -> Chunks:
        """The chunks of the tiles of views with these chunks; 1 along the axes of windows."""
        own = zip(chunks[: self.ndim], self.halo, strict=True)
        tiles = (tuple(size + more for size in sizes) for sizes, more in own)
        return (*tiles, *((1,) * len(sizes) for sizes in chunks[self.ndim :]))

    def can_cut(self, windows: Windows) -> bool:
        """Whether views cut by these windows are views of extended tiles, too."""
        own, rest = windows[: self.ndim], windows[self.ndim :]
        return all(stop > start and step == 1 for axis in own for start, stop, step in axis) and (
            rest == tuple(((0, size, 1),) for size in self.window_shape)
        )

    def of(self, key: Any) -> Task:
        """The view of a tile, as an argument of a task."""
        view = np.lib.stride_tricks.sliding_window_view
        return Task(None, view, TaskRef(key), self.window_shape, self.axis)


def viewing(layer: Mapping[Any, Any], views: Mapping[str, WindowView]) -> Mapping[Any, Any]:
    """A layer that reads views, of layers that hold extended tiles.

    Parameters
    ----------
    layer
        The layer, which reads these layers as if they held the views.
    views
        By the name of a layer that holds extended tiles, the views of them.
    """
    if not views:
        return layer
    if isinstance(layer, Blockwise):
        # literals are among the arrays, and may have no hash; an array may be read more than once
        read = [
            (array, symbols)
            for array, symbols in layer.indices
            if isinstance(array, str) and array in views
        ]
        used = set(layer.output_indices)
        if {array for array, _ in read} == views.keys() and all(
            used.issuperset(symbols or "?") for _, symbols in read
        ):
            return _viewing_blockwise(layer, views)
    tasks = {key: _viewing_task(key, task, views) for key, task in layer.items()}
    return in_place_of(layer, tasks) if isinstance(layer, Layer) else MaterializedLayer(tasks)


def _viewing_task(key: Any, task: GraphNode, views: Mapping[str, WindowView]) -> GraphNode:
    read = {other: views[head] for other in task.dependencies if (head := head_of(other)) in views}
    if not read:
        return task
    if isinstance(task, Alias):
        [(target, view)] = read.items()
        made = view.of(target)
        return Task(key, made.func, *made.args)
    return task.substitute({other: view.of(other) for other, view in read.items()}, key=key)


def _viewing_blockwise(layer: Blockwise, views: Mapping[str, WindowView]) -> Blockwise:
    subs: dict[Any, Any] = {}
    for number, (array, _) in enumerate(layer.indices):
        if isinstance(array, str) and array in views:
            argument = blockwise_token(number)
            subs[argument] = views[array].of(argument)
    new = Blockwise(
        layer.output,
        layer.output_indices,
        layer.task.substitute(subs, key=layer.task.key),
        layer.indices,
        numblocks=layer.numblocks,
        concatenate=layer.concatenate,
        new_axes=added_axes(layer),
        output_blocks=layer.output_blocks,
        annotations=layer.annotations,
        io_deps=layer.io_deps,
    )
    new.collection_annotations = layer.collection_annotations
    return new
