"""SoyBean's and Tofu's experiments: bytes moved by training steps, in the papers and the model.

    python -m benchmarks.papers.soybean [--quick] [--json FILE]

The column *paper* has the published bytes.  *Formula* is the same arithmetic with the number of
devices that receive, one less than the devices of a group; for SoyBean's own tiling it is the cost
in its k-cut algorithm.  *Exact* are the bytes moved by the tiling, counted worker by worker.  An
estimate is the speed-up over one device on the paper's machine without overlap of transfers and
computing; it was not measured.  *Bound* is the lower bound over the tilings that the default method
chooses from.  With ``--quick`` only the perceptrons of the papers' examples are tiled, which takes
seconds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.papers import networks
from benchmarks.papers.algorithms.parallelism import (
    data_parallel,
    hybrid_parallel,
    model_parallel,
)
from dasktile.ir import Program
from dasktile.tiling import Settings, tile
from dasktile.tiling.candidates import Space
from dasktile.tiling.cost import TIE, Costs
from dasktile.tiling.grid import free_axes
from dasktile.tiling.mesh import Mesh
from dasktile.tiling.methods import Method, get
from dasktile.tiling.methods.papers.soybean import k_cuts, soybean_mesh

#: The axis of the samples in all networks.
BATCH = ("samples", 0)

#: The methods that are compared; all choose from the same candidates.
METHODS: dict[str, Method] = {
    "data": data_parallel(BATCH),
    "model": model_parallel(BATCH),
    "hybrid": hybrid_parallel(BATCH),
    "soybean": get("soybean"),
}

#: The paper's machine: operations per second of one GK210, and bytes per second of all links.
DEVICE_WORK = 2.8e12
LINK_BYTES = 20e9


def exchanged(nbytes: float, devices: int, *, printed: bool = False) -> float:
    """Bytes to sum an array over devices and to copy the sum back to all of them.

    Parameters
    ----------
    nbytes
        Bytes of the array: weights in data parallelism, activations in model parallelism.
    devices
        Number of devices that hold a partial sum.
    printed
        Whether to follow the papers' arithmetic, in which each device also sends to itself.
    """
    return 2.0 * nbytes * (devices if printed else devices - 1)


def hybrid(
    among: float, inside: float, groups: int, devices: int, *, printed: bool = False
) -> float:
    """Bytes of the same exchange among groups of devices, and inside each group.

    Parameters
    ----------
    among, inside
        Bytes of the arrays exchanged among groups, and of those exchanged inside groups.
    groups, devices
        Number of groups, and of devices in each.
    printed
        As in :func:`exchanged`.
    """
    return exchanged(among, groups, printed=printed) + groups * exchanged(
        inside / groups, devices, printed=printed
    )


def example(printed: bool = False) -> dict[str, float]:
    """SoyBean, section 2.2: five layers of 300 neurons, batch 400, float32, 16 devices."""
    weights, activations = 300 * 300 * 5 * 4.0, 400 * 300 * 5 * 4.0
    return {
        "data": exchanged(weights, 16, printed=printed),
        "model": exchanged(activations, 16, printed=printed),
        "hybrid": hybrid(weights, activations, 4, 4, printed=printed),
    }


def slides(printed: bool = False) -> dict[str, float]:
    """Tofu: a layer of 500 neurons and its gradient, batch 300, float32, 16 devices."""
    weights, activations = 500 * 500 * 2 * 4.0, 500 * 300 * 2 * 4.0
    return {
        "data": exchanged(weights, 16, printed=printed),
        "model": exchanged(activations, 16, printed=printed),
        "hybrid": hybrid(activations, weights, 4, 4, printed=printed),
    }


@dataclass(frozen=True, slots=True)
class Case:
    """One network on a number of devices.

    Parameters
    ----------
    experiment
        Name of the experiment in the paper.
    build
        Function that builds the program.
    devices
        Number of devices.
    paper, formula
        Published bytes, and bytes by the formula, for the methods that have them.
    trained
        Whether the paper measured seconds instead of bytes.
    statement
        The paper's statement about the seconds.
    """

    experiment: str
    build: Callable[[], Program]
    devices: int
    paper: Mapping[str, float] = field(default_factory=dict)
    formula: Mapping[str, float] = field(default_factory=dict)
    trained: bool = False
    statement: str = ""


def examples() -> list[Case]:
    """The perceptrons of the papers' worked examples."""
    return [
        Case("SoyBean 2.2: 5 x 300, batch 400", lambda: networks.mlp(400, 300, 5), 16,
             example(True), example()),
        Case("the same, input where it is wanted",
             lambda: networks.mlp(400, 300, 5, input_gradient=True, placed=True), 16,
             example(True), example()),
        Case("2 x 300, batch 400, input where it is wanted",
             lambda: networks.mlp(400, 300, 2, input_gradient=True, placed=True), 4),
        Case("Tofu slides: 2 x 500, batch 300",
             lambda: networks.mlp(300, 500, 2, input_gradient=True), 16,
             slides(True), slides()),
    ]  # fmt: skip


