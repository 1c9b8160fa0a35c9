"""``da.gradient``: values in any tiles, and which coordinates are supported."""

from __future__ import annotations

import random
from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dasktile
from dasktile.capture.highlevel import capture
from dasktile.ir import Kind, Node
from tests.agreement import in_random_tiles, same
from tests.support import plan_for_workers, random_cuts

STEPS = {
    "even": [2.0],
    "uneven": [1.0, 2.0, 4.0, 3.0],
    # as the lengths of months
    "mixed": [1.0, 1.0, 2.0, 3.0, 3.0, 3.0, 2.0],
}


def _coordinates(kind: str, size: int) -> Any:
    return np.cumsum(np.resize(STEPS[kind], size))


def _values(shape: tuple[int, ...], dtype: str = "f8") -> Any:
    values = np.random.default_rng(0).integers(-9, 9, shape).astype(dtype)
    values.ravel()[::17] = np.nan
    return values


def _node(array: da.Array) -> Node:
    captured = capture([array])
    assert captured.errors == ()
    return captured.program.nodes[-1]


@pytest.mark.parametrize("dtype", ["f8", "f4", "c16"])
@pytest.mark.parametrize("spacing", [None, 0.5, "even", "uneven"])
@pytest.mark.parametrize("edge_order", [1, 2])
def test_gradients_along_every_axis(edge_order: int, spacing: Any, dtype: str) -> None:
    values = _values((14, 13), dtype)
    array = da.from_array(values, chunks=((5, 4, 5), (3, 3, 3, 4)))
    for axis in (0, 1):
        options = () if spacing is None else (spacing,)
        if isinstance(spacing, str):
            options = (_coordinates(spacing, values.shape[axis]),)
        lazy = da.gradient(array, *options, axis=axis, edge_order=edge_order)
        node = _node(lazy)
        assert (node.op, node.kind, node.reason) == ("gradient", Kind.MAP, "")
        same(lazy, np.gradient(values, *options, axis=axis, edge_order=edge_order))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from([1, 2]), st.sampled_from(["uneven", "mixed"]))
def test_random_blocks(seed: int, edge_order: int, kind: str) -> None:
    rng = random.Random(seed)
    chunks = (tuple(rng.choices((3, 4, 7), k=rng.randint(1, 4))), random_cuts(6, rng))
    shape = (sum(chunks[0]), 6)
    array = da.from_array(_values(shape), chunks=chunks)
    coordinates = np.cumsum(rng.choices(STEPS[kind], k=shape[0]))
    lazy = da.gradient(array, coordinates, axis=0, edge_order=edge_order)
    expected = lazy.compute(scheduler="sync")
    [actual] = in_random_tiles([lazy], seed)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


def test_blocks_of_which_some_are_even_are_unchanged() -> None:
    array = da.from_array(_values((14, 6)), chunks=(7, 3))
    coordinates = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 19, 20])
    lazy = da.gradient(array, coordinates, axis=0)
    node = _node(lazy)
    assert node.kind is Kind.OPAQUE
    assert "evenly spaced in some blocks only" in node.reason
    same(lazy, lazy.compute(scheduler="sync"))


def test_equal_coordinates_are_unchanged() -> None:
    array = da.from_array(_values((14, 6)), chunks=(7, 3))
    coordinates = np.arange(14.0)
    coordinates[5] = 4
    assert _node(da.gradient(array, coordinates, axis=0)).kind is Kind.OPAQUE


def test_integers_and_half_precision() -> None:
    for dtype in ("i4", "f2", "?"):
        values = np.random.default_rng(0).integers(0, 5, (12, 9)).astype(dtype)
        array = da.from_array(values, chunks=(4, 3))
        lazy = da.gradient(array, axis=1)
        assert _node(lazy).kind is Kind.MAP
        same(lazy, lazy.compute(scheduler="sync"))


def test_only_the_edges_of_blocks_move(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch)
    field = da.random.default_rng(0).random((1460, 90, 180), chunks=(100, 45, 90))
    slope = sum(part**2 for part in da.gradient(field)).mean(axis=2)
    explanation = dasktile.explain(slope)
    # a plane along each of the two axes that are cut, from both sides; and partial sums
    halo = 2 * 1460 * (90 + 180) * 8
    assert explanation.bytes_after <= halo
    assert explanation.bytes_predicted <= explanation.bytes_before
