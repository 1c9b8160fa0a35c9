"""Features of dask beyond NumPy's functions give the right values in all tiles.

Each case returns a dask array and its value.  These tests do not check whether dasktile re-tiles a
case or keeps its chunks.
"""

from __future__ import annotations

import operator
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.graph_manipulation import bind, checkpoint, clone, wait_on

import dasktile
from tests.agreement import EAGER, V, X, Y, equal, in_random_tiles, same, v, x, y

TIMES = np.datetime64("2020-01-01") + np.arange(12).astype("m8[D]")
TIMES[5] = np.datetime64("NaT")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def largest(block: np.ndarray) -> np.ndarray:
    return block.max(axis=-1)


def row_numbers(block: np.ndarray, block_info: Any = None) -> np.ndarray:
    rows = block_info[0]["array-location"][0]
    return block + np.arange(*rows)[:, None]


def numbered(block: np.ndarray, block_id: Any = None) -> np.ndarray:
    return block + 100 * block_id[0] + block_id[1]


def column_number(block_info: Any = None) -> np.ndarray:
    return np.full((2, 3), block_info[None]["chunk-location"][1])


def located(block: np.ndarray) -> np.ndarray:
    return np.full(block.shape, block.shape[0] * 100 + block.shape[1])


def total(block: np.ndarray, axis: Any = None, keepdims: bool = True) -> np.ndarray:
    return np.sum(block**2, axis=axis, keepdims=keepdims)


def added(block: np.ndarray, axis: Any = None, keepdims: bool = True) -> np.ndarray:
    return np.sum(block, axis=axis, keepdims=keepdims)


@dask.delayed
def made(number: int) -> np.ndarray:
    return np.arange(6.0).reshape(2, 3) + number


def with_annotations() -> Any:
    a = x() + 1
    with dask.annotate(priority=10):
        b = a @ y()
    return b.T + 1, ((X + 1) @ Y).T + 1


def delayed_blocks() -> Any:
    parts = [da.from_delayed(made(n), (2, 3), dtype="f8") for n in range(4)]
    joined = da.concatenate(parts)
    value = np.concatenate([np.arange(6.0).reshape(2, 3) + n for n in range(4)])
    return joined @ joined.T, value @ value.T


def delayed_argument() -> Any:
    number = dask.delayed(operator.add)(2, 3)
    return x().map_blocks(operator.mul, number, dtype="f8").sum(axis=0), (X * 5).sum(axis=0)


def computed_chunk_sizes() -> Any:
    large = v()[v() > 3].compute_chunk_sizes()
    return da.outer(large, large)[::2], np.outer(V[V > 3], V[V > 3])[::2]


def unknown_then_reduced() -> Any:
    return v()[v() > 3].sum() + x().T.sum(axis=1), V[V > 3].sum() + X.sum(axis=0)


def assigned() -> Any:
    a, value = x() * 1, X.copy()
    for key, item in (
        ((slice(2, 9, 3), 4), -1),
        (([1, 3, 8], slice(None)), np.arange(10)),
        ((slice(None, None, -2), slice(0, 2)), np.arange(12).reshape(6, 2)),
        ((Ellipsis, -1), np.nan),
    ):
        a[key] = item
        value[key] = item
    a[a > 4] = 0
    value[value > 4] = 0
    a[:, 3] = da.arange(12, chunks=5)
    value[:, 3] = np.arange(12)
    return a.T, value.T


def in_place() -> Any:
    a = x()
    a += 1
    a *= x()[::-1]
    return a.sum(axis=0), ((X + 1) * X[::-1]).sum(axis=0)


def reduced_by_users() -> Any:
    lazy = da.reduction(x(), total, added, axis=0, dtype="f8", split_every=2)
    return lazy, (X**2).sum(axis=0)


def scanned_by_users() -> Any:
    lazy = da.reductions.cumreduction(np.cumsum, operator.add, 0, x(), axis=1, dtype="f8")
    return lazy, np.cumsum(X, axis=1)


def weighted() -> Any:
    weights = da.from_array(abs(Y), chunks=4)
    lazy = da.reduction(y(), _weighted, added, axis=0, dtype="f8", weights=weights)
    return lazy, (Y * abs(Y)).sum(axis=0)


