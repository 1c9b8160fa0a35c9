"""Arrays whose chunk sizes were computed after their layer was made."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile.capture.base import GraphView
from dasktile.capture.highlevel import capture
from dasktile.capture.measured import measured_arrays

NUMBERS = np.random.default_rng(0).random((400, 6))
#: Rewrites wherever other tiles move fewer bytes.
EAGER = {
    "dasktile.cost.task-bytes": 1,
    "dasktile.tiling.min-tile": 1,
    "dasktile.workers": 4,
    "dasktile.raise-errors": True,
}


def masked(chunks=(50, 3)):
    """Rows at a mask, and the same with NumPy."""
    array = da.from_array(NUMBERS, chunks=chunks)
    rows = array[da.from_array(NUMBERS[:, 0], chunks=chunks[0]) > 0.3]
    return rows.compute_chunk_sizes(), NUMBERS[NUMBERS[:, 0] > 0.3]


def frame():
    """A dataframe's values, and the same with NumPy."""
    pandas = pytest.importorskip("pandas")
    dataframe = pytest.importorskip("dask.dataframe")
    table = pandas.DataFrame(NUMBERS)
    return dataframe.from_pandas(table, npartitions=5).to_dask_array(lengths=True), NUMBERS


def measured(*arrays):
    """What is found out of the graph of some arrays."""
    graph = dask.highlevelgraph.HighLevelGraph.merge(*(each.dask for each in arrays))
    return measured_arrays(GraphView(graph))


@pytest.mark.parametrize("make", [masked, frame])
def test_the_chunks_of_its_readers_are_those_of_the_array(make):
    array, _ = make()
    found = measured(array + 1)
    assert found == {} if make is masked else found[array.name].chunks == array.chunks
    program = capture([array + 1]).program
    assert {node.name: node.chunks for node in program.nodes}[array.name] == array.chunks


@pytest.mark.parametrize("make", [masked, frame])
def test_a_transpose_and_the_array_itself(make):
    array, _ = make()
    nodes = {node.name: node for node in capture([array.T]).program.nodes}
    assert nodes[array.name].chunks == array.chunks
    assert nodes[array.name].shape == array.shape


@pytest.mark.parametrize("make", [masked, frame])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x - x.mean(axis=0)).T @ (x - x.mean(axis=0)),
        lambda x: (x - x.mean(axis=0)) / x.std(axis=0),
        lambda x: (x * 2).T.rechunk((2, -1)).sum(axis=1),
        lambda x: x[:, :1] * x[:, 1:2].T + x.sum(),
        lambda x: x[::-1] + x,
    ],
)
def test_values(make, function):
    array, numbers = make()
    with dask.config.set(EAGER):
        result = dasktile.optimize(function(array))
    np.testing.assert_allclose(result.compute(scheduler="sync"), function_of(function, numbers))


def function_of(function, numbers):
    """The result with NumPy, of which arrays have no method rechunk."""
    return function(da.from_array(numbers, chunks=-1)).compute(scheduler="sync")


def test_a_rewrite_above_the_array():
    array, numbers = masked((400, 6))
    many, _ = masked((20, 6))
    with dask.config.set(EAGER):
        for rows in (array, many):
            product = rows @ rows.T
            result = dasktile.optimize(product)
            np.testing.assert_allclose(result.compute(scheduler="sync"), numbers @ numbers.T)
        nodes = dasktile.explain(many @ many.T).nodes
        tiles = {node.op: node.chunks_after for node in nodes}
    # the rows are read as they are
    assert tiles["getitem"] == many.chunks


def test_readers_that_disagree():
    array = frame()[0]
    one, two = array + 1, array * 2
    array._chunks = ((81, 79, 80, 80, 80), (6,))
    assert array.name in measured(one, two)
    assert measured(one, two, array + 3) == {}


def test_a_block_that_may_be_broadcast():
    pandas = pytest.importorskip("pandas")
    dataframe = pytest.importorskip("dask.dataframe")
    table = dataframe.from_pandas(pandas.DataFrame(NUMBERS), npartitions=1)
    array = table.to_dask_array(lengths=True)
    other = da.ones((400, 6), chunks=(400, 6))
    assert measured(array + other) == {}
    assert measured(array + 1)[array.name].chunks == ((400,), (6,))


def test_readers_with_chunks_of_their_own():
    array = frame()[0]
    assert measured(array.sum(axis=0), array[::2], array.rechunk(100)) == {}
    assert measured(array.map_blocks(lambda block: block[:1], chunks=((1,) * 5, (6,)))) == {}


def test_the_run_is_predicted():
    array, _ = frame()
    with dask.config.set(EAGER):
        explanation = dasktile.explain((array - array.mean(axis=0)).T @ array)
    assert "not predicted" not in str(explanation)
