"""Elements at positions in any order are sent one by one, and priced so."""

from __future__ import annotations

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


def test_blocks_are_made_on_a_worker_that_needs_some_of_their_rows() -> None:
    told = dasktile.explain(noise(20)[PERMUTED], workers=WORKERS)
    # not on that which needs most of them: tasks are counted, and not elements
    most = ROWS * (1 - 1 / WORKERS) * COLUMNS * 8
    assert 0.95 * most <= told.bytes_after <= most


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
    parts = np.split(index, 2) if by else [index, index[:0]]
    taken = [np.unique(part) for part in parts]
    expected = [len(each) * 6 for each in taken]
    assert boxes.volume().tolist() == [expected]
    assert boxes.taken is not None
    lo, hi = np.array([[0], [17]]), np.array([[17], [50]])
    for worker, each in enumerate(taken[: 1 + bool(by)]):
        below = int((each < 17).sum())
        found = boxes.taken.within(lo, hi)[:, 0, worker].tolist()
        assert found == [below, len(each) - below]
    # within ranges, all elements between the first and the last count
    [spans] = boxes.ranges().volume().tolist()
    assert spans[0] == (parts[0].max() - parts[0].min() + 1) * 6
