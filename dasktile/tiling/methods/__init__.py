"""The tiling methods, by name.

A method picks one candidate for every variable of a space whose costs are known.  All of
them have one signature, are priced by the same exact model and end in the same second
level (:mod:`dasktile.tiling.local`); adding one is adding one file.
"""

from __future__ import annotations

from collections.abc import Callable

from dasktile.tiling.cost import Costs
from dasktile.tiling.methods.exact import exact
from dasktile.tiling.methods.exhaustive import exhaustive
from dasktile.tiling.settings import Settings
from dasktile.tiling.solve import Solution

#: Costs, settings and the weight of a tile against a byte, to an assignment.
Method = Callable[[Costs, Settings, float], Solution]

_METHODS: dict[str, Method] = {}


def register(name: str, method: Method) -> None:
    """Add a method.

    Raises
    ------
    ValueError
        If the name is taken.
    """
    if name in _METHODS or name == "none":
        raise ValueError(f"a tiling method named {name!r} is registered already")
    _METHODS[name] = method


def methods() -> tuple[str, ...]:
    """Names of the methods, in the order in which they were registered."""
    return (*_METHODS, "none")


def get(name: str) -> Method:
    """The method of a name.

    Raises
    ------
    ValueError
        Naming those that there are.
    """
    if name not in _METHODS:
        allowed = ", ".join(map(repr, methods()))
        raise ValueError(f"unknown method {name!r}; allowed are {allowed}")
    return _METHODS[name]


register("auto", exact)
register("exact", exact)
register("exhaustive", exhaustive)
