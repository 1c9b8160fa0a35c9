"""Results of a worker that move from one mapping to another, without blocking the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed.spill import Slow, SpillBuffer

from dasktile.runtime.tiers import Disk, Foreign, Held
from dasktile.runtime.worker.data import SpillOptions
from dasktile.runtime.worker.plugin import TileWorkerPlugin
from dasktile.runtime.worker.store import TileStore
from dasktile.runtime.worker.takeover import Handover, take_over
from dasktile.schedule.instructions import ResidencySettings

SIZE = 80_000
#: Tiles in all, and those that fit in memory.
TILES, ROOM = 10, 3


def tile(number: int) -> np.ndarray:
    return np.full(SIZE // 8, float(number))


@pytest.fixture
def buffer(tmp_path: Path) -> SpillBuffer:
    """Distributed's mapping, with most tiles in files."""
    made = SpillBuffer(str(tmp_path / "theirs"), target=ROOM * SIZE + 1000)
    for number in range(TILES):
        made[f"t{number}"] = tile(number)
    assert len(made.disk) == TILES - ROOM
    return made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TileStore]:
    disk = Disk(str(tmp_path / "ours"))
    made = TileStore([disk], ResidencySettings((ROOM * SIZE + 1000, None)))
    yield made
    made.close()


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the threads that read and write files of distributed's mapping."""
    names: list[str] = []
    for method in ("__getitem__", "__setitem__"):
        original = getattr(Slow, method)

        def called(self: Any, *arguments: Any, original: Any = original) -> Any:
            names.append(threading.current_thread().name)
            return original(self, *arguments)

        monkeypatch.setattr(Slow, method, called)
    return names


def is_right(values: Any) -> None:
    assert sorted(values) == [f"t{number}" for number in range(TILES)]
    for number in range(TILES):
        np.testing.assert_array_equal(values[f"t{number}"], tile(number))


def test_files_are_taken_over_without_reading_them(
    buffer: SpillBuffer, store: TileStore, files: list[str]
) -> None:
    take_over(buffer, store)
    assert not files
    assert (len(buffer.memory), len(buffer.disk)) == (0, TILES - ROOM)
    assert len(store) == TILES
    assert len(store.slow) == TILES - ROOM
    assert store.spilled_total.memory == (TILES - ROOM) * SIZE
    assert store.spilled_total.disk == buffer.spilled_total.disk
    is_right(store)
    # each was read once, in a thread of the store
    assert len(files) == TILES - ROOM
    assert all(name.startswith("dasktile-") for name in files)
    for key in list(store):
        del store[key]
    store.wait_all()
    assert not buffer
    assert store.spilled_total == (0, 0)


