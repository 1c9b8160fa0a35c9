"""Reads that a high-level graph does not declare.

A graph says for every layer which other layers it reads.  Where tasks read a layer all the
same that is not named, the graph may compute as it is: all tasks end up in one dict.  Once
layers are replaced it no longer does, so that such a graph is not rewritten at all.
``dask.graph_manipulation.clone`` makes them; see ``docs/upstream/clone-stale-keys.md``.

The same holds for tasks that read of another array something that is none of its blocks, such
as the pieces that a rechunk puts together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from dask.blockwise import Blockwise

from dasktile._compat.dask import GraphNode, convert_legacy_graph
from dasktile.capture.base import GraphView
from dasktile.capture.references import Key, Keys, head_of, is_block, read_by


class UndeclaredReadError(ValueError):
    """A layer reads what its graph does not say that it reads."""


def check_reads(view: GraphView) -> None:
    """Raise UndeclaredReadError if tasks of a graph read what the graph does not declare."""
    reads = _Reads(view)
    for name in view.layers:
        reads.check(name)


class _Reads:
    def __init__(self, view: GraphView) -> None:
        self.view = view

    @cached_property
    def keys(self) -> Keys:
        """The keys of all layers: looked at only where a read is not plainly declared."""
        return self.view.keys(self.view.layers)

    def check(self, name: str) -> None:
        """Check one layer; layers that are not written out know what they read."""
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
                if owner is None:  # in memory already, or no reference that dask could resolve
                    continue
                if owner not in declared:
                    raise UndeclaredReadError(_message(name, key, owner))
                info = arrays.get(owner)
                if info is not None and not is_block(key, owner, info.numblocks):
                    raise UndeclaredReadError(
                        f"layer {name!r} reads {key!r}, which is in the layer of the array"
                        f" {owner!r}, but is none of its blocks"
                    )


def _may_be_legacy(task: Any) -> bool:
    """Whether dask might read a reference into what is none of its task objects."""
    return isinstance(task, (tuple, list, set, frozenset, str, int, float))


def _message(name: str, key: Key, owner: str) -> str:
    return (
        f"layer {name!r} reads {key!r} of layer {owner!r}, but the graph does not say that it"
        " depends on that layer"
    )
