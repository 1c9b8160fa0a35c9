"""The root throttle: a worker is sent no more root tasks than it has slots for.

Distributed queues root tasks on the scheduler until a worker has a slot, but only tasks without
worker restrictions.  Root tasks with a home worker are held here instead: they are in the state
``no-worker``, restricted to the address `HELD` of no worker, until their home worker has a slot.

Root tasks without a plan are held, too, if the results of some are combined: the tasks of a family
have no home worker, but run on the worker that runs the first of them.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dasktile._compat.distributed import scheduling, states
from dasktile.runtime.scheduler.slots import Free, Slots
from dasktile.runtime.settings import RuntimeSettings
from dasktile.schedule.families import FamilyQueue
from dasktile.schedule.joining import CUT_DATA

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import TaskState

#: The address in the worker restrictions of root tasks that are held.
HELD = "dasktile://held"

_STIMULUS = "dasktile-roots"


@functools.lru_cache(maxsize=10_000)
def restriction_to(address: str) -> Any:
    """Restrictions to one worker: the same immutable object for all of its tasks."""
    return frozenset([address])


def is_placed(ts: TaskState) -> bool:
    """Whether a task has restrictions by :func:`restriction_to`; all others are plain sets."""
    restrictions: Any = ts.worker_restrictions
    return type(restrictions) is frozenset


def restrict_to_home(ts: TaskState, home: str) -> None:
    """Let a task run on its home worker, and elsewhere only if there is no such worker."""
    scheduling.restrict(ts, restriction_to(home), loose=True)


def unrestrict(ts: TaskState) -> None:
    """Let a task run on any worker."""
    scheduling.restrict(ts, None, loose=False)


def is_root(ts: TaskState) -> bool:
    """Whether a task is a root task: it has no inputs, or only data that the graph contains."""
    for read in ts.dependencies:
        if read.dependencies or read.who_has or not is_data(read):
            return False
    return True


def reads_only_data(ts: TaskState) -> bool:
    """Whether a task reads nothing but data that the graph contains, which may be in memory."""
    return all(is_data(read) and not read.dependencies for read in ts.dependencies)


def reads_large_result(ts: TaskState) -> bool:
    """Whether a task reads a large result in memory, also if that came with a graph."""
    return any(read.who_has and (read.nbytes or 0) >= CUT_DATA for read in ts.dependencies)


def is_data(ts: TaskState) -> bool:
    """Whether a task is only data that the graph contains."""
    return type(ts.run_spec).__name__ == "DataNode"


def is_cut_data(ts: TaskState) -> bool:
    """Whether a task is a block of data that the graph contains, large, and read by several tasks.

    It is sent to one worker, which sends the others only the slices that they need.
    """
    if not is_data(ts) or len(ts.dependents) < 2:
        return False
    value: Any = getattr(ts.run_spec, "value", None)
    # of NumPy or CuPy; an array in a store has a size, too
    return type(value).__name__ == "ndarray" and value.nbytes >= CUT_DATA


def _hold(ts: TaskState) -> None:
    """Let a task run on no worker."""
    scheduling.restrict(ts, restriction_to(HELD), loose=False)


def count_reads(ts: TaskState) -> int:
    """How many results of other tasks a task reads."""
    return sum(not is_data(read) for read in ts.dependencies)


class Roots:
    """The root tasks that are held, and when they are released.

    Parameters
    ----------
    scheduler
        The scheduler of the tasks; all methods are called on its event loop.
    place
        Sort key of the addresses of workers.
    guard
        Calls a function and handles every exception of it.
    available
        False to hold no task, because distributed lacks a name that this needs.
    settings
        Constants; by default those of `RuntimeSettings`.

    Attributes
    ----------
    homes
        Home workers of the tasks that are held, by key.
    ready
        The held tasks that could run, by home worker: heaps of (priority, number, key).
    families
        The tasks that are held without a home worker.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        place: Callable[[str], Any],
        guard: Callable[..., None],
        available: bool = True,
        settings: RuntimeSettings | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.settings = settings or RuntimeSettings()
        self.homes: dict[Any, str] = {}
        self.ready: dict[str, list[tuple[Any, int, Any]]] = {}
        self.families = FamilyQueue()
        #: Whether :meth:`release` will be called soon.
        self.release_requested = False
        #: Addresses of the workers whose slots or tasks have changed, and whether any may have.
        self._changed: set[str] = set()
        self._all_changed = False
        #: Home workers with ready tasks that do not run, or have been busy for long.
        self._stalled: list[str] = []
        #: Number of running workers when :meth:`release` was called last.
        self._running = 0
        self.place = place
        #: Called with the key of a task that is sent to another worker than its home worker, and
        #: that one's address.
        self.sent_elsewhere: Callable[[Any, str], None] = lambda key, worker: None
        self._guard = guard
        self._available = available
        self._loop = asyncio.get_running_loop()
        self._counter = itertools.count()
        #: By home worker with ready tasks: the seconds (of the scheduler's clock) since which it
        #: was sent none.
        self._last_served: dict[str, float] = {}

    @property
    def throttled(self) -> bool:
        """False where root tasks are sent to workers at once."""
        return self._available and scheduling.limits_roots(self.scheduler)

    @property
    def holding(self) -> bool:
        """Whether a task is held."""
        return bool(self.homes or self.families.of)

    def __len__(self) -> int:
        """Number of tasks that are held."""
        return len(self.homes) + len(self.families.of)

    @property
    def any_ready(self) -> bool:
        """Whether a task that is held could run."""
        return bool(self.ready) or self.families.any_ready

    def hold(self, ts: TaskState, home: str) -> None:
        """Hold a task for its home worker."""
        self.homes[ts.key] = home
        _hold(ts)

    def hold_family(self, tasks: Sequence[TaskState]) -> None:
        """Hold tasks for the worker that will run the first of them."""
        self.families.add(ts.key for ts in tasks)
        for ts in tasks:
            _hold(ts)
        # after the scheduler's current event
        self._loop.call_soon(self._guard, self._free_unneeded, tasks)

    def _free_unneeded(self, tasks: Sequence[TaskState]) -> None:
        """Free those tasks of a family that will not run, as their results are not needed."""
        for ts in tasks:
            if ts.key in self.families.of and ts.state == states.RELEASED:
                unrestrict(ts)
                self.forget(ts.key)

    def add_ready(self, ts: TaskState) -> None:
        """Add a task that could run now, on its home worker or that of its family."""
        if not self._available:
            # no worker runs; the next one that does may run it
            unrestrict(ts)
            return
        if ts.key in self.families.of:
            self.families.push(ts.key, ts.priority)
            self.request_release()
            return
        if ts.key not in self.homes:
            # No worker runs.  The scheduler does not reconsider tasks restricted to a worker that
            # has left when another one runs.
            restrictions: Any = ts.worker_restrictions
            [home] = restrictions
            self.hold(ts, home)
        self._push_ready(ts)

    def _push_ready(self, ts: TaskState) -> None:
        home = self.homes[ts.key]
        if home not in self.ready:
            self.ready[home] = []
        heapq.heappush(self.ready[home], (ts.priority, next(self._counter), ts.key))
        self.request_release(home)

    def change_home(self, ts: TaskState, home: str) -> None:
        """Give a task that is held another home worker."""
        self.homes[ts.key] = home
        if ts.state == states.NO_WORKER:
            self._push_ready(ts)

    def forget(self, key: Any) -> bool:
        """Remove a task that runs, will not run, or may run anywhere; whether it was held."""
        if key not in self.homes and key not in self.families.of:
            return False
        self.homes.pop(key, None)
        self.families.of.pop(key, None)
        if not self.holding:
            self.clear()
        return True

    def clear(self) -> None:
        """Remove all tasks."""
        self.homes.clear()
        self.ready.clear()
        self.families.clear()
        self._last_served.clear()
        self._stalled.clear()

    # -- releasing ----------------------------------------------------------------------

    def request_release(self, worker: str | None = None) -> None:
        """Have :meth:`release` called after the scheduler's current event.

        Parameters
        ----------
        worker
            The address of the worker whose slots or tasks have changed; None if any may have.
        """
        if worker is None:
            self._all_changed = True
        else:
            self._changed.add(worker)
        if self._available and not self.release_requested:
            self.release_requested = True
            self._loop.call_soon(self._run_release)

    def worker_joined(self, worker: str) -> None:
        """Look at a worker that has joined, and at no other one for its sake."""
        if self.any_ready:
            self._running += self.scheduler.workers.get(worker) in self.scheduler.running
            self.request_release(worker)

    def worker_left(self, worker: str) -> None:
        """Look at all workers if tasks were ready for one that has left."""
        if worker in self.ready or self.families.is_served(worker):
            if worker in self.ready and worker not in self._stalled:
                self._stalled.append(worker)
            self.request_release()
        else:
            # not the present number: another change since the last release would go unnoticed
            self._running -= 1

    def _run_release(self) -> None:
        self.release_requested = False
        self._guard(self.release)

    def release(self) -> None:
        """Send workers as many root tasks as they have slots for.

        There are thousands of workers, and this is called for every task: a worker whose slots and
        tasks have not changed since the last call is not looked at, as it would have got tasks
        then.  All workers are looked at when one for which tasks are ready has left, when the
        number of running ones has changed otherwise, and after :meth:`check`: nothing says that a
        task does not need its slot any more, or was stolen.
        Tasks of a home worker that cannot run them wait for any other worker with a free slot.
        """
        running = len(self.scheduler.running)
        if not self.any_ready:
            self._changed, self._all_changed, self._running = set(), False, running
            return
        slots = Slots(self.scheduler)
        if self._all_changed or running != self._running:
            homes, workers = list(self.ready), slots.running()
            self.families.leave(set(workers))
        else:
            homes = [home for home in self._changed if home in self.ready]
            workers = [worker for worker in self._changed if worker in slots]
        self._changed, self._all_changed, self._running = set(), False, running
        homes.sort(key=self.place)
        workers.sort(key=self.place)
        free = Free(workers, slots)
        recommendations: dict[Any, Any] = {}
        if self.families.of:
            self._release_families(workers, slots, recommendations, urgent=True)
        for home in homes:
            self._release_home(home, free, slots, recommendations)
        for home in self._stalled:
            if free.most() is None:
                break
            if home in self.ready:
                self._release_home(home, free, slots, recommendations)
        if self.families.of:
            self._release_families(workers, slots, recommendations, urgent=False)
        if recommendations:
            scheduling.transition(self.scheduler, recommendations, _STIMULUS)

    def _release_home(
        self,
        home: str,
        free: Free,
        slots: Slots,
        recommendations: dict[Any, Any],
    ) -> None:
        """Send a home worker its tasks, or another one with free slots where it cannot run them."""
        waiting = self.ready[home]
        while waiting:
            priority, _, key = waiting[0]
            has_moved = self.homes.get(key) != home
            if has_moved or not self._is_ready(priority, key, recommendations):
                heapq.heappop(waiting)
                continue
            worker = self._choose_worker(home, priority, free, slots)
            if worker is None:
                return
            heapq.heappop(waiting)
            if worker == home:
                self._last_served.pop(home, None)
            else:
                self.sent_elsewhere(key, worker)
            self._send(key, worker, slots, recommendations)
        del self.ready[home]

    def _release_families(
        self,
        workers: Iterable[str],
        slots: Slots,
        recommendations: dict[Any, Any],
        urgent: bool,
    ) -> None:
        """Send workers tasks of their family, then of the next family that no worker runs.

        Parameters
        ----------
        workers
            Addresses of running workers, in the order in which they get tasks.
        slots
            Free slots by worker.
        recommendations
            The tasks that are sent; they are added.
        urgent
            Whether only tasks are sent that precede the first task with this home worker.
        """
        families = self.families
        for worker in workers:
            before = self.ready.get(worker) if urgent else None
            if urgent and not before:
                continue
            while slots[worker] >= 0:
                priority = families.priority(worker)
                if priority is None:
                    if slots[worker] <= 0 or urgent or not families.divide(worker):
                        break
                    continue
                if before and before[0][0] < priority:
                    break
                if slots[worker] == 0 and not self._precedes_queue(priority):
                    break
                member = families.take(worker)
                if member is not None and self._is_ready(*member, recommendations):
                    self._send(member[1], worker, slots, recommendations)

    def _is_ready(self, priority: Any, key: Any, sent: Collection[Any]) -> bool:
        """Whether a task can run; False for old entries: it has run, or was submitted again."""
        ts = self.scheduler.tasks.get(key)
        return (
            ts is not None
            and ts.state == states.NO_WORKER
            and bool(ts.priority == priority)
            and key not in sent
        )

    def _send(self, key: Any, worker: str, slots: Slots, recommendations: dict[Any, Any]) -> None:
        restrict_to_home(self.scheduler.tasks[key], worker)
        recommendations[key] = states.PROCESSING
        slots[worker] -= 1

    def _choose_worker(self, home: str, priority: Any, free: Free, slots: Slots) -> str | None:
        """The worker for the first task of a home worker; None if it stays held."""
        if home in slots:
            if slots[home] > 0 or (slots[home] == 0 and self._precedes_queue(priority)):
                return home
            waited = scheduling.now() - self._last_served.get(home, math.inf)
            if waited <= self.settings.stall_timeout:
                return None
        # the home worker has left, retires, is paused, or was busy for long
        other = free.most()
        return None if home in slots and other in self.ready else other

    def _precedes_queue(self, priority: Any) -> bool:
        """Whether a task precedes all tasks in the scheduler's own queue.

        The scheduler fills a free slot from its queue before any plugin is called, so that tasks
        with a home worker would never get one.
        """
        first = scheduling.first_queued(self.scheduler)
        return first is not None and bool(priority < first.priority)

    def check(self) -> None:
        """Check for held tasks that time out or stall; called regularly."""
        # Tasks that are held do have a worker: they must not fail for lack of one.
        scheduling.restart_timeouts(self.scheduler, self._held())
        now, slots = scheduling.now(), Slots(self.scheduler)
        self._last_served = {home: self._last_served.get(home, now) for home in self.ready}
        self._stalled = [
            home
            for home, since in self._last_served.items()
            if home not in slots or now - since > self.settings.stall_timeout
        ]
        self.request_release()

    def free_all(self) -> None:
        """Return all tasks that are held to the scheduler, without restrictions."""
        tasks = self.scheduler.tasks
        self.free([tasks[key] for key in self._held() if key in tasks])
        self.clear()

    def _held(self) -> list[Any]:
        return [*self.homes, *self.families.of]

    def free(self, tasks: Iterable[TaskState]) -> None:
        """Let tasks run on any worker."""
        held = []
        for ts in tasks:
            unrestrict(ts)
            if self.forget(ts.key):
                held.append(ts)
        if held:
            # Not now: the scheduler may be in the middle of a transition.
            self._loop.call_soon(scheduling.return_held, self.scheduler, held, _STIMULUS)
