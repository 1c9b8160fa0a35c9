"""The worker of a task that joins several results."""

from __future__ import annotations

import pytest

from dasktile.schedule.joining import JoinedResult, worker_of_join
from dasktile.schedule.peaks import simulate
from dasktile.schedule.placed_tasks import PlacedTasks


def _result(nbytes: int, *workers: int, readers: int = 2, joins: int = 1) -> JoinedResult:
    return JoinedResult(nbytes, workers, readers, joins)


@pytest.mark.parametrize(
    ("results", "worker"),
    [
        ([_result(10, 0), _result(90, 1)], 1),
        ([_result(50, 0), _result(50, 1)], None),
        ([_result(50, 1, readers=1), _result(50, 0, readers=1)], 0),
        ([_result(10, 0), _result(90, 1, joins=5)], None),
        ([_result(10, 0), _result(90, 1, readers=65)], None),
        ([], None),
    ],
)
def test_most_bytes(results: list[JoinedResult], worker: int | None) -> None:
    assert worker_of_join(results, int) == worker


def test_simulated_joins_run_where_most_bytes_are() -> None:
    # the worker with the large result has many tasks, as that of a large tile
    reads = [[], [], [0, 1], *([] for _ in range(40))]
    homes = [0, 1, None, *([0] * 40)]
    sizes = [10_000_000, 1000, 1000, *([8] * 40)]
    priorities = [float(number) for number in (0, 1, 50, *range(2, 42))]
    without = PlacedTasks(reads, sizes, priorities, homes)
    joined = PlacedTasks(reads, sizes, priorities, homes, joins={2})
    assert simulate(joined, workers=2, threads=1).moved == 1000
    assert simulate(without, workers=2, threads=1).moved >= 1000
