"""Bundles on workers: bytes moved, retries, persisted results, spilling and cancellation."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
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
LIMIT = 240


@contextmanager
def bundling_client(workers: int, memory_limit: str | None = None) -> Iterator[Client]:
    """A client of workers in this process, with bundles of up to 16 tasks."""
    with (
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=False,
            protocol="tcp",
            memory_limit="20 GiB",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
        dask.config.set({"dasktile.raise-errors": True, "dasktile.bundle": 16}),
    ):
        dasktile.enable(client, memory_limit=memory_limit)
        yield client


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with bundling_client(4) as client:
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


#: Whether `gated` tasks may end; workers share it, since they are in this process.
OPEN = threading.Event()

#: How often `flaky` was called, by block.
CALLS: Counter[Any] = Counter()


def gated(block: np.ndarray) -> np.ndarray:
    assert OPEN.wait(LIMIT)
    return block


def flaky(block: np.ndarray, block_info: Any = None) -> np.ndarray:
    place = block_info[None]["chunk-location"]
    CALLS[place] += 1
    if CALLS[place] == 1 and place[0] == place[1]:
        raise OSError("once")
    return block


def bad(block: np.ndarray, block_info: Any = None) -> np.ndarray:
    if block_info[None]["chunk-location"] == (3, 5):
        raise OSError("broken block")
    return block


def mapped(function: Any, chunks: int = 200) -> da.Array:
    """Sums of a square of ones and its transpose, whose blocks a function has passed."""
    x = da.ones((3000, 3000), chunks=chunks)
    x = x.map_blocks(function, dtype=float, meta=np.empty((0, 0)))
    return (x + x.T).sum(axis=0)


def is_bundled(array: da.Array) -> bool:
    return any(getattr(task, "func", None) is run_bundle for task in dict(array.dask).values())


def until_bundles(client: Client) -> set[Any]:
    """Wait until the scheduler has bundles; returns their keys."""
    deadline = time.monotonic() + LIMIT
    while not (keys := bundle_keys(client)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return keys


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
    # besides: a tuple takes 40 bytes, and 8 for each result
    assert received[16] <= received[0] + 200 * tasks[16]
    assert tasks[16] < tasks[0] / 2


def test_bundles_run_where_their_tasks_would(client: Client) -> None:
    OPEN.clear()
    future = client.compute(dasktile.optimize(mapped(gated), workers=client))
    plugin: Any = client.cluster.scheduler.plugins["dasktile"]
    homes: Counter[str] = Counter()
    for key in until_bundles(client):
        placement = decode(key[0])
        assert placement is not None
        home = plugin.homes.table(placement.workers)[placement.position(key[1:])]
        homes[home] += 1
        ts = client.cluster.scheduler.tasks[key]
        # held until the worker has a slot, or sent: one may follow the other between two reads
        held = plugin.roots.homes.get(key)
        assert home in {held, *(ts.worker_restrictions or ()), plugin.roots.homes.get(key)}
    # roots are sent to workers as these have slots
    some_held = bool(plugin.roots.homes)
    # before any assertion: a closed gate would block the next test
    OPEN.set()
    assert len(homes) == 4
    assert some_held
    np.testing.assert_array_equal(future.result(LIMIT), np.full(3000, 6000.0))


def test_a_bundle_is_retried(client: Client) -> None:
    CALLS.clear()
    new = dasktile.optimize(mapped(flaky), workers=client)
    assert is_bundled(new)
    future = client.compute(new, retries=50)
    np.testing.assert_array_equal(future.result(LIMIT), np.full(3000, 6000.0))
    assert max(CALLS.values()) > 1


def test_a_failure_is_the_failure_of_the_result(client: Client) -> None:
    future = client.compute(dasktile.optimize(mapped(bad), workers=client))
    error = future.exception(LIMIT)
    assert isinstance(error, OSError)
    assert str(error) == "broken block"


def test_persisted_results_are_computed_on(client: Client) -> None:
    x = da.random.default_rng(0).random((3000, 3000), chunks=100)
    y = x + x.T
    kept = dasktile.optimize(y - y.mean(axis=0), workers=client).persist()
    wait(kept, timeout=LIMIT)
    # only blocks of the result stay in memory
    held = {ts.key for ts in client.cluster.scheduler.tasks.values() if ts.who_has}
    assert held == {key for row in kept.__dask_keys__() for key in row}
    values = y.compute(scheduler="sync")
    values -= values.mean(axis=0)
    total = dasktile.optimize((kept @ kept.T).sum(axis=0), workers=client)
    np.testing.assert_allclose(total.compute(), (values @ values.T).sum(axis=0), atol=1e-6)


def test_a_computation_can_be_cancelled_and_repeated(client: Client) -> None:
    OPEN.clear()
    new = dasktile.optimize(mapped(gated), workers=client)
    future = client.compute(new)
    until_bundles(client)
    future.cancel()
    OPEN.set()
    np.testing.assert_array_equal(client.compute(new).result(LIMIT), np.full(3000, 6000.0))


def test_the_hook_bundles_on_the_scheduler(client: Client) -> None:
    OPEN.clear()
    with dask.config.set({"array_optimize": dasktile.array_optimize}):
        future = client.compute(mapped(gated))
        assert until_bundles(client)
        OPEN.set()
        np.testing.assert_array_equal(future.result(LIMIT), np.full(3000, 6000.0))


def test_graphs_that_share_layers_share_keys_of_equal_tasks(client: Client) -> None:
    """Other bundles of the same tasks have other keys."""
    x = da.random.default_rng(0).random((3000, 3000), chunks=200)
    y = x + x.T
    first = dasktile.optimize(y.sum(axis=0), workers=client)
    both = dasktile.optimize(y.sum(axis=0), y.max(axis=1), workers=client)
    one, two = dict(dask.optimize(first)[0].dask), dict(dask.optimize(*both)[1].dask)
    outputs = {key for array in (first, *both) for key in dask.core.flatten(array.__dask_keys__())}
    for key in (one.keys() & two.keys()) - outputs:
        assert one[key].dependencies == two[key].dependencies
    values = x.compute(scheduler="sync")
    values = values + values.T
    np.testing.assert_allclose(first.compute(), values.sum(axis=0))
    np.testing.assert_allclose(both[1].compute(), values.max(axis=1))


def test_bundles_are_spilled_and_read_back() -> None:
    with bundling_client(2, memory_limit="8 MiB") as client:
        x = da.random.default_rng(0).random((4000, 2000), chunks=100)
        y = x - x.mean(axis=0)
        new = dasktile.optimize((y + y[::-1]).sum(axis=1), workers=client)
        assert is_bundled(new)
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
