"""Families of root tasks."""

from __future__ import annotations

from dasktile.schedule.families import FamilyQueue, families


def test_tasks_whose_results_are_combined_are_a_family() -> None:
    assert families(range(8), lambda task: {task // 4}, 16) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_families_are_runs_of_limited_length() -> None:
    # each result is combined with the next one, too
    found = families(range(10), lambda task: {task, task + 1}, 4)
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_tasks_that_nothing_combines_are_alone() -> None:
    assert families(range(3), lambda task: (), 4) == [[0], [1], [2]]
    assert families([], lambda task: (), 4) == []


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
