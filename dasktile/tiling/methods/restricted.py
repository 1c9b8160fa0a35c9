"""The exact problem with some of its states, for methods that decide only a part of a tiling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dasktile.tiling.cost import Costs
from dasktile.tiling.settings import Settings, SolverLimits
from dasktile.tiling.solve.eliminate import solve
from dasktile.tiling.solve.problem import Problem, Solution

Ints = npt.NDArray[np.int64]


def best_of(
    costs: Costs, settings: Settings, tile_weight: float, allowed: Sequence[Ints]
) -> Solution:
    """:func:`restricted`, within the memory limit for replicas.

    Where replicas would take more than ``settings.replica_bytes``, there are none.
    """
    problem = costs.problem(tile_weight)
    solution = restricted(problem, allowed, settings.width_budget, settings.solver)
    if settings.replica_bytes is None:
        return solution
    replicas = costs.replica_bytes()
    taken = sum(float(sizes[state]) for sizes, state in zip(replicas, solution.states, strict=True))
    if taken <= settings.replica_bytes:
        return solution
    single = [own[sizes[own] == 0] for own, sizes in zip(allowed, replicas, strict=True)]
    return restricted(problem, single, settings.width_budget, settings.solver)


def restricted(
    problem: Problem,
    allowed: Sequence[Ints],
    width_budget: int,
    limits: SolverLimits | None = None,
) -> Solution:
    """The cheapest assignment among some states of every variable, without a bound.

    Parameters
    ----------
    problem
        All states.
    allowed
        For every variable, indices of the states to choose among.
    width_budget, limits
        As in :func:`dasktile.tiling.solve.eliminate.solve`.
    """
    smaller = Problem(
        [unary[states] for unary, states in zip(problem.unary, allowed, strict=True)],
        {
            (i, j): table[np.ix_(allowed[i], allowed[j])]
            for (i, j), table in problem.pairwise.items()
        },
    )
    chosen = solve(smaller, width_budget, limits=limits or SolverLimits()).states
    states = tuple(int(own[state]) for own, state in zip(allowed, chosen, strict=True))
    return Solution(states, problem.cost(states), 0.0, False)
