"""The default: exact elimination, HiGHS where its tables would grow too large."""

from __future__ import annotations

from dasktile.tiling.cost import Costs
from dasktile.tiling.settings import Settings
from dasktile.tiling.solve import Solution, solve


def exact(costs: Costs, settings: Settings, tile_weight: float) -> Solution:
    """Fewest bytes between workers; see :func:`dasktile.tiling.solve.solve`."""
    return solve(costs.problem(tile_weight), settings.width_budget, prove=True)
