"""Bundles on workers: bytes moved, retries, persisted results, spilling and cancellation."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, wait

import dasktile
from benchmarks.bundles import WORKLOADS
from dasktile.lower.bundle import run_bundle
from dasktile.schedule.placement import decode

#: Seconds after which something hangs.
LIMIT = 120


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=4,
            threads_per_worker=1,
            processes=False,
            protocol="tcp",
            memory_limit="2 GiB",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
        dask.config.set({"dasktile.raise-errors": True}),
    ):
        dasktile.enable(client)
        yield client


@pytest.fixture(autouse=True)
def is_empty_afterwards(client: Client) -> Iterator[None]:
    yield
    deadline = time.monotonic() + LIMIT
    while client.cluster.scheduler.tasks:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def bundle_keys(client: Client) -> set[Any]:
    """Keys of the bundles that the scheduler has."""
    tasks = [*client.cluster.scheduler.tasks.values()]
    return {ts.key for ts in tasks if getattr(ts.run_spec, "func", None) is run_bundle}


def gated(opened: threading.Event) -> Any:
    def waited(block: np.ndarray) -> np.ndarray:
        assert opened.wait(LIMIT)
        return block

    return waited


def test_as_many_bytes_move_as_without_bundles(client: Client) -> None:
    array = WORKLOADS["transposed"](0.5)
    expected = array.compute(scheduler="sync")
    received, tasks = {}, {}
    for most in (0, 16):
        with dask.config.set({"dasktile.bundle": most}):
            new = dasktile.optimize(array, workers=client)
        dasktile.metrics(client, reset=True)
        kept = new.persist()
        wait(kept, timeout=LIMIT)
        counts = dasktile.metrics(client)
        received[most], tasks[most] = counts.bytes_received, counts.tasks
        assert counts.errors == 0
        assert counts.bytes_predicted == pytest.approx(counts.bytes_received, rel=0.02)
        np.testing.assert_allclose(kept.compute(), expected)
        del kept, new
    # a tuple takes 40 bytes, and 8 for each result
    assert received[16] <= received[0] + 200 * tasks[16]
    assert tasks[16] < tasks[0] / 2


def test_bundles_run_where_their_tasks_would(client: Client) -> None:
    opened = threading.Event()
    x = da.random.default_rng(0).random((3000, 3000), chunks=100).map_blocks(gated(opened))
    future = client.compute(dasktile.optimize((x + x.T).sum(axis=0), workers=client))
    while not bundle_keys(client):
        time.sleep(0.01)
    plugin: Any = client.cluster.scheduler.plugins["dasktile"]
    homes = Counter()
    for key in bundle_keys(client):
        placement = decode(key[0])
        assert placement is not None
        home = plugin.homes.table(placement.workers)[placement.position(key[1:])]
        homes[home] += 1
        ts = client.cluster.scheduler.tasks[key]
        restricted = plugin.roots.homes.get(key) or min(ts.worker_restrictions)
        assert restricted == home
    assert len(homes) == 4
    # roots are sent to workers as these have slots
    assert plugin.roots.homes
    opened.set()
    assert future.result(LIMIT).shape == (3000,)


def test_a_bundle_is_retried(client: Client) -> None:
    failures = Counter()

    def flaky(block: np.ndarray, block_info: Any = None) -> np.ndarray:
        place = block_info[None]["chunk-location"]
        failures[place] += 1
        if failures[place] == 1 and place[0] == place[1]:
            raise OSError("once")
        return block

    x = da.ones((3000, 3000), chunks=200).map_blocks(flaky, dtype=float, meta=np.empty((0, 0)))
    new = dasktile.optimize((x + x.T).sum(axis=0), workers=client)
    assert any(getattr(task, "func", None) is run_bundle for task in dict(new.dask).values())
    future = client.compute(new, retries=50)
    np.testing.assert_array_equal(future.result(LIMIT), np.full(3000, 6000.0))


def test_a_failure_is_the_failure_of_the_result(client: Client) -> None:
    def bad(block: np.ndarray, block_info: Any = None) -> np.ndarray:
        if block_info[None]["chunk-location"] == (3, 5):
            raise OSError("broken block")
        return block

    x = da.ones((3000, 3000), chunks=200).map_blocks(bad, dtype=float, meta=np.empty((0, 0)))
    future = client.compute(dasktile.optimize((x + x.T).sum(axis=0), workers=client))
    with pytest.raises(OSError, match="broken block"):
        future.result(LIMIT)


def test_persisted_results_are_computed_on(client: Client) -> None:
    x = da.random.default_rng(0).random((3000, 3000), chunks=100)
    y = x + x.T
    kept = dasktile.optimize(y - y.mean(axis=0), workers=client).persist()
    wait(kept, timeout=LIMIT)
    # only blocks of the result stay in memory
    held = {ts.key for ts in client.cluster.scheduler.tasks.values()}
    assert held == {key for row in kept.__dask_keys__() for key in row}
    values = y.compute(scheduler="sync")
    values -= values.mean(axis=0)
    total = dasktile.optimize((kept @ kept.T).sum(axis=0), workers=client)
    np.testing.assert_allclose(total.compute(), (values @ values.T).sum(axis=0), atol=1e-6)


def test_a_computation_can_be_cancelled_and_repeated(client: Client) -> None:
    opened = threading.Event()
    x = da.ones((3000, 3000), chunks=100).map_blocks(gated(opened))
    new = dasktile.optimize((x + x.T).sum(axis=0), workers=client)
    future = client.compute(new)
    while not bundle_keys(client):
        time.sleep(0.01)
    future.cancel()
    opened.set()
    np.testing.assert_array_equal(client.compute(new).result(LIMIT), np.full(3000, 6000.0))


def test_the_hook_bundles_on_the_scheduler(client: Client) -> None:
    seen: set[Any] = set()
    opened = threading.Event()
    x = da.ones((3000, 3000), chunks=100).map_blocks(gated(opened))
    y = (x + x.T).sum(axis=0)
    with dask.config.set({"array_optimize": dasktile.array_optimize}):
        future = client.compute(y)
        deadline = time.monotonic() + LIMIT
        while not (seen := bundle_keys(client)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        opened.set()
        np.testing.assert_array_equal(future.result(LIMIT), np.full(3000, 6000.0))
    assert seen


def test_bundles_are_spilled_and_read_back() -> None:
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            protocol="tcp",
            memory_limit="1 GiB",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
        dask.config.set({"dasktile.raise-errors": True}),
    ):
        dasktile.enable(client, memory_limit="8 MiB")
        x = da.random.default_rng(0).random((4000, 2000), chunks=100)
        y = x - x.mean(axis=0)
        new = dasktile.optimize((y + y[::-1]).sum(axis=1), workers=client)
        assert any(getattr(task, "func", None) is run_bundle for task in dict(new.dask).values())
        dasktile.metrics(client, reset=True)
        kept = new.persist()
        wait(kept, timeout=LIMIT)
        counts = dasktile.metrics(client)
        values = y.compute(scheduler="sync")
        expected = (values + values[::-1]).sum(axis=1)
        np.testing.assert_allclose(kept.compute(), expected, atol=1e-9)
        assert counts.bytes_spilled > 0
        assert counts.bytes_read_back > 0
        assert counts.errors == 0
