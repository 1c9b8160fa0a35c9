"""Windows of plans: tasks of `dasktile.plan` are sent to workers nearly in the order of the plan.

A worker starts the first of the ready tasks that it has.  The task that follows in a plan often
becomes ready only when the scheduler has handled the end of the one before; meanwhile the worker
starts another one.  If that may be any ready task of the plan, results are made and read back long
before the plan needs them, and the plan's swaps are not those that happen.  So the scheduler holds
the tasks of a plan, except the first few of those that have not ended: the window.

A task that is ready before the window reaches it is in the state ``no-worker``, restricted to the
address `BEHIND` of no worker.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dasktile._compat.distributed import scheduling, states
from dasktile.runtime.settings import RuntimeSettings

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import TaskState

#: The address in the worker restrictions of tasks that are held.
BEHIND = "dasktile://order"

#: States of tasks that have ended, or never will.
_ENDED = frozenset({states.MEMORY, states.ERRED, states.FORGOTTEN})

#: States of tasks that will end.
_PENDING = frozenset({states.WAITING, states.NO_WORKER, states.QUEUED, states.PROCESSING})

_STIMULUS = "dasktile-order"


class _Window:
    """The tasks of one plan.

    Attributes
    ----------
    held
        Tasks behind the window, in the order of the plan.
    open
        Keys of the tasks in the window.
    served
        Time at which a task was opened last, in seconds of the scheduler's clock.
    """

    def __init__(self, tasks: Iterable[TaskState]) -> None:
        self.held = deque(tasks)
        self.open: set[Any] = set()
        self.served = scheduling.now()


class Windows:
    """The windows of all plans whose tasks are on the scheduler.

    Parameters
    ----------
    scheduler
        The scheduler of the tasks; all methods are called on its event loop.
    guard
        Calls a function and handles every exception of it.
    available
        False to hold no task, because distributed lacks a name that this needs.
    settings
        Constants; by default those of `RuntimeSettings`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        guard: Callable[..., None],
        available: bool = True,
        settings: RuntimeSettings | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.settings = settings or RuntimeSettings()
        self._guard = guard
        self._available = available
        self._loop = asyncio.get_running_loop()
        #: By key of a task that has not ended: the window of its plan.
        self._of: dict[Any, _Window] = {}
        self._windows: dict[_Window, None] = {}
        #: Windows from which a task has left since :meth:`_advance_all` was called.
        self._moved: dict[_Window, None] = {}

    def __len__(self) -> int:
        """Number of tasks of plans that have not ended."""
        return len(self._of)

    def __contains__(self, key: object) -> bool:
        """Whether a task is held."""
        window = self._of.get(key)
        return window is not None and key not in window.open

    @property
    def available(self) -> bool:
        """False where tasks are sent to workers as soon as they are ready."""
        return self._available and scheduling.limits_roots(self.scheduler)

    def add(self, tasks: Iterable[TaskState]) -> None:
        """Hold the new tasks of one plan; those with restrictions of their own are not held."""
        free = [ts for ts in tasks if ts.state == states.RELEASED and not ts.worker_restrictions]
        free.sort(key=lambda ts: ts.priority or ())
        if not free or not self.available:
            return
        window = _Window(free)
        self._windows[window] = None
        for ts in free:
            self._of[ts.key] = window
            scheduling.restrict(ts, {BEHIND}, loose=False)
        self._advance(window)

    def ended(self, key: Any, finish: str) -> None:
        """Handle the new state of a task; called for every transition of every task."""
        if finish in _ENDED:
            window = self._of.pop(key, None)
            if window is not None:
                window.open.discard(key)
                # the task may run again, as one of no plan
                _let_go(self.scheduler.tasks.get(key))
                self._advance_later(window)

    def _advance_later(self, window: _Window) -> None:
        """Advance a window after the scheduler's current event."""
        if not self._moved:
            self._loop.call_soon(self._guard, self._advance_all)
        self._moved[window] = None

    def _advance_all(self) -> None:
        moved, self._moved = self._moved, {}
        ready: list[Any] = []
        for window in moved:
            ready += self._advance(window)
        self._send(ready)

    def _send(self, ready: Sequence[Any]) -> None:
        # the scheduler begins with the last one
        recommendations: dict[Any, Any] = dict.fromkeys(reversed(ready), states.PROCESSING)
        if recommendations:
            scheduling.transition(self.scheduler, recommendations, _STIMULUS)

    def _advance(self, window: _Window, least: int = 0) -> list[Any]:
        """Open tasks; return the keys of those that are ready.

        Parameters
        ----------
        window
            The window.
        least
            Tasks that are to be open at least.
        """
        size = self.settings.plan_window * max(1, self.scheduler.total_nthreads)
        size = max(size, least)
        ready = []
        while window.held and len(window.open) < size:
            ts = window.held.popleft()
            if self._of.get(ts.key) is not window:
                continue  # it will not run
            _let_go(ts)
            window.open.add(ts.key)
            window.served = scheduling.now()
            if ts.state == states.NO_WORKER:
                ready.append(ts.key)
        if not window.held and not window.open:
            self._windows.pop(window, None)
        return ready

    def check(self) -> None:
        """Open tasks of plans that stall; called regularly.

        A task that is not needed any more does not end, and one that waits for a lock may wait for
        a task behind the window.
        """
        scheduling.restart_timeouts(
            self.scheduler, [ts.key for ts in self.scheduler.unrunnable if ts.key in self]
        )
        now, tasks = scheduling.now(), self.scheduler.tasks
        slots = [scheduling.slots(self.scheduler, ws) for ws in self.scheduler.running]
        free = sum(max(0, count) for count in slots)
        ready: list[Any] = []
        for window in list(self._windows):
            gone = [key for key in window.open if _is_gone(tasks.get(key))]
            for key in gone:
                window.open.discard(key)
                if self._of.get(key) is window:
                    del self._of[key]
            stalls = now - window.served > self.settings.stall_timeout
            ready += self._advance(window, len(window.open) + free if stalls else 0)
        self._send(ready)

    def free_all(self) -> None:
        """Return all tasks that are held to the scheduler, without restrictions."""
        held = [
            ts for window in self._windows for ts in window.held if self._of.get(ts.key) is window
        ]
        for ts in held:
            _let_go(ts)
        self.clear()
        # not now: the scheduler may be in the middle of a transition
        self._loop.call_soon(scheduling.return_held, self.scheduler, held, _STIMULUS)

    def clear(self) -> None:
        """Forget all tasks."""
        self._of.clear()
        self._windows.clear()
        self._moved.clear()


def _let_go(ts: TaskState | None) -> None:
    """Let a task run on any worker if it is held here, and not by others."""
    if ts is not None and ts.worker_restrictions == {BEHIND}:
        scheduling.restrict(ts, None, loose=False)


def _is_gone(ts: TaskState | None) -> bool:
    """Whether a task will not end."""
    return ts is None or ts.state not in _PENDING
