"""flox's group-by: values in any tiles, and what is recognised."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.sizeof import sizeof

import dasktile
from dasktile import api
from dasktile._compat.flox import count_bytes, flox_names
from dasktile.capture.highlevel import capture
from dasktile.cluster.target import Machine
from dasktile.ir import Groups, Kind, Node
from tests.agreement import EAGER, in_random_tiles, same
from tests.support import plan_for_workers
from tests.traffic import traffic

flox = pytest.importorskip("flox")
pytest.importorskip("flox.dask")
# the rule is off for other releases of flox, and group-bys are unchanged
pytestmark = pytest.mark.skipif(flox_names() is None, reason="a flox that was not checked")

COMMUTATIVE = (
    *("sum", "nansum", "prod", "nanprod", "mean", "nanmean", "var", "nanvar", "std", "nanstd"),
    *("min", "nanmin", "max", "nanmax", "count", "all", "any"),
)


def _data(shape: tuple[int, ...], chunks: Any, dtype: str = "f8") -> da.Array:
    rng = np.random.default_rng(0)
    values = rng.integers(1, 5, shape).astype(dtype)
    if dtype.startswith("f"):
        values[rng.random(shape) < 0.1] = np.nan
    return da.from_array(values, chunks=chunks)


def _labels(length: int, kind: str) -> Any:
    if kind == "sorted":
        return np.arange(length) // 7
    if kind == "cycle":
        return np.arange(length) % 5
    labels = np.random.default_rng(1).integers(0, 6, length).astype(float)
    labels[::9] = np.nan
    return labels


def _reduce(array: da.Array, *labels: Any, **options: Any) -> da.Array:
    result, *_ = flox.groupby_reduce(array, *labels, **options)
    return result


def _group_nodes(*results: da.Array) -> list[Node]:
    captured = capture(results)
    assert captured.errors == ()
    return [node for node in captured.program.nodes if node.op.startswith("groupby_")]


def _assert_recognised(result: da.Array) -> Node:
    """The only step by groups is a reduction with the same values in any tiles."""
    [node] = _group_nodes(result)
    assert node.kind is Kind.FOLD, node.reason
    expected = result.compute(scheduler="sync")
    for seed in range(5):
        [actual] = in_random_tiles([result], seed)
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual, expected, rtol=1e-6)
    return node


@pytest.mark.parametrize("method", ["map-reduce", "cohorts"])
@pytest.mark.parametrize("func", COMMUTATIVE)
def test_any_order_of_blocks_gives_the_same_value(func: str, method: str) -> None:
    array = _data((3, 4, 40), (2, 4, 6))
    labels = _labels(40, "cycle")
    node = _assert_recognised(_reduce(array, labels, func=func, method=method))
    assert node.op == f"groupby_{func}"


@pytest.mark.parametrize("kind", ["sorted", "cycle", "missing"])
@pytest.mark.parametrize("method", ["map-reduce", "cohorts"])
@pytest.mark.parametrize("dtype", ["i4", "f4"])
def test_labels_of_any_kind(kind: str, method: str, dtype: str) -> None:
    array = _data((5, 40), (5, 8), dtype)
    for func in ("sum", "nanmean", "max"):
        _assert_recognised(_reduce(array, _labels(40, kind), func=func, method=method))


@pytest.mark.parametrize("min_count", [1, 3])
@pytest.mark.parametrize("method", ["map-reduce", "cohorts"])
def test_groups_with_few_elements_are_masked(method: str, min_count: int) -> None:
    result = _reduce(
        _data((4, 20), (4, 3)),
        _labels(20, "missing"),
        func="nansum",
        method=method,
        min_count=min_count,
        fill_value=np.nan,
    )
    _assert_recognised(result)


def test_expected_groups_that_do_not_occur() -> None:
    result = _reduce(
        _data((4, 20), (4, 3)),
        _labels(20, "cycle"),
        func="nanmean",
        method="map-reduce",
        expected_groups=np.arange(-2, 9),
        fill_value=-1.0,
    )
    assert _assert_recognised(result).shape == (4, 11)


def test_partial_results_with_the_groups_of_their_block() -> None:
    result = _reduce(
        _data((4, 20), (4, 3)), _labels(20, "sorted"), func="sum", method="map-reduce",
        reindex=False,
    )  # fmt: skip
    assert _assert_recognised(result).groups == Groups(3, ((0, 7), (1, 14), (2, 20)))


@pytest.mark.parametrize("method", ["map-reduce", "cohorts"])
def test_labels_along_two_axes(method: str) -> None:
    labels = np.random.default_rng(0).integers(0, 7, (9, 8))
    result = _reduce(_data((4, 9, 8), (2, 3, 4)), labels, func="var", method=method)
    _assert_recognised(result)


def test_labels_along_two_axes_of_which_one_is_reduced() -> None:
    labels = np.random.default_rng(0).integers(0, 7, (9, 8))
    result = _reduce(
        _data((4, 9, 8), (2, 3, 4)), labels, func="nansum", axis=-1,
        expected_groups=np.arange(7), method="map-reduce",
    )  # fmt: skip
    _assert_recognised(result)


def test_labels_that_are_computed() -> None:
    labels = da.random.default_rng(0).integers(0, 9, (9, 8), chunks=(3, 4)) % 4
    result = _reduce(
        _data((4, 9, 8), (2, 3, 4)), labels, func="nanmean", expected_groups=np.arange(1, 4)
    )
    _assert_recognised(result)
    program = capture([result]).program
    assert {node.kind for node in program.nodes if "factorize" in node.op} == {Kind.MAP}


def test_labels_that_are_broadcast() -> None:
    labels = np.arange(8)[None, :] % 3
    result = _reduce(
        _data((4, 9, 8), (2, 3, 4)), labels, func="max", axis=(1, 2), method="map-reduce"
    )
    _assert_recognised(result)


def test_bins_and_two_variables() -> None:
    array, rng = _data((4, 30), (4, 7)), np.random.default_rng(0)
    binned = _reduce(
        array, rng.random(30), func="count", isbin=True, method="map-reduce",
        expected_groups=np.linspace(0, 1, 5),
    )  # fmt: skip
    _assert_recognised(binned)
    both = _reduce(array, _labels(30, "cycle"), _labels(30, "sorted"), func="sum",
                   method="map-reduce")  # fmt: skip
    _assert_recognised(both)


@pytest.mark.parametrize("func", ["argmax", "nanargmin"])
def test_results_that_depend_on_the_order_of_blocks_are_unchanged(func: str) -> None:
    array = _data((4, 20), (4, 3))
    result = _reduce(array, _labels(20, "cycle"), func=func, method="map-reduce")
    nodes = _group_nodes(result)
    assert all(node.kind is Kind.OPAQUE for node in nodes)
    assert any("flox's group-by" in node.reason for node in nodes)


@pytest.mark.parametrize("min_count", [0, 2])
@pytest.mark.parametrize("kind", ["sorted", "cycle", "missing"])
@pytest.mark.parametrize("method", ["map-reduce", "cohorts"])
@pytest.mark.parametrize("func", ["nanfirst", "nanlast"])
def test_first_and_last_elements(func: str, method: str, kind: str, min_count: int) -> None:
    values = np.arange(5 * 40.0).reshape(5, 40)
    values[np.random.default_rng(0).random(values.shape) < 0.4] = np.nan
    values[0] = np.nan
    array = da.from_array(values, chunks=((2, 1, 2), (7, 1, 12, 9, 11)))
    result = _reduce(
        array, _labels(40, kind), func=func, method=method, min_count=min_count, fill_value=np.nan
    )
    assert _assert_recognised(result).op == f"groupby_{func}"
    same(result, result.compute(scheduler="sync"))


@pytest.mark.parametrize("min_count", [0, 2])
@pytest.mark.parametrize("kind", ["sorted", "cycle", "missing"])
@pytest.mark.parametrize("dtype", ["i4", "u1", "i8"])
@pytest.mark.parametrize("func", ["nanfirst", "nanlast"])
def test_first_and_last_integers(func: str, dtype: str, kind: str, min_count: int) -> None:
    """The library combines them by another reduction by groups; no element is missing."""
    values, labels = np.arange(5 * 40).reshape(5, 40).astype(dtype), _labels(40, kind)
    array = da.from_array(values, chunks=((2, 1, 2), (7, 1, 12, 9, 11)))
    result = _reduce(array, labels, func=func, method="map-reduce", min_count=min_count)
    assert _assert_recognised(result).op == f"groupby_{func}"
    at = 0 if func == "nanfirst" else -1
    groups = np.unique(labels[~np.isnan(labels)])
    chosen = np.stack([values[:, labels == group][:, at] for group in groups], axis=1)
    same(result, chosen.astype(result.dtype))


def test_first_elements_follow_persisted_blocks_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(3 * 40.0).reshape(3, 40)
    array = (da.from_array(values, chunks=(3, 5)) + 0).persist(scheduler="sync")
    # in none of the orders of blocks
    homes = dict(zip(range(8), (1, 0, 1, 0, 0, 1, 1, 0), strict=True))
    order = ("0", "1")
    located = {(array.name, 0, at): (order[home],) for at, home in homes.items()}
    target = Machine(2, 1, order=order, who_has=lambda blocks: located)
    monkeypatch.setattr(api, "machine", lambda *_: target)
    result = _reduce(array, _labels(40, "cycle"), func="nanfirst", method="map-reduce")
    with dask.config.set(EAGER):
        plan = dasktile.optimize(result)
    assert plan is not result
    np.testing.assert_array_equal(plan.compute(scheduler="sync"), values[:, :5])


def test_half_precision_is_unchanged() -> None:
    array = _data((4, 20), (4, 3), "f2")
    result = _reduce(array, _labels(20, "cycle"), func="sum", method="map-reduce")
    *_, last = _group_nodes(result)
    assert (
        last.reason
        == "flox's group-by sum over axis 1: float16 is rounded differently in other chunks"
    )
    _assert_recognised(_reduce(array, _labels(20, "cycle"), func="max", method="map-reduce"))


def test_an_aggregation_of_the_users_own_is_unchanged() -> None:
    own = flox.Aggregation(
        name="sum", numpy="sum", chunk="sum", combine="max", fill_value=0, final_fill_value=0
    )
    array = _data((4, 20), (4, 3))
    result = _reduce(array, _labels(20, "cycle"), func=own, method="map-reduce")
    *_, last = _group_nodes(result)
    assert last.kind is Kind.OPAQUE
    assert "the user's own" in last.reason


def test_a_cohort_that_lacks_a_block_of_its_groups_is_unchanged() -> None:
    result = _reduce(
        _data((4, 20), (4, 5)), np.arange(20) // 6, func="sum", method="cohorts"
    )  # fmt: skip
    graph = result.__dask_graph__()
    [name] = [name for name in graph.layers if "reduce-cohorts" in name]
    tasks = dict(graph.layers[name])
    # groups 0 and 1 are both in block 1
    leaves = [key for key in tasks if "groupby-cohort" in key[0]]
    [chunk] = [other for other in graph.layers if "-chunk-" in other]
    moved = next(key for key in leaves if tasks[key][1] == (chunk, 0, 1))
    function, _ = tasks[moved]
    tasks[moved] = (function, (chunk, 0, 3))
    layers = {**graph.layers, name: type(graph.layers[name])(tasks)}
    layers[name].collection_annotations = graph.layers[name].collection_annotations
    changed = type(graph)(layers, graph.dependencies)
    nodes = _group_nodes(da.Array(changed, result.name, result.chunks, meta=result._meta))
    assert all(node.kind is Kind.OPAQUE for node in nodes)


def test_functions_can_be_sent() -> None:
    result = _reduce(_data((4, 20), (4, 3)), _labels(20, "cycle"), func="var", method="cohorts")
    captured = capture([result])
    [kernel] = [kernel for kernel in captured.kernels if type(kernel).__name__ == "GroupFold"]
    for function in (kernel.chunk, kernel.combine, kernel.aggregate, kernel.piece):
        assert callable(pickle.loads(pickle.dumps(function)))


def test_a_flox_that_was_not_checked_is_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dasktile.capture.rules.groups.flox_names", lambda: None)
    result = _reduce(_data((4, 20), (4, 3)), _labels(20, "cycle"), func="sum", method="cohorts")
    assert all(node.kind is Kind.OPAQUE for node in _group_nodes(result))


@pytest.mark.parametrize("method", ["map-reduce", "cohorts"])
def test_xarray(method: str) -> None:
    xr = pytest.importorskip("xarray")
    time = np.datetime64("2001-01-01", "ns") + np.arange(60) * np.timedelta64(1, "D")
    field = xr.DataArray(
        _data((60, 3, 4), (7, 3, 2)), dims=("time", "y", "x"), coords={"time": time}
    )
    grouped = field.groupby("time.month")
    for result in (
        grouped.mean(method=method),
        field.resample(time="W").max(method=method),
        grouped - grouped.mean(method=method),
    ):
        _assert_recognised(result.data)


def test_a_group_by_in_a_computation_with_other_arrays() -> None:
    array = _data((6, 40), (2, 6))
    labels = _labels(40, "cycle")
    means = _reduce(array, labels, func="nanmean", method="cohorts")
    anomalies = array - da.take(means, labels, axis=-1)
    same([anomalies, means], dask.compute(anomalies, means, scheduler="sync"))


def _is_wanted(block: np.ndarray) -> np.ndarray:
    if block.size and block.max() >= 20:
        raise ValueError("Dask does not compute this block")
    return block


def test_blocks_of_other_cohorts_are_not_computed() -> None:
    values = np.broadcast_to(np.arange(40.0), (3, 40))
    array = da.from_array(values, chunks=(3, 5)).map_blocks(_is_wanted, dtype=float)
    result = _reduce(array, np.arange(40) // 10, func="sum", method="cohorts")[:, :1]
    assert result.numblocks[-1] == 1
    expected = values[:, :10].sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(result.compute(scheduler="sync"), expected)
    with dask.config.set(EAGER):
        [planned] = dasktile.optimize([result])
    np.testing.assert_array_equal(planned.compute(scheduler="sync"), expected)


def _is_labelled(block: np.ndarray) -> np.ndarray:
    if block.size and 20 <= block.max() < 30:
        raise ValueError("Dask does not compute this block")
    return block


def test_blocks_without_any_group_are_not_computed() -> None:
    values = np.broadcast_to(np.arange(40.0), (64, 40))
    array = da.from_array(values, chunks=(16, 5)).map_blocks(_is_labelled, dtype=float)
    labels = np.arange(40.0) // 10
    labels[20:30] = np.nan
    means = _reduce(array, labels, func="mean", method="cohorts")
    *_, last = _group_nodes(means)
    assert last.reason == "flox's group-by mean over axis 1: blocks without any group are not read"
    product = means.T @ means
    expected = product.compute(scheduler="sync")
    with dask.config.set(EAGER):
        planned = dasktile.optimize(product)
    np.testing.assert_allclose(planned.compute(scheduler="sync"), expected)


def test_a_flox_that_is_still_being_imported_is_found_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as context:
        context.delitem(sys.modules, "flox.core")
        assert flox_names() is None
    assert flox_names() is not None


def test_partial_results_of_single_blocks_are_no_arrays() -> None:
    array = _data((40, 60, 40), (40, 60, 10), "f8")
    labels = np.arange(40) // 10 * 2 + np.arange(40) % 2
    means = _reduce(array, labels, func="mean", method="blockwise")
    [node] = _group_nodes(means)
    assert node.kind is Kind.OPAQUE and node.reason.startswith(
        "flox's group-by mean over axis 2: elements"
    )
    # they would have the bytes of the blocks, and these would be moved
    assert dasktile.explain(means.sum(), workers=4).bytes_after < 1000


@pytest.mark.parametrize("func", ["argmax", "nanargmin"])
def test_positions_of_extrema_are_found_where_the_lanes_are(
    monkeypatch: pytest.MonkeyPatch, func: str
) -> None:
    """Unchanged tasks of one lane of blocks are on one worker: only positions move."""
    plan_for_workers(monkeypatch)
    array = da.random.default_rng(0).random((80, 120, 730), chunks=(40, 60, 73))
    result = _reduce(array, np.arange(730) % 12, func=func)
    planned, explained = dasktile.optimize(result), dasktile.explain(result)
    received, lost = traffic([planned], 4)
    assert lost == []
    assert sum(received.values()) <= 100_000
    assert explained.bytes_predicted == pytest.approx(sum(received.values()), abs=20_000)
    np.testing.assert_array_equal(
        planned.compute(scheduler="sync"), result.compute(scheduler="sync")
    )


def test_workers_count_the_arrays_of_partial_results_of_variances() -> None:
    from flox.multiarray import MultiArray

    count_bytes()
    value = MultiArray((np.ones(1000), np.ones(1000)))
    assert sizeof({"intermediates": [value]}) >= 2 * 8000
