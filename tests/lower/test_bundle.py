"""One task runs a group of tasks of one worker, and others read parts of what it returns."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import Alias, DataNode, Task, TaskRef, convert_legacy_graph
from dask.base import collections_to_expr
from dask.blockwise import optimize_blockwise
from dask.callbacks import Callback
from dask.core import flatten
from dask.graph_manipulation import clone
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.sizeof import sizeof
from hypothesis import given

import dasktile
from benchmarks.bundles import WORKLOADS
from benchmarks.corpus.simulated import simulated
from dasktile import planning, prediction
from dasktile.lower import bundle as bundles
from dasktile.lower import bundle_layout
from dasktile.lower.anchored import Anchored
from dasktile.lower.bundle import bundle
from dasktile.lower.bundle_limits import BundleLimits
from dasktile.lower.bundle_tasks import pick, run_bundle
from dasktile.lower.settings import LowerSettings
from dasktile.lower.writer import Lowered, lower
from dasktile.schedule.placement import decode
from tests.expressions import Expression, expressions, outputs
from tests.support import check_graph, plan_for_workers
from tests.test_same_answers import check, examples, many
from tests.traffic import traffic

#: Settings under which re-tiling pays for small arrays.
EAGER = {
    "dasktile.cost.task-bytes": 1,
    "dasktile.tiling.min-tile": 1,
    "dasktile.raise-errors": True,
}

#: Numbers by which small graphs have bundles.
MANY = LowerSettings(bundles_per_thread=1, bundle_remaining=1.0)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Plan for workers of a cluster, on which tasks run where they are planned."""

    def plan_for(count: int, threads: int = 1, settings: LowerSettings | None = None) -> None:
        plan_for_workers(monkeypatch, count, threads)
        if settings is not None:
            monkeypatch.setattr(planning, "lower", partial(lower, settings=settings))

    with dask.config.set({"dasktile.raise-errors": True, "dasktile.bundle": 16}):
        yield plan_for


def tasks_of(*arrays: da.Array) -> dict[Any, Any]:
    """The tasks that Dask runs."""
    return dict(collections_to_expr(arrays).optimize().__dask_graph__())


def bundles_of(graph: dict[Any, Any]) -> dict[Any, Any]:
    """The tasks that run several tasks."""
    return {
        key: task
        for key, task in graph.items()
        if getattr(task, "func", None) is run_bundle and len(task.args[0]) > 1
    }


def small(name: str) -> da.Array:
    return WORKLOADS[name](0.25 if name in ("anomalies", "weekly_maxima") else 0.5)


def keys_of_equal_tasks(*graphs: HighLevelGraph, outputs: Sequence[str] = ()) -> None:
    """Check that a key that is in several graphs stands for tasks with the same inputs."""
    reads: dict[Any, set[Any]] = {}
    for graph in graphs:
        for key, task in convert_legacy_graph(dict(graph)).items():
            if key[0] not in outputs:
                known = set(task.dependencies)
                assert reads.setdefault(key, known) == known, key


# Whole graphs -----------------------------------------------------------------------


@pytest.mark.parametrize("name", WORKLOADS)
def test_there_are_fewer_tasks_with_the_same_values_and_bytes_moved(
    name, workers, monkeypatch
) -> None:
    # bundles of the usual size, whatever memory they need
    monkeypatch.setattr(prediction, "LITTLE_MEMORY", 2**30)
    workers(4)
    array = small(name)
    expected = array.compute(scheduler="sync")
    moved = {}
    counts = {}
    for most in (0, 16):
        with dask.config.set({"dasktile.bundle": most}):
            new = dasktile.optimize(array)
        assert new is not array
        check_graph(new.dask)
        received, lost = traffic([new], 4)
        tasks = tasks_of(new)
        moved[most] = sum(received.values())
        counts[most] = len(tasks)
        np.testing.assert_allclose(new.compute(scheduler="sync"), expected, rtol=1e-4, atol=1e-5)
        # the scheduler plugin places root tasks beside their readers
        assert not most or not any(tasks[key].dependencies for key in lost)
    assert counts[16] <= 0.3 * len(tasks_of(array))
    predicted = dasktile.explain(array).bytes_after
    # besides the tuples themselves, and halos, which are predicted without their corners
    assert moved[16] <= max(predicted, moved[0]) + 60 * counts[16]


@pytest.mark.parametrize("most", [2, 5, 16])
def test_a_bundle_runs_no_more_tasks_than_it_may(most, workers) -> None:
    workers(4)
    with dask.config.set({"dasktile.bundle": most}):
        graph = tasks_of(dasktile.optimize(small("transposed"), method="exact"))
    sizes = [len(task.args[0]) for task in bundles_of(graph).values()]
    assert sizes
    # chains that Dask would fuse count as one task
    assert max(sizes) <= 2 * most
    assert any(size >= most for size in sizes)


