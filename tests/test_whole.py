"""Axes of results that the input keeps in one chunk."""

from __future__ import annotations

from collections.abc import Callable

import dask.array as da
import numpy as np
import pytest

import dasktile
from tests.support import plan_for_workers


def scaled(x: da.Array) -> da.Array:
    return (x - x.mean(0)) / x.std(0)


@pytest.mark.parametrize("blocks", [7, 8, 10, 12])
@pytest.mark.parametrize("workers", [2, 3, 4, 5, 6, 8])
def test_columns_of_tables_stay_whole(
    monkeypatch: pytest.MonkeyPatch, workers: int, blocks: int
) -> None:
    plan_for_workers(monkeypatch, workers)
    table = da.ones((100_000 * blocks, 100), chunks=(100_000, 100))
    assert dasktile.optimize(scaled(table)).numblocks[1] == 1


def test_values(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch, 8)
    data = np.random.default_rng(0).random((1_200, 10))
    table = scaled(da.from_array(data, chunks=(100, 10)))
    planned = dasktile.optimize(table)
    assert planned.numblocks[1] == 1
    np.testing.assert_allclose(
        planned.compute(scheduler="sync"), (data - data.mean(0)) / data.std(0)
    )


def by_columns(x: da.Array) -> da.Array:
    """Several passes that each need the sums of wide columns, which are free if these are cut."""
    for _ in range(3):
        x = x - x.sum(0)
    return x


@pytest.mark.parametrize(
    ("build", "chunks"),
    [(by_columns, (100, 500_000)), (scaled, (800, 500_000))],
    ids=["costs-much", "one-chunk"],
)
def test_axes_are_cut(
    monkeypatch: pytest.MonkeyPatch,
    build: Callable[[da.Array], da.Array],
    chunks: tuple[int, int],
) -> None:
    plan_for_workers(monkeypatch, 8)
    assert dasktile.optimize(build(da.ones((800, 500_000), chunks=chunks))).numblocks[1] > 1


def test_the_bound_is_that_of_all_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch, 8)
    table = da.ones((1_200_000, 100), chunks=(100_000, 100))
    explained = dasktile.explain(scaled(table))
    assert explained.bytes_after > 0 == explained.lower_bound
    assert not explained.proven_optimal


def test_a_plan_that_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch, 8)
    first, second = (
        dasktile.optimize(scaled(da.full((1_200_000, 100), value, chunks=(100_000, 100))))
        for value in (1.0, 2.0)
    )
    assert first.chunks == second.chunks
    assert first.numblocks[1] == 1
