"""What spilling takes on a GPU: the link, jobs above a limit of its memory, and jobs below.

    python -m benchmarks.gpu [--device cupy] [--parts link above below operations]
        [--workloads NAME ...] [--scale 24] [--rounds 3] [--out benchmarks/results]

It needs CuPy and dask-cuda, writes ``gpu.json`` and, with matplotlib, ``gpu.png``, both with the
name of the device.  Parts:

- ``link``: bytes a second that CUDA copies between page-locked memory and the device, and of
  dasktile's tier, one way, both ways, and beside products of matrices;
- ``above``: the workloads of ``benchmarks.spilling`` whose results take 1.4 to 2.25 times the
  limit of device memory, by dask-cuda's ``DeviceHostFile`` and by dasktile;
- ``below``: the same without a limit, beside a ``dict``, which never spills;
- ``operations``: those of dask-cuda's ``local_cupy`` benchmarks, with a limit of their inputs and
  results over 1.8.

Engines run in turns, each run has a cluster of its own, with one worker of two threads in this
process.  ``--device emulated`` runs all but the link without a GPU, to test the program.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.spill_device import KINDS, has_dask_cuda
from benchmarks.spill_meters import Setting
from benchmarks.spill_workloads import Run, Spilled, workloads
from benchmarks.spilling import run_cell

PARTS = ("link", "above", "below", "operations")

#: Working set over limit of the operations.
PRESSURE = 1.8

#: Bytes of the tiles whose copies are measured.
TILES = (1 << 20, 1 << 24, 1 << 27)

#: Engines where nothing is spilled.
ALL_ENGINES = ("dict", "dask-cuda", "dasktile")


# Operations of local_cupy ---------------------------------------------------------------


def _square(run: Run, name: str, blocks: int = 14) -> da.Array:
    side = round(256 * run.scale**0.5)
    return run.source(name, (blocks * side, blocks * side), (side, side))


def _column(run: Run, name: str, blocks: int = 100) -> da.Array:
    rows = run.rows(65_536)
    return run.source(name, (blocks * rows,), (rows,))


def transpose_sum(run: Run) -> Sequence[Any]:
    """The sum of a matrix and its transpose."""
    x = _square(run, "x")
    return run.keep(x + x.T)


def dot(run: Run) -> Sequence[Any]:
    """A product of two matrices."""
    x, y = (_square(run, name, 10) for name in "xy")
    return run.keep(x @ y)


def svd(run: Run) -> Sequence[Any]:
    """The singular values and left vectors of a tall matrix."""
    rows = run.rows(8192)
    x = run.source("tall", (64 * rows, 16), (rows, 16))
    left, values, _ = np.linalg.svd(x)
    # signs of vectors are arbitrary
    return run.keep(abs(left), values)


def fft(run: Run) -> Sequence[Any]:
    """Fourier transforms along whole columns."""
    rows = run.rows(2048)
    return run.keep(np.fft.fft(run.source("columns", (rows, 32 * 40), (rows, 32)), axis=0))


def strided(run: Run) -> Sequence[Any]:
    """A copy of every third row."""
    return run.keep(_square(run, "x")[::3].copy())


def column_sum(run: Run) -> Sequence[Any]:
    """Two vectors added."""
    x, y = (_column(run, name) for name in "xy")
    return run.keep(x + y)


def column_mask(run: Run) -> Sequence[Any]:
    """The elements of one vector where another is large."""
    x, y = (_column(run, name) for name in "xy")
    return run.keep(x[y > 0.84])


def column_gather(run: Run) -> Sequence[Any]:
    """Elements of a vector at positions that are known to the client."""
    x = _column(run, "x")
    positions = np.random.default_rng(0).integers(x.shape[0], size=x.shape[0] // 50)
    return run.keep(x[positions])


def map_overlap(run: Run) -> Sequence[Any]:
    """A mean of neighbours, with halos."""
    return run.keep(_square(run, "x").map_overlap(_neighbours, 1, boundary="none"))


def _neighbours(block: Any) -> Any:
    mean = block.copy()
    mean[1:-1, 1:-1] = (block[:-2, 1:-1] + block[2:, 1:-1] + block[1:-1, :-2] + block[1:-1, 2:]) / 4
    return mean


#: Megabytes of inputs and results at scale 1.
OPERATIONS: dict[Callable[[Run], Sequence[Any]], float] = {
    transpose_sum: 206, dot: 157, svd: 134, fft: 63, strided: 137, column_sum: 157,
    column_mask: 113, column_gather: 53, map_overlap: 206,
}  # fmt: skip


def operations() -> dict[str, Spilled]:
    """The operations as workloads whose inputs are in memory before."""
    return {
        run.__name__: Spilled(run.__name__, run, 1, "persisted", PRESSURE, {"persisted": peak})
        for run, peak in OPERATIONS.items()
    }


# Measurements ---------------------------------------------------------------------------


def measure_link() -> dict[str, Any]:
    """Bytes a second of the link, of dasktile's tier and of dask-cuda's functions."""
    gpu_link = import_module("benchmarks.gpu_link")
    return {
        "link": gpu_link.link(),
        "tier": {str(size): gpu_link.tier(size) for size in TILES},
        "dask-cuda": {str(size): gpu_link.theirs(size) for size in TILES},
    }


def measure(
    chosen: Mapping[str, Spilled], device: str, fits: bool, scale: float, rounds: int,
    console: Console,
) -> dict[str, Any]:  # fmt: skip
    """Run workloads with each engine.

    Parameters
    ----------
    chosen
        The workloads, by name.
    device
        Kind of the device.
    fits
        Whether all results fit on the device.
    scale, rounds
        As for `benchmarks.spilling.run`.
    console
        Where results are printed.

    Returns
    -------
    For each workload the measurements of each engine; ``error`` if one has failed.
    """
    cells: dict[str, Any] = {}
    for name, workload in chosen.items():
        budget = None if fits else workload.budget(workload.mode, "natural", scale)
        setting = Setting(budget, device=device)
        engines = ALL_ENGINES if fits else ALL_ENGINES[1:]
        try:
            cells[name] = run_cell(
                workload, workload.mode, setting, scale, rounds, engines, trace=False
            )
        except Exception as error:
            # on a machine that is lent for a short time the others are to run
            cells[name] = {"error": repr(error)}
        console.print(name, _line(cells[name]))
    return cells


def _line(cell: Mapping[str, Any]) -> str:
    if "error" in cell:
        return str(cell["error"])
    return ", ".join(
        f"{engine} {made['seconds']:.2f} s {made['moved'] / 1e6:.0f} MB"
        f"{'' if made['same'] else ' DIFFERENT'}"
        for engine, made in cell.items()
    )


def ratios(cells: Mapping[str, Any], measure: str = "seconds", to: str = "dask-cuda") -> Any:
    """Measurements of another engine over dasktile's, by workload.

    Parameters
    ----------
    cells
        As :func:`measure` returns them; workloads that have failed are left out.
    measure
        Name of the measurement.
    to
        The other engine.
    """
    return {
        name: max(cell[to][measure], 1e-3) / max(cell["dasktile"][measure], 1e-3)
        for name, cell in cells.items()
        if "error" not in cell
    }


def summary(results: Mapping[str, Any]) -> dict[str, float]:
    """The figures that a reader looks for first."""
    made = {}
    if "link" in results:
        ceiling, tiers = results["link"]["link"], results["link"]["tier"]
        for name in ("up", "down", "both"):
            large = tiers[str(TILES[-1])]
            made[f"{name}, share of the link"] = large[name] / ceiling[name]
            made[f"{name} beside products, share"] = large[f"{name} beside"] / ceiling[name]
        made["products beside copies, seconds"] = large["compute"]
    for part in ("above", "operations"):
        for kind in ("seconds", "moved"):
            if found := list(ratios(results.get(part, {}), kind).values()):
                made[f"{part}: dask-cuda / dasktile, {kind}"] = statistics.geometric_mean(found)
    for other in ALL_ENGINES[:2]:
        if found := list(ratios(results.get("below", {}), to=other).values()):
            made[f"below: {other} / dasktile, seconds"] = statistics.geometric_mean(found)
    return made


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw the ratios of all workloads to a file."""
    pyplot = import_module("matplotlib.pyplot")
    parts = [part for part in PARTS[1:] if ratios(results.get(part, {}))]
    figure, axes = pyplot.subplots(1, max(1, len(parts)), figsize=(5 * len(parts) + 1, 4))
    for part, axis in zip(parts, np.atleast_1d(axes), strict=False):
        found = ratios(results[part])
        axis.barh(list(found), list(found.values()), color="tab:blue")
        axis.axvline(1, color="black", linewidth=0.8)
        axis.invert_yaxis()
        axis.set_title(part)
        axis.set_xlabel("seconds, dask-cuda / dasktile")
    figure.suptitle(results["device"])
    figure.tight_layout()
    figure.savefig(path)


