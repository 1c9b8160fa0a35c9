"""The layer of a plan whose predicted bytes include those received for another layer.

A plan predicts bytes for each operation, and its name for a layer contains them.  Workers receive
some of these bytes for other layers: those that cut and join tiles of the inputs, and partial sums.
A *row* is a layer with a prediction; every layer that receives bytes of the prediction belongs to
it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from dasktile._compat.dask import fused_tasks
from dasktile._compat.merged_parts import layer_of_part
from dasktile.lower.bundle_tasks import reader_in, tasks_in
from dasktile.lower.names import JOIN, KEPT, RETILE
from dasktile.runtime.scheduler.roots import is_data
from dasktile.schedule.homes import LayerTable
from dasktile.schedule.placement import MARK, SLICE_PREFIX, Placement, decode
from dasktile.schedule.ranks import BUNDLE

if TYPE_CHECKING:
    from distributed.scheduler import TaskState

#: Start of the names of layers of tiles of an array for all of its readers.
_KEPT = KEPT + MARK

#: Start of the names of layers that only cut and join an array.
_TILES = (_KEPT, RETILE + MARK, JOIN + MARK, SLICE_PREFIX)


@dataclass(slots=True)
class LayerGraph:
    """The layers of new tasks, and which layers they read.

    Attributes
    ----------
    reads
        By name of a layer, the names of the layers that it reads; in the order in which they were
        added.
    predicted
        Predicted bytes, of the layers that have any.
    has_other_inputs
        Layers with inputs that are of no plan, which may lie on other workers.
    fused
        By name of a layer: the layers with a prediction whose tasks are fused with its tasks so
        that their inputs are unknown.  Workers receive these inputs for the layer itself.
    """

    reads: dict[str, dict[str, None]] = field(default_factory=dict)
    predicted: dict[str, int] = field(default_factory=dict)
    has_other_inputs: set[str] = field(default_factory=set)
    fused: dict[str, list[str]] = field(default_factory=dict)

    def add(self, layer: str) -> None:
        self.reads.setdefault(layer, {})

    def connect(self, layer: str, read: str) -> None:
        """Add an edge from the layer `read` to one that reads it."""
        self.add(read)
        self.add(layer)
        if layer != read:
            self.reads[layer][read] = None

    def inputs_first(self) -> list[str]:
        """All layers, each after those that it reads; of these, the first by name first."""
        order: dict[str, None] = {}
        entered: set[str] = set()
        stack = sorted(self.reads, reverse=True)
        while stack:
            layer = stack[-1]
            if layer in entered:
                order.setdefault(stack.pop())
                continue
            entered.add(layer)
            stack += sorted(set(self.reads[layer]) - entered, reverse=True)
        return list(order)


def rows(graph: LayerGraph) -> dict[str, str]:
    """The row of every layer that belongs to one.

    A layer belongs to the only row that reads its results, through other layers or not.  A layer
    that several rows read, such as one with tiles of an array for all of its readers, belongs to
    the row of the array, or else to the first of its readers.  So do tiles of a source.  A row that
    receives nothing, as it reads nothing and no layer belongs to it, is part of the first row that
    reads it.

    Parameters
    ----------
    graph
        The layers.

    Returns
    -------
    Names of rows by name of a layer; rows first, in the order in which they run.
    """
    order, predicted = graph.inputs_first(), graph.predicted
    place = {layer: number for number, layer in enumerate(order)}
    after: dict[str, set[str]] = {layer: set() for layer in order}
    before: dict[str, set[str]] = {layer: set() for layer in order}
    for layer in order:
        for read in graph.reads[layer]:
            before[layer] |= {read} if read in predicted else before[read]
    for layer in reversed(order):
        for read in graph.reads[layer]:
            after[read] |= {layer} if layer in predicted else after[layer]

    def first(layers: Collection[str]) -> str:
        return min(layers, key=place.__getitem__)

    #: Rows that receive bytes for their own tasks.
    receiving = {
        layer for layer in predicted if graph.reads[layer] or layer in graph.has_other_inputs
    }
    found: dict[str, str] = {}
    for layer in order:
        if layer not in predicted and layer in graph.fused:
            found[layer] = max(graph.fused[layer], key=place.__getitem__)
        if layer in found or layer in predicted or not after[layer]:
            continue
        shared = before[layer] and (
            len(after[layer]) > 1
            or layer.startswith(_KEPT)
            # a source has a prediction only if its tiles are moved for its readers
            or (layer.startswith(_TILES) and receiving.isdisjoint(before[layer]))
        )
        found[layer] = first(before[layer] if shared else after[layer])
    receiving.update(found.values())
    for layer in reversed(order):
        if layer in predicted:
            merged = layer not in receiving and after[layer]
            found[layer] = found[first(after[layer])] if merged else layer
    kept = {layer: row for layer, row in found.items() if layer in predicted}
    parts = {layer: found[row] for layer, row in found.items() if layer not in predicted}
    return {**{layer: kept[layer] for layer in order if layer in kept}, **parts}


def predicted_rows(graph: LayerGraph, row_of: Mapping[str, str]) -> dict[str, int]:
    """The predicted bytes of every row, in the order in which they run."""
    total: dict[str, int] = {}
    for layer in row_of:
        if layer in graph.predicted and row_of[layer] == layer:
            total[layer] = 0
    for layer, size in graph.predicted.items():
        total[row_of[layer]] += size
    return total


def layer_graph(
    first: Mapping[str, TaskState], bundles: Iterable[TaskState], layers: LayerTable
) -> tuple[LayerGraph, dict[str, str]]:
    """The layers of new tasks of plans.

    Parameters
    ----------
    first
        By name of a layer, one of its tasks: those of a layer read and are read by the same layers.
    bundles
        The bundles among the tasks.  The tasks in them are of other layers.
    layers
        What is known of layers by name.

    Returns
    -------
    The graph, and the names in it of layers with two names: an output whose tasks are in bundles
    has another hash outside of them, and a fused layer has the end of the name of its last part.
    """

    def is_planned(layer: object) -> bool:
        return layers[layer] is not None and not _is_of_bundles(layer)

    def predicted(layer: str) -> int:
        known = layers[layer]
        return known.placement.predicted if known is not None and known.placement else 0

    edges: dict[tuple[str, str], None] = {}
    inside: dict[str, None] = {}
    others: set[str] = set()
    fused: dict[str, dict[str, None]] = {}
    opened = {ts.key: ts.run_spec for ts in (*bundles, *first.values())}
    for outer, inner, inputs in chain.from_iterable(map(_parts, opened.values())):
        layer, target = _head(inner), _head(outer)
        if is_planned(layer):
            inside[layer] = None
            if target != layer and is_planned(target):
                edges[target, layer] = fused.setdefault(target, {})[layer] = None
            for read in map(_head, inputs):
                if is_planned(read):
                    edges[layer, read] = None
    for layer, ts in first.items():
        # the inputs of a fused task are those of any of its parts
        is_part = layer != _head(ts.key) and is_planned(_head(ts.key))
        if is_part or not is_planned(layer):
            continue
        for other in ts.dependencies:
            if is_planned(_head(other.key)):
                edges[layer, _head(other.key)] = None
            elif not is_data(other):
                others.add(layer)
        for other in ts.dependents:
            reader = _head(reader_in(other.run_spec, ts.key) or other.key)
            if is_planned(reader):
                edges[reader, layer] = None
    outside = [layer for layer in first if is_planned(layer)]
    names = _second_names(outside, [layer for layer in inside if layer not in first], predicted)
    graph = LayerGraph(has_other_inputs={names.get(layer, layer) for layer in others})
    for layer in (*outside, *inside):
        name = names.get(layer, layer)
        graph.add(name)
        if predicted(name):
            graph.predicted[name] = predicted(name)
    for edge in edges:
        layer, read = (names.get(layer, layer) for layer in edge)
        if layer in graph.reads and read in graph.reads:
            graph.connect(layer, read)
    for layer, parts in fused.items():
        # Dask replaces the inputs of some fused tasks by placeholders
        known = [names.get(part, part) for part in parts]
        if any(part in graph.predicted and not graph.reads[part] for part in known):
            graph.fused[names.get(layer, layer)] = [p for p in known if p in graph.predicted]
    # the name of a layer of bundles has the bytes of all layers that have no tasks outside
    of_bundles = [layer for layer in first if _is_of_bundles(layer)]
    rest = sum({layer.rpartition(MARK)[2]: predicted(layer) for layer in of_bundles}.values())
    own = {layer for layer, ts in first.items() if _head(ts.key) == layer}
    steps = {_head(step.key) for task in opened.values() for step in _steps(task)}
    lost = ((inside.keys() - first.keys()) | (steps & (first.keys() - own))) - names.keys()
    rest -= sum(graph.predicted.get(layer, 0) for layer in lost)
    for layer in of_bundles:
        if rest > 0:
            graph.add(layer)
            graph.predicted[layer], rest = rest, 0
    return graph, names


def _is_of_bundles(layer: Any) -> bool:
    """Whether a layer has bundles; a task that Dask has fused with one has its name at the end."""
    return str(layer).partition(MARK)[0].rpartition("-")[2] == BUNDLE


def _second_names(
    outside: Sequence[str], inside: Sequence[str], predicted: Callable[[str], int]
) -> dict[str, str]:
    """By the second name of a layer: its first name, under which it has a prediction."""
    names: dict[str, str] = {}
    ends: dict[str, str] = {}
    for layer in sorted(outside, key=lambda layer: (len(layer), layer)):
        # as the scheduler sees a fused layer and its last part
        first = ends.setdefault(layer.rpartition(MARK)[2], layer)
        if first != layer and predicted(layer):
            names[layer] = first
    # the same placement may be written in two ways
    alike: dict[tuple[str, Placement | None], list[str]] = {}
    for layer in sorted(set(outside) - names.keys(), reverse=True):
        alike.setdefault((layer.partition(MARK)[0], decode(layer)), []).append(layer)
    for layer in sorted(inside):
        same = alike.get((layer.partition(MARK)[0], decode(layer)))
        if same and predicted(layer):
            names[layer] = same.pop()
    return names


def _parts(task: Any) -> Iterator[tuple[Any, Any, Iterable[Any]]]:
    """The tasks in a bundle or a fused task: a key, that of a part, and what the part reads."""
    inside = tasks_in(task)
    for each in inside or (task,):
        parts = fused_tasks(each)
        if inside:
            yield each.key, each.key, each.dependencies
        for part in parts.values():
            for _, inner, reads in _parts(part):
                yield each.key, inner, reads
            yield each.key, part.key, part.dependencies


def _steps(task: Any) -> Iterator[Any]:
    """The tasks that a bundle runs, or a bundle that is fused into a task."""
    yield from tasks_in(task)
    for part in fused_tasks(task).values():
        yield from _steps(part)


def _head(key: Any) -> Any:
    """The layer of a key; keys of the parts of merged tasks have a suffix."""
    return layer_of_part(key[0] if type(key) is tuple and key else key)
