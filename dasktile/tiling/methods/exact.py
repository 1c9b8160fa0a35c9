"""The default: exact elimination, HiGHS where its tables would grow too large.

Copies of arrays take memory.  Where the cheapest tiling takes more than there is, bytes of
copies get a price, and the least price is looked for at which they fit (Lagrangian relaxation:
what the solution costs at any price, less the price of what there is, is a lower bound).  Copies
that are worth the same come and go together at any price, so they are also tried one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from dasktile.tiling.cost import Costs
from dasktile.tiling.settings import Settings
from dasktile.tiling.solve.eliminate import solve
from dasktile.tiling.solve.problem import Problem, Solution, Table

#: Prices that are tried.
ROUNDS = 20

#: Arrays whose copies are tried one by one.
MOST_TRIED = 24


def exact(costs: Costs, settings: Settings, tile_weight: float) -> Solution:
    """Fewest bytes between workers; see :func:`dasktile.tiling.solve.eliminate.solve`."""
    problem = costs.problem(tile_weight)
    solution = solve(problem, settings.width_budget, prove=True)
    if settings.copies is None:
        return solution
    copies = costs.copies()
    if _taken(copies, solution) <= settings.copies:
        return solution
    return _within(problem, copies, settings.copies, settings.width_budget, solution)


def _taken(copies: Sequence[Table], solution: Solution) -> float:
    return sum(float(sizes[state]) for sizes, state in zip(copies, solution.states, strict=True))


def _within(
    problem: Problem, copies: Sequence[Table], room: int, width_budget: int, most: Solution
) -> Solution:
    """The cheapest assignment found whose copies fit the room, with a bound."""
    # without any copy that is larger than the room alone, which is nobody's choice
    allowed = [np.where(sizes > room, np.inf, 0.0) for sizes in copies]
    base = [costs + never for costs, never in zip(problem.unary, allowed, strict=True)]

    def solve_at(price: float) -> Solution:
        unary = [
            costs + (0.0 if price == 0 else price * sizes)
            for costs, sizes in zip(base, copies, strict=True)
        ]
        candidate = solve(Problem(unary, problem.pairwise), width_budget)
        states = candidate.states
        return replace(candidate, cost=problem.cost(states), bound=candidate.bound - price * room)

    bound = most.bound
    best = _worthiest(problem, copies, room, width_budget, most)
    low, high = 0.0, 2.0
    while _taken(copies, candidate := solve_at(high)) > room and high < 2**20:
        bound = max(bound, candidate.bound)
        low, high = high, high * 4
    for _ in range(ROUNDS):
        price = (low + high) / 2
        candidate = solve_at(price)
        bound = max(bound, candidate.bound)
        if _taken(copies, candidate) <= room:
            high = price
            if candidate.cost < best.cost:
                best = candidate
        else:
            low = price
    bound = min(bound, best.cost)
    return replace(best, bound=bound, exact=best.cost <= bound)


def _worthiest(
    problem: Problem, copies: Sequence[Table], room: int, width_budget: int, most: Solution
) -> Solution:
    """The cheapest assignment with those copies that save most for each of their bytes."""

    def without(variables: Collection[int]) -> Solution:
        unary = [
            np.where(sizes > 0, np.inf, costs) if variable in variables else costs
            for variable, (costs, sizes) in enumerate(zip(problem.unary, copies, strict=True))
        ]
        return solve(Problem(unary, problem.pairwise), width_budget)

    taken = [float(sizes[state]) for sizes, state in zip(copies, most.states, strict=True)]
    holders = [variable for variable, size in enumerate(taken) if size]
    tried = sorted(holders, key=lambda variable: (-taken[variable], variable))[:MOST_TRIED]
    worth = {
        variable: (without({variable}).cost - most.cost) / taken[variable] for variable in tried
    }
    keeps: set[int] = set()
    left = float(room)
    for variable in sorted(tried, key=lambda variable: (-worth[variable], variable)):
        if taken[variable] <= left:
            keeps.add(variable)
            left -= taken[variable]
    every = {variable for variable, sizes in enumerate(copies) if sizes.any()}
    solution = without(every - keeps)
    return solution if _taken(copies, solution) <= room else without(every)
