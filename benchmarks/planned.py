"""The effect of the order of tasks on a worker that has too little memory and spills.

    python -m benchmarks.planned [--workloads NAME ...] [--pressure heavy] [--disk 400MB]
        [--rounds 3] [--scale 1] [--out benchmarks/results/planned.json]

There is one worker with one thread, in a process of its own, with a limited disk rate.  The memory
budget counts results.  Three engines run in turns: ``stock`` has Dask's order and Dask's spilling;
``dasktile`` has Dask's order and the store that evicts the tile with the latest next use;
``planned`` has that store and the order of :func:`dasktile.plan`, with planning included in the
seconds.  The bytes that the plan expects in both directions are the column ``planned``.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dask.utils import parse_bytes
from rich.console import Console
from rich.table import Table

import dasktile
from benchmarks.spill_meters import Setting, run_once
from benchmarks.spill_workloads import Run, Spilled, workloads
from dasktile.report.formatting import format_bytes

ENGINES = ("stock", "dasktile", "planned")


def stencil(run: Run, tiles: int = 16, steps: int = 6) -> Sequence[Any]:
    """Heat diffusion: every step reads a tile and its neighbours."""
    side = round(256 * run.scale**0.5)
    x = run.source("x", (tiles * side, 4 * side), (side, 4 * side))
    for _ in range(steps):
        x = x.map_overlap(_diffuse, depth={0: 1}, boundary="reflect", dtype=x.dtype)
    return run.keep(x)


def _diffuse(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    result = block.copy()
    result[1:-1] = (block[:-2] + 2 * block[1:-1] + block[2:]) / 4
    return result


def several() -> dict[str, Spilled]:
    """The workloads on one worker, by name."""
    by_name = {name: workload for name, workload in workloads().items() if "lazy" in workload.peak}
    by_name["stencil"] = Spilled("stencil", stencil, 1, "lazy", 2.0, {"lazy": 60})
    return {name: workload for name, workload in by_name.items() if workload.workers == 1}


def run(
    names: Sequence[str], pressure: str, rate: float | None, rounds: int, scale: float
) -> list[dict[str, Any]]:
    """Medians of bytes read and written and of seconds, for every workload and engine."""
    cells = []
    # compiles the planner's loops, or loads them, before anything is measured
    dasktile.plan(da.ones(4, chunks=2).sum(), memory_limit=10**6, workers=1)
    for name in names:
        workload = several()[name]
        budget = workload.budget("lazy", pressure, scale)
        setting = Setting(budget, processes=True, rate=rate, threads=1)
        runs: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
        values: dict[str, Any] = {}
        for number in range(rounds):
            for engine in ENGINES if number % 2 else ENGINES[::-1]:
                measurements, results, _ = run_once(engine, workload, "lazy", setting, scale)
                runs[engine].append(measurements)
                values.setdefault(engine, results)
        same = all(
            np.allclose(expected, value)
            for engine in ENGINES[1:]
            for expected, value in zip(values["stock"], values[engine], strict=True)
        )
        for engine, by_round in runs.items():
            median = {key: statistics.median(run[key] for run in by_round) for key in by_round[0]}
            median["moved"] = median["read"] + median["written"]
            cells.append(
                {"workload": name, "engine": engine, "budget": budget, **median, "same": same}
            )
    return cells


def summary(cells: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Geometric means of the ratios stock / engine, of bytes moved and of seconds."""
    means = {}
    for engine in ENGINES[1:]:
        for what, floor in (("moved", 1e6), ("seconds", 1e-3)):
            ratios = [
                max(stock[what], floor) / max(cell[what], floor)
                for stock, cell in _pairs(cells, engine)
            ]
            means[f"{what}, stock / {engine}"] = statistics.geometric_mean(ratios)
    return means


def _pairs(
    cells: Sequence[Mapping[str, Any]], engine: str
) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    stock = {cell["workload"]: cell for cell in cells if cell["engine"] == "stock"}
    return [(stock[cell["workload"]], cell) for cell in cells if cell["engine"] == engine]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 1 if results differ."""
    names = list(several())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.planned",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workloads", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--pressure", choices=("natural", "light", "heavy"), default="heavy")
    parser.add_argument("--disk", type=parse_bytes, default=400_000_000, metavar="BYTES")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    cells = run(options.workloads, options.pressure, options.disk, options.rounds, options.scale)
    table = Table(title="order and spilling", title_justify="left")
    titles = ("workload", "engine", "budget", "read", "written", "moved", "planned", "seconds")
    for title in titles:
        table.add_column(title, justify="left" if title in ("workload", "engine") else "right")
    for cell in cells:
        expected = format_bytes(cell["expected"]) if "expected" in cell else ""
        moved = [format_bytes(cell[what]) for what in ("read", "written", "moved")]
        table.add_row(
            cell["workload"], cell["engine"], format_bytes(cell["budget"]), *moved, expected,
            f"{cell['seconds']:.2f}",
        )  # fmt: skip
    console = Console()
    console.print(table)
    ratios = summary(cells)
    for what, ratio in ratios.items():
        console.print(f"{what}: {ratio:.2f}")
    if options.out is not None:
        chosen = {key: str(value) for key, value in vars(options).items() if key != "out"}
        about = {"python": platform.python_version(), "options": chosen}
        options.out.write_text(
            json.dumps({**about, "ratios": ratios, "cells": cells}, indent=1), encoding="utf-8"
        )
    return 0 if all(cell["same"] for cell in cells) else 1


if __name__ == "__main__":
    raise SystemExit(main())
