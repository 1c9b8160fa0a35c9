"""Reasons for unchanged operations, which ``explain`` shows.

A recogniser that declines a layer gives the reason itself.  Reasons for all other layers are
here.  They name the function that the user called, and what to do if there is something.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer
from dask.utils import funcname, key_split

from dasktile._compat.dask import Alias, enforce_dtype
from dasktile.capture.base import GraphView
from dasktile.capture.corrections import called_function
from dasktile.capture.references import heads_of
from dasktile.capture.settings import SETTINGS
from dasktile.capture.steps import factorisation, group_by, mapped_by_xarray
from dasktile.capture.titles import call_of, call_of_layer
from dasktile.capture.tracing import obstacle
from dasktile.capture.user_kernels import lookup
from dasktile.ir import ALREADY_TILED
from dasktile.schedule.placement import is_written

#: The reason of results whose chunk sizes depend on values.
UNKNOWN_SIZES = "its chunk sizes are unknown until it is computed"

#: The reason of graphs that were optimised before.
MERGED = (
    "its tasks are those of several operations in one layer, as dask.optimize leaves them: call"
    " dasktile.optimize alone"
)

_TOKEN = re.compile(r"(?<=-)[0-9a-f]{32}\Z")

#: Of calls whose layers have tasks that are written one by one, or depend on the chunks.
_WRITTEN = "its tasks are written one by one for these chunks"
_REASONS = {
    "percentile": "percentile merges percentiles of chunks, so that its result depends on them",
    "reshape_blockwise": (
        "reshape_blockwise, which xarray's polyfit uses, keeps the elements of each chunk together,"
        " so that their order depends on the chunks"
    ),
    "setitem": (
        f"setitem: {_WRITTEN}; one known value at known positions, as in x[2:5] = 0, is tiled"
    ),
    "vindex": f"vindex: {_WRITTEN}, and there is no rule for them",
}


def reason_for(view: GraphView, name: str, declined: str = "") -> str:
    """Why a layer is unchanged.

    Parameters
    ----------
    view, name
        The graph and the layer.
    declined
        The reason of a recogniser that declined the layer, empty if none did.
    """
    layer = view.layers[name]
    if is_written(name):
        return ALREADY_TILED
    if declined:
        return declined
    function, keywords = called_function(layer)
    if grouping := group_by(view, name):
        return f"a step of {grouping}, whose result depends on the chunks"
    if solver := factorisation(view, name):
        return f"a step of {solver}, whose tasks read each other's results"
    for other in view.dependencies(name):
        if view.array(other) is None and _is_array(view.layers[other]):
            return "reads an array of unknown chunk sizes"
    if isinstance(layer, Blockwise):
        if function is enforce_dtype:
            function = keywords.get("enforce_dtype_function")
        return _function_reason(layer, function)
    if (getattr(function, "__module__", "") or "").startswith("dasktile."):
        return ALREADY_TILED
    prefix, operation = key_split(name), call_of_layer(name)
    if called := mapped_by_xarray(view, name):
        return (
            f"the result of {called} in xarray's map_blocks may depend on the chunks; apply_ufunc"
            " with dask='parallelized' says along which dimensions it does not"
        )
    title = call_of(_name(function))
    known = _REASONS.get(operation) or _REASONS.get(title)
    if known:
        return known
    others = _no_arrays(view, name)
    if others and all(isinstance(task, Alias) for task in view.tasks(name).values()):
        return f"its blocks are results of the delayed function {others}"
    if others:
        return f"{operation} reads results of {others}, which are not the blocks of an array"
    tokens = {token for head in heads_of(name, layer) for token in _TOKEN.findall(str(head))}
    if len(tokens) > 1:
        return MERGED
    if any(key_split(key) != prefix for key in itertools.islice(layer, SETTINGS.sampled_keys)):
        return f"there is no rule for the tasks of {operation}, which may depend on the chunks"
    if title in ("", "apply"):
        # dask's own function that calls another one
        title = operation
    return no_rule(title)


def no_rule(call: str) -> str:
    """The reason of a call of which nothing else is known."""
    return f"there is no rule for this form of {call}, which may depend on the chunks"


def _function_reason(layer: Blockwise, function: Any) -> str:
    """The reason for a layer that calls a function on every block."""
    module = getattr(function, "__module__", "") or ""
    if module.split(".")[0] in ("dask", "numpy", "scipy"):
        call = call_of(_name(function))
        if call == "getitem":
            return "the sizes of a selection by a boolean array are unknown until it is computed"
        return (
            f"there is no rule for {call} with these arguments, whose result may depend on the"
            " chunks"
        )
    use = lookup(layer.task.func)
    if use is not None and use.halo != {}:
        return (
            f"user function {_name(function)} is registered with a halo, which is for map_overlap"
            " and not for map_blocks"
        )
    if use is not None:
        return f"this call does not match how user function {_name(function)} is registered"
    package = module.partition(".")[0]
    if _name(function).startswith("_") and "." in module:
        # a private function of a package is not the user's own
        return (
            f"there is no rule for {_name(function)} of {package}, which may depend on the chunks"
        )
    because = obstacle(layer.task.func, layer.task.kwargs, len(layer.task.args))
    because = f", as {because}" if because else ""
    return (
        f"the result of user function {_name(function)} may depend on the chunks{because}; if not,"
        " declare it with dasktile.register_kernel"
    )


def _no_arrays(view: GraphView, name: str) -> str:
    """Operations of the layers that a layer reads which are no arrays, such as delayed values."""
    names = [
        call_of_layer(other)
        for other in view.dependencies(name)
        if view.array(other) is None and not _is_array(view.layers[other])
    ]
    return ", ".join(dict.fromkeys(names))


def _is_array(layer: Layer) -> bool:
    return bool((layer.collection_annotations or {}).get("chunks"))


def _name(function: Any) -> str:
    return str(funcname(function)) if callable(function) else ""
