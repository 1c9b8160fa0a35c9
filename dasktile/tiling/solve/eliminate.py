"""Exact minimisation of a sum of unary and pairwise costs, by variable elimination.

Array programs are graphs of low treewidth.  Variables are eliminated one after another: each is
replaced by the table of its least costs for every state of its neighbours.  This finds the true
minimum with tables of a few thousand entries.  Where a table would exceed the budget, dominated
states are left out first, if a proof is asked for.  If it still would, the bucket is split
(mini-buckets, Dechter and Rish 2003): each part is minimised by itself, which gives a lower bound
instead of the minimum, and the assignment is improved by descent over trees.  If its cost then
exceeds the bound, an integer program is solved.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dasktile.tiling.settings import SolverLimits
from dasktile.tiling.solve.descent import descend
from dasktile.tiling.solve.dominance import kinds_of_rows, merged, pruned
from dasktile.tiling.solve.milp import integer
from dasktile.tiling.solve.order import elimination_order, neighbours_of
from dasktile.tiling.solve.problem import Problem, Solution, Table, least_sum, meets

__all__ = ["Problem", "Solution", "solve"]

_DEFAULT = SolverLimits()


#: Entries of a temporary float64 array while a variable is eliminated: they fit a core's cache.
_BLOCK = 32_768


#: Entries of a sum of tables from which equal rows of the tables are looked for (chosen).
_LARGE = 400_000

#: Such a sum over that of different rows, from which it pays to add these (chosen).
_WORTHWHILE = 1.5

#: For every state of a variable, a number that states with equal costs share.
_Kinds = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Factor:
    """A table over some variables, in ascending order.

    `kinds` are those of the states of every variable, where they are known.
    """

    scope: tuple[int, ...]
    table: Table
    kinds: tuple[_Kinds, ...] = ()

    def kinds_of(self, variable: int) -> _Kinds:
        """The kinds of the states of a variable."""
        if not self.kinds:
            axes = range(len(self.scope))
            rows = (np.moveaxis(self.table, axis, 0) for axis in axes)
            self.kinds = tuple(kinds_of_rows(each.reshape(len(each), -1)) for each in rows)
        return self.kinds[self.scope.index(variable)]


def solve(
    problem: Problem, width_budget: int, prove: bool = False, limits: SolverLimits = _DEFAULT
) -> Solution:
    """Minimise a problem exactly, or with a bound.

    Parameters
    ----------
    problem
        Unary and pairwise costs; infinite entries are forbidden states.
    width_budget
        Entries of the largest table.
    prove
        True to try for a proof where a table would exceed that, which may take seconds.
    limits
        Limits of the search.
    """
    if all(len(costs) == 1 for costs in problem.unary):
        only = (0,) * len(problem.unary)
        cost = problem.cost(only)
        return Solution(only, cost, cost, True)
    order = elimination_order(problem, limits)
    different = merged(problem)
    best = _solved(different.problem, width_budget, prove, limits, order)
    return replace(best, states=different.restored(best.states))


def _solved(
    problem: Problem, width_budget: int, prove: bool, limits: SolverLimits, order: Sequence[int]
) -> Solution:
    if not prove or not _is_split(problem, width_budget, order):
        return _eliminated(problem, width_budget, limits, order)
    fewer = pruned(problem)
    # an integer program takes longer than larger tables, if these are the last ones that are needed
    width = limits.pruned_growth * width_budget
    order_of_fewer = elimination_order(fewer.problem, limits)
    if _is_split(fewer.problem, width, order_of_fewer):
        width = width_budget
    best = _eliminated(fewer.problem, width, limits, order_of_fewer)
    best = replace(best, states=fewer.restored(best.states))
    if best.exact:
        return best
    if any(len(left) < len(costs) for left, costs in zip(fewer.left, problem.unary, strict=True)):
        # from other tables, descent may reach a better assignment
        best = _better(_eliminated(problem, width_budget, limits, order), best)
        if best.exact:
            return best
    start = [
        int(np.argmax(left == state)) if state in left else 0
        for left, state in zip(fewer.left, best.states, strict=True)
    ]
    program = integer(fewer.problem, start, limits)
    if program is None:
        return best
    return _better(best, replace(program, states=fewer.restored(program.states)))


def _is_split(problem: Problem, width_budget: int, order: Sequence[int]) -> bool:
    """Whether a table of the elimination may exceed the budget."""
    counts = [len(costs) for costs in problem.unary]
    neighbours = neighbours_of(problem)
    for variable in order:
        around = neighbours[variable]
        size = counts[variable] * math.prod(counts[other] for other in around)
        # the table of two variables is there already
        if len(around) > 1 and size > width_budget:
            return True
        for other in around:
            neighbours[other] |= around
            neighbours[other] -= {variable, other}
    return False


def _better(first: Solution, second: Solution) -> Solution:
    """The cheaper of two assignments, with the better of their bounds."""
    cheaper = second if second.cost < first.cost else first
    bound = max(first.bound, second.bound)
    return replace(cheaper, bound=min(bound, cheaper.cost), exact=meets(cheaper.cost, bound))


def _eliminated(
    problem: Problem, width_budget: int, limits: SolverLimits, order: Sequence[int] | None = None
) -> Solution:
    """Minimise by elimination, with buckets split where tables would be too large.

    `order` is that of elimination, if it is known.
    """
    counts = [len(costs) for costs in problem.unary]
    if order is None:
        order = elimination_order(problem, limits)
    buckets: list[list[_Factor]] = [[] for _ in counts]
    position = {variable: step for step, variable in enumerate(order)}
    constant = 0.0

    def file(factor: _Factor) -> None:
        nonlocal constant
        if len(factor.scope) == 1:
            buckets[factor.scope[0]].append(factor)
        elif factor.scope:
            buckets[min(factor.scope, key=position.__getitem__)].append(factor)
        else:
            constant += float(factor.table)

    for variable, costs in enumerate(problem.unary):
        file(_Factor((variable,), np.asarray(costs, dtype=np.float64)))
    for (i, j), table in problem.pairwise.items():
        file(_Factor((i, j), np.asarray(table, dtype=np.float64)))

    split = False
    #: Minimised tables, and kinds of their states, by the tables that were added: those of equal
    #: parts are found once.
    known: dict[Hashable, tuple[Table, tuple[_Kinds, ...]]] = {}
    for variable in order:
        groups = _partition(buckets[variable], counts, width_budget)
        split = split or len(groups) > 1
        for group in groups:
            scope = sorted({other for factor in group for other in factor.scope})
            rest = tuple(other for other in scope if other != variable)
            key = _identity(group, variable, scope)
            if key not in known:
                known[key] = _reduced(group, variable, rest, counts)
            file(_Factor(rest, *known[key]))

    states = _read_back(order, buckets, counts)
    if split:
        states = descend(problem, states, limits)
    cost = problem.cost(states)
    bound = constant if split else cost
    exact = not split or meets(cost, constant)
    return Solution(tuple(states), cost, min(bound, cost), exact)


def _partition(
    factors: Sequence[_Factor], counts: Sequence[int], budget: int
) -> list[list[_Factor]]:
    """Group a bucket's factors so that no joined table exceeds the budget."""
    ordered = sorted(factors, key=lambda factor: (-len(factor.scope), factor.scope))
    every = set().union(*[factor.scope for factor in ordered])
    if math.prod([counts[variable] for variable in every]) <= budget:
        return [ordered]
    groups: list[tuple[set[int], list[_Factor]]] = []
    for factor in ordered:
        for scope, members in groups:
            union = scope | set(factor.scope)
            if union == scope or math.prod(counts[variable] for variable in union) <= budget:
                scope |= set(factor.scope)
                members.append(factor)
                break
        else:
            groups.append((set(factor.scope), [factor]))
    return [members for _, members in groups]


