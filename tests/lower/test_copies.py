"""Arrays with copies on several workers, which readers cut in several ways, are received once."""

from __future__ import annotations

from collections.abc import Callable

import dask.array as da
import numpy as np
import pytest

import dasktile
from tests.support import plan_for_workers
from tests.traffic import traffic


def _by_rows(side: int, chunk: int) -> da.Array:
    """An array that is in no file and of no random generator, in chunks of whole rows."""
    array = da.from_array(np.random.default_rng(0).random((side, side)), chunks=chunk)
    return da.fft.fft(array.rechunk({1: -1}), axis=1).real


def _random(side: int, chunk: int) -> da.Array:
    return da.random.default_rng(0).random((side, side), chunks=chunk)


EXPRESSIONS: dict[str, Callable[[da.Array], da.Array]] = {
    "gram": lambda u: u @ u.T,
    "symmetric": lambda u: (u + u.T) @ u,
    "square": lambda u: u @ u + u.T,
    "centred": lambda u: (u - u.mean(axis=0)) @ u,
    "both": lambda u: u.T @ u + u @ u.T,
}


@pytest.mark.parametrize("workers", [6, 8, 12])
@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize(("build", "side", "chunk"), [(_by_rows, 600, 180), (_random, 700, 100)])
def test_no_more_is_received_than_is_counted(
    name: str,
    workers: int,
    build: Callable[[int, int], da.Array],
    side: int,
    chunk: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan_for_workers(monkeypatch, workers)
    array = EXPRESSIONS[name](build(side, chunk))
    plan, planned = dasktile.explain(array), dasktile.optimize(array)
    if plan.verdict:
        # tasks of an unchanged graph have no homes, so that nothing can be counted before it runs
        pytest.skip("Dask places the tasks when the graph runs")
    moved, homeless = traffic([planned], workers, {})
    assert not homeless
    assert sum(moved.values()) <= 1.03 * plan.bytes_after + 2**16
    assert plan.received_after == pytest.approx(sum(moved.values()), rel=0.01, abs=2**16)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_values_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch, 8)
    array = EXPRESSIONS[name](_by_rows(200, 60))
    np.testing.assert_allclose(
        dasktile.optimize(array).compute(scheduler="sync"), array.compute(scheduler="sync")
    )
