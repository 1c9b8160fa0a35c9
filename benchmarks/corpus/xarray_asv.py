"""The benchmarks of xarray that use Dask, asv_bench/benchmarks, with more and larger blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from benchmarks.corpus.inputs import Source, random, scaled

Collections = list[Any]


def _grouped(size: float, source: Source) -> xr.Dataset:
    length = 400 * scaled(50, size)
    data = source("xarray_groups", (40, length), (20, 200))
    labels = np.repeat((1, 2), length // 2)
    return xr.Dataset(
        {"c": (("z", "x"), data)},
        coords={"a": ("x", labels), "b": ("x", np.arange(length) // 20)},
    )


def group_sum(size: float = 1, source: Source = random) -> Collections:
    """groupby.py, time_agg_small_num_groups: sums of two groups."""
    return [_grouped(size, source).groupby("a").sum()]


def group_mean_many(size: float = 1, source: Source = random) -> Collections:
    """groupby.py, time_agg_large_num_groups: means of many groups."""
    return [_grouped(size, source).groupby("b").mean()]


def group_difference(size: float = 1, source: Source = random) -> Collections:
    """groupby.py, time_binary_op_2d: differences from the means of groups."""
    groups = _grouped(size, source).groupby("a")
    return [groups - groups.mean()]


def _hourly(size: float, source: Source) -> xr.Dataset:
    hours = 50 * scaled(175, size)
    time = pd.date_range("2001-01-01", periods=hours, freq="h")
    data = source("xarray_hourly", (12, hours, 40), (4, 50, 40))
    return xr.Dataset({"b": (("z", "time", "x"), data)}, coords={"time": time})


def resample_quarters(size: float = 1, source: Source = random) -> Collections:
    """groupby.py, ResampleDask, time_agg_small_num_groups: sums of three months."""
    return [_hourly(size, source).resample(time="3ME").sum()]


def resample_days(size: float = 1, source: Source = random) -> Collections:
    """groupby.py, ResampleDask, time_agg_large_num_groups: means of two days."""
    return [_hourly(size, source).resample(time="48h").mean()]


def _rolled(size: float, source: Source) -> xr.Dataset:
    length = 100 * scaled(30, size)
    return xr.Dataset(
        {
            "var1": (("x", "y"), source("xarray_rolling_y", (length, 200), (100, 50))),
            "var2": (("x", "t"), source("xarray_rolling_t", (length, 400), (100, 50))),
        }
    )


def rolling_mean(size: float = 1, source: Source = random) -> Collections:
    """rolling.py, RollingDask, time_rolling: means of windows around each position."""
    with xr.set_options(use_bottleneck=False):
        return [_rolled(size, source).rolling(x=20, center=True).mean()]


def rolling_count(size: float = 1, source: Source = random) -> Collections:
    """rolling.py, RollingDask, time_rolling: counts in windows before each position."""
    with xr.set_options(use_bottleneck=False):
        return [_rolled(size, source).rolling(x=20).count()]


def rolling_reduce(size: float = 1, source: Source = random) -> Collections:
    """rolling.py, RollingDask, time_rolling_np: np.nansum of windows of 40 with at least 5."""
    return [_rolled(size, source).rolling(x=40, min_periods=5).reduce(np.nansum)]


def rolling_construct(size: float = 1, source: Source = random) -> Collections:
    """rolling.py, RollingDask, time_rolling_construct: sums of constructed windows."""
    windows = _rolled(size, source).rolling(x=20, center=True).construct("window_dim")
    return [windows.sum("window_dim")]


def rolling_2d(size: float = 1, source: Source = random) -> Collections:
    """rolling.py, peakmem_ndrolling_reduce: maxima of windows along two dimensions."""
    return [_rolled(size, source).var1.rolling(x=10, y=4).max()]


def _points(size: float, source: Source) -> xr.Dataset:
    times = 50 * scaled(10, size, least=8)
    data = source("xarray_interp", (1500, times), (1500, 50))
    return xr.Dataset({"var2": (("x", "t"), data)}, coords={"x": np.arange(1500.0)})


def interp_short(size: float = 1, source: Source = random) -> Collections:
    """interp.py, time_interpolation_numeric_1d: linearly at 100 positions."""
    return [_points(size, source).interp(x=np.linspace(450, 1050, 100))]


def interp_long(size: float = 1, source: Source = random) -> Collections:
    """interp.py, time_interpolation_numeric_1d: linearly at 500 positions."""
    return [_points(size, source).interp(x=np.linspace(450, 1050, 500))]


def polyval(size: float = 1, source: Source = random) -> Collections:
    """polyfit.py, PolyvalDask: a polynomial with 20 coefficients."""
    x = xr.DataArray(source("polyval", (10_000 * scaled(100, size, least=8),), (10_000,)), dims="x")
    coefficients = np.random.default_rng(0).random(20)
    return [xr.polyval(x, xr.DataArray(coefficients, coords={"degree": np.arange(20)}))]


def _temperature(size: float, source: Source) -> xr.Dataset:
    times = 100 * scaled(20, size)
    return xr.Dataset(
        {"temperature": (("time", "x", "y"), source("reindex", (times, 50, 50), (25, 50, 50)))},
        coords={"time": np.arange(times), "x": np.arange(50), "y": np.arange(50)},
    )


def reindex_coarse(size: float = 1, source: Source = random) -> Collections:
    """reindexing.py, ReindexDask, time_1d_coarse: every fifth time."""
    ds = _temperature(size, source)
    return [ds.reindex(time=np.arange(0, ds.sizes["time"], 5))]


def reindex_fine(size: float = 1, source: Source = random) -> Collections:
    """reindexing.py, ReindexDask, time_1d_fine_some_missing: half steps, some of them missing."""
    ds = _temperature(size, source)
    wanted = np.arange(0, ds.sizes["time"], 0.5)
    return [ds.reindex(time=wanted, method="nearest", tolerance=0.1)]


def reindex_plane(size: float = 1, source: Source = random) -> Collections:
    """reindexing.py, ReindexDask, time_2d_fine_all_found: half steps along two dimensions."""
    half = np.arange(0, 50, 0.5)
    return [_temperature(size, source).reindex(x=half, y=half, method="nearest")]


def unstack(size: float = 1, source: Source = random) -> Collections:
    """unstacking.py, UnstackingDask, time_unstack_fast: two dimensions of one, as it was."""
    rows = 10 * scaled(25, size)
    flat = source("unstack", (rows * 500,), (2500,))
    index = pd.MultiIndex.from_product([range(rows), range(500)], names=["a", "b"])
    coords = xr.Coordinates.from_pandas_multiindex(index, "flat_dim")
    return [xr.DataArray(flat, dims="flat_dim", coords=coords).unstack("flat_dim")]


def coarsen_padded(size: float = 1, source: Source = random) -> Collections:
    """coarsen.py: means of ten by ten elements, of a length that ten does not divide."""
    side = 200 * scaled(20, size, axes=2)
    data = xr.DataArray(source("coarsen", (side + 3, side + 7), (200, 200)), dims=("x", "y"))
    return [data.coarsen(x=10, y=10, boundary="pad").mean()]


def outer_indexes(size: float = 1, source: Source = random) -> Collections:
    """indexing.py, IndexingDask, time_indexing_outer: positions along two dimensions."""
    side = 100 * scaled(20, size, axes=2)
    data = xr.DataArray(source("outer_indexes", (side, side), (100, 100)), dims=("x", "y"))
    rng = np.random.default_rng(0)
    rows, columns = (rng.integers(0, side, size=count) for count in (500, 400))
    return [data.isel(x=rows, y=columns)]


def vectorized_indexes(size: float = 1, source: Source = random) -> Collections:
    """indexing.py, IndexingDask, time_indexing_vectorized: points of two dimensions."""
    side = 100 * scaled(20, size, axes=2)
    data = xr.DataArray(source("outer_indexes", (side, side), (100, 100)), dims=("x", "y"))
    rng = np.random.default_rng(0)
    x, y = (xr.DataArray(rng.integers(0, side, size=400), dims="a") for _ in range(2))
    return [data.isel(x=x, y=y)]


def interpolate_na(size: float = 1, source: Source = random) -> Collections:
    """dataarray_missing.py, time_interpolate_na: missing elements, linearly along time."""
    side = 25 * scaled(10, size, axes=2)
    data = xr.DataArray(
        source("interpolate_na", (365, side, side), (365, 25, 25)),
        dims=("time", "x", "y"),
        coords={"time": pd.date_range("2000-01-01", freq="D", periods=365)},
    )
    return [data.where(data > 0.1).interpolate_na(dim="time", method="linear", limit=3)]
