"""Computations end with the right values after every change of the cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster, Scheduler, Worker, wait, worker_client
from distributed.core import Status
from distributed.utils import open_port
from distributed.utils_test import gen_cluster, gen_test

import dasktile
from dasktile.runtime.install import NAME
from tests.gated import (
    EXPECTED,
    LIMIT,
    SMALL_TILES,
    VALUES,
    check,
    nothing_stuck,
    planned,
    plugin_of,
    source,
    three_workers,
    under_way,
    until,
    until_held,
)

# Workers ----------------------------------------------------------------------------


@three_workers
async def test_a_worker_joins(c, s, *workers, tmp_path):
    await dasktile.enable(c)
    future = await under_way(c, s, tmp_path / "gate")
    async with Worker(s.address, nthreads=1):
        (tmp_path / "gate").touch()
        await check(future)
        await nothing_stuck(s)


@three_workers
async def test_a_worker_retires(c, s, *workers, tmp_path):
    await dasktile.enable(c)
    future = await under_way(c, s, tmp_path / "gate")
    gone = workers[0].address
    retiring = asyncio.create_task(c.retire_workers([gone]))
    await until(lambda: gone not in {ws.address for ws in s.running})
    (tmp_path / "gate").touch()
    await check(future)
    await asyncio.wait_for(retiring, LIMIT)
    await until(lambda: gone not in s.workers)
    await nothing_stuck(s)


@three_workers
async def test_a_worker_is_lost(c, s, *workers, tmp_path):
    await dasktile.enable(c)
    future = await under_way(c, s, tmp_path / "gate")
    await workers[1].close(executor_wait=False)
    await until(lambda: len(s.workers) == 2)
    (tmp_path / "gate").touch()
    await check(future)
    await nothing_stuck(s)


@three_workers
async def test_all_workers_are_lost_and_a_new_one_joins(c, s, *workers, tmp_path):
    await dasktile.enable(c)
    future = await under_way(c, s, tmp_path / "gate")
    await asyncio.gather(*(worker.close(executor_wait=False) for worker in workers))
    await until(lambda: not s.workers)
    (tmp_path / "gate").touch()
    async with Worker(s.address, nthreads=1):
        await check(future)
        await nothing_stuck(s)


@three_workers
async def test_all_workers_are_lost_with_results_and_a_new_one_joins(c, s, *workers, tmp_path):
    await dasktile.enable(c)
    (tmp_path / "gate").touch()
    y = c.persist(planned(tmp_path / "gate"))
    await wait(y, timeout=LIMIT)
    await asyncio.gather(*(worker.close(executor_wait=False) for worker in workers))
    await until(lambda: not s.workers and s.unrunnable)
    async with Worker(s.address, nthreads=1):
        await check(c.compute(y))
        await nothing_stuck(s)


@three_workers
async def test_workers_join_after_the_graph(c, s, *workers, tmp_path):
    await dasktile.enable(c)
    await asyncio.gather(*(worker.close() for worker in workers))
    await until(lambda: not s.workers)
    (tmp_path / "gate").touch()
    future = c.compute(planned(tmp_path / "gate"))
    await until(lambda: s.tasks)
    async with Worker(s.address, nthreads=1), Worker(s.address, nthreads=2):
        await check(future)
        await nothing_stuck(s)


@three_workers
async def test_a_worker_pauses(c, s, *workers, tmp_path):
    await dasktile.enable(c)
    future = await under_way(c, s, tmp_path / "gate")
    await until(lambda: workers[2].state.executing)
    workers[2].status = Status.paused
    await until(lambda: len(s.running) == 2)
    (tmp_path / "gate").touch()
    # Of two tiles it ends the one that it has begun; those it would have had others read.
    paused = s.workers[workers[2].address]
    await until(lambda: len(paused.processing) == 1 and not plugin_of(s).roots.homes)
    workers[2].status = Status.running
    await check(future)
    await nothing_stuck(s)


@three_workers
async def test_all_pause_and_one_resumes(c, s, *workers, tmp_path):
    await dasktile.enable(c)
    future = await under_way(c, s, tmp_path / "gate")
    await until(lambda: all(worker.state.executing for worker in workers))
    for worker in workers:
        worker.status = Status.paused
    await until(lambda: not s.running)
    (tmp_path / "gate").touch()
    # What reads the tiles is ready, and no worker may run it.
    await until(lambda: any("mean" in str(ts.key) for ts in s.unrunnable))
    workers[0].status = Status.running
    # What the others were given and have not begun they do not end: they go.
    for worker in workers[1:]:
        await worker.close(executor_wait=False)
    await check(future)
    await nothing_stuck(s)


@three_workers
async def test_twenty_workers_are_lost_in_a_row(c, s, *workers, tmp_path):
    await dasktile.enable(c)
    s.allowed_failures = 20
    future = await under_way(c, s, tmp_path / "gate")
    present = list(workers)

    def has_source(ws):
        return any(str(ts.key).startswith("original-array") for ts in ws.has_what)

    async with AsyncExitStack() as stack:
        for _ in range(20):
            # Threads stay blocked in reads that were cancelled, and cannot make the array again.
            await until(lambda: all(has_source(ws) and ws.processing for ws in s.workers.values()))
            assert all(len(ws.processing) <= 2 for ws in s.workers.values())
            lost = present.pop(0)
            await lost.close(executor_wait=False)
            await until(lambda lost=lost: lost.address not in s.workers)
            present.append(await stack.enter_async_context(Worker(s.address, nthreads=1)))
        (tmp_path / "gate").touch()
        await check(future)
        await nothing_stuck(s)


# Clients ----------------------------------------------------------------------------


@three_workers
async def test_two_clients_compute_at_once(c, s, *workers, tmp_path):
    await dasktile.enable(c)
    one = await under_way(c, s, tmp_path / "gate")
    async with Client(s.address, asynchronous=True, set_as_default=False) as other:
        same = other.compute(planned(tmp_path / "gate"))
        a = source(tmp_path / "gate")
        another = other.compute(dasktile.optimize((a * 2).T @ a, workers=3))
        await until(lambda: len(other.futures) and len(s.clients[other.id].wants_what) == 2)
        (tmp_path / "gate").touch()
        await check(one)
        await check(same)
        await check(another, (VALUES * 2).T @ VALUES)
        await nothing_stuck(s)


@pytest.mark.parametrize("same", [True, False])
def test_a_client_leaves(same, tmp_path):
    @three_workers
    async def main(c, s, *workers):
        await dasktile.enable(c)
        other = await Client(s.address, asynchronous=True, set_as_default=False)
        await under_way(other, s, tmp_path / ("gate" if same else "closed"))
        future = c.compute(planned(tmp_path / "gate"))
        await until(lambda: s.clients[c.id].wants_what)
        await other.close()
        await until(lambda: other.id not in s.clients)
        (tmp_path / "gate").touch()
        (tmp_path / "closed").touch()
        await check(future)
        del future
        await nothing_stuck(s)

    main()


@three_workers
async def test_cancelled_and_computed_again(c, s, *workers, tmp_path):
    await dasktile.enable(c)
    for _ in range(2):
        future = await under_way(c, s, tmp_path / "gate")
        await c.cancel([future])
        assert future.cancelled()
        del future  # or the client would let go of the next one with it
        await until(lambda: not s.tasks)
        assert not plugin_of(s).roots.homes
        assert not plugin_of(s).roots.ready
        # Threads are busy with what was cancelled.
        (tmp_path / "gate").touch()
        await until(lambda: not any(worker.state.executing for worker in workers))
        (tmp_path / "gate").unlink()
    again = c.compute(planned(tmp_path / "gate"))
    (tmp_path / "gate").touch()
    await check(again)
    await nothing_stuck(s)


@three_workers
async def test_the_cluster_restarts(c, s, *workers, tmp_path):
    await dasktile.enable(c)
    for gate in (tmp_path / "first", tmp_path / "second"):
        future = await under_way(c, s, gate)
        restarting = asyncio.create_task(c.restart(wait_for_workers=False, timeout=LIMIT))
        await until(lambda: not s.tasks)
        gate.touch()
        await asyncio.wait_for(restarting, LIMIT)
        assert future.cancelled()
        assert not plugin_of(s).roots.holding
        # new workers count from zero, and so does the scheduler
        assert plugin_of(s).placed == 0
        assert not plugin_of(s).predicted
        new = [Worker(s.address, nthreads=1) for _ in workers]
        await asyncio.gather(*new)
    await check(c.compute(planned(tmp_path / "second")))
    await nothing_stuck(s)
    assert plugin_of(s).placed
    await asyncio.gather(*(worker.close() for worker in new))


@gen_test(timeout=LIMIT)
async def test_the_scheduler_is_replaced(tmp_path):
    """Distributed's workers end with their scheduler; its clients connect to the next one."""
    options = {"port": open_port(), "dashboard_address": ":0"}

    @asynccontextmanager
    async def cluster():
        async with (
            Scheduler(**options) as s,
            Worker(s.address, nthreads=1),
            Worker(s.address, nthreads=1),
            Worker(s.address, nthreads=1),
        ):
            yield s

    with dask.config.set(SMALL_TILES):
        async with AsyncExitStack() as stack:
            async with cluster() as s:
                c = await stack.enter_async_context(Client(s.address, asynchronous=True))
                await dasktile.enable(c)
                future = await under_way(c, s, tmp_path / "gate")
                (tmp_path / "gate").touch()
            await until(future.cancelled)
            async with cluster() as s:
                await until(lambda: c.id in s.clients)
                # a scheduler without the plugin computes graphs of plans, too
                await check(c.compute(planned(tmp_path / "gate")))
                await dasktile.enable(c)
                await check(c.compute(planned(tmp_path / "gate")))
                await nothing_stuck(s)
                assert plugin_of(s).placed


