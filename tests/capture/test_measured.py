"""Arrays whose chunk sizes were computed after their layer was made."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest
from dask.graph_manipulation import clone

import dasktile
from dasktile.capture.base import GraphView
from dasktile.capture.highlevel import capture
from dasktile.capture.measured import measured_arrays

NUMBERS = np.random.default_rng(0).random((400, 6))
#: Rewrites wherever other tiles cost less: tasks have the usual costs.
ALWAYS = {"dasktile.tiling.min-tile": 1, "dasktile.workers": 4, "dasktile.raise-errors": True}


def masked(chunks=(50, 3)):
    """Rows at a mask, and the same with NumPy."""
    array = da.from_array(NUMBERS, chunks=chunks)
    rows = array[da.from_array(NUMBERS[:, 0], chunks=chunks[0]) > 0.3]
    return rows.compute_chunk_sizes(), NUMBERS[NUMBERS[:, 0] > 0.3]


def same(block):
    """A function of a user."""
    return block


def frame(blocks=5):
    """Values of unknown sizes that were computed, as those of a dataframe, and with NumPy."""
    array = da.from_array(NUMBERS, chunks=(400 // blocks, 6))
    values = array.map_blocks(same, chunks=((float("nan"),) * blocks, (6,)))
    return values.compute_chunk_sizes(), NUMBERS


def measured(*arrays):
    """What is found out of the graph of some arrays."""
    graph = dask.highlevelgraph.HighLevelGraph.merge(*(each.dask for each in arrays))
    return measured_arrays(GraphView(graph))


@pytest.mark.parametrize("make", [masked, frame])
def test_the_chunks_of_its_readers_are_those_of_the_array(make):
    array, _ = make()
    assert measured(array + 1)[array.name].chunks == array.chunks
    program = capture([array + 1]).program
    assert {node.name: node.chunks for node in program.nodes}[array.name] == array.chunks


@pytest.mark.parametrize("make", [masked, frame])
def test_a_transpose_and_the_array_itself(make):
    array, _ = make()
    nodes = {node.name: node for node in capture([array.T]).program.nodes}
    assert nodes[array.name].chunks == array.chunks
    assert nodes[array.name].shape == array.shape


FUNCTIONS = [
    lambda x: (x - x.mean(axis=0)).T @ (x - x.mean(axis=0)),
    lambda x: (x - x.mean(axis=0)) / x.std(axis=0),
    lambda x: (x * 2).T.rechunk((2, -1)).sum(axis=1),
    lambda x: x[:, :1] * x[:, 1:2].T + x.sum(),
    lambda x: x[::-1] + x,
]


@pytest.mark.parametrize("make", [lambda: masked((20, 3)), lambda: frame(100)])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_values(make, function):
    array, numbers = make()
    lazy = function(array)
    with dask.config.set(ALWAYS):
        result = dasktile.optimize(lazy)
    # arrays of NumPy have no method rechunk
    expected = function(da.from_array(numbers, chunks=-1))
    np.testing.assert_allclose(*dask.compute(result, expected, scheduler="sync"))


def test_arrays_above_are_tiled():
    array, _ = frame(100)
    for function in FUNCTIONS[:4]:
        lazy = function(array)
        with dask.config.set(ALWAYS):
            assert dasktile.optimize(lazy).name != lazy.name


def test_selected_blocks_are_read_where_they_are():
    array, _ = masked((20, 6))
    explanation = dasktile.explain(array.T @ array, workers=4)
    [selection] = (node for node in explanation.nodes if node.shape == array.shape)
    assert selection.chunks_before == array.chunks and len(set(array.chunks[0])) > 1
    # three blocks of the mask, where workers have other numbers of rows than of blocks
    assert selection.bytes_before <= 60


def test_a_step_before_is_known_too():
    rows, _ = masked()
    array = da.from_array(NUMBERS, chunks=(50, 3))
    scaled = array[da.from_array(NUMBERS[:, 0], chunks=50) > 0.3] * 2 - 1
    scaled.compute_chunk_sizes()
    found = measured(scaled.T)
    assert len(found) == 3 and all(info.chunks == rows.chunks for info in found.values())


def test_one_mask_after_another():
    numbers = np.linspace(-1, 2, 512).reshape(8, 8, 8)
    array, expected = da.from_array(numbers, chunks=4), numbers
    for axis in range(3):
        whole = (slice(None),) * axis
        mask = np.arange(8) % (axis + 2) > 0
        array, expected = array[(*whole, da.from_array(mask, chunks=4))], expected[(*whole, mask)]
    array.compute_chunk_sizes()
    for lazy, values in ((array, expected), (array + 1, expected + 1), (array.T, expected.T)):
        with dask.config.set(ALWAYS):
            result = dasktile.optimize(lazy)
        np.testing.assert_allclose(result.compute(scheduler="sync"), values)


def one_row_of_each(array, length):
    """The first row of each block of 50 rows."""
    first = np.arange(length) % 50 == 0
    return array[da.from_array(first, chunks=50)]


@pytest.mark.parametrize("way", ["declared", "selected", "computed"])
def test_rows_that_are_broadcast_in_their_block(way):
    numbers = np.random.default_rng(1).random((5000, 8))
    array = da.from_array(numbers, chunks=(50, 4 if way == "selected" else 8))
    blocks = array.numblocks[0]
    if way == "declared":
        chunks = ((float("nan"),) * blocks, (8,))
        rows = array.map_blocks(lambda block: block[:1], chunks=chunks)
        less = da.map_blocks(np.subtract, array, rows)
    elif way == "selected":
        less = da.map_blocks(np.subtract, array, one_row_of_each(array, 5000))
    else:
        some = array[da.from_array(numbers[:, 0] > 0.3, chunks=50)]
        less = (some - one_row_of_each(array, 5000)).compute_chunk_sizes()
    lazy = less.T @ less
    with dask.config.set(ALWAYS):
        result = dasktile.optimize(lazy)
    np.testing.assert_allclose(*dask.compute(result, lazy, scheduler="sync"))


def test_a_transpose_of_blocks_alone():
    array = frame()[0]
    turned = array.map_blocks(np.transpose, chunks=((6,) * 5, (80,)))
    assert measured(turned + 1) == {}


def test_a_dataframe():
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow", exc_type=ImportError)
    dataframe = pytest.importorskip("dask.dataframe")
    table = dataframe.from_pandas(pandas.DataFrame(NUMBERS), npartitions=5)
    array = table.to_dask_array(lengths=True)
    assert measured(array - 1)[array.name].chunks == ((80,) * 5, (6,))
    lazy = (array - array.mean(axis=0)).T @ array
    with dask.config.set(ALWAYS):
        result = dasktile.optimize(lazy)
    np.testing.assert_allclose(*dask.compute(result, lazy, scheduler="sync"))


def test_readers_that_disagree():
    array = frame()[0]
    one, two = array + 1, array * 2
    array._chunks = ((81, 79, 80, 80, 80), (6,))
    assert array.name in measured(one, two)
    assert measured(one, two, array + 3) == {}


def test_a_product_of_unknown_chunks_has_that_reason():
    array = da.from_array(NUMBERS, chunks=(50, 6))
    rows = array[array[:, 0] > 0.5]
    product, *_ = (
        node for node in dasktile.explain(rows.T @ rows + 1).nodes if node.op == "matmul"
    )
    assert product.reason == "reads an array of unknown chunk sizes"


def test_annotations_that_are_missing():
    numbers = da.from_array(np.arange(700) % 9, chunks=10)
    counts = clone(da.bincount(numbers, minlength=9))
    with dask.config.set(ALWAYS):
        explanation = dasktile.explain(counts + 1)
        result = dasktile.optimize(counts + 1)
    assert explanation.nodes
    np.testing.assert_array_equal(result.compute(scheduler="sync")[:7], [79] * 7)


def test_a_block_that_may_be_broadcast():
    array, _ = frame(1)
    other = da.ones((400, 6), chunks=(400, 6))
    assert measured(array + other) == {}
    assert measured(array + 1)[array.name].chunks == ((400,), (6,))


def test_readers_with_chunks_of_their_own():
    array = frame()[0]
    assert measured(array.sum(axis=0), array[::2], array.rechunk(100)) == {}
    assert measured(array.map_blocks(lambda block: block[:1], chunks=((1,) * 5, (6,)))) == {}


def test_the_run_is_predicted():
    array, _ = frame()
    with dask.config.set(ALWAYS):
        explanation = dasktile.explain((array - array.mean(axis=0)).T @ array)
    assert "not predicted" not in str(explanation)
