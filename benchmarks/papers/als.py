"""Alternating least squares: bytes saved by replicating the ratings in two shardings.

    python -m benchmarks.papers.als

Spartan (thesis, chapter 3) keeps the ratings by users and by films, and was 40 % slower with one
of the two.  Here every step solves for the factors of users from whole rows of the ratings, then
for those of films from whole columns.  The films that a user has rated are not known in advance,
so that these rows and columns cannot be cut.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from dasktile.ir import AxisMap, Edge, Kind, Label, Node, Program, Role
from dasktile.report.formatting import format_bytes
from dasktile.tiling import MemoryLimitError, TilingPlan, tile
from dasktile.tiling.methods import Method
from dasktile.tiling.methods.exact import exact

#: The default method without replicas.
WITHOUT_REPLICAS = Method(exact)


def als(users: int = 20_000, films: int = 10_000, rank: int = 20, steps: int = 5) -> Program:
    """A program of some steps of alternating least squares."""
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
    """Plans without and with replicas in a second sharding."""
    without = tile(
        program, workers=workers, memory_limit=limit, method=WITHOUT_REPLICAS, force=True
    )
    return without, tile(program, workers=workers, memory_limit=limit, force=True)


def rows() -> list[dict[str, Any]]:
    """The figure of the thesis and those of dasktile."""
    program = als()
    table = []
    for workers in (4, 16, 64):
        share = program.nodes[0].nbytes // workers
        for limit in (None, 8 * share, 5 * share // 4):
            try:
                without, replicated = planned(program, workers, limit)
            except MemoryLimitError as error:
                ours, note = "none", str(error)
            else:
                saving = 1 - replicated.after.bytes / without.after.bytes
                ours = (
                    f"{format_bytes(without.after.bytes)} -> {format_bytes(replicated.after.bytes)}"
                )
                ours += f" ({saving:.0%} less)"
                note = "proven optimal" if replicated.proven_optimal else ""
                note += " no copy fits" if not saving else ""
            memory = "any" if limit is None else f"{limit / share:.2f} times the share of ratings"
            table.append(
                {
                    "experiment": "ALS, ratings once -> twice",
                    "what": f"{workers} workers, memory: {memory}",
                    "paper": "40 % slower with one",
                    "ours": ours,
                    "note": note.strip(),
                }
            )
    return table


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
