"""Which tasks idle workers take from late home workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dasktile.schedule.stealing import Move, QueuedTask, moves

GAIN = 0.5


def queue(home: str, count: int, at_home: float, elsewhere: float = 1.0, **other: Any) -> Any:
    moved = other.pop("moved", 0)
    return [QueuedTask((home, at), at_home, elsewhere, moved, **other) for at in range(count)]


def taken(
    queues: dict[str, Sequence[QueuedTask]],
    idle: dict[str, int],
    threads: int = 1,
    horizon: float = 1,
) -> list[Move]:
    return moves(queues, dict.fromkeys(queues, threads), idle, 100e6, GAIN, horizon)


def test_the_last_tasks_are_taken_one_for_each_free_thread() -> None:
    found = taken({"a": queue("a", 8, 1.0)}, {"b": 2, "c": 1})
    assert [move.key[1] for move in found] == [7, 6, 5]
    assert sorted(move.worker for move in found) == ["b", "b", "c"]
    assert {move.home for move in found} == {"a"}


def test_as_many_brief_tasks_are_taken_as_fit_in_the_horizon() -> None:
    found = taken({"a": queue("a", 100, 0.1, 0.1)}, {"b": 1}, horizon=0.95)
    assert len(found) == 10


def test_each_moves_from_the_home_worker_that_is_later() -> None:
    found = taken({"a": queue("a", 3, 1.0), "b": queue("b", 9, 1.0)}, {"c": 4})
    assert [move.home for move in found] == ["b"] * 4


@pytest.mark.parametrize(("at_home", "gains"), [(0.9, False), (1.1, True)])
def test_a_task_moves_only_if_it_ends_clearly_earlier(at_home: float, gains: bool) -> None:
    # a task that runs is half way through: the next one begins after half of its time
    found = taken({"a": queue("a", 1, at_home, at_home)}, {"b": 1})
    assert bool(found) == gains


def test_a_slow_home_worker_loses_tasks_that_are_quick_elsewhere() -> None:
    assert not taken({"a": queue("a", 1, 0.3, 0.3)}, {"b": 1})
    assert taken({"a": queue("a", 1, 0.8, 0.1)}, {"b": 1})


@pytest.mark.parametrize(("moved", "gains"), [(0, True), (90e6, True), (110e6, False)])
def test_the_time_to_move_bytes_counts(moved: float, gains: bool) -> None:
    # it ends 1.5 seconds earlier
    found = taken({"a": queue("a", 2, 1.0, moved=int(moved))}, {"b": 1})
    assert bool(found) == gains


def test_tasks_that_may_not_move_are_waited_for() -> None:
    fixed = queue("x", 5, 1.0, may_move=False)
    tasks = [*queue("a", 3, 1.0), *fixed]
    assert [move.key for move in taken({"a": tasks}, {"b": 2})] == [("a", 2), ("a", 1)]
    assert not taken({"a": fixed}, {"b": 2})


def test_work_is_divided_so_that_all_end_at_about_the_same_time() -> None:
    found = taken({"a": queue("a", 12, 1.0)}, {"b": 1, "c": 1}, horizon=100)
    counts = [sum(move.worker == worker for move in found) for worker in "bc"]
    assert sum(counts) + 4 in (11, 12, 13)
    assert abs(counts[0] - counts[1]) <= 1


def test_nothing_moves_without_late_or_idle_workers() -> None:
    assert not taken({}, {"b": 2})
    assert not taken({"a": queue("a", 9, 1.0)}, {})
    assert not taken({"a": []}, {"b": 2})
