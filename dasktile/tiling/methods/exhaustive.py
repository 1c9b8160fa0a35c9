"""The oracle: every assignment, one after another, for programs small enough."""

from __future__ import annotations

import itertools
import math

from dasktile.tiling.cost import Costs
from dasktile.tiling.settings import Settings
from dasktile.tiling.solve.eliminate import Solution

#: Assignments beyond which the search is refused.
LIMIT = 1_000_000


class TooManyTilingsError(ValueError):
    """There are more tilings than this method tries."""


def exhaustive(costs: Costs, settings: Settings, tile_weight: float) -> Solution:
    """Try all assignments.

    Raises
    ------
    TooManyTilingsError
        If there are more than :data:`LIMIT`.
    """
    problem = costs.problem(tile_weight)
    counts = [len(unary) for unary in problem.unary]
    total = math.prod(counts)
    if total > LIMIT:
        raise TooManyTilingsError(
            f"method 'exhaustive' tries every tiling, and this expression has {total:.3g}; "
            f"at most {LIMIT} are allowed. Use method='exact'"
        )
    best = min(itertools.product(*map(range, counts)), key=problem.cost)
    cost = problem.cost(best)
    return Solution(tuple(best), cost, cost, True)
