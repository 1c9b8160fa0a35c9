"""Arrays that dask describes wrongly.

The annotations of a layer describe its array as it was when the layer was created.  Some dask
operations correct the array afterwards, but not the layer.  For such an array that is not an
output, whose description is known from its collection, the annotations are corrected or
dropped here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer

from dasktile._compat.dask import (
    ArrayOverlapLayer,
    Task,
    argtopk_aggregate,
    argtopk_preprocess,
    bincount_agg,
    chunk_argtopk,
    chunk_topk,
    getitem_variadic,
    histogramdd_multiarg,
    histogramdd_rect,
    slice_with_int_dask_array,
    topk_aggregate,
)
from dasktile._compat.flox import flox_names
from dasktile.capture.base import ArrayInfo, GraphView
from dasktile.capture.rules.fold_table import FIRST_STEPS, REDUCTIONS

_TOPK = (chunk_topk, topk_aggregate)
_ARGTOPK = (chunk_argtopk, argtopk_aggregate)
#: Functions whose results have sizes that depend on values, or are not arrays.
_UNKNOWN_SIZES = (bincount_agg, histogramdd_rect, histogramdd_multiarg)
#: Functions whose results are tuples of elements and their positions.
_PAIRS = (argtopk_preprocess, chunk_argtopk)
#: Functions of which each result is a part of a block: at a mask, or at the positions of an array
#: that are in the block.
_UNKNOWN_PARTS = (getitem_variadic, slice_with_int_dask_array)


def correct_arrays(view: GraphView) -> None:
    """Correct the arrays of layers with wrong annotations; None where the array is unknown."""
    flox = flox_names()
    tuples: list[str] = []
    for name, layer in view.layers.items():
        if isinstance(layer, Blockwise) and flox is not None and layer.task.func is flox.extract:
            # a group-by of single blocks gives dicts of arrays, which have other sizes
            for read in view.dependencies(name):
                if isinstance(view.layers[read], Blockwise):
                    view._arrays[read] = None
        if name in view.roots:
            continue
        function, keywords = called_function(layer)
        if flox is not None and flox.is_partial(function):
            view._arrays[name] = None
            continue
        if isinstance(layer, Blockwise):
            if is_unknown_part(layer):
                view._arrays[name] = None
            elif function is np.bincount:
                # noted are the numbers that are counted
                view._arrays[name] = None
            elif function in _PAIRS:
                tuples.append(name)
            elif _is_first_step(view, name, function, keywords):
                view._arrays[name] = _reduced(view, name, keywords["axis"])
            continue
        if function is None:
            continue
        if function in _PAIRS:
            tuples.append(name)
        if function in (topk_aggregate, argtopk_aggregate):
            view._arrays[name] = _largest(view, name, keywords)
        elif function in _UNKNOWN_SIZES or _sized_by_user(function, keywords):
            view._arrays[name] = None
    # of which the arrays of positions are derived before
    for name in tuples:
        view._arrays[name] = None


def is_unknown_part(layer: Layer) -> bool:
    """True if the blocks of a layer are parts of blocks whose sizes depend on values."""
    return isinstance(layer, Blockwise) and any(layer.task.func is each for each in _UNKNOWN_PARTS)


def _keeps_reduced_axes(keywords: Mapping[str, Any]) -> bool:
    """True for a step of a reduction whose result has the axes that are reduced."""
    return keywords.get("keepdims") is True and isinstance(keywords.get("axis"), tuple)


def _is_first_step(view: GraphView, name: str, function: Any, keywords: Mapping[str, Any]) -> bool:
    """True for the first step of a reduction by blocks, which Dask describes as its input is.

    A function of ``map_blocks`` may be the same; its result is read as an array of blocks.
    """
    readers = view.graph.dependents.get(name, ())
    return (
        _keeps_reduced_axes(keywords)
        and any(function is first for first in FIRST_STEPS)
        and bool(readers)
        and not any(isinstance(view.layers[reader], Blockwise) for reader in readers)
    )


def _reduced(view: GraphView, name: str, axes: tuple[int, ...]) -> ArrayInfo | None:
    """The array of the partial results of blocks, of one element along the reduced axes."""
    declared = view.array(name)
    if declared is None or not all(
        -len(declared.chunks) <= axis < len(declared.chunks) for axis in axes
    ):
        return None
    reduced = {axis % len(declared.chunks) for axis in axes}
    chunks = tuple(
        (1,) * len(sizes) if axis in reduced else sizes
        for axis, sizes in enumerate(declared.chunks)
    )
    return ArrayInfo(name, tuple(map(sum, chunks)), declared.dtype, chunks)


def _sized_by_user(function: Any, keywords: dict[str, Any]) -> bool:
    """True for a user's reduction that keeps its axes, because it may have an ``output_size``."""
    if not _keeps_reduced_axes(keywords):
        return False
    module = getattr(function, "__module__", None) or ""
    return module.split(".")[0] != "dask" and all(function is not last for _, last in REDUCTIONS)


def has_wrong_chunk_type(layer: Layer) -> bool:
    """True if a layer computes NumPy arrays although its annotations name another type."""
    return called_function(layer)[0] is argtopk_aggregate


def _largest(view: GraphView, name: str, keywords: dict[str, Any]) -> ArrayInfo | None:
    """The array of the `k` largest elements, or of their positions."""
    declared = view.array(name)
    below, function = name, called_function(view.layers[name])[0]
    while function in _TOPK or function in _ARGTOPK:
        reads = view.dependencies(below)
        if len(reads) != 1:
            return None
        below = reads[0]
        function = called_function(view.layers[below])[0]
    source = view.array(below)
    axes, count = keywords.get("axis"), abs(keywords.get("k", 0))
    if declared is None or source is None or not isinstance(axes, tuple) or len(axes) != 1:
        return None
    (axis,) = axes
    if not 0 < count <= source.shape[axis]:
        return None
    chunks = (*declared.chunks[:axis], (count,), *declared.chunks[axis + 1 :])
    positions = called_function(view.layers[name])[0] is argtopk_aggregate
    dtype = np.dtype(np.intp) if positions else declared.dtype
    return ArrayInfo(name, tuple(map(sum, chunks)), dtype, chunks)


def called_function(layer: Layer) -> tuple[Any, dict[str, Any]]:
    """The function that a layer's first task calls, and the keywords bound to it.

    For a composition, the function that is applied last; None for overlaps.
    """
    function: Any
    if isinstance(layer, Blockwise):
        function, keywords = layer.task.func, dict(layer.task.kwargs)
    elif isinstance(layer, ArrayOverlapLayer):
        # all its tasks would be made for the first one, which only slices
        return None, {}
    else:
        task = next(iter(layer.values()), None)
        keywords = {}
        if isinstance(task, Task):
            function, keywords = task.func, dict(task.kwargs)
        elif isinstance(task, tuple) and task and callable(task[0]):
            function = task[0]
        else:
            return None, {}
    while True:
        # tlz.compose, of toolz or of cytoolz
        composed = getattr(function, "funcs", None) if hasattr(function, "first") else None
        if isinstance(function, partial):
            keywords = {**function.keywords, **keywords}
            function = function.func
        elif composed:
            function = composed[-1]
        else:
            return function, keywords
