"""Bytes of results that a plan is made with are those that the tasks return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.sizeof import sizeof

import dasktile
from dasktile.lower import tasks as lower_tasks
from dasktile.lower.sizes import estimated_sizes
from tests.support import plan_for_workers


def noise() -> da.Array:
    return da.random.default_rng(0).random((600, 400), chunks=(50, 100))


def shuffled() -> da.Array:
    order = np.random.default_rng(0)
    return noise()[order.permutation(600)[:300]][:, order.permutation(400)[:150]]


def ranges(windows: da.Array) -> da.Array:
    """Of windows, which are results of their own as two tasks read each."""
    return windows.max(axis=(2, 3)) - windows.min(axis=(2, 3))


#: Steps of these have names with the token of their array, or results that are views.
EXPRESSIONS: dict[str, Callable[[], da.Array]] = {
    "shuffled": shuffled,
    "running sums": lambda: da.nancumsum(noise(), axis=0),
    "windows": lambda: ranges(da.lib.stride_tricks.sliding_window_view(noise(), (4, 6))),
    "broadcast and joined": lambda: da.concatenate(
        [da.broadcast_to(da.ones((1, 400), chunks=(1, 100)), (60, 400)), noise()]
    ).rechunk((660, 100)),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_sizes_are_those_of_the_results_of_graphs_that_were_optimised_before(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def noted(tasks: Any) -> Any:
        seen.append((tasks, estimated_sizes(tasks)))
        return seen[-1][1]

    plan_for_workers(monkeypatch)
    monkeypatch.setattr(lower_tasks, "estimated_sizes", noted)
    [array] = dask.optimize(EXPRESSIONS[name]())
    dasktile.optimize(array)
    graph = dict(array.dask)
    made = dict(zip(graph, dask.get(graph, list(graph)), strict=True))
    checked = 0
    for tasks, sizes in seen:
        assert not sizes.guessed
        for key, nbytes in zip(tasks.keys, sizes.nbytes, strict=True):
            value = made.get(key)
            # what is broadcast is sent as one element
            if nbytes and isinstance(value, np.ndarray) and 0 not in value.strides:
                assert nbytes == sizeof(value), key
                checked += 1
        for number, held in sizes.held.items():
            base = made[tasks.keys[number]]
            while base.base is not None:
                base = base.base
            assert held <= base.nbytes < made[tasks.keys[number]].nbytes
    assert checked >= len(graph) // 2
    assert bool(sizes.held) == (name == "windows")
