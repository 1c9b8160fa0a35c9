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
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from dasktile._compat.dask import FUSE, Alias, Task, fuse_tasks, missing, run_fused
from dasktile.capture.references import head_of
from dasktile.lower.anchored import Anchored
from dasktile.lower.run_order import live_bytes
from dasktile.lower.settings import DEFAULTS, LowerSettings
from dasktile.schedule.placement import MARK, Placement, decode, token


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
        fusion = _Fusion(layers, dependencies, fusible, outputs, limits)
        for _ in range(settings.max_rounds):
            if fusion.form_groups():
                return fusion.fused_graph()
    return Fused(HighLevelGraph(layers, dependencies))


@dataclass
class _Fusion:
    """The tasks of the fusible layers, and the groups that they form."""

    layers: Mapping[str, Layer]
    dependencies: Mapping[str, set[str]]
    #: Names of the layers whose tasks may be fused.
    fusible: list[str]
    outputs: Collection[str]
    limits: FuseLimits
    tasks: dict[Any, Any] = field(default_factory=dict)
    #: The layer of each task; some keys do not start with the name of their layer.
    layer: dict[Any, str] = field(default_factory=dict)
    readers: dict[Any, list[Any]] = field(default_factory=dict)
    #: The last task of the group of each task, which stands for the group.
    last: dict[Any, Any] = field(default_factory=dict)
    #: Pairs of layers, each of a task and its reader, which are not fused.
    separate: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        for name in self.fusible:
            for key, task in self.layers[name].items():
                self.tasks[key] = task
                self.layer[key] = name
        fusible = set(self.fusible)
        #: Keys that stay in the graph: outputs, and what other layers read.
        self.fixed: set[Any] = set()
        for name in self.layers:
            if name in self.outputs or name not in fusible:
                needed = [name] if name in fusible else self.dependencies[name] & fusible
                self.fixed.update(key for layer in needed for key in self.layers[layer])
        for key, task in self.tasks.items():
            for read in task.dependencies:
                self.readers.setdefault(read, []).append(key)
        self._placements: dict[Any, Placement | None] = {}
        for key in self.tasks:
            self._placement(_name(key))
        placements = [placement for placement in self._placements.values() if placement is not None]
        tokens = {placement.follow[0] for placement in placements if placement.follow is not None}
        reads = {name for layer in self.fusible for name in self.dependencies[layer]}
        #: For persisted arrays that other layers follow, the token of their name.
        self._followed = {name: token(name) for name in reads if token(name) in tokens}
        self.homes = {key: self._placed_home(key) for key in self.tasks}
        #: By the name in a key, bytes of the result.
        self._sizes: dict[str, int] = {}
        #: For tasks that were asked for, whether they read results of other workers.
        self._remote: dict[Any, bool] = {}
        self.order = self._readers_first()
        for key in self.order:
            # tasks without inputs run where their readers are
            if self.homes[key] is None and not self.tasks[key].dependencies:
                there = {self.homes.get(reader) for reader in self.readers.get(key, ())}
                if len(there) == 1:
                    self.homes[key] = there.pop()
        #: Number of tasks by layer and home.
        self.counts: Counter[tuple[str, Hashable]] = Counter()
        for key in reversed(self.order):
            task = self.tasks[key]
            if self.homes[key] is None and isinstance(task, Anchored):
                # slices run where their tile is
                tiles = [read for read in task.dependencies if not self.is_free(read)]
                if len(tiles) == 1:
                    self.homes[key] = self.home(tiles[0])
            self.counts[self.layer[key], self.homes[key]] += 1

    def _placement(self, name: str) -> Placement | None:
        if name not in self._placements:
            self._placements[name] = decode(name)
        return self._placements[name]

    def _placed_home(self, key: Any) -> Hashable:
        """An identifier of the home worker that a key's name gives, None if it gives none."""
        name = _name(key)
        if name in self._followed:
            return self._followed[name], key[1:]
        placement = self._placement(name)
        if placement is None or type(key) is not tuple:
            return None
        if placement.follow is not None:
            block = placement.followed(key[1:])
            return None if block is None else (placement.follow[0], block)
        position = placement.position_of(key[1:])
        return None if position is None else (placement.mesh, position)

    def _readers_first(self) -> list[Any]:
        """All keys, each after its readers, in an order that does not depend on the keys."""
        place = {key: number for number, key in enumerate(self.tasks)}
        waiting = {
            key: sum(reader in self.tasks for reader in self.readers.get(key, ()))
            for key in self.tasks
        }
        ready = [key for key, count in waiting.items() if not count]
        order = []
        while ready:
            key = ready.pop()
            order.append(key)
            reads = [read for read in self.tasks[key].dependencies if read in waiting]
            for read in sorted(reads, key=place.__getitem__):
                waiting[read] -= 1
                if not waiting[read]:
                    ready.append(read)
        return order

    def form_groups(self) -> bool:
        """Form groups; True if they break no rule, else keep more pairs of layers separate."""
        self.last = {}
        work: dict[Any, int] = {}
        for key in self.order:
            last = self._joinable(key)
            size = self.size(key)
            if last is None or work[last] + size > self.limits.work:
                last, work[key] = key, 0
            self.last[key] = last
            work[last] += size
        violations = self._violations()
        self.separate |= violations
        return not violations

    def _joinable(self, key: Any) -> Any:
        """The last task of the group that a task may join, None if there is none."""
        home, light = self.homes[key], self.layer[key] in self.limits.light
        if key in self.fixed or not isinstance(self.tasks[key], (Task, Alias)):
            return None
        lasts = {self.last[reader] for reader in self.readers.get(key, ())}
        if len(lasts) != 1 or (home is None and not light):
            return None
        last = lasts.pop()
        if self.homes[last] != home or type(self.tasks[last]) not in (Task, Alias):
            return None
        layer = self.layer[key]
        if layer in self.limits.chained:
            [reader, *others] = self.readers[key]
            if others or len(self.tasks[reader].dependencies) > 1 or not self.size(reader):
                return None
        if any((layer, self.layer[reader]) in self.separate for reader in self.readers[key]):
            return None
        if self.reads_remote(key) or (self.reads_remote(last) and not light):
            return None
        if min(self.counts[layer, home], self.counts[self.layer[last], home]) < self.limits.threads:
            return None
        return last

    def reads_remote(self, key: Any) -> bool:
        """Whether a task reads a result that may be on another worker."""
        if key not in self._remote:
            home = self.homes[key]
            self._remote[key] = any(
                self.home(read) != home and not self.is_free(read)
                for read in self.tasks[key].dependencies
            )
        return self._remote[key]

    def home(self, key: Any) -> Hashable:
        """An identifier of a key's home worker, None if it has none."""
        return self.homes[key] if key in self.homes else self._placed_home(key)

    def is_free(self, key: Any) -> bool:
        """Whether a result is on every worker."""
        return _name(key) in self.limits.free

    def size(self, key: Any) -> int:
        """Bytes of a result, 0 if that is unknown."""
        name = _name(key)
        if name not in self._sizes:
            self._sizes[name] = self.limits.size.get(name.rpartition("-")[2], 0)
        return self._sizes[name]

    def _violations(self) -> set[tuple[str, str]]:
        """Pairs of layers to keep separate, since groups of their tasks break a rule.

        Such a group reads more bytes at once than before, leaves a thread without a task, or
        would be fused by Dask with a task of another worker.
        """
        groups = self._groups()
        pairs = self._idle_threads(groups)
        for last, keys in groups.items():
            if len(keys) == 1:
                continue
            inside = set(keys)
            if self._fused_by_dask(last, inside):
                pairs |= self._pairs(keys)
            inputs: set[Any] = set()
            most = 0
            for key in keys:
                reads = [read for read in self.tasks[key].dependencies if not self.is_free(read)]
                inputs.update(read for read in reads if read not in inside)
                most = max(most, sum(map(self.size, reads)))
            if sum(map(self.size, inputs)) > max(most, self.limits.inputs):
                pairs |= {
                    (self.layer[read], self.layer[key])
                    for key in keys
                    for read in self.tasks[key].dependencies
                    if read in inside
                    and self.layer[read] not in self.limits.light
                    and (key == last or self._shrinks(read))
                }
        return pairs

    def _groups(self) -> dict[Any, list[Any]]:
        """The tasks of every group, by its last, in an order in which they can run."""
        groups: dict[Any, list[Any]] = {}
        for key in reversed(self.order):
            groups.setdefault(self.last[key], []).append(key)
        return groups

    def _pairs(self, keys: Iterable[Any]) -> set[tuple[str, str]]:
        """Pairs of the layer of a task and the layer of a reader in the same group."""
        return {
            (self.layer[key], self.layer[reader])
            for key in keys
            if self.last[key] != key
            for reader in self.readers[key]
        }

    def _idle_threads(self, groups: Mapping[Any, list[Any]]) -> set[tuple[str, str]]:
        """Pairs of layers with fewer groups than threads at a home, and no fewer tasks."""
        threads = self.limits.threads
        if threads == 1:
            return set()
        counts = Counter(
            place
            for keys in groups.values()
            for place in {(self.layer[key], self.homes[key]) for key in keys}
        )
        few = {place for place, count in counts.items() if count < threads <= self.counts[place]}
        return self._pairs(key for key in self.order if (self.layer[key], self.homes[key]) in few)

    def _fused_by_dask(self, last: Any, inside: set[Any]) -> bool:
        """Whether Dask would fuse a group with a task of another worker.

        It does where the group reads one task only, which has no other reader.  That costs
        transfers if this task has inputs of its own.
        """
        inputs = {read for key in inside for read in self.tasks[key].dependencies} - inside
        if len(inputs) != 1:
            return False
        [read] = inputs
        task = self.tasks.get(read)
        return (
            type(task) is Task
            and bool(task.dependencies)
            and len(self.readers[read]) == 1
            and self.home(read) not in (None, self.homes[last])
        )

    def _shrinks(self, key: Any) -> bool:
        """Whether the result of a task is smaller than its largest input."""
        return self.size(key) < max(map(self.size, self.tasks[key].dependencies), default=0)

    def fused_graph(self) -> Fused:
        """The graph with one task for each group."""
        groups = self._groups()
        self._rename(groups)
        layers = dict(self.layers)
        reads = {name: set(names) for name, names in self.dependencies.items()}
        changed = {self.layer[key] for keys in groups.values() if len(keys) > 1 for key in keys}
        for name in sorted(changed):
            layer = self.layers[name]
            tasks = {}
            for key, task in layer.items():
                keys = groups.get(key)
                if keys is not None:
                    tasks[key] = task if len(keys) == 1 else self._fused_task(keys)
            layers[name] = MaterializedLayer(
                tasks, collection_annotations=layer.collection_annotations
            )
        working = {key: self._working(keys) for key, keys in groups.items() if len(keys) > 1}
        return Fused(HighLevelGraph(layers, self._dependencies(layers, reads, changed)), working)

    def _working(self, keys: Sequence[Any]) -> int:
        """Bytes of the results of a group that are in memory at the same time, but for the last."""
        live = live_bytes(
            keys, lambda key: self.tasks[key].dependencies, self.size, returned=keys[-1:]
        )
        return live - self.size(keys[-1])

    def _rename(self, groups: dict[Any, list[Any]]) -> None:
        """Add an alias whose name gives no home to the group that it is the only reader of.

        It is a block of an array that keeps its name.  Dask would give the group the key of the
        alias, and the key of its last task, whose name gives its home, would be lost.
        """
        for key in self.order:
            task = self.tasks[key]
            if type(task) is not Alias or key not in self.fixed or MARK in _name(key):
                continue
            [target] = task.dependencies
            renamed = target in groups and target not in self.fixed
            if renamed and isinstance(self.tasks[target], Task) and self.readers[target] == [key]:
                groups[key] = [*groups.pop(target), key]

    def _fused_task(self, keys: list[Any]) -> Task:
        """A task that runs several, with the key of the last.

        It is what ``Task.fuse`` makes, with another function.  Tasks of Dask's own function
        are rewritten by ``dask.array.optimization.optimize``, which merges a slice with a
        slice of it as if the first had no other reader (checked with dask 2026.7.1 and
        2026.8.0).  A fused task that also reads tiles is no root task to distributed.
        """
        fused: Any = fuse_tasks(*(self.tasks[key] for key in keys))
        is_root = fused.data_producer and all(map(self.is_free, fused.dependencies))
        return Task(fused.key, run_fused, *fused.args, _data_producer=is_root)

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
                    layer = self.layer.get(read)
                    if layer is None and _name(read) in self.layers:
                        layer = _name(read)
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

    def _other_layers(self) -> dict[Any, str]:
        """The layer of each key of the layers that are not fusible."""
        fusible = set(self.fusible)
        return {
            key: name
            for name, layer in self.layers.items()
            if name not in fusible
            for key in layer.get_output_keys()
        }


def _name(key: Any) -> str:
    return str(head_of(key))
