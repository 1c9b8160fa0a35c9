"""The number of tasks of a graph, before Dask culls and fuses them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from dasktile.capture.overlaps import overlap_of


def count_tasks(graph: HighLevelGraph, names: Iterable[str]) -> int:
    """Tasks of the layers that some arrays depend on.

    Parameters
    ----------
    graph
        The graph.
    names
        Names of the arrays.
    """
    count = 0
    for name, layer in _layers(graph, names):
        if isinstance(layer, (Blockwise, MaterializedLayer)):
            count += len(layer)
        elif (overlap := overlap_of(name, layer)) is not None:
            count += overlap.tasks
        else:
            # it does not know its length, or estimates it
            count += len(dict(layer))
    return count


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
    for name, layer in _layers(graph, names):
        if isinstance(layer, (Blockwise, MaterializedLayer)) or layer.is_materialized():
            count += len(layer)
        elif (overlap := overlap_of(name, layer)) is not None:
            count += overlap.tasks
    return count


def _layers(graph: HighLevelGraph, names: Iterable[str]) -> Iterator[tuple[str, Layer]]:
    """The layers that some arrays depend on, by name."""
    stack = [name for name in names if name in graph.layers]
    seen = set(stack)
    while stack:
        name = stack.pop()
        yield name, graph.layers[name]
        new = graph.dependencies[name] - seen
        seen |= new
        stack.extend(new)