# The plugin -------------------------------------------------------------------------


@three_workers
async def test_disabled_while_roots_are_held(c, s, *workers, tmp_path):
    await dasktile.enable(c)
    future = await under_way(c, s, tmp_path / "gate")
    await dasktile.disable(c)
    assert not any(ts.worker_restrictions or ts.loose_restrictions for ts in s.tasks.values())
    (tmp_path / "gate").touch()
    await check(future)
    await nothing_stuck(s)


@three_workers
async def test_removed_while_roots_are_held(c, s, *workers, tmp_path):
    await dasktile.enable(c)
    future = await under_way(c, s, tmp_path / "gate")
    s.remove_plugin(NAME)
    (tmp_path / "gate").touch()
    await check(future)
    await nothing_stuck(s)


@three_workers
async def test_enabled_again_while_roots_are_held(c, s, *workers, tmp_path):
    await dasktile.enable(c)
    future = await under_way(c, s, tmp_path / "gate")
    await dasktile.enable(c)
    (tmp_path / "gate").touch()
    await check(future)
    await check(c.compute(planned(tmp_path / "gate") + 1), EXPECTED + 1)
    await nothing_stuck(s)


@pytest.mark.parametrize(
    "method",
    [
        "_place",
        "_place_others",
        "hold_lost_root",
        "_prevent_stealing",
        "_worker_added",
        "_worker_removed",
        "_reassign_homes",
        "add_ready",
        "release",
        "check",
    ],
)
def test_the_plugin_fails(method, tmp_path, monkeypatch):
    @three_workers
    async def main(c, s, *workers):
        def fail(*_: Any) -> None:
            raise ZeroDivisionError(method)

        await dasktile.enable(c)
        plugin = plugin_of(s)
        before = await under_way(c, s, tmp_path / "gate")
        [owner, *_] = (
            part for part in (plugin, plugin.placing, plugin.roots) if hasattr(part, method)
        )
        monkeypatch.setattr(owner, method, fail)
        a = source(tmp_path / "other")
        after = c.compute(dasktile.optimize((a * 2).T @ a, workers=3))
        await until(lambda: len(s.clients[c.id].wants_what) == 2)
        await workers[0].close(executor_wait=False)
        async with Worker(s.address, nthreads=1):
            if method in ("_reassign_homes", "check"):
                await until(lambda: plugin.errors)  # they come after a time
            (tmp_path / "gate").touch()
            (tmp_path / "other").touch()
            await check(before)
            await check(after, (VALUES * 2).T @ VALUES)
            await nothing_stuck(s, errors=True)

    main()


