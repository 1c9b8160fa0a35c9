"""Groups of a tile, and the range of the elements that a take reads."""

from __future__ import annotations

import numpy as np
import pytest

from dasktile.ir import Groups, Picks


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
    for lo in range(len(values)):
        for hi in range(lo + 1, len(values) + 1):
            assert groups.within(lo, hi) == len(set(values[lo:hi]))
            part = [value + 1 for value in values[lo:hi]]
            assert picks.span(lo, hi) == (min(part), max(part) + 1)


def test_no_iterations_have_no_groups() -> None:
    assert Groups(2, ((0, 3), (1, 6))).within(3, 3) == 0
    assert Picks(0, 0, ((4, 3), (5, 6))).span(3, 3) == (0, 0)
