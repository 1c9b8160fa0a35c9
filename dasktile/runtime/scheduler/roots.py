"""Roots wait for their turn: a worker is given no more of them than it has slots for.

Distributed queues roots on the scheduler until a worker has a slot, but only those that may
run anywhere.  Those that have a home are held here instead, in the state ``no-worker``, under
restrictions to a worker that there is none of, until their home has a slot.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from dasktile._compat import distributed as internals

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import TaskState

#: Seconds without any task for its home after which a root goes to another worker, if that is
#: idle.
STALL = 2.0

#: Stands for a worker in the restrictions of tasks that wait for their turn.
HELD = "dasktile://held"

_STIMULUS = "dasktile-roots"


@functools.lru_cache(maxsize=10_000)
def only(address: str) -> Any:
    """Restrictions to one worker, the same object for all its tasks; nobody may change it."""
    return frozenset([address])


def is_ours(ts: TaskState) -> bool:
    """True where the restrictions are those of :func:`only`; all others are sets."""
    restrictions: Any = ts.worker_restrictions
    return type(restrictions) is frozenset


def send(ts: TaskState, home: str) -> None:
    """Let a task run at home, and elsewhere only if there is no such worker."""
    internals.restrict(ts, only(home), loose=True)


def set_free(ts: TaskState) -> None:
    """Let a task run anywhere."""
    internals.restrict(ts, None, loose=False)


def is_root(ts: TaskState) -> bool:
    """True for a task that can run at once: it reads nothing, or what is no task's result."""
    for read in ts.dependencies:
        if read.dependencies or read.who_has or not _is_data(read):
            return False
    return True


def _is_data(ts: TaskState) -> bool:
    return type(ts.run_spec).__name__ == "DataNode"


