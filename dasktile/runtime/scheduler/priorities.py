"""Tasks of a plan run in its order, among all others when theirs is the turn."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from dasktile._compat import distributed as internals

#: The annotation that says which task of a plan comes when; see :mod:`dasktile.orders.apply`.
ORDER = "dasktile-order"


def put_in_order(scheduler: Any, keys: Iterable[Any]) -> None:
    """Give new tasks of a plan priorities by their place in it.

    Parameters
    ----------
    scheduler
        Of distributed.
    keys
        Of tasks that came with one graph, and are not sent to any worker yet.

    Notes
    -----
    Without this they have a priority of the user's own, which plans annotate too: they run in
    the same order, but behind those of graphs that came later.
    """
    for key in keys:
        task = scheduler.tasks.get(key)
        if task is None or not task.annotations or not task.priority:
            continue
        place = task.annotations.get(ORDER)
        if isinstance(place, int) and task.state == internals.RELEASED:
            # without the fraction that is its place
            user, generation = task.priority[:2]
            internals.set_priority(task, (math.floor(user), generation, place))
