"""A picture of where workloads of the corpus spend processor seconds.

    python -m benchmarks.corpus --json FILE
    python -m benchmarks.corpus.figure FILE [--workloads NAME ...] [--inputs random] [--size 1]
        [--out PICTURE]

A bar for Dask and one for dasktile, from a file of measurements: tasks, the rest of the workers,
the scheduler and the client, and planning.  A third bar is the time that NumPy takes for the same
in this process, with inputs of one block.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da

from benchmarks.corpus import Workload, chosen
from benchmarks.corpus.inputs import KINDS, random

#: Workloads of different kinds, each of which takes seconds.
WORKLOADS = (
    "coiled.vorticity",
    "coiled.groupby_month_cohorts",
    "coiled.anom_mean",
    "coiled.filter_then_average",
    "coiled.heal_oversplit",
    "pangeo.eulerian_mean",
    "local_cupy.svd",
    "local_cupy.map_overlap",
    "dask_ml.logistic_gradient",
    "threads.xarray_9550",
)

#: Parts of a bar, from below, and their colours.
PARTS = {
    "tasks": "#4477aa",
    "rest of the workers": "#66ccee",
    "scheduler and client": "#ccbb44",
    "planning": "#ee6677",
}

_ENGINES = {"stock": "Dask", "dasktile": "dasktile"}


def parts(cell: Mapping[str, Any]) -> dict[str, float]:
    """Processor seconds of the parts of a bar.

    Parameters
    ----------
    cell
        A measurement of :func:`benchmarks.corpus.__main__.run`.
    """
    workers = cell["cpu_seconds"] - cell["scheduler_seconds"]
    seconds = (
        cell["task_seconds"],
        workers - cell["task_seconds"],
        cell["scheduler_seconds"] - cell["planning_cpu"],
        cell["planning_cpu"],
    )
    return dict(zip(PARTS, seconds, strict=True))


def numpy_seconds(workload: Workload, size: float = 1) -> float:
    """Processor seconds of a workload over inputs of one block each, in this thread.

    Parameters
    ----------
    workload, size
        The workload, and its size.
    """

    def whole(
        name: str, shape: tuple[int, ...], chunks: Any, *more: Any, **options: Any
    ) -> da.Array:
        return random(name, shape, shape, *more, **options)

    collections = workload.function(size, whole)
    with dask.config.set(scheduler="sync"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.process_time()
        dask.compute(*collections)
        return time.process_time() - start


def draw(bars: Mapping[str, Mapping[str, Mapping[str, float]]], out: Path) -> None:
    """Draw the bars.

    Parameters
    ----------
    bars
        By workload and name of a bar, its parts in seconds.
    out
        The picture; the ending of its name is its format.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    axes = figure.add_subplot()
    width = 0.27
    for place, by_name in enumerate(bars.values()):
        for number, (name, values) in enumerate(by_name.items()):
            bottom = 0.0
            for part, value in values.items():
                at = place + (number - 1) * width
                axes.bar(at, value, 0.9 * width, bottom=bottom, color=PARTS[part], label=part)
                bottom += value
            label = {"Dask": "D", "dasktile": "t"}.get(name, "N")
            axes.annotate(label, (at, bottom), ha="center", va="bottom", fontsize=7)
    axes.set_xticks(range(len(bars)), [name.rpartition(".")[2] for name in bars], rotation=20)
    axes.set_ylabel("processor seconds")
    # room for the letter of the highest bar
    axes.set_ylim(0, 1.08 * max(sum(v.values()) for each in bars.values() for v in each.values()))
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    axes.legend([once[part] for part in PARTS if part in once], [p for p in PARTS if p in once],
                title="D: Dask, t: dasktile, N: NumPy", loc="lower center", ncols=len(PARTS),
                bbox_to_anchor=(0.5, 1.0))  # fmt: skip
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def bars_of(
    cells: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    inputs: str = "random",
    size: float = 1,
) -> dict[str, dict[str, dict[str, float]]]:
    """The bars of some workloads, by workload and name.

    Parameters
    ----------
    cells
        The measurements.
    names
        Names of workloads.
    inputs, size
        The kind of inputs, and the size, of the measurements.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for workload in chosen(names):
        measured = {
            _ENGINES[cell["engine"]]: parts(cell)
            for cell in cells
            if (cell["workload"], cell["inputs"]) == (workload.name, inputs) and "error" not in cell
        }
        if measured:
            found[workload.name] = {**measured, "NumPy": {"tasks": numpy_seconds(workload, size)}}
    return found


def main() -> None:
    """Draw the picture of a file of measurements."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--workloads", nargs="+", metavar="NAME", default=list(WORKLOADS))
    parser.add_argument("--inputs", choices=KINDS, default="random")
    parser.add_argument("--size", type=float, default=1)
    parser.add_argument("--out", type=Path, default=Path("processor-seconds.svg"))
    options = parser.parse_args()
    cells = json.loads(options.file.read_text())["cells"]
    bars = bars_of(cells, options.workloads, options.inputs, options.size)
    draw(bars, options.out)


if __name__ == "__main__":
    main()
