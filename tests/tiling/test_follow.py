"""Where the blocks of an array lie that follows a persisted one."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from dasktile.ir import AxisMap
from dasktile.tiling import follow, followed
from dasktile.tiling.lines import Along, Part


@pytest.mark.parametrize(
    ("sizes", "length", "expected"),
    [
        ((10, 10, 10), 30, (10, 10, 10)),
        ((10, 10, 0), 20, (10, 10, 0)),
        ((10, 10, 10), 28, (10, 10, 8)),
        ((10, 10, 10), 34, (10, 10, 14)),
        ((10, 10, 10), 20, (10, 10)),
        ((10, 10, 10), 13, (13,)),
        ((10, 10, 10), 60, None),
    ],
)
def test_the_last_block_is_shorter_or_longer(
    sizes: tuple[int, ...], length: int, expected: tuple[int, ...] | None
) -> None:
    cut = follow._cut([Part(0, length, Along(0))], sizes, None)
    assert (None if cut is None else cut.sizes) == expected


@pytest.mark.parametrize(
    ("parts", "sizes", "own", "expected"),
    [
        # a slice that leaves out a block; one that begins a little later
        ([Part(0, 20, Along(0, 10))], (10, 10, 10), None, (1, 2)),
        ([Part(0, 17, Along(0, 13))], (10, 10, 10), None, (1, 2)),
        # in its own chunks: where the middle of each is
        ([Part(0, 17, Along(0, 13))], (10, 10, 10), (7, 4, 6), (1, 2, 2)),
        # reversed, with the last block at first
        ([Part(0, 25, Along(0, 24, -1))], (10, 10, 5), None, (2, 1, 0)),
        ([Part(0, 15, Along(0, 14, -1))], (10, 10, 5), (5, 10), (1, 0)),
        # one behind the other
        ([Part(0, 25, Along(0)), Part(25, 50, Along(0))], (10, 10, 5), None, (0, 1, 2, 0, 1, 2)),
        ([Part(0, 20, Along(0)), Part(20, 45, Along(0, 24, -1))], (10, 10, 5), None,
         (0, 1, 2, 1, 0)),
        ([Part(0, 12, Along(0)), Part(12, 24, Along(0))], (10, 10, 5), None, (0, 1, 0, 1)),
        # stretches, of which several are in one block
        ([Part(0, 3, Along(0, 4)), Part(3, 5, Along(0, 8)), Part(5, 8, Along(0, 12))], (10, 10),
         None, (0, 1)),
        # from the middle of a block
        ([Part(0, 10, Along(0, 5))], (10, 10, 10), None, (0, 1)),
        ([Part(0, 12, Along(0)), Part(12, 24, Along(0))], (10, 10, 5), (10, 2, 10, 2),
         (0, 1, 0, 1)),
    ],
)  # fmt: skip
def test_blocks_that_are_followed(
    parts: list[Part],
    sizes: tuple[int, ...],
    own: tuple[int, ...] | None,
    expected: tuple[int, ...] | None,
) -> None:
    cut = follow._cut(parts, sizes, own)
    assert (None if cut is None else cut.numbers) == expected
    if cut is not None:
        assert sum(cut.sizes) == parts[-1].hi
        assert own in (None, cut.sizes)


@pytest.mark.parametrize("seed", range(30))
def test_labels_that_read_with_a_step_are_cut_where_blocks_begin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = tuple(rng.integers(1, 6, rng.integers(2, 6)).tolist())
    total = sum(sizes)
    steps = [Fraction(2), Fraction(-2), Fraction(3), Fraction(3, 2), Fraction(-3, 2)]
    step = steps[rng.integers(len(steps))]
    first = int(rng.integers(0, 3)) if step > 0 else total - 1 - int(rng.integers(0, 3))
    places = [first + step * number for number in range(3 * total)]
    places = [place for place in places if 0 <= place < total]
    cut = follow._cut([Part(0, len(places), Along(0, first, step))], sizes, None)
    if not places:
        assert cut is None
        return
    assert cut is not None
    ends = np.cumsum(sizes)
    expected = [int(np.searchsorted(ends, math.floor(place), side="right")) for place in places]
    found = [number for size, number in zip(cut.sizes, cut.numbers, strict=True)
             for _ in range(size)]  # fmt: skip
    if step > 0:
        assert found == expected
    else:
        # places between two elements are nearer to either
        assert all(abs(one - other) <= 1 for one, other in zip(found, expected, strict=True))


def test_each_axis_has_a_dimension_of_its_own() -> None:
    ways = list(follow._assigned({0: [0, 1, 2], 1: [0, 1, 2], 2: [0, 1, 2]}, 3))
    assert ways[0] == (0, 1, 2)
    assert len(ways) == follow.MOST_ASSIGNED
    assert all(sorted(way) == [0, 1, 2] for way in ways)
    assert list(follow._assigned({1: [0]}, 3)) == [(None, 0, None)]


@pytest.mark.parametrize("seed", range(20))
def test_what_shifted_blocks_read(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(seed % 2, 6, rng.integers(2, 6))
    size = int(sizes.sum())
    edges = np.concatenate([[0], np.cumsum(sizes)])
    axis = AxisMap(0, int(rng.integers(-4, 5)), 1, int(rng.integers(1, 7)))
    if seed % 4 == 0:
        axis = AxisMap(0, int(rng.integers(size - 3, size + 4)), -1)
    elif seed % 4 == 1:
        step = int(rng.integers(2, 4))
        axis = AxisMap(0, int(rng.integers(-4, 5)), step, step + int(rng.integers(0, 3)))
    have = rng.random((3, len(sizes))) < 0.5
    parts, reads = followed._read(axis, size, edges, have, 1)
    for worker in range(3):
        expected = set[int]()
        for block in np.flatnonzero(have[worker]):
            for step in range(edges[block], edges[block + 1]):
                first = axis.start + axis.step * step
                expected |= {at for at in range(first, first + axis.width) if 0 <= at < size}
        found = {
            at
            for part in np.flatnonzero(reads[worker])
            for at in range(parts[part], parts[part + 1])
        }
        assert found == expected