def test_tasks_without_homes_do_not_all_run_where_their_sum_is_read(workers) -> None:
    workers(4)
    x = da.random.default_rng(0).random((400, 10), chunks=(10, 10))
    parts = x.map_blocks(np.sum, axis=0, keepdims=True, chunks=(1, 10))
    whole = da.from_delayed(sum(parts.to_delayed().flatten()), (1, 10), x.dtype)
    array = whole / x.mean(axis=0)
    new = dasktile.optimize(array)
    assert_homes_are_even(new)
    np.testing.assert_allclose(new.compute(scheduler="sync"), array.compute(scheduler="sync"))


def test_tasks_run_where_nearly_all_of_their_inputs_are(workers) -> None:
    """Products of large blocks and small ones, which follow from results of all workers."""
    workers(4)
    x = da.random.default_rng(0).random((4000, 10), chunks=(50, 10))
    u, s, _ = da.linalg.svd(x)
    new = dasktile.optimize(u, s)
    graph = tasks_of(*new)
    assert len(graph) < 0.4 * len(tasks_of(u, s))
    assert_homes_are_even(new[0])
    # the small factors, and the parts of the decomposition that follows, alone are sent
    run = simulated(new, 4)[1]
    assert run.moved < x.nbytes / 4
    np.testing.assert_allclose(abs(new[0].compute()), abs(u.compute()))


def test_tasks_that_combine_results_of_all_workers_are_divided(workers) -> None:
    workers(4)
    x = da.random.default_rng(0).random((160, 160), chunks=(10, 10))
    parts = x.map_blocks(lambda block: block + 1)
    rows = [
        da.from_delayed(dask.delayed(sum)(list(row)), (10, 10), x.dtype)
        for row in parts.to_delayed()
    ]
    new = dasktile.optimize(da.concatenate(rows) + x[:, :10])
    assert_homes_are_even(new)


def test_tasks_of_delayed_functions_are_divided(workers) -> None:
    """A step of k-means: labels and sums by delayed functions of the blocks, as in dask-ml."""
    workers(4)
    x = da.random.RandomState(0).choice(10, size=(12_000, 20), chunks=(100, 20))
    nearest = dask.delayed(lambda block: (block[:, 0] > 5).astype(int))
    blocks = x.to_delayed().flatten()
    labels = da.concatenate([da.from_delayed(nearest(each), (100,), int) for each in blocks])
    sums = da.blockwise(
        lambda block, mine: block[mine > 0].sum(axis=0)[None], "ij", x, "ij", labels, "i",
        adjust_chunks={"i": 1}, dtype=x.dtype,
    )  # fmt: skip
    total = da.from_delayed(sum(sums.to_delayed().flatten()), (1, 20), x.dtype)
    array = total / labels.sum()
    new = dasktile.optimize(array)
    assert_homes_are_even(new)
    graph = tasks_of(new)
    assert len(graph) < 0.4 * len(tasks_of(array))
    # bundles keep no blocks of unknown size for each other
    kept = [
        key
        for task in bundles_of(graph).values()
        for key in flatten([task.args[1]])
        if str(key[0]).startswith("choice")
    ]
    assert not kept
    np.testing.assert_allclose(new.compute(scheduler="sync"), array.compute(scheduler="sync"))


@pytest.mark.parametrize("most", [2, 300])
def test_tasks_that_read_one_result_are_not_all_on_one_worker(workers, most: int) -> None:
    workers(4)
    load = dask.delayed(lambda number: np.full((20, 20), float(number)), pure=True)
    part = dask.delayed(lambda image, factor: float(image.sum() * factor), pure=True)
    total = dask.delayed(lambda *parts: np.array([float(sum(map(np.sum, parts)))]), pure=True)
    parts = [
        part(load(number), factor)
        for number, count in enumerate([most] + [2] * 63)
        for factor in range(count)
    ]
    sums = [total(*parts[at : at + 8]) for at in range(0, len(parts), 8)]
    x = da.random.default_rng(0).random((4000, 20), chunks=(1000, 20))
    array = (x - da.from_delayed(total(*sums), (1,), float)).mean(axis=0)
    new = dasktile.optimize(array)
    assert_homes_are_even(new)
    assert bool(bundles_of(tasks_of(new))) is (most == 2)
    np.testing.assert_allclose(new.compute(scheduler="sync"), array.compute(scheduler="sync"))


def assert_homes_are_even(array: da.Array) -> None:
    """Check that no worker runs more than twice its share of the tasks in bundles."""
    steps: Counter[int] = Counter()
    for key, task in bundles_of(tasks_of(array)).items():
        placement = decode(key[0])
        assert placement is not None
        steps[placement.position(key[1:])] += len(task.args[0])
    assert not steps or max(steps.values()) <= 2 * sum(steps.values()) / 4


