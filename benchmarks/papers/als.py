"""Alternating least squares: what it is worth to keep the ratings by users and by films at once.

    python -m benchmarks.papers.als

Spartan (thesis, chapter 3) keeps the ratings twice, and was 40 % slower where it may not.  Here
every step solves for the factors of users from whole rows of the ratings, then for those of films
from whole columns; which films a user has seen is not known in advance, so that rows and columns
cannot be cut.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from dasktile.ir import AxisMap, Edge, Kind, Label, Node, Program, Role
from dasktile.report.explanation import format_bytes
from dasktile.tiling import MemoryLimitError, TilingPlan, tile
from dasktile.tiling.methods import Method
from dasktile.tiling.methods.exact import exact

#: The default without second tilings.
ONCE = Method(exact)


def als(users: int = 20_000, films: int = 10_000, rank: int = 20, steps: int = 5) -> Program:
    """So many steps, as a program."""
    nodes = [_source("ratings", (users, films)), _source("films", (films, rank))]
    factor = 1
    for step in range(steps):
        for axis, size, whole in ((0, users, films), (1, films, users)):
            nodes.append(_solved(f"step {step} axis {axis}", factor, axis, size, whole, rank))
            factor = len(nodes) - 1
    return Program(tuple(nodes), (factor,))


def _source(name: str, shape: tuple[int, ...]) -> Node:
    axes = tuple(AxisMap(axis) for axis in range(len(shape)))
    labels = tuple(Label(size, Role.FREE, (size,)) for size in shape)
    chunks = tuple((size,) for size in shape)
    return Node(name, "array", Kind.SOURCE, labels, axes, shape, "float64", 8, chunks, work=0.0)


def _solved(name: str, factor: int, axis: int, size: int, whole: int, rank: int) -> Node:
    labels = (
        Label(size, Role.FREE, (size,)),
        Label(whole, Role.WHOLE, (whole,)),
        Label(rank, Role.WHOLE, (rank,)),
    )
    ratings = (AxisMap(0), AxisMap(1)) if axis == 0 else (AxisMap(1), AxisMap(0))
    edges = (Edge(0, ratings), Edge(factor, (AxisMap(1), AxisMap(2))))
    return Node(name, "solve", Kind.MAP, labels, (AxisMap(0), AxisMap(2)), (size, rank), "float64",
                8, ((size,), (rank,)), edges, work=float(rank * rank))  # fmt: skip


def planned(
    program: Program, workers: int, limit: int | None = None
) -> tuple[TilingPlan, TilingPlan]:
    """Plans that may not keep an array twice, and that may."""
    once = tile(program, workers=workers, memory_limit=limit, method=ONCE, force=True)
    return once, tile(program, workers=workers, memory_limit=limit, force=True)


def rows() -> list[dict[str, Any]]:
    """What the thesis says, and what came out."""
    program = als()
    found = []
    for workers in (4, 16, 64):
        share = program.nodes[0].nbytes // workers
        for limit in (None, 8 * share, 5 * share // 4):
            try:
                once, twice = planned(program, workers, limit)
            except MemoryLimitError as error:
                ours, note = "none", str(error)
            else:
                less = 1 - twice.after.bytes / once.after.bytes
                ours = f"{format_bytes(once.after.bytes)} -> {format_bytes(twice.after.bytes)}"
                ours += f" ({less:.0%} less)"
                note = "proven optimal" if twice.proven_optimal else ""
                note += " no copy fits" if not less else ""
            room = "any" if limit is None else f"{limit / share:.2f} times the share of ratings"
            found.append(
                {
                    "experiment": "ALS, ratings once -> twice",
                    "what": f"{workers} workers, memory: {room}",
                    "paper": "40 % slower with one",
                    "ours": ours,
                    "note": note.strip(),
                }
            )
    return found


def main() -> int:
    """Print the table."""
    table = Table(title="alternating least squares", title_justify="left")
    for title in ("what", "paper", "ours", "note"):
        table.add_column(title)
    for row in rows():
        table.add_row(*(row[key] for key in ("what", "paper", "ours", "note")))
    Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
