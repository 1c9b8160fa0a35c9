"""The source position of every element of a block, computed by running its tasks on positions.

A view layer only moves elements.  Its tasks are run here on blocks of positions
(:mod:`~dasktile.capture.rules.positions`); no function is run but those that are known to only move
elements.  A task that calls another function, or whose result cannot be described axis by axis,
raises :class:`~dasktile.capture.rules.positions.NotTraceable`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from dasktile._compat.dask import Alias, DataNode, Dict, GraphNode, NestedContainer, Task, TaskRef
from dasktile.capture.base import ArrayInfo, GraphView
from dasktile.capture.overlaps import Overlap, overlap_of
from dasktile.capture.references import Key, head_of, is_block, reference
from dasktile.capture.rules.positions import (
    TracedAxis,
    TracedBlock,
    UnknownFunction,
    move_of,
    refuse,
)
from dasktile.ir import bounds

#: Types of arguments that are data: in task objects, tuples are, whatever they contain.
_PLAIN = frozenset({slice, int, tuple, str, type(None), bool, float})


class Trace:
    """The blocks of a layer, as positions in the arrays that it reads.

    Parameters
    ----------
    view
        The graph.
    names
        The layers, which are traced together: positions are those in the arrays that they read.
    by_tasks
        Whether to run the tasks of overlaps, too, which takes long, instead of reading off their
        layers what they compute.
    """

    def __init__(self, view: GraphView, *names: str, by_tasks: bool = False):
        self._overlaps: dict[Any, Overlap] = {}
        layers = []
        for name in names:
            overlap = None if by_tasks else _overlap(view, name)
            if overlap is None:
                layers.append(view.tasks(name))
            else:
                self._overlaps[name] = overlap
        tasks = itertools.chain.from_iterable(map(dict.items, layers))
        # those of one layer are not copied, as there may be very many
        self.tasks: Mapping[Key, GraphNode] = layers[0] if len(layers) == 1 else dict(tasks)
        reads = dict.fromkeys(read for name in names for read in view.dependencies(name))
        self._arrays = {
            name: info
            for name in reads
            if name not in names and (info := view.array(name)) is not None
        }
        #: By the name of an array, or of overlaps, what `_axes_of` returns.
        self._axes: dict[Any, list[dict[int, TracedAxis]]] = {}
        self._results: dict[Key, Any] = {}
        #: Results of calls whose arguments are all results of tasks, by function and arguments.
        self._calls: dict[tuple[Any, tuple[Any, ...]], Any] = {}

    def block(self, key: Key) -> Any:
        """The traced block of a key.

        Raises
        ------
        NotTraceable
            If its task does not only move elements.
        """
        result = self._results.get(key)
        if result is None:
            task = self.tasks.get(key)
            if type(task) is Task:
                result = self._called(task)
            else:
                result = self._source(key) if task is None else self._run(task)
            self._results[key] = result
        return result

    def target(self, key: Key) -> GraphNode | None:
        """The task of a key, or that of the one that it is an alias of; None if there is none."""
        task = self.tasks.get(key)
        return self.tasks.get(task.target) if type(task) is Alias else task

    def source(self, key: Key) -> ArrayInfo | None:
        """The array of another layer of which the key is a block, or None."""
        head = head_of(key)
        info = self._arrays.get(head) if isinstance(head, str) else None
        return info if info is not None and is_block(key, head, info.numblocks) else None

    def _source(self, key: Key) -> TracedBlock:
        name = head_of(key)
        known = self._axes.get(name)
        if known is None:
            known = self._axes[name] = self._axes_of(name)
        numbers = key[1:] if isinstance(key, tuple) else (None,)
        try:
            axes = tuple([each[number] for each, number in zip(known, numbers, strict=True)])
        except (KeyError, TypeError, ValueError):
            raise UnknownFunction("a key that is not a block of an array") from None
        overlap = self._overlaps.get(name)
        return TracedBlock(name if overlap is None else overlap.array, axes)

    def _axes_of(self, name: Any) -> list[dict[int, TracedAxis]]:
        """For every axis of an array, or of overlaps, what each block has of it, by its number."""
        overlap, array = self._overlaps.get(name), self._arrays.get(name)
        if overlap is not None:
            positions = overlap.positions()
        elif array is not None:
            positions = [
                list(itertools.starmap(range, itertools.pairwise(bounds(sizes))))
                for sizes in array.chunks
            ]
        else:
            raise UnknownFunction("a key that is not a block of an array")
        return [
            {number: TracedAxis(axis, part) for number, part in enumerate(parts)}
            for axis, parts in enumerate(positions)
        ]

    def _run(self, node: Any) -> Any:
        kind = type(node)
        if kind in _PLAIN:
            return node
        if kind is TaskRef:
            return self.block(node.key)
        if kind is Alias:
            return self.block(node.target)
        if kind is Task:
            return self._called(node)
        if not isinstance(node, (GraphNode, TaskRef)):
            return node
        if (key := reference(node)) is not None:
            return self.block(key)
        if isinstance(node, DataNode):
            return node.value
        if isinstance(node, Dict):
            return refuse("a dictionary")
        if isinstance(node, NestedContainer):
            items = [self._run(item) for item in node.args]
            return items if node.klass is list else tuple(items)
        if not isinstance(node, Task):
            return refuse(type(node).__name__)
        return self._called(node)

    def _called(self, node: Task) -> Any:
        """What the function of a task returns."""
        move = move_of(node.func)
        if move is None:
            return refuse(node.func)
        call = None
        if not node.kwargs and set(map(type, node.args)) == {TaskRef}:
            # many tasks of a take read the same block at the same positions
            call = move, node.args
            known = self._calls.get(call)
            if known is not None:
                return known
        arguments = [item if type(item) in _PLAIN else self._run(item) for item in node.args]
        words = {word: self._run(item) for word, item in node.kwargs.items()} if node.kwargs else {}
        try:
            result = move(*arguments, **words)
        except (TypeError, ValueError, IndexError) as error:
            raise UnknownFunction(f"arguments of an unsupported form: {error}") from error
        if call is not None:
            self._calls[call] = result
        return result


def _overlap(view: GraphView, name: str) -> Overlap | None:
    """What a layer of overlaps computes, of an array of these chunks; None for other layers."""
    overlap = overlap_of(name, view.layers[name])
    array = None if overlap is None else view.array(overlap.array)
    if overlap is None or array is None or view.dependencies(name) != (array.name,):
        return None
    return overlap if overlap.edges == tuple(map(bounds, array.chunks)) else None