def test_bundles_are_on_the_worker_of_their_tasks(workers) -> None:
    workers(4)
    graph = tasks_of(dasktile.optimize(small("jacobi")))
    found = bundles_of(graph)
    assert found
    for key, task in found.items():
        placement = decode(key[0])
        assert placement is not None
        home = placement.position(key[1:])
        for step in task.args[0]:
            inner = decode(step.key[0])
            if inner is not None:
                assert inner.position(step.key[1:]) == home


def test_readers_of_other_workers_read_picks(workers) -> None:
    workers(4)
    graph = tasks_of(dasktile.optimize(small("transposed"), method="exact"))
    homes: dict[Any, int] = {}
    for key in graph:
        placement = decode(key[0])
        if placement is not None:
            homes[key] = placement.position(key[1:])
    crossing = Counter(
        graph[read].func
        for key, task in graph.items()
        for read in task.dependencies
        if key in homes and read in homes and homes[key] != homes[read]
    )
    assert crossing[pick] > 0
    several = bundles_of(graph)
    for key, task in graph.items():
        for read in task.dependencies:
            if read in several and homes.get(key) != homes[read]:
                # all that it returns is read
                assert not any(
                    graph[other].func is pick and read in graph[other].dependencies
                    for other in graph
                )


def test_results_of_a_bundle_are_limited_in_bytes(workers) -> None:
    workers(4)
    array = small("jacobi")
    usual = 2**22
    with dask.config.set({"dasktile.tiling.usual-task": usual}):
        graph = tasks_of(dasktile.optimize(array, method="exact"))
    several = bundles_of(graph)
    assert several
    values = dict(zip(several, dask.get(graph, list(several)), strict=True))
    assert max(map(sizeof, values.values())) <= usual / 4 + 10_000


@pytest.mark.parametrize("most", [0, 1])
def test_bundles_can_be_turned_off(most, workers) -> None:
    workers(4)
    with dask.config.set({"dasktile.bundle": most}):
        off = dasktile.optimize(small("transposed"))
    assert not any(str(key[0]).startswith("bundle") for key in tasks_of(off))


def test_tasks_that_may_run_anywhere_are_not_bundled() -> None:
    # no cluster: nothing runs where it is planned
    new = dasktile.optimize(small("transposed"), workers=4)
    assert not bundles_of(tasks_of(new))


def test_threads_of_a_worker_have_bundles_each(workers) -> None:
    for threads in (1, 4):
        workers(4, threads)
        new = dasktile.optimize(small("transposed"))
        homes: Counter[int] = Counter()
        for key, task in tasks_of(new).items():
            placement = decode(key[0])
            if placement is not None and getattr(task, "func", None) is not pick:
                homes[placement.position(key[1:])] += 1
        assert min(homes.values()) >= 3 * threads


def _opened(block: Any) -> Any:
    """It is unknown what this does, or how long it takes."""
    with open(os.devnull) as file:
        return block + len(file.read())


@pytest.mark.parametrize("merges", [False, True])
def test_functions_of_unknown_duration_are_in_smaller_bundles(workers, merges: bool) -> None:
    """Also where Dask merges their layer with that of a reduction."""
    x = da.random.default_rng(0).random((64, 640), chunks=(8, 10))
    counts = {}
    for threads in (1, 2):
        workers(4, threads)
        for y in (x, x.map_blocks(_opened, dtype=x.dtype)):
            new = dasktile.optimize(y.sum(axis=0) if merges else y.sum(axis=0) + y.max(axis=0))
            made = bundles_of(tasks_of(new))
            counts[threads, y is x] = sum(not task.dependencies for task in made.values())
    # 128 blocks on each worker: at most 32 in a bundle, and about 6 bundles for each thread
    assert counts[1, True] == counts[1, False] == counts[2, True] == 32
    assert counts[2, False] >= 4 * 10


def test_all_outputs_and_their_keys_resolve(workers) -> None:
    workers(4)
    x = da.random.default_rng(0).random((2000, 2000), chunks=100)
    y = x + x.T
    arrays = (y.sum(axis=0), y.mean(axis=1), y, (y - y.mean(axis=0)).max(axis=1))
    expected = dask.compute(*arrays, scheduler="sync")
    for keep in (False, True):
        new = dasktile.optimize(*arrays, keep_chunks=keep)
        for array in new:
            check_graph(array.dask)
            for key in flatten(array.__dask_keys__()):
                assert key in array.dask
        for actual, value in zip(dask.compute(*new, scheduler="sync"), expected, strict=True):
            np.testing.assert_allclose(actual, value)
        # blocks, slices and further operations
        np.testing.assert_allclose(
            new[2][3:7, 150].compute(scheduler="sync"), expected[2][3:7, 150]
        )
        further = new[2].T @ new[0]
        np.testing.assert_allclose(
            dasktile.optimize(further).compute(scheduler="sync"), expected[2].T @ expected[0]
        )
    assert bundles_of(tasks_of(*new))


