"""Recognisers of operations with whole axes: FFTs, gufuncs, functions along an axis."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from dask.blockwise import Blockwise

from dasktile._compat.dask import (
    Alias,
    Task,
    along_axis_block,
    custom_nanquantile,
    isin_block,
)
from dasktile._compat.xarray import is_spline
from dasktile.capture.base import ArrayInfo, GraphView, Operation, Recogniser, added_axes
from dasktile.capture.rules.blockwise import Map, operands
from dasktile.capture.rules.pointwise import is_pointwise_task
from dasktile.capture.titles import call_of_layer
from dasktile.ir import AxisMap, Kind, Label, Role

#: Functions whose results at one position depend on nothing but the elements along their axes.
_ORDER_STATISTICS = (np.median, np.nanmedian, np.quantile, np.nanquantile, custom_nanquantile)

_FFTS = "fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn"


def fft(view: GraphView, name: str) -> Operation | None:
    """An FFT over one or more axes, each in one block."""
    layer, info = view.layers[name], view.array(name)
    if not isinstance(layer, Blockwise) or info is None or layer.task.kwargs or added_axes(layer):
        return None
    kind = _fft_name(layer.task.func)
    if kind is None or len(layer.indices) != 4:
        return None
    (argument, symbols), *literals = layer.indices
    if symbols != layer.output_indices or any(names is not None for _, names in literals):
        return None
    axes = _fft_axes(kind, literals[0][0], literals[1][0], len(symbols))
    source = view.array(str(argument)) if axes is not None else None
    if source is None or axes is None:
        return None
    if any(len(chunks[axis]) != 1 for chunks in (source.chunks, info.chunks) for axis in axes):
        return None
    inner = Blockwise(
        layer.output,
        layer.output_indices,
        layer.task,
        layer.indices[:1],
        layer.numblocks,
    )
    read = operands(view, inner)
    if read is None:
        return None
    # An axis whose length changes has no label: it is read and written whole.
    changed = [info.shape[axis] != source.shape[axis] for axis in range(len(symbols))]
    if any(changed[axis] for axis in range(len(symbols)) if axis not in axes):
        return None
    labels: dict[str, int] = {}
    loops: list[Label] = []
    out = []
    for axis, symbol in enumerate(symbols):
        if changed[axis]:
            out.append(AxisMap(None))
            continue
        if axis not in axes and read.sizes[symbol] != info.chunks[axis]:
            return None
        labels[symbol] = len(loops)
        out.append(AxisMap(len(loops)))
        role = Role.WHOLE if axis in axes else Role.FREE
        loops.append(Label(info.shape[axis], role, info.chunks[axis]))
    length = math.prod(source.shape[axis] for axis in axes)
    unlabelled = math.prod(source.shape[axis] for axis in axes if changed[axis])
    return Operation(
        op=kind,
        kind=Kind.MAP,
        labels=tuple(loops),
        out=tuple(out),
        kernel=Map(layer, labels, (0,)),
        inputs=read.inputs(labels),
        work=5.0 * math.log2(max(length, 2)) * unlabelled,
    )


def _fft_name(function: Any) -> str | None:
    """Name of a NumPy or SciPy FFT, None for any other function."""
    name = getattr(function, "__name__", "")
    if name not in _FFTS.split():
        return None
    # a layer can only contain SciPy's function if scipy.fft is imported
    for module in (np.fft, sys.modules.get("scipy.fft")):
        if module is not None and getattr(module, name, None) is function:
            return str(name)
    return None


def _fft_axes(kind: str, shape: Any, axes: Any, count: int) -> tuple[int, ...] | None:
    """The transformed axes as non-negative numbers."""
    if kind.endswith("fft"):
        axes = (-1 if axes is None else axes,)
    elif axes is None:
        if kind.endswith("2"):
            axes = (-2, -1)
        else:
            axes = range(count) if shape is None else range(-len(shape), 0)
    if any(not -count <= axis < count for axis in axes):
        return None
    positive = tuple(axis % count for axis in axes)
    return positive if len(set(positive)) == len(positive) else None


def along_axis(view: GraphView, name: str) -> Operation | None:
    """``apply_along_axis``: a function of one-dimensional slices."""
    layer, info = view.layers[name], view.array(name)
    if not isinstance(layer, Blockwise) or info is None:
        return None
    if layer.task.func is not along_axis_block or len(layer.indices) != 1:
        return None
    symbols = layer.indices[0][1]
    if symbols is None:
        return None
    axis = symbols[layer.task.kwargs["func1d_axis"]]
    return _loops(view, layer, info, {axis})


def order_statistic(view: GraphView, name: str) -> Operation | None:
    """A median, or quantiles, along axes that are read whole.

    The results of several probabilities are along a new first axis.
    """
    layer, info = view.layers[name], view.array(name)
    if not isinstance(layer, Blockwise) or info is None or not layer.indices:
        return None
    symbols, axes = layer.indices[0][1], layer.task.kwargs.get("axis")
    known = any(layer.task.func is function for function in _ORDER_STATISTICS)
    if not known or symbols is None or not isinstance(axes, (list, tuple)):
        return None
    arrays = [symbols for _, symbols in layer.indices[1:] if symbols]
    if "weights" in layer.task.kwargs or len(arrays) > 1:
        return None
    whole = {symbols[axis] for axis in axes}
    if whole & set(layer.output_indices) and not layer.task.kwargs.get("keepdims"):
        return None
    added = tuple(added_axes(layer))
    if not arrays:
        return _loops(view, layer, info, whole) if not added else None
    if len(layer.indices) != 2 or len(arrays[0]) != 1 or layer.output_indices[:1] != added:
        return None
    # Dask gives the probabilities a symbol of the array
    probabilities = ".probabilities"
    rewritten = Blockwise(
        name,
        layer.output_indices,
        layer.task,
        (layer.indices[0], (layer.indices[1][0], (probabilities,))),
        layer.numblocks,
        concatenate=True,
        new_axes=dict(layer.new_axes),
    )
    return _loops(view, rewritten, info, whole | {probabilities})


def isin(view: GraphView, name: str) -> Operation | None:
    """The comparison in ``isin`` of every element with all test elements."""
    layer, info = view.layers[name], view.array(name)
    if not isinstance(layer, Blockwise) or info is None or len(layer.indices) != 2:
        return None
    if layer.task.func is not isin_block:
        return None
    *outer, last = layer.output_indices
    symbols = [symbols for _, symbols in layer.indices]
    read = operands(view, layer)
    if read is None or symbols != [tuple(outer), (last,)] or layer.dims[last] != 1:
        return None
    if (*(read.sizes[symbol] for symbol in outer), (1,)) != info.chunks:
        return None
    labels = {symbol: number for number, symbol in enumerate(outer)}
    return Operation(
        op="isin",
        kind=Kind.MAP,
        labels=tuple(Label(sum(cuts), Role.FREE, cuts) for cuts in info.chunks[:-1]),
        out=(*(AxisMap(number) for number in range(len(outer))), AxisMap(None)),
        kernel=Map(layer, labels, read.positions),
        inputs=read.inputs(labels),
        work=math.log2(max(2, sum(read.sizes[last]))),
    )


def gufunc(view: GraphView, name: str) -> Operation | None:
    """``apply_gufunc`` with one output.

    dask writes a Blockwise layer over the loop dimensions, and another that renames its
    blocks to keys with the core dimensions.
    """
    layer, info = view.layers[name], view.array(name)
    below = view.dependencies(name)
    if isinstance(layer, Blockwise) or info is None or len(below) != 1:
        return None
    inner = view.layers[below[0]]
    if not isinstance(inner, Blockwise) or added_axes(inner) or inner.io_deps:
        return None
    prefix, _, token = below[0].rpartition("-")
    cores = len(info.shape) - len(inner.output_indices)
    if name != f"{prefix}_0-{token}" or cores < 0 or len(layer) != math.prod(info.numblocks):
        return None
    for key, task in view.tasks(name).items():
        block = key[1 : len(key) - cores]
        if not isinstance(task, Alias) or task.target != (below[0], *block):
            return None
    added = tuple(f".core{number}" for number in range(cores))
    rewritten = Blockwise(
        name,
        (*inner.output_indices, *added),
        inner.task,
        inner.indices,
        inner.numblocks,
        concatenate=inner.concatenate,
        new_axes=dict.fromkeys(added, 1),
    )
    if is_spline(inner.task.func):
        return None
    outer = set(inner.output_indices)
    read = {symbol for _, symbols in inner.indices for symbol in symbols or ()}
    whole = read - outer
    if not whole and not _elementwise(inner.task):
        return None
    operation = _loops(view, rewritten, info, whole)
    return replace(operation, op=call_of_layer(below[0])) if operation is not None else None


def _elementwise(task: Task) -> bool:
    """True if a function without core dimensions is known to be elementwise.

    Many are not: :func:`xarray.apply_ufunc` is also used to map functions over blocks.
    """
    elementwise = isinstance(task.func, np.vectorize) and not task.func.excluded
    return elementwise or is_pointwise_task(task)


def _loops(view: GraphView, layer: Blockwise, info: ArrayInfo, whole: set[str]) -> Operation | None:
    """A map over the symbols that inputs and output share; those in `whole` are not cut."""
    read = operands(view, layer, whole=whole)
    if read is None or (whole - set(layer.output_indices) and not layer.concatenate):
        return None
    labels: dict[str, int] = {}
    loops: list[Label] = []
    out: list[AxisMap] = []
    for symbol, chunks in zip(layer.output_indices, info.chunks, strict=True):
        if symbol not in read.sizes:
            if len(chunks) != 1:
                return None
            out.append(AxisMap(None))
            continue
        if symbol in whole:
            # the function keeps an axis that it has reduced
            if chunks != (1,):
                return None
            out.append(AxisMap(None))
            continue
        if read.sizes[symbol] != chunks:
            return None
        labels[symbol] = len(loops)
        out.append(AxisMap(len(loops)))
        loops.append(Label(sum(chunks), Role.FREE, chunks))
    for symbol in _in_order(layer.indices, whole):
        labels[symbol] = len(loops)
        loops.append(Label(sum(read.sizes[symbol]), Role.WHOLE, read.sizes[symbol]))
    if not set(read.sizes) <= set(labels):
        return None
    return Operation(
        op=call_of_layer(info.name),
        kind=Kind.MAP,
        labels=tuple(loops),
        out=tuple(out),
        kernel=Map(layer, labels, read.positions),
        inputs=read.inputs(labels),
    )


def _in_order(
    indices: Sequence[tuple[Any, Sequence[str] | None]], symbols: set[str]
) -> Mapping[str, None]:
    """The symbols in the order of the arguments."""
    return dict.fromkeys(
        symbol for _, names in indices for symbol in names or () if symbol in symbols
    )


RECOGNISERS: tuple[Recogniser, ...] = (fft, along_axis, order_statistic, isin, gufunc)
