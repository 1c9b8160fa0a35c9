"""Plans of the corpus without a cluster: what they save, and what dasktile leaves alone."""

from __future__ import annotations

import math
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import dasktile
from benchmarks.corpus import Workload
from benchmarks.corpus.inputs import source_of
from dasktile.report.explanation import Explanation
from dasktile.report.formatting import format_bytes
from dasktile.report.rows import NodeReport

#: The reason of arrays that may be cut otherwise, but need not be.
_CHEAPEST = "its chunks are already the cheapest"

#: Reasons of a workload in the table at the most.
_SHOWN = 3


def _nbytes(node: NodeReport) -> float:
    if any(math.isnan(length) for length in node.shape):
        return 0
    return math.prod(node.shape) * np.dtype(node.dtype).itemsize


def walls(explanation: Explanation) -> dict[str, Any]:
    """What a plan cannot change.

    Parameters
    ----------
    explanation
        The plan.

    Returns
    -------
    Shares of the bytes of all arrays: ``inputs``, arrays made of no others that keep their
    chunks; ``walls``, other arrays that dasktile cannot cut otherwise, by operation and reason.
    Arrays whose chunks are the cheapest are in neither.
    """
    sizes = [_nbytes(node) for node in explanation.nodes]
    total = max(1.0, sum(sizes))
    inputs = 0.0
    found: defaultdict[str, float] = defaultdict(float)
    for node, size in zip(explanation.nodes, sizes, strict=True):
        if node.reason in ("", _CHEAPEST, explanation.verdict):
            continue
        if node.inputs:
            # the advice after a semicolon is left out
            found[f"{node.op}: {node.reason.partition(';')[0]}"] += size / total
        else:
            inputs += size / total
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return {"inputs": inputs / total, "walls": dict(ordered)}


def plan(workload: Workload, kind: str, size: float, workers: int, folder: Path) -> dict[str, Any]:
    """Plan one workload.

    Parameters
    ----------
    workload, size
        The workload, and its size.
    kind
        The kind of its inputs.
    workers
        Number of workers to plan for.
    folder
        Folder of files of inputs.

    Returns
    -------
    Numbers and texts, ready for JSON.
    """
    where = {"workload": workload.name, "inputs": kind}
    try:
        collections = workload.function(size, source_of(kind, folder))
        started = time.perf_counter()
        explanation = dasktile.explain(
            *collections, workers=workers, keep_chunks=workload.keep_chunks
        )
        planning = time.perf_counter() - started
    except Exception as error:
        return {**where, "error": f"{type(error).__name__}: {error}"[:300]}
    kept = walls(explanation)
    return {
        **where,
        "arrays": len(explanation.nodes),
        "kept_inputs": kept["inputs"],
        "kept": sum(kept["walls"].values()),
        "walls": kept["walls"],
        "bytes_before": explanation.bytes_before,
        "bytes_after": explanation.bytes_after,
        "read_before": explanation.read_before,
        "read_after": explanation.read_after,
        "tasks_before": explanation.tasks_before,
        "tasks_after": explanation.tasks_after,
        "planning": planning,
        "verdict": explanation.verdict,
    }


def run(
    chosen: Sequence[Workload],
    kinds: Sequence[str],
    size: float,
    workers: int,
    folder: Path,
    done: Callable[[list[dict[str, Any]]], None] = lambda cells: None,
) -> list[dict[str, Any]]:
    """Plan workloads with inputs of some kinds; `done` gets the cells after each."""
    cells: list[dict[str, Any]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for workload in chosen:
            for kind in kinds:
                cells.append(plan(workload, kind, size, workers, folder))
                done(cells)
    return cells


def report(cells: Sequence[dict[str, Any]], console: Console) -> None:
    """Print a table of the plans, and one of the walls that they have in common."""
    table = Table(title="Plans: bytes moved and tasks, by prediction", title_justify="left")
    for title in ("workload", "inputs"):
        table.add_column(title)
    for title in ("arrays", "kept", "moved", "tasks", "plan s"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("why arrays are kept, other than inputs")
    for cell in cells:
        if "error" in cell:
            table.add_row(cell["workload"], cell["inputs"], *[""] * 5, cell["error"])
            continue
        reasons = [f"{share:.0%} {reason}" for reason, share in cell["walls"].items()]
        more = len(reasons) - _SHOWN
        table.add_row(
            cell["workload"],
            cell["inputs"],
            str(cell["arrays"]),
            f"{cell['kept']:.0%}",
            f"{format_bytes(cell['bytes_before'])} → {format_bytes(cell['bytes_after'])}",
            f"{cell['tasks_before']:,} → {cell['tasks_after']:,}",
            f"{cell['planning']:.2f}",
            "\n".join([*reasons[:_SHOWN], *([f"and {more} more"] if more > 0 else [])])
            or (f"unchanged: {cell['verdict']}" if cell["verdict"] else ""),
        )
    console.print(table)
    _report_common(cells, console)


def _report_common(cells: Sequence[dict[str, Any]], console: Console) -> None:
    where: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for cell in cells:
        for reason, share in cell.get("walls", {}).items():
            entry = where[reason]
            entry[cell["workload"]] = max(share, entry.get(cell["workload"], 0.0))
    table = Table(title="Walls, by the share of the bytes of the arrays", title_justify="left")
    table.add_column("operation and reason")
    table.add_column("workloads")
    for reason, shares in sorted(where.items(), key=lambda item: -sum(item[1].values())):
        ordered = sorted(shares.items(), key=lambda item: -item[1])
        table.add_row(reason, ", ".join(f"{name} {share:.0%}" for name, share in ordered))
    console.print(table)
