"""Why an operation is left alone, in words for a dask user."""

from __future__ import annotations

from typing import Any

from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer
from dask.utils import funcname, key_split

from dasktile._compat.dask import (
    ArrayBlockIdDep,
    ArrayOverlapLayer,
    ArrayValuesDep,
    GraphNode,
    TaskRef,
    chunk_arange,
    chunk_linspace,
    enforce_dtype,
)
from dasktile.capture.base import GraphView
from dasktile.capture.corrections import called
from dasktile.capture.rules.contraction import is_product
from dasktile.capture.rules.stencils import overlapping, trimmed
from dasktile.capture.user_kernels import lookup


def reason_for(view: GraphView, name: str) -> str:
    """Why no recogniser knows a layer."""
    layer = view.layers[name]
    for other in view.dependencies(name):
        if view.array(other) is None and _is_array(view.layers[other]):
            return "reads an array of unknown chunk sizes"
    overlap = _overlap_reason(view, name)
    if overlap:
        return overlap
    if isinstance(layer, Blockwise):
        return _blockwise_reason(layer)
    function, _ = called(layer)
    if getattr(function, "__module__", "") == "dask.array.random":
        return "random numbers depend on the chunks"
    if function is chunk_arange or function is chunk_linspace:
        return "fractions are rounded differently in other chunks"
    if (getattr(function, "__module__", "") or "").startswith("dasktile."):
        return "already tiled by dasktile"
    if any(key_split(key) != key_split(name) for key in list(layer)[:64]):
        return f"{key_split(name)} is written as a graph that dasktile does not read"
    return f"dasktile does not know {_title(function) or key_split(name)}"


def _blockwise_reason(layer: Blockwise) -> str:
    function, keywords = called(layer)
    deps = layer.io_deps.values()
    if any(isinstance(dep, (ArrayBlockIdDep, ArrayValuesDep)) for dep in deps):
        return "its function asks for the number of its block"
    if function is enforce_dtype:
        function = keywords.get("enforce_dtype_function")
    if is_product(layer):
        return "products of this type or form may come out differently in other chunks"
    module = getattr(function, "__module__", "") or ""
    if module == "dask.array.random":
        return "random numbers depend on the chunks"
    if any(isinstance(argument, (TaskRef, GraphNode)) for argument, _ in layer.indices):
        return "an argument is computed by a task that is no array"
    if module.split(".")[0] in ("dask", "numpy", "scipy"):
        return f"dasktile does not know {_title(function)}, applied to these arguments"
    if lookup(layer.task.func) is not None:
        return f"user function {_title(function)} is registered, but not for this use"
    return (
        f"user function {_title(function)} may depend on its block; "
        "dasktile.register_kernel says if not"
    )


def _overlap_reason(view: GraphView, name: str) -> str:
    """For the layers of a ``map_overlap``: why it stays, empty for all other layers."""
    trim = trimmed(view, name)
    if trim is not None:
        applied = trim[2]
    elif any(overlapping(view, other) for other in view.dependencies(name)):
        applied = name
    elif isinstance(view.layers[name], ArrayOverlapLayer):
        readers = _readers(view, name)
        applied = next((r for r in readers if isinstance(view.layers[r], Blockwise)), "")
        if not applied:
            return "edges of neighbours are read in map_overlap only"
    else:
        return ""
    layer = view.layers.get(applied)
    if not isinstance(layer, Blockwise) or layer.io_deps:
        return ""
    title, use = _title(called(layer)[0]), lookup(layer.task.func)
    arrays = [symbols for _, symbols in layer.indices if symbols is not None]
    if len(arrays) != 1 or tuple(arrays[0]) != tuple(layer.output_indices) or layer.new_axes:
        return f"{title} in map_overlap does not make one array of another of its shape"
    if (getattr(called(layer)[0], "__module__", "") or "").split(".")[0] == "dask":
        return f"dasktile does not know {title} in map_overlap"
    if use is None:
        return (
            f"its function {title} in map_overlap may depend on its block; "
            f"dasktile.register_kernel({title}, halo=...) says how far it looks"
        )
    return f"{title} in map_overlap is registered, but not for this depth, or is not trimmed"


def _readers(view: GraphView, name: str) -> list[str]:
    """Layers that read a layer, or read what is only some of its blocks."""
    reads = view.graph.dependencies
    direct = [other for other in reads if name in reads[other]]
    further = [other for other in reads if any(name_ in reads[other] for name_ in direct)]
    return direct + further


def _is_array(layer: Layer) -> bool:
    return bool((layer.collection_annotations or {}).get("chunks"))


def _title(function: Any) -> str:
    return str(funcname(function)) if callable(function) else ""
