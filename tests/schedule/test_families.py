"""Families of root tasks."""

from __future__ import annotations

import pytest

from dasktile.schedule.families import FamilyLimits, FamilyQueue, families, families_of_graph


def test_tasks_whose_results_are_combined_are_a_family() -> None:
    assert families(range(8), lambda task: {task // 4}, 16) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_families_are_runs_of_limited_length() -> None:
    # each result is combined with the next one, too
    found = families(range(10), lambda task: {task, task + 1}, 4)
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_tasks_that_nothing_combines_are_alone() -> None:
    assert families(range(3), lambda task: (), 4) == [[0], [1], [2]]
    assert families([], lambda task: (), 4) == []


def grouped(
    roots: int, inputs: int, threads: int, limits: FamilyLimits | None = None
) -> list[list[str]]:
    """The families of roots of which sums of so many inputs, with a step before, are combined."""
    names = [f"root-{number}" for number in range(roots)]
    readers = {name: [f"step-{number}"] for number, name in enumerate(names)}
    readers |= {f"step-{number}": [f"sum-{number // inputs}"] for number in range(roots)}
    readers |= {f"sum-{number}": ["end"] for number in range(roots // inputs)}
    reads = {"step": 1, "sum": inputs, "end": roots // inputs}
    return families_of_graph(
        names,
        threads,
        lambda task: readers.get(task, ()),
        lambda task: reads[task.partition("-")[0]],
        limits or FamilyLimits(),
    )


def test_families_of_a_graph_are_what_sums_combine() -> None:
    found = grouped(64, 4, threads=4)
    assert [len(family) for family in found] == [4] * 16
    assert found[1] == ["root-4", "root-5", "root-6", "root-7"]


@pytest.mark.parametrize(
    ("roots", "inputs", "threads"),
    [
        (60, 4, 4),  # too few for four families of four a thread
        (64, 1, 4),  # nothing is combined
        (64, 64, 4),  # one task combines all
    ],
)
def test_roots_of_other_graphs_are_not_divided(roots: int, inputs: int, threads: int) -> None:
    assert grouped(roots, inputs, threads) == []


def test_limits_of_families() -> None:
    assert grouped(64, 4, 4, FamilyLimits(roots=63)) == []
    assert grouped(64, 4, 4, FamilyLimits(least=5)) == []
    assert grouped(64, 4, 4, FamilyLimits(combined=3)) == []
    assert {len(family) for family in grouped(128, 8, 1, FamilyLimits(most=4))} == {4}


def queue_of(*sizes: int, ready: bool = True) -> FamilyQueue:
    """A queue of families of the tasks 0, 1, 2...; the priority of a task is (0, 0, task)."""
    queue = FamilyQueue()
    number = 0
    for size in sizes:
        tasks = range(number, number + size)
        queue.add(tasks)
        for task in tasks if ready else ():
            queue.push(task, (0, 0, task))
        number += size
    return queue


def taken(queue: FamilyQueue, *workers: str) -> list[object]:
    """The tasks that workers get one after another."""
    tasks = []
    for worker in workers:
        task = queue.take(worker)
        tasks.append(None if task is None else task[1])
    return tasks


def test_a_worker_gets_the_tasks_of_a_family_one_after_another() -> None:
    queue = queue_of(3, 3, 3)
    assert taken(queue, *"ababbaa") == [0, 3, 1, 4, 5, 2, 6]
    assert queue.priority("b") is None
    assert queue.priority("a") == (0, 0, 7)
    assert taken(queue, *"aa") == [7, 8]
    assert not queue.any_ready


def test_an_idle_worker_gets_half_of_the_longest_rest() -> None:
    queue = queue_of(8)
    assert taken(queue, *"aa") == [0, 1]
    assert queue.divide("b")
    assert taken(queue, *"bababa") == [5, 2, 6, 3, 7, 4]
    assert not queue.divide("b")


def test_any_worker_may_run_the_family_of_a_worker_that_left() -> None:
    queue = queue_of(4)
    assert taken(queue, "a") == [0]
    assert queue.priority("b") is None
    queue.leave({"b"})
    assert taken(queue, "b") == [1]


def test_a_more_urgent_family_comes_first() -> None:
    queue = queue_of(3)
    assert taken(queue, "a") == [0]
    queue.add(["urgent"])
    queue.push("urgent", (-1, 0, 9))
    assert queue.priority("a") == (-1, 0, 9)
    assert taken(queue, *"aa") == ["urgent", 1]


def test_a_task_that_left_is_skipped() -> None:
    queue = queue_of(2)
    del queue.of[0]
    assert taken(queue, *"aa") == [None, 1]
    assert not queue.any_ready


def test_tasks_that_are_not_ready_wait() -> None:
    queue = queue_of(2, ready=False)
    assert not queue.any_ready
    assert queue.priority("a") is None
    queue.push(1, (0, 0, 1))
    assert queue.any_ready
    assert taken(queue, "a") == [1]
