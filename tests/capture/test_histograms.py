"""``da.histogram2d`` and ``da.histogramdd``: values in any tiles, and what is recognised."""

from __future__ import annotations

import random
from collections.abc import Callable
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

RNG = np.random.default_rng(0)
X, Y, Z = RNG.random(50) * 10, RNG.random(50), RNG.integers(0, 5, 50)
X[3] = np.nan
CHUNKS = ((7, 20, 1, 22),)
LIMITS = ((0, 8), (0, 1))


def _array(values: Any) -> da.Array:
    return da.from_array(values, chunks=CHUNKS)


def _columns() -> da.Array:
    return da.from_array(np.stack([X, Y], axis=1), chunks=((9, 1, 40), 2))


def _node(array: da.Array, op: str = "histogramdd") -> Node:
    captured = capture([array])
    assert captured.errors == ()
    *_, node = (node for node in captured.program.nodes if node.op == op)
    return node


@pytest.mark.parametrize(
    "make",
    [
        lambda m, x, y, z: m.histogram2d(x, y, bins=[np.linspace(0, 8, 5), [0, 0.2, 1]])[0],
        lambda m, x, y, z: m.histogram2d(x, y, bins=4, range=LIMITS)[0],
        lambda m, x, y, z: m.histogram2d(x, y, bins=(4, 3), range=LIMITS, density=True)[0],
        lambda m, x, y, z: m.histogramdd((x, y, z), (4, 3, 2), range=(*LIMITS, (0, 4)))[0],
        lambda m, x, y, z: m.histogramdd((x, y), (4, 3), range=LIMITS, weights=z)[0],
        lambda m, x, y, z: m.histogramdd((x, y), (4, 3), range=LIMITS, weights=y)[0],
        lambda m, x, y, z: m.histogramdd((x,), (4,), range=LIMITS[:1])[0],
    ],
)
def test_histograms_of_several_arrays(make: Callable[..., Any]) -> None:
    lazy = make(da, _array(X), _array(Y), _array(Z))
    assert _node(lazy).kind is Kind.FOLD
    # dask takes the dtype of the weights
    same(lazy, make(np, X, Y, Z).astype(lazy.dtype))


def test_the_columns_of_one_array() -> None:
    lazy, _ = da.histogramdd(_columns(), bins=(4, 3), range=LIMITS)
    assert _node(lazy).kind is Kind.FOLD
    same(lazy, np.histogramdd(np.stack([X, Y], axis=1), bins=(4, 3), range=LIMITS)[0])


def test_columns_with_weights_are_unchanged() -> None:
    weights = _columns()[:, 1]
    lazy, _ = da.histogramdd(_columns(), bins=(4, 3), range=LIMITS, weights=weights)
    assert _node(lazy, "sum").kind is Kind.OPAQUE
    same(lazy, lazy.compute(scheduler="sync"))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30), st.booleans())
def test_random_blocks(seed: int, weighted: bool) -> None:
    rng = random.Random(seed)
    chunks = (random_cuts(50, rng),)
    x, y, z = (da.from_array(values, chunks=chunks) for values in (X, Y, Z))
    options = {"weights": z} if weighted else {}
    lazy, _ = da.histogramdd((x, y), bins=(4, 3), range=LIMITS, **options)
    [actual] = in_random_tiles([lazy], seed)
    np.testing.assert_array_equal(actual, lazy.compute(scheduler="sync"))


def test_merged_axes_are_cut_at_the_boundaries_of_their_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan_for_workers(monkeypatch)
    field = da.random.default_rng(0).random((1460, 90, 180), chunks=(100, 45, 90))
    edges = np.linspace(0, 1, 20)
    explanation = dasktile.explain(da.histogram2d(field.ravel(), 1 - field.ravel(), [edges] * 2)[0])
    # the partial results of three workers, whatever the rows of 16,200 elements that each has
    assert explanation.bytes_after == 3 * 19 * 19 * 8
    assert explanation.bytes_predicted <= explanation.bytes_before
