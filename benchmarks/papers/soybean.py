"""SoyBean's and Tofu's experiments: bytes that training steps move, by the papers and by the model.

    python -m benchmarks.papers.soybean [--quick] [--json FILE]

The column *paper* is what is printed.  *Formula* is the same arithmetic with the devices that
really receive, one less than there are in a group, and for SoyBean's own tiling what its
k-cut algorithm reckons.  *Exact* is what the tiling moves, counted worker by worker.  An
estimate is how many times as fast as one device that would be on the paper's machine if
transfers overlapped nothing; it was not measured.  *Bound*: no tiling among those that the
default chooses from moves less.  With ``--quick`` only the perceptrons of the papers' examples
are tiled, which takes seconds.
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

#: Where the samples are, in all networks.
BATCH = ("samples", 0)

#: What is compared; all choose from the same tilings.
METHODS: dict[str, Method] = {
    "data": data_parallel(BATCH),
    "model": model_parallel(BATCH),
    "hybrid": hybrid_parallel(BATCH),
    "soybean": get("soybean"),
}

#: Operations a second of one GK210, and bytes a second over all links: the paper's machine.
DEVICE_WORK = 2.8e12
LINK_BYTES = 20e9


def exchanged(nbytes: float, devices: int, *, printed: bool = False) -> float:
    """Bytes that summing an array over devices and copying it back to all of them takes.

    Parameters
    ----------
    nbytes
        Of the array: weights in data parallelism, activations in model parallelism.
    devices
        How many hold a part.
    printed
        True for the papers' arithmetic, in which each device sends to itself too.
    """
    return 2.0 * nbytes * (devices if printed else devices - 1)


def hybrid(
    among: float, inside: float, groups: int, devices: int, *, printed: bool = False
) -> float:
    """The same for groups of devices: `among` between them, of `inside` a share in each.

    Parameters
    ----------
    among, inside
        Bytes of what is exchanged between groups, and of what is inside all of them.
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
    """One network on so many devices.

    Parameters
    ----------
    experiment
        Where the paper has it.
    build
        Makes the program.
    devices
        How many.
    paper, formula
        Bytes printed, and by the formula, of the methods of which there are.
    trained
        True where the paper measured seconds instead of bytes.
    said
        What it says of them in words.
    """

    experiment: str
    build: Callable[[], Program]
    devices: int
    paper: Mapping[str, float] = field(default_factory=dict)
    formula: Mapping[str, float] = field(default_factory=dict)
    trained: bool = False
    said: str = ""


def examples() -> list[Case]:
    """The perceptrons that the papers reckon by hand."""
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
    """The networks that the papers trained; their figures are drawn, not printed."""
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
    return [Case(name, build, 8, trained=True, said=said) for name, build, said in cases]


def moved(program: Program, devices: int) -> dict[str, int]:
    """Bytes between devices by every method, by the exact model."""
    method = METHODS["soybean"]
    mesh = Mesh(method.mesh(devices))
    settings = Settings()
    axes = free_axes(program, devices, settings.candidates)
    states = method.max_states or settings.max_states
    costs = Costs(Space(program, mesh, axes, replace(settings, max_states=states)))
    found = {
        name: sum(costs.moved(method.choose(costs, settings, TIE).states))
        for name, method in METHODS.items()
    }
    plan = tile(program, workers=devices, force=True)
    return {**found, "default": plan.after.bytes, "bound": plan.lower_bound}


def speed_up(program: Program, devices: int, nbytes: float) -> float:
    """How many times as fast as one device, if transfers do not overlap computing."""
    work = sum(node.iterations * node.work for node in program.nodes) / DEVICE_WORK
    return work / (work / devices + nbytes / LINK_BYTES)


def rows(quick: bool = False) -> list[dict[str, Any]]:
    """One for every case and method; bytes in MB, None where there is no figure."""
    found: list[dict[str, Any]] = []
    for case in [*examples(), *([] if quick else evaluation())]:
        program = case.build()
        formula = dict(case.formula)
        formula["soybean"] = k_cuts(program, soybean_mesh(case.devices)).total
        exact = moved(program, case.devices)
        bound = exact.pop("bound")
        for name, nbytes in exact.items():
            notes = [f"bound {bound / 1e6:,.2f}"] if name == "default" else []
            if case.trained:
                times = speed_up(program, case.devices, nbytes)
                notes.append(f"data / this {exact['data'] / nbytes:.1f}, estimate {times:.1f}x")
            if case.said and name == "soybean":
                notes.append(f"paper: {case.said}")
            found.append(
                {
                    "experiment": f"{case.experiment}, {case.devices} devices",
                    "what": name,
                    "paper": _megabytes(case.paper.get(name)),
                    "formula": _megabytes(formula.get(name)),
                    "exact": _megabytes(nbytes),
                    "note": "; ".join(notes),
                }
            )
    return found


def _megabytes(nbytes: float | None) -> float | None:
    return None if nbytes is None else round(nbytes / 1e6, 3)


def table(found: Sequence[Mapping[str, Any]]) -> Table:
    """The rows, experiment by experiment."""
    made = Table("experiment", "MB moved by", "paper", "formula", "exact", "")
    last = ""
    for row in found:
        if last and row["experiment"] != last:
            made.add_section()
        name = "" if row["experiment"] == last else row["experiment"]
        last = row["experiment"]
        figures = [
            "" if row[key] is None else f"{row[key]:,.2f}" for key in ("paper", "formula", "exact")
        ]
        made.add_row(name, row["what"], *figures, row["note"])
    for column in made.columns[2:5]:
        column.justify = "right"
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the papers' examples only")
    parser.add_argument("--json", type=Path, help="write the rows there too")
    options = parser.parse_args(arguments)
    found = rows(options.quick)
    Console(width=130).print(table(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
