"""Whether Dask optimises an array in order to compute it, or while it builds a graph.

``delayed(f)(array)`` and ``array.to_delayed()`` optimise the array at once and alone, and use the
result in a larger graph.  Tasks that several such arrays have in common are shared only because
they have equal keys.  Tiling gives them new keys, so they would be computed once for each array.

The optimisation functions get the same graph and keys in both cases.  The only difference is which
of Dask's functions calls them.
"""

from __future__ import annotations

import inspect
from types import FrameType

#: Functions of Dask that add an optimised array to a graph, by module; None for all functions.
_BUILDERS: dict[str, frozenset[str] | None] = {
    "dask.delayed": None,
    "dask.array.core": frozenset({"to_delayed"}),
}

#: Packages and modules of Dask that compute a graph, or optimise it at the user's request.
_RUNNERS = ("dask.base", "dask.local", "dask.threaded", "dask.multiprocessing", "distributed")


def is_building() -> bool:
    """Whether the nearest caller among these functions builds a graph."""
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
