"""The scheduler plugin with thousands of workers, which only speak the protocol.

    python -m benchmarks.many_workers [--workers 256 1024] [--tasks 50000] [--repeat 1]
        [--json FILE]

The scheduler is distributed's own.  A worker here is the scheduler's end of its connection: it says
that every task which it receives has finished, and computes nothing.  So any number of them fits in
one process, and the seconds are those of the scheduler.  Two graphs are computed with and without
the plugin, in turns: a plain one, and that of a plan, every task of which has a home worker.

The report has, for one graph, the processor seconds of the whole process, of which:

- those of Python's garbage collection, which do not count for the function in which they happen;
- those inside the plugin when it receives the graph;
- those inside the plugin after that: when tasks change their states, when held tasks are released,
  and in its regular checks.  Transitions of tasks by the scheduler's own functions do not count,
  even if the plugin requests them, as each of these tasks is sent to a worker once in any case.

It has also the most processor seconds of the event loop between two of its ticks, with and without
garbage collection: which of two runs has one collection more in its longest block is chance.  Then
those of ``update_graph`` on the event loop, which reads, places and starts a new graph, the bytes
that the plugin keeps for each task of a graph that was just received, and the time in which one
worker joins.  All seconds but those of joins are of processor clocks, so that other work on the
machine hardly changes them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import statistics
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import dask
import dask.array as da
from distributed import Client, Future, Scheduler
from distributed import versions as version_module
from distributed.comm import Comm, CommClosedError
from distributed.versions import get_versions
from rich.console import Console
from rich.table import Table

import dasktile
from benchmarks.plugin_cost import SMALL_TILES, Delay, collection
from dasktile import api
from dasktile.cluster.target import Machine
from dasktile.runtime.scheduler.plugin import TileSchedulerPlugin

#: Seconds between two looks at the scheduler.
_TICK = 0.002

#: Bytes of every result, as the workers report them.
_NBYTES = 800


#: What the workers say of themselves.
_METRICS: dict[str, Any] = {
    "bandwidth": {"total": 1e8, "workers": {}, "types": {}},
    "digests_total_since_heartbeat": {},
    "managed_bytes": 0,
    "memory": 2**27,
    "spilled_bytes": {"memory": 0, "disk": 0},
    "task_counts": {},
    "cpu": 0.0,
    "event_loop_interval": 0.0,
    # so that hints are sent, as to workers with the store
    "dasktile": {"store": {"held": {"memory": 0}}, "hints": True},
}


class Worker(Comm):
    """The scheduler's end of the connection to a worker that finishes every task at once."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address
        self._replies: asyncio.Queue[list[dict[str, Any]] | None] = asyncio.Queue()
        self._closed = False
        #: The run of every task that the worker has and has not reported.
        self._runs: dict[Any, int] = {}

    async def write(self, msg: Any, serializers: Any = None, on_error: Any = None) -> int:
        replies = []
        for each in msg if isinstance(msg, (list, tuple)) else [msg]:
            if each.get("op") == "compute-task":
                self._runs[each["key"]] = each["run_id"]
                replies.append(_finished(each))
            elif each.get("op") == "free-keys":
                for key in each["keys"]:
                    self._runs.pop(key, None)
        if replies:
            self._replies.put_nowait(replies)
        return 0

    async def read(self, deserializers: Any = None) -> Any:
        replies = await self._replies.get()
        if replies is None:
            raise CommClosedError
        # as a worker does: nothing of tasks that the scheduler has freed or sent again since
        current = [each for each in replies if self._runs.get(each["key"]) == each["run_id"]]
        for each in current:
            del self._runs[each["key"]]
        return current

    async def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        self._closed = True
        self._replies.put_nowait(None)

    def closed(self) -> bool:
        return self._closed

    @property
    def local_address(self) -> str:
        return "inproc://scheduler"

    @property
    def peer_address(self) -> str:
        return self.address


def _finished(task: dict[str, Any]) -> dict[str, Any]:
    """What a worker says of a task that it has computed."""
    now = time.time()
    return {
        "op": "task-finished",
        "status": "OK",
        "key": task["key"],
        "run_id": task["run_id"],
        "stimulus_id": "computed",
        "nbytes": _NBYTES,
        "type": b"",
        "typename": "numpy.ndarray",
        "metadata": {},
        "thread": 1,
        "startstops": ({"action": "compute", "start": now - 0.001, "stop": now},),
    }


