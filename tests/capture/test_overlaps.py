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
from dasktile.capture.base import ArrayInfo, GraphView
from dasktile.capture.culling import count_needed
from dasktile.capture.highlevel import capture
from dasktile.capture.overlaps import heads_of_overlap, read_overlap
from dasktile.capture.rules import provenance
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
    overlap, heads = read_overlap(layer), heads_of_overlap(y.name, layer)
    assert overlap is not None and heads is not None and overlap.array == name
    wanted = [(y.name, *place) for place in np.ndindex(*y.numblocks) if rng.random() < 0.7]
    reads = overlap.reads(heads, wanted)
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
    assert set(heads) == {key[0] for key in layer}
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


def test_tasks_are_run_where_the_installed_dask_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def windows() -> da.Array:
        x = da.ones((40, 6), chunks=(8, 3))
        return da.lib.stride_tricks.sliding_window_view(x, 4, axis=0).sum(axis=-1)

    assert provenance._overlaps_are_known()
    read_off = capture([windows()]).program
    with monkeypatch.context() as patch:
        patch.setattr(provenance, "_overlaps_are_known", lambda: False)
        run = capture([windows()]).program
    ops = [[(node.op, node.shape, node.edges) for node in each.nodes] for each in (read_off, run)]
    assert ops[0] == ops[1]
    assert "sliding_window_view" in [node.op for node in run.nodes]


def test_few_needed_blocks_are_counted() -> None:
    x = da.ones((400,), chunks=10)
    y = da.overlap.overlap(x, depth=2, boundary="none")
    layer = next(each for each in y.dask.layers.values() if isinstance(each, ArrayOverlapLayer))
    # a block, its three parts, and the blocks that these are of
    assert count_needed(y.dask, [(y.name, 5)], 100) == 7
    assert not layer.is_materialized()
