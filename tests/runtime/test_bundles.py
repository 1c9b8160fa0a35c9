"""Bundles on workers: bytes moved, retries, persisted results, spilling and cancellation."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.core import flatten
from distributed import Client, LocalCluster, Scheduler, as_completed, futures_of, wait
from distributed.diagnostics.progressbar import TextProgressBar
from distributed.scheduler import TaskState

import dasktile
from benchmarks.bundles import WORKLOADS
from dasktile import prediction
from dasktile.lower.bundle_tasks import run_bundle
from dasktile.schedule.placement import decode
from dasktile.schedule.ranks import rank_of

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


# Run on the scheduler's event loop: between two reads of another thread, tasks may be sent.


def bundles(dask_scheduler: Scheduler) -> list[TaskState]:
    """The bundles of graphs that the scheduler's plugins have seen."""
    return [
        ts
        for ts in dask_scheduler.tasks.values()
        if getattr(ts.run_spec, "func", None) is run_bundle and ts.state != "released"
    ]


def count_bundles(dask_scheduler: Scheduler) -> int:
    return len(bundles(dask_scheduler))


def homes_and_workers(dask_scheduler: Scheduler) -> list[tuple[str, str]]:
    """The planned and the actual worker of every bundle."""
    plugin: Any = dask_scheduler.plugins["dasktile"]
    pairs = []
    for ts in bundles(dask_scheduler):
        placement = decode(ts.key[0])
        assert placement is not None
        home = plugin.homes.table(placement.positions)[placement.position(ts.key[1:])]
        held = plugin.roots.homes.get(ts.key)
        [worker] = [held] if held is not None else ts.worker_restrictions
        pairs.append((home, worker))
    return pairs


def held_roots(dask_scheduler: Scheduler) -> int:
    """Number of root tasks that are held back."""
    plugin: Any = dask_scheduler.plugins["dasktile"]
    return len(plugin.roots.homes)


def priorities_by_rank(dask_scheduler: Scheduler) -> list[tuple[Any, Any]]:
    """The priority of every task whose key has a rank, by rank."""
    known = [
        (rank, ts.priority)
        for ts in dask_scheduler.tasks.values()
        if (rank := rank_of(ts.key)) is not None and ts.run_spec is not None
    ]
    return sorted(known)


#: Whether `gated` tasks may end; workers share it, since they are in this process.
OPEN = threading.Event()


@contextmanager
def closed_gate() -> Iterator[None]:
    """Let `gated` tasks wait until the end of the block, or until the gate is opened in it."""
    OPEN.clear()
    try:
        yield
    finally:
        OPEN.set()


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


#: How many calls of `stepped` may still end.
STEPS = threading.Semaphore(0)


def stepped(block: np.ndarray) -> np.ndarray:
    assert STEPS.acquire(timeout=LIMIT)
    return block


def mapped(function: Any, chunks: int = 200) -> da.Array:
    """Sums of a square of ones and its transpose, whose blocks a function has passed."""
    x = da.ones((3000, 3000), chunks=chunks)
    x = x.map_blocks(function, dtype=float, meta=np.empty((0, 0)))
    return (x + x.T).sum(axis=0)


def errors(dask_scheduler: Scheduler) -> int:
    plugin: Any = dask_scheduler.plugins["dasktile"]
    return int(plugin.errors)


def open_to_stealing(dask_scheduler: Scheduler) -> tuple[set[Any], set[Any]]:
    """Keys of the tasks that workers have, and of those that work stealing may move or measures."""
    stealing: Any = dask_scheduler.extensions["stealing"]
    unknown = {ts.key for tasks in stealing.unknown_durations.values() for ts in tasks}
    sent = {ts.key for ws in dask_scheduler.workers.values() for ts in ws.processing}
    return sent, {ts.key for ts in stealing.key_stealable} | unknown


def is_bundled(array: da.Array) -> bool:
    return any(getattr(task, "func", None) is run_bundle for task in dict(array.dask).values())


def until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def until_bundles(client: Client) -> None:
    """Wait until the scheduler has bundles."""
    until(lambda: client.run_on_scheduler(count_bundles))


