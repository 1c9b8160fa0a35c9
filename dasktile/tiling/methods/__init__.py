"""The tiling methods, by name.

A method picks one candidate for every variable of a space, given the costs.  All methods have one
signature, are priced by the same exact model and share the second level
(:mod:`dasktile.tiling.local`).  A new method is one new file.
"""

from __future__ import annotations

from dasktile.tiling.methods.base import Choose, Method
from dasktile.tiling.methods.exact import exact
from dasktile.tiling.methods.exhaustive import exhaustive
from dasktile.tiling.methods.papers.eindecomp import MAX_STATES as EINDECOMP_STATES
from dasktile.tiling.methods.papers.eindecomp import eindecomp, eindecomp_exact, places
from dasktile.tiling.methods.papers.soybean import MAX_STATES as SOYBEAN_STATES
from dasktile.tiling.methods.papers.soybean import soybean, soybean_mesh
from dasktile.tiling.methods.papers.spartan import mesh as spartan_mesh
from dasktile.tiling.methods.papers.spartan import spartan

__all__ = ["Choose", "Method", "get", "methods", "register"]

_METHODS: dict[str, Method] = {}


def register(name: str, method: Method) -> None:
    """Add a method.

    Raises
    ------
    ValueError
        If the name is registered already.
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
        If there is no such method; the message lists the names.
    """
    if name not in _METHODS:
        allowed = ", ".join(map(repr, methods()))
        raise ValueError(f"unknown method {name!r}; allowed are {allowed}")
    return _METHODS[name]


register("auto", Method(exact, allow_replicas=True))
register("exact", Method(exact, allow_replicas=True))
register("exhaustive", Method(exhaustive))
register("eindecomp", Method(eindecomp, places, EINDECOMP_STATES))
register("eindecomp-exact", Method(eindecomp_exact, places, EINDECOMP_STATES))
register("spartan", Method(spartan, mesh=spartan_mesh, allow_replicas=True))
register("soybean", Method(soybean, mesh=soybean_mesh, max_states=SOYBEAN_STATES))
