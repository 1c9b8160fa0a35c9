"""The exact problem with some of its states: what methods that decide in part leave to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dasktile.tiling.cost import Costs
from dasktile.tiling.settings import Settings
from dasktile.tiling.solve.eliminate import solve
from dasktile.tiling.solve.problem import Problem, Solution

Ints = npt.NDArray[np.int64]


def best_of(
    costs: Costs, settings: Settings, tile_weight: float, allowed: Sequence[Ints]
) -> Solution:
    """:func:`restricted`, within the memory that there is for copies.

    Where copies of arrays would take more than ``settings.copies``, there are none.
    """
    problem = costs.problem(tile_weight)
    solution = restricted(problem, allowed, settings.width_budget)
    if settings.copies is None:
        return solution
    copies = costs.copies()
    taken = sum(float(sizes[state]) for sizes, state in zip(copies, solution.states, strict=True))
    if taken <= settings.copies:
        return solution
    once = [own[sizes[own] == 0] for own, sizes in zip(allowed, copies, strict=True)]
    return restricted(problem, once, settings.width_budget)


def restricted(problem: Problem, allowed: Sequence[Ints], width_budget: int) -> Solution:
    """The cheapest of some states of every variable; nothing is said of the others.

    Parameters
    ----------
    problem
        All states.
    allowed
        Indices of those to choose among.
    width_budget
        As in :func:`dasktile.tiling.solve.eliminate.solve`.
    """
    smaller = Problem(
        [unary[states] for unary, states in zip(problem.unary, allowed, strict=True)],
        {
            (i, j): table[np.ix_(allowed[i], allowed[j])]
            for (i, j), table in problem.pairwise.items()
        },
    )
    chosen = solve(smaller, width_budget).states
    states = tuple(int(own[state]) for own, state in zip(allowed, chosen, strict=True))
    return Solution(states, problem.cost(states), 0.0, False)
