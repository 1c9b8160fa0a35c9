"""Reproducers of threads and posts about slow or large array computations, with smaller blocks."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
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
