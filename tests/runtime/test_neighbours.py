"""Arrays made of persisted results of other collections are made where these are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from dask import delayed
from dask.dataframe import from_pandas
from distributed import Client, wait

import dasktile
from benchmarks.predicted import cluster
from dasktile.capture.from_memory import read_from_memory
from dasktile.capture.highlevel import capture

#: Rows and columns of the arrays, and the rows of a block.
ROWS, COLUMNS, STEP = 4000, 500, 200

#: Bytes of a block: Dask may run a task elsewhere, as a worker is idle meanwhile.
BLOCK = STEP * COLUMNS * 8


@pytest.fixture
def client() -> Iterator[Client]:
    with cluster(4) as client:
        dasktile.enable(client)
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


@pytest.mark.parametrize("source", [persisted_blocks, persisted_frame])
def test_tasks_run_where_the_persisted_data_is(
    client: Client, source: Callable[[], tuple[Any, da.Array]]
) -> None:
    data, array = source()
    centred = (array - array.mean(axis=0)) ** 2
    before = dasktile.metrics(client).bytes_received
    result = dasktile.optimize(centred).persist()
    wait(result)
    assert dasktile.metrics(client).bytes_received - before <= 3 * BLOCK
    np.testing.assert_allclose(result, centred.compute(scheduler=client))
    del data  # graphs do not keep it


@pytest.mark.parametrize("count", [4, 20])
def test_shared_data_is_followed_by_no_block(client: Client, count: int) -> None:
    # few arrays of one block are a node each, many are one node
    shared = client.scatter(np.ones((STEP, COLUMNS)))
    blocks = [delayed(np.multiply)(shared, number) for number in range(count)]
    assert not read_from_memory(capture([from_delayed(blocks)]), 4)