def about(device: str) -> dict[str, Any]:
    """The device and the versions."""
    made = {"device": f"{device} device", "dask": dask.__version__, "numpy": np.__version__}
    if device == "cupy":
        cupy = import_module("cupy")
        made["device"] = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
        made["cupy"] = cupy.__version__
        made["driver"] = cupy.cuda.runtime.driverGetVersion()
    made["dask_cuda"] = import_module("dask_cuda").__version__
    return {**made, "python": platform.python_version()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 1 if results differ or a workload has failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    jobs = {name: each for name, each in workloads().items() if each.workers == 1}
    names = [*jobs, *operations()]
    parser.add_argument("--device", choices=KINDS, default="cupy")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--workloads", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--scale", type=float, default=24.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args(arguments)
    if not has_dask_cuda():
        parser.error("the benchmark compares with dask-cuda, which is not installed")

    warnings.simplefilter("ignore", da.PerformanceWarning)
    console = Console(width=120)
    started = time.perf_counter()
    results: dict[str, Any] = {
        **about(options.device), "scale": options.scale, "rounds": options.rounds,
    }  # fmt: skip
    console.print(results)
    options.out.mkdir(parents=True, exist_ok=True)
    for part in options.parts:
        if part == "link":
            if options.device != "emulated":
                results[part] = measure_link()
                console.print(results[part])
        else:
            every = operations() if part == "operations" else jobs
            chosen = {name: each for name, each in every.items() if name in options.workloads}
            results[part] = measure(
                chosen, options.device, part == "below", options.scale, options.rounds, console
            )
        results["summary"] = summary(results)
        results["seconds"] = round(time.perf_counter() - started)
        # the parts so far are written, in case a later one fails
        (options.out / "gpu.json").write_text(json.dumps(results, indent=1) + "\n")
    table = Table(title=results["device"], title_justify="left")
    table.add_column("")
    table.add_column("", justify="right")
    for title, value in results["summary"].items():
        table.add_row(title, f"{value:.2f}")
    console.print(table)
    if find_spec("matplotlib") is not None:
        draw(results, options.out / "gpu.png")
    cells = [cell for part in PARTS[1:] for cell in results.get(part, {}).values()]
    failed = any("error" in cell or not cell["dasktile"]["same"] for cell in cells)
    return int(failed or not all(map(math.isfinite, results["summary"].values())))


if __name__ == "__main__":
    raise SystemExit(main())
