"""Descent over trees: all variables of an induced forest are set to their best states at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dasktile.ir.disjoint import root
from dasktile.tiling.settings import SolverLimits
from dasktile.tiling.solve.order import elimination_order
from dasktile.tiling.solve.problem import Problem, Table, least_sum, meets


def descend(problem: Problem, states: list[int], limits: SolverLimits) -> list[int]:
    """Improve an assignment until no forest has better states for its variables.

    Given the others, a forest is solved exactly with tables of one edge.  Forests that
    start at different variables take turns.
    """
    cost = problem.cost(states)
    count = len(states)
    starts = sorted(
        {turn * count // limits.descent_forests for turn in range(limits.descent_forests)}
    )
    #: By their variables: in small problems, several starts lead to the same forest.
    different: dict[tuple[int, ...], _Forest] = {}
    forests = []
    for start in starts:
        inside = tuple(_without_cycle(problem, start))
        if inside not in different:
            different[inside] = _Forest(problem, inside, limits)
        forests.append(different[inside])
    stale = turn = 0
    while stale < len(forests):
        candidate = forests[turn % len(forests)].best(states)
        turn += 1
        stale += 1
        better = problem.cost(candidate)
        if better < cost and not meets(cost, better):
            states, cost, stale = candidate, better, 0
    return states


class _Forest:
    """Some variables of a problem without a cycle among them.

    Parameters
    ----------
    problem
        The problem.
    inside
        The variables.
    limits
        Limits of the search.
    """

    def __init__(self, problem: Problem, inside: Sequence[int], limits: SolverLimits) -> None:
        self.problem, self.inside = problem, inside
        position = {variable: index for index, variable in enumerate(self.inside)}
        pairwise: dict[tuple[int, int], Table] = {}
        #: For every pair with one variable inside: the position of that, the other variable, and
        #: the table by the states of the other.
        self.leaving: list[tuple[int, int, Table]] = []
        for (i, j), table in problem.pairwise.items():
            if i in position and j in position:
                pairwise[position[i], position[j]] = table
            elif i in position:
                self.leaving.append((position[i], j, table.T))
            elif j in position:
                self.leaving.append((position[j], i, table))
        unary = [problem.unary[variable] for variable in self.inside]
        self.order = elimination_order(Problem(unary, pairwise), limits)
        #: By a variable, the one that it has a table with when it is eliminated, and that table,
        #: its own states first.  A variable of a forest has at most one then.
        self.after: dict[int, tuple[int, Table]] = {}
        step = {variable: at for at, variable in enumerate(self.order)}
        for (i, j), table in pairwise.items():
            if step[i] < step[j]:
                self.after[i] = j, table
            else:
                self.after[j] = i, np.ascontiguousarray(table.T)
        #: The best states, by those of the neighbours outside.
        self._found: dict[tuple[int, ...], tuple[int, ...]] = {}

    def best(self, states: Sequence[int]) -> list[int]:
        """The states of all variables with the best ones for those inside, given the others."""
        around = tuple(states[other] for _, other, _ in self.leaving)
        if around not in self._found:
            self._found[around] = self._solved(states)
        completed = list(states)
        for variable, state in zip(self.inside, self._found[around], strict=True):
            completed[variable] = state
        return completed

    def _solved(self, states: Sequence[int]) -> tuple[int, ...]:
        """The best states of those inside."""
        unary = [np.array(self.problem.unary[at], dtype=np.float64) for at in self.inside]
        for position, other, table in self.leaving:
            unary[position] += table[states[other]]
        #: For every variable its own costs, and the least costs of those eliminated before it.
        costs = [[own] for own in unary]
        for variable in self.order:
            if variable in self.after:
                other, table = self.after[variable]
                least = least_sum([table, *(each[:, None] for each in costs[variable])])
                costs[other].append(least)
        best = [0] * len(unary)
        for variable in reversed(self.order):
            own, *others = costs[variable]
            if variable in self.after:
                other, table = self.after[variable]
                own = own + table[:, best[other]]
            for each in others:
                own = own + each
            best[variable] = int(np.argmin(own))
        return tuple(best)


def _without_cycle(problem: Problem, start: int) -> list[int]:
    """A maximal set of variables without a cycle, taken in order from `start` on."""
    count = len(problem.unary)
    around: list[list[int]] = [[] for _ in range(count)]
    for i, j in problem.pairwise:
        around[i].append(j)
        around[j].append(i)
    tree = list(range(count))

    inside = [False] * count
    for step in range(count):
        variable = (start + step) % count
        roots = [root(tree, other) for other in around[variable] if inside[other]]
        if len(set(roots)) == len(roots):
            inside[variable] = True
            for other in roots:
                tree[other] = variable
    return [variable for variable in range(count) if inside[variable]]