def _weighted(block: Any, weights: Any = None, axis: Any = None, keepdims: bool = True) -> Any:
    return np.sum(block * weights, axis=axis, keepdims=keepdims)


def several_outputs() -> Any:
    low, high = da.apply_gufunc(
        lambda a: (a.min(axis=-1), a.max(axis=-1)), "(i)->(),()", x(), allow_rechunk=True,
        output_dtypes=("f8", "f8"),
    )  # fmt: skip
    return (high - low)[::-1], np.ptp(X, axis=1)[::-1]


def vectorized() -> Any:
    function = da.gufunc(lambda a, b: (a * b).sum(-1), signature="(i),(i)->()", output_dtypes="f8",
                         allow_rechunk=True)  # fmt: skip
    return function(x(), x()[0]), (X * X[0]).sum(-1)


def by_python() -> Any:
    function = da.frompyfunc(lambda a, b: a + 2 * b, 2, 1)
    return function(x(), 1).astype("f8"), X + 2


def concatenated_blocks() -> Any:
    lazy = da.blockwise(lambda a: a.sum(axis=1), "i", x(), "ij", concatenate=True, dtype="f8")
    return lazy, X.sum(axis=1)


def listed_blocks() -> Any:
    lazy = da.blockwise(lambda a: sum(block.sum(axis=1) for block in a), "i", x(), "ij", dtype="f8")
    return lazy, X.sum(axis=1)


def new_axes() -> Any:
    lazy = da.blockwise(lambda a: np.stack([a, -a, 2 * a], axis=-1), "ijk", x(), "ij",
                        new_axes={"k": 3}, dtype="f8")  # fmt: skip
    return lazy.sum(axis=2), 2 * X


def adjusted() -> Any:
    lazy = da.blockwise(lambda a: np.repeat(a, 2, axis=0), "ij", x(), "ij", dtype="f8",
                        adjust_chunks={"i": lambda n: 2 * n})  # fmt: skip
    return lazy.T, np.repeat(X, 2, axis=0).T


def dropped() -> Any:
    lazy = x().rechunk({1: -1}).map_blocks(largest, drop_axis=1, dtype="f8")
    return lazy * 2, X.max(axis=1) * 2


def wide_windows() -> Any:
    view = np.lib.stride_tricks.sliding_window_view
    lazy = da.lib.stride_tricks.sliding_window_view(x(), 3, axis=0)
    return lazy.sum(axis=-1), view(X, 3, axis=0).sum(axis=-1)


def overlap_untrimmed() -> Any:
    wide = da.overlap.overlap(v(), depth=1, boundary="reflect")
    return da.overlap.trim_internal(wide * 2, {0: 1}, boundary="reflect"), V * 2


def overlap_several() -> Any:
    lazy = da.map_overlap(lambda a, b: a + b, v(), v() * 2, depth=1, boundary="none", dtype=V.dtype)
    return lazy, V * 3


def overlap_uneven() -> Any:
    def before(block: np.ndarray) -> np.ndarray:
        return block - np.roll(block, 1)

    lazy = v().map_overlap(before, depth={0: (1, 0)}, boundary="none", dtype=V.dtype)
    return lazy[1:], np.diff(V)


def structured() -> Any:
    value = np.zeros(12, dtype=[("a", "f8"), ("b", "i4")])
    value["a"], value["b"] = X[:, 0], X[:, 1]
    lazy = da.from_array(value, chunks=5)
    return lazy["a"] * 2 + lazy["b"][::-1], value["a"] * 2 + value["b"][::-1]


def masked() -> Any:
    lazy = da.ma.masked_greater(x(), 2)
    return (lazy * 2).T, np.ma.masked_greater(X, 2).T * 2


def masked_sum() -> Any:
    return da.ma.masked_less(x(), 0).sum(axis=0), np.ma.masked_less(X, 0).sum(axis=0)


def masked_source() -> Any:
    value = np.ma.masked_array(X, X > 3)
    return da.from_array(value, chunks=4).max(axis=1), value.max(axis=1)


