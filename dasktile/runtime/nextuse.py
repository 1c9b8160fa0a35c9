"""When a result is needed next, by the scheduler's priorities.

The scheduler (:class:`HintSender`) sends a *hint* with every task: the priorities of the tasks
that will read its result.  A worker (:class:`NextUses`) removes from it the readers that have
run.  Readers that run on the worker itself are removed at once; of readers that run elsewhere the
scheduler sends a message.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from dasktile._compat.distributed import scheduling, states
from dasktile.runtime.settings import RuntimeSettings
from dasktile.schedule.instructions import DYING

#: The annotation of a task that has its hint.  (Before hints were tuples, it had another name.)
ANNOTATION = "dasktile-readers"

#: The message with hints for results and running tasks that a worker has already.
USES = "dasktile-uses"

#: States, on the scheduler, of tasks that a worker has.
_ON_WORKER = frozenset({states.PROCESSING, states.MEMORY})

#: States, on the scheduler, of tasks that will read their inputs.
_WILL_READ = frozenset({states.WAITING, states.NO_WORKER, states.QUEUED, states.PROCESSING})

#: States, on the scheduler, whose beginning may change hints.
HINTED = frozenset({states.PROCESSING, states.MEMORY, states.RELEASED, states.ERRED})

#: States, on a worker, of tasks that do not read their inputs any more.
_DONE = frozenset(
    {
        *(states.MEMORY, states.RELEASED, states.FORGOTTEN),
        *(states.ERROR, states.ERRED, states.FLIGHT, states.FETCH),
    }
)

#: What there is beside the readers that a hint lists: more readers, or a client that needs the
#: result.
MORE, CLIENT = "more", "client"

#: A hint: what there is beside the readers, `MORE`, `CLIENT` or an empty string, and the priorities
#: of the readers.  The scheduler keeps one for each of maybe very many tasks, and Python's garbage
#: collection visits tuples of numbers, strings and such tuples once or twice, but lists each time.
Hint = tuple[Any, ...]

#: Generations of graphs for each step of the user's priority, and tasks for each hundredth of a
#: generation: factors that put the three parts of a priority into one number.
_GENERATIONS = 10**4
_TASKS = 10**10


def number(priority: tuple[Any, ...]) -> int:
    """A number for a priority of distributed; tasks with lower numbers run first.

    Parameters
    ----------
    priority
        The user's own priority, the generation of the graph, and the order in the graph.
    """
    user, generation, order = priority[:3] if len(priority) > 2 else (*priority, 0, 0)[:3]
    if not user:
        # that of nearly all tasks
        return int(generation * 100) * _TASKS + int(order)
    user = max(-_GENERATIONS, min(_GENERATIONS, user))
    # generations of tasks that tasks submit lie between those of graphs
    return (int(user * _GENERATIONS) * _TASKS + int(generation * 100)) * _TASKS + int(order)


class HintSender:
    """Sends workers hints: which tasks will read a result.

    A task that is sent to a worker carries its hint in an annotation, which it gets when its inputs
    are in memory: a new graph may have very many tasks, all of which are handled in one event.  For
    results in memory, and for tasks that run, the hint is sent in a message.

    Parameters
    ----------
    scheduler
        The scheduler of distributed.
    call_later
        Calls a function soon, outside of the current event.
    settings
        Constants; by default those of `RuntimeSettings`.
    """

    def __init__(
        self,
        scheduler: Any,
        call_later: Callable[[Callable[[], None]], object],
        settings: RuntimeSettings | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._call_later = call_later
        self._max_readers = (settings or RuntimeSettings()).max_readers
        #: By address of a worker: the hints to send, by key.
        self._hints: dict[str, dict[Any, Any]] = {}
        #: By address of a worker: keys, with the priority of a reader that has run.
        self._ran: dict[str, list[Any]] = {}
        self._send_scheduled = False
        #: Whether tasks get annotations, as some workers accept hints.
        self._annotates = False

    def graph_added(self, keys: Iterable[Any]) -> None:
        """Handle a new graph.

        Parameters
        ----------
        keys
            Keys of its tasks, which have priorities.
        """
        self._annotates = any(map(_accepts_hints, self._scheduler.workers.values()))
        if not self._annotates:
            return
        on_worker: dict[Any, None] = {}
        # tasks of this graph are still released; other released tasks have run
        keys = set(keys)
        for key in keys:
            task = self._scheduler.tasks[key]
            if task.state in _ON_WORKER:
                # a client may need the result now
                on_worker[task] = None
                continue
            waits = False
            for read in task.dependencies:
                state = read.state
                if state in _ON_WORKER:
                    on_worker[read] = None
                if state != states.MEMORY:
                    waits = True
            if not waits:
                scheduling.annotate(task, ANNOTATION, self._readers(task, keys))
        self._add_hints(on_worker, keys)
        # before the tasks are sent: they may have run when a later message arrives
        self.send()

    def send_all(self) -> None:
        """Send hints for all tasks, because workers that accept hints have joined."""
        self._annotates = True
        tasks = list(self._scheduler.tasks.values())
        for task in tasks:
            if task.state in _WILL_READ and task.state not in _ON_WORKER:
                scheduling.annotate(task, ANNOTATION, self._readers(task))
        self._add_hints(task for task in tasks if task.state in _ON_WORKER)
        self.send()

    def transition(self, key: Any, start: str, finish: str) -> None:
        """Handle the change of a task's state; called for every transition of every task."""
        if finish == states.PROCESSING:
            self.task_sent(key)
        elif finish == states.MEMORY:
            if self._annotates:
                self.annotate_ready(key)
            if start == states.PROCESSING:
                self.task_ran(key)
        elif start == states.MEMORY and finish == states.RELEASED:
            self.result_lost(key)
        elif start in _WILL_READ and finish in (states.RELEASED, states.ERRED):
            self.task_cancelled(key)

    def annotate_ready(self, key: Any) -> None:
        """Annotate the tasks that waited only for this result; none is sent to a worker yet."""
        for reader in self._scheduler.tasks[key].dependents:
            if not reader.waiting_on and reader.state == states.WAITING:
                scheduling.annotate(reader, ANNOTATION, self._readers(reader))

    def task_sent(self, key: Any) -> None:
        """Send a worker that will fetch the inputs of a task the hints of these inputs."""
        task = self._scheduler.tasks[key]
        worker = task.processing_on
        if self._annotates and ANNOTATION not in (task.annotations or ()):
            # an input was put into memory without a transition, as scattered data is
            self._add_hints([task])
        for read in task.dependencies:
            shared = 1 < len(read.dependents) <= self._max_readers
            if shared and worker not in (read.who_has or ()):
                if worker is None or not _accepts_hints(worker):
                    return
                self._hints.setdefault(worker.address, {})[read.key] = self._readers(read)
                self._send_later()

    def result_lost(self, key: Any) -> None:
        """Update the hints of the inputs of a task whose result is lost: it reads them again."""
        task = self._scheduler.tasks[key]
        if task.waiters or task.who_wants:
            self._add_hints((read for read in task.dependencies if read.state in _ON_WORKER), {key})
            self.send()

    def task_ran(self, key: Any) -> None:
        """Remove a task that has run from the hints of other workers with its inputs."""
        task = self._scheduler.tasks[key]
        ran_on = task.who_has or ()
        for read in task.dependencies:
            holders = read.who_has or frozenset()
            if len(holders) > len(ran_on) and len(read.dependents) <= self._max_readers:
                self._remove_reader(task, read, holders.difference(ran_on))

    def task_cancelled(self, key: Any) -> None:
        """Remove a task that will not run from the hints of its inputs."""
        task = self._scheduler.tasks.get(key)
        if task is None or task.waiters or task.who_wants:
            return
        for read in task.dependencies:
            if len(read.dependents) <= self._max_readers:
                self._remove_reader(task, read, read.who_has or ())

    def _remove_reader(self, task: Any, read: Any, workers: Iterable[Any]) -> None:
        for worker in workers:
            if _accepts_hints(worker):
                self._ran.setdefault(worker.address, []).append((read.key, task.priority))
                self._send_later()

    def _add_hints(self, tasks: Iterable[Any], new: Container[Any] = ()) -> None:
        for task in tasks:
            hint = self._readers(task, new)
            # a task that is stolen or recomputed takes the annotation along
            scheduling.annotate(task, ANNOTATION, hint)
            for worker in task.who_has or ([task.processing_on] if task.processing_on else ()):
                if _accepts_hints(worker):
                    self._hints.setdefault(worker.address, {})[task.key] = hint
                    self._send_later()

    def _readers(self, task: Any, new: Container[Any] = ()) -> Hint:
        return readers(task, self._max_readers, new)

    def _send_later(self) -> None:
        if not self._send_scheduled:
            self._send_scheduled = True
            self._call_later(self.send)

    def send(self) -> None:
        """Send the collected hints, one message for each worker."""
        self._send_scheduled = False
        hints, self._hints = self._hints, {}
        ran, self._ran = self._ran, {}
        for address in sorted({*hints, *ran}):
            # as releases of dasktile read it that had hints of another form
            uses = [
                (key, (priorities, rest))
                for key, (rest, *priorities) in hints.get(address, {}).items()
            ]
            message = {"uses": uses, "ran": ran.get(address, [])}
            scheduling.send_to_worker(self._scheduler, address, {"op": USES, **message})

    def withdraw(self) -> None:
        """Have all workers forget their hints: no later message would correct them."""
        self._hints, self._ran, self._annotates = {}, {}, False
        for address, worker in sorted(self._scheduler.workers.items()):
            if _accepts_hints(worker):
                message = {"op": USES, "uses": [], "ran": [], "withdrawn": True}
                scheduling.send_to_worker(self._scheduler, address, message)
        # those that would be sent with tasks to workers that join later
        for task in self._scheduler.tasks.values():
            if task.annotations and ANNOTATION in task.annotations:
                scheduling.annotate(task, ANNOTATION, None)


