"""Reads that a high-level graph does not declare.

A high-level graph declares for every layer which other layers it reads.  A graph whose tasks
read an undeclared layer can still be computed, because all tasks end up in one dict, but layers
cannot be replaced.  Dask makes such graphs itself: the layer that combines the arrays of an
xarray object declares those only that no other array reads.  Here the missing layers are added.

A graph is not rewritten if tasks read a key in the layer of an array that is not one of its
blocks, such as the intermediate pieces of a rechunk.  ``dask.graph_manipulation.clone`` makes such
graphs; see ``docs/upstream/clone-stale-keys.md``.
"""

from __future__ import annotations

import math
from collections.abc import Set
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph

from dasktile._compat.dask import ArrayOverlapLayer, GraphNode, convert_legacy_graph
from dasktile.capture.base import GraphView, has_blocks
from dasktile.capture.references import Key, Keys, block_keys, head_of, is_block, read_by, tasks_of

#: Types of values that are no task objects and may contain references, by dask's rules.
_MAYBE_LEGACY = (tuple, list, set, frozenset, str, int, float)


class UndeclaredReadError(ValueError):
    """The layers that tasks read cannot be told from their keys."""


def declare_reads(view: GraphView) -> GraphView:
    """The same graph; every layer declares all layers that its tasks read.

    Raises
    ------
    UndeclaredReadError
        If tasks read a key in the layer of an array that is not one of its blocks, if layers
        read each other, or if a name that has to be added is no string.
    """
    graph, reads = view.graph, _Reads(view)
    missing = {name: reads.undeclared(name) for name in view.layers}
    if not any(missing.values()):
        return view
    for name, others in missing.items():
        if not all(isinstance(other, str) for other in (name, *others)):
            raise UndeclaredReadError(f"layer {name!r} reads layers that it does not declare")
    dependencies = {
        name: {*graph.dependencies.get(name, ()), *names} for name, names in missing.items()
    }
    try:
        TopologicalSorter(dependencies).prepare()
    except CycleError as error:
        names = " and ".join(map(repr, error.args[1][1:]))
        raise UndeclaredReadError(f"the layers {names} read each other") from None
    declared = HighLevelGraph(graph.layers, dependencies)
    return GraphView(declared, view.roots, view._arrays, view._tasks)


class _Reads:
    def __init__(self, view: GraphView) -> None:
        self.view = view

    @cached_property
    def keys(self) -> Keys:
        """The keys of all layers; needed only where a read is not clearly declared."""
        return self.view.keys(self.view.layers)

    def undeclared(self, name: str) -> set[str]:
        """The layers that a layer reads and does not declare.

        Layers whose tasks are not there yet declare their own reads, and so do those of overlaps.
        """
        layer = self.view.layers[name]
        declared = {*self.view.graph.dependencies.get(name, ()), name}
        if isinstance(layer, Blockwise):
            heads = set(map(head_of, read_by(layer)))
            return {other for other in heads if other in self.view.layers} - declared
        if isinstance(layer, ArrayOverlapLayer) or not layer.is_materialized():
            return set()
        tasks = tasks_of(layer)
        if any(issubclass(kind, _MAYBE_LEGACY) for kind in set(map(type, tasks.values()))):
            listed = self.view.listed_keys(name)
            if listed is not None:
                return self._undeclared(name, listed - tasks.keys(), declared)
            # with all reads declared, they are those that the view would make
            tasks = self.view._tasks[name] = dict(convert_legacy_graph(tasks, self.keys))
        nodes = [task for task in tasks.values() if isinstance(task, GraphNode)]
        reads = set[Key]().union(*[node.dependencies for node in nodes]) - tasks.keys()
        return self._undeclared(name, reads, declared)

    def _undeclared(self, name: str, reads: Set[Key], declared: Set[str]) -> set[str]:
        """As `undeclared`, of a layer that reads some keys and declares some layers, and itself."""
        undeclared: set[str] = set()
        arrays = {other: self.view.array(other) for other in declared if other != name}
        numblocks = {other: array.numblocks for other, array in arrays.items() if array is not None}
        for other, blocks in numblocks.items():
            if math.prod(blocks) <= len(reads):
                reads = reads - block_keys(other, blocks)
        for key in reads:
            owner = head_of(key)
            counts = numblocks.get(owner)
            if counts is not None and is_block(key, owner, counts):
                continue
            if owner not in arrays or counts is not None:
                owner = self.keys.owner(key)
            if owner is None:  # already in memory, or not a key of this graph
                continue
            if owner not in declared:
                undeclared.add(owner)
            info = None if owner == name else self.view.array(owner)
            if info is None or not has_blocks(self.view.layers[owner], info):
                continue
            if not is_block(key, owner, info.numblocks):
                raise UndeclaredReadError(
                    f"layer {name!r} reads {key!r}, which is in the layer of the array"
                    f" {owner!r}, but is not one of its blocks. dask.graph_manipulation.clone"
                    " and bind make such graphs of rechunked arrays: give them"
                    " omit=<the rechunked arrays>, or persist these arrays first"
                )
        return undeclared
