"""The experiments of EinDecomp: bytes moved by its method and others, in the model and measured.

    python -m benchmarks.papers.eindecomp [--measure] [--size 0.5] [--workers 4] [--rounds 1]

Without ``--measure`` only the model is evaluated, which takes seconds.  With it, experiment 1 also
runs on a cluster of processes: inputs are read from Zarr files, engines run in turns, and medians
of the rounds are printed.

The paper has its results in plots without numbers: the table quotes its statements about them.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
from rich.console import Console
from rich.table import Table

import dasktile
from benchmarks.meters import Cluster, Measured, same
from benchmarks.papers import transformers
from benchmarks.papers.algorithms.forced import along, sqrt_slicing, square
from benchmarks.sized import Sized, opened, sized, write
from dasktile.ir import Program
from dasktile.report.formatting import format_bytes
from dasktile.tiling import tile
from dasktile.tiling.methods import Method
from dasktile.tiling.methods.papers.partitions import (
    aggregation_cost,
    join_cost,
    repartition_cost,
)

#: The methods that are compared in all experiments.
METHODS: dict[str, Method | str] = {
    "default": "auto",
    "eindecomp": "eindecomp",
    "eindecomp-exact": "eindecomp-exact",
}

#: Tensor parallelism by hand: heads, then the feed-forward part (Megatron).
MEGATRON = along(("q", 2), ("gate", 2))

#: Statements of the paper.
STATEMENTS = {
    "square": "SQRT as good as EinDecomp",
    "skewed": "SQRT worse than EinDecomp",
    "classifier": "EinDecomp far better than data parallel",
    "llama": "EinDecomp as good as any or better; by sequence better than Megatron",
}


@dataclass(frozen=True, slots=True)
class Case:
    """A program, a number of workers, and the tilings by hand that are compared."""

    experiment: str
    what: str
    statement: str
    program: Program
    workers: int
    by_hand: Mapping[str, Method]

    def moved(self) -> dict[str, int]:
        """Bytes moved between workers with every method, in the model."""
        methods = {**METHODS, **self.by_hand}
        return {
            name: tile(self.program, workers=self.workers, method=method, force=True).after.bytes
            for name, method in methods.items()
        }


def arithmetic() -> list[dict[str, Any]]:
    """The worked examples of the paper."""
    examples = (
        ("repartition 64 elements, tiles of 8 to tiles of 16", 320, repartition_cost(64, 8, 16, 4)),
        ("8 x 8 x 8 product, d = [4, 1, 1, 4]: join", 512, join_cost(16, 16, 16)),
        ("8 x 8 x 8 product, d = [4, 1, 1, 4]: aggregation", 0, aggregation_cost(16, 1, 4)),
        ("8 x 8 x 8 product, d = [2, 4, 4, 2]: join", 256, join_cost(16, 8, 8)),
        ("8 x 8 x 8 product, d = [2, 4, 4, 2]: aggregation", 192, aggregation_cost(16, 4, 16)),
        ("partition vectors, 2^10 parts and 6 labels", 3003, vector_count(2**10, 6)),
    )
    return [
        _row("worked examples", what, str(paper), f"{float(ours):.0f}", "")
        for what, paper, ours in examples
    ]


def vector_count(parts: int, labels: int) -> int:
    """The number of partition vectors: ways to put N balls into D buckets."""
    power = parts.bit_length() - 1
    return math.comb(power + labels - 1, labels - 1)


def cases() -> Iterator[Case]:
    """The experiments whose sizes are published."""
    for workers in (4, 16):
        for skewed in (False, True):
            program = transformers.chain(skewed, 4000)
            name = "skewed" if skewed else "square"
            yield Case(
                "1: (A B) + (C (D E))", f"{name}, s = 4000, {workers} workers", STATEMENTS[name],
                program, workers, {"SQRT": sqrt_slicing(program)},
            )  # fmt: skip
    for features in (8192, 597_540):
        for batch in (128, 512):
            yield Case(
                "2: training a classifier", f"{features} features, batch {batch}, 4 workers",
                STATEMENTS["classifier"], transformers.classifier(batch, features), 4,
                {"data parallel": along(("x", 0))},
            )  # fmt: skip
    for batch, tokens, workers in ((1, 4096, 8), (4, 4096, 8), (8, 1024, 8), (4, 4096, 4)):
        for placed in (True, False):
            where = "in place" if placed else "in one place each"
            by_hand = {
                "Megatron": MEGATRON,
                "by sequence": along(("x", 1)),
                "by heads": along(("q", 2), ("x", 1)),
            }
            if batch >= workers:
                by_hand["by batch"] = along(("x", 0))
            yield Case(
                "3: a block of LLaMA-7B, first token",
                f"batch {batch}, {tokens} tokens, {workers} workers, weights {where}",
                STATEMENTS["llama"],
                transformers.llama_block(batch, tokens, placed=placed),
                workers,
                by_hand,
            )


def rows() -> list[dict[str, Any]]:
    """The results of the model, beside the figures and statements of the paper."""
    table = arithmetic()
    for case in cases():
        moved = case.moved()
        ours = ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in moved.items())
        note = _note(moved)
        table.append(_row(case.experiment, case.what, case.statement, ours, note))
    return table


def _row(experiment: str, what: str, paper: str, ours: str, note: str) -> dict[str, Any]:
    return {"experiment": experiment, "what": what, "paper": paper, "ours": ours, "note": note}


def _note(moved: Mapping[str, int]) -> str:
    """How EinDecomp compares with the best tiling by hand."""
    name, least = min(
        ((name, nbytes) for name, nbytes in moved.items() if name not in METHODS),
        key=lambda item: item[1],
    )
    return f"best by hand ({name}) / eindecomp: {_times(least, moved['eindecomp'])}"


def _times(numerator: float, denominator: float) -> str:
    if not denominator:
        return "1.00" if not numerator else "infinite"
    return f"{numerator / denominator:.2f}"


def report(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print rows."""
    for experiment in dict.fromkeys(row["experiment"] for row in rows):
        table = Table(title=experiment, title_justify="left", show_lines=True)
        for name in ("what", "paper", "ours", "note"):
            table.add_column(name)
        for row in rows:
            if row["experiment"] == experiment:
                table.add_row(*(row[name] for name in ("what", "paper", "ours", "note")))
        console.print(table)


