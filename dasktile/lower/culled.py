"""A graph without the tasks that are not needed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from typing import Any

from dask.blockwise import Blockwise, optimize_blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from dasktile._compat.dask import TaskRef
from dasktile.capture.culling import needed_reads
from dasktile.lower.layers import in_place_of
from dasktile.lower.names import part_layer_name

Key = Any


def culled(
    graph: HighLevelGraph, wanted: Collection[Key], outputs: Collection[str]
) -> HighLevelGraph | None:
    """The tasks that Dask runs for the wanted keys, under these keys; None if some are not found.

    A layer of which not all tasks are needed has another name, so that the graph can be merged with
    the one it is part of; layers of outputs keep their names.  There are no Blockwise layers, as
    these name the layers that they read.

    Parameters
    ----------
    graph
        The graph.
    wanted
        The wanted keys.
    outputs
        Names of the layers that hold the arrays which are wanted.
    """
    layers: dict[str, Layer] = {}
    below: dict[str, Set[Key]] = {}
    owner: dict[Key, str] = {}
    # merged before, as their tasks are no Blockwise layers afterwards
    merged = optimize_blockwise(graph, keys=list(wanted))
    for old, reads, inputs in needed_reads(merged, list(wanted)):
        if not reads:
            continue
        layer = merged.layers[old]
        # blocks of a persisted array, which are futures, stay in their layer
        whole = len(reads) == len(layer) or _has_futures(layer, reads)
        name = old if whole or old in outputs else part_layer_name(old, reads)
        stays = whole and not isinstance(layer, Blockwise)
        layers[name] = layer if stays else _part(layer, reads, graph.layers[old])
        owner.update(dict.fromkeys(reads, name))
        below[name] = inputs
    if any(key not in owner for keys in below.values() for key in keys):
        # dependencies between layers that the graph does not declare
        return None
    dependencies = {name: {owner[key] for key in keys} - {name} for name, keys in below.items()}
    return HighLevelGraph(layers, dependencies)


def _has_futures(layer: Layer, keys: Collection[Key]) -> bool:
    return isinstance(layer, MaterializedLayer) and any(
        isinstance(layer[key], TaskRef) for key in keys
    )


def _part(layer: Layer, keys: Collection[Key], noted: Layer) -> Layer:
    """The tasks of some keys of a layer, with the annotations of another one."""
    tasks: Mapping[Key, Any] = layer
    if isinstance(layer, Blockwise):
        tasks = dict(layer.cull(set(keys), set())[0])
    part = in_place_of(noted, {key: tasks[key] for key in keys})
    # the constructor takes those of the context for None
    part.annotations = noted.annotations
    return part
