"""The store and the memory monitor use the same budget."""

from __future__ import annotations

from typing import Any

import pytest
from distributed.utils_test import gen_cluster

import dasktile
from dasktile.schedule.budget import Budget

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
