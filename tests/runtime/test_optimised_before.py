"""Graphs of one layer, as ``dask.optimize`` returns them: their tasks have homes, too."""

from __future__ import annotations

from collections.abc import Callable

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import wait

import dasktile
from benchmarks.predicted import WAYS, Case, cluster, is_near, measure, measure_stock

OPTIMISED = "dask.optimize"

#: Bytes of positions, of counts, and of Python's objects.
SMALL = 300_000


def rows() -> da.Array:
    """Rows of which no block is to be cut."""
    return da.random.default_rng(0).random((20_000, 40), chunks=(250, 40))


def regression() -> da.Array:
    """A step of gradient descent, whose result is one block."""
    x, weights = rows(), da.ones(40, chunks=40)
    return weights - x.T @ (1 / (1 + da.exp(-(x @ weights))))


def square() -> da.Array:
    return da.random.default_rng(1).random((1200, 1200), chunks=300)


def part_of_product() -> da.Array:
    """Few rows of a product, and many columns."""
    x = da.random.default_rng(2).random((2000, 120), chunks=(100, 120))
    return (x @ x.T)[300:700, 400:]


EXPRESSIONS: dict[str, Callable[[], da.Array]] = {
    "sum": lambda: rows().sum(axis=1),
    "regression": regression,
    "product": lambda: square() @ square(),
    "deviations": lambda: (rows() - rows().mean(axis=0)).std(axis=0),
    "part of a product": part_of_product,
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_bytes_are_predicted_and_no_more_than_those_of_dask(name: str) -> None:
    case = Case(name, lambda persist, plan: [EXPRESSIONS[name]()])
    stock, values = measure_stock(case, WAYS[OPTIMISED], 4)
    cell = measure(case, OPTIMISED, 4, stock, values)
    assert cell.same
    assert is_near(cell.received, cell.predicted)
    assert cell.received <= stock + SMALL
    assert cell.placed == 1 or not cell.received


def delayed_blocks(x: da.Array) -> da.Array:
    """A delayed function of each block of rows."""
    function = dask.delayed(np.negative)
    return da.block(
        [
            [da.from_delayed(function(block), (250, 500), x.dtype) for block in row]
            for row in x.to_delayed()
        ]
    )


#: Of blocks of 1 MB in memory, of which only edges are sent.
IN_MEMORY: dict[str, Callable[[da.Array], da.Array]] = {
    "gradient": lambda x: da.gradient(x, axis=0),
    "differences": lambda x: da.diff(x, axis=0),
    "rolled": lambda x: da.roll(x, 3, axis=0) + x,
    # masks that the plan places, and blocks that keep their keys
    "lower triangle": da.tril,
    # blocks between those of the data
    "inserted": lambda x: da.insert(x, [3, 500], 7.0, axis=0) * 2,
    # the bytes of steps are unknown
    "running sums": lambda x: (
        da.cumsum(x, axis=0) + da.random.default_rng(1).random(x.shape, chunks=x.chunks)
    ),
    "delayed": lambda x: delayed_blocks(x) - x,
}


@pytest.mark.parametrize("name", IN_MEMORY)
def test_blocks_of_persisted_data_are_made_where_this_is(name: str) -> None:
    with dask.config.set({"distributed.scheduler.work-stealing": False}), cluster(4) as client:
        dasktile.enable(client)
        data = da.random.default_rng(0).random((2000, 2000), chunks=(250, 500)).persist()
        wait(data)
        [array] = dask.optimize(IN_MEMORY[name](data))
        dasktile.metrics(client, reset=True)
        wait(dasktile.optimize(array).persist())
        counts = dasktile.metrics(client)
    assert counts.placed >= 0.6 * counts.tasks or not counts.bytes_received
    assert counts.bytes_received < 2 * SMALL


def test_blocks_of_the_same_two_pieces_of_data_are_made_on_one_worker() -> None:
    """One of the pieces is sent, once for both blocks; tasks that flip it run where they do."""
    with dask.config.set({"distributed.scheduler.work-stealing": False}), cluster(4) as client:
        dasktile.enable(client)
        data = da.random.default_rng(0).random((2000, 2000), chunks=(250, 500)).persist()
        wait(data)
        [array] = dask.optimize(data[::-1] + data)
        told = dasktile.explain(array)
        dasktile.metrics(client, reset=True)
        wait(dasktile.optimize(array).persist())
        counts = dasktile.metrics(client)
    assert counts.bytes_received == told.bytes_predicted
    assert counts.bytes_received <= data.nbytes // 2
    assert counts.placed == counts.tasks > 0.9 * len(array.dask)


def test_known_bytes_are_predicted_beside_data_whose_bytes_are_unknown() -> None:
    with dask.config.set({"distributed.scheduler.work-stealing": False}), cluster(4) as client:
        dasktile.enable(client)
        data, drawn = (
            da.random.default_rng(seed).random((1000, 1000), chunks=chunks)
            for seed, chunks in ((0, (200, 250)), (1, (500, 200)))
        )
        data = data.persist()
        wait(data)
        [array] = dask.optimize(data * drawn.T.rechunk(data.chunks) + drawn.rechunk(data.chunks))
        told = dasktile.explain(array)
        dasktile.metrics(client, reset=True)
        wait(dasktile.optimize(array).persist())
        counts = dasktile.metrics(client)
    assert is_near(counts.bytes_received, told.bytes_predicted)
    assert told.bytes_predicted > SMALL


def test_blocks_that_run_elsewhere_than_their_array_are_predicted() -> None:
    """Several results of one array, whose blocks keep their keys or have new ones."""
    rows = da.random.default_rng(1).random((400, 400), chunks=(50, 100))
    half = rows[:200] + rows[200:]
    square = rows + rows.T
    for arrays in (
        [half, half * 2 + half[:, ::-1], half.T @ half],
        [square, square - square[:, ::-1], square + square[::-1]],
    ):
        with dask.config.set({"distributed.scheduler.work-stealing": False}), cluster(4) as client:
            dasktile.enable(client)
            before = dask.optimize(*arrays)
            told = dasktile.explain(*before)
            dasktile.metrics(client, reset=True)
            wait(dask.persist(*dasktile.optimize(*before)))
            counts = dasktile.metrics(client)
        assert counts.placed == counts.tasks
        assert is_near(counts.bytes_received, told.bytes_predicted)
        assert told.bytes_predicted > SMALL
