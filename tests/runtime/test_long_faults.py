"""Faults that go on for minutes: killed processes, a slow disk, and workers that come and go."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster, Scheduler, SchedulerPlugin, wait
from distributed.utils import RateLimiterFilter

import dasktile
from dasktile.runtime.tiers import Disk, Held
from tests.gated import LIMIT, SMALL_TILES, nothing_stuck, plugin_of, until
from tests.runtime.worker.test_leaks import Usage
from tests.support import BY_TARGET

VALUES = np.random.default_rng(0).random((480, 240))
KILLS = 20

pytestmark = pytest.mark.slow


class Slow:
    """An array whose reads take some seconds, all together."""

    shape, dtype, ndim = VALUES.shape, VALUES.dtype, VALUES.ndim

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __getitem__(self, index: Any) -> np.ndarray:
        values: np.ndarray = VALUES[index]
        time.sleep(self.seconds * len(values) / len(VALUES))
        return values


def computed(number: int, seconds: float, workers: Any) -> da.Array:
    """A plan whose source tiles are needed twice."""
    meta = np.empty((0, 0), VALUES.dtype)
    source = da.from_array(Slow(seconds), chunks=(10, 240), asarray=False, meta=meta) + number
    y = (source - source.mean(axis=0)).T @ source
    return dasktile.optimize(y, workers=workers)


def check(future: Any, number: int) -> None:
    values = VALUES + number
    expected = (values - values.mean(axis=0)).T @ values
    # the sums are of numbers of about `number`, and may be nearly zero
    np.testing.assert_allclose(future.result(timeout=LIMIT), expected, atol=1e-9)


def wait_until(client: Client, true: Callable[[Scheduler], Any]) -> None:
    async def wait_for_it(dask_scheduler: Scheduler) -> None:
        await until(lambda: true(dask_scheduler))

    client.run_on_scheduler(wait_for_it)


def end(client: Client) -> None:
    """Check that no task is stuck, and that neither the scheduler nor its plugin keep any."""

    async def ends(dask_scheduler: Scheduler) -> None:
        await nothing_stuck(dask_scheduler)
        await until(lambda: not dask_scheduler.tasks)
        plugin = plugin_of(dask_scheduler)
        roots = plugin.roots
        assert not any((roots.homes, roots.ready, roots._last_served, roots._stalled))
        # at the next check that finds no task
        await until(lambda: not plugin.stealing._usual)

    client.run_on_scheduler(ends)


def test_twenty_processes_are_killed_in_a_row(tmp_path: Path) -> None:
    settings = {**SMALL_TILES, "distributed.scheduler.allowed-failures": 10 * KILLS}
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=3,
            threads_per_worker=1,
            memory_limit="2 GiB",
            dashboard_address=None,
            local_directory=str(tmp_path),
        ) as cluster,
        Client(cluster) as client,
    ):
        # less than a worker's process takes: all results are spilled
        dasktile.enable(client, memory_limit="50 MB")
        killed, spilled, number = 0, 0, 0
        while killed < KILLS:
            future = client.compute(computed(number, 5.0, client))
            while killed < KILLS and not future.done():
                client.wait_for_workers(3, timeout=LIMIT)
                wait_until(
                    client,
                    lambda scheduler: (
                        any(len(ws.has_what) > 2 for ws in scheduler.workers.values())
                        or not any(ts.state == "processing" for ts in scheduler.tasks.values())
                    ),
                )
                if future.done():
                    break
                spilled += sum(
                    worker.spilled["disk"] for worker in dasktile.metrics(client).workers.values()
                )
                most = client.run_on_scheduler(
                    lambda dask_scheduler: (
                        max(
                            dask_scheduler.workers.values(), key=lambda ws: len(ws.has_what)
                        ).address
                    )
                )
                process = client.run(os.getpid, workers=[most], on_error="ignore")
                if most in process:
                    psutil.Process(process[most]).kill()
                    killed += 1
                    wait_until(client, lambda scheduler, gone=most: gone not in scheduler.workers)
            check(future, number)
            number += 1
            del future
            end(client)
        assert spilled
        client.wait_for_workers(3, timeout=LIMIT)
        metrics = dasktile.metrics(client)
        assert not metrics.errors and not metrics.missing


def test_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its operations take from 10 ms to 1 s, and more for more bytes."""
    random_numbers, lock = random.Random(0), threading.Lock()
    store, load = Disk.store, Disk.load
    counts = {"writes": 0, "reads": 0}

    def throttle(size: int, kind: str) -> None:
        with lock:
            counts[kind] += 1
            stall = 1.0 if random_numbers.random() < 0.02 else 0.01
        time.sleep(stall + size / 10e6)

    def slow_store(self: Disk, value: Any) -> Held:
        held = store(self, value)
        throttle(held.size, "writes")
        return held

    def slow_load(self: Disk, held: Held) -> Any:
        throttle(held.size, "reads")
        return load(self, held)

    monkeypatch.setattr(Disk, "store", slow_store)
    monkeypatch.setattr(Disk, "load", slow_load)
    RateLimiterFilter.reset_timer("dasktile.runtime.worker.store")
    size = 200_000
    values = np.random.default_rng(0).random((64 * size // 8 // 500, 500))
    with (
        dask.config.set({**BY_TARGET, "dasktile.raise-errors": True}),
        LocalCluster(
            n_workers=2,
            threads_per_worker=2,
            processes=False,
            dashboard_address=None,
            memory_limit=int(8 * size / 0.6),
            local_directory=str(tmp_path),
        ) as cluster,
        Client(cluster) as client,
    ):
        dasktile.enable(client)
        x = da.from_array(values, chunks=(size // 8 // 500, 500)).persist()
        wait(x, timeout=LIMIT)
        for number in range(3):
            y = x + number
            anomalies = dasktile.optimize((y - y.mean(axis=0)) * y[::-1], workers=client).persist()
            wait(anomalies, timeout=LIMIT)
            total = client.compute(anomalies.sum(axis=0)).result(timeout=LIMIT)
            known = values + number
            np.testing.assert_allclose(
                total, ((known - known.mean(axis=0)) * known[::-1]).sum(axis=0), atol=1e-8
            )
            del anomalies
        del x, y
        end(client)
        metrics = dasktile.metrics(client)
        assert not metrics.errors
        assert counts["writes"] > 64 and counts["reads"] > 64
        for worker in cluster.workers.values():
            worker.data.wait_all()
            assert not len(worker.data)
            written = Path(worker.local_directory, "storage").rglob("*")
            assert not [path for path in written if path.is_file()]


class Scaling(SchedulerPlugin):
    """The workers that have joined and left."""

    name = "scaling"

    def __init__(self) -> None:
        self.added: list[str] = []
        self.removed: list[str] = []

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        self.added.append(worker)

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        self.removed.append(worker)


@pytest.mark.timeout(3600)
def test_adaptive_scaling(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    # in processes: distributed keeps closed workers of its own process
    seconds: float = request.config.getoption("--scaling-seconds")
    with (
        dask.config.set(SMALL_TILES),
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            dashboard_address=None,
            memory_limit="2 GiB",
            local_directory=str(tmp_path),
        ) as cluster,
        Client(cluster) as client,
    ):
        # all results are spilled
        dasktile.enable(client, memory_limit="50 MB")
        scaling = Scaling()
        cluster.scheduler.add_plugin(scaling)
        cluster.adapt(
            minimum=1, maximum=3, interval="100 ms", wait_count=2, target_duration="200 ms"
        )
        stop = time.monotonic() + seconds
        usages, number = [], 0
        while time.monotonic() < stop or number < 16:
            future = client.compute(computed(number % 7, 3.0, 3))
            check(future, number % 7)
            del future
            number += 1
            if number % 4 == 0:
                end(client)
                wait_until(client, lambda scheduler: len(scheduler.workers) == 1)
                usages.append(Usage.now(tmp_path))
        assert len(scaling.added) > 2 and len(scaling.removed) > 2
        metrics = dasktile.metrics(client)
        assert not metrics.errors and not metrics.missing
    # caches of Dask, of Python and of the seven plans are filled in the first third
    first, last = usages[len(usages) // 3], usages[-1]
    assert last.descriptors <= first.descriptors + 4
    assert last.threads <= first.threads + 4
    assert last.files <= first.files + 4
    assert last.objects <= first.objects + 20
