"""Simulated runs of graphs: the tasks that Dask runs, with the sizes of their real results.

The graph is computed in this process, task by task, which gives the sizes.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any
from unittest import mock

import dask
import numpy as np
from dask._task_spec import Alias, DataNode, Task, convert_legacy_graph
from dask.base import collections_to_expr
from dask.core import flatten
from dask.sizeof import sizeof
from rich.console import Console
from rich.table import Table

import dasktile
from benchmarks.corpus import Workload
from benchmarks.corpus.inputs import source_of
from benchmarks.placement import FLOOR, mean_ratio
from dasktile import api
from dasktile._compat.dask import fused_tasks, run_fused
from dasktile.capture.references import in_order_of_reads
from dasktile.cluster.target import Machine
from dasktile.lower.bundle_tasks import is_pick, run_bundle
from dasktile.lower.placed import TaskMemory, placed
from dasktile.report.formatting import format_bytes
from dasktile.schedule.homes import Homes
from dasktile.schedule.peaks import Simulated, Speeds, simulate

#: Relative error of a predicted peak up to which it counts as right.
NEAR = 0.2

#: Factor up to which predicted seconds count as right, and of measured seconds from which on the
#: predicted ones should be in the same order.
NEAR_SECONDS, DIFFERENT = 1.5, 1.3


def simulated(
    collections: Sequence[Any], workers: int, speeds: Speeds | None = None, enabled: bool = False
) -> tuple[int, Simulated]:
    """Tasks that Dask runs, and what happens on single-threaded workers.

    Parameters
    ----------
    collections
        What to compute.
    workers
        Number of workers; tasks of plans run on their home workers.
    speeds
        Durations of the cluster.
    enabled
        Whether ``dasktile.enable`` was called, which divides root tasks without a plan.
    """
    expr = collections_to_expr(list(collections)).optimize()
    wanted = list(flatten(expr.__dask_keys__()))
    # Dask gives them in the order of sets
    graph = in_order_of_reads(convert_legacy_graph(dict(expr.__dask_graph__())), wanted)
    ends = set(wanted)
    sizes, working, shared = measured_sizes(graph, ends)
    homes = _homes(graph, workers)
    known = {
        key: TaskMemory(sizes[key], working.get(key, 0), homes[key], is_pick(task), shared[key])
        for key, task in graph.items()
    }
    enabled = enabled and all(home is None for home in homes.values())
    tasks = placed(graph, ends, known, by_place=True, threads=workers, is_enabled=enabled)
    count = sum(not isinstance(task, (DataNode, Alias)) for task in graph.values())
    return count, simulate(tasks, workers, speeds=speeds)


def measured_sizes(
    graph: Mapping[Any, Any], ends: set[Any]
) -> tuple[dict[Any, int], dict[Any, int], dict[Any, int]]:
    """Compute a graph: bytes of every result, what tasks of several steps hold besides it.

    And the bytes of the result that are views of others of its arrays.
    """
    readers = Counter(read for task in graph.values() for read in task.dependencies)
    values: dict[Any, Any] = {}
    sizes: dict[Any, int] = {}
    working: dict[Any, int] = {}
    shared: dict[Any, int] = {}
    for key in dask.core.toposort(graph):
        task = graph[key]
        values[key], peak = _measured(task, values)
        sizes[key] = sizeof(values[key])
        shared[key] = _shared(values[key])
        working[key] = max(0, peak - sizes[key])
        for read in task.dependencies:
            readers[read] -= 1
            if not readers[read] and read not in ends:
                del values[read]
        if not readers[key]:
            del values[key]
    return sizes, working, shared


def _shared(value: Any) -> int:
    """Bytes of the arrays of a tuple that are whole views of others of them."""
    if not isinstance(value, tuple):
        return 0
    owners: set[int] = set()
    shared = 0
    for array in flatten([value], (list, tuple)):
        base = getattr(array, "base", None)
        owner = array if base is None else base
        if not isinstance(array, np.ndarray) or getattr(owner, "nbytes", None) != array.nbytes:
            continue
        shared += array.nbytes * (id(owner) in owners)
        owners.add(id(owner))
    return shared


def _measured(task: Any, values: Mapping[Any, Any]) -> tuple[Any, int]:
    """The value of a task, and the bytes of results of its steps that are in memory together."""
    if getattr(task, "func", None) is run_bundle:
        return _run(task, values)
    steps = fused_tasks(task)
    if not steps:
        value = task(values)
        return value, sizeof(value)
    last, names, *arguments = task.args[1:]
    inputs = Task(None, lambda *each: each, *arguments)(values)
    known = dict(zip(names, inputs, strict=True))
    readers = Counter(read for step in steps.values() for read in step.dependencies)
    sizes: dict[Any, int] = {}
    peak = 0
    inner = {key: steps.keys() & step.dependencies for key, step in steps.items()}
    order = steps if task.func is run_fused else TopologicalSorter(inner).static_order()
    for key in order:
        known[key], live = _measured(steps[key], known)
        peak = max(peak, live + sum(sizes.get(other, 0) for other in known))
        sizes[key] = sizeof(known[key])
        for read in steps[key].dependencies:
            readers[read] -= 1
            if not readers[read]:
                del known[read]
    return known[last], peak


@dataclass(frozen=True)
class _Step:
    """A task of a bundle that notes the bytes of the bundle's results that are in memory."""

    task: Any
    sizes: dict[Any, int]
    live: list[int]

    @property
    def key(self) -> Any:
        return self.task.key

    @property
    def dependencies(self) -> Any:
        return self.task.dependencies

    def __call__(self, known: Mapping[Any, Any]) -> Any:
        value = self.task(known)
        self.sizes[self.key] = sizeof(value)
        self.live.append(self.sizes[self.key] + sum(self.sizes.get(key, 0) for key in known))
        return value


