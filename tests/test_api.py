from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np
import pytest
from dask.callbacks import Callback
from dask.delayed import Delayed
from zict import LRU

import dasktile
from dasktile import api, config, pipeline, planning, returned
from dasktile.cluster.target import Machine, _cluster
from dasktile.collections.output_chunks import storable
from dasktile.errors import (
    ContradictedKernelWarning,
    InternalErrorWarning,
    UnsupportedCollectionWarning,
)
from dasktile.ir import ALREADY_TILED
from dasktile.schedule.placement import placements_of
from tests.agreement import EAGER
from tests.support import plan_for_workers

RNG = np.random.default_rng(0)
A, B = RNG.random((240, 180)), RNG.random((180, 210))


def product() -> da.Array:
    """A product of arrays in chunks with which all bytes are moved."""
    return da.from_array(A, chunks=(20, 180)) @ da.from_array(B, chunks=(20, 210))


@pytest.fixture(autouse=True)
def tasks_cost_much() -> Iterator[None]:
    # For arrays as small as these, re-tiling saves mainly tasks.
    with dask.config.set({"dasktile.cost.task-bytes": "10 MB"}):
        yield


def compute(x: Any) -> Any:
    return x.compute(scheduler="sync")


# Inputs and outputs ------------------------------------------------------------------


def test_one_array_returns_one_array() -> None:
    x = product()
    y = dasktile.optimize(x, workers=4)
    assert isinstance(y, da.Array)
    assert y.name != x.name and len(y.dask) != 0
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert type(y._meta) is type(x._meta)
    np.testing.assert_allclose(compute(y), A @ B)


def test_arrays_of_many_axes() -> None:
    # more splits of the axes in two than can be compared
    x = da.from_array(np.ones((2,) * 14 + (1,) * 13), chunks=-1)
    with dask.config.set({"dasktile.tiling.min-tile": 1}):
        y = dasktile.optimize(da.tensordot(x, x, 27), workers=4)
    assert compute(y) == 2**14


def test_the_input_is_not_changed() -> None:
    x = product()
    layers, keys = dict(x.dask.layers), x.__dask_keys__()
    dasktile.optimize(x, workers=4)
    assert dict(x.dask.layers) == layers and x.__dask_keys__() == keys
    np.testing.assert_allclose(compute(x), A @ B)


def test_several_arrays_return_a_tuple() -> None:
    x = product()
    result = dasktile.optimize(x, x.sum(axis=0), workers=4)
    assert isinstance(result, tuple) and len(result) == 2
    np.testing.assert_allclose(compute(result[0]), A @ B)
    np.testing.assert_allclose(compute(result[1]), (A @ B).sum(axis=0))


def test_shared_work_stays_shared() -> None:
    x = product()
    first, second = dasktile.optimize(x + 1, x * 2, workers=4)
    alone = len(dict(first.dask)) + len(dict(second.dask))
    assert len({**first.dask, **second.dask}) < alone
    assert set(first.dask.layers) != set(second.dask.layers)


def test_no_arrays_return_an_empty_tuple() -> None:
    assert dasktile.optimize() == ()


def test_repeated_arrays() -> None:
    x = product()
    first, second = dasktile.optimize(x, x, workers=4)
    assert first.name == second.name


def test_names_are_deterministic() -> None:
    assert (
        dasktile.optimize(product(), workers=4).name == dasktile.optimize(product(), workers=4).name
    )


def test_keep_chunks() -> None:
    x = product()
    assert dasktile.optimize(x, workers=4).chunks != x.chunks
    y = dasktile.optimize(x, workers=4, keep_chunks=True)
    assert y.chunks == x.chunks
    np.testing.assert_allclose(compute(y), A @ B)


def test_unchanged_arrays_are_the_same_object() -> None:
    x = da.ones((10, 10), chunks=10) + 1
    assert dasktile.optimize(x, workers=4) is x
    assert dasktile.optimize(product(), method="none", workers=4).name == product().name


@pytest.mark.parametrize("value", [1, "text", None, A, {"a": 1}, [1, 2], object()])
def test_values_without_arrays_are_returned_unchanged(value: Any) -> None:
    assert dasktile.optimize(value, workers=4) is value


def test_containers() -> None:
    class Pair(NamedTuple):
        left: Any
        right: Any

    x = product()
    result = dasktile.optimize({"a": [x, 3], "b": Pair(x.T, None), "c": (x,)}, workers=4)
    assert list(result) == ["a", "b", "c"] and result["a"][1] == 3
    assert type(result["b"]) is Pair and type(result["c"]) is tuple
    np.testing.assert_allclose(compute(result["b"].left), (A @ B).T)
    assert result["a"][0].name == result["c"][0].name != x.name


def test_untouched_containers_are_the_same_objects() -> None:
    x = da.ones((10, 10), chunks=10)
    value = [x, {"x": x}]
    assert dasktile.optimize(value, workers=4) is value


class Quantity:
    """A collection around an array, as packages for physical units have them."""

    def __init__(self, magnitude: Any, unit: str) -> None:
        self.magnitude, self.unit = magnitude, unit

    def __dask_graph__(self) -> Any:
        return self.magnitude.__dask_graph__()

    def __dask_keys__(self) -> Any:
        return self.magnitude.__dask_keys__()

    def __dask_postpersist__(self) -> Any:
        rebuild, arguments = self.magnitude.__dask_postpersist__()
        return lambda graph, unit: Quantity(rebuild(graph, *arguments), unit), (self.unit,)


def test_collections_around_arrays() -> None:
    x = product()
    result = dasktile.optimize(Quantity(x, "m"), workers=4)
    assert isinstance(result, Quantity) and result.unit == "m"
    assert (result.magnitude.name, result.magnitude.chunks) == (x.name, x.chunks)
    assert len(dict(result.magnitude.dask)) < len(dict(x.dask))
    np.testing.assert_allclose(compute(result.magnitude), A @ B)


