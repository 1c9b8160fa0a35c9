"""The store and the memory monitor use the same budget."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from distributed import wait
from distributed.utils_test import gen_cluster

import dasktile
from dasktile.testing import emulated
from dasktile.testing.emulated import EmulatedDevice, to_device

LIMIT = 20

TILE = 8000

CONFIG = {
    "distributed.worker.memory.target": 0.6,
    "distributed.worker.memory.spill": 0.7,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.monitor-interval": "10ms",
}


@pytest.mark.parametrize("spill", (0.7, False))
def test_the_capacity_is_the_budget_that_other_memory_leaves(spill: Any) -> None:
    @gen_cluster(
        client=True,
        nthreads=[("127.0.0.1", 1)],
        worker_kwargs={"memory_limit": 1000},
        timeout=LIMIT,
        config={**CONFIG, "distributed.worker.memory.spill": spill},
    )
    async def main(c: Any, s: Any, a: Any) -> None:
        process = [300]
        a.monitor.get_process_memory = lambda: process[0]
        await dasktile.enable(c)
        store = a.data
        spilling = a.plugins["dasktile"].plugin.spilling
        # the mean of target and spill
        assert store.capacity(0) == (350 if spill else 600)
        spilling.budget.update()
        process[0] = 500
        spilling.budget.update()
        # a short peak of memory of tasks does not count
        assert store.capacity(0) == (350 if spill else 600)
        for _ in range(30):
            spilling.budget.update()
        assert store.capacity(0) == (150 if spill else 600)
        # the memory monitor starts to evict: the store must not wait
        process[0] = 900
        assert store.evict() == -1
        assert store.capacity(0) == 0
        # the limit can be changed while the worker runs
        a.memory_manager.memory_limit = 2000
        process[0] = 500
        spilling.budget.update()
        assert store.capacity(0) == (800 if spill else 1200)

    main()


def test_a_long_task_with_much_memory_is_no_scarcity(caplog: pytest.LogCaptureFixture) -> None:
    @gen_cluster(
        client=True,
        nthreads=[("127.0.0.1", 1)],
        worker_kwargs={"memory_limit": 100 * TILE},
        timeout=LIMIT,
        # the test measures itself
        config={**CONFIG, "distributed.worker.memory.monitor-interval": "1h"},
    )
    async def main(c: Any, s: Any, a: Any) -> None:
        process = [0]
        a.monitor.get_process_memory = lambda: process[0]
        await dasktile.enable(c)
        store, spilling = a.data, a.plugins["dasktile"].plugin.spilling

        def warnings(other: int) -> int:
            """Number of warnings after samples of other memory, in tiles."""
            for _ in range(30):
                process[0] = store.used(store.host) + other * TILE
                spilling.budget.update()
                store._engine.wait_all(LIMIT)
            return sum("Nearly all results" in record.message for record in caplog.records)

        # no results, of which nothing is evicted
        assert warnings(90) == 0
        assert warnings(10) == 0
        # results that are evicted while they have much memory
        tiles = c.map(filled, range(70))
        await wait(tiles)
        assert warnings(10) == 0
        assert store.evicted_from_host > 0
        # then results have none
        assert warnings(90) == 1
        assert warnings(90) == 1
        [message] = [r.message for r in caplog.records if "Nearly all results" in r.message]
        assert "results may take 0 B of this worker's memory limit (800 kB (" in message
        assert "set on the worker), because its process takes 703 KiB besides them" in message

    main()


def test_the_capacity_of_a_device_is_what_other_memory_leaves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(emulated, "_current", [])
    device = emulated.use(EmulatedDevice(100 * TILE))

    @gen_cluster(
        client=True,
        nthreads=[("127.0.0.1", 1)],
        worker_kwargs={
            "data": dasktile.worker_data("1 GB", 0.8, device="emulated"),
            "memory_limit": "1 GB",
        },
        timeout=LIMIT,
        # the test measures itself
        config={**CONFIG, "distributed.worker.memory.monitor-interval": "1h"},
    )
    async def main(c: Any, s: Any, a: Any) -> None:
        await dasktile.enable(c)
        store, spilling = a.data, a.plugins["dasktile"].plugin.spilling

        def measure(times: int = 1) -> None:
            for _ in range(times):
                spilling.budget.update()
                store._engine.wait_all(LIMIT)
                store._pools["0 to 1"].submit(int).result(LIMIT)

        measure(30)
        # nothing on the device yet: its memory is unknown
        assert store.capacity(0) == math.inf
        tiles = c.map(filled, range(60))
        await wait(tiles)
        assert store.capacity(0) == 80 * TILE
        measure(30)
        assert (store.capacity(0), store.used(0)) == (80 * TILE, 60 * TILE)
        # an array that a library holds: a short peak of a task does not count
        other = device.asarray(np.zeros(40 * TILE // 8))
        measure()
        assert store.capacity(0) == 80 * TILE
        measure(20)
        # a tenth of the device is left to tasks
        assert store.capacity(0) == 50 * TILE
        assert store.used(0) <= 50 * TILE
        del other
        measure()
        assert store.capacity(0) == 80 * TILE
        assert await c.gather(c.map(total, tiles)) == [number * TILE / 8 for number in range(60)]
        assert spilling.errors == 0

    main()


def filled(number: int) -> Any:
    return to_device(np.full(TILE // 8, float(number)))


def total(tile: Any) -> float:
    return float(tile.sum())
