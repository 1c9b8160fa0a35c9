"""What a tiling method is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dasktile.tiling.cost import Costs
from dasktile.tiling.mesh import mesh_shape
from dasktile.tiling.settings import Settings
from dasktile.tiling.solve.eliminate import Solution

#: Costs, settings and the weight of a tile against a byte, to an assignment.
Choose = Callable[[Costs, Settings, float], Solution]


@dataclass(frozen=True, slots=True)
class Method:
    """A way to decide on tilings.

    Parameters
    ----------
    choose
        Picks one candidate for every variable.  Its cost and bound are those of
        ``costs.problem(tile_weight)``; a heuristic that has no bound says 0.
    mesh
        The mesh that it divides a number of workers into.
    max_states
        Candidates that it must be able to choose among for one node; None for as many as
        the settings say.
    twice
        Whether it knows of arrays that are kept in two tilings, or made again.
    """

    choose: Choose
    mesh: Callable[[int], tuple[int, ...]] = mesh_shape
    max_states: int | None = None
    allow_replicas: bool = False
