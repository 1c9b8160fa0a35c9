"""Idle workers steal tasks of home workers that are late.

Work stealing of distributed would move tasks of a plan whenever a worker is idle for a moment, so
that they are excluded from it.  Here, a worker that has been idle for a while steals tasks that
their home worker would end much later: because a function takes long, which no plan knows, or
because the machine of the home worker is slow.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dasktile._compat.distributed import scheduling, states
from dasktile.runtime.scheduler.priorities import position
from dasktile.runtime.scheduler.roots import Roots, is_placed
from dasktile.runtime.settings import RuntimeSettings
from dasktile.schedule.stealing import Queue, QueuedTask, steals

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import TaskState, WorkerState

#: Seconds of a task that does not count where it is looked at how slow a worker is.
_BRIEF = 0.02

#: Share of the latest task in the means of a layer, at least.
_LATEST = 0.25


@dataclass(slots=True)
class _Usual:
    """What the tasks of a layer take: the latest ones count most.

    Attributes
    ----------
    count
        Number of those that have ended.
    seconds, nbytes
        Means of their durations, and of the bytes of their results.
    """

    count: int = 0
    seconds: float = 0.0
    nbytes: float = 0.0

    def add(self, seconds: float, nbytes: int) -> None:
        self.count += 1
        share = max(1 / self.count, _LATEST)
        self.seconds += share * (seconds - self.seconds)
        self.nbytes += share * (nbytes - self.nbytes)


@dataclass(frozen=True, slots=True)
class _Last:
    """The last tasks that have ended on a worker and were not brief.

    Parameters
    ----------
    layer
        Name of the layer of the last one.
    seconds
        The time that it took.
    before
        The time of the one before; 0 if that was of another layer.
    """

    layer: Any = None
    seconds: float = 0.0
    before: float = 0.0


class Stealing:
    """Lets idle workers steal tasks from late home workers.

    Parameters
    ----------
    scheduler
        The scheduler of the tasks; all methods are called on its event loop.
    roots
        The root tasks that are held.
    settings
        Constants; by default those of `RuntimeSettings`.
    """

    def __init__(
        self, scheduler: Scheduler, roots: Roots, settings: RuntimeSettings | None = None
    ) -> None:
        self.scheduler = scheduler
        self.roots = roots
        self.settings = settings or RuntimeSettings()
        #: By key of a task that is stolen, the address of the thief, until it has ended.
        self._thieves: dict[Any, str] = {}
        #: What the tasks of a layer take, of those layers of which tasks have ended last.
        self._usual: dict[Any, _Usual] = {}
        #: By address of a worker.
        self._last: dict[str, _Last] = {}
        #: Addresses of the workers on which a task has ended since the last check.
        self._ended: set[str] = set()
        #: By late worker, the time since which no task has ended there.
        self._since: dict[str, float] = {}
        #: Addresses of the workers that were idle at the last check, or have stolen tasks since.
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
        Whether it was stolen by that worker.
        """
        if worker is not None and timed:
            self._ended.add(worker)
            seconds = sum(
                part["stop"] - part["start"] for part in timed if part["action"] == "compute"
            )
            layer = _layer(key)
            usual = self._usual.get(layer)
            if usual is None:
                usual = self._usual[layer] = _Usual()
                if len(self._usual) > self.settings.max_layers:
                    del self._usual[next(iter(self._usual))]
            usual.add(seconds, max(0, self.scheduler.tasks[key].nbytes))
            if seconds > _BRIEF:
                last = self._last.get(worker, _Last())
                # the first task may have waited for imports
                before = seconds if seconds > self.settings.stall_timeout else 0.0
                before = last.seconds if last.layer == layer else before
                self._last[worker] = _Last(layer, seconds, before)
        return bool(self._thieves) and self._thieves.pop(key, "") == worker

    def note_thief(self, key: Any, worker: str) -> None:
        """Note that a held task was sent to another worker than its home worker."""
        self._thieves[key] = worker

    def forget(self, key: Any) -> None:
        """Note that a task will not run."""
        self._thieves.pop(key, None)

    def clear(self) -> None:
        """Forget what is known of workers and tasks, as none run."""
        tables = (self._thieves, self._usual, self._last, self._ended, self._since, self._idle)
        for known in tables:
            known.clear()

    def check(self) -> bool:
        """Let idle workers steal if others are late; called regularly.

        Returns
        -------
        Whether to check again soon.
        """
        self._keep_stolen()
        idle, late = self._idle_and_late()
        now, ended, since = scheduling.now(), self._ended, self._since
        self._since = {home: now if home in ended else since.get(home, now) for home in late}
        self._ended = set()
        before, self._idle = self._idle, set(idle)
        if not idle or not late:
            return False
        queues = [self._queue(self.scheduler.workers[home]) for home in self._latest(late)]
        if not any(queue.last for queue in queues):
            return False
        # not those that are idle for a moment between two tasks of their own
        free = [worker for worker in idle if worker in before]
        if not free:
            return True
        found = steals(
            queues,
            {worker: idle[worker] for worker in sorted(free, key=self.roots.place)},
            self.scheduler.bandwidth,
            self.settings.steal_gain,
            self.settings.steal_horizon,
        )
        for steal in found:
            ts = self.scheduler.tasks[steal.key]
            self._thieves[steal.key] = steal.thief
            if ts.state == states.NO_WORKER:
                self.roots.change_home(ts, steal.thief)
            else:
                scheduling.steal(self.scheduler, ts, steal.thief)
            # it may steal again as soon as these have ended
            self._idle.add(steal.thief)
        return bool(found)

    def _keep_stolen(self) -> None:
        """Keep tasks that were stolen from being stolen again by distributed."""
        for key, thief in self._thieves.items():
            ts = self.scheduler.tasks.get(key)
            if ts is not None and ts.processing_on and ts.processing_on.address == thief:
                scheduling.keep_from_stealing(self.scheduler, ts)

    def _idle_and_late(self) -> tuple[dict[str, int], dict[str, int]]:
        """By address: the free threads of workers, and the tasks that wait on the other workers."""
        ready, running = self.roots.ready, self.scheduler.running
        idle: dict[str, int] = {}
        late: dict[str, int] = {}
        for address, ws in self.scheduler.workers.items():
            # threads of a paused worker begin no task
            threads = ws.nthreads if ws in running else 0
            free = threads - len(ws.processing) + len(ws.long_running)
            count = len(ready.get(address, ())) - free
            if count > 0:
                late[address] = count
            elif free > 0 and address not in ready:
                idle[address] = free
        return idle, late

    def _latest(self, late: Mapping[str, int]) -> list[str]:
        """The workers that will probably be busy for longest, with the tasks that wait there."""
        now, workers = scheduling.now(), self.scheduler.workers

        def seconds(home: str) -> float:
            each = max(self._last.get(home, _Last()).seconds, now - self._since[home], _BRIEF)
            return late[home] * each / workers[home].nthreads

        place = self.roots.place
        return heapq.nsmallest(
            self.settings.steal_from, late, key=lambda home: (-seconds(home), place(home))
        )

    def _queue(self, ws: WorkerState) -> Queue:
        """The tasks that wait for a thread of a worker."""
        most, tasks = self.settings.steal_most, self.scheduler.tasks
        # those that the worker was asked for, and has refused, have begun
        begun = {ts for ts in ws.processing if self._is_refused(ts, ws)} if self._thieves else set()
        sent = [ts for ts in ws.processing if ts not in ws.long_running and ts not in begun]
        if len(sent) <= most:
            sent.sort(key=_priority)
        is_paused = ws not in self.scheduler.running
        run = 0 if is_paused else max(0, ws.nthreads - len(begun))
        begun.update(sent[:run])
        # the last entries of a heap are among the larger ones, and there may be very many
        ready = self.roots.ready.get(ws.address, [])
        entries = [tasks[key] for _, _, key in ready[-most:] if key in tasks]
        held = sorted((ts for ts in entries if self._is_held_for(ts, ws)), key=_priority)
        age = scheduling.now() - self._since[ws.address]
        age = age if age > self.settings.stall_timeout else 0.0
        seconds = self._least_seconds(ws, begun, age)
        last = [
            self._queued(ts, seconds.get(_layer(ts.key), age if is_paused else 0.0))
            for ts in [*sent[run:][-most:], *held][-most:]
            if self._may_be_stolen(ts)
        ]
        return Queue(ws.address, ws.nthreads, len(sent[run:]) + len(ready), last)

    def _is_refused(self, ts: TaskState, ws: WorkerState) -> bool:
        thief = self._thieves.get(ts.key, ws.address)
        return thief != ws.address and not scheduling.is_in_flight(self.scheduler, ts)

    def _is_held_for(self, ts: TaskState, ws: WorkerState) -> bool:
        """Whether an entry of the tasks that are ready for a worker is not an old one."""
        return ts.state == states.NO_WORKER and self.roots.homes.get(ts.key) == ws.address

    def _may_be_stolen(self, ts: TaskState) -> bool:
        # tasks of `dasktile.plan` run in its order
        return (
            is_placed(ts)
            and position(ts) is None
            and not scheduling.is_in_flight(self.scheduler, ts)
        )

    def _least_seconds(
        self, ws: WorkerState, begun: Iterable[TaskState], age: float
    ) -> dict[Any, float]:
        """By layer, the seconds that its tasks take at least on a worker.

        Those that have begun there have not ended for `age` seconds.
        """
        least = {_layer(ts.key): age for ts in begun}
        last = self._last.get(ws.address, _Last())
        least[last.layer] = max(least.get(last.layer, 0.0), min(last.seconds, last.before))
        return least

    def _queued(self, ts: TaskState, least: float) -> QueuedTask:
        usual = self._usual.get(_layer(ts.key))
        seconds, nbytes = (least, 0.0) if usual is None else (usual.seconds, usual.nbytes)
        inputs = sum(max(0, read.nbytes) for read in ts.dependencies)
        return QueuedTask(ts.key, max(seconds, least), seconds, int(nbytes) + inputs)


def _layer(key: Any) -> Any:
    """The name of the layer of a task, or its key if it has none."""
    return key[0] if type(key) is tuple else key


def _priority(ts: TaskState) -> Any:
    return ts.priority or ()
