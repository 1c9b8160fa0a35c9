"""Where the blocks of an array lie that follows a persisted one."""

from __future__ import annotations

import numpy as np
import pytest

from dasktile.ir import AxisMap
from dasktile.tiling import follow
from dasktile.tiling.follow import cuts_along


@pytest.mark.parametrize(
    ("sizes", "length", "expected"),
    [
        ((10, 10, 10), 30, (10, 10, 10)),
        ((10, 10, 0), 20, (10, 10, 0)),
        ((10, 10, 10), 28, (10, 10, 8)),
        ((10, 10, 10), 34, (10, 10, 14)),
        ((10, 10, 10), 20, None),
        ((10, 10, 10), 60, None),
    ],
)
def test_the_last_block_is_shorter_or_longer(
    sizes: tuple[int, ...], length: int, expected: tuple[int, ...] | None
) -> None:
    assert cuts_along(sizes, length) == expected


def test_each_axis_has_a_dimension_of_its_own() -> None:
    ways = list(follow._assigned({0: [0, 1, 2], 1: [0, 1, 2], 2: [0, 1, 2]}, 3))
    assert ways[0] == (0, 1, 2)
    assert len(ways) == follow.MOST_ASSIGNED
    assert all(sorted(way) == [0, 1, 2] for way in ways)
    assert list(follow._assigned({1: [0]}, 3)) == [(None, 0, None)]


@pytest.mark.parametrize("seed", range(20))
def test_what_shifted_blocks_read(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, rng.integers(2, 6))
    size = int(sizes.sum())
    edges = np.concatenate([[0], np.cumsum(sizes)])
    axis = AxisMap(0, int(rng.integers(-4, 5)), 1, int(rng.integers(1, 7)))
    have = rng.random((3, len(sizes))) < 0.5
    parts, reads = follow._read(axis, size, edges, have, 1)
    for worker in range(3):
        expected = set[int]()
        for block in np.flatnonzero(have[worker]):
            for step in range(edges[block], edges[block + 1]):
                first = axis.start + step
                expected |= {at for at in range(first, first + axis.width) if 0 <= at < size}
        found = {
            at
            for part in np.flatnonzero(reads[worker])
            for at in range(parts[part], parts[part + 1])
        }
        assert found == expected
