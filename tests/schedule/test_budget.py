"""The memory that is left for results."""

from __future__ import annotations

import pytest

from dasktile.schedule.budget import Budget, device_target
from dasktile.schedule.instructions import ResidencySettings
from dasktile.schedule.residency import Residency


def test_other_memory_is_the_minimum_of_the_window() -> None:
    budget = Budget(window=3)
    assert budget.available(100) == 100
    for process, results in ((50, 20), (90, 20), (45, 20)):
        budget.sample(process, results)
    assert budget.available(100) == 75
    # a low sample leaves the window, too
    for _ in range(3):
        budget.sample(60, 20)
    assert budget.available(100) == 60
    assert budget.available(30) == 0
    # results can exceed the memory of the process
    budget.sample(10, 20)
    assert budget.available(100) == 100


@pytest.mark.parametrize(
    "limit, target", [(100, 100), (120, 100), (96, 98), (80, 90), (50, 90), (10, 90)]
)
def test_some_of_a_device_is_left_to_tasks(limit: int, target: int) -> None:
    assert device_target(100, limit) == target


def test_what_failed_allocations_take_stays_when_the_budget_changes() -> None:
    residency = Residency(ResidencySettings((100, None)))
    residency.add("x", 60)
    residency.shrink(0, 20)
    assert residency.capacity[0] == 40
    residency.allow(0, 90)
    assert (residency.capacity[0], residency.allowed(0)) == (40, 90)
    residency.allow(0, 30)
    assert residency.capacity[0] == 30
    residency.allow(0, 80)
    assert residency.capacity[0] == 80
