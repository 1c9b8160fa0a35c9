"""Frozen tasks: those that keep their keys, their inputs and their layers in a new graph.

A task is *frozen* if a task reads it, directly or not, whose inputs must keep their keys: a task
of a layer class that dasktile does not know (Dask's P2P rechunk), of a layer whose annotations
are functions of keys, or of another kind than plain functions.  So is a future, a block of a
persisted array.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from inspect import iscoroutinefunction
from typing import Any, Protocol

from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from dasktile._compat.dask import Alias, ArrayOverlapLayer, DataNode, Task
from dasktile.lower.anchored import Anchored

Key = Any

#: Kinds of tasks that can be rewritten to read other keys.
PLAIN = (Task, Anchored, Alias)


class FrozenGraph(Protocol):
    """The tasks of a graph by number, as `dasktile.lower.tasks.GraphTasks` has them."""

    graph: HighLevelGraph
    wanted: Mapping[str, Collection[Key]]
    keys: list[Key]
    tasks: list[Any]
    layer: list[str]
    reads: list[list[int]]
    futures: set[Key]

    @property
    def kept(self) -> set[int]: ...


def frozen_tasks(graph: FrozenGraph) -> set[int]:
    """Tasks whose inputs must keep their keys, and all tasks that these depend on.

    Parameters
    ----------
    graph
        The tasks.
    """
    opaque = {name for name, layer in graph.graph.layers.items() if _is_opaque(layer)}
    usual = {*PLAIN, DataNode}
    for number, task in enumerate(graph.tasks):
        if type(task) not in usual:
            # others of its layer may belong to it, as those of a P2P rechunk do
            opaque.add(graph.layer[number])
    #: By the identity of a function, whether it is a coroutine function.
    coroutine: dict[int, bool] = {}
    for task in graph.tasks:
        if type(task) in (Task, Anchored) and id(task.func) not in coroutine:
            coroutine[id(task.func)] = iscoroutinefunction(task.func)
    stack = [
        number
        for number, task in enumerate(graph.tasks)
        if graph.layer[number] in opaque
        or graph.keys[number] in graph.futures
        or (type(task) in (Task, Anchored) and coroutine[id(task.func)])
    ]
    blocks: dict[str, list[int]] = {name: [] for name in graph.wanted}
    for number in sorted(graph.kept):
        blocks[graph.layer[number]].append(number)
    frozen: set[int] = set()
    while stack:
        number = stack.pop()
        if number not in frozen:
            frozen.add(number)
            stack.extend(graph.reads[number])
            if number in graph.kept:
                # the layer of an output is frozen as a whole
                stack.extend(blocks.pop(graph.layer[number], ()))
    return frozen


def _is_opaque(layer: Any) -> bool:
    """Whether the tasks of a layer, and their inputs, must keep their keys."""
    if any(callable(value) for value in (layer.annotations or {}).values()):
        return True
    return type(layer) is not MaterializedLayer and not isinstance(
        layer, (Blockwise, ArrayOverlapLayer)
    )