def _identity(group: Sequence[_Factor], variable: int, scope: Sequence[int]) -> Hashable:
    """Equal for factors of the same tables over variables in the same places of their scopes."""
    place = {other: at for at, other in enumerate(scope)}
    tables = ((id(each.table), *map(place.__getitem__, each.scope)) for each in group)
    return (place[variable], *tables)


def _reduced(
    factors: Sequence[_Factor], variable: int, rest: tuple[int, ...], counts: Sequence[int]
) -> tuple[Table, tuple[_Kinds, ...]]:
    """As `_minimised`, with the kinds of the states of the `rest` where these are found.

    States whose rows are equal in all tables that are added are added once.
    """
    variables = (variable, *rest)
    size = math.prod([counts[other] for other in variables])
    if size < _LARGE:
        return _minimised(factors, variable, rest, counts), ()
    kinds: dict[int, _Kinds] = {}
    first: dict[int, _Kinds] = {}
    for other in variables:
        several = [each.kinds_of(other) for each in factors if other in each.scope]
        every = several[0]
        for each in several[1:]:
            every = every * (each.max() + 1) + each
        _, found, of = np.unique(every, return_index=True, return_inverse=True)
        # in the order of the states, so that all different ones are left as they are
        order = np.argsort(found)
        first[other], kinds[other] = found[order], np.argsort(order)[of]
    different = {other: len(states) for other, states in first.items()}
    if math.prod(different.values()) * _WORTHWHILE > size:
        return _minimised(factors, variable, rest, counts), tuple(map(kinds.__getitem__, rest))
    fewer = [
        _Factor(each.scope, _taken(each.table, [first[other] for other in each.scope]))
        for each in factors
    ]
    table = _minimised(fewer, variable, rest, different)
    of_rest = tuple(map(kinds.__getitem__, rest))
    return _taken(table, of_rest), of_rest


