"""Tasks that are placed by the bytes of their inputs, once these are in memory."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dasktile.runtime.scheduler import joins
from dasktile.runtime.scheduler.joins import Joins
from dasktile.runtime.settings import RuntimeSettings
from dasktile.schedule.homes import Homes


class _Task(SimpleNamespace):
    def __hash__(self) -> int:
        return id(self)

    def get_nbytes(self) -> int:
        return int(self.nbytes)


def result(key: str, nbytes: int, *workers: str) -> _Task:
    who_has = [SimpleNamespace(address=worker) for worker in workers]
    return _Task(key=key, nbytes=nbytes, who_has=who_has, dependents=[])


def reader(*reads: _Task, state: str = "waiting") -> _Task:
    task = _Task(key="reader", dependencies=list(reads), state=state, worker_restrictions=set())
    for read in reads:
        read.dependents.append(task)
    return task


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[Any, str]]:
    found: dict[Any, str] = {}
    monkeypatch.setattr(joins, "restrict_to_home", lambda ts, home: found.update({ts: home}))
    yield found


@pytest.fixture
def waiting() -> Joins:
    return Joins(Homes(["a", "b"]), RuntimeSettings(max_joined=2))


def test_a_task_runs_where_most_of_its_bytes_are(waiting: Joins, placed: dict[Any, str]) -> None:
    small, large = result("small", 10, "a"), result("large", 90)
    task = reader(small, large)
    assert not waiting.add(task)
    large.who_has = [SimpleNamespace(address="b")]
    assert waiting.ended("small", "memory") == 0
    assert waiting.ended("large", "memory") == 1
    assert placed == {task: "b"}
    assert not len(waiting)


def test_a_result_that_is_lost_is_waited_for_again(waiting: Joins, placed: dict[Any, str]) -> None:
    small, large = result("small", 10, "a"), result("large", 90)
    task = reader(small, large)
    waiting.add(task)
    small.who_has, large.who_has = [], [SimpleNamespace(address="b")]
    assert waiting.ended("large", "memory") == 0
    small.who_has = [SimpleNamespace(address="a")]
    assert waiting.ended("small", "memory") == 1
    assert placed == {task: "b"}
    assert not len(waiting)


def test_a_task_whose_inputs_are_there_is_placed_at_once(
    waiting: Joins, placed: dict[Any, str]
) -> None:
    task = reader(result("small", 10, "b"), result("large", 90, "a"))
    assert waiting.add(task)
    assert placed == {task: "a"}


@pytest.mark.parametrize(
    ("one", "shared", "expected"),
    [
        # as much on either: anywhere, unless others read an input
        (result("one", 50, "a"), False, "a"),
        (result("one", 50, "a"), True, None),
        (result("one", 60, "a"), True, "a"),
        # of a worker that has left
        (result("one", 90, "c"), False, None),
    ],
)
def test_the_scheduler_decides_where_no_worker_has_most(
    one: _Task, shared: bool, expected: str | None, waiting: Joins, placed: dict[Any, str]
) -> None:
    task = reader(one, result("other", 50, "b"))
    if shared:
        reader(one)
    assert waiting.add(task) == (expected is not None)
    assert placed.get(task) == expected


def test_a_result_that_many_tasks_join_attracts_none(
    waiting: Joins, placed: dict[Any, str]
) -> None:
    shared = result("shared", 90, "a")
    tasks = [reader(shared, result(f"own {number}", 5, "b")) for number in range(3)]
    assert not any(map(waiting.add, tasks))
    # slices of it run where it is
    alone = result("alone", 90, "a")
    for _ in range(3):
        reader(alone)
    assert waiting.add(reader(alone, result("own", 5, "b")))
    assert list(placed.values()) == ["a"]


@pytest.mark.parametrize("state", ["processing", "memory", "forgotten"])
def test_tasks_that_are_sent_or_gone_stay_as_they_are(
    state: str, waiting: Joins, placed: dict[Any, str]
) -> None:
    large = result("large", 90)
    task = reader(result("small", 10, "a"), large)
    waiting.add(task)
    task.state = state
    large.who_has = [SimpleNamespace(address="b")]
    assert waiting.ended("large", "memory") == 0
    assert not placed


def test_results_that_are_forgotten_are_not_waited_for(waiting: Joins) -> None:
    waiting.add(reader(result("small", 10, "a"), result("large", 90)))
    assert waiting.ended("large", "forgotten") == 0
    assert not len(waiting)
