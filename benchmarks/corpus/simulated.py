"""Simulated runs of graphs: the tasks that Dask runs, with the sizes of their real results.

The graph is computed in this process, task by task, which gives the sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import dask
from dask._task_spec import Alias, DataNode, convert_legacy_graph
from dask.base import collections_to_expr
from dask.core import flatten
from dask.order import order
from dask.sizeof import sizeof

from dasktile.lower.bundle import pick, run_bundle
from dasktile.schedule.homes import Homes
from dasktile.schedule.peaks import PlacedTasks, Simulated, Speeds, simulate


def simulated(
    collections: Sequence[Any], workers: int, speeds: Speeds | None = None
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
    """
    with dask.config.set({"distributed.worker.memory.spill": False}):
        expr = collections_to_expr(list(collections)).optimize()
    graph: dict[Any, Any] = convert_legacy_graph(dict(expr.__dask_graph__()))
    ends = set(flatten(expr.__dask_keys__()))
    priorities = order(graph, return_stats=False)
    keys = sorted(graph, key=priorities.__getitem__)
    number = {key: at for at, key in enumerate(keys)}
    sizes, working = measured_sizes(graph, ends)
    homes = _homes(graph, workers)
    tasks = PlacedTasks(
        reads=[[number[read] for read in graph[key].dependencies] for key in keys],
        sizes=[sizes[key] for key in keys],
        priorities=list(map(float, range(len(keys)))),
        homes=[homes[key] for key in keys],
        working=[working.get(key, 0) for key in keys],
        kept={number[key] for key in ends},
        data={at for at, key in enumerate(keys) if isinstance(graph[key], DataNode)},
    )
    count = sum(not isinstance(task, (DataNode, Alias)) for task in graph.values())
    return count, simulate(tasks, workers, speeds=speeds)


def measured_sizes(
    graph: Mapping[Any, Any], ends: set[Any]
) -> tuple[dict[Any, int], dict[Any, int]]:
    """Compute a graph: bytes of every result, and bytes that bundles hold besides it."""
    readers = Counter(read for task in graph.values() for read in task.dependencies)
    values: dict[Any, Any] = {}
    sizes: dict[Any, int] = {}
    working: dict[Any, int] = {}
    for key in dask.core.toposort(graph):
        task = graph[key]
        if getattr(task, "func", None) is run_bundle:
            values[key], peak = _run(task, values)
            sizes[key] = sizeof(values[key])
            working[key] = max(0, peak - sizes[key])
        else:
            values[key] = task(values)
            sizes[key] = 0 if isinstance(task, Alias) else sizeof(values[key])
        for read in task.dependencies:
            readers[read] -= 1
            if not readers[read] and read not in ends:
                del values[read]
        if not readers[key]:
            del values[key]
    return sizes, working


def _run(task: Any, values: Mapping[Any, Any]) -> tuple[Any, int]:
    """The value of a bundle, and the bytes of its results that are in memory together."""
    steps, returned, places, *reads = task.args
    known: dict[Any, Any] = {}
    for parts, read in zip(places, reads, strict=True):
        for key, path in parts:
            known[key] = pick(values[read.key], path)
    inputs = set(known)
    readers = Counter(read for step in steps for read in step.dependencies)
    readers.update(_flat(returned))
    live = peak = 0
    for step in steps:
        known[step.key] = step(known)
        live += sizeof(known[step.key])
        peak = max(peak, live)
        for read in step.dependencies:
            readers[read] -= 1
            if not readers[read]:
                value = known.pop(read)
                live -= 0 if read in inputs else sizeof(value)
    return _collected(returned, known), peak


def _flat(keys: Any) -> list[Any]:
    return [one for part in keys for one in _flat(part)] if isinstance(keys, list) else [keys]


def _collected(keys: Any, known: Mapping[Any, Any]) -> Any:
    if isinstance(keys, list):
        return tuple(_collected(part, known) for part in keys)
    return known[keys]


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
