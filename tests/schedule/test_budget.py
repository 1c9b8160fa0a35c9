"""Results and the memory monitor agree on one budget."""

from __future__ import annotations

from typing import Any

import pytest
from distributed.utils_test import gen_cluster

import dasktile
from dasktile.schedule.budget import Budget

LIMIT = 20


def test_what_else_the_process_takes_is_what_it_has_all_the_time() -> None:
    budget = Budget(window=3)
    assert budget.available(100) == 100
    for process, results in ((50, 20), (90, 20), (45, 20)):
        budget.sample(process, results)
    assert budget.available(100) == 75
    # a moment of little is forgotten too
    for _ in range(3):
        budget.sample(60, 20)
    assert budget.available(100) == 60
    assert budget.available(30) == 0
    # freed memory of results may not be counted as theirs any more
    budget.sample(10, 20)
    assert budget.available(100) == 100


CONFIG = {
    "distributed.worker.memory.target": 0.6,
    "distributed.worker.memory.spill": 0.7,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.monitor-interval": "10ms",
}


@pytest.mark.parametrize("spill", (0.7, False))
def test_room_for_results_is_what_the_process_leaves(spill: Any) -> None:
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
        # half way between target and spill
        assert store.capacity(0) == (350 if spill else 600)
        spilling._update_budget()
        process[0] = 500
        spilling._update_budget()
        # tasks take more for a while
        assert store.capacity(0) == (350 if spill else 600)
        for _ in range(30):
            spilling._update_budget()
        assert store.capacity(0) == (150 if spill else 600)
        # the monitor finds too much: it is not made to wait
        process[0] = 900
        assert store.evict() == -1
        assert store.capacity(0) == 0
        # and the limit can be changed while the worker runs
        a.memory_manager.memory_limit = 2000
        process[0] = 500
        spilling._update_budget()
        assert store.capacity(0) == (800 if spill else 1200)

    main()
