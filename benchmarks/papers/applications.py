"""Whether the best tiling is found for Spartan's twelve applications, at such sizes.

    python -m benchmarks.papers.applications [--workers 4 16] [--repeat 3]

Nothing is computed.  The programs are those of ``examples/applications``, on inputs of which
only shapes and chunks exist.  *Planning* is reading the graph and deciding, without writing
the new one.  Spartan's greedy tiling is priced by the same model, whether or not the input's
own chunks are better.

*After* is what the default method chooses, which weighs tasks against bytes, *fewest* the tiling
that moves fewest bytes.  *Proven* says which of them is proven to: both, *fewest* only, or none.
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
from dasktile.report.explanation import format_bytes
from dasktile.tiling import methods, tile

#: Samples, options, paths, or rows of a square matrix.
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

#: Applications whose data are lazy, so that any size can be had.
LAZY = ("barrier_option",)

#: A size at which data are made, to see what grows with it.
SMALL = 400

#: In seconds; Spartan's figure for an ALS of 14 operators.
PUBLISHED_ALS = 0.06


@dataclass(frozen=True, slots=True)
class Planned:
    """What was decided for one application.

    Parameters
    ----------
    name, workers, nodes
        The application, how many workers share it, and its array operations.
    before, after, bound
        Bytes moved between workers with the input's chunks and with the tiles chosen, and
        what no tiling moves less than.
    proven
        Whether `after` was proven to be the least.
    fewest, fewest_proven
        Bytes of the tiling that moves fewest, whatever its tasks cost, and whether it was
        proven to.
    seconds
        Planning, the median of several times.
    spartan
        Bytes of Spartan's greedy tiling; None where there is no such method.
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
    """One of the examples."""
    return importlib.import_module(f"examples.applications.{name}")


def inputs(name: str, size: int) -> tuple[da.Array, ...]:
    """Arrays with the shapes and chunks that an application's data have at some size.

    What doubles with the size grows with it; they hold ones.
    """
    data = application(name).data
    if name in LAZY:
        found: tuple[da.Array, ...] = data(size)
        return found
    pairs = zip(data(SMALL), data(2 * SMALL), strict=True)
    return tuple(
        _grown(f"{name}-{place}-{size}", small, large, size // SMALL)
        for place, (small, large) in enumerate(pairs)
    )


def _grown(name: str, small: da.Array, large: da.Array, factor: int) -> da.Array:
    times = [
        factor if after == 2 * before else 1
        for before, after in zip(small.shape, large.shape, strict=True)
    ]
    chunks = tuple(
        tuple(axis * size for size in sizes)
        for axis, sizes in zip(times, small.chunks, strict=True)
    )
    shape = tuple(map(sum, chunks))
    # a name of its own: arrays of ones are the same array otherwise
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
        Processes that send bytes to each other.
    repeat
        How often to plan it, for the time it takes.
    size
        Of the data; that of :data:`SIZES` if none is given.
    **options
        For the function that builds it, as ``steps=1``.
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
    """What is said in the paper, and what came out.

    Returns
    -------
    A dict for every line, with ``experiment``, ``what``, ``paper``, ``ours`` and ``note``.
    """
    found = [planned(name, count, repeat) for name in SIZES for count in workers]
    return said(found) + [alternating(count, repeat) for count in workers]


def said(found: list[Planned]) -> list[dict[str, str]]:
    """:func:`rows` of what was planned."""
    lines = []

    def line(what: str, paper: str, ours: str, note: str) -> None:
        values = ("Spartan, twelve applications", what, paper, ours, note)
        names = ("experiment", "what", "paper", "ours", "note")
        lines.append(dict(zip(names, values, strict=True)))

    for count in dict.fromkeys(one.workers for one in found):
        these = [one for one in found if one.workers == count]
        left = ", ".join(one.name for one in these if not one.fewest_proven)
        line(
            f"fewest bytes found, {count} workers",
            "12 of 12",
            f"{sum(one.fewest_proven for one in these)} of {len(these)} proven",
            f"not proven: {left}" if left else "",
        )
        more = ", ".join(one.name for one in these if not one.proven)
        line(
            f"fewest bytes chosen by default, {count} workers",
            "",
            f"{sum(one.proven for one in these)} of {len(these)} proven",
            f"tasks cost too, or no proof: {more}" if more else "",
        )
        greedy = [one for one in these if one.fewest_proven and one.spartan is not None]
        if greedy:
            line(
                f"Spartan's greedy tiling moves fewest, {count} workers",
                "12 of 12",
                f"{sum(one.spartan == one.fewest for one in greedy)} of {len(greedy)}",
                "its choices, priced by the exact bytes that they move",
            )
    return lines


def alternating(workers: int, repeat: int = 3) -> dict[str, str]:
    """The line of :func:`rows` about a step of ALS, which is as long as the paper's."""
    one = planned("als", workers, repeat, steps=1)
    return {
        "experiment": "Spartan, twelve applications",
        "what": f"planning one step of ALS, {workers} workers",
        "paper": f"{PUBLISHED_ALS} s, 14 operators",
        "ours": f"{one.seconds:.2f} s, {one.nodes} operators",
        "note": "proven to move fewest bytes" if one.fewest_proven else "not proven",
    }


def table(found: list[Planned]) -> str:
    """A line for every plan."""
    greedy = any(one.spartan is not None for one in found)
    lines = [
        f"{'application':20} {'workers':>7} {'nodes':>5} {'before':>9} {'after':>9} {'fewest':>9}"
        f" {'bound':>9} {'proven':>6} {'planning':>9}" + (f" {'greedy':>9}" if greedy else "")
    ]
    for one in found:
        sizes = (one.before, one.after, one.fewest, one.bound)
        moved = " ".join(f"{format_bytes(size):>9}" for size in sizes)
        proven = "yes" if one.proven else "fewest" if one.fewest_proven else "no"
        line = (
            f"{one.name:20} {one.workers:7} {one.nodes:5} {moved} {proven:>6}"
            f" {1e3 * one.seconds:6.0f} ms"
        )
        if one.spartan is not None:
            line += f" {format_bytes(one.spartan):>9}"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    found = [
        planned(name, workers, arguments.repeat) for name in SIZES for workers in arguments.workers
    ]
    print(table(found))
    lines = said(found) + [alternating(count, arguments.repeat) for count in arguments.workers]
    for line in lines:
        paper = f" (paper: {line['paper']})" if line["paper"] else ""
        note = f"; {line['note']}" if line["note"] else ""
        print(f"{line['what']}: {line['ours']}{paper}{note}")


if __name__ == "__main__":
    main()