class Cluster:
    """A scheduler with workers.

    Parameters
    ----------
    scheduler
        The scheduler.
    per_host
        Number of workers on a host.
    """

    def __init__(self, scheduler: Scheduler, per_host: int = 1) -> None:
        self.scheduler = scheduler
        self._per_host = per_host
        self._versions = get_versions()
        self._workers: list[Worker] = []
        self._streams: list[asyncio.Task[None]] = []

    async def add(self, count: int) -> float:
        """Let workers join; returns the seconds until the scheduler knows them all."""
        first, wanted = len(self._streams), len(self.scheduler.workers) + count
        start = time.perf_counter()
        for number in range(first, first + count):
            self._streams.append(asyncio.ensure_future(self._join(number)))
        while len(self.scheduler.workers) < wanted:
            await asyncio.sleep(0)
        return time.perf_counter() - start

    async def _join(self, number: int) -> None:
        on_host, port = divmod(number, self._per_host)
        host = f"10.{on_host // 2**16}.{on_host // 2**8 % 2**8}.{on_host % 2**8}"
        worker = Worker(f"tcp://{host}:{40000 + port}")
        self._workers.append(worker)
        await self.scheduler.add_worker(
            worker,
            address=worker.address,
            status="running",
            server_id=f"worker-{number}",
            nthreads=1,
            name=f"worker-{number}",
            resolve_address=False,
            now=time.time(),
            resources={},
            memory_limit=2**32,
            metrics=_METRICS,
            services={},
            local_directory="",
            versions=self._versions,
            nanny="",
            extra={},
            stimulus_id="join",
        )

    def lose(self, address: str) -> None:
        """Break the connection to a worker."""
        for worker in self._workers:
            if worker.address == address:
                worker.abort()

    async def close(self) -> None:
        """Let all workers leave at once, with the scheduler.

        If one leaves after the other, the scheduler sends all others a message each time.
        """
        streams = list(self.scheduler.stream_comms.values())
        self.scheduler.stream_comms.clear()
        for stream in streams:
            stream.abort()
        for worker in self._workers:
            worker.abort()
        await asyncio.gather(*self._streams, return_exceptions=True)