class Roots:
    """Tasks that are held back, and when they are let go.

    Parameters
    ----------
    scheduler
        Whose tasks they are; on its event loop everything here happens.
    place
        Sorts addresses.
    guard
        Calls a function and deals with whatever it raises.
    usable
        False to hold nothing back, because distributed lacks what that needs.

    Attributes
    ----------
    homes
        Where tasks that are held back are to run, whether they could already or not.
    ready
        Those that could run, by home, most urgent first: (priority, number, key).
    """

    def __init__(
        self,
        scheduler: Scheduler,
        place: Callable[[str], Any],
        guard: Callable[..., None],
        usable: bool = True,
    ) -> None:
        self.scheduler = scheduler
        self.homes: dict[Any, str] = {}
        self.ready: dict[str, list[tuple[Any, int, Any]]] = {}
        self.woken = False
        self._place = place
        self._guard = guard
        self._usable = usable
        self._loop = asyncio.get_running_loop()
        self._turn = itertools.count()
        #: When homes of tasks that are ready were last seen to take one.
        self._served: dict[str, float] = {}

    @property
    def holding(self) -> bool:
        """False where root tasks are sent to workers at once."""
        return self._usable and internals.limits_roots(self.scheduler)

    def keep(self, ts: TaskState, home: str) -> None:
        """Hold a task back."""
        self.homes[ts.key] = home
        internals.restrict(ts, only(HELD), loose=False)

    def hold(self, ts: TaskState) -> None:
        """Note that a task could run now, of those with a home."""
        if not self._usable:
            # no worker runs; the next one that does may have it
            set_free(ts)
            return
        if ts.key not in self.homes:
            # No worker runs.  Of tasks whose home is gone the scheduler would not think again
            # when one does.
            restrictions: Any = ts.worker_restrictions
            [home] = restrictions
            self.keep(ts, home)
        self._queue(ts)

    def _queue(self, ts: TaskState) -> None:
        home = self.homes[ts.key]
        if home not in self.ready:
            self.ready[home] = []
        heapq.heappush(self.ready[home], (ts.priority, next(self._turn), ts.key))
        if not self.woken:
            self.wake()

    def move(self, ts: TaskState, home: str) -> None:
        """Give a task that is held back another home."""
        self.homes[ts.key] = home
        if ts.state == internals.NO_WORKER:
            self._queue(ts)

    def forget(self, key: Any) -> None:
        """Note that a task runs, or never will."""
        if self.homes.pop(key, None) is not None and not self.homes:
            self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.homes.clear()
        self.ready.clear()
        self._served.clear()

    # -- letting go ---------------------------------------------------------------------

    def wake(self) -> None:
        """Look for free slots, as soon as the scheduler is done with what it does."""
        if self._usable and not self.woken:
            self.woken = True
            self._loop.call_soon(self._awake)

    def _awake(self) -> None:
        self.woken = False
        self._guard(self.release)

    def release(self) -> None:
        """Send every worker as many roots as it has slots for."""
        recommendations: dict[Any, Any] = {}
        slots = {ws.address: internals.slots(self.scheduler, ws) for ws in self.scheduler.running}
        for home in sorted(self.ready, key=self._place):
            waiting = self.ready[home]
            while waiting and slots:
                priority, _, key = waiting[0]
                ts = self.scheduler.tasks.get(key)
                if (
                    ts is None
                    or ts.state != internals.NO_WORKER
                    or ts.priority != priority
                    or self.homes.get(key) != home
                    or key in recommendations
                ):
                    # it has run, moved, or was asked for again
                    heapq.heappop(waiting)
                    continue
                chosen = self._chosen(home, priority, slots)
                if chosen is None:
                    break
                heapq.heappop(waiting)
                if chosen == home:
                    self._served.pop(home, None)
                send(ts, chosen)
                recommendations[key] = internals.PROCESSING
                slots[chosen] -= 1
            if not waiting:
                del self.ready[home]
        if recommendations:
            internals.transition(self.scheduler, recommendations, _STIMULUS)

    def _chosen(self, home: str, priority: Any, slots: dict[str, int]) -> str | None:
        """The worker for the most urgent task of a home, if there is room for it."""
        if home in slots:
            if slots[home] > 0 or (slots[home] == 0 and self._before_queue(priority)):
                return home
            if internals.now() - self._served.get(home, math.inf) <= STALL:
                return None
        # gone, leaving, paused, or busy for long: whoever has most room
        other = max(slots, key=lambda address: (slots[address], address))
        if slots[other] <= 0 or (home in slots and other in self.ready):
            return None
        return other

    def _before_queue(self, priority: Any) -> bool:
        """True where the scheduler's own queue is full of what is less urgent.

        It takes a slot before anybody else hears that there is one.
        """
        first = internals.first_queued(self.scheduler)
        return first is not None and bool(priority < first.priority)

    def look(self) -> None:
        """Now and then: what no transition tells."""
        # Those that are held have a worker, and wait for their turn.
        internals.restart_timeouts(self.scheduler, self.homes)
        now = internals.now()
        self._served = {home: self._served.get(home, now) for home in self.ready}
        self.wake()

    def let_go(self) -> None:
        """Hand everything that is held to the scheduler."""
        every = self.scheduler.tasks
        self.free([every[key] for key in self.homes if key in every])
        self.clear()

    def free(self, tasks: Iterable[TaskState]) -> None:
        """Let tasks run anywhere."""
        held = []
        for ts in tasks:
            set_free(ts)
            if self.homes.pop(ts.key, None) is not None:
                held.append(ts)
        if held:
            # Not now: the scheduler may be in the middle of a transition.
            self._loop.call_soon(self._hand_over, held)

    def _hand_over(self, held: Iterable[TaskState]) -> None:
        recommendations: dict[Any, Any] = {
            # by way of its queue
            ts.key: internals.RELEASED
            for ts in held
            if ts.state == internals.NO_WORKER and self.scheduler.tasks.get(ts.key) is ts
        }
        if recommendations:
            internals.transition(self.scheduler, recommendations, _STIMULUS)
