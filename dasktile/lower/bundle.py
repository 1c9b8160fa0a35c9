"""Bundling tasks of one worker: one task runs a group of tasks and returns several results.

Dask's cost of a task is the same for small and large tasks: the time of the scheduler and of the
worker's event loop, about 3 ms together.  A *bundle* runs several tasks of one home and returns a
tuple of the results that are read elsewhere (:mod:`dasktile.lower.runs` chooses the tasks).  Tasks
of the same home read the bundle.  Tasks of other homes, and keys that must stay in the graph, read
*picks*: tasks that return a part of the tuple, so that no other part is sent.

Dask fuses neither bundles nor picks with their readers: a pick that is fused with its reader
would run on the reader's worker, which would receive the whole tuple.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import Any

from dask.blockwise import Blockwise, optimize_blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer
from dask.tokenize import tokenize

from dasktile._compat.dask import FUSE, Alias, Task, TaskRef, missing
from dasktile.capture.base import GraphView
from dasktile.capture.references import head_of
from dasktile.ir import Share
from dasktile.lower.anchored import Anchored
from dasktile.lower.names import new_layer_name
from dasktile.lower.runs import Run, RunLimits, TaskTable, form_runs, task_phases
from dasktile.lower.settings import DEFAULTS, LowerSettings
from dasktile.schedule.placement import SLICE_PREFIX, Placement, decode, token

Key = Any

#: The place of a result in a value: indices of nested tuples; empty for the value itself.
Path = tuple[int, ...]

#: Longest tuple in a bundle's value.  ``dask.sizeof`` measures a random sample of longer ones.
_MAX_TUPLE = 10


@dataclass(frozen=True, slots=True)
class BundleLimits:
    """What may be bundled.

    Parameters
    ----------
    mesh
        Sizes of the axes of the worker mesh; empty where all tasks run in one process.
    size
        Bytes of one result, by the last part of its layer's name.
    free
        Names of layers that are on every worker: the array-likes that are read.
    tasks
        Tasks that one bundle runs at most; less than 2 disables bundles.
    work
        Bytes of a bundle's inputs and of its results that are in memory at the same time.
    threads
        Tasks that a worker runs at once.
    positions
        By the token of an array whose name has no placement, the mesh positions of its blocks:
        persisted arrays, and arrays of the input graph.
    settings
        Numbers of the policy.
    """

    mesh: tuple[int, ...]
    size: Mapping[str, int]
    free: Collection[str]
    tasks: int
    work: int
    threads: int = 1
    positions: Mapping[str, Mapping[tuple[int, ...], int]] = field(default_factory=dict)
    settings: LowerSettings = DEFAULTS


def bundle(
    graph: HighLevelGraph, outputs: Sequence[str], order: Sequence[str], limits: BundleLimits
) -> HighLevelGraph:
    """The graph with bundles in place of tasks; the same graph if they gain nothing.

    The layers of the outputs have the same keys as before.  Other layers may be missing, and
    layers of bundles take their place.

    Parameters
    ----------
    graph
        The graph.
    outputs
        Names of the layers whose results are outputs.
    order
        Names of layers, in an order that does not depend on the names.
    limits
        What may be bundled.
    """
    if limits.tasks < 2 or missing(FUSE):
        return graph
    # as Dask does, so that tasks are counted as Dask runs them
    merged = optimize_blockwise(graph, keys=[(name,) for name in outputs])
    if sum(map(len, merged.layers.values())) > limits.settings.max_tasks:
        return graph
    bundling = _Bundling(merged, tuple(dict.fromkeys(outputs)), order, limits)
    runs = bundling.runs()
    if not runs:
        return graph
    new = bundling.rewritten(runs)
    return new if _most_tasks(new, bundling.outputs) < sum(bundling.table.counts) else graph


def _most_tasks(graph: HighLevelGraph, outputs: Collection[str]) -> int:
    """Tasks that Dask runs for a graph of plain tasks at most, after it has fused chains."""
    tasks = {key: task for layer in graph.layers.values() for key, task in layer.items()}
    reader: dict[Key, Any] = {}
    shared: set[Key] = set()
    for task in tasks.values():
        for read in getattr(task, "dependencies", ()):
            if read in reader:
                shared.add(read)
            reader[read] = task
    fused = {
        key
        for key, task in tasks.items()
        if key in reader
        and key not in shared
        and head_of(key) not in outputs
        and _fuses(task, reader[key])
    }
    # a chain has a key of its own, and an alias of it
    chains = {reader[key].key for key in fused} - fused
    return len(tasks) - len(fused) + len(chains)


def _fuses(task: Any, reader: Any) -> bool:
    """Whether Dask fuses a task with its only reader."""
    return (
        isinstance(task, (Task, Alias))
        and isinstance(reader, (Task, Alias))
        and len(reader.dependencies) == 1
        and not task.block_fusion
        and not reader.block_fusion
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """Where a result is read: a key of the new graph, and the place in its value."""

    key: Key
    path: Path = ()


class _Bundling:
    """The tasks of a graph, by number, and the bundles that replace them."""

    def __init__(
        self,
        graph: HighLevelGraph,
        outputs: Sequence[str],
        order: Sequence[str],
        limits: BundleLimits,
    ) -> None:
        self.graph, self.outputs, self.limits = graph, outputs, limits
        view = GraphView(graph)
        places = {name: place for place, name in enumerate(order)}
        names = sorted(graph.layers, key=lambda name: places.get(name, len(places)))
        self.keys: list[Key] = []
        self.tasks: list[Any] = []
        self.layer: list[str] = []
        self.number: dict[Key, int] = {}
        #: The tasks of every layer.
        self.every = {name: view.tasks(name) for name in names}
        wanted = self._needed(self.every)
        for name in names:
            for key, task in self.every[name].items():
                if key in wanted and key not in self.number:
                    self.number[key] = len(self.keys)
                    self.keys.append(key)
                    self.tasks.append(task)
                    self.layer.append(name)
        number = self.number
        self.reads = [
            sorted(number[read] for read in task.dependencies if read in number)
            for task in self.tasks
        ]
        self.readers: list[list[int]] = [[] for _ in self.keys]
        for reader, reads in enumerate(self.reads):
            for read in reads:
                self.readers[read].append(reader)
        #: All tasks, each after its inputs.
        self.inputs_first = self._inputs_first()
        self._placements: dict[str, Placement | None] = {}
        self.intact = self._intact()
        self.homes = self._homes()
        self.sizes = self._sizes()
        computed = {
            name for number, name in enumerate(self.layer) if self.reads[number]
        } & self.intact
        self.table = TaskTable(
            reads=self.reads,
            homes=self.homes,
            sizes=self.sizes,
            counts=[int(not self._fused_by_dask(number)) for number in range(len(self.keys))],
            kept={number for number in range(len(self.keys)) if self._is_output(number)},
            barriers={number: name for number, name in enumerate(self.layer) if name in computed},
            loose={number for number in range(len(self.keys)) if self.is_loose(number)},
        )
        #: Tasks whose results must have keys of their own.
        self.kept = self.table.own_keys()

    # -- reading the graph -------------------------------------------------------------

    def _needed(self, tasks: Mapping[str, Mapping[Key, Any]]) -> set[Key]:
        """The keys of all tasks that the outputs depend on."""
        merged = {key: task for layer in tasks.values() for key, task in layer.items()}
        stack = [key for name in self.outputs for key in tasks[name]]
        needed: set[Key] = set()
        while stack:
            key = stack.pop()
            if key not in needed and key in merged:
                needed.add(key)
                stack.extend(merged[key].dependencies)
        return needed

    def _is_output(self, number: int) -> bool:
        """Whether a task is a block of an output, not a part of one."""
        name = self.layer[number]
        return name in self.outputs and head_of(self.keys[number]) == name

    def _intact(self) -> set[str]:
        """Names of layers that stay as they are.

        Layers with annotations, layers of other classes, and outputs that other tasks read.
        """
        intact = {
            name
            for name, layer in self.graph.layers.items()
            if layer.annotations or not isinstance(layer, (MaterializedLayer, Blockwise))
        }
        for number, name in enumerate(self.layer):
            if self._is_output(number) and self.readers[number]:
                intact.add(name)
        return intact

    def _placement(self, name: str) -> Placement | None:
        if name not in self._placements:
            self._placements[name] = decode(name)
        return self._placements[name]

    def placed_home(self, key: Key) -> int | None:
        """The mesh position that a key's name gives, None if it gives none."""
        placement = self._placement(str(head_of(key)))
        if placement is None or type(key) is not tuple:
            return None
        if placement.follow is not None:
            block = placement.followed(key[1:])
            blocks = self.limits.positions.get(placement.follow[0], {})
            return None if block is None else blocks.get(block)
        if placement.workers != math.prod(self.limits.mesh):
            return None
        return placement.position_of(key[1:])

    def _location(self, number: int) -> int | None:
        """The mesh position that the plan gives a task, None if it gives none."""
        key = self.keys[number]
        blocks = self.limits.positions.get(token(str(head_of(key))))
        return blocks.get(key[1:]) if blocks and type(key) is tuple else self.placed_home(key)

    def is_free(self, number: int) -> bool:
        """Whether a result is on every worker."""
        return head_of(self.keys[number]) in self.limits.free

    def is_loose(self, number: int) -> bool:
        """Whether the name of a task does not give its home."""
        home = self.homes[number]
        if home is None or not self.limits.mesh:
            return False
        key = self.keys[number]
        # the scheduler plugin places slices where their inputs are
        is_slice = str(head_of(key)).startswith(SLICE_PREFIX)
        return not is_slice and self.placed_home(key) != home

    def _may_run(self, number: int) -> bool:
        """Whether a bundle may run a task."""
        task = self.tasks[number]
        if self.layer[number] in self.intact or type(task) not in (Task, Anchored, Alias):
            return False
        return type(task) is Alias or not iscoroutinefunction(task.func)

    def _homes(self) -> list[int | None]:
        """The mesh position of each task that a bundle may run; None for others."""
        candidates = [self._may_run(number) for number in range(len(self.keys))]
        if not self.limits.mesh:
            return [0 if candidate else None for candidate in candidates]
        homes = [self._location(number) for number in range(len(self.keys))]
        unknown = [
            number for number in self.inputs_first if candidates[number] and homes[number] is None
        ]
        # a slice, and any task with inputs on one worker only, runs where its inputs are
        for number in unknown:
            there = {homes[read] for read in self.reads[number] if not self.is_free(read)}
            if len(there) == 1:
                homes[number] = there.pop()
        # a task without inputs runs where its only readers are
        near = list(homes)
        for number in reversed(unknown):
            if near[number] is None and self.readers[number]:
                there = {near[reader] for reader in self.readers[number]}
                if len(there) == 1:
                    near[number] = there.pop()
        for number in unknown:
            reads = [read for read in self.reads[number] if not self.is_free(read)]
            if homes[number] is None and all(homes[read] == near[number] for read in reads):
                homes[number] = near[number]
        return [
            home if candidate else None for home, candidate in zip(homes, candidates, strict=True)
        ]

    def _inputs_first(self) -> list[int]:
        """All tasks, each after its inputs."""
        waiting = [len(reads) for reads in self.reads]
        ready = [number for number, count in enumerate(waiting) if not count]
        for number in ready:
            for reader in self.readers[number]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    ready.append(reader)
        return ready

    def _sizes(self) -> list[int]:
        """Bytes of every result, estimated for slices and other tasks of unknown size."""
        noted: dict[str, int] = {}
        for name, layer in self.graph.layers.items():
            notes = layer.collection_annotations or {}
            chunksize: Any = notes.get("chunksize")
            dtype: Any = notes.get("dtype")
            try:
                noted[name] = int(math.prod(chunksize)) * dtype.itemsize
            except (TypeError, ValueError, AttributeError):
                continue  # sizes are unknown
        sizes = [0] * len(self.keys)
        unknown = set()
        for number, key in enumerate(self.keys):
            name = str(head_of(key))
            size = self.limits.size.get(name.rpartition("-")[2], noted.get(name))
            if self.is_free(number):
                continue
            if size is None:
                unknown.add(number)
            else:
                sizes[number] = size
        for number in self.inputs_first:
            if number not in unknown:
                continue
            inputs = max((sizes[read] for read in self.reads[number]), default=0)
            parts = [
                sizes[reader] // len(self.reads[reader])
                for reader in self.readers[number]
                if sizes[reader]
            ]
            sizes[number] = min(inputs, max(parts)) if parts else inputs
        return sizes

    def _fused_by_dask(self, number: int) -> bool:
        """Whether Dask would fuse a task with its only reader."""
        readers = self.readers[number]
        if len(readers) != 1 or self._is_output(number):
            return False
        return _fuses(self.tasks[number], self.tasks[readers[0]])

    # -- writing the new graph ---------------------------------------------------------

    def runs(self) -> list[Run]:
        """The tasks of each bundle."""
        limits, settings = self.limits, self.limits.settings
        return form_runs(
            self.table,
            RunLimits(
                tasks=limits.tasks,
                work=limits.work,
                inputs=settings.input_share * limits.work,
                results=settings.bundle_results * limits.work,
                threads=limits.threads,
                per_thread=settings.bundles_per_thread,
                remaining=settings.bundle_remaining,
                task_bytes=settings.bundle_task_bytes,
            ),
        )

    def rewritten(self, runs: Sequence[Run]) -> HighLevelGraph:
        """The graph with bundles for these runs."""
        phases = task_phases(self.table)
        written = _Written(self, runs)
        merged: dict[int, dict[Key, Any]] = {}
        own: dict[str, dict[Key, Any]] = {
            name: {} for name in self.outputs if name not in self.intact
        }
        singles: dict[str, dict[int, tuple[Key, Any]]] = {}
        bundled: set[str] = set()
        for number, name in enumerate(self.layer):
            if number in written.run_of:
                bundled.add(name)
            else:
                singles.setdefault(name, {})[number] = written.single(number)
        layers: dict[str, Layer] = {}
        for name, tasks in singles.items():
            if name in self.intact or (
                # layers that cannot be in a cycle
                name not in bundled
                and (name in own or not any(self.reads[number] for number in tasks))
                and all(task is self.tasks[number] for number, (_, task) in tasks.items())
            ):
                layers[name] = self._kept_layer(name)
                own.pop(name, None)
                continue
            for number, (key, task) in tasks.items():
                is_output = name in own and head_of(key) == name
                (own[name] if is_output else merged.setdefault(phases[number], {}))[key] = task
        for number, run in enumerate(runs):
            for key, task in written.tasks(number):
                is_output = head_of(key) in own
                phase = phases[run.tasks[0]]
                (own[head_of(key)] if is_output else merged.setdefault(phase, {}))[key] = task
        for phase in sorted(merged):
            layers[new_layer_name("bundles", written.token, phase)] = MaterializedLayer(
                merged[phase]
            )
        for name, written_tasks in own.items():
            notes = self.graph.layers[name].collection_annotations
            layers[name] = MaterializedLayer(written_tasks, collection_annotations=notes)
        return self._connected(layers)

    def _kept_layer(self, name: str) -> Layer:
        """A layer that stays as it is."""
        layer = self.graph.layers[name]
        if not self.graph.dependencies[name]:
            return layer
        # other classes refer to the layers that they read, which may be missing now
        return MaterializedLayer(
            {key: task for key, task in self.every[name].items() if key in self.number},
            annotations=layer.annotations,
            collection_annotations=layer.collection_annotations,
        )

    def _connected(self, layers: Mapping[str, Layer]) -> HighLevelGraph:
        """A graph of layers, with the layers that each of them reads."""
        owner = {key: name for name, layer in layers.items() for key in layer}
        dependencies: dict[str, set[str]] = {}
        for name, layer in layers.items():
            # a layer of the input graph reads no other
            tasks = () if layer is self.graph.layers.get(name) else layer.values()
            reads = {owner[read] for task in tasks for read in task.dependencies if read in owner}
            dependencies[name] = reads - {name}
        return HighLevelGraph(dict(layers), dependencies)


