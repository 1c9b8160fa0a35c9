"""Where Dask's own graph is kept, its tasks run where a simulation of the scheduler runs them."""

from __future__ import annotations

from typing import Any
from unittest import mock

import dask
import dask.array as da
import numpy as np
import pytest
from dask.highlevelgraph import HighLevelGraph

import dasktile
from benchmarks.corpus.xarray_asv import reindex_fine, reindex_plane
from dasktile import choice, in_memory, planning, templates
from dasktile.cheapest import NO_GAIN
from tests.support import plan_for_workers
from tests.traffic import traffic

#: Bytes of Python's objects.
HEADERS = 1000


@pytest.fixture(autouse=True)
def four_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan for workers of a cluster, on which tasks run where they are planned."""
    plan_for_workers(monkeypatch)


def noise(shape: Any, chunks: Any) -> da.Array:
    return da.random.default_rng(0).random(shape, chunks=chunks)


def permuted() -> da.Array:
    """Rows in another order: every block is cut for all others."""
    rows = np.random.default_rng(0).permutation(200)
    return noise((200, 50, 50), (25, 50, 50))[rows]


@pytest.mark.parametrize("array", [permuted(), reindex_plane(0.1)[0]["temperature"].data])
def test_received_bytes_are_those_predicted(array: da.Array) -> None:
    told = dasktile.explain(array, keep_chunks=True)
    assert told.changed and told.keeps_all_chunks
    assert NO_GAIN in {row.reason for row in told.nodes}
    assert told.bytes_predicted == told.received_after <= told.received_before
    assert told.run_tasks_after <= told.run_tasks_before
    planned = dasktile.optimize(array, keep_chunks=True)
    assert planned.chunks == array.chunks
    received, lost = traffic([planned], 4)
    assert abs(received.total() - told.received_after) <= HEADERS and not lost
    np.testing.assert_array_equal(planned.compute(), array.compute())


def test_a_plan_that_moves_more_takes_no_less_time() -> None:
    x = noise((400, 60, 50), (25, 60, 50))
    rows = np.random.default_rng(0).permutation(400)
    array = da.concatenate([x[rows], x[::-1]])
    told = dasktile.explain(array, keep_chunks=True)
    assert NO_GAIN in {row.reason for row in told.nodes}
    assert told.received_after <= told.received_before
    planned = dasktile.optimize(array, keep_chunks=True)
    np.testing.assert_array_equal(planned.compute(), array.compute())


def test_several_results_of_one_graph() -> None:
    [half] = reindex_fine(0.1)
    planned = dasktile.optimize(half)
    assert planned.chunks == half.chunks
    assert planned.equals(half)
    first, second = permuted(), permuted() + 1
    for new, array in zip(dasktile.optimize(first, second), (first, second), strict=True):
        np.testing.assert_array_equal(new.compute(), array.compute())


def test_the_hook_keeps_names() -> None:
    array = permuted()
    with dask.config.set(array_optimize=dasktile.array_optimize):
        [hooked] = dask.optimize(array)
        received, lost = traffic([array], 4)
    assert hooked.name == array.name
    told = dasktile.explain(array, by_hook=True)
    assert abs(received.total() - told.bytes_predicted) <= HEADERS and not lost
    np.testing.assert_array_equal(hooked.compute(), array.compute())


def test_a_plan_is_known_as_one() -> None:
    told = dasktile.explain(dasktile.optimize(permuted()))
    assert told.planned and not told.changed


def test_results_are_where_their_tasks_say() -> None:
    result = dasktile.optimize(permuted(), keep_chunks=True)
    first = dasktile.explain(result)
    for function in (lambda x: x + 1, lambda x: x.sum(axis=(1, 2))):
        again = dasktile.optimize(function(result), keep_chunks=True)
        received, lost = traffic([again], 4)
        # no block of the result moves
        assert received.total() <= first.bytes_predicted + HEADERS and not lost
        assert dasktile.explain(again).bytes_predicted == first.bytes_predicted
        np.testing.assert_array_equal(again.compute(), function(permuted()).compute())


def double(block: np.ndarray) -> np.ndarray:
    return 2 * np.sort(block)


@pytest.mark.parametrize("function", [double, np.vectorize(lambda item: item, otypes=[float])])
def test_functions_of_the_user_run_where_a_thread_is_free(function: Any) -> None:
    array = permuted().map_blocks(function, dtype=float)
    assert not any(NO_GAIN in row.reason for row in dasktile.explain(array).nodes)
    np.testing.assert_array_equal(dasktile.optimize(array).compute(), array.compute())


def test_what_was_decided_is_written_again() -> None:
    array = permuted()
    first = dasktile.optimize(array)
    templates._store.clear()
    with mock.patch.object(choice, "with_workers", lambda *_: pytest.fail("it is planned again")):
        again = dasktile.optimize(array)
    assert again.name == first.name
    tasks, others = dict(again.dask), dict(first.dask)
    assert tasks.keys() == others.keys()
    assert all(tasks[key].dependencies == others[key].dependencies for key in tasks)


def test_results_that_read_each_other_receive_what_is_predicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan_for_workers(monkeypatch, 3)
    first = permuted()
    arrays = first, first + 1
    told = dasktile.explain(*arrays, keep_chunks=True)
    assert told.changed and told.keeps_all_chunks
    received, _ = traffic(dasktile.optimize(*arrays, keep_chunks=True), 3)
    assert abs(received.total() - told.bytes_predicted) <= HEADERS


def test_shuffles_keep_their_keys() -> None:
    pytest.importorskip("distributed")
    array = permuted()
    layer = array.dask.layers[array.name]
    moved = type("P2PLayer", (type(layer),), {"__module__": "distributed.shuffle"})
    graph = HighLevelGraph(
        {**array.dask.layers, array.name: moved(dict(layer))}, array.dask.dependencies
    )
    assert planning.is_shuffle(graph.layers[array.name])
    array = da.Array(graph, array.name, array.chunks, array.dtype)
    assert dasktile.optimize(array) is array


def test_few_workers_do_not_get_all_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch, 16)
    rows = np.random.default_rng(1).integers(0, 400, 1600)
    array = noise((400, 60, 50), (100, 60, 50))[rows]
    told = dasktile.explain(array, keep_chunks=True)
    assert not any(NO_GAIN in row.reason for row in told.nodes) or not told.changed


def test_tasks_that_read_nothing_need_no_workers() -> None:
    x = noise((4000, 4000), 500)
    assert dasktile.optimize(x) is x


def test_graphs_that_dask_does_not_fuse_get_no_workers() -> None:
    array = permuted()
    with dask.config.set({"optimization.fuse.active": False}):
        told = dasktile.explain(array)
    assert not any(NO_GAIN in row.reason for row in told.nodes) or not told.changed


def test_annotations_stay() -> None:
    with dask.annotate(retries=3):
        array = permuted()
    layers = dasktile.optimize(array).dask.layers.values()
    assert {"retries": 3} in [layer.annotations for layer in layers]


def test_reasons_are_sentences() -> None:
    for reason in (NO_GAIN, in_memory.THERE, in_memory.THERE_UNKNOWN):
        assert reason[0].isupper() and not reason.endswith(".")
