"""The scheduler plugin with many workers, which only speak the protocol."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import dask
import pytest
from distributed import Client, Scheduler
from distributed.utils_test import gen_test

from benchmarks.many_workers import Cluster, measure, planned
from benchmarks.plugin_cost import collection
from dasktile._compat.distributed import scheduling
from dasktile.runtime.scheduler.plugin import TileSchedulerPlugin
from dasktile.schedule.placement import worker_order

WORKERS = 64


@asynccontextmanager
async def cluster_with_plugin(workers: int) -> AsyncIterator[tuple[Cluster, TileSchedulerPlugin]]:
    options: dict[str, Any] = {"protocol": "inproc", "dashboard": False, "dashboard_address": ":0"}
    async with Scheduler(**options) as scheduler:
        cluster, plugin = Cluster(scheduler), TileSchedulerPlugin()
        scheduler.add_plugin(plugin)
        await plugin.start(scheduler)
        await cluster.add(workers)
        yield cluster, plugin
        await cluster.close()


@gen_test()
async def test_a_worker_is_looked_at_when_its_slots_have_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    array = planned(collection(4_000), WORKERS)
    [graph] = dask.optimize(array)
    counted = 0
    slots = scheduling.slots

    def counting(*arguments: Any) -> int:
        nonlocal counted
        counted += 1
        return slots(*arguments)

    monkeypatch.setattr(scheduling, "slots", counting)
    async with cluster_with_plugin(WORKERS) as (cluster, plugin):
        # no checks of all workers by time
        plugin._check_timer.cancel()
        async with Client(cluster.scheduler.address, asynchronous=True) as client:
            found = await measure(cluster, client, graph, plugin)
            assert plugin.errors == 0
            assert plugin.placed > 0.9 * found["tasks"]
    # those of all workers are counted when the graph is received, and when tasks are lost
    assert counted <= 0.5 * found["tasks"]


@gen_test()
async def test_tasks_of_a_paused_worker_run_elsewhere() -> None:
    [graph] = dask.optimize(planned(collection(2_000), 4))
    async with cluster_with_plugin(4) as (cluster, plugin):
        scheduler = cluster.scheduler
        plugin._check_timer.cancel()
        paused = scheduler.workers[min(scheduler.workers)]
        scheduler.handle_worker_status_change("paused", paused, "pause")
        async with Client(scheduler.address, asynchronous=True) as client:
            future = client.compute(graph, optimize_graph=False)
            while paused.address not in plugin.roots.ready:
                await asyncio.sleep(0)
            # that its tasks wait is noticed by time, once; from then on others take them
            plugin.roots.check()
            while scheduler.tasks[future.key].state != "memory":
                await asyncio.sleep(0.01)
            assert plugin.held == 0
            assert plugin.errors == 0


@gen_test()
async def test_homes_are_in_mesh_order_while_workers_join_and_leave() -> None:
    async with cluster_with_plugin(5) as (cluster, plugin):
        scheduler = cluster.scheduler
        rng = random.Random(0)
        for _ in range(12):
            if rng.random() < 0.5:
                await cluster.add(rng.randrange(1, 4))
            else:
                await scheduler.remove_worker(
                    rng.choice(sorted(scheduler.workers)), stimulus_id="leave"
                )
            hosts = {address: (ws.host, ws.name) for address, ws in scheduler.workers.items()}
            assert plugin.homes.workers == worker_order(hosts)
            assert plugin.errors == 0
