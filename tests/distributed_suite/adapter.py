"""What distributed's tests are given instead of its own: stores, and workers that have one."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import dask.config
import distributed
import pytest
from dask.sizeof import sizeof
from distributed import utils_test
from distributed.protocol.compression import get_compression_settings
from distributed.utils import RateLimiterFilter

from dasktile.config import spill_settings
from dasktile.runtime.settings import RuntimeSettings
from dasktile.runtime.tiers import Disk
from dasktile.runtime.worker import store as store_module
from dasktile.runtime.worker.data import SpillOptions
from dasktile.runtime.worker.plugin import TileWorkerPlugin
from dasktile.runtime.worker.store import TileStore
from dasktile.schedule.instructions import ResidencySettings

#: Seconds that anything may take here.
LIMIT = 30

#: Who says what went wrong, where it is ``distributed.spill`` otherwise.
LOGGER = "dasktile.runtime.worker.store"

_made: list[TileStore] = []


class SpillBuffer(TileStore):
    """A store of memory and disk, with the arguments of distributed's.

    Values are written and read as on a worker, in threads.  Only the properties that tests inspect
    wait until the threads are done.
    """

    def __init__(
        self, spill_directory: str, target: int, max_spill: int | Literal[False] = False
    ) -> None:
        compression = get_compression_settings("distributed.worker.memory.spill-compression")
        self.files = Disk(spill_directory, compression)
        capacity = (target, None if max_spill is False else max_spill)
        super().__init__(
            [self.files], ResidencySettings(capacity, **spill_settings()), clock=time.perf_counter
        )
        _made.append(self)

    @property
    def slow(self) -> Any:
        settled(self)
        return super().slow

    disk = slow

    @property
    def fast(self) -> Any:
        settled(self)
        return super().fast

    memory = fast

    @property
    def spilled_total(self) -> Any:
        settled(self)
        return super().spilled_total

    @property
    def cumulative_metrics(self) -> Any:
        settled(self)
        return super().cumulative_metrics


@pytest.fixture
def every_size(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small values leave memory too; distributed's tests have few that are not small."""
    everything = partial(RuntimeSettings, small_bytes=0)
    monkeypatch.setattr(store_module, "RuntimeSettings", everything)
    RateLimiterFilter.reset_timer(LOGGER)
    yield
    while _made:
        store = _made.pop()
        settled(store)
        store.close()


@pytest.fixture(params=[True, False], ids=["keep-clean", "drop-clean"])
def keep_clean(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether files stay of what was read back."""
    with dask.config.set({"dasktile.spill.keep-clean": request.param}):
        yield request.param


def settled(store: TileStore) -> None:
    """Wait until nothing is written or read."""
    store._engine.wait_all(LIMIT)


def assert_buf(buf: SpillBuffer, expect_fast: dict[Any, Any], expect_slow: dict[Any, Any]) -> None:
    """What is in memory, and what is on disk alone, once all has been written.

    Of distributed's the same: its files are those of `expect_slow`; here there may be others,
    of what was read back.
    """
    settled(buf)
    # assertions on fast
    assert dict(buf.fast) == expect_fast
    assert buf.used(0) == sum(map(sizeof, expect_fast.values()))
    for k, v in buf.fast.items():
        assert buf[k] is v

    # assertions on slow
    assert set(buf.slow) == set(expect_slow)
    files = {
        key: part.unit.held[1]
        for key, entry in buf._entries.items()
        for part in entry.parts
        if 1 in part.unit.held
    }
    assert buf._residency.settings.keep_clean or set(files) == set(expect_slow)
    on_disk = {entry.path: entry.stat().st_size for entry in os.scandir(buf.files.directory)}
    assert on_disk == {held.content.path: held.size for held in files.values()}
    expect_memory, expect_disk = psize(buf, **expect_slow)
    memory, disk = buf.spilled_total
    assert memory == expect_memory
    assert disk == sum(on_disk.values())
    assert disk >= expect_disk


def psize(store: TileStore, **objs: object) -> tuple[int, int]:
    """Bytes of values in memory, and of their files."""
    files = store.slow
    return sum(map(sizeof, objs.values())), sum(files[key].size for key in objs)


class Worker(distributed.Worker):
    """A worker as :func:`dasktile.enable` leaves it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, plugins=(TileWorkerPlugin(SpillOptions()),), **kwargs)


def gen_cluster(*args: Any, **kwargs: Any) -> Any:
    """As in ``distributed.utils_test``, with such workers, behind nannies too."""
    if kwargs.setdefault("Worker", Worker) is distributed.Nanny:
        # to start a process may take longer than distributed's half a minute
        kwargs.setdefault("timeout", 300)
        kwargs["worker_kwargs"] = {"worker_class": Worker, **kwargs.get("worker_kwargs", {})}
    return utils_test.gen_cluster(*args, **kwargs)


async def until(condition: Callable[[], object]) -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(LIMIT):
        while not condition():
            await asyncio.sleep(0.005)
