"""Another order of the axes of a mesh: the same tiles on other workers."""

from __future__ import annotations

import math
from itertools import permutations, product

import numpy as np
import pytest

from dasktile.ir import Program, Sharding, Share, TiledProgram, Tiling
from dasktile.schedule.placement import Placement
from dasktile.tiling.axis_order import axis_orders, in_axis_order, new_positions


def tiled_on(mesh: tuple[int, ...]) -> TiledProgram:
    """An array on a mesh whose first axis divides its columns, and whose others its rows."""
    count = math.prod(mesh[1:])
    rows = Share(tuple(range(1, len(mesh))), tuple(1 + part % 2 for part in range(count)))
    columns = Share((0,), (2,) * mesh[0])
    chunks = ((1,) * sum(rows.runs), (1,) * sum(columns.runs))
    where = Sharding((rows, columns))
    return TiledProgram(Program((), ()), mesh, (Tiling(chunks, chunks, where, where),))


def homes(tiled: TiledProgram) -> dict[tuple[int, ...], int]:
    """The position of every block."""
    (tiling,) = tiled.tilings
    assert isinstance(tiling.held_at, Sharding)
    placement = Placement(tiled.mesh, tiling.held_at)
    blocks = product(*(range(len(sizes)) for sizes in tiling.chunks))
    return {block: placement.position(block) for block in blocks}


@pytest.mark.parametrize("mesh", [(2, 3), (3, 2, 2), (4, 2, 2), (6, 4)])
def test_blocks_are_at_the_positions_that_their_positions_become(mesh: tuple[int, ...]) -> None:
    tiled = tiled_on(mesh)
    before = homes(tiled)
    for order in permutations(range(len(mesh))):
        new = new_positions(mesh, order)
        assert sorted(new) == list(range(math.prod(mesh)))
        after = in_axis_order(tiled, order)
        assert after.mesh == tuple(mesh[axis] for axis in order)
        assert homes(after) == {block: new[position] for block, position in before.items()}


def test_any_axes_are_first_and_no_order_is_twice() -> None:
    orders = list(axis_orders(4))
    assert orders[0] == (0, 1, 2, 3)
    for count in range(4):
        fronts = {frozenset(order[:count]) for order in orders}
        assert len(fronts) == math.comb(4, count)
    # an axis at the front of all others is in its place already
    assert len(set(orders)) <= len(orders) == 2**4 - 1
    assert np.array_equal(new_positions((2, 2), (0, 1)), range(4))
