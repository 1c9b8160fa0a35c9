"""Names of the layers that are written.

A name is a function of everything its tasks depend on, so that the same expression
tiled in the same way has the same keys in every process, and no layer of the graph it
came from is ever shadowed.
"""

from __future__ import annotations

from dask.tokenize import tokenize

from dasktile.schedule.placement import MARK, Placement, decode, encode


def salted(op: str, *content: object, placement: Placement | None = None) -> str:
    """The name of a layer for operation `op`, whose tasks `content` determines.

    `content` consists of names, numbers and tuples of them.  The name says where the
    tasks run, if anybody knows (see :mod:`dasktile.schedule.placement`).
    """
    return f"{op}{MARK}{_code(placement)}{tokenize(repr(content))}"


def inner(name: str, what: str, placement: Placement | None = None) -> str:
    """The name of a layer that is one step on the way to layer `name`."""
    op, mark, token = name.rpartition(MARK)
    if not mark:
        return f"{name}-{what}{MARK}{_code(placement)}{tokenize(name)}"
    if decode(name) is not None:
        token = token.partition("-")[2]
    return f"{op}-{what}{MARK}{_code(placement)}{token}"


def _code(placement: Placement | None) -> str:
    return "" if placement is None else f"{encode(placement)}-"


def slices_of(name: str) -> str:
    """The name of a layer of slices of tiles, cut to be sent to other workers.

    Distributed knows this name: it takes such tasks for instant and never has a whole
    tile sent to another worker only to be sliced there.
    """
    return f"rechunk-split-{tokenize(name)}"