def _run(task: Any, values: Mapping[Any, Any]) -> tuple[Any, int]:
    """The value of a bundle, and the bytes of its results that are in memory together."""
    tasks, returned, places, *reads = task.args
    live: list[int] = []
    sizes: dict[Any, int] = {}
    steps = [_Step(step, sizes, live) for step in tasks]
    return run_bundle(steps, returned, places, *(values[read.key] for read in reads)), max(live)


def _homes(graph: Mapping[Any, Any], workers: int) -> dict[Hashable, int | None]:
    """The home of every task, as the scheduler plugin assigns them."""
    names = [f"{at:04}" for at in range(workers)]
    table = Homes(names)
    homes: dict[Hashable, int | None] = {}
    order = list(dask.core.toposort(graph))
    for key in order:
        layer = table.layer(key[0] if isinstance(key, tuple) else key)
        home = layer.home(key[1:]) if layer is not None else None
        homes[key] = None if home is None else names.index(home)
    placed = any(home is not None for home in homes.values())
    if not placed:
        return homes
    for key in order:
        reads = graph[key].dependencies
        there = {homes[read] for read in reads if not isinstance(graph[read], DataNode)}
        if homes[key] is None and len(there) == 1:
            homes[key] = there.pop()
    readers: dict[Any, Counter[int]] = {}
    for key in reversed(order):
        home = homes[key]
        if home is None and not graph[key].dependencies and key in readers:
            home = homes[key] = min(readers[key], key=lambda at: (-readers[key][at], at))
        if home is not None:
            for read in graph[key].dependencies:
                readers.setdefault(read, Counter())[home] += 1
    return homes


def run(
    workloads: Sequence[Workload],
    kinds: Sequence[str],
    size: float,
    workers: int,
    bundle: int,
    folder: Path,
    done: Callable[[list[dict[str, Any]]], None] = lambda cells: None,
    bandwidth: float | None = None,
) -> list[dict[str, Any]]:
    """Simulate workloads as Dask runs them, and with plans.

    Parameters
    ----------
    workloads, kinds, size
        Entries of the corpus, kinds of their inputs, and factor of their sizes.
    workers
        Number of workers.
    bundle
        Tasks in a bundle at most; 0 for no bundles.
    folder
        Folder of files of inputs.
    done
        Called after every workload with all cells so far.
    bandwidth
        Bytes a second between two workers; by default that of `Speeds`.

    Returns
    -------
    One dict per workload, kind of inputs and engine, as `benchmarks.corpus.__main__.run` does.
    """
    cells: list[dict[str, Any]] = []
    speeds = Speeds() if bandwidth is None else Speeds(network=bandwidth)
    # workers on which tasks run where a plan places them
    machine = Machine(workers, order=tuple(map(str, range(workers))), who_has=lambda blocks: {})
    with (
        warnings.catch_warnings(),
        dask.config.set({"dasktile.bundle": bundle}),
        mock.patch.object(api, "machine", lambda *_: machine),
    ):
        warnings.simplefilter("ignore")
        for kind in kinds:
            for workload in workloads:
                collections = workload.function(size, source_of(kind, folder))
                started = time.perf_counter()
                planned = dasktile.optimize(*collections, keep_chunks=workload.keep_chunks)
                planning = time.perf_counter() - started
                told = dasktile.explain(*collections, keep_chunks=workload.keep_chunks)
                runs = {
                    "stock": (collections, 0.0, told.results_before),
                    "dasktile": (
                        planned if type(planned) is tuple else (planned,),
                        planning,
                        told.results_after,
                    ),
                }
                for engine, (graphs, seconds, peak) in runs.items():
                    where = {"workload": workload.name, "inputs": kind, "engine": engine}
                    cells.append(
                        {
                            **where,
                            "planning": seconds,
                            "predicted": peak,
                            **numbers(graphs, workers, speeds),
                        }
                    )
                done(cells)
    return cells