def test_files_that_cannot_be_taken_over_are_read_one_by_one(
    buffer: SpillBuffer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SlowDisk(Disk):
        def store(self, value: Any) -> Held:
            time.sleep(0.02)
            return super().store(value)

    in_memory: list[int] = []
    store = TileStore([SlowDisk(str(tmp_path / "ours"))], ResidencySettings((ROOM * SIZE, None)))
    read = Slow.__getitem__

    def counted(self: Any, key: Any) -> Any:
        in_memory.append(len(store.fast))
        return read(self, key)

    monkeypatch.setattr(Slow, "__getitem__", counted)
    # as with a device, or another release of distributed
    monkeypatch.setattr("dasktile._compat.distributed.storage.spilled_sizes", lambda data: {})
    take_over(buffer, store)
    assert len(in_memory) == TILES - ROOM
    assert max(in_memory) <= ROOM
    assert not buffer
    is_right(store)
    store.close()


def test_files_that_were_taken_over_stay_when_all_moves_back(
    buffer: SpillBuffer, store: TileStore, files: list[str]
) -> None:
    take_over(buffer, store)
    asyncio.run(Handover(store, buffer).move())
    assert not files
    assert not len(store)
    is_right(buffer)


def test_values_are_written_again_where_the_process_has_too_much_memory(
    buffer: SpillBuffer, store: TileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_over(buffer, store)
    evict, kept = buffer.evict, []

    def evicting() -> int:
        kept.append(len(buffer.fast))
        return evict()

    monkeypatch.setattr(buffer, "evict", evicting)
    # with any value in memory it has too much
    handover = Handover(store, buffer, is_crowded=lambda: len(buffer.fast) > 0)
    asyncio.run(handover.move())
    # those that were spilled stay so
    assert kept == [1] * ROOM
    assert not buffer.fast
    is_right(buffer)


def test_files_that_move_while_they_are_read_are_no_loss(
    buffer: SpillBuffer,
    store: TileStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    reading, moved = threading.Event(), threading.Event()
    load = Foreign.load

    def late(foreign: Foreign) -> Any:
        reading.set()
        assert moved.wait(60)
        return load(foreign)

    monkeypatch.setattr(Foreign, "load", late)
    take_over(buffer, store)
    [key, *_] = buffer.disk
    request = store.request([key], lambda: None)
    assert reading.wait(60)
    assert key in store.give_back()
    # the other mapping has it in memory now, and no file of it
    np.testing.assert_array_equal(buffer[key], tile(int(key[1:])))
    moved.set()
    store.wait_all()
    store.release(request)
    assert key not in store
    assert "could not be read back" not in caplog.text


@pytest.mark.parametrize("deleted", [False, True])
def test_other_work_runs_while_values_move(
    buffer: SpillBuffer, store: TileStore, deleted: bool
) -> None:
    for number in range(TILES):
        store[f"t{number}"] = tile(number)
        del buffer[f"t{number}"]
    store.wait_all()
    written = len(store.slow)
    assert written >= TILES - ROOM
    turns = 0

    async def others(handover: Handover) -> None:
        nonlocal turns
        while True:
            turns += 1
            assert "t9" in handover
            assert len(handover) == len(set(handover)) == TILES - (deleted and turns > 2)
            if deleted and turns == 2:
                del handover["t1"]
            await asyncio.sleep(0)

    async def move() -> None:
        handover = Handover(store, buffer)
        task = asyncio.create_task(others(handover))
        await asyncio.sleep(0)
        await handover.move()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(move())
    # a turn after each value at least
    assert turns > TILES
    assert not len(store)
    assert len(buffer) == TILES - deleted
    if not deleted:
        is_right(buffer)


def test_values_that_are_set_and_deleted_while_others_move(
    buffer: SpillBuffer, store: TileStore
) -> None:
    take_over(buffer, store)
    handover: Any = None

    async def move() -> None:
        nonlocal handover
        handover = Handover(store, buffer)
        moves = asyncio.create_task(handover.move())
        for number in range(TILES):
            del handover[f"t{number}"]
            handover[f"t{number}"] = tile(number)
            await asyncio.sleep(0)
        await moves

    asyncio.run(move())
    assert not len(store)
    is_right(buffer)


def test_all_values_stay_if_one_cannot_be_moved(
    buffer: SpillBuffer, store: TileStore, files: list[str]
) -> None:
    take_over(buffer, store)

    class Refused:
        def __sizeof__(self) -> int:
            return 10 * ROOM * SIZE

        def __reduce__(self) -> Any:
            raise TypeError("not today")

    store["refused"] = Refused()
    with pytest.raises(TypeError, match="Failed to pickle"):
        asyncio.run(Handover(store, buffer).move())
    assert len(store) == TILES + 1
    assert not buffer.memory
    assert type(store["refused"]) is Refused
    del store["refused"]
    is_right(store)


@pytest.mark.parametrize("removed", [False, True])
def test_a_plugin_that_is_removed_while_it_waits_for_a_move_is_not_set_up(
    buffer: SpillBuffer, store: TileStore, removed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up: list[Any] = []
    monkeypatch.setattr(TileWorkerPlugin, "_setup", lambda plugin, worker: set_up.append(worker))

    async def run() -> None:
        plugin = TileWorkerPlugin(SpillOptions())
        handover = Handover(store, buffer)
        worker: Any = SimpleNamespace(data=handover)
        setup = asyncio.ensure_future(plugin.setup(worker) or asyncio.sleep(0))
        await asyncio.sleep(0)
        if removed:
            assert plugin.teardown(worker) is None
        worker.data = buffer
        handover.ended.set()
        await setup
        assert set_up == ([] if removed else [worker])

    asyncio.run(run())
