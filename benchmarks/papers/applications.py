"""Whether the chosen tiling is the best one, for Spartan's twelve applications at their sizes.

    python -m benchmarks.papers.applications [--workers 4 16] [--repeat 3]

Nothing is computed.  The programs are those of ``examples/applications``, on lazy inputs of the
same shapes and chunks.  *Planning* is the time to capture the graph and to choose tiles, without
writing the new graph.  Spartan's greedy tiling is priced by the same model, even if the input's own
chunks are better.

*After* are the bytes of the default method, which weighs tasks against bytes, *fewest* those of
the tiling that moves fewest bytes.  *Proven* is ``yes`` if both are proven to be the fewest,
``fewest`` if only the second is, and ``no`` otherwise.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from dataclasses import dataclass
from types import ModuleType

import dask.array as da

from dasktile.capture.highlevel import capture
from dasktile.report.formatting import format_bytes
from dasktile.tiling import methods, tile

#: Number of samples, options, paths, or rows of a square matrix.
SIZES = {
    "ridge_regression": 4_000_000,
    "logistic_regression": 4_000_000,
    "kmeans": 4_000_000,
    "als": 40_000,
    "svm": 4_000_000,
    "naive_bayes": 2_000_000,
    "ssvd": 4_000_000,
    "pca": 4_000_000,
    "conjugate_gradient": 40_000,
    "cholesky": 20_000,
    "black_scholes": 100_000_000,
    "barrier_option": 10_000_000,
}

#: Applications whose data are lazy at any size.
LAZY = ("barrier_option",)

#: A size at which data are created, to find the axes that grow with the size.
SMALL = 400

#: Seconds: Spartan's planning time for an ALS of 14 operators.
PUBLISHED_ALS = 0.06


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of one application.

    Parameters
    ----------
    name, workers, nodes
        Name of the application, number of workers, and number of array operations.
    before, after, bound
        Bytes moved between workers with the input's chunks and with the chosen tiles, and their
        lower bound over all tilings.
    proven
        Whether `after` is proven to be the fewest.
    fewest, fewest_proven
        Bytes of the tiling that moves fewest, ignoring the price of tasks, and whether they are
        proven to be the fewest.
    seconds
        Median of the seconds of planning.
    spartan
        Bytes of Spartan's greedy tiling; None if the method is not registered.
    """

    name: str
    workers: int
    nodes: int
    before: int
    after: int
    bound: int
    proven: bool
    fewest: int
    fewest_proven: bool
    seconds: float
    spartan: int | None


def application(name: str) -> ModuleType:
    """The module of one of the examples."""
    return importlib.import_module(f"examples.applications.{name}")


