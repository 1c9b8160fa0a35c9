"""A graph without the tasks that are not needed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer
from dask.tokenize import tokenize

from dasktile.capture.base import GraphView

Key = Any


def culled(
    graph: HighLevelGraph, wanted: Collection[Key], outputs: Collection[str]
) -> HighLevelGraph:
    """The tasks that the wanted keys depend on, under the same keys.

    The layers have other names, so that the graph can be merged with the one it is part of; but
    not those of outputs, all of whose keys are wanted.

    Parameters
    ----------
    graph
        The graph.
    wanted
        The wanted keys.
    outputs
        Names of the layers that hold the arrays which are wanted.
    """
    token = tokenize(sorted(map(str, wanted)))
    layers: dict[str, Layer] = {}
    reads: dict[str, set[Key]] = {}
    owner: dict[Key, str] = {}
    for old, tasks in GraphView(graph).needed_tasks(wanted).items():
        before = graph.layers[old]
        name, layer = f"{old}-{token}", before
        if old in outputs or None in tasks.values():
            name = old  # futures stay in their layer
        else:
            layer = MaterializedLayer(tasks, annotations=before.annotations)
            layer.collection_annotations = before.collection_annotations
        layers[name] = layer
        owner.update(dict.fromkeys(tasks, name))
        known = (task for task in tasks.values() if task is not None)
        reads[name] = {read for task in known for read in task.dependencies}
    dependencies = {
        name: {owner[read] for read in keys if read in owner} - {name}
        for name, keys in reads.items()
    }
    return HighLevelGraph(layers, dependencies)
