"""Bundling tasks of one worker: one task runs a group of tasks and returns several results.

Dask's cost of a task is the same for small and large tasks: the time of the scheduler and of the
worker's event loop, about 3 ms together.  A *bundle* runs several tasks of one home and returns a
tuple of the results that are read elsewhere (:mod:`dasktile.lower.runs` chooses the tasks).  Tasks
of the same home read the bundle.  Tasks of other homes, and the blocks of outputs, are *picks*:
tasks that return a part of the tuple, so that no other part is sent.  Where the client joins the
blocks of outputs itself, it gets tuples of them: one pick for all, or the bundle.  Their own tasks
are in the graph nevertheless, but nothing asks for them (:mod:`dasktile.lower.gathered`).

Here it is decided whether there are bundles, and in which form.
:mod:`dasktile.lower.bundle_layout` gives them keys, and :mod:`dasktile.lower.bundle_graph` writes
the graph.

Dask fuses neither bundles nor picks with their readers: a pick that is fused with its reader
would run on the reader's worker, which would receive the whole tuple.

A key stands for one task with the same inputs in all graphs.  So every task that reads a bundle
has a key of its own, and so have the outputs whose names are not given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dask.highlevelgraph import HighLevelGraph

from dasktile._compat.dask import FUSE, missing
from dasktile.capture.references import head_of
from dasktile.lower.bundle_graph import graph_with_bundles, memory_of_bundles
from dasktile.lower.bundle_layout import BundleLayout
from dasktile.lower.bundle_limits import BundleLimits
from dasktile.lower.gathered import Part
from dasktile.lower.merged_layers import merged
from dasktile.lower.placed import GraphMemory
from dasktile.lower.runs import Run, RunLimits, form_runs
from dasktile.lower.task_table import TaskTable
from dasktile.lower.tasks import GraphTasks, fuses

Key = Any


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
            layout = self.layout(runs)
            new = graph_with_bundles(layout)
            outputs = {layout.names.get(name, name) for name in self.tasks.wanted}
            if _most_tasks(new, outputs, layout.taken) < sum(self.table.counts):
                return self.result(layout, new)
        if not (self.tasks.needs_names or self.form.in_steps):
            return Bundled(self.graph, source=self)
        # no bundles, but names that give homes, or ranks
        layout = self.layout(())
        return self.result(layout, graph_with_bundles(layout))

    def layout(self, runs: Sequence[Run]) -> BundleLayout:
        """The keys of a graph with these bundles."""
        return BundleLayout(self.tasks, self.table, runs, self.named, self.form.in_steps)

    def result(self, layout: BundleLayout, graph: HighLevelGraph) -> Bundled:
        """A graph that was written."""
        return Bundled(
            graph,
            layout.names,
            memory_of_bundles(layout),
            self,
            layout.runs,
            self.tasks.received if layout.unplanned else 0,
            layout.taken,
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
