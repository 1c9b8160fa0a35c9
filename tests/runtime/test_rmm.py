"""Allocations of RMM evict tiles from the device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dasktile.runtime.tiers import Disk
from dasktile.runtime.worker.store import TileStore
from dasktile.schedule.instructions import ResidencySettings
from tests import fake_cupy, fake_rmm

SIZE = 8000
#: Bytes of eight tiles, by the size that dask sees in the fake arrays.
CAPACITY = 8 * 8192
LIMIT = 30


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_cupy.Pool]:
    with fake_cupy.install(8 * SIZE, monkeypatch) as (_, device):
        yield device


@pytest.fixture
def store(pool: fake_cupy.Pool, tmp_path: Any) -> Iterator[TileStore]:
    import dasktile.runtime.tiers.cuda as tier

    device = tier.CupyDevice()
    made = TileStore(
        [device.host(1 << 28), Disk(str(tmp_path), None)],
        ResidencySettings((CAPACITY, None, None)),
        device=device,
    )
    yield made
    made.close()


def fill(store: TileStore, tiles: int) -> None:
    for number in range(tiles):
        store[f"t{number}"] = fake_cupy.array(np.full(SIZE // 8, float(number)))
    store._engine.wait_all(LIMIT)


def check(store: TileStore, tiles: int) -> None:
    for number in range(tiles):
        np.testing.assert_array_equal(store[f"t{number}"].get(), np.full(SIZE // 8, number))


def test_an_allocation_of_rmm_evicts_tiles(
    store: TileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # after the store, as where a plugin of dask-cuda sets it up
    rmm = fake_rmm.install(monkeypatch)
    fill(store, 8)
    assert len(store.fast) == 8
    frame = rmm.mr.get_current_device_resource().allocate(3 * SIZE)
    assert len(store.fast) <= 5
    del frame
    check(store, 8)


def test_cupy_on_rmm_calls_the_hook_once(
    store: TileStore, pool: fake_cupy.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_rmm.install(monkeypatch)
    fake_cupy.set_allocator(fake_rmm.rmm_cupy_allocator)
    fill(store, 6)
    assert fake_cupy.get_allocator() is fake_rmm.rmm_cupy_allocator
    temporary = fake_cupy.alloc(4 * SIZE)
    assert len(store.fast) <= 4
    with pytest.raises(MemoryError):
        fake_cupy.alloc(pool.capacity + 1)
    del temporary
    check(store, 6)


def test_the_resource_is_restored_when_the_store_closes(
    store: TileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    mr = fake_rmm.install(monkeypatch).mr
    own = mr.get_current_device_resource()
    fill(store, 2)
    assert mr.get_current_device_resource().get_upstream() is own
    store.close()
    assert mr.get_current_device_resource() is own


def test_the_hook_is_found_below_another_adaptor(
    store: TileStore, pool: fake_cupy.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mr = fake_rmm.install(monkeypatch).mr
    fill(store, 2)
    outer = mr.UpstreamResourceAdaptor(mr.get_current_device_resource())
    mr.set_current_device_resource(outer)
    fill(store, 8)
    assert mr.get_current_device_resource() is outer
    frame = outer.allocate(2 * SIZE)
    assert len(store.fast) <= 6
    del frame
    store.close()
    # it stays, and does nothing
    with pytest.raises(MemoryError):
        outer.allocate(pool.capacity + 1)


def test_blocks_that_cupy_keeps_are_freed_before_tiles_are_evicted(
    store: TileStore, pool: fake_cupy.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rmm = fake_rmm.install(monkeypatch)
    fill(store, 4)
    kept = [fake_cupy.alloc(4 * SIZE)]
    monkeypatch.setattr(pool, "free_bytes", lambda: 4 * SIZE * len(kept))
    monkeypatch.setattr(pool, "free_all_blocks", lambda stream=None: kept.clear())
    frame = rmm.mr.get_current_device_resource().allocate(3 * SIZE)
    assert not kept
    assert len(store.fast) == 4
    del frame


def test_memory_in_use_of_rmm_is_known_of_the_driver_and_of_a_tracked_pool(
    store: TileStore, pool: fake_cupy.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mr = fake_rmm.install(monkeypatch).mr
    fake_cupy.set_allocator(fake_rmm.rmm_cupy_allocator)
    fill(store, 2)
    device: Any = store._device
    assert device.in_use() == 2 * SIZE
    # the driver counts the whole pool
    pool.others = 4 * SIZE
    mr.set_current_device_resource(mr.PoolMemoryResource(mr.CudaMemoryResource(), 4 * SIZE))
    assert device.in_use() is None
    tracked = mr.TrackingResourceAdaptor(mr.get_current_device_resource())
    mr.set_current_device_resource(tracked)
    tracked.allocated = SIZE
    assert device.in_use() == 3 * SIZE


def test_rmm_is_not_imported(store: TileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "rmm", raising=False)
    fill(store, 2)
    assert "rmm" not in sys.modules


def test_the_fake_has_the_names_of_rmm(monkeypatch: pytest.MonkeyPatch) -> None:
    real = pytest.importorskip("rmm").mr
    fake = fake_rmm.install(monkeypatch).mr
    for name in vars(fake):
        assert hasattr(real, name), name
    for name in ("get_upstream", "upstream_mr", "allocate"):
        assert hasattr(real.FailureCallbackResourceAdaptor, name), name
    # compiled: the signature is the first line
    described = real.FailureCallbackResourceAdaptor.__doc__ or ""
    assert "upstream_mr, callback" in described
