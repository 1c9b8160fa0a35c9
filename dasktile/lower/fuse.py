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
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from dasktile._compat.dask import FUSE, Alias, Task, fuse_tasks, missing, run_fused
from dasktile.capture.culling import needed_reads
from dasktile.capture.references import head_of, tasks_of
from dasktile.lower.anchored import Anchored
from dasktile.lower.layers import in_place_of
from dasktile.lower.names import part_layer_name
from dasktile.lower.run_order import live_bytes, run_order
from dasktile.lower.settings import DEFAULTS, LowerSettings
from dasktile.lower.tasks import with_key
from dasktile.lower.working import LightTasks, working_bytes
from dasktile.schedule.placement import MARK, decode, token

#: Of the tasks of a group, what each of them reads in it, and the sizes of their results.
_Form = tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class FuseLimits:
    """What may be fused.

    Parameters
    ----------
    light
        Names of layers of light tasks: reads of stored arrays, and elementwise functions of
        one tile whose result is no smaller.
    free
        Names of layers that are on every worker: the array-likes that are read.
    size
        Bytes of one result, by the last part of its layer's name.
    work
        Bytes of all results that one fused task may make.
    inputs
        Bytes that a fused task may read, if they are more than any of its tasks reads.
    threads
        Tasks that a worker runs at once.
    chained
        Names of layers of the input graph.  As Dask does, a task of them is fused only with a
        task that is its only reader and reads nothing else, and only if the size of that
        task's result is known.
    unknown
        Names of layers whose tasks call functions of which it is unknown how long they take.
    settings
        Numbers of the policy.
    """

    light: Collection[str]
    free: Collection[str]
    size: Mapping[str, int]
    work: int
    inputs: int
    threads: int = 1
    chained: Collection[str] = ()
    unknown: Collection[str] = ()
    settings: LowerSettings = DEFAULTS


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
        fusion = _Fusion(layers, dependencies, fusible, outputs, limits, only_needed)
        for _ in range(settings.max_rounds):
            if fusion.form_groups():
                return fusion.fused_graph()
    return Fused(HighLevelGraph(layers, dependencies))