def test_delayed_objects_over_arrays() -> None:
    d = dask.delayed(np.trace)(product() @ product().T)
    # dask has already built their tasks
    assert dasktile.optimize(d, workers=4) is d
    assert isinstance(d, Delayed)


def test_other_collections_pass_through() -> None:
    d = dask.delayed(sum)([1, 2])
    assert dasktile.optimize(d, workers=4) is d


def test_zero_dimensional_arrays() -> None:
    y = dasktile.optimize(product().sum(), workers=4)
    assert y.shape == ()
    np.testing.assert_allclose(compute(y), (A @ B).sum())
    x = da.from_array(np.array(3.0))
    assert compute(dasktile.optimize(x, workers=4)) == 3.0


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0)])
def test_empty_arrays(shape: tuple[int, ...]) -> None:
    y = dasktile.optimize(da.ones(shape, chunks=2) + 1, workers=4)
    np.testing.assert_array_equal(compute(y), np.ones(shape) + 1)


def test_inputs_of_unknown_chunks_are_kept() -> None:
    x = product()
    y = x[x > 45]
    z = dasktile.optimize(y, workers=4)
    assert z.name == y.name and np.isnan(z.shape[0])
    np.testing.assert_allclose(np.sort(compute(z)), np.sort((A @ B)[A @ B > 45]))
    rows = dasktile.explain(y, workers=4).nodes
    assert "unknown" in rows[-1].reason


def test_computed_chunk_sizes() -> None:
    x = product()
    y = x[x[:, 0] > 45]
    y.compute_chunk_sizes()
    z = dasktile.optimize(y @ y.T, workers=4)
    R = (A @ B)[(A @ B)[:, 0] > 45]
    np.testing.assert_allclose(compute(z), R @ R.T)


# xarray -------------------------------------------------------------------------------


def test_data_arrays_keep_names_and_attributes() -> None:
    xarray = pytest.importorskip("xarray")
    x = product()
    value = xarray.DataArray(
        x,
        dims=("i", "j"),
        coords={"i": np.arange(240), "norm": ("i", x.sum(axis=1), {"units": "m"})},
        name="z",
        attrs={"a": 1},
    )
    result = dasktile.optimize(value, workers=4)
    assert isinstance(result, xarray.DataArray)
    assert (result.name, result.dims, result.attrs) == ("z", ("i", "j"), {"a": 1})
    assert result.coords["norm"].attrs == {"units": "m"}
    assert result.data.name != x.name
    xarray.testing.assert_allclose(
        result.compute(scheduler="sync"), value.compute(scheduler="sync")
    )
    assert value.data.name == x.name


def test_datasets_keep_names_and_attributes() -> None:
    xarray = pytest.importorskip("xarray")
    x = product()
    value = xarray.Dataset(
        {"z": (("i", "j"), x, {"units": "K"}), "plain": ("i", A[:, 0])},
        coords={"j": np.arange(210), "norm": ("i", x.sum(axis=1))},
        attrs={"title": "t"},
    )
    result = dasktile.optimize(value, workers=4)
    assert isinstance(result, xarray.Dataset)
    assert result.attrs == {"title": "t"} and result.z.attrs == {"units": "K"}
    assert set(result.coords) == {"j", "norm"} and list(result) == ["z", "plain"]
    assert result.z.data.name != x.name
    xarray.testing.assert_allclose(
        result.compute(scheduler="sync"), value.compute(scheduler="sync")
    )


@pytest.mark.parametrize("keep_chunks", [False, True])
def test_xarray_variables_agree_on_chunks(tmp_path: Any, keep_chunks: bool) -> None:
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    rng = np.random.default_rng(0)
    value = xarray.Dataset(
        {
            "rain": (("time", "y", "x"), rng.random((730, 20, 30))),
            "heat": (("time", "y", "x"), rng.random((730, 20, 30)).astype("f4")),
        },
        coords={"land": (("y", "x"), rng.random((20, 30)) > 0.5)},
    ).chunk(time=50, y=10)
    for number, expression in enumerate((value * 2, value - value.mean("time"), value.heat + 1)):
        result = dasktile.optimize(expression, workers=4, keep_chunks=keep_chunks)
        assert set(result.chunksizes) == {"time", "y", "x"}  # raises where they do not agree
        if keep_chunks:
            assert result.chunksizes == expression.chunksizes
        xarray.testing.assert_allclose(result.compute(), expression.compute(), rtol=1e-3, atol=1e-4)
        if number < 2:
            result.to_zarr(tmp_path / f"{number}.zarr", zarr_format=2)


@pytest.fixture
def stored(tmp_path: Any) -> Any:
    """A dataset in a Zarr store: a variable in chunks, and a coordinate in one chunk."""
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    value = xarray.Dataset(
        {"t": (("time", "y", "x"), RNG.random((730, 50, 60)))},
        coords={"area": (("y", "x"), RNG.random((50, 60)))},
    )
    value.chunk(time=73).to_zarr(tmp_path / "stored.zarr", consolidated=False)
    return xarray.open_zarr(tmp_path / "stored.zarr", consolidated=False)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize(
    "expression",
    [
        lambda d: d - d.mean("time"),
        lambda d: d.t - d.t.mean("time"),
        lambda d: d / d.area * d.t.mean(("y", "x")),
        lambda d: xr_dot(d.t, d.t.isel(time=slice(0, 40)).rename(time="other")),
        lambda d: d.t.cumsum("time").to_dataset(),
        lambda d: d.transpose("x", "y", "time").drop_encoding(),
        lambda d: d.isel(time=slice(700)),
    ],
    ids=["dataset", "array", "coordinate", "product", "sums", "transposed", "part"],
)
def test_xarray_objects_can_be_stored(
    stored: Any,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    expression: Any,
    workers: int,
) -> None:
    xarray = pytest.importorskip("xarray")
    value = expression(stored)
    value.to_zarr(tmp_path / "value.zarr", consolidated=False)
    order = tuple("abcd"[:workers])
    monkeypatch.setattr(api, "machine", lambda *_: Machine(workers, 1, order=order))
    with dask.config.set(config.defaults), dask.config.set({"dasktile.tiling.min-tile": 1}):
        result = dasktile.optimize(value)
    assert set(result.chunksizes) == set(value.chunksizes)
    result.to_zarr(tmp_path / "found.zarr", consolidated=False)
    stored_result = xarray.open_zarr(tmp_path / "found.zarr", consolidated=False)
    expected = value if isinstance(value, xarray.Dataset) else value.to_dataset(name=value.name)
    xarray.testing.assert_allclose(
        stored_result.compute(scheduler="sync"), expected.compute(scheduler="sync")
    )


