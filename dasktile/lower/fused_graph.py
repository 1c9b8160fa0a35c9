"""Writing a graph in which every group of tasks is one task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any

from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from dasktile._compat.dask import Alias, Task, TaskRef, run_fused
from dasktile.capture.references import head_of
from dasktile.lower.anchored import Anchored
from dasktile.lower.fusible import FusibleTasks
from dasktile.lower.layers import in_place_of
from dasktile.lower.names import part_layer_name
from dasktile.lower.run_order import live_bytes, run_order
from dasktile.lower.working import LightTasks, working_bytes
from dasktile.schedule.placement import MARK

#: Of the tasks of a group, what each of them reads in it, None for what it reads of others, and the
#: sizes of their results.
_Form = tuple[tuple[tuple[int | None, ...], ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Fused:
    """A graph with fused tasks.

    Parameters
    ----------
    graph
        The graph.
    working
        By key of a fused task, bytes that it holds while it runs, besides its inputs and its
        result.
    """

    graph: HighLevelGraph
    working: Mapping[Any, int] = field(default_factory=dict)


def fused_graph(
    fusible: FusibleTasks, groups: dict[int, list[int]], inputs: dict[int, set[int]]
) -> Fused:
    """The graph with one task for each group.

    Parameters
    ----------
    fusible
        The tasks.
    groups
        The tasks of every group, by its last, in an order in which they can run.
    inputs
        What every group of several tasks reads of others, by its last.
    """
    return _Writer(fusible, groups, inputs).graph()


class _Writer:
    """Writes the layers of a graph with fused tasks; arguments as for `fused_graph`."""

    def __init__(
        self, fusible: FusibleTasks, groups: dict[int, list[int]], inputs: dict[int, set[int]]
    ) -> None:
        self.fusible = fusible
        self.groups = groups
        self.inputs = inputs
        self.light = LightTasks()
        #: By the form of groups, an order of their tasks.
        self.orders: dict[_Form, list[int]] = {}

    def graph(self) -> Fused:
        """The graph with one task for each group."""
        fusible = self.fusible
        self._rename()
        layers = dict(fusible.layers)
        reads = {name: set(names) for name, names in fusible.dependencies.items()}
        fused: dict[int, Task] = {}
        working: dict[Any, int] = {}
        changed = set(fusible.culled)
        for lasts, form in self._alike():
            groups = self._in_order(lasts, form)
            steps = self._parts(groups)
            for last, own in zip(lasts, steps, strict=True):
                fused[last] = self._fused_task(last, own)
            held = zip(lasts, self._working(groups, steps), strict=True)
            working |= {fusible.keys[last]: nbytes for last, nbytes in held}
            changed.update([fusible.layer[number] for number in self.groups[lasts[0]]])
        tasks: dict[str, dict[Any, Any]] = {name: {} for name in sorted(changed, key=str)}
        for number in sorted(self.groups):
            name, key = fusible.layer[number], fusible.keys[number]
            if name in changed:
                task = fused.get(number)
                tasks[name][key] = fusible.tasks_of_layer[name][key] if task is None else task
        for name, own in tasks.items():
            notes = fusible.layers[name].collection_annotations
            layers[name] = MaterializedLayer(own, collection_annotations=notes)
        reads = self._dependencies(layers, reads, changed)
        # where graphs are merged, layers of the same name must have the same keys
        parts = {}
        for name in sorted(changed & layers.keys(), key=str):
            if len(layers[name]) < len(fusible.layers[name]):
                if fusible.dependencies[name]:
                    parts[name] = part_layer_name(name, layers[name])
                else:
                    layers[name] = fusible.layers[name]
        return Fused(_with_names(layers, reads, parts), working)

    def _alike(self) -> Iterator[tuple[list[int], _Form]]:
        """The lasts of groups with tasks of the same layers, and of the same form, and this."""
        layer_of = self.fusible.layer
        by_layers: dict[tuple[str, ...], list[int]] = {}
        for last in self.inputs:
            layers = tuple([layer_of[number] for number in self.groups[last]])
            by_layers.setdefault(layers, []).append(last)
        for lasts in by_layers.values():
            form = self._common_form(lasts)
            if form is not None:
                yield lasts, form
                continue
            by_form: dict[_Form, list[int]] = {}
            for last in lasts:
                by_form.setdefault(self._form(self.groups[last]), []).append(last)
            for form, same in by_form.items():
                yield same, form

    def _common_form(self, lasts: Sequence[int]) -> _Form | None:
        """The form of groups with tasks of the same layers; None if it may not be the same."""
        fusible = self.fusible
        groups = [self.groups[last] for last in lasts]
        form = self._form(groups[0])
        columns = list(zip(*groups, strict=True))
        members = set(chain.from_iterable(groups))
        for column, inside, size in zip(columns, *form, strict=True):
            reads = [fusible.reads[number] for number in column]
            if any(len(each) != len(inside) for each in reads):
                return None
            if any(fusible.sizes[number] != size for number in column):
                return None
            for place, read in zip(inside, zip(*reads, strict=True), strict=True):
                is_same = members.isdisjoint(read) if place is None else read == columns[place]
                if not is_same:
                    return None
        return form

    def _form(self, numbers: Sequence[int]) -> _Form:
        """What the tasks of a group read in it, and their sizes: equal for many groups."""
        fusible = self.fusible
        place = dict(zip(numbers, count(), strict=False)).get
        reads = [tuple(map(place, every)) for every in map(fusible.reads.__getitem__, numbers)]
        return tuple(reads), tuple(map(fusible.sizes.__getitem__, numbers))

    def _in_order(self, lasts: Sequence[int], form: _Form) -> list[tuple[int, ...]]:
        """The tasks of groups of one form, in an order in which they need little memory."""
        order = self.orders.get(form)
        if order is None:
            reads, sizes = form
            inside = [[read for read in every if read is not None] for every in reads]
            order = run_order(inside, sizes, [0] * len(sizes), kept=[len(sizes) - 1])
            self.orders[form] = order
        columns = list(zip(*map(self.groups.__getitem__, lasts), strict=True))
        return list(zip(*[columns[place] for place in order], strict=True))

    def _parts(self, groups: Sequence[Sequence[int]]) -> list[dict[Any, Any]]:
        """The tasks of groups of one form, by their keys."""
        columns = [
            [self.fusible.tasks[number] for number in column]
            for column in zip(*groups, strict=True)
        ]
        keys = zip(*[[task.key for task in column] for column in columns], strict=True)
        return [
            dict(zip(*row, strict=True))
            for row in zip(keys, zip(*columns, strict=True), strict=True)
        ]

    def _working(
        self, groups: Sequence[Sequence[int]], parts: Sequence[Mapping[Any, Any]]
    ) -> list[int]:
        """For groups of one form that are in order, what `_held` returns."""
        columns = zip(*[tasks.values() for tasks in parts], strict=True)
        if all(map(self.light.have, columns)):
            return [self._held(groups[0])] * len(groups)
        return list(map(self._held, groups))

    def _held(self, numbers: Sequence[int]) -> int:
        """Bytes of the results of a group that are in memory at the same time, but for the last."""
        fusible = self.fusible
        live = live_bytes(
            numbers,
            fusible.reads.__getitem__,
            fusible.sizes.__getitem__,
            returned=numbers[-1:],
            working=self._working_alone,
        )
        return live - fusible.sizes[numbers[-1]]

    def _working_alone(self, number: int) -> int:
        """Bytes that one task holds while it runs, besides its inputs and its result."""
        fusible = self.fusible
        if self.light.has(fusible.tasks[number]):
            return 0
        inputs = {fusible.keys[read]: fusible.sizes[read] for read in fusible.reads[number]}
        return working_bytes(fusible.tasks[number], inputs, fusible.sizes[number], self._value)

    def _value(self, key: Any) -> Any:
        """The value of a key that is data of the graph; None for other keys."""
        task = self.fusible.layers.get(str(head_of(key)), {}).get(key)
        return getattr(task, "value", task)

    def _rename(self) -> None:
        """Add an alias whose name gives no home to the group that it is the only reader of.

        It is a block of an array that keeps its name.  Dask would give the group the key of the
        alias, and the key of its last task, whose name gives its home, would be lost.
        """
        fusible, groups = self.fusible, self.groups
        for number in fusible.order:
            if type(fusible.tasks[number]) is not Alias or number not in fusible.fixed:
                continue
            if MARK in str(head_of(fusible.keys[number])):
                continue
            [target] = fusible.reads[number]
            renamed = target in groups and target not in fusible.fixed
            if not renamed or not isinstance(fusible.tasks[target], Task):
                continue
            if fusible.readers[target] == [number]:
                groups[number] = [*groups.pop(target), number]
                self.inputs[number] = self.inputs.pop(target, set(fusible.reads[target]))

    def _fused_task(self, last: int, parts: dict[Any, Any]) -> Task:
        """A task that runs those of a group, with the key of the last.

        It is what ``Task.fuse`` makes, with another function, in less time.  Tasks of Dask's own
        function are rewritten by ``dask.array.optimization.optimize``, which merges a slice with a
        slice of it as if the first had no other reader (checked with dask 2026.7.1 and 2026.8.0).
        A fused task that also reads tiles is no root task to distributed.
        """
        fusible, inputs = self.fusible, self.inputs[last]
        is_root = all(map(fusible.free.__getitem__, inputs)) and any(
            task.data_producer for task in parts.values()
        )
        kind = Anchored if self._is_read_elsewhere(last, inputs) else Task
        # the order in which Dask fuses tasks: it decides nothing
        keys = tuple(sorted(map(fusible.keys.__getitem__, inputs), key=hash))
        key = fusible.tasks[last].key
        args = parts, key, keys, *map(TaskRef, keys)
        return kind(key, run_fused, *args, _data_producer=is_root)

    def _is_read_elsewhere(self, last: int, inputs: set[int]) -> bool:
        """Whether a group's result is read on another worker, and smaller than its inputs.

        If Dask fused such a group with its reader, the inputs would be sent there, not the result.
        """
        fusible = self.fusible
        home = fusible.homes[last]
        readers = fusible.readers[last]
        if not readers:
            # a reader of another layer may be anywhere
            return last in fusible.fixed and fusible.layer[last] not in fusible.outputs
        if home is None or all(fusible.homes[reader] in (None, home) for reader in readers):
            return False
        return fusible.bytes(inputs) > fusible.sizes[last]

    def _dependencies(
        self, layers: dict[str, Layer], reads: dict[str, set[str]], changed: Iterable[str]
    ) -> dict[str, set[str]]:
        """The layers that each layer reads after fusion; layers without tasks are dropped."""
        fusible = self.fusible
        changed = set(changed)
        layer_of = [*fusible.layer, *self._layers_of_others()]
        for name in changed:
            reads[name] = set()
        for number in self.groups:
            name = fusible.layer[number]
            if name in changed:
                inputs = self.inputs.get(number, fusible.reads[number])
                reads[name].update(map(layer_of.__getitem__, inputs))
        for name in [name for name in changed if not layers[name]]:
            del layers[name], reads[name]
        return {
            name: {other for other in names if other in layers and other != name}
            for name, names in reads.items()
        }

    def _layers_of_others(self) -> list[str]:
        """The layer of each result that is read and is not of a fusible task; empty if unknown."""
        fusible = self.fusible
        others = fusible.keys[len(fusible.tasks) :]
        names = [str(head_of(key)) for key in others]
        if all(name in fusible.layers for name in names):
            return names
        known = {
            key: name
            for name in fusible.layers.keys() - set(fusible.fusible_layers)
            for key in fusible.layers[name].get_output_keys()
        }
        return [
            name if name in fusible.layers else known.get(key, "")
            for key, name in zip(others, names, strict=True)
        ]


def _with_names(
    layers: Mapping[str, Layer], dependencies: Mapping[str, set[str]], names: Mapping[str, str]
) -> HighLevelGraph:
    """A graph of layers, some of which get other names."""
    named: dict[str, Layer] = {}
    for name, layer in layers.items():
        if isinstance(layer, Blockwise) and not dependencies[name].isdisjoint(names):
            # it names the layers that it reads
            layer = in_place_of(layer, dict(layer))
        named[names.get(name, name)] = layer
    reads = {
        names.get(name, name): {names.get(other, other) for other in others}
        for name, others in dependencies.items()
    }
    return HighLevelGraph(named, reads)
