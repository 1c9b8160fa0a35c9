"""When results are needed next, from priorities and states of tasks."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from dasktile.runtime.nextuse import ANNOTATION, MANY, NextUses, number, tell


def task(key: Any, order: int, state: str = "waiting", **more: Any) -> Any:
    given = {"annotations": {ANNOTATION: []}, "run_spec": 1, "dependents": set()}
    return SimpleNamespace(key=key, priority=(0, 1, order), state=state, **{**given, **more})


def at(order: int) -> int:
    return number((0, 1, order))


@pytest.mark.parametrize(
    "sooner, later",
    [
        ((0, 1, 5), (0, 1, 6)),
        ((0, 1, 10**9), (0, 2, 0)),
        ((-1, 9, 9), (0, 1, 0)),
        ((-1.5, 9, 9), (-1, 1, 0)),
        ((0, 1.99, 5), (0, 2, 0)),
        ((0, 1, 5, 7), (0, 1, 6, 3)),
    ],
)
def test_numbers_are_in_the_order_of_priorities(
    sooner: tuple[Any, ...], later: tuple[Any, ...]
) -> None:
    assert number(sooner) < number(later)


def test_readers_are_told() -> None:
    readers = [task(name, order) for order, name in enumerate("abc")]
    shared = {"retries": 3}
    one, none = task("x", 9, annotations=shared), task("y", 9, annotations=None)
    one.dependents = readers
    tell([one, none])
    assert sorted(one.annotations[ANNOTATION]) == [(0, 1, 0), (0, 1, 1), (0, 1, 2)]
    assert one.annotations["retries"] == 3
    assert shared == {"retries": 3}
    assert none.annotations == {ANNOTATION: []}
    many = task("z", 9)
    many.dependents = [task(order, order) for order in reversed(range(100))]
    tell([many])
    assert many.annotations[ANNOTATION] == [(0, 1, order) for order in range(MANY)]


def test_the_first_reader_that_has_not_run() -> None:
    x = task("x", 0, "memory", dependents=[task("a", 3, "memory"), task("b", 7), task("c", 5)])
    uses = NextUses({"x": x})
    assert uses.of("x") == at(5)
    assert uses.of("x", without="c") == at(7)
    assert uses.of("nothing") is None
    x.dependents = []
    assert uses.of("x") == math.inf
    x.annotations = None
    assert uses.of("x") is None
    # a copy of a result of another worker is needed by tasks here alone
    x.run_spec = None
    assert uses.of("x") == math.inf


def test_readers_elsewhere_count_until_later_ones_run_here_for_a_while() -> None:
    x = task("x", 0, "memory", annotations={ANNOTATION: [[0, 1, 4], (0, 1, 8)]})
    uses = NextUses({"x": x}, patience=2)
    assert uses.of("x") == at(4)
    assert uses.advance([(0, 1, 5), (0, 1, 6)]) == {}
    assert uses.of("x") == at(4)
    assert uses.advance([(0, 1, 6)]) == {}
    # other graphs say nothing, and what is urgent neither
    assert uses.advance([(-1, 2, 0), (0, 3, 9)]) == {"x": at(8)}
    for _ in range(5):
        assert uses.advance([(0, 2, 9)]) == {}
    assert uses.of("x") == at(4)
    uses.forget("x")


def test_readers_that_ran_here_are_not_waited_for() -> None:
    x = task("x", 0, "memory", annotations={ANNOTATION: [(0, 1, 4), (0, 1, 8)]})
    x.dependents = [task("a", 4, "memory")]
    uses = NextUses({"x": x})
    assert uses.of("x") == at(8)
    x.dependents.append(task("b", 8))
    assert uses.of("x", without="b") == math.inf


def test_what_very_many_read_is_always_needed() -> None:
    readers = [task(order, order) for order in range(MANY + 1)]
    x = task("x", 0, "memory", dependents=readers)
    uses = NextUses({"x": x})
    assert uses.of("x") == -math.inf
    for reader in readers:
        reader.state = "memory"
    assert uses.of("x") == math.inf
