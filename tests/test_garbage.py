"""What planning leaves behind."""

from __future__ import annotations

import gc

import dask.array as da

import dasktile


def test_planning_leaves_hardly_any_garbage() -> None:
    x = da.ones((4000, 400), chunks=(500, 100))
    y = x.T @ (x - x.mean(axis=0))
    dasktile.optimize(y, workers=4)
    gc.collect()
    gc.disable()
    try:
        z = dasktile.optimize(y + 1, workers=4)
        # of thousands of objects
        assert gc.collect() < 50
    finally:
        gc.enable()
    assert z.shape == y.shape
