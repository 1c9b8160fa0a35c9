"""``dasktile.plan``: the order of tasks and the swaps between memory and disk or host."""

from __future__ import annotations

import json
import math
import os
import reprlib
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from dasktile import config
from dasktile.capture.tasks import Tasks, tasks
from dasktile.cluster.target import Machine, machine, memory_bytes
from dasktile.collections.containers import unpack
from dasktile.collections.expressions import as_dask_arrays, has_expressions
from dasktile.collections.hooked import written_graphs
from dasktile.orders.apply import TaskSet, ordered
from dasktile.orders.graphs import order_of_dask, task_graph
from dasktile.orders.scored import best_order, on_demand, ran, worker_settings, worker_tasks
from dasktile.orders.timelines import timeline_of_swaps, timeline_of_worker
from dasktile.report import html as page
from dasktile.report.formatting import format_bytes, format_count, format_seconds, wrapped
from dasktile.report.timeline import Timeline, draw
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

#: Version of the JSON format.
_VERSION = 1


@dataclass(frozen=True, eq=False)
class SchedulePlan:
    """An order of tasks, the bytes that a worker swaps in it, and lower bounds of them.

    Parameters
    ----------
    order
        Keys of the tasks in the order in which they run; for a
        ``dasktile.schedule.taskgraph.TaskGraph``, names of the operations.
    swap_in_bytes, swap_out_bytes
        Bytes copied into memory and out of it.
    makespan
        Seconds that the simulated plan takes.
    lower_bound
        Bytes in both directions together that any eviction policy swaps at least in this
        order and in the memory of `peak`.
    time_bound
        Seconds that any eviction policy takes at least in this order.
    ideal
        Seconds with unlimited memory.
    memory_limit
        Bytes of memory for results that the plan is made for.
    peak
        Most bytes in memory at any time.  A worker exceeds its limit by a result for a short time.
    method
        The rule or search that produced the order.
    before
        Bytes swapped in, bytes swapped out and seconds of Dask's own order, with fetching on
        demand and eviction of the least recently used.

    Notes
    -----
    For collections, bytes and seconds are those of a simulated worker with dasktile's store, which
    decides on evictions by the same rules as a real one.  For a ``TaskGraph``, which no worker
    runs, they are those of planned swaps.

    Examples
    --------
    >>> import dask.array as da
    >>> import dasktile
    >>> x = da.ones((400, 400), chunks=(50, 400))
    >>> schedule = dasktile.plan(x @ x.T, memory_limit="1 MiB", workers=1)
    >>> schedule.swap_in_bytes <= schedule.before[0]
    True
    >>> y = schedule.apply()
    """

    order: tuple[Hashable, ...]
    swap_in_bytes: int
    swap_out_bytes: int
    makespan: float
    lower_bound: float
    time_bound: float
    ideal: float
    memory_limit: int
    peak: int
    method: str
    before: tuple[int, int, float]
    _collections: tuple[Any, ...] = field(default=(), repr=False)
    _tasks: TaskSet | None = field(default=None, repr=False)
    _draw: Callable[[], Timeline] | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        return f"<SchedulePlan: {'; '.join(self._lines())}>"

    def __str__(self) -> str:
        return "\n".join(map(wrapped, self._lines()))

    def _lines(self) -> list[str]:
        swaps = self.swap_in_bytes + self.swap_out_bytes
        old_in, old_out, old_seconds = self.before
        bound = format_bytes(self.lower_bound)
        seconds = _change(format_seconds(old_seconds), format_seconds(self.makespan))
        swapped = _change(format_bytes(old_in + old_out), format_bytes(swaps))
        lines = [
            self._first_line(),
            f"takes {seconds} (lower bound {format_seconds(self.time_bound)} for this order,"
            f" {format_seconds(self.ideal)} with unlimited memory)",
        ]
        if swaps or old_in + old_out:
            return [*lines, f"swaps {swapped} (lower bound {bound} for this order)"]
        return [*lines, "swaps nothing, as Dask's own order"]

    def _first_line(self) -> str:
        return (
            f"{format_count(len(self.order), 'task')} ordered by {self.method}, with"
            f" {format_bytes(self.memory_limit)} of memory for results"
        )

    def _repr_html_(self) -> str:
        old_in, old_out, old_seconds = self.before
        rows = [
            ("seconds", format_seconds(old_seconds), format_seconds(self.makespan),
             f"{format_seconds(self.time_bound)}, {format_seconds(self.ideal)} with unlimited"
             " memory"),
            ("swapped in", format_bytes(old_in), format_bytes(self.swap_in_bytes), ""),
            ("swapped out", format_bytes(old_out), format_bytes(self.swap_out_bytes), ""),
            ("swapped", format_bytes(old_in + old_out),
             format_bytes(self.swap_in_bytes + self.swap_out_bytes),
             format_bytes(self.lower_bound)),
        ]  # fmt: skip
        return page.block(
            page.lines([f"{self._first_line()}; at most {format_bytes(self.peak)} are used"]),
            page.table(("", "Dask's order", "plan", "lower bound of this order"), rows),
            page.legend(
                "Dask's order: fetching on demand and eviction of the least recently used. swapped:"
                " bytes between memory and the tier below. Seconds are simulated."
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, strings and numbers, ready for ``json.dumps``."""
        return {
            "version": _VERSION,
            "order": [_plain(key) for key in self.order],
            "swap_in_bytes": self.swap_in_bytes,
            "swap_out_bytes": self.swap_out_bytes,
            "makespan": self.makespan,
            "lower_bound": self.lower_bound,
            "time_bound": self.time_bound,
            "ideal": self.ideal,
            "memory_limit": self.memory_limit,
            "peak": self.peak,
            "method": self.method,
            "before": list(self.before),
        }

    def save(self, filename: str | Path) -> Path:
        """Write the plan as JSON; :func:`load_plan` reads it.

        Parameters
        ----------
        filename
            With any suffix.

        Returns
        -------
        Path
            The file written.

        Raises
        ------
        TypeError
            If a key of a task contains what JSON has no type for.
        OSError
            If the file cannot be written.
        """
        path = Path(filename)
        path.write_text(json.dumps(self.to_dict()), encoding="utf-8")
        return path

    def apply(self, *collections: Any) -> Any:
        """Collections that run in the order of the plan.

        The order becomes task priorities, which distributed follows on any cluster; workers with
        dasktile's store (:func:`dasktile.enable`) evict and prefetch by these priorities.  The
        schedulers of one process (threads, processes, synchronous) ignore priorities.  The
        returned collections are already optimised; operations added to them are not planned.
        Arrays are of a subclass that Dask does not optimise again and :func:`dasktile.optimize`
        returns as it is: call `optimize` first, if both are used.

        Parameters
        ----------
        *collections
            What was planned; needed only if the plan was loaded from a file.

        Returns
        -------
        collections
            One for one, a tuple for several; lists, tuples and dicts for those that were planned.
            Arrays of the package ``dask_array``, whose tasks have no priorities, are returned as
            arrays of ``dask.array``.

        Raises
        ------
        TypeError
            If an argument contains no dask collection.
        ValueError
            If there are no collections, or others than those that were planned.
        """
        given = collections or self._collections
        if not given:
            raise ValueError(
                "a plan loaded from a file has no collections: pass those that were planned"
            )
        found, repack = _unpacked(given, "apply takes the dask collections that were planned")
        tasks = self._tasks if given is self._collections and self._tasks else TaskSet.of(found)
        place = {key: position for position, key in enumerate(self.order)}
        missing = len(place.keys() - tasks.nodes.keys())
        if missing or not place.keys() >= tasks.running():
            problem = "these collections have tasks that are not in the plan"
            if missing:
                problem = f"{missing} of the plan's {len(place)} tasks are not in these collections"
            raise ValueError(f"{problem}: a plan applies to the planned expressions only")
        results = repack([ordered(collection, tasks, place) for collection in found])
        return results[0] if len(results) == 1 else results

    def visualize(self, filename: str | Path = "plan.svg") -> Path:
        """Draw the simulated computation, copies and memory over time.

        Parameters
        ----------
        filename
            Ends in ``.svg``, ``.png``, ``.pdf`` or ``.html``, in small or capital letters.  Needs
            matplotlib, or bokeh for an HTML page, in which one can then zoom.

        Returns
        -------
        Path
            The file written.

        Raises
        ------
        ValueError
            If the name has another suffix, or if the plan was loaded from a file.
        ImportError
            If matplotlib is not installed, nor bokeh for an HTML page.
        OSError
            If the file cannot be written.
        """
        if self._draw is None:
            raise ValueError(
                "a plan loaded from a file has no timeline: call dasktile.plan to draw one"
            )
        return draw(self._draw(), filename)


def _unpacked(
    given: Sequence[Any], allowed: str
) -> tuple[Sequence[Any], Callable[[Sequence[Any]], tuple[Any, ...]]]:
    """The dask collections in arguments, each once, and a function that puts others there."""
    if not given or not all(unpack(each)[0] for each in given):
        kinds = ", ".join(type(each).__name__ for each in given) or "nothing"
        raise TypeError(f"{allowed}; got {kinds}")
    found, repack = unpack(*given)
    arrays = as_dask_arrays(found)
    if any(has_expressions(each) for each in arrays):
        raise TypeError(
            f"{allowed}; got an object of xarray made of arrays of dask_array: pass these arrays"
        )
    return arrays, repack


def _change(old: str, new: str) -> str:
    """The new value, and the old one if it differs."""
    return new if new == old else f"{new} instead of {old}"


def load_plan(filename: str | Path) -> SchedulePlan:
    """Read a plan that :meth:`SchedulePlan.save` has written.

    Parameters
    ----------
    filename
        A file that :meth:`SchedulePlan.save` has written.

    Raises
    ------
    TypeError
        If `filename` is no path.
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file contains no plan, or one of another version.

    Examples
    --------
    >>> import tempfile
    >>> import dask.array as da
    >>> import dasktile
    >>> x = da.ones((400, 400), chunks=(50, 400))
    >>> schedule = dasktile.plan(x @ x.T, memory_limit="1 MiB", workers=1)
    >>> with tempfile.NamedTemporaryFile(suffix=".json") as file:
    ...     _ = schedule.save(file.name)
    ...     loaded = dasktile.load_plan(file.name)
    >>> loaded.order == schedule.order
    True
    """
    if not isinstance(filename, (str, os.PathLike)):
        raise TypeError(
            "filename must be a string or a path; got"
            f" {reprlib.repr(filename)} of type {type(filename).__name__}"
        )
    name = os.fspath(filename)
    try:
        fields = json.loads(Path(filename).read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(f"{name!r} contains no plan: it is not JSON") from None
    if not isinstance(fields, dict) or "version" not in fields:
        raise ValueError(
            f"{name!r} contains no plan: it must be a file that the method save of a plan wrote"
        )
    version = fields.pop("version")
    if version != _VERSION:
        raise ValueError(
            f"{name!r} contains a plan of version {version!r}; this dasktile reads version"
            f" {_VERSION}. Plan the collections again"
        )
    for field_name, (allowed, valid) in _FIELDS.items():
        if field_name not in fields:
            raise ValueError(f"{name!r} contains no plan: {field_name!r} is missing")
        if not valid(fields[field_name]):
            raise ValueError(
                f"{name!r} contains no plan: {field_name!r} must be {allowed};"
                f" got {reprlib.repr(fields[field_name])}"
            )
    unknown = ", ".join(sorted(map(repr, fields.keys() - _FIELDS)))
    if unknown:
        raise ValueError(f"{name!r} contains no plan: a plan has no {unknown}")
    order = tuple(_key(key) for key in fields.pop("order"))
    return SchedulePlan(order=order, before=tuple(fields.pop("before")), **fields)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


#: The fields of a plan in a file: what is allowed, and whether a value is.
_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "order": ("a list", lambda value: isinstance(value, list)),
    "before": (
        "three numbers",
        lambda value: isinstance(value, list) and len(value) == 3 and all(map(_is_number, value)),
    ),
    "method": ("a string", lambda value: isinstance(value, str)),
    **dict.fromkeys(
        (
            "swap_in_bytes",
            "swap_out_bytes",
            "makespan",
            "lower_bound",
            "time_bound",
            "ideal",
            "memory_limit",
            "peak",
        ),
        ("a number", _is_number),
    ),
}


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
    found, _ = _unpacked(
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


_lock = threading.Lock()

#: The cache: plans of operations by number, by a token of their inputs, the oldest first.
_plans: OrderedDict[str, SchedulePlan] = OrderedDict()


def _named(plan: SchedulePlan, names: Sequence[Hashable], **fields: Any) -> SchedulePlan:
    """A plan of operations by number as one of their names."""
    order: Any = plan.order
    return replace(plan, order=tuple(names[op] for op in order), **fields)


def _cached(make: Callable[[], SchedulePlan], *arguments: Any) -> SchedulePlan:
    """The plan of some arguments, made if it is not in the cache."""
    token = tokenize(*arguments)
    plan = _plans.get(token)
    if plan is None:
        plan = make()
        with _lock:
            _plans[token] = plan
            while len(_plans) > CACHED_PLANS:
                _plans.popitem(last=False)
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


def _plain(key: Any) -> Any:
    if isinstance(key, np.generic):
        key = key.item()
    return list(map(_plain, key)) if isinstance(key, tuple) else key


def _key(key: Any) -> Any:
    return tuple(map(_key, key)) if isinstance(key, list) else key
