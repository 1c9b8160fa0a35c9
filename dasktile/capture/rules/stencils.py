"""Recognisers of `map_overlap` of functions whose halo is known, and of moving windows.

dask writes the first in four steps: every block is extended by its neighbours' edges (after an
optional boundary is added around the array), blocks of boundary alone are dropped, the
function is applied, and the edges are trimmed.  They become one node whose input window is
wider than its output.  ``da.gradient`` is written like this, with a function of Dask.
``sliding_window_view`` is, without boundaries and without trimming; xarray's ``rolling`` reduces
its result.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.utils import funcname, key_split

from dasktile._compat.dask import ArrayOverlapLayer, Task, trim
from dasktile.capture.base import ArrayInfo, GraphView, Input, NotRecognised, Operation, added_axes
from dasktile.capture.corrections import called_function
from dasktile.capture.declarations import CONTRADICTED, contradicts
from dasktile.capture.filters import depths_of
from dasktile.capture.references import Key
from dasktile.capture.rules.gradients import Coordinates, Gradient, read_gradient
from dasktile.capture.rules.positions import NotTraceable, TracedBlock
from dasktile.capture.rules.provenance import Trace
from dasktile.capture.tracing import obstacle, traced_depths
from dasktile.capture.user_kernels import KernelUse, lookup
from dasktile.ir import AxisMap, Kind, Label, Role, bounds

#: For every axis, the depth before and after and whether it has a boundary; the input layer.
Trimming = tuple[tuple[tuple[int, int], ...], tuple[bool, ...], str]


@dataclass(frozen=True, slots=True, eq=False)
class Stencil:
    """A function of a window, whose result is trimmed at the edges of the window.

    Parameters
    ----------
    task
        The task that applies the function to one block; it does not depend on the block.
    block
        The key that stands for the block in `task`.
    offset
        For every axis, the position in the input of the element at output position 0: 0, or
        the depth of the boundary around the input.
    shape
        Of the input.
    coordinates
        Positions of the elements along an axis that the function reads, if it reads any.
    """

    task: Task
    block: Key
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    coordinates: Coordinates | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Sliding:
    """All windows of an array, which the result has along new last axes.

    Parameters
    ----------
    window_shape, axis
        As for :func:`numpy.lib.stride_tricks.sliding_window_view`, both as tuples.
    """

    window_shape: tuple[int, ...]
    axis: tuple[int, ...]


def sliding(view: GraphView, name: str) -> Operation | None:
    """``sliding_window_view`` of overlapping blocks."""
    layer, new = view.layers[name], view.array(name)
    if not isinstance(layer, Blockwise) or new is None or len(layer.indices) != 1:
        return None
    if layer.task.func is not np.lib.stride_tricks.sliding_window_view or layer.io_deps:
        return None
    (overlapped, symbols), options = layer.indices[0], layer.task.kwargs
    if set(options) != {"window_shape", "axis"} or symbols is None:
        return None
    windows, axes, ndim = tuple(options["window_shape"]), tuple(options["axis"]), len(symbols)
    if tuple(layer.output_indices[:ndim]) != tuple(symbols) or new.shape[ndim:] != windows:
        return None
    if len(set(axes)) != len(axes) or new.numblocks[ndim:] != (1,) * len(windows):
        return None
    more = [0] * ndim
    for axis, window in zip(axes, windows, strict=True):
        more[axis] = int(window) - 1
    outer = replace(new, shape=new.shape[:ndim], chunks=new.chunks[:ndim])
    if not all(map(all, outer.chunks)):
        return None
    read = [
        [(lo, hi + extra) for lo, hi in itertools.pairwise(bounds(sizes))]
        for sizes, extra in zip(outer.chunks, more, strict=True)
    ]
    try:
        old = _windows(view, str(overlapped), outer, read)
    except NotTraceable:
        return None
    wide = tuple(size + extra for size, extra in zip(outer.shape, more, strict=True))
    if old is None or old.shape != wide or old.dtype != new.dtype:
        return None
    return Operation(
        op=key_split(name),
        kind=Kind.MAP,
        labels=tuple(
            Label(size, Role.FREE, cuts)
            for size, cuts in zip(outer.shape, outer.chunks, strict=True)
        ),
        out=(*map(AxisMap, range(ndim)), *(AxisMap(None) for _ in windows)),
        kernel=Sliding(windows, axes),
        windows=math.prod(windows),
        inputs=(Input(old.name, tuple(AxisMap(n, 0, 1, more[n] + 1) for n in range(ndim))),),
    )


def stencil(view: GraphView, name: str) -> Operation | NotRecognised | None:
    """A function with a known halo, of overlapping blocks, trimmed."""
    return _stencil(view, name) or _declined(view, name)


def _stencil(view: GraphView, name: str) -> Operation | NotRecognised | None:
    trimming = read_trim(view, name)
    new = view.array(name)
    if trimming is None or new is None or not all(map(all, new.chunks)):
        return None
    depths, padded, applied = trimming
    gradient = read_gradient(view, applied, new.chunks)
    if isinstance(gradient, NotRecognised):
        return gradient
    if gradient is not None:
        return _gradient(view, new, gradient, trimming)
    task, block, use = _applied(view, applied)
    if task is None or use is None or use.whole_axes:
        return None
    ndim = len(new.shape)
    halo = use.depths(ndim)
    if halo is None or any(min(depths[axis]) < depth for axis, depth in halo.items()):
        return None  # the result depends on the chunks
    old = _extended(view, new, block[0], trimming)
    if old is None:
        return None
    if contradicts(task.func, use, [(old.dtype, new.shape)], task.kwargs, new.shape):
        return NotRecognised(f"{funcname(task.func)} in map_overlap {CONTRADICTED}")
    return _operation(new, old, depths, padded, Stencil(task, block, (), old.shape))


def _gradient(
    view: GraphView, new: ArrayInfo, gradient: Gradient, trimming: Trimming
) -> Operation | None:
    depths, padded, applied = trimming
    depth = [(0, 0)] * len(new.shape)
    depth[gradient.axis] = (1, 1)
    if depths != tuple(depth) or any(padded):
        return None
    (overlapped,) = view.dependencies(applied)
    old = _extended(view, new, overlapped, trimming)
    if old is None or old.dtype != new.dtype or new.dtype.kind not in "fc":
        return None
    # a tile of one element at the end of the axis needs as many neighbours as one-sided differences
    depth[gradient.axis] = (gradient.depth, gradient.depth)
    kernel = Stencil(gradient.task, gradient.block, (), old.shape, gradient.coordinates)
    return replace(_operation(new, old, tuple(depth), padded, kernel), op="gradient")


def _extended(
    view: GraphView, new: ArrayInfo, overlapped: str, trimming: Trimming
) -> ArrayInfo | None:
    """The array whose blocks, with their neighbours' edges, a function is applied to.

    None if its blocks are not those of the result `new` with these edges.
    """
    depths, padded, applied = trimming
    read = _expected(new, depths, padded)
    try:
        old = _windows(view, overlapped, new, read)
    except NotTraceable:
        return None
    inner = view.array(applied)
    sizes = tuple(tuple(hi - lo for lo, hi in edges) for edges in read)
    if old is None or inner is None or inner.chunks != sizes:
        return None
    wide = tuple(
        n + (sum(depth) if around else 0)
        for n, depth, around in zip(new.shape, depths, padded, strict=True)
    )
    return old if old.shape == wide and inner.dtype == new.dtype else None


def _declined(view: GraphView, name: str) -> NotRecognised | None:
    """The reason for an unchanged ``map_overlap``, for each of its layers."""
    trimming, trimmed = read_trim(view, name), name
    if trimming is not None:
        applied = trimming[2]
    elif any(overlap_layers(view, other) for other in view.dependencies(name)):
        applied = name
    elif isinstance(view.layers[name], ArrayOverlapLayer):
        readers = _readers(view, name)
        applied = next((r for r in readers if isinstance(view.layers[r], Blockwise)), "")
        if not applied:
            return NotRecognised("overlapping blocks are supported in map_overlap only")
    else:
        return None
    layer = view.layers.get(applied)
    if not isinstance(layer, Blockwise) or layer.io_deps:
        return None
    function = called_function(layer)[0]
    title = funcname(function)
    arrays = [symbols for _, symbols in layer.indices if symbols is not None]
    if len(arrays) != 1 or tuple(arrays[0]) != tuple(layer.output_indices) or added_axes(layer):
        reason = f"{title} in map_overlap needs one input array and an output of its shape"
    elif (getattr(function, "__module__", "") or "").split(".")[0] == "dask":
        reason = f"{title} in map_overlap is not supported"
    elif (use := _use(layer)) is None or use.whole_axes:
        called = "function" if title == "lambda" else title
        because = obstacle(layer.task.func, layer.task.kwargs, 1)
        because = f", as {because}" if because else ""
        reason = (
            f"the result of {title} in map_overlap may depend on the chunks{because}; if not, "
            f"declare its halo with dasktile.register_kernel({called}, halo=...)"
        )
    else:
        if trimming is None:
            # the layers of one call have one reason
            trimmed = next((r for r in _readers(view, applied) if _trims(view, r, applied)), "")
            trimming = read_trim(view, trimmed) if trimmed else None
        if trimming is not None and _is_deep(trimming, use):
            declined = _stencil(view, trimmed)
            if isinstance(declined, NotRecognised):
                return declined
            reason = f"there is no rule for {title} in map_overlap with these arguments"
        else:
            halo = (
                f"{use.halo} along every axis"
                if isinstance(use.halo, int)
                else ", ".join(f"{depth} along axis {axis}" for axis, depth in use.halo.items())
            )
            reason = (
                f"{title} in map_overlap reads neighbours ({halo}): depth must be at least that,"
                " with trim=True"
            )
    return NotRecognised(reason)


def _trims(view: GraphView, name: str, applied: str) -> bool:
    """Whether a layer trims the results of another one."""
    trimming = read_trim(view, name)
    return trimming is not None and trimming[2] == applied


def _is_deep(trimming: Trimming, use: KernelUse) -> bool:
    """Whether as many neighbours are exchanged as a function reads."""
    depths = trimming[0]
    halo = use.depths(len(depths))
    return halo is not None and all(min(depths[axis]) >= depth for axis, depth in halo.items())


def _readers(view: GraphView, name: str) -> list[str]:
    """Layers that read a layer, directly or through one other layer."""
    reads = view.graph.dependencies
    direct = [other for other in reads if name in reads[other]]
    indirect = [other for other in reads if any(reader in reads[other] for reader in direct)]
    return direct + indirect


def _operation(
    new: ArrayInfo,
    old: ArrayInfo,
    depths: tuple[tuple[int, int], ...],
    padded: tuple[bool, ...],
    kernel: Stencil,
) -> Operation:
    offset = tuple(
        front if around else 0 for (front, _), around in zip(depths, padded, strict=True)
    )
    widths = tuple(front + back + 1 for front, back in depths)
    return Operation(
        op=key_split(kernel.task.key),
        kind=Kind.MAP,
        labels=tuple(
            Label(size, Role.FREE, cuts) for size, cuts in zip(new.shape, new.chunks, strict=True)
        ),
        out=tuple(AxisMap(axis) for axis in range(len(new.shape))),
        kernel=replace(kernel, offset=offset),
        inputs=(
            Input(
                old.name,
                tuple(
                    AxisMap(axis, shift - front, 1, width)
                    for axis, ((front, _), shift, width) in enumerate(
                        zip(depths, offset, widths, strict=True)
                    )
                ),
            ),
        ),
        work=float(math.prod(widths)),
    )


def read_trim(view: GraphView, name: str) -> Trimming | None:
    """For every axis, the depth before and after and whether it has a boundary; the input layer.

    None for a layer that does not trim its input.
    """
    layer = view.layers[name]
    if not isinstance(layer, Blockwise):
        return None
    partials: list[Any] = [
        value
        for value, index in layer.indices
        if index is None and isinstance(value, functools.partial) and value.func is trim
    ]
    arrays = [
        value for value, index in layer.indices if index is not None and value not in layer.io_deps
    ]
    if len(partials) != 1 or len(arrays) != 1 or not isinstance(arrays[0], str):
        return None
    bound = partials[0]
    ndim = len(layer.output_indices)
    if bound.args or set(bound.keywords) != {"axes", "boundary"}:
        return None
    axes: Mapping[int, Any] = bound.keywords["axes"]
    boundary: Mapping[int, Any] = bound.keywords["boundary"]
    depths = []
    for axis in range(ndim):
        depth = axes.get(axis, 0)
        front, back = depth if isinstance(depth, tuple) else (depth, depth)
        depths.append((int(front), int(back)))
    around = tuple(
        depth != (0, 0) and not _none(boundary.get(axis, "none"))
        for axis, depth in enumerate(depths)
    )
    return tuple(depths), around, arrays[0]


def _none(boundary: Any) -> bool:
    return isinstance(boundary, str) and boundary == "none"


def _applied(view: GraphView, name: str) -> tuple[Task | None, tuple[Any, ...], KernelUse | None]:
    """A task of a layer that applies a function with a known use to each block of one array."""
    nothing = (None, (), None)
    layer = view.layers.get(name)
    if not isinstance(layer, Blockwise) or layer.io_deps or added_axes(layer):
        return nothing
    arrays = [index for _, index in layer.indices if index is not None]
    if len(arrays) != 1 or tuple(arrays[0]) != tuple(layer.output_indices):
        return nothing
    use = _use(layer)
    if use is None:
        return nothing
    key = (name, *(0 for _ in layer.output_indices))
    task = dict(layer).get(key)
    if not isinstance(task, Task) or len(task.dependencies) != 1:
        return nothing
    (block,) = task.dependencies
    return (task, block, use) if isinstance(block, tuple) else nothing


def _use(layer: Blockwise) -> KernelUse | None:
    """How the function of a layer that it applies to blocks of one array uses their axes.

    As it is registered, or as its code shows.
    """
    task = layer.task
    if not isinstance(task, Task) or len(task.args) != 1:
        return None
    use = lookup(task.func)
    if use is not None:
        return use
    depths = depths_of(task.func, task.args, task.kwargs)
    if depths is None:
        depths = traced_depths(task.func, task.kwargs, 1)
    ndim = len(layer.output_indices)
    if depths is None or any(axis is not None and axis < -ndim for axis in depths):
        return None
    by_axis = {axis: depths.get(None, 0) + depths.get(axis - ndim, 0) for axis in range(ndim)}
    halo = {axis: depth for axis, depth in by_axis.items() if depth}
    return KernelUse(halo=halo) if halo else KernelUse(elementwise=True)


def _expected(
    new: ArrayInfo, depths: tuple[tuple[int, int], ...], padded: tuple[bool, ...]
) -> list[list[tuple[int, int]]]:
    """For every axis and block, the window of the input that is read."""
    windows = []
    for size, sizes, (front, back), around in zip(
        new.shape, new.chunks, depths, padded, strict=True
    ):
        edges = bounds(sizes)
        pairs = list(itertools.pairwise(edges))
        if around:
            windows.append([(lo, hi + front + back) for lo, hi in pairs])
        else:
            windows.append([(max(lo - front, 0), min(hi + back, size)) for lo, hi in pairs])
    return windows


def overlap_layers(view: GraphView, name: str) -> tuple[str, ...]:
    """The layers that extend blocks by their neighbours' edges; empty if `name` is none of them.

    A layer that drops the blocks of a boundary may be above the layer that extends.
    """
    if isinstance(view.layers.get(name), ArrayOverlapLayer):
        return (name,)
    below = view.dependencies(name)
    if len(below) == 1 and isinstance(view.layers.get(below[0]), ArrayOverlapLayer):
        return (name, below[0])
    return ()


def _windows(
    view: GraphView, name: str, new: ArrayInfo, read: list[list[tuple[int, int]]]
) -> ArrayInfo | None:
    """The array whose blocks, extended by their neighbours' edges, are those of layer `name`."""
    layers = overlap_layers(view, name)
    if not layers:
        return None
    trace = Trace(view, *layers)
    expected = [[range(*ends) for ends in each] for each in read]
    sources = set()
    for place in itertools.product(*map(range, new.numblocks)):
        block = trace.block((name, *place))
        if not isinstance(block, TracedBlock) or block.fixed or len(block.axes) != len(place):
            return None
        for axis, (part, number) in enumerate(zip(block.axes, place, strict=True)):
            if part.source != axis or part.positions != expected[axis][number]:
                return None
        sources.add(block.name)
    return view.array(sources.pop()) if len(sources) == 1 else None
