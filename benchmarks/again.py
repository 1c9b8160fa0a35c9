"""Processor seconds of planning the same computation again, and of the hook on a small graph.

The workloads of the corpus are planned for workers on which tasks run where a plan places them,
without a cluster.  They are built twice with random inputs; the second graph is that of the first
plan with other names.
"""

from __future__ import annotations

import gc
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import dask.array as da

import dasktile
from benchmarks.corpus import WORKLOADS, Workload
from benchmarks.corpus.inputs import random
from dasktile import api
from dasktile.cluster.target import Machine

#: Goal: seconds of the second plan over those of the first.
AGAIN_SHARE = 0.1

#: Goals of the hook on a graph of about twenty tasks: processor seconds, and their share of those
#: of the computation.
HOOK_SECONDS, HOOK_SHARE = 3e-3, 0.05

#: Bytes of results that a worker holds before it spills.
_ROOM = 2**30


def placed_machine(workers: int) -> Machine:
    """Workers on which tasks run where a plan places them, and that hold nothing.

    Parameters
    ----------
    workers
        Number of workers.
    """
    order = tuple(map(str, range(workers)))
    return Machine(workers, order=order, who_has=lambda blocks: {}, room=_ROOM)


def planned_again(
    workload: Workload, size: float, workers: int, repeat: int, forget: Callable[[], None]
) -> dict[str, Any]:
    """Time the first plan of a workload, and the second one.

    Parameters
    ----------
    workload, size, workers
        What is planned, and for how many workers.
    repeat
        Number of pairs of plans, of which the medians count.
    forget
        Forgets everything that is kept of earlier plans.

    Returns
    -------
    Seconds of both plans.
    """
    rows: list[tuple[float, ...]] = []
    for _ in range(repeat):
        forget()
        # no collection of garbage looks at what other workloads have left
        gc.collect()
        gc.freeze()
        taken = []
        for _ in range(2):
            collections = workload.function(size, random)
            with mock.patch.object(api, "machine", lambda *_: placed_machine(workers)):
                start = time.process_time()
                dasktile.optimize(*collections, keep_chunks=workload.keep_chunks)
                taken.append(time.process_time() - start)
        rows.append(tuple(taken))
        gc.unfreeze()
    first, again = (statistics.median(each) for each in zip(*rows, strict=True))
    return {"workload": workload.name, "first": round(first, 4), "again": round(again, 4)}


def again(size: float, repeat: int, forget: Callable[[], None]) -> Iterator[dict[str, Any]]:
    """A row for every workload of the corpus, and one with their sums.

    Parameters
    ----------
    size, repeat, forget
        As for `planned_again`.
    """
    sums = dict.fromkeys(("first", "again"), 0.0)
    shares: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for workload in WORKLOADS.values():
            row = planned_again(workload, size, 4, repeat, forget)
            for name in sums:
                sums[name] += row[name]
            shares.append(row["again"] / max(row["first"], 1e-9))
            yield row
    median = statistics.median(shares)
    yield {
        "workload": f"all {len(WORKLOADS)}",
        **{name: round(seconds, 3) for name, seconds in sums.items()},
        "share": round(sums["again"] / max(sums["first"], 1e-9), 3),
        "median_share": round(median, 3),
        "goal": AGAIN_SHARE,
        "met": median <= AGAIN_SHARE,
    }


def small() -> da.Array:
    """A computation of about twenty tasks, of blocks of some megabytes."""
    x = da.random.default_rng(0).random((3000, 3000), chunks=1000)
    return (x + 1).sum(axis=0)


def hook(repeat: int, forget: Callable[[], None]) -> Iterator[dict[str, Any]]:
    """Time the hook on a small graph, beside Dask's own optimisation and the computation.

    Parameters
    ----------
    repeat
        Number of calls, of which the median counts.
    forget
        Forgets everything that is kept of earlier plans.
    """
    x = small()
    graph, keys = x.__dask_graph__(), x.__dask_keys__()

    def seconds(function: Callable[[], Any], before: Callable[[], None]) -> float:
        taken = []
        for _ in range(repeat):
            before()
            start = time.process_time()
            function()
            taken.append(time.process_time() - start)
        return statistics.median(taken)

    def nothing() -> None:
        """Keep what is kept of earlier plans."""

    stock = seconds(lambda: da.optimization.optimize(graph, keys), nothing)
    computing = seconds(lambda: x.compute(scheduler="sync"), nothing)
    tasks = len(dict(da.optimization.optimize(graph, keys)))
    with mock.patch.object(api, "machine", lambda *_: placed_machine(4)):
        for name, before in (("first", forget), ("again", nothing)):
            taken = seconds(lambda: dasktile.array_optimize(graph, keys), before) - stock
            yield {
                "workload": f"hook, {name}",
                "workers": 4,
                "tasks": tasks,
                "seconds": round(taken, 5),
                "goal": HOOK_SECONDS,
                "computing": round(computing, 4),
                "met": taken <= min(HOOK_SECONDS, HOOK_SHARE * computing),
            }
