"""Whether two graphs have the same tasks, part by part."""

from __future__ import annotations

from functools import partial
from typing import Any

import cloudpickle
import numpy as np
from dask.highlevelgraph import HighLevelGraph

from dasktile._compat.dask import is_fused

#: The parts of tasks of all kinds.
_PARTS = ("key", "dependencies", "func", "args", "kwargs", "target", "value", "data_producer")


def difference(one: Any, other: Any, where: str = "") -> str:
    """Where two values differ; empty if they are equal.

    Parameters
    ----------
    one, other
        Tasks, arrays, functions, and collections of these.
    where
        Where they are.
    """
    if one is other:
        return ""
    if type(one) is not type(other):
        return f"{where}: {type(one)} and {type(other)}"
    if isinstance(one, dict):
        if list(one) != list(other):
            return f"{where}: other keys"
        pairs = [(one[key], other[key], f"{where}[{key}]") for key in one]
    elif isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return f"{where}: {len(one)} and {len(other)} parts"
        pairs = [(*both, f"{where}[{at}]") for at, both in enumerate(zip(one, other, strict=True))]
    elif isinstance(one, np.ndarray) and not one.dtype.hasobject:
        is_equal = one.dtype == other.dtype and one.tobytes() == other.tobytes()
        return "" if is_equal and one.shape == other.shape else f"{where}: other elements"
    elif isinstance(one, partial):
        pairs = [
            (getattr(one, name), getattr(other, name), f"{where}.{name}")
            for name in ("func", "args", "keywords")
        ]
    elif hasattr(one, "first") and hasattr(one, "funcs"):
        pairs = [(one.first, other.first, f"{where}.first"), (one.funcs, other.funcs, where)]
    elif hasattr(one, "key"):
        # Dask sorts the inputs of fused tasks by their hashes
        parts = [name for name in _PARTS if hasattr(one, name)]
        pairs = [(_part(one, name), _part(other, name), f"{where}.{name}") for name in parts]
    else:
        return "" if _is_equal(one, other) else f"{where}: {one!r} and {other!r}"
    return next(filter(None, (difference(*pair) for pair in pairs)), "")


def _part(task: Any, name: str) -> Any:
    part = getattr(task, name)
    if name != "args" or not is_fused(getattr(task, "func", None)):
        return part
    tasks, result, keys, *reads = part
    reads = [getattr(read, "key", read) for read in reads]
    return tasks, result, sorted(zip(keys, reads, strict=True), key=repr)


def _is_equal(one: Any, other: Any) -> bool:
    try:
        if bool(one == other):
            return True
    except (TypeError, ValueError):
        pass
    return bool(cloudpickle.dumps(one) == cloudpickle.dumps(other))


def graph_difference(one: HighLevelGraph, other: HighLevelGraph) -> str:
    """Where two graphs differ; empty if they are equal.

    Parameters
    ----------
    one, other
        The graphs.
    """
    if set(one.layers) != set(other.layers):
        return f"other layers: {sorted(set(one.layers) ^ set(other.layers))}"
    if one.dependencies != other.dependencies:
        return "other dependencies of layers"
    for name, layer in one.layers.items():
        second = other.layers[name]
        if layer.annotations != second.annotations:
            return f"{name}: other annotations"
        found = difference(dict(layer), dict(second), name)
        if found:
            return found
    return ""
