"""Home workers of the tasks of new graphs, and of pending tasks after workers joined or left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from distributed import Scheduler

from dasktile._compat.dask import fused_keys
from dasktile._compat.distributed import scheduling, states
from dasktile.lower.bundle_tasks import has_bundle, is_pick, keys_in
from dasktile.runtime.scheduler.joins import Joins
from dasktile.runtime.scheduler.priorities import position
from dasktile.runtime.scheduler.roots import (
    HELD,
    Roots,
    count_reads,
    is_cut_data,
    is_data,
    is_placed,
    is_root,
    reads_large_result,
    reads_only_data,
    restrict_to_home,
)
from dasktile.runtime.scheduler.windows import Windows
from dasktile.runtime.settings import RuntimeSettings
from dasktile.schedule.families import families_of_graph
from dasktile.schedule.homes import Homes, LayerHomes, LayerTable
from dasktile.schedule.joining import CUT_DATA, worker_of_most
from dasktile.schedule.placement import MARK, primary, token

if TYPE_CHECKING:
    from distributed.scheduler import TaskState

#: States of tasks that are not sent to a worker yet.
_PENDING = (states.RELEASED, states.WAITING, states.NO_WORKER)


@dataclass
class Placed:
    """What was found in a new graph.

    Attributes
    ----------
    count
        Number of tasks that have got a home worker.
    first
        A task of every layer of a plan.
    bundles
        The bundles.
    layers
        The homes of all layers.
    """

    layers: LayerTable
    count: int = 0
    first: dict[Any, TaskState] = field(default_factory=dict)
    bundles: list[TaskState] = field(default_factory=list)


class Placing:
    """Restricts tasks to their home workers.

    Parameters
    ----------
    scheduler
        The scheduler of the tasks.
    homes
        The workers in mesh order.
    roots, windows
        The tasks that are held.
    settings
        Constants.
    restricts
        False to count the tasks of plans without restricting them.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        homes: Homes,
        roots: Roots,
        windows: Windows,
        settings: RuntimeSettings,
        restricts: bool,
    ) -> None:
        self.scheduler = scheduler
        self.settings = settings
        self.roots = roots
        self.windows = windows
        self.homes = homes
        self._restricts = restricts
        self.joins = Joins(homes, settings)
        #: Names of arrays whose placement other layers follow, by token.
        self._followed_names: dict[str, str] = {}

    def place(self, keys: Iterable[Any]) -> Placed:
        """Restrict the new tasks of plans to their home workers.

        Parameters
        ----------
        keys
            Keys of the tasks of one new graph; none is sent to a worker yet.
        """
        tasks = self.scheduler.tasks
        layers = LayerTable(self.homes)
        found = Placed(layers)
        first, bundles = found.first, found.bundles
        homes: dict[Any, str] = {}
        joined = 0
        between: list[TaskState] = []
        others: list[TaskState] = []
        #: Layers of which a task of the layer itself is in `first`.
        settled: set[Any] = set()
        self._followed_names = {}
        restrict = self._restrict_function()
        # Called for every task of every graph: each layer name is parsed once, and keys of fused
        # tasks are read only if the name of the task is not of a plan.
        for key in keys:
            name = key[0] if type(key) is tuple else key
            layer = layers[name]
            ts = tasks[key]
            planned = key
            if layer is None:
                planned = _planned_in(ts, layers)
                if planned is None:
                    others.append(ts)
                    continue
                name = planned[0]
                layer = layers[name]
            if not is_new(ts):
                continue
            if name not in settled and (name not in first or planned is key):
                first[name] = ts
                if _is_marked(key):
                    settled.add(name)
                for part in _of_plans(fused_keys(ts.run_spec), layers):
                    first.setdefault(part[0], ts)
            if has_bundle(ts.run_spec):
                bundles.append(ts)
            assert layer is not None
            home = self._home_by_plan(ts, layer, planned[1:], layers, homes)
            if home is not None:
                homes[key] = home
                restrict(ts, home)
            elif layer.placement is None:
                between.append(ts)
        if homes:
            joined = self._place_others(between, others, homes)
        elif self._restricts and self.roots.throttled:
            self._group_roots(others)
        found.count = len(homes) + joined
        return found

    def _place_others(
        self, between: list[TaskState], others: list[TaskState], homes: dict[Any, str]
    ) -> int:
        """Place tasks whose layer names have no placement next to tasks that have one.

        A slice of a plan is placed on the worker of its tile, or of the large block of data that it
        is cut from; one that reads a large result in memory on its worker; a pick on that of its
        bundle; another task that reads only data of the graph on
        that of its readers; and a task that is the only reader of its only input on that of this.
        Others that read several results are placed when these are in memory.

        Parameters
        ----------
        between
            Tasks of a plan whose layer has no placement of its own.
        others
            Tasks that belong to no plan.
        homes
            Home workers by key; those of the placed tasks are added.

        Returns
        -------
        How many tasks are placed by the bytes of results that are in memory already.
        """
        joined = 0
        restrict = self._restrict_function()
        near = {ts.key for ts in between}
        between.sort(key=lambda ts: ts.priority or ())
        after = []
        new = list(filter(is_new, others))
        for ts in [*filter(is_cut_data, new), *between, *new]:
            if ts.key in homes:
                continue
            # data with a home is a tile, and only its slices are sent; so it is for large data in
            # the memory of a worker, as a block of ``da.from_array`` that was persisted
            is_held = reads_large_result(ts) or any(read.key in homes for read in ts.dependencies)
            if is_held or not reads_only_data(ts):
                if ts.key not in near:
                    after.append(ts)
                continue
            # slices and aliases have no home worker yet; other tasks read them
            passing: set[Any] = set()
            readers = list(ts.dependents)
            for reader in readers:
                if reader.key in homes or reader.key in passing:
                    continue
                is_slice = reader.key in near and reader in ts.dependents
                if is_slice or len(reader.dependencies) == 1:
                    passing.add(reader.key)
                    readers += reader.dependents
            if all(
                reader.key in homes or reader.key in near or reader.key in passing
                for reader in readers
            ):
                self._place_near(ts, readers, homes, restrict)
        for ts in between:
            if ts.key in homes:
                continue
            reads = ts.dependencies
            several = self._restricts and 1 < len(reads) <= self.settings.max_combined
            worker = self._worker_of_data(reads)
            if worker is not None:
                homes[ts.key] = worker
                restrict(ts, worker)
            elif not self._place_near(ts, reads, homes, restrict, near, not several) and several:
                # the bytes of the results decide
                joined += self.joins.add(ts)
        #: Tasks that read something of the plan, or what is made of that.
        behind: set[Any] = set()
        for ts in sorted(after, key=lambda ts: ts.priority or ()):
            reads = ts.dependencies
            if not any(read.key in homes or read.key in behind for read in reads):
                continue
            behind.add(ts.key)
            is_only = all(len(read.dependents) == 1 for read in reads)
            if len(reads) == 1:
                if (is_only or is_pick(ts.run_spec)) and all(read.key in homes for read in reads):
                    self._place_near(ts, reads, homes, restrict)
            elif self._restricts and (is_only or len(reads) <= self.settings.max_combined):
                joined += self.joins.add(ts)
        return joined

    def _group_roots(self, new: list[TaskState]) -> None:
        """Hold root tasks of a graph without a plan in families, each of which one worker runs."""
        limits = self.settings.families
        if len(self.homes.workers) < 2:
            return
        roots = []
        for ts in new:
            if (
                is_root(ts)
                and not is_data(ts)
                and is_new(ts)
                and position(ts) is None
                and scheduling.is_queued_when_ready(self.scheduler, ts)
            ):
                roots.append(ts)
                if len(roots) > limits.roots:
                    return
        roots.sort(key=lambda ts: ts.priority or ())
        threads = self.scheduler.total_nthreads
        for family in families_of_graph(
            roots, threads, lambda ts: ts.dependents, count_reads, limits
        ):
            self.roots.hold_family(family)

    def _place_near(
        self,
        ts: TaskState,
        touched: Iterable[TaskState],
        homes: dict[Any, str],
        restrict: Callable[[TaskState, str], None],
        near: Collection[Any] = (),
        breaks_ties: bool = True,
    ) -> bool:
        """Place a task on the worker that has most of its neighbours; whether there is one.

        Neighbours in `near`, which have no home worker of their own, only break ties.  Of several
        workers that have as many, the first one is taken unless ties are not broken.
        """
        neighbours = (
            (homes.get(other.key) or self._location(other, homes), other.key in near)
            for other in touched
        )
        best = worker_of_most(neighbours, self.homes.place, breaks_ties)
        if best is None:
            return False
        homes[ts.key] = best
        restrict(ts, best)
        return True

    def _worker_of_data(self, reads: Iterable[TaskState]) -> str | None:
        """The worker with most bytes of large results in memory that few tasks read, if any has."""
        held: Counter[str] = Counter()
        for read in reads:
            size, readers = read.nbytes or 0, len(read.dependents)
            if read.who_has and size >= CUT_DATA and readers <= self.settings.max_joined:
                held[self._primary(read)] += size
        return min(held, key=lambda each: (-held[each], self.homes.place(each)), default=None)

    def _home_by_plan(
        self,
        ts: TaskState,
        layer: LayerHomes,
        index: Any,
        layers: LayerTable,
        homes: dict[Any, str],
    ) -> str | None:
        """The home of a task of a layer, None if the plan gives none.

        Of one that follows an array of which no block is known, and of one whose name gives none:
        that of a task that it runs, as of one that Dask has fused with it, the last one that has a
        home.
        """
        inner = (
            (found, key[1:])
            for key in reversed(keys_in(ts.run_spec))
            if type(key) is tuple and (found := layers[key[0]]) is not None
        )
        places = (
            each.home(at) or self._home_of_followed(each, at, homes)
            for each, at in chain([(layer, index)], inner)
        )
        return next(filter(None, places), None)

    def _home_of_followed(self, layer: LayerHomes, index: Any, homes: dict[Any, str]) -> str | None:
        """The worker of the block that a task follows; None if it follows none."""
        block = layer.followed(index)
        if block is None or layer.placement is None or layer.placement.follow is None:
            return None
        if not self._followed_names:
            names = scheduling.array_names(self.scheduler)
            self._followed_names = {token(name): name for name in names if isinstance(name, str)}
        leader = self._followed_names.get(layer.placement.follow.token)
        ts = self.scheduler.tasks.get((leader or "", *block))
        return None if ts is None else self._location(ts, homes)

    def _location(self, ts: TaskState, homes: dict[Any, str]) -> str | None:
        """The worker that has or will have a result; None if that is unknown."""
        if ts.who_has:
            return self._primary(ts)
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

    def _primary(self, ts: TaskState) -> str:
        """The worker that counts as that of a result: its home by its name, if that has it."""
        having = {ws.address for ws in ts.who_has or ()}
        if len(having) == 1:
            return next(iter(having))
        home = LayerTable(self.homes).home(ts.key)
        if home in having:
            return home
        index = ts.key[1:] if type(ts.key) is tuple else ()
        addresses = sorted(having, key=self.homes.place)
        return primary([i for i in index if isinstance(i, int)], addresses)

    def _restrict_function(self) -> Callable[[TaskState, str], None]:
        """The function that restricts a task to its home worker, by the configuration."""
        if not self._restricts:
            return lambda ts, home: None
        if not self.roots.throttled:
            return restrict_to_home
        hold = self.roots.hold

        def restrict(ts: TaskState, home: str) -> None:
            (hold if is_root(ts) else restrict_to_home)(ts, home)

        return restrict

    def reassign(self) -> None:
        """Restrict pending tasks to their home workers among the present workers."""
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
            if layer is not None:
                home = self._home_by_plan(ts, layer, key[1:], layers, {})
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

    def hold_lost_root(self, ts: TaskState) -> None:
        """Hold a root task that is recomputed because its result was lost."""
        if not is_placed(ts) or not self.roots.throttled:
            return
        home = self._location(ts, {})
        if home is not None and home != HELD and reads_only_data(ts):
            self.roots.hold(ts, home)


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


def is_new(ts: TaskState) -> bool:
    """Whether a task is to run and has no restrictions by the user."""
    return (
        ts.state == states.RELEASED
        and ts.run_spec is not None
        and not ts.worker_restrictions
        and not ts.host_restrictions
        and not ts.resource_restrictions
        and not ts.actor
    )
