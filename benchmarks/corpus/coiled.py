"""The array workloads of github.com/coiled/benchmarks, with smaller blocks.

Blocks are as many as published where that is below about 1000.
"""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import xarray as xr

from benchmarks.corpus.inputs import Source, keeps_chunks, random, scaled

Collections = list[Any]

#: Days of a window of the climatologies; 61 as published.
_WINDOW = 15


def _dates(count: int, frequency: str, start: str = "2001-01-01") -> pd.DatetimeIndex:
    return pd.date_range(start, periods=count, freq=frequency)


# tests/benchmarks/test_array.py -----------------------------------------------------


def basic_sum_thin(size: float = 1, source: Source = random) -> Collections:
    """test_array.py::test_basic_sum, slow and thin: zeros, copied, summed over 1-column chunks."""
    columns = scaled(1000, size, least=8)
    data = source("basic_sum", (20_000, columns), (20_000, 1), law="zeros")
    return [data.map_blocks(_copied).sum(axis=1)]


def basic_sum_fast(size: float = 1, source: Source = random) -> Collections:
    """test_array.py::test_basic_sum, fast and thin: zeros, summed over 1-column chunks."""
    columns = scaled(1000, size, least=8)
    return [source("basic_sum", (20_000, columns), (20_000, 1), law="zeros").sum(axis=1)]


def basic_sum_square(size: float = 1, source: Source = random) -> Collections:
    """test_array.py::test_basic_sum, slow and square: zeros, copied, summed over the rows."""
    blocks = scaled(28, size, axes=2)
    data = source("basic_sum", (140 * blocks, 140 * blocks), (140, 140), law="zeros")
    return [data.map_blocks(_copied).sum(axis=1)]


def _copied(block: np.ndarray) -> np.ndarray:
    return block.copy()


def vorticity(size: float = 1, source: Source = random) -> Collections:
    """test_array.py::test_vorticity: padded by one element, merged again, weighted (#6571)."""
    side, maps = 200, scaled(175, size)
    u, v = (source(f"vorticity_{name}", (side, side, maps), (side, side, 1)) for name in "uv")
    dx, dy = (source(f"vorticity_d{name}", (side + 1, side), (side + 1, side)) for name in "xy")

    def padded(array: da.Array) -> da.Array:
        longer = da.pad(array, [(0, 1), (0, 0), (0, 0)], mode="wrap")
        return longer.rechunk((side + 1, *longer.chunks[1:]))

    return [dx[..., None] * padded(u) - dy[..., None] * padded(v)]


def double_diff(size: float = 1, source: Source = random) -> Collections:
    """test_array.py::test_double_diff: two arrays, shifted against each other (#6597)."""
    blocks = scaled(11, size, axes=2)
    a, b = (source(f"diff_{name}", (200 * blocks, 200 * blocks), (200, 200)) for name in "ab")
    return [a[1:, 1:] - b[:-1, :-1]]


def dot_product(size: float = 1, source: Source = random) -> Collections:
    """test_array.py::test_dot_product: the sum of a matrix times its transpose."""
    blocks = scaled(9, size, axes=3)
    a = source("dot_product", (300 * blocks, 300 * blocks), (300, 300))
    return [(a @ a.T).sum()]


def map_overlap_sample(size: float = 1, source: Source = random) -> Collections:
    """test_array.py::test_map_overlap_sample: a few pixels of an image of small tiles."""
    blocks = scaled(60, size, axes=2, least=4)
    x = source("overlap_sample", (50 * blocks, 50 * blocks), (50, 50))
    y = x.map_overlap(_same, depth=1, boundary="none")
    middle = 25 * blocks
    return [y[middle : middle + 10, middle : middle + 10]]


def _same(block: np.ndarray) -> np.ndarray:
    return block


# tests/benchmarks/test_xarray.py ----------------------------------------------------


def _water_table(size: float, source: Source) -> xr.DataArray:
    """Three-hourly maps in chunks of 28 days, as of the National Water Model."""
    days, side = scaled(728, size, least=84), 12 * scaled(4, size, axes=2)
    data = source("water_table", (8 * days, side, side), (224, 12, 12), dtype="f4")
    return xr.DataArray(data, dims=("time", "y", "x"), coords={"time": _dates(8 * days, "3h")})


def groupby_month_cohorts(size: float = 1, source: Source = random) -> Collections:
    """test_xarray.py::test_xarray_groupby_reduction: monthly means by flox, with cohorts."""
    return [_water_table(size, source).groupby("time.month").mean(method="cohorts")]


