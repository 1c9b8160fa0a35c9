"""Tasks of late home workers run on idle workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from distributed import Event, get_worker, wait
from distributed.core import Status
from distributed.utils_test import gen_cluster

import dasktile
from dasktile._compat.distributed import checks
from dasktile._compat.distributed.features import Feature, Internal
from dasktile._compat.distributed.table import SCHEDULER
from tests.gated import LIMIT, SMALL_TILES, nothing_stuck, plugin_of, until

HASH = "0123456789abcdef" * 2

#: Tasks of each of two home workers.
TASKS = 6


def workers(**config: Any) -> Any:
    return gen_cluster(
        client=True,
        nthreads=[("127.0.0.1", 1)] * 2,
        timeout=LIMIT,
        config=SMALL_TILES | config,
        worker_kwargs={"memory_limit": 0},
    )


two_workers = workers()


def busy_on(address: str, name: str, *_: Any) -> str:
    """Wait for an event on one worker, and return at once on others."""
    if get_worker().address == address:
        assert Event(name).wait(LIMIT)
    return name


async def home_tasks(c: Any, s: Any, busy: str, reads: bool) -> list[Any]:
    """Submit tasks whose home is a worker on which they wait for ``go``."""
    home = plugin_of(s).homes.workers.index(busy)
    layer = f"read-dasktile-2_0e{TASKS}-{HASH}"
    graph: dict[Any, Any] = {
        (layer, at): (busy_on, busy, "go") for at in range(home * TASKS, (home + 1) * TASKS)
    }
    if reads:
        data = await c.scatter(1, workers=[busy])
        graph = {key: (*task, data.key) for key, task in graph.items()}
        return [data, *c.get(graph | {data.key: data}, list(graph), sync=False)]
    return c.get(graph, list(graph), sync=False)


def at_once(plugin: Any) -> Any:
    """Have tasks whose durations are unknown move as soon as a worker is idle."""
    settings = replace(
        plugin.settings, stall_timeout=0, steal_gain=0, steal_interval=0.01, check_interval=0.01
    )
    plugin.settings = plugin.stealing.settings = settings
    # held root tasks wait as long as usual for their home worker
    return plugin


async def _test_tasks_move(c: Any, s: Any, first: Any, second: Any, reads: bool) -> None:
    await dasktile.enable(c)
    plugin = at_once(plugin_of(s))
    futures = await home_tasks(c, s, first.address, reads)
    # the worker has begun one, which cannot move
    await until(lambda: plugin.stolen == TASKS - 1)
    assert len(s.workers[first.address].processing) == 1
    counts = await dasktile.metrics(c)
    assert counts.stolen == TASKS - 1
    assert f"{TASKS - 1} tasks ran on another worker than planned, as those were late" in str(
        counts
    )
    await Event("go").set()
    await wait(futures, timeout=LIMIT)
    await nothing_stuck(s)


@two_workers
async def test_tasks_that_were_sent_move(c, s, first, second):
    await _test_tasks_move(c, s, first, second, reads=True)


@two_workers
async def test_root_tasks_that_are_held_move(c, s, first, second):
    await _test_tasks_move(c, s, first, second, reads=False)


@two_workers
async def test_tasks_that_are_usually_quick_wait_for_their_home_worker(c, s, first, second):
    await dasktile.enable(c)
    plugin = plugin_of(s)
    busy = c.submit(busy_on, first.address, "end", workers=[first.address])
    await until(lambda: s.workers[first.address].processing)
    # those of the second worker end at once
    graph = {(f"read-dasktile-2_0e{TASKS}-{HASH}", at): (abs, at) for at in range(2 * TASKS)}
    data = await c.scatter(1, workers=[second.address])
    graph = {key: (max, number, data.key) for key, (_, number) in graph.items()}
    futures = c.get(graph | {data.key: data}, list(graph), sync=False)
    await until(lambda: sum(future.done() for future in futures) == TASKS)
    assert len(s.workers[first.address].processing) == TASKS + 1
    # not even if the last one took some seconds
    plugin.stealing.settings = replace(plugin.settings, steal_gain=60)
    for _ in range(5):
        plugin.stealing.check()
        assert second.address in plugin.stealing._idle
        assert first.address in plugin.stealing._since
    assert not plugin.stealing._thieves
    await Event("end").set()
    await wait([busy, *futures], timeout=LIMIT)
    assert plugin.stolen == 0
    await nothing_stuck(s)


@two_workers
async def test_tasks_run_at_home_where_the_worker_that_took_them_is_lost(c, s, first, second):
    await dasktile.enable(c)
    plugin = at_once(plugin_of(s))
    futures = await home_tasks(c, s, first.address, reads=True)
    await until(lambda: plugin.stolen)
    await second.close(executor_wait=False)
    await until(lambda: len(s.workers) == 1)
    await Event("go").set()
    await wait(futures, timeout=LIMIT)
    await nothing_stuck(s)


@workers(**{"distributed.scheduler.work-stealing": False})
async def test_no_task_moves_where_work_stealing_is_switched_off(c, s, first, second):
    await dasktile.enable(c)
    plugin = at_once(plugin_of(s))
    futures = await home_tasks(c, s, first.address, reads=True)
    await until(lambda: len(s.workers[first.address].processing) == TASKS)
    seen = []
    plugin.loop.call_later(0.2, seen.append, True)
    await until(lambda: seen)
    assert len(s.workers[first.address].processing) == TASKS
    assert not plugin._steals
    assert not plugin.stealing._ended
    await Event("go").set()
    await wait(futures, timeout=LIMIT)
    assert plugin.stolen == 0
    await nothing_stuck(s)


@two_workers
async def test_tasks_are_stolen_after_counts_were_reset(c, s, first, second):
    await dasktile.enable(c)
    plugin = plugin_of(s)
    futures = await home_tasks(c, s, first.address, reads=True)
    await dasktile.metrics(c, reset=True)
    at_once(plugin)
    await until(lambda: plugin.stolen)
    await Event("go").set()
    await finish_all(s, futures)


async def finish_all(s: Any, futures: Any) -> None:
    await wait(futures, timeout=LIMIT)
    await nothing_stuck(s)
    plugin = plugin_of(s)
    await until(lambda: not plugin.stealing._thieves)
    await until(lambda: not plugin.stealing._since)


@two_workers
async def test_distributed_does_not_steal_what_was_stolen(c, s, first, second):
    await dasktile.enable(c)
    plugin = at_once(plugin_of(s))
    home = plugin.homes.workers.index(first.address)
    layer = f"read-dasktile-2_0e{TASKS}-{HASH}"
    data = await c.scatter(1, workers=[first.address])
    graph: dict[Any, Any] = {
        (layer, at): (wait_for, "go", data.key) for at in range(home * TASKS, (home + 1) * TASKS)
    }
    futures = c.get(graph | {data.key: data}, list(graph), sync=False)
    await until(lambda: s.workers[second.address].processing)
    stealing = s.extensions["stealing"]
    await until(
        lambda: all(ts not in stealing.key_stealable for ts in s.workers[second.address].processing)
    )
    await Event("go").set()
    await finish_all(s, futures)


def wait_for(name: str, *_: Any) -> str:
    assert Event(name).wait(LIMIT)
    return name


@two_workers
async def test_cancelled_tasks_are_forgotten(c, s, first, second):
    await dasktile.enable(c)
    plugin = at_once(plugin_of(s))
    futures = await home_tasks(c, s, first.address, reads=False)
    await until(lambda: plugin.stolen)
    plugin.stealing._thieves |= {future.key: second.address for future in futures}
    await c.cancel(futures)
    await Event("go").set()
    await until(lambda: not plugin.stealing._thieves)
    await nothing_stuck(s)


@two_workers
async def test_without_names_of_distributed_tasks_stay_at_home(c, s, first, second):
    lacking = {Feature.LATE_WORKERS: (Internal("scheduler", "no_such_name", "for this test"),)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "SCHEDULER", {**SCHEDULER, **lacking})
        with pytest.warns(UserWarning, match="stealing from late workers"):
            await dasktile.enable(c)
    plugin = at_once(plugin_of(s))
    futures = await home_tasks(c, s, first.address, reads=True)
    await until(lambda: len(s.workers[first.address].processing) == TASKS)
    assert not plugin._steals
    await Event("go").set()
    await finish_all(s, futures)
    assert plugin.placed == TASKS


@two_workers
async def test_counts_of_stolen_tasks_survive_a_second_enable(c, s, first, second):
    await dasktile.enable(c)
    plugin_of(s).stolen = 3
    await dasktile.enable(c)
    assert (await dasktile.metrics(c, reset=True)).stolen == 3
    assert (await dasktile.metrics(c)).to_dict()["stolen"] == 0


@two_workers
async def test_tasks_of_a_paused_worker_are_stolen(c, s, first, second):
    await dasktile.enable(c)
    plugin = at_once(plugin_of(s))
    busy = c.submit(busy_on, first.address, "go", workers=[first.address])
    await until(lambda: s.workers[first.address].processing)
    plugin.settings = plugin.stealing.settings = replace(plugin.settings, steal_gain=60)
    futures = await home_tasks(c, s, first.address, reads=True)
    await until(lambda: len(s.workers[first.address].processing) == TASKS + 1)
    first.status = Status.paused
    await until(lambda: s.workers[first.address] not in s.running)
    at_once(plugin)
    await until(lambda: plugin.stolen == TASKS)
    first.status = Status.running
    await Event("go").set()
    await finish_all(s, [busy, *futures])