# On a cluster -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Engine:
    """A way to run an expression.

    Parameters
    ----------
    name
        Name in the table.
    inputs
        Function that opens the inputs.
    plan
        Function applied to collections before they are computed; None for Dask without dasktile.
    enabled
        Whether dasktile's plugins are installed, which place the tiles on workers.
    """

    name: str
    inputs: Callable[[Sized, Path], dict[str, Any]]
    plan: Callable[[Sequence[Any], Any], Sequence[Any]] | None = None
    enabled: bool = False


def _as_stored(workload: Sized, folder: Path) -> dict[str, Any]:
    return opened(workload, folder, da)


def _sliced(workload: Sized, folder: Path, workers: int) -> dict[str, Any]:
    """The inputs in chunks of a grid that is as square as possible, one chunk per worker."""
    rows, columns = (*square(workers), 1)[:2]
    return {
        name: da.from_zarr(
            str(folder / name),
            chunks=(math.ceil(source.shape[0] / rows), math.ceil(source.shape[1] / columns)),
        )
        for name, source in workload.inputs.items()
    }


def _planned(method: str, arrays: Sequence[Any], client: Any) -> Sequence[Any]:
    planned = dasktile.optimize(*arrays, workers=client, method=method)
    return (planned,) if len(arrays) == 1 else planned


def engines(workers: int) -> list[Engine]:
    """The engines that are compared."""
    compared = [
        Engine("Dask", _as_stored),
        Engine("Dask, SQRT by hand", partial(_sliced, workers=workers)),
    ]
    for method in ("auto", "eindecomp"):
        name = "dasktile" if method == "auto" else f"dasktile, {method}"
        for enabled in (False, True):
            compared.append(
                Engine(
                    name + (", placed" if enabled else ""),
                    _as_stored,
                    partial(_planned, method),
                    enabled,
                )
            )
    return compared


def measure(workers: int, size: float, rounds: int, console: Console) -> list[dict[str, Any]]:
    """Run experiment 1 on a cluster.

    Parameters
    ----------
    workers
        Number of worker processes, of one thread each.
    size
        As in `benchmarks.sized.sized`: 1 is 4000 x 4000.
    rounds
        Number of runs of every expression with every engine.
    console
        Where a table is printed.

    Returns
    -------
    A dict for every expression and engine.
    """
    cells = []
    with (
        tempfile.TemporaryDirectory(prefix="dasktile-inputs-") as folder,
        Cluster(workers) as cluster,
    ):
        for name in ("chain", "skewed_chain"):
            workload, inputs = sized(size)[name], Path(folder) / name
            write(workload, inputs)
            by_engine: dict[str, list[Measured]] = {}
            values: dict[str, Any] = {}
            # the first round is not counted: it includes imports and loading
            for number in range(rounds + 1):
                for engine in engines(workers):
                    measured, kept = _run(cluster, engine, workload, inputs)
                    if number:
                        by_engine.setdefault(engine.name, []).append(measured)
                    else:
                        values[engine.name] = cluster.values(kept)
                    del kept
            for engine_name, results in by_engine.items():
                cells.append(
                    {
                        "workload": name,
                        "engine": engine_name,
                        "moved": statistics.median(result.moved for result in results),
                        "seconds": statistics.median(result.seconds for result in results),
                        "tasks": statistics.median(result.tasks for result in results),
                        "same": same(values["Dask"], values[engine_name]),
                    }
                )
    table = Table(title=f"Experiment 1 on {workers} workers, size {size}", title_justify="left")
    for column in ("expression", "engine", "moved", "seconds", "tasks", "values"):
        left = column in ("expression", "engine", "values")
        table.add_column(column, justify="left" if left else "right")
    for cell in cells:
        table.add_row(
            cell["workload"],
            cell["engine"],
            format_bytes(int(cell["moved"])),
            f"{cell['seconds']:.2f}",
            f"{cell['tasks']:.0f}",
            "equal" if cell["same"] else "DIFFERENT",
        )
    console.print(table)
    return cells


def _run(
    cluster: Cluster, engine: Engine, workload: Sized, folder: Path
) -> tuple[Measured, list[Any]]:
    """One computation, with planning included in the seconds."""
    plan = engine.plan
    if engine.enabled:
        dasktile.enable(cluster.client)
    try:
        with cluster.client.as_current():
            arrays = workload.build(engine.inputs(workload, folder), da)
            return cluster.measure(
                arrays, None if plan is None else lambda lazy: plan(lazy, cluster.client)
            )
    finally:
        if engine.enabled:
            dasktile.disable(cluster.client)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; returns 1 if results of a cluster differ."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.papers.eindecomp",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--measure", action="store_true", help="run experiment 1 on a cluster")
    parser.add_argument("--size", type=float, default=0.5)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args(arguments)
    console = Console()
    report(rows(), console)
    if not options.measure:
        return 0
    warnings.simplefilter("ignore", da.PerformanceWarning)
    cells = measure(options.workers, options.size, options.rounds, console)
    return 0 if all(cell["same"] for cell in cells) else 1


if __name__ == "__main__":
    raise SystemExit(main())
