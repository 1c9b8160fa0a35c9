"""Workers of dask-cuda with an emulated device: results are spilled through three tiers."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, Worker, wait

import dasktile
from dasktile.runtime.tiers import Disk, Packed
from dasktile.runtime.worker.store import TileStore
from dasktile.runtime.worker.takeover import Handover, take_over
from dasktile.schedule.instructions import ResidencySettings
from dasktile.testing import emulated
from dasktile.testing.emulated import EmulatedDevice, register_with_dask_cuda, to_device

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


def copied_up() -> int:
    return emulated.current().copied_up


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


ON_DEVICE, ON_HOST = 3, 4


@pytest.fixture
def buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A mapping of dask-cuda with tiles on the device, on the host and on disk."""
    monkeypatch.setattr(emulated, "_current", [])
    emulated.use(EmulatedDevice(100 * SIZE))
    register_with_dask_cuda()
    data = dask_cuda.device_host_file.DeviceHostFile(
        str(tmp_path),
        device_memory_limit=ON_DEVICE * SIZE,
        memory_limit=int((ON_HOST + 0.5) * SIZE),
    )
    for number in range(TILES):
        data[number] = tile(number)
    data["host"] = np.full(SIZE // 8, 7.0)
    assert (len(data.device), len(data.host)) == (ON_DEVICE, ON_HOST)
    return data


@pytest.fixture
def store(buffer: Any, tmp_path: Path) -> Iterator[TileStore]:
    # its device has room for as many tiles, its host for more
    host = emulated.current().host(10**9)
    settings = ResidencySettings((ON_DEVICE * SIZE, 2 * ON_HOST * SIZE, None))
    with closing(
        TileStore([host, Disk(str(tmp_path / "ours"))], settings, device=emulated.current())
    ) as made:
        yield made


def sizes(key: Any) -> int:
    return SIZE


def refuse(self: Any, key: Any, value: Any) -> None:
    raise RuntimeError("refused")


def is_right(values: Any) -> None:
    assert len(values) == TILES + 1
    for number in range(TILES):
        assert total(values[number]) == number * SIZE / 8
    assert values["host"].sum() == 7 * SIZE / 8


def test_what_was_spilled_stays_where_it_is(buffer: Any, store: TileStore) -> None:
    gpu = emulated.current()
    up, down = gpu.copied_up, gpu.copied_down
    frames = [buffer.host[key].frames[0] for key in buffer.device_keys if key in buffer.host]
    take_over(buffer, store, sizes)
    store.wait_all()
    # nothing was read, neither from files nor to the device
    assert (gpu.copied_up, gpu.copied_down) == (up, down)
    assert not buffer.device and not buffer.host
    assert len(buffer.disk) == TILES + 1 - ON_DEVICE - ON_HOST
    assert store.used(0) == ON_DEVICE * SIZE
    assert store.used(1) == ON_HOST * SIZE
    lent = [held.content.frames[0] for held in store.slow.values() if type(held.content) is Packed]
    assert {id(frame) for frame in lent} == {id(frame) for frame in frames}
    is_right(store)
    for key in list(store):
        del store[key]
    store.wait_all()
    assert not buffer and gpu.used == 0


@pytest.mark.parametrize("known", [False, True])
def test_a_move_that_fails_changes_nothing(
    buffer: Any, store: TileStore, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = set(buffer)
    monkeypatch.setattr(TileStore, "__setitem__", refuse)
    with pytest.raises(RuntimeError, match="refused"):
        take_over(buffer, store, *([sizes] if known else []))
    assert not len(store)
    assert set(buffer) == keys
    is_right(buffer)


def test_files_whose_values_have_an_unknown_size_are_read(buffer: Any, store: TileStore) -> None:
    take_over(buffer, store)
    assert not buffer
    is_right(store)


def test_all_moves_back(buffer: Any, store: TileStore) -> None:
    take_over(buffer, store, sizes)
    asyncio.run(Handover(store, buffer).move())
    assert not len(store)
    is_right(buffer)


def test_files_stay_where_a_move_back_fails(
    buffer: Any, store: TileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = emulated.current()
    take_over(buffer, store, sizes)
    keys, up = set(store), gpu.copied_up
    monkeypatch.setattr(type(buffer), "__setitem__", refuse)
    with pytest.raises(RuntimeError, match="refused"):
        asyncio.run(Handover(store, buffer, sizes).move())
    assert len(buffer.disk) == TILES + 1 - ON_DEVICE - ON_HOST
    assert gpu.copied_up == up
    assert set(store) == keys
    is_right(store)


def test_a_buffer_without_a_limit_of_the_device(store: TileStore, tmp_path: Path) -> None:
    data = dask_cuda.device_host_file.DeviceHostFile(
        str(tmp_path / "other"), device_memory_limit=None, memory_limit=2 * SIZE
    )
    values = {"device": tile(1), "host": np.full(SIZE // 8, 7.0), "number": 5}
    data.update(values | {number: np.full(SIZE // 8, float(number)) for number in range(5)})
    assert list(data) == ["device"]
    take_over(data, store, sizes)
    assert set(store) == {*values, *range(5)}
    assert len(Handover(store, data)) == 8
    assert (total(store["device"]), store["number"]) == (SIZE / 8, 5)
    assert [store[number].max() for number in range(5)] == list(range(5))


def test_another_release_of_dask_cuda(buffer: Any, store: TileStore) -> None:
    del buffer.host
    take_over(buffer, store, sizes)
    assert not buffer
    is_right(store)


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
        [copied] = client.run(copied_up).values()
        dasktile.enable(client, device="emulated")
        # what was spilled stayed there
        assert set(client.run(copied_up).values()) == {copied}
        assert set(client.run(kind).values()) == {TileStore.__name__}
        use_it(client)
        sums = client.map(total, before)
        assert client.gather(sums) == [number * SIZE / 8 for number in range(TILES)]
        dasktile.disable(client)
        assert set(client.run(kind).values()) == {"DeviceHostFile"}
        assert client.submit(total, *before[-6:]).result(LIMIT) == 123 * SIZE / 8


def test_a_preloaded_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    # asked of the driver before workers start
    monkeypatch.setattr(
        dask_cuda.worker_common, "has_device_memory_resource", lambda *arguments: True
    )
    with cuda_cluster(device_memory_limit=MEMORY, preload=["dasktile.preload"]) as client:
        assert set(client.run(kind).values()) == {TileStore.__name__}
        names = client.run(lambda dask_worker: [*dask_worker.plugins])
        assert all("dasktile" in plugins for plugins in names.values())
        # without a device only values of the host can be computed
        sums = client.map(lambda number: np.full(1000, number).sum(), range(4))
        assert client.gather(sums) == [1000 * number for number in range(4)]


def test_the_command_of_dask_cuda_takes_the_preload(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command itself needs a driver to start."""
    cli = importlib.import_module("dask_cuda.cli")
    given: list[Any] = []

    class NotStartedError(Exception):
        pass

    def construct(*arguments: Any, **options: Any) -> Any:
        given.extend([*arguments, *options.values()])
        raise NotStartedError

    monkeypatch.setattr(cli, "CUDAWorker", construct)
    with pytest.raises(NotStartedError):
        cli.worker.main(
            ["tcp://127.0.0.1:1", "--preload", "dasktile.preload"], standalone_mode=False
        )
    assert ["dasktile.preload"] in [list(each) for each in given if type(each) in (list, tuple)]


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
