"""The scheduler's side: tasks of a plan run where the plan says, and roots wait their turn.

Everything is read off the names of keys (:mod:`dasktile.schedule.placement`), so that
graphs of any client, optimised in any way, find their place.  Tasks that belong to no plan
are not touched.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from distributed import Scheduler, SchedulerPlugin
from distributed.metrics import monotonic
from distributed.scheduler import TaskState, WorkerState

from dasktile.runtime.dashboard import add_page, remove_page
from dasktile.runtime.prometheus import add_collector, remove_collector
from dasktile.runtime.replicas import keep_as_before, keep_for_readers
from dasktile.schedule.homes import Homes, Layer
from dasktile.schedule.placement import MARK, token, worker_order

logger = logging.getLogger("dasktile")

#: Stands for a worker in the restrictions of tasks that wait for their turn.
HELD = "dasktile://held"

#: Where the scheduler says to clients what they need to know to plan.
METADATA = "dasktile"

#: Failures after which the plugin stops doing anything.
MAX_ERRORS = 10

#: Seconds between two looks at whether the plugin is still wanted, and at workers that have
#: come to run or have slots again without a transition of any task.
WATCH = 0.5


class TileSchedulerPlugin(SchedulerPlugin):
    """Places the tasks of optimised collections.

    Parameters
    ----------
    placement
        False only to count what it would do.

    Attributes
    ----------
    predicted
        Bytes that workers are to receive so that a layer can run, by the layer's name.
    placed
        Tasks that were given a home.
    errors
        Times that the plugin failed; after a few it lets go of everything.
    """

    name = "dasktile"

    def __init__(self, placement: bool = True) -> None:
        self.placement = placement
        self.predicted: dict[str, int] = {}
        self.placed = 0
        self.errors = 0
        self.homes = Homes([])
        #: Ready roots by home, most urgent first: (priority, number, key).
        self._held: dict[str, list[tuple[Any, int, Any]]] = {}
        self._turn = itertools.count()
        #: Homes of tasks that are held back, ready or not.
        self._home: dict[Any, str] = {}
        #: Names of arrays that tasks follow, by their tokens.
        self._leaders: dict[str, str] = {}
        self._holding = False
        self._woken = False
        self._watching = False

    # -- life ---------------------------------------------------------------------------

    async def start(self, scheduler: Scheduler) -> None:
        self.attach(scheduler)

    def attach(self, scheduler: Scheduler) -> None:
        """Begin; :meth:`start` for those who cannot wait."""
        self.scheduler = scheduler
        self.loop = asyncio.get_running_loop()
        self._lay_out()
        add_page(scheduler, self)
        add_collector(scheduler, self)
        if self.placement:
            keep_for_readers(scheduler)

    def detach(self) -> None:
        """Leave the scheduler as if the plugin had never been there."""
        self._let_go()
        for ts in self.scheduler.tasks.values():
            if _is_ours(ts):
                _set_free(ts)
        remove_page(self.scheduler)
        remove_collector(self.scheduler)
        keep_as_before(self.scheduler)
        said = self.scheduler.task_metadata.get(METADATA, {})
        said.pop("workers", None)
        if not said:
            self.scheduler.task_metadata.pop(METADATA, None)

    async def close(self) -> None:
        remove_page(self.scheduler)
        remove_collector(self.scheduler)
        self._home.clear()
        self._held.clear()

    def restart(self, scheduler: Scheduler) -> None:
        self._held.clear()
        self._home.clear()

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        self._guard(self._lay_out)
        self._wake()

    def remove_worker(
        self, scheduler: Scheduler, worker: str, *, stimulus_id: str, **kwargs: Any
    ) -> None:
        self._guard(self._lose, worker)

    # -- what happens -------------------------------------------------------------------

    def update_graph(
        self, scheduler: Scheduler, *, tasks: Iterable[Any] = (), **kwargs: Any
    ) -> None:
        if self.placement and self.errors < MAX_ERRORS:
            self._guard(self._place, tasks)

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if finish == "processing":
            if key in self._home:
                self._home.pop(key)
            name = key[0] if type(key) is tuple else key
            if type(name) is str and "dasktile" in name:
                self._guard(self._keep_from_thieves, key)
        elif finish == "no-worker":
            self._guard(self._hold, key)
        elif self._held and start == "processing":
            self._wake()
        if finish == "forgotten" and key in self._home:
            del self._home[key]
            if not self._home:
                self._held.clear()

    def _guard(self, function: Callable[..., None], *arguments: Any) -> None:
        """Nothing that goes wrong here may harm the scheduler."""
        try:
            function(*arguments)
        except Exception:
            self.errors += 1
            if self.errors == 1:
                logger.exception("dasktile's scheduler plugin failed; tasks run as without it")
            self._let_go()

    # -- workers ------------------------------------------------------------------------

    def _lay_out(self) -> None:
        workers = self.scheduler.workers
        order = worker_order({address: (ws.host, ws.name) for address, ws in workers.items()})
        self.homes.replace(order)
        if self.placement:
            self.scheduler.task_metadata.setdefault(METADATA, {})["workers"] = order

    def _lose(self, address: str) -> None:
        """Give the tasks of a worker that is gone new homes, evenly.

        Roots that are held for it go to whoever has room when their turn comes.
        """
        self._lay_out()
        order = self.homes.workers
        if not order:
            return
        orphans = [
            ts
            for ts in self.scheduler.tasks.values()
            if ts.worker_restrictions == {address}
            and ts.loose_restrictions
            and ts.state in ("released", "waiting", "no-worker")
            and self.homes.layer(_name(ts.key)) is not None
        ]
        orphans.sort(key=lambda ts: (ts.priority or (), str(ts.key)))
        for number, ts in enumerate(orphans):
            _send(ts, order[number % len(order)])
        self._wake()

    # -- homes --------------------------------------------------------------------------

    def _place(self, keys: Iterable[Any]) -> None:
        """Give new tasks of a plan their homes."""
        every = self.scheduler.tasks
        layers: dict[Any, Layer | None] = {}
        homes: dict[Any, str] = {}
        others: list[Any] = []
        self._holding = not math.isinf(self.scheduler.WORKER_SATURATION)
        # Called for every task of every graph: one look at a name for each layer.
        for key in keys:
            name = key[0] if type(key) is tuple else key
            try:
                layer = layers[name]
            except KeyError:
                layer = layers[name] = self.homes.layer(name)
            if layer is None or layer.placement is None:
                others.append(key)
                continue
            ts = every[key]
            if _is_new(ts):
                home = layer.home(key[1:]) or self._beside(layer, key[1:], homes)
                if home is not None:
                    homes[key] = home
                    self._send_home(ts, home)
        if homes:
            self._place_others(map(every.__getitem__, others), homes)
        if self._home:
            self._watch()
        self.placed += len(homes)
        self._predict(layers)

    def _place_others(self, others: Iterable[TaskState], homes: dict[Any, str]) -> None:
        """Tasks of the same graph whose names say nothing: they are beside what they touch.

        Slices are where the tile is, roots where they are read, and what comes after the
        plan, like results that must keep their keys, where most of what it reads is.
        """
        new = sorted(filter(_is_new, others), key=lambda ts: ts.priority or ())
        for ts in new:
            if not ts.dependencies:
                readers = list(ts.dependents)
                # slices have no home yet
                readers += [far for near in readers if near.key not in homes
                            for far in near.dependents]  # fmt: skip
                self._join(ts, readers, homes)
        for ts in new:
            if ts.dependencies:
                self._join(ts, ts.dependencies, homes)

    def _join(self, ts: TaskState, touched: Iterable[TaskState], homes: dict[Any, str]) -> None:
        """Send a task to where most of others are."""
        counts: dict[str, int] = {}
        for other in touched:
            home = self._whereabouts(other, homes)
            if home is not None:
                counts[home] = counts.get(home, 0) + 1
        if counts:
            homes[ts.key] = max(counts, key=lambda address: (counts[address], address))
            self._send_home(ts, homes[ts.key])

    def _predict(self, layers: dict[Any, Layer | None]) -> None:
        """Note what layers are to receive."""
        shortest: dict[str, tuple[str, int]] = {}
        for name, layer in layers.items():
            if layer is not None and layer.placement is not None and layer.placement.predicted:
                # a task that was made one with others has two keys, alike in the end
                end = name.rpartition(MARK)[2]
                if end not in shortest or len(name) < len(shortest[end][0]):
                    shortest[end] = name, layer.placement.predicted
        for name, predicted in shortest.values():
            self.predicted[name] = self.predicted.get(name, 0) + predicted

    def _beside(self, layer: Layer, index: Sequence[int], homes: dict[Any, str]) -> str | None:
        """Where the block of an array is that a task follows."""
        block = layer.followed(index)
        if block is None or layer.placement is None or layer.placement.follow is None:
            return None
        sought = layer.placement.follow[0]
        if sought not in self._leaders:
            groups = self.scheduler.task_groups
            self._leaders = {token(name): name for name in groups if isinstance(name, str)}
        if sought not in self._leaders:
            return None
        ts = self.scheduler.tasks.get((self._leaders[sought], *block))
        return None if ts is None else self._whereabouts(ts, homes)

    def _whereabouts(self, ts: TaskState, homes: dict[Any, str]) -> str | None:
        """Where a tile is or will be; None if nobody knows."""
        if ts.who_has:
            return min((ws.address for ws in ts.who_has), key=self.homes.place)
        if ts.key in homes:
            return homes[ts.key]
        if ts.key in self._home:
            return self._home[ts.key]
        if ts.processing_on is not None:
            address: str = ts.processing_on.address
            return address
        if ts.worker_restrictions:
            return min(ts.worker_restrictions, key=self.homes.place)
        return None

    def _send_home(self, ts: TaskState, home: str) -> None:
        if self._holding and _is_root(ts):
            self._home[ts.key] = home
            ts.worker_restrictions = _only(HELD)
        else:
            _send(ts, home)

    def _keep_from_thieves(self, key: Any) -> None:
        ts = self.scheduler.tasks[key]
        if ts.loose_restrictions and ts.worker_restrictions:
            keep_from_thieves(self.scheduler, ts)

    # -- roots --------------------------------------------------------------------------

    def _hold(self, key: Any) -> None:
        ts = self.scheduler.tasks[key]
        if not _is_ours(ts):
            return
        if key not in self._home:
            # No worker runs.  Of tasks whose home is gone the scheduler would not think again
            # when one does.
            restrictions: Any = ts.worker_restrictions
            [self._home[key]] = restrictions
            ts.worker_restrictions = _only(HELD)
            ts.loose_restrictions = False
            self._watch()
        waiting = self._held.setdefault(self._home[key], [])
        heapq.heappush(waiting, (ts.priority, next(self._turn), key))
        self._wake()

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self.loop.call_soon(self._awake)

    def _awake(self) -> None:
        self._woken = False
        self._guard(self._release)

    def _release(self) -> None:
        """Send every worker as many roots as it has slots for."""
        recommendations: dict[Any, Any] = {}
        running = {ws.address: self._slots(ws) for ws in self.scheduler.running}
        for address in sorted(self._held, key=self.homes.place):
            waiting = self._held[address]
            while waiting and running:
                home = address
                if home not in running:
                    # gone, leaving or paused: whoever has most room
                    home = max(running, key=lambda other: (running[other], other))
                if running[home] <= 0:
                    break
                _, _, key = heapq.heappop(waiting)
                ts = self.scheduler.tasks.get(key)
                if ts is None or ts.state != "no-worker" or key not in self._home:
                    continue
                _send(ts, home)
                recommendations[key] = "processing"
                running[home] -= 1
            if not waiting:
                del self._held[address]
        if recommendations:
            self.scheduler.transitions(recommendations, stimulus_id=_stimulus())

    def _slots(self, ws: WorkerState) -> int:
        """Tasks that a worker may be given before it is as full as the scheduler allows."""
        most = max(1, math.ceil(ws.nthreads * self.scheduler.WORKER_SATURATION))
        # Tasks that wait for others, which they have submitted, take no slot.
        return most - (len(ws.processing) - len(ws.long_running))

    # -- letting go ---------------------------------------------------------------------

    def _watch(self) -> None:
        """While tasks are held, look whether the plugin has not been taken off."""
        if not self._watching:
            self._watching = True
            limit = self.scheduler.no_workers_timeout
            self.loop.call_later(min(WATCH, limit / 4) if limit else WATCH, self._look)

    def _look(self) -> None:
        self._watching = False
        registered = self.scheduler.plugins.get(self.name)
        if registered is None:
            self.detach()
        elif registered is not self:
            self._let_go()
        elif self._home:
            self._guard(self._renew)
            self._wake()
            self._watch()

    def _renew(self) -> None:
        """Start the time again after which tasks fail for want of a worker.

        Those that are held have one, and wait for their turn.  From when no worker runs
        the time does pass.
        """
        if not self.scheduler.no_workers_timeout:
            return
        lacking = self.scheduler._no_workers_since
        unrunnable, now = self.scheduler.unrunnable, monotonic()
        for key in self._home:
            ts = self.scheduler.tasks.get(key)
            if ts in unrunnable and (lacking is None or unrunnable[ts] <= lacking):
                del unrunnable[ts]  # they are in order of time
                unrunnable[ts] = now

    def _let_go(self) -> None:
        """Hand everything that is held to the scheduler."""
        held = [self.scheduler.tasks[key] for key in self._home if key in self.scheduler.tasks]
        for ts in held:
            _set_free(ts)
        self._home.clear()
        self._held.clear()
        if held:
            # Not now: the scheduler may be in the middle of a transition.
            self.loop.call_soon(self._hand_over, held)

    def _hand_over(self, held: Iterable[TaskState]) -> None:
        recommendations: dict[Any, Any] = {
            ts.key: "processing"
            for ts in held
            if ts.state == "no-worker" and self.scheduler.tasks.get(ts.key) is ts
        }
        if recommendations:
            self.scheduler.transitions(recommendations, stimulus_id=_stimulus())


@functools.lru_cache(maxsize=10_000)
def _only(address: str) -> Any:
    """Restrictions to one worker, the same object for all its tasks; nobody may change it."""
    return frozenset([address])


def _is_ours(ts: TaskState) -> bool:
    """True where the restrictions are those of :func:`_only`; all others are sets."""
    restrictions: Any = ts.worker_restrictions
    return type(restrictions) is frozenset


def _send(ts: TaskState, home: str) -> None:
    ts.worker_restrictions = _only(home)
    ts.loose_restrictions = True


def _set_free(ts: TaskState) -> None:
    ts.worker_restrictions = None
    ts.loose_restrictions = False


def _name(key: Any) -> Any:
    return key[0] if type(key) is tuple else key


def _is_new(ts: TaskState) -> bool:
    """True for a task that is to run, and of which no user has said where."""
    return (
        ts.state == "released"
        and ts.run_spec is not None
        and not ts.worker_restrictions
        and not ts.host_restrictions
        and not ts.resource_restrictions
        and not ts.actor
    )


def _is_root(ts: TaskState) -> bool:
    """True for a task that can run at once: it reads nothing, or what is no task's result."""
    for read in ts.dependencies:
        if read.dependencies or read.who_has or not _is_data(read):
            return False
    return True


def _is_data(ts: TaskState) -> bool:
    return type(ts.run_spec).__name__ == "DataNode"


def _stimulus() -> str:
    return "dasktile-roots"


def keep_from_thieves(scheduler: Scheduler, ts: TaskState) -> None:
    """Take a task that was just sent to its home out of reach of work stealing.

    There is no public way.  Checked with distributed 2026.7.1 and 2026.8.0.
    """
    stealing: Any = scheduler.extensions.get("stealing")
    if stealing is not None:
        stealing.remove_key_from_stealable(ts)
        stealing.unknown_durations.get(ts.prefix.name, set()).discard(ts)
