"""The scheduler plugin with many workers, which only speak the protocol."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import groupby
from typing import Any

import dask
import pytest
from distributed import Client, Scheduler, versions
from distributed.utils import open_port
from distributed.utils_test import gen_test

from benchmarks.many_workers import Cluster, Worker, measure, planned
from benchmarks.plugin_cost import collection
from dasktile._compat.distributed import scheduling
from dasktile.runtime.scheduler.plugin import TileSchedulerPlugin
from dasktile.schedule.placement import worker_order
from tests.gated import LIMIT, until

WORKERS = 64


@asynccontextmanager
async def cluster_with_plugin(
    workers: int, per_host: int = 1, **where: Any
) -> AsyncIterator[tuple[Cluster, TileSchedulerPlugin]]:
    options = {"protocol": "inproc", "dashboard": False, "dashboard_address": ":0", **where}
    async with Scheduler(**options) as scheduler:
        cluster, plugin = Cluster(scheduler, per_host), TileSchedulerPlugin()
        scheduler.add_plugin(plugin)
        await plugin.start(scheduler)
        await cluster.add(workers)
        yield cluster, plugin
        await cluster.close()


async def until_computed(scheduler: Scheduler, key: Any) -> None:
    await until(lambda: key in scheduler.tasks and scheduler.tasks[key].state == "memory")


async def end(scheduler: Scheduler, plugin: TileSchedulerPlugin) -> None:
    """Wait until the scheduler has no tasks, and check that the plugin keeps nothing of them."""
    await until(lambda: not scheduler.tasks)
    roots, hints = plugin.roots, plugin.hint_sender
    await until(lambda: not roots.release_requested and not hints._send_scheduled)
    families = roots.families
    assert not any((roots.homes, roots.ready, roots._last_served, roots._stalled, roots._changed))
    assert not any((families.of, families._waiting, families._served))
    assert not any((hints._hints, hints._ran))
    assert not scheduler.unrunnable
    assert set(plugin.homes.workers) == set(scheduler.workers)
    assert plugin.errors == 0


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


@pytest.mark.slow
@gen_test(timeout=LIMIT)
async def test_twenty_workers_are_lost_in_a_row() -> None:
    [graph] = dask.optimize(planned(collection(4_000), WORKERS))
    async with cluster_with_plugin(WORKERS) as (cluster, plugin):
        scheduler = cluster.scheduler
        scheduler.allowed_failures = 20
        async with Client(scheduler.address, asynchronous=True) as client:
            future = client.compute(graph, optimize_graph=False)
            for left in range(WORKERS - 1, WORKERS - 21, -1):
                await until(lambda: any(ws.has_what for ws in scheduler.workers.values()))
                # the one with the most results, which other tasks need or the client
                most = max(scheduler.workers.values(), key=lambda ws: len(ws.has_what))
                cluster.lose(most.address)
                await until(lambda left=left: len(scheduler.workers) == left)
            await until_computed(scheduler, future.key)
            del future
            await end(scheduler, plugin)


@gen_test(timeout=LIMIT)
async def test_workers_join_and_leave_while_tasks_run() -> None:
    [graph] = dask.optimize(planned(collection(4_000), WORKERS))
    async with cluster_with_plugin(WORKERS) as (cluster, plugin):
        scheduler = cluster.scheduler
        rng = random.Random(0)
        async with Client(scheduler.address, asynchronous=True) as client:
            future = client.compute(graph, optimize_graph=False)
            await until(lambda: scheduler.tasks)
            for _ in range(20):
                if rng.random() < 0.5:
                    await cluster.add(rng.randrange(1, 5))
                else:
                    leaving = rng.sample(sorted(scheduler.workers), 4)
                    for address in leaving:
                        await scheduler.remove_worker(address, stimulus_id="leave", expected=True)
            await until_computed(scheduler, future.key)
            del future
            await end(scheduler, plugin)


@pytest.mark.slow
@gen_test(timeout=LIMIT)
async def test_two_clients_cancel_again_and_again() -> None:
    graphs = [planned(collection(2_000), 16), collection(2_000)]
    graphs = list(dask.optimize(*graphs))
    async with cluster_with_plugin(16) as (cluster, plugin):
        scheduler = cluster.scheduler
        rng = random.Random(0)
        async with (
            Client(scheduler.address, asynchronous=True) as one,
            Client(scheduler.address, asynchronous=True, set_as_default=False) as other,
        ):

            def clients() -> list[Any]:
                return [scheduler.clients[client.id] for client in (one, other)]

            for _ in range(6):
                kept = one.compute(rng.choice(graphs), optimize_graph=False)
                cancelled = other.compute(rng.choice(graphs), optimize_graph=False)
                # a graph that is cancelled before it has arrived would stay
                await until(lambda: all(client.wants_what for client in clients()))
                await asyncio.sleep(0.01 * rng.random())
                await other.cancel([cancelled])
                if rng.random() < 0.5:
                    await one.cancel([kept])
                else:
                    await until_computed(scheduler, kept.key)
                del kept, cancelled
                await end(scheduler, plugin)


@gen_test(timeout=LIMIT)
async def test_the_cluster_restarts_again_and_again() -> None:
    [graph] = dask.optimize(planned(collection(2_000), 16))
    async with cluster_with_plugin(16) as (cluster, plugin):
        scheduler = cluster.scheduler
        async with Client(scheduler.address, asynchronous=True) as client:
            for _ in range(2):
                future = client.compute(graph, optimize_graph=False)
                await until(lambda: any(ts.state == "memory" for ts in scheduler.tasks.values()))
                await client.restart(wait_for_workers=False)
                assert future.cancelled()
                await end(scheduler, plugin)
                await cluster.add(16)
            future = client.compute(graph, optimize_graph=False)
            await until_computed(scheduler, future.key)
            del future
            await end(scheduler, plugin)


MANY, PER_HOST = 256, 8


@pytest.mark.slow
@gen_test(timeout=LIMIT)
async def test_hosts_are_lost_with_all_their_workers() -> None:
    [graph] = dask.optimize(planned(collection(6_000), MANY))
    async with cluster_with_plugin(MANY, PER_HOST) as (cluster, plugin):
        scheduler = cluster.scheduler
        # the workers of a host are adjacent in the mesh
        hosts = [scheduler.workers[address].host for address in plugin.homes.workers]
        assert [len(list(group)) for _, group in groupby(hosts)] == [PER_HOST] * (MANY // PER_HOST)
        scheduler.allowed_failures = MANY
        async with Client(scheduler.address, asynchronous=True) as client:
            future = client.compute(graph, optimize_graph=False)
            for lost in range(1, 5):
                await until(lambda: any(ws.has_what for ws in scheduler.workers.values()))
                # the host with the most results
                on_host: Counter[str] = Counter()
                for ws in scheduler.workers.values():
                    on_host[ws.host] += len(ws.has_what)
                [(most, results)] = on_host.most_common(1)
                assert results
                gone = [ws.address for ws in scheduler.workers.values() if ws.host == most]
                for address in gone:
                    cluster.lose(address)
                await until(lambda gone=gone: not any(each in scheduler.workers for each in gone))
                if lost % 2 == 0:
                    await cluster.add(PER_HOST)
            assert scheduler.tasks[future.key].state != "memory"
            await until_computed(scheduler, future.key)
            assert len(scheduler.workers) == MANY - 2 * PER_HOST
            del future
            await end(scheduler, plugin)


@pytest.mark.slow
@gen_test(timeout=LIMIT)
async def test_the_scheduler_is_replaced_twice() -> None:
    [graph] = dask.optimize(planned(collection(6_000), MANY))
    where = {"protocol": "tcp", "host": "127.0.0.1", "port": open_port()}
    client = Client(f"tcp://127.0.0.1:{where['port']}", asynchronous=True, timeout=LIMIT)

    async def computing(scheduler: Scheduler) -> Any:
        """The future of the graph, of which some tasks have run."""
        await until(lambda: client.id in scheduler.clients)
        future = client.compute(graph, optimize_graph=False)
        await until(lambda: any(ts.state == "memory" for ts in scheduler.tasks.values()))
        assert scheduler.tasks[future.key].state != "memory"
        return future

    async with AsyncExitStack() as stack:
        for number in range(3):
            async with cluster_with_plugin(MANY, PER_HOST, **where) as (cluster, plugin):
                if not number:
                    await stack.enter_async_context(client)
                future = await computing(cluster.scheduler)
                if number == 2:
                    await until_computed(cluster.scheduler, future.key)
                    assert plugin.placed
                    del future
                    await end(cluster.scheduler, plugin)
                    return
                assert plugin.errors == 0
            await until(future.cancelled)


def steps_of(function: Any, *arguments: Any) -> int:
    """Python's instructions in a call, which grow with every item that a loop looks at."""
    steps = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*arguments)
    finally:
        sys.settrace(before)
    return steps


