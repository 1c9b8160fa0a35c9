"""The tasks that may be fused, by number: what they read, where they run, and their sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.highlevelgraph import HighLevelGraph, Layer

from dasktile._compat.dask import Alias
from dasktile.capture.culling import needed_tasks
from dasktile.capture.references import heads, tasks_of
from dasktile.lower.anchored import Anchored
from dasktile.lower.settings import DEFAULTS, LowerSettings
from dasktile.lower.tasks import with_key
from dasktile.schedule.placement import decode, token


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
class Edges:
    """Every read of a result by a task, in columns.

    Parameters
    ----------
    readers, reads
        The numbers of the task and of the result.
    same_home
        Whether both have the same home.
    """

    readers: npt.NDArray[np.intp]
    reads: npt.NDArray[np.intp]
    same_home: npt.NDArray[np.bool_]


@dataclass
class FusibleTasks:
    """The tasks of layers whose tasks may be fused, by number.

    Results that these tasks read and other layers make have the numbers after theirs, in any order:
    nothing depends on which of them is first.

    Parameters
    ----------
    layers, dependencies, outputs, limits, only_needed
        As for :func:`~dasktile.lower.fuse.fuse`.
    fusible_layers
        Names of the layers whose tasks may be fused.
    """

    layers: Mapping[str, Layer]
    dependencies: Mapping[str, set[str]]
    fusible_layers: list[str]
    outputs: Collection[str]
    limits: FuseLimits
    only_needed: bool = False
    keys: list[Any] = field(default_factory=list)
    number: dict[Any, int] = field(default_factory=dict)
    tasks: list[Any] = field(default_factory=list)
    #: The layer of each task; some keys do not start with the name of their layer.
    layer: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        #: By the name of a fusible layer, its tasks: a look-up in a layer calls functions of it.
        self.tasks_of_layer = {name: tasks_of(self.layers[name]) for name in self.fusible_layers}
        #: Layers without the tasks that are not needed.
        self.culled = self._cull() if self.only_needed else set[str]()
        for name, tasks in self.tasks_of_layer.items():
            keys, own = list(tasks), list(tasks.values())
            self.keys += keys
            # nearly all tasks have the keys that they have in their layers
            self.tasks += own if [task.key for task in own] == keys else map(with_key, own, keys)
            self.layer += [name] * len(keys)
        self.number = dict(zip(self.keys, count(), strict=False))
        #: What each task reads.
        self.reads = self._reads()
        self.readers: list[list[int]] = [[] for _ in self.keys]
        readers = self.readers
        for number, reads in enumerate(self.reads):
            for read in reads:
                readers[read].append(number)
        names = list(map(str, heads(self.keys)))
        #: Tasks whose keys stay in the graph: outputs, and what other layers read.
        self.fixed = self._fixed()
        #: Bytes of every result, 0 if that is unknown.
        size = {name: self.limits.size.get(name.rpartition("-")[2], 0) for name in set(names)}
        self.sizes = list(map(size.__getitem__, names))
        free = {name: name in self.limits.free for name in size}
        #: For every result, whether it is on every worker.
        self.free = list(map(free.__getitem__, names))
        moved = {name: 0 if free[name] else size[name] for name in size}
        #: Bytes of every result, 0 if it is on every worker.
        self.moved_sizes = list(map(moved.__getitem__, names))
        #: A number for the home worker of every result; None for those without a home.
        self.homes = homes = self._placed_homes(names)
        self.order = self._readers_first()
        for number in [number for number in self.order if homes[number] is None]:
            # tasks without inputs, or with inputs of their own, run where their readers are
            if self._needs_no_other(number):
                there = {homes[reader] for reader in readers[number]}
                if len(there) == 1:
                    homes[number] = there.pop()
        for number in reversed([number for number in self.order if homes[number] is None]):
            if isinstance(self.tasks[number], (Anchored, Alias)):
                # slices run where their tile is, and an alias is what it stands for
                tiles = self.moved(number)
                if len(tiles) == 1:
                    homes[number] = homes[tiles[0]]
        self.edges = self._edges()
        #: For every task, whether it reads a result that may be on another worker.
        self.remote = self._remote()

    @cached_property
    def counts(self) -> Counter[tuple[str, int | None]]:
        """Number of tasks by layer and home."""
        return Counter(zip(self.layer, self.homes, strict=False))

    def _cull(self) -> set[str]:
        """Leave out the tasks that are not needed; the names of the layers that have some."""
        wanted = self._fixed_layers()
        keys = [key for name in wanted for key in self.tasks_of_layer[name]]
        others = [name for name in self.outputs if name not in wanted and name in self.layers]
        keys += [key for name in others for key in self.layers[name].get_output_keys()]
        graph = HighLevelGraph(self.layers, self.dependencies)
        culled = set()
        for name, needed, _ in needed_tasks(graph, keys):
            tasks = self.tasks_of_layer.get(name, {})
            if len(needed) < len(tasks):
                self.tasks_of_layer[name] = {key: tasks[key] for key in tasks if key in needed}
                culled.add(name)
        return culled

    def _reads(self) -> list[list[int]]:
        """The numbers of what each task reads; new ones for results that have none."""
        needs = [task.dependencies for task in self.tasks]
        find = self.number.__getitem__
        try:
            # most tasks read one result
            return [
                sorted(map(find, keys)) if len(keys) > 1 else [*map(find, keys)] for keys in needs
            ]
        except KeyError:
            others = set(chain.from_iterable(needs)).difference(self.number)
            self.number.update(zip(others, count(len(self.keys)), strict=False))
            self.keys += others
            return self._reads()

    def _edges(self) -> Edges:
        """Every read of a result by a task."""
        counts = np.fromiter(map(len, self.reads), np.intp, len(self.reads))
        reads = np.fromiter(chain.from_iterable(self.reads), np.intp, int(counts.sum()))
        readers = np.repeat(np.arange(len(counts)), counts)
        # no home is a home of its own
        homes = np.array([-1 if home is None else home for home in self.homes], np.intp)
        return Edges(readers, reads, homes[readers] == homes[reads])

    def _remote(self) -> list[bool]:
        edges, remote = self.edges, np.zeros(len(self.tasks), np.bool_)
        free = np.array(self.free, np.bool_)
        remote[edges.readers[~edges.same_home & ~free[edges.reads]]] = True
        found: list[bool] = remote.tolist()
        return found

    def _needs_no_other(self, number: int) -> bool:
        """Whether a task reads nothing, or only what it alone reads and what needs no inputs.

        What is on every worker does not count.
        """
        reads = self.moved(number)
        if isinstance(self.tasks[number], Anchored):
            return not reads
        return all(
            read < len(self.tasks) and not self.moved(read) and len(self.readers[read]) == 1
            for read in reads
        )

    def moved(self, number: int) -> list[int]:
        """What a task reads that is not on every worker."""
        return [read for read in self.reads[number] if not self.free[read]]

    def _fixed(self) -> set[int]:
        layers = self._fixed_layers()
        return {self.number[key] for name in layers for key in self.tasks_of_layer[name]}

    def _fixed_layers(self) -> set[str]:
        """Layers of which all keys stay: outputs, and those that other layers read."""
        fusible = set(self.fusible_layers)
        layers = {name for name in self.fusible_layers if name in self.outputs}
        for name in self.layers:
            if name not in fusible:
                layers |= self.dependencies[name] & fusible
        return layers

    def _placed_homes(self, names: Sequence[str]) -> list[int | None]:
        """Numbers of the home workers that the names of keys give."""
        placements = {name: decode(name) for name in set(names)}
        tokens = {
            placement.follow.token
            for placement in placements.values()
            if placement is not None and placement.follow is not None
        }
        reads = {name for layer in self.fusible_layers for name in self.dependencies[layer]}
        # for persisted arrays that other layers follow, the token of their name
        followed = {name: token(name) for name in reads if token(name) in tokens}

        def home(key: Any, name: str) -> Hashable:
            placement = placements[name]
            if name in followed:
                return followed[name], key[1:]
            if placement is None or type(key) is not tuple:
                return None
            if placement.follow is not None:
                block = placement.followed(key[1:])
                return None if block is None else (placement.follow.token, block)
            position = placement.position_of(key[1:])
            return None if position is None else (placement.mesh, position)

        #: By how homes are found, the number of the home of each block; many layers have the same.
        known: dict[Hashable, dict[Any, int | None]] = {}
        known_of = {}
        for name, placement in placements.items():
            rule = placement
            if placement is not None:
                rule = replace(placement, predicted=0, planned_for=None)
            known_of[name] = known.setdefault((followed.get(name), rule), {})
        numbers: dict[Hashable, int | None] = {None: None}
        homes: list[int | None] = []
        for key, name in zip(self.keys, names, strict=True):
            homes_of, block = known_of[name], key[1:] if type(key) is tuple else key
            if block not in homes_of:
                homes_of[block] = numbers.setdefault(home(key, name), len(numbers))
            homes.append(homes_of[block])
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

    def bytes(self, results: Iterable[int]) -> int:
        """Bytes of some results, but for those that are on every worker."""
        return sum(map(self.moved_sizes.__getitem__, results))
