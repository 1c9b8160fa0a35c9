"""The order of a plan, in the keys of its tasks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktile.schedule.ranks import rank_of, ranked_order

NAME = "bundle-dasktile-4_0e1-0f"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ((NAME, 2, 7), (NAME, (7,))),
        ((NAME, 2, 7, 1), (NAME, (7, 1))),
        ((NAME, 2), None),
        ((NAME, 2, "a"), None),
        (("bundle-0f", 2, 7), None),
        (("add-dasktile-4_0e1-0f", 2, 7), None),
        (((1, 2), 2, 7), None),
        (NAME, None),
    ],
)
def test_keys_of_bundles_have_ranks(key: Any, expected: Any) -> None:
    assert rank_of(key) == expected


def order(ranks: list[Any], reads: list[list[int]]) -> list[int]:
    """The order of tasks of one plan."""
    return ranked_order([None if rank is None else ("a", rank) for rank in ranks], reads)


def test_picks_follow_their_bundle() -> None:
    assert order([(1,), (0,), (0, 0), (1, 0)], [[], [], [1], [0]]) == [1, 2, 0, 3]


def test_a_task_without_a_rank_runs_after_what_it_reads() -> None:
    # task 2 reads the last bundle, task 3 the first one
    assert order([(1,), (0,), None, None], [[], [], [0], [1]]) == [1, 3, 0, 2]
    # it waits for the last of two bundles
    assert order([(1,), (0,), None, (2,)], [[], [], [0, 1], []]) == [1, 0, 2, 3]


def test_a_task_without_a_rank_runs_before_the_first_task_that_needs_it() -> None:
    # tasks 0 and 1 are read in the other order
    assert order([None, None, (1,), (0,)], [[], [], [0, 1], [1]]) == [1, 3, 0, 2]
    # a reader of a bundle needs it
    assert order([(0,), None, None, (1,)], [[], [], [0, 1], []]) == [0, 1, 2, 3]


def test_a_task_that_no_other_needs_runs_when_its_inputs_are_there_or_last() -> None:
    assert order([None, None, (1,), (0,)], [[], [0], [0], []]) == [3, 0, 2, 1]
    assert order([None, None, None, (0,), (1,)], [[], [], [0, 1], [0], []]) == [0, 3, 4, 1, 2]


def test_tasks_that_are_not_connected_with_ranks_keep_their_places() -> None:
    assert order([None, (1,), None, (0,), None], [[], [], [], [], [2]]) == [0, 3, 2, 1, 4]
    assert order([None] * 3, [[], [0], [1]]) == [0, 1, 2]


def test_one_plan_runs_after_the_other() -> None:
    ranks = [("b", (0,)), ("a", (0,)), ("b", (1,)), ("a", (1,))]
    assert ranked_order(ranks, [[]] * 4) == [0, 2, 1, 3]
    # but what it reads is first
    assert ranked_order(ranks, [[], [], [1], []]) == [0, 1, 2, 3]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Any], list[list[int]]]:
    """Tasks that follow their inputs, some with ranks in an order that follows them, too."""
    count = draw(st.integers(1, 12))
    reads = [
        sorted(draw(st.sets(st.integers(0, at - 1), max_size=3))) if at else []
        for at in range(count)
    ]
    waiting, done = set(range(count)), []
    while waiting:
        ready = sorted(at for at in waiting if waiting.isdisjoint(reads[at]))
        done.append(draw(st.sampled_from(ready)))
        waiting.remove(done[-1])
    plans = draw(st.lists(st.sampled_from([None, "a", "b"]), min_size=count, max_size=count))
    ranks = [plan and (plan, (done.index(at),)) for at, plan in enumerate(plans)]
    return ranks, reads


@given(graphs())
@settings(deadline=None)
def test_every_task_follows_its_inputs(graph: Any) -> None:
    ranks, reads = graph
    tasks = ranked_order(ranks, reads)
    assert sorted(tasks) == list(range(len(reads)))
    place = {number: at for at, number in enumerate(tasks)}
    for number, inputs in enumerate(reads):
        assert all(place[read] < place[number] for read in inputs)
    if "b" not in {rank[0] for rank in ranks if rank}:
        known = [ranks[at][1] for at in tasks if ranks[at] is not None]
        assert known == sorted(known)


def test_the_time_is_linear_in_tasks() -> None:
    # a stencil in one dimension: every task is connected with the only rank by a long path
    width, steps = 50, 400
    reads = [
        sorted({max(at - 1, 0), at, min(at + 1, width - 1)}) if step else []
        for step in range(steps)
        for at in range(width)
    ]
    reads = [[read + (at // width - 1) * width for read in each] for at, each in enumerate(reads)]
    ranks: list[Any] = [None] * len(reads)
    ranks[width * steps // 2] = ("a", (0,))
    visits = 0

    class Counted(list[list[int]]):
        def __getitem__(self, number: Any) -> Any:
            nonlocal visits
            visits += 1
            return super().__getitem__(number)

    tasks = ranked_order(ranks, Counted(reads))
    assert sorted(tasks) == list(range(len(reads)))
    assert visits < 20 * len(reads)
