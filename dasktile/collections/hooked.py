"""The graphs that the hook writes, for a caller that needs their layers.

Dask's own optimisation runs after the hook and leaves tasks only.  The layers of the graph before
it describe the arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from dask.highlevelgraph import HighLevelGraph

_written: ContextVar[list[HighLevelGraph] | None] = ContextVar("written", default=None)


@contextmanager
def written_graphs() -> Iterator[list[HighLevelGraph]]:
    """Yield a list to which the graphs that the hook writes in this context are added."""
    graphs: list[HighLevelGraph] = []
    token = _written.set(graphs)
    try:
        yield graphs
    finally:
        _written.reset(token)


def note_written(graph: HighLevelGraph) -> None:
    """Add a graph that the hook has written to the list of `written_graphs`, if there is one."""
    graphs = _written.get()
    if graphs is not None:
        graphs.append(graph)
