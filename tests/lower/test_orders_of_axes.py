"""Tiles that mesh axes cut in another order than that of the mesh lie where the plan says."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest

import dasktile
from tests.support import plan_for_workers
from tests.traffic import traffic


@pytest.mark.parametrize("workers", [4, 6, 8, 12])
@pytest.mark.parametrize("offset", [0, 1])
def test_moved_bytes_are_those_predicted(
    monkeypatch: pytest.MonkeyPatch, workers: int, offset: int
) -> None:
    plan_for_workers(monkeypatch, workers)
    rng = np.random.default_rng(0)
    one, other = rng.random((2, 960, 960))
    a, b = da.from_array(one, chunks=120), da.from_array(other, chunks=120)
    product = a @ b + offset if offset else a @ b
    plan, planned = dasktile.explain(product), dasktile.optimize(product)
    moved, homeless = traffic([planned], workers)
    np.testing.assert_allclose(planned.compute(scheduler="sync"), one @ other + offset)
    assert not homeless
    assert plan.grids == f"any grid of {workers} workers"
    assert sum(moved.values()) == plan.bytes_after == plan.received_after


@pytest.mark.parametrize("workers", [6, 8])
def test_received_bytes_of_bundles_are_those_simulated(
    monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    plan_for_workers(monkeypatch, workers)
    rng = da.random.default_rng(0)
    product = rng.random((600, 800), chunks=100) @ rng.random((800, 600), chunks=100)
    for array in (product, product + 1):
        moved, _ = traffic([dasktile.optimize(array)], workers)
        assert dasktile.explain(array).received_after == pytest.approx(
            sum(moved.values()), rel=1e-3
        )
