"""Axes of results that the input keeps in one chunk."""

from __future__ import annotations

from collections.abc import Callable

import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile import choice, templates
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


def cut_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plans cut axes that were whole, as a search for the least bytes does."""
    monkeypatch.setattr(choice, "cut_axes", lambda plan: {})


def test_the_bound_is_that_of_all_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch, 2)
    table = scaled(da.ones((70_000, 100), chunks=(10_000, 100)))
    explained = dasktile.explain(table)
    assert explained.bytes_after > 0 == explained.lower_bound
    assert not explained.proven_optimal
    with monkeypatch.context() as patch:
        cut_otherwise(patch)
        templates.forget()
        explained = dasktile.explain(table)
        assert explained.bytes_after == 0
        assert explained.proven_optimal


def test_a_plan_that_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch, 2)
    first, second = (
        dasktile.explain(scaled(da.full((700_000, 100), value, chunks=(100_000, 100))))
        for value in (1.0, 2.0)
    )
    assert str(first) == str(second)
    assert first.nodes[-1].chunks_after[1] == (100,)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("limit", [3_000_000, 8_000_000, 20_000_000])
def test_memory_limits(monkeypatch: pytest.MonkeyPatch, limit: int, given: bool) -> None:
    plan_for_workers(monkeypatch, 4, memory_limit=limit, limit_given=given)
    x = da.ones((1000, 8, 1000), chunks=(250, 1, 1000))
    columns = da.fft.fft(x.rechunk({0: 1000}), axis=0)
    cut = dasktile.optimize(columns).numblocks
    assert cut[2] > 1
    with monkeypatch.context() as patch:
        cut_otherwise(patch)
        templates.forget()
        assert dasktile.optimize(columns).numblocks == cut
