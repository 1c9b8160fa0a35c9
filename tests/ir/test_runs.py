"""Groups of a tile, and the ranges of the elements that a take reads."""

from __future__ import annotations

import numpy as np
import pytest

from dasktile.ir import Groups, Picks
from dasktile.tiling.boxes import spans_of


def _runs(values: list[int]) -> tuple[tuple[int, int], ...]:
    starts = [at for at in range(len(values)) if not at or values[at] != values[at - 1]]
    ends = [*starts[1:], len(values)]
    return tuple(zip([values[lo] for lo in starts], ends, strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_ranges_are_those_of_the_elements(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = np.repeat(rng.integers(-1, 6, 12), rng.integers(1, 5, 12)).tolist()
    groups = Groups(6, _runs(values))
    picks = Picks(0, 0, _runs([value + 1 for value in values]))
    pairs = [(lo, hi) for lo in range(len(values)) for hi in range(lo + 1, len(values) + 1)]
    expected = []
    for lo, hi in pairs:
        assert groups.within(lo, hi) == len(set(values[lo:hi]))
        part = [value + 1 for value in values[lo:hi]]
        expected.append([min(part), max(part) + 1])
    assert np.stack(spans_of(picks, *np.array(pairs).T), axis=-1).tolist() == expected


def test_no_iterations_have_no_groups() -> None:
    assert Groups(2, ((0, 3), (1, 6))).within(3, 3) == 0
    picks = Picks(0, 0, ((4, 3), (5, 6)))
    start, stop = spans_of(picks, np.array([[3, 0], [6, 2]]), np.array([[3, 6], [6, 2]]))
    assert (start.tolist(), stop.tolist()) == ([[0, 4], [0, 0]], [[0, 6], [0, 0]])
    assert [each.tolist() for each in spans_of(Picks(0, 0, ()), *np.zeros((2, 1), int))] == [
        [0],
        [0],
    ]
