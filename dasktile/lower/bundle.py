"""Bundling tasks of one worker: one task runs a group of tasks and returns several results.

Dask's cost of a task is the same for small and large tasks: the time of the scheduler and of the
worker's event loop, about 3 ms together.  A *bundle* runs several tasks of one home and returns a
tuple of the results that are read elsewhere (:mod:`dasktile.lower.runs` chooses the tasks).  Tasks
of the same home read the bundle.  Tasks of other homes, and the blocks of outputs, are *picks*:
tasks that return a part of the tuple, so that no other part is sent.  Where the client joins the
blocks of outputs itself, it gets tuples of them: one pick for all, or the bundle.  Their own tasks
are in the graph nevertheless, but nothing asks for them (:mod:`dasktile.lower.gathered`).

Dask fuses neither bundles nor picks with their readers: a pick that is fused with its reader
would run on the reader's worker, which would receive the whole tuple.

A key stands for one task with the same inputs in all graphs.  So every task that reads a bundle
has a key of its own, and so have the outputs whose names are not given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from dasktile._compat.dask import FUSE, Alias, Task, TaskRef, missing
from dasktile.capture.references import head_of
from dasktile.ir import by_position
from dasktile.lower.anchored import Anchored, anchor_tasks
from dasktile.lower.bundle_tasks import Path, keys_in, pick, run_bundle
from dasktile.lower.gathered import Part
from dasktile.lower.layers import in_place_of
from dasktile.lower.names import BUNDLES, new_layer_name, part_layer_name, token_of, without_names
from dasktile.lower.placed import GraphMemory, TaskMemory, guessed_share, task_memory
from dasktile.lower.run_order import live_bytes
from dasktile.lower.runs import Run, RunLimits, form_runs
from dasktile.lower.task_table import TaskTable
from dasktile.lower.tasks import BundleLimits, GraphTasks, fuses, merged, predicted_bytes
from dasktile.schedule.placement import MARK, Placement, decode
from dasktile.schedule.ranks import BUNDLE

Key = Any

#: Longest tuple in a bundle's value.  ``dask.sizeof`` measures a random sample of longer ones.
_MAX_TUPLE = 10


@dataclass(frozen=True, slots=True)
class BundleForm:
    """How the tasks of a plan are bundled and ordered.

    Parameters
    ----------
    share
        Bytes of a bundle over those that the limits allow.
    in_steps
        Whether tasks run in `step_order`.  All of them have ranks then, those in no bundle, too.
    """

    share: float = 1.0
    in_steps: bool = False


#: The form that is tried first.
USUAL = BundleForm()


@dataclass(frozen=True, slots=True)
class Bundled:
    """A graph with bundles.

    Parameters
    ----------
    graph
        The graph.
    names
        Names of the outputs that have other names than before, by their names before.
    memory
        What is known of each task; None for a graph without bundles.
    source
        The tasks of which bundles may be formed; None where there can be none.
    runs
        The tasks of each bundle.
    received
        Bytes that workers receive where these are more than names of layers predict, as tasks of
        one operation receive some from each other (``da.linalg.solve``); else 0.
    taken
        By the key of a block of an output that the client takes out of a tuple, where it is.
    """

    graph: HighLevelGraph
    names: Mapping[str, str] = field(default_factory=dict)
    memory: GraphMemory | None = None
    source: _Unbundled | None = None
    runs: Sequence[Run] = ()
    received: int = 0
    taken: Mapping[Key, Part] = field(default_factory=dict)

    def resized(self, share: float, pays: Callable[[int], bool] = lambda tasks: True) -> Bundled:
        """The graph with bundles of a share of the bytes; the same object if these are the same.

        Parameters
        ----------
        share
            Bytes of a bundle over those that the limits allow.
        pays
            Whether a graph of a number of tasks is worth writing; the same object if it is not.
        """
        if self.source is None or not self.runs:
            return self
        source = self.source.formed(replace(self.form, share=share))
        runs = source.runs()
        return source.bundled(runs) if runs != self.runs and pays(source.count(runs)) else self

    def unplanned(self, planned: int) -> int:
        """Bytes that workers receive beside those that a plan predicts.

        Parameters
        ----------
        planned
            Bytes that the plan predicts.  Names of layers may predict less: those of outputs whose
            names stay have no predictions.
        """
        return max(0, self.received - planned)

    def in_steps(self) -> Bundled:
        """The graph with tasks in `step_order`; the same object if that saves little memory."""
        if self.source is None or self.form.in_steps or not self.source.tasks.save_in_steps:
            return self
        source = self.source.formed(replace(self.form, in_steps=True))
        return source.bundled(source.runs())

    @property
    def form(self) -> BundleForm:
        """How the tasks are bundled and ordered."""
        return BundleForm() if self.source is None else self.source.form


def bundle(
    graph: HighLevelGraph,
    wanted: Mapping[str, Collection[Key]],
    named: Collection[str],
    order: Sequence[str],
    limits: BundleLimits,
    form: BundleForm = USUAL,
) -> Bundled:
    """The graph with bundles in place of tasks; the same graph if they gain nothing.

    Tasks on which no wanted key depends may be missing, and layers of bundles take the place of
    other layers than those of the outputs.

    Parameters
    ----------
    graph
        The graph.
    wanted
        By the name of the layer of an output, the keys of it that are wanted.
    named
        The outputs that must keep their names.
    order
        Names of layers, in an order that does not depend on the names.
    limits
        What may be bundled.
    form
        How they are bundled and ordered.
    """
    if limits.tasks < 2 or missing(FUSE):
        return Bundled(graph)
    fewer = merged(graph, wanted)
    if sum(map(len, fewer.graph.layers.values())) > limits.settings.max_tasks:
        return Bundled(graph)
    tasks = GraphTasks(fewer, wanted, order, limits)
    source = _Unbundled(graph, tasks, named, tasks.table).formed(form)
    return source.bundled(source.runs())


@dataclass(frozen=True, slots=True)
class _Unbundled:
    """A graph whose tasks can be bundled.

    Parameters
    ----------
    graph, tasks
        The graph, and its tasks.
    named
        The outputs that must keep their names.
    table
        The tasks, in the order in which they run.
    form
        How they are bundled and ordered.
    """

    graph: HighLevelGraph
    tasks: GraphTasks
    named: Collection[str]
    table: TaskTable
    form: BundleForm = USUAL

    def formed(self, form: BundleForm) -> _Unbundled:
        """The same tasks to be bundled and ordered in another way."""
        table = self.tasks.table
        return replace(self, table=table.in_steps if form.in_steps else table, form=form)

    def runs(self) -> list[Run]:
        """The tasks of each bundle."""
        return form_runs(self.table, _run_limits(self.tasks.limits, self.form.share))

    def count(self, runs: Sequence[Run]) -> int:
        """Tasks that Dask runs with these bundles, data of the graph aside."""
        counts = self.table.counts
        alone = sum(
            counts[number] for number in range(len(counts)) if not self.tasks.is_free(number)
        )
        return alone - sum(sum(counts[number] for number in run.tasks) - run.count for run in runs)

    def bundled(self, runs: Sequence[Run]) -> Bundled:
        """The graph with these bundles; without bundles if they gain nothing."""
        if runs:
            written = _Written(self, runs)
            new = written.graph()
            outputs = {written.names.get(name, name) for name in self.tasks.wanted}
            if _most_tasks(new, outputs, written.taken) < sum(self.table.counts):
                return self.result(written, new)
        if not (self.tasks.needs_names or self.form.in_steps):
            return Bundled(self.graph, source=self)
        # no bundles, but names that give homes, or ranks
        written = _Written(self, ())
        return self.result(written, written.graph())

    def result(self, written: _Written, graph: HighLevelGraph) -> Bundled:
        """A graph that was written."""
        return Bundled(
            graph,
            written.names,
            written.memory(),
            self,
            written.runs,
            self.tasks.received if written.unplanned else 0,
            written.taken,
        )


def _run_limits(limits: BundleLimits, share: float) -> RunLimits:
    """The limits of runs, with a share of the bytes."""
    settings = limits.settings
    work = int(share * limits.work)
    return RunLimits(
        tasks=limits.tasks,
        work=work,
        inputs=settings.input_share * work,
        results=settings.bundle_results * work,
        threads=limits.threads,
        per_thread=settings.bundles_per_thread,
        per_thread_if_unknown=settings.bundles_per_thread_if_unknown if limits.threads > 1 else 0,
        remaining=settings.bundle_remaining,
        task_bytes=settings.bundle_task_bytes,
    )


def _most_tasks(graph: HighLevelGraph, outputs: Collection[str], taken: Mapping[Key, Part]) -> int:
    """Tasks that Dask runs for a graph of plain tasks at most, after it has fused chains."""
    tasks = {
        key: task
        for layer in graph.layers.values()
        for key, task in layer.items()
        if key not in taken
    }
    tuples = {part.key for part in taken.values()}
    reader: dict[Key, Key] = {}
    shared: set[Key] = set()
    for key, task in tasks.items():
        for read in getattr(task, "dependencies", ()):
            if read in reader:
                shared.add(read)
            reader[read] = key
    fused = {
        key
        for key, task in tasks.items()
        if key in reader
        and key not in shared
        and head_of(key) not in outputs
        and fuses(task, tasks[reader[key]])
    }
    # a chain has a key of its own, and an alias of it
    chains = {reader[key] for key in fused} - fused
    needed = sum(key in reader or key in tuples or head_of(key) in outputs for key in tasks)
    return needed - len(fused) + len(chains)


class _Written:
    """The new graph: bundles and picks, and the tasks that read them.

    Parameters
    ----------
    source
        The tasks of the graph.
    runs
        The tasks of each bundle.

    Attributes
    ----------
    names
        New names of outputs, by their names before.
    taken
        By the new key of a block of an output that the client takes out of a tuple, where it is.
    """

    def __init__(self, source: _Unbundled, runs: Sequence[Run]) -> None:
        self.tasks, self.table, self.runs = source.tasks, source.table, runs
        tasks = source.tasks
        self.run_of = {number: at for at, run in enumerate(runs) for number in run.tasks}
        #: For every run, the tasks whose results it returns.
        self.returned = [run.returned for run in runs]
        #: Blocks of outputs that other tasks read.  Readers have keys of their own to read, as the
        #: layer of an output that is read could be in a cycle with layers of bundles.
        self.shared = {
            number for number in tasks.kept - tasks.frozen if tasks.readers[number]
        }  # fmt: skip
        #: Tasks in no run that have other keys, or read other keys, than before.
        self.changed = {
            number
            for number in range(len(tasks.keys))
            if number not in self.run_of
            and (number in self.shared or (tasks.is_loose(number) and number not in tasks.kept))
        }
        if source.form.in_steps:
            same = {*self.run_of, *tasks.frozen, *tasks.kept}
            others = (number for number in range(len(tasks.keys)) if number not in same)
            self.changed.update(number for number in others if not tasks.is_free(number))
        for number in tasks.inputs_first:
            if number in self.run_of or number in tasks.frozen:
                continue
            if any(read in self.run_of or read in self.changed for read in tasks.reads[number]):
                self.changed.add(number)
        #: The rank of every run, and of every task in no run, in the order in which they run.
        self.run_rank, self.rank = self._ranks()
        ranks = self.run_rank, sorted(self.rank.items())
        self.token = token_of(tasks.identity + without_names(runs, ranks))
        mesh = tasks.limits.mesh
        #: Bytes that workers receive beside those that names of layers predict.
        self.unplanned = tasks.unplanned
        predicted = self._lost() + self.unplanned
        planned_for = tasks.limits.planned_for
        at = Placement(mesh, by_position(mesh), predicted, None, planned_for) if mesh else None
        self.name = new_layer_name(BUNDLE, self.token, placement=at)
        #: Name of the tasks without a home.
        self.unplaced = new_layer_name(BUNDLE, self.token)
        self.names = self._names(source.named)
        #: For every task that has a key, that key in the new graph.
        self.key_of: dict[int, Key] = {
            number: self._key_of(number) for number in range(len(tasks.keys))
        }
        #: For every run: its key, what it returns, and where each result is in its value.
        self.key: list[Key] = []
        self.value: list[Any] = []
        self.local: list[dict[int, Part]] = []
        #: For results that other tasks read by picks: where they are.
        self.remote: dict[int, Part] = {}
        self.taken: dict[Key, Part] = {}
        #: For every run, the keys of its picks, and the place of each in its value.
        self.picks: list[list[tuple[Key, Path]]] = []
        #: By run, the block of an output that is an alias of it, as no name gives its home.
        self.alias: dict[int, Key] = {}
        for number, run in enumerate(runs):
            self._lay_out(number, run)

    def _ranks(self) -> tuple[list[int], dict[int, int]]:
        """Ranks of the runs, and of the tasks in no run."""
        tasks, run_of = self.tasks, self.run_of
        singles = [number for number in tasks.inputs_first if number not in run_of]
        members = [run.tasks for run in self.runs] + [(number,) for number in singles]
        node_of = {number: node for node, inside in enumerate(members) for number in inside}
        reads = [
            sorted({node_of[read] for number in inside for read in tasks.reads[number]} - {node})
            for node, inside in enumerate(members)
        ]
        returned = self.returned + members[len(self.runs) :]
        sizes = [sum(tasks.sizes[number] for number in results) for results in returned]
        homes = [tasks.homes[inside[0]] for inside in members]
        kept = {node_of[number] for number in tasks.kept}
        rank = [0] * len(members)
        for at, node in enumerate(self.table.arrange(reads, sizes, homes, kept)):
            rank[node] = at
        return rank[: len(self.runs)], {number: rank[node_of[number]] for number in singles}

    # Names

    def _lost(self) -> int:
        """Predicted bytes of layers of which no task keeps its name."""
        tasks = self.tasks
        keeps = {
            head_of(key)
            for number, key in enumerate(tasks.keys)
            if number in tasks.kept or (number not in self.changed and number not in self.run_of)
        }
        return predicted_bytes({head_of(key) for key in tasks.keys} - keeps)

    def _names(self, named: Collection[str]) -> dict[str, str]:
        """New names for the outputs that may have any name, where one of their tasks changes."""
        tasks = self.tasks
        names: dict[str, str] = {}
        for number in sorted(tasks.kept):
            name = tasks.layer[number]
            if name in named or name in names:
                continue
            if number in self.changed or number in self.run_of:
                operation = name.partition(MARK)[0]
                at = decode(name) or tasks.limits.placements.get(name)
                names[name] = new_layer_name(operation, name, self.token, placement=at)
        return names

    def _key_of(self, number: int) -> Key:
        """The key of a task in no run, or of a block of an output."""
        tasks = self.tasks
        if number in tasks.kept and number not in self.shared:
            return self._output_key(number)
        if number not in self.changed and number not in self.shared:
            return tasks.keys[number]
        home = tasks.places[number]
        name, home = (self.unplaced, 0) if home is None else (self.name, home)
        if number in self.run_of:
            return (name, home, self.run_rank[self.run_of[number]], 0, number)
        return (name, home, self.rank[number])

    def _named_home(self, number: int) -> int | None:
        """The mesh position that the name of a block of an output gives; None if it gives none."""
        name = self.tasks.heads[number]
        new = self.tasks.limits.placements.get(name) if name in self.names else None
        return self.tasks.home_of(self.tasks.keys[number], new)

    def _gives_home(self, run: Run, output: int) -> bool:
        """Whether the scheduler plugin finds the home of a run whose key is that of an output."""
        tasks = self.tasks
        home = tasks.homes[output]
        if home is None or self._named_home(output) == home:
            return True
        if MARK in self.names.get(tasks.heads[output], tasks.heads[output]):
            return False
        steps = (tasks.tasks[number] for number in run.tasks)
        inside = [key for step in steps for key in (*keys_in(step), step.key)]
        named = (key for key in reversed(inside) if decode(head_of(key)) is not None)
        return tasks.home_of(next(named, None)) == home

    def _output_key(self, number: int) -> Key:
        name, *block = self.tasks.keys[number]
        return (self.names.get(name, name), *block)

    def _lay_out(self, number: int, run: Run) -> None:
        """Decide on the key of a run and the form of its value."""
        tasks = self.tasks
        home, rank = tasks.homes[run.tasks[0]], self.run_rank[number]
        returned = self.returned[number]
        if len(returned) == 1:
            [only] = returned
            key = self.key_of[only]
            if only not in tasks.kept:
                key = (self.name, home, rank)
            elif only not in self.shared and not self._gives_home(run, only):
                self.alias[number], key = key, (self.name, home, rank)
            self.key.append(key)
            self.value.append(tasks.keys[only])
            self.local.append({only: Part(self.key[-1])})
            self.picks.append([])
            self.remote[only] = Part(key)
            return
        key = (self.name, home, rank)
        self.key.append(key)
        inside = {part for pick in run.picks for part in pick}
        parts: list[Any] = [list(pick) if len(pick) > 1 else pick[0] for pick in run.picks]
        parts += [part for part in run.local if part not in inside]
        value = _nested([_nested(part) if isinstance(part, list) else part for part in parts])
        if len(parts) == 1:
            # all readers read all results
            value = _nested(parts[0])
        paths = dict(_paths(value))
        self.local.append({part: Part(key, path) for part, path in paths.items()})
        self.value.append(_keys(value, tasks.keys))
        self.picks.append([])
        if run.whole:
            self.remote.update(self.local[-1])
            self._take(paths)
            return
        for at, results in enumerate(run.picks):
            first, path = results[0], paths[results[0]]
            own = (self.name, home, rank, at)
            if len(results) == 1:
                own = self.key_of[first] if first in tasks.kept else own
                self.remote[first] = Part(own)
            else:
                inside_of = dict(_paths(_nested(list(results))))
                path = path[: len(path) - len(inside_of[first])]
                self.remote.update((part, Part(own, inside_of[part])) for part in results)
                self._take(results)
            self.picks[-1].append((own, path))

    def _take(self, results: Iterable[int]) -> None:
        """The client takes those of some results that are blocks of outputs out of their tuple."""
        for number in results:
            if number in self.tasks.gathered:
                self.taken[self._output_key(number)] = self.remote[number]

    # Sizes

    def memory(self) -> GraphMemory:
        """What is known of each task of the new graph."""
        tasks = self.tasks
        named = {
            number
            for number in self.changed
            if number not in tasks.kept or self._named_home(number) == tasks.places[number]
        }
        memory = {
            self.key_of[number]: task_memory(tasks, number, is_named=number in named)
            for number in range(len(tasks.keys))
            if number not in self.run_of
        }
        for at, run in enumerate(self.runs):
            place = tasks.homes[run.tasks[0]] if tasks.limits.mesh else None
            returned = self.returned[at]
            views = self._views(returned)
            size = sum(tasks.sizes[number] for number in returned)
            shared = sum(tasks.sizes[number] for number in views)
            working = self._live(run, returned, views) - size + shared
            memory[self.key[at]] = TaskMemory(size, working, place, shared=shared)
            if at in self.alias:
                memory[self.alias[at]] = TaskMemory(size, 0, place)
            # a bundle that is read as a whole has no picks
            for (own, _), results in zip(self.picks[at], run.picks, strict=False):
                size = sum(tasks.sizes[number] for number in results)
                memory[own] = TaskMemory(size, 0, place, is_part=True)
            for number in returned:
                if number in tasks.kept and (own := self._output_key(number)) in self.taken:
                    memory[own] = TaskMemory(tasks.sizes[number], 0, place, is_part=True)
        return GraphMemory(memory, guessed_share(tasks))

    def _views(self, returned: Sequence[int]) -> set[int]:
        """The results that a run returns beside the arrays of which they are views."""
        views = self.tasks.views
        if not views:
            return set()
        together = set(returned)
        return {number for number in together if views.get(number) in together}

    def _live(self, run: Run, returned: Sequence[int], views: Collection[int]) -> int:
        """Bytes of the results of a run that are in memory at the same time."""
        tasks = self.tasks
        return live_bytes(
            run.tasks,
            tasks.reads.__getitem__,
            lambda number: 0 if number in views else tasks.sizes[number],
            returned,
            tasks.working.__getitem__,
        )

    # Tasks

    def graph(self) -> HighLevelGraph:
        """The new graph.

        It has the layers of frozen tasks and of data, a layer for each phase, and the layers of
        outputs.  A layer depends on those of lower phases, and no layer on that of an output.
        """
        tasks = self.tasks
        phases = self.table.phases
        #: Layers whose tasks are written anew.
        computed = {
            tasks.layer[number]
            for number, reads in enumerate(tasks.reads)
            if reads or number in self.run_of or number in self.changed
        }
        #: By layer: the tasks that stay in it, and those in new layers, by phase.
        original: dict[str, dict[Key, Any]] = {}
        new: dict[tuple[int, str], dict[Key, Any]] = {}
        outputs: dict[str, dict[Key, Any]] = {}
        for number, name in enumerate(tasks.layer):
            if number in tasks.frozen or name not in computed:
                original.setdefault(name, {})[tasks.keys[number]] = tasks.tasks[number]
                continue
            if block := self._block_made_elsewhere(number):
                outputs.setdefault(name, {}).update(block)
            if number in self.run_of:
                continue
            key, task = self._single(number)
            if number in tasks.kept and number not in self.shared:
                outputs.setdefault(name, {})[key] = task
            else:
                # annotations are those of a layer
                part = name if tasks.graph.layers[name].annotations else ""
                new.setdefault((phases[number], part), {})[key] = task
        ends = {self.names.get(name, name): name for name in tasks.wanted}
        for at, run in enumerate(self.runs):
            for key, task in self._bundle_and_picks(at):
                name = ends.get(head_of(key), "")
                group = outputs.setdefault(name, {}) if name else None
                if group is None:
                    group = new.setdefault((phases[run.tasks[0]], ""), {})
                group[key] = task
        layers = dict(self._same_layer(name, kept) for name, kept in original.items())
        for (phase, part), group in sorted(new.items(), key=lambda item: item[0]):
            name = new_layer_name(BUNDLES, self.token, phase, part)
            layers[name] = _layer(group, tasks.graph.layers.get(part))
        for name, group in outputs.items():
            before = tasks.graph.layers[name]
            # blocks that are not wanted may be frozen
            frozen = original.get(name, {}) if name not in self.names else {}
            layers[self.names.get(name, name)] = in_place_of(before, {**frozen, **group})
        return self._connected(layers)

    def _block_made_elsewhere(self, number: int) -> dict[Key, Any]:
        """By key, a block of an output that has another key, too, or is in a tuple."""
        if number not in self.tasks.kept:
            return {}
        key = self._output_key(number)
        if key in self.taken:
            part = self.taken[key]
            return {key: Anchored(key, pick, TaskRef(part.key), part.path)}
        return {key: Alias(key, self.key_of[number])} if number in self.shared else {}

    def _same_layer(self, name: str, kept: Mapping[Key, Any]) -> tuple[str, Layer]:
        """The name and the layer of tasks that stay as they are, without those not needed."""
        layer = self.tasks.graph.layers[name]
        if not self.tasks.graph.dependencies[name]:
            return name, layer
        new = in_place_of(layer, kept)
        is_whole = len(kept) == len(layer) or name in self.tasks.wanted
        return name if is_whole else part_layer_name(name, kept), new

    def _connected(self, layers: Mapping[str, Layer]) -> HighLevelGraph:
        """A graph of layers, with the layers that each of them reads."""
        owner = {key: name for name, layer in layers.items() for key in layer}
        before = self.tasks.graph.layers
        dependencies: dict[str, set[str]] = {}
        for name, layer in layers.items():
            # a layer of the input graph reads no other
            tasks = () if layer is before.get(name) else layer.values()
            reads = {owner[read] for task in tasks for read in task.dependencies if read in owner}
            dependencies[name] = reads - {name}
        return HighLevelGraph(dict(layers), dependencies)

    def _source(self, read: int, reader: int) -> Part:
        """Where a task reads a result."""
        tasks = self.tasks
        at = self.run_of.get(read)
        if at is None:
            return Part(self.key_of[read])
        sure = reader in self.run_of or not tasks.is_loose(reader)
        if tasks.homes[reader] == tasks.homes[read] and sure:
            return self.local[at][read]
        return self.remote[read]

    def _inputs(self, readers: Sequence[int]) -> tuple[list[Key], list[list[tuple[Key, Path]]]]:
        """What some tasks read from other tasks.

        The keys, and for each of them the results in its value: their keys and places.
        """
        tasks = self.tasks
        #: Tasks of the graph whose results are there.
        seen = set(readers)
        inputs: dict[Key, list[tuple[Key, Path]]] = {}
        for reader in readers:
            for read in tasks.outside.get(reader, ()):
                inputs.setdefault(read, [(read, ())])
            for number in tasks.reads[reader]:
                if number not in seen:
                    seen.add(number)
                    part = self._source(number, reader)
                    inputs.setdefault(part.key, []).append((tasks.keys[number], part.path))
        return list(inputs), list(inputs.values())

    def _single(self, number: int) -> tuple[Key, Any]:
        """The key and the task of a task in no run; it may read bundles and picks."""
        tasks = self.tasks
        task, key = tasks.tasks[number], self.key_of[number]
        parts = [self._source(read, number) for read in tasks.reads[number]]
        same = all(
            not part.path and part.key == tasks.keys[read]
            for part, read in zip(parts, tasks.reads[number], strict=True)
        )
        if type(task) is Alias:
            [part] = parts or [Part(task.target)]
            if part.path:
                return key, Anchored(key, pick, TaskRef(part.key), part.path)
            return key, Alias(key, part.key)
        if same:
            new = task.substitute({}, key=key)
        else:
            reads, places = self._inputs([number])
            own = tasks.keys[number]
            new = type(task)(key, run_bundle, (task,), own, places, *map(TaskRef, reads))
        return key, anchor_tasks({key: new})[key] if self._leaves(number) else new

    def _leaves(self, number: int) -> bool:
        """Whether the result of a task that has its home by its new name is read elsewhere."""
        tasks = self.tasks
        home = tasks.places[number]
        if number not in self.changed or home is None:
            return False
        return any(tasks.places[reader] not in (None, home) for reader in tasks.readers[number])

    def _bundle_and_picks(self, at: int) -> Iterator[tuple[Key, Any]]:
        """The keys and tasks of a bundle and its picks."""
        tasks = self.tasks
        run, key = self.runs[at], self.key[at]
        steps = tuple(tasks.tasks[number] for number in run.tasks)
        reads, places = self._inputs(run.tasks)
        free = all(read in tasks.number and tasks.is_free(tasks.number[read]) for read in reads)
        is_root = free and any(task.data_producer for task in steps)
        # Dask fuses an alias with its bundle, and the only reader of a block that keeps its name
        kind = Anchored if MARK in str(head_of(key)) and at not in self.alias else Task
        yield (
            key,
            kind(
                key,
                run_bundle,
                steps,
                self.value[at],
                places,
                *map(TaskRef, reads),
                _data_producer=is_root,
            ),
        )
        if at in self.alias:
            yield self.alias[at], Alias(self.alias[at], key)
        for own, path in self.picks[at]:
            yield own, Anchored(own, pick, TaskRef(key), path)


def _layer(tasks: Mapping[Key, Any], before: Layer | None) -> MaterializedLayer:
    """A layer of tasks with the annotations of another layer."""
    return MaterializedLayer(tasks, annotations=before.annotations if before else None)


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