def groupby_month_map_reduce(size: float = 1, source: Source = random) -> Collections:
    """test_xarray.py::test_xarray_groupby_reduction: monthly means by flox, with map-reduce."""
    return [_water_table(size, source).groupby("time.month").mean(method="map-reduce")]


def groupby_month_chunked(size: float = 1, source: Source = random) -> Collections:
    """test_xarray.py::test_xarray_groupby_reduction: chunks of months first, then cohorts."""
    table = _water_table(size, source).chunk(time=xr.groupers.TimeResampler("ME"))
    return [table.groupby("time.month").mean(method="cohorts")]


def quadratic_mean(size: float = 1, source: Source = random) -> Collections:
    """test_xarray.py::test_quadratic_mean: means of squares and of a product of two fields."""
    steps = 10 * scaled(150, size)
    u, v = (source(f"quadratic_{name}", (steps, 1, 60, 120), (10, 1, 60, 120)) for name in "uv")
    dims = ["time", "face", "j", "i"]
    ds = xr.Dataset({"anom_u": (dims, u), "anom_v": (dims, v)})
    quad = ds**2
    quad["uv"] = ds.anom_u * ds.anom_v
    return [quad.mean("time")]


def anom_mean(size: float = 1, source: Source = random) -> Collections:
    """test_xarray.py::test_anom_mean: mean anomaly, groups of 1-row chunks (distributed #2602)."""
    groups, per_group = scaled(8, size), scaled(50, size**0.5, least=4)
    data = source("anom_mean", (groups * per_group, 20_000), (1, 20_000))
    days = np.arange(groups * per_group) % groups
    array = xr.DataArray(data, dims=["time", "x"], coords={"day": ("time", days)})
    with xr.set_options(use_flox=False):
        grouped = array.groupby("day")
        return [(grouped - grouped.mean(dim="time")).mean(dim="time")]


def climatic_mean(size: float = 1, source: Source = random) -> Collections:
    """test_xarray.py::test_climatic_mean: means of groups of start dates (distributed #2602)."""
    members, dates = scaled(28, size**0.5), scaled(28, size**0.5, least=10)
    block = (1, 1, 12, 7, 9, 16)
    data = source("climatic_mean", (members, dates, *block[2:]), block)
    dims = ["ensemble", "init_date", "lat", "lead_time", "level", "lon"]
    array = xr.DataArray(data, dims=dims, coords={"init_date": np.arange(dates) % 10})
    with xr.set_options(use_flox=False):
        return [array.groupby("init_date").mean(dim="init_date")]


# tests/benchmarks/test_zarr.py ------------------------------------------------------


def _cube(size: float, source: Source) -> da.Array:
    """Integers from 0 to 255 in cubes."""
    side = 32 * scaled(7, size, axes=3)
    return source("cube", (side,) * 3, (32,) * 3, dtype="i8", law="bytes")


def filter_then_average(size: float = 1, source: Source = random) -> Collections:
    """test_zarr.py::test_filter_then_average: mean of the elements above a threshold."""
    cube = _cube(size, source)
    return [cube[cube > 100].mean()]


