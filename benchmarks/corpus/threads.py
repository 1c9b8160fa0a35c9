"""Reproducers of threads and posts about slow or large array computations, with smaller blocks."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import flox
import numpy as np
import pandas as pd
import xarray as xr

from benchmarks.corpus.inputs import Source, keeps_chunks, random, scaled

Collections = list[Any]


def dask_5359(size: float = 1, source: Source = random) -> Collections:
    """dask/dask 5359 (and 874): data minus their mean, summed; everything is held in memory."""
    blocks = scaled(22, size, axes=2)
    x = source("dask_5359", (200 * blocks, 200 * blocks), (200, 200), law="normal")
    return [(x - x.mean(axis=0)).sum(axis=0)]


@keeps_chunks
def dask_6745(size: float = 1, source: Source = random) -> Collections:
    """dask/dask 6745: files with a short last chunk, concatenated and rechunked evenly."""
    blocks = scaled(12, size)
    rows = 1000 * blocks + 200
    files = [source(f"dask_6745_{n}", (rows, 10 * 40), (1000, 40)) for n in range(4)]
    return [da.concatenate(files).rechunk((1000, 40))]


def dask_11162(size: float = 1, source: Source = random) -> Collections:
    """dask/dask 11162: hourly maps become blocks of a year and a tenth of each axis, then a sum."""
    hours = scaled(500, size, least=10)
    x = source("dask_11162", (hours, 70, 140), (1, 70, 140)).astype(np.float32)
    return [x.rechunk((max(5, hours // 11), 7, 14)).sum()]


def dask_11997(size: float = 1, source: Source = random) -> Collections:
    """dask/dask 11997: a range of all cells of a grid, da.arange(12 * 4**level)."""
    return [da.arange(12 * 4**5 * scaled(1024, size), chunks=12 * 4**6)]


def dask_12020(size: float = 1, source: Source = random) -> Collections:
    """dask/dask 12020: a slice of an array of many chunks, of which every other map is taken."""
    steps = scaled(240, size, least=8)
    data = source("dask_12020", (steps, 4, 40, 40, 10), (1, 2, 20, 20, 10))
    part = data[steps // 4 : 3 * steps // 4]
    chosen = np.zeros(len(part), dtype=bool)
    chosen[::2] = True
    return [part[chosen]]


def distributed_8969(size: float = 1, source: Source = random) -> Collections:
    """dask/distributed 8969: a weighted mean of five Zarr files, which are read all at once."""
    days = 10 * scaled(30, size)
    files = [source(f"distributed_8969_{n}", (days, 64, 128), (10, 64, 128)) for n in range(5)]
    x = da.concatenate(files, axis=0)
    weights = da.ones_like(x, chunks=x.chunks)
    return [(x * weights).sum(axis=(1, 2)) / weights.sum(axis=(1, 2))]


def xarray_9550(size: float = 1, source: Source = random) -> Collections:
    """pydata/xarray 9550: rolling(...).construct(...) of 1-step chunks, mean of the windows."""
    steps = scaled(60, size, least=24)
    data = source("xarray_9550", (96, 96, steps), (96, 96, 1))
    field = xr.DataArray(data, dims=("latitude", "longitude", "time"))
    return [field.rolling(time=8, center=True).construct("window").mean("window")]


def xarray_10130(size: float = 1, source: Source = random) -> Collections:
    """pydata/xarray 10130: means of periods, interpolated along the chunked time."""
    steps, side = 60 * scaled(4, size**0.5), 40 * scaled(2, size**0.5, axes=2)
    data = source("xarray_10130", (steps, side, side), (20, 40, 40))
    time = pd.date_range("2001-01-01", periods=steps, freq="h")
    field = xr.DataArray(data, dims=("time", "y", "x"), coords={"time": time})
    means = field.coarsen(time=10).mean()
    wanted = pd.date_range(time[10], time[-20], periods=steps // 2)
    return [means.interp(time=wanted, method="linear", assume_sorted=True)]


def xarray_10928(size: float = 1, source: Source = random) -> Collections:
    """pydata/xarray 10928: Boolean and floating-point arrays, concatenated."""
    blocks = scaled(12, size, axes=2)
    shape = (150 * blocks, 150 * blocks)
    floats, mask = (
        xr.DataArray(source(f"xarray_10928_{name}", shape, (150, 150)), dims=("x", "y"))
        for name in "ab"
    )
    return [xr.concat([floats, mask > 0.5], dim="x")]


def image_stack(size: float = 1, source: Source = random) -> Collections:
    """blog.dask.org, "Load Large Image Data with Dask Array": images, each read by a function."""
    frames = source("image_stack", (scaled(300, size, least=8), 200, 200), (1, 200, 200))
    read = dask.delayed(np.squeeze, pure=True)
    images = [
        da.from_delayed(read(frame, axis=0), (200, 200), frames.dtype)
        for frame in frames.to_delayed().flatten()
    ]
    stack = da.stack(images)
    return [stack.max(axis=0), (stack - stack.mean(axis=0)).std()]


def dask_3094(size: float = 1, source: Source = random) -> Collections:
    """dask/dask 3094: the smaller of each element of all pairs of rows."""
    rows = 50 * scaled(8, size, axes=2)
    x = source("dask_3094", (rows, 101), (50, 50))
    return [da.minimum(x[:, None, :], x[None, :, :]).sum(axis=2)]


def dask_3139(size: float = 1, source: Source = random) -> Collections:
    """dask/dask 3139: an array times vectors along some of its axes, summed along the first."""
    steps = 4 * scaled(100, size)
    x = source("dask_3139", (steps, 64, 512), (4, 64, 512))
    weights = da.from_array(np.arange(1.0, steps + 1), chunks=steps).rechunk(4)
    return [(x * weights[:, None, None] * np.arange(64.0)[None, :, None]).sum(axis=0)]


@keeps_chunks
def dask_5105(size: float = 1, source: Source = random) -> Collections:
    """dask/dask 5105: arrays stacked along the first axis, and rechunked to be stored."""
    parts = [
        source(f"dask_5105_{n}", (500 * scaled(6, size, axes=2) + 7, 300), (500, 30))
        for n in range(4)
    ]
    return [da.vstack(parts).rechunk((640, 64))]


def dask_6552(size: float = 1, source: Source = random) -> Collections:
    """dask/dask 6552: short and wide blocks become tall and narrow ones, and are averaged."""
    columns = 1000 * scaled(40, size)
    x = source("dask_6552", (200, columns), (2, columns))
    return [x.rechunk((20, 1000)).mean()]


def dask_7780(size: float = 1, source: Source = random) -> Collections:
    """dask/dask 7780: medians of rows, in blocks of a few whole rows."""
    side = 10 * scaled(200, size, axes=2)
    return [da.median(source("dask_7780", (side, side), (10, side), law="normal"), axis=1)]


def dask_11018(size: float = 1, source: Source = random) -> Collections:
    """dask/dask 11018: sorted positions along one axis, and then along the other."""
    side = 100 * scaled(25, size, axes=2)
    x = source("dask_11018", (side, side), (100, 100))
    rng = np.random.default_rng(0)
    rows, columns = (np.sort(rng.integers(0, side, size=side // 2)) for _ in range(2))
    return [x[rows, :][:, columns]]


def dask_11693(size: float = 1, source: Source = random) -> Collections:
    """dask/dask 11693: hours of seconds, of two periods that are far from each other."""
    seconds = 100 * scaled(200, size)
    time = pd.date_range("2025-01-01", periods=seconds // 2, freq="s")
    times = time.append(time + pd.Timedelta("30D"))
    data = xr.DataArray(source("dask_11693", (seconds,), (100,)), dims="time")
    return [data.assign_coords(time=times).resample(time="1h").sum()]


def dask_11735(size: float = 1, source: Source = random) -> Collections:
    """dask/dask 11735: all positions of an array of small blocks, in order."""
    x = source("dask_11735", (10 * scaled(1000, size),), (10,))
    return [x[np.arange(x.size)]]


def dask_11426(size: float = 1, source: Source = random) -> Collections:
    """dask/dask 11426: windows along two axes, and the largest values at some positions of them."""
    side = 40 * scaled(4, size, axes=3)
    x = xr.DataArray(source("dask_11426", (side, side, side), (40, 40, 40)), dims=("x", "y", "z"))
    windows = x.rolling({"x": 4, "y": 6}).construct({"x": "near", "y": "far"})
    return [windows.isel(near=[1, 3]).max("far")]


@keeps_chunks
def dask_12502(size: float = 1, source: Source = random) -> Collections:
    """dask/dask 12502: chunks of a store, made larger by `to_zarr`, which need not change them."""
    x = source("dask_12502", (9999 * scaled(400, size) + 5,), (9999,))
    return [(x + 1).rechunk(4 * 9999)]


@keeps_chunks
def dask_12583(size: float = 1, source: Source = random) -> Collections:
    """dask/dask 12583: blocks are stored in chunks of Zarr that cross them: both are rechunked."""
    side = 100 * scaled(30, size, axes=2)
    x = source("dask_12583", (side * side,), (20 * side,)).reshape((side, side))
    blocks = x.rechunk((100, 100))
    return [blocks.rechunk((200, 200)), (blocks - blocks.mean(axis=0)).rechunk((150, 150))]


def xarray_1832(size: float = 1, source: Source = random) -> Collections:
    """pydata/xarray 1832: the variance of differences from weekly means, of three variables."""
    days = scaled(120, size, least=14)
    dims, shape = ("time", "depth", "lat", "lon"), (days, 3, 60, 40)
    ds = xr.Dataset(
        {name: (dims, source(f"xarray_1832_{name}", shape, (1, 1, 60, 40))) for name in "uvw"},
        coords={"time": pd.date_range("1980-01-01", periods=days, freq="D")},
    )
    ds = ds.assign_coords(week=("time", ds.time.dt.isocalendar().week.data))
    weeks = ds.groupby("week")
    return [((weeks - weeks.mean()) ** 2).mean("time")]


def xarray_2852(size: float = 1, source: Source = random) -> Collections:
    """pydata/xarray 2852 (and flox 398): means of regions whose labels are a Dask array, too."""
    side = 150 * scaled(14, size, axes=2)
    data = source("xarray_2852", (side, side), (150, 150))
    labels = (source("xarray_2852_labels", (side, side), (150, 150)) * 18).astype(int)
    return [flox.groupby_reduce(data, labels, func="mean", expected_groups=(np.arange(18),))[0]]


def xarray_5165(size: float = 1, source: Source = random) -> Collections:
    """pydata/xarray 5165: daily fields minus those of their day of the year, a block a day."""
    days = scaled(730, size, least=10)
    time = pd.date_range("1980-01-01", periods=days, freq="D")
    fields = xr.DataArray(
        source("xarray_5165", (days, 60, 80), (1, 60, 80)),
        dims=("time", "lat", "lon"),
        coords={"time": time},
    )
    normal = xr.DataArray(
        source("xarray_5165_normal", (366, 60, 80), (1, 60, 80)),
        dims=("dayofyear", "lat", "lon"),
        coords={"dayofyear": np.arange(1, 367)},
    )
    return [fields - normal.sel(dayofyear=fields.time.dt.dayofyear)]


def xarray_6709(size: float = 1, source: Source = random) -> Collections:
    """pydata/xarray 6709: means over time of two variables and of their product."""
    steps = scaled(200, size)
    u, v = (
        xr.DataArray(source(f"xarray_6709_{name}", (steps, 120, 160), (1, 120, 160)))
        for name in "uv"
    )
    return [each.mean("dim_0") for each in (u, v, u * v)]


def xarray_8440(size: float = 1, source: Source = random) -> Collections:
    """pydata/xarray 8440: a table of positions along the second dimension, in blocks of rows."""
    length = 1000 * scaled(50, size)
    data = xr.DataArray(source("xarray_8440", (50, length), (1, length)), dims=("time", "x"))
    places = np.random.default_rng(0).integers(0, length, size=(4, length // 40))
    return [data.isel(x=xr.DataArray(places, dims=("a", "b")))]


def xarray_9692(size: float = 1, source: Source = random) -> Collections:
    """pydata/xarray 9692: quantiles along time, which is whole in each block."""
    side = 20 * scaled(14, size, axes=2)
    data = xr.DataArray(source("xarray_9692", (200, side, side), (200, 20, 20)))
    return [data.quantile([0.1, 0.9], dim="dim_0")]


def xarray_11312(size: float = 1, source: Source = random) -> Collections:
    """pydata/xarray 11312: a map, chunked along latitude, on the points of a coarser grid."""
    rows, columns = 60 * scaled(40, size, axes=2, least=8), 10 * scaled(200, size, axes=2)
    field = xr.DataArray(
        source("xarray_11312", (rows, columns), (60, columns), law="normal"),
        dims=("lat", "lon"),
        coords={"lat": np.linspace(-89.5, 89.5, rows), "lon": np.linspace(-179.5, 179.5, columns)},
    )
    return [
        field.interp(
            lat=np.linspace(-89.5, 89.5, rows // 4),
            lon=np.linspace(-179.5, 179.5, columns // 4),
            method="linear",
        )
    ]
