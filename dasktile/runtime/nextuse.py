"""When a result is needed next, as the scheduler's priorities say.

The scheduler (:class:`Teller`) tells with every task which tasks will read its result; a worker
(:class:`NextUses`) crosses out those that have run: of its own it knows, of readers elsewhere
the scheduler tells.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from dasktile._compat import distributed as internals
from dasktile.schedule.instructions import DYING

#: The annotation that tells a task's readers.
ANNOTATION = "dasktile-uses"

#: The message by which the scheduler tells of results that workers have already.
USES = "dasktile-uses"

#: Readers that are told of, those that run first.
MANY = 32

#: The scheduler's states of tasks that a worker knows, and of those that are going to read.
_SENT = frozenset({internals.PROCESSING, internals.MEMORY})
_READS = frozenset({internals.WAITING, internals.NO_WORKER, internals.QUEUED, internals.PROCESSING})

MORE, CLIENT = "more", "client"

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


class Teller:
    """Tells workers which tasks will read their results.

    A task that no worker has yet is told of its readers when it is sent to one, by an
    annotation; of results that are there, and of tasks that run, a message tells.

    Parameters
    ----------
    scheduler
        Of distributed.
    later
        Calls a function a moment later.
    """

    def __init__(self, scheduler: Any, later: Callable[[Callable[[], None]], object]) -> None:
        self._scheduler = scheduler
        self._later = later
        # By address: keys with all their readers, and keys with a reader that has run.
        self._uses: dict[str, dict[Any, Any]] = {}
        self._ran: dict[str, list[Any]] = {}
        self._waits = False

    def new(self, keys: Iterable[Any]) -> None:
        """A graph came.

        Parameters
        ----------
        keys
            Of its tasks, which have priorities.
        """
        if not any(map(_listens, self._scheduler.workers.values())):
            return
        known: dict[Any, None] = {}
        # what is released and not of this graph has run
        keys = set(keys)
        for key in keys:
            task = self._scheduler.tasks[key]
            if task.state in _SENT:
                # perhaps somebody else wants it now
                known[task] = None
                continue
            internals.annotate(task, ANNOTATION, readers(task, keys))
            for read in task.dependencies:
                if read.state in _SENT:
                    known[read] = None
        self._tell(known, keys)
        # before the tasks, which may have run by the time of a later message
        self.send()

    def everything(self) -> None:
        """Workers came that can be told."""
        tasks = list(self._scheduler.tasks.values())
        for task in tasks:
            if task.state in _READS and task.state not in _SENT:
                internals.annotate(task, ANNOTATION, readers(task))
        self._tell(task for task in tasks if task.state in _SENT)
        self.send()

    def transition(self, key: Any, start: str, finish: str) -> None:
        """A task has changed its state; called for every step of every task."""
        if finish == internals.PROCESSING:
            self.sent(key)
        elif start == internals.PROCESSING and finish == internals.MEMORY:
            self.ran(key)
        elif start == internals.MEMORY and finish == internals.RELEASED:
            self.again(key)
        elif start in _READS and finish in (internals.RELEASED, internals.ERRED):
            self.given_up(key)

    def sent(self, key: Any) -> None:
        """A task was sent to a worker, which fetches what it reads: others there may read it."""
        task = self._scheduler.tasks[key]
        worker = task.processing_on
        if worker is None or not _listens(worker):
            return
        for read in task.dependencies:
            if worker not in (read.who_has or ()) and 1 < len(read.dependents) <= MANY:
                self._uses.setdefault(worker.address, {})[read.key] = readers(read)
                self._soon()

    def again(self, key: Any) -> None:
        """A result was lost, and the task that made it will read its inputs once more."""
        task = self._scheduler.tasks[key]
        if task.waiters or task.who_wants:
            self._tell((read for read in task.dependencies if read.state in _SENT), {key})
            self.send()

    def ran(self, key: Any) -> None:
        """A task has run; who has its inputs too need not keep them for it."""
        task = self._scheduler.tasks[key]
        for read in task.dependencies:
            if len(read.who_has or ()) > len(task.who_has or ()) and len(read.dependents) <= MANY:
                for worker in read.who_has - (task.who_has or set()):
                    if _listens(worker):
                        self._ran.setdefault(worker.address, []).append((read.key, task.priority))
                        self._soon()

    def given_up(self, key: Any) -> None:
        """A task will not run after all; nobody need keep its inputs for it."""
        task = self._scheduler.tasks.get(key)
        if task is None or task.waiters or task.who_wants:
            return
        for read in task.dependencies:
            if len(read.dependents) <= MANY:
                for worker in read.who_has or ():
                    if _listens(worker):
                        self._ran.setdefault(worker.address, []).append((read.key, task.priority))
                        self._soon()

    def _tell(self, tasks: Iterable[Any], new: Container[Any] = ()) -> None:
        for task in tasks:
            uses = readers(task, new)
            # what is stolen or made again takes them along
            internals.annotate(task, ANNOTATION, uses)
            for worker in task.who_has or ([task.processing_on] if task.processing_on else ()):
                if _listens(worker):
                    self._uses.setdefault(worker.address, {})[task.key] = uses
                    self._soon()

    def _soon(self) -> None:
        if not self._waits:
            self._waits = True
            self._later(self.send)

    def send(self) -> None:
        """Send what has come together."""
        self._waits = False
        told, self._uses = self._uses, {}
        ran, self._ran = self._ran, {}
        for address in sorted({*told, *ran}):
            message = {"uses": [*told.get(address, {}).items()], "ran": ran.get(address, [])}
            internals.send_to_worker(self._scheduler, address, {"op": USES, **message})


def _listens(worker: Any) -> bool:
    """Whether a worker knows the message; one that does not would break off."""
    told = worker.metrics.get("dasktile")
    return isinstance(told, dict) and bool(told.get("store")) and told.get("hints", True)


def readers(task: Any, new: Container[Any] = ()) -> tuple[list[tuple[Any, ...]], str]:
    """Who will read a result.

    Parameters
    ----------
    task
        The scheduler's.
    new
        Keys of tasks that are going to run although nothing says so yet.

    Returns
    -------
    Priorities of the tasks that will, of the first of them if they are many; and what
    comes after them: `MORE` of them, a `CLIENT` that wants the result, or nothing.
    """
    uses = [
        reader.priority
        for reader in task.dependents
        if reader.priority and (reader.state in _READS or reader.key in new)
    ]
    if len(uses) > MANY:
        return heapq.nsmallest(MANY, uses), MORE
    return uses, CLIENT if task.who_wants else ""


class NextUses:
    """What one worker knows of when its results are needed.

    Parameters
    ----------
    tasks
        The worker's, by key.
    """

    def __init__(self, tasks: Mapping[Any, Any]) -> None:
        self._tasks = tasks
        # Of a result, numbers of the readers that have not run, as far as they were told, and
        # what comes after them.
        self._told: dict[Any, tuple[list[int], str]] = {}
        self._runs: set[Any] = set()

    def knows(self, key: Any, reader: Any) -> bool:
        """Whether the readers that were told of a result include one that is here now."""
        told = self._told.get(key)
        return told is not None and bool(reader.priority) and number(reader.priority) in told[0]

    def starts(self, reader: Any) -> None:
        """A task begins to run: it has what it reads, and asks for it no more."""
        self._runs.add(reader.key)
        if reader.priority:
            self.ran((read.key, reader.priority) for read in reader.dependencies)

    def ends(self, key: Any) -> None:
        """A task does not run any more."""
        self._runs.discard(key)

    def of(self, key: Any) -> float | None:
        """When a result is needed next.

        Parameters
        ----------
        key
            Of the result.

        Returns
        -------
        The number of its first reader that has not run; ``-inf`` if very many have not, ``inf``
        if all have, `DYING` if nobody else wants it then, None if that is not known.
        """
        task = self._tasks.get(key)
        if task is None:
            return None
        told = self._told.get(key)
        if told is None:
            uses = (task.annotations or {}).get(ANNOTATION)
            if uses is not None:
                told = self._told[key] = _numbers(*uses)
            elif task.run_spec is not None:
                return None
        here = task.dependents
        if len(here) > MANY and any(reader.state not in _RUN for reader in here):
            return -math.inf
        # a copy of what another worker has stays until that goes
        numbers, then = told or ((), CLIENT)
        found = list(numbers)
        for reader in here:
            if reader.priority and reader.state not in _RUN and reader.key not in self._runs:
                found.append(number(reader.priority))
        if found:
            return min(found)
        return {MORE: None, CLIENT: math.inf}.get(then, DYING)

    def told(self, uses: Iterable[tuple[Any, tuple[Any, str]]]) -> dict[Any, float | None]:
        """Results have readers that nobody knew of when they were made.

        Parameters
        ----------
        uses
            Keys, and what :func:`readers` says of them.

        Returns
        -------
        New numbers of results.
        """
        found = {}
        for key, told in uses:
            if key in self._tasks:
                self._told[key] = _numbers(*told)
                found[key] = self.of(key)
        return found

    def ran(self, uses: Iterable[tuple[Any, Any]]) -> dict[Any, float | None]:
        """Tasks do not need what they have read any more.

        Parameters
        ----------
        uses
            Keys of results, and the priority of a reader of each; once for each reader, since
            those of graphs that follow each other fast may have the same.

        Returns
        -------
        New numbers of results.
        """
        found = {}
        for key, priority in uses:
            use = number(tuple(priority))
            if key in self._told and use in self._told[key][0]:
                self._told[key][0].remove(use)
                found[key] = self.of(key)
        return found

    def forget(self, key: Any) -> None:
        """A result is there no more."""
        self._told.pop(key, None)


def _numbers(priorities: Iterable[Iterable[Any]], then: str) -> tuple[list[int], str]:
    return [number(tuple(priority)) for priority in priorities], then


#: States of tasks that do not read any more.
_RUN = frozenset(
    {
        *(internals.MEMORY, internals.RELEASED, internals.FORGOTTEN),
        *(internals.ERROR, internals.ERRED, internals.FLIGHT, internals.FETCH),
    }
)
