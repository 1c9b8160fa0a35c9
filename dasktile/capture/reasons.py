"""Why an operation is unchanged where no recogniser says so, in words for a dask user."""

from __future__ import annotations

from typing import Any

from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer
from dask.utils import funcname, key_split

from dasktile._compat.dask import enforce_dtype
from dasktile.capture.base import GraphView
from dasktile.capture.corrections import called
from dasktile.capture.user_kernels import lookup


def reason_for(view: GraphView, name: str, declined: str = "") -> str:
    """Why a layer is unchanged.

    Parameters
    ----------
    view, name
        The graph and the layer.
    declined
        What a recogniser says of it, empty where it is of no family that one is for.
    """
    layer = view.layers[name]
    for other in view.dependencies(name):
        if view.array(other) is None and _is_array(view.layers[other]):
            return "reads an array of unknown chunk sizes"
    if declined:
        return declined
    function, keywords = called(layer)
    if isinstance(layer, Blockwise):
        if function is enforce_dtype:
            function = keywords.get("enforce_dtype_function")
        return _function_reason(layer, function)
    if (getattr(function, "__module__", "") or "").startswith("dasktile."):
        return "already tiled by dasktile"
    if any(key_split(key) != key_split(name) for key in list(layer)[:64]):
        return f"{key_split(name)} is written as a graph that dasktile does not read"
    return f"dasktile does not know {_title(function) or key_split(name)}"


def _function_reason(layer: Blockwise, function: Any) -> str:
    """For a function of blocks, of which only its module is known."""
    module = getattr(function, "__module__", "") or ""
    if module.split(".")[0] in ("dask", "numpy", "scipy"):
        return f"dasktile does not know {_title(function)}, applied to these arguments"
    if lookup(layer.task.func) is not None:
        return f"user function {_title(function)} is registered, but not for this use"
    return (
        f"user function {_title(function)} may depend on its block; "
        "dasktile.register_kernel says if not"
    )


def _is_array(layer: Layer) -> bool:
    return bool((layer.collection_annotations or {}).get("chunks"))


def _title(function: Any) -> str:
    return str(funcname(function)) if callable(function) else ""
