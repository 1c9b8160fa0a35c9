"""Elements at positions in any order are sent one by one, and priced so."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile.ir import AxisMap, Label, Picks, Role, Sharding
from dasktile.tiling.boxes import BoxBuilder
from dasktile.tiling.mesh import Mesh
from dasktile.tiling.options import Option, Options
from tests.agreement import EAGER

ROWS, COLUMNS, WORKERS = 800, 30, 4

PERMUTED = np.random.default_rng(0).permutation(ROWS)


def noise(chunk: int) -> da.Array:
    return da.random.default_rng(1).random((ROWS, COLUMNS), chunks=(chunk, COLUMNS))


def rows_received(index: np.ndarray, holder: np.ndarray) -> int:
    """Rows that workers receive, each of which makes an equal part of the result.

    `holder` is the worker that has each row of the array.
    """
    parts = np.array_split(index, WORKERS)
    return sum(int((holder[np.unique(part)] != worker).sum()) for worker, part in enumerate(parts))


@pytest.mark.parametrize("index", [PERMUTED, np.random.default_rng(2).integers(3, ROWS - 5, ROWS)])
def test_rows_of_an_array_that_is_computed(index: np.ndarray) -> None:
    x = noise(20)
    told = dasktile.explain((x + x[::-1])[index], workers=WORKERS)
    assert told.nodes[-1].op == "getitem"
    # every worker has a quarter of the rows, whichever these are
    expected = rows_received(index, np.arange(ROWS) * WORKERS // ROWS)
    received = told.nodes[-1].bytes_after
    assert received == pytest.approx(expected * COLUMNS * 8, rel=0.05)


def test_blocks_are_made_where_most_of_their_rows_are_needed() -> None:
    told = dasktile.explain(noise(20)[PERMUTED], workers=WORKERS)
    maker = np.empty(ROWS, dtype=int)
    maker[PERMUTED] = np.arange(ROWS) * WORKERS // ROWS
    expected = sum(
        20 - np.bincount(readers, minlength=WORKERS).max() for readers in maker.reshape(-1, 20)
    )
    assert told.bytes_after == expected * COLUMNS * 8


def test_ranges_where_they_have_little_in_common() -> None:
    # each of the blocks takes from a stretch of its own, which is sent as a whole
    index = np.concatenate([np.arange(start, start + 100)[::-3] for start in range(0, ROWS, 100)])
    runs = tuple((int(element), number + 1) for number, element in enumerate(index))
    labels = [Label(len(index), Role.FREE, (34,) * 8), Label(6, Role.FREE, (6,))]
    option = Option(Sharding.divided([(0,), ()]), Sharding.divided([(0,), ()]))
    boxes = BoxBuilder(Mesh((2,)), labels, [None, None]).need(
        Options([option]), [AxisMap(None), AxisMap(1)], (ROWS, 6), picks=Picks(0, 0, runs)
    )
    assert boxes.taken is None
    assert boxes.volume().tolist() == [[400 * 6, 400 * 6]]
    x = noise(20)
    with dask.config.set(EAGER):
        np.testing.assert_array_equal(*dask.compute(x[index], dasktile.optimize(x[index])))


@pytest.mark.parametrize("by", [(), (0,)])
def test_the_elements_of_every_worker(by: tuple[int, ...]) -> None:
    index = np.random.default_rng(3).integers(0, 50, 40)
    labels = [Label(40, Role.FREE, (10,) * 4), Label(6, Role.FREE, (6,))]
    runs = tuple((int(element), number + 1) for number, element in enumerate(index))
    option = Option(Sharding.divided([by, ()]), Sharding.divided([by, ()]))
    boxes = BoxBuilder(Mesh((2,)), labels, [None, None]).need(
        Options([option]), [AxisMap(None), AxisMap(1)], (50, 6), picks=Picks(0, 0, runs)
    )
    parts: Any = np.split(index, 2) if by else [index, []]
    expected = [len(np.unique(part)) * 6 for part in parts]
    assert boxes.volume().tolist() == [expected]
    assert boxes.taken is not None
    lo, hi = np.array([[0], [17]]), np.array([[17], [50]])
    for worker, part in enumerate(parts[: 1 + bool(by)]):
        below = int((np.unique(part) < 17).sum())
        found = boxes.taken.within(lo, hi)[:, 0, worker].tolist()
        assert found == [below, len(np.unique(part)) - below]
    # within ranges, all elements between the first and the last count
    [spans] = boxes.ranges().volume().tolist()
    assert spans[0] == (max(parts[0]) - min(parts[0]) + 1) * 6