def test_the_hook_keeps_the_keys(workers) -> None:
    workers(4)
    array = small("transposed")
    expected = array.compute(scheduler="sync")
    with dask.config.set({"array_optimize": dasktile.array_optimize}):
        assert bundles_of(tasks_of(array))
        np.testing.assert_allclose(array.compute(scheduler="sync"), expected)
        kept = array.persist(scheduler="sync")
    assert kept.name == array.name
    assert kept.chunks == array.chunks
    np.testing.assert_allclose(kept.compute(scheduler="sync"), expected)


def test_an_array_in_two_graphs_is_the_same_in_both(workers) -> None:
    """A layer of the input graph that is also in another collection."""
    workers(4)
    x = da.random.default_rng(0).random((4000, 2000), chunks=100)
    new = dasktile.optimize((x + 1).sum(axis=0) + (x * 2).max(axis=0))
    assert bundles_of(tasks_of(new))
    both = new + x.min(axis=0)
    values = x.compute(scheduler="sync")
    expected = (values + 1).sum(axis=0) + (values * 2).max(axis=0) + values.min(axis=0)
    np.testing.assert_allclose(both.compute(scheduler="sync"), expected)


def test_annotated_layers_are_not_bundled(workers) -> None:
    workers(4)
    with dask.annotate(resources={"GPU": 1}):
        x = da.random.default_rng(0).random((4000, 2000), chunks=100)
    new = dasktile.optimize((x + x[::-1]).sum(axis=0))
    merged = {
        key for task in bundles_of(dict(new.dask)).values() for key in (t.key for t in task.args[0])
    }
    assert not any(key[0] == x.name for key in merged)
    layer = new.dask.layers.get(x.name)
    assert layer is None or layer.annotations == {"resources": {"GPU": 1}}


def test_coroutines_are_not_bundled(workers) -> None:
    workers(4)

    async def identity(block: np.ndarray) -> np.ndarray:
        return block

    x = da.random.default_rng(0).random((4000, 2000), chunks=100)
    y = x.map_blocks(identity, meta=np.empty((0, 0)))
    new = dasktile.optimize((y + y[::-1]).sum(axis=0))
    assert not any(
        getattr(step, "func", None) is identity
        for task in bundles_of(dict(new.dask)).values()
        for step in task.args[0]
    )


def test_blocks_that_are_not_needed_are_in_no_bundle(workers) -> None:
    workers(4)
    seen = []

    def noted(block: np.ndarray, block_info: Any = None) -> np.ndarray:
        seen.append(block_info[None]["chunk-location"])
        return block + 1

    x = da.ones((4000, 2000), chunks=100).map_blocks(noted, dtype=float, meta=np.empty((0, 0)))
    part = x[:1000]
    new = dasktile.optimize((part + part[::-1]).sum(axis=0))
    np.testing.assert_array_equal(new.compute(scheduler="sync"), np.full(2000, 4000.0))
    assert {row for row, _ in seen} == set(range(10))
    assert max(Counter(seen).values()) == 1


