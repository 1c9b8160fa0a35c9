"""When a result is needed next, as the scheduler's priorities say.

The scheduler tells with every task which tasks will read its result (:func:`tell`); a worker
adds what it knows itself, which of them it has and which of those have run
(:class:`NextUses`).  Tasks of other workers count as run once tasks of a later priority run
here: workers go through a graph side by side.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from typing import Any

#: The annotation that tells a task's readers.
ANNOTATION = "dasktile-uses"

#: Readers that are told of, those that run first.
MANY = 32

_GENERATIONS = 10**4
_TASKS = 10**10


def number(priority: tuple[Any, ...]) -> int:
    """A number for a priority of distributed: the lower the sooner.

    Parameters
    ----------
    priority
        Of a task: the user's own, the number of the graph, the order in it.
    """
    user, generation, order = (*priority, 0, 0)[:3]
    # generations of tasks that tasks submit lie between those of graphs
    return (int(user * _GENERATIONS) * _TASKS + int(generation * 100)) * _TASKS + int(order)


def tell(tasks: Iterable[Any]) -> None:
    """Tell with tasks that workers do not know yet which will read their results.

    Parameters
    ----------
    tasks
        The scheduler's, with priorities.
    """
    for task in tasks:
        uses = [reader.priority for reader in task.dependents if reader.priority]
        if len(uses) > MANY:
            uses = heapq.nsmallest(MANY, uses)
        # annotations may be shared by all tasks of a layer
        task.annotations = {**(task.annotations or {}), ANNOTATION: uses}


class NextUses:
    """What one worker knows of when its results are needed.

    Parameters
    ----------
    tasks
        The worker's, by key.

    Attributes
    ----------
    now
        The number of the last task, in order, that has started here.
    """

    def __init__(self, tasks: Any) -> None:
        self._tasks = tasks
        self.now: float = -math.inf
        # (number of a reader elsewhere, key)
        self._due: list[tuple[float, str, Any]] = []

    def of(self, key: Any, without: Any = None) -> float | None:
        """When a result is needed next: ``inf`` if never, None if that is not known.

        Parameters
        ----------
        key
            Of the result.
        without
            Key of a reader that has just run.
        """
        task = self._tasks.get(key)
        if task is None:
            return None
        told = (task.annotations or {}).get(ANNOTATION)
        if told is None and task.run_spec is not None:
            return None
        if len(task.dependents) > MANY:
            # one of so many is always about to run
            near = [one for one in task.dependents if one.state != "memory"]
            if near:
                return self.now
        here = [
            number(reader.priority)
            for reader in task.dependents
            if reader.key != without and reader.priority and reader.state not in _RUN
        ]
        there = [use for use in map(number, map(tuple, told or ())) if use > self.now]
        found = min([*here, *there], default=math.inf)
        if there and min(there) == found and found not in here:
            heapq.heappush(self._due, (found, str(key), key))
        return found

    def advance(self, priority: tuple[Any, ...]) -> dict[Any, float | None]:
        """A task starts; what was expected to be read elsewhere before it, was.

        Parameters
        ----------
        priority
            Of the task.

        Returns
        -------
        New numbers of results.
        """
        self.now = max(self.now, number(priority))
        found = {}
        while self._due and self._due[0][0] <= self.now:
            _, _, key = heapq.heappop(self._due)
            found[key] = self.of(key)
        return found


#: States of tasks that do not read any more.
_RUN = frozenset({"memory", "released", "error", "forgotten", "erred", "flight", "fetch"})