def _accepts_hints(worker: Any) -> bool:
    """Whether a worker has a handler for the message; without one it would shut down."""
    metrics = worker.metrics.get("dasktile")
    return isinstance(metrics, dict) and bool(metrics.get("store")) and metrics.get("hints", True)


def readers(task: Any, limit: int, new: Container[Any] = ()) -> Hint:
    """The hint of a result: the tasks that will read it.

    Parameters
    ----------
    task
        The scheduler's task that has the result.
    limit
        Readers that are listed at the most.
    new
        Keys of tasks that will run although their state does not show it yet.

    Returns
    -------
    Whether there are `MORE` readers or, if not, a `CLIENT` that needs the result; and the
    priorities of the readers, or of the first `limit` of them.
    """
    uses = [
        reader.priority
        for reader in task.dependents
        if reader.priority and (reader.key in new or reader.state in _WILL_READ)
    ]
    if len(uses) > limit:
        return MORE, *heapq.nsmallest(limit, uses)
    return CLIENT if task.who_wants else "", *uses


class NextUses:
    """The next uses of the results on one worker.

    Parameters
    ----------
    tasks
        The worker's tasks, by key.
    settings
        Constants; by default those of `RuntimeSettings`.
    """

    def __init__(self, tasks: Mapping[Any, Any], settings: RuntimeSettings | None = None) -> None:
        self._tasks = tasks
        self._max_readers = (settings or RuntimeSettings()).max_readers
        #: By key of a result: numbers of its listed readers that have not run, and what follows.
        self._hints: dict[Any, tuple[list[int], str]] = {}
        self._running: set[Any] = set()
        #: Whether hints are current; False after they were withdrawn.
        self.current = True

    def includes(self, key: Any, reader: Any) -> bool:
        """Whether the hint of a result lists a reader that is on this worker now."""
        hint = self._hints.get(key)
        if hint is None or not hint[0] or not reader.priority:
            return False
        return number(reader.priority) in hint[0]

    def reader_started(self, reader: Any) -> None:
        """Note that a task has its inputs and begins to run."""
        self._running.add(reader.key)
        if reader.priority and reader.dependencies:
            use = number(reader.priority)
            for read in reader.dependencies:
                self._remove(read.key, use)

    def reader_ended(self, key: Any) -> None:
        """Note that a task does not run any more."""
        self._running.discard(key)

    def next_use(self, key: Any) -> float | None:
        """When a result is needed next.

        Parameters
        ----------
        key
            Key of the result.

        Returns
        -------
        The number of its first reader that has not run; ``-inf`` if so many have not that they
        are not tracked; ``inf`` if only a client needs it; `DYING` if nothing does; None if that
        is unknown.
        """
        task = self._tasks.get(key)
        if task is None or not self.current:
            return None
        hint = self._hint(key)
        if hint is None and task.run_spec is not None:
            return None
        local = task.dependents
        if len(local) > self._max_readers and any(reader.state not in _DONE for reader in local):
            return -math.inf
        # a replica of another worker's result stays until that is released
        numbers, rest = hint or ((), CLIENT)
        candidates = list(numbers)
        for reader in local:
            if reader.priority and reader.state not in _DONE and reader.key not in self._running:
                candidates.append(number(reader.priority))
        if candidates:
            return min(candidates)
        return {MORE: None, CLIENT: math.inf}.get(rest, DYING)

    def update(self, uses: Iterable[tuple[Any, tuple[Any, str]]]) -> dict[Any, float | None]:
        """Replace hints by new ones.

        Parameters
        ----------
        uses
            Keys of results, and their hints: priorities, and what there is beside these readers.

        Returns
        -------
        New next uses, by key of a result.
        """
        changed = {}
        for key, hint in uses:
            self.current = True
            if key in self._tasks:
                priorities, rest = hint
                self._hints[key] = _numbers(rest, *priorities)
                changed[key] = self.next_use(key)
        return changed

    def readers_ran(self, uses: Iterable[tuple[Any, Any]]) -> dict[Any, float | None]:
        """Remove readers that have run from the hints.

        Parameters
        ----------
        uses
            Keys of results, and the priority of a reader of each.  An entry removes one reader,
            since readers in graphs that follow each other fast may have the same priority.

        Returns
        -------
        New next uses, by key of a result.
        """
        removed = [key for key, priority in uses if self._remove(key, number(tuple(priority)))]
        return {key: self.next_use(key) for key in removed}

    def _hint(self, key: Any) -> tuple[list[int], str] | None:
        """The hint of a result: the latest, or that which came with its task; None for none."""
        hint = self._hints.get(key)
        if hint is None and self.current:
            task = self._tasks.get(key)
            uses = (task.annotations or {}).get(ANNOTATION) if task is not None else None
            if uses is not None:
                hint = self._hints[key] = _numbers(*uses)
        return hint

    def _remove(self, key: Any, use: int) -> bool:
        """Remove a reader from the hint of a result; whether it was in there.

        Also where the next use of the result was never asked for, as while memory is rather empty.
        """
        hint = self._hint(key)
        if hint is None or use not in hint[0]:
            return False
        hint[0].remove(use)
        return True

    def withdraw(self) -> None:
        """Know no next uses until new hints arrive."""
        self._hints.clear()
        self.current = False

    def forget(self, key: Any) -> None:
        """Remove the hint of a result that was released."""
        self._hints.pop(key, None)


def _numbers(rest: str, *priorities: Iterable[Any]) -> tuple[list[int], str]:
    return [number(tuple(priority)) for priority in priorities], rest
