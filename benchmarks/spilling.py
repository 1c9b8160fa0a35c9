"""Bytes read back and written where memory is too small: Dask's spilling and dasktile's.

    python -m benchmarks.spilling [--workloads NAME ...] [--modes natural persisted lazy]
        [--pressure natural light heavy] [--processes] [--thresholds] [--disk 400MB]
        [--device [cupy]] [--host-memory 8MB] [--rounds 3] [--scale 1]
        [--out benchmarks/results/spilling.json]

Every run has a cluster of its own.  The engines run in turns, so that other load of the machine
affects both.  Medians of the rounds are reported.  Counting starts with the first input.

Modes: ``persisted``, inputs are computed into memory first; ``lazy``, they are computed within
the graph; ``natural``, the workload's default.  Pressure is the working set over the memory budget
of each worker: ``light`` 1.2, ``heavy`` 2.25, ``natural`` the workload's default.

Only results count against the budget, so that bytes hardly depend on the machine.  With
``--thresholds`` workers are processes with all of distributed's thresholds, which apply to the
memory of the whole process.  Seconds are most meaningful with ``--processes``: otherwise one event
loop serves all workers, the scheduler and the client.  BLAS should have one thread for each of
Dask's: set ``OMP_NUM_THREADS=1`` without ``--processes``.

With ``--device`` the budget is that of an emulated device, with ``--device cupy`` that of the GPU,
and dasktile is compared with
``DeviceHostFile``, the mapping of dask-cuda's workers.  ``read`` are bytes copied to the device and
``written`` bytes copied from it, both as counted by the device; ``held`` is the peak of the bytes
in use there, including those of running tasks; ``copying`` are the seconds of these copies.
``--host-memory`` limits the host's memory at scale 1, for three tiers; ``disk`` are bytes read from
disk and written to it.

``late`` are the seconds by which ticks of the worker's event loop were more than 20 ms late, ``in
data`` the seconds that it spent in the mapping of results.  ``least`` is a lower bound: the bytes
that a store with full knowledge of the future has to read for the same requests in the same order,
one task at a time.  ``known`` are the bytes that a simple rule reads with knowledge of the order of
the tasks of all graphs sent so far.  Requests are recorded in runs that are not timed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import distributed
import numpy as np
from dask.utils import parse_bytes
from rich.console import Console
from rich.table import Table

from benchmarks.spill_device import KINDS, has_dask_cuda
from benchmarks.spill_meters import Setting, run_once
from benchmarks.spill_workloads import MODES, PRESSURE, Spilled, workloads
from benchmarks.traces import known_read, least_read
from dasktile.report.formatting import format_bytes

#: The other engine and dasktile, without and with a device.
HOST_ENGINES, DEVICE_ENGINES = ("stock", "dasktile"), ("dask-cuda", "dasktile")

#: Bytes or seconds: smaller values count as this in ratios.
FLOOR = {"moved": 1e6, "read": 1e6, "written": 1e6, "late": 0.01, "in_data": 0.01, "seconds": 1e-3}

#: With thresholds: bytes of a worker's process without results, and the fraction of its memory
#: limit at which distributed spills by the memory of the process.
UNMANAGED, SPILL = 200e6, 0.7


def run(
    names: Sequence[str],
    modes: Sequence[str],
    pressures: Sequence[str],
    *,
    rounds: int = 3,
    scale: float = 1.0,
    processes: bool = False,
    thresholds: bool = False,
    rate: float | None = None,
    device: str | None = None,
    host: int | None = None,
    console: Console | None = None,
    done: Callable[[list[dict[str, Any]]], None] = lambda cells: None,
) -> list[dict[str, Any]]:
    """Run cells, each by both engines.

    Parameters
    ----------
    names, modes, pressures
        The workloads, their modes and pressures; modes that a workload does not support are
        skipped.
    rounds
        Number of runs of every cell.
    scale
        Factor of the bytes of every chunk.
    processes
        Whether each worker has a process of its own.
    thresholds
        Whether the memory of a worker's whole process counts, instead of its results only.
    rate
        Bytes per second of each worker's disk; None for the rate of the machine.
    device
        Kind of the device that results are on; None for the memory of the host.
    host
        Bytes of results in the host's memory of each worker with a device, at scale 1; None for
        unlimited memory.
    console
        Where progress is printed.
    done
        Called after every cell with all cells so far.

    Returns
    -------
    One dict per workload, mode, pressure and engine.
    """
    console = console or Console(stderr=True)
    all_workloads = workloads()
    cells: list[dict[str, Any]] = []
    for name in names:
        workload = all_workloads[name]
        chosen = dict.fromkeys(workload.mode if mode == "natural" else mode for mode in modes)
        for mode in (mode for mode in chosen if mode in workload.peak):
            for pressure in pressures:
                started = time.perf_counter()
                budget = workload.budget(mode, pressure, scale)
                limit = round((budget + UNMANAGED) / SPILL) if thresholds else None
                host_budget = None if host is None else round(host * scale)
                setting = Setting(budget, processes or thresholds, rate, limit, device, host_budget)
                by_engine = run_cell(workload, mode, setting, scale, rounds)
                where = {"workload": name, "mode": mode, "pressure": pressure}
                about = {"workers": workload.workers, "peak": workload.peak[mode] * 1e6 * scale}
                cells += [
                    {**where, "engine": engine, **about, **asdict(setting), **measurements}
                    for engine, measurements in by_engine.items()
                ]
                elapsed = time.perf_counter() - started
                console.print(f"{name}, {mode}, {pressure}: {elapsed:.1f} s", style="dim")
                done(cells)
    return cells


def run_cell(
    workload: Spilled,
    mode: str,
    setting: Setting,
    scale: float = 1.0,
    rounds: int = 3,
    engines: Sequence[str] | None = None,
    trace: bool = True,
    timed: bool = True,
) -> dict[str, dict[str, Any]]:
    """Run one cell with all engines, in turns.

    Parameters
    ----------
    workload, mode, setting, scale
        As for `benchmarks.spill_meters.run_once`.
    rounds
        Number of runs with each engine.
    engines
        The engines; by default the other one of the setting, and dasktile.
    trace
        Whether to record dasktile's requests, for the lower bound.
    timed
        Whether they are recorded in a run of their own, whose seconds do not count.

    Returns
    -------
    For each engine, the median of every measurement, and the measurements of all rounds.  Those of
    dasktile include the lower bound of the bytes read, if they were traced.
    """
    engines = engines or (HOST_ENGINES if setting.device is None else DEVICE_ENGINES)
    runs: dict[str, list[dict[str, Any]]] = {engine: [] for engine in engines}
    values: dict[str, list[Any]] = {}
    for number in range(rounds):
        # the order alternates: caches differ for the first and the last engine of a round
        for engine in engines if number % 2 else engines[::-1]:
            traced = trace and engine == "dasktile"
            measurements, results, traces = run_once(
                engine, workload, mode, setting, scale, trace=traced and not timed
            )
            values.setdefault(engine, results)
            if traced:
                measurements["traced"] = measurements["read"]
                if timed:
                    # to record takes time, which is not the engine's
                    other, _, traces = run_once(engine, workload, mode, setting, scale, trace=True)
                    measurements["traced"] = other["read"]
                measurements["least"] = sum(map(least_read, traces))
                measurements["known"] = sum(map(known_read, traces))
            runs[engine].append(measurements)
    same = all(
        np.allclose(first, other)
        for first, *others in zip(*values.values(), strict=True)
        for other in others
    )
    return {
        engine: {
            **{
                key: statistics.median(measurements[key] for measurements in by_round)
                for key in by_round[0]
            },
            "same": same,
            "rounds": by_round,
        }
        for engine, by_round in runs.items()
    }


# Figures ----------------------------------------------------------------------------


def summary(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Ratios other / dasktile, by pressure and mode.

    Values below `FLOOR`, of either, count as `FLOOR`.

    Parameters
    ----------
    cells
        As :func:`run` returns them.
    """
    groups: dict[str, list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}
    for stock, ours in zip(cells[::2], cells[1::2], strict=True):
        groups.setdefault(f"{ours['mode']}, {ours['pressure']}", []).append((stock, ours))
    if len(groups) > 1:
        groups["all"] = [pair for pairs in groups.values() for pair in pairs]
    return {title: _summary(pairs) for title, pairs in groups.items()}


