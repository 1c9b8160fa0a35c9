"""Statistics of moving windows: Dask and dasktile.

    python -m benchmarks.windows [--workloads NAME ...] [--size 1] [--workers 2] [--rounds 3]
        [--json FILE]

Each workload reduces the windows of an array along one axis, by
`dask.array.lib.stride_tricks.sliding_window_view` or xarray's `rolling`.  Dask's own graph runs on
a cluster without dasktile, the planned one on a cluster where `dasktile.enable` was called; the
engines run in turns, and planning is within the time.  The report has medians of the wall-clock
seconds, tasks, bytes that workers received from each other, and bytes that they spilled.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import xarray as xr
from distributed import Client, LocalCluster
from rich.console import Console
from rich.table import Table

import dasktile
from dasktile.report.formatting import format_bytes

ENGINES = ("dask", "dasktile")


def _generated(rows: int) -> da.Array:
    """Random numbers in blocks, which keep their chunks."""
    return da.random.default_rng(0).random((rows, 1000), chunks=(500, 500))


def _windows(rows: int, length: int = 101) -> da.Array:
    return da.lib.stride_tricks.sliding_window_view(_generated(rows), length, axis=0)


def _stored(rows: int, directory: str) -> xr.DataArray:
    """The same numbers in Zarr files."""
    path = Path(directory) / f"{rows}.zarr"
    if not path.exists():
        _generated(rows).to_zarr(str(path))
    return xr.DataArray(da.from_zarr(str(path)), dims=("time", "place"))


def _spectrogram(rows: int, directory: str) -> da.Array:
    """Mean powers of the frequencies in half overlapping windows of several signals."""
    signals = da.random.default_rng(0).random((16, 100 * rows), chunks=(4, 25_000))
    windows = da.lib.stride_tricks.sliding_window_view(signals, 1000, axis=1)[:, ::500]
    return (abs(da.fft.rfft(windows, axis=-1)) ** 2).mean(axis=1)


#: By name, the array that is computed of inputs with so many rows, in files in a directory.
WORKLOADS: dict[str, Callable[[int, str], da.Array]] = {
    "mean": lambda rows, _: _windows(rows).mean(-1).sum(1),
    "std": lambda rows, _: _windows(rows).std(-1).sum(1),
    "spectrogram": _spectrogram,
    "construct": lambda rows, directory: (
        _stored(rows, directory).rolling(time=31).construct("window").mean("window").data.sum(1)
    ),
    "rolling_mean": lambda rows, directory: (
        _stored(rows, directory).rolling(time=31).mean().data.sum(1)
    ),
    "rolling_std": lambda rows, directory: (
        _stored(rows, directory).rolling(time=31, center=True).std().data.sum(1)
    ),
}


def measure(engine: str, name: str, rows: int, workers: int, directory: str) -> dict[str, Any]:
    """One run on a new cluster.

    Parameters
    ----------
    engine
        One of `ENGINES`.
    name
        A workload of `WORKLOADS`.
    rows
        Size of its input.
    workers
        Number of worker processes, with one thread each.
    directory
        Directory of its files.
    """
    array = WORKLOADS[name](rows, directory)
    with (
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            memory_limit="1 GB",
            dashboard_address=None,
            local_directory=directory,
        ) as cluster,
        Client(cluster) as client,
    ):
        if engine == "dasktile":
            dasktile.enable(client)
        with dasktile.diagnose(client, plans=False) as diagnosis:
            start = time.perf_counter()
            [value] = dask.compute(dasktile.optimize(array) if engine == "dasktile" else array)
            seconds = time.perf_counter() - start
        result = diagnosis.result
    return {
        "seconds": seconds,
        "tasks": result.tasks,
        "received": result.received,
        "spilled": result.spilled,
        "value": value,
    }


def run(names: Sequence[str], rows: int, workers: int, rounds: int) -> list[dict[str, Any]]:
    """Medians for every workload and engine, which run in turns.

    Parameters
    ----------
    names
        Workloads of `WORKLOADS`.
    rows
        Size of their inputs.
    workers, rounds
        Number of worker processes, and of runs of every engine.

    Raises
    ------
    AssertionError
        If the engines compute different values.
    """
    found = []
    with tempfile.TemporaryDirectory() as directory:
        for name in names:
            WORKLOADS[name](rows, directory)  # writes the files
            runs: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
            for number in range(rounds):
                for engine in sorted(ENGINES, reverse=bool(number % 2)):
                    runs[engine].append(measure(engine, name, rows, workers, directory))
            values = [one.pop("value") for each in runs.values() for one in each]
            for value in values[1:]:
                np.testing.assert_allclose(values[0], value, rtol=1e-6)
            for engine, each in runs.items():
                medians = {key: statistics.median(one[key] for one in each) for key in each[0]}
                found.append({"workload": name, "engine": engine, **medians})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--size", type=float, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = run(options.workloads, int(4000 * options.size), options.workers, options.rounds)
    table = Table("workload", "engine", "s", "tasks", "received", "spilled")
    for row in found:
        sizes = (format_bytes(int(row[name])) for name in ("received", "spilled"))
        table.add_row(
            row["workload"], row["engine"], f"{row['seconds']:.2f}", f"{row['tasks']:g}", *sizes
        )
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