def masked_filled() -> Any:
    return da.ma.filled(da.ma.masked_greater(x(), 2), 0) @ y(), np.where(X > 2, 0, X) @ Y


def dates() -> Any:
    lazy = da.from_array(TIMES, chunks=5)
    return lazy[::-1] + np.timedelta64(1, "D"), TIMES[::-1] + np.timedelta64(1, "D")


def date_extremes() -> Any:
    known = TIMES[~np.isnat(TIMES)]
    lazy = da.from_array(known, chunks=5)
    return lazy - lazy.min(), known - known.min()


def objects() -> Any:
    value = np.array([[1, "a", None], [2.5, "b", ()]], dtype=object)
    value[1, 2] = (3, 4)
    return da.from_array(value, chunks=(1, 2)).T, value.T


def strings() -> Any:
    value = np.array(["one", "three", "sixteen", ""])
    return da.from_array(value, chunks=3)[::-1], value[::-1]


def blocks_picked() -> Any:
    lazy = x()
    return lazy.blocks[1, [0, 2]] + 1, X[5:9][:, [0, 1, 8, 9]] + 1


def at_points() -> Any:
    return x().vindex[[0, 5, 5, 11], [9, 0, 2, 3]] * 2, X[[0, 5, 5, 11], [9, 0, 2, 3]] * 2


def from_dict() -> Any:
    lazy = x() + 1
    plain = da.Array(dict(lazy.dask), lazy.name, lazy.chunks, dtype=lazy.dtype)
    return plain.T @ plain, (X + 1).T @ (X + 1)


def fused() -> Any:
    (lazy,) = dask.optimize((x() + 1) * 2)
    return lazy.sum(axis=1), ((X + 1) * 2).sum(axis=1)


def pickled() -> Any:
    lazy = pickle.loads(pickle.dumps(x().T @ x()))
    return lazy, X.T @ X


def cloned() -> Any:
    return clone(x().T @ x(), seed=1) + 1, X.T @ X + 1


def bound() -> Any:
    return bind((x() + 1).T, checkpoint(v().sum()))[::-1], (X + 1).T[::-1]


def gufunc_with_delayed() -> Any:
    number = dask.delayed(operator.add)(2, 3)
    lazy = da.apply_gufunc(lambda a, by=None: a.sum(-1) * by, "(i)->()", x(), by=number,
                           output_dtypes="f8", allow_rechunk=True)  # fmt: skip
    return lazy[::-1], X.sum(axis=1)[::-1] * 5


def along_axis_with_delayed() -> Any:
    number = dask.delayed(operator.add)(2, 3)
    lazy = da.apply_along_axis(lambda a, by: a * by, 1, x() + 1, number, dtype="f8", shape=(10,))
    return lazy[::-1], (X + 1)[::-1] * 5


def elementwise_with_delayed() -> Any:
    number = dask.delayed(operator.add)(2, 3)
    lazy = da.blockwise(np.multiply, "ij", x() + 1, "ij", number, None, dtype="f8")
    return lazy[::-1], (X + 1)[::-1] * 5


def overlap_with_delayed() -> Any:
    number = dask.delayed(operator.add)(2, 3)
    lazy = x().map_overlap(lambda a, by=None: a * by, depth=1, boundary="none", by=number,
                           dtype="f8")  # fmt: skip
    return lazy[::-1], X[::-1] * 5


def waited() -> Any:
    return wait_on(x() @ y()).T, (X @ Y).T


def persisted() -> Any:
    kept = (x() + 1).persist(scheduler="sync")
    return kept.T @ kept, (X + 1).T @ (X + 1)


def partly_persisted() -> Any:
    kept = (x() @ y()).persist(scheduler="sync")
    return x().T @ kept, X.T @ (X @ Y)


def percentiles() -> Any:
    lazy = da.percentile(v(), [20, 50, 90])
    return lazy, lazy.compute(scheduler="sync")


def solved() -> Any:
    matrix = X[:10, :10] + 40 * np.eye(10)
    lazy = da.from_array(matrix, chunks=5)
    return da.linalg.solve(lazy, y().rechunk((5, 7))), np.linalg.solve(matrix, Y)


