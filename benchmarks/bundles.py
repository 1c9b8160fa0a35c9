"""The effect of bundles: processor time, seconds, tasks, bytes moved and memory on a local cluster.

    python -m benchmarks.bundles [--workloads NAME ...] [--bundle 0 32] [--workers 4] [--rounds 3]
        [--size 1] [--json FILE]

Every workload has random inputs, which may not be cut otherwise, and small chunks, so that the
cost of tasks outweighs the computation.  It runs as Dask runs it (``stock``) and with plans of
`dasktile.optimize` whose bundles run at most so many tasks (0: without bundles), in turns, on one
cluster of single-threaded processes where `dasktile.enable` was called.  Medians are reported.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from rich.console import Console
from rich.table import Table

import dasktile
from benchmarks.meters import Cluster
from dasktile.report.formatting import format_bytes


def ndvi(size: float = 1) -> da.Array:
    """Vegetation index of two bands, mean of every month."""
    days, side = 360, round(400 * size)
    rng = da.random.default_rng(1)
    red, near = (
        rng.integers(1, 255, (days, side, side), chunks=(10, 100, 100)).astype("f4")
        for _ in range(2)
    )
    index = (near - red) / (near + red)
    return da.stack([index[day : day + 30].mean(axis=0) for day in range(0, days, 30)])


def jacobi(size: float = 1, steps: int = 6) -> da.Array:
    """Steps of Jacobi's method, each with a halo of one element."""
    side = round(1600 * size)
    x = da.random.default_rng(2).random((side, side), chunks=200)
    for _ in range(steps):
        x = x.map_overlap(_relaxed, depth=1, boundary="reflect")
    return x


def _relaxed(block: np.ndarray) -> np.ndarray:
    result = block.copy()
    result[1:-1, 1:-1] = (block[:-2, 1:-1] + block[2:, 1:-1] + block[1:-1, :-2]
                          + block[1:-1, 2:]) / 4  # fmt: skip
    return result


def weekly_maxima(size: float = 1) -> da.Array:
    """Weekly maxima of hourly data that is chunked by days."""
    weeks, side = round(30 * size), 100
    x = da.random.default_rng(3).random((weeks * 168, side, side), chunks=(24, 50, 50))
    x = x.rechunk((168, 25, 25))
    return x.reshape(weeks, 168, side, side).max(axis=1)


def anomalies(size: float = 1) -> da.Array:
    """Variance of the anomalies of every calendar month."""
    chunks, side = round(144 * size), 200
    x = da.random.default_rng(4).random((chunks * 10, side, side), chunks=(10, 50, 50))
    months = np.arange(chunks * 10) // 10 % 12
    groups = [x[np.flatnonzero(months == month)] for month in range(12)]
    return da.stack([((group - group.mean(axis=0)) ** 2).mean(axis=0) for group in groups])


def scores(size: float = 1) -> da.Array:
    """Sums of z-scores: each chunk is read three times."""
    rows = round(100_000 * size)
    x = da.random.default_rng(5).random((rows, 640), chunks=(500, 160))
    return ((x - x.mean(axis=0)) / x.std(axis=0)).sum(axis=1)


def transposed(size: float = 1) -> da.Array:
    """A sum of an array and its transpose: half of the bytes move."""
    side = round(6000 * size)
    x = da.random.default_rng(6).random((side, side), chunks=200)
    return (x + x.T).sum(axis=0)


WORKLOADS: dict[str, Callable[..., da.Array]] = {
    function.__name__: function
    for function in (ndvi, jacobi, weekly_maxima, anomalies, scores, transposed)
}


def measure(cluster: Cluster, array: da.Array, bundle: int | None) -> dict[str, Any]:
    """Compute an array once.

    Parameters
    ----------
    cluster
        The cluster.
    array
        The array.
    bundle
        Tasks in a bundle at most; None to compute the array without dasktile.

    Returns
    -------
    Numbers and, under ``value``, the result.
    """

    def plan(arrays: Sequence[Any]) -> Sequence[Any]:
        if bundle is None:
            return arrays
        with dask.config.set({"dasktile.bundle": bundle}):
            return (dasktile.optimize(*arrays, workers=cluster.client),)

    numbers, kept = cluster.account([array], plan)
    with cluster.client.as_current():
        return {**numbers, "value": cluster.client.compute(kept[0]).result()}


def run(
    names: Sequence[str], bundles: Sequence[int], workers: int, rounds: int, size: float
) -> list[dict[str, Any]]:
    """Medians of all workloads and engines.

    Parameters
    ----------
    names
        Workloads.
    bundles
        Tasks in a bundle at most, for each engine but ``stock``.
    workers
        Processes.
    rounds
        Runs of every workload with every engine.
    size
        Factor of the sizes of the workloads.
    """
    engines: list[int | None] = [None, *bundles]
    cells = []
    with Cluster(workers) as cluster:
        dasktile.enable(cluster.client)
        for name in names:
            results: dict[int | None, list[dict[str, Any]]] = {engine: [] for engine in engines}
            expected: Any = None
            for number in range(rounds):
                for engine in engines[number % len(engines) :] + engines[: number % len(engines)]:
                    array = WORKLOADS[name](size)
                    result = measure(cluster, array, engine)
                    value = result.pop("value")
                    expected = value if expected is None else expected
                    result["same"] = bool(np.allclose(value, expected, rtol=1e-4, atol=1e-5))
                    results[engine].append(result)
            for engine, by_round in results.items():
                medians = {
                    key: statistics.median(result[key] for result in by_round)
                    for key in by_round[0]
                }
                medians["same"] = all(result["same"] for result in by_round)
                engine_name = "stock" if engine is None else f"bundle {engine}"
                cells.append({"workload": name, "engine": engine_name, **medians})
    return cells


def report(cells: Sequence[dict[str, Any]], console: Console) -> None:
    """Print a table."""
    table = Table()
    for title in ("workload", "engine"):
        table.add_column(title)
    for title in ("cpu s", "scheduler s", "s", "plan s", "tasks", "moved", "results", "memory"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("values")
    for cell in cells:
        table.add_row(
            cell["workload"],
            cell["engine"],
            f"{cell['cpu_seconds']:.1f}",
            f"{cell['scheduler_seconds']:.1f}",
            f"{cell['seconds']:.2f}",
            f"{cell['planning']:.2f}",
            f"{cell['tasks']:.0f}",
            format_bytes(int(cell["moved"])),
            format_bytes(int(cell["held"])),
            format_bytes(int(cell["memory"])),
            "equal" if cell["same"] else "DIFFERENT",
        )
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 1 if results differ."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bundles",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--bundle", nargs="+", type=int, default=[0, 32])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=float, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    cells = run(options.workloads, options.bundle, options.workers, options.rounds, options.size)
    report(cells, Console())
    if options.json:
        options.json.write_text(json.dumps(cells, indent=1) + "\n")
    return 0 if all(cell["same"] for cell in cells) else 1


if __name__ == "__main__":
    raise SystemExit(main())
