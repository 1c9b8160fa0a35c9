"""Processor seconds of planning: capture, tiling and lowering, by workload and by stage.

    python -m benchmarks.planning [--goals [--memory]] [--stages] [--again] [--hook] [--only NAME]
                                  [--repeat 3] [--nodes 300] [--size 1] [--json FILE]

`--goals` plans workloads for 4 to 1,024 workers with ``dasktile.optimize`` and prints the processor
time and the goal of each; with `--memory` also the bytes that Python allocates in it for each task
of the result: at the most, and in the result.  `--stages` plans expressions of three lengths and
prints the time of every stage, the time per graph layer and the peak memory of planning.  By
default both are printed.  Nothing that was kept of an earlier plan is used.

`--again` plans the workloads of the corpus twice, and prints the processor time of both plans.
`--hook` times ``dasktile.array_optimize`` on about twenty tasks.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph

import dasktile
from benchmarks.again import again, hook
from benchmarks.papers.random_programs import random_program
from dasktile import templates
from dasktile.capture.highlevel import capture
from dasktile.lower.count import count_tasks
from dasktile.lower.writer import lower
from dasktile.tiling import tile

#: The class of functions that keep what they returned.
Cached = type(lru_cache(len))

#: Goals: processor seconds of any plan, per task of the result, and of a random program; the share
#: of the time of the computation.
MOST_SECONDS, TASK_SECONDS, RANDOM_SECONDS, COMPUTING_SHARE = 10.0, 30e-6, 0.2, 0.1

#: Tasks of the result up to which a plan should take `MOST_SECONDS` at the most.
MANY_TASKS = 100_000

#: Operators of the random programs, and their number.
OPERATORS, PROGRAMS = range(2, 13), 60


def nmf(iterations: int = 3, shape: tuple[int, int] = (64_000, 32_000), chunk: int = 4000) -> Any:
    """Factors of a non-negative matrix by multiplicative updates (Lee and Seung, 2001)."""
    x = da.ones(shape, chunks=chunk)
    w = da.ones((shape[0], 64), chunks=(chunk, 64))
    h = da.ones((64, shape[1]), chunks=(64, chunk))
    for _ in range(iterations):
        h = h * (w.T @ x) / ((w.T @ w) @ h)
        w = w * (x @ h.T) / (w @ (h @ h.T))
    return w, h


def grouped(groups: int = 366, days: int = 1464, shape: tuple[int, int] = (180, 360)) -> Any:
    """Means of groups of days, each taken by an index and stacked, as xarray computes them."""
    x = da.ones((days, *shape), chunks=(48, *shape))
    return da.stack([x[group::groups].mean(axis=0) for group in range(groups)])


def climatology(years: int = 8, shape: tuple[int, int] = (60, 120), chunk: int = 30) -> Any:
    """Daily anomalies from the mean of each month, as xarray computes them with an index."""
    x = da.random.default_rng(0).random((365 * years, *shape), chunks=(chunk, *shape))
    months = np.arange(365 * years) % 365 * 12 // 365
    return x - monthly_means(x, months)[months]


def monthly_means(x: Any, months: Any) -> Any:
    """The mean of each month, taken by an index and stacked."""
    return da.stack([x[np.flatnonzero(months == month)].mean(axis=0) for month in range(12)])


def gram(workers: int) -> Any:
    """The Gram matrix of a tall matrix."""
    x = da.ones((workers * 8000, 4000), chunks=(4000, 4000))
    return x.T @ x


def logistic(workers: int, iterations: int = 3) -> Any:
    """Gradient descent of a logistic regression."""
    x = da.ones((workers * 8000, 100), chunks=(4000, 100))
    y = da.ones(workers * 8000, chunks=4000)
    w = da.ones(100, chunks=100)
    for _ in range(iterations):
        w = w - 0.1 * (x.T @ (1 / (1 + da.exp(-(x @ w))) - y))
    return w


def product(workers: int) -> Any:
    """The product of two square matrices, a few chunks for each worker."""
    side = int(np.sqrt(workers)) * 2
    a, b = (da.ones((side * 1000,) * 2, chunks=1000) for _ in range(2))
    return a @ b


def wide(workers: int) -> Any:
    """The climatology of a grid with a tile for each worker."""
    side = int(np.sqrt(workers))
    x = da.ones((730, side * 90, side * 90), chunks=(730, 90, 90))
    months = np.arange(730) % 365 * 12 // 365
    return x - monthly_means(x, months)[months]


@dataclass(frozen=True, slots=True)
class Case:
    """A plan that is timed.

    Parameters
    ----------
    name, workers
        Of the workload.
    build
        Makes the collections.
    goal
        Processor seconds for a number of tasks of the result.
    """

    name: str
    workers: int
    build: Callable[[], Any]
    goal: Callable[[int], float]


def by_tasks(tasks: int) -> float:
    """The goal of a plan with some tasks: 30 microseconds each."""
    return TASK_SECONDS * tasks


def one_second(_: int) -> float:
    """The goal of a plan that should take a second."""
    return 1.0


def cases() -> Iterator[Case]:
    """All plans that are timed."""
    yield Case("nmf", 64, nmf, one_second)
    yield Case("grouped", 64, grouped, one_second)
    yield Case("grouped", 4, grouped, one_second)
    for workers in (256, 1024):
        side = int(np.sqrt(workers)) * 4000

        def square(side: int = side) -> Any:
            return nmf(3, (side, side), 2000)

        yield Case("gram", workers, lambda workers=workers: gram(workers), by_tasks)
        yield Case("logistic", workers, lambda workers=workers: logistic(workers), by_tasks)
        yield Case("product", workers, lambda workers=workers: product(workers), by_tasks)
        yield Case("nmf", workers, square, by_tasks)
        yield Case("climatology", workers, lambda workers=workers: wide(workers), by_tasks)


def forget() -> None:
    """Forget everything that is kept of earlier plans."""
    templates.forget()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "dasktile":
            for value in list(vars(module).values()):
                if isinstance(value, Cached):
                    value.cache_clear()


def processor_seconds(function: Callable[[], Any], repeat: int) -> tuple[float, Any]:
    """The median processor seconds of a call, and what it returns."""
    seconds = []
    for _ in range(repeat):
        forget()
        start = time.process_time()
        result = function()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds), result


def arrays(value: Any) -> tuple[Any, ...]:
    """One array, or several, as a tuple."""
    return value if isinstance(value, tuple) else (value,)


def allocated(function: Callable[[], Any]) -> tuple[int, int]:
    """Bytes that Python allocates at the most in a call, and that what it returns takes."""
    forget()
    tracemalloc.start()
    try:
        result = function()
        gc.collect()
        kept, most = tracemalloc.get_traced_memory()
        del result
    finally:
        tracemalloc.stop()
    return most, kept


def plan(case: Case, repeat: int, memory: bool = False) -> dict[str, Any]:
    """Time one plan."""
    collections = arrays(case.build())

    def planned() -> Sequence[Any]:
        return arrays(dasktile.optimize(*collections, workers=case.workers))

    seconds, result = processor_seconds(planned, repeat)
    graph = HighLevelGraph.merge(*(array.__dask_graph__() for array in result))
    tasks = count_tasks(graph, [array.name for array in result])
    goal = case.goal(tasks)
    if tasks <= MANY_TASKS:
        goal = min(goal, MOST_SECONDS)
    row = {
        "workload": case.name,
        "workers": case.workers,
        "tasks": tasks,
        "seconds": round(seconds, 3),
        "goal": round(goal, 3),
        "met": seconds <= goal,
        "us_a_task": round(1e6 * seconds / max(1, tasks), 1),
    }
    if memory:
        del result, graph
        most, kept = allocated(planned)
        row |= {"bytes_a_task": kept // max(1, tasks), "most_bytes_a_task": most // max(1, tasks)}
    return row


def anomalies_by_month(repeat: int) -> dict[str, Any]:
    """Time the plan of eight years of daily anomalies, and what computing them takes."""
    x = climatology()
    computing = processor_seconds(lambda: x.compute(scheduler="sync"), repeat)[0]
    row = plan(Case("anomalies, eight years", 4, climatology, one_second), repeat)
    row["goal"] = round(COMPUTING_SHARE * computing, 3)
    return {**row, "met": row["seconds"] <= row["goal"]}


def random_programs(repeat: int) -> dict[str, Any]:
    """Time the tiling of random programs; the slowest one counts."""
    slowest = 0.0
    # a collection of garbage that looks at all imported modules takes as long as a program
    gc.collect()
    gc.freeze()
    for seed in range(PROGRAMS):
        program = random_program(np.random.default_rng(seed), OPERATORS[seed % len(OPERATORS)])
        seconds = processor_seconds(lambda program=program: tile(program, workers=16), repeat)[0]
        slowest = max(slowest, seconds)
    gc.unfreeze()
    return {
        "workload": f"slowest of {PROGRAMS} random programs",
        "workers": 16,
        "tasks": 0,
        "seconds": round(slowest, 3),
        "goal": RANDOM_SECONDS,
        "met": slowest <= RANDOM_SECONDS,
    }


def expression(nodes: int, chunk: int = 1000) -> da.Array:
    """A chain of products, sums, means and views of 4000 x 4000 arrays.

    Parameters
    ----------
    nodes
        Number of array operations.
    """
    x = da.ones((4000, 4000), chunks=chunk)
    w = da.ones((4000, 4000), chunks=chunk)
    steps = [
        lambda x: x @ w,
        lambda x: x + 1,
        lambda x: da.maximum(x, 0),
        lambda x: x - x.mean(axis=0),
        lambda x: x.T,
        lambda x: x * 2,
        lambda x: x[::-1],
        lambda x: x + w,
    ]
    count = 2
    while count < nodes:
        layers = len(x.__dask_graph__().layers)
        x = steps[count % len(steps)](x)
        count += max(1, 2 if layers and count % len(steps) == 3 else 1)
    return x


def measure(nodes: int, workers: int, repeat: int) -> dict[str, Any]:
    """Median processor seconds of each stage for one expression."""
    stages: dict[str, list[float]] = {"capture": [], "tile": [], "lower": []}
    for _ in range(repeat):
        x = expression(nodes)
        layers = len(x.__dask_graph__().layers)
        forget()
        start = time.process_time()
        captured = capture([x])
        middle = time.process_time()
        plan = tile(captured.program, workers=workers)
        end = time.process_time()
        if plan.tiled is not None:
            lower(captured, plan.tiled)
        stages["capture"].append(middle - start)
        stages["tile"].append(end - middle)
        stages["lower"].append(time.process_time() - end)
    median = {stage: statistics.median(times) for stage, times in stages.items()}
    x = expression(nodes)
    tracemalloc.start()
    captured = capture([x])
    plan = tile(captured.program, workers=workers)
    if plan.tiled is not None:
        lower(captured, plan.tiled)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "nodes": len(captured.program.nodes),
        "layers": layers,
        "workers": workers,
        **{f"{stage}_ms": round(1e3 * seconds, 1) for stage, seconds in median.items()},
        "total_ms": round(1e3 * sum(median.values()), 1),
        "capture_lower_ms_per_layer": round(
            1e3 * (median["capture"] + median["lower"]) / layers, 3
        ),
        "peak_mib": round(peak / 2**20, 1),
        "retiled": plan.tiled is not None,
    }


def goals(only: str | None, repeat: int, memory: bool) -> Iterator[dict[str, Any]]:
    """Rows of the plans that have a goal."""
    for case in cases():
        if only is None or case.name == only:
            yield plan(case, repeat, memory)
    if only in (None, "anomalies"):
        yield anomalies_by_month(repeat)
    if only in (None, "random"):
        yield random_programs(repeat)


def stages(nodes: int, repeat: int) -> Iterator[dict[str, Any]]:
    """Rows of the stages of planning."""
    for workers in (4, 64):
        for count in (nodes // 4, nodes, nodes * 2):
            yield measure(count, workers, repeat)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--goals", action="store_true")
    parser.add_argument("--memory", action="store_true", help="of the plans that have a goal")
    parser.add_argument("--stages", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--hook", action="store_true")
    parser.add_argument("--size", type=float, default=1.0, help="of the workloads of the corpus")
    parser.add_argument("--only", help="a workload of the goals")
    parser.add_argument("--nodes", type=int, default=300)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    others = arguments.again or arguments.hook
    both = arguments.goals == arguments.stages and (arguments.goals or not others)
    rows = []
    tables = []
    if arguments.goals or both:
        tables.append(goals(arguments.only, arguments.repeat, arguments.memory))
    if (arguments.stages or both) and arguments.only is None:
        tables.append(stages(arguments.nodes, arguments.repeat))
    if arguments.again:
        tables.append(again(arguments.size, arguments.repeat, forget))
    if arguments.hook:
        tables.append(hook(10 * arguments.repeat, forget))
    for table in tables:
        for row in table:
            rows.append(row)
            print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=2)


if __name__ == "__main__":
    main()
