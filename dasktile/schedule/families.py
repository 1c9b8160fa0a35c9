"""Families of root tasks: neighbours, which should run on one worker."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

Task = TypeVar("Task")


def families(
    roots: Sequence[Task], combined_by: Callable[[Task], Collection[Hashable]], most: int
) -> list[list[Task]]:
    """Divide root tasks into families: runs of tasks whose results are combined.

    Parameters
    ----------
    roots
        Root tasks, in the order in which they run.
    combined_by
        The tasks that combine the result of a root task with those of others.
    most
        Tasks in a family at most.

    Returns
    -------
    The families, in the order of their first tasks.
    """
    found: list[list[Task]] = []
    around: set[Hashable] = set()
    for root in roots:
        readers = combined_by(root)
        if found and len(found[-1]) < most and not around.isdisjoint(readers):
            found[-1].append(root)
            around.update(readers)
        else:
            found.append([root])
            around = set(readers)
    return found


@dataclass(eq=False, slots=True)
class Family:
    """Root tasks that should run on one worker, whichever has a slot first.

    Attributes
    ----------
    ready
        The tasks that could run: a heap of (priority, number, key).
    worker
        The address of the worker that runs the ready ones, if one does.
    """

    ready: list[tuple[Any, int, Any]] = field(default_factory=list)
    worker: str | None = None


class FamilyQueue:
    """Tasks in families that wait for a worker, and which worker runs which family.

    A worker gets the tasks of one family after the other, in the order of priorities.  Priorities
    are tuples: a family with other first two parts, which the user and the order of graphs set,
    may come between the tasks of another one.

    Attributes
    ----------
    of
        The family of every task, by key.
    """

    def __init__(self) -> None:
        self.of: dict[Any, Family] = {}
        #: Families with ready tasks that no worker runs: a heap of (priority, number, family).
        self._waiting: list[tuple[Any, int, Family]] = []
        #: The family that a worker runs, by address, as long as some of its tasks are ready.
        self._served: dict[str, Family] = {}
        self._counter = itertools.count()

    @property
    def any_ready(self) -> bool:
        """Whether a task could run."""
        return bool(self._waiting or self._served)

    def add(self, keys: Iterable[Any]) -> None:
        """Add tasks that are a family."""
        family = Family()
        self.of.update(dict.fromkeys(keys, family))

    def push(self, key: Any, priority: Any) -> None:
        """Note that a task could run."""
        family = self.of[key]
        starts = not family.ready and family.worker is None
        heapq.heappush(family.ready, (priority, next(self._counter), key))
        if starts:
            self._wait(family)

    def clear(self) -> None:
        """Remove all tasks."""
        self.of.clear()
        self._waiting.clear()
        self._served.clear()

    def leave(self, running: Collection[str]) -> None:
        """Let any worker run the families of workers that do not run any more.

        Parameters
        ----------
        running
            Addresses of the workers that run.
        """
        for worker in [worker for worker in self._served if worker not in running]:
            self._give_back(worker)

    def is_served(self, worker: str) -> bool:
        """Whether tasks of a family that a worker runs could run."""
        return worker in self._served

    def priority(self, worker: str) -> Any:
        """The priority by which a worker gets its next task; None if no family waits for it."""
        family = self._next(worker)
        if family is None:
            return None
        # that of a waiting family is the one with which it began to wait
        return family.ready[0][0] if family.worker == worker else self._waiting[0][0]

    def take(self, worker: str) -> tuple[Any, Any] | None:
        """The priority and the key of the next task of a worker.

        None if it has left its family; there is one if :meth:`priority` gives a priority.
        """
        family = self._next(worker)
        assert family is not None
        if family.worker != worker:
            self._give_back(worker)
            heapq.heappop(self._waiting)
            self._serve(worker, family)
        priority, _, key = heapq.heappop(family.ready)
        self._end_if_empty(family)
        return (priority, key) if self.of.get(key) is family else None

    def divide(self, worker: str) -> bool:
        """Give an idle worker half of the longest rest of a family; False if there is none."""
        longest = max(self._served.values(), key=lambda family: len(family.ready), default=None)
        if longest is None:
            return False
        tasks = sorted(longest.ready)
        half = len(tasks) // 2
        longest.ready, rest = tasks[:half], Family(tasks[half:])
        self._end_if_empty(longest)
        self.of.update({key: rest for _, _, key in rest.ready if key in self.of})
        self._serve(worker, rest)
        return True

    def _next(self, worker: str) -> Family | None:
        """The family of which a worker gets the next task: its own, or the first that waits."""
        while self._waiting and not _is_waiting(self._waiting[0][2]):
            heapq.heappop(self._waiting)
        own = self._served.get(worker)
        if own is None:
            return self._waiting[0][2] if self._waiting else None
        if self._waiting and self._waiting[0][0][:2] < own.ready[0][0][:2]:
            return self._waiting[0][2]
        return own

    def _wait(self, family: Family) -> None:
        heapq.heappush(self._waiting, (*family.ready[0][:2], family))

    def _serve(self, worker: str, family: Family) -> None:
        family.worker = worker
        self._served[worker] = family

    def _give_back(self, worker: str) -> None:
        """Let any worker run the family of a worker, if it has one."""
        family = self._served.pop(worker, None)
        if family is not None:
            family.worker = None
            self._wait(family)

    def _end_if_empty(self, family: Family) -> None:
        if not family.ready and family.worker is not None:
            del self._served[family.worker]
            family.worker = None


def _is_waiting(family: Family) -> bool:
    return bool(family.ready) and family.worker is None
