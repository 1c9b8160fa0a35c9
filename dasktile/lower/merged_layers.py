"""The graph that Dask makes of the layers of another one before it runs it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field

from dask.blockwise import optimize_blockwise
from dask.highlevelgraph import HighLevelGraph

from dasktile.lower.noted import NotedBlocks, noted_blocks


@dataclass(frozen=True, slots=True)
class MergedGraph:
    """A graph whose layers Dask has merged, which may leave fewer tasks.

    Parameters
    ----------
    graph
        The graph.
    noted
        By layer of the graph before, its blocks according to its annotations.
    parts
        By layer, the layers of the graph before that are merged into it.
    """

    graph: HighLevelGraph
    noted: Mapping[str, NotedBlocks]
    parts: Mapping[str, Set[str]] = field(default_factory=dict)


def merged(graph: HighLevelGraph, wanted: Collection[str]) -> MergedGraph:
    """Merge the layers of a graph as Dask does before it runs it.

    Parameters
    ----------
    graph
        The graph.
    wanted
        Names of layers of which keys are wanted.
    """
    after = optimize_blockwise(graph, keys=[(name,) for name in wanted])
    return MergedGraph(after, noted_blocks(graph), _merged_into(graph, after))


def _merged_into(graph: HighLevelGraph, after: HighLevelGraph) -> dict[str, set[str]]:
    """By layer of a graph, the layers of the graph before that Dask has merged into it."""
    gone = graph.layers.keys() - after.layers.keys()
    parts: dict[str, set[str]] = {}
    for name in after.layers if gone else ():
        inside, stack = set[str](), [name]
        while stack:
            reads = (graph.dependencies.get(stack.pop(), set()) & gone) - inside
            inside |= reads
            stack += reads
        if inside:
            parts[name] = inside
    return parts
