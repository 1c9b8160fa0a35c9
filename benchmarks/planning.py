"""Seconds of planning: capture, tiling and lowering of a long expression.

    python -m benchmarks.planning [--nodes 300] [--repeat 5] [--json FILE]

Prints, for expressions of three lengths, the median time of every stage, the time per graph layer
and the peak memory of planning.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import tracemalloc
from typing import Any

import dask.array as da

from dasktile.capture.highlevel import capture
from dasktile.lower.writer import lower
from dasktile.tiling import tile


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
    """Median seconds of each stage for one expression."""
    stages: dict[str, list[float]] = {"capture": [], "tile": [], "lower": []}
    for _ in range(repeat):
        x = expression(nodes)
        layers = len(x.__dask_graph__().layers)
        start = time.perf_counter()
        captured = capture([x])
        middle = time.perf_counter()
        plan = tile(captured.program, workers=workers)
        end = time.perf_counter()
        if plan.tiled is not None:
            lower(captured, plan.tiled)
        stages["capture"].append(middle - start)
        stages["tile"].append(end - middle)
        stages["lower"].append(time.perf_counter() - end)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=300)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    rows = [
        measure(nodes, workers, arguments.repeat)
        for workers in (4, 64)
        for nodes in (arguments.nodes // 4, arguments.nodes, arguments.nodes * 2)
    ]
    for row in rows:
        print(", ".join(f"{name} {value}" for name, value in row.items()))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=2)


if __name__ == "__main__":
    main()
