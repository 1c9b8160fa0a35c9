"""The time that the scheduler plugin adds to the scheduler.

    python -m benchmarks.plugin_cost [--tasks 20000 200000] [--repeat 5] [--json FILE]

The same graphs are sent to one cluster with and without the plugin, in turns: a plain graph, which
the plugin leaves unchanged, and the graph of a plan, every task of which gets a home worker.  The
report has medians of: the seconds of ``Scheduler.update_graph``, the part of them inside the
plugin, and the longest time for which the scheduler's event loop was blocked.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da
from distributed import Client, LocalCluster, Scheduler
from rich.console import Console
from rich.table import Table

import dasktile

#: Seconds between two ticks that measure the delay of the event loop.
_TICK = 0.002

#: Seconds to wait after a graph has been received, so that its first tasks are counted.
_SETTLE = 1.5


#: Settings with which tiles are about as small as the chunks of `collection`.
SMALL_TILES = {
    "dasktile.tiling.max-task": "16 kiB",
    "dasktile.tiling.usual-task": "4 kiB",
    "dasktile.tiling.min-tile": "1 kiB",
    "dasktile.cost.task-bytes": 1,
}


def collection(tasks: int) -> da.Array:
    """An array with about `tasks` tasks: a random field, its transpose, anomalies, a sum.

    Parameters
    ----------
    tasks
        The number of tasks, which the result has within a third.
    """
    blocks = max(2, round((tasks / 3.6) ** 0.5))
    x = da.random.default_rng(0).random((10 * blocks, 10 * blocks), chunks=10)
    both = x + x.T
    anomalies = both - both.mean(axis=0)
    total: da.Array = anomalies.sum(axis=1)
    return total


def planned(array: da.Array, client: Client) -> da.Array:
    """The same array with a plan, whose tiles are as small as the chunks.

    Parameters
    ----------
    array
        A result of `collection`.
    client
        A client of the cluster to plan for.
    """
    with dask.config.set(SMALL_TILES):
        result: da.Array = dasktile.optimize(array, workers=client)
    return result


def _nothing() -> None: ...


class Delay:
    """A timer of the longest time for which the running event loop is blocked.

    Parameters
    ----------
    clock
        The clock, in seconds; by default that of the processor time of the thread.

    Attributes
    ----------
    longest
        That time, in processor seconds of the thread, so that other work hardly changes it.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self.longest = 0.0
        self._ticking = asyncio.ensure_future(self._tick())

    def stop(self) -> None:
        """End the timing."""
        self._ticking.cancel()

    async def _tick(self) -> None:
        before = self._clock()
        while True:
            await asyncio.sleep(_TICK)
            now = self._clock()
            self.longest = max(self.longest, now - before)
            before = now


class Meter:
    """A timer of one scheduler's event loop.

    Attributes
    ----------
    graph, state, plugin
        Seconds of ``Scheduler.update_graph``; of the part of it that blocks the event loop; and
        inside the plugin, less the overhead of this timer.
    longest
        The longest time in seconds for which the event loop was blocked.
    tasks
        Number of tasks of the graph.
    """

    def __init__(self, scheduler: Scheduler, inside: bool) -> None:
        self.scheduler: Any = scheduler
        self.hooks = ("update_graph", "transition") if inside else ()
        self.plugin = self.state = 0.0
        self._overhead = 0.0
        for _ in range(1000):
            self._inside(_nothing)()
        self._overhead, self.plugin = self.plugin / 1000, 0.0
        self.tasks = 0
        self._before: float = scheduler.digests_total["update-graph-duration"]

    @property
    def graph(self) -> float:
        return self.scheduler.digests_total["update-graph-duration"] - self._before

    async def start(self) -> None:
        """Start timing; to be called on the scheduler's event loop."""
        for name in self.hooks:
            plugin = self.scheduler.plugins["dasktile"]
            setattr(plugin, name, self._inside(getattr(plugin, name)))
        create = self.scheduler._create_taskstate_from_graph

        def timed(**arguments: Any) -> Any:
            start = time.perf_counter()
            result = create(**arguments)
            self.state = time.perf_counter() - start
            self.tasks = len(arguments["dsk"])
            return result

        self.scheduler._create_taskstate_from_graph = timed
        self._delay = Delay()

    async def stop(self) -> None:
        """Stop timing and restore the replaced methods."""
        self._delay.stop()
        self.longest = self._delay.longest
        del self.scheduler._create_taskstate_from_graph
        for name in self.hooks:
            delattr(self.scheduler.plugins["dasktile"], name)

    def _inside(self, function: Any) -> Any:
        def timed(*arguments: Any, **named: Any) -> None:
            start = time.perf_counter()
            function(*arguments, **named)
            if not self.state:
                self.plugin += time.perf_counter() - start - self._overhead

        return timed


