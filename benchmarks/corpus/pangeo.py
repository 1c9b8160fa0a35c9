"""The Pangeo workloads, in the form that cubed has in its examples, with smaller blocks.

They are from github.com/pangeo-data/distributed-array-examples, threads 1 to 4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from benchmarks.corpus.inputs import Source, random, scaled

Collections = list[Any]

_DIMS = ["time", "face", "j", "i"]


def vorticity(size: float = 1, source: Source = random) -> Collections:
    """cubed, examples/pangeo-1-vorticity.ipynb: padded differences, weighted, mean over time."""
    steps, maps = 10 * scaled(70, size), (60, 120)
    u, v = (source(f"pangeo_{name}", (steps, 1, *maps), (10, 1, *maps)) for name in "uv")
    dx, dy = (source(f"pangeo_d{name}", (1, *maps), (1, *maps)) for name in "xy")
    ds = xr.Dataset(
        {"U": (_DIMS, u), "V": (_DIMS, v), "dx": (_DIMS[1:], dx), "dy": (_DIMS[1:], dy)}
    )

    def padded(field: xr.DataArray, dim: str) -> xr.DataArray:
        return field.diff(dim).pad({dim: (1, 0)}, mode="symmetric")

    omega = padded(ds.U, "j") * ds.dx - padded(ds.V, "i") * ds.dy
    return [omega.mean("time")]


def quadratic_means(size: float = 1, source: Source = random) -> Collections:
    """cubed, examples/pangeo-2-quadratic-means.ipynb: means of squares and of a product."""
    steps = 10 * scaled(120, size)
    u, v = (source(f"pangeo_q{name}", (steps, 1, 80, 160), (10, 1, 80, 160)) for name in "uv")
    ds = xr.Dataset({"anom_u": (_DIMS, u), "anom_v": (_DIMS, v)})
    quad = ds**2
    quad["uv"] = ds.anom_u * ds.anom_v
    return [quad.mean("time")]


def eulerian_mean(size: float = 1, source: Source = random) -> Collections:
    """cubed, examples/pangeo-3-tem.ipynb: transformed Eulerian mean, resampled to days."""
    days, levels = scaled(12, size), 9
    shape = (24 * days, levels, 18, 36)
    dims = ("time", "level", "lat", "lon")
    ds = xr.Dataset(
        {name: (dims, source(f"tem_{name}", shape, (24, 1, 18, 36))) for name in "UVWT"},
        coords={"time": pd.date_range("2001-01-01", periods=24 * days, freq="h")},
    )
    means = ds.mean("lon")
    anomaly = ds - means
    anomaly["uv"] = anomaly.U * anomaly.V
    anomaly["vt"] = anomaly.V * anomaly["T"]
    anomaly["uw"] = anomaly.U * anomaly.W
    diagnostics = means.merge(anomaly[["uv", "vt", "uw"]].mean("lon"))
    return [diagnostics.resample(time="D").mean(method="blockwise")]


def climatological_anomalies(size: float = 1, source: Source = random) -> Collections:
    """cubed, examples/pangeo-4-climatological-anomalies.ipynb: minus the mean of the day."""
    steps = 31 * scaled(48, size, least=3)
    data = source("pangeo_asn", (steps, 90, 180), (31, 90, 180), dtype="f4")
    ds = xr.Dataset(
        {"asn": (("time", "latitude", "longitude"), data)},
        coords={
            "time": np.datetime64("1979-01-01", "ns") + np.arange(steps) * np.timedelta64(1, "h")
        },
    )
    mean = ds.groupby("time.dayofyear").mean(method="map-reduce")
    return [ds - mean.sel(dayofyear=ds.time.dt.dayofyear)]