def access_slices(size: float = 1, source: Source = random) -> Collections:
    """test_zarr.py::test_access_slices: a corner of a cube, 700 of 2000 along every axis."""
    cube = _cube(size, source)
    part = slice(0, cube.shape[0] * 7 // 20)
    return [cube[part, part, part]]


def sum_residuals(size: float = 1, source: Source = random) -> Collections:
    """test_zarr.py::test_sum_residuals: reduce, map, and reduce again."""
    cube = _cube(size, source)
    return [(cube - cube.mean(axis=0)).sum()]


# tests/benchmarks/test_rechunk.py, tests/stability/test_array.py --------------------


def tiles_to_rows(size: float = 1, source: Source = random) -> Collections:
    """test_rechunk.py::test_tiles_to_rows: square tiles become columns, then a sum."""
    blocks = scaled(20, size, axes=2)
    a = source("tiles", (200 * blocks, 200 * blocks), (200, 200))
    return [a.rechunk((-1, max(1, 200 // blocks))).sum()]


def swap_axes(size: float = 1, source: Source = random) -> Collections:
    """test_rechunk.py::test_swap_axes_in_memory: columns become rows, then a sum."""
    blocks = scaled(36, size, axes=2)
    a = source("columns", (100 * blocks, 100 * blocks), (100 * blocks, 100))
    return [a.rechunk((100, -1)).sum()]


def adjacent_groups(size: float = 1, source: Source = random) -> Collections:
    """test_rechunk.py::test_adjacent_groups: neighbouring blocks are joined and cut again."""
    blocks = scaled(40, size)
    a = source("groups", (60 * blocks, 10, 1000), (60, 2, 500))
    return [a.rechunk((24, 5, 1000)).sum()]


def heal_oversplit(size: float = 1, source: Source = random) -> Collections:
    """test_rechunk.py::test_heal_oversplit: small chunks become large ones, not n to 1."""
    blocks = scaled(27, size, axes=2)
    a = source("oversplit", (150 * blocks, 150 * blocks), (150, 150))
    return [a.rechunk((580, 580)).sum()]


def ols(size: float = 1, source: Source = random) -> Collections:
    """stability/test_array.py::test_ols: least squares by normal equations, and predictions."""
    rows, features = 4000 * scaled(120, size), 60
    x = source("ols_x", (rows, features), (4000, features), law="normal")
    beta = source("ols_beta", (features,), (features,), law="normal")
    y = x @ beta + source("ols_noise", (rows,), (4000,), law="normal")
    return [x @ da.linalg.solve(x.T @ x, x.T @ y)]


# tests/geospatial/workloads ---------------------------------------------------------


def atmospheric_circulation(size: float = 1, source: Source = random) -> Collections:
    """geospatial/workloads/atmospheric_circulation.py: eddy fluxes of hourly chunks, by days."""
    days = scaled(4, size, least=1)
    shape = (24 * days, 8, 24, 48)
    dims = ("time", "level", "latitude", "longitude")
    ds = xr.Dataset(
        {name: (dims, source(f"circulation_{name}", shape, (1, *shape[1:]))) for name in "UVTW"},
        coords={"time": _dates(24 * days, "h")},
    )
    means = ds.mean("longitude")
    anomaly = ds - means
    anomaly["uv"] = anomaly.U * anomaly.V
    anomaly["vt"] = anomaly.V * anomaly["T"]
    anomaly["uw"] = anomaly.U * anomaly.W
    diagnostics = means.merge(anomaly[["uv", "vt", "uw"]].mean("longitude"))
    return [diagnostics.resample(time="D").mean()]


def _sea_surface(size: float, source: Source) -> xr.Dataset:
    """Six-hourly maps of two short years, in chunks of five days."""
    days, side = 5 * scaled(5, size**0.5), 4 * scaled(3, size**0.5, axes=2)
    data = source("sea_surface", (8 * days, side, 2 * side), (20, side, 2 * side), dtype="f4")
    steps = np.arange(8 * days)
    times = {"year": steps // (4 * days), "dayofyear": steps // 4 % days, "hour": steps % 4 * 6}
    return xr.Dataset(
        {"sst": (("time", "latitude", "longitude"), data)},
        coords={name: ("time", values) for name, values in times.items()},
    )


def _windowed(ds: xr.Dataset) -> xr.Dataset:
    """Weighted means over the years and over a window around every day of the year."""
    half = _WINDOW // 2
    # they fall off linearly from the middle of the window
    weights = 1 - np.abs(np.linspace(-1, 1, _WINDOW))
    rolling = ds.pad(dayofyear=half, mode="wrap").rolling(dayofyear=_WINDOW, center=True)
    weighted = rolling.construct("window").weighted(xr.DataArray(weights, dims=["window"]))
    mean: xr.Dataset = weighted.mean(dim=("window", "year"))
    return mean.isel(dayofyear=slice(half, -half))


def _unstacked(ds: xr.Dataset) -> xr.Dataset:
    return ds.set_index(time=["year", "dayofyear", "hour"]).unstack()


def _pancakes(ds: xr.Dataset) -> xr.Dataset:
    return ds.chunk(hour=1, dayofyear=1, latitude=-1, longitude=-1)


@keeps_chunks
def climatology_map_blocks(size: float = 1, source: Source = random) -> Collections:
    """geospatial/workloads/climatology.py::rechunk_map_blocks: pencils, a function, pancakes."""
    ds = _sea_surface(size, source)
    pencils = ds.chunk(time=-1, latitude=4, longitude=8)
    coords = {name: np.unique(ds[name]) for name in ("dayofyear", "hour")}
    first = pencils.isel(time=0).drop_vars(["year", "dayofyear", "hour"])
    template = first.expand_dims(coords).astype("f8")
    return [_pancakes(pencils.map_blocks(_climatology, template=template))]


def _climatology(ds: xr.Dataset) -> xr.Dataset:
    result = _windowed(_unstacked(ds)).astype("f8")
    return result.transpose("dayofyear", "hour", "latitude", "longitude")


@keeps_chunks
def climatology_highlevel(size: float = 1, source: Source = random) -> Collections:
    """geospatial/workloads/climatology.py::highlevel_api: years and hours unstacked, windows."""
    ds = _unstacked(_sea_surface(size, source))
    # days that a year lacks are those before
    return [_pancakes(_windowed(ds.fillna(ds.shift(dayofyear=1))))]


@keeps_chunks
def era5_rechunking(size: float = 1, source: Source = random) -> Collections:
    """geospatial/workloads/rechunking.py: hourly maps become time series."""
    count = scaled(480, size, least=8)
    data = source("era5", (count, 72, 144), (1, 72, 144), dtype="f4")
    field = xr.DataArray(data, dims=("time", "latitude", "longitude"))
    return [field.chunk(time=-1, latitude=18, longitude=24)]


@keeps_chunks
def cloud_optimize(size: float = 1, source: Source = random) -> Collections:
    """geospatial/workloads/cloud_optimize.py: files of one year each become time series."""
    files = [
        xr.DataArray(
            source(f"file_{year}", (365, 24, 48), (365, 24, 48), dtype="f4"),
            dims=("time", "lat", "lon"),
        )
        for year in range(scaled(60, size))
    ]
    return [xr.concat(files, dim="time").chunk(time=-1, lat=4, lon=8)]


@keeps_chunks
def regridding(size: float = 1, source: Source = random) -> Collections:
    """geospatial/workloads/regridding.py: a weight matrix applied to every map, as by xESMF."""
    count = scaled(700, size, least=8)
    data = source("regridding", (count, 32, 64), (1, 32, 64), dtype="f4")
    field = xr.DataArray(data, dims=("time", "latitude", "longitude"))
    weights = np.zeros((16 * 32, 32 * 64), dtype="f4")
    for target in range(16 * 32):
        row, column = divmod(target, 32)
        corner = 2 * row * 64 + 2 * column
        weights[target, [corner, corner + 1, corner + 64, corner + 65]] = 0.25
    regridded = xr.apply_ufunc(
        _regrid,
        field,
        xr.DataArray(weights, dims=("out", "in")),
        input_core_dims=[["latitude", "longitude"], ["out", "in"]],
        output_core_dims=[["latitude_out", "longitude_out"]],
        dask="parallelized",
        output_dtypes=["f4"],
        dask_gufunc_kwargs={"output_sizes": {"latitude_out": 16, "longitude_out": 32}},
    )
    return [regridded.chunk(time=50)]


def _regrid(field: np.ndarray, weights: np.ndarray) -> np.ndarray:
    flat = field.reshape(*field.shape[:-2], -1) @ weights.T
    return flat.reshape(*field.shape[:-2], 16, 32)


def satellite_filtering(size: float = 1, source: Source = random) -> Collections:
    """geospatial/workloads/satellite_filtering.py: monthly means of an index of two bands."""
    days, blocks = scaled(120, size, least=40), scaled(2, size, axes=2, least=1)
    shape = (days, 160 * blocks, 160 * blocks)
    dims = ("time", "y", "x")
    ds = xr.Dataset(
        {
            band: (dims, source(f"satellite_{band}", shape, (1, 160, 160), "i4", "bytes") + 1)
            for band in ("B08", "B11")
        },
        coords={"time": _dates(days, "D", "2021-12-01")},
    )
    # the baseline of the bands changed at one date
    cut = days // 2
    old, new = ds.isel(time=slice(None, cut)), ds.isel(time=slice(cut, None))
    ds = xr.concat([old, new.clip(100) - 50], dim="time")
    humidity = (ds.B08 - ds.B11) / (ds.B08 + ds.B11)
    return [humidity.groupby("time.month").mean()]


def zonal_average(size: float = 1, source: Source = random) -> Collections:
    """geospatial/workloads/zonal_average.py: means over counties, labelled by a map."""
    import flox.xarray

    table = _water_table(size, source)
    side = table.sizes["x"]
    counties = source("counties", (side, side), (12, 12), "i8", "bytes") % 40
    labels = xr.DataArray(counties, dims=("y", "x"), name="county")
    mean = flox.xarray.xarray_reduce(
        table, labels, func="mean", expected_groups=(np.arange(1, 40),)
    )
    return [mean]
