"""Which blocks of a graph's arrays are needed for the wanted keys.

Dask runs only the tasks that the wanted keys depend on.  A tile that joins a needed block with an
unneeded one would run tasks that Dask would not run: a user's function, or a read.  Such a task
may have side effects, be slow, or fail.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Set
from graphlib import TopologicalSorter
from itertools import islice
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from dask.blockwise import Blockwise
from dask.core import flatten, keys_in_tasks
from dask.highlevelgraph import HighLevelGraph, Layer

from dasktile._compat.dask import GraphNode
from dasktile.capture.base import Captured, GraphView
from dasktile.capture.overlaps import overlap_of
from dasktile.capture.references import heads, heads_of, is_block, tasks_of
from dasktile.capture.rules.blockwise import Map
from dasktile.capture.rules.einsums import EinSum
from dasktile.capture.rules.sources import Create, InMemory, Read, take_eye, take_range
from dasktile.ir import Kind, Node

#: For every block of an array, whether it is needed.
Needed = npt.NDArray[np.bool_]

#: Packages whose functions have no side effects.
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
        The wanted keys, nested in any way.
    numblocks
        By the name of an array, its number of blocks along every axis.
    layers
        Layers whose reads are followed; by default all.  Reads of other layers are ignored.
    """
    needed = {name: np.zeros(counts, np.bool_) for name, counts in numblocks.items()}
    _mark(needed, flatten([keys]))
    for _, _, inputs in needed_reads(graph, keys, layers):
        _mark(needed, inputs)
    return needed


def count_needed(graph: HighLevelGraph, keys: Any, most: int) -> int:
    """The number of tasks that the wanted keys depend on; more than `most` are not counted.

    Parameters
    ----------
    graph
        The graph.
    keys
        The wanted keys, nested in any way.
    most
        Number of tasks beyond which no more are counted.
    """
    if _has_more(keys, most):
        return most + 1
    count = 0
    for _, reads, inputs in needed_reads(graph, keys):
        count += len(reads)
        # what they read is needed, too, and may be in layers that take long to look at
        if max(count, len(inputs)) > most:
            return most + 1
    return count


def least_run(graph: HighLevelGraph, keys: Any, most: int) -> int:
    """Tasks that run at least, after Dask has fused chains; more than `most` are not counted.

    A task is fused with what it reads only if it reads one task, which no other task reads.

    Parameters
    ----------
    graph
        The graph, after Dask has merged its layers.
    keys
        The wanted keys, nested in any way.
    most
        Number of tasks beyond which no more are counted.
    """
    if _has_more(keys, most):
        return most + 1
    count = 0
    for _, reads, _ in needed_reads(graph, keys):
        alone = Counter(next(iter(each)) for each in reads.values() if len(each) == 1)
        count += len(reads) - sum(readers == 1 for readers in alone.values())
        if count > most:
            return most + 1
    return count


def _has_more(keys: Any, most: int) -> bool:
    """Whether there are more wanted keys than a number; each has a task that runs."""
    seen = set(islice(flatten([keys]), most + 1))
    return len(seen) > most


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
    pending = _Pending(flatten([keys]))
    followed = graph.layers.keys() if layers is None else set(layers)
    if not followed:
        return
    others: Container[Any] = ()
    if any(_is_legacy(name, graph.layers[name]) for name in followed):
        # in tasks written as tuples, only an existing key is a dependency
        others = GraphView(graph).keys(graph.layers)
    order = TopologicalSorter({name: graph.dependencies.get(name, ()) for name in graph.layers})
    for name in reversed([name for name in order.static_order() if name in followed]):
        layer = graph.layers[name]
        reads = _reads(name, layer, pending.of(name, layer), others)
        inputs = {key for dependencies in reads.values() for key in dependencies}
        pending.add(inputs)
        pending.remove(reads)
        yield name, reads, inputs


class _Pending:
    """Keys whose tasks have not been followed yet, by their heads."""

    def __init__(self, keys: Iterable[Any]) -> None:
        self._by_head: defaultdict[Any, set[Any]] = defaultdict(set)
        self.add(keys)

    def add(self, keys: Iterable[Any]) -> None:
        keys = list(keys)
        for key, head in zip(keys, heads(keys), strict=True):
            self._by_head[head].add(key)

    def remove(self, keys: Collection[Any]) -> None:
        for key, head in zip(keys, heads(keys), strict=True):
            self._by_head[head].discard(key)

    def of(self, name: str, layer: Layer) -> list[Any]:
        """The keys that a layer may have: those with the heads of its keys."""
        if isinstance(layer, Blockwise):
            return list(self._by_head.get(layer.output, ()))
        return [key for head in heads_of(name, layer) for key in self._by_head.get(head, ())]


def _is_legacy(name: str, layer: Layer) -> bool:
    # this would generate all tasks of a Blockwise layer, and of overlaps
    if isinstance(layer, Blockwise) or overlap_of(name, layer) is not None:
        return False
    return bool(layer.has_legacy_tasks)


def _reads(
    name: str, layer: Layer, keys: Collection[Any], others: Container[Any]
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
    stack = [key for key in keys if key in tasks]
    while stack:
        key = stack.pop()
        if key in reads:
            continue
        task = tasks[key]
        if isinstance(task, GraphNode):
            reads[key] = task.dependencies
        else:
            reads[key] = keys_in_tasks(cast(Any, others), [task])
        stack += [other for other in reads[key] if other in tasks]
    if len(reads) < len(tasks):
        return {key: reads[key] for key in tasks if key in reads}
    return reads


def _mark(needed: Mapping[str, Needed], keys: Iterable[Any]) -> None:
    """Mark the blocks that are among the keys; other keys of a layer have the same head."""
    places: dict[str, list[Any]] = {}
    for key in keys:
        if not isinstance(key, tuple) or not key or key[0] not in needed:
            continue
        blocks = needed[key[0]]
        if is_block(key, key[0], blocks.shape):
            place: tuple[Any, ...] = key[1:]
            if not all(type(number) is int for number in place):
                place = tuple(int(getattr(number, "real", number)) for number in place)
            places.setdefault(key[0], []).append(place)
    for name, marked in places.items():
        # at once, as there may be very many
        needed[name][tuple(np.array(marked, np.intp).T)] = True


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