def inverted() -> Any:
    matrix = X[:10, :10] + 40 * np.eye(10)
    return da.linalg.inv(da.from_array(matrix, chunks=5)), np.linalg.inv(matrix)


def square_root() -> Any:
    matrix = X.T @ X + 9 * np.eye(10)
    lazy = da.linalg.cholesky(da.from_array(matrix, chunks=5), lower=True)
    return lazy @ lazy.T, matrix


def factored() -> Any:
    q, r = da.linalg.qr(x().rechunk((4, 10)))
    return q @ r, X


def factored_flat() -> Any:
    q, r = da.linalg.sfqr(x().T.rechunk((10, (10, 2))))
    return q @ r, X.T


def decomposed() -> Any:
    u, s, vh = da.linalg.svd(x().rechunk((4, 10)))
    return (u * s) @ vh, X


def triangles() -> Any:
    p, lower_part, upper_part = da.linalg.lu(da.from_array(X[:10, :10], chunks=5))
    return p @ lower_part @ upper_part, X[:10, :10]


def least_squares() -> Any:
    solution, *_ = da.linalg.lstsq(x().rechunk((4, 10)), da.from_array(X[:, 0], chunks=4))
    return solution, np.linalg.lstsq(X, X[:, 0], rcond=None)[0]


def compressed() -> Any:
    u, s, vh = da.linalg.svd_compressed(x(), 10, seed=1, n_power_iter=0)
    return (u * s) @ vh, X


def linearly_spaced() -> Any:
    lazy = da.linspace(0, 1, 17, chunks=5) ** 2
    return lazy[::-1], np.linspace(0, 1, 17)[::-1] ** 2


def random_numbers() -> Any:
    generator = da.random.default_rng(4)
    lazy = generator.normal(size=(12, 9), chunks=(5, 4)).T @ generator.random((12, 4), chunks=5)
    return lazy, lazy.compute(scheduler="sync")


def random_choices() -> Any:
    state = da.random.RandomState(3)
    lazy = state.choice(np.arange(9), size=21, chunks=6) + state.permutation(v())[:21]
    return lazy, lazy.compute(scheduler="sync")


def located_blocks() -> Any:
    lazy = (x() * 2).map_blocks(row_numbers, dtype="f8")
    return lazy.T, (2 * X + np.arange(12)[:, None]).T


def numbered_blocks() -> Any:
    lazy = x().map_blocks(numbered, dtype="f8")
    rows, columns = np.repeat([0, 1, 2], [5, 4, 3]), np.repeat([0, 1, 2], [2, 6, 2])
    return lazy + 1, X + 1 + 100 * rows[:, None] + columns


def sized_blocks() -> Any:
    lazy = x().map_blocks(located, dtype=int)
    rows, columns = np.repeat([5, 4, 3], [5, 4, 3]), np.repeat([2, 6, 2], [2, 6, 2])
    return lazy.T + 1, (rows[:, None] * 100 + columns).T + 1


def no_input_blocks() -> Any:
    lazy = da.map_blocks(column_number, chunks=((2, 2), (3, 3, 3)), dtype=int)
    return lazy.T, np.repeat([[0], [1], [2]], 3, axis=0) + np.zeros((1, 4), dtype=int)


def block_with_arrays() -> Any:
    lazy = x().map_blocks(lambda a, b: a + b.sum(), np.arange(3), dtype="f8")
    return lazy.T, X.T + 3


def ufunc_out() -> Any:
    target = da.zeros_like(x())
    da.add(x(), 1, out=target)
    return target.T, (X + 1).T


def ufunc_where() -> Any:
    lazy = da.add(x(), 1, where=x() > 0, out=x() * 2)
    return lazy.T, np.where(X > 0, X + 1, X * 2).T


def by_dask_index() -> Any:
    return v()[da.from_array(np.array([3, 0, 3, 22]), chunks=2)] * 2, V[[3, 0, 3, 22]] * 2


def empty_parts() -> Any:
    lazy = da.concatenate([x()[:0], x(), x()[:0]])
    return lazy.T @ lazy, X.T @ X


def nothing() -> Any:
    return x()[:0].T @ x()[:0], X[:0].T @ X[:0]


