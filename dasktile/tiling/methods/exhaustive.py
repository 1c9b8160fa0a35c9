"""All assignments, one after another, for small programs: a reference for other methods."""

from __future__ import annotations

import itertools
import math

from dasktile.tiling.cost import Costs
from dasktile.tiling.settings import Settings
from dasktile.tiling.solve.eliminate import Solution


class TooManyTilingsError(ValueError):
    """There are more tilings than the method ``"exhaustive"`` tries."""


def exhaustive(costs: Costs, settings: Settings, tile_weight: float) -> Solution:
    """Try all assignments.

    Raises
    ------
    TooManyTilingsError
        If there are more than :attr:`SolverLimits.exhaustive`.
    """
    problem = costs.problem(tile_weight)
    counts = [len(unary) for unary in problem.unary]
    total = math.prod(counts)
    limit = settings.solver.exhaustive
    if total > limit:
        raise TooManyTilingsError(
            f"method 'exhaustive' tries every tiling, and this expression has {total:.3g} of"
            f" them; at most {limit:,} are allowed. Use method='exact'"
        )
    best = min(itertools.product(*map(range, counts)), key=problem.cost)
    cost = problem.cost(best)
    return Solution(tuple(best), cost, cost, True)
