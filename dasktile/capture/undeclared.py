"""Reads that a high-level graph does not declare.

A high-level graph declares for every layer which other layers it reads.  A graph whose tasks
read an undeclared layer can still be computed, because all tasks end up in one dict.  It fails
once layers are replaced, so such a graph is not rewritten.
``dask.graph_manipulation.clone`` makes such graphs; see ``docs/upstream/clone-stale-keys.md``.

A graph is not rewritten either if tasks read a key in the layer of an array that is not one of
its blocks, such as the intermediate pieces of a rechunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from dask.blockwise import Blockwise

from dasktile._compat.dask import GraphNode, convert_legacy_graph
from dasktile.capture.base import GraphView, has_blocks
from dasktile.capture.references import Key, Keys, head_of, is_block, read_by


class UndeclaredReadError(ValueError):
    """A layer reads keys that its graph does not declare as dependencies."""


def check_reads(view: GraphView) -> None:
    """Raise UndeclaredReadError if tasks read keys that the graph does not declare."""
    reads = _Reads(view)
    for name in view.layers:
        reads.check(name)


class _Reads:
    def __init__(self, view: GraphView) -> None:
        self.view = view

    @cached_property
    def keys(self) -> Keys:
        """The keys of all layers; needed only where a read is not clearly declared."""
        return self.view.keys(self.view.layers)

    def check(self, name: str) -> None:
        """Check one layer.

        Layers without materialized tasks, other than Blockwise, declare their own reads.
        """
        layer, declared = self.view.layers[name], self.view.graph.dependencies.get(name, ())
        if isinstance(layer, Blockwise):
            for argument in read_by(layer):
                other = head_of(argument)
                if other in self.view.layers and other != name and other not in declared:
                    raise UndeclaredReadError(_message(name, argument, other))
        elif layer.is_materialized():
            tasks: Mapping[Key, Any] = layer
            if any(map(_may_be_legacy, layer.values())):
                tasks = convert_legacy_graph(dict(layer), self.keys)
            self._check(name, tasks, {*declared, name})

    def _check(self, name: str, tasks: Mapping[Key, Any], declared: Iterable[str]) -> None:
        arrays = {other: self.view.array(other) for other in declared if other != name}
        for task in tasks.values():
            if not isinstance(task, GraphNode):
                continue
            for key in task.dependencies:
                if key in tasks:
                    continue
                owner = head_of(key)
                info = arrays.get(owner)
                if info is not None and is_block(key, info.name, info.numblocks):
                    continue
                if owner not in arrays or info is not None:
                    owner = self.keys.owner(key)
                if owner is None:  # already in memory, or not a key of this graph
                    continue
                if owner not in declared:
                    raise UndeclaredReadError(_message(name, key, owner))
                info = arrays.get(owner)
                if info is None or not has_blocks(self.view.layers[owner], info):
                    continue
                if not is_block(key, owner, info.numblocks):
                    raise UndeclaredReadError(
                        f"layer {name!r} reads {key!r}, which is in the layer of the array"
                        f" {owner!r}, but is not one of its blocks"
                    )


def _may_be_legacy(task: Any) -> bool:
    """Whether a value that is not a task object may contain references, by dask's rules."""
    return isinstance(task, (tuple, list, set, frozenset, str, int, float))


def _message(name: str, key: Key, owner: str) -> str:
    return (
        f"layer {name!r} reads {key!r} of layer {owner!r}, but the graph does not declare that"
        " dependency"
    )