def test_names_do_not_depend_on_hashes() -> None:
    code = (
        "import dasktile, dask\n"
        "from dasktile import api\n"
        "from dasktile.cluster.target import Machine\n"
        "from benchmarks.bundles import WORKLOADS\n"
        "api.machine = lambda *_: Machine(4, 1, order=tuple('0123'), who_has=lambda b: {})\n"
        "array = dasktile.optimize(WORKLOADS['transposed'](0.5))\n"
        "print(sorted(map(str, dask.optimize(array)[0].dask)))\n"
    )
    names = set()
    for seed in ("0", "1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "DASK_DASKTILE__BUNDLE": "16"}
        run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
        names.add(run.stdout.decode())
    assert len(names) == 1
    assert "bundle" in names.pop()


def without_bundles(*args: Any, **options: Any) -> Lowered:
    """The graph of a plan without bundles, in which tasks are fused by the same rule."""
    settings = replace(MANY, input_share=0.0)
    return lower(*args, **{**options, "bundle_tasks": 0, "settings": settings})


def in_bundles(e: Expression, plan_for: Callable[..., None]) -> bool:
    """Check the values of an expression; returns whether it has bundles."""
    plan_for(e.pick([1, 2, 3, 4, 4, 8]), e.pick([1, 2, 4]), MANY)
    expected = outputs(e)
    arrays = [value.lazy for value in expected]
    most = e.pick([2, 3, 7, 16])
    options = {"keep_chunks": e.chance(30)}
    twice = e.chance(20)
    any_bundles = False

    def results() -> Sequence[np.ndarray]:
        nonlocal any_bundles
        with dask.config.set({**EAGER, "dasktile.bundle": most}):
            new = dasktile.optimize(*arrays, **options)
            new = new if isinstance(new, tuple) else (new,)
            if twice:
                again = dasktile.optimize(*new)
                new = again if isinstance(again, tuple) else (again,)
        with (
            dask.config.set({**EAGER, "dasktile.bundle": most}),
            mock.patch.object(planning, "lower", without_bundles),
        ):
            plain = dasktile.optimize(*arrays, **options)
            plain = plain if isinstance(plain, tuple) else (plain,)
        graph = tasks_of(*new)
        any_bundles = bool(bundles_of(graph))
        for array in new:
            array.dask.validate()
        if twice:
            return dask.compute(*new, scheduler="sync")
        merged = [
            optimize_blockwise(
                HighLevelGraph.merge(*(array.dask for array in after)),
                keys=[(array.name,) for array in after],
            )
            for after in (new, plain)
        ]
        named = [array.name for array in new] if options["keep_chunks"] else []
        keys_of_equal_tasks(*merged, outputs=named)
        # a plan that has too many tasks without bundles is not carried out without them
        is_planned = any(one is not other for one, other in zip(plain, arrays, strict=True))
        assert not any_bundles or not is_planned or len(graph) <= len(tasks_of(*plain))
        return dask.compute(*new, scheduler="sync")

    check(e, expected, results)
    return any_bundles


def test_random_expressions_have_the_same_values_in_bundles(workers) -> None:
    bundled = []

    # hypothesis draws constants of the source, so that any edit of it changes the examples
    @examples(120)
    @given(expressions())
    def every(e: Expression) -> None:
        bundled.append(in_bundles(e, workers))

    every()
    assert sum(bundled) > 6


@pytest.mark.slow
def test_many_random_expressions_have_the_same_values_in_bundles(workers) -> None:
    @many(2000)
    @given(expressions(12))
    def every(e: Expression) -> None:
        in_bundles(e, workers)

    every()


# One bundle -------------------------------------------------------------------------


def chain(count: int, fixed: int = 0) -> tuple[HighLevelGraph, list[str]]:
    """Additions in one process: ``a`` is read by ``b``, both by ``c``, and ``fixed`` is a layer."""
    a = {("a", n): Task(("a", n), int, n) for n in range(count)}
    b = {("b", n): Task(("b", n), total, TaskRef(("a", n)), 1) for n in range(count)}
    c = {
        ("c", 0): Task(
            ("c", 0), total, *(TaskRef((op, n)) for n in range(count) for op in ("a", "b"))
        )
    }
    layers = {"a": a, "b": b, "c": c}
    reads: dict[str, set[str]] = {"a": set(), "b": {"a"}, "c": {"a", "b"}}
    return HighLevelGraph({k: MaterializedLayer(v) for k, v in layers.items()}, reads), ["c"]


def total(*values: int) -> int:
    return sum(values)


def bundled(
    graph: HighLevelGraph, outputs: list[str], most: int = 8, **more: Any
) -> HighLevelGraph:
    limits = BundleLimits((), more.pop("size", {}), (), most, 100, settings=MANY, **more)
    wanted = {name: list(graph.layers[name]) for name in outputs}
    new = bundle(graph, wanted, outputs, list(graph.layers), limits).graph
    new.validate()
    return new


def test_outputs_that_others_read_are_bundled() -> None:
    graph, _ = chain(12)
    limits = BundleLimits((), {}, (), 8, 100, settings=MANY)
    wanted = {"c": [("c", 0)], "b": [("b", 3), ("b", 7)]}
    new = bundle(graph, wanted, ["b", "c"], list("abc"), limits).graph
    new.validate()
    assert dask.get(dict(new), [("c", 0), ("b", 3)]) == (144, 4)
    assert set(new.layers["b"]) == {("b", 3), ("b", 7)}
    # another task reads what the bundles return
    assert new.layers["b"].keys().isdisjoint(dict(new)["c", 0].dependencies)
    keys_of_equal_tasks(graph, new, outputs=["b", "c"])
    # results of outputs that no other task reads are picks
    del graph.layers["c"], graph.dependencies["c"]
    new = bundled(graph, ["b"])
    assert new is graph or dask.get(dict(new), [("b", 3)]) == (4,)


@pytest.mark.parametrize("named", [[], ["a", "c"]])
def test_outputs_that_are_data_have_all_of_their_blocks(named: list[str]) -> None:
    """Others read one block of the data."""
    a = {("a", n): DataNode(("a", n), n) for n in range(3)}
    b = {("b", n): Task(("b", n), total, TaskRef(("a", 0)), n) for n in range(12)}
    c = {("c", 0): Task(("c", 0), total, *(TaskRef(key) for key in b))}
    layers = {"a": MaterializedLayer(a), "b": MaterializedLayer(b), "c": MaterializedLayer(c)}
    graph = HighLevelGraph(layers, {"a": set(), "b": {"a"}, "c": {"b"}})
    limits = BundleLimits((), {}, (), 8, 100, settings=MANY)
    made = bundle(graph, {"a": list(a), "c": list(c)}, named, list("abc"), limits)
    made.graph.validate()
    assert bundles_of(dict(made.graph))
    name = made.names.get("a", "a")
    assert dask.get(dict(made.graph), [(name, n) for n in range(3)]) == (0, 1, 2)


def test_tasks_of_clones_are_bundled(workers) -> None:
    """Their keys are those of the clones, although the tasks name those of the originals."""
    workers(2)
    x = da.random.default_rng(0).random((60, 60), chunks=10)
    y = clone(x)
    assert any(task.key != key for key, task in dict(y.dask).items())
    new = dasktile.optimize((y + y.T).sum(axis=0))
    assert bundles_of(tasks_of(new))
    # dask itself refuses to fuse the tasks of clones
    expected = (x + x.T).sum(axis=0).compute(scheduler="sync")
    np.testing.assert_allclose(new.compute(scheduler="sync"), expected)


def test_tasks_on_which_only_unwanted_blocks_depend_are_missing() -> None:
    graph, _ = chain(12)
    limits = BundleLimits((), {}, (), 8, 100, settings=MANY)
    sums = {
        ("d", n): Task(("d", n), total, *(TaskRef((op, m)) for op in "ab" for m in (n, n + 1)))
        for n in range(0, 12, 2)
    }
    layers = {"a": graph.layers["a"], "b": graph.layers["b"], "d": MaterializedLayer(sums)}
    graph = HighLevelGraph(layers, {"a": set(), "b": {"a"}, "d": {"a", "b"}})
    new = bundle(graph, {"d": [("d", 0), ("d", 4)]}, ["d"], list("abd"), limits).graph
    assert dask.get(dict(new), [("d", 0), ("d", 4)]) == (4, 20)
    assert set(new.layers["d"]) == {("d", 0), ("d", 4)}
    steps = {step.key for task in bundles_of(dict(new)).values() for step in task.args[0]}
    assert steps
    assert steps <= {*((op, n) for op in "ab" for n in (0, 1, 4, 5)), ("d", 0), ("d", 4)}


@pytest.mark.parametrize("is_output", [False, True])
def test_futures_keep_their_layer(is_output: bool) -> None:
    """A future in a graph is a reference to its own key."""
    graph, _ = chain(12)
    futures = {("a", n): TaskRef(("a", n)) for n in range(12)}
    layers = {**graph.layers, "a": MaterializedLayer(futures)}
    graph = HighLevelGraph(layers, graph.dependencies)
    limits = BundleLimits((), {}, (), 8, 100, settings=MANY)
    wanted = {"c": [("c", 0)], **({"a": list(futures)} if is_output else {})}
    made = bundle(graph, wanted, [], list("abc"), limits)
    assert bundles_of(dict(made.graph))
    assert dict(made.graph.layers["a"]) == futures
    assert "a" not in made.names
    # or the layer would be culled
    assert made.graph.dependencies[made.names["c"]] & {"a"} or any(
        "a" in made.graph.dependencies[name] for name in made.graph.dependencies[made.names["c"]]
    )
    values = {key: n for n, key in enumerate(futures)}
    assert dask.get({**dict(made.graph), **values}, (made.names["c"], 0)) == 144


def test_frozen_blocks_of_an_output_stay_in_its_layer() -> None:
    """Only blocks that are not wanted are frozen."""
    a = {("a", 0): Task(("a", 0), int, 1)}
    b = {("b", i, j): Task(("b", i, j), total, TaskRef(("a", 0)), i, j)
         for i in range(40) for j in range(4)}  # fmt: skip
    x = {("x", i): Task(("x", i), total, *(TaskRef(("b", i, j)) for j in range(4)))
         for i in range(40)}  # fmt: skip
    y = {("y", 0): Task(("y", 0), total, TaskRef(("x", 0)))}
    layers = {"a": MaterializedLayer(a), "b": MaterializedLayer(b), "x": MaterializedLayer(x)}
    layers["y"] = MaterializedLayer(y, annotations={"priority": lambda key: 1})
    graph = HighLevelGraph(layers, {"a": set(), "b": {"a"}, "x": {"b"}, "y": {"x"}})
    limits = BundleLimits((), {}, (), 16, 100, settings=MANY)
    wanted = {"y": [("y", 0)], "x": [("x", i) for i in range(2, 40)]}
    new = bundle(graph, wanted, ["x", "y"], list("abxy"), limits).graph
    assert bundles_of(dict(new))
    assert dask.get(dict(new), [("y", 0), ("x", 5)]) == dask.get(dict(graph), [("y", 0), ("x", 5)])


def test_aliases_of_clones_are_bundled() -> None:
    graph, outputs = chain(12)
    # the alias names another key than its own
    layers = {**graph.layers, "b": MaterializedLayer(
        {("b", n): Alias(("old", n), ("a", n)) for n in range(12)})}  # fmt: skip
    new = bundled(HighLevelGraph(layers, graph.dependencies), outputs)
    assert bundles_of(dict(new))
    assert dask.get(dict(new), ("c", 0)) == 2 * sum(range(12))


@pytest.mark.parametrize("name", ["transposed", "jacobi"])
def test_bundles_of_another_order_have_other_keys(name, workers, monkeypatch) -> None:
    workers(4, settings=MANY)
    made: list[Any] = []
    written = bundles._Unbundled.bundled

    def noted(self: Any, runs: Any) -> Any:
        made.append((self, runs))
        return written(self, runs)

    monkeypatch.setattr(bundles._Unbundled, "bundled", noted)
    dasktile.optimize(small(name))
    source, runs = made[0]
    first = written(source, runs).graph
    source.tasks.sizes[:] = [
        size * (1 + number % 7) for number, size in enumerate(source.tasks.sizes)
    ]
    second = written(source, runs).graph
    assert dict(first).keys() != dict(second).keys()
    keys_of_equal_tasks(first, second)


def test_outputs_with_any_name_have_a_name_of_their_own() -> None:
    graph, _ = chain(12)
    limits = BundleLimits((), {}, (), 8, 100, settings=MANY)
    made = [bundle(graph, {"c": [("c", 0)]}, [], list("abc"), limits) for _ in range(2)]
    assert made[0].names == made[1].names
    name = made[0].names["c"]
    assert name != "c"
    assert "c" not in made[0].graph.layers
    assert dask.get(dict(made[0].graph), (name, 0)) == 144
    both = bundle(graph, {"c": [("c", 0)], "b": [("b", 1)]}, [], list("abc"), limits)
    assert both.names["c"] != name
    keys_of_equal_tasks(graph, made[0].graph, both.graph)


def test_bundles_of_fewer_bytes_are_formed_of_the_same_tasks() -> None:
    graph, _ = chain(12)
    limits = BundleLimits((), {"a": 8, "b": 8, "c": 8}, (), 8, 100, settings=MANY)
    made = bundle(graph, {"c": [("c", 0)]}, ["c"], list("abc"), limits)
    assert made.resized(1.0) is made
    small = made.resized(0.25)
    assert small.graph is not made.graph
    assert len(bundles_of(dict(small.graph))) != len(bundles_of(dict(made.graph)))
    fewer = bundle(graph, {"c": [("c", 0)]}, ["c"], list("abc"), replace(limits, work=25))
    assert dict(small.graph).keys() == dict(fewer.graph).keys()
    assert dask.get(dict(small.graph), ("c", 0)) == 144


def test_what_tasks_of_unknown_layers_depend_on_is_unchanged() -> None:
    class Unknown(MaterializedLayer):
        pass

    graph, _ = chain(12)
    odd = {("odd", 0): Task(("odd", 0), total, *(TaskRef(("b", n)) for n in range(6)))}
    end = {("end", 0): Task(("end", 0), total, TaskRef(("c", 0)), TaskRef(("odd", 0)))}
    layers = {**graph.layers, "odd": Unknown(odd), "end": MaterializedLayer(end)}
    reads = {**graph.dependencies, "odd": {"b"}, "end": {"c", "odd"}}
    new = bundled(HighLevelGraph(layers, reads), ["end"])
    assert dask.get(dict(new), ("end", 0)) == 144 + 21
    tasks = dict(new)
    assert tasks["odd", 0].dependencies == {("b", n) for n in range(6)}
    steps = {step.key for task in bundles_of(tasks).values() for step in task.args[0]}
    assert steps
    assert steps.isdisjoint((op, n) for op in "ab" for n in range(6))
    keys_of_equal_tasks(HighLevelGraph(layers, reads), new, outputs=["end"])


def test_annotated_tasks_read_bundles() -> None:
    graph, _ = chain(12)
    sums = {
        ("sums", n): Task(("sums", n), total, TaskRef(("a", n)), TaskRef(("b", n)))
        for n in range(12)
    }
    end = {("end", 0): Task(("end", 0), total, *map(TaskRef, sums))}
    layers = {
        "a": graph.layers["a"],
        "b": graph.layers["b"],
        "sums": MaterializedLayer(sums, annotations={"retries": 2}),
        "end": MaterializedLayer(end),
    }
    graph = HighLevelGraph(layers, {"a": set(), "b": {"a"}, "sums": {"a", "b"}, "end": {"sums"}})
    new = bundled(graph, ["end"])
    assert dask.get(dict(new), ("end", 0)) == 144
    assert bundles_of(dict(new))
    noted = [layer for layer in new.layers.values() if layer.annotations]
    assert sum(map(len, noted)) == 12
    assert all(layer.annotations == {"retries": 2} for layer in noted)
    keys_of_equal_tasks(graph, new, outputs=["end"])


def test_intermediate_results_are_released_within_a_bundle() -> None:
    class Value:
        pass

    alive: list[weakref.ref[Value]] = []
    counts = []

    def made(*_: Any) -> Value:
        gc.collect()
        counts.append(sum(ref() is not None for ref in alive))
        value = Value()
        alive.append(weakref.ref(value))
        return value

    steps = [Task(0, made)] + [Task(n, made, TaskRef(n - 1)) for n in range(1, 6)]
    result = run_bundle(steps, [5, 2], [])
    # each step reads one; the third stays until the end
    assert counts == [0, 1, 1, 1, 2, 2]
    assert isinstance(result, tuple)
    assert alive[5]() is result[0]


def test_a_bundle_is_a_function_of_its_inputs() -> None:
    steps = (Task("b", total, TaskRef("a"), 1), Task("c", total, TaskRef("b"), TaskRef("x")))
    task = Anchored(
        "bundle", run_bundle, steps, ["b", ["c", "b"]], [[("a", (0,)), ("x", (1, 0))]], TaskRef("t")
    )
    task = pickle.loads(pickle.dumps(task))
    for _ in range(2):
        assert task({"t": (1, (10,))}) == (2, (12, 2))
    assert task.dependencies == {"t"}


def test_bytes_of_many_results_are_measured_and_not_guessed() -> None:
    graph, _ = chain(64)
    new = bundled(graph, ["c"], most=40, size={"a": 1, "b": 1})
    several = {
        key: task for layer in new.layers.values() for key, task in layer.items()
        if task.func is run_bundle and isinstance(task.args[1], list)
    }  # fmt: skip
    assert max(len(list(flatten([task.args[1]]))) for task in several.values()) > 10

    def longest(keys: Any) -> int:
        return max([len(keys), *map(longest, keys)]) if isinstance(keys, list) else 0

    # dask measures a random sample of longer ones
    assert max(longest(task.args[1]) for task in several.values()) <= 10
    assert dask.get(dict(new), ("c", 0)) == dask.get(dict(graph), ("c", 0))


@pytest.mark.parametrize("count", [1, 10, 11, 99, 100, 101, 1234])
def test_every_result_has_a_place_in_nested_tuples(count: int) -> None:
    nested = bundle_layout._nested(list(range(count)))
    paths = dict(bundle_layout._paths(nested))
    assert sorted(paths) == list(range(count))
    for number, path in paths.items():
        assert pick(nested, path) == number


def _sum_by_block(left: Any, right: Any, block_info: Any = None) -> Any:
    return left + right


@pytest.mark.parametrize("count", [4, 6])
def test_blocks_of_outputs_that_are_read_have_two_keys(workers, count: int) -> None:
    """That of the output, which must keep its name, and one with a home for their readers."""
    workers(count)
    rng = da.random.default_rng(0)
    x, w = rng.random((240, 240), chunks=40), rng.random((240, 240), chunks=40)
    y = da.map_blocks(_sum_by_block, x, w, dtype=float)
    z = da.map_blocks(_sum_by_block, y, y.T, dtype=float)
    expected = dask.compute(y, z, scheduler="sync")
    with dask.config.set(array_optimize=dasktile.array_optimize):
        graph = tasks_of(y, z)
        found = dask.compute(y, z, scheduler="sync")
    assert bundles_of(graph)
    assert all(task.dependencies <= graph.keys() for task in graph.values())
    for result, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(result, wanted)


def test_a_block_of_an_output_that_a_bundle_makes_alone_has_its_home(workers) -> None:
    """Its own name gives none: an alias, which Dask fuses with the bundle, has that name."""
    workers(4)
    x = da.random.default_rng(0).random((1500, 1500), chunks=250)
    y = x.map_overlap(lambda block: block + 1, depth=1, boundary="none", dtype=float)
    with dask.config.set(array_optimize=dasktile.array_optimize):
        moved, _ = traffic([y], 4)
    # only the halos
    assert sum(moved.values()) < 2**17


class Calls(Callback):
    """Calls of a function by the task that makes them."""

    def __init__(self) -> None:
        super().__init__(pretask=self._begins)
        self.key: Any = None
        self.of: Counter[Any] = Counter()

    def _begins(self, key: Any, dsk: Any, state: Any) -> None:
        self.key = key

    def __call__(self, block: Any) -> Any:
        self.of[self.key] += 1
        return _opened(block)


@pytest.mark.parametrize("threads", [1, 2])
def test_functions_of_unknown_duration_are_not_all_in_one_task(workers, threads: int) -> None:
    """A tile of several blocks is joined by another task than those that call the function."""
    workers(4, threads)
    calls = Calls()
    blocks = da.from_array(np.ones((800, 10)), chunks=(20, 10)).map_blocks(calls, dtype=float)
    for array in (blocks + 1, blocks.sum(axis=0), blocks - blocks.mean(axis=0), blocks.T + 1):
        calls.of.clear()
        with calls:
            dasktile.optimize(array).compute(scheduler="sync")
        # of ten blocks on each worker
        assert sum(calls.of.values()) == 40
        assert max(calls.of.values()) <= 5
