"""Fusing tasks of one worker into one task, where that costs nothing.

A task is fused with its readers if all of them are fused into the same task, at the same
home worker.  The scheduler then has fewer tasks, the parts of a fused task run one after
another without it, and each result is released as soon as its last reader has run.

Tasks form a *group*, which becomes one fused task, under these rules:

- All tasks of a group have the same home.
- A task that may read results of other workers is only the last of a group, and only light
  tasks are fused with it.  Transfers then overlap computation as they did before.
- A group reads few bytes at once, or no more than one of its tasks did.
- The results of a group are limited in bytes, since a fused task that is lost is repeated.
- Every thread of a worker still has a task, wherever it had one before.
- A group calls one function of which it is unknown how long it takes, unless each call reads the
  one before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from dasktile._compat.dask import FUSE, Alias, Task, missing
from dasktile.lower.fused_graph import Fused, fused_graph
from dasktile.lower.fusible import FuseLimits, FusibleTasks


def fuse(
    layers: Mapping[str, Layer],
    dependencies: Mapping[str, set[str]],
    written: Collection[str],
    outputs: Collection[str],
    limits: FuseLimits,
    only_needed: bool = False,
) -> Fused:
    """A graph in which each group of tasks is one task, with the key of the last.

    Parameters
    ----------
    layers, dependencies
        Of the graph.
    written
        Names of layers whose tasks may be fused.
    outputs
        Names of layers whose results are outputs.
    limits
        What may be fused.
    only_needed
        Whether to leave out the tasks that the outputs do not need, which hinder fusion.
    """
    fusible = [
        name
        for name in layers
        if name in written
        and isinstance(layers[name], (MaterializedLayer, Blockwise))
        and not layers[name].annotations
    ]
    settings = limits.settings
    if not missing(FUSE) and sum(len(layers[name]) for name in fusible) <= settings.max_tasks:
        tasks = FusibleTasks(layers, dependencies, fusible, outputs, limits, only_needed)
        grouping = _Grouping(tasks)
        for _ in range(settings.max_rounds):
            if grouping.form_groups():
                return fused_graph(tasks, grouping.groups, grouping.inputs)
    return Fused(HighLevelGraph(layers, dependencies))


class _Grouping:
    """The groups that tasks form.

    Parameters
    ----------
    fusible
        The tasks.
    """

    def __init__(self, fusible: FusibleTasks) -> None:
        self.fusible = fusible
        #: The last task of the group of each task, which stands for the group.
        self.last = list(range(len(fusible.tasks)))
        #: The tasks of every group, by its last, in an order in which they can run.
        self.groups: dict[int, list[int]] = {}
        #: What every group of several tasks reads of others, by its last.
        self.inputs: dict[int, set[int]] = {}
        #: Pairs of layers, each of a task and its reader, which are not fused.
        self.separate: set[tuple[str, str]] = set()
        #: By last task, whether its group may get light tasks, and whether it may get any.
        self.takes_light = [type(task) in (Task, Alias) for task in fusible.tasks]
        self.takes_any = [
            takes and not is_remote
            for takes, is_remote in zip(self.takes_light, fusible.remote, strict=True)
        ]

    def form_groups(self) -> bool:
        """Form groups; True if they break no rule, else keep more pairs of layers separate."""
        fusible = self.fusible
        self._join()
        self.groups = self._tasks_by_last()
        self.inputs = {
            last: set(chain(*[fusible.reads[number] for number in numbers])).difference(numbers)
            for last, numbers in self.groups.items()
            if len(numbers) > 1
        }
        violations = self._violations()
        self.separate |= violations
        return not violations

    def _join(self) -> None:
        """Let every task join the group of its readers, if it may, readers first."""
        fusible = self.fusible
        self.last = last = list(range(len(fusible.tasks)))
        readers_of, layer, sizes = fusible.readers, fusible.layer, fusible.sizes
        light, unknown, most = fusible.limits.light, fusible.limits.unknown, fusible.limits.work
        work = sizes[: len(last)]
        #: The groups that call a function of which it is unknown how long it takes.
        calling = {number for number in fusible.order if layer[number] in unknown}
        candidates = self._candidates()
        for number in fusible.order:
            if not candidates[number]:
                continue
            readers = readers_of[number]
            group = last[readers[0]]
            # most tasks have one reader
            if len(readers) > 1 and any(last[reader] != group for reader in readers):
                continue
            takes = self.takes_light if layer[number] in light else self.takes_any
            if (
                not takes[group]
                or work[group] + sizes[number] > most
                or (fusible.remote[number] and not self._is_alias_of(group, number))
                or (fusible.limits.threads > 1 and self._is_rare(number, group))
            ):
                continue
            if layer[number] in unknown:
                if group in calling and not self._is_only_input(number):
                    continue
                calling.add(group)
            last[number] = group
            work[group] += sizes[number]

    def _candidates(self) -> list[bool]:
        """For every task, whether it may join the group of its readers, if these are in one."""
        fusible, count = self.fusible, len(self.fusible.tasks)
        names = list(fusible.tasks_of_layer)
        sizes = list(map(len, fusible.tasks_of_layer.values()))
        layer = np.repeat(np.arange(len(names)), sizes)
        heavy = np.array([name not in fusible.limits.light for name in names], np.bool_)[layer]
        has_home = np.array([home is not None for home in fusible.homes[:count]], np.bool_)
        may_join = has_home | ~heavy
        may_join[list(fusible.fixed)] = False
        may_join[self._read_apart(names, layer, heavy)] = False
        found = [
            may and bool(readers) and isinstance(task, (Task, Alias))
            for may, readers, task in zip(
                may_join.tolist(), fusible.readers, fusible.tasks, strict=False
            )
        ]
        for name in fusible.limits.chained:
            for key in fusible.tasks_of_layer.get(name, ()):
                number = fusible.number[key]
                found[number] = found[number] and self._is_chained(number)
        return found

    def _read_apart(
        self, names: Sequence[str], layer: npt.NDArray[np.intp], heavy: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.intp]:
        """The tasks that may not be in a group with one of their readers.

        The readers are in one group only if they have one home, which is that of the group.

        Parameters
        ----------
        names
            Names of layers.
        layer, heavy
            For every task, the number of its layer, and whether it is not light.
        """
        edges, remote = self.fusible.edges, np.array(self.fusible.remote, np.bool_)
        inside = edges.reads < len(layer)
        readers, reads = edges.readers[inside], edges.reads[inside]
        apart = ~edges.same_home[inside] | (heavy[reads] & remote[readers])
        if self.separate:
            pairs = np.zeros((len(names), len(names)), np.bool_)
            for pair in self.separate:
                pairs[tuple(map(names.index, pair))] = True
            apart |= pairs[layer[reads], layer[readers]]
        return reads[apart]

    def _is_chained(self, number: int) -> bool:
        """Whether Dask would fuse a task with its reader, which has a known size."""
        fusible = self.fusible
        [reader, *others] = fusible.readers[number]
        return not others and len(fusible.reads[reader]) == 1 and bool(fusible.sizes[reader])

    def _is_alias_of(self, group: int, number: int) -> bool:
        """Whether a group is an alias of a task, which takes no time."""
        return type(self.fusible.tasks[group]) is Alias and self.fusible.readers[number] == [group]

    def _is_rare(self, number: int, group: int) -> bool:
        """Whether its home has fewer tasks of the layer of a task, or of a group, than threads."""
        fusible, home = self.fusible, self.fusible.homes[number]
        layers = fusible.layer[number], fusible.layer[group]
        return min(fusible.counts[layer, home] for layer in layers) < fusible.limits.threads

    def _tasks_by_last(self) -> dict[int, list[int]]:
        """The tasks of every group, by its last, in an order in which they can run."""
        order = np.array(self.fusible.order[::-1], np.intp)
        lasts = np.array(self.last, np.intp)[order]
        by_last = np.argsort(lasts, kind="stable")
        numbers, lasts = order[by_last].tolist(), lasts[by_last]
        starts = np.flatnonzero(np.diff(lasts, prepend=-1))
        ends = [*starts.tolist(), len(numbers)]
        groups = [numbers[start:end] for start, end in pairwise(ends)]
        return dict(zip(lasts[starts].tolist(), groups, strict=True))

    def _is_only_input(self, number: int) -> bool:
        """Whether a task has one reader, which reads nothing else."""
        readers = self.fusible.readers[number]
        return len(readers) == 1 and len(self.fusible.moved(readers[0])) == 1

    def _violations(self) -> set[tuple[str, str]]:
        """Pairs of layers to keep separate, since groups of their tasks break a rule.

        Such a group reads more bytes at once than before, leaves a thread without a task, or
        would be fused by Dask with a task of another worker.
        """
        fusible = self.fusible
        pairs = self._idle_threads()
        for last, inputs in self.inputs.items():
            numbers = self.groups[last]
            if self._fused_by_dask(last, inputs):
                pairs |= self._pairs(numbers)
            if len(inputs) < 2:
                continue
            read_at_once = fusible.bytes(inputs)
            if read_at_once > fusible.limits.inputs and read_at_once > max(
                fusible.bytes(fusible.reads[number]) for number in numbers
            ):
                inside = set(numbers)
                pairs |= {
                    (fusible.layer[read], fusible.layer[number])
                    for number in numbers
                    for read in fusible.reads[number]
                    if read in inside
                    and fusible.layer[read] not in fusible.limits.light
                    and (number == last or self._shrinks(read))
                }
        return pairs

    def _pairs(self, numbers: Iterable[int]) -> set[tuple[str, str]]:
        """Pairs of the layer of a task and the layer of a reader in the same group."""
        fusible = self.fusible
        return {
            (fusible.layer[number], fusible.layer[reader])
            for number in numbers
            if self.last[number] != number
            for reader in fusible.readers[number]
        }

    def _idle_threads(self) -> set[tuple[str, str]]:
        """Pairs of layers with fewer groups than threads at a home, and no fewer tasks."""
        fusible = self.fusible
        threads = fusible.limits.threads
        if threads == 1:
            return set()
        counts = Counter(
            place
            for numbers in self.groups.values()
            for place in {(fusible.layer[number], fusible.homes[number]) for number in numbers}
        )
        few = {place for place, count in counts.items() if count < threads <= fusible.counts[place]}
        return self._pairs(
            number
            for number in fusible.order
            if (fusible.layer[number], fusible.homes[number]) in few
        )

    def _fused_by_dask(self, last: int, inputs: set[int]) -> bool:
        """Whether Dask would fuse a group with some inputs with a task of another worker.

        It does where the group reads one task only, which has no other reader.  That costs
        transfers if this task has inputs of its own.
        """
        fusible = self.fusible
        if len(inputs) != 1:
            return False
        [read] = inputs
        return (
            read < len(fusible.tasks)
            and type(fusible.tasks[read]) is Task
            and bool(fusible.reads[read])
            and len(fusible.readers[read]) == 1
            and fusible.homes[read] not in (None, fusible.homes[last])
        )

    def _shrinks(self, number: int) -> bool:
        """Whether the result of a task is smaller than its largest input."""
        most = max((self.fusible.sizes[read] for read in self.fusible.reads[number]), default=0)
        return self.fusible.sizes[number] < most
