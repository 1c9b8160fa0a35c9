"""The number of tasks of a graph, before Dask culls and fuses them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from dasktile._compat.dask import ArrayOverlapLayer


def count_tasks(graph: HighLevelGraph, names: Iterable[str]) -> int:
    """Tasks of the layers that some arrays depend on.

    Parameters
    ----------
    graph
        The graph.
    names
        Names of the arrays.
    """
    # other layers do not know their length, or estimate it
    return sum(
        len(layer if isinstance(layer, (Blockwise, MaterializedLayer)) else dict(layer))
        for layer in _layers(graph, names)
    )


def least_tasks(graph: HighLevelGraph, names: Iterable[str]) -> int:
    """A lower bound of :func:`count_tasks` for which no tasks are made.

    Parameters
    ----------
    graph
        The graph.
    names
        Names of the arrays.
    """
    count = 0
    for layer in _layers(graph, names):
        if isinstance(layer, (Blockwise, MaterializedLayer)) or layer.is_materialized():
            count += len(layer)
        elif isinstance(layer, ArrayOverlapLayer):
            count += math.prod(layer.numblocks)  # one task that joins each block at least
    return count


def _layers(graph: HighLevelGraph, names: Iterable[str]) -> Iterator[Layer]:
    """The layers that some arrays depend on."""
    stack = [name for name in names if name in graph.layers]
    seen = set(stack)
    while stack:
        name = stack.pop()
        yield graph.layers[name]
        new = graph.dependencies[name] - seen
        seen |= new
        stack.extend(new)
