"""Which blocks of a graph's arrays are needed for the wanted keys.

Dask runs only the tasks that the wanted keys depend on.  A tile that joins a needed block with an
unneeded one would run tasks that Dask would not run: a user's function, or a read.  Such a task
may have side effects, be slow, or fail.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Set
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from dask.blockwise import Blockwise, optimize_blockwise
from dask.core import keys_in_tasks
from dask.highlevelgraph import HighLevelGraph, Layer

from dasktile._compat.dask import GraphNode, TaskRef
from dasktile.capture.base import Captured, GraphView
from dasktile.capture.overlaps import overlap_of
from dasktile.capture.references import (
    block_keys,
    flat,
    heads_of,
    is_block,
    keys_by_head,
    tasks_of,
)
from dasktile.capture.rules.blockwise import Map
from dasktile.capture.rules.einsums import EinSum
from dasktile.capture.rules.sources import Create, InMemory, Read, take_eye, take_range
from dasktile.ir import Kind, Node

#: For every block of an array, whether it is needed.
Needed = npt.NDArray[np.bool_]

#: Packages whose functions have no side effects.
_PURE = {"numpy", "scipy"}

#: The type of nearly all block numbers, for a quick check of all of them.
_PLAIN = frozenset({int})


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
        The wanted keys, nested in any way.
    numblocks
        By the name of an array, its number of blocks along every axis.
    layers
        Layers whose reads are followed; by default all.  Reads of other layers are ignored.
    """
    pending = _Pending(flat(keys))
    for _ in _needed(graph, pending, layers):
        pass
    return pending.blocks(numblocks)


class Counted:
    """A number that is counted only as far as it has to be known, and from there on the next time.

    Parameters
    ----------
    bounds
        Lower bounds of the number, of which the last one is the number.
    """

    def __init__(self, bounds: Iterator[int]) -> None:
        self._bounds = bounds
        self._known = 0

    def up_to(self, most: int) -> int:
        """The number; ``most + 1`` if it is more.

        Parameters
        ----------
        most
            The number up to which is counted.
        """
        while self._known <= most:
            known = next(self._bounds, None)
            if known is None:
                return self._known
            self._known = known
        return most + 1


class NeededTasks(Counted):
    """The tasks that the wanted keys depend on; the number of them, and which blocks they make.

    Parameters
    ----------
    graph
        The graph.
    keys
        The wanted keys, nested in any way.
    """

    def __init__(self, graph: HighLevelGraph, keys: Any) -> None:
        wanted = flat(keys)
        pending = _Pending(wanted)

        # without `self`, which would keep the graph and its futures until a garbage collection
        def counted() -> Iterator[int]:
            # each has a task that runs
            yield len(set(wanted))
            count = 0
            for _, tasks, inputs in _needed(graph, pending, None):
                count += len(tasks)
                # what they read is needed, too, and may be in layers that take long to look at
                yield max(count, len(inputs))
            yield count

        super().__init__(counted())
        self._pending = pending

    def blocks(self, numblocks: Mapping[str, tuple[int, ...]]) -> dict[str, Needed]:
        """The blocks of some arrays that are needed.

        Parameters
        ----------
        numblocks
            By the name of an array, its number of blocks along every axis.
        """
        self.up_to(sys.maxsize)
        return self._pending.blocks(numblocks)


def least_run(graph: HighLevelGraph, keys: Any) -> Counted:
    """The number of tasks that run at least, after Dask has fused chains.

    A task is fused with what it reads only if it reads one task, which no other task reads.

    Parameters
    ----------
    graph
        The graph, after Dask has merged its layers.
    keys
        The wanted keys, nested in any way.
    """

    def bounds() -> Iterator[int]:
        # each wanted key has a task that runs
        yield len(set(flat(keys)))
        count = 0
        for _, reads, _ in needed_reads(graph, keys):
            alone = Counter(next(iter(each)) for each in reads.values() if len(each) == 1)
            count += len(reads) - sum(readers == 1 for readers in alone.values())
            yield count
        yield count

    return Counted(bounds())


