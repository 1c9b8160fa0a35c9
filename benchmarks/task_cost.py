"""The processor time that the plugins and the store add to tasks that do nothing.

    python -m benchmarks.task_cost [--tasks 3000] [--rounds 8] [--bytes 800] [--json FILE]

Two clusters of single-threaded processes, one of them with `dasktile.enable`, run the same graph in
turns: roots, tasks that read two of them, and tasks that read ten of those.  Every task returns an
array of some bytes; while the results take less than half of a worker's memory, as here, the store
decides nothing on them.  The report has, for each cluster, medians of: processor seconds of this
process (scheduler and client), of all workers, and wall-clock seconds, for one task.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
from dask._task_spec import Task, TaskRef
from distributed import Client, LocalCluster, wait
from rich.console import Console
from rich.table import Table

import dasktile

#: Seconds between two runs, in which workers release the results of the first.
_PAUSE = 0.5

#: Tasks that a task of the last step reads.
_FAN_IN = 10

#: The columns of the table.
COLUMNS = {
    "scheduler": "scheduler and client ms",
    "workers": "workers ms",
    "both": "both ms",
    "seconds": "wall ms",
}


def _block(nbytes: int, *inputs: Any) -> np.ndarray:
    return np.zeros(nbytes, np.uint8)


def graph(tasks: int, tag: str, nbytes: int) -> tuple[dict[str, Any], list[str]]:
    """A graph of tasks that do nothing, and the keys of its results.

    Parameters
    ----------
    tasks
        About the number of tasks.
    tag
        A part of all keys.
    nbytes
        Bytes of every result.
    """
    count = max(_FAN_IN, round(tasks / (2 + 1 / _FAN_IN)) // _FAN_IN * _FAN_IN)
    reads: dict[str, list[str]] = {f"root-{tag}-{at}": [] for at in range(count)}
    roots = list(reads)
    pairs = [f"pair-{tag}-{at}" for at in range(count)]
    ends = [f"end-{tag}-{at}" for at in range(count // _FAN_IN)]
    reads |= {key: [roots[at], roots[at - 1]] for at, key in enumerate(pairs)}
    reads |= {key: pairs[_FAN_IN * at : _FAN_IN * (at + 1)] for at, key in enumerate(ends)}
    return {
        key: Task(key, _block, nbytes, *map(TaskRef, keys)) for key, keys in reads.items()
    }, ends


def _processor_seconds(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system for each in times)


class Measured:
    """A cluster whose processor time is measured.

    Parameters
    ----------
    enabled
        Whether `dasktile.enable` is called.
    workers
        Number of worker processes.
    """

    def __init__(self, enabled: bool, workers: int) -> None:
        self.cluster = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
        self.client = Client(self.cluster)
        if enabled:
            dasktile.enable(self.client)
        self.processes = [psutil.Process(pid) for pid in self.client.run(os.getpid).values()]

    def close(self) -> None:
        """Close the cluster."""
        self.client.close()
        self.cluster.close()

    def run(self, tasks: int, tag: str, nbytes: int) -> dict[str, float]:
        """Run a graph once; the numbers are for one task, in seconds.

        Parameters
        ----------
        tasks, tag, nbytes
            As for `graph`.
        """
        keys, ends = graph(tasks, tag, nbytes)
        own, workers = time.process_time(), _processor_seconds(self.processes)
        start = time.perf_counter()
        with self.client.as_current():
            futures = self.client.get(keys, ends, sync=False, optimize_graph=False)
            wait(futures)
        seconds = time.perf_counter() - start
        scheduler = time.process_time() - own
        spent = _processor_seconds(self.processes) - workers
        del futures
        time.sleep(_PAUSE)
        numbers = {
            "scheduler": scheduler, "workers": spent, "both": scheduler + spent, "seconds": seconds
        }  # fmt: skip
        return {name: value / len(keys) for name, value in numbers.items()}


def measure(tasks: int, rounds: int, workers: int, nbytes: int) -> dict[str, dict[str, float]]:
    """Medians of both clusters, in seconds for one task.

    Parameters
    ----------
    tasks
        About the number of tasks of a graph.
    rounds
        Number of times that each cluster runs a graph, after one that is not counted.
    workers
        Number of worker processes of each cluster.
    nbytes
        Bytes of every result.
    """
    engines = {"stock": Measured(False, workers), "dasktile": Measured(True, workers)}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    try:
        for number in range(rounds + 1):
            for name in sorted(engines, reverse=bool(number % 2)):
                numbers = engines[name].run(tasks, f"{name}-{number}", nbytes)
                if number:
                    found[name].append(numbers)
    finally:
        for engine in engines.values():
            engine.close()
    return {
        name: {key: statistics.median(each[key] for each in runs) for key in COLUMNS}
        for name, runs in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tasks", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--bytes", type=int, default=800)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with dask.config.set({"distributed.scheduler.worker-ttl": None}):
        medians = measure(options.tasks, options.rounds, options.workers, options.bytes)
    table = Table("engine", *COLUMNS.values(), title="One task that does nothing")
    for name, numbers in medians.items():
        table.add_row(name, *(f"{1e3 * numbers[key]:.2f}" for key in COLUMNS))
    ratios = [medians["dasktile"][key] / medians["stock"][key] for key in COLUMNS]
    table.add_row("ratio", *(f"{ratio:.3f}" for ratio in ratios))
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(medians, indent=1) + "\n")


if __name__ == "__main__":
    main()
