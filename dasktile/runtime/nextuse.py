"""When a result is needed next, as the scheduler's priorities say.

The scheduler tells with every task which tasks will read its result (:func:`tell`); a worker
adds what it knows itself, which of them it has and which of those have run
(:class:`NextUses`).  Workers go through a graph side by side: of a reader that is not here it is
believed that it has run once all that runs here comes later, and has for a while.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
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
    user = max(-_GENERATIONS, min(_GENERATIONS, user))
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
    patience
        Tasks that start here before readers elsewhere are believed to have run.
    """

    def __init__(self, tasks: Any, patience: int = 8) -> None:
        self._tasks = tasks
        # The lowest number that runs, of each graph: now, and for as many starts before.
        self._lows: deque[dict[int, int]] = deque(maxlen=patience + 1)
        # For each graph, (number of a reader elsewhere, key).
        self._due: dict[int, list[tuple[int, int, Any]]] = {}
        self._waits: dict[Any, int] = {}
        self._count = itertools.count()

    def of(self, key: Any, without: Any = None) -> float | None:
        """When a result is needed next: ``inf`` if never, None if that is not known.

        Parameters
        ----------
        key
            Of the result.
        without
            Key of a reader that has just run.

        Returns
        -------
        The number of its first reader that has not run; ``-inf`` if very many have not.
        """
        task = self._tasks.get(key)
        if task is None:
            return None
        told = (task.annotations or {}).get(ANNOTATION)
        if told is None and task.run_spec is not None:
            return None
        readers = task.dependents
        if len(readers) > MANY and any(reader.state not in _RUN for reader in readers):
            return -math.inf
        here, ran = [], set()
        for reader in readers:
            if reader.priority:
                use = number(reader.priority)
                if reader.key == without or reader.state in _RUN:
                    ran.add(use)
                else:
                    here.append(use)
        there = [
            use
            for use in (number(tuple(one)) for one in told or ())
            if use not in ran and not self._passed(use)
        ]
        found = min([*here, *there], default=math.inf)
        if found in here or not there:
            self._waits.pop(key, None)
        elif self._waits.get(key) != found:
            first = min(there)
            self._waits[key] = first
            heap = self._due.setdefault(first // _TASKS, [])
            heapq.heappush(heap, (first, next(self._count), key))
        return found

    def _passed(self, use: int) -> bool:
        """Whether a reader that is not here is believed to have run."""
        if len(self._lows) < (self._lows.maxlen or 0):
            return False
        low = self._lows[0].get(use // _TASKS)
        return low is not None and use < low

    def advance(self, running: Iterable[tuple[Any, ...]]) -> dict[Any, float | None]:
        """A task starts; what was expected to be read elsewhere before it, was.

        Parameters
        ----------
        running
            Priorities of the tasks that run or are about to.

        Returns
        -------
        New numbers of results.
        """
        lows: dict[int, int] = {}
        for priority in running:
            low = number(priority)
            graph = low // _TASKS
            lows[graph] = min(low, lows.get(graph, low))
        self._lows.append(lows)
        found = {}
        for graph in self._lows[0]:
            heap = self._due.get(graph, [])
            while heap and self._passed(heap[0][0]):
                use, _, key = heapq.heappop(heap)
                if self._waits.get(key) == use:
                    del self._waits[key]
                    found[key] = self.of(key)
            if not heap:
                self._due.pop(graph, None)
        return found

    def forget(self, key: Any) -> None:
        """A result is there no more."""
        self._waits.pop(key, None)


#: States of tasks that do not read any more.
_RUN = frozenset({"memory", "released", "error", "forgotten", "erred", "flight", "fetch"})