def unread_parts() -> Any:
    return (x() @ y())[:2, :3], (X @ Y)[:2, :3]


def many_layers() -> Any:
    lazy = x()
    for _ in range(100):
        lazy = lazy + 1
    return lazy.T, X.T + 100


def wrapped_numbers() -> Any:
    lazy = da.einsum("ij,jk->ik", x().astype("i1") * 30, y().astype("i1"))
    return lazy, lazy.compute(scheduler="sync")


def einsum_dtype() -> Any:
    lazy = da.einsum("ij,jk->ik", x().astype("i4"), y().astype("i4"), dtype="f8")
    return lazy, X @ Y


def rechunked_by_users() -> Any:
    return x().rechunk((3, 10)).map_blocks(located, dtype=int).sum(axis=0), 310 * np.full(10, 12)


def reshaped_by_blocks() -> Any:
    lazy = da.reshape_blockwise(x(), 120)
    return lazy[::-1], np.concatenate([block.ravel() for block in _blocks()])[::-1]


def _blocks() -> Iterator[np.ndarray]:
    for rows in (slice(0, 5), slice(5, 9), slice(9, 12)):
        for columns in (slice(0, 2), slice(2, 8), slice(8, 10)):
            yield X[rows, columns]


def shuffled() -> Any:
    lazy = da.shuffle(x(), [[3, 1, 0], [11, 2, 4], [5, 6], [7, 8, 9, 10]], axis=0)
    return lazy * 2, X[[3, 1, 0, 11, 2, 4, 5, 6, 7, 8, 9, 10]] * 2


def random_about_arrays() -> Any:
    lazy = da.random.default_rng(3).normal(loc=x() + 1, scale=0.1).T
    return lazy, lazy.compute(scheduler="sync")


def moments() -> Any:
    lazy = da.reductions.moment(x(), 3, axis=0)
    return lazy * 2, ((X - X.mean(axis=0)) ** 3).mean(axis=0) * 2


def skewness() -> Any:
    stats = pytest.importorskip("scipy.stats")
    from dask.array import stats as lazy_stats

    return lazy_stats.skew(x(), axis=0), stats.skew(X, axis=0)


def kurtosis() -> Any:
    stats = pytest.importorskip("scipy.stats")
    from dask.array import stats as lazy_stats

    return lazy_stats.kurtosis(x(), axis=1), stats.kurtosis(X, axis=1)


def histogram_of_many() -> Any:
    sample = np.stack([V, V * 2, V % 3], axis=1)
    lazy = da.histogramdd(da.from_array(sample, chunks=(6, 3)), bins=(3, 2, 3),
                          range=((0, 9), (0, 18), (0, 3)))[0]  # fmt: skip
    expected = np.histogramdd(sample, bins=(3, 2, 3), range=((0, 9), (0, 18), (0, 3)))[0]
    return lazy, expected


def histogram_of_computed_range() -> Any:
    lazy = da.histogram(x(), bins=4, range=(x().min(), x().max()))[0]
    return lazy, np.histogram(X, bins=4)[0]


def running_totals_of_a_type() -> Any:
    return da.cumsum(v(), axis=0, dtype="f4")[::-1], np.cumsum(V, dtype="f4")[::-1]


def transform_with_norm() -> Any:
    lazy = da.fft.fft(x().rechunk({0: -1}), axis=0, norm="ortho")
    return abs(lazy), abs(np.fft.fft(X, axis=0, norm="ortho"))


def masked_blocks_unannounced() -> Any:
    parts = [dask.delayed(np.ma.masked_greater)(X[at : at + 4], 2) for at in (0, 4, 8)]
    lazy = da.concatenate([da.from_delayed(part, (4, 10), dtype="f8") for part in parts])
    return lazy.T[::-1], np.ma.masked_greater(X, 2).T[::-1]


def masked_blocks_repeated() -> Any:
    part = dask.delayed(np.ma.masked_greater)(X, 2)
    lazy = da.from_delayed(part, X.shape, dtype="f8")
    value = np.ma.masked_greater(X, 2)
    stack = da.stack([lazy, lazy])
    return (stack * 2, stack.sum(axis=0)), (np.ma.stack([value, value]) * 2, value * 2)


