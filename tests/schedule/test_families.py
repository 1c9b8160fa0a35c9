"""Families of root tasks."""

from __future__ import annotations

from dasktile.schedule.families import families


def test_tasks_whose_results_are_combined_are_a_family() -> None:
    assert families(range(8), lambda task: {task // 4}, 16) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_families_are_runs_of_limited_length() -> None:
    # each result is combined with the next one, too
    found = families(range(10), lambda task: {task, task + 1}, 4)
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_tasks_that_nothing_combines_are_alone() -> None:
    assert families(range(3), lambda task: (), 4) == [[0], [1], [2]]
    assert families([], lambda task: (), 4) == []
