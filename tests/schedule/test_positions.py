"""The order of a plan, in the keys of its tasks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktile.schedule.positions import planned_order, position_of


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (("bundle-dasktile-4_0e1-0f", 2, 7), (7,)),
        (("bundle-dasktile-4_0e1-0f", 2, 7, 1), (7, 1)),
        (("bundle-dasktile-4_0e1-0f", 2), None),
        (("bundle-dasktile-4_0e1-0f", 2, "a"), None),
        (("bundle-0f", 2, 7), None),
        (("add-dasktile-4_0e1-0f", 2, 7), None),
        (((1, 2), 2, 7), None),
        ("bundle-dasktile-4_0e1-0f", None),
    ],
)
def test_keys_of_bundles_have_positions(key: Any, expected: tuple[int, ...] | None) -> None:
    assert position_of(key) == expected


def test_parts_follow_their_bundle() -> None:
    positions = [(1,), (0,), (0, 0), (1, 0)]
    assert planned_order(positions, [[], [], [1], [0]]) == [1, 2, 0, 3]


def test_a_task_without_a_position_runs_after_what_it_reads() -> None:
    # task 2 reads the last bundle, task 3 the first one
    assert planned_order([(1,), (0,), None, None], [[], [], [0], [1]]) == [1, 3, 0, 2]


def test_a_task_without_a_position_runs_before_the_first_task_that_reads_it() -> None:
    # tasks 0 and 1 are read in the other order
    assert planned_order([None, None, (1,), (0,)], [[], [], [0, 1], [1]]) == [1, 3, 0, 2]
    # an input that is read only after a bundle
    assert planned_order([(0,), None, None, (1,)], [[], [], [0, 1], []]) == [0, 1, 2, 3]


def test_tasks_far_from_bundles_keep_their_places() -> None:
    assert planned_order([None, (1,), None, (0,), None], [[], [], [], [], [2]]) == [0, 3, 2, 1, 4]
    # a reader of what a bundle reads follows it
    assert planned_order([None, None, (1,), (0,)], [[], [0], [0], []]) == [3, 0, 1, 2]
    assert planned_order([None] * 3, [[], [0], [1]]) == [0, 1, 2]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[tuple[int, ...] | None], list[list[int]]]:
    """Tasks that follow their inputs, some with positions in an order that follows them, too."""
    count = draw(st.integers(1, 12))
    reads = [
        sorted(draw(st.sets(st.integers(0, at - 1), max_size=3))) if at else []
        for at in range(count)
    ]
    waiting, order = set(range(count)), []
    while waiting:
        ready = sorted(at for at in waiting if waiting.isdisjoint(reads[at]))
        order.append(draw(st.sampled_from(ready)))
        waiting.remove(order[-1])
    known = draw(st.sets(st.integers(0, count - 1)))
    return [(order.index(at),) if at in known else None for at in range(count)], reads


@given(graphs())
@settings(deadline=None)
def test_every_task_follows_its_inputs(graph: Any) -> None:
    positions, reads = graph
    order = planned_order(positions, reads)
    assert sorted(order) == list(range(len(reads)))
    known = [positions[at] for at in order if positions[at] is not None]
    assert known == sorted(known)
    place = {number: at for at, number in enumerate(order)}
    for number, inputs in enumerate(reads):
        assert all(place[read] < place[number] for read in inputs)
