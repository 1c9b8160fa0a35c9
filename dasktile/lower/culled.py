"""A graph without the tasks that are not needed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from typing import Any

from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer
from dask.tokenize import tokenize

from dasktile._compat.dask import TaskRef
from dasktile.capture.culling import needed_tasks

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
    below: dict[str, Set[Key]] = {}
    owner: dict[Key, str] = {}
    for old, reads in needed_tasks(graph, list(wanted)):
        if not reads:
            continue
        layer = graph.layers[old]
        # blocks of a persisted array, which are futures, stay in their layer
        stays = old in outputs or len(reads) == len(layer) or _has_futures(layer, reads)
        name = old if stays else f"{old}-{token}"
        layers[name] = layer if stays else _part(layer, reads)
        owner.update(dict.fromkeys(reads, name))
        below[name] = set().union(*reads.values())
    dependencies = {
        name: {owner[key] for key in keys if key in owner} - {name} for name, keys in below.items()
    }
    return HighLevelGraph(layers, dependencies)


def _has_futures(layer: Layer, keys: Collection[Key]) -> bool:
    return isinstance(layer, MaterializedLayer) and any(
        isinstance(layer[key], TaskRef) for key in keys
    )


def _part(layer: Layer, keys: Collection[Key]) -> Layer:
    """The tasks of some keys of a layer."""
    tasks: Mapping[Key, Any] = layer
    if isinstance(layer, Blockwise):
        tasks = dict(layer.cull(set(keys), set())[0])
    part = MaterializedLayer({key: tasks[key] for key in keys}, annotations=layer.annotations)
    part.collection_annotations = layer.collection_annotations
    return part
