"""Bytes moved and seconds on a cluster: Dask, dasktile and another package.

    python -m benchmarks.placement [--workers 4 8] [--workloads NAME ...]
        [--modes free persisted crossed placed] [--network 250MB] [--rounds 3] [--size 0.5]
        [--peer PATH_TO_PYTHON] [--out benchmarks/results/placement.json]

Every engine has a cluster of processes of its own.  The engines run in turns, so that other load
of the machine affects all of them.  Medians of the rounds are reported.

Engines: ``stock`` is Dask without dasktile.  ``dasktile`` plans with `dasktile.optimize`, within
the time measured, on a cluster where `dasktile.enable` was called.  ``peer`` is another package,
see `benchmarks.peer`.

Modes: ``free``, inputs are read from Zarr files; ``persisted``, they are in memory in the chunks
of the files, placed by Dask's scheduler; ``crossed``, the same in chunks along the other axes;
``placed``, the inputs were persisted in the tiles that dasktile planned for the whole expression
(for the other engines the same as ``persisted``).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import distributed
from dask.utils import parse_bytes
from rich.console import Console
from rich.table import Table

import dasktile
from benchmarks.hosted import Hosted
from benchmarks.meters import MODES, run_cell, same
from benchmarks.peer import Peer
from benchmarks.sized import sized, write
from dasktile.report.formatting import format_bytes

#: Workload and mode that Dask alone does not finish: its graph has 267,144 tasks.
BEYOND_DASK = {("skewed_chain", "crossed")}

#: Bytes: smaller values count as this in ratios.
FLOOR = 1e6

#: Ratio dasktile / other above which a workload is listed as worse.
WORSE = 1.05

#: The measurements that are compared: the name in the results, and whether it is in bytes.
COMPARED = {
    "moved": True,
    "moved_largest": True,
    "sent_largest": True,
    "cost": True,
    "tasks": False,
    "cpu_seconds": False,
    "memory": True,
    "read": True,
    "seconds": False,
}


class Local(Hosted):
    """An engine in this process.

    Parameters
    ----------
    name
        ``stock`` or ``dasktile``.
    workers, rate
        As in `benchmarks.meters.Cluster`.
    size
        As in `benchmarks.sized.sized`.
    """

    def __init__(self, name: str, workers: int, rate: float | None, size: float) -> None:
        super().__init__(name, workers, rate)
        self.workloads = sized(size)

    def cell(self, workload: str, mode: str, folder: Path, values: bool) -> dict[str, Any]:
        """Run one cell; see `benchmarks.meters.run_cell`."""
        try:
            return run_cell(
                self.cluster,
                self.workloads[workload],
                mode,
                folder,
                da,
                plan=self.plan if self.planned else None,
                predict=self._predict if self.planned else None,
                values=values,
            )
        except Exception as error:
            traceback.print_exc()
            self.restart()
            return {"error": f"{type(error).__name__}: {error}"[:300]}

    def _predict(self, arrays: Sequence[Any]) -> dict[str, Any]:
        explanation = dasktile.explain(*arrays, workers=self.cluster.client)
        return {
            "predicted": explanation.bytes_after,
            "lower_bound": explanation.lower_bound,
            "predicted_before": explanation.bytes_before,
        }


Engine = Local | Peer


def run(
    workers: int,
    names: Sequence[str],
    modes: Sequence[str],
    *,
    rate: float | None = None,
    rounds: int = 3,
    size: float = 0.5,
    peer: str | None = None,
    console: Console | None = None,
    done: Callable[[list[dict[str, Any]]], None] = lambda cells: None,
) -> list[dict[str, Any]]:
    """Run cells on `workers` workers.

    Parameters
    ----------
    workers
        Processes per cluster.
    names, modes
        The workloads and their modes.
    rate
        Bytes per second of each worker's link in each direction; None for no limit.
    rounds
        Number of runs of every cell.
    size
        As in `benchmarks.sized.sized`.
    peer
        Path of the interpreter with the other package installed; None to leave it out.
    console
        Where progress is printed.
    done
        Called after every cell with all cells so far.

    Returns
    -------
    One dict per workload, mode and engine.
    """
    console = console or Console(stderr=True)
    all_workloads = sized(size)
    cells = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dasktile-inputs-")))
        engines: list[Engine] = [
            stack.enter_context(Local(name, workers, rate, size)) for name in ("stock", "dasktile")
        ]
        if peer:
            engines.append(stack.enter_context(Peer(peer, workers, rate, size)))
        for name in names:
            inputs = folder / name
            write(all_workloads[name], inputs)
            for mode in modes:
                if (name, mode) in BEYOND_DASK:
                    continue
                started = time.perf_counter()
                by_engine = _cell(engines, name, mode, inputs, rounds)
                elapsed = time.perf_counter() - started
                console.print(f"{workers} workers, {mode}, {name}: {elapsed:.1f} s", style="dim")
                cells += [
                    {"workers": workers, "mode": mode, "workload": name, "engine": engine, **cell}
                    for engine, cell in by_engine.items()
                ]
                done(cells)
            # all inputs together may exceed a small disk or temporary file system
            shutil.rmtree(inputs)
    return cells


def _cell(
    engines: Sequence[Engine], name: str, mode: str, folder: Path, rounds: int
) -> dict[str, dict[str, Any]]:
    """Run one workload in one mode with all engines, in turns."""
    results: dict[str, list[dict[str, Any]]] = {engine.name: [] for engine in engines}
    values: dict[str, Any] = {}
    about: dict[str, dict[str, Any]] = {
        engine.name: dict(engine.about) if isinstance(engine, Peer) else {} for engine in engines
    }
    for number in range(rounds):
        # the order rotates: caches differ for the first and the last engine of a round
        turn = number % len(engines)
        for engine in [*engines[turn:], *engines[:turn]]:
            if any("error" in result for result in results[engine.name]):
                continue
            result = engine.cell(name, mode, folder, values=number == 0)
            if "values" in result:
                values[engine.name] = result.pop("values")
            results[engine.name].append(result)
    cells = {}
    for engine_name, by_round in results.items():
        failed = next((result for result in by_round if "error" in result), None)
        if failed is not None:
            cells[engine_name] = failed
            continue
        cells[engine_name] = {
            **{key: statistics.median(result[key] for result in by_round) for key in by_round[0]},
            **about[engine_name],
            "same": "stock" in values and same(values["stock"], values[engine_name]),
            "rounds": by_round,
        }
    return cells


# Figures ----------------------------------------------------------------------------


def summary(cells: Sequence[Mapping[str, Any]], other: str = "stock") -> dict[str, Any]:
    """Geometric means of ratios other / dasktile, and the workloads where dasktile is worse.

    A measurement that is 0 for both is left out.  Fewer bytes than 1 MB, of either, count as
    1 MB: otherwise a workload that moves a few kilobytes would dominate the mean.

    Parameters
    ----------
    cells
        As :func:`run` returns them.
    other
        Name of the engine that dasktile is compared with.
    """
    by = {(c["workers"], c["mode"], c["workload"], c["engine"]): c for c in cells}
    pairs = [
        (where, cell, by[(*where, "dasktile")])
        for (*where, engine), cell in by.items()
        if engine == other
        and (*where, "dasktile") in by
        and not {"error"} & {*cell, *by[(*where, "dasktile")]}
    ]
    groups: dict[str, dict[str, Any]] = {}
    for workers, mode in dict.fromkeys((where[0], where[1]) for where, _, _ in pairs):
        chosen = [pair for pair in pairs if pair[0][:2] == [workers, mode]]
        ratios, raw, floored = {}, {}, {}
        for name, in_bytes in COMPARED.items():
            both = [(where[2], theirs[name], ours[name]) for where, theirs, ours in chosen]
            both = [triple for triple in both if triple[1] or triple[2]]
            floor = FLOOR if in_bytes else 1e-9
            ratios[name] = mean_ratio([max(b, floor) / max(a, floor) for _, b, a in both])
            raw[name] = mean_ratio([b / a for _, b, a in both if a])
            floored[name] = [where for where, _, ours in both if in_bytes and ours < floor]
        groups[f"{workers} workers, {mode}"] = {
            "workloads": len(chosen),
            "ratios": ratios,
            "ratios_without_floor": raw,
            "floored": {name: where for name, where in floored.items() if where},
            # bytes moved are comparable only where the work is balanced, too
            "balance": {
                other: mean_ratio([theirs["balance"] for _, theirs, _ in chosen]),
                "dasktile": mean_ratio([ours["balance"] for _, _, ours in chosen]),
            },
            "moved_to_predicted": mean_ratio(
                [
                    (ours["moved"] + FLOOR) / (ours["predicted"] + FLOOR)
                    for _, _, ours in chosen
                    if "predicted" in ours
                ]
            ),
            "not_as_predicted": {
                where[2]: round(ratio, 2)
                for where, _, ours in chosen
                if not 0.9 <= (ratio := _to_predicted(ours)) <= 1.1
            },
            "slower": _worse(chosen, "seconds"),
            "more_memory": _worse(chosen, "memory"),
            "more_moved": _worse(chosen, "moved"),
            "different": [where[2] for where, _, ours in chosen if not ours["same"]],
            "failed": [
                f"{cell['engine']} {cell['workload']}"
                for cell in cells
                if (cell["workers"], cell["mode"]) == (workers, mode) and "error" in cell
            ],
        }
    return groups


def _to_predicted(cell: Mapping[str, Any]) -> float:
    """Bytes moved over bytes predicted, median of the rounds.

    A tenth of `FLOOR` is added to both: the counts that a mean keeps beside its sums are not
    predicted.
    """
    margin = FLOOR / 10
    ratios = [
        (result["moved"] + margin) / (result["predicted"] + margin)
        for result in cell.get("rounds", ())
        if "predicted" in result
    ]
    return statistics.median(ratios) if ratios else 1.0


def mean_ratio(ratios: Sequence[float]) -> float | None:
    """Geometric mean; a ratio of 0, of a time below the clock's resolution, counts as 1e-9."""
    return statistics.geometric_mean(max(ratio, 1e-9) for ratio in ratios) if ratios else None


