"""The scheduler plugin with thousands of workers, which only speak the protocol.

    python -m benchmarks.many_workers [--workers 256 1024] [--tasks 50000] [--repeat 1]
        [--json FILE]

The scheduler is distributed's own.  A worker here is the scheduler's end of its connection: it says
that every task which it receives has finished, and computes nothing.  So any number of them fits in
one process, and the seconds are those of the scheduler.  Two graphs are computed with and without
the plugin, in turns: a plain one, and that of a plan, every task of which has a home worker.

The report has, for one graph, the processor seconds of the whole process; of them, those inside the
plugin, when it receives the graph and when tasks change their states; the longest time for which
the event loop was blocked; and the time in which one worker joins.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import statistics
import time
from collections.abc import Sequence
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
}


class Worker(Comm):
    """The scheduler's end of the connection to a worker that finishes every task at once."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address
        self._replies: asyncio.Queue[list[dict[str, Any]] | None] = asyncio.Queue()
        self._closed = False

    async def write(self, msg: Any, serializers: Any = None, on_error: Any = None) -> int:
        messages = msg if isinstance(msg, (list, tuple)) else [msg]
        replies = [_finished(each) for each in messages if each.get("op") == "compute-task"]
        if replies:
            self._replies.put_nowait(replies)
        return 0

    async def read(self, deserializers: Any = None) -> Any:
        replies = await self._replies.get()
        if replies is None:
            raise CommClosedError
        return replies

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
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
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
        host = f"10.{number // 2**16}.{number // 2**8 % 2**8}.{number % 2**8}"
        worker = Worker(f"tcp://{host}:40000")
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

    async def close(self) -> None:
        for worker in self._workers:
            worker.abort()
        await asyncio.gather(*self._streams, return_exceptions=True)


class Meter:
    """Seconds of one computation.

    Attributes
    ----------
    graph, transitions
        Seconds inside the plugin, when it receives a graph and when tasks change their states.
    longest
        The longest time in seconds for which the event loop was blocked.
    """

    def __init__(self, plugin: TileSchedulerPlugin | None) -> None:
        self.graph = self.transitions = 0.0
        self._plugin = plugin

    async def __aenter__(self) -> Meter:
        if self._plugin is not None:
            for hook, attribute in (("update_graph", "graph"), ("transition", "transitions")):
                self._time(self._plugin, hook, attribute)
            self._time(self._plugin.roots, "release", "transitions")
        self._delay = Delay()
        self._start = time.process_time()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.seconds = time.process_time() - self._start
        self._delay.stop()
        self.longest = self._delay.longest
        if self._plugin is not None:
            del self._plugin.update_graph, self._plugin.transition, self._plugin.roots.release

    def _time(self, owner: Any, hook: str, attribute: str) -> None:
        function = getattr(owner, hook)

        def timed(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                passed = time.perf_counter() - start
                setattr(self, attribute, getattr(self, attribute) + passed)

        setattr(owner, hook, timed)


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
    async with Meter(plugin) as meter:
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
        "transitions": meter.transitions,
        "longest": meter.longest,
    }


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
            "transitions_inside": median(name, True, "transitions"),
            "longest_with": median(name, True, "longest"),
            "longest_without": median(name, False, "longest"),
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
    table = Table("seconds, with / without", *columns)
    for title, what in (
        ("processor time", "seconds"),
        ("longest time blocked", "longest"),
    ):
        table.add_row(
            title, *(f"{row[f'{what}_with']:.2f} / {row[f'{what}_without']:.2f}" for row in rows)
        )
    table.add_row(
        "milliseconds of a join",
        *(f"{1e3 * row['join_with']:.2f} / {1e3 * row['join_without']:.2f}" for row in rows),
    )
    for title, what in (
        ("inside the plugin, graph", "graph_inside"),
        ("inside the plugin, tasks", "transitions_inside"),
    ):
        table.add_row(
            title,
            *(f"{row[what]:.2f} ({row[what] / row['seconds_with']:.1%})" for row in rows),
        )
    console.print(table)


if __name__ == "__main__":
    main()
