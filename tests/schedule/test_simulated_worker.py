"""A simulated worker: its order, the bytes that it swaps, and results that share memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dasktile.schedule.simulate import HostLink
from dasktile.schedule.simulated_worker import (
    WorkerRun,
    WorkerSettings,
    WorkerTasks,
    simulate_worker,
)

LINK = HostLink(1e6, 1e6, 1e6)
SIZE = 10_000


def tasks(
    reads: Sequence[Sequence[int]],
    kept: Sequence[int] = (),
    sizes: Sequence[int] | None = None,
    views: Sequence[int] | None = None,
    memory: Sequence[int] | None = None,
) -> WorkerTasks:
    count = len(reads)
    sizes = sizes or [SIZE] * count
    return WorkerTasks(
        reads,
        sizes,
        views or [-1] * count,
        memory or sizes,
        frozenset(kept),
        [0.01] * count,
        [f"task-{number}" for number in range(count)],
    )


def run(given: WorkerTasks, limit: int, order: Sequence[int] = (), **settings: int) -> WorkerRun:
    order = order or range(len(given))
    return simulate_worker(given, order, limit, LINK, WorkerSettings(**settings))


def ran(result: WorkerRun) -> list[int]:
    return [span.task for span in result.tasks]


def test_nothing_is_swapped_in_enough_memory() -> None:
    result = run(tasks([[], [0], [1], [0, 2]], kept=[3]), 10 * SIZE)
    assert result.moved == 0
    assert not result.copies_in and not result.copies_out
    assert ran(result) == [0, 1, 2, 3]
    assert result.peak == 3 * SIZE
    assert result.makespan >= 0.04


def test_the_result_that_is_needed_last_is_evicted_once_and_read_back() -> None:
    # five results, of which the first is needed last
    reads = [[], [], [], [], [], [4, 3], [2, 5], [1, 6], [0, 7]]
    result = run(tasks(reads, kept=[8]), 4 * SIZE, window=1)
    assert [span.task for span in result.copies_in] == [0]
    assert [span.task for span in result.copies_out] == [0]
    assert (result.swap_in_bytes, result.swap_out_bytes) == (SIZE, SIZE)
    assert result.peak <= 5 * SIZE


def test_without_hints_the_least_recently_used_is_evicted() -> None:
    reads = [[], [], [], [], [], [0], [1], [2], [3], [4]]
    given = tasks(reads, kept=range(5, 10), sizes=[SIZE] * 5 + [100] * 5)
    with_hints = run(given, 4 * SIZE, window=1)
    assert with_hints.moved < run(given, 4 * SIZE, window=1, hints=False).moved


def test_a_task_that_was_unlocked_last_starts_after_one_that_the_worker_has() -> None:
    """Task 1 arrives only after the worker has started task 2."""
    reads = [[], [0], [], []]
    given = tasks(reads, kept=[1, 2, 3])
    assert ran(run(given, 10 * SIZE, window=4)) == [0, 2, 1, 3]
    assert ran(run(given, 10 * SIZE, window=2)) == [0, 1, 2, 3]


def test_the_order_differs_by_the_window_at_the_most() -> None:
    chains = [[] if number % 5 == 0 else [number - 1] for number in range(60)]
    given = tasks(chains, kept=range(4, 60, 5))
    for window in (1, 2, 4, 8):
        ended: set[int] = set()
        for task in ran(run(given, 100 * SIZE, window=window)):
            assert len(set(range(task)) - ended) < window
            ended.add(task)


def test_small_results_are_not_spilled() -> None:
    sizes = [1000] * 40
    result = run(tasks([[]] * 40, kept=range(40), sizes=sizes), 5000)
    assert result.moved == 0


def test_views_take_the_memory_of_their_array_once() -> None:
    reads = [[], [0], [], [], [1], [2], [3]]
    given = tasks(reads, kept=[4, 5, 6], sizes=[SIZE] * 4 + [10] * 3, views=[-1, 0, *[-1] * 5])
    assert run(given, 3 * SIZE, window=1).moved == 0
    # a copy takes memory of its own
    assert run(tasks(reads, [4, 5, 6], [SIZE] * 4 + [10] * 3), 2 * SIZE, window=1).moved > 0


def test_a_small_view_is_evicted_without_its_array() -> None:
    reads = [[], [0], [], [], [], [1]]
    sizes = [SIZE, SIZE // 5, SIZE, SIZE, SIZE, SIZE]
    given = tasks(reads, kept=[2, 3, 4, 5], sizes=sizes, views=[-1, 0, -1, -1, -1, -1])
    result = run(given, 4 * SIZE, window=1)
    sizes_out = {span.task: sizes[span.task] for span in result.copies_out}
    assert 0 not in sizes_out
    assert result.swap_out_bytes == sum(sizes_out.values())


@pytest.mark.parametrize("limit", [3, 5, 20])
def test_no_result_is_lost_or_copied_in_before_it_was_copied_out(limit: int) -> None:
    reads = [[] if number < 12 else [number - 12, (number * 7) % 12] for number in range(30)]
    result = run(tasks([sorted(set(each)) for each in reads], kept=range(20, 30)), limit * SIZE)
    assert sorted(ran(result)) == list(range(30))
    out = {span.task: span.end for span in reversed(result.copies_out)}
    assert all(span.start >= out[span.task] for span in result.copies_in)
    assert result.swap_in_bytes == SIZE * len(result.copies_in)
    assert result.peak == max(used for _, used in result.memory)


def test_no_tasks() -> None:
    assert run(tasks([]), SIZE).moved == 0
