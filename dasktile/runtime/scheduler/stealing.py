"""Tasks of home workers that are late run on idle workers.

Work stealing of distributed would move tasks of a plan whenever a worker is idle for a moment, so
that they are excluded from it.  Here, tasks move only if their home worker would end them much
later than a worker that has been idle for a while: because a function takes long, which no plan
knows, or because the machine of the home worker is slow.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dasktile._compat.distributed import scheduling, states
from dasktile.runtime.scheduler.priorities import position
from dasktile.runtime.scheduler.roots import Roots, is_placed
from dasktile.runtime.settings import RuntimeSettings
from dasktile.schedule.stealing import Move, QueuedTask, moves

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import TaskState, WorkerState

#: Seconds of a task that does not count where it is asked how slow a worker is.
_BRIEF = 0.02


class Stealing:
    """Moves tasks from late home workers to idle workers.

    Parameters
    ----------
    scheduler
        The scheduler of the tasks; all methods are called on its event loop.
    roots
        The root tasks that are held.
    settings
        Constants; by default those of `RuntimeSettings`.

    Attributes
    ----------
    is_needed
        Whether some workers were idle and others late when :meth:`check` was called last.
    """

    def __init__(
        self, scheduler: Scheduler, roots: Roots, settings: RuntimeSettings | None = None
    ) -> None:
        self.scheduler = scheduler
        self.roots = roots
        self.settings = settings or RuntimeSettings()
        self.is_needed = False
        #: The workers that were asked to take a task, by key, until it has ended.
        self._asked: dict[Any, str] = {}
        #: Addresses of the workers on which a task has ended since the last check.
        self._ended: set[str] = set()
        #: By address of a worker: the group of the last task that ended there and was not brief,
        #: and the seconds that this and the one before took; 0 if that was of another group.
        self._last: dict[str, tuple[str, float, float]] = {}
        #: By late home worker, the time since which no task has ended there.
        self._since: dict[str, float] = {}
        #: Addresses of the workers that were idle at the last check, or took tasks since then.
        self._idle: set[str] = set()

    def task_ended(
        self, key: Any, worker: str | None, timed: Iterable[Mapping[str, Any]] | None
    ) -> bool:
        """Note that a task does not run any more.

        Parameters
        ----------
        key
            Its key.
        worker
            The address of the worker that ran it, if it was run.
        timed
            What that took, as distributed's ``startstops``.

        Returns
        -------
        Whether it has run on a worker that took it from its home worker.
        """
        if worker is not None and timed:
            self._ended.add(worker)
            group = self.scheduler.tasks[key].group.name
            seconds = sum(
                part["stop"] - part["start"] for part in timed if part["action"] == "compute"
            )
            if seconds > _BRIEF:
                last, _, before = self._last.get(worker, ("", 0.0, 0.0))
                if last != group:
                    # the first task may have waited for imports
                    before = seconds if seconds > self.settings.stall_timeout else 0.0
                self._last[worker] = group, before, seconds
        return bool(self._asked) and self._asked.pop(key, "") == worker

    def check(self) -> None:
        """Move tasks if some workers are idle while others are late; called regularly."""
        idle, late = self._idle_and_late()
        self._note_ages(late)
        self.is_needed = bool(idle and late)
        if not self.is_needed:
            self._idle = set(idle)
            return
        # not those that are idle for a moment between two tasks of their own
        free = {worker: count for worker, count in idle.items() if worker in self._idle}
        self._idle = set(idle)
        if not free:
            return
        tasks, workers, settings = self.scheduler.tasks, self.scheduler.workers, self.settings
        self._asked = {key: worker for key, worker in self._asked.items() if key in tasks}
        order = self.roots.place
        most = heapq.nsmallest(
            settings.steal_from, late, key=lambda home: (-late[home], order(home))
        )
        found = moves(
            {home: self._queue(workers[home]) for home in most},
            {home: workers[home].nthreads for home in most},
            {worker: free[worker] for worker in sorted(free, key=order)},
            self.scheduler.bandwidth,
            settings.steal_gain,
            settings.steal_horizon,
        )
        for move in found:
            self._move(move)
            # it may take the next tasks as soon as these have ended
            self._idle.add(move.worker)

    def _idle_and_late(self) -> tuple[dict[str, int], dict[str, int]]:
        """By address: free threads of workers without tasks, and tasks that wait on the others."""
        ready, running = self.roots.ready, self.scheduler.running
        idle: dict[str, int] = {}
        late: dict[str, int] = {}
        for address, ws in self.scheduler.workers.items():
            free = ws.nthreads - len(ws.processing) + len(ws.long_running)
            count = len(ready.get(address, ())) - free
            if count > 0:
                late[address] = count
            elif free > 0 and address not in ready and ws in running:
                idle[address] = free
        return idle, late

    def _note_ages(self, late: Iterable[str]) -> None:
        """Note since when late workers have not ended a task."""
        now, ended, since = scheduling.now(), self._ended, self._since
        self._since = {home: now if home in ended else since.get(home, now) for home in late}
        self._ended = set()
        workers = self.scheduler.workers
        if len(self._last) > len(workers):
            self._last = {name: last for name, last in self._last.items() if name in workers}

    def _queue(self, ws: WorkerState) -> list[QueuedTask]:
        """The tasks that wait for a thread of a worker."""
        sent = [ts for ts in ws.processing if ts not in ws.long_running]
        # those that were asked for and are still there have begun
        sent.sort(key=lambda ts: (ts.key not in self._asked, ts.priority or ()))
        run, wait = sent[: ws.nthreads], sent[ws.nthreads :]
        held = sorted(self.roots.ready.get(ws.address, ()))
        tasks = (self.scheduler.tasks.get(key) for _, _, key in held)
        wait += (ts for ts in tasks if ts is not None and self._is_held_for(ts, ws))
        # tasks like those that run now take at least as long as these have taken until now
        age = scheduling.now() - self._since[ws.address]
        ages = {ts.group.name: age for ts in run if age > self.settings.stall_timeout}
        last, *durations = self._last.get(ws.address, ("", 0.0, 0.0))
        ages[last] = max(ages.get(last, 0.0), min(durations))
        return [self._queued(ts, ages.get(ts.group.name, 0.0)) for ts in wait]

    def _is_held_for(self, ts: TaskState, ws: WorkerState) -> bool:
        """Whether an entry of the tasks that are ready for a worker is not an old one."""
        return ts.state == states.NO_WORKER and self.roots.homes.get(ts.key) == ws.address

    def _queued(self, ts: TaskState, least: float) -> QueuedTask:
        """A task that takes a number of seconds at least on its home worker."""
        seconds, size = scheduling.usual_result(ts) or (least, 0)
        may_move = is_placed(ts) and ts.key not in self._asked and position(ts) is None
        moved = size + sum(max(0, read.nbytes) for read in ts.dependencies)
        return QueuedTask(ts.key, max(seconds, least), seconds, moved, may_move)

    def _move(self, move: Move) -> None:
        ts = self.scheduler.tasks[move.key]
        self._asked[move.key] = move.worker
        if ts.state == states.NO_WORKER:
            self.roots.change_home(ts, move.worker)
        else:
            scheduling.steal(self.scheduler, ts, move.worker)
