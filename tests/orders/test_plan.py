"""``dasktile.plan``: plans of collections, and collections that run in their order."""

from __future__ import annotations

import asyncio
import itertools
import json
import pickle
import time
from functools import cache
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask._task_spec import Task
from dask.delayed import delayed
from distributed import Client, LocalCluster, WorkerPlugin, wait
from distributed.utils_test import gen_cluster

import dasktile
import dasktile.planning
from benchmarks import planned
from benchmarks.spill_workloads import Run, input_of
from dasktile import config
from dasktile.capture.tasks import Tasks, tasks, without_aliases
from dasktile.cluster.target import Machine, machine
from dasktile.orders import plan as plans
from dasktile.orders.apply import TaskSet, renamed
from dasktile.orders.graphs import task_graph
from dasktile.schedule.taskgraph import Builder, TaskGraph
from tests.agreement import EAGER
from tests.support import accept_all_plans

VALUES = np.random.default_rng(0).random((480, 240))
TILE = 60 * 60 * 8


def source(values: np.ndarray = VALUES) -> da.Array:
    return da.from_array(values, chunks=(60, 60))


def product() -> da.Array:
    x = source() + 1
    return x @ x.T


@cache
def plan_of_product() -> dasktile.SchedulePlan:
    """A plan in less memory than the product needs."""
    return dasktile.plan(product(), memory_limit=20 * TILE, workers=1)


EXPECTED = (VALUES + 1) @ (VALUES + 1).T


@pytest.fixture(autouse=True)
def empty_plan_cache() -> None:
    plans._plans.clear()


