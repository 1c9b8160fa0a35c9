"""Arrays made of persisted results of other collections are made where these are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import getitem
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from dask import delayed
from dask.dataframe import from_pandas
from distributed import Client, wait

import dasktile
from benchmarks.predicted import cluster
from dasktile.capture.from_memory import data_of_arrays
from dasktile.capture.highlevel import capture
from dasktile.cluster.located import located
from dasktile.cluster.target import machine
from dasktile.runtime.scheduler.plugin import TileSchedulerPlugin

#: Rows and columns of the arrays, and the rows of a block.
ROWS, COLUMNS, STEP = 4000, 500, 200

#: Bytes of a block, and of the index of a frame.
BLOCK = STEP * COLUMNS * 8
INDEX = 10_000


@pytest.fixture
def client() -> Iterator[Client]:
    # Dask steals tasks that the plan does not place
    with dask.config.set({"distributed.scheduler.work-stealing": False}), cluster(4) as client:
        dasktile.enable(client)
        # nor are tasks that wait for a worker sent to another one
        roots = client.cluster.scheduler.plugins[TileSchedulerPlugin.name].roots
        roots.settings = replace(roots.settings, stall_timeout=math.inf)
        yield client


def root(block: np.ndarray) -> np.ndarray:
    return np.sqrt(block)


def random() -> da.Array:
    return da.random.default_rng(0).random((ROWS, COLUMNS), chunks=(STEP, COLUMNS))


def from_delayed(blocks: list[object]) -> da.Array:
    arrays = [da.from_delayed(block, (STEP, COLUMNS), float) for block in blocks]
    return da.concatenate(arrays, axis=0)


def of_blocks(source: da.Array) -> da.Array:
    """A delayed function of every block."""
    return from_delayed([delayed(root)(block) for block in source.to_delayed().ravel()])


def persisted_blocks() -> tuple[Any, da.Array]:
    source = random().persist()
    wait(source)
    return source, of_blocks(source)


def persisted_frame() -> tuple[Any, da.Array]:
    values = np.random.default_rng(0).random((ROWS, COLUMNS))
    frame = from_pandas(pd.DataFrame(values), npartitions=ROWS // STEP).persist()
    wait(frame)
    return frame, (frame + 1).to_dask_array(lengths=[STEP] * (ROWS // STEP))


def two_sources() -> tuple[Any, da.Array]:
    sources = [random().persist(), (random() + 1).persist()]
    wait(sources)
    first, second = (source.to_delayed().ravel() for source in sources)
    roots = zip(map(delayed(root), first), map(delayed(root), second), strict=True)
    return sources, from_delayed([delayed(np.add)(a, b) for a, b in roots])


def centred(array: da.Array) -> da.Array:
    return (array - array.mean(axis=0)) ** 2


@pytest.mark.parametrize("last", [centred, lambda array: array.sum(axis=0), lambda array: array])
@pytest.mark.parametrize("source", [persisted_blocks, persisted_frame, two_sources])
def test_tasks_run_where_the_persisted_data_is(
    client: Client,
    source: Callable[[], tuple[Any, da.Array]],
    last: Callable[[da.Array], da.Array],
) -> None:
    data, array = source()
    before, expected = dasktile.metrics(client).bytes_received, last(array)
    predicted = dasktile.explain(expected).bytes_predicted
    result = dasktile.optimize(expected).persist()
    wait(result)
    moved = dasktile.metrics(client).bytes_received - before
    # two blocks, with the index of a frame
    assert moved <= predicted + 2 * (BLOCK + INDEX)
    if source is not two_sources:
        assert predicted <= BLOCK
    np.testing.assert_allclose(result, expected.compute(scheduler=client))
    del data  # graphs do not keep it


def places(client: Client, array: da.Array) -> list[Any]:
    """Where the blocks of the arrays of a program are made, if that is known."""
    captured = located(capture([array]), machine(client))
    return [node.homes for node in captured.program.nodes]


@pytest.mark.parametrize("count", [4, 20])
def test_shared_data_decides_nothing(client: Client, count: int) -> None:
    # few arrays of one block are a node each, many are one node
    shared = client.scatter(np.ones((STEP, COLUMNS)))
    blocks = [delayed(np.multiply)(shared, number) for number in range(count)]
    assert not any(places(client, from_delayed(blocks)))


def test_small_data_decides_nothing(client: Client) -> None:
    def make(seed: int) -> np.ndarray:
        return np.random.default_rng(seed).random((STEP, COLUMNS))

    seeds = client.scatter(list(range(20)), hash=False)
    assert not any(places(client, from_delayed([delayed(make)(seed) for seed in seeds])))


def test_data_on_one_worker_decides_nothing_for_functions_of_the_user(client: Client) -> None:
    """They may take long; those of packages are called where the data is."""
    [worker, *_] = client.scheduler_info()["workers"]
    data = [np.full((STEP, COLUMNS), float(number)) for number in range(20)]
    scattered = client.scatter(data, workers=[worker], hash=False)
    assert not any(places(client, from_delayed([delayed(root)(each) for each in scattered])))
    [homes] = places(client, from_delayed([delayed(np.sqrt)(each) for each in scattered]))
    place = machine(client).order.index(worker)
    assert homes == ((place,),) * len(data)


def test_the_larger_piece_of_data_decides(client: Client) -> None:
    addresses = list(client.scheduler_info()["workers"])
    large = [
        client.scatter(np.ones((STEP, COLUMNS)), workers=[addresses[number % 4]], hash=False)
        for number in range(20)
    ]
    small = client.scatter(list(range(20)), workers=[addresses[0]], hash=False)
    blocks = [delayed(np.multiply)(*both) for both in zip(large, small, strict=True)]
    [homes] = places(client, from_delayed(blocks))
    order = machine(client).order
    assert homes is not None
    assert [order[place] for (place,) in homes] == [addresses[number % 4] for number in range(20)]


def test_a_block_of_many_pieces_is_made_of_none(client: Client) -> None:
    pieces, own = (client.scatter(list(range(count)), hash=False) for count in (12, 20))
    total = delayed(sum)(pieces)
    few = from_delayed([delayed(root)(each) for each in own])
    many = from_delayed([delayed(np.full)((STEP, COLUMNS), total + each) for each in own])
    [found] = data_of_arrays(capture([few])).values()
    assert [len(data) for data in found.blocks] == [1] * 20
    [found] = data_of_arrays(capture([many])).values()
    assert [len(data) for data in found.blocks] == [0] * 20


def test_a_block_is_made_of_shares_of_data(client: Client) -> None:
    """As of edges of its neighbours, which are cut where these are."""
    data = client.scatter([np.ones((STEP, COLUMNS)) + number for number in range(20)], hash=False)
    blocks = [
        delayed(np.add)(own, delayed(getitem)(other, (slice(-1, None), slice(None))))
        for own, other in zip(data, data[-1:] + data[:-1], strict=True)
    ]
    [found] = data_of_arrays(capture([from_delayed(blocks)])).values()
    shares = [1.0, 1 / STEP]
    assert [sorted(block.values(), reverse=True) for block in found.blocks] == [shares] * 20
    assert [max(block, key=block.__getitem__) for block in found.blocks] == [
        each.key for each in data
    ]


def test_slices_within_tasks_are_shares_of_data(client: Client) -> None:
    """As the last rows of running sums, and edges that Dask has fused."""
    x = da.ones((ROWS, COLUMNS), chunks=(STEP, COLUMNS)).persist()
    wait(x)
    [sums], [rolled] = dask.optimize(da.cumsum(x, axis=0)), dask.optimize(da.roll(x, 3, axis=0))
    [found] = data_of_arrays(capture([sums])).values()
    assert sorted(found.blocks[1].values()) == [1 / STEP, 1.0]
    [found] = data_of_arrays(capture([rolled])).values()
    assert max(len(data) for data in found.blocks) <= 2
    assert min(min(data.values()) for data in found.blocks) == 3 / STEP
