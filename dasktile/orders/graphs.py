"""The tasks of collections as operations and data, and their order by Dask."""

from __future__ import annotations

from typing import Any

import numpy as np
from dask.order import order as dask_order

from dasktile import config
from dasktile._compat.dask import Task, TaskRef
from dasktile.capture.tasks import Tasks
from dasktile.cluster.target import Machine
from dasktile.schedule.taskgraph import TaskGraph, taskgraph


def order_of_dask(sized: Tasks) -> Any:
    """The order of ``dask.order`` for the same graph with numbers as keys.

    ``dask.order`` breaks ties by the iteration order of sets, which for strings depends on the
    hash seed.
    """
    graph: dict[Any, Any] = {
        number: Task(number, len, *map(TaskRef, reads)) for number, reads in enumerate(sized.reads)
    }
    rank = dask_order(graph)
    return np.argsort([rank[number] for number in range(len(graph))], kind="stable")


def task_graph(sized: Tasks, target: Machine) -> TaskGraph:
    """Tasks as operations, each with one datum, its result.

    The duration of a task is its overhead and the mean of what functions of earlier tasks of the
    same name took, else an estimate from its bytes and operations.
    """
    settings, seconds = target.settings(), config.setting("plan.task-seconds")
    memory = config.setting("plan.memory-bandwidth")
    if target.calibration is not None:
        seconds = target.calibration.task_seconds
        memory = target.calibration.memory or memory
    base = list(range(len(sized.keys)))
    for number, viewed in enumerate(sized.views):
        if viewed >= 0 and 2 * sized.sizes[number] > sized.sizes[base[viewed]]:
            base[number] = base[viewed]
    # A view takes no memory of its own, and keeps the array that it is a view of.  A view of a
    # small part is evicted alone, which frees the memory of the whole.
    sizes = [size if base[number] == number else 0 for number, size in enumerate(sized.sizes)]
    reads = [dict.fromkeys([*reads, *(base[read] for read in reads)]) for reads in sized.reads]
    measured = target.durations() if target.durations is not None else {}

    def time_of(number: int) -> float:
        name = sized.names[number]
        if name in measured:
            # measured around the function alone
            return seconds + measured[name]
        if base[number] != number:
            return seconds
        touched = sized.sizes[number] + sum(sized.sizes[read] for read in sized.reads[number])
        return seconds + touched / memory + sized.work[number] / settings.work_per_second

    times = [time_of(number) for number in range(len(sized.keys))]
    return taskgraph(
        times,
        sizes,
        reads=[list(each) for each in reads],
        writes=[[number] for number in range(len(sized.keys))],
        kept=dict.fromkeys([*sized.wanted, *(base[number] for number in sized.wanted)]),
        op_names=sized.names,
        data_names=sized.names,
    )