@three_workers
async def test_a_plugin_that_fails_repeatedly_stops_placing(c, s, *workers, tmp_path):
    await dasktile.enable(c)
    (tmp_path / "gate").touch()
    plugin_of(s).placing._place_others = lambda *_: 1 / 0
    for number in range(11):
        future = c.compute(planned(tmp_path / "gate") + number)
        await check(future, EXPECTED + number)
    await nothing_stuck(s, errors=True)
    assert plugin_of(s).errors == 10


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)] * 3,
    timeout=LIMIT,
    config={**SMALL_TILES, "distributed.scheduler.no-workers-timeout": "1 hour"},
)
async def test_held_root_tasks_do_not_time_out(c, s, *workers, tmp_path):
    await dasktile.enable(c)
    future = await under_way(c, s, tmp_path / "gate")
    # Tasks that no worker may run do.
    impossible = c.submit(abs, -1, workers=["tcp://127.0.0.1:1"], key="impossible")
    await until(lambda: s.tasks.get("impossible") in s.unrunnable)
    # As if all had waited for two hours.  The scheduler looks only when it is told to, so that
    # the test does not depend on who does so first.
    s.periodic_callbacks["no-workers-timeout"].stop()
    waiting = [ts for ts in s.unrunnable if ts.key != "impossible"]
    for ts in s.unrunnable:
        s.unrunnable[ts] -= 2 * 3600
    old = max(s.unrunnable.values())
    # The plugin looks after those that are held by itself, now and then.
    await until(lambda: all(s.unrunnable[ts] > old for ts in waiting))
    s._check_no_workers()
    await until(lambda: impossible.status == "error")
    assert future.status == "pending"
    (tmp_path / "gate").touch()
    await check(future)
    await c.cancel([impossible])
    await nothing_stuck(s)


