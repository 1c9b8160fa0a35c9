"""Priorities that make the tasks of a plan run in its order."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from dasktile._compat import distributed as internals

#: The annotation with the position of a task in its plan; see :mod:`dasktile.orders.apply`.
ORDER = "dasktile-order"


def set_priorities(scheduler: Any, keys: Iterable[Any]) -> None:
    """Set the priorities of new tasks of a plan by their positions in it.

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
    for key in keys:
        task = scheduler.tasks.get(key)
        if task is None or not task.annotations or not task.priority:
            continue
        place = task.annotations.get(ORDER)
        if isinstance(place, int) and task.state == internals.RELEASED:
            # the position is also the fraction of the user's priority: remove it there
            user, generation = task.priority[:2]
            internals.set_priority(task, (math.floor(user), generation, place))
