"""Workers of dask-cuda with an emulated device: results are spilled through three tiers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from distributed import Client, Worker, wait

import dasktile
from dasktile.runtime.worker.store import TileStore
from dasktile.testing.emulated import register_with_dask_cuda, to_device

dask_cuda = pytest.importorskip("dask_cuda")

LIMIT = 60
TILES = 24
SIZE = 800_000
MEMORY = 8 * SIZE


@contextmanager
def cuda_cluster(**options: Any) -> Iterator[Any]:
    """A cluster of dask-cuda with one worker, on a machine with or without a GPU."""
    with (
        dask_cuda.LocalCUDACluster(
            CUDA_VISIBLE_DEVICES=[0],
            protocol="tcp",
            dashboard_address=None,
            memory_limit="1 GB",
            **options,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def tile(number: int) -> Any:
    return to_device(np.full(SIZE // 8, float(number)))


def total(*tiles: Any) -> float:
    return float(sum(each.sum() for each in tiles))


def held(dask_worker: Worker) -> Any:
    store: Any = dask_worker.data
    return store.report()


def kind(dask_worker: Worker) -> str:
    return type(dask_worker.data).__name__


def use_it(client: Client) -> None:
    """Compute results larger than the device, and read all of them."""
    tiles = client.map(tile, range(TILES), pure=False)
    wait(tiles, timeout=LIMIT)
    deadline = time.monotonic() + LIMIT
    while True:
        [report] = client.run(held).values()
        if report["held"]["emulated"] <= MEMORY:
            break
        # what leaves is copied first
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert report["spilled"]["host"] >= TILES * SIZE - MEMORY
    sums = client.map(total, tiles, tiles[::-1])
    assert client.gather(sums) == [(TILES - 1) * SIZE / 8] * TILES
    assert client.submit(total, *tiles[:6]).result(LIMIT) == sum(range(6)) * SIZE / 8


def test_from_the_start() -> None:
    data = dasktile.worker_data("1 GB", MEMORY, device="emulated")
    with cuda_cluster(device_memory_limit=0, data=data) as client:
        assert set(client.run(kind).values()) == {TileStore.__name__}
        dasktile.enable(client)
        use_it(client)
        [metrics] = dasktile.metrics(client).workers.values()
        assert metrics.spilled["host"] > 0


def test_in_place_of_a_device_host_file(monkeypatch: pytest.MonkeyPatch) -> None:
    # asked of the driver before workers start
    monkeypatch.setattr(
        dask_cuda.worker_common, "has_device_memory_resource", lambda *arguments: True
    )
    with cuda_cluster(device_memory_limit=MEMORY) as client:
        client.run(register_with_dask_cuda)
        assert set(client.run(kind).values()) == {"DeviceHostFile"}
        before = client.map(tile, range(TILES), pure=False)
        wait(before, timeout=LIMIT)
        dasktile.enable(client, device="emulated")
        assert set(client.run(kind).values()) == {TileStore.__name__}
        use_it(client)
        sums = client.map(total, before)
        assert client.gather(sums) == [number * SIZE / 8 for number in range(TILES)]
        dasktile.disable(client)
        assert set(client.run(kind).values()) == {"DeviceHostFile"}
        assert client.submit(total, *before[-6:]).result(LIMIT) == 123 * SIZE / 8


@pytest.mark.gpu
def test_a_real_device() -> None:
    cupy = pytest.importorskip("cupy")
    da = pytest.importorskip("dask.array")
    with (
        dask_cuda.LocalCUDACluster(
            n_workers=1, data=dasktile.worker_data(device_memory_limit="200 MB")
        ) as cluster,
        Client(cluster) as client,
    ):
        dasktile.enable(client)
        rng = da.random.default_rng(cupy.random.default_rng())
        x = client.persist(rng.random((8000, 8000), chunks=(1000, 8000)))
        wait(x, timeout=LIMIT)
        [report] = client.run(held).values()
        assert report["spilled"]["host"] > 0
        assert abs(float((x - x.mean(axis=0)).sum().compute())) < 1e-3
