"""``compute`` receives the blocks of a task in one tuple."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from distributed import Client, LocalCluster, futures_of, wait

import dasktile
from dasktile.api import optimize_to_gather
from dasktile.runtime import results

#: Blocks of the arrays: without tuples each is a task.
BLOCKS = 400


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with _cluster() as cluster:
        yield cluster


def _cluster() -> LocalCluster:
    return LocalCluster(
        n_workers=4,
        threads_per_worker=1,
        processes=False,
        protocol="tcp",
        memory_limit="16 GiB",
        dashboard_address=None,
    )


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as client, dask.config.set({"dasktile.raise-errors": True}):
        dasktile.enable(client)
        yield client
        dasktile.disable(client)


def noise(seed: int = 0) -> da.Array:
    return da.random.default_rng(seed).random((1000, 1000), chunks=50)


def centred(block: np.ndarray) -> np.ndarray:
    return block - block.mean()


@contextmanager
def counted(cluster: LocalCluster) -> Iterator[Counter[str]]:
    """Tasks that workers are asked to run, by the name of their layer."""
    seen: Counter[str] = Counter()
    plugin = cluster.scheduler.plugins["dasktile"]
    original = plugin.transition

    def transition(key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if finish == "processing":
            seen[str(key[0] if isinstance(key, tuple) else key)] += 1
        original(key, start, finish, *args, **kwargs)

    plugin.transition = transition
    try:
        yield seen
    finally:
        del plugin.transition


def received(cluster: LocalCluster) -> int:
    """Bytes that workers have received from each other."""
    logs = (worker.transfer_incoming_log for worker in cluster.workers.values())
    return sum(entry["total"] for log in logs for entry in log)


def dataset() -> xr.Dataset:
    x = noise()
    return xr.Dataset(
        {"own": (("t", "p"), x.map_blocks(centred)), "noise": (("t", "p"), x)},
        {"means": (("p",), x.mean(axis=0))},
    )


#: What is computed, and tasks for it at most.
COLLECTIONS: dict[str, tuple[Callable[[], Any], int]] = {
    "a user's function": (lambda: noise().map_blocks(centred), 20),
    "halos": (lambda: noise().map_overlap(centred, depth=2, boundary="reflect"), 200),
    "windows": (
        lambda: da.lib.stride_tricks.sliding_window_view(noise(), 3, axis=0).mean(axis=-1),
        60,
    ),
    "anomalies": (lambda: noise() - noise().mean(axis=0), 120),
    "several": (lambda: [noise().map_blocks(centred), {"x": noise()}, noise().sum()], 60),
    "a dataset": (dataset, 60),
}


@pytest.mark.parametrize("name", COLLECTIONS)
def test_few_tasks_make_many_blocks(cluster: LocalCluster, client: Client, name: str) -> None:
    make, most = COLLECTIONS[name]
    (expected,) = dask.compute(make(), scheduler="sync")
    with counted(cluster) as seen:
        (result,) = dasktile.compute(make())
    assert 12 <= sum(seen.values()) <= most, seen
    if name == "a dataset":
        xr.testing.assert_allclose(result, expected)
    elif name == "several":
        np.testing.assert_allclose(result[0], expected[0])
        np.testing.assert_allclose(result[1]["x"], expected[1]["x"])
        assert result[2] == pytest.approx(expected[2])
    else:
        np.testing.assert_allclose(result, expected)
    client.sync(asyncio.sleep, 0)
    assert not client.futures


def placed_noise(client: Client, shares: list[int]) -> da.Array:
    """A persisted array whose blocks are in no order on the workers, by these shares."""
    rng, workers = random.Random(0), list(client.scheduler_info()["workers"])
    blocks = {
        ("placed", row, column): client.submit(
            np.random.default_rng([row, column]).random,
            (50, 50),
            workers=rng.choices(workers, shares),
            pure=False,
        )
        for row in range(20)
        for column in range(20)
    }
    wait(list(blocks.values()))
    array = da.Array(blocks, "placed", ((50,) * 20, (50,) * 20), float)
    persisted = client.persist(array)
    wait(persisted)
    return persisted


@pytest.mark.parametrize(
    ("function", "shares"), [(centred, [1, 3, 7, 9]), (np.negative, [1, 1, 1, 1])]
)
def test_persisted_blocks_are_read_where_they_are(
    cluster: LocalCluster, client: Client, function: Callable[..., Any], shares: list[int]
) -> None:
    x = placed_noise(client, shares)
    before = received(cluster)
    with counted(cluster) as seen:
        (result,) = dasktile.compute(x.map_blocks(function))
    assert 12 <= sum(seen.values()) <= 40, seen
    assert received(cluster) == before
    np.testing.assert_array_equal(result, dask.compute(x.map_blocks(function))[0])


def test_workers_receive_no_more(cluster: LocalCluster, client: Client) -> None:
    def halos() -> da.Array:
        return noise().map_overlap(centred, depth=2, boundary="reflect")

    moved = []
    for compute in (dasktile.compute, lambda x: wait(client.persist(dasktile.optimize(x)))):
        before = received(cluster)
        compute(halos())
        moved.append(received(cluster) - before)
    assert moved[1]
    assert moved[0] <= 1.05 * moved[1] + 10_000


def test_results_of_optimize_keep_their_keys(cluster: LocalCluster, client: Client) -> None:
    x = dasktile.optimize(noise().map_overlap(centred, depth=2, boundary="reflect"))
    (expected,) = dask.compute(x, scheduler="sync")
    with counted(cluster) as seen:
        (result,) = dasktile.compute(x)
    assert 12 <= sum(seen.values()) <= 200, seen
    np.testing.assert_array_equal(result, expected)
    held = client.persist(x)
    block = client.gather([f for f in futures_of(held) if f.key == (x.name, 3, 4)])
    np.testing.assert_array_equal(block[0], expected[150:200, 200:250])


def test_the_hook_leaves_tuples_as_they_are(cluster: LocalCluster, client: Client) -> None:
    with dask.config.set(array_optimize=dasktile.array_optimize), counted(cluster) as seen:
        (result,) = dasktile.compute(noise().map_blocks(centred))
    assert sum(seen.values()) <= 20
    np.testing.assert_array_equal(result, noise().map_blocks(centred).compute(scheduler="sync"))


def test_errors_are_those_of_the_user(cluster: LocalCluster, client: Client) -> None:
    def fails(block: np.ndarray) -> np.ndarray:
        if block[0, 0] > 0.9:
            raise ZeroDivisionError("too large")
        return block - block.mean()

    meta = np.empty((0, 0))
    with pytest.raises(ZeroDivisionError, match=r"^too large$") as raised:
        dasktile.compute(noise().map_blocks(fails, meta=meta), noise())
    assert raised.traceback[-1].name == "fails"
    client.sync(asyncio.sleep, 0)
    assert not client.futures


_failed, _started, _go_on = threading.Event(), threading.Event(), threading.Event()


def fails_once(block: np.ndarray) -> np.ndarray:
    if not _failed.is_set():
        _failed.set()
        raise OSError("at first")
    return block - block.mean()


def waits(block: np.ndarray) -> np.ndarray:
    _started.set()
    _go_on.wait(60)
    return block - block.mean()


def test_a_task_that_fails_at_first_is_tried_again(cluster: LocalCluster, client: Client) -> None:
    _failed.clear()
    with dask.annotate(retries=2):
        array = noise().map_blocks(fails_once, meta=np.empty((0, 0)))
    with dask.config.set({"optimization.fuse.active": False}):
        (result,) = dasktile.compute(array, noise())[:1]
    assert _failed.is_set()
    np.testing.assert_array_equal(result, noise().map_blocks(centred).compute(scheduler="sync"))


def test_tuples_of_a_lost_worker_are_made_again() -> None:
    array = noise().map_blocks(centred)
    with _cluster() as cluster, Client(cluster) as client:
        dasktile.enable(client)
        with results._Gathering(client, _plan(array), lambda *_: None) as gathering:
            futures = gathering.start()
            assert len(futures) < 40
            wait(futures)
            client.sync(cluster.workers[1].close, executor_wait=False)
            gathering.add(futures, client.gather(futures))
            (result,) = gathering.joined()
    np.testing.assert_array_equal(result, array.compute(scheduler="sync"))


def _plan(*arrays: da.Array, **options: Any) -> tuple[Any, ...]:
    return optimize_to_gather(*arrays, **options)


def test_a_cancelled_computation_leaves_nothing(cluster: LocalCluster) -> None:
    _started.clear()
    _go_on.clear()

    async def cancelled() -> None:
        async with Client(cluster.scheduler_address, asynchronous=True) as client:
            await dasktile.enable(client)
            array = noise().map_blocks(waits, meta=np.empty((0, 0)))
            computing = asyncio.ensure_future(dasktile.compute(array, workers=client))
            while not _started.is_set():
                await asyncio.sleep(0.01)
            computing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await computing
            _go_on.set()
            await asyncio.sleep(0)
            assert not client.futures
            await dasktile.disable(client)

    asyncio.run(cancelled())


def test_the_progress_counts_blocks(cluster: LocalCluster, client: Client) -> None:
    shown: list[tuple[int, int]] = []
    arrays = _plan(noise().map_blocks(centred), noise())
    results.gather(client, arrays, lambda count, total: shown.append((count, total)))
    assert shown[0] == (0, 2 * BLOCKS)
    assert shown[-1] == (2 * BLOCKS, 2 * BLOCKS)
    assert shown == sorted(shown)
    # every worker sends several values, whatever the time at which they are ready
    with results._Gathering(client, arrays, lambda *_: None) as gathering:
        assert len(gathering.start()) >= 12


def test_results_share_no_memory_with_each_other(client: Client, cluster: LocalCluster) -> None:
    x = noise().map_blocks(centred)
    first, second = dasktile.compute(x, x + 1)
    copy = first.copy()
    second[:] = 0
    np.testing.assert_array_equal(first, copy)
    assert first.base is None
    assert first.flags.writeable
    # nothing that a worker may still have is changed
    (again,) = dasktile.compute(x)
    first[:] = 0
    np.testing.assert_array_equal(again, copy)
