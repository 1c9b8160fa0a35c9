"""``dasktile.plan``: the order of tasks and the swaps between memory and disk or host."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from numbers import Integral, Real
from typing import Any

import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from zict import LRU

from dasktile import config
from dasktile.capture.tasks import Tasks, tasks
from dasktile.cluster.target import Machine, machine, memory_bytes
from dasktile.collections.hooked import written_graphs
from dasktile.orders.apply import TaskSet, unpacked
from dasktile.orders.graphs import order_of_dask, task_graph
from dasktile.orders.schedule_plan import SchedulePlan
from dasktile.orders.scored import best_order, on_demand, ran, worker_settings, worker_tasks
from dasktile.orders.timelines import timeline_of_swaps, timeline_of_worker
from dasktile.schedule.search import lower_bounds
from dasktile.schedule.search import plan as find
from dasktile.schedule.simulate import HostLink, simulate
from dasktile.schedule.simulated_worker import WorkerSettings
from dasktile.schedule.swaps import ON_DEMAND, Memory, plan_traced_order, trace_order
from dasktile.schedule.taskgraph import TaskGraph

#: Number of plans in the cache: the same expression is often planned several times.
CACHED_PLANS = 16

#: Seconds; shorter searches show no progress bar.
PROGRESS_AFTER = 2.0


def plan(
    *collections: Any,
    memory_limit: float | str | None = None,
    device: str = "host",
    workers: Any = None,
    search_seconds: float = 0.0,
    seed: int = 0,
    repeat: bool = False,
) -> SchedulePlan:
    """Choose the order of tasks and the swaps of a computation that exceeds memory.

    Parameters
    ----------
    *collections
        Dask collections, and lists, tuples and dicts of them, planned together; or one
        ``dasktile.schedule.taskgraph.TaskGraph``.  Their tasks are those after Dask's own
        optimisation; with the hook :func:`array_optimize` set, those of its tiles.
    memory_limit
        Bytes of results that one worker can hold, as a number or as a string such as
        ``"2 GiB"``.  By default the memory limit of the client's workers.
    device
        ``"host"``: memory with a disk below; ``"cuda"``: a GPU's memory with the
        host's below.  The bandwidths are in the settings ``dasktile.plan``.
    workers
        A count, a ``distributed.Client``, or None for the current client's workers, else one.
        Several workers are planned for as one worker with the sum of their memory.
    search_seconds
        Seconds of local search, starting from the best order; 0 for no search.
    seed
        Seed of the search.
    repeat
        The operations of a TaskGraph run in a loop: memory has the same content at the end of
        an iteration as at its start.

    Returns
    -------
    SchedulePlan
        A :class:`SchedulePlan`.  Without a search the same arguments give the same plan.  The
        result of a search depends on the speed of the machine; it is cached for calls with the same
        arguments.

    Raises
    ------
    ValueError, TypeError
        Naming the invalid argument, or a task that needs more memory than the limit.

    Examples
    --------
    >>> import dask.array as da
    >>> import dasktile
    >>> x = da.random.default_rng(0).random((4000, 4000), chunks=(500, 500))
    >>> schedule = dasktile.plan(x @ x.T, memory_limit="100 MiB", workers=1)
    >>> y = schedule.apply()
    """
    config.check()
    link = _link(device)
    for name, value in (("search_seconds", search_seconds), ("seed", seed)):
        kind = Integral if name == "seed" else Real
        if isinstance(value, bool) or not isinstance(value, kind):
            raise TypeError(
                f"{name} must be a number; got {value!r} of type {type(value).__name__}"
            )
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be at least 0; got {value!r}")
    if len(collections) == 1 and isinstance(collections[0], TaskGraph):
        graph = collections[0]
        limit = memory_bytes(memory_limit)
        if limit is None:
            raise ValueError("memory_limit must be given for a TaskGraph")
        arguments = (graph, limit, link, search_seconds, seed, repeat)
        plan = _cached(
            partial(_plan_operations, *arguments), _parts(graph), limit, link.rates, *arguments[3:]
        )
        return _named(plan, graph.op_names or tuple(range(len(graph))))
    found, _ = unpacked(
        collections,
        "plan takes dask collections, lists, tuples and dicts of them, or one TaskGraph",
    )
    if repeat:
        raise ValueError("repeat=True is for a TaskGraph: collections are computed once")
    target = machine(workers)
    limit = _limit(memory_limit, target) * target.workers
    graphs = [collection.__dask_graph__() for collection in found]
    with written_graphs() as tiled:
        optimized = TaskSet.of(found)
    # with the hook, the tasks are those of tiles, which the layers of the input do not describe
    high = HighLevelGraph.merge(*(g for g in graphs if isinstance(g, HighLevelGraph)), *tiled)
    sized = tasks(high, optimized.nodes, optimized.wanted)
    graph = task_graph(sized, target)
    settings = worker_settings(target.workers * target.threads, device == "cuda")
    try:
        plan = _cached(
            partial(_plan_tasks, sized, graph, limit, link, settings, search_seconds, seed),
            _parts(graph), sized.sizes, sized.views, sized.memory, sized.names, limit, link.rates,
            repr(settings), search_seconds, seed,
        )  # fmt: skip
    except ValueError as error:
        if target.workers > 1 and "memory_limit" in str(error):
            error.add_note(
                f"{target.workers} workers are planned for as one with the sum of their memory"
            )
        raise
    return _named(plan, sized.keys, _collections=collections, _tasks=optimized)


def _limit(memory_limit: object, target: Machine) -> int:
    limit = memory_bytes(memory_limit)
    if limit is None and target.memory_limit is not None:
        limit = target.memory_limit * target.threads
    if limit is None:
        raise ValueError(
            "memory_limit must be given if there is no client whose workers have a memory limit"
        )
    return limit


def _link(device: object) -> HostLink:
    if device == "host":
        speed = config.setting("plan.disk-bandwidth")
        return HostLink(speed, speed, speed)
    if device == "cuda":
        speed, both = (
            config.setting("plan.device-bandwidth"),
            config.setting("plan.device-duplex"),
        )
        return HostLink(speed, speed, both)
    raise ValueError(f"device must be 'host' or 'cuda'; got {device!r}")


#: The cache: plans of operations by number, by a token of their inputs.
_plans: LRU[str, SchedulePlan] = LRU(CACHED_PLANS, {})


def _named(plan: SchedulePlan, names: Sequence[Hashable], **fields: Any) -> SchedulePlan:
    """A plan of operations by number as one of their names."""
    order: Any = plan.order
    return replace(plan, order=tuple(names[op] for op in order), **fields)


def _cached(make: Callable[[], SchedulePlan], *arguments: Any) -> SchedulePlan:
    """The plan of some arguments, made if it is not in the cache."""
    token = tokenize(*arguments)
    plan = _plans.get(token)
    if plan is None:
        plan = _plans[token] = make()
    return plan


def _parts(graph: TaskGraph) -> tuple[Any, ...]:
    """What a plan of a graph depends on."""
    return (graph.time, graph.size, graph.touched.pointer, graph.touched.index, graph.kinds,
            graph.present, graph.kept)  # fmt: skip


def _plan_operations(
    graph: TaskGraph, limit: int, link: HostLink, search_seconds: float, seed: int, repeat: bool
) -> SchedulePlan:
    """Plan the order of operations and their swaps, which need not be those of a worker."""
    with _progress(search_seconds) as clock:
        planned = find(
            graph, limit, link, repeat=repeat, search_seconds=search_seconds,
            clock=clock, rng=np.random.default_rng(seed),
        )  # fmt: skip
    memory = Memory.bytes(graph, limit)
    run = simulate(graph, planned.swaps, memory, link, trace_order(graph, planned.order, repeat))
    steps = trace_order(graph, graph.check_order(np.arange(len(graph))), repeat)
    swaps = plan_traced_order(graph, steps, memory, ON_DEMAND, repeat)
    seconds = simulate(graph, swaps, memory, link, steps).makespan
    least = planned.swap_bound
    return SchedulePlan(
        order=tuple(planned.order.tolist()),
        swap_in_bytes=planned.swap_in_bytes,
        swap_out_bytes=planned.swap_out_bytes,
        makespan=planned.makespan,
        lower_bound=planned.read_bound if least is None else least.read + least.written,
        time_bound=planned.time_bound,
        ideal=planned.ideal,
        memory_limit=limit,
        peak=planned.peak,
        method=planned.method,
        before=(swaps.swap_in_bytes, swaps.swap_out_bytes, seconds),
        _draw=partial(timeline_of_swaps, graph, planned, run, limit),
    )


#: The rule of Dask's own order.
_DASK = "dask.order"


def _plan_tasks(
    sized: Tasks,
    graph: TaskGraph,
    limit: int,
    link: HostLink,
    settings: WorkerSettings,
    search_seconds: float,
    seed: int,
) -> SchedulePlan:
    """Plan the order of tasks; the swaps are those that a worker decides on in this order."""
    dask = order_of_dask(sized)
    with _progress(search_seconds) as clock:
        planned = find(
            graph, limit, link, given={_DASK: dask}, search_seconds=search_seconds,
            clock=clock, rng=np.random.default_rng(seed), bounds=False,
        )  # fmt: skip
    working = worker_tasks(sized, graph.time.tolist())
    best = best_order(working, planned.finalists, _DASK, limit, link, settings)
    run, most = best.run, best.most
    before = on_demand(working, dask, limit, link, settings)
    # what a worker does is a plan for the order in which it ran the tasks, and for the memory that
    # it used for a short time.  A view may be in memory with what it is a view of, which counts.
    counted = replace(graph, size=np.where(np.array(sized.views) < 0, graph.size, 0))
    bound = lower_bounds(counted, ran(most), max(limit, most.peak), link)
    timed = bound if most is run else lower_bounds(counted, ran(run), max(limit, run.peak), link)
    least = bound.swapped
    return SchedulePlan(
        order=tuple(best.order.tolist()),
        swap_in_bytes=most.swap_in_bytes,
        swap_out_bytes=most.swap_out_bytes,
        makespan=run.makespan,
        lower_bound=bound.read if least is None else least.read + least.written,
        time_bound=timed.seconds,
        ideal=planned.ideal,
        memory_limit=limit,
        peak=max(run.peak, most.peak),
        method=best.rule,
        before=(before.swap_in_bytes, before.swap_out_bytes, before.makespan),
        _draw=partial(timeline_of_worker, run, sized.names, sized.sizes, limit),
    )


@contextmanager
def _progress(seconds: float) -> Iterator[Callable[[], float]]:
    """A clock; for a long search in a terminal it also updates a progress bar."""
    if seconds < PROGRESS_AFTER or not sys.stderr.isatty():
        yield time.monotonic
        return
    progress = import_module("rich.progress")
    console = import_module("rich.console").Console(stderr=True)
    with progress.Progress(console=console, transient=True) as bar:
        task = bar.add_task("searching", total=seconds)
        start = time.monotonic()

        def clock() -> float:
            now = time.monotonic()
            bar.update(task, completed=min(now - start, seconds))
            return now

        yield clock
