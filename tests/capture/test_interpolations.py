"""xarray's interpolation gives the values of Dask, also where elements are missing."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest

import dasktile
from tests.agreement import EAGER

xr = pytest.importorskip("xarray")
pytest.importorskip("scipy")


@pytest.mark.parametrize(
    "method, moves", [("linear", True), ("nearest", True), ("slinear", True), ("zero", True),
                      ("krogh", True), ("cubic", False), ("quadratic", False)]
)  # fmt: skip
def test_missing_elements(method: str, moves: bool) -> None:
    values = np.random.default_rng(0).random((20, 8, 9))
    values[3, 2, 1] = np.nan
    x = xr.DataArray(
        da.from_array(values, chunks=(5, 8, 4)),
        dims=("t", "y", "x"),
        coords={"y": np.arange(8.0)},
    )
    result = x.interp(y=[0.5, 3], method=method)
    with dask.config.set(EAGER):
        planned = dasktile.optimize(result)
    assert (planned.chunks != result.chunks) == moves
    np.testing.assert_allclose(planned.compute(), result.compute(), rtol=1e-12)


@pytest.mark.parametrize("method", ["linear", "cubic"])
def test_several_axes(method: str) -> None:
    values = np.random.default_rng(0).random((12, 8, 9))
    x = xr.DataArray(
        da.from_array(values, chunks=(2, 8, 9)),
        dims=("t", "y", "x"),
        coords={"y": np.arange(8.0), "x": np.arange(9.0)},
    )
    result = x.interp(y=[0.5, 3], x=[1.5], method=method)
    with dask.config.set(EAGER):
        planned = dasktile.optimize(result)
    assert (planned.chunks == result.chunks) == (method == "cubic")
    np.testing.assert_allclose(planned.compute(), result.compute(), rtol=1e-12)
