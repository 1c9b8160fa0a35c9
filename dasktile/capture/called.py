"""The functions that tasks call, and whether it is known about how long these take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from dasktile._compat.dask import DataNode, Task

#: Packages whose functions take about as long as it takes to read and write their arrays.
KNOWN = {
    "_operator",
    "builtins",
    "collections",
    "cupy",
    "cytoolz",
    "dask",
    "flox",
    "functools",
    "itertools",
    "math",
    "numbagg",
    "numpy",
    "numpy_groupies",
    "operator",
    "pandas",
    "scipy",
    "tlz",
    "toolz",
    "xarray",
}


def calls_known_functions(tasks: Iterable[Any]) -> bool:
    """Whether all functions that tasks call are of packages that are known, none of the user.

    Parameters
    ----------
    tasks
        The tasks, also such that run several.
    """
    known: dict[int, bool] = {}
    for function in _called(tasks):
        if id(function) not in known:
            known[id(function)] = _is_known(function)
        if not known[id(function)]:
            return False
    return True


def _called(tasks: Iterable[Any]) -> Iterator[Callable[..., Any]]:
    """What tasks call, and what they give to such functions to be called."""
    stack = list(tasks)
    while stack:
        part = stack.pop()
        if isinstance(part, Task):
            stack += (part.func, *part.args, *part.kwargs.values())
        elif isinstance(part, partial):
            stack += (part.func, *part.args, *part.keywords.values())
        elif isinstance(part, Mapping):
            stack += part.values()
        elif isinstance(part, (list, tuple)):
            stack += part
        elif isinstance(part, np.vectorize):
            stack.append(part.pyfunc)
        elif hasattr(part, "first") and hasattr(part, "funcs"):
            # tlz.compose, of toolz or of cytoolz
            stack += (part.first, *part.funcs)
        elif callable(part) and not isinstance(part, DataNode):
            yield part


def _is_known(function: Callable[..., Any]) -> bool:
    """Whether a function, or an object that is called, is of a known package."""
    module = getattr(function, "__module__", None) or type(function).__module__
    return str(module).partition(".")[0] in KNOWN