# Persisted arrays -------------------------------------------------------------------


@three_workers
async def test_persisted_results_are_computed_on(c, s, *workers, tmp_path):
    await dasktile.enable(c)
    a = source(tmp_path / "gate")
    # the few bytes that move are worth many tasks
    with dask.config.set({"dasktile.cost.task-bytes": 1}):
        centre = dasktile.optimize(a - a.mean(axis=0), workers=3)
    assert centre.chunks != a.chunks
    b = c.persist(centre)
    y = dasktile.optimize(b.T @ b, workers=3)
    future = c.compute(y)  # before there is anything
    await until_held(s)
    (tmp_path / "gate").touch()
    centred = VALUES - VALUES.mean(axis=0)
    await check(future, centred.T @ centred)
    await check(c.compute(dasktile.optimize(b.sum(axis=1), workers=3)), centred.sum(axis=1))
    await nothing_stuck(s)


# Real processes ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def processes() -> Iterator[Client]:
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 10}),
        LocalCluster(
            n_workers=3, threads_per_worker=1, memory_limit="1 GiB", dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        dasktile.enable(client)
        yield client


@pytest.fixture
def client(processes: Client) -> Iterator[Client]:
    processes.wait_for_workers(3, timeout=LIMIT)
    with dask.config.set(SMALL_TILES):
        yield processes

    async def end(dask_scheduler: Scheduler) -> None:
        await nothing_stuck(dask_scheduler)

    processes.run_on_scheduler(end)


def kill(client: Client, address: str) -> None:
    psutil.Process(client.run(os.getpid)[address]).kill()


def wait_until_held(client: Client) -> None:
    async def held(dask_scheduler: Scheduler) -> None:
        await until_held(dask_scheduler)

    client.run_on_scheduler(held)


def wait_until(client: Client, true: Callable[[Scheduler], bool]) -> None:
    async def wait_for_it(dask_scheduler: Scheduler) -> None:
        await until(lambda: true(dask_scheduler))

    client.run_on_scheduler(wait_for_it)


def wait_until_gone(client: Client, address: str) -> None:
    wait_until(client, lambda scheduler: address not in scheduler.workers)


@pytest.mark.parametrize("victims", [1, 3])
def test_workers_are_killed(client: Client, victims: int, tmp_path: Path) -> None:
    future = client.compute(planned(tmp_path / "gate"))
    wait_until_held(client)
    addresses = sorted(client.run(os.getpid))[:victims]
    pids = client.run(os.getpid)
    for address in addresses:
        psutil.Process(pids[address]).kill()
    for address in addresses:
        wait_until_gone(client, address)
    (tmp_path / "gate").touch()
    np.testing.assert_allclose(future.result(timeout=LIMIT), EXPECTED)


def test_the_worker_of_a_persisted_input_is_killed(client: Client, tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    x = source(tmp_path / "gate").persist()
    y = dasktile.optimize(x.T @ (x + 1), workers=client)
    [address, *_] = sorted(client.run(os.getpid))
    kill(client, address)
    wait_until_gone(client, address)
    np.testing.assert_allclose(client.compute(y).result(timeout=LIMIT), VALUES.T @ (VALUES + 1))


def test_processes_are_restarted(client: Client, tmp_path: Path) -> None:
    future = client.compute(planned(tmp_path / "gate"))
    wait_until_held(client)
    with ThreadPoolExecutor(1) as pool:
        restarting = pool.submit(client.restart, timeout=LIMIT)
        wait_until(client, lambda scheduler: not scheduler.tasks)
        # or threads would go on until the nannies kill their processes
        (tmp_path / "gate").touch()
        restarting.result()
    assert future.cancelled()
    (tmp_path / "gate").unlink()
    again = client.compute(planned(tmp_path / "gate"))
    # perhaps not on each worker: a nanny whose old process ends late unregisters the new worker,
    # whose tasks go to the others until it joins again
    wait_until(client, lambda scheduler: bool(plugin_of(scheduler).roots.homes))
    (tmp_path / "gate").touch()
    np.testing.assert_allclose(again.result(timeout=LIMIT), EXPECTED)
    assert not dasktile.metrics(client).missing


def test_tasks_that_wait_for_planned_ones_do_not_take_their_slots(
    client: Client, tmp_path: Path
) -> None:
    def inside(number: int) -> Any:
        with dask.config.set(SMALL_TILES), worker_client() as own:
            y = planned(tmp_path / "gate") + number
            return own.compute(y).result(timeout=LIMIT)

    (tmp_path / "gate").touch()
    futures = client.map(inside, range(9), pure=False)
    for number, future in enumerate(futures):
        np.testing.assert_allclose(future.result(timeout=LIMIT), EXPECTED + number)
