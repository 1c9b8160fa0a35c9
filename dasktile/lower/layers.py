"""Layers of tasks that take the place of another layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask.highlevelgraph import Layer, MaterializedLayer


def in_place_of(layer: Layer, tasks: Mapping[Any, Any]) -> MaterializedLayer:
    """A layer of tasks with all annotations of the layer whose place it takes.

    Parameters
    ----------
    layer
        The layer.
    tasks
        The tasks by key.
    """
    return MaterializedLayer(
        tasks,
        annotations=layer.annotations,
        collection_annotations=layer.collection_annotations,
    )
