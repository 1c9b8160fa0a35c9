"""Making one task of all that only one tile is made of, where it is made.

What a worker computes from nothing but its own tiles, for a single result, need not be
handed to the scheduler piece by piece: made one task, the pieces follow each other at once
and each is dropped as soon as it was read.  The tasks that become one are a *cone*, as it is
called in logic synthesis: all readers of each but the last are in it too.

A cone must not cost anything.  Its tasks are at one home; of results of other workers only
the last may wait, and then for what is light only, so that work and transfers overlap as
before; it needs little at once, or no more than one of its tasks did; it stays short enough
for a task that may have to be repeated; and every thread of a worker still has one of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer, MaterializedLayer

from dasktile._compat.dask import FUSE, Alias, Task, execute_subgraph, fuse_tasks, missing
from dasktile.capture.references import head_of
from dasktile.lower.anchored import Anchored
from dasktile.schedule.placement import Placement, decode, token

#: Tasks of a graph beyond which it is left as it is.
_MOST = 50_000

#: The share of what a cone may make that it may read at once.
_PARTS = 4

#: Times that cones are formed, each time with fewer tasks that may join one.
_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Limits:
    """What may become one task.

    Parameters
    ----------
    light
        Layers of reads, and of tasks that do nothing much to one tile.
    free
        Layers of what is everywhere: the array-likes that are read.
    size
        Bytes of one result, by the last part of its layer's name.
    work
        Bytes of all results that one task may make on the way.
    threads
        Tasks that a worker runs at once.
    """

    light: Collection[str]
    free: Collection[str]
    size: Mapping[str, int]
    work: int
    threads: int = 1


def coned(
    layers: Mapping[str, Layer],
    dependencies: Mapping[str, set[str]],
    written: Collection[str],
    outputs: Collection[str],
    limits: Limits,
) -> tuple[dict[str, Layer], dict[str, set[str]]]:
    """A graph with every cone made one task, of the key of its last.

    Parameters
    ----------
    layers, dependencies
        Of the graph.
    written
        Layers whose tasks may become one with others.
    outputs
        Layers that are asked for.
    limits
        What may.
    """
    mine = [
        name
        for name in layers
        if name in written
        and isinstance(layers[name], (MaterializedLayer, Blockwise))
        and not layers[name].annotations
    ]
    if not missing(FUSE) and sum(len(layers[name]) for name in mine) <= _MOST:
        cones = _Cones(layers, dependencies, mine, outputs, limits)
        for _ in range(_ROUNDS):
            if not cones.form():
                return cones.written()
    return dict(layers), {name: set(reads) for name, reads in dependencies.items()}


@dataclass
class _Cones:
    layers: Mapping[str, Layer]
    dependencies: Mapping[str, set[str]]
    mine: list[str]
    outputs: Collection[str]
    limits: Limits
    tasks: dict[Any, Any] = field(default_factory=dict)
    #: The layer that a task is in; steps may have keys of another name.
    layer: dict[Any, str] = field(default_factory=dict)
    readers: dict[Any, list[Any]] = field(default_factory=dict)
    #: The last task of the cone that a task is in.
    last: dict[Any, Any] = field(default_factory=dict)
    #: Layers whose tasks stay tasks beside those of another.
    apart: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        for name in self.mine:
            for key, task in self.layers[name].items():
                self.tasks[key] = task
                self.layer[key] = name
        seen = set(self.mine)
        #: Keys that others read, or that are asked for.
        self.fixed: set[Any] = set()
        for name in self.layers:
            if name in self.outputs or name not in seen:
                wanted = [name] if name in seen else self.dependencies[name] & seen
                self.fixed.update(key for other in wanted for key in self.layers[other])
        for key, task in self.tasks.items():
            for read in task.dependencies:
                self.readers.setdefault(read, []).append(key)
        self._placements: dict[Any, Placement | None] = {}
        for key in self.tasks:
            self._placement(_name(key))
        follows = [one.follow for one in self._placements.values() if one is not None]
        leaders = {follow[0] for follow in follows if follow is not None}
        below = {name for mine in self.mine for name in self.dependencies[mine]}
        self._leaders = {name: token(name) for name in below if token(name) in leaders}
        self.homes = {key: self._home(key) for key in self.tasks}
        self.order = self._backwards()
        #: How many tasks of a layer are at a home.
        self.alike: Counter[tuple[str, Hashable]] = Counter()
        for key in reversed(self.order):
            task = self.tasks[key]
            if self.homes[key] is None and isinstance(task, Anchored):
                # slices are where the tile is
                tiles = [read for read in task.dependencies if not self.is_free(read)]
                if len(tiles) == 1:
                    self.homes[key] = self.at(tiles[0])
            self.alike[self.layer[key], self.homes[key]] += 1

    def _placement(self, name: str) -> Placement | None:
        if name not in self._placements:
            self._placements[name] = decode(name)
        return self._placements[name]

    def _home(self, key: Any) -> Hashable:
        """Stands for the worker that a task is on, None if nobody has said where it is."""
        name = _name(key)
        if name in self._leaders:
            return self._leaders[name], key[1:]
        placement = self._placement(name)
        if placement is None or type(key) is not tuple:
            return None
        if placement.follow is not None:
            block = placement.followed(key[1:])
            return None if block is None else (placement.follow[0], block)
        position = placement.position_of(key[1:])
        return None if position is None else (placement.mesh, position)

    def _backwards(self) -> list[Any]:
        """All keys, readers before what they read."""
        left = {
            key: sum(reader in self.tasks for reader in self.readers.get(key, ()))
            for key in self.tasks
        }
        ready = [key for key, count in left.items() if not count]
        order = []
        while ready:
            key = ready.pop()
            order.append(key)
            for read in self.tasks[key].dependencies:
                if read in left:
                    left[read] -= 1
                    if not left[read]:
                        ready.append(read)
        return order

    def form(self) -> bool:
        """Form cones; False once none of them is wrong."""
        self.last = {}
        work: dict[Any, int] = {}
        for key in self.order:
            last = self._joins(key)
            size = self.size(key)
            if last is None or work[last] + size > self.limits.work:
                last, work[key] = key, 0
            self.last[key] = last
            work[last] += size
        wrong = self._wrong()
        self.apart |= wrong
        return bool(wrong)

    def _joins(self, key: Any) -> Any:
        """The last task of the cone that a task may join, None if there is no such."""
        home, light = self.homes[key], self.layer[key] in self.limits.light
        if key in self.fixed or not isinstance(self.tasks[key], (Task, Alias)):
            return None
        lasts = {self.last[reader] for reader in self.readers.get(key, ())}
        if len(lasts) != 1 or (home is None and not light):
            return None
        last = lasts.pop()
        if self.homes[last] != home or type(self.tasks[last]) not in (Task, Alias):
            return None
        if any((self.layer[key], self.layer[reader]) in self.apart for reader in self.readers[key]):
            return None
        if self.far(key) or (self.far(last) and not light):
            return None
        if min(self.alike[self.layer[one], home] for one in (key, last)) < self.limits.threads:
            return None
        return last

    def far(self, key: Any) -> bool:
        """True for a task that reads what may be on another worker."""
        return any(
            self.at(read) != self.homes[key]
            for read in self.tasks[key].dependencies
            if not self.is_free(read)
        )

    def at(self, key: Any) -> Hashable:
        return self.homes[key] if key in self.homes else self._home(key)

    def is_free(self, key: Any) -> bool:
        return _name(key) in self.limits.free

    def size(self, key: Any) -> int:
        return self.limits.size.get(_name(key).rpartition("-")[2], 0)

    def _wrong(self) -> set[tuple[str, str]]:
        """Pairs of layers that must stay apart.

        As cones would need more at once, or would leave threads without work, or as Dask
        would make a task elsewhere one with a cone that reads nothing else.
        """
        members = self._members()
        wrong = self._few(members)
        for last, keys in members.items():
            if len(keys) == 1:
                continue
            inside = set(keys)
            if self._draws(last, inside):
                wrong |= self._pairs(keys)
            outer: set[Any] = set()
            most = 0
            for key in keys:
                reads = [read for read in self.tasks[key].dependencies if not self.is_free(read)]
                outer.update(read for read in reads if read not in inside)
                most = max(most, sum(map(self.size, reads)))
            if sum(map(self.size, outer)) > max(most, self.limits.work // _PARTS):
                wrong |= {
                    (self.layer[read], self.layer[key])
                    for key in keys
                    for read in self.tasks[key].dependencies
                    if read in inside
                    and self.layer[read] not in self.limits.light
                    and (key == last or self._shrinks(read))
                }
        return wrong

    def _members(self) -> dict[Any, list[Any]]:
        """The tasks of every cone, by its last, in an order in which they can run."""
        members: dict[Any, list[Any]] = {}
        for key in reversed(self.order):
            members.setdefault(self.last[key], []).append(key)
        return members

    def _pairs(self, keys: Iterable[Any]) -> set[tuple[str, str]]:
        """Layers of tasks of a cone, with those of the tasks of it that read them."""
        return {
            (self.layer[key], self.layer[reader])
            for key in keys
            if self.last[key] != key
            for reader in self.readers[key]
        }

    def _few(self, members: Mapping[Any, list[Any]]) -> set[tuple[str, str]]:
        """Pairs of layers in cones that are fewer than threads, though their tasks were not."""
        threads = self.limits.threads
        if threads == 1:
            return set()
        places = [{(self.layer[key], self.homes[key]) for key in keys} for keys in members.values()]
        cones = Counter(place for found in places for place in found)
        few = {place for place, count in cones.items() if count < threads <= self.alike[place]}
        return self._pairs(key for key in self.order if (self.layer[key], self.homes[key]) in few)

    def _draws(self, last: Any, inside: set[Any]) -> bool:
        """Whether a cone reads one task only, of another worker, that reads more."""
        outer = {read for key in inside for read in self.tasks[key].dependencies} - inside
        if len(outer) != 1:
            return False
        [read] = outer
        task = self.tasks.get(read)
        return (
            type(task) is Task
            and bool(task.dependencies)
            and len(self.readers[read]) == 1
            and self.at(read) not in (None, self.homes[last])
        )

    def _shrinks(self, key: Any) -> bool:
        return self.size(key) < max(map(self.size, self.tasks[key].dependencies), default=0)

    def written(self) -> tuple[dict[str, Layer], dict[str, set[str]]]:
        """The layers and dependencies of the graph with one task for each cone."""
        members = self._members()
        layers = dict(self.layers)
        reads = {name: set(names) for name, names in self.dependencies.items()}
        changed = {self.layer[key] for key, last in self.last.items() if key != last}
        changed |= {self.layer[last] for last, keys in members.items() if len(keys) > 1}
        for name in sorted(changed):
            layer = self.layers[name]
            tasks = {}
            for key, task in layer.items():
                keys = members.get(key)
                if keys is not None:
                    tasks[key] = task
                    if len(keys) > 1:
                        tasks[key] = self._one_task(keys)
            layers[name] = MaterializedLayer(
                tasks, collection_annotations=layer.collection_annotations
            )
        return layers, self._dependencies(layers, reads, changed)

    def _one_task(self, keys: list[Any]) -> Task:
        """A task that does what several do, of the key of the last.

        As ``Task.fuse`` makes it, except for the function: tasks of that one are rewritten by
        ``dask.array.optimization.optimize``, which makes one slice of a slice of another as if
        the latter had no other reader.  Checked with dask 2026.7.1 and 2026.8.0.  What reads
        tiles too is none of the tasks that distributed takes for roots.
        """
        fused: Any = fuse_tasks(*(self.tasks[key] for key in keys))
        is_root = fused.data_producer and all(map(self.is_free, fused.dependencies))
        return Task(fused.key, run_cone, *fused.args, _data_producer=is_root)

    def _dependencies(
        self, layers: dict[str, Layer], reads: dict[str, set[str]], changed: Iterable[str]
    ) -> dict[str, set[str]]:
        """What layers read now; those of which nothing is left are dropped."""
        changed = set(changed)
        others: dict[Any, str] | None = None
        for name in changed:
            found = {name}
            for task in layers[name].values():
                for read in task.dependencies:
                    layer = self.layer.get(read)
                    if layer is None and _name(read) in self.layers:
                        layer = _name(read)
                    if layer is None:
                        if others is None:
                            others = self._others()
                        layer = others.get(read, name)
                    found.add(layer)
            reads[name] = found - {name}
        for name in [name for name in changed if not layers[name]]:
            del layers[name], reads[name]
        return {
            name: {other for other in names if other in layers} for name, names in reads.items()
        }

    def _others(self) -> dict[Any, str]:
        """For keys of layers that are not ours, the layer that holds them."""
        mine = set(self.mine)
        return {
            key: name
            for name, layer in self.layers.items()
            if name not in mine
            for key in layer.get_output_keys()
        }


def run_cone(tasks: Mapping[Any, Any], key: Any, reads: Collection[Any], *values: Any) -> Any:
    """The result of one of several tasks, and no other; each is dropped once it was read.

    Parameters
    ----------
    tasks
        By key.
    key
        Of the last.
    reads, values
        What is none of the tasks' result.
    """
    return execute_subgraph(tasks, key, reads, *values)


def _name(key: Any) -> str:
    return str(head_of(key))
