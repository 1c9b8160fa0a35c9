"""Workers that spill compute right results after failures of disks, devices and workers."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
import pytest
from distributed import Client, Future, LocalCluster, Worker, wait
from distributed.utils import RateLimiterFilter

import dasktile
from dasktile.runtime.tiers import Held
from dasktile.runtime.worker import store as store_module
from dasktile.runtime.worker.reads import LostTileError
from dasktile.runtime.worker.store import TileStore
from dasktile.testing import emulated
from dasktile.testing.emulated import DeviceFullError, EmulatedDevice, to_device, use
from tests.support import BY_TARGET

#: Seconds after which something hangs.  To start a process may take a minute where others wait
#: for the same processors.
LIMIT = 240

SIZE = 200_000
TILES = 10


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Let the budget ignore the memory of the test's process."""
    RateLimiterFilter.reset_timer(store_module.logger)
    with dask.config.set({**BY_TARGET, "distributed.worker.memory.monitor-interval": "20ms"}):
        yield


@contextmanager
def spilling(
    tiles: float = 5,
    workers: int = 1,
    threads: int = 1,
    processes: bool = False,
    device: float | None = None,
    **options: Any,
) -> Iterator[tuple[LocalCluster, Client]]:
    """A cluster with memory for a number of tiles per worker, and its client."""
    limit = int(tiles * SIZE / 0.6) + 2000
    room = None if device is None else int(device * SIZE) + 2000
    with (
        LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            processes=processes,
            dashboard_address=None,
            memory_limit=limit,
            data=dasktile.worker_data(limit, room, device="emulated"),
            **options,
        ) as cluster,
        Client(cluster) as client,
    ):
        dasktile.enable(client)
        yield cluster, client


def until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def tile(number: int) -> np.ndarray:
    return np.full(SIZE // 8, float(number))


def total(*tiles: Any) -> float:
    return float(sum(each.sum() for each in tiles))


def sums(numbers: range) -> list[float]:
    return [number * SIZE / 8 for number in numbers]


def made(client: Client, make: Callable[[int], Any] = tile, **options: Any) -> list[Future]:
    tiles = client.map(make, range(TILES), pure=False, **options)
    wait(tiles, timeout=LIMIT)
    return tiles


def is_right(client: Client, tiles: list[Future]) -> None:
    results = client.gather(client.map(total, tiles, pure=False))
    assert results == sums(range(TILES))


def store_of(cluster: LocalCluster) -> TileStore:
    [worker] = cluster.workers.values()
    assert isinstance(worker.data, TileStore)
    return worker.data


def files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("dasktile-*/*") if path.is_file()]


# Workers that go


def test_a_worker_is_killed(tmp_path: Path) -> None:
    local = str(tmp_path)
    with spilling(2, workers=2, processes=True, local_directory=local) as (_, client):
        tiles = made(client)
        until(lambda: len(files(tmp_path)) >= 2)
        before = client.run(directory)
        gone = next(iter(before))
        [process] = client.run(os.getpid, workers=[gone]).values()
        psutil.Process(process).kill()
        until(lambda: gone not in client.scheduler_info()["workers"])
        is_right(client, tiles)
        until(lambda: not os.path.exists(before[gone]))
        until(lambda: len(client.scheduler_info()["workers"]) == 2)
        # the new one spills too
        assert all(path != before[gone] for path in client.run(directory).values())
    assert not list(tmp_path.rglob("dasktile-*"))


def directory(dask_worker: Worker) -> str:
    store: Any = dask_worker.data
    return store._tiers[-1].directory


def test_a_restart(tmp_path: Path) -> None:
    with spilling(2, workers=2, processes=True, local_directory=str(tmp_path)) as (_, client):
        # without these futures the results, and their files, would be removed at once
        tiles = made(client)
        until(lambda: len(files(tmp_path)) >= 2)
        before = client.run(directory)
        client.restart(timeout=LIMIT)
        assert all(tile.cancelled() for tile in tiles)
        after = client.run(directory)
        assert not set(before.values()) & set(after.values())
        assert not any(map(os.path.exists, before.values()))
        tiles = made(client)
        is_right(client, tiles)
    assert not list(tmp_path.rglob("dasktile-*"))


