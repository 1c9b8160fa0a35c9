"""xarray's forward and backward fill."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile.capture.highlevel import capture
from dasktile.ir import Kind
from tests.agreement import in_random_tiles
from tests.support import plan_for_workers
from tests.traffic import traffic

xr = pytest.importorskip("xarray")
fills = pytest.importorskip("xarray.compat.dask_array_ops")
duck_array_ops = pytest.importorskip("xarray.core.duck_array_ops")


def _push(array: Any, n: int | None = None, axis: int = -1) -> Any:
    """What bottleneck does, which need not be installed."""
    moved = np.moveaxis(np.array(array), axis, 0)
    for before, row in zip(moved[:-1], moved[1:], strict=True):
        np.copyto(row, before, where=np.isnan(row))
    return np.moveaxis(moved, 0, axis)


@pytest.fixture(autouse=True)
def _without_bottleneck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duck_array_ops, "_push", _push)


def _data(dtype: str = "f8") -> da.Array:
    rng = np.random.default_rng(0)
    values = rng.random((40, 6)).astype(dtype)
    values[rng.random(values.shape) < 0.6] = np.nan
    # a whole block is missing, and what comes first
    values[:3], values[10:17, 2:] = np.nan, np.nan
    return da.from_array(values, chunks=(7, 4))


@pytest.mark.parametrize("method", ["ffill", "bfill"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_fills_have_the_same_values_in_any_tiles(method: str, dtype: str) -> None:
    array = xr.DataArray(_data(dtype), dims=("time", "x"))
    result = getattr(array, method)("time").data
    captured = capture([result])
    assert captured.errors == ()
    [node] = [node for node in captured.program.nodes if node.kind is Kind.SCAN]
    assert node.op == "fill"
    assert all(node.kind is not Kind.OPAQUE or node.resident for node in captured.program.nodes)
    expected = result.compute(scheduler="sync")
    for seed in range(6):
        [actual] = in_random_tiles([result], seed)
        np.testing.assert_array_equal(actual, expected)
        assert actual.dtype == expected.dtype


@pytest.mark.parametrize("limit", [2, 9])
def test_fills_with_a_limit(limit: int) -> None:
    array = xr.DataArray(_data(), dims=("time", "x"))
    result = fills.push(array.data, limit, 0)
    expected = result.compute(scheduler="sync")
    for seed in range(4):
        [actual] = in_random_tiles([result], seed)
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("workers", [4, 6])
def test_carries_are_predicted(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    plan_for_workers(monkeypatch, workers)
    values = da.random.default_rng(0).random((240, 3000), chunks=(5, 3000))
    array = xr.DataArray(da.where(values < 0.5, np.nan, values), dims=("time", "x"))
    filled = array.ffill("time").data
    plan, planned = dasktile.explain(filled), dasktile.optimize(filled)
    moved, lost = traffic([planned], workers)
    assert not lost
    assert plan.bytes_after == pytest.approx(sum(moved.values()), rel=0.05, abs=2**13)
