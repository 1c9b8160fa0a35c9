"""flox's group-by with the method ``blockwise``: values in any tiles, and what is recognised."""

from __future__ import annotations

import random
from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dasktile
from dasktile._compat.flox import flox_names
from dasktile.capture.highlevel import capture
from dasktile.ir import AxisMap, Kind, Node, Role
from tests.agreement import in_random_tiles, same
from tests.support import plan_for_workers, random_cuts

flox = pytest.importorskip("flox")
pytest.importorskip("flox.dask")
# the rule is off for other releases of flox, and group-bys are unchanged
pytestmark = pytest.mark.skipif(flox_names() is None, reason="a flox that was not checked")

SIMPLE = (
    *("sum", "nansum", "mean", "nanmean", "var", "nanstd", "min", "nanmax", "count", "all", "any"),
    *("first", "nanfirst", "last", "nanlast", "median", "nanmedian"),
)
#: Numbers of elements of groups that follow one another.
SIZES = {"even": [4] * 6, "ends": [2, 4, 4, 4, 4, 1], "months": [3, 1, 5, 2, 4, 3]}


def _values(shape: tuple[int, ...], dtype: str = "f8") -> Any:
    rng = np.random.default_rng(0)
    values = rng.integers(-3, 5, shape).astype(dtype)
    if dtype.startswith("f"):
        values[rng.random(shape) < 0.2] = np.nan
        values[0, 0] = np.nan
    return values


def _labels(sizes: list[int]) -> Any:
    return np.repeat(np.arange(len(sizes)), sizes)


def _reduce(array: da.Array, labels: Any, **options: Any) -> da.Array:
    result, *_ = flox.groupby_reduce(array, labels, method="blockwise", **options)
    return result


def _blocks(sizes: list[int], groups: list[int]) -> tuple[int, ...]:
    """Sizes of blocks that have these numbers of groups."""
    ends = np.cumsum([0, *groups])
    return tuple(sum(sizes[lo:hi]) for lo, hi in zip(ends[:-1], ends[1:], strict=True))


def _node(*results: da.Array) -> Node:
    captured = capture(results)
    assert captured.errors == ()
    *_, node = (node for node in captured.program.nodes if node.op.startswith("groupby_"))
    return node


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("func", SIMPLE)
def test_tiles_of_any_groups(func: str, sizes: list[int]) -> None:
    chunks = (2, 1, 1), 3, _blocks(sizes, [2, 1, 3])
    array = da.from_array(_values((4, 3, sum(sizes))), chunks=chunks)
    lazy = _reduce(array, _labels(sizes), func=func)
    node = _node(lazy)
    assert (node.op, node.kind) == (f"groupby_{func}", Kind.MAP), node.reason
    assert [label.role for label in node.labels] == [Role.FREE] * 3
    assert node.labels[-1].size == len(sizes)
    same(lazy, lazy.compute(scheduler="sync"))


def test_windows_of_groups() -> None:
    for sizes, expected in (
        ([4, 4, 4], AxisMap(1, 0, 4, 4)),
        ([3, 4, 4, 2], AxisMap(1, -1, 4, 4)),
        ([1, 1, 1], AxisMap(1)),
        ([2, 1, 3], AxisMap(1, 0, 3, 3, (0, 2, 3, 6))),
    ):
        array = da.from_array(_values((4, sum(sizes))), chunks=(2, -1))
        node = _node(_reduce(array, _labels(sizes), func="nanmax"))
        assert [edge.axes[-1] for edge in node.edges] == [expected, expected]


@pytest.mark.parametrize("func", [*SIMPLE, "quantile", "nanquantile"])
def test_labels_in_any_order_in_one_block(func: str) -> None:
    labels = np.random.default_rng(1).integers(0, 5, 20)
    array = da.from_array(_values((7, 20)), chunks=((3, 1, 3), 20))
    options = {"finalize_kwargs": {"q": 0.3}} if "quantile" in func else {}
    lazy = _reduce(array, labels, func=func, **options)
    node = _node(lazy)
    assert [label.role for label in node.labels] == [Role.FREE, Role.WHOLE], node.reason
    same(lazy, lazy.compute(scheduler="sync"))


@pytest.mark.parametrize(
    "labels", [_labels([3, 1, 5, 2]), np.arange(11) % 3], ids=["sorted", "not"]
)
def test_several_quantiles_are_along_one_more_axis(labels: Any) -> None:
    array = da.from_array(_values((7, 11)), chunks=((3, 1, 3), 11))
    lazy = _reduce(array, labels, func="nanquantile", finalize_kwargs={"q": [0.2, 0.5, 1.0]})
    assert lazy.shape == (3, 7, len(np.unique(labels)))
    node = _node(lazy)
    assert node.kind is Kind.MAP, node.reason
    assert node.out[0] == AxisMap(None)
    same(lazy, lazy.compute(scheduler="sync"))
    same(lazy.transpose(2, 0, 1)[:, 1:] + 1, (lazy.transpose(2, 0, 1)[:, 1:] + 1).compute())


