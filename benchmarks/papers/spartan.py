"""Spartan's greedy tiling compared with the best one: figures of the thesis and of dasktile.

    python -m benchmarks.papers.spartan [--programs 100] [--workers 4] [--seed 0] [--json FILE]

There are three comparisons: the greedy search and the exact minimum, in the thesis' own costs of
rows, columns and blocks without duplication; the bytes of both tilings in the exact model; and
instances of NAE-3SAT, whose least cost is known.  Only plans are computed.  The random programs
follow the description in the thesis, which omits the frequencies of the operators.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers.random_programs import Maker, programs
from benchmarks.papers.sat import NO_COPIES, UNIT, sat_program, satisfiable
from dasktile.ir import Program
from dasktile.tiling import Settings, tile
from dasktile.tiling.methods.papers.tiling_graph import TilingGraph, greedy, tiling_graph
from dasktile.tiling.solve.eliminate import solve

#: The thesis' tilings without duplication.
PLAIN = ("row", "column", "block")

#: Numbers of clauses and variables of the NAE-3SAT instances; two clauses per variable are hard.
INSTANCES = ((10, 8), (20, 10), (40, 20), (40, 40))

#: Number of times that planning is repeated; the shortest counts, to exclude other load.
REPEAT = 3


def conflict(size: int = 4000) -> Program:
    """Figure 3.3: C = A + B; D = A.T + B.T; C + D."""
    make = Maker()
    a, b = make.newarray(size, size), make.newarray(size, size)
    c = make.map(a, b)
    d = make.map(make.transpose(a), make.transpose(b))
    make.map(c, d)
    return make.program()


def in_its_own_costs(graph: TilingGraph) -> tuple[float, float]:
    """Bytes of the greedy tiling and of the best one, by the cost profiles of the thesis."""
    problem = graph.problem()
    best = solve(problem, Settings().width_budget)
    if not best.exact:
        raise RuntimeError("the minimum of the tiling graph was not found")
    return problem.cost(greedy(graph)), best.cost


@dataclass(frozen=True)
class Compared:
    """The plans of one random program with all methods: bytes and seconds."""

    greedy: float
    best: float
    spartan: int
    exact: int
    proven: bool
    search_seconds: float
    spartan_seconds: float
    exact_seconds: float

    @property
    def greedy_is_best(self) -> bool:
        """Whether the greedy tiling is as good as the best by the thesis' own costs."""
        return self.greedy <= self.best + 0.5


def compared(program: Program, workers: int, repeat: int) -> Compared:
    """Plan a program with all methods."""
    graph = tiling_graph(program, tilings=PLAIN)
    cost, best = in_its_own_costs(graph)
    plans, seconds = {}, {}
    for method in ("spartan", "exact"):
        seconds[method], plans[method] = shortest(
            lambda method=method: tile(program, workers=workers, method=method, force=True),
            repeat,
        )
    searching, _ = shortest(lambda: greedy(tiling_graph(program)), repeat)
    return Compared(
        cost,
        best,
        plans["spartan"].after.bytes,
        plans["exact"].after.bytes,
        plans["exact"].proven_optimal,
        searching,
        seconds["spartan"],
        seconds["exact"],
    )


