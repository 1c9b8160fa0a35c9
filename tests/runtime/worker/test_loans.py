"""Spilled values of a device are sent to peers from the memory of the host."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dask.sizeof import sizeof
from distributed.protocol import deserialize, serialize

from dasktile.runtime.tiers import Disk, Host, Packed, TileFile
from dasktile.runtime.worker.store import TileStore
from dasktile.schedule.instructions import ResidencySettings
from dasktile.testing import emulated
from dasktile.testing.emulated import EmulatedArray, EmulatedDevice, to_device, use

SIZE = 80_000
ON_DEVICE, ON_HOST = 1, 3


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TileStore]:
    """A store with room for one tile on the device, and for three on the host."""
    monkeypatch.setattr(emulated, "_current", [])
    gpu = use(EmulatedDevice(100 * SIZE))
    settings = ResidencySettings((ON_DEVICE * SIZE, ON_HOST * SIZE, None))
    made = TileStore([gpu.host(10**9), Disk(str(tmp_path))], settings, device=gpu)
    yield made
    made.close()


def fill(store: TileStore, *numbers: int) -> None:
    for number in numbers:
        store[number] = to_device(np.full(SIZE // 8, float(number)))
    store.wait_all()


def number_in(value: Any) -> float:
    """What a peer receives, or this worker has: the number that an array is filled with."""
    if not isinstance(value, EmulatedArray):
        header, frames = serialize(value, serializers=["cuda", "dask", "pickle", "error"])
        value = deserialize(header, [bytearray(frame) for frame in frames])
    assert isinstance(value, EmulatedArray)
    return float(value.max())


def packed(store: TileStore, key: Any) -> Packed:
    content: Packed = store.slow[key].content
    return content


def host_of(store: TileStore) -> Host:
    host = store._tiers[0]
    assert isinstance(host, Host)
    return host


def test_only_the_task_that_sends_a_value_reads_what_is_sent(store: TileStore) -> None:
    fill(store, 0, 1)

    async def read() -> Any:
        await asyncio.sleep(0)
        return store[0]

    async def send() -> None:
        frames = packed(store, 0).parts()[1]
        with store.lending([0, 1, 2]) as lent:
            assert set(lent) == {0}
            value = store[0]
            assert value.parts()[1][0] is frames[0]
            assert number_in(value) == 0
            assert sizeof(value) == SIZE
            assert number_in(store[1]) == 1
            other = asyncio.create_task(read())
            started = asyncio.create_task(read())
            assert number_in(await other) == 0
        assert isinstance(await started, EmulatedArray)
        assert not store._loans and not host_of(store)._lent
        with pytest.raises(ValueError, match="has been sent"):
            value.parts()

    asyncio.run(send())


def test_nothing_is_kept_of_what_was_sent(store: TileStore) -> None:
    # the memory of a tile that was read from disk is not in the tier's books
    fill(store, 0, 1, 2, 3, 4, 5)
    assert number_in(store[0]) == 0
    fill(store, 6)
    assert 0 not in store.fast and isinstance(store.slow[0].content, TileFile | Packed)

    def alive() -> int:
        gc.collect()
        return sum(type(each) is Packed and bool(each.frames) for each in gc.get_objects())

    async def send() -> None:
        loop = asyncio.get_running_loop()
        with store.lending(list(store)) as lent:
            assert lent and alive() >= len(lent)
            sent = [store[key] for key in lent]
            # handles, as of sockets, keep the context in which they were made
            loop.call_later(1000, print)
        for key in list(store):
            del store[key]
        store.wait_all()
        assert len(sent) and alive() == 0

    asyncio.run(send())


def test_a_value_that_was_replaced_meanwhile(store: TileStore) -> None:
    fill(store, 0, 1)

    async def send() -> None:
        with store.lending([0]):
            store[0] = to_device(np.full(SIZE // 8, 99.0))
            fill(store, 2, 3)
            assert 0 not in store.fast
            assert number_in(store[0]) == 99

    asyncio.run(send())


def test_a_removed_value_is_sent_as_a_whole(store: TileStore) -> None:
    fill(store, 0, 1)

    async def send() -> None:
        with store.lending([0]), store.lending([0]):
            pass
        with store.lending([0]):
            value = store[0]
            del store[0]
            store.wait_all()
            assert 0 not in store
            assert number_in(value) == 0
        assert store.used(1) == 0

    asyncio.run(send())


def test_sent_values_were_used(store: TileStore) -> None:
    def order(read: bool) -> set[Any]:
        fill(store, 0, 1, 2, 3)

        async def send() -> None:
            with store.lending([0]) as lent:
                assert set(lent) == {0}

        if read:
            asyncio.run(send())
        fill(store, 4, 5)
        kept = {key for key, held in store.slow.items() if isinstance(held.content, Packed)}
        for key in list(store):
            del store[key]
        store.wait_all()
        return kept

    assert 0 not in order(read=False)
    assert 0 in order(read=True)


def test_a_loan_that_fails_ends_those_before(
    store: TileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 0, 1, 2)
    host = host_of(store)
    lend = host.lend
    monkeypatch.setattr(
        host, "lend", lambda held: lend(held) if not host._lent else pytest.fail("no loan")
    )

    async def send() -> None:
        with pytest.raises(pytest.fail.Exception, match="no loan"), store.lending([0, 1]):
            pass
        assert not host._lent and not store._loans

    asyncio.run(send())


def test_a_store_that_closes_while_values_are_sent(store: TileStore) -> None:
    fill(store, 0, 1)
    held = store.slow[0]
    host = host_of(store)
    first = host.lend(held)
    store.close()
    second = host.lend(held)
    host.take_back(second)
    host.take_back(second)
    assert number_in(first) == 0
    host.take_back(first)
    with pytest.raises(ValueError, match="freed"):
        held.content.parts()
    del store[1]


def test_nothing_is_lent_outside_of_asyncio_tasks(store: TileStore) -> None:
    fill(store, 0, 1)

    async def call() -> None:
        done = asyncio.Event()

        def callback() -> None:
            with store.lending([0]) as lent:
                assert not lent
            done.set()

        asyncio.get_running_loop().call_soon(callback)
        await done.wait()

    asyncio.run(call())


def test_a_peer_without_the_serializers_of_dask(store: TileStore) -> None:
    fill(store, 0, 1)
    lent = host_of(store).lend(store.slow[0])
    header, frames = serialize(lent, serializers=["pickle"])
    received = deserialize(header, frames)
    assert number_in(received) == 0
    received[...] = 5.0
    assert number_in(store[0]) == 0