@pytest.mark.parametrize("busy", [False, True])
@gen_test(timeout=LIMIT)
async def test_a_worker_that_joins_or_leaves_costs_the_same_with_many_others(
    busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = 500, 2000

    async def silent(*arguments: Any, **named: Any) -> int:
        return 0

    # for each worker that joins, distributed compares the versions of all
    monkeypatch.setattr(versions, "error_message", lambda *_, **__: {})
    async with cluster_with_plugin(8) as (cluster, plugin):
        scheduler = cluster.scheduler
        plugin._check_timer.cancel()
        async with Client(scheduler.address, asynchronous=True) as client:
            future = None
            if busy:
                # a task that does not end, and meshes of several sizes
                monkeypatch.setattr(Worker, "write", silent)
                future = client.submit(abs, -1)
                await until(lambda: plugin._processing)
                for positions in (4, 8, 3000):
                    plugin.homes.table(positions)
            steps: dict[tuple[str, int], int] = {}

            def counting(event: str) -> Any:
                method = getattr(plugin, event)

                def counted(*arguments: Any, **named: Any) -> None:
                    count = steps_of(lambda: method(*arguments, **named))
                    steps[event, wanted] = count + steps_of(plugin.roots.release)

                return counted

            for wanted in (few, many):
                await cluster.add(wanted - 1 - len(scheduler.workers))
                before = set(scheduler.workers)
                with monkeypatch.context() as patch:
                    patch.setattr(plugin, "add_worker", counting("add_worker"))
                    patch.setattr(plugin, "remove_worker", counting("remove_worker"))
                    await cluster.add(1)
                    [address] = set(scheduler.workers) - before
                    await scheduler.remove_worker(address, stimulus_id="leave", expected=True)
            assert busy != plugin._idle()
            assert plugin.errors == 0
            del future
    for event in ("add_worker", "remove_worker"):
        # where workers are in sorted order, a search takes two steps more
        assert 0 < steps[event, many] <= 1.5 * steps[event, few]
