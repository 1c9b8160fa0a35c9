"""The number of tasks of a graph, before Dask culls and fuses them."""

from __future__ import annotations

from collections.abc import Iterable

from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer


def count_tasks(graph: HighLevelGraph, names: Iterable[str]) -> int:
    """Tasks of the layers that some arrays depend on.

    Parameters
    ----------
    graph
        The graph.
    names
        Names of the arrays.
    """
    stack = [name for name in names if name in graph.layers]
    seen = set(stack)
    count = 0
    while stack:
        name = stack.pop()
        layer = graph.layers[name]
        # other layers do not know their length, or estimate it
        count += len(layer if isinstance(layer, (Blockwise, MaterializedLayer)) else dict(layer))
        new = graph.dependencies[name] - seen
        seen |= new
        stack.extend(new)
    return count
