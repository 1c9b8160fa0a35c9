"""Workers in processes of their own evict results by the memory that their process really has."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dask
import numpy as np
from distributed import Client, LocalCluster, Worker, wait

import dasktile
from dasktile.runtime.worker.store import TileStore

#: Seconds after which a test that hangs fails.
LIMIT = 60
#: Bytes of a tile: large enough that the allocator returns its memory to the system.
SIZE = 8_000_000
#: Bytes of a worker's memory limit.
MEMORY = 800_000_000
#: Tiles by which a process may differ from the sum of its results.
SLACK = 5


@contextmanager
def worker_process(data: Any = None, **memory: Any) -> Iterator[Client]:
    """A cluster with one worker in a process, with thresholds of distributed's memory manager."""
    settings = {"pause": False, "terminate": False, "monitor-interval": "20ms", **memory}
    with (
        dask.config.set({f"distributed.worker.memory.{k}": v for k, v in settings.items()}),
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            memory_limit=MEMORY,
            data=data,
        ) as cluster,
        Client(cluster) as client,
    ):
        dasktile.enable(client)
        yield client


def scarcity(client: Client) -> list[str]:
    """What the log of the worker says of too little memory for results."""
    [records] = client.get_worker_logs().values()
    return [text for _, text in records if "Nearly all results" in text]


def has_scarce_budget(dask_worker: Worker) -> bool:
    """Whether results may take nothing, by all samples that count."""
    spilling = dask_worker.plugins["dasktile"].plugin.spilling
    is_full = spilling.budget.of_process.is_full
    return bool(is_full and not dask_worker.data.capacity(dask_worker.data.host))


def process_memory(dask_worker: Worker) -> int:
    return dask_worker.monitor.get_process_memory()


def counts(dask_worker: Worker) -> tuple[int, int, int]:
    """Tiles in memory, tiles on disk and bytes evicted of a worker's store."""
    store = dask_worker.data
    assert isinstance(store, TileStore)
    return len(store.fast), len(store.slow), store.spilled_total.memory


def is_evicting(dask_worker: Worker) -> bool:
    store = dask_worker.data
    return store.evicting(store.host)


def on_worker(client: Client, function: Callable[..., Any], *arguments: Any) -> Any:
    [result] = client.run(function, *arguments).values()
    return result


def poll(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, "not within the time limit"
        time.sleep(0.02)


def tile(number: int) -> np.ndarray:
    return np.full(SIZE // 8, float(number))


def check_values(client: Client, tiles: list[Any]) -> None:
    sums = client.map(np.sum, tiles)
    assert client.gather(sums) == [number * SIZE / 8 for number in range(len(tiles))]


def test_the_memory_monitor_evicts_down_to_its_threshold() -> None:
    # without a target, results have no budget: nothing is evicted but by the monitor
    with worker_process(target=False, spill=0.5) as client:
        room = (MEMORY // 2 - on_worker(client, process_memory)) // SIZE
        assert room > SLACK
        tiles = client.map(tile, range(room - SLACK), pure=False)
        wait(tiles, timeout=LIMIT)
        assert on_worker(client, counts) == (room - SLACK, 0, 0)
        tiles += client.map(tile, range(room - SLACK, room + 4 * SLACK), pure=False)
        wait(tiles, timeout=LIMIT)
        poll(
            lambda: (
                on_worker(client, process_memory) <= MEMORY // 2
                and not on_worker(client, is_evicting)
            )
        )
        in_memory, on_disk, size = on_worker(client, counts)
        assert size == on_disk * SIZE
        assert on_disk >= 3 * SLACK
        # no more is evicted than is above the threshold
        assert in_memory >= room - SLACK
        check_values(client, tiles)


def allocate(size: int, dask_worker: Worker) -> None:
    """Take memory of the process that is not that of a result."""
    dask_worker.unmanaged = np.ones(size // 8)


def test_memory_of_the_process_that_is_no_result_reduces_the_budget() -> None:
    # results may take what other memory leaves of the mean of both thresholds, and the process
    # stays below the second one, where the memory monitor would evict
    low, high, stay = 0.25, 0.95, 2 * SLACK
    with worker_process(target=low, spill=high) as client:
        other = on_worker(client, process_memory)
        unmanaged = int(MEMORY * (low + high) / 2) - other - stay * SIZE
        assert unmanaged > 0
        tiles = client.map(tile, range(2 * stay), pure=False)
        wait(tiles, timeout=LIMIT)
        assert on_worker(client, counts) == (2 * stay, 0, 0)
        on_worker(client, allocate, unmanaged)
        poll(
            lambda: (
                on_worker(client, counts)[0] <= stay + SLACK and not on_worker(client, is_evicting)
            )
        )
        in_memory, on_disk, size = on_worker(client, counts)
        assert in_memory + on_disk == 2 * stay
        assert size == on_disk * SIZE
        # no more is evicted than the other memory needs
        assert in_memory >= stay - SLACK
        assert on_worker(client, process_memory) < MEMORY * high
        check_values(client, tiles)
        assert not scarcity(client)


def test_the_log_says_once_that_results_have_no_memory() -> None:
    with worker_process(dasktile.worker_data("40 MiB")) as client:
        poll(lambda: on_worker(client, has_scarce_budget))
        # a task without results evicts nothing
        assert not scarcity(client)
        tiles = client.map(tile, range(SLACK), pure=False)
        wait(tiles, timeout=LIMIT)
        poll(lambda: on_worker(client, counts)[:2] == (0, SLACK))
        poll(lambda: bool(scarcity(client)))
        check_values(client, tiles)
        [message] = scarcity(client)
    assert "results may take 0 B of this worker's memory limit" in message
    assert "(40 MiB, given to dasktile.worker_data)" in message
    other, ample = re.findall(r"(?:takes|about) (\d+) MiB", message)
    assert int(ample) > 2 * int(other) > 80