class _Written:
    """The tasks of bundles and picks, and of the tasks that read them."""

    def __init__(self, bundling: _Bundling, runs: Sequence[Run]) -> None:
        self.bundling, self.all = bundling, runs
        self.run_of = {number: at for at, run in enumerate(runs) for number in run.tasks}
        #: Tasks in no run that read other keys than before.
        self.changed: set[int] = set()
        for number in bundling.inputs_first:
            if bundling.homes[number] is None:
                continue  # all its inputs have keys of their own
            if number not in self.run_of and any(
                read in self.run_of or (read in self.changed and read not in bundling.kept)
                for read in bundling.reads[number]
            ):
                self.changed.add(number)
        self.token = tokenize(repr((bundling.outputs, bundling.keys, runs)))
        mesh = bundling.limits.mesh
        by_position = Share(tuple(range(len(mesh))), (1,) * math.prod(mesh))
        at = Placement(mesh, (by_position,), self._lost()) if mesh else None
        self.name = new_layer_name("bundle", self.token, placement=at)
        #: New keys of tasks that read other keys than before.  The old keys may be in other graphs,
        #: and a key stands for one task with the same inputs in all of them.
        self.renamed: dict[int, Key] = {
            number: (self.name, bundling.homes[number], len(runs) + number)
            for number in sorted(self.changed - bundling.kept)
        }
        #: For every run: its key, what it returns, and where each result is in its value.
        self.key: list[Key] = []
        self.value: list[Any] = []
        self.local: list[dict[int, Path]] = []
        #: For results that other tasks read by picks: where they are.
        self.remote: dict[int, _Part] = {}
        #: For every run, the keys of its picks, and the place of each in its value.
        self.picks: list[list[tuple[Key, Path]]] = []
        for number, run in enumerate(runs):
            self._lay_out(number, run)

    def _lost(self) -> int:
        """Predicted bytes of layers of which no task keeps its name."""
        bundling = self.bundling
        keeps = {
            head_of(key)
            for number, key in enumerate(bundling.keys)
            if number in bundling.kept or (number not in self.changed and number not in self.run_of)
        }
        placements = [decode(head) for head in {head_of(key) for key in bundling.keys} - keeps]
        return sum(placement.predicted for placement in placements if placement is not None)

    def _lay_out(self, number: int, run: Run) -> None:
        """Decide on the key of a run and the form of its value."""
        bundling = self.bundling
        home = bundling.homes[run.tasks[0]]
        returned = run.returned
        if len(returned) == 1:
            [only] = returned
            key = bundling.keys[only] if only in bundling.kept else (self.name, home, number)
            self.key.append(key)
            self.value.append(bundling.keys[only])
            self.local.append({only: ()})
            self.picks.append([])
            self.remote[only] = _Part(key)
            return
        key = (self.name, home, number)
        self.key.append(key)
        inside = {part for pick in run.picks for part in pick}
        parts: list[Any] = [list(pick) if len(pick) > 1 else pick[0] for pick in run.picks]
        parts += [part for part in run.local if part not in inside]
        value = _nested([_nested(part) if isinstance(part, list) else part for part in parts])
        if len(parts) == 1:
            # all readers read all results
            value = _nested(parts[0])
        paths = dict(_paths(value))
        self.local.append(paths)
        self.value.append(_keys(value, bundling.keys))
        self.picks.append([])
        if run.whole:
            self.remote.update((part, _Part(key, path)) for part, path in paths.items())
            return
        for at, results in enumerate(run.picks):
            first, path = results[0], paths[results[0]]
            if first in bundling.kept:
                own = bundling.keys[first]
            else:
                own = (self.name, home, number, at)
            if len(results) == 1:
                self.remote[first] = _Part(own)
            else:
                inside_of = dict(_paths(_nested(list(results))))
                path = path[: len(path) - len(inside_of[first])]
                self.remote.update((part, _Part(own, inside_of[part])) for part in results)
            self.picks[-1].append((own, path))

    def _source(self, read: int, reader: int) -> _Part:
        """Where a task reads a result."""
        at = self.run_of.get(read)
        if at is None:
            return _Part(self.renamed.get(read, self.bundling.keys[read]))
        homes = self.bundling.homes
        sure = reader in self.run_of or not self.bundling.is_loose(reader)
        if homes[reader] is not None and homes[reader] == homes[read] and sure:
            return _Part(self.key[at], self.local[at][read])
        return self.remote[read]

    def _inputs(self, tasks: Sequence[int]) -> tuple[list[Key], list[list[tuple[Key, Path]]]]:
        """What some tasks read from other tasks.

        The keys, and for each of them the results in its value: their keys and places.
        """
        bundling = self.bundling
        inside = set(tasks)
        known = bundling.number
        inputs: dict[Key, list[tuple[Key, Path]]] = {}
        seen: set[Key] = set()
        for reader in tasks:
            reads = bundling.reads[reader]
            outside = sorted(
                (read for read in bundling.tasks[reader].dependencies if read not in known),
                key=repr,
            )
            for read in outside:
                if read not in seen:
                    seen.add(read)
                    inputs.setdefault(read, []).append((read, ()))
            for number in reads:
                key = bundling.keys[number]
                if number in inside or key in seen:
                    continue
                seen.add(key)
                part = self._source(number, reader)
                inputs.setdefault(part.key, []).append((key, part.path))
        return list(inputs), list(inputs.values())

    def single(self, number: int) -> tuple[Key, Any]:
        """The key and the task of a task in no run; it may read bundles and picks."""
        bundling = self.bundling
        task = bundling.tasks[number]
        key = self.renamed.get(number, bundling.keys[number])
        if number not in self.changed:
            return key, task
        if type(task) is Alias:
            part = self._source(bundling.reads[number][0], number)
            return key, Anchored(key, pick, TaskRef(part.key), part.path)
        reads, places = self._inputs([number])
        own = bundling.keys[number]
        return key, type(task)(key, run_bundle, (task,), own, places, *map(TaskRef, reads))

    def tasks(self, number: int) -> Iterator[tuple[Key, Any]]:
        """The keys and tasks of a bundle and its picks."""
        bundling = self.bundling
        run = self.all[number]
        key = self.key[number]
        steps = tuple(bundling.tasks[at] for at in run.tasks)
        reads, places = self._inputs(run.tasks)
        free = all(
            read in bundling.number and bundling.is_free(bundling.number[read]) for read in reads
        )
        is_root = free and any(task.data_producer for task in steps)
        yield (
            key,
            Anchored(
                key,
                run_bundle,
                steps,
                self.value[number],
                places,
                *map(TaskRef, reads),
                _data_producer=is_root,
            ),
        )
        for own, path in self.picks[number]:
            yield own, Anchored(own, pick, TaskRef(key), path)


