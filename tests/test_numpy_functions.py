"""NumPy's functions in dask give the right values in all tiles.

These tests do not check whether dasktile re-tiles a case or keeps its chunks.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest

from tests.agreement import V, X, Y, equal, same, v, x, y


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


#: Functions of a module (NumPy or dask.array) and of three arrays.
BOTH: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "cov": lambda m, x, y, v: m.cov(x),
    "corrcoef": lambda m, x, y, v: m.corrcoef(x.T),
    "average": lambda m, x, y, v: m.average(x, axis=0, weights=abs(x) + 1),
    "average of all": lambda m, x, y, v: m.average(x),
    "round": lambda m, x, y, v: m.round(x / 3, 2),
    "isin": lambda m, x, y, v: m.isin(v, [3, 4]),
    "isin array": lambda m, x, y, v: m.isin(v, v[3:5]),
    "digitize": lambda m, x, y, v: m.digitize(x, np.array([-4, 0, 4])),
    "searchsorted": lambda m, x, y, v: m.searchsorted(m.sort(v) if m is np else _sorted(), v),
    "bincount": lambda m, x, y, v: m.bincount(v, minlength=12),
    "bincount weights": lambda m, x, y, v: m.bincount(v, weights=v * 0.5, minlength=12),
    "histogram": lambda m, x, y, v: m.histogram(x, bins=5, range=(-9, 9))[0],
    "histogram weights": lambda m, x, y, v: m.histogram(
        x, bins=[-9, 0, 3, 9], weights=x * 2.0, density=True
    )[0],
    "histogram2d": lambda m, x, y, v: m.histogram2d(
        v, v * 2, bins=[np.arange(0, 10, 3), np.array([0, 5, 18])]
    )[0],
    "gradient": lambda m, x, y, v: m.gradient(x, axis=1),
    "ediff1d": lambda m, x, y, v: m.ediff1d(v),
    "diff twice": lambda m, x, y, v: m.diff(x, 2, axis=0),
    "diff with ends": lambda m, x, y, v: m.diff(v, prepend=0, append=9),
    "tril": lambda m, x, y, v: m.tril(x @ y, 1),
    "tri": lambda m, x, y, v: m.tri(7, 5, 1) + m.sum(x),
    "eye": lambda m, x, y, v: m.eye(12, M=10, k=1) * x if m is np else m.eye(12, 5, 10, 1) * x,
    "diag": lambda m, x, y, v: m.diag(v),
    "diag of matrix": lambda m, x, y, v: m.diag(x[:10]),
    "diagonal": lambda m, x, y, v: m.diagonal(x, 2),
    "trace": lambda m, x, y, v: m.trace(x) if m is np else m.diagonal(x).sum(),
    "meshgrid": lambda m, x, y, v: m.meshgrid(v, v[:4])[1],
    "meshgrid sparse": lambda m, x, y, v: operator.add(
        *m.meshgrid(v, v[:4], sparse=True, indexing="ij")
    ),
    "indices": lambda m, x, y, v: (
        m.indices((3, 4))[1] if m is np else da.indices((3, 4), chunks=2)[1]
    ),
    "choose": lambda m, x, y, v: m.choose((x > 0).astype(int), [x, -x * 2]),
    "select": lambda m, x, y, v: m.select([x > 2, x < -2], [x, x * 2], 5),
    "piecewise": lambda m, x, y, v: m.piecewise(x, [x < 0, x >= 0], [abs, 7.0]),
    "extrema": lambda m, x, y, v: m.ptp(x, axis=0),
    "unravel": lambda m, x, y, v: m.stack(m.unravel_index(v, (3, 4))),
    "ravel multi": lambda m, x, y, v: m.ravel_multi_index(m.stack([v % 3, v % 4]), (3, 4)),
    "apply_along_axis": lambda m, x, y, v: m.apply_along_axis(np.sort, 0, x),
    "apply_along_axis reduced": lambda m, x, y, v: m.apply_along_axis(lambda a: a[0] - a[-1], 1, x),
    "apply_over_axes": lambda m, x, y, v: m.apply_over_axes(m.sum, x, [0, 1]),
    "quantile": lambda m, x, y, v: m.quantile(x, 0.3, axis=1),
    "median": lambda m, x, y, v: m.median(x, axis=0),
    "nanmedian": lambda m, x, y, v: m.nanmedian(x, axis=(0, 1)),
    "insert": lambda m, x, y, v: m.insert(x, 3, 1, axis=1),
    "delete": lambda m, x, y, v: m.delete(x, slice(2, 5), axis=0),
    "tile": lambda m, x, y, v: m.tile(x, (2, 1, 2)),
    "rot90": lambda m, x, y, v: m.rot90(x, 3),
    "roll both": lambda m, x, y, v: m.roll(x, (3, -2), (0, 1)),
    "block": lambda m, x, y, v: m.block([[x, x[:, :2]], [x[:3], x[:3, :2]]]),
    "atleast_3d": lambda m, x, y, v: m.atleast_3d(x),
    "dstack": lambda m, x, y, v: m.dstack([v, v + 1]),
    "einsum dots": lambda m, x, y, v: m.einsum("...ij,jk->...ik", m.stack([x, x]), y),
    "einsum trace": lambda m, x, y, v: m.einsum(
        "ii->i", x[:5, :5] if m is np else x[:5, :5].rechunk(5)
    ),
    "einsum twice": lambda m, x, y, v: m.einsum("ij,ij->", x, x),
    "einsum alone": lambda m, x, y, v: m.einsum("ij->j", x),
    "tensordot none": lambda m, x, y, v: m.tensordot(v, v, axes=0),
    "vdot complex": lambda m, x, y, v: m.vdot(v * 1j, v + 2j),
    "dot": lambda m, x, y, v: m.dot(v, v),
    "bytes matmul": lambda m, x, y, v: (x.astype("i1") * 30) @ y.astype("i1"),
    "bytes sum": lambda m, x, y, v: x.astype("u1").sum(axis=0, dtype="u1"),
    "bool matmul": lambda m, x, y, v: (x > 0) @ (y > 0),
    "bool sum": lambda m, x, y, v: (x > 0).sum(axis=0),
    "bytes prod": lambda m, x, y, v: m.prod(v.astype("i1")),
    "int var": lambda m, x, y, v: x.astype("i4").var(axis=0),
    "half sum": lambda m, x, y, v: x.astype("f2").max(axis=1),
    "long double": lambda m, x, y, v: x.astype("g").sum(axis=1),
    "infinite": lambda m, x, y, v: m.sum(x / (x * 0), axis=0),
    "cumsum": lambda m, x, y, v: m.cumsum(v.astype("u1")),
    "cumprod reversed": lambda m, x, y, v: m.cumprod(v[::-1] + 1)[::-1],
    "ufunc where": lambda m, x, y, v: m.where(x > 0, m.sqrt(abs(x)), x),
    "real part": lambda m, x, y, v: ((x + 1j) ** 2).imag,
    "modf": lambda m, x, y, v: m.modf(x / 4)[0],
    "frexp": lambda m, x, y, v: m.frexp(x)[1],
    "divmod": lambda m, x, y, v: m.divmod(v, 4)[1] + divmod(v, 4)[0],
    "fromfunction": lambda m, x, y, v: m.fromfunction(lambda i, j: i * 3 + j, shape=(5, 4)),
    "allclose": lambda m, x, y, v: m.allclose(x, x + 1e-9),
    "string": lambda m, x, y, v: x.astype(int).astype("U4"),
    "object": lambda m, x, y, v: x.astype(object) + 1,
    "object sum": lambda m, x, y, v: v.astype(object)[::2].sum(),
    "times": lambda m, x, y, v: (v * np.timedelta64(3, "h")).max(),
    "view": lambda m, x, y, v: x.view("i8"),
    "imag of real": lambda m, x, y, v: m.imag(x),
    "unwrapped matmul": lambda m, x, y, v: x @ y @ y.T @ x.T,
    "mixed matmul": lambda m, x, y, v: x.astype("f4") @ y,
    "shared": lambda m, x, y, v: (x - x.mean(axis=0)) / (x.std(axis=0) + 1),
    "logaddexp.outer": lambda m, x, y, v: m.logaddexp.outer(v[:5], v[5:9]),
    "repeat": lambda m, x, y, v: m.repeat(x, 3, axis=1),
    "pad many": lambda m, x, y, v: m.pad(x, ((1, 2), (3, 0)), mode="linear_ramp"),
    "pad statistics": lambda m, x, y, v: m.pad(x, ((1, 2), (3, 0)), mode="maximum"),
    "fftfreq": lambda m, x, y, v: m.fft.fftshift(m.fft.fftfreq(9)) + v[:9],
    "iscomplexobj": lambda m, x, y, v: m.angle(v - 4.0 + 1j),
    "flatnonzero": lambda m, x, y, v: m.flatnonzero(v > 3),
    "nonzero": lambda m, x, y, v: m.nonzero(v > 3)[0] * 2,
    "argwhere": lambda m, x, y, v: m.argwhere(x > 3),
    "extract": lambda m, x, y, v: m.extract(v > 3, v),
    "unique": lambda m, x, y, v: m.unique(v),
    "unique counts": lambda m, x, y, v: m.unique(v, return_counts=True)[1],
    "union1d": lambda m, x, y, v: m.union1d(v, v[:3] + 20),
    "mask": lambda m, x, y, v: v[v > 3],
    "mask of rows": lambda m, x, y, v: x[x[:, 0] > 0],
    "sum of masked": lambda m, x, y, v: (x[x > 0] * 2).sum(),
    "norm": lambda m, x, y, v: m.linalg.norm(x, axis=1),
    "norm 1": lambda m, x, y, v: m.linalg.norm(x, 1, axis=(0, 1)),
}


def _sorted() -> da.Array:
    return da.from_array(np.sort(V), chunks=6)


@pytest.mark.parametrize("case", BOTH)
def test_functions_of_numpy(case: str) -> None:
    function = BOTH[case]
    with np.errstate(all="ignore"):
        expected = np.asanyarray(function(np, X, Y, V))
        if case == "apply_along_axis reduced":
            expected = np.asarray([row[0] - row[-1] for row in X])
        lazy = function(da, x(), y(), v())
        stock = lazy.compute(scheduler="sync")
        if expected.dtype != lazy.dtype:
            expected = np.asanyarray(stock)
        equal(stock, expected)
        same(lazy, expected)
