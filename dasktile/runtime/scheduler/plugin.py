"""The scheduler plugin: it restricts the tasks of a plan to their home workers.

Home workers are computed from the names of layers (:mod:`dasktile.schedule.placement`), so that
this works for graphs of any client, after any optimisation: a task into which a task of a plan is
fused has the home of that one.  A task that belongs to no plan has a home worker only if it is
next to tasks of a plan: a slice of a tile, a root task that only tasks of the plan read, or a task
that is the only reader of its inputs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from distributed import Scheduler, SchedulerPlugin

from dasktile._compat.distributed import checks, plugins, scheduling, states
from dasktile._compat.distributed.features import Feature
from dasktile.runtime.nextuse import HINTED, HintSender
from dasktile.runtime.scheduler.dashboard import add_page, remove_page
from dasktile.runtime.scheduler.left import LeftWorkers
from dasktile.runtime.scheduler.members import Members
from dasktile.runtime.scheduler.placing import Placing, is_new
from dasktile.runtime.scheduler.priorities import ORDER, position, set_priorities
from dasktile.runtime.scheduler.prometheus import add_collector, remove_collector
from dasktile.runtime.scheduler.replicas import keep_for_readers, restore_policy
from dasktile.runtime.scheduler.roots import Roots, is_placed, unrestrict
from dasktile.runtime.scheduler.rows import layer_graph, predicted_rows, rows
from dasktile.runtime.scheduler.stealing import Stealing
from dasktile.runtime.scheduler.windows import Windows
from dasktile.runtime.settings import RuntimeSettings
from dasktile.runtime.worker.plugin import fold_counts
from dasktile.schedule.homes import Homes, LayerTable
from dasktile.schedule.ranks import may_have_ranks

if TYPE_CHECKING:
    from distributed.scheduler import TaskState

logger = logging.getLogger("dasktile")

#: States of tasks whose beginning needs nothing.
_UNHANDLED = frozenset({states.WAITING, states.QUEUED})


class TileSchedulerPlugin(SchedulerPlugin):
    """Restricts the tasks of optimised collections to their home workers.

    Parameters
    ----------
    placement
        False to count the tasks of plans without restricting them.
    hints
        Whether to send workers hints: which tasks will read their results.
    settings
        Constants; by default those of `RuntimeSettings`.

    Attributes
    ----------
    predicted
        Predicted bytes received by workers, by layer.
    rows
        By name of a layer, the layer whose predicted bytes include those received for it.
    placed
        Number of tasks that have got a home worker.
    stolen
        Number of tasks that ran on another worker, because their home worker was late.
    errors
        Number of exceptions in the plugin, its dashboard page and its metrics.
    failures
        Number of those in the handling of tasks.  After each, all tasks are freed; after
        ``settings.max_failures`` the plugin ignores new graphs.
    unavailable
        Features that this release of distributed does not support, and why.
    """

    name = "dasktile"

    def __init__(
        self,
        placement: bool = True,
        hints: bool = True,
        settings: RuntimeSettings | None = None,
    ) -> None:
        self.settings = settings or RuntimeSettings()
        self.placement = placement
        self.hints = hints
        #: The options of the worker plugin that `dasktile.enable` registered with this plugin.
        self.spill: object = None
        self.predicted: dict[str, int] = {}
        self.rows: dict[str, str] = {}
        self.placed = 0
        self.stolen = 0
        self.errors = 0
        self.failures = 0
        self.unavailable: dict[Feature, str] = {}
        self.homes = Homes([])
        #: The counts of workers that left, for `dasktile.metrics`.
        self.left = LeftWorkers(self.settings)
        #: Number of tasks that workers have and have not finished.
        self._processing = 0
        #: Whether there may be tasks with positions in plans.
        self._any_positions = False
        self._reassigning = False
        self._checking = False
        #: Whether tasks have got home workers, whatever was counted since.
        self._any_placed = False
        #: Whether idle workers may steal tasks, and whether that is looked at again soon.
        self._steals = False
        self._stealing_soon = False
        #: Whether tasks have home workers; asked for at every transition of a task.
        self._places = False

    # -- start and end -------------------------------------------------------------------

    def counts(self) -> dict[str, Any]:
        """The counts of `dasktile.metrics`, for a plugin that replaces this one."""
        return {
            "predicted": self.predicted,
            "rows": self.rows,
            "placed": self.placed,
            "stolen": self.stolen,
            "left": self.left.without_present(),
        }

    def resume(self, counts: Mapping[str, Any]) -> None:
        """Continue to count where a plugin that this one replaces has ended; before the start."""
        self.predicted = counts["predicted"]
        self.rows = counts["rows"]
        self.placed = counts["placed"]
        self.stolen = counts["stolen"]
        self.left = counts["left"]

    async def start(self, scheduler: Scheduler) -> None:
        self.attach(scheduler)

    def attach(self, scheduler: Scheduler) -> None:
        """Begin; the synchronous part of :meth:`start`."""
        self.scheduler = scheduler
        self.loop = asyncio.get_running_loop()
        self.unavailable = checks.check_scheduler(scheduler)
        self._places = self._has(Feature.PLACEMENT)
        for address in scheduler.workers:
            self._remember(address)
        self.hints = self.hints and self._has(Feature.HINTS) and self._has(Feature.METRICS)
        self.hint_sender = HintSender(
            scheduler,
            lambda send: self.loop.call_soon(self._guard_hints, send),
            self.settings,
        )
        self.roots = Roots(
            scheduler,
            lambda address: self.homes.place(address),
            self._guard,
            self._has(Feature.ROOTS),
            self.settings,
        )
        self.windows = Windows(
            scheduler,
            self._guard,
            self._has(Feature.ROOTS) and self._has(Feature.ORDER),
            self.settings,
        )
        self.stealing = Stealing(scheduler, self.roots, self.settings)
        self._steals = (
            self.placement
            and self._has(Feature.LATE_WORKERS)
            and self._has(Feature.ROOTS)
            and self._has(Feature.STEALING)
            and scheduling.may_steal(scheduler)
        )
        if self._steals:
            self.roots.sent_elsewhere = self.stealing.note_thief
        self.members = Members(
            scheduler,
            self.homes,
            self._idle,
            self._reassign_later,
            self._check_members_later,
            self.placement and self._has(Feature.PLACEMENT),
        )
        self.placing = Placing(
            scheduler, self.homes, self.roots, self.windows, self.settings, self.placement
        )
        self._any_positions = any(position(ts) is not None for ts in scheduler.tasks.values())
        if self._has(Feature.PLACEMENT):
            self._processing = scheduling.count_processing(scheduler)
            self.members.reset()
        if self._has(Feature.METRICS):
            if self._has(Feature.PAGE):
                add_page(scheduler, self)
            add_collector(scheduler, self)
        if self.placement and self._has(Feature.PLACEMENT) and self._has(Feature.REPLICAS):
            keep_for_readers(scheduler)
        self._check_timer = self.loop.call_later(self.settings.check_interval, self._check)

    @property
    def held(self) -> int:
        """Number of root tasks that wait on the scheduler for their home worker."""
        return len(self.roots)

    def _has(self, feature: Feature) -> bool:
        return feature not in self.unavailable

    def detach(self) -> None:
        """Restore the scheduler to its state without the plugin."""
        self._check_timer.cancel()
        self._free_all()
        if self._has(Feature.PAGE):
            remove_page(self.scheduler)
        remove_collector(self.scheduler)
        if self._has(Feature.REPLICAS):
            restore_policy(self.scheduler)
        if self._has(Feature.PLACEMENT):
            self.members.withdraw()

    async def close(self) -> None:
        self._check_timer.cancel()
        if self._has(Feature.PAGE):
            remove_page(self.scheduler)
        remove_collector(self.scheduler)
        self.roots.clear()
        self.windows.clear()
        self.placing.joins.clear()

    def restart(self, scheduler: Scheduler) -> None:
        self.roots.clear()
        self.windows.clear()
        self.placing.joins.clear()
        self.stealing.clear()
        # the workers, which are new, count from zero as well
        self.predicted.clear()
        self.placed = self.stolen = 0
        self.left.restart()
        self.members.publish()

    def _check(self) -> None:
        """Handle changes that no event reports, such as the removal of this plugin."""
        registered = plugins.plugin_of(self.scheduler, self.name)
        if registered is None:
            self.detach()
        elif registered is not self:
            # the plugin that replaced this one has taken over the page, metrics and policy
            self._free_all()
        else:
            if self._has(Feature.PLACEMENT):
                self._processing = scheduling.count_processing(self.scheduler)
                self._guard(self.members.check)
            if self.roots.holding:
                self._guard(self.roots.check)
            if len(self.windows):
                self._guard(self.windows.check)
            self._check_late_workers()
            self._check_timer = self.loop.call_later(self.settings.check_interval, self._check)

    def _check_late_workers(self) -> None:
        """Let idle workers steal tasks of late ones, and look again soon if that may go on."""
        if not self._steals or plugins.plugin_of(self.scheduler, self.name) is not self:
            return
        if self._any_placed and self._processing:
            self._guard(self._steal)
        else:
            self.stealing.clear()

    def _steal(self) -> None:
        if self.stealing.check() and not self._stealing_soon:
            self._stealing_soon = True
            self.loop.call_later(self.settings.steal_interval, self._steal_again)

    def _steal_again(self) -> None:
        self._stealing_soon = False
        self._check_late_workers()

    def _guard(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function; count its exception, suppress it, and free all tasks."""
        try:
            function(*arguments)
        except Exception:
            self.errors += 1
            self.failures += 1
            if self.failures == 1:
                logger.exception("dasktile's scheduler plugin failed; tasks run as without it")
            self._free_all()

    def _guard_hints(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function of the hint sender; after an exception hints are withdrawn."""
        try:
            function(*arguments)
        except Exception:
            self.errors += 1
            self.hints = False
            logger.exception("dasktile cannot send next-use hints to workers any more")
            try:
                self.hint_sender.withdraw()
            except Exception:
                self.errors += 1
                logger.exception("dasktile cannot withdraw next-use hints")

    def send_all_hints(self) -> None:
        """Send hints for tasks that were submitted before the workers accepted hints."""
        if self.hints:
            self._guard_hints(self.hint_sender.send_all)

    def _free_all(self) -> None:
        """Let all tasks run on any worker."""
        self.roots.free_all()
        self.windows.free_all()
        self.stealing.clear()
        if not self._has(Feature.PLACEMENT):
            return
        for ts in self.scheduler.tasks.values():
            if is_placed(ts):
                unrestrict(ts)

    # -- workers ------------------------------------------------------------------------

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        self._guard(self._remember, worker)
        if self._has(Feature.PLACEMENT):
            self._guard(self._worker_added, worker)

    def remove_worker(
        self, scheduler: Scheduler, worker: str, *, stimulus_id: str, **kwargs: Any
    ) -> None:
        if self._has(Feature.METRICS):
            self._count_left(worker)
        if self._has(Feature.PLACEMENT):
            self._guard(self._worker_removed, worker)

    def _remember(self, address: str) -> None:
        """Remember a worker whose counts are added when it leaves."""
        state = self.scheduler.workers.get(address)
        if state is not None and self._has(Feature.METRICS):
            self.left.add(address, state)

    def _count_left(self, address: str) -> None:
        """Add the counts of a worker that left; another release there may send others."""
        try:
            self.left.remove(address)
        except Exception:
            self.errors += 1
            logger.exception("dasktile could not read the last heartbeat of a worker")

    def _worker_added(self, address: str) -> None:
        self.members.joined(address)
        self.roots.worker_joined(address)

    def _worker_removed(self, address: str) -> None:
        self.members.left(address)
        self.roots.worker_left(address)

    def _idle(self) -> bool:
        """Whether no task runs or could run, so that no home worker is in use."""
        # a task without a permitted worker that is ours is held
        held = self.roots.any_ready
        return scheduling.nothing_to_run(self.scheduler, self._processing, is_placed, held)

    def _check_members_later(self) -> None:
        """Have the workers checked after others have joined or left, at once for all of these."""
        if not self._checking:
            self._checking = True
            self.loop.call_later(self.settings.reassign_delay, self._check_members)

    def _check_members(self) -> None:
        self._checking = False
        if plugins.plugin_of(self.scheduler, self.name) is self:
            self._guard(self.members.check)

    def _reassign_later(self) -> None:
        """Assign pending tasks to workers after these have changed, at once for many changes."""
        if not self._reassigning:
            self._reassigning = True
            self.loop.call_later(self.settings.reassign_delay, self._guard, self._reassign_homes)

    def _reassign_homes(self) -> None:
        self._reassigning = False
        self.placing.reassign()

    # -- tasks --------------------------------------------------------------------------

    def update_graph(
        self,
        scheduler: Scheduler,
        *,
        tasks: Iterable[Any] = (),
        annotations: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if self.failures >= self.settings.max_failures:
            return
        tasks = list(tasks)
        if not self._any_positions:
            self._any_positions = annotations is None or ORDER in annotations
        if self._has(Feature.ORDER):
            names = {key[0] if type(key) is tuple else key for key in tasks}
            if self._any_positions or any(map(may_have_ranks, names)):
                self._guard(set_priorities, scheduler, tasks)
        if self.hints:
            self._guard_hints(self.hint_sender.graph_added, tasks)
        if self._has(Feature.PLACEMENT):
            self._guard(self._place, tasks)
        if self._any_positions:
            self._guard(self._hold_plan, tasks)

    def _place(self, keys: Iterable[Any]) -> None:
        """Restrict new tasks of a plan to their home workers."""
        self.members.check(events_missed=False)
        self.members.lose_leaving()
        placed = self.placing.place(keys)
        self.placed += placed.count
        self._any_placed = self._any_placed or placed.count > 0
        self._predict(placed.first, placed.bundles, placed.layers)

    def _hold_plan(self, keys: Iterable[Any]) -> None:
        """Hold the tasks of a graph that `dasktile.plan` has ordered until it is their turn."""
        tasks = [self.scheduler.tasks[key] for key in keys]
        self.windows.add([ts for ts in tasks if position(ts) is not None and is_new(ts)])

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        # called several times for every task of every graph
        if finish in _UNHANDLED:
            return
        if finish == states.PROCESSING:
            self._processing += 1
        elif start == states.PROCESSING:
            self._processing -= 1
        if self._places:
            self._track_roots(key, start, finish, kwargs.get("worker"))
            if self._steals and start == states.PROCESSING:
                worker, timed = kwargs.get("worker"), kwargs.get("startstops")
                self._guard(self._task_ended, key, worker, timed)
        if len(self.windows):
            self._guard(self.windows.ended, key, finish)
        if len(self.placing.joins):
            self._guard(self._join, key, finish)
        if self.hints and finish in HINTED:
            self._guard_hints(self.hint_sender.transition, key, start, finish)

    def _join(self, key: Any, finish: str) -> None:
        self.placed += self.placing.joins.ended(key, finish)

    def _task_ended(self, key: Any, worker: str | None, timed: Any) -> None:
        self.stolen += self.stealing.task_ended(key, worker, timed)

    def _track_roots(self, key: Any, start: str, finish: str, worker: str | None) -> None:
        """Hold or release root tasks after a transition, on a worker if that is known."""
        if finish == states.PROCESSING:
            ts = self.scheduler.tasks[key]
            if key in self.roots.families.of:
                self.roots.forget(key)
                unrestrict(ts)  # from now on it is a task as others
            elif is_placed(ts):
                self.roots.forget(key)
                self._guard(self._prevent_stealing, ts)
        elif finish == states.NO_WORKER:
            ts = self.scheduler.tasks[key]
            if is_placed(ts):
                self._guard(self.roots.add_ready, ts)
        elif finish == states.FORGOTTEN:
            self.roots.forget(key)
            self.stealing.forget(key)
        elif start in (states.PROCESSING, states.MEMORY):
            if finish == states.RELEASED:
                ts = self.scheduler.tasks[key]
                if ts.waiters or ts.who_wants:
                    self._guard(self.placing.hold_lost_root, ts)
            if self.roots.any_ready and start == states.PROCESSING:
                self.roots.request_release(worker)

    def _prevent_stealing(self, ts: TaskState) -> None:
        """Keep other workers from stealing a task from its home worker."""
        ws = ts.processing_on
        if (
            ws is not None
            and ts.worker_restrictions
            and ws.address in ts.worker_restrictions
            and self._has(Feature.STEALING)
        ):
            scheduling.keep_from_stealing(self.scheduler, ts)

    # -- predictions -------------------------------------------------------------------

    def _predict(
        self, first: dict[Any, TaskState], bundles: list[TaskState], layers: LayerTable
    ) -> None:
        """Add the predicted bytes of new layers, and the layers that receive them."""
        try:
            graph, names = layer_graph(first, bundles, layers)
            row_of = rows(graph)
        except Exception:
            # the tasks are placed already, and run as planned
            self.errors += 1
            logger.exception("dasktile could not count the predicted bytes of a graph")
            return
        for name, predicted in predicted_rows(graph, row_of).items():
            self.predicted[name] = self.predicted.get(name, 0) + predicted
        self.predicted = fold_counts(self.predicted, self.settings.max_layers)
        for layer, name in names.items():
            row_of[layer] = row_of.get(name, name)
        for name, ts in first.items():
            # tasks into which Dask has fused those of a plan
            outer = ts.key[0] if type(ts.key) is tuple else ""
            if isinstance(outer, str) and layers[outer] is None:
                row_of[outer] = row_of.get(name, name)
        # the latest graph of a layer that several graphs have in common counts
        self.rows = {layer: row for layer, row in self.rows.items() if layer not in row_of} | row_of
        while len(self.rows) > 4 * self.settings.max_layers:
            del self.rows[next(iter(self.rows))]
