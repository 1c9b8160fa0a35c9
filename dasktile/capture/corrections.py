"""Arrays that dask describes wrongly.

Layers say of their arrays what was thought when they were made; some operations then
correct the array but not the layer.  Where such an array is no output, so that nobody
else says better, its layer must not be believed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer

from dasktile._compat.dask import (
    Task,
    argtopk_aggregate,
    bincount_agg,
    chunk_argtopk,
    chunk_topk,
    getitem_variadic,
    histogramdd_multiarg,
    histogramdd_rect,
    topk_aggregate,
)
from dasktile.capture.base import ArrayInfo, GraphView
from dasktile.capture.rules.fold_table import RULES

_TOPK = (chunk_topk, topk_aggregate)
_ARGTOPK = (chunk_argtopk, argtopk_aggregate)
#: Functions whose blocks have sizes that only the values tell, or are no arrays at all.
_UNKNOWN = (bincount_agg, histogramdd_rect, histogramdd_multiarg)


def correct(view: GraphView) -> None:
    """Set right, or forget, what layers say of their arrays and dask says wrongly."""
    for name, layer in view.layers.items():
        if name in view.roots:
            continue
        if isinstance(layer, Blockwise):
            if layer.task.func is getitem_variadic:  # a mask of unknown values
                view._arrays[name] = None
            continue
        function, keywords = called(layer)
        if function is None:
            continue
        if function in (topk_aggregate, argtopk_aggregate):
            view._arrays[name] = _largest(view, name, keywords)
        elif function in _UNKNOWN or _sized_by_user(function, keywords):
            view._arrays[name] = None


def _sized_by_user(function: Any, keywords: dict[str, Any]) -> bool:
    """True for a user's reduction that keeps its axes: it may have an ``output_size``."""
    if keywords.get("keepdims") is not True or not isinstance(keywords.get("axis"), tuple):
        return False
    module = getattr(function, "__module__", None) or ""
    return module.split(".")[0] != "dask" and all(function is not last for _, last in RULES)


def mistyped(layer: Layer) -> bool:
    """True if a layer makes plain arrays although it says otherwise."""
    return called(layer)[0] is argtopk_aggregate


def _largest(view: GraphView, name: str, keywords: dict[str, Any]) -> ArrayInfo | None:
    """The array of the `k` largest elements, or of their places."""
    said = view.array(name)
    below, function = name, called(view.layers[name])[0]
    while function in _TOPK or function in _ARGTOPK:
        reads = view.dependencies(below)
        if len(reads) != 1:
            return None
        below = reads[0]
        function = called(view.layers[below])[0]
    source = view.array(below)
    axes, count = keywords.get("axis"), abs(keywords.get("k", 0))
    if said is None or source is None or not isinstance(axes, tuple) or len(axes) != 1:
        return None
    (axis,) = axes
    if not 0 < count <= source.shape[axis]:
        return None
    chunks = (*said.chunks[:axis], (count,), *said.chunks[axis + 1 :])
    places = called(view.layers[name])[0] is argtopk_aggregate
    dtype = np.dtype(np.intp) if places else said.dtype
    return ArrayInfo(name, tuple(map(sum, chunks)), dtype, chunks)


def called(layer: Layer) -> tuple[Any, dict[str, Any]]:
    """The function that a layer's first task calls, and the keywords bound to it.

    Of a composition it is the function applied last.
    """
    function: Any
    if isinstance(layer, Blockwise):
        function, keywords = layer.task.func, dict(layer.task.kwargs)
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