def _taken(table: Table, indices: Sequence[_Kinds]) -> Table:
    """A table at some indices along every axis; axes that have as many indices are not changed."""
    for axis, index in enumerate(indices):
        if len(index) != table.shape[axis]:
            table = table.take(index, axis)
    return table


def _minimised(
    factors: Sequence[_Factor],
    variable: int,
    rest: Sequence[int],
    counts: Sequence[int] | Mapping[int, int],
) -> Table:
    """The least sum of tables over the states of a variable, for every state of the `rest`.

    The sum is never in memory as a whole if it is large: that would take longer than to add it.
    """
    if len(rest) == 1 and counts[variable] * counts[rest[0]] <= _BLOCK:
        return _minimised_row(factors, variable)
    # the longest axis last: inner loops over a short one take several times as long
    inner = sorted(rest, key=counts.__getitem__)
    shape = tuple(counts[other] for other in inner)
    tables = [_turned(factor, variable, inner) for factor in factors]
    states = counts[variable]
    step = min(states, max(1, _BLOCK // max(1, math.prod(shape))))
    total = np.empty((step, *shape))
    scopes = [set(factor.scope) for factor in factors]
    #: Whether the sum of the tables up to each one is over all variables: before, it is smaller.
    whole = [len(set().union(*scopes[: at + 1])) > len(rest) for at in range(len(scopes))]
    least: Table | None = None
    for start in range(0, states, step):
        part = tables[0][start : start + step]
        for table, is_whole in zip(tables[1:], whole[1:], strict=True):
            out = total[: states - start] if is_whole else None
            part = np.add(part, table[start : start + step], out=out)
        if least is None:
            least = part.min(axis=0)
        else:
            # a reduction of one row only copies it
            smallest = part[0] if len(part) == 1 else part.min(axis=0)
            np.minimum(least, smallest, out=least)
    assert least is not None
    return least.transpose([inner.index(other) for other in rest])


def _minimised_row(factors: Sequence[_Factor], variable: int) -> Table:
    """The same for one other variable, as in trees: quicker, with the sums in the same order."""
    return least_sum([_by_rows(factor, variable) for factor in factors])


def _by_rows(factor: _Factor, variable: int) -> Table:
    """The table of a factor of one variable, or of it and another, with a row for each state."""
    if len(factor.scope) == 1:
        return factor.table[:, None]
    return factor.table if factor.scope[0] == variable else factor.table.T


def _turned(factor: _Factor, variable: int, rest: Sequence[int]) -> Table:
    """The table of a factor, a variable first; of the `rest`, others than its own have length 1."""
    scope = factor.scope
    own = [scope.index(other) for other in (variable, *rest) if other in scope]
    lengths = [factor.table.shape[scope.index(other)] if other in scope else 1 for other in rest]
    return np.ascontiguousarray(factor.table.transpose(own)).reshape(-1, *lengths)


def _read_back(
    order: Sequence[int], buckets: Sequence[Sequence[_Factor]], counts: Sequence[int]
) -> list[int]:
    """The best state of every variable, set in the reverse order of elimination."""
    states = [-1] * len(counts)
    for variable in reversed(order):
        costs = np.zeros(counts[variable])
        for factor in buckets[variable]:
            index = tuple(
                slice(None) if other == variable else states[other] for other in factor.scope
            )
            costs += factor.table[index]
        states[variable] = int(np.argmin(costs))
    return states