def wider_blocks_than_announced() -> Any:
    wide = x().map_blocks(lambda a: a / 3, dtype="f8").map_blocks(np.negative, dtype="f4")
    lazy = (wide.T @ wide).map_blocks(lambda a: a.astype("f4"), dtype="f4")
    return lazy, ((X / 3).T @ (X / 3)).astype("f4")


def pointwise_with_false_chunks() -> Any:
    lazy = da.blockwise(np.add, "ij", x(), "ij", 1, None, dtype="f8", align_arrays=False)
    return lazy.T, (X + 1).T


def ufunc_of_first_axis() -> Any:
    lazy = da.blockwise(lambda a, b: a[:, None] + b, "ij", x()[:, 0], "i", x(), "ij", dtype="f8")
    return lazy.T, (X[:, :1] + X).T


def squares_along_first_axis() -> Any:
    """Blocks are square, so that NumPy's way to broadcast is another than the indices'."""
    square = da.from_array(X[:10, :10], chunks=5)
    lazy = da.blockwise(np.add, "ij", square[:, 0], "i", square, "ij", dtype="f8")
    value = X[:10, :10]
    rows = [np.hstack([value[i : i + 5, 0] + value[i : i + 5, j : j + 5] for j in (0, 5)])
            for i in (0, 5)]  # fmt: skip
    return lazy.T, np.vstack(rows).T


def ravelled_products() -> Any:
    return (x() @ y()).ravel()[::3], (X @ Y).ravel()[::3]


DASK: tuple[Callable[[], Any], ...] = (
    *(with_annotations, delayed_blocks, delayed_argument, computed_chunk_sizes),
    *(unknown_then_reduced, assigned, in_place, reduced_by_users, scanned_by_users, weighted),
    *(several_outputs, vectorized, by_python, concatenated_blocks, listed_blocks, new_axes),
    *(adjusted, dropped, wide_windows, overlap_untrimmed, overlap_several, overlap_uneven),
    *(structured, masked, masked_sum, masked_source, masked_filled, dates, date_extremes),
    *(objects, strings, blocks_picked, at_points, from_dict, fused, pickled, cloned, bound),
    *(gufunc_with_delayed, along_axis_with_delayed, elementwise_with_delayed),
    *(
        overlap_with_delayed,
        waited,
        persisted,
        partly_persisted,
        percentiles,
        solved,
        inverted,
        square_root,
    ),
    *(factored, factored_flat, decomposed, triangles, least_squares, compressed),
    *(linearly_spaced, random_numbers, random_choices, located_blocks, numbered_blocks),
    *(sized_blocks, no_input_blocks, block_with_arrays, ufunc_out, ufunc_where, by_dask_index),
    *(empty_parts, nothing, unread_parts, many_layers, wrapped_numbers, einsum_dtype),
    *(rechunked_by_users, reshaped_by_blocks, shuffled, random_about_arrays, moments, skewness),
    *(kurtosis, histogram_of_many, histogram_of_computed_range, running_totals_of_a_type),
    *(transform_with_norm, masked_blocks_unannounced, wider_blocks_than_announced),
    *(pointwise_with_false_chunks, ufunc_of_first_axis, squares_along_first_axis),
    ravelled_products,
)


@pytest.mark.parametrize("case", DASK, ids=lambda case: case.__name__)
def test_features_of_dask(case: Callable[[], Any]) -> None:
    lazy, expected = case()
    equal(lazy.compute(scheduler="sync"), expected)
    same(lazy, expected)


def test_kept_unknown_and_retiled_arrays_together() -> None:
    """Arrays with kept, unknown and new chunks are tiled in one call, with shared inputs."""
    a = x() + 1
    lazy = [a.T @ a, a.map_blocks(located, dtype=int), a.sum(axis=0), v() * 2, a[:3]]
    expected = [value.compute(scheduler="sync") for value in lazy]
    same(lazy, expected)
    same([*lazy, v()[v() > 3]], [*expected, V[V > 3]])


