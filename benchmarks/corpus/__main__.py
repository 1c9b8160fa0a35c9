"""Dask and dasktile on published array workloads: processor time, seconds, tasks, bytes, memory.

    python -m benchmarks.corpus [--workloads NAME ...] [--inputs random zarr] [--workers 4]
        [--worker-threads 1] [--rounds 1] [--size 1] [--engines stock dasktile enabled]
        [--bundle N] [--json FILE]
    python -m benchmarks.corpus --simulate [--workloads NAME ...] [--size 1] [--bundle N]
        [--workers 4] [--bandwidth BYTES]
    python -m benchmarks.corpus --threads 2 [--workloads NAME ...] [--inputs random zarr]
        [--rounds 3] [--size 1]
    python -m benchmarks.corpus --dry [--workloads NAME ...] [--inputs random zarr] [--size 1]

``stock`` is Dask without dasktile.  ``dasktile`` plans with `dasktile.optimize`, within the time
measured, on a cluster where `dasktile.enable` was called.  ``enabled`` runs Dask's own graph on
such a cluster.  Each has a cluster of processes of its own.  The engines run in
turns, so that other load of the machine affects both.  A small run of every workload, which is not
measured, comes first; no run has the plan of another one.  Medians of the rounds are reported, and
geometric means of the ratios to Dask.

``--simulate`` computes the graphs of both engines in this process, and simulates the workers
(`dasktile.schedule.peaks`): tasks, bytes and memory that depend on no timing.

``--threads`` computes with Dask's threaded scheduler in this process, without a cluster.

``--dry`` plans only, without a cluster: which arrays dasktile leaves alone, and why.

Inputs are random numbers in the published chunks, which may not be cut otherwise, or the same
numbers in Zarr files, which are written first.  A module's name, as ``coiled``, stands for all its
workloads.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import platform
import statistics
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import dask
import distributed
import numpy as np
from rich.console import Console
from rich.table import Table

import dasktile
from benchmarks.corpus import (
    SLOWER,
    SMALL,
    WORKLOADS,
    Workload,
    chosen,
    dry,
    one_process,
    simulated,
)
from benchmarks.corpus.inputs import KINDS, Source, source_of
from benchmarks.corpus.values import agree, flattened
from benchmarks.hosted import Hosted
from benchmarks.placement import FLOOR, mean_ratio
from dasktile.report.formatting import format_bytes
from dasktile.templates import forget

#: The engines.
ENGINES = ("stock", "dasktile", "enabled")

#: The engines that run where none are named.
USUAL_ENGINES = ENGINES[:2]

#: The measurements that are compared: their titles, and whether they are in bytes.
COMPARED = {
    "cpu_seconds": ("cpu s", False),
    "seconds": ("s", False),
    "tasks": ("tasks", False),
    "moved": ("moved", True),
    "held": ("results", True),
    "buffers": ("buffers", True),
    "memory": ("memory", True),
    "read": ("read", True),
}


class Engine(Hosted):
    """An engine that runs workloads of the corpus.

    Parameters
    ----------
    name, workers, threads
        As in `benchmarks.hosted.Hosted`.
    bundle
        Tasks in a bundle at most; 0 for no bundles.
    calibrated
        Whether the speed of the cluster is measured first, and plans use it.
    """

    def __init__(
        self,
        name: str,
        workers: int,
        bundle: int = 0,
        calibrated: bool = False,
        threads: int = 1,
    ) -> None:
        super().__init__(name, workers, threads=threads)
        self.bundle = bundle
        self.calibrated = calibrated

    def __enter__(self) -> Self:
        super().__enter__()
        if self.calibrated:
            dasktile.calibrate(self.cluster.client)
        return self

    def cell(
        self, workload: Workload, size: float, source: Source, values: bool
    ) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Run a workload once.

        Parameters
        ----------
        workload, size, source
            The workload, its size and the source of its inputs.
        values
            Whether the results are returned, too.

        Returns
        -------
        Numbers, or ``error``; and the arrays of the results.
        """

        def plan(collections: Sequence[Any]) -> Sequence[Any]:
            with dask.config.set({"dasktile.bundle": self.bundle}):
                return self.plan(collections, keep_chunks=workload.keep_chunks)

        client = self.cluster.client
        # the default method of rechunking depends on whether there is a client
        with client.as_current():
            try:
                collections = workload.function(size, source)
            except Exception as error:
                return _failure(error), []
            try:
                numbers, kept = self.cluster.account(collections, plan if self.planned else None)
                results = client.gather(client.compute(kept)) if values else []
                return numbers, flattened(results)
            except Exception as error:
                failure = _failure(error)
        self.restart()
        return failure, []

    def predicted(self, workload: Workload, size: float, source: Source) -> dict[str, Any]:
        """What `dasktile.explain` says of a run.

        Parameters
        ----------
        workload, size, source
            The workload, its size and the source of its inputs.

        Returns
        -------
        ``predicted``, bytes of results in memory of the worker that holds most, and
        ``predicted_seconds``; None for each without a prediction.
        """
        with (
            self.cluster.client.as_current(),
            dask.config.set({"dasktile.bundle": self.bundle}),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            told = dasktile.explain(
                *workload.function(size, source),
                workers=self.cluster.client,
                keep_chunks=workload.keep_chunks,
            )
        if self.planned:
            return {"predicted": told.results_after, "predicted_seconds": told.seconds_after}
        return {"predicted": told.results_before, "predicted_seconds": told.seconds_before}


def _failure(error: Exception) -> dict[str, Any]:
    traceback.print_exception(error)
    return {"error": f"{type(error).__name__}: {error}"[:300]}


def run(
    workloads: Sequence[Workload],
    *,
    kinds: Sequence[str] = KINDS[:1],
    workers: int = 4,
    rounds: int = 1,
    size: float = 1,
    engines: Sequence[str] = USUAL_ENGINES,
    bundle: int = 0,
    calibrated: bool = False,
    threads: int = 1,
    console: Console | None = None,
    done: Callable[[list[dict[str, Any]]], None] = lambda cells: None,
) -> list[dict[str, Any]]:
    """Medians of all workloads and engines.

    Parameters
    ----------
    workloads
        Entries of the corpus.
    kinds
        Kinds of inputs.
    workers
        Processes per cluster.
    rounds
        Runs of every workload with every engine.
    size
        Factor of the sizes of the workloads.
    engines
        Names of engines.
    bundle
        Tasks in a bundle of dasktile at most; 0 for no bundles.
    calibrated
        Whether the speed of the clusters is measured first.
    threads
        Threads of every worker.
    console
        Where progress is printed.
    done
        Called after every workload with all cells so far.

    Returns
    -------
    One dict per workload, kind of inputs and engine.
    """
    console = console or Console(stderr=True)
    cells: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dasktile-corpus-")))
        hosts = [
            stack.enter_context(Engine(name, workers, bundle, calibrated, threads))
            for name in engines
        ]
        for kind in kinds:
            for workload in workloads:
                started = time.perf_counter()
                by_engine = _cell(hosts, workload, size, source_of(kind, folder), rounds)
                elapsed = time.perf_counter() - started
                console.print(f"{kind}, {workload.name}: {elapsed:.1f} s", style="dim")
                cells += [
                    {"workload": workload.name, "inputs": kind, "engine": name, **cell}
                    for name, cell in by_engine.items()
                ]
                done(cells)
    return cells


def _cell(
    engines: Sequence[Engine], workload: Workload, size: float, source: Source, rounds: int
) -> dict[str, dict[str, Any]]:
    """Run one workload with all engines, in turns."""
    results: dict[str, list[dict[str, Any]]] = {engine.name: [] for engine in engines}
    expected: list[np.ndarray] | None = None
    for engine in engines:
        # modules are imported on all workers before they are measured
        warm, _ = engine.cell(workload, min(size, SMALL), source, values=False)
        if "error" in warm:
            print(f"{workload.name}: nothing was imported, as its small run failed")
    with contextlib.suppress(Exception):
        # files are written before the first engine
        workload.function(size, source)
    for number in range(rounds):
        # the order rotates: caches differ for the first and the last engine of a round
        turn = number % len(engines)
        for engine in [*engines[turn:], *engines[:turn]]:
            if any("error" in result for result in results[engine.name]):
                continue
            forget()  # no round has the plan of another one
            result, values = engine.cell(workload, size, source, values=number == 0)
            if number == 0 and "error" not in result:
                expected = values if expected is None else expected
                result["same"] = agree(expected, values)
            results[engine.name].append(result)
    cells = {}
    for engine in engines:
        name, by_round = engine.name, results[engine.name]
        failed = next((result for result in by_round if "error" in result), None)
        cells[name] = failed or {
            **{
                key: statistics.median(result[key] for result in by_round)
                for key in by_round[-1]
                if key != "same"
            },
            "same": by_round[0]["same"],
            **engine.predicted(workload, size, source),
            "rounds": by_round,
        }
    gc.collect()
    return cells


def summary(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Geometric means of the ratios to Dask, for every kind of inputs.

    A measurement that is 0 for both is left out.  Fewer bytes than `FLOOR`, of either, count as
    that many.

    Parameters
    ----------
    cells
        As :func:`run` returns them.

    Returns
    -------
    The means of dasktile by the kind of inputs; those of other engines by kind and engine.
    """
    result: dict[str, Any] = {}
    for kind in dict.fromkeys(cell["inputs"] for cell in cells):
        chosen_cells = [cell for cell in cells if cell["inputs"] == kind]
        for engine in dict.fromkeys(cell["engine"] for cell in chosen_cells):
            if engine != "stock":
                title = kind if engine == "dasktile" else f"{kind}, {engine}"
                result[title] = _compared(chosen_cells, engine)
    return result


def _compared(cells: Sequence[Mapping[str, Any]], engine: str) -> dict[str, Any]:
    """Geometric means of the ratios of an engine to Dask."""
    by = {(cell["workload"], cell["engine"]): cell for cell in cells}
    pairs = [
        (name, cell, ours)
        for (name, whose), cell in by.items()
        if whose == "stock"
        and (ours := by.get((name, engine))) is not None
        and not {"error"} & {*cell, *ours}
    ]
    ratios: dict[str, float | None] = {}
    for key, (_, in_bytes) in COMPARED.items():
        floor = FLOOR if in_bytes else 1e-9
        both = [(theirs[key], ours[key]) for _, theirs, ours in pairs]
        ratios[key] = mean_ratio([max(b, floor) / max(a, floor) for a, b in both if a > 0 or b > 0])
    speeds = {
        key: {name: theirs[key] / max(ours[key], 1e-9) for name, theirs, ours in pairs}
        for key in ("seconds", "cpu_seconds")
    }
    return {
        "workloads": len(pairs),
        "ratios": ratios,
        "planning": sum(ours["planning"] for _, _, ours in pairs),
        **{
            f"slower_{key}": {name: speed for name, speed in by_name.items() if speed < SLOWER}
            for key, by_name in speeds.items()
        },
        "different": [cell["workload"] for cell in cells if not cell.get("same", True)],
        "failed": [f"{cell['engine']} {cell['workload']}" for cell in cells if "error" in cell],
    }


def report(cells: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print a table of the measurements for every kind of inputs.

    ``results`` and ``memory`` are the peaks of the worst worker: bytes of results, and resident
    memory above its start.  ``read`` are bytes from Zarr files.
    """
    for kind in dict.fromkeys(cell["inputs"] for cell in cells):
        table = Table(title=f"{kind} inputs", title_justify="left")
        for title in ("workload", "engine"):
            table.add_column(title)
        for title, _ in COMPARED.values():
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("plan s", justify="right", no_wrap=True)
        table.add_column("values")
        for cell in cells:
            if cell["inputs"] != kind:
                continue
            if "error" in cell:
                table.add_row(
                    cell["workload"], cell["engine"], *[""] * (len(COMPARED) + 1), cell["error"]
                )
                continue
            table.add_row(
                cell["workload"],
                cell["engine"],
                *(_text(cell[key], in_bytes) for key, (_, in_bytes) in COMPARED.items()),
                f"{cell['planning']:.2f}",
                "equal" if cell["same"] else "DIFFERENT",
            )
        console.print(table)


def _text(value: float, in_bytes: bool) -> str:
    if in_bytes:
        return format_bytes(int(value))
    return f"{value:.2f}" if isinstance(value, float) and not value.is_integer() else f"{value:.0f}"


def report_summary(groups: Mapping[str, Any], console: Console) -> None:
    """Print the result of :func:`summary`."""
    table = Table(title="Ratios to Dask, geometric means", title_justify="left")
    for title in ("inputs", "workloads", *(title for title, _ in COMPARED.values()), "plan s"):
        table.add_column(title, justify="right")
    for kind, group in groups.items():
        ratios = group["ratios"]
        table.add_row(
            kind,
            str(group["workloads"]),
            *(f"{ratios[key]:.3f}" if ratios[key] else "" for key in COMPARED),
            f"{group['planning']:.2f} in all",
        )
    console.print(table)
    for kind, group in groups.items():
        for key, what in (("seconds", "seconds"), ("cpu_seconds", "processor seconds")):
            slower = group[f"slower_{key}"]
            listing = ", ".join(
                f"{name} {speed:.2f}x"
                for name, speed in sorted(slower.items(), key=lambda item: item[1])
            )
            console.print(f"{kind}: below {SLOWER}x in {what}: {len(slower)} workloads {listing}")
        for key in ("different", "failed"):
            if group[key]:
                console.print(f"{kind}: {key}: {', '.join(group[key])}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 1 if results differ or could not be computed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.corpus",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), metavar="NAME")
    parser.add_argument("--inputs", nargs="+", choices=KINDS, default=["random"])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--worker-threads", type=int, default=1, metavar="COUNT")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--size", type=float, default=1)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(USUAL_ENGINES))
    parser.add_argument("--bundle", type=int, default=32, metavar="TASKS")
    parser.add_argument(
        "--calibrate", action="store_true", help="measure the cluster first, and predict seconds"
    )
    parser.add_argument("--simulate", action="store_true", help="without a cluster")
    parser.add_argument(
        "--bandwidth", type=float, metavar="BYTES", help="a second between two simulated workers"
    )
    parser.add_argument(
        "--threads", type=int, metavar="COUNT", help="Dask's threaded scheduler, no cluster"
    )
    parser.add_argument("--dry", action="store_true", help="plan only, without a cluster")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    try:
        workloads = chosen(options.workloads)
    except ValueError as error:
        parser.error(str(error))

    settings = {
        "workers": options.workers,
        "worker_threads": options.worker_threads,
        "rounds": options.rounds,
        "size": options.size,
        "bundle": options.bundle,
        "dask": dask.__version__,
        "distributed": distributed.__version__,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }

    def save(cells: list[dict[str, Any]], **more: Any) -> None:
        # the cells so far are written, in case a later one fails
        if options.json:
            result = {"settings": settings, "cells": cells, **more}
            options.json.write_text(json.dumps(result, indent=1) + "\n")

    # a fixed width for files, where there is no terminal
    console = Console(width=None if Console().is_terminal else 160)
    warnings.simplefilter("ignore", dask.array.PerformanceWarning)
    if options.dry:
        with tempfile.TemporaryDirectory(prefix="dasktile-corpus-") as folder:
            cells = dry.run(
                workloads, options.inputs, options.size, options.workers, Path(folder), save
            )
        dry.report(cells, console)
        return 1 if any("error" in cell for cell in cells) else 0
    if options.threads:
        settings["threads"] = options.threads
        with tempfile.TemporaryDirectory(prefix="dasktile-corpus-") as folder:
            cells = one_process.run(
                workloads,
                options.inputs,
                options.size,
                options.threads,
                options.rounds,
                Path(folder),
                save,
            )
        one_process.report(cells, console)
        return 0 if all(cell["same"] for cell in cells) else 1
    if options.simulate:
        with tempfile.TemporaryDirectory(prefix="dasktile-corpus-") as name:
            cells = simulated.run(
                workloads,
                options.inputs,
                options.size,
                options.workers,
                options.bundle,
                Path(name),
                save,
                options.bandwidth,
            )
        simulated.report(cells, console)
        return 0
    cells = run(
        workloads,
        kinds=options.inputs,
        workers=options.workers,
        rounds=options.rounds,
        size=options.size,
        engines=options.engines,
        bundle=options.bundle,
        calibrated=options.calibrate,
        threads=options.worker_threads,
        done=lambda cells: save(cells, summary=summary(cells)),
    )
    report(cells, console)
    if len(set(options.engines)) > 1:
        report_summary(summary(cells), console)
    simulated.report_predictions(cells, console)
    return 1 if any("error" in cell or not cell["same"] for cell in cells) else 0


if __name__ == "__main__":
    raise SystemExit(main())