def numbers(collections: Sequence[Any], workers: int, speeds: Speeds) -> dict[str, float]:
    """The measurements of a simulated run."""
    count, run = simulated(collections, workers, speeds)
    return {"tasks": count, "moved": run.moved, "held": max(run.results), "seconds": run.seconds}


def report(cells: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print a table of the cells: Dask's numbers, and those of plans; and geometric means."""
    table = Table(title="Simulated: Dask's numbers -> those of plans", title_justify="left")
    for title in ("workload", "inputs"):
        table.add_column(title)
    for title in ("tasks", "moved", "peak of a worker", "seconds", "plan s"):
        table.add_column(title, justify="right", no_wrap=True)
    ratios: dict[str, list[float]] = {key: [] for key in ("tasks", "moved", "held", "seconds")}
    for before, after in zip(cells[::2], cells[1::2], strict=True):
        for key, values in ratios.items():
            floor = FLOOR if key in ("moved", "held") else 1e-9
            if before[key] or after[key]:
                values.append(max(after[key], floor) / max(before[key], floor))
        table.add_row(
            before["workload"],
            before["inputs"],
            f"{before['tasks']} -> {after['tasks']}",
            *(f"{format_bytes(before[k])} -> {format_bytes(after[k])}" for k in ("moved", "held")),
            f"{before['seconds']:.2f} -> {after['seconds']:.2f}",
            f"{after['planning']:.2f}",
        )
    means = [f"{mean_ratio(values) or 1:.3f}" for values in ratios.values()]
    table.add_section()
    table.add_row("geometric means of ratios", "", *means)
    console.print(table)
    report_predictions(cells, console)


def report_predictions(cells: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print for how many cells `dasktile.explain` predicts the peak of memory, and the seconds."""
    for engine, whose in (("stock", "Dask's graphs"), ("dasktile", "plans")):
        pairs = [
            # on a cluster, Dask counts views and picks of a result once more
            (cell["predicted"], cell.get("buffers", cell["held"]))
            for cell in cells
            if cell["engine"] == engine and cell.get("predicted") is not None
        ]
        close = sum(abs(predicted - held) <= NEAR * max(held, 1) for predicted, held in pairs)
        console.print(
            f"explain predicts the peak within {NEAR:.0%} for {close} of {len(pairs)} {whose}"
        )
        times = [
            (cell["predicted_seconds"], cell["seconds"] - cell["planning"])
            for cell in cells
            if cell["engine"] == engine and cell.get("predicted_seconds") is not None
        ]
        if times:
            near = sum(
                max(predicted, taken) <= NEAR_SECONDS * min(predicted, taken)
                for predicted, taken in times
            )
            console.print(
                f"explain predicts the seconds within a factor {NEAR_SECONDS} for {near} of "
                f"{len(times)} {whose}"
            )
    right, different = _in_order(cells)
    if different:
        console.print(
            f"explain predicts which of Dask's graph and the plan is faster for {right} of "
            f"{different} pairs whose seconds differ by a factor {DIFFERENT}"
        )


def _in_order(cells: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Pairs of runs that take clearly different times: those predicted in this order, and all."""
    runs: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
    for cell in cells:
        if cell.get("predicted_seconds") is not None:
            pair = runs.setdefault((cell["workload"], cell["inputs"]), {})
            taken = cell["seconds"] - cell["planning"]
            pair[cell["engine"]] = taken, cell["predicted_seconds"]
    right = different = 0
    for pair in runs.values():
        if not {"stock", "dasktile"} <= pair.keys():
            continue
        (stock, of_stock), (taken, predicted) = pair["stock"], pair["dasktile"]
        if max(stock, taken) > DIFFERENT * min(stock, taken):
            different += 1
            right += (stock > taken) == (of_stock > predicted)
    return right, different
