"""Recognisers of operations that are one Blockwise layer, also with other tiles.

Elementwise functions, transposes, outer products, broadcasts, and registered user functions.
The tasks of a layer are not generated: its index symbols and the chunks of the arrays that it
reads are enough.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.utils import funcname

from dasktile._compat.dask import (
    ArrayBlockIdDep,
    ArrayChunkShapeDep,
    ArrayValuesDep,
    GraphNode,
    Task,
    TaskRef,
    blockwise_token,
)
from dasktile.capture.base import (
    ArrayInfo,
    GraphView,
    Input,
    NotRecognised,
    Operation,
    Rechunked,
    Recogniser,
    added_axes,
)
from dasktile.capture.corrections import called_function
from dasktile.capture.declarations import CONTRADICTED, contradicts
from dasktile.capture.rules.pointwise import is_pointwise_task, is_scalar
from dasktile.capture.titles import call_of_layer
from dasktile.capture.user_kernels import lookup
from dasktile.ir import AxisMap, Chunks, Kind, Label, Role


@dataclass(frozen=True, slots=True)
class Map:
    """A Blockwise layer that can be instantiated with other numbers of blocks.

    Parameters
    ----------
    layer
        The layer.  A :class:`dask.layers.ArrayChunkShapeDep` among its arguments
        stands for the shape of the output block, and is replaced for other output chunks.
        The layer need not be in the graph: it may stand for several layers of the graph.
    labels
        The node's label for each index symbol of the layer; a symbol without a label
        has one block.
    positions
        For every edge of the node, the position of its array in ``layer.indices``.
    """

    layer: Blockwise
    labels: Mapping[str, int]
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Contract:
    """The product of the inputs, summed over the labels that are not in the output.

    Parameters
    ----------
    spec
        For every input, the label of each of its axes; None for an axis of size one
        that is broadcast.
    output
        The label of each output axis.
    dtype
        Of the result, and of the partial sums.
    kwargs
        Keyword arguments of :func:`numpy.einsum` (`optimize`).
    """

    spec: tuple[tuple[int | None, ...], ...]
    output: tuple[int, ...]
    dtype: np.dtype[Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operands:
    """The arrays that a Blockwise layer reads, with its index symbols.

    Parameters
    ----------
    sizes
        For each symbol, the chunks of the arrays that are not broadcast along it.
    arrays
        The arrays in the order of the layer's arguments.
    symbols
        The symbols of each array.
    positions
        The position of each array in ``layer.indices``.
    """

    sizes: dict[str, tuple[int, ...]]
    arrays: tuple[ArrayInfo, ...]
    symbols: tuple[tuple[str, ...], ...]
    positions: tuple[int, ...]

    def inputs(self, labels: Mapping[str, int]) -> tuple[Input, ...]:
        """One input for each array.

        Axes whose symbol has no label, and axes of size one that are broadcast, are read whole.
        """
        inputs = []
        for array, symbols in zip(self.arrays, self.symbols, strict=True):
            axes = []
            for symbol, size in zip(symbols, array.shape, strict=True):
                tied = symbol in labels and size == sum(self.sizes[symbol])
                axes.append(AxisMap(labels[symbol] if tied else None))
            inputs.append(Input(array.name, tuple(axes)))
        return tuple(inputs)


def operands(view: GraphView, layer: Blockwise, whole: Collection[str] = ()) -> Operands | None:
    """The arrays that a layer reads, or None if their chunks do not match.

    They match if all arrays have the same chunks along a symbol, or size one.  Literals must
    be scalars, and no argument may depend on the position of the block.

    Parameters
    ----------
    view, layer
        The layer and the graph it is in.
    whole
        Symbols along which arrays are read whole, in any chunks.
    """
    sizes: dict[str, tuple[int, ...]] = {}
    arrays: list[ArrayInfo] = []
    names: list[tuple[str, ...]] = []
    positions: list[int] = []
    for position, (argument, symbols) in enumerate(layer.indices):
        if symbols is None:
            if not is_scalar(argument):
                return None
            continue
        if not isinstance(argument, str) or argument in layer.io_deps:
            return None
        array = view.array(argument)
        if array is None or array.numblocks != tuple(layer.numblocks[argument]):
            return None
        for symbol, size, chunks in zip(symbols, array.shape, array.chunks, strict=True):
            known = sizes.get(symbol)
            if symbol in whole:
                chunks = (size,)
            if known is None or (known == (1,) and size != 1):
                sizes[symbol] = chunks
            elif size != 1 and chunks != known:
                return None
        arrays.append(array)
        names.append(symbols)
        positions.append(position)
    return Operands(sizes, tuple(arrays), tuple(names), tuple(positions))


def free_labels(chunks: Chunks) -> tuple[Label, ...]:
    """One free label for every axis of an array."""
    return tuple(Label(sum(cuts), Role.FREE, cuts) for cuts in chunks)


def identity(count: int) -> tuple[AxisMap, ...]:
    """The maps of an array whose axes are the first `count` labels."""
    return tuple(AxisMap(axis) for axis in range(count))


def mapped(
    view: GraphView, layer: Blockwise, info: ArrayInfo, whole: Collection[int] = ()
) -> Operation | None:
    """The layer as a map with one label for each output axis, if its operands match."""
    read = operands(view, layer)
    outer = layer.output_indices
    if read is None or not read.arrays or set(read.sizes) != set(outer):
        return None
    if tuple(read.sizes[symbol] for symbol in outer) != info.chunks:
        return None
    labels = {symbol: axis for axis, symbol in enumerate(outer)}
    if any(len(info.chunks[axis]) > 1 for axis in whole):
        return None
    return Operation(
        op=call_of_layer(info.name),
        kind=Kind.MAP,
        labels=tuple(
            Label(sum(cuts), Role.WHOLE if axis in whole else Role.FREE, cuts)
            for axis, cuts in enumerate(info.chunks)
        ),
        out=identity(len(outer)),
        kernel=Map(layer, labels, read.positions),
        inputs=read.inputs(labels),
    )


def has_aligned_axes(layer: Blockwise) -> bool:
    """True if blocks broadcast along their last axes, as arrays do."""
    outer = layer.output_indices
    return all(
        symbols is None or symbols == outer[len(outer) - len(symbols) :]
        for _, symbols in layer.indices
    )


def elementwise(view: GraphView, name: str) -> Operation | NotRecognised | None:
    """A function that works element by element, of arrays that broadcast."""
    layer, info = view.layers[name], view.array(name)
    if not isinstance(layer, Blockwise) or info is None or added_axes(layer):
        return None
    if not has_aligned_axes(layer) or not is_pointwise_task(layer.task):
        return None
    operation = mapped(view, layer, info)
    if operation is None:
        return None
    if contradicts_declaration(view, layer, info):
        return _contradicted(layer)
    return replace(operation, repeatable=is_pointwise_task(layer.task, table_only=True))


def contradicts_declaration(view: GraphView, layer: Blockwise, info: ArrayInfo) -> bool:
    """Whether the function of a layer is registered, and does something else on a sample."""
    task = layer.task
    use = lookup(task.func)
    tokens = [blockwise_token(place) for place in range(len(layer.indices))]
    if use is None or [getattr(argument, "key", None) for argument in task.args] != tokens:
        return False
    arguments: list[Any] = []
    for argument, symbols in layer.indices:
        array = None if symbols is None else view.array(str(argument))
        arguments.append(argument if array is None else (array.dtype, array.shape))
    return contradicts(task.func, use, arguments, task.kwargs, info.shape)


def _contradicted(layer: Blockwise) -> NotRecognised:
    return NotRecognised(f"user function {funcname(layer.task.func)} {CONTRADICTED}")


def registered(view: GraphView, name: str) -> Operation | NotRecognised | None:
    """A registered user function with axes that must not be cut."""
    layer, info = view.layers[name], view.array(name)
    if not isinstance(layer, Blockwise) or info is None or added_axes(layer):
        return None
    use = lookup(layer.task.func)
    if use is None or not use.whole_axes or not has_aligned_axes(layer):
        return None
    count = len(info.shape)
    if any(not -count <= axis < count for axis in use.whole_axes):
        return None
    operation = mapped(view, layer, info, {axis % count for axis in use.whole_axes})
    if operation is not None and contradicts_declaration(view, layer, info):
        return _contradicted(layer)
    return operation


def is_transpose(layer: Blockwise) -> bool:
    """True if a layer arranges the axes of blocks as its index symbols say."""
    if layer.task.func is not np.transpose or set(layer.task.kwargs) - {"axes"}:
        return False
    axes = layer.task.kwargs.get("axes")
    if len(layer.indices) != 1 or not isinstance(axes, (tuple, list, type(None))):
        return False
    [(_, symbols)] = layer.indices
    if symbols is None:
        return False
    order = range(len(symbols))[::-1] if axes is None else axes
    return tuple(symbols[axis] for axis in order) == layer.output_indices


def transpose(view: GraphView, name: str) -> Operation | Rechunked | None:
    """A transpose: only the order in which the edge names the labels differs."""
    layer, info = view.layers[name], view.array(name)
    if not isinstance(layer, Blockwise) or info is None or not is_transpose(layer):
        return None
    symbols = layer.indices[0][1]
    operation = mapped(view, layer, info)
    in_order = operation is not None and symbols == layer.output_indices
    return Rechunked(operation.inputs[0].layer) if operation is not None and in_order else operation


def squeeze(view: GraphView, name: str) -> Operation | None:
    """A squeeze of an array of one element to one without axes."""
    layer, info = view.layers[name], view.array(name)
    if not isinstance(layer, Blockwise) or info is None or layer.task.func is not np.squeeze:
        return None
    read = operands(view, layer)
    if read is None or len(read.arrays) != 1 or len(layer.indices) != 1 or layer.task.kwargs:
        return None
    if layer.output_indices or any(size != 1 for size in read.arrays[0].shape):
        return None
    kernel = Map(layer, {}, read.positions)
    return Operation("squeeze", Kind.MAP, (), (), kernel, read.inputs({}))


def outer(view: GraphView, name: str) -> Operation | None:
    """An outer product: the axes of one array, then those of the other."""
    layer, info = view.layers[name], view.array(name)
    if not isinstance(layer, Blockwise) or info is None or layer.task.kwargs:
        return None
    function = layer.task.func
    owner: Any = getattr(function, "__self__", None)
    of_ufunc = isinstance(owner, np.ufunc) and function.__name__ == "outer"
    if not of_ufunc and function is not np.outer:
        return None
    if of_ufunc and (owner.signature is not None or owner.nout != 1):
        return None
    symbols = [symbols for _, symbols in layer.indices if symbols is not None]
    if len(symbols) != 2 or len(layer.indices) != 2:
        return None
    if symbols[0] + symbols[1] != layer.output_indices:
        return None
    if not of_ufunc and len(layer.output_indices) != 2:
        return None
    return mapped(view, layer, info)


def broadcast_to(view: GraphView, name: str) -> Operation | None:
    """``da.broadcast_to``: new leading axes, and axes of size one repeated."""
    layer, info = view.layers[name], view.array(name)
    if isinstance(layer, Blockwise) or info is None or not _calls(layer, np.broadcast_to):
        return None
    below = view.dependencies(name)
    source = view.array(below[0]) if len(below) == 1 else None
    if source is None or len(view.tasks(name)) != np.prod(info.numblocks, dtype=int):
        return None
    skipped = len(info.shape) - len(source.shape)
    stretched = [
        size == 1 and info.shape[axis + skipped] != 1 for axis, size in enumerate(source.shape)
    ]
    for key, task in view.tasks(name).items():
        if not isinstance(task, Task) or task.func is not np.broadcast_to or task.kwargs:
            return None
        blocks = key[1 + skipped :]
        read = (
            source.name,
            *(
                0 if repeated else number
                for repeated, number in zip(stretched, blocks, strict=True)
            ),
        )
        if not isinstance(task.args[0], TaskRef) or task.args[0].key != read:
            return None
    symbols = tuple(f".{axis}" for axis in range(len(info.shape)))
    labels = {symbol: axis for axis, symbol in enumerate(symbols)}
    shape = ArrayChunkShapeDep(info.chunks)
    tokens = [TaskRef(blockwise_token(place)) for place in range(2)]
    rewritten = Blockwise(
        name,
        symbols,
        Task(name, np.broadcast_to, *tokens),
        [(source.name, symbols[skipped:]), (shape, symbols)],
        {source.name: source.numblocks},
    )
    axes = tuple(
        AxisMap(None if repeated else axis + skipped) for axis, repeated in enumerate(stretched)
    )
    return Operation(
        op="broadcast_to",
        kind=Kind.MAP,
        labels=free_labels(info.chunks),
        out=identity(len(symbols)),
        kernel=Map(rewritten, labels, (0,)),
        inputs=(Input(source.name, axes),),
    )


def _calls(layer: Mapping[Any, Any], function: Any) -> bool:
    """True if the first task of a layer calls the function; no task is converted."""
    task = next(iter(layer.values()), None)
    if isinstance(task, Task):
        return task.func is function
    return isinstance(task, tuple) and bool(task) and task[0] is function


def block_dependent(view: GraphView, name: str) -> NotRecognised | None:
    """Declines functions with one argument per block, or with a delayed argument."""
    layer = view.layers[name]
    if not isinstance(layer, Blockwise):
        return None
    if any(isinstance(dep, (ArrayBlockIdDep, ArrayValuesDep)) for dep in layer.io_deps.values()):
        # dask's function that passes block_id and block_info has the user's function as an argument
        literals = (value for value, symbols in layer.indices if symbols is None)
        function = next(filter(callable, literals), called_function(layer)[0])
        return NotRecognised(
            f"{funcname(function)} uses block_id, block_info or another argument per block"
        )
    if any(isinstance(argument, (TaskRef, GraphNode)) for argument, _ in layer.indices):
        call = call_of_layer(name)
        return NotRecognised(f"an argument of {call} is a delayed value, not an array")
    return None


RECOGNISERS: tuple[Recogniser, ...] = (
    elementwise,
    transpose,
    squeeze,
    outer,
    broadcast_to,
    registered,
)