@dataclass
class _Fusion:
    """The tasks of the fusible layers, by number, and the groups that they form.

    Results that these tasks read and other layers make have the numbers after theirs, in any order:
    nothing depends on which of them is first.
    """

    layers: Mapping[str, Layer]
    dependencies: Mapping[str, set[str]]
    #: Names of the layers whose tasks may be fused.
    fusible: list[str]
    outputs: Collection[str]
    limits: FuseLimits
    only_needed: bool = False
    keys: list[Any] = field(default_factory=list)
    number: dict[Any, int] = field(default_factory=dict)
    tasks: list[Any] = field(default_factory=list)
    #: The layer of each task; some keys do not start with the name of their layer.
    layer: list[str] = field(default_factory=list)
    #: Pairs of layers, each of a task and its reader, which are not fused.
    separate: set[tuple[str, str]] = field(default_factory=set)
    light: LightTasks = field(default_factory=LightTasks)

    def __post_init__(self) -> None:
        #: By the name of a fusible layer, its tasks: a look-up in a layer calls functions of it.
        self.tasks_of_layer = {name: tasks_of(self.layers[name]) for name in self.fusible}
        #: Layers without the tasks that are not needed.
        self.culled = self._cull() if self.only_needed else set[str]()
        for name, tasks in self.tasks_of_layer.items():
            for key, task in tasks.items():
                self.number[key] = len(self.keys)
                self.keys.append(key)
                self.tasks.append(with_key(task, key))
                self.layer.append(name)
        #: What each task reads.
        self.reads: list[list[int]] = []
        for task in self.tasks:
            reads = []
            for key in task.dependencies:
                read = self.number.get(key)
                if read is None:
                    read = self.number[key] = len(self.keys)
                    self.keys.append(key)
                reads.append(read)
            self.reads.append(sorted(reads))
        self.readers: list[list[int]] = [[] for _ in self.keys]
        for number, reads in enumerate(self.reads):
            for read in reads:
                self.readers[read].append(number)
        names = [str(head_of(key)) for key in self.keys]
        #: The last task of the group of each task, which stands for the group.
        self.last = list(range(len(self.tasks)))
        #: Tasks whose keys stay in the graph: outputs, and what other layers read.
        self.fixed = self._fixed()
        #: Bytes of every result, 0 if that is unknown.
        size = {name: self.limits.size.get(name.rpartition("-")[2], 0) for name in set(names)}
        self.sizes = [size[name] for name in names]
        #: For every result, whether it is on every worker.
        self.free = [name in self.limits.free for name in names]
        #: An identifier of the home worker of every result; None for those without a home.
        self.homes = self._placed_homes(names)
        self.order = self._readers_first()
        for number in self.order:
            # tasks without inputs, or with inputs of their own, run where their readers are
            if self.homes[number] is None and self._needs_no_other(number):
                there = {self.homes[reader] for reader in self.readers[number]}
                if len(there) == 1:
                    self.homes[number] = there.pop()
        #: Number of tasks by layer and home.
        self.counts: Counter[tuple[str, Hashable]] = Counter()
        for number in reversed(self.order):
            if self.homes[number] is None and isinstance(self.tasks[number], (Anchored, Alias)):
                # slices run where their tile is, and an alias is what it stands for
                tiles = self._moved(number)
                if len(tiles) == 1:
                    self.homes[number] = self.homes[tiles[0]]
            self.counts[self.layer[number], self.homes[number]] += 1
        #: For every task, whether it reads a result that may be on another worker.
        self.remote = [
            any(not self.free[read] and self.homes[read] != home for read in reads)
            for home, reads in zip(self.homes, self.reads, strict=False)
        ]
        #: For every task, the bytes that it reads, but for those that are on every worker.
        self.inputs = list(map(self._bytes, self.reads))

    def _cull(self) -> set[str]:
        """Leave out the tasks that are not needed; the names of the layers that have some."""
        wanted = self._fixed_layers()
        keys = [key for name in wanted for key in self.tasks_of_layer[name]]
        others = [name for name in self.outputs if name not in wanted and name in self.layers]
        keys += [key for name in others for key in self.layers[name].get_output_keys()]
        graph = HighLevelGraph(self.layers, self.dependencies)
        culled = set()
        for name, reads, _ in needed_reads(graph, keys):
            tasks = self.tasks_of_layer.get(name, {})
            if len(reads) < len(tasks):
                self.tasks_of_layer[name] = {key: tasks[key] for key in tasks if key in reads}
                culled.add(name)
        return culled

    def _needs_no_other(self, number: int) -> bool:
        """Whether a task reads nothing, or only what it alone reads and what needs no inputs.

        What is on every worker does not count.
        """
        reads = self._moved(number)
        if isinstance(self.tasks[number], Anchored):
            return not reads
        return all(
            read < len(self.tasks) and not self._moved(read) and len(self.readers[read]) == 1
            for read in reads
        )

    def _moved(self, number: int) -> list[int]:
        """What a task reads that is not on every worker."""
        return [read for read in self.reads[number] if not self.free[read]]

    def _fixed(self) -> set[int]:
        layers = self._fixed_layers()
        return {self.number[key] for name in layers for key in self.tasks_of_layer[name]}

    def _fixed_layers(self) -> set[str]:
        """Layers of which all keys stay: outputs, and those that other layers read."""
        fusible = set(self.fusible)
        layers = {name for name in self.fusible if name in self.outputs}
        for name in self.layers:
            if name not in fusible:
                layers |= self.dependencies[name] & fusible
        return layers

    def _placed_homes(self, names: Sequence[str]) -> list[Hashable]:
        """The home workers that the names of keys give."""
        placements = {name: decode(name) for name in set(names)}
        tokens = {
            placement.follow.token
            for placement in placements.values()
            if placement is not None and placement.follow is not None
        }
        reads = {name for layer in self.fusible for name in self.dependencies[layer]}
        # for persisted arrays that other layers follow, the token of their name
        followed = {name: token(name) for name in reads if token(name) in tokens}
        homes: list[Hashable] = []
        for key, name in zip(self.keys, names, strict=True):
            placement = placements[name]
            if name in followed:
                homes.append((followed[name], key[1:]))
            elif placement is None or type(key) is not tuple:
                homes.append(None)
            elif placement.follow is not None:
                block = placement.followed(key[1:])
                homes.append(None if block is None else (placement.follow.token, block))
            else:
                position = placement.position_of(key[1:])
                homes.append(None if position is None else (placement.mesh, position))
        return homes

    def _readers_first(self) -> list[int]:
        """All tasks, each after its readers, in an order that does not depend on the keys."""
        count = len(self.tasks)
        waiting = list(map(len, self.readers[:count]))
        ready = [number for number, after in enumerate(waiting) if not after]
        order = []
        while ready:
            number = ready.pop()
            order.append(number)
            for read in self.reads[number]:
                if read < count:
                    waiting[read] -= 1
                    if not waiting[read]:
                        ready.append(read)
        return order

    def form_groups(self) -> bool:
        """Form groups; True if they break no rule, else keep more pairs of layers separate."""
        self.last = list(range(len(self.tasks)))
        work = [0] * len(self.tasks)
        #: The groups that call a function of which it is unknown how long it takes.
        calling: set[int] = set()
        for number in self.order:
            last = self._joinable(number)
            size = self.sizes[number]
            calls = self.layer[number] in self.limits.unknown
            if (
                last is None
                or work[last] + size > self.limits.work
                or (calls and last in calling and not self._is_only_input(number))
            ):
                last = number
            self.last[number] = last
            work[last] += size
            if calls:
                calling.add(last)
        violations = self._violations()
        self.separate |= violations
        return not violations

    def _is_only_input(self, number: int) -> bool:
        """Whether a task has one reader, which reads nothing else."""
        readers = self.readers[number]
        return len(readers) == 1 and len(self._moved(readers[0])) == 1

    def _joinable(self, number: int) -> int | None:
        """The last task of the group that a task may join, None if there is none."""
        readers = self.readers[number]
        if not readers or number in self.fixed:
            return None
        last = self.last[readers[0]]
        for reader in readers:
            if self.last[reader] != last:
                return None
        layer, home = self.layer[number], self.homes[number]
        light = layer in self.limits.light
        if self.homes[last] != home or (home is None and not light):
            return None
        if not isinstance(self.tasks[number], (Task, Alias)):
            return None
        if type(self.tasks[last]) not in (Task, Alias):
            return None
        if layer in self.limits.chained:
            [reader, *others] = readers
            if others or len(self.reads[reader]) > 1 or not self.sizes[reader]:
                return None
        if self.separate and any(
            (layer, self.layer[reader]) in self.separate for reader in readers
        ):
            return None
        if not light and (self.remote[last] or any(map(self.remote.__getitem__, readers))):
            return None
        if self.remote[number] and not (type(self.tasks[last]) is Alias and readers == [last]):
            return None  # an alias takes no time
        if min(self.counts[layer, home], self.counts[self.layer[last], home]) < self.limits.threads:
            return None
        return last

    def _violations(self) -> set[tuple[str, str]]:
        """Pairs of layers to keep separate, since groups of their tasks break a rule.

        Such a group reads more bytes at once than before, leaves a thread without a task, or
        would be fused by Dask with a task of another worker.
        """
        groups = self._groups()
        pairs = self._idle_threads(groups)
        for last, numbers in groups.items():
            if len(numbers) == 1:
                continue
            inside = set(numbers)
            inputs = set(chain.from_iterable(map(self.reads.__getitem__, numbers))) - inside
            if self._fused_by_dask(last, inputs):
                pairs |= self._pairs(numbers)
            if len(inputs) < 2:
                continue
            most = max([self.inputs[number] for number in numbers])
            if self._bytes(inputs) > max(most, self.limits.inputs):
                pairs |= {
                    (self.layer[read], self.layer[number])
                    for number in numbers
                    for read in self.reads[number]
                    if read in inside
                    and self.layer[read] not in self.limits.light
                    and (number == last or self._shrinks(read))
                }
        return pairs

    def _bytes(self, results: Iterable[int]) -> int:
        """Bytes of some results, but for those that are on every worker."""
        return sum([self.sizes[number] for number in results if not self.free[number]])

    def _groups(self) -> dict[int, list[int]]:
        """The tasks of every group, by its last, in an order in which they can run."""
        groups: dict[int, list[int]] = {}
        for number in reversed(self.order):
            groups.setdefault(self.last[number], []).append(number)
        return groups

    def _pairs(self, numbers: Iterable[int]) -> set[tuple[str, str]]:
        """Pairs of the layer of a task and the layer of a reader in the same group."""
        return {
            (self.layer[number], self.layer[reader])
            for number in numbers
            if self.last[number] != number
            for reader in self.readers[number]
        }

    def _idle_threads(self, groups: Mapping[int, list[int]]) -> set[tuple[str, str]]:
        """Pairs of layers with fewer groups than threads at a home, and no fewer tasks."""
        threads = self.limits.threads
        if threads == 1:
            return set()
        counts = Counter(
            place
            for numbers in groups.values()
            for place in {(self.layer[number], self.homes[number]) for number in numbers}
        )
        few = {place for place, count in counts.items() if count < threads <= self.counts[place]}
        return self._pairs(
            number for number in self.order if (self.layer[number], self.homes[number]) in few
        )

    def _fused_by_dask(self, last: int, inputs: set[int]) -> bool:
        """Whether Dask would fuse a group with some inputs with a task of another worker.

        It does where the group reads one task only, which has no other reader.  That costs
        transfers if this task has inputs of its own.
        """
        if len(inputs) != 1:
            return False
        [read] = inputs
        return (
            read < len(self.tasks)
            and type(self.tasks[read]) is Task
            and bool(self.reads[read])
            and len(self.readers[read]) == 1
            and self.homes[read] not in (None, self.homes[last])
        )

    def _shrinks(self, number: int) -> bool:
        """Whether the result of a task is smaller than its largest input."""
        most = max((self.sizes[read] for read in self.reads[number]), default=0)
        return self.sizes[number] < most

    def fused_graph(self) -> Fused:
        """The graph with one task for each group."""
        groups = self._groups()
        self._rename(groups)
        layers = dict(self.layers)
        reads = {name: set(names) for name, names in self.dependencies.items()}
        orders: dict[_Form, list[int]] = {}
        fused = {
            last: self._in_order(numbers, orders)
            for last, numbers in groups.items()
            if len(numbers) > 1
        }
        changed = {self.layer[number] for numbers in fused.values() for number in numbers}
        changed |= self.culled
        for name in sorted(changed, key=str):
            layer = self.layers[name]
            tasks = {}
            for key, task in self.tasks_of_layer[name].items():
                number = self.number[key]
                if number in groups:
                    tasks[key] = self._fused_task(fused[number]) if number in fused else task
            layers[name] = MaterializedLayer(
                tasks, collection_annotations=layer.collection_annotations
            )
        working = {self.keys[last]: self._working(numbers) for last, numbers in fused.items()}
        reads = self._dependencies(layers, reads, changed)
        # where graphs are merged, layers of the same name must have the same keys
        parts = {}
        for name in sorted(changed & layers.keys(), key=str):
            if len(layers[name]) < len(self.layers[name]):
                if self.dependencies[name]:
                    parts[name] = part_layer_name(name, layers[name])
                else:
                    layers[name] = self.layers[name]
        return Fused(_with_names(layers, reads, parts), working)

    def _in_order(self, numbers: Sequence[int], orders: dict[_Form, list[int]]) -> list[int]:
        """The tasks of a group, in an order in which they need little memory.

        `orders` are those of other groups, many of which have the same form.
        """
        place = {number: at for at, number in enumerate(numbers)}
        form = (
            tuple(
                tuple([place[read] for read in self.reads[number] if read in place])
                for number in numbers
            ),
            tuple([self.sizes[number] for number in numbers]),
        )
        if form not in orders:
            orders[form] = run_order(*form, [0] * len(numbers), kept=[len(numbers) - 1])
        return [numbers[at] for at in orders[form]]

    def _working(self, numbers: Sequence[int]) -> int:
        """Bytes of the results of a group that are in memory at the same time, but for the last."""
        live = live_bytes(
            numbers,
            self.reads.__getitem__,
            self.sizes.__getitem__,
            returned=numbers[-1:],
            working=self._working_alone,
        )
        return live - self.sizes[numbers[-1]]

    def _working_alone(self, number: int) -> int:
        """Bytes that one task holds while it runs, besides its inputs and its result."""
        if self.light.has(self.tasks[number]):
            return 0
        inputs = {self.keys[read]: self.sizes[read] for read in self.reads[number]}
        return working_bytes(self.tasks[number], inputs, self.sizes[number], self._value)

    def _value(self, key: Any) -> Any:
        """The value of a key that is data of the graph; None for other keys."""
        task = self.layers.get(str(head_of(key)), {}).get(key)
        return getattr(task, "value", task)

    def _rename(self, groups: dict[int, list[int]]) -> None:
        """Add an alias whose name gives no home to the group that it is the only reader of.

        It is a block of an array that keeps its name.  Dask would give the group the key of the
        alias, and the key of its last task, whose name gives its home, would be lost.
        """
        for number in self.order:
            if type(self.tasks[number]) is not Alias or number not in self.fixed:
                continue
            if MARK in str(head_of(self.keys[number])):
                continue
            [target] = self.reads[number]
            renamed = target in groups and target not in self.fixed
            if not renamed or not isinstance(self.tasks[target], Task):
                continue
            if self.readers[target] == [number]:
                groups[number] = [*groups.pop(target), number]

    def _fused_task(self, numbers: Sequence[int]) -> Task:
        """A task that runs several, with the key of the last.

        It is what ``Task.fuse`` makes, with another function.  Tasks of Dask's own function
        are rewritten by ``dask.array.optimization.optimize``, which merges a slice with a
        slice of it as if the first had no other reader (checked with dask 2026.7.1 and
        2026.8.0).  A fused task that also reads tiles is no root task to distributed.
        """
        fused: Any = fuse_tasks(*(self.tasks[number] for number in numbers))
        is_root = fused.data_producer and all(
            self.free[self.number[read]] for read in fused.dependencies
        )
        kind = Anchored if self._is_read_elsewhere(numbers) else Task
        return kind(fused.key, run_fused, *fused.args, _data_producer=is_root)

    def _is_read_elsewhere(self, numbers: Sequence[int]) -> bool:
        """Whether a group's result is read on another worker, and smaller than its inputs.

        If Dask fused such a group with its reader, the inputs would be sent there, not the result.
        """
        inside, last = set(numbers), numbers[-1]
        home = self.homes[last]
        readers = self.readers[last]
        if not readers:
            # a reader of another layer may be anywhere
            return last in self.fixed and self.layer[last] not in self.outputs
        if home is None or all(self.homes[reader] in (None, home) for reader in readers):
            return False
        inputs = {read for number in numbers for read in self.reads[number]} - inside
        return self._bytes(inputs) > self.sizes[last]

    def _dependencies(
        self, layers: dict[str, Layer], reads: dict[str, set[str]], changed: Iterable[str]
    ) -> dict[str, set[str]]:
        """The layers that each layer reads after fusion; layers without tasks are dropped."""
        changed = set(changed)
        other_layers: dict[Any, str] | None = None
        for name in changed:
            read_layers = {name}
            for task in layers[name].values():
                for read in task.dependencies:
                    layer = self._layer_of(read)
                    if layer is None:
                        if other_layers is None:
                            other_layers = self._other_layers()
                        layer = other_layers.get(read, name)
                    read_layers.add(layer)
            reads[name] = read_layers - {name}
        for name in [name for name in changed if not layers[name]]:
            del layers[name], reads[name]
        return {
            name: {other for other in names if other in layers} for name, names in reads.items()
        }

    def _layer_of(self, key: Any) -> str | None:
        """The layer of a key by its task, or by its name; None if that is not known."""
        number = self.number.get(key, len(self.tasks))
        if number < len(self.tasks):
            return self.layer[number]
        name = str(head_of(key))
        return name if name in self.layers else None

    def _other_layers(self) -> dict[Any, str]:
        """The layer of each key of the layers that are not fusible."""
        fusible = set(self.fusible)
        return {
            key: name
            for name, layer in self.layers.items()
            if name not in fusible
            for key in layer.get_output_keys()
        }


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
