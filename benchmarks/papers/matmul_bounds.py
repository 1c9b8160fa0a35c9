"""Bytes moved by products of two matrices, compared with the lower bound of all algorithms.

    python -m benchmarks.papers.matmul_bounds [--workers 2 3 4 ... | --all] [--axes 4] [--unit 960]
        [--task-bytes N] [--brief] [--plot FILE]

The bound counts words that processors receive beyond what they hold (Al Daas, Ballard, Grigori,
Kumar and Rouse, SPAA 2022).  It is tight if the sizes divide into a processor grid of the right
shape.  The table also has the best result of any grid: for few processors, such as 3, there are few
grids.  Inputs may have any placement at the start, and the result may have any at the end.

Plans may leave some workers without tiles where the others have better grids (12 of 13).  The bound
is that of the workers that have some.  `over fewer` is the time of bytes and work, by the prices of
the planner, over the least of the best grids of any number of workers up to all of them.  Tasks are
left out of it, but the planner counts them: with `--task-bytes 1` it counts hardly any.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.papers.transformers import Network
from dasktile.tiling import tile
from dasktile.tiling.mesh import mesh_shape
from dasktile.tiling.methods import Method, get
from dasktile.tiling.objective import Objective
from dasktile.tiling.settings import Settings

#: Workers of the sweep.
WORKERS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

#: Sizes of the sweep in units of :data:`UNIT`: every triple of them is one product.
RATIOS = (1, 2, 4, 16, 64)

#: Length, divisible by all numbers of cuts of a label for :data:`WORKERS`.
UNIT = 960

#: Ratio to the bound up to which a case counts as near.
NEAR = 1.25

#: Ratio to the best grid up to which a case is close.
CLOSE = 1.05

#: The most workers of a sweep of all numbers.
MAX_COUNT = 128

#: Number of candidates that includes all tilings of a product on a mesh of four axes.
FOUR_AXES_STATES = 640


def lower_bound(m: int, k: int, n: int, processors: int) -> float:
    """Lower bound of the words that all processors together receive beyond what they hold.

    Parameters
    ----------
    m, k, n
        Sizes: the product of an m x k and a k x n matrix.
    processors
        Number of processors; each does an equal share of the work and holds an equal share of the
        data.
    """
    large, middle, small = sorted((m, k, n), reverse=True)
    faces = large * middle + large * small + middle * small
    if processors <= large / middle:
        needed = (large * middle + large * small) / processors + middle * small
    elif processors <= large * middle / small**2:
        needed = 2 * math.sqrt(large * middle * small**2 / processors)
        needed += large * middle / processors
    else:
        needed = 3 * (large * middle * small / processors) ** (2 / 3)
    return processors * needed - faces


@cache
def best_grid(m: int, k: int, n: int, processors: int) -> int:
    """Words received with the best processor grid, in which all processors have equal blocks."""
    words = []
    for rows in range(1, processors + 1):
        for columns in range(1, processors // rows + 1):
            depth, remainder = divmod(processors, rows * columns)
            if not remainder:
                words.append(m * k * (columns - 1) + k * n * (rows - 1) + m * n * (depth - 1))
    return min(words)


@dataclass(frozen=True, slots=True)
class Case:
    """One product on some workers.

    Parameters
    ----------
    shape
        m, k and n.
    workers
        Number of workers.
    moved, bound, grid
        Words moved by dasktile, their lower bound on the workers that have tiles, and words moved
        by the best grid of all workers.
    used
        Workers that have tiles.
    time, least_time
        The time of bytes and work by the prices of the planner, and that of the best grid of any
        number of workers.
    """

    shape: tuple[int, int, int]
    workers: int
    moved: float
    bound: float
    grid: int
    used: int
    time: float
    least_time: float

    @property
    def ratio(self) -> float:
        """Words moved over the bound."""
        return self.moved / self.bound

    @property
    def over_grid(self) -> float:
        """Words moved over those of the best grid."""
        return self.moved / self.grid if self.grid else float(self.moved > 0)

    @property
    def over_fewer(self) -> float:
        """The time over that of the best grid of any number of workers."""
        return self.time / self.least_time


def case(
    m: int,
    k: int,
    n: int,
    workers: int,
    method: Method | str = "auto",
    settings: Settings | None = None,
) -> Case:
    """Plan one product."""
    net = Network(itemsize=8)
    net.einsum("C", "ij,jk->ik", net.source("A", m, k), net.source("B", k, n))
    plan = tile(net.program(), workers=workers, method=method, force=True, settings=settings)
    timed = Objective(replace(settings or Settings(), task_bytes=0.0))
    work = sum(plan.after.loads)
    return Case(
        (m, k, n),
        workers,
        plan.after.bytes / 8,
        lower_bound(m, k, n, plan.used_workers),
        best_grid(m, k, n, workers),
        plan.used_workers,
        timed.elapsed(plan.after),
        min(
            best_grid(m, k, n, count) * 8 / workers + timed.lost(work / count)
            for count in range(1, workers + 1)
        ),
    )


def four_axes() -> Method:
    """The default method on a mesh of up to four axes, with all candidates kept."""
    return Method(get("exact").choose, partial(mesh_shape, max_axes=4), FOUR_AXES_STATES)


def sweep(
    workers: Iterable[int] = WORKERS,
    ratios: Sequence[int] = RATIOS,
    method: Method | str = "auto",
    unit: int = UNIT,
    settings: Settings | None = None,
) -> list[Case]:
    """Plan every product of the sweep."""
    return [
        case(m * unit, k * unit, n * unit, count, method, settings)
        for count in workers
        for m, k, n in itertools.product(ratios, repeat=3)
    ]


def share(cases: Sequence[Case]) -> float:
    """The fraction of the cases that are near to the bound."""
    return sum(product.ratio <= NEAR for product in cases) / len(cases)


def rows() -> list[dict[str, Any]]:
    """The results as rows of `benchmarks.papers`."""
    table = []
    for what, method in (("default", "auto"), ("mesh of four axes", four_axes())):
        cases = sweep(method=method)
        worst = max(cases, key=lambda product: product.ratio)
        table.append(
            {
                "experiment": "matmul lower bounds",
                "what": f"{what}: share of {len(cases)} products within {NEAR}x, worst",
                "paper": "",
                "ours": f"{share(cases):.1%}, {worst.ratio:.2f}x",
                "note": f"worst: m : k : n = {_name(worst)} on {worst.workers} workers",
            }
        )
    return table


def report(cases: Sequence[Case], console: Console) -> None:
    """Print a row for every number of workers; `over grid` and `over fewer` are the worst."""
    table = Table(title=f"Words moved, times the lower bound; near is {NEAR}", title_justify="left")
    for name in (
        "workers", "products", "near", "any grid near", "mean", "worst", "m : k : n",
        "over grid", "over fewer", "fewest used",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    counts = sorted({product.workers for product in cases})
    groups = [
        (str(count), [product for product in cases if product.workers == count]) for count in counts
    ]
    for name, group in [*groups, ("all", list(cases))]:
        worst = max(group, key=lambda product: product.ratio)
        table.add_row(
            name,
            str(len(group)),
            f"{share(group):.1%}",
            f"{sum(product.grid / product.bound <= NEAR for product in group) / len(group):.1%}",
            f"{math.exp(sum(math.log(product.ratio) for product in group) / len(group)):.3f}",
            f"{worst.ratio:.3f}",
            _name(worst),
            f"{max(product.over_grid for product in group):.3f}",
            f"{max(product.over_fewer for product in group):.3f}",
            str(min(product.used for product in group)),
        )
    console.print(table)


def brief(
    workers: Iterable[int],
    method: Method | str,
    unit: int,
    settings: Settings | None,
    console: Console,
) -> list[Case]:
    """Print a line for every number of workers with products that miss the best grids, and a sum.

    A product misses if it takes more than `CLOSE` times the bytes of the best grid of all workers,
    or that time on the best grid of any number of workers.
    """
    cases: list[Case] = []
    missed: list[Case] = []
    for count in workers:
        found = sweep((count,), method=method, unit=unit, settings=settings)
        misses = [each for each in found if max(each.over_grid, each.over_fewer) > CLOSE]
        if misses:
            worst = max(misses, key=lambda each: each.over_fewer)
            console.print(
                f"{count} workers: {len(misses)} of {len(found)} products, up to"
                f" {worst.over_fewer:.3f} ({_name(worst)} on {worst.used})"
            )
        cases += found
        missed += misses
    counts = len({each.workers for each in missed})
    console.print(
        f"{len(missed):,} of {len(cases):,} products on {counts} numbers of workers are above"
        f" {CLOSE}; over grid at most {max(each.over_grid for each in cases):.3f}, over fewer"
        f" {max(each.over_fewer for each in cases):.3f}, mean"
        f" {sum(each.over_fewer for each in cases) / len(cases):.4f}"
    )
    return cases


def plot(cases: Sequence[Case], path: Path) -> None:
    """Draw every case: its ratio over the number of workers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    counts = sorted({product.workers for product in cases})
    for name, value, marker in (
        ("dasktile", lambda product: product.ratio, "o"),
        ("best grid", lambda product: product.grid / product.bound, "_"),
    ):
        axes.plot(
            [counts.index(product.workers) for product in cases],
            [value(product) for product in cases],
            marker, label=name, alpha=0.4,
        )  # fmt: skip
    axes.axhline(NEAR, color="grey", linestyle=":")
    axes.set_xticks(range(len(counts)), [str(count) for count in counts])
    axes.set_xlabel("workers")
    axes.set_ylabel("words moved / lower bound")
    axes.legend()
    figure.savefig(path)


def _name(product: Case) -> str:
    common = math.gcd(*product.shape)
    return " : ".join(str(size // common) for size in product.shape)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.papers.matmul_bounds",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workers", type=int, nargs="+", default=list(WORKERS))
    parser.add_argument(
        "--axes", type=int, choices=(3, 4), default=3, help="of the mesh; 3 is the default's"
    )
    parser.add_argument("--unit", type=int, default=UNIT, help="sizes are 1 to 64 of it")
    parser.add_argument("--all", action="store_true", help="every number of workers from 2 to 128")
    parser.add_argument(
        "--task-bytes", type=float, metavar="N", help="the planner's price of a task"
    )
    parser.add_argument("--brief", action="store_true", help="print only products that miss")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    method = "auto" if options.axes == 3 else four_axes()
    workers = range(2, MAX_COUNT + 1) if options.all else options.workers
    settings = None
    if options.task_bytes is not None:
        settings = replace(Settings(), task_bytes=options.task_bytes)
    if options.brief:
        cases = brief(workers, method, options.unit, settings, Console())
    else:
        cases = sweep(workers, method=method, unit=options.unit, settings=settings)
        report(cases, Console())
    if options.plot:
        plot(cases, options.plot)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
