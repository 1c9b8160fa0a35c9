"""Names of the layers that are written.

A name is a function of everything its tasks depend on, so that the same expression
tiled in the same way has the same keys in every process, and no layer of the graph it
came from is ever shadowed.
"""

from __future__ import annotations

from dask.tokenize import tokenize

_MARK = "-dasktile-"


def salted(op: str, *content: object) -> str:
    """The name of a layer for operation `op`, whose tasks `content` determines.

    `content` consists of names, numbers and tuples of them.
    """
    return f"{op}{_MARK}{tokenize(repr(content))}"


def inner(name: str, what: str) -> str:
    """The name of a layer that is one step on the way to layer `name`."""
    op, mark, token = name.rpartition(_MARK)
    return f"{op}-{what}{mark}{token}" if mark else f"{name}-{what}{_MARK}{tokenize(name)}"


def slices_of(name: str) -> str:
    """The name of a layer of slices of tiles, cut to be sent to other workers.

    Distributed knows this name: it takes such tasks for instant and never has a whole
    tile sent to another worker only to be sliced there.
    """
    return f"rechunk-split-{tokenize(name)}"
