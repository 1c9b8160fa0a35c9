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
from collections.abc import Collection, Iterable, Mapping
from itertools import chain

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

    def form_groups(self) -> bool:
        """Form groups; True if they break no rule, else keep more pairs of layers separate."""
        fusible = self.fusible
        self.last = list(range(len(fusible.tasks)))
        work = [0] * len(fusible.tasks)
        #: The groups that call a function of which it is unknown how long it takes.
        calling: set[int] = set()
        for number in fusible.order:
            last = self._joinable(number)
            size = fusible.sizes[number]
            calls = fusible.layer[number] in fusible.limits.unknown
            if (
                last is None
                or work[last] + size > fusible.limits.work
                or (calls and last in calling and not self._is_only_input(number))
            ):
                last = number
            self.last[number] = last
            work[last] += size
            if calls:
                calling.add(last)
        self.groups = {}
        for number in reversed(fusible.order):
            self.groups.setdefault(self.last[number], []).append(number)
        self.inputs = {
            last: set(chain(*[fusible.reads[number] for number in numbers])).difference(numbers)
            for last, numbers in self.groups.items()
            if len(numbers) > 1
        }
        violations = self._violations()
        self.separate |= violations
        return not violations

    def _is_only_input(self, number: int) -> bool:
        """Whether a task has one reader, which reads nothing else."""
        readers = self.fusible.readers[number]
        return len(readers) == 1 and len(self.fusible.moved(readers[0])) == 1

    def _joinable(self, number: int) -> int | None:
        """The last task of the group that a task may join, None if there is none."""
        fusible, remote = self.fusible, self.fusible.remote
        readers = fusible.readers[number]
        if not readers or number in fusible.fixed:
            return None
        last = self.last[readers[0]]
        # most tasks have one reader
        if len(readers) > 1 and any(self.last[reader] != last for reader in readers):
            return None
        layer, home = fusible.layer[number], fusible.homes[number]
        limits, threads = fusible.limits, fusible.limits.threads
        if fusible.homes[last] != home:
            return None
        if layer not in limits.light and (
            home is None or remote[last] or any(map(remote.__getitem__, readers))
        ):
            return None
        if not isinstance(fusible.tasks[number], (Task, Alias)):
            return None
        if type(fusible.tasks[last]) not in (Task, Alias):
            return None
        if layer in limits.chained:
            [reader, *others] = readers
            if others or len(fusible.reads[reader]) > 1 or not fusible.sizes[reader]:
                return None
        if self.separate and any(
            (layer, fusible.layer[reader]) in self.separate for reader in readers
        ):
            return None
        if remote[number] and not (type(fusible.tasks[last]) is Alias and readers == [last]):
            return None  # an alias takes no time
        if threads > 1:
            counts = fusible.counts
            if min(counts[layer, home], counts[fusible.layer[last], home]) < threads:
                return None
        return last

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
