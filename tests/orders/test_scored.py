"""Of several orders, the one that a worker is expected to do best with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from dasktile.orders import scored
from dasktile.orders.scored import best_order, worker_settings
from dasktile.schedule.simulate import HostLink


@dataclass(frozen=True)
class Run:
    makespan: float
    moved: int


#: By rule: seconds, and bytes moved with prompt and with late messages.
Orders = dict[str, tuple[float, int, int]]


def best(monkeypatch: pytest.MonkeyPatch, orders: Orders) -> tuple[str, int]:
    """The best of some orders, of which "dask" is that without a plan; and the simulated runs."""
    names, runs = list(orders), 0

    def simulated(tasks: Any, order: list[int], limit: int, link: Any, settings: Any) -> Run:
        nonlocal runs
        runs += 1
        seconds, *moved = orders[names[order[0]]]
        return Run(seconds, moved[settings.message > 0])

    monkeypatch.setattr(scored, "simulate_worker", simulated)
    prompt = replace(worker_settings(1, device=False), message=0.0)
    finalists = [(name, np.array([number])) for number, name in enumerate(names)]
    tasks: Any = [None]
    return best_order(tasks, finalists, "dask", 1, HostLink(), prompt).rule, runs


@pytest.mark.parametrize(
    ("orders", "rule"),
    [
        # moves least, and is nearly as fast
        ({"a": (100, 30, 30), "b": (105, 10, 12), "dask": (100, 50, 50)}, "b"),
        # moves least, and is slow
        ({"a": (100, 30, 30), "b": (130, 10, 12), "dask": (100, 50, 50)}, "a"),
        # with late messages it moves more than Dask's order, and does not make others slow
        ({"a": (80, 50, 90), "b": (100, 10, 10), "dask": (100, 50, 50)}, "b"),
        ({"a": (80, 60, 60), "dask": (100, 50, 50)}, "dask"),
        ({"a": (100, 50, 50), "dask": (100, 50, 50)}, "dask"),
        # nothing can be saved
        ({"a": (80, 0, 0), "dask": (100, 0, 0)}, "dask"),
    ],
)
def test_the_order_that_moves_least_of_the_fast_ones_is_chosen(
    monkeypatch: pytest.MonkeyPatch, orders: Orders, rule: str
) -> None:
    assert best(monkeypatch, orders)[0] == rule


def test_orders_that_move_more_are_not_simulated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = {"a": (100, 10, 10), "b": (101, 60, 60), "c": (101, 20, 20), "dask": (100, 50, 50)}
    rule, runs = best(monkeypatch, orders)
    assert (rule, runs) == ("a", 7)
