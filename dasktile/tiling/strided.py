"""Elements of an axis that are read with a step, counted exactly.

A slice ``x[a::s]`` reads every `s`-th element.  The elements that a worker needs and has are
counted by their numbers among those that are read, not by the range that they span.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dasktile.ir import AxisMap

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Strided:
    """Every `step`-th element of an axis, from element `first` on.

    Parameters
    ----------
    first
        Number of the first element; it may be negative, and is then outside the axis.
    step
        Distance of two elements, positive.
    """

    first: int = 0
    step: int = 1

    def before(self, positions: Ints) -> Ints:
        """The number of these elements that lie before positions of the axis."""
        return -((self.first - positions) // self.step) if self.step > 1 else positions - self.first

    def span(self, lo: Ints, hi: Ints) -> tuple[Ints, Ints]:
        """The range of the axis from element number `lo` to the one before `hi`: (start, stop)."""
        start = self.first + self.step * lo
        return start, np.where(hi > lo, self.first + self.step * (hi - 1) + 1, start)

    def meet(self, other: Strided) -> Strided | None:
        """The elements that are in both; None if there are none."""
        divisor = math.gcd(self.step, other.step)
        apart = other.first - self.first
        if apart % divisor:
            return None
        there = other.step // divisor
        number = apart // divisor * pow(self.step // divisor, -1, there) % there
        step, first = self.step * there, self.first + self.step * number
        # both have begun there
        return Strided(first + max(0, -((first - other.first) // step)) * step, step)


#: Every element of an axis.
ALL = Strided()


def steps_of(axes: Sequence[AxisMap], sizes: Sequence[int]) -> tuple[Strided, ...]:
    """The elements of every axis that maps read; empty if they read all elements of all axes.

    Windows of several elements are read with the elements between them.

    Parameters
    ----------
    axes
        The maps.
    sizes
        Number of iterations of each label.
    """
    steps = tuple(ALL if axis.label is None else _step_of(axis, sizes[axis.label]) for axis in axes)
    return steps if any(step is not ALL for step in steps) else ()


def _step_of(axis: AxisMap, size: int) -> Strided:
    """The elements that a map reads, if it reads one for each iteration, else every element."""
    if axis.label is None or axis.width > 1 or abs(axis.step) == 1 or not axis.step:
        return ALL
    if axis.step > 0:
        return Strided(axis.start, axis.step)
    # read backwards
    return Strided(axis.start + axis.step * (size - 1), -axis.step)


def part_intervals(
    axis: AxisMap, lo: npt.NDArray[np.int64], hi: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """:meth:`AxisMap.interval` of a map with parts, for many ranges, none of them empty."""
    iterations, elements = np.array([(0, 0), *axis.parts], dtype=np.int64).T
    # blocks without iterations are read by none
    begin = elements[np.searchsorted(iterations, lo, side="right") - 1]
    end = elements[np.maximum(np.searchsorted(iterations, hi, side="left"), 1)]
    return begin, end
