"""Unchanged nodes: arrays that no recogniser knows, with all layers that make them."""

from __future__ import annotations

import math
from collections.abc import Collection

from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer

from dasktile._compat.dask import Task
from dasktile.capture.base import ArrayInfo, GraphView, Input, Operation, Verbatim, has_blocks
from dasktile.capture.failures import note_failure
from dasktile.capture.references import head_of
from dasktile.capture.steps import call_of_step
from dasktile.capture.titles import call_of_layer
from dasktile.ir import AxisMap, Kind, Label, Role, bounds


def has_one_block(array: ArrayInfo) -> bool:
    """Whether an array is in one block."""
    return math.prod(array.numblocks) == 1


def opaque(
    view: GraphView,
    info: ArrayInfo,
    reason: str,
    inputs: Collection[str] | None = None,
    known: Operation | None = None,
) -> Operation:
    """An unchanged node, with all layers it needs down to the next arrays of known shape.

    Parameters
    ----------
    view, info
        The graph, and the array.
    reason
        Why it is unchanged.
    inputs
        Names of the arrays that it may read; others are part of it.  None for any.
    known
        What the layer is, where it keeps its chunks for another reason: which parts of its inputs
        its blocks read, and its work.
    """
    members, arrays = _members(view, info.name, inputs)
    one_block = has_one_block(info)
    return Operation(
        op=_call(view, info.name),
        kind=Kind.OPAQUE,
        labels=tuple(Label(sum(cuts), Role.PINNED, cuts) for cuts in info.chunks),
        out=tuple(AxisMap(axis) for axis in range(len(info.shape))),
        kernel=Verbatim(members, tuple(array.name for array in arrays)),
        inputs=tuple(
            Input(
                array.name,
                _maps_of(known, info, array) or _known_maps(view.layers[info.name], info, array),
                array.chunks,
                # blocks of a node with several are known to be made apart
                spread=one_block and _is_spread(view, members, array),
            )
            for array in arrays
        ),
        reason=reason,
        work=1.0 if known is None else known.work,
        root=members == (info.name,) and _is_root(view, info.name),
        has_inner_tasks=sum(len(view.layers[name]) for name in members) > math.prod(info.numblocks),
    )


def _call(view: GraphView, name: str) -> str:
    """As :func:`call_of_step`, and by the name alone where that fails: no plan depends on it."""
    try:
        return call_of_step(view, name)
    except Exception as error:
        note_failure(view, call_of_step, error)
        return call_of_layer(name)


def _is_root(view: GraphView, name: str) -> bool:
    """Whether the tasks of a layer read nothing and may run on any worker."""
    layer = view.layers[name]
    if view.graph.dependencies.get(name) or layer.annotations:
        return False
    return isinstance(layer, Blockwise) or all(
        type(task) is Task and not task.dependencies for task in view.tasks(name).values()
    )


def _is_spread(view: GraphView, members: tuple[str, ...], array: ArrayInfo) -> bool:
    """Whether no task of some layers reads more than half of the blocks of an array."""
    return not has_one_block(array) and all(
        2 * sum(head_of(key) == array.name for key in task.dependencies)
        <= math.prod(array.numblocks)
        for member in members
        if array.name in view.dependencies(member)
        for task in view.tasks(member).values()
    )


def _members(
    view: GraphView, name: str, inputs: Collection[str] | None = None
) -> tuple[tuple[str, ...], tuple[ArrayInfo, ...]]:
    """Layers of an opaque node, that of its array last, and the arrays they read."""
    members: dict[str, None] = {}
    arrays: dict[str, ArrayInfo] = {}
    stack = [name]
    while stack:
        member = stack[-1]
        waiting: list[str] = []
        for other in view.dependencies(member):
            array = view.array(other)
            may_read = inputs is None or other in inputs
            if may_read and array is not None and has_blocks(view.layers[other], array):
                arrays[other] = array
            elif other not in members:
                waiting.append(other)
        if waiting and member not in members:
            stack.extend(reversed(waiting))
        else:
            members[member] = None
            stack.pop()
    return tuple(members), tuple(arrays.values())


def _maps_of(
    known: Operation | None, info: ArrayInfo, array: ArrayInfo
) -> tuple[AxisMap, ...] | None:
    """The part of an array that the blocks of a recognised operation read; None if unknown."""
    if known is None:
        return None
    reads = [read for read in known.inputs if read.layer == array.name]
    if len(reads) != 1:
        return None
    columns = {axis.label: column for column, axis in enumerate(known.out) if axis.identity}
    return tuple(
        _block_map(columns[axis.label], info.chunks[columns[axis.label]], sizes)
        if axis == AxisMap(axis.label, 0, axis.step, axis.step) and axis.label in columns
        else AxisMap(None)
        for axis, sizes in zip(reads[0].axes, array.chunks, strict=True)
    )


def _known_maps(layer: Layer, info: ArrayInfo, array: ArrayInfo) -> tuple[AxisMap, ...]:
    """The part of an array that the blocks of a layer read, from its index symbols."""
    maps = [AxisMap(None)] * len(array.shape)
    if not isinstance(layer, Blockwise):
        return tuple(maps)
    uses = [
        symbols
        for argument, symbols in layer.indices
        # an argument without symbols is a literal of any type
        if symbols is not None and argument == array.name
    ]
    if len(uses) != 1 or len(uses[0]) != len(maps):
        return tuple(maps)
    for axis, symbol in enumerate(uses[0]):
        if symbol in layer.output_indices:
            label = layer.output_indices.index(symbol)
            maps[axis] = _block_map(label, info.chunks[label], array.chunks[axis])
    return tuple(maps)


def _block_map(label: int, own: tuple[int, ...], read: tuple[int, ...]) -> AxisMap:
    """The map by which every block of a label reads the block of an axis with its number."""
    if len(own) != len(read) or not any(own):
        return AxisMap(None)
    ratio = max(1, max(read) // max(own))
    candidate = AxisMap(label, 0, ratio, ratio)
    inner, outer, size = bounds(own), bounds(read), sum(read)
    fits = all(
        candidate.interval(lo, hi, size) == interval
        for lo, hi, interval in zip(
            inner[:-1], inner[1:], zip(outer[:-1], outer[1:], strict=True), strict=True
        )
    )
    if fits:
        return candidate
    ratio = max(1, -(-max(read) // max(own)))
    return AxisMap(label, 0, ratio, ratio, parts=tuple(zip(inner[1:], outer[1:], strict=True)))
