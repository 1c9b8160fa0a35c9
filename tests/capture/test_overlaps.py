"""What layers of overlaps compute, read off them, is what their tasks compute."""

from __future__ import annotations

import random
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.highlevelgraph import HighLevelGraph
from dask.layers import ArrayOverlapLayer

import dasktile
from dasktile._compat.dask import convert_legacy_graph
from dasktile.capture import overlaps
from dasktile.capture.base import ArrayInfo, GraphView
from dasktile.capture.culling import NeededTasks
from dasktile.capture.highlevel import capture
from dasktile.capture.overlaps import overlap_of
from dasktile.capture.rules.provenance import Trace
from dasktile.lower.count import count_tasks, least_tasks
from tests.support import random_cuts


def overlapped(rng: random.Random) -> tuple[da.Array, str]:
    """An array of extended blocks, and the name of the array that these are of."""
    shape = tuple(rng.randint(1, 12) for _ in range(rng.randint(1, 3)))
    x = da.from_array(
        np.arange(np.prod(shape)).reshape(shape), chunks=tuple(random_cuts(n, rng) for n in shape)
    )
    depths: dict[int, Any] = {}
    for axis in range(x.ndim):
        if rng.random() < 0.8:
            # deeper than a block, too, which Dask's own functions avoid
            both = rng.randint(0, 4), rng.randint(0, 4)
            depths[axis] = rng.choice([both[0], both])
    name = f"overlap-{rng.getrandbits(64)}"
    layer = ArrayOverlapLayer(x.name, depths, x.chunks, x.numblocks, name.partition("-")[2])
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[x])
    return da.Array(graph, name, x.chunks, meta=x._meta), x.name


@pytest.mark.parametrize("seed", range(40))
def test_positions_and_reads_are_those_of_the_tasks(seed: int) -> None:
    rng = random.Random(seed)
    y, name = overlapped(rng)
    layer = y.dask.layers[y.name]
    overlap = overlap_of(y.name, layer)
    assert overlap is not None and overlap.array == name
    wanted = [(y.name, *place) for place in np.ndindex(*y.numblocks) if rng.random() < 0.7]
    reads = overlap.reads(wanted)
    counted = count_tasks(y.dask, [y.name])
    assert counted == least_tasks(y.dask, [y.name])
    view = GraphView(y.dask, {name: ArrayInfo(name, y.shape, y.dtype, y.chunks)})
    assert ("getitem", 0) not in view.keys([y.name]) and (y.name, *y.numblocks) not in view.keys(
        [y.name]
    )
    trace = Trace(view, y.name)
    blocks = {place: trace.block((y.name, *place)) for place in np.ndindex(*y.numblocks)}
    assert not layer.is_materialized()

    by_tasks = Trace(view, y.name, by_tasks=True)
    assert blocks == {place: by_tasks.block((y.name, *place)) for place in blocks}
    assert {overlap.name, overlap.part} == {key[0] for key in layer}
    assert counted == len(layer) + count_tasks(y.dask, [name])
    tasks = convert_legacy_graph(dict(layer), {*layer, *y.dask.layers[name]})
    assert set(reads) <= set(tasks)
    assert all(tasks[key].dependencies == found for key, found in reads.items())
    assert all(key in view.keys([y.name]) for key in layer)
    needed = set(wanted)
    for _ in range(2):
        needed |= {read for key in needed if key in tasks for read in tasks[key].dependencies}
    assert set(reads) == needed & set(tasks)


def test_no_task_of_overlaps_is_written_for_a_plan() -> None:
    x = da.random.default_rng(0).random((400, 40), chunks=(20, 40))
    windows = da.lib.stride_tricks.sliding_window_view(x, 5, axis=0)
    means = windows.mean(axis=-1)
    layers = [layer for layer in means.dask.layers.values() if isinstance(layer, ArrayOverlapLayer)]
    tiled = dasktile.optimize(means, workers=4)
    assert layers and not any(layer.is_materialized() for layer in layers)
    np.testing.assert_allclose(tiled.compute(), means.compute())


def windows() -> da.Array:
    x = da.random.default_rng(0).random((40, 6), chunks=(8, 3))
    return da.lib.stride_tricks.sliding_window_view(x, 4, axis=0).sum(axis=-1)


def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another Dask, which has another name for parts of blocks."""
    construct = ArrayOverlapLayer._construct_graph

    def other(key: Any) -> Any:
        is_part = isinstance(key, tuple) and str(key[0]).startswith("getitem-")
        return (f"part-{key[0]}", *key[1:]) if is_part else key

    def constructed(self: Any, *arguments: Any) -> Any:
        def in_value(value: Any) -> Any:
            if isinstance(value, list):
                return [in_value(item) for item in value]
            if isinstance(value, tuple) and value and callable(value[0]):
                return tuple(map(in_value, value))
            return other(value)

        tasks = construct(self, *arguments)
        return {other(key): in_value(task) for key, task in tasks.items()}

    monkeypatch.setattr(ArrayOverlapLayer, "_construct_graph", constructed)


def test_tasks_are_read_where_the_installed_dask_is_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = windows().compute(scheduler="sync")
    read_off = capture([windows()]).program
    with monkeypatch.context() as patch:
        renamed(patch)
        overlaps._is_known.cache_clear()
        y = windows()
        by_tasks = capture([y]).program
        names = {name for name, layer in y.dask.layers.items() if overlap_of(name, layer)}
        np.testing.assert_allclose(dasktile.optimize(y, workers=4).compute(), expected)
        assert NeededTasks(y.dask, y.__dask_keys__()).up_to(1000) <= 1000
    overlaps._is_known.cache_clear()
    assert not names and overlap_of(*next(reversed(overlap_layers(windows()))))
    ops = [
        [(node.op, node.shape, node.edges) for node in each.nodes] for each in (read_off, by_tasks)
    ]
    assert ops[0] == ops[1]
    assert "sliding_window_view" in [node.op for node in by_tasks.nodes]


def overlap_layers(y: da.Array) -> list[tuple[str, ArrayOverlapLayer]]:
    layers = y.dask.layers.items()
    return [(name, layer) for name, layer in layers if isinstance(layer, ArrayOverlapLayer)]


def test_block_numbers_may_be_of_any_type() -> None:
    y = windows()
    [(name, layer)] = overlap_layers(y)
    overlap = overlap_of(name, layer)
    assert overlap is not None
    info = ArrayInfo(overlap.array, (40, 6), np.dtype(float), ((8,) * 5, (3, 3)))
    trace = Trace(GraphView(y.dask, {overlap.array: info}), name)
    assert trace.block((name, 1.0, np.int64(1))) == trace.block((name, 1, 1))


def test_few_needed_blocks_are_counted() -> None:
    x = da.ones((400,), chunks=10)
    y = da.overlap.overlap(x, depth=2, boundary="none")
    layer = next(each for each in y.dask.layers.values() if isinstance(each, ArrayOverlapLayer))
    # a block, its three parts, and the blocks that these are of
    assert NeededTasks(y.dask, [(y.name, 5)]).up_to(100) == 7
    assert not layer.is_materialized()