def test_the_memory_of_trimmed_blocks_is_counted() -> None:
    """The truth is what the tasks make: the array whose memory each result takes."""

    def smooth(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return block * 2

    x: Any = da.random.default_rng(0).random((8 * 20, 30), chunks=(20, 30))
    for _ in range(2):
        x = x.map_overlap(smooth, depth={0: 3}, boundary="reflect", dtype=x.dtype)
    optimized = TaskSet.of([x])
    sized = tasks(x.dask, optimized.nodes, optimized.wanted)
    values: dict[Any, Any] = {}
    larger = 0
    for number, key in enumerate(sized.keys):
        node = optimized.nodes[key]
        value = values[key] = node({read: values[read] for read in node.dependencies})
        assert sized.sizes[number] == value.nbytes
        if sized.views[number] < 0:
            whole = value
            while isinstance(whole.base, np.ndarray):
                whole = whole.base
            assert sized.memory[number] == whole.nbytes
            larger += whole.nbytes > value.nbytes
    assert larger == 16


def test_bytes_and_seconds_of_a_plan() -> None:
    plan = dasktile.plan(product(), memory_limit=20 * TILE, workers=1)
    assert len(plan.order) == len(set(plan.order)) > 64
    assert plan.peak <= plan.memory_limit + TILE == 21 * TILE
    moved, (old_in, old_out, seconds) = plan.swap_in_bytes + plan.swap_out_bytes, plan.before
    assert plan.lower_bound <= moved <= old_in + old_out
    # the order may take a little longer than Dask's if it moves less
    assert plan.ideal <= plan.makespan <= 1.2 * seconds
    assert plan.time_bound <= plan.makespan
    assert json.dumps(plan.to_dict())
    first, second, third = str(plan).replace("\n  ", " ").splitlines()
    assert first.startswith(f"{len(plan.order)} tasks ordered by {plan.method}, ")
    assert first.endswith("with 562 KiB of memory for results")
    assert second.startswith("takes ") and third.startswith("swaps ")
    # not the keys of all tasks
    assert repr(plan) == f"<SchedulePlan: {'; '.join((first, second, third))}>"
    idle = dasktile.plan(product(), memory_limit="1 GiB", workers=1)
    assert str(idle).splitlines()[-1] == "swaps nothing, as Dask's own order"


def test_values_are_the_same_with_every_scheduler() -> None:
    y = dasktile.plan(product(), memory_limit=20 * TILE, workers=1).apply()
    np.testing.assert_allclose(y.compute(scheduler="sync"), EXPECTED)
    np.testing.assert_allclose(y.compute(scheduler="threads"), EXPECTED)
    np.testing.assert_allclose((y + 1).sum(axis=0).compute(), (EXPECTED + 1).sum(axis=0))
    np.testing.assert_allclose(dask.persist(y)[0].compute(), EXPECTED)


def test_collections_that_need_other_tasks_of_the_same_layers() -> None:
    x = source()
    y, z = dasktile.optimize(x.T @ x, (x - x.mean(axis=0)).sum(axis=1), workers=4)
    for pair in ((y, z), (x[[5, 1, 59, 1]], x[-1]), ((x + 1)[:90], (x + 1)[100:].T)):
        expected = dask.compute(*pair)
        applied = dasktile.plan(*pair, memory_limit="1 MB", workers=1).apply()
        for values, true in zip(dask.compute(*applied), expected, strict=True):
            np.testing.assert_allclose(values, true)
        for one, true in zip(applied, expected, strict=True):
            np.testing.assert_allclose((one * 2).compute(), 2 * true)
        # also beside the results of other plans
        alone = [dasktile.plan(each, memory_limit="1 MB", workers=1).apply() for each in pair]
        for values, true in zip(dask.compute(*alone, *applied), expected * 2, strict=True):
            np.testing.assert_allclose(values, true)


def test_delayed_blocks_of_one_array() -> None:
    blocks = (source() + 1).to_delayed().ravel()
    one, other = dasktile.plan(blocks[0], blocks[1], memory_limit="1 MB", workers=1).apply()
    first, second = dask.compute(one, other)
    np.testing.assert_allclose(first, VALUES[:60, :60] + 1)
    np.testing.assert_allclose(second, VALUES[:60, 60:120] + 1)
    parts = db.from_sequence(range(6), npartitions=3).map(lambda number: number + 1).to_delayed()
    applied = dasktile.plan(*parts[:2], memory_limit="1 MB", workers=1).apply()
    assert [list(value) for value in dask.compute(*applied)] == [[1, 2], [3, 4]]


def test_data_that_no_task_reads() -> None:
    # whether Dask leaves some depends on the order of its sets
    for number in range(10):
        x = da.from_array(np.full((60, 40), number), chunks=(7, 11))
        pair = x[[5, 1, 59, 1]], x[[True] * 30 + [False] * 30]
        one, other = dasktile.plan(*pair, memory_limit="1 MB", workers=1).apply()
        assert (one.compute() == number).all() and (other.compute() == number).all()


def test_dataframes_whose_expression_is_rewritten() -> None:
    frame = dd.from_pandas(pd.DataFrame({"a": np.arange(100.0), "b": 1}), npartitions=7)
    total = dasktile.plan(frame, memory_limit="1 MB", workers=1).apply()
    assert list(total.sum().compute()) == [4950, 100]
    with pytest.raises(TypeError, match="tasks of this Scalar cannot be planned: Dask rewrites"):
        dasktile.plan(frame.a.sum(), memory_limit="1 MB", workers=1)


def test_several_collections_are_planned_together() -> None:
    x = source()
    planned = dasktile.plan(x.sum(axis=0), x.mean(), memory_limit=8 * TILE, workers=1)
    total, mean = planned.apply()
    np.testing.assert_allclose(total.compute(), VALUES.sum(axis=0))
    np.testing.assert_allclose(mean.compute(), VALUES.mean())
    np.testing.assert_allclose(dask.compute(total, mean)[1], VALUES.mean())


def test_containers_of_collections_are_planned() -> None:
    x = source()
    total, mean = x.sum(axis=0), x.mean()
    plan = dasktile.plan((total, [mean, total]), memory_limit=8 * TILE, workers=1)
    first, (second, third) = plan.apply()
    np.testing.assert_allclose(first.compute(), VALUES.sum(axis=0))
    np.testing.assert_allclose(second.compute(), VALUES.mean())
    assert third.name == first.name
    pair, named = plan.apply((total, mean), {"total": total})
    np.testing.assert_allclose(pair[1].compute(), VALUES.mean())
    np.testing.assert_allclose(named["total"].compute(), VALUES.sum(axis=0))
    for given in ([], {"a": 3}, (1, [2])):
        with pytest.raises(TypeError, match=r"lists, tuples and dicts of them.*got"):
            dasktile.plan(x, given, memory_limit=8 * TILE, workers=1)


def test_delayed_objects_are_planned() -> None:
    parts = [delayed(np.ones)(1000) for _ in range(4)]
    whole = delayed(sum)(parts)
    planned = dasktile.plan(whole, memory_limit="1 MB", workers=1)
    assert planned.apply().compute().sum() == 4000


def test_annotations_are_kept() -> None:
    with dask.annotate(resources={"GPU": 1}, priority=3):
        part = delayed(np.ones)(1000)
    whole = delayed(np.sum)(part)
    graph = dasktile.plan(whole, memory_limit="1 MB", workers=1).apply().__dask_graph__()
    [layer] = [layer for layer in graph.layers.values() if part.key in layer]
    annotations = {name: values(part.key) for name, values in layer.annotations.items()}
    assert annotations["resources"] == {"GPU": 1}
    assert 2 < annotations["priority"] <= 3
    assert -1 < layer.annotations["priority"](whole.key) <= 0
    assert layer.annotations["resources"](whole.key) is None


def test_a_plan_applies_to_its_own_expressions_only() -> None:
    plan = dasktile.plan(product(), memory_limit=20 * TILE, workers=1)
    np.testing.assert_allclose(plan.apply(product()).compute(), EXPECTED)
    with pytest.raises(ValueError, match="applies to the planned expressions only"):
        plan.apply(source() + 5)
    with pytest.raises(ValueError, match="applies to the planned expressions only"):
        plan.apply(product(), source() + 5)
    with pytest.raises(ValueError, match="repeat=True is for a TaskGraph"):
        dasktile.plan(product(), memory_limit=20 * TILE, workers=1, repeat=True)


def test_xarray_datasets_are_planned() -> None:
    xarray = pytest.importorskip("xarray")
    dataset = xarray.Dataset({"u": (("a", "b"), source()), "v": (("a",), source().sum(axis=1))})
    planned = dasktile.plan(dataset, memory_limit=20 * TILE, workers=1).apply()
    np.testing.assert_allclose(planned.v.values, VALUES.sum(axis=1))
    np.testing.assert_allclose(planned.compute().u.values, VALUES)
    with pytest.raises(TypeError, match=r"apply takes the dask collections.*got int"):
        dasktile.plan(dataset, memory_limit=20 * TILE, workers=1).apply(5)


def test_keys_differ_from_those_of_unplanned_tasks() -> None:
    plain = product()
    y = dasktile.plan(plain, memory_limit=20 * TILE, workers=1).apply()
    usual = set(dask.optimize(plain)[0].__dask_graph__())
    new = {key for key, node in y.__dask_graph__().items() if isinstance(node, Task)}
    assert usual.isdisjoint(new) and y.name != plain.name
    same = dasktile.plan(plain, memory_limit=20 * TILE, workers=1).apply()
    assert same.name == y.name and dict(same.__dask_graph__()).keys() >= new


def test_ordered_arrays_can_be_pickled() -> None:
    y = dasktile.plan(product(), memory_limit=20 * TILE, workers=1).apply()
    sent = pickle.loads(pickle.dumps(y))
    assert type(sent) is type(y) and sent.__dask_optimize__ is None
    np.testing.assert_allclose(sent.compute(), EXPECTED)


def test_an_optimized_array_can_be_planned() -> None:
    y = dasktile.optimize(product(), workers=1)
    planned = dasktile.plan(y, memory_limit="40 MB", workers=1).apply()
    np.testing.assert_allclose(planned.compute(), EXPECTED)


def test_plans_of_equal_expressions_with_other_names_are_equal() -> None:
    one, other = source(), source(VALUES * 2)
    first = dasktile.plan(one @ one.T, memory_limit=20 * TILE, workers=1)
    assert len(plans._plans) == 1
    second = dasktile.plan(other @ other.T, memory_limit=20 * TILE, workers=1)
    # the second plan comes from the cache
    assert len(plans._plans) == 1
    assert second.makespan == first.makespan
    assert second.order != first.order and second.to_dict()["peak"] == first.peak


def training() -> Builder:
    build = Builder()
    for layer in range(4):
        build.parameter(f"w{layer}", 100)
        build.datum(f"a{layer}", 50)
    for layer in range(4):
        reads = [f"w{layer}"] + ([f"a{layer - 1}"] if layer else [])
        build.op(f"forward{layer}", 1.0, reads=reads, writes=[f"a{layer}"])
    for layer in reversed(range(4)):
        build.op(f"update{layer}", 1.0, reads=[f"a{layer}"], updates=[f"w{layer}"])
    return build


def test_a_task_graph_is_planned() -> None:
    graph = training().graph()
    plan = dasktile.plan(graph, memory_limit=300, device="cuda", repeat=True)
    assert set(plan.order) == {f"{what}{n}" for what in ("forward", "update") for n in range(4)}
    with pytest.raises(ValueError, match=r"forward1.* alone"):
        dasktile.plan(graph, memory_limit=160)
    with pytest.raises(ValueError, match="memory_limit must be given for a TaskGraph"):
        dasktile.plan(graph)
    with pytest.raises(ValueError, match="has no collections"):
        plan.apply()


def test_searches_are_reproducible_and_no_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = dasktile.plan(product(), memory_limit=12 * TILE, workers=1)

    def search(seed: int) -> dict[str, Any]:
        plans._plans.clear()
        # a clock that advances with every reading: the same number of steps on any machine
        ticks = itertools.count()
        monkeypatch.setattr(plans.time, "monotonic", lambda: next(ticks) * 1e-3)
        planned = dasktile.plan(
            product(), memory_limit=12 * TILE, workers=1, search_seconds=0.5, seed=seed
        )
        assert next(ticks) > 100
        return planned.to_dict()

    first = search(1)
    assert search(1) == first
    assert search(2)["makespan"] <= plain.makespan
    assert first["makespan"] <= plain.makespan


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"memory_limit": "much"}, ValueError, "memory_limit must be.*got 'much'"),
        ({}, ValueError, "memory_limit must be given"),
        ({"memory_limit": 10**6, "device": "tpu"}, ValueError, "'host' or 'cuda'; got 'tpu'"),
        ({"memory_limit": 10**6, "search_seconds": -1}, ValueError, "search_seconds.*got -1"),
        ({"memory_limit": 10**6, "search_seconds": "1"}, TypeError, "search_seconds.*type str"),
        ({"memory_limit": 10**6, "seed": "a"}, TypeError, "seed must be a number; got 'a'"),
        ({"memory_limit": 10**6, "workers": 0}, ValueError, "workers must be.*got 0"),
        ({"memory_limit": TILE}, ValueError, r"memory_limit is 28.8 kB \(28.1 KiB\), but"),
    ],
)
def test_invalid_arguments_are_refused(
    arguments: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        dasktile.plan(product(), **{"workers": 1, **arguments})


def test_arguments_that_are_no_collections_are_refused() -> None:
    with pytest.raises(TypeError, match=r"takes dask collections.*got int"):
        dasktile.plan(1, memory_limit=10**6)
    with pytest.raises(TypeError, match="got nothing"):
        dasktile.plan(memory_limit=10**6)


def test_measured_durations_are_used() -> None:
    actual = tasks_of(source().sum())
    took = {name: 3.0 for name in actual.names if "sum" in name}
    plain, slow = Machine(1), Machine(1, durations=lambda: took)
    times = [task_graph(actual, one).time for one in (plain, slow)]
    named = np.array(["sum" in name for name in actual.names])
    overhead = config.setting("plan.task-seconds")
    assert named.any() and (times[1][named] == 3.0 + overhead).all()
    np.testing.assert_array_equal(times[0][~named], times[1][~named])


@pytest.mark.parametrize(
    ("name", "times"),
    [("matmul", 2), ("k_means_graph", 1.3), ("stencil", 5), ("gram_graph", 2.5), ("mlp", 1.7)],
)
def test_plans_move_less_than_the_default_order_on_demand(name: str, times: float) -> None:
    """By the simulation, with memory smaller than needed by a factor of 2.25."""
    workload = planned.several()[name]
    limit = workload.budget("lazy", "heavy")
    plans: list[dasktile.SchedulePlan] = []

    def keep(*arrays: da.Array) -> list[da.Array]:
        plans.append(dasktile.plan(*arrays, memory_limit=limit, workers=1))
        return list(arrays)

    workload.run(Run(input_of, keep, lambda array: keep(array)))
    (plan,) = plans
    old_in, old_out, seconds = plan.before
    assert 1.15 * seconds >= plan.makespan >= plan.time_bound
    moved = plan.swap_in_bytes + plan.swap_out_bytes
    assert old_in + old_out >= times * moved
    assert moved >= plan.lower_bound
    # a result is made before others are written
    assert plan.peak <= 1.1 * limit


# Sizes of results ------------------------------------------------------------------------


def tasks_of(array: da.Array) -> Tasks:
    wanted = list(dask.core.flatten([array.__dask_keys__()]))
    low = without_aliases(dict(dask.optimize(array)[0].__dask_graph__()), wanted)
    return tasks(array.__dask_graph__(), low, wanted)


def planned_sizes(*arrays: da.Array) -> dict[str, tuple[int, int]]:
    """Estimated and real bytes of results, by name of task."""
    wanted = [key for array in arrays for key in dask.core.flatten([array.__dask_keys__()])]
    low: dict[Any, Any] = {}
    for one in dask.optimize(*arrays):
        low.update(one.__dask_graph__())
    low = without_aliases(low, wanted)
    graph = dask.highlevelgraph.HighLevelGraph.merge(*(one.__dask_graph__() for one in arrays))
    actual = tasks(graph, low, wanted)
    made: dict[Any, int] = {}

    class Sizes(dask.callbacks.Callback):
        def _posttask(self, key: Any, result: Any, *rest: Any) -> None:
            made[key] = dask.sizeof.sizeof(result)

    with Sizes():
        dask.get(low, wanted)
    # data in the graph are no tasks of this scheduler
    assert set(made) <= set(actual.keys)
    totals: dict[str, tuple[int, int]] = {}
    for key, size, name in zip(actual.keys, actual.sizes, actual.names, strict=True):
        if key not in made:
            continue
        one, other = totals.get(name, (0, 0))
        totals[name] = one + size, other + made[key]
    return totals


@pytest.mark.parametrize(
    "expression",
    [
        lambda x: x @ x.T,
        lambda x: (x - x.mean(axis=0)).T @ x,
        lambda x: (x * 2).sum(axis=1),
        lambda x: x.rechunk((480, 20)) + 1,
        lambda x: dasktile.optimize((x - x.mean(axis=0)).T @ x, workers=4),
    ],
)
def test_estimated_sizes_are_near_the_real_ones(expression: Any) -> None:
    totals = planned_sizes(expression(source() + 1))
    expected, made = map(sum, zip(*totals.values(), strict=True))
    assert expected == pytest.approx(made, rel=0.05)


def result_bytes(monkeypatch: pytest.MonkeyPatch, array: da.Array) -> dict[str, int]:
    """Bytes of the results that a plan counts, by name of task."""
    seen: list[Tasks] = []

    def noted(sized: Tasks, target: Machine) -> TaskGraph:
        seen.append(sized)
        return task_graph(sized, target)

    monkeypatch.setattr(plans, "task_graph", noted)
    dasktile.plan(array, memory_limit="100 MB", workers=1)
    counts: dict[str, int] = {}
    for name, size in zip(seen[0].names, seen[0].sizes, strict=True):
        counts[name] = counts.get(name, 0) + size
    return counts


@pytest.mark.parametrize(
    "expression",
    [
        lambda x: x @ x.T,
        lambda x: (x.T @ x)[::2].sum(axis=0),
        lambda x: (x - x.mean(axis=0)).T @ x,
    ],
)
def test_results_of_tiles_are_counted_with_the_hook(
    expression: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept_all_plans(monkeypatch)
    monkeypatch.setattr(dasktile.planning, "_moves_more", lambda *_: False)
    lazy = expression(source() + 1)
    with dask.config.set(EAGER):
        optimized = result_bytes(monkeypatch, dasktile.optimize(lazy, keep_chunks=True))
        with dask.config.set(array_optimize=dasktile.array_optimize):
            hooked = result_bytes(monkeypatch, lazy)
    # tiles of 120 x 240: the plan is not that of the input
    assert hooked != result_bytes(monkeypatch, lazy)
    assert all(hooked.values())
    # the last task has another name, as the hook keeps that of the result
    assert sorted(hooked.values()) == sorted(optimized.values())


def test_a_plan_with_the_hook_has_the_values_of_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    accept_all_plans(monkeypatch)
    with dask.config.set({**EAGER, "array_optimize": dasktile.array_optimize}):
        schedule = dasktile.plan(product(), memory_limit=40 * TILE, workers=1)
        ordered = schedule.apply()
    assert len(schedule.order) < len(dict(product().dask))
    assert schedule.peak >= 4 * TILE
    np.testing.assert_allclose(ordered.compute(scheduler="sync"), EXPECTED)


# On a cluster ---------------------------------------------------------------------------


class Recorder(WorkerPlugin):
    """The tasks that a worker starts, and those that it starts before a more urgent ready one."""

    name = "recorder"

    def setup(self, worker: Any) -> None:
        self.state = worker.state
        self.keys: list[Any] = []
        self.early: list[Any] = []

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        if finish == "executing":
            self.keys.append(key)
            priority = self.state.tasks[key].priority
            if any(task.priority < priority for task in self.state.ready):
                self.early.append(key)


def slowly(block: np.ndarray) -> np.ndarray:
    time.sleep(0.01)
    return block


def symmetric() -> da.Array:
    """Tasks that take longer than a message of the scheduler."""
    x = source(VALUES[:240]).map_blocks(slowly, dtype=float)
    return (x + x.T).map_blocks(slowly, dtype=float)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_worker_follows_the_order(enabled: bool) -> None:
    @gen_cluster(client=True, nthreads=[("127.0.0.1", 1)], worker_kwargs={"memory_limit": 0})
    async def main(c: Any, s: Any, a: Any) -> None:
        if enabled:
            await dasktile.enable(c)
        await c.register_plugin(Recorder())
        plan = dasktile.plan(symmetric(), memory_limit=6 * TILE, workers=1)
        array = c.persist(plan.apply())
        await wait(array)
        place = {renamed(key): at for at, key in enumerate(plan.order)}
        recorder = a.plugins["recorder"]
        started = [place[key] for key in recorder.keys if key in place]
        assert sorted(started) == list(range(len(plan.order)))
        # Of the tasks that a worker has, it starts the first in the order of the plan.  It does not
        # wait for the scheduler to send an earlier one, so the order as a whole is not exact.
        assert recorder.early == []
        ranks = [s.tasks[key].priority for key in map(renamed, plan.order) if key in s.tasks]
        assert ranks == sorted(ranks)
        expected = VALUES[:240] + VALUES[:240].T
        np.testing.assert_allclose(await c.compute(array), expected)

    main()


def test_priorities_of_a_plan_are_ascending_at_the_same_user_priority() -> None:
    @gen_cluster(client=True, nthreads=[("127.0.0.1", 1)], worker_kwargs={"memory_limit": 0})
    async def main(c: Any, s: Any, a: Any) -> None:
        await dasktile.enable(c)
        plan = dasktile.plan(product(), memory_limit=12 * TILE, workers=1)
        array = c.persist(plan.apply())
        await wait(array)
        keys = map(renamed, plan.order)
        priorities = [s.tasks[key].priority for key in keys if key in s.tasks]
        assert len(priorities) > 32
        assert priorities == sorted(priorities)
        assert {user for user, *_ in priorities} == {0}

    main()


def test_durations_are_those_measured_by_the_cluster() -> None:
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        delayed(slowly)(1).compute()
        assert machine(client).durations()["slowly"] >= 0.01
        plan = dasktile.plan(
            delayed(sum)([delayed(slowly)(n) for n in range(5)]),
            memory_limit="1 MB",
            workers=client,
        )
        assert plan.ideal >= 5 * 0.01


def test_a_worker_is_lost_during_a_plan() -> None:
    @gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2, worker_kwargs={"memory_limit": 0})
    async def main(c: Any, s: Any, a: Any, b: Any) -> None:
        await dasktile.enable(c)
        plan = dasktile.plan(product(), memory_limit=12 * TILE, workers=2)
        future = c.compute(plan.apply())
        while not b.data:
            await asyncio.sleep(0.01)
        await b.close()
        np.testing.assert_allclose(await future, EXPECTED)

    main()