def _summary(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> dict[str, Any]:
    def ratio(name: str, stock: Mapping[str, Any], ours: Mapping[str, Any]) -> float:
        return float(max(stock[name], FLOOR[name]) / max(ours[name], FLOOR[name]))

    def named(ours: Mapping[str, Any]) -> str:
        return f"{ours['workload']} ({ours['mode']}, {ours['pressure']})"

    return {
        "cells": len(pairs),
        "ratios": {
            name: statistics.geometric_mean(ratio(name, *pair) for pair in pairs) for name in FLOOR
        },
        # medians: one tile may be read more or less by chance
        "more": {
            name: {
                named(ours): 1 / ratio(name, stock, ours)
                for stock, ours in pairs
                if ours[name] > stock[name] and ratio(name, stock, ours) < 1
            }
            for name in ("moved", "read", "written", "seconds")
        },
        "to_least": {named(ours): to_least(ours) for _, ours in pairs},
        "different": [named(ours) for _, ours in pairs if not ours["same"]],
    }


def to_least(cell: Mapping[str, Any]) -> float:
    """Bytes read over the lower bound of the same run, median of the rounds."""
    return statistics.median(
        max(measurements["traced"], FLOOR["read"]) / max(measurements["least"], FLOOR["read"])
        for measurements in cell["rounds"]
    )


def report(cells: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print a table of all cells."""
    device = any("copying" in cell for cell in cells)
    table = Table(title="spilling", title_justify="left")
    table.add_column("workload", no_wrap=True)
    for title in (
        "peak", "budget", "read", "written", "least", "known", "read / least", "other / ours",
        "held", "late s", "in data s", "s", *(("copying s", "disk") if device else ()),
    ):  # fmt: skip
        table.add_column(title, justify="right")
    table.add_column("values")
    for other, ours in zip(cells[::2], cells[1::2], strict=True):
        where = f"{ours['workload']}, {ours['mode']}, {ours['pressure']}"
        table.add_row(where, _mega(ours["peak"]), _mega(ours["budget"]), style="bold")
        table.add_row(f"  {other['engine']}", "", "", *_moved(other), *[""] * 4, *_times(other), "")
        table.add_row(
            "  dasktile", "", "", *_moved(ours), _mega(ours["least"]), _mega(ours["known"]),
            f"{to_least(ours):.2f}", f"{other['moved'] / max(ours['moved'], 1):.2f}",
            *_times(ours), "equal" if ours["same"] else "DIFFERENT", end_section=True,
        )  # fmt: skip
    console.print(table)


def _mega(size: float) -> str:
    return format_bytes(int(size))


def _moved(cell: Mapping[str, Any]) -> tuple[str, str]:
    return _mega(cell["read"]), _mega(cell["written"])


def _times(cell: Mapping[str, Any]) -> tuple[str, ...]:
    seconds = (f"{cell[name]:.2f}" for name in ("late", "in_data", "seconds"))
    copied = (f"{cell['copying']:.2f}", _mega(cell["on_disk"])) if "copying" in cell else ()
    return (_mega(cell["held"]), *seconds, *copied)


def report_summary(groups: Mapping[str, Any], console: Console) -> None:
    """Print the result of :func:`summary`."""
    table = Table(title="other / dasktile, geometric means", title_justify="left")
    table.add_column("")
    for name in FLOOR:
        table.add_column(name, justify="right")
    for title, group in groups.items():
        table.add_row(title, *(f"{group['ratios'][name]:.2f}" for name in FLOOR))
    console.print(table)
    for title, group in groups.items():
        if title == "all":
            continue
        for name, cells in group["more"].items():
            if cells:
                listing = ", ".join(f"{where} x{times:.2f}" for where, times in cells.items())
                console.print(f"dasktile above the other, {name}: {listing}")
        far = {where: ratio for where, ratio in group["to_least"].items() if ratio > 1.1}
        if far:
            listing = ", ".join(f"{where} x{ratio:.2f}" for where, ratio in far.items())
            console.print(f"reads above 1.1 times the least: {listing}")
        if group["different"]:
            console.print(f"DIFFERENT values: {', '.join(group['different'])}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 1 if results differ."""
    names = list(workloads())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spilling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workloads", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--modes", nargs="+", choices=("natural", *MODES), default=["natural"])
    parser.add_argument(
        "--pressure", nargs="+", choices=("natural", *PRESSURE), default=["natural"]
    )
    parser.add_argument("--processes", action="store_true")
    parser.add_argument("--thresholds", action="store_true")
    parser.add_argument("--disk", type=parse_bytes, metavar="BYTES", help="per second, as 400MB")
    parser.add_argument("--device", nargs="?", const="emulated", choices=KINDS)
    parser.add_argument("--host-memory", type=parse_bytes, metavar="BYTES")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/spilling.json"))
    options = parser.parse_args(arguments)
    if options.device and not has_dask_cuda():
        parser.error("--device compares with dask-cuda, which is not installed")
    if options.device and (options.processes or options.thresholds):
        parser.error("--device runs all workers in this process: no --processes or --thresholds")
    if options.host_memory is not None and not options.device:
        parser.error(
            "--host-memory limits the host memory of workers with a device: it needs --device"
        )

    warnings.simplefilter("ignore", da.PerformanceWarning)
    console = Console()
    started = time.perf_counter()
    about = {
        "processes": options.processes,
        "thresholds": options.thresholds,
        "disk": options.disk,
        "device": options.device,
        "host": options.host_memory,
        "rounds": options.rounds,
        "scale": options.scale,
        "dask": dask.__version__,
        "distributed": distributed.__version__,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)

    def save(cells: list[dict[str, Any]]) -> None:
        # the cells so far are written, in case a later one fails
        about["seconds"] = round(time.perf_counter() - started)
        result = {"settings": about, "cells": cells, "summary": summary(cells)}
        options.out.write_text(json.dumps(result, indent=1) + "\n")

    cells = run(
        options.workloads,
        options.modes,
        options.pressure,
        rounds=options.rounds,
        scale=options.scale,
        processes=options.processes,
        thresholds=options.thresholds,
        rate=options.disk,
        device=options.device,
        host=options.host_memory,
        done=save,
    )
    report(cells, console)
    report_summary(summary(cells), console)
    return 0 if all(cell["same"] for cell in cells) else 1


if __name__ == "__main__":
    raise SystemExit(main())
