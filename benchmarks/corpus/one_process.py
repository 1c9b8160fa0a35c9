"""The corpus with Dask's threaded scheduler: one process, no cluster."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dask
import numpy as np
from rich.console import Console
from rich.table import Table

import dasktile
from benchmarks.corpus import SLOWER, SMALL, Workload
from benchmarks.corpus.inputs import Source, source_of
from benchmarks.corpus.values import agree, flattened
from benchmarks.placement import mean_ratio
from dasktile.templates import forget

#: The engines.
ENGINES = ("stock", "dasktile")

#: Tasks of Dask's graph above which scheduling is most of the time.
MANY_TASKS = 1000


def measured(
    engine: str, workload: Workload, size: float, source: Source
) -> tuple[dict[str, float], list[np.ndarray]]:
    """Run a workload once, its graph new.

    Parameters
    ----------
    engine
        One of `ENGINES`.
    workload, size, source
        The workload, its size and the source of its inputs.

    Returns
    -------
    Numbers, planning included; and the arrays of the results.
    """
    # neither Dask nor dasktile has seen the graph or its plan
    collections: Sequence[Any] = workload.function(size, source)
    forget()
    started, cpu = time.perf_counter(), time.process_time()
    if engine == "dasktile":
        planned = dasktile.optimize(*collections, keep_chunks=workload.keep_chunks)
        collections = planned if isinstance(planned, tuple) else (planned,)
    planning = time.perf_counter() - started
    results = dask.compute(*collections)
    numbers = {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu,
        "planning": planning,
    }
    [*optimized] = dask.optimize(*collections)
    numbers["tasks"] = len({key for each in optimized for key in each.__dask_graph__()})
    return numbers, flattened(results)


def run(
    workloads: Sequence[Workload],
    kinds: Sequence[str],
    size: float,
    threads: int,
    rounds: int,
    folder: Path,
    done: Callable[[list[dict[str, Any]]], None] = lambda cells: None,
) -> list[dict[str, Any]]:
    """Medians of all workloads and engines, which run in turns.

    Parameters
    ----------
    workloads, kinds, size
        Workloads, kinds of their inputs, and their size.
    threads
        Threads of the scheduler.
    rounds
        Runs of every workload with every engine.
    folder
        Folder of files of inputs.
    done
        Called after every workload with all cells so far.

    Returns
    -------
    One dict per workload, kind of inputs and engine.
    """
    cells: list[dict[str, Any]] = []
    with (
        warnings.catch_warnings(),
        dask.config.set(scheduler="threads", num_workers=threads),
    ):
        warnings.simplefilter("ignore")
        for kind in kinds:
            source = source_of(kind, folder)
            for workload in workloads:
                for engine in ENGINES:
                    measured(engine, workload, min(size, SMALL), source)  # imports
                by_engine: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
                expected: list[np.ndarray] | None = None
                same = True
                for number in range(rounds):
                    for engine in ENGINES[:: -1 if number % 2 else 1]:
                        numbers, values = measured(engine, workload, size, source)
                        by_engine[engine].append(numbers)
                        expected = values if expected is None else expected
                        same &= agree(expected, values)
                for engine, runs in by_engine.items():
                    medians = {
                        key: statistics.median(each[key] for each in runs) for key in runs[0]
                    }
                    where = {"workload": workload.name, "inputs": kind, "engine": engine}
                    cells.append({**where, **medians, "same": same, "rounds": runs})
                done(cells)
    return cells


def report(cells: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print a table of the cells: Dask's numbers, and those of dasktile; and geometric means."""
    table = Table(title="One process: Dask -> dasktile", title_justify="left")
    for title in ("workload", "inputs"):
        table.add_column(title)
    for title in ("tasks", "s", "times as fast", "cpu s", "plan s"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("values")
    speeds: dict[str, float] = {}
    cpu, many = [], []
    for before, after in zip(cells[::2], cells[1::2], strict=True):
        speed = before["seconds"] / after["seconds"]
        speeds[f"{before['workload']}, {before['inputs']}"] = speed
        cpu.append(before["cpu_seconds"] / after["cpu_seconds"])
        if before["tasks"] > MANY_TASKS:
            many.append(speed)
        table.add_row(
            before["workload"],
            before["inputs"],
            f"{before['tasks']:.0f} -> {after['tasks']:.0f}",
            f"{before['seconds']:.2f} -> {after['seconds']:.2f}",
            f"{speed:.2f}",
            f"{before['cpu_seconds']:.2f} -> {after['cpu_seconds']:.2f}",
            f"{after['planning']:.2f}",
            "equal" if after["same"] else "DIFFERENT",
        )
    console.print(table)
    console.print(
        f"geometric means: {mean_ratio(list(speeds.values())):.2f} times as fast, "
        f"{mean_ratio(cpu):.2f} times less processor time"
    )
    if many:
        console.print(
            f"the {len(many)} of more than {MANY_TASKS:,} tasks: {mean_ratio(many):.2f} times as"
            " fast"
        )
    slow = sorted((speed, name) for name, speed in speeds.items() if speed < SLOWER)
    console.print(
        f"below {SLOWER}: {len(slow)} workloads "
        + "; ".join(f"{name} {speed:.2f}" for speed, name in slow)
    )
