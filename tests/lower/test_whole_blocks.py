"""Graphs of Dask that move nothing: blocks are only arranged in another order."""

from __future__ import annotations

from collections.abc import Callable

import dask
import dask.array as da
import numpy as np
import pytest

import dasktile
from tests.support import plan_for_workers


def _blocks(side: int = 1600) -> da.Array:
    return da.from_array(np.random.default_rng(0).random((side, side)), chunks=(80, side))


EXPRESSIONS: dict[str, Callable[[da.Array], da.Array]] = {
    "rolled": lambda x: da.roll(x * 2, (800, 800), axis=(0, 1)),
    "shifted": lambda x: da.fft.fftshift(x * 2),
    "transformed": lambda x: da.fft.fftshift(da.fft.fft(x, axis=1)),
    "along one axis": lambda x: da.roll(x * 2, 800, axis=0),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_no_plan_moves_what_dask_does_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch, 4)
    plan = dasktile.explain(EXPRESSIONS[name](_blocks()))
    assert plan.received_before == 0
    assert not plan.received_after


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x.T[::-1],
        lambda x: da.sqrt(x).sum(axis=1),
        lambda x: x.blocks[3:7] * 2,
        lambda x: (x + 1)[::-1],
        lambda x: x.T,
    ],
)
def test_chains_that_dask_fuses_with_their_data_are_one_task(
    build: Callable[[da.Array], da.Array],
) -> None:
    x = build(da.from_array(np.ones((500, 40)), chunks=(20, 40)))
    assert dasktile.explain(x, workers=4).run_tasks_before == len(dask.optimize(x)[0].dask)
