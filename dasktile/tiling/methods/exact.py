"""The default method: exact elimination, and HiGHS where its tables would grow too large.

Replicas of arrays take memory.  Where those of the cheapest tiling do not fit, bytes of replicas
get a price, and the least price at which they fit is found by bisection (Lagrangian relaxation: the
cost of the solution at any price, minus the price of the memory limit, is a lower bound).  Replicas
of equal worth are chosen together at any price, so they are tried one by one, too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from dasktile.tiling.cost import Costs
from dasktile.tiling.settings import Settings
from dasktile.tiling.solve.eliminate import solve
from dasktile.tiling.solve.problem import Problem, Solution, Table


def exact(costs: Costs, settings: Settings, tile_weight: float) -> Solution:
    """Fewest bytes between workers; see :func:`dasktile.tiling.solve.eliminate.solve`."""
    problem = costs.problem(tile_weight)
    solution = solve(problem, settings.width_budget, True, settings.solver)
    if settings.replica_bytes is None:
        return solution
    replicas = costs.replica_bytes()
    if _taken(replicas, solution) <= settings.replica_bytes:
        return solution
    return _within(problem, replicas, settings.replica_bytes, settings, solution)


def _taken(replicas: Sequence[Table], solution: Solution) -> float:
    """Bytes of replicas of an assignment."""
    return sum(float(sizes[state]) for sizes, state in zip(replicas, solution.states, strict=True))


def _within(
    problem: Problem, replicas: Sequence[Table], room: int, settings: Settings, unlimited: Solution
) -> Solution:
    """The cheapest assignment found whose replicas fit `room` bytes, with a lower bound.

    `unlimited` is the solution with unlimited memory.
    """
    # without replicas that do not fit even alone
    allowed = [np.where(sizes > room, np.inf, 0.0) for sizes in replicas]
    base = [costs + never for costs, never in zip(problem.unary, allowed, strict=True)]

    def solve_at(price: float) -> Solution:
        unary = [
            costs + (0.0 if price == 0 else price * sizes)
            for costs, sizes in zip(base, replicas, strict=True)
        ]
        candidate = solve(
            Problem(unary, problem.pairwise), settings.width_budget, limits=settings.solver
        )
        states = candidate.states
        return replace(candidate, cost=problem.cost(states), bound=candidate.bound - price * room)

    bound = unlimited.bound
    best = _most_worthwhile(problem, replicas, room, settings, unlimited)
    low, high = 0.0, 2.0
    while _taken(replicas, candidate := solve_at(high)) > room and high < 2**20:
        bound = max(bound, candidate.bound)
        low, high = high, high * 4
    for _ in range(settings.solver.prices):
        price = (low + high) / 2
        candidate = solve_at(price)
        bound = max(bound, candidate.bound)
        if _taken(replicas, candidate) <= room:
            high = price
            if candidate.cost < best.cost:
                best = candidate
        else:
            low = price
    bound = min(bound, best.cost)
    return replace(best, bound=bound, exact=best.cost <= bound)


def _most_worthwhile(
    problem: Problem, replicas: Sequence[Table], room: int, settings: Settings, unlimited: Solution
) -> Solution:
    """The cheapest assignment with the replicas that save most bytes for each byte of memory."""

    def without(variables: Collection[int]) -> Solution:
        unary = [
            np.where(sizes > 0, np.inf, costs) if variable in variables else costs
            for variable, (costs, sizes) in enumerate(zip(problem.unary, replicas, strict=True))
        ]
        return solve(
            Problem(unary, problem.pairwise), settings.width_budget, limits=settings.solver
        )

    taken = [float(sizes[state]) for sizes, state in zip(replicas, unlimited.states, strict=True)]
    holders = [variable for variable, size in enumerate(taken) if size]
    tried = sorted(holders, key=lambda variable: (-taken[variable], variable))[
        : settings.solver.single_replicas
    ]
    worth = {
        variable: (without({variable}).cost - unlimited.cost) / taken[variable]
        for variable in tried
    }
    keeps: set[int] = set()
    left = float(room)
    for variable in sorted(tried, key=lambda variable: (-worth[variable], variable)):
        if taken[variable] <= left:
            keeps.add(variable)
            left -= taken[variable]
    every = {variable for variable, sizes in enumerate(replicas) if sizes.any()}
    solution = without(every - keeps)
    return solution if _taken(replicas, solution) <= room else without(every)