@pytest.mark.parametrize("dtype", ["i4", "f4", "?", "u1"])
def test_other_dtypes_and_groups_with_few_elements(dtype: str) -> None:
    sizes = SIZES["months"]
    array = da.from_array(_values((5, sum(sizes)), dtype), chunks=(2, _blocks(sizes, [3, 3])))
    for func in ("nanfirst", "nanlast", "max", "sum"):
        lazy = _reduce(array, _labels(sizes), func=func)
        assert _node(lazy).kind is Kind.MAP
        same(lazy, lazy.compute(scheduler="sync"))
    lazy = _reduce(array, _labels(sizes), func="nansum", min_count=3, fill_value=np.nan)
    assert _node(lazy).kind is Kind.MAP
    same(lazy, lazy.compute(scheduler="sync"))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from(["nanmean", "last", "median", "var"]))
def test_random_groups_and_blocks(seed: int, func: str) -> None:
    rng = random.Random(seed)
    sizes = [rng.randint(1, 5) for _ in range(rng.randint(1, 9))]
    groups = random_cuts(len(sizes), rng)
    array = da.from_array(
        _values((6, sum(sizes))), chunks=(random_cuts(6, rng), _blocks(sizes, list(groups)))
    )
    lazy = _reduce(array * 2, _labels(sizes), func=func)
    assert _node(lazy).kind is Kind.MAP
    expected = lazy.compute(scheduler="sync")
    [actual] = in_random_tiles([lazy], seed)
    np.testing.assert_allclose(actual, expected, rtol=1e-9)


def test_groups_whose_elements_are_not_neighbours_are_unchanged() -> None:
    labels = np.array([1, 0, 1, 0, 3, 2, 3, 2])
    lazy = _reduce(da.from_array(_values((4, 8)), chunks=(2, 4)), labels, func="max")
    node = _node(lazy)
    assert node.kind is Kind.OPAQUE
    assert "must be neighbours, or all in one block" in node.reason
    same(lazy, lazy.compute(scheduler="sync"))


def test_an_aggregation_of_the_users_own_is_unchanged() -> None:
    own = flox.Aggregation(
        name="max", numpy="min", chunk="max", combine="max", fill_value=0, final_fill_value=0
    )
    lazy = _reduce(da.from_array(_values((4, 8)), chunks=(2, 4)), np.arange(8) // 2, func=own)
    node = _node(lazy)
    assert node.kind is Kind.OPAQUE
    assert "the user's own" in node.reason


def test_labels_along_two_axes_are_unchanged() -> None:
    labels = np.random.default_rng(0).integers(0, 3, (4, 6))
    lazy = _reduce(da.from_array(_values((5, 4, 6)), chunks=(2, -1, -1)), labels, func="median")
    assert _node(lazy).kind is Kind.OPAQUE
    same(lazy, lazy.compute(scheduler="sync"))


def test_labels_that_are_computed() -> None:
    labels = da.from_array(np.arange(12) % 4, chunks=12)
    lazy, *_ = flox.groupby_reduce(
        da.from_array(_values((5, 12)), chunks=(2, 12)), labels, func="nanmedian",
        method="blockwise", expected_groups=np.arange(5),
    )  # fmt: skip
    assert [label.role for label in _node(lazy).labels] == [Role.FREE, Role.WHOLE]
    same(lazy, lazy.compute(scheduler="sync"))


def test_xarray() -> None:
    xr = pytest.importorskip("xarray")
    time = np.datetime64("2001-01-01", "ns") + np.arange(90) * np.timedelta64(1, "D")
    field = xr.DataArray(
        da.from_array(_values((90, 3, 4)), chunks=(30, 3, 2)),
        dims=("time", "y", "x"),
        coords={"time": time},
    )
    days = field.chunk(time=10)
    lengths = [31, 28, 31]
    months = field.chunk(time=tuple(lengths))
    whole = field.chunk(time=-1)
    for result in (
        days.resample(time="5D").mean(),
        days.resample(time="5D").first(),
        months.resample(time="MS").max(),
        whole.groupby("time.dayofweek").median(),
        whole.groupby("time.month").quantile([0.1, 0.9]),
    ):
        assert _node(result.data).kind is Kind.MAP
        same(result.data, result.data.compute(scheduler="sync"))


def test_other_axes_are_divided_where_that_moves_least(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch)
    field = da.random.default_rng(0).random((40, 60, 360), chunks=(20, 30, 60))
    daily = _reduce(field, np.arange(360) // 4, func="nanmax")
    explanation = dasktile.explain((daily - daily.mean(axis=2, keepdims=True)).std(axis=2))
    # the numbers of the groups are sent to three workers
    assert explanation.bytes_after == explanation.lower_bound == 3 * 360 * 8
    assert explanation.bytes_predicted <= explanation.bytes_before
    assert not explanation.uncounted


def test_bytes_of_groups_of_several_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch)
    sizes = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    field = da.random.default_rng(0).random((1, 4000, 365), chunks=(1, 4000, (90, 91, 92, 92)))
    monthly = _reduce(field, _labels(sizes), func="nanmean")
    explanation = dasktile.explain((monthly @ monthly.transpose(0, 2, 1)).sum(axis=1))
    # of the graph, whose pieces are as large as the model says
    assert explanation.received_after == explanation.bytes_after <= explanation.bytes_before