@pytest.mark.parametrize("name", ["nanargmin", "nanargmax"])
def test_errors_of_dask_are_still_raised(name: str) -> None:
    value = X.copy()
    value[:, 3] = np.nan
    lazy = getattr(da, name)(da.from_array(value, chunks=(5, 4)), axis=0)
    with pytest.raises(ValueError, match="All-NaN"):
        getattr(np, name)(value, axis=0)
    with pytest.raises(ValueError, match="All NaN"):
        lazy.compute(scheduler="sync")
    for seed in range(6):
        with pytest.raises(ValueError, match="All NaN"):
            in_random_tiles([lazy], seed)


def test_zero_times_nan_is_nan() -> None:
    """NumPy's dot returns 0 if an argument is a single 0; matmul and einsum return NaN."""
    column, zero = np.array([[0.0], [1.0], [np.nan]]), np.zeros(1)
    a, b = da.from_array(column, chunks=(2, 1)), da.from_array(zero, chunks=1)
    same([a @ b, da.einsum("ij,j->i", a, b)], [column @ zero, np.einsum("ij,j->i", column, zero)])
    assert np.isnan(in_random_tiles([a @ b], 0)[0][2])


@pytest.mark.parametrize("subscripts", ["i,j->ij", "ia,ja->ij", "i,j,k->ijk", "i,i->i"])
def test_products_have_no_negative_zeros(subscripts: str) -> None:
    """NumPy's products have none, because its sums start from zero."""
    terms = subscripts.partition("->")[0].split(",")
    values = [np.full((3, 1)[: len(term)], -2.0 * place) for place, term in enumerate(terms)]
    lazy = da.einsum(subscripts, *(da.from_array(value, chunks=2) for value in values))
    assert not np.signbit(np.einsum(subscripts, *values)).any()
    assert not np.signbit(lazy.compute(scheduler="sync")).any()
    for seed in range(4):
        assert not np.signbit(in_random_tiles([lazy], seed)[0]).any()


def test_stores() -> None:
    targets = [np.zeros((10, 10)), np.zeros((12, 7))]
    with dask.config.set({**EAGER, "array_optimize": dasktile.array_optimize}):
        da.store([x().T @ x(), x() @ y()], targets, scheduler="sync", lock=False)
    np.testing.assert_array_equal(targets[0], X.T @ X)
    np.testing.assert_array_equal(targets[1], X @ Y)


def test_stores_of_tiled_arrays() -> None:
    target = np.zeros((10, 10))
    with dask.config.set(EAGER):
        new = dasktile.optimize(x().T @ x())
    da.store(new, target, scheduler="sync")
    np.testing.assert_array_equal(target, X.T @ X)


def test_store_with_return_stored() -> None:
    target = np.zeros((10, 10))
    stored = da.store(x().T @ x(), target, compute=False, return_stored=True)
    same(stored.T if isinstance(stored, da.Array) else stored[0].T, (X.T @ X).T)
    np.testing.assert_array_equal(target, X.T @ X)


