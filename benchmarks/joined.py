"""A large result in the client, by `dask.compute` and by `dasktile.compute`.

    python -m benchmarks.joined [--megabytes 64 512] [--workers 4] [--rounds 3] [--json FILE]

An array of random numbers and its transpose are added on local worker processes, and the sum is
brought to the client.  Every run has workers of its own, because the largest memory that a process
ever had is compared.  The report has medians of the wall-clock seconds, of the bytes that workers
received from each other, and of the peak memory of the worst worker and of this process, above
those before the computation.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import psutil
from distributed import Client, LocalCluster, Worker
from rich.console import Console
from rich.table import Table

import dasktile
from dasktile.report.formatting import format_bytes

#: The ways in which the result is computed.
ENGINES = ("dask.compute", "dasktile.compute")

#: Blocks of the array along each of its axes.
BLOCKS = 8

#: Bytes in a unit of `resource.getrusage`.
_UNIT = 1 if sys.platform == "darwin" else 1024


def _peak(dask_worker: Worker | None = None) -> int:
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


def _received(dask_worker: Worker) -> int:
    return sum(entry["total"] for entry in dask_worker.transfer_incoming_log)


def _run(engine: str, megabytes: float, workers: int, found: Any) -> None:
    """Compute once, on new workers, and send the numbers; runs in a process of its own."""
    side = int((megabytes * 1e6 / 8) ** 0.5) // BLOCKS * BLOCKS
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        dasktile.enable(client)
        x = da.random.default_rng(0).random((side, side), chunks=side // BLOCKS)
        result = x + x.T
        before, own = client.run(_peak), _peak()
        start = time.perf_counter()
        if engine == "dask.compute":
            dask.compute(dasktile.optimize(result))
        else:
            dasktile.compute(result)
        seconds = time.perf_counter() - start
        after = client.run(_peak)
        found.put(
            {
                "seconds": seconds,
                "received": sum(client.run(_received).values()),
                "worker": max(after[address] - before[address] for address in after),
                "client": _peak() - own,
            }
        )


def measure(engine: str, megabytes: float, workers: int) -> dict[str, float]:
    """One run of an engine, in a process of its own.

    Parameters
    ----------
    engine
        One of `ENGINES`.
    megabytes
        Size of the result.
    workers
        Number of worker processes.
    """
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    process = context.Process(target=_run, args=(engine, megabytes, workers, found))
    process.start()
    numbers: dict[str, float] = found.get(timeout=300)
    process.join()
    return numbers


def run(sizes: Sequence[float], workers: int, rounds: int) -> list[dict[str, Any]]:
    """Medians for every size and engine, which run in turns.

    Parameters
    ----------
    sizes
        Sizes of results in megabytes.
    workers, rounds
        Number of worker processes, and of runs of every engine.
    """
    rows = []
    for megabytes in sizes:
        runs: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
        for number in range(rounds):
            for engine in sorted(ENGINES, reverse=bool(number % 2)):
                runs[engine].append(measure(engine, megabytes, workers))
        for engine, each in runs.items():
            medians = {name: statistics.median(one[name] for one in each) for name in each[0]}
            rows.append({"megabytes": megabytes, "engine": engine, **medians})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[64, 512])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = run(options.megabytes, options.workers, options.rounds)
    titles = ("result", "engine", "s", "received", "peak of a worker", "peak of the client")
    table = Table(*titles)
    for row in rows:
        sizes = (format_bytes(int(row[name])) for name in ("received", "worker", "client"))
        size = format_bytes(int(row["megabytes"] * 1e6))
        table.add_row(size, row["engine"], f"{row['seconds']:.2f}", *sizes)
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
