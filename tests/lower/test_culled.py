"""Graphs without the tasks that are not needed."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest
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
    assert sum(map(len, graph.layers.values())) < 40
    graph.validate()
    new = da.Array(graph, few.name, few.chunks, dtype=few.dtype)
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


def test_annotations_are_kept() -> None:
    with dask.annotate(priority=3):
        x = noise((600, 600), 20) + 1
    few = (x * 2)[:5, :5]
    graph = culled(few.dask, set(flatten(few.__dask_keys__())), [few.name])
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
