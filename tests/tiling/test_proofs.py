"""What weights that break ties, and reads of one array at several places, do to proofs."""

from __future__ import annotations

import dask.array as da
import pytest

import dasktile
from tests.support import plan_for_workers


def _random(rows: int, columns: int, chunks: tuple[int, int], seed: int = 0) -> da.Array:
    return da.random.default_rng(seed).random((rows, columns), chunks=chunks)


def test_an_array_that_is_read_twice_alike_counts_once() -> None:
    x = _random(1000, 1000, (250, 250))
    once = dasktile.explain(da.einsum("ij,ji->ij", x, x), workers=4)
    twice = dasktile.explain(da.einsum("ij,ji,ij,ji->ij", x, x, x, x), workers=4)
    assert (twice.bytes_after, twice.lower_bound) == (once.bytes_after, once.lower_bound)


def test_no_bound_is_known_where_a_bounding_box_is_counted() -> None:
    x = _random(1000, 1000, (250, 250))
    middle, before, after = slice(1, -1), slice(None, -2), slice(2, None)
    cross = sum(
        x[part]
        for part in (
            (middle, middle), (before, middle), (after, middle), (middle, before), (middle, after),
        )
    )  # fmt: skip
    assert not dasktile.explain(cross, workers=4).lower_bound
    shifted = x[4:] + x[3:-1] + x[2:-2] + x[1:-3] + x[:-4]
    assert dasktile.explain(shifted, workers=4).proven_optimal


@pytest.mark.parametrize("outputs", [1, 10, 11, 12, 20])
def test_many_outputs_do_not_outweigh_a_byte(outputs: int) -> None:
    arrays = [_random(2000, 800, (200, 400), seed) for seed in range(outputs)]
    grams = [(x.T @ x).rechunk(800) for x in arrays]
    plan = dasktile.explain(*grams, workers=4, keep_chunks=True)
    assert plan.proven_optimal
    assert plan.lower_bound == plan.bytes_after


def test_steps_that_receive_from_each_other_are_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch, 4)
    q = da.linalg.qr(_random(4000, 50, (500, 50)))[0] @ _random(50, 50, (50, 50), 1)
    plan = dasktile.explain(q)
    assert plan.received_after is not None
    assert plan.received_after > 2 * plan.bytes_after
    assert not plan.proven_optimal
