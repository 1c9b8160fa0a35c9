"""Moving windows: no task returns them unless they are an output."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile.capture.base import GraphView

lazy = da.lib.stride_tricks.sliding_window_view
windows = np.lib.stride_tricks.sliding_window_view
VALUES = np.random.default_rng(0).random((400, 60))


def _optimised(array: Any, workers: int) -> Any:
    result = dasktile.optimize(array, workers=workers)
    return result[0] if isinstance(result, tuple) else result


def _own_views(array: Any) -> int:
    """Number of tasks whose results are moving windows."""
    tasks = dict(array.__dask_graph__()).values()
    return sum(getattr(task, "func", None) is windows for task in tasks)


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize(
    "function",
    [
        lambda view, x: view(x, 21, axis=0).mean(-1),
        lambda view, x: view(x, 21, axis=0).std(-1),
        lambda view, x: view(x, (5, 7), axis=(0, 1)).sum((-1, -2)),
        lambda view, x: view(x, 21, axis=0)[5:300, 3:].mean((0, 2)),
        lambda view, x: (view(x, 21, axis=0) * np.arange(21.0)).sum(-1),
        lambda view, x: view(x, 21, axis=0)[::3].max(-1),
    ],
)
def test_readers_make_the_windows(function: Any, workers: int) -> None:
    x = da.from_array(VALUES, chunks=(50, 60))
    new = _optimised(function(lazy, x), workers)
    assert _own_views(new) == 0
    np.testing.assert_allclose(np.asarray(new.compute(scheduler="sync")), function(windows, VALUES))


@pytest.mark.parametrize("workers", [1, 4])
def test_windows_that_are_an_output_and_windows_of_windows(workers: int) -> None:
    x = da.from_array(VALUES, chunks=(50, 60))
    for function in (
        lambda view: view(x if view is lazy else VALUES, 21, axis=0),
        lambda view: view(view(x if view is lazy else VALUES, 21, axis=0), 5, axis=1).sum((-1, -2)),
    ):
        new = _optimised(function(lazy), workers)
        np.testing.assert_allclose(np.asarray(new.compute(scheduler="sync")), function(windows))


@pytest.mark.parametrize("workers", [1, 4])
def test_keys_of_several_plans_have_the_same_values(workers: int) -> None:
    x = da.from_array(VALUES, chunks=(50, 60))
    view = lazy(x, 21, axis=0)
    part = view[5:300, 3:]
    plans = [view, view.mean(-1), part, part.mean((0, 2)), (view + 1).sum(-1), [view, part.sum(-1)]]
    known: dict[Any, Any] = {}
    for plan in plans:
        arrays = dasktile.optimize(*plan if isinstance(plan, list) else [plan], workers=workers)
        for array in arrays if isinstance(arrays, tuple) else (arrays,):
            graph = dict(array.__dask_graph__())
            for key, value in zip(graph, dask.get(graph, list(graph)), strict=True):
                if isinstance(value, np.ndarray):
                    np.testing.assert_array_equal(known.setdefault(key, value), value)


@pytest.mark.parametrize("width", [1, 21])
def test_tiles_of_windows_are_no_array_of_a_second_plan(width: int) -> None:
    """Their blocks have fewer axes than their keys."""
    x = da.from_array(VALUES, chunks=(50, 60))
    with dask.config.set({"dasktile.bundle": 0}):
        view = lazy(x, width, axis=0)
        largest, mean = dasktile.optimize(view.max(-1), view.mean(-1), workers=4)
        graph = GraphView(largest.dask, {})
        tiles = [name for name in graph.layers if name.startswith("sliding_window_view")]
        assert tiles
        assert all(graph.array(name) is None for name in tiles)
        again = dasktile.optimize(largest + 1, mean, workers=2)
    expected = windows(VALUES, width, axis=0)
    for new, value in zip(again, (expected.max(-1) + 1, expected.mean(-1)), strict=True):
        np.testing.assert_allclose(np.asarray(new.compute(scheduler="sync")), value)


def test_a_reader_with_a_literal_that_has_no_hash() -> None:
    x = da.from_array(VALUES, chunks=(50, 60))
    weights = np.arange(21.0)
    weighted = da.blockwise(
        lambda windows, by: (windows * by).sum(-1), "ij", lazy(x, 21, axis=0), "ijk", weights, None,
        concatenate=True, dtype=float,
    )  # fmt: skip
    expected = (windows(VALUES, 21, axis=0) * weights).sum(-1)
    new = _optimised(weighted, 4)
    np.testing.assert_allclose(np.asarray(new.compute(scheduler="sync")), expected)


@pytest.mark.parametrize("chunks", [(10, 6), (40, 2)])
def test_windows_of_several_arrays_joined(chunks: tuple[int, int]) -> None:
    values, others = VALUES[:40, :6], VALUES[40:80, :6]

    def function(view: Any, module: Any, a: Any, b: Any) -> Any:
        joined = module.concatenate([view(a, 5, axis=0), view(b, 5, axis=0)])
        return joined[3:].mean(-1) * module.concatenate([a, b])[:69]

    arrays = [da.from_array(each, chunks=chunks) for each in (values, others)]
    new = _optimised(function(lazy, da, *arrays), 4)
    expected = function(windows, np, values, others)
    np.testing.assert_allclose(np.asarray(new.compute(scheduler="sync")), expected)


def test_a_reader_of_one_block_and_of_all_blocks_of_the_same_windows() -> None:
    x = da.from_array(VALUES, chunks=(400, 10))
    view = lazy(x, 5, axis=0)

    def scaled(wide: Any, block: Any) -> Any:
        return block * wide.sum(axis=(1, 2))[:, None, None]

    scaling = da.blockwise(
        scaled, "ijm", view, "ikl", view, "ijm", concatenate=True, dtype=x.dtype, align_arrays=False
    )
    result = (scaling.rechunk((50, 60, 5)) + 1).sum(-1)
    new = _optimised(result, 4)
    expected = (scaled(windows(VALUES, 5, axis=0), windows(VALUES, 5, axis=0)) + 1).sum(-1)
    np.testing.assert_allclose(np.asarray(new.compute(scheduler="sync")), expected)
