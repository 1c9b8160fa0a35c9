"""The optimisation problem of tiling: choose one state for every variable at the least cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Problem:
    """Choose one state for every variable.

    Parameters
    ----------
    unary
        For every variable, the cost of each of its states.
    pairwise
        For pairs ``(i, j)`` with ``i < j``, the cost of each pair of states, (states of
        i, states of j).
    """

    unary: Sequence[Table]
    pairwise: Mapping[tuple[int, int], Table]

    def cost(self, states: Sequence[int]) -> float:
        """Cost of an assignment."""
        total = math.fsum(
            float(costs[state]) for costs, state in zip(self.unary, states, strict=True)
        )
        return total + math.fsum(
            float(table[states[i], states[j]]) for (i, j), table in self.pairwise.items()
        )


@dataclass(frozen=True, slots=True)
class Solution:
    """An assignment with its cost and a lower bound.

    Parameters
    ----------
    states
        The state of every variable.
    cost
        Its cost.
    bound
        A lower bound: no assignment costs less.
    exact
        True where the assignment was proven to be a minimum.
    """

    states: tuple[int, ...]
    cost: float
    bound: float
    exact: bool


def meets(cost: float, bound: float) -> bool:
    """Whether a cost is a bound, but for rounding."""
    return cost <= bound or math.isclose(cost, bound, rel_tol=1e-12, abs_tol=1e-9)


def least_sum(tables: Sequence[Table]) -> Table:
    """The least sum of some tables, which may be broadcast, over their first axis."""
    total = tables[0]
    for table in tables[1:]:
        total = total + table
    least: Table = np.minimum.reduce(total, axis=0)
    return least
