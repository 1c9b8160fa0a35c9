"""The type of a tiling method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dasktile.tiling.cost import Costs
from dasktile.tiling.mesh import mesh_shape
from dasktile.tiling.settings import Settings
from dasktile.tiling.solve.eliminate import Solution

#: A function of the costs, the settings and the weight of a tile in bytes to an assignment.
Choose = Callable[[Costs, Settings, float], Solution]


@dataclass(frozen=True, slots=True)
class Method:
    """A tiling method: a function that chooses candidates, and the mesh that it needs.

    Parameters
    ----------
    choose
        Picks one candidate for every variable.  Its cost and bound are those of
        ``costs.problem(tile_weight)``; the bound of a heuristic is 0.
    mesh
        The mesh for a number of workers.
    max_states
        Candidates for one node; None for :attr:`Settings.max_states`.
    allow_replicas
        Whether arrays may be replicated in two shardings, or recomputed.
    """

    choose: Choose
    mesh: Callable[[int], tuple[int, ...]] = mesh_shape
    max_states: int | None = None
    allow_replicas: bool = False