def test_zarr(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    with dask.config.set({**EAGER, "array_optimize": dasktile.array_optimize}):
        (x() @ y()).rechunk((5, 4)).to_zarr(str(tmp_path / "a.zarr"))
    lazy = da.from_zarr(str(tmp_path / "a.zarr"))
    same([lazy.T @ lazy, da.from_zarr(str(tmp_path / "a.zarr"), chunks=(3, 7)).sum(axis=0)],
         [(X @ Y).T @ (X @ Y), (X @ Y).sum(axis=0)])  # fmt: skip


def test_npy_stacks(tmp_path: Path) -> None:
    da.to_npy_stack(str(tmp_path), x())
    lazy = da.from_npy_stack(str(tmp_path))
    same(lazy.T @ lazy, X.T @ X)


def test_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = X
        lazy = da.from_array(file["x"], chunks=(5, 4))
        same(lazy.T @ lazy, X.T @ X)
        same(lazy[::-2, ::-1].sum(axis=0), X[::-2, ::-1].sum(axis=0))
        same(lazy[[5, 1, 1, 11]].T, X[[5, 1, 1, 11]].T)


def test_delayed_consumers() -> None:
    with dask.config.set(EAGER):
        new = dasktile.optimize(x().T @ x())
    parts = new.to_delayed()
    total_of = dask.delayed(lambda blocks: sum(block.sum() for block in blocks))(
        list(parts.ravel())
    )
    assert total_of.compute(scheduler="sync") == (X.T @ X).sum()
    assert dask.delayed(np.sum)(new).compute(scheduler="sync") == (X.T @ X).sum()


def test_tiled_arrays_can_be_extended_and_tiled_again() -> None:
    """A tiled array is an ordinary dask array."""
    with dask.config.set(EAGER):
        new = dasktile.optimize(x().T @ x())
        lazy = (new + x()[:10] - new.mean(axis=0)).rechunk(3)
        again = dasktile.optimize(lazy)
    gram = X.T @ X
    expected = gram + X[:10] - gram.mean(axis=0)
    equal(lazy.compute(scheduler="sync"), expected)
    equal(again.compute(scheduler="sync"), expected)
    same(again, expected)
    assert dask.compute(new, again, scheduler="sync")[0].sum() == gram.sum()
    assert isinstance(pickle.loads(pickle.dumps(again)), da.Array)


def test_masked_blocks_are_recognised_in_tiled_arrays() -> None:
    lazy = da.ma.masked_greater(x() @ y() + 1, 8)
    with dask.config.set(EAGER):
        # the second output prevents the fusion of the tasks that the first one reads
        new, _ = dasktile.optimize(da.ma.filled((lazy + 1).T, -1) @ (x() @ y()), lazy + 1)
        nodes = dasktile.explain(new).nodes
    assert "retile" in {node.op for node in nodes}
    (added,) = [node for node in nodes if node.op == "add"]
    assert "MaskedArray" in added.reason


def test_blocks_of_other_sizes_than_declared() -> None:
    """Arrays of a boolean mask, and reductions that keep several elements of an axis."""

    def largest_two(blocks: Any, axis: Any, keepdims: bool) -> np.ndarray:
        return np.sort(blocks, axis=axis[0])[-2:]

    some, most = x()[x()[:, 0] > 3], x()[x()[:, 0] > np.sort(X[:, 0])[0]]
    two = da.reduction(
        x(), largest_two, largest_two, axis=0, keepdims=True, dtype="f8", output_size=2
    )
    lazy = [some.std(axis=0), most.max(axis=0), two + x()[:2]]
    expected = [
        X[X[:, 0] > 3].std(axis=0),
        X[X[:, 0] > X[:, 0].min()].max(axis=0),
        np.sort(X, axis=0)[-2:] + X[:2],
    ]
    same(lazy, expected)
    for seed in range(6, 30):
        for result, value in zip(in_random_tiles(lazy, seed), expected, strict=True):
            equal(result, value)


def test_names_of_tiled_layers_differ_from_the_input() -> None:
    """Old and new arrays can be computed in one graph."""
    lazy = (x() + 1).T @ (x() + 1)
    with dask.config.set(EAGER):
        new = dasktile.optimize(lazy)
    both = da.stack([lazy.rechunk(new.chunks), new]).compute(scheduler="sync")
    np.testing.assert_array_equal(both[0], both[1])
    joined = dask.compute(lazy, new, lazy + new.rechunk(lazy.chunks), scheduler="sync")
    np.testing.assert_array_equal(joined[0] * 2, joined[2])


def test_scans_with_keys_that_are_not_tiles() -> None:
    """Dask's scan has keys that are not block numbers under the name of its layer."""
    X, W = np.random.default_rng(0).random((2, 40, 40))
    x, w = da.from_array(X, chunks=(5, 40)), da.from_array(W, chunks=5)
    largest = da.reductions.cumreduction(
        lambda a, axis=None, dtype=None, out=None: np.maximum.accumulate(a, axis=axis),
        np.maximum, -np.inf, x @ w, axis=0, dtype="f8",
    )  # fmt: skip
    with dask.config.set(EAGER):
        new = dasktile.optimize((largest + 1) @ w.T, workers=4)
    assert any("-dasktile-" in name for name in new.dask.layers)
    np.testing.assert_allclose(
        new.compute(scheduler="sync"), (np.maximum.accumulate(X @ W) + 1) @ W.T
    )