def evaluation() -> list[Case]:
    """The networks that the papers trained, whose results are plots without numbers."""
    faster = "> 7x, 1.5-4x as fast as data"
    cases: list[tuple[str, Callable[[], Program], str]] = [
        ("figure 8a: 4 x 8192, batch 512", lambda: networks.mlp(512, 8192, 4), ""),
        ("figure 8b: 4 x 8192, batch 2048", lambda: networks.mlp(2048, 8192, 4), ""),
        ("figure 8c: 4 x 12288, batch 2048", lambda: networks.mlp(2048, 12288, 4), ""),
        ("figure 9a: CNN, 6 x 6, 2048 filters", lambda: networks.cnn(256, 6, 2048), ""),
        ("figure 9b: CNN, 24 x 24, 512 filters", lambda: networks.cnn(256, 24, 512),
         "data better than model"),
        ("AlexNet, batch 256", networks.alexnet, faster),
        ("VGG-16, batch 256", networks.vgg, faster),
    ]  # fmt: skip
    return [
        Case(name, build, 8, trained=True, statement=statement) for name, build, statement in cases
    ]


def moved(program: Program, devices: int) -> dict[str, int]:
    """Bytes moved between devices with every method, in the exact model."""
    method = METHODS["soybean"]
    mesh = Mesh(method.mesh(devices))
    settings = Settings()
    axes = free_axes(program, devices, settings.candidates)
    states = method.max_states or settings.max_states
    costs = Costs(Space(program, mesh, axes, replace(settings, max_states=states)))
    by_method = {
        name: sum(costs.moved(method.choose(costs, settings, TIE).states))
        for name, method in METHODS.items()
    }
    plan = tile(program, workers=devices, force=True)
    return {**by_method, "default": plan.after.bytes, "bound": plan.lower_bound}


def speed_up(program: Program, devices: int, nbytes: float) -> float:
    """Speed-up over one device, if transfers do not overlap computing."""
    work = sum(node.iterations * node.work for node in program.nodes) / DEVICE_WORK
    return work / (work / devices + nbytes / LINK_BYTES)


def rows(quick: bool = False) -> list[dict[str, Any]]:
    """A row for every case and method; bytes in MB, None without a figure."""
    table: list[dict[str, Any]] = []
    for case in [*examples(), *([] if quick else evaluation())]:
        program = case.build()
        formula = dict(case.formula)
        formula["soybean"] = k_cuts(program, soybean_mesh(case.devices)).total
        exact = moved(program, case.devices)
        bound = exact.pop("bound")
        for name, nbytes in exact.items():
            notes = [f"bound {bound / 1e6:,.2f}"] if name == "default" else []
            if case.trained:
                factor = speed_up(program, case.devices, nbytes)
                notes.append(f"data / this {exact['data'] / nbytes:.1f}, estimate {factor:.1f}x")
            if case.statement and name == "soybean":
                notes.append(f"paper: {case.statement}")
            table.append(
                {
                    "experiment": f"{case.experiment}, {case.devices} devices",
                    "what": name,
                    "paper": _megabytes(case.paper.get(name)),
                    "formula": _megabytes(formula.get(name)),
                    "exact": _megabytes(nbytes),
                    "note": "; ".join(notes),
                }
            )
    return table


def _megabytes(nbytes: float | None) -> float | None:
    return None if nbytes is None else round(nbytes / 1e6, 3)


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows as a table, grouped by experiment."""
    result = Table("experiment", "MB moved by", "paper", "formula", "exact", "")
    last = ""
    for row in rows:
        if last and row["experiment"] != last:
            result.add_section()
        name = "" if row["experiment"] == last else row["experiment"]
        last = row["experiment"]
        figures = [
            "" if row[key] is None else f"{row[key]:,.2f}" for key in ("paper", "formula", "exact")
        ]
        result.add_row(name, row["what"], *figures, row["note"])
    for column in result.columns[2:5]:
        column.justify = "right"
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the papers' examples only")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args(arguments)
    results = rows(options.quick)
    Console(width=130).print(table(results))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
