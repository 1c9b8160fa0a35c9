"""Elements read with a step, counted against lists of elements."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dasktile.ir import AxisMap
from dasktile.tiling.strided import ALL, Strided, steps_of


def _elements(step: Strided, size: int) -> list[int]:
    return [at for at in range(size) if (at - step.first) % step.step == 0 and at >= step.first]


@pytest.mark.parametrize("seed", range(20))
def test_elements_before_positions(seed: int) -> None:
    rng = random.Random(seed)
    step = Strided(rng.randrange(0, 9), rng.randrange(1, 9))
    elements = _elements(step, 60)
    positions = np.arange(step.first, 60)
    expected = [sum(element < position for element in elements) for position in positions]
    assert step.before(positions).tolist() == expected


@pytest.mark.parametrize("seed", range(40))
def test_common_elements(seed: int) -> None:
    rng = random.Random(seed)
    left, right = (Strided(rng.randrange(0, 12), rng.randrange(1, 12)) for _ in range(2))
    start = max(left.first, right.first)
    expected = set(_elements(left, 400)) & set(_elements(right, 400))
    meet = left.meet(right)
    found = set() if meet is None else {at for at in _elements(meet, 400) if at >= start}
    assert found == expected


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        (AxisMap(0), ALL),
        (AxisMap(None), ALL),
        (AxisMap(0, 9, -1), ALL),
        (AxisMap(0, 3, 4, 2), ALL),
        (AxisMap(0, 3, 4), Strided(3, 4)),
        (AxisMap(0, 36, -4), Strided(0, 4)),
    ],
)
def test_elements_of_a_map(axis: AxisMap, expected: Strided) -> None:
    # a second axis, so that the first is not left out if all of its elements are read
    assert steps_of([axis, AxisMap(0, 0, 2)], [10]) == (expected, Strided(0, 2))
    assert steps_of([axis], [10]) == (() if expected is ALL else (expected,))


def test_elements_span_a_range() -> None:
    start, stop = Strided(2, 3).span(np.array([0, 1, 4]), np.array([3, 1, 6]))
    assert start.tolist() == [2, 5, 14]
    assert stop.tolist() == [9, 5, 18]
