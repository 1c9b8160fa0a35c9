"""Root tasks without a plan: which of them run on the same worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask import delayed
from dask.core import flatten
from dask.optimization import default_fused_keys_renamer
from distributed import Event, Worker, wait
from distributed.utils_test import gen_cluster

import dasktile
from dasktile.cluster.target import Machine
from dasktile.prediction import input_tasks
from tests.gated import LIMIT, finish, nothing_stuck, plugin_of, until
from tests.runtime.scheduler.test_plugin import Ran

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
    assert not plugin_of(s).roots.families.of and not plugin_of(s).roots.any_ready
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
    assert not plugin_of(s).roots.families.of
    await finish(s, futures)


@two_workers
async def test_few_root_tasks_are_left_to_dask(c, s, first, second):
    await dasktile.enable(c)
    graph = combined(4, 2, wait_for, "go")
    futures = c.get(graph, list(graph), sync=False)
    await until(lambda: sum(len(ws.processing) for ws in s.workers.values()) == 4)
    assert not plugin_of(s).roots.families.of
    await finish(s, futures)


@two_workers
async def test_an_idle_worker_takes_tasks_of_one_that_is_busy(c, s, first, second):
    await dasktile.enable(c)
    graph = combined(128, 16)
    graph["root", 0] = (wait_for, "go")
    futures = c.get(graph, list(graph), sync=False)
    # one task may have been sent to the worker behind the first
    roots = [future for future in futures if future.key[0] == "root"]
    await until(lambda: sum(future.done() for future in roots) >= 126)
    await finish(s, futures)


@two_workers
async def test_tasks_of_a_lost_worker_run_elsewhere(c, s, first, second):
    await dasktile.enable(c)
    graph = combined(64, 8, wait_for, "go")
    futures = c.get(graph, list(graph), sync=False)
    await until(lambda: len(plugin_of(s).roots.families.of) == 60)
    assert plugin_of(s).held == 60
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
    await until(lambda: plugin_of(s).roots.families.of)
    await dasktile.disable(c)
    await until(lambda: s.queued)
    await finish(s, futures)


@two_workers
async def test_cancelled_tasks_are_forgotten(c, s, first, second):
    await dasktile.enable(c)
    graph = combined(64, 8, wait_for, "go")
    futures = c.get(graph, list(graph), sync=False)
    await until(lambda: plugin_of(s).roots.families.of)
    await c.cancel(futures)
    await until(lambda: not plugin_of(s).roots.families.of)
    await Event("go").set()
    futures = c.get(combined(64, 8), [("sum", number) for number in range(8)], sync=False)
    assert await c.gather(futures) == [8] * 8
    await nothing_stuck(s)


@two_workers
async def test_urgent_tasks_run_before_the_queue(c, s, first, second):
    await dasktile.enable(c)
    plain = c.map(wait_for, ["go"] * 80, range(80), key="plain")
    await until(lambda: s.queued)
    urgent = c.get(combined(32, 4), [("sum", at) for at in range(8)], sync=False, priority=100)
    await until(lambda: plugin_of(s).roots.any_ready)
    await Event("go").set()
    await wait(urgent, timeout=LIMIT)
    assert sum(future.done() for future in plain) < 60
    await wait(plain, timeout=LIMIT)
    await nothing_stuck(s)


@two_workers
async def test_urgent_tasks_run_before_other_families(c, s, first, second):
    await dasktile.enable(c)
    slow = combined(128, 16, wait_for, "go")
    futures = c.get(slow, list(slow), sync=False)
    await until(lambda: plugin_of(s).roots.any_ready)
    ran = Ran(s)
    graph = {(f"urgent-{key[0]}", key[1]): task for key, task in combined(32, 4).items()}
    graph |= {
        ("urgent-sum", at): (sum, [("urgent-root", 4 * at + part) for part in range(4)])
        for at in range(8)
    }
    urgent = c.get(graph, [("urgent-sum", at) for at in range(8)], sync=False, priority=100)
    await until(lambda: ("urgent-root", 0) in plugin_of(s).roots.families.of)
    await Event("go").set()
    await wait([*urgent, *futures], timeout=LIMIT)
    last = max(ran.order.index(("urgent-root", number)) for number in range(32))
    assert sum(key[0] == "root" for key in ran.order[:last]) <= 8
    await nothing_stuck(s)


@two_workers
async def test_urgent_tasks_run_before_those_of_a_plan(c, s, first, second):
    await dasktile.enable(c)
    name = f"read-dasktile-2_0e50-{'0123456789abcdef' * 2}"
    plan = {(name, block): (wait_for, "go") for block in range(100)}
    futures = c.get(plan, list(plan), sync=False)
    await until(lambda: plugin_of(s).roots.ready)
    ran = Ran(s)
    urgent = c.get(combined(32, 4), [("sum", at) for at in range(8)], sync=False, priority=100)
    await until(lambda: plugin_of(s).roots.families.of)
    await Event("go").set()
    await wait([*urgent, *futures], timeout=LIMIT)
    last = max(ran.order.index(("root", number)) for number in range(32))
    assert sum(key[0] == name for key in ran.order[:last]) <= 8
    await nothing_stuck(s)


@two_workers
async def test_root_tasks_whose_results_are_not_needed_are_not_held(c, s, first, second):
    await dasktile.enable(c)
    graph = combined(64, 8)
    sums = [("sum", at) for at in range(8)]
    futures = c.get(graph, sums, sync=False)
    await wait(futures, timeout=LIMIT)
    # the sums are in memory
    last = c.get({**graph, "all": (sum, sums)}, ["all"], sync=False)
    assert await c.gather(last) == [64]
    await until(lambda: not plugin_of(s).roots.families.of)
    assert not plugin_of(s).roots.any_ready
    assert not any(ts.worker_restrictions for ts in s.tasks.values())
    await nothing_stuck(s)


@two_workers
async def test_a_task_that_reads_everything_combines_nothing(c, s, first, second):
    await dasktile.enable(c)
    graph = combined(64, 64, wait_for, "go")
    futures = c.get(graph, list(graph), sync=False)
    await until(lambda: s.queued)
    assert not plugin_of(s).roots.families.of
    await finish(s, futures)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 4, timeout=LIMIT)
async def test_tasks_may_be_stolen_and_workers_join_and_retire(c, s, *workers):
    await dasktile.enable(c)
    graph = combined(256, 8)
    graph |= {("root", 8 * at): (wait_for, "go") for at in range(4)}
    futures = c.get(graph, list(graph), sync=False)
    await until(lambda: plugin_of(s).roots.families.of)
    async with Worker(s.address, nthreads=1):
        await c.retire_workers([workers[0].address], close_workers=False)
        await Event("go").set()
        await wait(futures, timeout=LIMIT)
        assert await c.gather(futures[-32:]) == [8] * 32
        await nothing_stuck(s)


def noise(*shape: int) -> da.Array:
    return da.random.default_rng(0).random(shape, chunks=(10, 20))


GRAPHS: dict[str, Callable[[], da.Array]] = {
    "difference": lambda: (noise(800, 60) - noise(800, 60).mean()).sum(axis=0),
    "sum": lambda: noise(800, 60).sum(axis=0),
    "slice": lambda: noise(800, 60)[5:, ::2].sum(axis=0),
    "two arrays": lambda: (noise(800, 60) + noise(800, 60)).sum(),
    "delayed": lambda: da.stack(
        [da.from_delayed(delayed(np.ones)(20), (20,), float) for _ in range(120)]
    ).mean(axis=0),
    "optimised": lambda: dask.optimize(noise(800, 60).sum(axis=1))[0],
}


@pytest.mark.parametrize("name", GRAPHS)
def test_families_are_those_of_the_prediction(name: str) -> None:
    y = GRAPHS[name]()
    held: list[frozenset[Any]] = []

    @two_workers
    async def check(c, s, first, second):
        await dasktile.enable(c)
        roots = plugin_of(s).roots
        hold = roots.hold_family

        def noted(tasks: Sequence[Any]) -> None:
            held.append(frozenset(str(ts.key) for ts in tasks))
            hold(tasks)

        roots.hold_family = noted
        await c.compute(y)

    check()
    machine = Machine(2, order=("first", "second"))
    wanted = {y.name: list(flatten(y.__dask_keys__()))}
    tasks, _ = input_tasks(y.__dask_graph__(), wanted, machine)
    assert len(held) > 8
    assert {
        frozenset(str(fused_key(tasks.keys[number])) for number in family)
        for family in tasks.families
    } == set(held)
    unplaced, _ = input_tasks(y.__dask_graph__(), wanted, replace(machine, order=()))
    assert not unplaced.families and set(unplaced.queued) == set(tasks.queued)


def fused_key(chain: Sequence[Any]) -> Any:
    """The key that Dask gives a chain of tasks."""
    return (len(chain) > 1 and default_fused_keys_renamer(chain)) or chain[-1]
