"""Neighbouring blocks that are joined before they are cut."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile.lower.block_groups import block_groups
from dasktile.lower.bundle_tasks import run_bundle
from dasktile.lower.reshard import block_windows
from tests.support import plan_for_workers

NO_RUNS: tuple[tuple[int, ...], ...] = ((), ())

#: 120 blocks of one row, each cut into six pieces for as many tiles.
ROWS, COLUMNS = ((1,) * 120, (24,)), ((120,), (4,) * 6)


def groups_of(
    chunks: tuple[tuple[int, ...], ...] = ROWS,
    target: tuple[tuple[int, ...], ...] = COLUMNS,
    runs: tuple[tuple[int, ...], ...] = NO_RUNS,
    most: float = 4.0,
) -> list[list[int]] | None:
    found = block_groups(chunks, block_windows(target), runs, most)
    if found is None:
        return None
    axis, groups = found
    assert axis == 0
    assert [block for group in groups for block in group] == list(range(len(chunks[0])))
    return [list(group) for group in groups]


def test_blocks_are_joined_until_there_are_no_more_pieces_than_blocks_and_tiles() -> None:
    groups = groups_of()
    assert groups is not None
    # 90 pieces for 120 blocks and 6 tiles; twice as many groups would make 180
    assert [len(group) for group in groups] == [8] * 15


def test_few_pieces_are_left_alone() -> None:
    assert groups_of(most=6.0) is None
    assert groups_of(((1,) * 4, (24,)), ((4,), (12, 12))) is None
    assert groups_of(ROWS, ROWS) is None
    # blocks that are not cut
    assert groups_of(ROWS, ((60, 60), (24,))) is None


def test_blocks_of_several_homes_are_not_joined() -> None:
    groups = groups_of(runs=((37, 83), ()))
    assert groups is not None
    assert any(group[0] == 37 for group in groups)


def test_blocks_of_several_tiles_are_not_joined() -> None:
    groups = groups_of(target=((50, 70), (4,) * 6))
    assert groups is not None
    assert any(group[0] == 50 for group in groups)


def test_joined_blocks_are_no_larger_than_the_largest_tile() -> None:
    # tiles of 120 x 1 elements: at most 5 blocks of 24
    groups = groups_of(target=((120,), (1,) * 24))
    assert groups is not None
    assert max(map(len, groups)) * 24 <= 120


def test_no_blocks_are_joined_that_all_belong_to_other_tiles() -> None:
    halos = tuple((at, at + 30, 1) for at in range(30))
    columns = tuple((at, at + 10, 1) for at in range(0, 100, 10))
    assert block_groups(((1,) * 60, (100,)), (halos, columns), NO_RUNS, 4.0) is None


def test_the_axis_along_which_most_blocks_can_be_joined() -> None:
    # one long run along the first axis, and pairs along the second
    chunks = ((1,) * 40, (1,) * 60)
    first = ((0, 10), *((at, at + 1) for at in range(10, 40)))
    windows = (
        tuple((*each, 1) for each in first),
        tuple((at, at + 12, 1) for at in range(0, 60, 12)),
    )
    found = block_groups(chunks, windows, NO_RUNS, 0.0)
    assert found is None or found[0] == 1


def test_windows_with_steps_are_left_alone() -> None:
    windows = (((0, 120, 2), (1, 120, 2)), tuple((at, at + 2, 1) for at in range(0, 24, 2)))
    assert block_groups(ROWS, windows, NO_RUNS, 1.0) is None


def test_no_axes() -> None:
    assert block_groups((), (), (), 4.0) is None


def test_values_and_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch)
    x = da.random.default_rng(0).random((480, 72, 144), chunks=(1, 72, 144))
    y = x.rechunk((-1, 18, 24))
    new = dasktile.optimize(y, keep_chunks=True)
    assert new.chunks == y.chunks
    np.testing.assert_array_equal(new, y)
    steps = [
        step
        for layer in new.dask.layers.values()
        for task in layer.values()
        if getattr(task, "func", None) is run_bundle
        for step in task.args[0]
    ]
    # 24 pieces of every block would be 11,520
    assert steps and len(steps) < 2000
