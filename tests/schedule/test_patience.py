"""When a task that waits for memory runs without it."""

from __future__ import annotations

from dasktile.schedule.patience import Patience


def patience() -> Patience:
    made = Patience(seconds=5, share=0.25, longest=600)
    made.restart(100, 7, 30)
    return made


def test_tasks_are_stuck_when_nothing_proceeds() -> None:
    one = patience()
    assert not one.is_stuck(104.9, 7, 30.1, False)
    assert one.is_stuck(105, 7, 30.2, False)
    # then only after the same time again
    assert not one.is_stuck(109, 7, 30.3, False)
    assert one.is_stuck(110, 7, 30.4, False)


def test_a_task_that_computes_is_waited_for() -> None:
    one = patience()
    for step in range(1, 100):
        assert not one.is_stuck(100 + 5 * step, 7, 30 + 2 * step, False)
    assert one.is_stuck(600, 7, 228.1, False)


def test_a_task_that_uses_the_processor_and_never_ends_is_no_progress() -> None:
    """It polls for the end of a task that waits for memory."""
    one = patience()
    stuck = [now for now in range(105, 2000, 5) if one.is_stuck(now, 7, now, False)]
    assert stuck == [700, 1300, 1900]


def test_copies_that_fail_again_and_again_are_no_progress() -> None:
    one = patience()
    stuck = [now for now in range(105, 2000, 5) if one.is_stuck(now, 7, 30, True)]
    assert stuck == [700, 1300, 1900]


def test_a_long_computation_is_waited_for_while_other_tasks_end() -> None:
    one = patience()
    assert not any(one.is_stuck(now, now // 500, now, False) for now in range(105, 5000, 5))


def test_copies_and_tasks_that_end_are_progress() -> None:
    one = patience()
    assert not one.is_stuck(200, 7, 30, True)
    assert not one.is_stuck(204, 7, 30, False)
    assert not one.is_stuck(206, 8, 30, False)
    assert not one.is_stuck(210, 8, 30, False)
    assert one.is_stuck(211, 8, 30, False)