def inputs(name: str, size: int) -> tuple[da.Array, ...]:
    """Arrays of ones with the shapes and chunks of an application's data at some size.

    Axes that double with the size are scaled.
    """
    data = application(name).data
    if name in LAZY:
        arrays: tuple[da.Array, ...] = data(size)
        return arrays
    pairs = zip(data(SMALL), data(2 * SMALL), strict=True)
    return tuple(
        _scaled(f"{name}-{number}-{size}", small, large, size // SMALL)
        for number, (small, large) in enumerate(pairs)
    )


def _scaled(name: str, small: da.Array, large: da.Array, factor: int) -> da.Array:
    factors = [
        factor if after == 2 * before else 1
        for before, after in zip(small.shape, large.shape, strict=True)
    ]
    chunks = tuple(
        tuple(axis_factor * size for size in sizes)
        for axis_factor, sizes in zip(factors, small.chunks, strict=True)
    )
    shape = tuple(map(sum, chunks))
    # a unique name: otherwise arrays of ones of equal shape are the same array
    return da.ones(shape, chunks=chunks, dtype=small.dtype, name=name)


def planned(
    name: str, workers: int, repeat: int = 3, size: int | None = None, **options: int
) -> Planned:
    """Plan one application.

    Parameters
    ----------
    name
        One of :data:`SIZES`.
    workers
        Number of workers.
    repeat
        Number of times to plan it, for the median of the seconds.
    size
        Size of the data; that of :data:`SIZES` if not given.
    **options
        Options of the function that builds it, such as ``steps=1``.
    """
    built = application(name).build(*inputs(name, size or SIZES[name]), **options)
    outputs = built if isinstance(built, tuple) else (built,)
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        captured = capture(outputs)
        plan = tile(captured.program, workers=workers)
        seconds.append(time.perf_counter() - start)
    fewest = tile(captured.program, workers=workers, method="exact", force=True)
    spartan = None
    if "spartan" in methods():
        greedy = tile(captured.program, workers=workers, method="spartan", force=True)
        spartan = greedy.after.bytes
    return Planned(
        name,
        workers,
        len(captured.program.nodes),
        plan.before.bytes,
        plan.after.bytes,
        plan.lower_bound,
        plan.proven_optimal,
        fewest.after.bytes,
        fewest.proven_optimal,
        statistics.median(seconds),
        spartan,
    )


def rows(workers: tuple[int, ...] = (4, 16), repeat: int = 3) -> list[dict[str, str]]:
    """The figures of the paper and those of dasktile.

    Returns
    -------
    A dict for every row, with ``experiment``, ``what``, ``paper``, ``ours`` and ``note``.
    """
    plans = [planned(name, count, repeat) for name in SIZES for count in workers]
    return summary_rows(plans) + [alternating(count, repeat) for count in workers]


def summary_rows(plans: list[Planned]) -> list[dict[str, str]]:
    """The rows of :func:`rows` that summarise plans."""
    lines = []

    def line(what: str, paper: str, ours: str, note: str) -> None:
        values = ("Spartan, twelve applications", what, paper, ours, note)
        names = ("experiment", "what", "paper", "ours", "note")
        lines.append(dict(zip(names, values, strict=True)))

    for count in dict.fromkeys(plan.workers for plan in plans):
        group = [plan for plan in plans if plan.workers == count]
        unproven = ", ".join(plan.name for plan in group if not plan.fewest_proven)
        line(
            f"fewest bytes found, {count} workers",
            "12 of 12",
            f"{sum(plan.fewest_proven for plan in group)} of {len(group)} proven",
            f"not proven: {unproven}" if unproven else "",
        )
        not_fewest = ", ".join(plan.name for plan in group if not plan.proven)
        line(
            f"fewest bytes chosen by default, {count} workers",
            "",
            f"{sum(plan.proven for plan in group)} of {len(group)} proven",
            f"tasks cost too, or no proof: {not_fewest}" if not_fewest else "",
        )
        greedy = [plan for plan in group if plan.fewest_proven and plan.spartan is not None]
        if greedy:
            line(
                f"Spartan's greedy tiling moves fewest, {count} workers",
                "12 of 12",
                f"{sum(plan.spartan == plan.fewest for plan in greedy)} of {len(greedy)}",
                "its choices, priced by the exact bytes that they move",
            )
    return lines


def alternating(workers: int, repeat: int = 3) -> dict[str, str]:
    """The row of :func:`rows` about one step of ALS, with about as many operators as the paper."""
    plan = planned("als", workers, repeat, steps=1)
    return {
        "experiment": "Spartan, twelve applications",
        "what": f"planning one step of ALS, {workers} workers",
        "paper": f"{PUBLISHED_ALS} s, 14 operators",
        "ours": f"{plan.seconds:.2f} s, {plan.nodes} operators",
        "note": "proven to move fewest bytes" if plan.fewest_proven else "not proven",
    }


def table(plans: list[Planned]) -> str:
    """A table as text, with a line for every plan."""
    greedy = any(plan.spartan is not None for plan in plans)
    lines = [
        f"{'application':20} {'workers':>7} {'nodes':>5} {'before':>9} {'after':>9} {'fewest':>9}"
        f" {'bound':>9} {'proven':>6} {'planning':>9}" + (f" {'greedy':>9}" if greedy else "")
    ]
    for plan in plans:
        sizes = (plan.before, plan.after, plan.fewest, plan.bound)
        moved = " ".join(f"{format_bytes(size):>9}" for size in sizes)
        proven = "yes" if plan.proven else "fewest" if plan.fewest_proven else "no"
        line = (
            f"{plan.name:20} {plan.workers:7} {plan.nodes:5} {moved} {proven:>6}"
            f" {1e3 * plan.seconds:6.0f} ms"
        )
        if plan.spartan is not None:
            line += f" {format_bytes(plan.spartan):>9}"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    plans = [
        planned(name, workers, arguments.repeat) for name in SIZES for workers in arguments.workers
    ]
    print(table(plans))
    lines = summary_rows(plans) + [
        alternating(count, arguments.repeat) for count in arguments.workers
    ]
    for line in lines:
        paper = f" (paper: {line['paper']})" if line["paper"] else ""
        note = f"; {line['note']}" if line["note"] else ""
        print(f"{line['what']}: {line['ours']}{paper}{note}")


if __name__ == "__main__":
    main()