def test_as_many_bytes_move_as_without_bundles(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # bundles of the usual size, whatever memory they need
    monkeypatch.setattr(prediction, "LITTLE_MEMORY", 2**30)
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
    with closed_gate():
        future = client.compute(dasktile.optimize(mapped(gated), workers=client))
        until_bundles(client)
        workers = client.run_on_scheduler(homes_and_workers)
        # roots are sent to workers as these have slots
        assert client.run_on_scheduler(held_roots)
    assert all(home == worker for home, worker in workers)
    assert len({home for home, _ in workers}) == 4
    np.testing.assert_array_equal(future.result(LIMIT), np.full(3000, 6000.0))


def test_the_priorities_of_bundles_are_those_of_their_plan(client: Client) -> None:
    with closed_gate():
        future = client.compute(dasktile.optimize(mapped(gated), workers=client))
        until_bundles(client)
        known = client.run_on_scheduler(priorities_by_rank)
    ranks, priorities = zip(*known, strict=True)
    assert len(set(ranks)) == len(ranks) > 8
    assert list(priorities) == sorted(priorities)
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


def test_graphs_hold_the_futures_of_persisted_inputs(client: Client) -> None:
    """The user may forget the inputs."""
    x = da.random.default_rng(0).random((3000, 1000), chunks=100)
    x = dasktile.optimize(x, workers=client).persist()
    wait(x, timeout=LIMIT)
    values = x.compute()
    y = x - x.mean(axis=0)
    z = ((y + y[::-1]) ** 2).sum(axis=0)
    new = dasktile.optimize(z, workers=client)
    assert len(futures_of(new)) == x.npartitions
    _, same = dasktile.optimize(z, x, workers=client)
    assert len(futures_of(same)) == x.npartitions
    assert set(flatten(same.__dask_keys__())) <= set(dict(same.dask))
    del x, y, z, same, _
    values -= values.mean(axis=0)
    np.testing.assert_allclose(new.compute(), ((values + values[::-1]) ** 2).sum(axis=0))


def test_a_computation_can_be_cancelled_and_repeated(client: Client) -> None:
    new = dasktile.optimize(mapped(gated), workers=client)
    with closed_gate():
        future = client.compute(new)
        until_bundles(client)
        future.cancel()
    np.testing.assert_array_equal(client.compute(new).result(LIMIT), np.full(3000, 6000.0))


def test_a_storm_of_cancellations(client: Client) -> None:
    new = dasktile.optimize(mapped(gated), workers=client)
    before = client.run_on_scheduler(errors)
    for number in range(4):
        with closed_gate():
            one, two = client.compute(new), client.persist(new)
            until_bundles(client)
            if number % 2:
                # some bundles end while their readers are cancelled
                OPEN.set()
            client.cancel([one] if number % 3 else [one, two])
            again = client.compute(new) if number % 2 else None
        if again is not None:
            np.testing.assert_array_equal(again.result(LIMIT), np.full(3000, 6000.0))
        del one, two, again
    np.testing.assert_array_equal(client.compute(new).result(LIMIT), np.full(3000, 6000.0))
    assert client.run_on_scheduler(errors) == before
    assert not client.run_on_scheduler(held_roots)


def test_blocks_of_a_plan_are_iterated_as_they_complete(client: Client) -> None:
    x = da.random.default_rng(0).random((3000, 3000), chunks=200)
    expected = (x + x.T).sum(axis=0).compute(scheduler="sync")
    new = dasktile.optimize(x + x.T, workers=client)
    assert is_bundled(new)
    kept = new.persist()
    total, seen = np.zeros(3000), set()
    starts = np.cumsum([0, *kept.chunks[1]])
    for future, block in as_completed(futures_of(kept), with_results=True, timeout=LIMIT):
        seen.add(future.key)
        start = starts[future.key[-1]]
        total[start : start + block.shape[1]] += block.sum(axis=0)
    assert len(seen) == kept.npartitions
    np.testing.assert_allclose(total, expected)


def test_the_progress_of_bundles_is_seen(client: Client) -> None:
    class Recorder(TextProgressBar):
        def _draw_bar(self, **state: Any) -> None:
            counts.append((state["remaining"], state["all"]))

    counts: list[tuple[int, int]] = []
    new = dasktile.optimize(mapped(stepped), workers=client)
    assert is_bundled(new)
    kept = client.persist(new)
    with ThreadPoolExecutor(1) as pool:
        shown = pool.submit(
            Recorder, futures_of(kept), interval="10ms", complete=True, start=True, loop=None
        )
        # of 225 blocks at most 16 for each thread are in bundles that wait
        STEPS.release(100)
        try:
            until(lambda: any(0 < remaining < every for remaining, every in counts))
        finally:
            STEPS.release(225 - 100)
        shown.result(LIMIT)
    left = [remaining for remaining, _ in counts]
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0 and len({every for _, every in counts}) == 1


def test_bundles_are_not_stolen(client: Client) -> None:
    with closed_gate():
        future = client.compute(dasktile.optimize(mapped(gated), workers=client))
        until_bundles(client)
        sent, open_ones = client.run_on_scheduler(open_to_stealing)
        assert sent and not open_ones
        # tasks of other graphs may be
        others = client.map(gated, range(8), pure=False)
        until(lambda: client.run_on_scheduler(open_to_stealing)[1])
        sent, open_ones = client.run_on_scheduler(open_to_stealing)
        assert open_ones <= {each.key for each in others}
    np.testing.assert_array_equal(future.result(LIMIT), np.full(3000, 6000.0))
    assert client.gather(others) == list(range(8))


def test_the_hook_bundles_on_the_scheduler(client: Client) -> None:
    with dask.config.set({"array_optimize": dasktile.array_optimize}):
        with closed_gate():
            future = client.compute(mapped(gated))
            until_bundles(client)
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
