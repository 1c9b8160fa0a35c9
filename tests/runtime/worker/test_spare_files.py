"""Files of removed results are written over, but not while they are read."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from dasktile.runtime.settings import RuntimeSettings
from dasktile.runtime.tiers import Disk, Held
from dasktile.runtime.worker import data
from dasktile.runtime.worker.data import make_store
from dasktile.runtime.worker.store import TileStore
from dasktile.schedule.instructions import ResidencySettings

LIMIT = 30
SIZE = 80_000


def tile(number: int) -> np.ndarray:
    return np.full(SIZE // 8, float(number))


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(str(tmp_path), spare=10 * SIZE)


@pytest.fixture
def store(disk: Disk) -> Iterator[TileStore]:
    """A store that has room for two tiles in memory, with four tiles on disk."""
    store = TileStore([disk], ResidencySettings((int(2.5 * SIZE), None)))
    for key in range(6):
        store[key] = tile(key)
    settle(store)
    assert set(store.slow) == set(range(4))
    yield store
    store.close()


def settle(store: TileStore) -> None:
    store._engine.wait_all(LIMIT)


def path_of(store: TileStore, key: Any) -> str:
    path: str = store.slow[key].content.path
    return path


def test_the_file_of_a_removed_result_is_spare_at_once(store: TileStore, disk: Disk) -> None:
    path = path_of(store, 0)
    gate = threading.Event()
    # the thread that writes, and removes files, has other work
    store._pools["0 to 1"].submit(gate.wait, LIMIT)
    try:
        del store[0]
        assert list(disk._spare._files) == [path]
        assert not store._engine.left
    finally:
        gate.set()
    store[6] = tile(6)
    settle(store)
    written = {path_of(store, key) for key in store.slow}
    assert path in written
    assert {os.path.join(disk.directory, each) for each in os.listdir(disk.directory)} == written
    for key in range(1, 7):
        np.testing.assert_array_equal(store[key], tile(key))


def test_a_file_is_not_written_over_while_it_is_read(store: TileStore, disk: Disk) -> None:
    path = path_of(store, 0)
    started, gate = threading.Event(), threading.Event()
    loaded: list[Any] = []
    gated_disk: Any = disk
    load = disk.load

    def gated(held: Held) -> Any:
        started.set()
        assert gate.wait(LIMIT)
        loaded.append(load(held))
        return loaded[-1]

    gated_disk.load = gated
    name = store.request([0], lambda: None, urgent=True)
    try:
        assert started.wait(LIMIT)
        del store[0]
        for key in range(6, 10):
            store[key] = tile(key)
        deadline = time.monotonic() + LIMIT
        while not set(range(1, 8)) <= set(store.slow):
            assert time.monotonic() < deadline, "not all are written"
            time.sleep(0.01)
        assert path not in disk._spare._files
        assert path not in {path_of(store, key) for key in store.slow}
    finally:
        gate.set()
    store.release(name)
    settle(store)
    np.testing.assert_array_equal(loaded[0], tile(0))
    gated_disk.load = load
    # from then on, perhaps for a tile that was evicted while memory was full; the thread that read
    # it may give it back after its tile was handed over
    deadline = time.monotonic() + LIMIT
    while path not in {*disk._spare._files, *(path_of(store, key) for key in store.slow)}:
        assert time.monotonic() < deadline, "it is not spare"
        time.sleep(0.01)
    for key in range(1, 10):
        np.testing.assert_array_equal(store[key], tile(key))


def test_a_file_is_not_spare_before_all_that_was_pushed_on_it_is_done(
    store: TileStore, disk: Disk
) -> None:
    path = path_of(store, 0)
    entry: Any = store._entries[0]
    gate = threading.Event()
    # a read that the residency does not know
    variable = entry.units[0].variables[1]
    read = store._engine.push(lambda: gate.wait(LIMIT), [variable], lane="1 to 0")
    try:
        del store[0]
        store[6] = tile(6)
        deadline = time.monotonic() + LIMIT
        while 4 not in store.slow:
            assert time.monotonic() < deadline, "the result is not written"
            time.sleep(0.01)
        assert path not in disk._spare._files
        assert path_of(store, 4) != path
    finally:
        gate.set()
    assert read.result(LIMIT)
    settle(store)
    assert list(disk._spare._files) == [path]


def test_nothing_is_kept_when_no_result_is_stored(store: TileStore, disk: Disk) -> None:
    for key in range(3):
        del store[key]
    settle(store)
    assert len(disk._spare) == 1
    del store[3]
    settle(store)
    assert os.listdir(disk.directory) == []
    assert len(store) == 2


@pytest.mark.parametrize(
    "limit, in_memory, expected",
    [(False, False, RuntimeSettings().spare_files), ("1 GiB", False, 0), (False, True, 0)],
)
def test_no_files_are_kept_where_the_disk_is_limited_or_memory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: Any,
    in_memory: bool,
    expected: int,
) -> None:
    monkeypatch.setattr(data, "takes_memory", lambda directory: in_memory)
    with dask.config.set({"distributed.worker.memory.max-spill": limit}):
        store = make_store(str(tmp_path), 1 << 30)
    disk: Any = store._tiers[-1]
    assert disk._spare._most == expected
    held, other = (disk.store(tile(each)) for each in range(2))
    assert disk.recycle(held) == bool(expected)
    disk.free(held)
    assert len(os.listdir(disk.directory)) == 1 + bool(expected)
    np.testing.assert_array_equal(disk.load(other), tile(1))
    store.close()