def least_run_of(graph: HighLevelGraph, names: Iterable[str], keys: Any) -> Counted:
    """`least_run` of a graph whose layers Dask has not merged yet.

    Parameters
    ----------
    graph
        The graph.
    names, keys
        Names of the wanted arrays, and their wanted keys, nested in any way.
    """
    return least_run(optimize_blockwise(graph, keys=[(name,) for name in names]), keys)


def needed_reads(
    graph: HighLevelGraph, keys: Any, layers: Collection[str] | None = None
) -> Iterator[tuple[str, Mapping[Any, Set[Any]], Set[Any]]]:
    """Layer by layer from the last, its name, what each of its needed tasks reads, and all of that.

    Parameters
    ----------
    graph
        The graph.
    keys
        The wanted keys, nested in any way.
    layers
        Layers whose reads are followed; by default all.
    """
    pending, existing = _Pending(flat(keys)), _Existing(graph)
    for name, layer in _readers_first(graph, layers):
        own_heads = _heads(name, layer)
        reads = _reads(name, layer, pending.of(own_heads), existing)
        inputs = set[Any]().union(*reads.values())
        pending.replace(own_heads, reads.keys(), inputs)
        yield name, reads, inputs


def needed_tasks(
    graph: HighLevelGraph, keys: Any, layers: Collection[str] | None = None
) -> Iterator[tuple[str, Set[Any], Set[Any]]]:
    """Layer by layer from the last, its name, its needed tasks, and all keys that these read.

    That is less than `needed_reads` gives, and takes less time: no task is looked at where all of
    a Blockwise layer are needed.

    Parameters
    ----------
    graph, keys, layers
        As for `needed_reads`.
    """
    return _needed(graph, _Pending(flat(keys)), layers)


def _needed(
    graph: HighLevelGraph, pending: _Pending, layers: Collection[str] | None
) -> Iterator[tuple[str, Set[Any], Set[Any]]]:
    """As `needed_tasks`, of the keys that are pending."""
    existing = _Existing(graph)
    for name, layer in _readers_first(graph, layers):
        own_heads = _heads(name, layer)
        own = pending.of(own_heads)
        inputs = _whole_inputs(layer, own) if isinstance(layer, Blockwise) else None
        if inputs is not None:
            tasks: Set[Any] = set(own)
        else:
            reads = _reads(name, layer, own, existing)
            tasks, inputs = reads.keys(), set[Any]().union(*reads.values())
        pending.replace(own_heads, tasks, inputs)
        yield name, tasks, inputs


def _readers_first(
    graph: HighLevelGraph, layers: Collection[str] | None
) -> Iterator[tuple[str, Layer]]:
    """Some layers of a graph, or all, each after those that read it."""
    followed = graph.layers.keys() if layers is None else set(layers)
    if not followed:
        return
    order = TopologicalSorter({name: graph.dependencies.get(name, ()) for name in graph.layers})
    for name in reversed([name for name in order.static_order() if name in followed]):
        yield name, graph.layers[name]


def _whole_inputs(layer: Blockwise, keys: Collection[Any]) -> set[Any] | None:
    """What all tasks of a Blockwise layer read; None if not all are among the keys.

    None, too, where tasks may not read all blocks of the inputs.
    """
    dims = layer.dims
    numblocks = tuple(dims[symbol] for symbol in layer.output_indices)
    if len(keys) != math.prod(numblocks) or set(keys) != block_keys(layer.output, numblocks):
        return None
    if any(dependency.produces_keys for dependency in layer.io_deps.values()):
        return None
    inputs = set[Any]()
    for argument, symbols in layer.indices:
        if symbols is None:
            if isinstance(argument, TaskRef):
                inputs.add(argument.key)
        elif isinstance(argument, TaskRef) or len(set(symbols)) < len(symbols):
            return None  # of a matrix, say, the blocks of the diagonal
        elif argument not in layer.io_deps:
            inputs |= block_keys(argument, layer.numblocks[argument])
    return inputs


def _heads(name: str, layer: Layer) -> Iterable[Any]:
    """The heads of the keys of a layer."""
    return (layer.output,) if isinstance(layer, Blockwise) else heads_of(name, layer)