def measure(
    cluster: LocalCluster, client: Client, array: da.Array, inside: bool
) -> dict[str, float]:
    """Send one graph, wait until the scheduler has received it, and cancel it.

    Parameters
    ----------
    cluster
        A cluster whose scheduler runs in this process.
    client
        A client of the cluster.
    array
        The array whose graph is sent; it is computed in part.
    inside
        Whether to time the plugin, too, which takes time itself.
    """
    scheduler = cluster.scheduler
    meter = Meter(scheduler, inside)
    gc.collect()
    cluster.sync(meter.start)
    future = client.compute(array, optimize_graph=False)
    while not meter.graph:
        time.sleep(0.01)
    time.sleep(_SETTLE)
    cluster.sync(meter.stop)
    future.cancel()
    while scheduler.tasks:
        time.sleep(0.01)
    return {
        "tasks": meter.tasks,
        "graph": meter.graph,
        "state": meter.state,
        "plugin": meter.plugin,
        "longest": meter.longest,
    }


def run(tasks: int, repeat: int, workers: int = 4) -> list[dict[str, Any]]:
    """Measure a plain graph and the graph of a plan, with and without the plugin in turns.

    Parameters
    ----------
    tasks
        Approximate number of tasks of a graph.
    repeat
        Number of times that each graph is sent.
    workers
        Number of worker processes.
    """
    runs: dict[tuple[str, str], list[dict[str, float]]] = {}
    with (
        dask.config.set({"distributed.scheduler.worker-ttl": None}),
        LocalCluster(
            n_workers=workers, threads_per_worker=1, memory_limit=0, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        array = collection(tasks)
        dasktile.enable(client)
        # fused here once, so that every turn sends the same graph
        graphs = {"plain": dask.optimize(array)[0], "planned": planned(array, client)}
        graphs["planned"] = dask.optimize(graphs["planned"])[0]
        turns = ["without", "with", "inside"]
        for number in range(repeat):
            for turn in turns if number % 2 else reversed(turns):
                (dasktile.disable if turn == "without" else dasktile.enable)(client)
                for name, graph in graphs.items():
                    measurements = measure(cluster, client, graph, turn == "inside")
                    runs.setdefault((name, turn), []).append(measurements)
        dasktile.disable(client)

    def median(name: str, turn: str, what: str) -> float:
        return statistics.median(measurements[what] for measurements in runs[name, turn])

    return [
        {
            "graph": name,
            "tasks": int(median(name, "with", "tasks")),
            "plugin": median(name, "inside", "plugin"),
            "share": median(name, "inside", "plugin") / median(name, "with", "graph"),
            **{
                f"{what}_{turn}": median(name, turn, what)
                for what in ("graph", "state", "longest")
                for turn in ("with", "without")
            },
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
    parser.add_argument("--tasks", type=int, nargs="+", default=[20_000, 200_000])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows = [row for tasks in options.tasks for row in run(tasks, options.repeat)]
    table = Table("seconds, with / without", *(f"{row['graph']} {row['tasks']:,}" for row in rows))
    for title, what in (
        ("Scheduler.update_graph", "graph"),
        ("of it, blocking the event loop", "state"),
        ("longest time blocked", "longest"),
    ):
        table.add_row(
            title, *(f"{row[f'{what}_with']:.3f} / {row[f'{what}_without']:.3f}" for row in rows)
        )
    table.add_row(
        "inside the plugin", *(f"{row['plugin']:.3f} ({row['share']:.1%})" for row in rows)
    )
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