def _worse(
    pairs: Sequence[tuple[Any, Mapping[str, Any], Mapping[str, Any]]], name: str
) -> dict[str, float]:
    """Workloads where dasktile is worse by more than `WORSE`, with the ratio."""
    floor = FLOOR if COMPARED[name] else 1e-9
    times = {
        where[2]: max(ours[name], floor) / max(theirs[name], floor) for where, theirs, ours in pairs
    }
    return {where: ratio for where, ratio in times.items() if ratio > WORSE}


def report(cells: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print a table for every number of workers and mode.

    ``received`` and ``sent`` are the most of one worker.
    """
    for workers, mode in dict.fromkeys((cell["workers"], cell["mode"]) for cell in cells):
        table = Table(title=f"{workers} workers, {mode}", title_justify="left")
        table.add_column("workload")
        for title in (
            "moved", "received", "sent", "predicted", "tasks", "moved + tasks", "balance", "cpu s",
            "memory", "read", "plan s", "s",
        ):  # fmt: skip
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("values")
        chosen = [cell for cell in cells if (cell["workers"], cell["mode"]) == (workers, mode)]
        for number, cell in enumerate(chosen):
            if not number or chosen[number - 1]["workload"] != cell["workload"]:
                table.add_row(cell["workload"], style="bold")
            last = number + 1 == len(chosen) or chosen[number + 1]["workload"] != cell["workload"]
            table.add_row(f"  {cell['engine']}", *_row(cell), end_section=last)
        console.print(table)


def _row(cell: Mapping[str, Any]) -> list[str]:
    if "error" in cell:
        return [*[""] * 12, cell["error"]]
    predicted = cell.get("predicted")
    return [
        format_bytes(int(cell["moved"])),
        format_bytes(int(cell["moved_largest"])),
        format_bytes(int(cell["sent_largest"])),
        "" if predicted is None else format_bytes(int(predicted)),
        f"{cell['tasks']:.0f}",
        format_bytes(int(cell["cost"])),
        f"{cell['balance']:.2f}",
        f"{cell['cpu_seconds']:.1f}",
        format_bytes(int(cell["memory"])),
        format_bytes(int(cell["read"])),
        f"{cell['planning']:.2f}",
        f"{cell['seconds']:.2f}",
        "" if cell["engine"] == "stock" else "equal" if cell["same"] else "DIFFERENT",
    ]


def report_summary(groups: Mapping[str, Any], other: str, console: Console) -> None:
    """Print the result of :func:`summary`."""
    table = Table(title=f"{other} / dasktile, geometric means", title_justify="left")
    table.add_column("")
    for name in COMPARED:
        table.add_column(name, justify="right")
    for title, group in groups.items():
        ratios = group["ratios"]
        table.add_row(title, *(f"{ratios[n]:.2f}" if ratios[n] else "" for n in COMPARED))
    console.print(table)
    for title, group in groups.items():
        if group["moved_to_predicted"] is not None:
            balance = ", ".join(
                f"{engine} {value:.2f}" for engine, value in group["balance"].items()
            )
            console.print(
                f"{title}: balance {balance}; dasktile moved"
                f" {group['moved_to_predicted']:.2f} times what was predicted (1 MB added to both)"
            )
        if group["not_as_predicted"]:
            listing = ", ".join(f"{where} x{by}" for where, by in group["not_as_predicted"].items())
            console.print(f"{title}: moved beyond 10 % of the prediction: {listing}")
        for name, label in (
            ("slower", "slower"),
            ("more_memory", "more memory"),
            ("more_moved", "more moved"),
        ):
            if group[name]:
                listing = ", ".join(f"{where} x{times:.2f}" for where, times in group[name].items())
                console.print(f"{title}: dasktile {label} than {other}: {listing}")
        if group["different"]:
            console.print(f"{title}: DIFFERENT values: {', '.join(group['different'])}")
        if group["failed"]:
            console.print(f"{title}: failed: {', '.join(group['failed'])}")
        for name, where in group["floored"].items():
            console.print(
                f"{title}: {name} of dasktile below 1 MB, taken as that: {', '.join(where)}"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 1 if results differ or could not be computed."""
    names = list(sized(0.1))
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.placement",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--workloads", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument(
        "--modes", nargs="+", choices=MODES, default=["free", "persisted", "placed"]
    )
    parser.add_argument("--network", type=parse_bytes, metavar="BYTES", help="per second, as 250MB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=float, default=0.5)
    parser.add_argument("--peer", metavar="PYTHON")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/placement.json"))
    options = parser.parse_args(arguments)

    warnings.simplefilter("ignore", da.PerformanceWarning)
    console, progress = Console(), Console(stderr=True)
    started = time.perf_counter()
    others = ["stock", *(["peer"] if options.peer else [])]
    result: dict[str, Any] = {
        "settings": {
            "network": options.network,
            "rounds": options.rounds,
            "size": options.size,
            "enabled": hasattr(dasktile, "enable"),
            "dask": dask.__version__,
            "distributed": distributed.__version__,
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
        }
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    cells: list[dict[str, Any]] = []

    def save(more: list[dict[str, Any]]) -> None:
        # the cells so far are written, in case a later one fails
        result["cells"] = [*cells, *more]
        result["summary"] = {other: summary(result["cells"], other) for other in others}
        result["settings"]["seconds"] = round(time.perf_counter() - started)
        options.out.write_text(json.dumps(result, indent=1) + "\n")

    for workers in options.workers:
        cells += run(
            workers,
            options.workloads,
            options.modes,
            rate=options.network,
            rounds=options.rounds,
            size=options.size,
            peer=options.peer,
            console=progress,
            done=save,
        )
    report(cells, console)
    for other in others:
        report_summary(result["summary"][other], other, console)
    # a workload that the other package cannot run is a result, not a failure
    failures = [
        cell
        for cell in cells
        if ("error" in cell and cell["engine"] != "peer") or not cell.get("same", True)
    ]
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
