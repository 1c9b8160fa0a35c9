"""Writing views and stencils: each tile is made of windows of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise, product, repeat
from typing import Any

import numpy as np
from dask.utils import M

from dasktile._compat.dask import Alias, DataNode, GraphNode, Task, TaskRef
from dasktile.capture.rules.diagonals import OnDiagonal
from dasktile.capture.rules.reshapes import PerTile, Reshape
from dasktile.capture.rules.stencils import Sliding, Stencil
from dasktile.capture.rules.views import Concatenate, Gather, Take
from dasktile.ir import AxisMap, Follow, Sharding, Where, Window, bounds, windows
from dasktile.ir.block_numbers import are_short
from dasktile.lower.emit import EmittedLayers, LoweringContext, emit
from dasktile.lower.names import slices_layer_name, step_layer_name
from dasktile.lower.reshard import join

Key = tuple[Any, ...]

#: Used as the size of an axis whose windows lie inside it.
_UNBOUNDED = 1 << 62


def _blocks(context: LoweringContext) -> Iterator[tuple[tuple[int, ...], dict[int, int]]]:
    """Every output block, and for every label the number of its block."""
    inside = dict.fromkeys(range(len(context.node.labels)), 0)
    places = [(axis.label, n) for n, axis in enumerate(context.node.out) if axis.label is not None]
    for block in product(*(range(len(sizes)) for sizes in context.tiling.chunks)):
        yield block, inside | {label: block[n] for label, n in places}


def _read(name: str, axes: Sequence[AxisMap], at: Mapping[int, int]) -> Key:
    return (name, *(0 if axis.label is None else at[axis.label] for axis in axes))


def _shape(context: LoweringContext, block: Sequence[int]) -> tuple[int, ...]:
    return tuple(sizes[b] for sizes, b in zip(context.tiling.chunks, block, strict=True))


# --- one window per block --------------------------------------------------------------


@emit.register
def _gather(kernel: Gather, context: LoweringContext) -> EmittedLayers:
    (edge,), (source,) = context.node.edges, context.inputs
    keys = list(product((context.name,), *(range(len(sizes)) for sizes in context.tiling.chunks)))
    #: By label, the number of its block for each key.
    numbers = dict(
        zip(
            [axis.label for axis in context.node.out],
            list(zip(*keys, strict=True))[1:],
            strict=True,
        )
    )
    at = [
        repeat(0) if axis.label is None else numbers.get(axis.label, repeat(0))
        for axis in edge.axes
    ]
    reads = zip(repeat(source), *at, strict=False)
    emitted = EmittedLayers()
    if context.node.op == "getitem" and edge.axes and not context.tiling.chunks:
        nodes: Iterator[GraphNode] = map(Task, keys, repeat(element), map(TaskRef, reads))
    else:
        shapes = product(*context.tiling.chunks)
        nodes = _all_arranged(keys, reads, kernel.order, len(edge.axes), shapes)
    emitted.add(context.name, dict(zip(keys, nodes, strict=True)), {source})
    return emitted


def _all_arranged(
    keys: Iterable[Key],
    reads: Iterable[Key],
    order: Sequence[int | None],
    ndim: int,
    shapes: Iterable[tuple[int, ...]],
) -> Iterator[GraphNode]:
    """As `_arranged` for many windows, column by column."""
    if _in_place(order, ndim):
        return map(Alias, keys, reads)
    order = tuple(order)
    function = _function(order, ndim)
    given = _given(function, repeat(order), shapes)
    return map(Task, keys, repeat(function), map(TaskRef, reads), *given)


def _arranged(
    key: Key, read: Key, order: Sequence[int | None], ndim: int, shape: Sequence[int]
) -> GraphNode:
    """A task that arranges the axes of a window."""
    if _in_place(order, ndim):
        return Alias(key, read)
    return _task(key, read, order, ndim, shape)


def _argument(
    read: Key, order: Sequence[int | None], ndim: int, shape: Sequence[int]
) -> TaskRef | Task:
    """The same, as an argument of another task."""
    if _in_place(order, ndim):
        return TaskRef(read)
    return _task(None, read, order, ndim, shape)


def _in_place(order: Sequence[int | None], ndim: int) -> bool:
    return tuple(order) == tuple(range(ndim))


def _task(
    key: Key | None, read: Key, order: Sequence[int | None], ndim: int, shape: Sequence[int]
) -> Task:
    order, shape = tuple(order), tuple(shape)
    function = _function(order, ndim)
    return Task(key, function, TaskRef(read), *_given(function, order, shape))


def _given(function: Callable[..., Any], order: Any, shape: Any) -> tuple[Any, ...]:
    """Of an order and a shape, what a function of `_function` takes."""
    if function is np.transpose:
        return (order,)
    return (shape,) if function is repeated else (order, shape)


@lru_cache(maxsize=64)
def _function(order: tuple[int | None, ...], ndim: int) -> Callable[..., Any]:
    """The function that arranges the axes of a window."""
    kept = sorted(axis for axis in order if axis is not None)
    if kept == list(range(ndim)) == list(range(len(order))):
        return np.transpose
    # an input without axes may be a plain Python number
    return arrange if ndim else repeated


def arrange(block: Any, order: tuple[int | None, ...], shape: tuple[int, ...]) -> Any:
    """Reorder the axes of a block; drop those not in `order`, and repeat it along None."""
    kept = sorted(axis for axis in order if axis is not None)
    if len(kept) < block.ndim:
        # with the ellipsis, a block whose axes are all dropped stays an array
        index = tuple(slice(None) if axis in kept else 0 for axis in range(block.ndim))
        block = block[(*index, ...)]
    places = tuple(kept.index(axis) for axis in order if axis is not None)
    if places != tuple(range(len(places))):
        block = block.transpose(places)
    if len(places) < len(order):
        block = block[tuple(None if axis is None else slice(None) for axis in order)]
    return block if block.shape == shape else repeated(block, shape)


def repeated(block: Any, shape: tuple[int, ...]) -> Any:
    """A block that is repeated along axes of length one; a masked one stays masked."""
    if not isinstance(block, np.ma.MaskedArray):
        return np.broadcast_to(block, shape)
    data, mask = (np.broadcast_to(part, shape) for part in (block.data, np.ma.getmask(block)))
    return np.ma.MaskedArray(data, mask, fill_value=block.fill_value)


def element(block: Any) -> Any:
    """The only element of a block: a scalar, not an array without axes."""
    return block[(0,) * block.ndim]


@emit.register
def _reshape(kernel: Reshape, context: LoweringContext) -> EmittedLayers:
    (edge,), (source,) = context.node.edges, context.inputs
    tasks: dict[Key, GraphNode] = {}
    for block, at in _blocks(context):
        key = (context.name, *block)
        read = TaskRef(_read(source, edge.axes, at))
        tasks[key] = Task(key, M.reshape, read, _shape(context, block))
    emitted = EmittedLayers()
    emitted.add(context.name, tasks, {source})
    return emitted


@emit.register
def _per_tile(kernel: PerTile, context: LoweringContext) -> EmittedLayers:
    def task_of(key: Any, read: Any) -> GraphNode:
        arguments = (*kernel.before, TaskRef(read), *kernel.after)
        return Task(key, kernel.function, *arguments, **kernel.kwargs)

    return _block_by_block(context, task_of)


@emit.register
def _on_diagonal(kernel: OnDiagonal, context: LoweringContext) -> EmittedLayers:
    (source,), cuts = context.inputs, context.tiling.cuts
    edges = [bounds(sizes) for sizes in cuts]
    tasks: dict[Key, GraphNode] = {}
    for row, column in product(*(range(len(sizes)) for sizes in cuts)):
        key = (context.name, row, column)
        shape = (cuts[0][row], cuts[1][column])
        first = max(edges[0][row], edges[1][column])
        count = min(edges[0][row + 1], edges[1][column + 1]) - first
        if count > 0:
            place = (first - edges[0][row], first - edges[1][column])
            read = TaskRef((source, row))
            tasks[key] = Task(key, with_diagonal, read, place, count, shape)
        else:
            tasks[key] = Task(key, np.zeros_like, kernel.like, shape=shape)
    emitted = EmittedLayers()
    emitted.add(context.name, tasks, {source})
    return emitted


def with_diagonal(values: Any, place: tuple[int, int], count: int, shape: tuple[int, int]) -> Any:
    """Zeros with `count` elements of the values of its rows on a diagonal from `place` on."""
    result = np.zeros_like(values, shape=shape)
    steps = np.arange(count)
    rows = place[0] + steps
    result[rows, place[1] + steps] = values[rows]
    return result


@emit.register
def _stencil(kernel: Stencil, context: LoweringContext) -> EmittedLayers:
    (edge,), (source,) = context.node.edges, context.inputs
    edges = [bounds(sizes) for sizes in context.tiling.chunks]
    tasks: dict[Key, GraphNode] = {}
    for block, at in _blocks(context):
        key = (context.name, *block)
        index, read = [], []
        for axis, number in enumerate(block):
            lo, hi = edges[axis][number], edges[axis][number + 1]
            begin, end = edge.axes[axis].interval(lo, hi, kernel.shape[axis])
            front = lo + kernel.offset[axis] - begin
            whole = front == 0 and end - begin == hi - lo
            index.append(slice(None) if whole else slice(front, front + hi - lo))
            read.append(slice(begin, end))
        known: dict[Any, Any] = {kernel.block: _read(source, edge.axes, at)}
        if kernel.coordinates is not None:
            values = kernel.coordinates.values[read[kernel.coordinates.axis]]
            known[kernel.coordinates.key] = DataNode(None, values)
        applied = kernel.task.substitute(known, key=None)
        tasks[key] = Task(key, trimmed, applied, tuple(index))
    emitted = EmittedLayers()
    emitted.add(context.name, tasks, {source})
    return emitted


@emit.register
def _sliding(kernel: Sliding, context: LoweringContext) -> EmittedLayers:
    view = np.lib.stride_tricks.sliding_window_view

    def task_of(key: Any, read: Any) -> GraphNode:
        return Task(key, view, TaskRef(read), kernel.window_shape, kernel.axis)

    return _block_by_block(context, task_of)


def extended_tiles(context: LoweringContext) -> EmittedLayers:
    """The tiles with their halo, of which the readers of moving windows make the views."""
    return _block_by_block(context, Alias)


def _block_by_block(
    context: LoweringContext, task_of: Callable[[Any, Any], GraphNode]
) -> EmittedLayers:
    """A layer whose task for each block, made of its key, reads one tile of the only input."""
    (edge,), (source,) = context.node.edges, context.inputs
    tasks: dict[Key, GraphNode] = {}
    for block, at in _blocks(context):
        key = (context.name, *block)
        tasks[key] = task_of(key, _read(source, edge.axes, at))
    emitted = EmittedLayers()
    emitted.add(context.name, tasks, {source})
    return emitted


def trimmed(block: Any, index: tuple[slice, ...]) -> Any:
    """The part of a block without its halo."""
    return block[index]


# --- several arrays, one after the other -----------------------------------------------


@emit.register
def _join(kernel: Concatenate, context: LoweringContext) -> EmittedLayers:
    node, cuts = context.node, context.tiling.cuts
    label = node.out[kernel.axis].label
    if label is None:
        raise ValueError(f"the axis along which {node.name!r} joins arrays has no label")
    edges = bounds(cuts[label])
    # For every block along the axis, its parts: number of the input, number of the window
    # fetched of it, number of elements.
    parts: list[list[tuple[int, int, int]]] = [[] for _ in cuts[label]]
    fetched: list[str] = []
    for number, (piece, edge) in enumerate(zip(kernel.pieces, node.edges, strict=True)):
        spans: list[tuple[int, int]] = []
        for block, (lo, hi) in enumerate(pairwise(edges)):
            begin, end = max(lo, piece.lo), min(hi, piece.hi)
            if begin < end:
                parts[block].append((number, len(spans), end - begin))
                spans.append((begin, end))
        needed = tuple(
            tuple(_window(axis, *span) for span in spans)
            if axis.label == label
            else _windows(axis, cuts)
            for axis in edge.axes
        )
        blocks = [block for block, (lo, hi) in enumerate(pairwise(edges))
                  if max(lo, piece.lo) < min(hi, piece.hi)]  # fmt: skip
        where = _joined_at(context.work_at, edge.axes, label, blocks)
        fetched.append(context.fetch(number, needed, where))

    tasks: dict[Key, GraphNode] = {}
    for place, at in _blocks(context):
        key = (context.name, *place)
        block_parts = parts[at[label]]
        arguments = []
        for number, window, length in block_parts:
            axes, order = node.edges[number].axes, kernel.pieces[number].order
            read = _read(fetched[number], axes, {**at, label: window})
            shape = list(_shape(context, place))
            shape[kernel.axis] = length
            if len(block_parts) == 1:
                tasks[key] = _arranged(key, read, order, len(axes), shape)
            else:
                arguments.append(_argument(read, order, len(axes), shape))
        if arguments:
            counts = [1] * len(place)
            counts[kernel.axis] = len(arguments)
            tasks[key] = Task(key, join, tuple(counts), *arguments)
    emitted = EmittedLayers()
    emitted.add(context.name, tasks, set(fetched))
    return emitted


def _joined_at(
    work: Where, axes: Sequence[AxisMap], label: int, blocks: Sequence[int]
) -> Where | None:
    """Where the windows of one joined array are needed: only by `blocks` of the label.

    None where no name can say it: they follow blocks of too many other numbers.
    """
    needed = work.seen([axis.label for axis in axes])
    if isinstance(needed, Follow):
        places = [axis.label for axis in axes]
        if label not in places:
            return needed
        joined = needed.grouped(places.index(label), blocks)
        return joined if are_short(joined.numbers) else None
    return Sharding(
        tuple(
            share.grouped([[block] for block in blocks]) if axis.label == label else share
            for axis, share in zip(axes, needed.dims, strict=True)
        )
    )


def _window(axis: AxisMap, lo: int, hi: int) -> Window:
    """The window that iterations ``[lo, hi)`` read, one element each."""
    first, last = axis.start + axis.step * lo, axis.start + axis.step * (hi - 1)
    return first, last + (1 if axis.step > 0 else -1), axis.step


def _windows(axis: AxisMap, cuts: Sequence[Sequence[int]]) -> tuple[Window, ...]:
    """The windows of an axis that is read in full; without a label its size is one."""
    if axis.label is None:
        return ((0, 1, 1),)
    return windows(axis, cuts[axis.label], _UNBOUNDED)


# --- arbitrary positions ---------------------------------------------------------------


@emit.register
def _take(kernel: Take, context: LoweringContext) -> EmittedLayers:
    node, cuts = context.node, context.tiling.cuts
    (edge,) = node.edges
    out = kernel.order.index(kernel.axis)
    edges = bounds(context.tiling.chunks[out])
    positions = [kernel.index[lo:hi] for lo, hi in pairwise(edges)]
    cells = _cells(positions, kernel.cells)
    fetched = context.fetch(
        0,
        tuple(
            tuple((lo, hi, 1) for lo, hi in cells)
            if number == kernel.axis
            else _windows(axis, cuts)
            for number, axis in enumerate(edge.axes)
        ),
        _spans_at(context, kernel, positions, cells),
    )
    plans = [_plan(index, cells) for index in positions]
    index_name, part_name = step_layer_name(context.name, "index"), slices_layer_name(context.name)
    tasks: dict[Key, GraphNode] = {}
    for b, (picks, order) in enumerate(plans):
        # one node for all blocks with the same number along this axis, in a tuple
        for cell, local in picks:
            tasks[(index_name, b, cell)] = DataNode((index_name, b, cell), (1, local))
        if len(picks) > 1:
            tasks[(index_name, b)] = DataNode((index_name, b), (1, order))
    for place, at in _blocks(context):
        key = (context.name, *place)
        picks, _ = plans[place[out]]
        parts = []
        for cell, local in picks:
            whole = _read(fetched, edge.axes, at)
            read: Key = (*whole[: 1 + kernel.axis], cell, *whole[2 + kernel.axis :])
            own: Key = key if len(picks) == 1 else (part_name, *place, cell)
            index = TaskRef((index_name, place[out], cell))
            arguments: tuple[Any, ...] = (TaskRef(read), index, kernel.axis)
            if not _in_place(kernel.order, len(edge.axes)):
                shape = list(_shape(context, place))
                shape[out] = len(local)
                arguments += (kernel.order, tuple(shape))
            tasks[own] = Task(own, take, *arguments)
            parts.append(TaskRef(own))
        if len(parts) > 1:
            order_ref = TaskRef((index_name, place[out]))
            tasks[key] = Task(key, take_from, order_ref, out, len(place), *parts)
    emitted = EmittedLayers()
    emitted.add(context.name, tasks, {fetched})
    return emitted


def _spans_at(
    context: LoweringContext,
    kernel: Take,
    positions: Sequence[Any],
    cells: Sequence[tuple[int, int]],
) -> Where | None:
    """Where spans of positions are needed; None for other cells, which many blocks read."""
    label = context.node.out[kernel.order.index(kernel.axis)].label
    spans = [(int(index.min()), int(index.max()) + 1) for index in positions]
    first: dict[tuple[int, int], int] = {}
    for block, span in enumerate(spans):
        first.setdefault(span, block)
    if label is None or list(first) != list(cells):
        return None
    if isinstance(context.work_at, Follow) and len(cells) != len(spans):
        return None
    axes = tuple(
        AxisMap(label) if number == kernel.axis else axis
        for number, axis in enumerate(context.node.edges[0].axes)
    )
    # a span of several blocks is where the first of them is
    return _joined_at(context.work_at, axes, label, list(first.values()))


def _cells(positions: Sequence[Any], cuts: Sequence[int]) -> list[tuple[int, int]]:
    """Windows of the axis from which the blocks take elements.

    The spans of the blocks' positions where these are short.  Where they span much of the
    axis, the cuts of the input: then only the elements taken from each are sent between
    workers, and no task needs the whole axis in memory.
    """
    spans = [(int(index.min()), int(index.max()) + 1) for index in positions]
    size = sum(cuts)
    if len(cuts) == 1 or sum(hi - lo for lo, hi in spans) <= 2 * size:
        return list(dict.fromkeys(spans))
    edges = bounds(cuts)
    pairs = [(lo, hi) for lo, hi in pairwise(edges) if lo < hi]
    used = np.unique(
        np.searchsorted([hi for _, hi in pairs], np.concatenate(list(positions)), side="right")
    )
    return [pairs[number] for number in used.tolist()]


def _plan(index: Any, cells: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, Any]], Any]:
    """(cell, positions in it) for one block, and the order of the elements in their join."""
    span = (int(index.min()), int(index.max()) + 1)
    if span in cells:
        return [(cells.index(span), index - span[0])], None
    cell_of = np.searchsorted([hi for _, hi in cells], index, side="right")
    first, *others = np.unique(cell_of).tolist()
    if not others:
        return [(first, index - cells[first][0])], None
    picks = []
    order = np.empty(len(index), dtype=np.intp)
    before = 0
    for cell in (first, *others):
        # an element that is taken several times is sent once
        taken, place = np.unique(index[cell_of == cell], return_inverse=True)
        picks.append((cell, taken - cells[cell][0]))
        order[cell_of == cell] = before + place
        before += len(taken)
    return picks, order


def take(
    block: Any,
    index: tuple[int, Any],
    axis: int,
    order: tuple[int | None, ...] | None = None,
    shape: tuple[int, ...] = (),
) -> Any:
    """Elements at positions of one axis of a block, whose axes are then arranged."""
    taken = block[(slice(None),) * axis + (index[1],)]
    return taken if order is None else arrange(taken, order, shape)


def take_from(order: tuple[int, Any], axis: int, ndim: int, *parts: Any) -> Any:
    """The join of several blocks along an axis, put in order."""
    counts = tuple(len(parts) if number == axis else 1 for number in range(ndim))
    return join(counts, *parts)[(slice(None),) * axis + (order[1],)]
