"""Functions that take long, on some workers or for some blocks, with and without dasktile.

    python -m benchmarks.stragglers [--rounds 3] [--cases NAME ...] [--json FILE]

Functions of which it is unknown what they do sleep, so that other work on the machine hardly
counts.
The workers are in this process, and transfer over TCP.  The report has medians of the wall-clock
seconds and of the bytes that workers received from each other, for Dask and for dasktile, and the
tasks that ran on another worker than planned.  ``even`` are the seconds if all threads slept
equally long.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dask.distributed import Client, LocalCluster, get_worker, wait
from rich.console import Console
from rich.table import Table

import dasktile
from dasktile.report.formatting import format_bytes

ENGINES = ("stock", "dasktile")

#: Side of the blocks, in elements of 8 bytes.
SIDE = 256


def steady(block: Any, seconds: float) -> Any:
    """Take the same time for every block."""
    time.sleep(seconds)
    return block + 1


def slow_on_one(block: Any, seconds: float) -> Any:
    """Take four times as long on the first worker."""
    time.sleep(seconds * (4 if get_worker().name == 0 else 1))
    return block + 1


def slow_for_some(block: Any, seconds: float, block_info: Any = None) -> Any:
    """Take nine times as long for the blocks of the first eighth of the rows."""
    rows = block_info[0]["num-chunks"][0]
    time.sleep(seconds * (9 if block_info[0]["chunk-location"][0] < rows / 8 else 1))
    return block + 1


@dataclass(frozen=True)
class Case:
    """An array of blocks, and a function that sleeps for each of them.

    Attributes
    ----------
    workers, threads
        Number of workers, and of their threads.
    blocks
        Number of blocks of the array, by axis.
    function, seconds
        The function, and the seconds of its shortest sleep.
    persisted
        Whether the array is in the workers' memory.
    then
        What is computed of the function's results.
    """

    workers: int
    threads: int
    blocks: tuple[int, int]
    function: Callable[..., Any]
    seconds: float
    persisted: bool = False
    then: Callable[[Any], Any] = lambda y: y.sum(axis=0)

    def array(self, client: Client) -> Any:
        """The array to compute."""
        rows, columns = self.blocks
        shape = rows * SIDE, columns * SIDE
        x = da.random.default_rng(1).random(shape, chunks=(SIDE, SIDE))
        if self.persisted:
            x = client.persist(x)
            wait(x)
        return self.then(x.map_blocks(self.function, seconds=self.seconds, dtype=x.dtype))

    @property
    def even(self) -> float:
        """Seconds if all threads slept equally long."""
        count = self.blocks[0] * self.blocks[1]
        if self.function is slow_for_some:
            slow = -(-self.blocks[0] // 8) * self.blocks[1]
            count += 8 * slow
        speed = self.workers * 1.0
        if self.function is slow_on_one:
            speed -= 0.75
        return self.seconds * count / self.threads / speed


def centred(y: Any) -> Any:
    """Subtract the mean of each column."""
    return (y - y.mean(axis=0)).sum(axis=0)


CASES = {
    "steady": Case(4, 2, (16, 8), steady, 0.25),
    "steady, persisted": Case(4, 2, (16, 8), steady, 0.25, persisted=True),
    "few blocks": Case(3, 2, (4, 4), steady, 0.5, then=centred),
    "slow worker": Case(4, 2, (16, 8), slow_on_one, 0.25),
    "slow worker, persisted": Case(4, 2, (16, 8), slow_on_one, 0.25, persisted=True),
    "slow blocks": Case(4, 2, (16, 8), slow_for_some, 0.1),
    "slow blocks, persisted": Case(4, 2, (16, 8), slow_for_some, 0.1, persisted=True),
    "slow worker, many blocks": Case(4, 2, (64, 16), slow_on_one, 0.025, then=centred),
    "quick": Case(4, 2, (32, 8), steady, 0.01, then=centred),
}


def run(case: Case, engine: str) -> dict[str, float]:
    """Compute once, on new workers."""
    with ExitStack() as stack:
        cluster = stack.enter_context(
            LocalCluster(
                n_workers=case.workers,
                threads_per_worker=case.threads,
                processes=False,
                protocol="tcp",
                dashboard_address=None,
            )
        )
        client = stack.enter_context(Client(cluster))
        if engine == "dasktile":
            dasktile.enable(client)
            stack.callback(dasktile.disable, client)
        x = case.array(client)
        before = _received(cluster)
        start = time.perf_counter()
        value = dasktile.compute(x) if engine == "dasktile" else x.compute()
        seconds = time.perf_counter() - start
        assert np.isfinite(value).all()
        return {
            "seconds": seconds,
            "moved": _received(cluster) - before,
            "stolen": dasktile.metrics(client).stolen if engine == "dasktile" else 0,
        }


def _received(cluster: Any) -> int:
    logs = (worker.transfer_incoming_log for worker in cluster.workers.values())
    return sum(entry["total"] for log in logs for entry in log)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    table = Table("case", "even s", *(f"{e} s" for e in ENGINES), "ratio", "moved", "", "stolen")
    report = {}
    for name in options.cases:
        case = CASES[name]
        runs: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
        for _ in range(options.rounds):
            for engine in ENGINES:
                runs[engine].append(run(case, engine))
        medians = {
            engine: {key: statistics.median(one[key] for one in found) for key in found[0]}
            for engine, found in runs.items()
        }
        report[name] = {"even": case.even, **medians}
        stock, ours = (medians[engine] for engine in ENGINES)
        table.add_row(
            name,
            f"{case.even:.2f}",
            f"{stock['seconds']:.2f}",
            f"{ours['seconds']:.2f}",
            f"{stock['seconds'] / ours['seconds']:.2f}",
            format_bytes(stock["moved"]),
            format_bytes(ours["moved"]),
            f"{ours['stolen']:.0f}",
        )
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
