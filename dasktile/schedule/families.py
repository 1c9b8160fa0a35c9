"""Families of root tasks: neighbours, which should run on one worker."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dasktile.schedule.joining import MOST_COMBINED

Task = TypeVar("Task", bound=Hashable)


@dataclass(frozen=True, slots=True)
class FamilyLimits:
    """Which root tasks of a graph without a plan are divided into families.

    Parameters
    ----------
    least, most
        Tasks of a family: at most so many, and no families if every thread would have fewer than
        four of the least number.
    combined
        Inputs of a task that is taken to combine results, at the most.
    roots
        Root tasks of a graph that are divided; of more, holding them takes the scheduler's time.
    """

    least: int = 4
    most: int = 16
    combined: int = MOST_COMBINED
    roots: int = 20_000


def families_of_graph(
    roots: Sequence[Task],
    threads: int,
    readers: Callable[[Task], Iterable[Task]],
    count_reads: Callable[[Task], int],
    limits: FamilyLimits,
) -> list[list[Task]]:
    """The families of the root tasks of a graph without a plan; empty if they are not divided.

    Parameters
    ----------
    roots
        Root tasks, in the order in which they run.
    threads
        Threads of all workers.
    readers
        The tasks that read the result of a task.
    count_reads
        How many results a task reads.
    limits
        Which are divided.
    """
    most = min(limits.most, len(roots) // (4 * max(1, threads)))
    if most < limits.least or len(roots) > limits.roots:
        return []
    # a task that reads most of them is the end of the graph, or a barrier
    combining = combining_tasks(min(limits.combined, len(roots) // 2), readers, count_reads)
    found = families(roots, combining, most)
    return found if 2 * len(found) <= len(roots) else []


def combining_tasks(
    most: int, readers: Callable[[Task], Iterable[Task]], count_reads: Callable[[Task], int]
) -> Callable[[Task], set[Task]]:
    """A function: the tasks that combine the result of a task with those of others.

    Parameters
    ----------
    most
        Inputs of a task that combines results at most; tasks with more combine all of the graph.
    readers, count_reads
        As for `families_of_graph`.
    """
    counts: dict[Task, int] = {}

    def combining(task: Task) -> set[Task]:
        found = set()
        alone = [task]
        while alone:
            for reader in readers(alone.pop()):
                reads = counts.get(reader)
                if reads is None:
                    reads = counts[reader] = count_reads(reader)
                if reads == 1:
                    alone.append(reader)
                elif reads <= most:
                    found.add(reader)
        return found

    return combining


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
        The worker that runs the ready ones, if one does.
    """

    ready: list[tuple[Any, int, Any]] = field(default_factory=list)
    worker: Hashable = None


class FamilyQueue:
    """Tasks in families that wait for a worker, and which worker runs which family.

    Workers are any values, as their addresses.  One gets the tasks of one family after the other,
    in the order of priorities.  Priorities are tuples: a family with other first two parts, which
    the user and the order of graphs set, may come between the tasks of another one.

    Attributes
    ----------
    of
        The family of every task, by key.
    """

    def __init__(self) -> None:
        self.of: dict[Any, Family] = {}
        #: Families with ready tasks that no worker runs: a heap of (priority, number, family).
        self._waiting: list[tuple[Any, int, Family]] = []
        #: The family that a worker runs, by worker, as long as some of its tasks are ready.
        self._served: dict[Hashable, Family] = {}
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

    def leave(self, running: Collection[Hashable]) -> None:
        """Let any worker run the families of workers that do not run any more.

        Parameters
        ----------
        running
            The workers that run.
        """
        for worker in [worker for worker in self._served if worker not in running]:
            self._give_back(worker)

    def is_served(self, worker: Hashable) -> bool:
        """Whether tasks of a family that a worker runs could run."""
        return worker in self._served

    def priority(self, worker: Hashable) -> Any:
        """The priority by which a worker gets its next task; None if no family waits for it."""
        family = self._next(worker)
        if family is None:
            return None
        # that of a waiting family is the one with which it began to wait
        return family.ready[0][0] if family.worker == worker else self._waiting[0][0]

    def take(self, worker: Hashable) -> tuple[Any, Any] | None:
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

    def divide(self, worker: Hashable) -> bool:
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

    def _next(self, worker: Hashable) -> Family | None:
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

    def _serve(self, worker: Hashable, family: Family) -> None:
        family.worker = worker
        self._served[worker] = family

    def _give_back(self, worker: Hashable) -> None:
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
