"""``x[index] = value``: values in any tiles, and what is recognised."""

from __future__ import annotations

import random
from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import dasktile
from dasktile.capture.highlevel import capture
from dasktile.ir import Kind, Node
from tests.agreement import in_random_tiles, same
from tests.support import plan_for_workers, random_cuts
from tests.traffic import traffic

X = np.arange(12 * 10.0).reshape(12, 10)
CHUNKS = ((5, 4, 3), (2, 6, 2))


def _assigned(array: Any, index: Any, value: Any) -> Any:
    array = array.copy()
    array[index] = value
    return array


def _node(array: da.Array) -> Node:
    captured = capture([array])
    assert captured.errors == ()
    return captured.program.nodes[-1]


@pytest.mark.parametrize(
    "index",
    [
        slice(2, 5),
        slice(None, None, 3),
        slice(10, 2, -2),
        (slice(1, 11, 2), slice(3, 9)),
        3,
        (-1, slice(2, None)),
        (slice(None), [1, 7, 3]),
        ([0, 11], slice(1, None, 4)),
        np.arange(12) % 5 == 0,
        (slice(None), np.arange(10) > 6),
        Ellipsis,
    ],
    ids=str,
)
@pytest.mark.parametrize("value", [7, -0.5, np.nan])
def test_a_value_is_assigned_in_any_tiles(index: Any, value: Any) -> None:
    lazy = _assigned(da.from_array(X, chunks=CHUNKS), index, value)
    node = _node(lazy)
    assert (node.kind, node.op) == (Kind.MAP, "setitem")
    same(lazy, _assigned(X, index, value))


@pytest.mark.parametrize(
    "make",
    [
        # each element has a value of its own
        lambda x: _assigned(x, slice(2, 5), np.arange(10.0)),
        lambda x: _assigned(x, slice(2, 5), da.arange(10, chunks=4)),
        # results are masked
        lambda x: _assigned(x, slice(2, 5), np.ma.masked),
    ],
)
def test_other_assignments_are_unchanged(make: Any) -> None:
    assert _node(make(da.from_array(X, chunks=CHUNKS))).kind is Kind.OPAQUE


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), dtype=st.sampled_from(["f8", "i2", "?"]))
def test_random_indices(seed: int, dtype: str) -> None:
    rng = random.Random(seed)
    shape = tuple(rng.randint(1, 9) for _ in range(rng.randint(1, 3)))
    values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    index: list[Any] = [
        slice(rng.randint(-9, 9), rng.choice([None, rng.randint(-9, 9)]), rng.choice([1, 2, 3, -1]))
        for _ in shape
    ]
    axis = rng.randrange(len(shape))
    if rng.random() < 0.5:
        index[axis] = [rng.randrange(shape[axis]) for _ in range(rng.randint(1, 4))]
    elif rng.random() < 0.3:
        index[axis] = rng.randrange(shape[axis])
    chunks = tuple(random_cuts(size, rng) for size in shape)
    try:
        lazy = _assigned(da.from_array(values, chunks=chunks), tuple(index), 1)
    except IndexError:
        reject()  # Dask cannot
    # Dask's values: they differ from NumPy's for slices that begin before the array and run back
    expected = lazy.compute(scheduler="sync")
    (result,) = in_random_tiles([lazy], seed)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


def test_arrays_behind_an_assignment_are_tiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transform reads whole columns, and so do the assignment and the source."""
    plan_for_workers(monkeypatch)
    x = da.ones((800, 800), chunks=(200, 200))
    x = da.sin(x * da.arange(800, chunks=200))
    lazy = da.fft.fft(_assigned(x, slice(20, 500, 3), 1.0).rechunk((-1, 200)), axis=0)
    planned, explained = dasktile.optimize(lazy), dasktile.explain(lazy)
    received, lost = traffic([planned], 4)
    assert lost == []
    assert sum(received.values()) <= 100_000
    assert explained.bytes_predicted == pytest.approx(sum(received.values()), abs=20_000)
    assert explained.run_tasks_after <= explained.run_tasks_before
