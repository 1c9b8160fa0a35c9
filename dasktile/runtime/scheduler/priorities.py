"""Priorities that make the tasks of a plan run in its order."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from dasktile._compat import distributed as internals
from dasktile.schedule.positions import planned_order, position_of

#: The annotation with the position of a task in its plan; see :mod:`dasktile.orders.apply`.
ORDER = "dasktile-order"


def set_priorities(scheduler: Any, keys: Iterable[Any]) -> None:
    """Set the priorities of new tasks of plans by their positions in them.

    Parameters
    ----------
    scheduler
        The scheduler of distributed.
    keys
        Keys of the tasks of one new graph; none is sent to a worker yet.

    Notes
    -----
    Plans also annotate the priority of the user, which has the same effect where this function
    is unavailable, except that the plan then runs after graphs that were submitted later.
    """
    any_positions = False
    new: list[Any] = []
    for key in keys:
        task = scheduler.tasks.get(key)
        if task is None or not task.priority or task.state != internals.RELEASED:
            continue
        new.append(task)
        any_positions = any_positions or position_of(key) is not None
        place = task.annotations.get(ORDER) if task.annotations else None
        if isinstance(place, int):
            # the position is also the fraction of the user's priority: remove it there
            user, generation = task.priority[:2]
            internals.set_priority(task, (math.floor(user), generation, place))
    if any_positions:
        _follow_positions(new)


def _follow_positions(tasks: list[Any]) -> None:
    """Exchange the priorities of tasks that the user wants equally early, by their positions."""
    tasks.sort(key=lambda task: task.priority)
    for _, group in groupby(tasks, key=lambda task: task.priority[:2]):
        same = list(group)
        number = {task.key: at for at, task in enumerate(same)}
        reads = [
            sorted(number[read.key] for read in task.dependencies if read.key in number)
            for task in same
        ]
        priorities = [task.priority for task in same]
        order = planned_order([position_of(task.key) for task in same], reads)
        for place, at in enumerate(order):
            internals.set_priority(same[at], priorities[place])