class Meter:
    """Processor seconds of one computation, less those of this timer.

    Parameters
    ----------
    scheduler, plugin
        The scheduler, and its plugin; None without one.

    Attributes
    ----------
    seconds
        Seconds of the process.
    graph, tasks
        Those inside the plugin, when it receives a graph and later.
    received
        Seconds in which the scheduler created and started the tasks of a new graph.
    collected
        Seconds of garbage collection, which are in none of the three before.
    longest, longest_own
        Seconds for which the event loop was blocked at the longest, and without the garbage
        collection.
    """

    def __init__(self, scheduler: Scheduler, plugin: TileSchedulerPlugin | None) -> None:
        self._scheduler = scheduler
        self._timed: list[tuple[Any, str, str]] = []
        if plugin is not None:
            self._timed = [
                (plugin, "update_graph", "graph"),
                (plugin, "transition", "tasks"),
                (plugin, "_check", "tasks"),
                (plugin.roots, "release", "tasks"),
                (plugin.hint_sender, "send", "tasks"),
                (scheduler, "transitions", "scheduler"),
            ]
        #: Seconds and calls of the functions above; seconds are those of the innermost one.
        self._spent: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._inside, self._since = "", 0.0
        self._collecting, self.collected, self.received = 0.0, 0.0, 0.0
        #: Calls of the functions above while a graph is received.
        self._calls_within = 0

    async def __aenter__(self) -> Meter:
        for owner, name, part in self._timed:
            setattr(owner, name, self._time(getattr(owner, name), part))
        create = self._scheduler._create_taskstate_from_graph

        def receive(**arguments: Any) -> Any:
            begin, calls = time.thread_time() - self.collected, sum(self._calls.values())
            try:
                return create(**arguments)
            finally:
                self.received += time.thread_time() - self.collected - begin
                self._calls_within += sum(self._calls.values()) - calls

        self._scheduler._create_taskstate_from_graph = receive  # type: ignore[method-assign]
        gc.callbacks.append(self._collect)
        self._delays = Delay(), Delay(lambda: time.thread_time() - self.collected)
        self._start = time.process_time()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.seconds = time.process_time() - self._start
        gc.callbacks.remove(self._collect)
        for delay in self._delays:
            delay.stop()
        self.longest, self.longest_own = (delay.longest for delay in self._delays)
        for owner, name, _ in (*self._timed, (self._scheduler, "_create_taskstate_from_graph", "")):
            delattr(owner, name)
        spent, calls = dict(self._spent), dict(self._calls)
        inside, whole = self._overhead()
        self.seconds -= whole * sum(calls.values())
        self.received -= whole * self._calls_within
        self.graph, self.tasks = (
            max(0.0, spent.get(part, 0.0) - inside * calls.get(part, 0))
            for part in ("graph", "tasks")
        )

    def _overhead(self) -> tuple[float, float]:
        """Seconds of a call that does nothing: those that are counted for it, and all."""
        timed = self._time(lambda: None, "nothing")
        start = time.thread_time()
        for _ in range(10_000):
            timed()
        whole = time.thread_time() - start
        return self._spent["nothing"] / 10_000, whole / 10_000

    def _time(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            outer = self._enter(part)
            self._calls[part] += 1
            try:
                return function(*arguments, **named)
            finally:
                self._enter(outer)

        return timed

    def _collect(self, phase: str, info: dict[str, int]) -> None:
        """Count a garbage collection, and for no function."""
        now = time.thread_time()
        if phase == "start":
            self._collecting = now
        else:
            self.collected += now - self._collecting
            self._since += now - self._collecting

    def _enter(self, part: str) -> str:
        """Count for another part from now on; returns the part before."""
        now = time.thread_time()
        self._spent[self._inside] += now - self._since
        before, self._inside, self._since = self._inside, part, now
        return before


async def measure(
    cluster: Cluster, client: Client, graph: da.Array, plugin: TileSchedulerPlugin | None
) -> dict[str, float]:
    """Compute one graph, and forget it.

    Parameters
    ----------
    cluster, client
        A cluster, and a client of it.
    graph
        The array that is computed.
    plugin
        The plugin of the scheduler; None without one.
    """
    gc.collect()
    scheduler = cluster.scheduler
    async with Meter(scheduler, plugin) as meter:
        future = client.compute(graph, optimize_graph=False)
        while not scheduler.tasks:
            await asyncio.sleep(_TICK)
        tasks = len(scheduler.tasks)
        await _finish(scheduler, future)
    del future
    while scheduler.tasks:
        await asyncio.sleep(_TICK)
    return {
        "tasks": tasks,
        "seconds": meter.seconds,
        "graph": meter.graph,
        "later": meter.tasks,
        "received": meter.received,
        "collected": meter.collected,
        "longest": meter.longest,
        "longest_own": meter.longest_own,
    }


async def kept(
    cluster: Cluster, client: Client, graph: da.Array, plugin: TileSchedulerPlugin
) -> float:
    """Bytes for each task of a graph that the plugin keeps when it has received the graph.

    Parameters
    ----------
    cluster, client
        A cluster, and a client of it.
    graph
        The array that is sent; it is not computed to the end.
    plugin
        The plugin of the scheduler.
    """
    scheduler = cluster.scheduler

    def traced(*arguments: Any, **named: Any) -> None:
        tracemalloc.start()
        TileSchedulerPlugin.update_graph(plugin, *arguments, **named)

    with mock.patch.object(plugin, "update_graph", traced):
        future = client.compute(graph, optimize_graph=False)
        while not scheduler.tasks:
            await asyncio.sleep(_TICK)
    tasks = len(scheduler.tasks)
    ours = tracemalloc.Filter(True, str(Path(dasktile.__file__).parent / "*"))
    traces = tracemalloc.take_snapshot().filter_traces([ours]).traces
    tracemalloc.stop()
    await future.cancel()
    while scheduler.tasks:
        await asyncio.sleep(_TICK)
    return sum(trace.size for trace in traces) / tasks


async def _finish(scheduler: Scheduler, future: Future) -> None:
    while scheduler.tasks[future.key].state != "memory":
        await asyncio.sleep(_TICK)


def planned(array: da.Array, workers: int) -> da.Array:
    """The same array with a plan, whose tiles are about as small as the chunks.

    Parameters
    ----------
    array
        A result of `collection`.
    workers
        Number of workers.
    """
    # workers on which tasks run where a plan places them
    order = tuple(map(str, range(workers)))
    machine = Machine(workers, order=order, who_has=lambda blocks: {})
    with (
        dask.config.set({**SMALL_TILES, "dasktile.bundle": 0}),
        mock.patch.object(api, "machine", lambda *_: machine),
    ):
        result: da.Array = dasktile.optimize(array)
    return result


async def run(workers: int, tasks: int, repeat: int) -> list[dict[str, Any]]:
    """Measure a plain graph and the graph of a plan, with and without the plugin in turns.

    Parameters
    ----------
    workers
        Number of workers.
    tasks
        Approximate number of tasks of a graph.
    repeat
        Number of times that each graph is computed.
    """
    array = collection(tasks)
    graphs = {"plain": array, "planned": planned(array, workers)}
    graphs = {name: dask.optimize(graph)[0] for name, graph in graphs.items()}
    runs: dict[tuple[str, bool], list[dict[str, float]]] = {}
    joined: dict[bool, list[float]] = {True: [], False: []}
    bytes_kept: dict[str, float] = {}
    for number in range(repeat):
        for enabled in (True, False) if number % 2 else (False, True):
            options = {"protocol": "inproc", "dashboard": False, "dashboard_address": ":0"}
            async with Scheduler(**options) as scheduler:
                cluster = Cluster(scheduler)
                plugin = TileSchedulerPlugin() if enabled else None
                if plugin is not None:
                    scheduler.add_plugin(plugin)
                    await plugin.start(scheduler)
                joined[enabled].append(await cluster.add(workers) / workers)
                async with Client(scheduler.address, asynchronous=True) as client:
                    for name, graph in graphs.items():
                        found = await measure(cluster, client, graph, plugin)
                        runs.setdefault((name, enabled), []).append(found)
                        if plugin is not None and name not in bytes_kept:
                            bytes_kept[name] = await kept(cluster, client, graph, plugin)
                await cluster.close()

    def median(name: str, enabled: bool, what: str) -> float:
        return statistics.median(found[what] for found in runs[name, enabled])

    return [
        {
            "graph": name,
            "workers": workers,
            "tasks": int(median(name, True, "tasks")),
            "seconds_with": median(name, True, "seconds"),
            "seconds_without": median(name, False, "seconds"),
            "graph_inside": median(name, True, "graph"),
            "later_inside": median(name, True, "later"),
            "bytes_per_task": bytes_kept[name],
            **{
                f"{what}_{suffix}": median(name, enabled, what)
                for what in ("received", "collected", "longest", "longest_own")
                for suffix, enabled in (("with", True), ("without", False))
            },
            "join_with": statistics.median(joined[True]),
            "join_without": statistics.median(joined[False]),
        }
        for name in graphs
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print.

    Parameters
    ----------
    arguments
        Command-line arguments; None for those of the process.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--tasks", type=int, default=50_000)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    # for each worker that joins, distributed compares the versions of all
    versions = mock.patch.object(version_module, "error_message", lambda *_, **__: {})
    with dask.config.set({"distributed.scheduler.worker-ttl": None}), versions:
        for workers in options.workers:
            rows += asyncio.run(run(workers, options.tasks, options.repeat))
    report(rows, Console())
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


def report(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print a table of the measurements.

    Parameters
    ----------
    rows
        The measurements.
    console
        Where to print.
    """
    columns = (f"{row['graph']} {row['tasks']:,}\n{row['workers']:,} workers" for row in rows)
    table = Table("processor seconds, with / without", *columns)
    for title, what in (
        ("whole process", "seconds"),
        ("of which garbage collection", "collected"),
        ("update_graph on the event loop", "received"),
        ("event loop blocked at the longest", "longest"),
        ("without garbage collection", "longest_own"),
    ):
        table.add_row(
            title, *(f"{row[f'{what}_with']:.2f} / {row[f'{what}_without']:.2f}" for row in rows)
        )
    table.add_row(
        "milliseconds of a join",
        *(f"{1e3 * row['join_with']:.2f} / {1e3 * row['join_without']:.2f}" for row in rows),
    )
    for title, what in (
        ("inside the plugin, new graph", "graph_inside"),
        ("inside the plugin, later", "later_inside"),
    ):
        table.add_row(
            title,
            *(f"{row[what]:.2f} ({row[what] / row['seconds_with']:.1%})" for row in rows),
        )
    table.add_row("bytes kept for a task", *(f"{row['bytes_per_task']:.0f}" for row in rows))
    console.print(table)


if __name__ == "__main__":
    main()