class _Pending:
    """Keys that are needed, by their heads, and those of them whose tasks were not followed yet."""

    def __init__(self, keys: Iterable[Any]) -> None:
        self._by_head: defaultdict[Any, set[Any]] = defaultdict(set)
        self._followed: defaultdict[Any, set[Any]] = defaultdict(set)
        self._add(keys)

    def _add(self, keys: Iterable[Any]) -> None:
        for head, same in keys_by_head(keys).items():
            self._by_head[head].update(same)

    def replace(self, own_heads: Iterable[Any], keys: Set[Any], inputs: Set[Any]) -> None:
        """Put what some keys read in their place; they have these heads."""
        self._add(inputs)
        for head in own_heads:
            self._followed[head].update(keys)

    def of(self, own_heads: Iterable[Any]) -> list[Any]:
        """The keys with these heads that were not followed yet."""
        return [
            key
            for head in own_heads
            if head in self._by_head
            for key in self._by_head[head] - self._followed[head]
        ]

    def blocks(self, numblocks: Mapping[str, tuple[int, ...]]) -> dict[str, Needed]:
        """The blocks of some arrays that are among the keys."""
        return {name: self._blocks(name, counts) for name, counts in numblocks.items()}

    def _blocks(self, name: str, counts: tuple[int, ...]) -> Needed:
        """The blocks of an array that are among the keys; other keys may have the same head."""
        keys = self._by_head.get(name, set())
        if len(keys) == math.prod(counts) and keys == block_keys(name, counts):
            return np.ones(counts, np.bool_)
        blocks = np.zeros(counts, np.bool_)
        places = [key[1:] for key in keys if is_block(key, name, counts)]
        for at, place in enumerate(places):
            if not _PLAIN.issuperset(map(type, place)):
                places[at] = tuple(int(getattr(number, "real", number)) for number in place)
        if places:
            # at once, as there may be very many
            blocks[tuple(np.array(places, np.intp).T)] = True
        return blocks


class _Existing:
    """The keys of a graph; they are collected when a task that is a tuple is first looked into."""

    def __init__(self, graph: HighLevelGraph) -> None:
        self._graph = graph

    def __contains__(self, key: Any) -> bool:
        return key in self._keys

    @cached_property
    def _keys(self) -> Container[Any]:
        return GraphView(self._graph).keys(self._graph.layers)


def _reads(
    name: str, layer: Layer, keys: Collection[Any], existing: Container[Any]
) -> Mapping[Any, Set[Any]]:
    """For every task of a layer that one of the keys depends on, the keys that it reads.

    The tasks are in an order that does not depend on hashes, where not all of the layer are needed.
    """
    if isinstance(layer, Blockwise):
        own: Any = sorted(key for key in keys if isinstance(key, tuple))
        # it needs no keys of other layers
        return layer.cull(own, ())[1] if own else {}
    overlap = overlap_of(name, layer)
    if overlap is not None:
        return overlap.reads(sorted(keys))
    # not by Layer.cull, which keeps all tasks if there are as many keys as tasks
    reads: dict[Any, Set[Any]] = {}
    tasks = tasks_of(layer)
    new: Iterable[Any] = keys
    while new := [key for key in new if key in tasks and key not in reads]:
        for key in new:
            task = tasks[key]
            if isinstance(task, GraphNode):
                reads[key] = task.dependencies
            else:
                # in a task written as a tuple, only an existing key is a dependency
                reads[key] = keys_in_tasks(cast(Any, existing), [task])
        new = set[Any]().union(*map(reads.__getitem__, new))
    if len(reads) < len(tasks):
        return {key: reads[key] for key in tasks if key in reads}
    return reads


def has_effects(captured: Captured) -> list[bool]:
    """For every node, whether computing an unneeded part of it may have side effects.

    It may if it runs a user's function, reads from storage, or has unknown tasks.  Functions of
    NumPy only take time.
    """
    return [
        _has_effects(node, kernel)
        for node, kernel in zip(captured.program.nodes, captured.kernels, strict=True)
    ]


def follows_effects(captured: Captured) -> list[bool]:
    """For every node, whether it has effects or is computed from a node that has."""
    return captured.program.downstream(has_effects(captured))


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
