"""Priorities that make the tasks of a plan run in its order."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from dasktile._compat.distributed import scheduling, states
from dasktile.schedule.ranks import rank_of, ranked_order

#: The annotation with the position of a task in its plan; see :mod:`dasktile.orders.apply`.
ORDER = "dasktile-order"


def position(task: Any) -> int | None:
    """The position of a task in its plan; None for a task of no plan."""
    place = task.annotations.get(ORDER) if task.annotations else None
    return place if isinstance(place, int) else None


def set_priorities(scheduler: Any, keys: Iterable[Any]) -> None:
    """Set the priorities of the new tasks of plans.

    Parameters
    ----------
    scheduler
        The scheduler of distributed.
    keys
        Keys of the tasks of one new graph; none is sent to a worker yet.

    Notes
    -----
    Plans of `dasktile.plan` annotate the position of each task.  They also annotate the priority of
    the user, which has the same effect where this function is unavailable, except that the plan
    then runs after graphs that were submitted later.

    Bundles have ranks in their keys.  Tasks of the same graph exchange their priorities by these.
    """
    others: list[Any] = []
    any_ranks = False
    for key in keys:
        task = scheduler.tasks.get(key)
        if task is None or not task.priority or task.state != states.RELEASED:
            continue
        place = position(task)
        if place is not None:
            # the position is also the fraction of the user's priority: remove it there
            user, generation = task.priority[:2]
            scheduling.set_priority(task, (math.floor(user), generation, place))
        else:
            others.append(task)
            any_ranks = any_ranks or rank_of(key) is not None
    if any_ranks:
        _follow_ranks(others)


def _follow_ranks(tasks: list[Any]) -> None:
    """Exchange the priorities of tasks of the same priority of the user and generation."""
    tasks.sort(key=lambda task: task.priority)
    for _, group in groupby(tasks, key=lambda task: task.priority[:2]):
        same = list(group)
        number = {task.key: at for at, task in enumerate(same)}
        reads = [
            sorted(number[read.key] for read in task.dependencies if read.key in number)
            for task in same
        ]
        # the priorities of Dask follow the edges, except those of another graph
        if any(read >= reader for reader, inputs in enumerate(reads) for read in inputs):
            continue
        priorities = [task.priority for task in same]
        order = ranked_order([rank_of(task.key) for task in same], reads)
        for priority, at in zip(priorities, order, strict=True):
            scheduling.set_priority(same[at], priority)