def shortest(run: Callable[[], Any], repeat: int) -> tuple[float, Any]:
    """Seconds of the fastest of a few runs, and the result."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
    return min(times), result


def rows(
    count: int = 100, workers: int = 4, seed: int = 0, repeat: int = REPEAT
) -> list[dict[str, Any]]:
    """The figures of the thesis, and those of dasktile."""
    return [
        *_conflict_rows(workers),
        *_random_rows(count, workers, seed, repeat),
        *_sat_rows(seed, repeat),
    ]


def _row(experiment: str, what: str, paper: str, ours: str, note: str = "") -> dict[str, Any]:
    return {"experiment": experiment, "what": what, "paper": paper, "ours": ours, "note": note}


def _conflict_rows(workers: int) -> list[dict[str, Any]]:
    program = conflict()
    cost, best = in_its_own_costs(tiling_graph(program, tilings=PLAIN))
    bytes_of = {
        method: tile(program, workers=workers, method=method, force=True).after.bytes
        for method in ("spartan", "exact")
    }
    return [
        _row("Spartan, figure 3.3", "greedy over best, its own costs", "2", f"{cost / best:g}"),
        _row("Spartan, figure 3.3", f"MB moved, exact model, {workers} workers: spartan, default",
             "-", f"{bytes_of['spartan'] / 1e6:.0f}, {bytes_of['exact'] / 1e6:.0f}",
             "4000 x 4000, float64; spartan may duplicate A and B"),
    ]  # fmt: skip


def _random_rows(count: int, workers: int, seed: int, repeat: int) -> list[dict[str, Any]]:
    experiment = f"Spartan, {count} random programs"
    comparisons = [compared(program, workers, repeat) for program in programs(count, seed)]
    ratios = [
        comparison.spartan / comparison.exact for comparison in comparisons if comparison.exact
    ]
    missed_ratios = [
        comparison.greedy / comparison.best
        for comparison in comparisons
        if not comparison.greedy_is_best and comparison.best
    ]
    searching = max(comparison.search_seconds for comparison in comparisons)
    best = sum(comparison.spartan <= comparison.exact for comparison in comparisons)
    return [
        _row(experiment, "greedy finds the best, its own costs", "95 of 100",
             f"{sum(comparison.greedy_is_best for comparison in comparisons)} of {count}",
             "how often each operator occurs is not published; where it misses, "
             f"{statistics.median(missed_ratios or [1]):.2f} times the best (median)"),
        _row(experiment, f"default proven optimal, exact model, {workers} workers", "-",
             f"{sum(comparison.proven for comparison in comparisons)} of {count}"),
        _row(experiment, "spartan's tiling is the optimum, exact model", "-",
             f"{best} of {count}",
             f"bytes over the optimum: median {statistics.median(ratios or [1]):.2f}"),
        _row(experiment, "slowest greedy search, s", "< 0.1", f"{searching:.4f}",
             f"the fastest of {repeat} runs; graph and search"),
        _row(experiment, "slowest plan, s: spartan, default", "brute force 1900",
             f"{max(comparison.spartan_seconds for comparison in comparisons):.3f}, "
             f"{max(comparison.exact_seconds for comparison in comparisons):.3f}",
             "the whole of tile(), cuts for memory included"),
    ]  # fmt: skip


def _sat_rows(seed: int, repeat: int) -> list[dict[str, Any]]:
    table = []
    for clauses, variables in INSTANCES:
        rng = np.random.default_rng(seed)
        program = sat_program(satisfiable(rng, variables, clauses))
        graph = tiling_graph(program, 1, ("row", "column"))
        array = program.nodes[0].nbytes
        cost, best = in_its_own_costs(graph)
        seconds, plan = shortest(
            lambda program=program: tile(
                program, workers=2, memory_limit=NO_COPIES, method="exact", force=True
            ),
            repeat,
        )
        table.append(
            _row("Spartan, NAE-3SAT (appendix A)",
                 f"{clauses} clauses, {variables} variables, satisfiable: least cost",
                 f"{2 * clauses}", f"{best / array:g}",
                 f"greedy {cost / array:g}; exact model {plan.after.bytes / UNIT:g}, "
                 f"{'proven' if plan.proven_optimal else 'not proven'}, {seconds:.2f} s")
        )  # fmt: skip
    return table


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text."""
    keys = ("experiment", "what", "paper", "ours")
    widths = {key: max(len(key), *(len(str(row[key])) for row in rows)) for key in keys}
    lines = ["  ".join(key.ljust(widths[key]) for key in keys).rstrip()]
    for row in rows:
        lines.append("  ".join(str(row[key]).ljust(widths[key]) for key in keys).rstrip())
        if row["note"]:
            lines.append(f"{' ' * (widths['experiment'] + 2)}({row['note']})")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = rows(options.programs, options.workers, options.seed)
    print(table(results))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
