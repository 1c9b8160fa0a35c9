"""Whether Dask optimises an array to compute it, or to put it into a graph being built.

``delayed(f)(array)`` and ``array.to_delayed()`` optimise the array at once, alone, and keep
what comes out of that.  What it shares with other arrays of the graph is then shared by the
keys only, so that an array that is tiled there has nothing in common with the others any more
and is computed again for each.

Dask hands its optimisation functions the same graph and the same keys in both cases.  The only
difference is which of Dask's functions is running.
"""

from __future__ import annotations

import inspect
from types import FrameType

#: Functions of Dask that put an optimised array into a graph, by module; None for any function.
_BUILDERS: dict[str, frozenset[str] | None] = {
    "dask.delayed": None,
    "dask.array.core": frozenset({"to_delayed"}),
}

#: Packages and modules of Dask that run a graph, or optimise for its own sake.
_RUNNERS = ("dask.base", "dask.local", "dask.threaded", "dask.multiprocessing", "distributed")


def is_building() -> bool:
    """True while a collection is only put into a graph, by the nearest caller that decides."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module in _BUILDERS:
            functions = _BUILDERS[module]
            if functions is None or function in functions:
                return True
        if any(module == name or module.startswith(f"{name}.") for name in _RUNNERS):
            return False
        frame = frame.f_back
    return False
