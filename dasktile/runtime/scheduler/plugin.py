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
from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from distributed import Scheduler, SchedulerPlugin, Status

from dasktile._compat.dask import fused_keys
from dasktile._compat.distributed import checks, metadata, plugins, scheduling, states
from dasktile._compat.distributed.features import Feature
from dasktile.lower.bundle_tasks import has_bundle, is_pick, keys_in
from dasktile.runtime.nextuse import HINTED, HintSender
from dasktile.runtime.scheduler.dashboard import add_page, remove_page
from dasktile.runtime.scheduler.left import LeftWorkers
from dasktile.runtime.scheduler.priorities import position, set_priorities
from dasktile.runtime.scheduler.prometheus import add_collector, remove_collector
from dasktile.runtime.scheduler.replicas import keep_for_readers, restore_policy
from dasktile.runtime.scheduler.roots import (
    HELD,
    Roots,
    combining_tasks,
    is_cut_data,
    is_data,
    is_placed,
    is_root,
    reads_only_data,
    restrict_to_home,
    unrestrict,
)
from dasktile.runtime.scheduler.rows import layer_graph, predicted_rows, rows
from dasktile.runtime.scheduler.windows import Windows
from dasktile.runtime.settings import RuntimeSettings
from dasktile.runtime.worker.plugin import fold_counts
from dasktile.schedule.families import families
from dasktile.schedule.homes import Homes, LayerHomes, LayerTable
from dasktile.schedule.placement import MARK, mesh_place, primary, token, worker_order

if TYPE_CHECKING:
    from distributed.scheduler import TaskState

logger = logging.getLogger("dasktile")

#: Topic of the scheduler's metadata that clients read to plan: the order of workers.
METADATA = "dasktile"

