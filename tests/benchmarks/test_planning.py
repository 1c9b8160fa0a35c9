"""The benchmark of planning runs, and forgets earlier plans."""

from __future__ import annotations

import dask.array as da
import pytest

from benchmarks import planning
from benchmarks.again import hook, planned_again
from benchmarks.corpus import WORKLOADS


def test_a_plan_is_timed_against_its_goal() -> None:
    row = planning.plan(planning.Case("gram", 4, lambda: planning.gram(1), planning.by_tasks), 1)
    assert row["workers"] == 4
    assert row["tasks"] > 0
    assert row["goal"] == round(planning.TASK_SECONDS * row["tasks"], 3)
    assert row["met"] == (row["seconds"] <= row["goal"])


@pytest.mark.filterwarnings("ignore::dask.array.PerformanceWarning")
def test_every_workload_is_built() -> None:
    for case in planning.cases():
        if case.workers <= 64:
            built = case.build()
            assert all(isinstance(array, da.Array) for array in planning.arrays(built))


def test_the_stages_of_a_plan_are_timed() -> None:
    row = planning.measure(8, 4, 1)
    assert row["nodes"] > 0
    assert row["total_ms"] > 0


def test_the_second_plan_of_a_workload_is_timed() -> None:
    workload = WORKLOADS["coiled.sum_residuals"]
    row = planned_again(workload, 0.1, 4, 1, planning.forget)
    assert row["first"] > 0
    assert row["again"] > 0


def test_the_hook_is_timed() -> None:
    first, again = hook(1, planning.forget)
    assert first["tasks"] == again["tasks"] > 10
    assert first["computing"] > 0