def test_a_worker_retires() -> None:
    with spilling(2.5, workers=2) as (cluster, client):
        counted = made(client, counts)
        tiles = client.map(tile, range(TILES), pure=False)
        wait(tiles, timeout=LIMIT)
        gone = next(worker for worker in cluster.workers.values() if worker.data.slow)
        path = directory(gone)
        client.retire_workers([gone.address])
        until(lambda: len(client.scheduler_info()["workers"]) == 1)
        is_right(client, tiles)
        # sent, not made again
        assert sorted(client.gather(client.map(first, counted))) == list(range(TILES))
        assert list(range(TILES)) == MADE
        until(lambda: not os.path.exists(path))
    MADE.clear()


#: What was made by :func:`counts`, in order.
MADE: list[int] = []


def counts(number: int) -> np.ndarray:
    MADE.append(number)
    MADE.sort()
    return tile(number)


def first(value: np.ndarray) -> int:
    return int(value[0])


def test_disabled_and_enabled_while_tiles_are_spilled() -> None:
    with spilling(2.5, threads=2) as (cluster, client):
        tiles = made(client)
        store = store_of(cluster)
        for _ in range(2):
            sums = client.map(total, tiles, pure=False)
            dasktile.disable(client)
            dasktile.enable(client)
            assert client.gather(sums) == [number * SIZE / 8 for number in range(TILES)]
        assert store_of(cluster) is store
        until(lambda: store.slow)
        assert store._residency._requests == {}
        is_right(client, tiles)


def test_disabled_on_workers_without_a_spilling_mapping(tmp_path: Path) -> None:
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=2,
            processes=False,
            dashboard_address=None,
            memory_limit=int(3 * SIZE / 0.6),
            local_directory=str(tmp_path),
        ) as cluster,
        Client(cluster) as client,
    ):
        [worker] = cluster.workers.values()
        before = worker.data
        tiles = made(client)
        for _ in range(2):
            sums = client.map(total, tiles, pure=False)
            dasktile.enable(client)
            # in files of its own, or in those of distributed that it took over
            until(lambda: store_of(cluster).slow)
            dasktile.disable(client)
            assert worker.data is before
            assert not files(tmp_path)
            assert client.gather(sums) == [number * SIZE / 8 for number in range(TILES)]


# Hints


