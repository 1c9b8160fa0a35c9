"""Tiles that mesh axes cut in another order than that of the mesh lie where the plan says."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile import api
from dasktile.cluster.target import Machine
from tests.traffic import traffic


@pytest.mark.parametrize("workers", [4, 6, 8, 12])
@pytest.mark.parametrize("offset", [0, 1])
def test_moved_bytes_are_those_predicted(
    monkeypatch: pytest.MonkeyPatch, workers: int, offset: int
) -> None:
    order = tuple(map(str, range(workers)))
    machine = Machine(workers, order=order, who_has=lambda blocks: {})
    monkeypatch.setattr(api, "machine", lambda *_: machine)
    rng = np.random.default_rng(0)
    one, other = rng.random((2, 960, 960))
    a, b = da.from_array(one, chunks=120), da.from_array(other, chunks=120)
    product = a @ b + offset if offset else a @ b
    plan, planned = dasktile.explain(product), dasktile.optimize(product)
    moved, homeless = traffic([planned], workers)
    np.testing.assert_allclose(planned.compute(scheduler="sync"), one @ other + offset)
    assert not homeless
    assert plan.grids == f"any grid of {workers} workers"
    assert sum(moved.values()) == plan.bytes_after
