"""Plans of the order of tasks and of what is swapped: from a collection to one that follows it."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
from dask.base import is_dask_collection, tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.order import order as dask_order

from dasktile import config
from dasktile._compat.dask import Task, TaskRef
from dasktile.capture.tasks import Tasks, tasks
from dasktile.cluster.target import Machine, machine, memory_bytes
from dasktile.orders.apply import Low, ordered
from dasktile.report.explanation import format_bytes, format_seconds
from dasktile.report.timeline import Timeline, draw, lane
from dasktile.schedule.search import Planned
from dasktile.schedule.search import plan as find
from dasktile.schedule.simulate import Link, Run, simulate
from dasktile.schedule.swaps import ON_DEMAND, Memory, plan_walk, walk
from dasktile.schedule.taskgraph import TaskGraph, taskgraph

#: Plans that are remembered: the same expression often comes again.
REMEMBERED = 16

#: Searches shorter than this show no progress, in seconds.
LONG = 2.0

_VERSION = 1


@dataclass(frozen=True, eq=False)
class SchedulePlan:
    """An order of tasks, what is swapped in and out on the way, and how good that is.

    Parameters
    ----------
    order
        The tasks' keys (of a :class:`~dasktile.schedule.taskgraph.TaskGraph`, the operations'
        names) in the order in which they run.
    swap_in_bytes, swap_out_bytes
        Bytes copied into memory, and out of it.
    makespan
        Seconds that the plan takes in the simulation.
    lower_bound
        Bytes in both directions together that no choice of what is swapped can be below, for
        this order.
    time_bound
        Seconds that it cannot be below.
    ideal
        Seconds of all tasks, where memory has no end.
    memory_limit
        Bytes that the plan was made for.
    peak
        Bytes of memory in use at most.
    method
        How the order was found.
    before
        The same of the order that Dask would run the tasks in, with a store that fetches what
        is asked for and lets leave what was used longest ago: bytes in, bytes out, seconds.
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
    _low: Low | None = field(default=None, repr=False)
    _draw: Callable[[], Timeline] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        swaps = self.swap_in_bytes + self.swap_out_bytes
        old_in, old_out, old_seconds = self.before
        instead = f" instead of {format_bytes(old_in + old_out)}"
        bound = format_bytes(self.lower_bound)
        return (
            f"{len(self.order):,} tasks in {format_bytes(self.memory_limit)} ({self.method}):"
            f" takes {format_seconds(self.makespan)} instead of {format_seconds(old_seconds)}"
            f" (no less than {format_seconds(self.time_bound)},"
            f" {format_seconds(self.ideal)} with memory without end),"
            f" swaps {format_bytes(swaps)}{instead} (lower bound for this order {bound})"
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
        """Write the plan as JSON, to be had back by :func:`load_plan`."""
        path = Path(filename)
        path.write_text(json.dumps(self.to_dict()), encoding="utf-8")
        return path

    def apply(self, *collections: Any) -> Any:
        """Collections that run in the order of the plan.

        The order becomes priorities, which distributed follows on any cluster; workers with
        dasktile's store (:func:`dasktile.enable`) let leave and fetch what the priorities say.
        The schedulers of one process have an order of their own and keep to that.  The results
        are already optimised; what is computed from them further is not in the plan.

        Parameters
        ----------
        *collections
            Those that the plan is of; not needed unless the plan was loaded.

        Returns
        -------
        One for one, a tuple for several.

        Raises
        ------
        ValueError
            If there are no collections, or not those that the plan is of.
        """
        given = collections or self._collections
        if not all(map(is_dask_collection, given)):
            kinds = ", ".join(type(one).__name__ for one in given)
            raise TypeError(f"apply takes the dask collections that the plan is of; got {kinds}")
        if not given:
            raise ValueError("this plan has no collections with it: pass those that it is of")
        low = self._low if given is self._collections and self._low else Low.of(given)
        place = {key: at for at, key in enumerate(self.order)}
        missing = len(place.keys() - low.tasks.keys())
        if missing or not place.keys() >= low.running():
            wrong = "these collections have tasks that are not in the plan"
            if missing:
                wrong = f"{missing} of the plan's {len(place)} tasks are not in these collections"
            raise ValueError(f"{wrong}: a plan is of exactly the expressions that it was made for")
        found = tuple(ordered(one, low, place) for one in given)
        return found[0] if len(found) == 1 else found

    def visualize(self, filename: str | Path = "plan.svg") -> Path:
        """Draw what is computed and copied when, and the memory that takes.

        Parameters
        ----------
        filename
            Ends in ``.svg``, ``.png``, ``.pdf`` or ``.html``.  Needs matplotlib.
        """
        if self._draw is None:
            raise ValueError("a plan that was loaded has no timeline: make it again to draw it")
        return draw(self._draw(), filename)


def load_plan(filename: str | Path) -> SchedulePlan:
    """A plan that :meth:`SchedulePlan.save` has written.

    Raises
    ------
    ValueError
        If the file holds none, or one of another version.
    """
    said = f"{str(filename)!r} holds no plan of this version of dasktile"
    try:
        found = json.loads(Path(filename).read_text(encoding="utf-8"))
        if found.pop("version") != _VERSION:
            raise ValueError(said)
        order = tuple(_key(key) for key in found.pop("order"))
        return SchedulePlan(order=order, before=tuple(found.pop("before")), **found)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(said) from None


def plan(
    *collections: Any,
    memory_limit: float | str | None = None,
    device: str = "host",
    workers: Any = None,
    search_seconds: float = 0.0,
    seed: int = 0,
    repeat: bool = False,
) -> SchedulePlan:
    """Decide in which order tasks run, and what is swapped out of memory and back when.

    Parameters
    ----------
    *collections
        Dask collections, planned together; or one
        :class:`~dasktile.schedule.taskgraph.TaskGraph`.
    memory_limit
        Bytes of results that one worker can hold, as a number or as a string such as
        ``"2 GB"``.  By default what the workers of the client say.
    device
        ``"host"``: memory with a disk below; ``"cuda"``: a GPU's with the host's below.  What can
        be copied in a second is in the settings ``dasktile.plan``.
    workers
        A count, a ``distributed.Client``, or None for the current client's workers, else one.
        Several are planned for as one of their memory together.
    search_seconds
        For how long changes of the best order are tried; 0 for none.
    seed
        Of those changes.
    repeat
        The operations of a TaskGraph run again and again: what is in memory at the end is what
        was at the start.

    Returns
    -------
    A :class:`SchedulePlan`.  Without a search the same arguments give the same plan; the best
    that a search finds in its time depends on the machine, and is remembered for the next
    time that the same is asked.

    Raises
    ------
    ValueError, TypeError
        Naming the argument that is wrong; or the task that alone needs more than the limit.

    Examples
    --------
    >>> import dask.array as da
    >>> import dasktile
    >>> x = da.random.default_rng(0).random((4000, 4000), chunks=(500, 500))
    >>> found = dasktile.plan(x @ x.T, memory_limit="100 MB", workers=1)
    >>> y = found.apply()
    """
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
        names = graph.op_names or tuple(range(len(graph)))
        return _plan(graph, names, {}, limit, link, search_seconds, seed, repeat)
    if not collections or not all(map(is_dask_collection, collections)):
        kinds = ", ".join(type(one).__name__ for one in collections) or "nothing"
        raise TypeError(f"plan takes dask collections, or one TaskGraph; got {kinds}")
    if repeat:
        raise ValueError("repeat=True is for a TaskGraph: collections are computed once")
    target = machine(workers)
    limit = _limit(memory_limit, target) * target.workers
    graphs = [one.__dask_graph__() for one in collections]
    high = HighLevelGraph.merge(*(g for g in graphs if isinstance(g, HighLevelGraph)))
    low = Low.of(collections)
    found = tasks(high, low.tasks, low.wanted)
    given = {"dask.order": _usual_order(found)}
    made = _plan(
        _graph_of(found, target), found.keys, given, limit, link, search_seconds, seed, repeat
    )
    return replace(made, _collections=collections, _low=low)


def _usual_order(found: Tasks) -> Any:
    """The order that Dask would give the tasks, if their keys were numbers.

    It breaks ties by the order of sets, which for names is another in every process.
    """
    graph: dict[Any, Any] = {
        number: Task(number, len, *map(TaskRef, reads)) for number, reads in enumerate(found.reads)
    }
    rank = dask_order(graph)
    return np.argsort([rank[number] for number in range(len(graph))], kind="stable")


def _limit(memory_limit: object, target: Machine) -> int:
    limit = memory_bytes(memory_limit)
    if limit is None and target.memory_limit is not None:
        limit = target.memory_limit * target.threads
    if limit is None:
        raise ValueError("memory_limit must be given where no client's workers say what they have")
    return limit


def _link(device: object) -> Link:
    if device == "host":
        speed = config.positive("plan.disk-bandwidth")
        return Link(speed, speed, speed)
    if device == "cuda":
        speed, both = (
            config.positive("plan.device-bandwidth"),
            config.positive("plan.device-duplex"),
        )
        return Link(speed, speed, both)
    raise ValueError(f"device must be 'host' or 'cuda'; got {device!r}")


def _graph_of(found: Tasks, target: Machine) -> TaskGraph:
    """Tasks as operations; each makes one datum, its result.

    They take as long as tasks of their name did so far, else what their bytes and products do.
    """
    settings, seconds = target.settings(), config.positive("plan.task-seconds")
    memory = config.positive("plan.memory-bandwidth")
    if target.calibration is not None:
        seconds = target.calibration.task_seconds
        memory = target.calibration.memory or memory
    base = list(range(len(found.keys)))
    for number, viewed in enumerate(found.views):
        if viewed >= 0:
            base[number] = base[viewed]
    # a view takes nothing, and keeps what it is a view of
    sizes = [size if base[number] == number else 0 for number, size in enumerate(found.sizes)]
    reads = [dict.fromkeys([*reads, *(base[read] for read in reads)]) for reads in found.reads]
    took = target.durations() if target.durations is not None else {}

    def time_of(number: int) -> float:
        name = found.names[number]
        if name in took:
            return took[name]
        if base[number] != number:
            return seconds
        touched = found.sizes[number] + sum(found.sizes[read] for read in found.reads[number])
        return seconds + touched / memory + found.work[number] / settings.work_per_second

    times = [time_of(number) for number in range(len(found.keys))]
    return taskgraph(
        times,
        sizes,
        reads=[list(one) for one in reads],
        writes=[[number] for number in range(len(found.keys))],
        kept=dict.fromkeys([*found.wanted, *(base[number] for number in found.wanted)]),
        op_names=found.names,
        data_names=found.names,
    )


_lock = threading.Lock()

#: Plans by what they were made of, the oldest first.
_plans: OrderedDict[str, tuple[Planned, Run, tuple[int, int, float]]] = OrderedDict()


def _plan(
    graph: TaskGraph,
    names: Sequence[Hashable],
    given: Mapping[str, Any],
    limit: int,
    link: Link,
    search_seconds: float,
    seed: int,
    repeat: bool,
) -> SchedulePlan:
    parts = (graph.time, graph.size, graph.touched.pointer, graph.touched.index, graph.kinds,
             graph.present, graph.kept)  # fmt: skip
    token = tokenize(parts, given, limit, link.rates, search_seconds, seed, repeat)
    known = _plans.get(token)
    if known is None:
        with _progress(search_seconds) as clock:
            planned = find(
                graph, limit, link, given=given, repeat=repeat, search_seconds=search_seconds,
                clock=clock, rng=np.random.default_rng(seed),
            )  # fmt: skip
        memory = Memory.bytes(graph, limit)
        run = simulate(graph, planned.swaps, memory, link, walk(graph, planned.order, repeat))
        start = graph.check_order(next(iter(given.values()), np.arange(len(graph))))
        steps = walk(graph, start, repeat)
        swaps = plan_walk(graph, steps, memory, ON_DEMAND, repeat)
        seconds = simulate(graph, swaps, memory, link, steps).makespan
        known = planned, run, (swaps.swap_in_bytes, swaps.swap_out_bytes, seconds)
        with _lock:
            _plans[token] = known
            while len(_plans) > REMEMBERED:
                _plans.popitem(last=False)
    planned, run, before = known
    least = planned.least
    return SchedulePlan(
        order=tuple(names[op] for op in planned.order.tolist()),
        swap_in_bytes=planned.swap_in_bytes,
        swap_out_bytes=planned.swap_out_bytes,
        makespan=planned.makespan,
        lower_bound=planned.least_read if least is None else least.read + least.written,
        time_bound=planned.bound,
        ideal=planned.ideal,
        memory_limit=limit,
        peak=planned.peak,
        method=planned.method,
        before=before,
        _draw=partial(_timeline, graph, planned, run, limit),
    )


@contextmanager
def _progress(seconds: float) -> Iterator[Callable[[], float]]:
    """A clock; of a long search that somebody watches it shows how much is left."""
    if seconds < LONG or not sys.stderr.isatty():
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


def _timeline(graph: TaskGraph, planned: Planned, run: Run, limit: int) -> Timeline:
    swaps = planned.swaps

    def named(data: Any, times: Any) -> tuple[Any, ...]:
        return lane(
            [
                (float(start), float(end), graph.data_name(int(datum)))
                for datum, start, end in zip(data, *times, strict=True)
                if end > start
            ]
        )

    computed = [
        (float(start), float(end), graph.op_name(int(op)))
        for op, start, end in zip(planned.order, *run.operations, strict=True)
    ]
    lanes = {
        "compute": lane(computed),
        "copy in": named(swaps.in_datum, run.copies_in),
        "copy out": named(swaps.out_datum, run.copies_out),
    }
    title = f"{len(graph):,} tasks in {format_bytes(limit)}: {format_seconds(planned.makespan)}"
    return Timeline(lanes, _taken(graph, planned, run), limit, title)


def _taken(graph: TaskGraph, planned: Planned, run: Run) -> tuple[tuple[float, int], ...]:
    """Bytes in memory over time."""
    swaps, size = planned.swaps, graph.size
    changes: list[tuple[float, int]] = [(0.0, int(size[swaps.started].sum()))]
    trace = graph.trace(planned.order)
    owners = trace.touched.owners()
    made = graph.writes
    for at, op in enumerate(planned.order.tolist()):
        grown = int(size[made[op]].sum())
        if grown:
            changes.append((float(run.operations[0, at]), grown))
    last = trace.next == len(planned.order)
    for datum, at in zip(trace.touched.index[last].tolist(), owners[last].tolist(), strict=True):
        if not graph.kept[datum]:
            changes.append((float(run.operations[1, at]), -int(size[datum])))
    for datum, end in zip(swaps.out_datum.tolist(), run.copies_out[1].tolist(), strict=True):
        changes.append((end, -int(size[datum])))
    for datum, start in zip(swaps.in_datum.tolist(), run.copies_in[0].tolist(), strict=True):
        changes.append((start, int(size[datum])))
    now, found = 0, []
    for seconds, change in sorted(changes):
        now += change
        found.append((seconds, now))
    return tuple(found)


def _plain(key: Any) -> Any:
    if isinstance(key, np.generic):
        key = key.item()
    return list(map(_plain, key)) if isinstance(key, tuple) else key


def _key(key: Any) -> Any:
    return tuple(map(_key, key)) if isinstance(key, list) else key
