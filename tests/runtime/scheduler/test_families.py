"""Root tasks without a plan: which of them run on the same worker."""

from __future__ import annotations

from collections import Counter
from typing import Any

import dask.array as da
import numpy as np
from distributed import Event, wait
from distributed.utils_test import gen_cluster

import dasktile
from tests.gated import LIMIT, nothing_stuck, plugin_of, until

two_workers = gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)] * 2,
    timeout=LIMIT,
    # tasks that are stolen run elsewhere
    config={"distributed.scheduler.work-stealing": False},
    worker_kwargs={"memory_limit": 0},
)


def combined(roots: int, inputs: int, function: Any = abs, *args: Any) -> dict[Any, Any]:
    """A graph of root tasks, and tasks each of which sums the results of some of them."""
    graph: dict[Any, Any] = {
        ("root", number): (function, *(args or (-1,))) for number in range(roots)
    }
    graph |= {
        ("sum", number): (sum, [("root", number * inputs + part) for part in range(inputs)])
        for number in range(roots // inputs)
    }
    return graph


def wait_for(name: str, result: int = 1) -> int:
    assert Event(name).wait(LIMIT)
    return result


def places(s: Any, name: str) -> list[str]:
    """The address of the worker of every result of this name, by number."""
    keys = sorted(key for key in s.tasks if type(key) is tuple and key[0] == name)
    return [next(iter(s.tasks[key].who_has)).address for key in keys]


@two_workers
async def test_results_that_are_combined_are_computed_on_one_worker(c, s, first, second):
    await dasktile.enable(c)
    graph = combined(80, 4)
    futures = c.get(graph, list(graph), sync=False)
    await wait(futures, timeout=LIMIT)
    where, sums = places(s, "root"), places(s, "sum")
    together = [at for at in range(20) if len(set(where[4 * at : 4 * at + 4])) == 1]
    # a worker without any more tasks takes some of another's last family
    assert len(together) >= 18
    assert min(Counter(where).values()) >= 16
    # no result of theirs is moved
    assert all(sums[at] == where[4 * at] for at in together)
    assert not plugin_of(s).roots.families and not plugin_of(s).roots.any_ready
    assert not any(ts.worker_restrictions for ts in s.tasks.values())
    await nothing_stuck(s)


@two_workers
async def test_the_results_are_those_of_dask(c, s, first, second):
    await dasktile.enable(c)
    values = np.arange(4000.0).reshape(80, 50)
    x = da.from_array(values, chunks=(2, 50))
    result = await c.compute((x - x.mean(axis=0)).std(axis=0))
    np.testing.assert_allclose(result, values.std(axis=0))
    await nothing_stuck(s)


@two_workers
async def test_results_that_nothing_combines_are_left_to_dask(c, s, first, second):
    await dasktile.enable(c)
    graph: dict[Any, Any] = {("root", number): (wait_for, "go") for number in range(40)}
    graph |= {("next", number): (abs, ("root", number)) for number in range(40)}
    futures = c.get(graph, list(graph), sync=False)
    await until(lambda: s.queued)
    assert not plugin_of(s).roots.families
    await Event("go").set()
    await wait(futures, timeout=LIMIT)
    await nothing_stuck(s)


@two_workers
async def test_few_root_tasks_are_left_to_dask(c, s, first, second):
    await dasktile.enable(c)
    graph = combined(4, 2, wait_for, "go")
    futures = c.get(graph, list(graph), sync=False)
    await until(lambda: sum(len(ws.processing) for ws in s.workers.values()) == 4)
    assert not plugin_of(s).roots.families
    await Event("go").set()
    await wait(futures, timeout=LIMIT)
    await nothing_stuck(s)


@two_workers
async def test_an_idle_worker_takes_tasks_of_one_that_is_busy(c, s, first, second):
    await dasktile.enable(c)
    graph = combined(128, 16)
    # one worker has two slots, so that two more of its 16 tasks may wait behind these
    graph |= {("root", number): (wait_for, "go") for number in range(2)}
    futures = c.get(graph, list(graph), sync=False)
    others = [future for future in futures if future.key[0] == "root" and future.key[1] > 1]
    await wait(others, timeout=LIMIT)
    await Event("go").set()
    await wait(futures, timeout=LIMIT)
    await nothing_stuck(s)


@two_workers
async def test_tasks_of_a_lost_worker_run_elsewhere(c, s, first, second):
    await dasktile.enable(c)
    graph = combined(64, 8, wait_for, "go")
    futures = c.get(graph, list(graph), sync=False)
    await until(lambda: len(plugin_of(s).roots.families) == 60)
    await second.close(executor_wait=False)
    await until(lambda: len(s.workers) == 1)
    await Event("go").set()
    await wait(futures, timeout=LIMIT)
    assert set(places(s, "root")) == {first.address}
    await nothing_stuck(s)


@two_workers
async def test_without_the_plugin_they_are_queued(c, s, first, second):
    await dasktile.enable(c)
    graph = combined(64, 8, wait_for, "go")
    futures = c.get(graph, list(graph), sync=False)
    await until(lambda: plugin_of(s).roots.families)
    await dasktile.disable(c)
    await until(lambda: s.queued)
    await Event("go").set()
    await wait(futures, timeout=LIMIT)
    await nothing_stuck(s)


@two_workers
async def test_cancelled_tasks_are_forgotten(c, s, first, second):
    await dasktile.enable(c)
    graph = combined(64, 8, wait_for, "go")
    futures = c.get(graph, list(graph), sync=False)
    await until(lambda: plugin_of(s).roots.families)
    await c.cancel(futures)
    await until(lambda: not plugin_of(s).roots.families)
    await Event("go").set()
    futures = c.get(combined(64, 8), [("sum", number) for number in range(8)], sync=False)
    assert await c.gather(futures) == [8] * 8
    await nothing_stuck(s)


@two_workers
async def test_urgent_tasks_run_before_the_queue(c, s, first, second):
    await dasktile.enable(c)
    plain = c.map(wait_for, ["go"] * 40, range(40), key="plain")
    await until(lambda: s.queued)
    graph = combined(16, 4)
    urgent = c.get(graph, list(graph), sync=False, priority=100)
    await until(lambda: plugin_of(s).roots.any_ready)
    await Event("go").set()
    await wait(urgent, timeout=LIMIT)
    assert sum(future.done() for future in plain) < 30
    await wait(plain, timeout=LIMIT)
    await nothing_stuck(s)
