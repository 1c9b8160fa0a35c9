"""Where and when tasks run: with other tasks, with other clients, as workers join and leave."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import pytest
from distributed import Event, Scheduler, SchedulerPlugin, Worker, wait
from distributed.utils_test import gen_cluster

import dasktile
from dasktile._compat.distributed import checks
from dasktile._compat.distributed.features import Feature, Internal
from dasktile._compat.distributed.table import SCHEDULER
from dasktile.runtime.scheduler.roots import HELD, restriction_to
from dasktile.runtime.worker.plugin import OTHER
from dasktile.schedule.homes import LayerTable
from tests.gated import (
    EXPECTED,
    LIMIT,
    SMALL_TILES,
    VALUES,
    check,
    finish,
    nothing_stuck,
    planned,
    plugin_of,
    three_workers,
    until,
)

HASH = "0123456789abcdef" * 2

one_worker, two_workers = (
    gen_cluster(
        client=True,
        nthreads=[("127.0.0.1", 1)] * count,
        timeout=LIMIT,
        config=SMALL_TILES,
        worker_kwargs={"memory_limit": 0},
    )
    for count in (1, 2)
)


class Ran(SchedulerPlugin):
    """Records where tasks ran, and the most tasks that a worker had at once."""

    name = "ran"

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.on: Counter[str] = Counter()
        self.order: list[Any] = []
        self.most = 0
        scheduler.add_plugin(self)

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if finish == "processing":
            ws = self.scheduler.tasks[key].processing_on
            self.on[ws.address] += 1
            self.most = max(self.most, len(ws.processing))
        elif finish == "memory":
            self.order.append(key)


def tiles(workers: int, blocks: int) -> str:
    """The name of a layer whose blocks are divided evenly among workers."""
    return f"read-dasktile-{workers}_0e{blocks // workers}-{HASH}"


def roots_of(name: str, blocks: int, function: Any = abs, *args: Any) -> dict[Any, Any]:
    return {(name, block): (function, *(args or (-block,))) for block in range(blocks)}


def wait_for(name: str, *_: Any) -> str:
    assert Event(name).wait(LIMIT)
    return name


# Workers ----------------------------------------------------------------------------


@one_worker
async def test_a_plan_for_one_worker_does_not_bind_those_that_join(c, s, worker):
    await dasktile.enable(c)
    graph = roots_of(tiles(1, 12), 12, wait_for, "go")
    futures = c.get(graph, list(graph), sync=False)
    await until(lambda: plugin_of(s).roots.ready)
    ran = Ran(s)
    async with Worker(s.address, nthreads=1), Worker(s.address, nthreads=1):
        await until(lambda: ran.on.keys() > {worker.address} or len(ran.on) == 2)
        await Event("go").set()
        await wait(futures, timeout=LIMIT)
        await nothing_stuck(s)


@two_workers
async def test_a_replacement_worker_takes_over_the_tasks(c, s, first, second):
    await dasktile.enable(c)
    graph = roots_of(tiles(2, 20), 20, wait_for, "go")
    futures = c.get(graph, list(graph), sync=False)
    await until(lambda: len(plugin_of(s).roots.ready) == 2)
    name = second.name
    await second.close(executor_wait=False)
    await until(lambda: len(s.workers) == 1)
    ran = Ran(s)
    async with Worker(s.address, nthreads=1, name=name) as new:
        await until(lambda: new.address in plugin_of(s).roots.ready)
        await Event("go").set()
        await wait(futures, timeout=LIMIT)
        assert ran.on[new.address] >= 6
        await nothing_stuck(s)


@two_workers
async def test_lost_root_tasks_are_held_again(c, s, first, second):
    await dasktile.enable(c)
    graph = roots_of(tiles(2, 40), 40)
    futures = c.get(graph, list(graph), sync=False)
    await wait(futures, timeout=LIMIT)
    ran = Ran(s)
    await second.close(executor_wait=False)
    await until(lambda: len(s.workers) == 1)
    await wait(futures, timeout=LIMIT)
    assert sum(ran.on.values()) >= 20
    assert ran.most <= 2
    await nothing_stuck(s)


@three_workers
async def test_retiring_workers_are_no_home_workers(c, s, *workers, tmp_path):
    await dasktile.enable(c)
    leaving = s.workers[workers[0].address]
    s.handle_worker_status_change("closing_gracefully", leaving, stimulus_id="test")
    ran = Ran(s)
    (tmp_path / "gate").touch()
    await check(c.compute(planned(tmp_path / "gate")))
    assert leaving.address not in ran.on
    assert leaving.address not in plugin_of(s).homes.workers
    await nothing_stuck(s)


@two_workers
async def test_idle_workers_do_not_wait_for_one_that_is_busy_for_long(
    c, s, first, second, monkeypatch
):
    await dasktile.enable(c)
    roots = plugin_of(s).roots
    monkeypatch.setattr(roots, "settings", replace(roots.settings, stall_timeout=0))
    busy = [
        c.submit(wait_for, "end", number, workers=[first.address], key=f"busy-{number}")
        for number in range(2)
    ]
    await until(lambda: len(s.workers[first.address].processing) == 2)
    home = plugin_of(s).homes.workers.index(first.address)
    graph = {key: task for key, task in roots_of(tiles(2, 20), 20).items() if key[1] // 10 == home}
    futures = c.get(graph, list(graph), sync=False)
    await wait(futures, timeout=LIMIT)
    assert not any(future.done() for future in busy)
    await Event("end").set()
    await wait(busy, timeout=LIMIT)
    await nothing_stuck(s)


@one_worker
async def test_without_the_root_throttle_tasks_wait_for_the_next_worker(c, s, worker):
    lacking = {Feature.ROOTS: (Internal("scheduler", "no_such_name", "for this test"),)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "SCHEDULER", {**SCHEDULER, **lacking})
        with pytest.warns(UserWarning, match="root throttle"):
            await dasktile.enable(c)
    graph = roots_of(tiles(1, 4), 4, wait_for, "go")
    futures = c.get(graph, list(graph), sync=False)
    await until(lambda: len(s.workers[worker.address].processing) == 4)
    await worker.close(executor_wait=False)
    await until(lambda: len(s.unrunnable) == 4)
    async with Worker(s.address, nthreads=1):
        await Event("go").set()
        await wait(futures, timeout=LIMIT)
        await nothing_stuck(s)


@two_workers
async def test_without_metrics_workers_are_not_kept_and_homes_are_assigned(c, s, first, second):
    lacking = {Feature.METRICS: (Internal("scheduler", "no_such_name", "for this test"),)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "SCHEDULER", {**SCHEDULER, **lacking})
        with pytest.warns(UserWarning, match="no_such_name"):
            await dasktile.enable(c)
    plugin = plugin_of(s)
    async with Worker(s.address, nthreads=1) as third:
        await until(lambda: third.address in plugin.homes.workers)
        assert not plugin.left._states
    await until(lambda: len(plugin.homes.workers) == 2)
    assert plugin.left.report()["workers"] == plugin.failures == 0
    # the event of a worker that has left meanwhile
    plugin.unavailable = {}
    plugin.add_worker(s, first.address)
    plugin._remember(third.address)
    assert list(plugin.left._states) == [first.address] and plugin.failures == 0


# Other work -------------------------------------------------------------------------


@two_workers
async def test_tasks_of_no_plan_run_anywhere(c, s, first, second):
    await dasktile.enable(c)
    x = c.submit(int, 5, key="x", workers=[first.address])
    await wait(x, timeout=LIMIT)
    name = tiles(2, 4)
    graph = roots_of(name, 4)
    graph |= {("plain", number): (pow, number, x) for number in range(50)}
    graph |= {("reader", number): (max, (name, 0), number) for number in range(50)}
    futures = c.get(graph, list(graph), sync=False)
    await until(lambda: ("reader", 49) in s.tasks)
    for number in range(50):
        assert not s.tasks["plain", number].worker_restrictions
        assert not s.tasks["reader", number].worker_restrictions
    await wait(futures, timeout=LIMIT)
    await nothing_stuck(s)


@two_workers
async def test_tasks_without_a_placement_run_where_their_placed_inputs_are(c, s, first, second):
    await dasktile.enable(c)
    name, one, each = tiles(2, 4), f"one-dasktile-{HASH}", f"each-dasktile-{HASH}"
    graph = roots_of(name, 4)
    for block in (0, 2):
        # on either worker one that all others read
        graph |= {(one, block): (abs, (name, block))}
        graph |= {(each, block, at): (max, (name, at), (one, block)) for at in range(4)}
    futures = c.get(graph, list(graph), sync=False)
    await wait(futures, timeout=LIMIT)
    homes = plugin_of(s).homes.workers
    for block in (0, 2):
        for at in range(4):
            [ws] = s.tasks[each, block, at].who_has
            assert ws.address == homes[at // 2]
    await nothing_stuck(s)


@two_workers
async def test_restrictions_by_users_are_unchanged(c, s, first, second):
    await dasktile.enable(c)
    graph = roots_of(tiles(2, 4), 4, wait_for, "go")
    with dask.annotate(workers=[first.address], allow_other_workers=True):
        futures = c.get(graph, list(graph), sync=False)
    await until(lambda: len(s.tasks) == 4)
    async with Worker(s.address, nthreads=1) as third:
        await third.close()
        await asyncio.sleep(0)
        for ts in s.tasks.values():
            assert ts.worker_restrictions == {first.address}
            assert type(ts.worker_restrictions) is set
    await finish(s, futures)


@one_worker
async def test_root_tasks_do_not_starve_behind_the_queue(c, s, worker):
    await dasktile.enable(c)
    ran = Ran(s)
    plain = c.map(wait_for, ["go"] * 40, range(40), key="plain")
    await until(lambda: s.queued)
    graph = roots_of(tiles(1, 1), 1)
    graph |= {(f"read-dasktile-1_0e4-{HASH}", block): (abs, -block) for block in range(4)}
    urgent = c.get(graph, list(graph), sync=False, priority=100)
    await until(lambda: plugin_of(s).roots.ready)
    await Event("go").set()
    await wait(plain, timeout=LIMIT)
    await wait(urgent, timeout=LIMIT)
    last = max(ran.order.index(key) for key in graph)
    assert last < 20
    await nothing_stuck(s)


@two_workers
async def test_freed_root_tasks_are_queued(c, s, first, second):
    await dasktile.enable(c)
    graph = roots_of(tiles(2, 40), 40, wait_for, "go")
    futures = c.get(graph, list(graph), sync=False)
    await until(lambda: len(plugin_of(s).roots.ready) == 2)
    ran = Ran(s)
    await dasktile.disable(c)
    await until(lambda: s.queued)
    await Event("go").set()
    await wait(futures, timeout=LIMIT)
    assert ran.most <= 3
    await nothing_stuck(s)


@two_workers
async def test_tasks_on_their_home_workers_are_not_stolen(c, s, first, second):
    await dasktile.enable(c)
    name = f"after-dasktile-2_0e4-{HASH}"
    graph = roots_of(tiles(2, 8), 8)
    graph |= {(name, block): (wait_for, "go", (tiles(2, 8), block)) for block in range(8)}
    futures = c.get(graph, list(graph), sync=False)
    await until(lambda: any(name in str(key) for ws in s.workers.values() for key in ws.processing))
    stealing = s.extensions["stealing"]
    stealable = {ts.key for levels in stealing.stealable.values() for level in levels
                 for ts in level}  # fmt: skip
    assert not stealable & graph.keys()
    homes = plugin_of(s).homes.workers
    await Event("go").set()
    await wait(futures, timeout=LIMIT)
    for block in range(8):
        assert {ws.address for ws in s.tasks[name, block].who_has} == {homes[block // 4]}
    await nothing_stuck(s)


# Counts -----------------------------------------------------------------------------


@three_workers
async def test_predictions_are_counted_once(c, s, *workers, tmp_path):
    await dasktile.enable(c)
    a = da.from_array(VALUES, chunks=(10, 24))
    y = dasktile.optimize((a - a.mean(axis=0)).T @ a)
    predicted = dasktile.explain((a - a.mean(axis=0)).T @ a).bytes_after
    y = c.persist(y)
    await wait(y, timeout=LIMIT)
    assert sum(plugin_of(s).predicted.values()) == predicted > 0
    await check(c.compute(y))
    await check(c.compute(y + 1), EXPECTED + 1)
    assert sum(plugin_of(s).predicted.values()) == predicted


@two_workers
async def test_without_placement_tasks_are_only_counted(c, s, first, second):
    await dasktile.enable(c, placement=False)
    graph = roots_of(tiles(2, 8), 8)
    await wait(c.get(graph, list(graph), sync=False), timeout=LIMIT)
    assert plugin_of(s).placed == 8
    assert not any(ts.worker_restrictions for ts in s.tasks.values())
    await nothing_stuck(s)


@two_workers
async def test_each_layer_name_is_parsed_once(c, s, first, second, monkeypatch):
    await dasktile.enable(c)
    plugin = plugin_of(s)
    looked: list[object] = []
    layer = plugin.homes.layer
    monkeypatch.setattr(plugin.homes, "layer", lambda name: looked.append(name) or layer(name))
    name = tiles(2, 1000)
    graph = roots_of(name, 1000) | {("plain", number): (abs, -1) for number in range(1000)}
    await wait(c.get(graph, list(graph), sync=False), timeout=LIMIT)
    assert sorted(looked) == ["plain", name]
    # one object for all
    homes = {id(ts.worker_restrictions) for ts in s.tasks.values() if ts.worker_restrictions}
    assert homes <= {id(restriction_to(worker.address)) for worker in (first, second)} | {
        id(restriction_to(HELD))
    }


@one_worker
async def test_predictions_are_bounded(c, s, worker):
    await dasktile.enable(c)
    plugin = plugin_of(s)
    for number in range(1500):
        name = f"x{number}-dasktile-1_b1-{HASH}"
        task = SimpleNamespace(key=(name, 0), run_spec=None, dependencies=(), dependents=())
        plugin._predict({name: task}, [], LayerTable(plugin.homes))
    assert len(plugin.predicted) <= 1000
    assert len(plugin.rows) <= 4000
    assert sum(plugin.predicted.values()) == 1500
    assert plugin.predicted[OTHER] > 500


@two_workers
async def test_unusual_keys_and_errors_of_the_page_do_not_stop_placement(c, s, first, second):
    await dasktile.enable(c)
    plugin = plugin_of(s)
    odd = c.submit(abs, -1, key=f"sum-dasktile-2_0e1-{HASH}")
    assert await odd == 1
    assert plugin.errors == 0
    plugin.errors = 100  # of the page
    graph = roots_of(tiles(2, 8), 8)
    await wait(c.get(graph, list(graph), sync=False), timeout=LIMIT)
    assert plugin.placed == 8
    assert plugin.failures == 0


@two_workers
async def test_a_removed_plugin_leaves_nothing(c, s, first, second):
    await dasktile.enable(c)
    plugin = plugin_of(s)
    assert s.task_metadata["dasktile"]["workers"]
    await c.unregister_scheduler_plugin("dasktile")
    await until(lambda: "dasktile" not in s.task_metadata)
    assert plugin.roots.homes == {}
    await dasktile.enable(c)  # so that the rest is taken off too
    await dasktile.disable(c)
