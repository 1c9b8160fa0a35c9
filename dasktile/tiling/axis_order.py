"""Another order of the axes of a mesh: the same tiles on other workers.

Positions of a mesh are numbered in C order, and the workers of a host have neighbouring numbers.
So the first axes of the mesh run between hosts, and the last ones within them.  The bytes that
workers receive do not depend on the order of the axes; those that cross hosts do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from dasktile.ir import Sharding, Share, TiledProgram, Tiling, Where

#: An order of the axes of a mesh: the number of the first one, of the second one, ...
AxisOrder = tuple[int, ...]


def axis_orders(count: int) -> Iterator[AxisOrder]:
    """The orders in which some axes are moved to the front; first the one in which none is.

    Parameters
    ----------
    count
        Number of the axes.
    """
    for moved in range(count):
        for front in combinations(range(count), moved):
            yield *front, *(axis for axis in range(count) if axis not in front)


def new_positions(mesh: Sequence[int], order: AxisOrder) -> npt.NDArray[np.intp]:
    """For every position of a mesh, its position after the axes were put in another order.

    Parameters
    ----------
    mesh
        Sizes of the axes.
    order
        The order.

    Examples
    --------
    >>> new_positions((2, 3), (1, 0)).tolist()
    [0, 2, 4, 1, 3, 5]
    """
    numbers = np.arange(math.prod(mesh)).reshape([mesh[axis] for axis in order])
    return np.transpose(numbers, np.argsort(order)).reshape(-1)


def in_axis_order(tiled: TiledProgram, order: AxisOrder) -> TiledProgram:
    """A tiled program on the mesh with its axes in another order.

    Parameters
    ----------
    tiled
        A program without blocks in memory, which would stay on their workers.
    order
        The order of its axes.
    """
    number = {axis: place for place, axis in enumerate(order)}

    def share(old: Share) -> Share:
        return replace(old, by=tuple(map(number.__getitem__, old.by)))

    def sharding(old: Sharding) -> Sharding:
        replicated = sorted(map(number.__getitem__, old.replicated))
        return Sharding(tuple(map(share, old.dims)), tuple(replicated))

    def where(old: Where | None) -> Where | None:
        return sharding(old) if isinstance(old, Sharding) else old

    def tiling(old: Tiling) -> Tiling:
        return replace(old, work_at=where(old.work_at), held_at=where(old.held_at))

    kept_at = {index: where(old) for index, old in tiled.kept_at.items()}
    return replace(
        tiled,
        mesh=tuple(tiled.mesh[axis] for axis in order),
        tilings=tuple(map(tiling, tiled.tilings)),
        kept_at={index: old for index, old in kept_at.items() if old is not None},
        final={key: moved for key, old in tiled.final.items() if (moved := where(old)) is not None},
    )
