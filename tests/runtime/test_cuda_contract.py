"""The CUDA tier on a fake CuPy: its allocator hook, and the capacity of the device."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from distributed.protocol import dask_serialize, deserialize, serialize

import dasktile
from dasktile.runtime.tiers import Disk
from dasktile.runtime.worker.store import TileStore
from dasktile.schedule.instructions import ResidencySettings
from tests import fake_cupy

SIZE = 8000
#: Bytes of eight tiles, by the size that dask sees in the fake arrays.
CAPACITY = 8 * 8192
HOST_MEMORY = 1 << 30
LIMIT = 30

Make = Callable[[], TileStore]


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_cupy.Pool]:
    with fake_cupy.install(8 * SIZE, monkeypatch) as (_, device):
        yield device


@pytest.fixture
def make(pool: fake_cupy.Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Make]:
    import dasktile.runtime.tiers.cuda as tier

    stores: list[TileStore] = []

    def store() -> TileStore:
        device = tier.CupyDevice()
        folder = tmp_path / str(len(stores))
        folder.mkdir()
        made = TileStore(
            [device.host(HOST_MEMORY), Disk(str(folder), None)],
            ResidencySettings((CAPACITY, None, None)),
            device=device,
        )
        stores.append(made)
        return made

    yield store
    for made in stores:
        made.close()


def filled(make: Make, tiles: int) -> TileStore:
    """A store with tiles ``t0``, ``t1``, ... on the device."""
    store = make()
    for number in range(tiles):
        store[f"t{number}"] = tile(number)
    return store


def tile(number: float) -> Any:
    return fake_cupy.array(np.full(SIZE // 8, number))


def settled(store: TileStore) -> None:
    store._engine.wait_all(LIMIT)


def test_tiles_come_back_with_their_values(make: Make) -> None:
    store = filled(make, 20)
    settled(store)
    assert store.report()["spilled"]["host"] >= 12 * SIZE
    for number in range(20):
        value = store[f"t{number}"].get()
        np.testing.assert_array_equal(value, np.full(SIZE // 8, number))


def test_strides_and_views_survive(make: Make) -> None:
    store = make()
    values = np.arange(SIZE / 8).reshape(10, -1)
    array = fake_cupy.array(values)
    store["plain"], store["turned"] = array, array.transpose()
    del array
    for number in range(20):
        store[f"t{number}"] = tile(number)
    settled(store)
    np.testing.assert_array_equal(store["plain"].get(), values)
    np.testing.assert_array_equal(store["turned"].get(), values.T)


@pytest.mark.parametrize("limit", [0, 1 << 25])
def test_tiles_beyond_the_limit_of_page_locked_memory_are_in_ordinary_memory(
    pool: fake_cupy.Pool, limit: int
) -> None:
    import dasktile.runtime.tiers.cuda as tier

    pool.capacity = 1 << 28
    host = tier.CupyHost(limit)
    values = [np.arange(3_000_000.0) + number for number in range(4)]
    held = [host.store(fake_cupy.array(each)) for each in values]
    assert host._pool.allocated == limit
    # one of 24 MB is page-locked
    assert sum(bool(pieces) for pieces in host._pieces.values()) == limit >> 25
    for each, one in zip(values, held, strict=True):
        np.testing.assert_array_equal(host.load(one).get(), each)
        host.free(one)
    assert host._pool.free == host._pool.allocated
    host.close()
    assert host._pool.allocated == 0


def test_an_array_with_gaps_is_stored_from_a_full_device(pool: fake_cupy.Pool) -> None:
    import dasktile.runtime.tiers.cuda as tier

    host = tier.CupyHost(HOST_MEMORY)
    values = np.arange(SIZE / 8).reshape(10, 20, -1)
    view = fake_cupy.array(values)[::-2, 3:, ::2]
    rest = fake_cupy.alloc(7 * SIZE)
    held = host.store(view)
    del rest
    loaded = host.load(held)
    np.testing.assert_array_equal(loaded.get(), values[::-2, 3:, ::2])
    assert loaded.nbytes == held.size
    host.close()


@pytest.mark.parametrize("limit", [0, 1 << 25])
def test_a_spilled_array_is_sent_from_the_memory_of_the_host(
    pool: fake_cupy.Pool, limit: int
) -> None:
    import dasktile.runtime.tiers.cuda as tier

    pool.capacity = 1 << 28
    host = tier.CupyHost(limit)
    values = np.arange(3_000_000.0).reshape(1000, -1)
    held = host.store(fake_cupy.array(values).transpose())
    used = host._pool.allocated - host._pool.free
    lent, again = host.lend(held), host.lend(held)
    header, frames = serialize(lent, serializers=["cuda", "dask", "pickle", "error"])
    # removed while it is sent twice
    host.free(held)
    host.take_back(again)
    assert again.packed is None
    assert host._pool.allocated - host._pool.free == used
    received = deserialize(header, [bytes(frame) for frame in frames])
    assert type(received) is fake_cupy.ndarray
    np.testing.assert_array_equal(received.get(), values.T)
    assert received.strides == values.T.strides
    host.take_back(lent)
    assert host._pool.allocated == host._pool.free
    with pytest.raises(ValueError, match="freed"):
        held.content.parts()
    host.close()


def test_frames_of_cudf_are_copied_once(pool: fake_cupy.Pool) -> None:
    import dasktile.runtime.tiers.cuda as tier

    class Frame:
        """As a frame of cuDF, which its own serialisation copies to the host."""

    Frame.__module__ = "cudf.core.dataframe"
    copied = bytearray(SIZE)
    dask_serialize.register(Frame, lambda frame: ({}, [copied]))
    packed, size = tier.CupyHost(HOST_MEMORY).pack(Frame())
    assert size == SIZE
    assert packed.parts()[1][0] is copied


def test_the_allocator_is_restored_when_a_store_closes(pool: fake_cupy.Pool, make: Make) -> None:
    own = fake_cupy.get_allocator()
    for number in range(3):
        store = make()
        store[f"t{number}"] = tile(number)
        assert fake_cupy.get_allocator() != own
        del store[f"t{number}"]
        store.close()
        assert fake_cupy.get_allocator() == own


def test_a_second_store_wraps_the_allocator_once(pool: fake_cupy.Pool, make: Make) -> None:
    own = fake_cupy.get_allocator()
    first = make()
    hook = fake_cupy.get_allocator()
    # another library puts its allocator in front, so that the hook cannot be taken off
    fake_cupy.set_allocator(lambda size: hook(size))
    first.close()
    fake_cupy.set_allocator(hook)
    make()
    assert fake_cupy.get_allocator().inner == own


def test_an_allocation_larger_than_the_device_evicts_nothing(
    pool: fake_cupy.Pool, make: Make
) -> None:
    store = filled(make, 6)
    with pytest.raises(MemoryError):
        fake_cupy.alloc(pool.capacity + 1)
    settled(store)
    assert len(store.fast) == 6
    assert store.report()["spilled"]["host"] == 0


def test_an_allocation_that_running_tasks_leave_no_room_for_evicts_nothing(
    pool: fake_cupy.Pool, make: Make
) -> None:
    store = filled(make, 6)
    request = store.request(["t0", "t1", "t2"], lambda: None)
    other = fake_cupy.alloc(SIZE)
    # one tile's bytes are free, and three tiles can be evicted
    with pytest.raises(MemoryError):
        fake_cupy.alloc(5 * SIZE)
    settled(store)
    assert len(store.fast) == 6
    assert store.report()["spilled"]["host"] == 0
    temporary = fake_cupy.alloc(4 * SIZE)
    settled(store)
    assert len(store.fast) == 3
    store.release(request)
    del other, temporary


def test_an_allocation_evicts_the_bytes_that_are_not_free(pool: fake_cupy.Pool, make: Make) -> None:
    store = filled(make, 5)
    temporary = fake_cupy.alloc(4 * SIZE)
    settled(store)
    assert len(store.fast) == 4
    del temporary


def test_nothing_is_assumed_of_an_unknown_allocator(pool: fake_cupy.Pool, make: Make) -> None:
    fake_cupy.set_allocator(lambda size: pool.malloc(size))
    store = filled(make, 6)
    assert store._device is not None
    assert store._device.free() is None
    temporary = fake_cupy.alloc(4 * SIZE)
    settled(store)
    assert len(store.fast) <= 4
    del temporary


def test_the_capacity_of_the_device_grows_again_after_a_squeeze(
    pool: fake_cupy.Pool, make: Make
) -> None:
    store = filled(make, 8)
    # a temporary array of a task: tiles are evicted to make room for it
    temporary = fake_cupy.alloc(3 * SIZE)
    settled(store)
    assert store.capacity(0) < CAPACITY
    del temporary
    for number in range(8):
        del store[f"t{number}"]
    for number in range(8):
        store[f"u{number}"] = tile(number)
    settled(store)
    assert store.capacity(0) == CAPACITY
    assert len(store.fast) == 8


def test_an_eviction_on_request_does_not_reduce_the_capacity_for_good(
    pool: fake_cupy.Pool, make: Make
) -> None:
    store = filled(make, 8)
    temporary = fake_cupy.alloc(3 * SIZE)
    settled(store)
    del temporary
    assert store.evict() > 0
    assert store.capacity(0) == CAPACITY


def test_a_share_of_the_device_is_read_when_the_device_is_in_use(
    pool: fake_cupy.Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    import cupy

    def fail(*arguments: Any) -> Any:
        raise AssertionError("CUDA must not be started yet")

    runtime = cupy.cuda.runtime
    with monkeypatch.context() as patch:
        # CuPy's allocator is set without CUDA
        for name in ("memGetInfo", "getDevice", "getDeviceCount"):
            patch.setattr(runtime, name, fail)
        for name in ("Stream", "Event", "Device", "PinnedMemory", "alloc"):
            patch.setattr(cupy.cuda, name, fail)
        made, arguments = dasktile.worker_data("1 GB", 0.5)
        store = made(str(tmp_path), **arguments)
        store["host"] = np.zeros(SIZE)
    assert store.capacity(0) == float("inf")
    for number in range(6):
        store[f"t{number}"] = tile(number)
        assert store.capacity(0) == pool.capacity // 2
    settled(store)
    assert store.used(0) <= pool.capacity // 2
    store.close()


def test_memory_in_use_is_that_of_all_processes_without_kept_blocks(
    pool: fake_cupy.Pool, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torch", "jax", "tensorflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    pool.keeps = True
    store = filled(make, 2)
    device: Any = store._device
    assert device.in_use() == 2 * SIZE
    pool.others = SIZE
    del store["t0"]
    settled(store)
    assert pool.kept == SIZE
    assert device.in_use() == 2 * SIZE
    # what torch keeps is unknown
    monkeypatch.setitem(sys.modules, "torch", None)
    assert device.in_use() is None


def test_memory_in_use_of_an_unknown_allocator_is_unknown(pool: fake_cupy.Pool, make: Make) -> None:
    fake_cupy.set_allocator(lambda size: pool.malloc(size))
    store = filled(make, 2)
    assert store._device is not None
    assert store._device.in_use() is None
    assert store.device_memory() is None


def test_the_fake_has_the_parameters_of_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    fake = fake_cupy.module()
    pairs = {
        "Stream": (cupy.cuda.Stream, fake.cuda.Stream),
        "Event": (cupy.cuda.Event, fake.cuda.Event),
        "array": (cupy.array, fake.array),
    }
    for name, (real, stand_in) in pairs.items():
        try:
            known = inspect.signature(real).parameters
        except ValueError:
            # compiled without a signature
            continue
        used = inspect.signature(stand_in).parameters
        assert set(used) <= set(known), name
    for name in vars(fake.cuda):
        assert hasattr(cupy.cuda, name), name
    for name in vars(fake.cuda.runtime):
        assert hasattr(cupy.cuda.runtime, name), name
