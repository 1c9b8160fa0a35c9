"""The worker mesh: workers as a small grid whose axes cut labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dasktile.ir import MAX_WORKERS

__all__ = ["MAX_AXES", "MAX_WORKERS", "Mesh", "mesh_shape", "mesh_shapes", "primes"]

#: Axes of a mesh by default.  Candidates grow as a power of them: (choices of an axis) ** axes.
#: It is no setting, since the placement of persisted arrays and plans must agree on the mesh.
MAX_AXES = 3


def mesh_shape(workers: int, max_axes: int = MAX_AXES) -> tuple[int, ...]:
    """Factor a number of workers into the axes of a mesh, largest first.

    Parameters
    ----------
    workers
        Number of processes that send bytes to each other, at least 1.
    max_axes
        Number of axes at the most; the prime factors are merged into them as evenly as possible.

    Examples
    --------
    >>> mesh_shape(4), mesh_shape(12), mesh_shape(64), mesh_shape(7), mesh_shape(1)
    ((2, 2), (3, 2, 2), (4, 4, 4), (7,), ())
    """
    axes: list[int] = []
    for prime in primes(workers):
        if len(axes) < max_axes:
            axes.append(prime)
        else:
            smallest = min(range(len(axes)), key=axes.__getitem__)
            axes[smallest] *= prime
    return tuple(sorted(axes, reverse=True))


def mesh_shapes(workers: int, axes: int) -> list[tuple[int, ...]]:
    """All meshes of a number of axes, each of them at least 2 long, largest first.

    A label that several axes cut, in any order, may also be cut into the product of their lengths:
    meshes of fewer axes add no tilings, where there are any of this number.

    Examples
    --------
    >>> mesh_shapes(24, 3), mesh_shapes(64, 3)
    ([(6, 2, 2), (4, 3, 2)], [(16, 2, 2), (8, 4, 2), (4, 4, 4)])
    """

    def shapes(number: int, count: int, most: int) -> list[tuple[int, ...]]:
        if count == 1:
            return [(number,)] if 2 <= number <= most else []
        return [
            (axis, *rest)
            for axis in range(min(number, most), 1, -1)
            if number % axis == 0
            for rest in shapes(number // axis, count - 1, axis)
        ]

    return shapes(workers, axes, workers)


def primes(number: int) -> list[int]:
    """Prime factors in descending order.

    Parameters
    ----------
    number
        A positive integer.
    """
    factors: list[int] = []
    divisor = 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    if number > 1:
        factors.append(number)
    return factors[::-1]


@dataclass(frozen=True)
class Mesh:
    """A grid of workers.

    Parameters
    ----------
    shape
        Sizes of the axes, slowest link first.
    """

    shape: tuple[int, ...]

    @property
    def workers(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def coordinates(self) -> npt.NDArray[np.int64]:
        """Coordinates of every worker, (workers, axes)."""
        grid = np.indices(self.shape, dtype=np.int64)
        return np.moveaxis(grid, 0, -1).reshape(self.workers, len(self.shape))

    def parts(self, axes: tuple[int, ...]) -> int:
        """Number of parts into which these axes of the mesh cut a label."""
        return math.prod(self.shape[axis] for axis in axes)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """All numbers of parts into which axes of the mesh cut a label."""
        counts = {1}
        for size in self.shape:
            counts |= {size * count for count in counts}
        return tuple(sorted(counts))

    def digits(self, axes: tuple[int, ...]) -> npt.NDArray[np.int64]:
        """Index of the part (of :meth:`parts`) that each worker has, in mixed radix over `axes`."""
        if axes not in self._digits:
            index = np.zeros(self.workers, dtype=np.int64)
            for axis in axes:
                index = index * self.shape[axis] + self.coordinates[:, axis]
            self._digits[axes] = index
        return self._digits[axes]

    @cached_property
    def _digits(self) -> dict[tuple[int, ...], npt.NDArray[np.int64]]:
        return {}

    def first(self, axes: tuple[int, ...]) -> npt.NDArray[np.bool_]:
        """True for workers at the origin of all these axes."""
        if axes not in self._first:
            self._first[axes] = np.all(self.coordinates[:, list(axes)] == 0, axis=1)
        return self._first[axes]

    @cached_property
    def _first(self) -> dict[tuple[int, ...], npt.NDArray[np.bool_]]:
        return {}
