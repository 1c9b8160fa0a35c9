"""The scheduler's side: tasks of a plan run where the plan says, and roots wait their turn.

Everything is read off the names of keys (:mod:`dasktile.schedule.placement`), so that
graphs of any client, optimised in any way, find their place.  Of tasks that belong to no plan
only those are given a home that stand between tasks of one: slices of its tiles, what nobody
but it reads, and results that nobody but one task makes of a tile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from distributed import Scheduler, SchedulerPlugin, Status

from dasktile._compat import distributed as internals
from dasktile._compat.distributed import Feature
from dasktile.runtime.nextuse import Teller
from dasktile.runtime.scheduler.dashboard import add_page, remove_page
from dasktile.runtime.scheduler.priorities import put_in_order
from dasktile.runtime.scheduler.prometheus import add_collector, remove_collector
from dasktile.runtime.scheduler.replicas import keep_as_before, keep_for_readers
from dasktile.runtime.scheduler.roots import HELD, Roots, is_ours, is_root, send, set_free
from dasktile.runtime.worker.plugin import folded
from dasktile.schedule.homes import Homes, LayerHomes
from dasktile.schedule.placement import MARK, primary, token, worker_order

if TYPE_CHECKING:
    from distributed.scheduler import TaskState

logger = logging.getLogger("dasktile")

#: Where the scheduler says to clients what they need to know to plan.
METADATA = "dasktile"

#: Failures after which the plugin stops doing anything.
MAX_FAILURES = 10

#: Seconds between two looks at what no transition tells.
WATCH = 0.5

#: Seconds for others to come, or go, before homes are changed.
SETTLE = 0.1

#: Layers whose predictions are told apart; beyond, the older half becomes one.
_TOLD = 1000

#: States of tasks that are not yet sent to a worker.
_PENDING = (internals.RELEASED, internals.WAITING, internals.NO_WORKER)


class TileSchedulerPlugin(SchedulerPlugin):
    """Places the tasks of optimised collections.

    Parameters
    ----------
    placement
        False only to count what it would do.
    tells
        Whether to tell workers which tasks will read their results.

    Attributes
    ----------
    predicted
        Bytes that workers are to receive so that a layer can run, by the layer's name.
    placed
        Tasks that were given a home.
    errors
        Times that anything failed in here, on the page or among the metrics.
    failures
        Those of them that concern tasks; after a few the plugin lets go of everything.
    unavailable
        Features for which this distributed lacks something, and what.
    """

    name = "dasktile"

    def __init__(self, placement: bool = True, tells: bool = True) -> None:
        self.placement = placement
        self.tells = tells
        #: How workers were told to keep their results, by whoever put this on.
        self.spill: object = None
        self.predicted: dict[str, int] = {}
        self.placed = 0
        self.errors = 0
        self.failures = 0
        self.unavailable: dict[Feature, str] = {}
        self.homes = Homes([])
        self._names: dict[str, object] = {}
        #: Names of arrays that tasks follow, by their tokens.
        self._leaders: dict[str, str] = {}
        self._settling = False

    # -- life ---------------------------------------------------------------------------

    async def start(self, scheduler: Scheduler) -> None:
        self.attach(scheduler)

    def attach(self, scheduler: Scheduler) -> None:
        """Begin; :meth:`start` for those who cannot wait."""
        self.scheduler = scheduler
        self.loop = asyncio.get_running_loop()
        self.unavailable = internals.check_scheduler(scheduler)
        self.tells = self.tells and self._has(Feature.HINTS) and self._has(Feature.METRICS)
        self.teller = Teller(scheduler, lambda send: self.loop.call_soon(self._tell, send))
        self.roots = Roots(
            scheduler,
            lambda address: self.homes.place(address),
            self._guard,
            self._has(Feature.ROOTS),
        )
        if self._has(Feature.PLACEMENT):
            self._lay_out()
        if self._has(Feature.METRICS):
            if self._has(Feature.PAGE):
                add_page(scheduler, self)
            add_collector(scheduler, self)
        if self.placement and self._has(Feature.PLACEMENT) and self._has(Feature.REPLICAS):
            keep_for_readers(scheduler)
        self._watch = self.loop.call_later(WATCH, self._look)

    def _has(self, feature: Feature) -> bool:
        return feature not in self.unavailable

    def detach(self) -> None:
        """Leave the scheduler as if the plugin had never been there."""
        self._watch.cancel()
        self._let_go()
        if self._has(Feature.PAGE):
            remove_page(self.scheduler)
        remove_collector(self.scheduler)
        if self._has(Feature.REPLICAS):
            keep_as_before(self.scheduler)
        if self._has(Feature.PLACEMENT):
            internals.withdraw(self.scheduler, METADATA, "workers")

    async def close(self) -> None:
        self._watch.cancel()
        if self._has(Feature.PAGE):
            remove_page(self.scheduler)
        remove_collector(self.scheduler)
        self.roots.clear()

    def restart(self, scheduler: Scheduler) -> None:
        self.roots.clear()
        self._publish()

    def _look(self) -> None:
        """Now and then, see whether the plugin is still wanted, and what no transition tells."""
        registered = internals.plugin_of(self.scheduler, self.name)
        if registered is None:
            self.detach()
        elif registered is not self:
            # one that was put in its place has what is on the scheduler
            self._let_go()
        else:
            if self._has(Feature.PLACEMENT):
                self._guard(self._recount)
            if self.roots.homes:
                self._guard(self.roots.look)
            self._watch = self.loop.call_later(WATCH, self._look)

    def _guard(self, function: Callable[..., None], *arguments: Any) -> None:
        """Nothing that goes wrong here may harm the scheduler."""
        try:
            function(*arguments)
        except Exception:
            self.errors += 1
            self.failures += 1
            if self.failures == 1:
                logger.exception("dasktile's scheduler plugin failed; tasks run as without it")
            self._let_go()

    def _tell(self, function: Callable[..., None], *arguments: Any) -> None:
        """Tell workers what is needed next; without it they go on by what they know."""
        try:
            function(*arguments)
        except Exception:
            self.errors += 1
            self.tells = False
            logger.exception("dasktile cannot tell workers any more what is needed next")

    def tell_all(self) -> None:
        """Tell workers what is needed next of tasks that were there before they asked."""
        if self.tells:
            self._tell(self.teller.everything)

    def _let_go(self) -> None:
        """Let all tasks run anywhere."""
        self.roots.let_go()
        if not self._has(Feature.PLACEMENT):
            return
        for ts in self.scheduler.tasks.values():
            if is_ours(ts):
                set_free(ts)

    # -- workers ------------------------------------------------------------------------

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        if self._has(Feature.PLACEMENT):
            self._guard(self._come, worker)
            self.roots.wake()

    def remove_worker(
        self, scheduler: Scheduler, worker: str, *, stimulus_id: str, **kwargs: Any
    ) -> None:
        if self._has(Feature.PLACEMENT):
            self._guard(self._go, worker)
            self.roots.wake()

    def _idle(self) -> bool:
        """True if no task runs or could, so that no home matters to any."""
        return internals.nothing_to_run(self.scheduler, is_ours)

    def _order(self) -> list[str]:
        """The workers that there are, as meshes are laid over them."""
        return worker_order(
            {
                address: (ws.host, ws.name)
                for address, ws in self.scheduler.workers.items()
                if not _is_leaving(ws)
            }
        )

    def _lay_out(self) -> None:
        """Lay meshes over the workers that there are."""
        self._names = {address: ws.name for address, ws in self.scheduler.workers.items()}
        self.homes.replace(self._order())
        self._publish()

    def _recount(self) -> None:
        """See whether there are workers that nobody has told of, or in another order.

        Such as those whose retirement was called off.
        """
        order = self._order()
        if order != self.homes.workers:
            if self._idle():
                self._lay_out()
            else:
                for address in sorted(set(order).difference(self.homes.workers)):
                    self._come(address)

    def _publish(self) -> None:
        if self.placement and self._has(Feature.PLACEMENT):
            internals.publish(self.scheduler, METADATA, "workers", list(self.homes.workers))

    def _come(self, address: str) -> None:
        name = self.scheduler.workers[address].name
        if self._idle():
            self._lay_out()
            return
        same = [gone for gone in self.homes.vacant if self._names.get(gone) == name]
        self._names[address] = name
        self.homes.join(address, same[0] if same else None)
        self._publish()
        self._settle_soon()

    def _go(self, address: str) -> None:
        if self._idle():
            self._lay_out()
            return
        self.homes.lose(address)
        self._publish()
        self._settle_soon()

    def _settle_soon(self) -> None:
        if not self._settling:
            self._settling = True
            self.loop.call_later(SETTLE, self._guard, self._settle)

    def _settle(self) -> None:
        """Give tasks that do not run yet the homes that they have now."""
        self._settling = False
        alive = self.homes.workers
        if not alive:
            return
        pending = [
            ts for ts in self.scheduler.tasks.values() if is_ours(ts) and ts.state in _PENDING
        ]
        pending.sort(key=lambda ts: ts.priority or ())
        layers: dict[Any, LayerHomes | None] = {}
        free: list[TaskState] = []
        load = Counter(dict.fromkeys(alive, 0))
        for ts in pending:
            key: Any = ts.key
            name = key[0] if type(key) is tuple else key
            if name not in layers:
                layers[name] = self.homes.layer(name)
            layer = layers[name]
            before = self._whereabouts(ts, {})
            if layer is None and isinstance(name, str) and MARK in name:
                free.append(ts)  # planned for few workers, and there are many
                continue
            home = None
            if layer is not None and layer.placement is not None:
                home = layer.home(key[1:]) or self._beside(layer, key[1:], {})
            home = home or before
            if home is None or home not in load:
                home = min(alive, key=lambda address: load[address])
            load[home] += 1
            if home == before:
                continue
            if ts.key in self.roots.homes:
                self.roots.move(ts, home)
            else:
                send(ts, home)
        self.roots.free(free)
        self.roots.wake()

    # -- tasks --------------------------------------------------------------------------

    def update_graph(
        self, scheduler: Scheduler, *, tasks: Iterable[Any] = (), **kwargs: Any
    ) -> None:
        if self.failures < MAX_FAILURES:
            tasks = list(tasks)
            if self._has(Feature.ORDER):
                self._guard(put_in_order, scheduler, tasks)
            if self.tells:
                self._tell(self.teller.new, tasks)
            if self._has(Feature.PLACEMENT):
                self._guard(self._place, tasks)

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if self._has(Feature.PLACEMENT):
            self._follow(key, start, finish)
        if self.tells:
            self._tell(self.teller.transition, key, start, finish)

    def _follow(self, key: Any, start: str, finish: str) -> None:
        """Hold root tasks, or let them go, as tasks change their states."""
        if finish == internals.PROCESSING:
            ts = self.scheduler.tasks[key]
            if is_ours(ts):
                self.roots.forget(key)
                self._guard(self._keep_from_thieves, ts)
        elif finish == internals.NO_WORKER:
            ts = self.scheduler.tasks[key]
            if is_ours(ts):
                self._guard(self.roots.hold, ts)
        elif finish == internals.FORGOTTEN:
            self.roots.forget(key)
        elif start in (internals.PROCESSING, internals.MEMORY):
            if finish == internals.RELEASED:
                self._guard(self._again, key)
            if self.roots.ready:
                self.roots.wake()

    def _again(self, key: Any) -> None:
        """Hold a root back whose result is lost, as it was the first time."""
        ts = self.scheduler.tasks[key]
        if not is_ours(ts) or not (ts.waiters or ts.who_wants) or not self.roots.holding:
            return
        home = self._whereabouts(ts, {})
        if home is not None and home != HELD and is_root(ts):
            self.roots.keep(ts, home)

    def _keep_from_thieves(self, ts: TaskState) -> None:
        ws = ts.processing_on
        if (
            ws is not None
            and ts.worker_restrictions
            and ws.address in ts.worker_restrictions
            and self._has(Feature.STEALING)
        ):
            internals.keep_from_stealing(self.scheduler, ts)

    # -- homes --------------------------------------------------------------------------

    def _place(self, keys: Iterable[Any]) -> None:
        """Give new tasks of a plan their homes."""
        # of a worker that came just now nobody may have told yet
        self._recount()
        leaving = [
            address
            for address in self.homes.workers
            if _is_leaving(self.scheduler.workers.get(address))
        ]
        for address in leaving:
            self.homes.lose(address)
        if leaving:
            self._publish()
        every = self.scheduler.tasks
        layers: dict[Any, LayerHomes | None] = {}
        homes: dict[Any, str] = {}
        between: list[TaskState] = []
        others: list[Any] = []
        new: set[Any] = set()
        self._leaders = {}
        send_home = self._sender()
        # Called for every task of every graph: one look at a name for each layer.
        for key in keys:
            name = key[0] if type(key) is tuple else key
            try:
                layer = layers[name]
            except KeyError:
                layer = layers[name] = self.homes.layer(name)
            if layer is None:
                others.append(key)
                continue
            ts = every[key]
            if not _is_new(ts):
                continue
            new.add(name)
            if layer.placement is None:
                between.append(ts)
                continue
            home = layer.home(key[1:]) or self._beside(layer, key[1:], homes)
            if home is not None:
                homes[key] = home
                send_home(ts, home)
        if homes:
            self._place_others(between, [every[key] for key in others], homes)
        self.placed += len(homes)
        self._predict({name: layers[name] for name in new})

    def _place_others(
        self, between: list[TaskState], others: list[TaskState], homes: dict[Any, str]
    ) -> None:
        """Tasks whose names do not say where: they are beside what they touch.

        Slices are where the tile is, roots where they are read, and results that must keep
        their keys where the tile is that they are made of.
        """
        send_home = self._sender()
        near = {ts.key for ts in between}
        between.sort(key=lambda ts: ts.priority or ())
        new = list(filter(_is_new, others))
        after = []
        for ts in new:
            if ts.dependencies:
                after.append(ts)
            elif all(reader.key in homes or reader.key in near for reader in ts.dependents):
                readers = list(ts.dependents)
                if near:  # they have no home yet
                    readers += [
                        far for reader in readers if reader.key in near for far in reader.dependents
                    ]
                self._join(ts, readers, homes, send_home)
        for ts in between:
            self._join(ts, ts.dependencies, homes, send_home)
        for ts in sorted(after, key=lambda ts: ts.priority or ()):
            if all(read.key in homes and len(read.dependents) == 1 for read in ts.dependencies):
                self._join(ts, ts.dependencies, homes, send_home)

    def _join(
        self,
        ts: TaskState,
        touched: Iterable[TaskState],
        homes: dict[Any, str],
        send_home: Callable[[TaskState, str], None],
    ) -> None:
        """Send a task to where most of others are."""
        counts: dict[str, int] = {}
        for other in touched:
            home = homes.get(other.key) or self._whereabouts(other, homes)
            if home is not None:
                counts[home] = counts.get(home, 0) + 1
        if counts:
            [best, *more] = counts
            if more:
                best = max(counts, key=lambda address: (counts[address], address))
            homes[ts.key] = best
            send_home(ts, best)

    def _beside(self, layer: LayerHomes, index: Any, homes: dict[Any, str]) -> str | None:
        """Where the block of an array is that a task follows."""
        block = layer.followed(index)
        if block is None or layer.placement is None or layer.placement.follow is None:
            return None
        if not self._leaders:
            names = internals.array_names(self.scheduler)
            self._leaders = {token(name): name for name in names if isinstance(name, str)}
        leader = self._leaders.get(layer.placement.follow[0])
        ts = self.scheduler.tasks.get((leader or "", *block))
        return None if ts is None else self._whereabouts(ts, homes)

    def _whereabouts(self, ts: TaskState, homes: dict[Any, str]) -> str | None:
        """Where a tile is or will be; None if nobody knows."""
        if ts.who_has:
            addresses = sorted((ws.address for ws in ts.who_has), key=self.homes.place)
            index = ts.key[1:] if type(ts.key) is tuple else ()
            return primary([at for at in index if isinstance(at, int)], addresses)
        if ts.key in homes:
            return homes[ts.key]
        if ts.key in self.roots.homes:
            return self.roots.homes[ts.key]
        if ts.processing_on is not None:
            address: str = ts.processing_on.address
            return address
        if ts.worker_restrictions:
            return min(ts.worker_restrictions, key=self.homes.place)
        return None

    def _sender(self) -> Callable[[TaskState, str], None]:
        """What sends a task home, as the scheduler is configured."""
        if not self.placement:
            return lambda ts, home: None
        if not self.roots.holding:
            return send
        keep = self.roots.keep

        def send_home(ts: TaskState, home: str) -> None:
            (keep if is_root(ts) else send)(ts, home)

        return send_home

    def _predict(self, layers: dict[Any, LayerHomes | None]) -> None:
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
        self.predicted = folded(self.predicted, _TOLD)


def _is_leaving(ws: Any) -> bool:
    return ws is None or ws.status in (Status.closing_gracefully, Status.closing, Status.closed)


def _is_new(ts: TaskState) -> bool:
    """True for a task that is to run, and of which no user has said where."""
    return (
        ts.state == internals.RELEASED
        and ts.run_spec is not None
        and not ts.worker_restrictions
        and not ts.host_restrictions
        and not ts.resource_restrictions
        and not ts.actor
    )