def run_bundle(
    tasks: Iterable[Any],
    returned: Any,
    reads: Iterable[Iterable[tuple[Key, Path]]],
    *values: Any,
) -> Any:
    """Run the tasks of a bundle; each result is released once its last reader has run.

    Parameters
    ----------
    tasks
        The tasks, each after its inputs.
    returned
        The key of the result that is returned, or a list of keys and of such lists, for which
        nested tuples are returned.
    reads, values
        For every input, the keys of the results in it and their places, and its value.
    """
    tasks = tuple(tasks)
    known: dict[Key, Any] = {}
    for parts, value in zip(reads, values, strict=True):
        for key, path in parts:
            known[key] = pick(value, path)
    readers: dict[Key, int] = dict.fromkeys(_flat(returned), 1)
    for task in tasks:
        for read in task.dependencies:
            readers[read] = readers.get(read, 0) + 1
    for task in tasks:
        known[task.key] = task(known)
        for read in task.dependencies:
            readers[read] -= 1
            if not readers[read]:
                del known[read]
    return _collected(returned, known)


def pick(value: Any, path: Path) -> Any:
    """A part of nested tuples.

    Parameters
    ----------
    value
        The tuples.
    path
        The index in each of them, from the outermost.
    """
    for index in path:
        value = value[index]
    return value