def test_workers_forget_next_uses_after_an_error_of_the_scheduler(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with spilling(2.5) as (cluster, client), caplog.at_level(logging.ERROR):
        store = store_of(cluster)
        [worker] = cluster.workers.values()
        tiles = made(client)
        spilling_of = store.next_use.__self__  # type: ignore[attr-defined]
        assert spilling_of.uses.next_use(tiles[0].key) is not None

        def breaks(dask_scheduler: Any) -> None:
            def fails(*arguments: Any) -> None:
                raise RuntimeError("no hints today")

            dask_scheduler.plugins["dasktile"].hint_sender.graph_added = fails

        client.run_on_scheduler(breaks)
        is_right(client, tiles)
        until(lambda: not spilling_of.uses.current)
        assert all(spilling_of.uses.next_use(one.key) is None for one in tiles)
        assert caplog.text.count("cannot send next-use hints") == 1
        is_right(client, tiles)
        assert worker.status.name == "running"


# Disks


def test_a_full_disk(caplog: pytest.LogCaptureFixture) -> None:
    with spilling(2.5) as (cluster, client), caplog.at_level(logging.WARNING):
        store = store_of(cluster)
        disk = Limited(store, 2 * SIZE + 2000)
        tiles = made(client)
        until(lambda: disk.refused)
        is_right(client, tiles)
        assert len(store.fast) >= TILES - 2
        assert caplog.text.count("Spill to disk failed; keeping data in memory") == 1
        assert "No space left on device" in caplog.text
        disk.left = TILES * 2 * SIZE
        until(lambda: len(store.fast) <= 3)
        is_right(client, tiles)


class Limited:
    """Limits a store's disk to a number of bytes."""

    def __init__(self, store: TileStore, left: int) -> None:
        self.left = left
        self.refused = 0
        disk: Any = store._tiers[-1]
        self._store = disk.store
        disk.store = self.store

    def store(self, value: Any) -> Held:
        held = self._store(value)
        if held.size > self.left:
            self.refused += 1
            os.remove(held.content.path)
            raise OSError(errno.ENOSPC, "No space left on device")
        self.left -= held.size
        return held


def test_a_limit_of_spilled_bytes(caplog: pytest.LogCaptureFixture) -> None:
    with (
        dask.config.set({"distributed.worker.memory.max-spill": 2 * SIZE + 2000}),
        spilling(2.5) as (cluster, client),
        caplog.at_level(logging.WARNING),
    ):
        store = store_of(cluster)
        tiles = made(client)
        is_right(client, tiles)
        assert store.spilled_total.disk <= 2 * SIZE + 2000
        assert len(store.slow) == 2
        assert caplog.text.count("Spill to disk reached its limit; keeping data in memory") == 1
        spilled = set(store.slow)
        for future in tiles[:-3]:
            future.cancel()
        del future
        more = client.map(tile, range(3), pure=False)
        wait(more, timeout=LIMIT)
        assert client.gather(client.map(total, more)) == sums(range(3))
        until(lambda: set(store.slow) - spilled)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_missing_file(threads: int, caplog: pytest.LogCaptureFixture) -> None:
    """The result is recomputed, as for a peer that requests it."""
    with spilling(2.5, threads=threads) as (cluster, client), caplog.at_level(logging.ERROR):
        tiles = made(client)
        store = store_of(cluster)
        store._engine.wait_all(LIMIT)
        lost = set(store.slow) - set(store.fast)
        for held in store.slow.values():
            os.remove(held.content.path)
        # two readers of each, some of which wait while others run
        results = [client.map(total, tiles, pure=False) for _ in range(2)]
        for sums_of in results:
            assert client.gather(sums_of) == sums(range(TILES))
        assert lost
        assert f"{min(lost)!r} could not be read back: FileNotFound" in caplog.text


def test_a_file_that_is_lost_again_and_again() -> None:
    """The task fails with the reason."""
    with spilling(2.5) as (cluster, client):
        tiles = made(client)
        store = store_of(cluster)
        disk: Any = store._tiers[-1]

        def fails(*arguments: Any) -> None:
            raise OSError(errno.EIO, "Input/output error")

        disk.load = fails
        store._engine.wait_all(LIMIT)
        futures = client.map(total, [*tiles, *tiles], pure=False)
        wait(futures, timeout=LIMIT)
        failed = [future for future in futures if future.status == "error"]
        for future in failed:
            with pytest.raises(LostTileError, match="could not be read back: OSError"):
                future.result()
        assert {future.status for future in futures} <= {"finished", "error"}


def test_a_peer_requests_a_lost_tile() -> None:
    """The scheduler handles it as a lost result: it is recomputed."""
    with spilling(2.5, workers=2) as (cluster, client):
        one, two = cluster.workers.values()
        tiles = made(client, workers=[one.address], allow_other_workers=True)
        one.data._engine.wait_all(LIMIT)
        for held in one.data.slow.values():
            os.remove(held.content.path)
        results = client.map(total, tiles, pure=False, workers=[two.address])
        assert client.gather(results) == sums(range(TILES))


def test_a_client_requests_a_lost_tile() -> None:
    with spilling(2.5) as (cluster, client):
        tiles = made(client)
        store = store_of(cluster)
        store._engine.wait_all(LIMIT)
        for held in store.slow.values():
            os.remove(held.content.path)
        results = client.gather(tiles)
        assert [total(one) for one in results] == sums(range(TILES))


# Values


def test_values_that_cannot_be_pickled(caplog: pytest.LogCaptureFixture) -> None:
    with spilling(2.5) as (cluster, client), caplog.at_level(logging.ERROR):
        store = store_of(cluster)
        stubborn = client.map(with_lock, range(4), pure=False)
        generated = client.submit(generator, pure=False)
        wait([*stubborn, generated], timeout=LIMIT)
        tiles = made(client)
        for _ in range(2):
            is_right(client, tiles)
        assert client.gather(client.map(locked, stubborn)) == sums(range(4))
        assert client.submit(list, generated).result(LIMIT) == [0, 1, 2]
        assert {one.key for one in stubborn} <= set(store.fast)
        for one in stubborn:
            assert caplog.text.count(f"Failed to serialize {one.key!r}") <= 1
        assert f"Failed to serialize {stubborn[0].key!r}" in caplog.text


def with_lock(number: int) -> Any:
    return [tile(number), threading.Lock()]


def locked(value: Any) -> float:
    array, lock = value
    with lock:
        return total(array)


def generator() -> Any:
    return (number for number in range(3))


def add_one(value: np.ndarray) -> float:
    """Changes its input in place."""
    value += 1
    return total(value)


@pytest.mark.parametrize("keep_clean", (False, True))
def test_tasks_that_change_their_inputs(keep_clean: bool) -> None:
    """With the setting off they read the changes of earlier tasks, as without spilling."""
    actual = []
    with (
        dask.config.set({"dasktile.spill.keep-clean": keep_clean}),
        spilling(2.5) as (_, client),
    ):
        tiles = made(client)
        for _ in range(3):
            actual.append(client.gather(client.map(add_one, tiles, pure=False)))
    expected = [sums(range(step, TILES + step)) for step in (1, 2, 3)]
    # with it on, files are taken to be what they were made of
    assert (actual == expected) != keep_clean


#: Set when a task that changes its input may go on, and when it has begun; in one process.
GO_ON, CHANGING = threading.Event(), threading.Event()


def change_in_two_steps(value: np.ndarray) -> None:
    value[: len(value) // 2] += 1
    CHANGING.set()
    assert GO_ON.wait(LIMIT)
    value[len(value) // 2 :] += 1


def test_memory_fills_while_a_task_changes_its_input() -> None:
    GO_ON.clear()
    CHANGING.clear()
    with (
        dask.config.set({"dasktile.spill.keep-clean": False}),
        spilling(5, threads=2) as (cluster, client),
    ):
        first = client.submit(tile, 0)
        changed = client.submit(change_in_two_steps, first)
        assert CHANGING.wait(LIMIT)
        assert store_of(cluster).tracks_nothing
        tiles = made(client)
        assert not store_of(cluster).tracks_nothing
        assert first.key in store_of(cluster).fast
        GO_ON.set()
        changed.result(LIMIT)
        del changed, tiles
        assert client.submit(total, first).result(LIMIT) == SIZE / 8


# Devices


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], EmulatedDevice]:
    """Gives the process a device with memory for a number of tiles."""
    monkeypatch.setattr(emulated, "_current", [])
    return lambda tiles: use(EmulatedDevice(int(tiles * SIZE)))


def on_device(number: int) -> Any:
    return to_device(tile(number))


def on_device_total(*tiles: Any) -> float:
    return float(sum(float(each.sum()) for each in tiles))


def doubled(value: Any) -> float:
    """Allocates as much memory as its input has, while it runs."""
    return float((value * 2).sum())


def test_results_larger_than_the_device(
    device: Callable[[float], EmulatedDevice],
) -> None:
    gpu = device(4.5)
    with spilling(20, threads=2, device=3) as (cluster, client):
        tiles = made(client, on_device)
        results = client.gather(client.map(on_device_total, tiles, pure=False))
        assert results == sums(range(TILES))
        assert gpu.peak <= gpu.capacity
        assert store_of(cluster).report()["spilled"]["host"] >= 5 * SIZE
        tiles.clear()
    until(lambda: gpu.used == 0)


def test_bytes_on_the_device_are_no_memory_of_the_host(
    device: Callable[[float], EmulatedDevice],
) -> None:
    device(8)
    with spilling(3, device=6) as (cluster, client):
        [worker] = cluster.workers.values()
        store = store_of(cluster)

        def managed() -> float:
            client.sync(worker.heartbeat)
            return cluster.scheduler.workers[worker.address].memory.managed / SIZE

        def settled() -> bool:
            # tiles that were written are dropped where they were
            return sum(store.report()["held"].values()) // SIZE == TILES

        tiles = client.map(on_device, range(5), pure=False)
        wait(tiles, timeout=LIMIT)
        # all are on the device
        assert (round(managed()), store.spilled_total.disk) == (0, 0)
        tiles += client.map(on_device, range(5, TILES), pure=False)
        wait(tiles, timeout=LIMIT)
        until(settled)
        held = {name: size // SIZE for name, size in store.report()["held"].items()}
        assert held == {"emulated": 6, "host": 3, "disk": 1}
        assert round(managed()) == 3
        is_there = [client.submit(on_device_total, one, pure=False) for one in tiles]
        assert client.gather(is_there) == sums(range(TILES))
        del tiles, is_there
        until(lambda: not len(store))
        assert store.spilled_total == (0, 0)


def test_a_peer_gets_a_spilled_result_from_the_memory_of_the_host(
    device: Callable[[float], EmulatedDevice],
) -> None:
    gpu = device(20)
    with spilling(20, workers=2, device=3, protocol="tcp") as (cluster, client):
        one, other = cluster.workers.values()
        tiles = made(client, on_device, workers=[one.address], allow_other_workers=False)
        store = one.data
        until(lambda: store.used(0) <= 3 * SIZE and not store.evicting(0))
        spilled = [each for each in tiles if each.key not in store.fast]
        assert len(spilled) >= TILES - 3
        up, down = gpu.copied_up, gpu.copied_down
        total = client.submit(on_device_total, *spilled[:2], workers=[other.address], pure=False)
        assert total.result() == sum(sums(range(TILES))[tiles.index(each)] for each in spilled[:2])
        # each was copied once, to the memory of the other worker
        assert gpu.copied_up - up == 2 * SIZE
        assert gpu.copied_down - down <= 2 * 8
        assert all(each.key not in store.fast for each in spilled)
        # the client, which may lack what is needed to receive such values, gets arrays
        assert float(spilled[2].result().sum()) == sums(range(TILES))[tiles.index(spilled[2])]


def doubled_and_held(value: Any) -> float:
    """Holds what it has allocated for a while after its end."""
    held = [value, value * 2]
    threading.Timer(0.1, held.clear).start()
    return float(held[1].sum())


@pytest.mark.parametrize("run", [doubled, doubled_and_held])
def test_tasks_that_allocate_on_the_device(
    run: Callable[[Any], float], device: Callable[[float], EmulatedDevice]
) -> None:
    gpu = device(4.5)
    # tiles may take all of the device, so that there is room only when some leave
    with spilling(20, device=4.5) as (_, client):
        tiles = made(client, on_device)
        results = client.gather(client.map(run, tiles, pure=False))
        assert results == [2 * one for one in sums(range(TILES))]
        assert gpu.peak <= gpu.capacity


def held_for_longer(*tiles: Any) -> float:
    """Holds its inputs for a while after its end, as a thread does that has to wait."""
    held = list(tiles)
    threading.Timer(0.1, held.clear).start()
    return on_device_total(*tiles)


@pytest.mark.parametrize("run", [on_device_total, held_for_longer])
def test_tasks_that_do_not_fit_at_once(
    run: Callable[..., float], device: Callable[[float], EmulatedDevice]
) -> None:
    gpu = device(4.5)
    with spilling(20, threads=3, device=4) as (_, client):
        tiles = made(client, on_device)
        trios = [tiles[start : start + 3] for start in range(TILES - 2)]
        results = [client.submit(run, *trio, pure=False) for trio in trios]
        assert client.gather(results) == sums(range(3, 3 * TILES - 3, 3))
        assert gpu.peak <= gpu.capacity


def patient(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tasks wait for memory for longer than any test, rather than run without it."""
    [worker] = cluster.workers.values()
    plugin: Any = worker.plugins["dasktile"]
    spilling = plugin.plugin.spilling
    settings = replace(spilling.settings, room_timeout=10 * LIMIT)
    monkeypatch.setattr(spilling, "settings", settings)


def test_inputs_larger_than_the_device(
    device: Callable[[float], EmulatedDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    device(4.5)
    with spilling(20, threads=2, device=4) as (cluster, client):
        tiles = made(client, on_device)
        patient(cluster, monkeypatch)
        result = client.submit(on_device_total, *tiles)
        with pytest.raises(LostTileError, match="no room for 200000 bytes on the device"):
            result.result(LIMIT)
        # of the others nothing is lost
        results = client.gather(client.map(on_device_total, tiles, pure=False))
        assert results == sums(range(TILES))


def test_a_task_larger_than_the_device(
    device: Callable[[float], EmulatedDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    device(4.5)
    with spilling(20, threads=2, device=4) as (cluster, client):
        tiles = made(client, on_device)
        patient(cluster, monkeypatch)
        result = client.submit(too_much, tiles[0])
        with pytest.raises(DeviceFullError, match="no room for"):
            result.result(LIMIT)
        results = client.gather(client.map(on_device_total, tiles, pure=False))
        assert results == sums(range(TILES))


def too_much(value: Any) -> Any:
    return [value + number for number in range(6)]
