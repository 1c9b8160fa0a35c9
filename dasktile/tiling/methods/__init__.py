"""The tiling methods, by name.

A method picks one candidate for every variable of a space whose costs are known.  All of
them have one signature, are priced by the same exact model and end in the same second
level (:mod:`dasktile.tiling.local`); adding one is adding one file.
"""

from __future__ import annotations

from dasktile.tiling.methods.base import Choose, Method
from dasktile.tiling.methods.exact import exact
from dasktile.tiling.methods.exhaustive import exhaustive

__all__ = ["Choose", "Method", "get", "methods", "register"]

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


register("auto", Method(exact))
register("exact", Method(exact))
register("exhaustive", Method(exhaustive))