#: States of tasks that are not sent to a worker yet.
_PENDING = (states.RELEASED, states.WAITING, states.NO_WORKER)


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
        self.errors = 0
        self.failures = 0
        self.unavailable: dict[Feature, str] = {}
        self.homes = Homes([])
        #: The counts of workers that left, for `dasktile.metrics`.
        self.left = LeftWorkers(self.settings)
        self._names: dict[str, object] = {}
        #: Names of arrays whose placement other layers follow, by token.
        self._followed_names: dict[str, str] = {}
        self._reassigning = False
        #: Whether the homes are in mesh order, as if all workers had joined at once.
        self._in_order = False
        #: Whether tasks have home workers; asked for at every transition of a task.
        self._places = False

    # -- start and end -------------------------------------------------------------------

    def counts(self) -> dict[str, Any]:
        """The counts of `dasktile.metrics`, for a plugin that replaces this one."""
        return {
            "predicted": self.predicted,
            "rows": self.rows,
            "placed": self.placed,
            "left": self.left.without_present(),
        }

    def resume(self, counts: Mapping[str, Any]) -> None:
        """Continue to count where a plugin that this one replaces has ended; before the start."""
        self.predicted = counts["predicted"]
        self.rows = counts["rows"]
        self.placed = counts["placed"]
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
        if self._has(Feature.PLACEMENT):
            self._reset_homes()
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
            metadata.withdraw(self.scheduler, METADATA, "workers")

    async def close(self) -> None:
        self._check_timer.cancel()
        if self._has(Feature.PAGE):
            remove_page(self.scheduler)
        remove_collector(self.scheduler)
        self.roots.clear()
        self.windows.clear()

    def restart(self, scheduler: Scheduler) -> None:
        self.roots.clear()
        self.windows.clear()
        # the workers, which are new, count from zero as well
        self.predicted.clear()
        self.placed = 0
        self.left.restart()
        self._publish()

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
                self._guard(self._check_workers)
            if self.roots.holding:
                self._guard(self.roots.check)
            if len(self.windows):
                self._guard(self.windows.check)
            self._check_timer = self.loop.call_later(self.settings.check_interval, self._check)

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
            self.roots.request_release()

    def remove_worker(
        self, scheduler: Scheduler, worker: str, *, stimulus_id: str, **kwargs: Any
    ) -> None:
        if self._has(Feature.METRICS):
            self._count_left(worker)
        if self._has(Feature.PLACEMENT):
            self._guard(self._worker_removed, worker)
            self.roots.request_release()

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

    def _idle(self) -> bool:
        """Whether no task runs or could run, so that no home worker is in use."""
        return scheduling.nothing_to_run(self.scheduler, is_placed)

    def _mesh_order(self) -> list[str]:
        """Addresses of the workers, in the order of mesh positions."""
        return worker_order(
            {
                address: (ws.host, ws.name)
                for address, ws in self.scheduler.workers.items()
                if not _is_leaving(ws)
            }
        )

    def _reset_homes(self) -> None:
        """Assign mesh positions to the present workers, regardless of earlier ones."""
        self._names = {address: ws.name for address, ws in self.scheduler.workers.items()}
        self.homes.replace(self._mesh_order())
        self._in_order = True
        self._publish()

    def _place_in(self, address: str) -> Any:
        ws = self.scheduler.workers[address]
        return mesh_place(address, ws.host, ws.name)

    def _changed_while_idle(self, address: str) -> None:
        """Assign mesh positions anew after one worker has joined or left."""
        if not self._in_order:
            self._reset_homes()
            return
        # at once: thousands of workers may join one after the other
        present = self.scheduler.workers
        order = [
            worker
            for worker in self.homes.workers
            if worker != address and not _is_leaving(present.get(worker))
        ]
        self._names.pop(address, None)
        if address in present:
            self._names[address] = present[address].name
            insort(order, address, key=self._place_in)
        self.homes.replace(order)
        self._publish()

    def _check_workers(self) -> None:
        """Add workers that no event has reported, as those whose retirement was cancelled."""
        present = self.scheduler.workers
        known = self._in_order and present.keys() == set(self.homes.workers)
        if known and not any(map(_is_leaving, present.values())):
            return
        order = self._mesh_order()
        if order != self.homes.workers:
            if self._idle():
                self._reset_homes()
            else:
                for address in sorted(set(order).difference(self.homes.workers)):
                    self._worker_added(address)

    def _publish(self) -> None:
        if self.placement and self._has(Feature.PLACEMENT):
            metadata.publish(self.scheduler, METADATA, "workers", list(self.homes.workers))

    def _worker_added(self, address: str) -> None:
        name = self.scheduler.workers[address].name
        if self._idle():
            self._changed_while_idle(address)
            return
        self._in_order = False
        namesakes = [lost for lost in self.homes.vacant if self._names.get(lost) == name]
        self._names[address] = name
        # a restarted worker has the name of the one that it replaces
        self.homes.join(address, namesakes[0] if namesakes else None)
        self._publish()
        self._reassign_later()

    def _worker_removed(self, address: str) -> None:
        if self._idle():
            self._changed_while_idle(address)
            return
        self._in_order = False
        self.homes.lose(address)
        self._publish()
        self._reassign_later()

    def _reassign_later(self) -> None:
        if not self._reassigning:
            self._reassigning = True
            delay = self.settings.reassign_delay
            self.loop.call_later(delay, self._guard, self._reassign_homes)

    def _reassign_homes(self) -> None:
        """Restrict pending tasks to their home workers among the present workers."""
        self._reassigning = False
        alive = self.homes.workers
        if not alive:
            return
        grouped = self.roots.families.of
        pending = [
            ts
            for key, ts in self.scheduler.tasks.items()
            if is_placed(ts) and ts.state in _PENDING and key not in grouped
        ]
        pending.sort(key=lambda ts: ts.priority or ())
        layers = LayerTable(self.homes)
        free: list[TaskState] = []
        load = Counter(dict.fromkeys(alive, 0))
        for ts in pending:
            key: Any = ts.key
            name = key[0] if type(key) is tuple else key
            layer = layers[name]
            if layer is None and (planned := _planned_in(ts, layers)) is not None:
                key = planned
                layer = layers[key[0]]
            before = self._location(ts, {})
            if layer is None and any(map(_is_marked, (ts.key, *keys_in(ts.run_spec)))):
                free.append(ts)  # the plan has fewer workers than there are now
                continue
            home = None
            if layer is not None and layer.placement is not None:
                home = layer.home(key[1:]) or self._home_of_followed(layer, key[1:], {})
            home = home or before
            if home is None or home not in load:
                home = min(alive, key=lambda address: load[address])
            load[home] += 1
            if home == before:
                continue
            if ts.key in self.roots.homes:
                self.roots.change_home(ts, home)
            else:
                restrict_to_home(ts, home)
        self.roots.free(free)
        self.roots.request_release()

    # -- tasks --------------------------------------------------------------------------

    def update_graph(
        self, scheduler: Scheduler, *, tasks: Iterable[Any] = (), **kwargs: Any
    ) -> None:
        if self.failures < self.settings.max_failures:
            tasks = list(tasks)
            if self._has(Feature.ORDER):
                self._guard(set_priorities, scheduler, tasks)
            if self.hints:
                self._guard_hints(self.hint_sender.graph_added, tasks)
            if self._has(Feature.PLACEMENT):
                self._guard(self._place, tasks)
            self._guard(self._hold_plan, tasks)

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if self._places:
            self._track_roots(key, start, finish, kwargs.get("worker"))
        if len(self.windows):
            self._guard(self.windows.ended, key, finish)
        if self.hints and finish in HINTED:
            self._guard_hints(self.hint_sender.transition, key, start, finish)

    def _hold_plan(self, keys: Iterable[Any]) -> None:
        """Hold the tasks of a graph that `dasktile.plan` has ordered until it is their turn."""
        tasks = [self.scheduler.tasks[key] for key in keys]
        self.windows.add([ts for ts in tasks if position(ts) is not None and _is_new(ts)])

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
        elif start in (states.PROCESSING, states.MEMORY):
            if finish == states.RELEASED:
                ts = self.scheduler.tasks[key]
                if ts.waiters or ts.who_wants:
                    self._guard(self._hold_lost_root, ts)
            if self.roots.any_ready and start == states.PROCESSING:
                self.roots.request_release(worker)

    def _hold_lost_root(self, ts: TaskState) -> None:
        """Hold a root task that is recomputed because its result was lost."""
        if not is_placed(ts) or not self.roots.throttled:
            return
        home = self._location(ts, {})
        if home is not None and home != HELD and reads_only_data(ts):
            self.roots.hold(ts, home)

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

    # -- homes --------------------------------------------------------------------------

    def _place(self, keys: Iterable[Any]) -> None:
        """Restrict new tasks of a plan to their home workers."""
        # the event of a worker that has just joined may still be pending
        self._check_workers()
        leaving = [
            address
            for address in self.homes.workers
            if _is_leaving(self.scheduler.workers.get(address))
        ]
        for address in leaving:
            self.homes.lose(address)
        if leaving:
            self._in_order = False
            self._publish()
        tasks = self.scheduler.tasks
        layers = LayerTable(self.homes)
        homes: dict[Any, str] = {}
        between: list[TaskState] = []
        others: list[Any] = []
        first: dict[Any, TaskState] = {}
        bundles: list[TaskState] = []
        self._followed_names = {}
        restrict = self._restrict_function()
        # Called for every task of every graph: each layer name is parsed once, and keys of fused
        # tasks are read only if the name of the task is not of a plan.
        for key in keys:
            name = key[0] if type(key) is tuple else key
            layer = layers[name]
            ts = tasks[key]
            if not _is_new(ts):
                continue
            planned = key
            if layer is None:
                planned = _planned_in(ts, layers)
                if planned is None:
                    others.append(key)
                    continue
                name = planned[0]
                layer = layers[name]
            # a task of the layer itself, if there is one
            if name not in first or (planned is key and not _is_marked(first[name].key)):
                first[name] = ts
                for part in _of_plans(fused_keys(ts.run_spec), layers):
                    first.setdefault(part[0], ts)
            if has_bundle(ts.run_spec):
                bundles.append(ts)
            assert layer is not None
            if layer.placement is None:
                between.append(ts)
                continue
            home = layer.home(planned[1:]) or self._home_of_followed(layer, planned[1:], homes)
            if home is not None:
                homes[key] = home
                restrict(ts, home)
        if homes:
            self._place_others(between, [tasks[key] for key in others], homes)
        elif self.placement and self.roots.throttled:
            self._group_roots([tasks[key] for key in others])
        self.placed += len(homes)
        self._predict(first, bundles, layers)

    def _place_others(
        self, between: list[TaskState], others: list[TaskState], homes: dict[Any, str]
    ) -> None:
        """Place tasks whose layer names have no placement next to tasks that have one.

        A slice of a plan is placed on the worker of its tile, or of the large block of data that it
        is cut from; a pick on that of its bundle; another task that reads only data of the graph on
        that of its readers; and a task that is the only reader of its inputs on that of these.

        Parameters
        ----------
        between
            Tasks of a plan whose layer has no placement of its own.
        others
            Tasks that belong to no plan.
        homes
            Home workers by key; those of the placed tasks are added.
        """
        restrict = self._restrict_function()
        near = {ts.key for ts in between}
        between.sort(key=lambda ts: ts.priority or ())
        after = []
        new = list(filter(_is_new, others))
        for ts in [*filter(is_cut_data, new), *between, *new]:
            if ts.key in homes:
                continue
            # data with a home is a tile, and only its slices are sent
            if not reads_only_data(ts) or any(read.key in homes for read in ts.dependencies):
                if ts.key not in near:
                    after.append(ts)
                continue
            # slices have no home worker yet; other tasks read them
            slices = {
                reader.key
                for reader in ts.dependents
                if (reader.key in near or len(reader.dependencies) == 1) and reader.key not in homes
            }
            readers = list(ts.dependents)
            for reader in ts.dependents:
                readers += reader.dependents if reader.key in slices else ()
            if all(
                reader.key in homes or reader.key in near or reader.key in slices
                for reader in readers
            ):
                self._place_near(ts, readers, homes, restrict)
        for ts in between:
            if ts.key in homes:
                continue
            self._place_near(ts, ts.dependencies, homes, restrict, near)
        for ts in sorted(after, key=lambda ts: ts.priority or ()):
            alone = all(len(read.dependents) == 1 for read in ts.dependencies) or is_pick(
                ts.run_spec
            )
            if alone and all(read.key in homes for read in ts.dependencies):
                self._place_near(ts, ts.dependencies, homes, restrict)

    def _group_roots(self, new: list[TaskState]) -> None:
        """Hold root tasks of a graph without a plan in families, each of which one worker runs."""
        settings, threads = self.settings, self.scheduler.total_nthreads
        roots = [
            ts
            for ts in new
            if _is_new(ts)
            and is_root(ts)
            and not is_data(ts)
            and position(ts) is None
            and scheduling.is_queued_when_ready(self.scheduler, ts)
        ]
        most = min(settings.max_family, len(roots) // (4 * max(1, threads)))
        too_many = len(roots) > settings.max_grouped
        if too_many or len(self.homes.workers) < 2 or most < settings.min_family:
            return
        roots.sort(key=lambda ts: ts.priority or ())
        # a task that reads most of them is the end of the graph, or a barrier
        combining = combining_tasks(min(settings.max_combined, len(roots) // 2))
        grouped = families(roots, combining, most)
        if 2 * len(grouped) <= len(roots):
            for family in grouped:
                self.roots.hold_family(family)

    def _place_near(
        self,
        ts: TaskState,
        touched: Iterable[TaskState],
        homes: dict[Any, str],
        restrict: Callable[[TaskState, str], None],
        near: Collection[Any] = (),
    ) -> None:
        """Place a task on the worker that has most of its neighbours.

        Neighbours in `near`, which have no home worker of their own, only break ties.
        """
        counts: dict[str, tuple[int, int]] = {}
        for other in touched:
            home = homes.get(other.key) or self._location(other, homes)
            if home is not None:
                planned, placed = counts.get(home, (0, 0))
                counts[home] = planned + (other.key not in near), placed + 1
        if counts:
            [best, *rest] = counts
            if rest:
                # of equal ones the first in mesh order
                best = max(sorted(counts, key=self.homes.place), key=counts.__getitem__)
            homes[ts.key] = best
            restrict(ts, best)

    def _home_of_followed(self, layer: LayerHomes, index: Any, homes: dict[Any, str]) -> str | None:
        """The worker of the block that a task follows; None if it follows none."""
        block = layer.followed(index)
        if block is None or layer.placement is None or layer.placement.follow is None:
            return None
        if not self._followed_names:
            names = scheduling.array_names(self.scheduler)
            self._followed_names = {token(name): name for name in names if isinstance(name, str)}
        leader = self._followed_names.get(layer.placement.follow[0])
        ts = self.scheduler.tasks.get((leader or "", *block))
        return None if ts is None else self._location(ts, homes)

    def _location(self, ts: TaskState, homes: dict[Any, str]) -> str | None:
        """The worker that has or will have a result; None if that is unknown."""
        if ts.who_has:
            addresses = sorted((ws.address for ws in ts.who_has), key=self.homes.place)
            index = ts.key[1:] if type(ts.key) is tuple else ()
            return primary([i for i in index if isinstance(i, int)], addresses)
        if ts.key in homes:
            return homes[ts.key]
        if ts.key in self.roots.homes:
            return self.roots.homes[ts.key]
        if ts.key in self.roots.families.of or ts.key in self.windows:
            return None
        if ts.processing_on is not None:
            address: str = ts.processing_on.address
            return address
        if ts.worker_restrictions:
            return min(ts.worker_restrictions, key=self.homes.place)
        return None

    def _restrict_function(self) -> Callable[[TaskState, str], None]:
        """The function that restricts a task to its home worker, by the configuration."""
        if not self.placement:
            return lambda ts, home: None
        if not self.roots.throttled:
            return restrict_to_home
        hold = self.roots.hold

        def restrict(ts: TaskState, home: str) -> None:
            (hold if is_root(ts) else restrict_to_home)(ts, home)

        return restrict

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


def _of_plans(keys: Iterable[Any], layers: LayerTable) -> list[Any]:
    """The keys of tasks of a plan."""
    return [key for key in keys if type(key) is tuple and layers[key[0]] is not None]


def _planned_in(ts: TaskState, layers: LayerTable) -> Any:
    """The key of the last task of a plan that a task runs; None if there is none.

    A task whose layer has a placement is preferred.
    """
    keys = keys_in(ts.run_spec)
    if not keys:
        return None  # as most tasks
    parts = _of_plans(keys, layers)
    placed = [
        key
        for key in parts
        if (layer := layers[key[0]]) is not None and layer.placement is not None
    ]
    return next(reversed(placed or parts), None)


def _is_marked(key: Any) -> bool:
    """Whether a key is of a layer of a plan."""
    return type(key) is tuple and isinstance(key[0], str) and MARK in key[0]


def _is_leaving(ws: Any) -> bool:
    return ws is None or ws.status in (Status.closing_gracefully, Status.closing, Status.closed)


def _is_new(ts: TaskState) -> bool:
    """Whether a task is to run and has no restrictions by the user."""
    return (
        ts.state == states.RELEASED
        and ts.run_spec is not None
        and not ts.worker_restrictions
        and not ts.host_restrictions
        and not ts.resource_restrictions
        and not ts.actor
    )
