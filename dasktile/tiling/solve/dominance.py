"""Dominated states: another state of the same variable is never worse, so they are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dasktile.tiling.solve.problem import Problem, Table

@dataclass(frozen=True, slots=True)
class Pruned:
    """A problem with fewer states.

    Parameters
    ----------
    problem
        The problem with the remaining states.
    left
        For every variable, the indices of the remaining states in the original problem.
    """

    problem: Problem
    left: tuple[npt.NDArray[np.int64], ...]

    def restored(self, states: Sequence[int]) -> tuple[int, ...]:
        """The assignment in the states of the original problem."""
        return tuple(int(left[state]) for left, state in zip(self.left, states, strict=True))


def pruned(problem: Problem) -> Pruned:
    """Leave out dominated states until there are none.

    A state is dominated where another state of its variable costs no more for all states of the
    neighbours (dead-end elimination, Desmet et al. 1992; Goldstein's criterion).  Of several states
    with equal costs the first remains.  At least one minimum of the original remains.
    """
    left = [np.arange(len(costs)) for costs in problem.unary]
    around: list[list[tuple[int, Table]]] = [[] for _ in problem.unary]
    for (i, j), table in problem.pairwise.items():
        around[i].append((j, table))
        around[j].append((i, table.T))
    waiting = dict.fromkeys(range(len(left)))
    while waiting:
        variable = next(iter(waiting))
        del waiting[variable]
        stays = _undominated(problem.unary[variable], around[variable], left, left[variable])
        if len(stays) < len(left[variable]):
            left[variable] = stays
            waiting.update(dict.fromkeys(sorted(other for other, _ in around[variable])))
    unary = [costs[stays] for costs, stays in zip(problem.unary, left, strict=True)]
    pairwise = {
        (i, j): table[np.ix_(left[i], left[j])] for (i, j), table in problem.pairwise.items()
    }
    return Pruned(Problem(unary, pairwise), tuple(left))


def _undominated(
    unary: Table,
    around: Sequence[tuple[int, Table]],
    left: Sequence[npt.NDArray[np.int64]],
    states: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """The states of one variable that no other state dominates."""
    count = len(states)
    if count < 2:
        return states
    own = unary[states]
    # [a, b]: the most that a costs more than b, over all states of the neighbours
    with np.errstate(invalid="ignore"):
        worse = own[:, None] - own[None, :]
        for other, table in around:
            # [state of the neighbour, state]
            seen = np.ascontiguousarray(table[np.ix_(states, left[other])].T)
            most = np.full((count, count), -np.inf)
            for column in seen:
                np.maximum(most, column[:, None] - column[None], out=most)
            worse += most
    # both forbidden: neither dominates the other
    worse = np.nan_to_num(worse, nan=np.inf, posinf=np.inf, neginf=-np.inf)
    better = worse <= 0
    np.fill_diagonal(better, False)
    # of states with equal costs, the first remains
    alike = better & better.T
    better &= ~alike | (np.arange(count)[:, None] < np.arange(count)[None, :])
    stays = ~better.any(axis=0)
    return states[stays]
