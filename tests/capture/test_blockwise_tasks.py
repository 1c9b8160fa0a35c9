"""Tasks of Blockwise layers that are written at once are those that Dask makes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import dask.array as da
import numpy as np
import pytest
from dask.blockwise import Blockwise

from dasktile._compat.dask import Task, TaskRef, blockwise_token
from dasktile.capture import blockwise_tasks as written
from dasktile.capture.references import tasks_of
from tests.expressions import grown, outputs
from tests.graphs_alike import difference

X = da.ones((6, 4), chunks=2)
ROW = da.ones((1, 4), chunks=2)


def layers_of(array: da.Array) -> list[Blockwise]:
    layers = array.__dask_graph__().layers.values()
    return [layer for layer in layers if type(layer) is Blockwise]


def last(array: da.Array) -> Blockwise:
    """The layer of an array."""
    layer = array.__dask_graph__().layers[array.name]
    assert type(layer) is Blockwise
    return layer


def fresh(layer: Blockwise) -> Blockwise:
    """The same layer without tasks."""
    pairs = [
        (name if symbols is None else layer.io_deps.get(name, name), symbols)
        for name, symbols in layer.indices
    ]
    counts = {name: count for name, count in layer.numblocks.items() if name not in layer.io_deps}
    return Blockwise(
        layer.output,
        layer.output_indices,
        layer.task,
        pairs,
        numblocks=counts,
        concatenate=layer.concatenate,
        new_axes=layer.new_axes,
        output_blocks=layer.output_blocks,
    )


@pytest.mark.parametrize("seed", range(20))
def test_tasks_of_random_expressions_are_those_of_dask(seed: int) -> None:
    for value in outputs(grown(random.Random(seed))):
        for layer in layers_of(value.lazy):
            expected = dict(fresh(layer).items())
            assert not difference(dict(tasks_of(fresh(layer))), expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: X + ROW,
        lambda: X.T * 2.0,
        lambda: da.blockwise(np.add, "ij", X, "ij", np.ones(()), None, dtype=float),
        lambda: X.map_blocks(np.clip, a_min=0, a_max=1),
        lambda: da.ones((5, 4, 1), chunks=(3, 2, 1)),
    ],
    ids=["broadcast", "transposed", "constant", "options", "shapes"],
)
def test_no_argument_is_substituted_where_single_blocks_are_read(make: Callable[[], Any]) -> None:
    layer = fresh(last(make()))
    expected = dict(fresh(layer).items())
    with mock.patch.object(Task, "substitute", side_effect=AssertionError):
        tasks = tasks_of(layer)
    assert not difference(dict(tasks), expected)
    # as with Dask's own tasks, they are made once
    assert all(layer[key] is task for key, task in tasks.items())


def test_an_argument_that_is_read_twice_is_the_same_block_for_both() -> None:
    own = fresh(last(X + ROW))
    first = TaskRef(blockwise_token(0))
    task = Task(own.task.key, np.add, first, first)
    layer = Blockwise("twice", own.output_indices, task, own.indices, numblocks=own.numblocks)
    expected = dict(fresh(layer).items())
    assert not difference(dict(tasks_of(layer)), expected)


def test_several_blocks_of_an_axis_are_read_as_dask_does() -> None:
    joined = da.blockwise(np.add, "i", X, "ij", X[:, 0], "i", concatenate=True, dtype=float)
    product = fresh(last(da.blockwise(np.dot, "ik", X, "ij", X.T, "jk", dtype=float)))
    for each in (fresh(last(joined)), product):
        assert not difference(dict(tasks_of(each)), dict(fresh(each).items()))


def test_dask_makes_all_tasks_where_its_own_differ() -> None:
    with mock.patch.object(written, "_is_known", return_value=False):
        layer = fresh(last(X + ROW))
        with mock.patch.object(written, "_written", side_effect=AssertionError):
            assert len(tasks_of(layer)) == 6
