"""The benchmarks of flox, asv_bench/benchmarks/cohorts.py, with smaller blocks: sums of groups."""

from __future__ import annotations

from typing import Any

import dask.array as da
import flox
import numpy as np
import pandas as pd

from benchmarks.corpus.inputs import Source, random, scaled

Collections = list[Any]


def _sums(array: da.Array, labels: Any, axis: int | tuple[int, ...] = -1) -> Collections:
    return [flox.groupby_reduce(array, np.asarray(labels), func="sum", axis=axis)[0]]


def _periods(time: pd.DatetimeIndex, length: str) -> Any:
    """The number of the period that each time is in."""
    return np.unique(time.floor(length), return_inverse=True)[1]


def nwm_midwest(size: float = 1, source: Source = random) -> Collections:
    """cohorts.py, NWMMidwest: regions of a grid that do not fit its blocks."""
    side = scaled(30, size, axes=2, least=4)
    rows, columns = np.repeat(np.arange(side), 60), np.repeat(np.arange(side), 150)
    regions = np.unique(rows[:, None] * columns[None, :], return_inverse=True)[1]
    array = source("nwm_midwest", (len(rows), len(columns)), (175, 175))
    return _sums(array, regions.reshape(array.shape), (-2, -1))


def era5_resampling(size: float = 1, source: Source = random) -> Collections:
    """cohorts.py, ERA5Resampling: days of hourly blocks."""
    hours = 24 * scaled(40, size)
    time = pd.date_range("2001-01-01", periods=hours, freq="h")
    return _sums(source("era5_resampling", (4, 30, 60, hours), (4, 30, 60, 1)), _periods(time, "D"))


def _era5(size: float, source: Source) -> tuple[da.Array, pd.DatetimeIndex]:
    days = 2 * scaled(548, size)
    time = pd.date_range("2016-01-01", periods=24 * days, freq="h")
    return source("era5", (20, 40, len(time)), (20, 40, 48)), time


def era5_day_of_year(size: float = 1, source: Source = random) -> Collections:
    """cohorts.py, ERA5DayOfYear: days of the year of hourly fields, in blocks of two days."""
    array, time = _era5(size, source)
    return _sums(array, time.dayofyear)


def era5_month_hour(size: float = 1, source: Source = random) -> Collections:
    """cohorts.py, ERA5MonthHour: months and hours, in blocks of two days."""
    array, time = _era5(size, source)
    return _sums(array, time.month * 24 + time.hour)


def perfect_monthly(size: float = 1, source: Source = random) -> Collections:
    """cohorts.py, PerfectMonthly: months of monthly fields, in blocks that fit the years."""
    months = 12 * scaled(58, size)
    time = pd.date_range("1961-01-01", periods=months, freq="MS")
    return _sums(source("perfect_monthly", (90, 180, months), (90, 180, 4)), time.month)


def era5_google(size: float = 1, source: Source = random) -> Collections:
    """cohorts.py, ERA5Google: days of the month of fields every six hours, each a block."""
    steps = scaled(900, size)
    time = pd.date_range("1959-01-01", periods=steps, freq="6h")
    return _sums(source("era5_google", (90, 180, steps), (90, 180, 1)), time.day)


def perfect_blockwise_resampling(size: float = 1, source: Source = random) -> Collections:
    """cohorts.py, PerfectBlockwiseResampling: five days of daily fields, in blocks of ten."""
    days = 10 * scaled(146, size)
    time = pd.date_range("1959-01-01", periods=days, freq="D")
    array = source("perfect_blockwise", (60, 120, days), (60, 120, 10))
    return _sums(array, _periods(time, "5D"))


def single_chunk(size: float = 1, source: Source = random) -> Collections:
    """cohorts.py, SingleChunk: five days of daily fields, all times in one block."""
    days = scaled(1461, size, least=10)
    time = pd.date_range("1959-01-01", periods=days, freq="D")
    return _sums(source("single_chunk", (60, 120, days), (60, 120, days)), _periods(time, "5D"))


def oisst(size: float = 1, source: Source = random) -> Collections:
    """cohorts.py, OISST: days of the year of forty years, in blocks of ten days."""
    days = 10 * scaled(1453, size)
    time = pd.date_range("1981-09-01 12:00", periods=days, freq="D")
    return _sums(source("oisst", (1, days), (1, 10)), time.dayofyear)


def random_big_array(size: float = 1, source: Source = random) -> Collections:
    """cohorts.py, RandomBigArray: many groups at random, in a transposed array."""
    blocks = scaled(10, size, axes=2)
    rows, columns = 1000 * blocks, 200 * blocks
    array = source("random_big_array", (rows, columns), (1000, 400), law="normal").T
    labels = np.random.default_rng(0).integers(0, max(2, rows // 20), size=rows)
    return _sums(array, labels, (1,))