def _flat(keys: Any) -> Iterator[Key]:
    if isinstance(keys, list):
        for part in keys:
            yield from _flat(part)
    else:
        yield keys


def _collected(keys: Any, known: Mapping[Key, Any]) -> Any:
    if isinstance(keys, list):
        return tuple(_collected(part, known) for part in keys)
    return known[keys]


def _nested(parts: list[Any]) -> list[Any]:
    """The same parts in nested lists, none of which is longer than `_MAX_TUPLE`."""
    while len(parts) > _MAX_TUPLE:
        size = max(_MAX_TUPLE, math.ceil(len(parts) / _MAX_TUPLE))
        parts = [parts[start : start + size] for start in range(0, len(parts), size)]
        parts = [_nested(part) if len(part) > 1 else part[0] for part in parts]
    return parts


def _paths(parts: Any, path: Path = ()) -> Iterator[tuple[int, Path]]:
    """Every number in nested lists, and its place."""
    if isinstance(parts, list):
        for index, part in enumerate(parts):
            yield from _paths(part, (*path, index))
    else:
        yield parts, path


def _keys(parts: Any, keys: Sequence[Key]) -> Any:
    """Nested lists with keys in place of numbers."""
    if isinstance(parts, list):
        return [_keys(part, keys) for part in parts]
    return keys[parts]
