"""Which blocks of a graph's arrays are needed for the keys that are wanted.

Dask runs only the tasks that the wanted keys depend on.  A tile that joins a block that is
needed with one that is not would run tasks that Dask would not run: a user's function, or a
read.  Such a task may have side effects, be slow, or fail.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.blockwise import Blockwise
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, Layer

from dasktile._compat.dask import GraphNode
from dasktile.capture.base import Captured
from dasktile.capture.rules.blockwise import Map
from dasktile.capture.rules.einsums import EinSum
from dasktile.capture.rules.sources import Create, InMemory, Read, take_eye, take_range
from dasktile.ir import Kind, Node

#: For every block of an array, whether it is needed.
Needed = npt.NDArray[np.bool_]

#: Packages whose functions do nothing but compute.
_PURE = {"numpy", "scipy"}


def needed_blocks(
    graph: HighLevelGraph,
    keys: Any,
    numblocks: Mapping[str, tuple[int, ...]],
    layers: Collection[str] | None = None,
) -> dict[str, Needed]:
    """The blocks of some arrays that the wanted keys depend on.

    Parameters
    ----------
    graph
        The graph.
    keys
        Keys that are wanted, nested in any way.
    numblocks
        The arrays: how many blocks each has along every axis, by name.
    layers
        Layers to look at; by default all.  Of others it is not asked what they read.
    """
    found = {name: np.zeros(counts, np.bool_) for name, counts in numblocks.items()}
    pending = set(flatten([keys]))
    _mark(found, pending)
    looked_at = graph.layers.keys() if layers is None else set(layers)
    others: set[Any] = set()
    if any(_is_legacy(graph.layers[name]) for name in looked_at):
        # in tasks of the old form only a key that exists is a dependency
        others = graph.get_all_external_keys()
    order = TopologicalSorter({name: graph.dependencies.get(name, ()) for name in graph.layers})
    for name in reversed([name for name in order.static_order() if name in looked_at]):
        reads = _reads(graph.layers[name], pending, others)
        below = {key for dependencies in reads.values() for key in dependencies}
        _mark(found, below)
        pending |= below
        pending.difference_update(reads)
    return found


def _is_legacy(layer: Layer) -> bool:
    # Blockwise layers would write out all their tasks to say so
    return not isinstance(layer, Blockwise) and layer.has_legacy_tasks


def _reads(layer: Layer, keys: Collection[Any], others: Set[Any]) -> Mapping[Any, Set[Any]]:
    """What every task of a layer reads that any of the keys depends on."""
    if isinstance(layer, Blockwise):
        own = {key for key in keys if type(key) is tuple and key[0] == layer.output}
        return layer.cull(own, others)[1] if own else {}
    # not by Layer.cull, which keeps everything where there are as many keys as tasks
    found: dict[Any, Set[Any]] = {}
    stack = [key for key in keys if key in layer]
    while stack:
        key = stack.pop()
        if key in found:
            continue
        task = layer[key]
        if isinstance(task, GraphNode):
            found[key] = task.dependencies
        else:
            found[key] = layer.get_dependencies(key, others)
        stack.extend(other for other in found[key] if other in layer)
    return found


def _mark(found: Mapping[str, Needed], keys: Iterable[Any]) -> None:
    for key in keys:
        if type(key) is not tuple or not key or key[0] not in found:
            continue
        blocks, place = found[key[0]], key[1:]
        # layers of arrays may have other keys, which start with their name too
        if len(place) == blocks.ndim and all(isinstance(at, (int, np.integer)) for at in place):
            blocks[place] = True


def has_effects(captured: Captured) -> list[bool]:
    """For every node, whether to make a part of it that is not needed could do harm.

    It could where a user's function runs, something is read, or tasks are opaque.  To compute
    more elements with functions of NumPy only takes time.
    """
    return [
        _has_effects(node, kernel)
        for node, kernel in zip(captured.program.nodes, captured.kernels, strict=True)
    ]


def follows_effects(captured: Captured) -> list[bool]:
    """For every node, whether it is one of those or is computed from one."""
    found = has_effects(captured)
    for index, node in enumerate(captured.program.nodes):
        found[index] |= any(found[edge.producer] for edge in node.edges)
    return found


def _has_effects(node: Node, kernel: Any) -> bool:
    if node.resident or isinstance(kernel, (Create, InMemory)):
        return False
    if isinstance(kernel, Read):
        return kernel.getter not in (take_range, take_eye)
    if isinstance(kernel, Map):
        return not node.repeatable and not _is_pure(kernel.layer.task.func)
    return node.kind in (Kind.SOURCE, Kind.MAP, Kind.OPAQUE) or isinstance(kernel, EinSum)


def _is_pure(function: Any) -> bool:
    module = getattr(function, "__module__", None) or ""
    return not isinstance(function, np.vectorize) and module.partition(".")[0] in _PURE
