"""Processor seconds of planning the same computation again, and of the hook on a small graph.

The workloads of the corpus are planned for workers on which tasks run where a plan places them,
without a cluster.  They are built twice with random inputs; the second plan is looked up.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import dask.array as da

import dasktile
from benchmarks.corpus import WORKLOADS, Workload
from benchmarks.corpus.inputs import random
from dasktile import api, planning
from dasktile.cluster.target import Machine

#: Goal: seconds of deciding again over those of deciding first.
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


@contextmanager
def carrying_out() -> Iterator[list[float]]:
    """Processor seconds of captures and of writing graphs, which no look-up saves."""
    seconds: list[float] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                seconds.append(time.process_time() - start)

        return call

    with (
        mock.patch.object(planning, "capture_graph", timed(planning.capture_graph)),
        mock.patch.object(planning, "lower", timed(planning.lower)),
    ):
        yield seconds


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
    Seconds of both plans, and of what is decided in them: the rest are the capture and the writing
    of the graph that is carried out, as in the second plan.
    """
    rows: list[tuple[float, float, float]] = []
    for _ in range(repeat):
        forget()
        taken = []
        for _ in range(2):
            collections = workload.function(size, random)
            placed = mock.patch.object(api, "machine", lambda *_: placed_machine(workers))
            with placed, carrying_out() as others:
                start = time.process_time()
                dasktile.optimize(*collections, keep_chunks=workload.keep_chunks)
                taken.append(time.process_time() - start)
        rows.append((*taken, sum(others)))
    first, again, rest = (statistics.median(each) for each in zip(*rows, strict=True))
    return {
        "workload": workload.name,
        "first": round(first, 4),
        "again": round(again, 4),
        "deciding_first": round(max(0.0, first - rest), 4),
        "deciding_again": round(max(0.0, again - rest), 4),
    }


def again(size: float, repeat: int, forget: Callable[[], None]) -> Iterator[dict[str, Any]]:
    """A row for every workload of the corpus, and one with their sums.

    Parameters
    ----------
    size, repeat, forget
        As for `planned_again`.
    """
    sums = dict.fromkeys(("first", "again", "deciding_first", "deciding_again"), 0.0)
    shares: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for workload in WORKLOADS.values():
            row = planned_again(workload, size, 4, repeat, forget)
            for name in sums:
                sums[name] += row[name]
            shares.append(row["again"] / max(row["first"], 1e-9))
            yield row
    share = sums["deciding_again"] / max(sums["deciding_first"], 1e-9)
    yield {
        "workload": f"all {len(WORKLOADS)}",
        **{name: round(seconds, 3) for name, seconds in sums.items()},
        # of whole plans, of which the capture and the writing are not kept
        "again_median": round(statistics.median(shares), 3),
        "share": round(share, 3),
        "goal": AGAIN_SHARE,
        "met": share <= AGAIN_SHARE,
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
