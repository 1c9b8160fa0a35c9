"""Counts of the pieces into which tiles are cut for a reader."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest

from dasktile.ir import AxisMap, windows
from dasktile.tiling.conversion import _axis_pieces, _axis_tables, _ranges


def _random_map(rng: random.Random, length: int) -> tuple[AxisMap, int]:
    """A map from a label of some length, and the size of the axis."""
    if rng.random() < 0.2:
        breaks = tuple(accumulate((rng.randint(0, 3) for _ in range(length)), initial=0))
        return AxisMap(0, breaks=breaks), breaks[-1]
    if rng.random() < 0.2:
        ends = sorted(rng.randint(0, length) for _ in range(rng.randint(0, 4)))
        sizes = accumulate(rng.randint(0, 5) for _ in range(len(ends) + 1))
        parts = tuple(zip((*ends, length), sizes, strict=True))
        return AxisMap(0, parts=parts), max(1, parts[-1][1])
    step = rng.choice([1, 1, -1, 2, 3, -2])
    width = rng.choice([1, 1, 2, 3]) if step > 0 else 1
    strided = abs(step) > 1 and width == 1
    start = 0 if step > 0 else (length - 1) * -step
    # windows may reach beyond the axis, single elements do not
    start += rng.randint(0, 3) if strided or step < 0 else rng.randint(-2, 3)
    end = max(start, start + step * (length - 1)) + width
    return AxisMap(0, start, step, width), max(1, end + rng.randint(0 if strided else -1, 3))


@pytest.mark.parametrize("seed", range(20))
def test_ranges_are_those_of_windows(seed: int) -> None:
    """Those of all blocks at once, for the sake of time."""
    rng = random.Random(seed)
    for _ in range(100):
        cuts = tuple(rng.randint(0, 5) for _ in range(rng.randint(1, 6)))
        axis, size = _random_map(rng, max(1, sum(cuts)))
        starts, stops, plain = _ranges(axis, cuts if sum(cuts) else (1,), size)
        every = windows(axis, cuts if sum(cuts) else (1,), size)
        for window, start, stop in zip(every, starts.tolist(), stops.tolist(), strict=True):
            read = range(*window)
            if not read:
                assert start >= stop
                continue
            assert (min(read), max(read) + 1) == (start, stop)
            assert plain == (window[2] == 1)


def _random_cuts(rng: random.Random, size: int, least: int) -> tuple[int, ...]:
    """Chunk sizes that sum up to a size, each at least 0 or 1."""
    cuts: list[int] = []
    while sum(cuts) < size:
        cuts.append(rng.randint(least, size - sum(cuts)))
    return tuple(cuts)


@pytest.mark.parametrize("seed", range(20))
def test_elements_read_with_a_step_are_counted_by_their_numbers(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        axis = AxisMap(0, rng.randint(0, 8), rng.randint(2, 6))
        length = rng.randint(1, 12)
        size = axis.start + axis.step * (length - 1) + 1 + rng.randint(0, 5)
        made, cuts = _random_cuts(rng, size, 0), _random_cuts(rng, length, 1)
        counts, exact = _axis_tables(axis, size, (made,), (cuts,))
        assert (*counts[:, 0, 0], exact[0, 0]) == _axis_pieces(axis, cuts, size, made)
