"""The store and the memory monitor use the same budget."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from distributed import wait
from distributed.utils_test import gen_cluster

import dasktile
from dasktile.schedule.budget import Budget, device_target
from dasktile.schedule.instructions import ResidencySettings
from dasktile.schedule.residency import Residency
from dasktile.testing import emulated
from dasktile.testing.emulated import EmulatedDevice, to_device

LIMIT = 20


def test_other_memory_is_the_minimum_of_the_window() -> None:
    budget = Budget(window=3)
    assert budget.available(100) == 100
    for process, results in ((50, 20), (90, 20), (45, 20)):
        budget.sample(process, results)
    assert budget.available(100) == 75
    # a low sample leaves the window, too
    for _ in range(3):
        budget.sample(60, 20)
    assert budget.available(100) == 60
    assert budget.available(30) == 0
    # results can exceed the memory of the process
    budget.sample(10, 20)
    assert budget.available(100) == 100


@pytest.mark.parametrize(
    "limit, target", [(100, 100), (120, 100), (96, 98), (80, 90), (50, 90), (10, 90)]
)
def test_some_of_a_device_is_left_to_tasks(limit: int, target: int) -> None:
    assert device_target(100, limit) == target


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
        spilling._update_budget()
        process[0] = 500
        spilling._update_budget()
        # a short peak of memory of tasks does not count
        assert store.capacity(0) == (350 if spill else 600)
        for _ in range(30):
            spilling._update_budget()
        assert store.capacity(0) == (150 if spill else 600)
        # the memory monitor starts to evict: the store must not wait
        process[0] = 900
        assert store.evict() == -1
        assert store.capacity(0) == 0
        # the limit can be changed while the worker runs
        a.memory_manager.memory_limit = 2000
        process[0] = 500
        spilling._update_budget()
        assert store.capacity(0) == (800 if spill else 1200)

    main()


TILE = 8000


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
                spilling._update_budget()
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
                spilling._update_budget()
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


def test_what_failed_allocations_take_stays_when_the_budget_changes() -> None:
    residency = Residency(ResidencySettings((100, None)))
    residency.add("x", 60)
    residency.shrink(0, 20)
    assert residency.capacity[0] == 40
    residency.allow(0, 90)
    assert (residency.capacity[0], residency.allowed(0)) == (40, 90)
    residency.allow(0, 30)
    assert residency.capacity[0] == 30
    residency.allow(0, 80)
    assert residency.capacity[0] == 80


def filled(number: int) -> Any:
    return to_device(np.full(TILE // 8, float(number)))


def total(tile: Any) -> float:
    return float(tile.sum())