def xr_dot(left: Any, right: Any) -> Any:
    return pytest.importorskip("xarray").dot(left, right, dim=("y", "x")).rename("dot")


def test_tiles_of_xarray_objects_are_cut_evenly_without_moving_bytes(
    stored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = stored - stored.mean("time")
    monkeypatch.setattr(api, "machine", lambda *_: Machine(2, 1, order=("a", "b")))
    # bundles would allow smaller tiles, which are even
    with dask.config.set({**config.defaults, "dasktile.bundle": 0}):
        result = dasktile.optimize(value)
        uneven = dasktile.optimize(value.t.data).chunks[0]
        shown = dasktile.explain(value)
    assert len(set(uneven[:-1])) > 1, "the tiles must be uneven for this test"
    assert result.chunksizes["time"] == (73,) * 10
    assert shown.nodes[-1].chunks_after == result.t.chunks


@pytest.mark.parametrize(
    ("tiles", "own", "encoded", "expected"),
    [
        ((146, 219, 146, 219), (73,) * 10, (), (73,) * 10),
        ((146, 219, 146, 219), (1,) * 730, (), (73,) * 10),
        ((365, 365), (73,) * 10, (), (365, 365)),
        ((365, 365), (73,) * 10, (73,), (365, 365)),
        ((25, 25), (50,), (50,), (50,)),
        # the input's own chunks do not match the stored ones either
        ((25, 25), (20, 30), (50,), (25, 25)),
        # nearly even tiles
        ((182, 183, 182, 183), (730,), (), (183, 183, 183, 181)),
        ((182, 183, 182, 183), (10,) * 73, (10,), (10,) * 73),
        ((300, 430), (365, 365), (), (300, 300, 130)),
        ((50, 300, 380), (365, 365), (), (365, 365)),
        ((2, 1), (3,), (), (2, 1)),
        ((1, 2), (1, 1, 1), (), (1, 1, 1)),
        # the input's own chunks cannot be stored either
        ((31, 28, 31), (31, 59), (), (31, 28, 31)),
        # although near tiles of equal sizes could
        ((8, 7, 7, 8), (8, 7, 7, 8), (), (8, 7, 7, 8)),
        ((8, 7, 7, 8), (30,), (), (8, 8, 8, 6)),
        ((0,), (0,), (), (0,)),
        ((5,), (1,) * 5, (2,), (5,)),
    ],
)
def test_chunks_to_store(
    tiles: tuple[int, ...],
    own: tuple[int, ...],
    encoded: tuple[int, ...],
    expected: tuple[int, ...],
) -> None:
    assert storable(tiles, own, encoded) == expected


def test_xarray_objects_without_dask_pass_through() -> None:
    xarray = pytest.importorskip("xarray")
    value = xarray.Dataset({"a": ("i", A[:, 0])})
    assert dasktile.optimize(value, workers=4) is value
    assert dasktile.optimize(value.a, workers=4).identical(value.a)


# Bad input ------------------------------------------------------------------------------


def test_chunks_of_some_axes_keep_those_of_the_others() -> None:
    x = da.ones((400, 300), chunks=(50, 60))
    for lazy in (x - x.mean(axis=0), x @ x.T):
        with dask.config.set(EAGER):
            free = dasktile.optimize(lazy)
            assert free.chunks != lazy.chunks
            planned = dasktile.optimize(lazy, chunks={1: -1})
            # the chunks of the one axis are those of the input: the others are not left to the plan
            kept = dasktile.optimize(lazy, chunks={1: lazy.chunks[1]})
        assert planned.chunks == (lazy.chunks[0], (lazy.shape[1],))
        assert kept.chunks == lazy.chunks


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"workers": 0}, ValueError, r"workers must be an integer from 1 to 1,000,000.*got 0"),
        ({"workers": -1}, ValueError, r"workers must be.*got -1"),
        ({"workers": True}, TypeError, r"workers must be.*got True of type bool"),
        ({"workers": 2.0}, TypeError, r"workers must be.*got 2\.0 of type float"),
        ({"workers": "4"}, TypeError, r"workers must be.*got '4' of type str"),
        ({"method": "best"}, ValueError, r"method must be one of .*'auto'.*got 'best'"),
        ({"method": None}, TypeError, r"method must be one of .*got None"),
        ({"memory_limit": 0}, ValueError, r"memory_limit must be a positive.*got 0"),
        ({"memory_limit": " "}, ValueError, r"memory_limit must be a positive.*got ' '"),
        ({"memory_limit": "2 chunks"}, ValueError, r"memory_limit must be.*got '2 chunks'"),
        ({"memory_limit": float("nan")}, ValueError, r"memory_limit must be.*got nan"),
        ({"memory_limit": [1]}, TypeError, r"memory_limit must be.*of type list"),
        ({"memory_limit": True}, TypeError, r"memory_limit must be.*of type bool"),
        ({"keep_chunks": "no"}, TypeError, r"keep_chunks must be True or False; got 'no'"),
        (
            {"keep_chunks": {1: True}},
            TypeError,
            r"of type dict; .*chunks=\{1: -1\}",
        ),
    ],
)
@pytest.mark.parametrize("call", [dasktile.optimize, dasktile.explain])
def test_errors_name_the_invalid_argument(
    call: Any, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(product(), **arguments)


def test_errors_name_the_invalid_setting() -> None:
    with (
        dask.config.set({"dasktile.workers": 0}),
        pytest.raises(ValueError, match=r"dasktile\.workers"),
    ):
        dasktile.optimize(product())
    with (
        dask.config.set({"dasktile.method": "best"}),
        pytest.raises(ValueError, match=r"dasktile\.method"),
    ):
        dasktile.optimize(product())
    with (
        dask.config.set({"dasktile.cost.bandwidth": "fast", "dasktile.raise-errors": False}),
        pytest.raises(ValueError, match=r"dasktile\.cost\.bandwidth"),
    ):
        dasktile.optimize(product())


def test_numpy_numbers_are_accepted() -> None:
    array = product()
    numbers = dasktile.optimize(array, workers=4, memory_limit=1e9)
    of_numpy = dasktile.optimize(array, workers=np.int64(4), memory_limit=np.float64(1e9))
    assert of_numpy.name == numbers.name != array.name
    assert of_numpy.chunks == numbers.chunks


class Largest(Callback):
    """Bytes of the largest block that a task returns."""

    def __init__(self) -> None:
        self.nbytes = 0

    def _posttask(self, key: Any, result: Any, dsk: Any, state: Any, worker: Any) -> None:
        if isinstance(key, tuple):
            self.nbytes = max(self.nbytes, getattr(result, "nbytes", 0))


@pytest.mark.parametrize("limit", [0.2, 0.3, 0.4, 0.5, 1])
@pytest.mark.parametrize("workers", [1, 4])
def test_no_tile_is_larger_than_the_memory_limit(limit: float, workers: int) -> None:
    x = da.random.default_rng(0).random((640, 480), chunks=(64, 96))
    for expression in (x.T @ x, da.where(x > 0.5, x, x.mean())):
        tiled = dasktile.optimize(expression, workers=workers, memory_limit=f"{limit} MB")
        with Largest() as largest:
            tiled.sum().compute(scheduler="sync", optimize_graph=False)
        assert 0 < largest.nbytes <= limit * 1e6


def test_memory_limit_below_one_element() -> None:
    with pytest.raises(ValueError, match="memory"):
        dasktile.optimize(product(), workers=4, memory_limit=1)


def test_settings_are_defaults_of_arguments() -> None:
    with dask.config.set({"dasktile.workers": 6}):
        assert dasktile.explain(product()).workers == 6
        assert dasktile.explain(product(), workers=3).workers == 3
    assert dasktile.explain(product()).workers == 1


def test_internal_errors_keep_the_input_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("oops")

    monkeypatch.setattr(planning, "tile_again", broken)
    x = product()
    with dask.config.set({"dasktile.raise-errors": False}):
        with pytest.warns(InternalErrorWarning, match=r"RuntimeError: oops.*report"):
            assert dasktile.optimize(x, workers=4) is x
        with pytest.warns(InternalErrorWarning):
            assert dasktile.explain(x, workers=4).nodes == ()
        with (
            pytest.warns(InternalErrorWarning),
            dask.config.set(array_optimize=dasktile.array_optimize),
        ):
            np.testing.assert_allclose(compute(x), A @ B)
    with pytest.raises(RuntimeError, match="oops"):
        dasktile.optimize(x, workers=4)


def test_array_expressions_are_returned_with_one_warning() -> None:
    class Expression:
        """Looks like an array of dask's query planning."""

        expr, chunks = object(), ((1,),)

        def __dask_graph__(self) -> dict[str, int]:
            return {"x": 1}

    value = Expression()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert dasktile.optimize(value, [value]) == (value, [value])
    assert [warning.category for warning in caught] == [UnsupportedCollectionWarning]
    assert "query-planning" in str(caught[0].message)


def test_a_misspelt_method_gives_the_nearest_name() -> None:
    x = da.ones((4, 4), chunks=2)
    with pytest.raises(ValueError, match="got 'soyben'; did you mean 'soybean'"):
        dasktile.optimize(x, method="soyben")


def test_a_method_that_fails_raises_an_error() -> None:
    settings = {"dasktile.raise-errors": False, "dasktile.method": "exhaustive"}
    arrays = [product() + number for number in range(9)]
    with dask.config.set(settings):
        with pytest.raises(ValueError, match="Use method='exact'"):
            dasktile.optimize(arrays, workers=4)
        with dask.config.set({"array_optimize": dasktile.array_optimize, "dasktile.workers": 4}):
            np.testing.assert_allclose(dask.compute(arrays, scheduler="sync")[0][2], A @ B + 2)


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_optimize_in_place_of_the_hook_names_the_hook(scheduler: str) -> None:
    with (
        dask.config.set(array_optimize=dasktile.optimize),
        pytest.raises(TypeError, match=r"array_optimize=dasktile\.array_optimize"),
    ):
        product().compute(scheduler=scheduler)


# explain --------------------------------------------------------------------------------


def test_explain_agrees_with_optimize() -> None:
    x = product()
    explanation = dasktile.explain(x, workers=4)
    assert explanation.changed and explanation.workers == 4
    assert explanation.nodes[-1].chunks_before == x.chunks
    assert explanation.nodes[-1].chunks_after == dasktile.optimize(x, workers=4).chunks
    kept = dasktile.explain(x, workers=4, keep_chunks=True)
    assert kept.nodes[-1].chunks_after == x.chunks
    assert "matmul" in str(explanation)


@pytest.mark.parametrize("in_advance", [dasktile.optimize, dasktile.explain])
@pytest.mark.parametrize(
    "expression",
    [
        lambda x: x.T @ x,
        lambda x: x - x.mean(axis=0),
        lambda x: (x + 1)[30:60],
        lambda x: da.linalg.svd(x.rechunk((20, -1))),
    ],
)
def test_inputs_are_held_by_nothing_afterwards(
    monkeypatch: pytest.MonkeyPatch, expression: Any, in_advance: Any
) -> None:
    plan_for_workers(monkeypatch)

    def blocks(chunks: tuple[int, int]) -> weakref.ref[Any]:
        # so many tasks that they are not all counted
        x = da.from_array(A, chunks=chunks)
        in_advance(expression(x))
        return weakref.ref(x.dask.layers[x.name])

    # toolz leaves exceptions with their frames for functions that it has not seen before
    blocks((20, 15))
    # what is in a reference cycle is held until a collection, and so is the data of futures
    gc.disable()
    try:
        assert blocks((20, 12))() is None
    finally:
        gc.enable()


def test_explain_nothing() -> None:
    assert "no dask arrays" in str(dasktile.explain(3, workers=4))
    assert dasktile.explain().nodes == ()
    assert str(dasktile.explain("x", 1)) == (
        "no dask arrays to tile, nor xarray objects that have them; got str, int"
    )


# The hook ---------------------------------------------------------------------------------


@pytest.fixture
def hook() -> Iterator[None]:
    with dask.config.set({"array_optimize": dasktile.array_optimize, "dasktile.workers": 4}):
        yield


@pytest.fixture
def rewritten(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every graph that the hook gets, whether it was rewritten."""
    outcomes: list[bool] = []
    inner = pipeline.rewrite_graph

    def watched(*arguments: Any) -> Any:
        result = inner(*arguments)
        outcomes.append(result is not None)
        return result

    monkeypatch.setattr(pipeline, "rewrite_graph", watched)
    return outcomes


@pytest.mark.usefixtures("hook")
@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_hook_computes(scheduler: str, rewritten: list[bool]) -> None:
    x = product()
    np.testing.assert_allclose(x.compute(scheduler=scheduler), A @ B)
    sums, transposed = dask.compute(x.sum(axis=0), x.T + 1, scheduler=scheduler)
    np.testing.assert_allclose(sums, (A @ B).sum(axis=0))
    np.testing.assert_allclose(transposed, (A @ B).T + 1)
    assert rewritten == [True, True]


@pytest.mark.usefixtures("hook")
def test_hook_keeps_keys_and_chunks(rewritten: list[bool]) -> None:
    x = product()
    y = x.persist(scheduler="sync")
    assert (y.name, y.chunks) == (x.name, x.chunks)
    for block, part in zip(np.ndindex(x.numblocks), y.to_delayed().ravel(), strict=True):
        assert part.compute(scheduler="sync").shape == x.blocks[block].shape
    (z,) = dask.optimize(x)
    assert (z.name, z.chunks) == (x.name, x.chunks)
    np.testing.assert_allclose(compute(y), A @ B)
    assert rewritten[0]


@pytest.mark.usefixtures("hook")
def test_hook_with_xarray(rewritten: list[bool]) -> None:
    xarray = pytest.importorskip("xarray")
    x = product()
    value = xarray.Dataset({"a": (("i", "j"), x), "b": ("i", x.sum(axis=1))})
    result = value.compute(scheduler="sync")
    np.testing.assert_allclose(result.a.values, A @ B)
    np.testing.assert_allclose(result.b.values, (A @ B).sum(axis=1))
    assert rewritten == [True]


@pytest.mark.usefixtures("hook")
@pytest.mark.parametrize(
    "expression",
    [
        lambda x: da.topk(x, 3, axis=1),
        lambda x: x[x > 45],
        lambda x: da.unique(x.astype(int)),
        lambda x: da.bincount(x.astype(int).ravel(), minlength=60),
        lambda x: da.argtopk(x, -3, axis=0),
        lambda x: x.map_blocks(lambda block: block[:1], chunks=((1,) * 12, (210,))),
    ],
)
def test_hook_where_dask_describes_arrays_wrongly(expression: Any) -> None:
    x = product()
    with dask.config.set(array_optimize=None):
        expected = expression(x).compute(scheduler="sync")
    np.testing.assert_allclose(compute(expression(x)), expected)


@pytest.mark.usefixtures("hook")
def test_hook_accepts_plain_dicts() -> None:
    dsk = {("x", 0): (sum, [1, 2])}
    result = dasktile.array_optimize(dsk, [("x", 0)])
    assert dask.get(dict(result), ("x", 0)) == 3


def test_hook_ignores_a_memory_limit_that_cannot_be_kept(hook: None) -> None:
    with dask.config.set({"dasktile.memory-limit": 1}):
        np.testing.assert_allclose(compute(product()), A @ B)


def test_query_planning_in_a_fresh_process() -> None:
    code = """if True:
        import warnings
        import dask.array as da, dasktile
        x = da.ones((4, 4), chunks=2) + 1
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert dasktile.optimize(x) is x
        assert len(caught) == 1 and "query-planning" in str(caught[0].message)
        with dasktile.api.dask.config.set(array_optimize=dasktile.array_optimize):
            assert x.sum().compute() == 32
    """
    environment = {**os.environ, "DASK_ARRAY__QUERY_PLANNING": "True"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


# Workers ------------------------------------------------------------------------------------


def test_workers_are_counted_by_process() -> None:
    facts = {"nthreads": 2, "memory_limit": 4_000_000_000}
    target = _cluster({"workers": {"tcp://a:1": facts, "tcp://a:2": facts}})
    assert target is not None
    assert (target.workers, target.threads, target.memory_limit) == (2, 2, 1_200_000_000)
    target = _cluster({"workers": {"inproc://h/7/1": facts, "inproc://h/7/2": facts}})
    assert target is not None
    assert (target.workers, target.threads, target.scheduler_workers) == (1, 4, 2)
    assert _cluster({"workers": {}}) is None
    target = _cluster({"workers": {}, "n_workers": 3, "total_threads": 12})
    assert target is not None and (target.workers, target.threads) == (3, 4)


def test_without_a_client_there_is_one_process() -> None:
    assert threading.current_thread().name == "MainThread"
    assert dasktile.explain(product()).workers == 1


def test_chunks_of_results_are_as_dask_makes_them() -> None:
    x = da.from_array(np.arange(24_000.0).reshape(240, 100), chunks=(20, 100))
    y = x - x.mean(axis=0)
    for chunks in (50, (60, -1), {1: 25}, "auto", "20 kB", (None, 10), ((200, 40), (100,))):
        results = dasktile.optimize({"y": y, "rows": [y + 1, 5]}, workers=4, chunks=chunks)
        expected = y.rechunk(chunks).chunks
        assert results["y"].chunks == results["rows"][0].chunks == expected
        assert results["rows"][1] == 5
    assert dasktile.optimize(y, workers=1, chunks=y.chunks).chunks == y.chunks


@pytest.mark.parametrize("chunks", ["x", {5: 1}, ((100, 7), (100,)), 2.5])
def test_chunks_that_do_not_fit_raise_the_errors_of_dask(chunks: Any) -> None:
    x = da.ones((240, 100), chunks=(20, 100))
    with pytest.raises(Exception) as expected:
        x.rechunk(chunks)
    for function in (dasktile.optimize, dasktile.explain):
        with pytest.raises(type(expected.value)) as raised:
            function(x + 1, workers=4, chunks=chunks)
        assert str(raised.value) == str(expected.value)
        [note] = raised.value.__notes__
        assert note.startswith(f"chunks={chunks!r} of dasktile: give a size, ")
        assert "that fit shape (240, 100)" in note


def test_chunks_that_are_no_sizes() -> None:
    x = da.ones((240, 100), chunks=(20, 100))
    for chunks in (0, (0, 3), {1: 0}, -2, (3, -2)):
        with pytest.raises(ValueError, match=r"must have sizes of at least 1"):
            dasktile.optimize(x, chunks=chunks)
    for wrong in (True, {0: False}, (np.True_, 3)):
        with pytest.raises(TypeError, match="must have sizes, not True or False"):
            dasktile.optimize(x, chunks=wrong)
    empty = da.ones((0, 4), chunks=2)
    assert dasktile.optimize(empty, chunks=(0, 2)).chunks == ((0,), (2, 2))


def test_a_tuple_of_chunks_has_a_size_for_each_axis() -> None:
    x = da.ones((240, 100), chunks=(20, 100))
    for chunks in ((5, 5, 5), (60,), [60, "auto", None]):
        with pytest.raises(ValueError, match=r"one entry for each axis of shape \(240, 100\)"):
            dasktile.optimize(x, chunks=chunks)
    line = x.sum(axis=1)
    assert dasktile.optimize(line, chunks=((100, 140),)).chunks == ((100, 140),)
    with pytest.raises(ValueError, match=r"one entry for each axis of shape \(240,\)"):
        dasktile.optimize(line, chunks=(100, 140))
    assert dasktile.optimize(x, x.sum(), chunks=(60, 50))[0].chunks == ((60,) * 4, (50, 50))


def test_chunks_are_for_arrays_and_exclude_kept_ones() -> None:
    x = da.ones((240, 100), chunks=(20, 100))
    with pytest.raises(ValueError, match="chunks=10 and keep_chunks=True exclude each other"):
        dasktile.optimize(x, chunks=10, keep_chunks=True)
    with pytest.raises(TypeError, match=r"got a collection of type dask.*Delayed"):
        dasktile.optimize(dask.delayed(len)([1]), chunks=10)


def test_chunks_of_xarray_objects_by_dimension() -> None:
    xarray = pytest.importorskip("xarray")
    values = da.from_array(np.arange(24_000.0).reshape(240, 100), chunks=(20, 100))
    data = xarray.Dataset({"u": (("t", "x"), values), "v": (("t",), values[:, 0])})
    anomalies = data - data.mean("t")
    result = dasktile.optimize(anomalies, workers=4, chunks={"t": 60})
    assert dict(result.chunks) == {"t": (60,) * 4, "x": (100,)}
    xarray.testing.assert_allclose(result.compute(), anomalies.compute())
    with pytest.raises(ValueError, match="not found in data") as raised:
        dasktile.optimize(anomalies, workers=4, chunks={"time": 60})
    assert "that fit dimensions {'t': 240, 'x': 100}" in raised.value.__notes__[0]


@pytest.mark.filterwarnings("error::FutureWarning")
def test_chunks_of_xarray_objects_in_the_order_of_dimensions() -> None:
    xarray = pytest.importorskip("xarray")
    values = da.from_array(np.arange(24_000.0).reshape(240, 100), chunks=(20, 100))
    array = xarray.DataArray(values, dims=("t", "x"))
    for chunks in ((60, 50), [60, 50], ((60,) * 4, (50, 50))):
        for each in (array, array.variable):
            result = dasktile.optimize(each - each.mean("t"), workers=4, chunks=chunks)
            assert result.chunks == ((60,) * 4, (50, 50))
    with pytest.raises(ValueError, match=r"chunks=\(60,\) must have .* \('t', 'x'\)"):
        dasktile.optimize(array, workers=4, chunks=(60,))
    # the blocks along each dimension
    square = xarray.Dataset({"u": array[:100], "v": array[0]})
    result = dasktile.optimize(square, workers=4, chunks=(50, 50))
    assert dict(result.chunks) == {"t": (50, 50), "x": (50, 50)}


def test_variables_in_memory_stay_there_with_chunks() -> None:
    xarray = pytest.importorskip("xarray")
    values = da.from_array(np.arange(24_000.0).reshape(240, 100), chunks=(20, 100))
    data = xarray.Dataset(
        {
            "u": (("t", "x"), values),
            "n": ("t", np.arange(240.0)),
            "variable": ("t", np.arange(240)),
        },
        coords={"t": np.arange(240), "label": ("t", np.arange(240) % 4), "lazy": ("x", values[0])},
    )
    for each in (data, data["u"]):
        result = dasktile.optimize(each, workers=4, chunks={"t": 60})
        assert result.chunksizes["t"] == (60,) * 4
        assert isinstance(result["label"].variable._data, np.ndarray)
        assert isinstance(result["lazy"].data, da.Array)
        xarray.testing.assert_identical(result.compute(), each.compute())
    assert isinstance(dasktile.optimize(data, workers=4, chunks=60)["n"].data, np.ndarray)
    for name in ("n", "t"):
        assert (
            dasktile.optimize(data[name].drop_vars("lazy", errors="ignore"), chunks=60).chunks
            is None
        )
    mixed = data["u"].isel(t=0, drop=True).copy(data=np.arange(100.0))
    result = dasktile.optimize(mixed, workers=4, chunks={"x": 50})
    assert (result.chunks, result["lazy"].chunks) == (None, ((50, 50),))
    assert (
        dasktile.optimize(data.variables["u"], workers=4, chunks={"t": 60}).chunks[0] == (60,) * 4
    )


def _anomalies(dim: str) -> Any:
    xarray = pytest.importorskip("xarray")
    values = da.from_array(np.arange(240_000.0).reshape(400, 600), chunks=(50, 60))
    array = xarray.DataArray(values, dims=("t", "x"))
    return array - array.mean(dim)


def test_objects_that_share_arrays_agree_on_chunks() -> None:
    xarray = pytest.importorskip("xarray")
    a, b = _anomalies("t"), _anomalies("x")
    c, d = (a * 2).rename(t="x", x="y"), (b + 1).transpose()
    pair = xarray.Dataset({"a": a, "b": b})
    # the first two would have different tiles if they were alone
    alone = [dasktile.optimize(array, workers=4).chunks for array in (a, b)]
    assert alone[0] != alone[1]
    for arguments in (
        (a, b, pair),
        ({"first": a}, [b, pair]),
        (xarray.Dataset({"a": a, "d": d}), xarray.Dataset({"b": b}), pair),
        (pair, xarray.Dataset({"c": c}), a, xarray.Dataset({"d": d, "a": a})),
    ):
        results = dasktile.optimize(*arguments, workers=4)
        flat = [*results[0].values(), *results[1]] if isinstance(results[0], dict) else results
        for result in flat:
            # xarray raises an error for different chunks
            assert result.chunksizes
    first, _, whole = dasktile.optimize(a, b, pair, workers=4)
    xarray.testing.assert_allclose(first.compute(), a.compute())
    xarray.testing.assert_allclose(whole.compute(), pair.compute())
    assert whole["a"].chunks == first.chunks


def test_chunks_in_bytes_are_the_same_for_all_variables() -> None:
    xarray = pytest.importorskip("xarray")
    a = _anomalies("t")
    data = xarray.Dataset(
        {"row": a.mean("x"), "a": a, "half": a.astype("f4")}, coords={"n": ("t", np.arange(400))}
    )
    for chunks, dims in (
        ("100 KiB", ("t", "x")),
        ({"t": "100 KiB"}, ("t",)),
        ({"t": "100 KiB", "x": 100}, ("t", "x")),
        ({"t": "auto", "x": "100 KiB"}, ("t", "x")),
    ):
        result = dasktile.optimize(data, workers=4, chunks=chunks)
        largest = a.chunk(chunks).chunksizes
        assert {dim: result.chunksizes[dim] for dim in dims} == {dim: largest[dim] for dim in dims}
        assert isinstance(result["n"].data, np.ndarray)
    array = a.assign_coords(row=data["row"])
    result = dasktile.optimize(array, workers=4, chunks="100 KiB")
    assert result["row"].chunks == (result.chunks[0],)
    xarray.testing.assert_allclose(result.compute(), array.compute())


def test_variables_with_different_chunks() -> None:
    xarray = pytest.importorskip("xarray")
    a = _anomalies("t")
    data = xarray.Dataset({"a": a, "b": a.chunk(t=40) * 2})
    result = dasktile.optimize(data, workers=4, chunks={"t": 100})
    assert result.chunksizes["t"] == (100,) * 4
    # along a dimension of the same chunks they stay the same
    result = dasktile.optimize(data, workers=4)
    assert result["a"].chunksizes["x"] == result["b"].chunksizes["x"]


def test_compute_plans_optimised_arrays_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = da.from_array(np.arange(160_000.0).reshape(400, 400), chunks=(20, 400))
    expected = x.T @ x
    planned = dasktile.optimize(expected, workers=4)
    calls: list[Any] = []
    chosen_plan = pipeline.chosen_plan

    def counted(request: Any, read: Any) -> Any:
        calls.append(request)
        return chosen_plan(request, read)

    monkeypatch.setattr(pipeline, "chosen_plan", counted)
    [values] = dasktile.compute(planned, workers=4)
    np.testing.assert_allclose(values, expected.compute())
    assert not calls
    # other workers, other arguments, or a computation on top are planned
    dasktile.compute(planned, workers=8)
    dasktile.compute(planned, workers=4, memory_limit="10 MB")
    dasktile.compute(planned + 1, workers=4)
    dasktile.compute(planned, expected, workers=4)
    assert len(calls) == 4


def test_the_reason_for_more_tasks_says_what_was_decided_and_what_to_do() -> None:
    x = da.from_array(np.ones((4000, 4000)), chunks=400)
    explanation = dasktile.explain(x + x.T, workers=8)
    text = " ".join(str(explanation).split())
    found = re.search(
        r"optimize returns the input itself: tiles with (\d+) % of the tasks would move"
        r" ([\d.]+) % more bytes between workers, and no plan may move more; on a cluster"
        r" after dasktile\.enable\(client\), a task runs several blocks",
        text,
    )
    assert found and int(found[1]) < 50
    assert float(found[2]) > 0
    x = da.from_array(np.ones((4000, 4000)), chunks=1000)
    assert dasktile.explain(x + x.T, workers=8).tasks_after < explanation.tasks_before / 2


def centred_gram(rows: int = 400) -> da.Array:
    x = da.random.default_rng(0).random((rows, 400), chunks=(50, 400))
    return (x - x.mean(axis=0)).T @ x


def test_what_optimize_returned_is_not_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    y = dasktile.optimize(centred_gram(), workers=4)
    assert dasktile.optimize(y, workers=4) is y
    explanation = dasktile.explain(y, workers=4)
    assert explanation.verdict.startswith("it is the result of optimize already")
    assert explanation.planned and not explanation.changed
    monkeypatch.setattr(returned, "_store", LRU(64, {}))
    assert dasktile.optimize(y, workers=4) is y
    explanation = dasktile.explain(y, workers=4)
    assert explanation.verdict.startswith("it is the result of optimize already")
    assert not explanation.planned and "no rule" not in str(explanation)
    assert {node.reason for node in explanation.nodes if "matmul" in node.op} == {ALREADY_TILED}
    # more operations, limits, other arrays, and other numbers of workers are planned
    plans = [
        dasktile.explain(y + 1, workers=4),
        dasktile.explain(y, workers=4, memory_limit="1 MB"),
        dasktile.explain(y, centred_gram(800), workers=4),
        dasktile.explain(y, workers=6),
    ]
    assert not any("already" in plan.verdict for plan in plans)


def sizes_of(array: da.Array) -> set[tuple[int, int]]:
    """Numbers of positions of plans, and of the workers that they were made for."""
    layers = array.__dask_graph__().layers
    return {(placement.positions, placement.workers) for placement in placements_of(layers)}


@pytest.mark.parametrize(("planned", "used", "chunk"), [(8, 8, 500), (12, 12, 500), (13, 12, 1000)])
def test_a_plan_counts_for_the_workers_that_it_was_made_for(
    planned: int, used: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans for 10 may use 8 workers, and plans for 13 use 12, but not the other way round."""
    a, b = (da.ones((8000, 8000), chunks=chunk) for _ in range(2))
    y = dasktile.optimize(a @ b, workers=planned)
    assert sizes_of(y) == {(used, planned)}
    for store in (None, LRU(64, {})):
        if store is not None:
            monkeypatch.setattr(returned, "_store", store)
        assert dasktile.optimize(y, workers=planned) is y
        for workers in {8, 9, 10, 12, 13, 14} - {planned}:
            assert "already" not in dasktile.explain(y, workers=workers).verdict


def test_plans_for_as_many_workers_that_use_different_numbers_count_together() -> None:
    a, b = (da.ones((8000, 8000), chunks=1000) for _ in range(2))
    x = dasktile.optimize(a @ b, workers=13)
    y = dasktile.optimize(centred_gram(1300), workers=13)
    assert sizes_of(x) == {(12, 13)} and sizes_of(y) == {(13, 13)}
    assert "already" in dasktile.explain(x, y, workers=13).verdict
    assert "already" not in dasktile.explain(x, y, workers=12).verdict


def test_names_with_the_mark_that_others_gave() -> None:
    y = centred_gram().map_blocks(lambda block: block + 1, name="my-dasktile-result", dtype=float)
    plan = dasktile.explain(y, workers=4)
    assert "already" not in plan.verdict
    assert not any(node.reason == ALREADY_TILED for node in plan.nodes)


def test_bundles_of_a_plan_are_not_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    loose = dasktile.optimize(centred_gram(3200), workers=4)
    plan_for_workers(monkeypatch)
    y = dasktile.optimize(centred_gram(3200))
    again = dasktile.explain(y)
    assert not again.changed and again.verdict.startswith("it is the result of optimize")
    assert dasktile.optimize(y) is y
    # a plan without bundles gets them where tasks are placed
    assert "result of optimize" not in dasktile.explain(loose).verdict


def test_the_input_in_other_chunks_is_not_the_input() -> None:
    y = da.from_array(np.ones((730, 60)), chunks=(50, 60)) * 2
    text = str(dasktile.explain(y, workers=4, chunks=(700, 60), method="none"))
    assert "optimize returns what Dask's rechunk returns: method 'none'" in " ".join(text.split())


def test_a_wrong_declaration_gives_a_warning() -> None:
    def centred(block: np.ndarray) -> np.ndarray:
        return block - block.mean()

    dasktile.register_kernel(centred, elementwise=True)
    x = da.from_array(np.arange(16_000.0).reshape(80, 200), chunks=(20, 200))
    y = x.map_blocks(centred, dtype=float).T @ x
    with pytest.warns(ContradictedKernelWarning, match="centred has other values"):
        z = dasktile.optimize(y, workers=4)
    np.testing.assert_allclose(z.compute(), y.compute())
