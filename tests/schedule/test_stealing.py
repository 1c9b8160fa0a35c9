"""Which tasks idle workers take from late home workers."""

from __future__ import annotations

from typing import Any

import pytest

from dasktile.schedule.stealing import Queue, QueuedTask, Steal, steals

GAIN = 0.5


def queue(
    count: int,
    at_home: float,
    elsewhere: float = 1.0,
    moved: float = 0,
    home: str = "a",
    threads: int = 1,
    more: int = 0,
) -> Queue:
    """Tasks that wait, and more of them that may not be stolen."""
    last = [QueuedTask((home, at), at_home, elsewhere, int(moved)) for at in range(count)]
    return Queue(home, threads, count + more, last)


def stolen(queues: list[Queue], idle: dict[str, int], horizon: float = 1) -> list[Steal]:
    return steals(queues, idle, 100e6, GAIN, horizon)


def test_the_last_tasks_are_stolen_one_for_each_free_thread() -> None:
    found = stolen([queue(8, 1.0)], {"b": 2, "c": 1})
    assert [steal.key[1] for steal in found] == [7, 6, 5]
    assert sorted(steal.thief for steal in found) == ["b", "b", "c"]
    assert {steal.home for steal in found} == {"a"}


def test_as_many_brief_tasks_are_stolen_as_fit_in_the_horizon() -> None:
    assert len(stolen([queue(100, 0.1, 0.1)], {"b": 1}, horizon=0.95)) == 10
    # a task takes a worker some milliseconds, whatever its function does
    assert len(stolen([queue(9000, 1e-5, 1e-5)], {"b": 1})) < 400


def test_each_is_stolen_from_the_worker_that_is_later() -> None:
    found = stolen([queue(3, 1.0), queue(9, 1.0, home="b")], {"c": 4})
    assert [steal.home for steal in found] == ["b"] * 4


@pytest.mark.parametrize(("at_home", "gains"), [(0.9, False), (1.1, True)])
def test_a_task_is_stolen_only_if_it_ends_clearly_earlier(at_home: float, gains: bool) -> None:
    # a task that runs is half way through: the next one begins after half of its time
    assert bool(stolen([queue(1, at_home, at_home)], {"b": 1})) == gains


def test_a_slow_worker_loses_tasks_that_are_quick_elsewhere() -> None:
    assert not stolen([queue(1, 0.3, 0.3)], {"b": 1})
    assert stolen([queue(1, 0.8, 0.1)], {"b": 1})


@pytest.mark.parametrize(("moved", "gains"), [(0, True), (90e6, True), (110e6, False)])
def test_the_time_to_move_bytes_counts(moved: float, gains: bool) -> None:
    # it ends 1.5 seconds earlier
    assert bool(stolen([queue(2, 1.0, moved=moved)], {"b": 1})) == gains


def test_bytes_of_several_tasks_are_moved_one_after_the_other() -> None:
    # eight threads are free, and receive 90 MB for each task, which takes 0.9 seconds
    found = stolen([queue(8, 0.5, 0.5, moved=90e6)], {"b": 8}, horizon=10)
    assert len(found) == 2


def test_tasks_that_may_not_be_stolen_are_waited_for() -> None:
    assert not stolen([queue(1, 0.5, 0.5)], {"b": 1})
    assert stolen([queue(1, 0.5, 0.5, more=5)], {"b": 1})
    assert not stolen([queue(0, 1.0, more=5)], {"b": 2})


def test_work_is_divided_so_that_all_end_at_about_the_same_time() -> None:
    found = stolen([queue(12, 1.0)], {"b": 1, "c": 1}, horizon=100)
    counts = [sum(steal.thief == thief for steal in found) for thief in "bc"]
    assert sum(counts) in (7, 8, 9)
    assert abs(counts[0] - counts[1]) <= 1


def test_nothing_is_stolen_without_late_or_idle_workers() -> None:
    assert not stolen([], {"b": 2})
    assert not stolen([queue(9, 1.0)], {})


def test_thousands_of_workers() -> None:
    """Every comparison of two times is counted, as seconds are not steady."""
    compared = 0

    class Time(float):
        def __lt__(self, other: Any) -> bool:
            nonlocal compared
            compared += 1
            return float(self) < float(other)

    late = [queue(100, Time(1.0), Time(1.0), home=f"h{at}") for at in range(10)]
    found = stolen(late, {f"w{at}": 8 for at in range(4000)})
    assert 900 < len(found) <= 1000
    assert compared < 50 * len(found)
