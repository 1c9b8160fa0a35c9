"""What is read back and written where memory is too small: Dask's spilling and dasktile's.

    python -m benchmarks.spilling [--workloads NAME ...] [--modes natural persisted lazy]
        [--pressure natural light heavy] [--processes] [--thresholds] [--disk 400MB]
        [--device] [--host-memory 8MB] [--rounds 3] [--scale 1]
        [--out benchmarks/results/spilling.json]

Every run has a cluster of its own, and the engines take turns, so that whatever else the machine
does hurts both.  Medians of the rounds are reported, and all that happens from the first
input on is counted.

Modes: ``persisted``, inputs are computed into memory first; ``lazy``, they are made within the
graph; ``natural``, what the workload's name says.  Pressure is the working set over the budget
of results on each worker: ``light`` 1.2, ``heavy`` 2.25, ``natural`` as the workload has it.

Only results count against the budget, so that bytes hardly depend on the machine; with
``--thresholds`` workers are processes that have all of distributed's thresholds, by what they
take as a whole.  Seconds mean most with ``--processes``: otherwise one event loop serves
all workers, the scheduler and the client.  BLAS should have one thread for each of Dask's:
set ``OMP_NUM_THREADS=1`` without ``--processes``.

With ``--device`` the budget is that of a device, which is emulated, and dasktile is compared with
what dask-cuda has workers keep their results in, its ``DeviceHostFile``.  ``read`` are bytes
copied to the device and ``written`` those copied from it, both as the device counts them;
``held`` are the bytes that are in use there at most, with those of running tasks; ``copying``
are seconds.  ``--host-memory`` limits the host's memory at scale 1, for three levels; ``disk`` are
bytes that are read and written there.

``late`` are seconds by which ticks of the worker's event loop were more than 20 ms late, ``in
data`` those that it spent in the mapping of results.  ``least`` are the bytes that any store has
to read that is asked for the same in the same order, one task at a time, and that knows all
of it in advance; ``known`` those that a simple rule reads that knows the order of tasks, but
no graph before it comes.
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

from benchmarks.spill_device import has_dask_cuda
from benchmarks.spill_meters import Setting, run_once
from benchmarks.spill_workloads import MODES, PRESSURE, Spilled, workloads
from benchmarks.traces import known_read, least_read
from dasktile.report.explanation import format_bytes

#: Other and ours, by whether there is a device.
ENGINES = {False: ("stock", "dasktile"), True: ("dask-cuda", "dasktile")}

#: Fewer bytes, or seconds, than these are taken for as many in ratios.
FLOOR = {"moved": 1e6, "read": 1e6, "written": 1e6, "late": 0.01, "in_data": 0.01, "seconds": 1e-3}

#: With thresholds: bytes that a worker takes without results, and the part of its memory at
#: which distributed spills by what it takes as a whole.
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
    device: bool = False,
    host: int | None = None,
    console: Console | None = None,
    done: Callable[[list[dict[str, Any]]], None] = lambda cells: None,
) -> list[dict[str, Any]]:
    """Run cells, each by both engines.

    Parameters
    ----------
    names, modes, pressures
        What to run; modes that a workload has not are passed over.
    rounds
        How often.
    scale
        Bytes of a tile, over those of `benchmarks.spill_workloads`.
    processes
        Whether workers have processes of their own.
    thresholds
        Whether all that a worker's process takes counts, and not its results alone.
    rate
        Bytes per second of each worker's disk; None for that of the machine.
    device
        Whether results lie on a device.
    host
        Bytes of results that a worker may have in the host's memory then, at scale 1; None for
        any.
    console
        Where progress is said.
    done
        Called with all cells so far whenever there are more.

    Returns
    -------
    One dict per workload, mode, pressure and engine.
    """
    console = console or Console(stderr=True)
    every = workloads()
    cells: list[dict[str, Any]] = []
    for name in names:
        workload = every[name]
        chosen = dict.fromkeys(workload.mode if mode == "natural" else mode for mode in modes)
        for mode in (mode for mode in chosen if mode in workload.peak):
            for pressure in pressures:
                started = time.perf_counter()
                budget = workload.budget(mode, pressure, scale)
                limit = round((budget + UNMANAGED) / SPILL) if thresholds else None
                below = None if host is None else round(host * scale)
                setting = Setting(budget, processes or thresholds, rate, limit, device, below)
                found = run_cell(workload, mode, setting, scale, rounds)
                where = {"workload": name, "mode": mode, "pressure": pressure}
                about = {"workers": workload.workers, "peak": workload.peak[mode] * 1e6 * scale}
                cells += [
                    {**where, "engine": engine, **about, **asdict(setting), **what}
                    for engine, what in found.items()
                ]
                spent = time.perf_counter() - started
                console.print(f"{name}, {mode}, {pressure}: {spent:.1f} s", style="dim")
                done(cells)
    return cells


def run_cell(
    workload: Spilled, mode: str, setting: Setting, scale: float = 1.0, rounds: int = 3
) -> dict[str, dict[str, Any]]:
    """Run one cell by both engines, in turns.

    Parameters
    ----------
    workload, mode, setting, scale
        As for `benchmarks.spill_meters.run_once`.
    rounds
        How often.

    Returns
    -------
    For each engine, the median of every number, and the numbers of all rounds.  Those of
    dasktile include the least bytes that could have been read.
    """
    engines = ENGINES[setting.device]
    found: dict[str, list[dict[str, Any]]] = {engine: [] for engine in engines}
    values: dict[str, list[Any]] = {}
    for number in range(rounds):
        # the first of a round finds other caches than the last
        for engine in engines if number % 2 else engines[::-1]:
            one, results, traces = run_once(
                engine, workload, mode, setting, scale, trace=engine == "dasktile"
            )
            values.setdefault(engine, results)
            if traces:
                one["least"] = sum(map(least_read, traces))
                one["known"] = sum(map(known_read, traces))
            found[engine].append(one)
    same = all(np.allclose(*pair) for pair in zip(*values.values(), strict=True))
    return {
        engine: {
            **{key: statistics.median(one[key] for one in several) for key in several[0]},
            "same": same,
            "rounds": several,
        }
        for engine, several in found.items()
    }


# Figures ----------------------------------------------------------------------------


def summary(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Ratios other / dasktile, by pressure and mode.

    Numbers below `FLOOR`, of either, are taken for that.

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
        # "never above" is by medians; one tile may be read more or less by chance
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
    """Bytes read over the least, median of the rounds."""
    return statistics.median(
        max(one["read"], FLOOR["read"]) / max(one["least"], FLOOR["read"]) for one in cell["rounds"]
    )


def report(cells: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print a table of all cells."""
    device = any("copying" in one for one in cells)
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
    """Print what :func:`summary` found."""
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
                many = ", ".join(f"{where} x{times:.2f}" for where, times in cells.items())
                console.print(f"dasktile above the other, {name}: {many}")
        far = {where: one for where, one in group["to_least"].items() if one > 1.1}
        if far:
            many = ", ".join(f"{where} x{one:.2f}" for where, one in far.items())
            console.print(f"reads above 1.1 times the least: {many}")
        if group["different"]:
            console.print(f"DIFFERENT values: {', '.join(group['different'])}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 1 if values differ."""
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
    parser.add_argument("--device", action="store_true")
    parser.add_argument("--host-memory", type=parse_bytes, metavar="BYTES")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/spilling.json"))
    options = parser.parse_args(arguments)
    if options.device and not has_dask_cuda():
        parser.error("--device compares with dask-cuda, which is not installed")
    if options.device and (options.processes or options.thresholds):
        parser.error("--device has all workers in this process: no --processes or --thresholds")
    if options.host_memory is not None and not options.device:
        parser.error("--host-memory is that below a device: --device is missing")

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
        # what is done is kept, should the rest fail
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
