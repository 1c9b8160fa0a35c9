"""What the scheduler plugin costs the scheduler.

    python -m benchmarks.plugin_cost [--tasks 20000 200000] [--repeat 5] [--json FILE]

The same graph is sent to one cluster with and without the plugin, in turns: a plain one, that
the plugin only has to leave alone, and one of a plan, every task of which gets a home.  Reported
are, as medians: seconds of ``Scheduler.update_graph``, those of them inside the plugin, and the
longest time for which the scheduler's event loop answered nobody.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da
from distributed import Client, LocalCluster, Scheduler
from rich.console import Console
from rich.table import Table

import dasktile

#: Seconds between two looks at the event loop.
_TICK = 0.002

#: Seconds for the start of a graph to settle.
_SETTLE = 1.5


def collection(tasks: int) -> da.Array:
    """An array of about as many tasks: a field, its transposition, anomalies, a sum.

    Parameters
    ----------
    tasks
        Wanted; what comes is within a third of it.
    """
    blocks = max(2, round((tasks / 3.6) ** 0.5))
    x = da.random.default_rng(0).random((10 * blocks, 10 * blocks), chunks=10)
    both = x + x.T
    anomalies = both - both.mean(axis=0)
    total: da.Array = anomalies.sum(axis=1)
    return total


def planned(array: da.Array, client: Client) -> da.Array:
    """The same with a plan, in tiles as small as the chunks.

    Parameters
    ----------
    array
        From `collection`.
    client
        Of the cluster to plan for.
    """
    small = {"max-task": "16 kiB", "usual-task": "4 kiB", "min-tile": "1 kiB"}
    settings = {f"dasktile.tiling.{name}": size for name, size in small.items()}
    with dask.config.set({**settings, "dasktile.cost.task-bytes": 1}):
        found: da.Array = dasktile.optimize(array, workers=client)
    return found


def _nothing() -> None: ...


class Meter:
    """Times what happens on the event loop of one scheduler.

    Attributes
    ----------
    graph, state, plugin
        Seconds of ``Scheduler.update_graph``; of the part of it in which nothing else can run;
        and inside the plugin, without what the clock itself takes.
    longest
        Seconds for which the event loop answered nobody.
    tasks
        Of the graph.
    """

    def __init__(self, scheduler: Scheduler, inside: bool) -> None:
        self.scheduler: Any = scheduler
        self.hooks = ("update_graph", "transition") if inside else ()
        self.plugin = self.state = self.longest = 0.0
        self._clock = 0.0
        for _ in range(1000):
            self._inside(_nothing)()
        self._clock, self.plugin = self.plugin / 1000, 0.0
        self.tasks = 0
        self._before: float = scheduler.digests_total["update-graph-duration"]

    @property
    def graph(self) -> float:
        return self.scheduler.digests_total["update-graph-duration"] - self._before

    async def start(self) -> None:
        """Begin; on the scheduler's event loop."""
        for name in self.hooks:
            plugin = self.scheduler.plugins["dasktile"]
            setattr(plugin, name, self._inside(getattr(plugin, name)))
        create = self.scheduler._create_taskstate_from_graph

        def timed(**arguments: Any) -> Any:
            start = time.perf_counter()
            found = create(**arguments)
            self.state = time.perf_counter() - start
            self.tasks = len(arguments["dsk"])
            return found

        self.scheduler._create_taskstate_from_graph = timed
        self.ticking = asyncio.ensure_future(self._tick())

    async def stop(self) -> None:
        """End, and leave no trace."""
        self.ticking.cancel()
        del self.scheduler._create_taskstate_from_graph
        for name in self.hooks:
            delattr(self.scheduler.plugins["dasktile"], name)

    def _inside(self, function: Any) -> Any:
        def timed(*arguments: Any, **named: Any) -> None:
            start = time.perf_counter()
            function(*arguments, **named)
            if not self.state:
                self.plugin += time.perf_counter() - start - self._clock

        return timed

    async def _tick(self) -> None:
        before = time.perf_counter()
        while True:
            await asyncio.sleep(_TICK)
            now = time.perf_counter()
            self.longest = max(self.longest, now - before - _TICK)
            before = now


def measure(
    cluster: LocalCluster, client: Client, array: da.Array, inside: bool
) -> dict[str, float]:
    """Send one graph, wait until the scheduler has it, and take it back.

    Parameters
    ----------
    cluster
        With its scheduler in this process.
    client
        Of it.
    array
        Is computed in part.
    inside
        Time the plugin too, which takes time itself.
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
    """Measure a plain graph and one of a plan, with and without the plugin in turns.

    Parameters
    ----------
    tasks
        Wanted in a graph.
    repeat
        Times that each is sent.
    workers
        Processes of the cluster.
    """
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    with (
        dask.config.set({"distributed.scheduler.worker-ttl": None}),
        LocalCluster(
            n_workers=workers, threads_per_worker=1, memory_limit=0, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        array = collection(tasks)
        dasktile.enable(client)
        # fused here once, so that every turn sends the same
        graphs = {"plain": dask.optimize(array)[0], "planned": planned(array, client)}
        graphs["planned"] = dask.optimize(graphs["planned"])[0]
        turns = ["without", "with", "inside"]
        for number in range(repeat):
            for turn in turns if number % 2 else reversed(turns):
                (dasktile.disable if turn == "without" else dasktile.enable)(client)
                for name, graph in graphs.items():
                    one = measure(cluster, client, graph, turn == "inside")
                    found.setdefault((name, turn), []).append(one)
        dasktile.disable(client)

    def median(name: str, turn: str, what: str) -> float:
        return statistics.median(one[what] for one in found[name, turn])

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
        Of the command line.
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
        ("of it, in one piece", "state"),
        ("longest without an answer", "longest"),
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
