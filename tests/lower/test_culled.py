"""Graphs without the tasks that are not needed."""

from __future__ import annotations

import gc
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import Task, TaskRef
from dask.blockwise import Blockwise
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph
from distributed import Client

import dasktile
from dasktile.lower.culled import culled


def noise(shape: tuple[int, ...], chunks: int) -> da.Array:
    return da.random.default_rng(0).random(shape, chunks=chunks)


def few_of(x: da.Array) -> da.Array:
    """An array of which few tasks are needed; tasks of `map_overlap` are made when needed."""
    return x.map_overlap(np.sin, depth=1, boundary="none")[200:210, 200:210]


def test_only_needed_tasks_are_left() -> None:
    x = noise((600, 600), 20)
    few = few_of(x)
    graph = culled(few.dask, set(flatten(few.__dask_keys__())), [few.name])
    assert graph is not None
    assert sum(map(len, graph.layers.values())) < 40
    graph.validate()
    new = da.Array(graph, few.name, few.chunks, dtype=few.dtype)
    np.testing.assert_array_equal(new, few)


def test_the_order_of_tasks_does_not_depend_on_hashes() -> None:
    few = (few_of(noise((600, 600), 20)) + 1)[:, :5]
    graph = culled(few.dask, set(flatten(few.__dask_keys__())), [few.name])
    assert graph is not None
    parts = [layer for name, layer in graph.layers.items() if "overlap" not in name]
    assert max(map(len, parts)) > 5
    for layer in parts:
        # numbers of blocks are in order in Dask's layers
        assert list(layer) == sorted(layer)


def test_blockwise_layers_are_merged_as_by_dask() -> None:
    x = da.from_array(np.random.default_rng(0).random((2000, 2000)), chunks=(20, 20))
    few = da.where(x > 0.5, x, -x)[100:130, 100:130]
    new = dasktile.optimize(few)
    assert new is not few
    counts = [len(dict(each.dask)) for each in dask.optimize(few, new)]
    assert counts[1] <= counts[0]
    np.testing.assert_array_equal(new, few)


def test_a_part_can_be_used_with_the_rest_of_its_array() -> None:
    whole = noise((600, 600), 20) + 1
    one, other = whole[:10, :10], whole[100:110, 100:110]
    new = dasktile.optimize(one)
    assert new is not one
    assert new.name == one.name and new.chunks == one.chunks
    np.testing.assert_array_equal(new + other, one + other)
    np.testing.assert_array_equal(new + one, 2 * one)
    both = dask.compute(new, one, other, whole.sum())
    np.testing.assert_array_equal(both[0], both[1])


def test_blockwise_layers_read_layers_by_name() -> None:
    """Dask would look for the layers that they name, which have other names now."""
    x = noise((1000, 1000), 20)
    few = (x + 1)[:10, :10] + 1
    new = dasktile.optimize(few)
    # the tasks of the whole array were not made
    [whole] = [
        layer
        for layer in few.dask.layers.values()
        if isinstance(layer, Blockwise) and len(layer) > 1
    ]
    assert not whole.is_materialized()
    for array in (new, new + 1, (new + 1).sum(), dasktile.optimize(few, few * 2)[1] / 2):
        assert np.isfinite(array.compute()).all()
    np.testing.assert_array_equal(new, few)


def layered(
    layers: dict[str, dict[Any, Any]], dependencies: dict[str, set[str]], end: str
) -> da.Array:
    return da.Array(HighLevelGraph(layers, dependencies), end, ((5,),), dtype=int)


def test_keys_that_are_no_blocks() -> None:
    tasks = {("a", n): Task(("a", n), np.full, 5, n) for n in range(400)}
    extra = {("d", n): Task(("d", n), np.negative, TaskRef(("a", n))) for n in range(400)}
    last = {("c", 0): Task(("c", 0), np.negative, TaskRef(("a", 3))), **extra}
    array = layered({"a": tasks, "c": last}, {"a": set(), "c": {"a"}}, "c")
    for few in (array, array + 1):
        new = dasktile.optimize(few)
        graph = dict(new.dask)
        assert len(graph) < 5
        assert all(graph.keys() >= task.dependencies for task in graph.values())
        np.testing.assert_array_equal(new, few)


def test_undeclared_dependencies_are_found_or_nothing_is_changed() -> None:
    layers = {
        "b": {("b", n): Task(("b", n), np.negative, TaskRef(("a", n))) for n in range(400)},
        "a": {("a", n): Task(("a", n), np.full, 5, n) for n in range(400)},
        "c": {("c", 0): Task(("c", 0), np.negative, TaskRef(("b", 3)))},
    }
    array = layered(layers, {"b": set(), "a": set(), "c": {"b"}}, "c")
    np.testing.assert_array_equal(
        dasktile.optimize(array).compute(optimize_graph=False, scheduler="sync"), np.full(5, 3)
    )


def test_annotations_of_the_context_are_not_added() -> None:
    few = few_of(noise((600, 600), 20))
    with dask.annotate(priority=3):
        new = dasktile.optimize(few)
    assert not any(layer.annotations for layer in new.dask.layers.values())


def test_annotations_are_kept() -> None:
    with dask.annotate(priority=3):
        x = noise((600, 600), 20) + 1
    few = (x * 2)[:5, :5]
    graph = culled(few.dask, set(flatten(few.__dask_keys__())), [few.name])
    assert graph is not None
    assert {"priority": 3} in [layer.annotations for layer in graph.layers.values()]


@pytest.mark.parametrize("persisted", [False, True])
def test_on_a_cluster(persisted: bool) -> None:
    with Client(processes=False, n_workers=2, threads_per_worker=1, dashboard_address=":0") as c:
        x = noise((600, 600), 20)
        if persisted:
            x = c.persist(x)
        few = few_of(x)
        new = dasktile.optimize(few, workers=c)
        assert isinstance(new.dask, HighLevelGraph)
        assert sum(map(len, new.dask.layers.values())) < (1000 if persisted else 40)
        np.testing.assert_array_equal(new.persist().compute(), few.compute())


def test_futures_within_tasks() -> None:
    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0") as c:
        future = c.submit(np.arange, 5)
        layers = {
            "a": {("a", n): (np.add, future, n) for n in range(400)},
            "b": {("b", 0): (np.add, ("a", 3), 1)},
        }
        array = layered(layers, {"a": set(), "b": {"a"}}, "b")
        new = dasktile.optimize(array, workers=c)
        assert new is not array
        del array, layers, future
        gc.collect()
        np.testing.assert_array_equal(new.compute(), np.arange(5) + 4)
