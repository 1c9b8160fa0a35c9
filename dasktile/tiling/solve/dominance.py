"""Dominated states: another state of the same variable is never worse, so they are left out."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from dasktile.tiling.solve.problem import Problem, Table

#: Entries of a temporary float64 array while states are compared; it bounds memory and does not
#: change any result.
_BLOCK = 65_536

#: Share of a cost by which sums in another order may differ.
_ROUNDING = 1e-9


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


def merged(problem: Problem) -> Pruned:
    """Leave out states whose costs equal those of an earlier state of the same variable.

    At least one minimum of the original remains: the first, if minima are ordered by their states.
    Tables that are equal in the original are one object in the result.
    """
    problem = _shared(problem)
    #: By the identity of a table, the kinds of its rows and of its columns.
    known: dict[int, tuple[npt.NDArray[np.int64], ...]] = {}
    kinds: list[list[npt.NDArray[np.int64]]] = []
    for costs in problem.unary:
        if id(costs) not in known:
            known[id(costs)] = (kinds_of_rows(costs[:, None]),)
        kinds.append([known[id(costs)][0]])
    for (i, j), table in problem.pairwise.items():
        if id(table) not in known:
            known[id(table)] = kinds_of_rows(table), kinds_of_rows(table.T)
        kinds[i].append(known[id(table)][0])
        kinds[j].append(known[id(table)][1])
    found: dict[tuple[int, ...], npt.NDArray[np.int64]] = {}
    left = []
    for each in kinds:
        key = tuple(map(id, each))
        if key not in found:
            found[key] = _first(np.stack(each, axis=1))
        left.append(found[key])
    return _restricted(problem, left)


def _shared(problem: Problem) -> Problem:
    """The same problem, in which tables of equal content are the same object."""
    tables: dict[object, Table] = {}
    #: By the identity of a table, the first one of equal content.
    same: dict[int, Table] = {}

    def shared(table: Table) -> Table:
        if id(table) not in same:
            content = blake2b(np.ascontiguousarray(table).data, digest_size=16).digest()
            same[id(table)] = tables.setdefault((table.shape, table.dtype, content), table)
        return same[id(table)]

    pairwise = {pair: shared(table) for pair, table in problem.pairwise.items()}
    return Problem([shared(costs) for costs in problem.unary], pairwise)


def _restricted(problem: Problem, left: Sequence[npt.NDArray[np.int64]]) -> Pruned:
    """A problem with some of its states; tables that were the same object still are."""
    known: dict[tuple[int, ...], Table] = {}

    def restricted(table: Table, *states: npt.NDArray[np.int64]) -> Table:
        if table.shape == tuple(map(len, states)):
            return table
        key = (id(table), *map(id, states))
        if key not in known:
            known[key] = table[np.ix_(*states)]
        return known[key]

    unary = [restricted(costs, stays) for costs, stays in zip(problem.unary, left, strict=True)]
    pairwise = {
        (i, j): restricted(table, left[i], left[j]) for (i, j), table in problem.pairwise.items()
    }
    return Pruned(Problem(unary, pairwise), tuple(left))


def kinds_of_rows(table: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """For every row, a number that equal rows share."""
    if not table.size:
        return np.zeros(len(table), dtype=np.int64)
    rows = np.ascontiguousarray(table).view(f"V{table.itemsize * table.shape[1]}").ravel().tolist()
    numbers = dict(zip(dict.fromkeys(rows), itertools.count(), strict=False))
    return np.fromiter(map(numbers.__getitem__, rows), dtype=np.int64, count=len(rows))


def _first(table: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The first of every set of equal rows."""
    return _first_of_kinds(kinds_of_rows(table))


def _first_of_kinds(kinds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The first of every kind, in the order of the kinds."""
    # kinds are numbered in the order in which they are met
    return np.searchsorted(np.maximum.accumulate(kinds), np.arange(kinds.max(initial=-1) + 1))


def pruned(problem: Problem) -> Pruned:
    """Leave out dominated states until there are none.

    A state is dominated where another state of its variable costs no more for all states of the
    neighbours (dead-end elimination, Desmet et al. 1992; Goldstein's criterion).  Of several states
    with equal costs the first remains.  At least one minimum of the original remains.
    """
    around: list[list[_Side]] = [[] for _ in problem.unary]
    for (i, j), table in problem.pairwise.items():
        around[i].append(_Side(j, table, False))
        around[j].append(_Side(i, table, True))
    states = _States()
    left = [states.every(len(costs)) for costs in problem.unary]
    waiting = dict.fromkeys(range(len(left)))
    while waiting:
        variable = next(iter(waiting))
        del waiting[variable]
        stays = states.undominated(problem.unary[variable], around[variable], left, left[variable])
        if len(stays) < len(left[variable]):
            left[variable] = stays
            waiting.update(dict.fromkeys(sorted(side.other for side in around[variable])))
    return _restricted(problem, left)


@dataclass(frozen=True, slots=True)
class _Side:
    """A table of two variables, seen from one of them.

    Parameters
    ----------
    other
        The other variable.
    table
        The table.
    turned
        Whether the columns, and not the rows, are the states of this variable.
    """

    other: int
    table: Table
    turned: bool

    def costs(self, states: npt.NDArray[np.int64], others: npt.NDArray[np.int64]) -> Table:
        """The costs of some states of this variable, for some of the other one."""
        return (self.table.T if self.turned else self.table)[np.ix_(states, others)]


@dataclass(frozen=True, slots=True)
class _Rows:
    """The costs of the states of a variable for those of a neighbour.

    Parameters
    ----------
    costs
        One row for each state.
    kinds
        For every row, a number that equal rows share.
    different
        The different rows, in the order of their numbers, and of equal columns one.
    """

    costs: Table
    kinds: npt.NDArray[np.int64]
    different: Table

    @classmethod
    def of(cls, costs: Table) -> _Rows:
        """The rows of a table."""
        kinds = kinds_of_rows(costs)
        different = costs[_first_of_kinds(kinds)]
        return cls(costs, kinds, different[:, _first(different.T)])

    def most_more(
        self, first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """The most that an entry of one row exceeds that of another, for pairs of rows."""
        different, kinds = self.different, self.kinds
        pairs = kinds[first] * len(different) + kinds[second]
        # many rows are equal: each pair of different rows is compared once
        met = np.zeros(len(different) ** 2, dtype=bool)
        met[pairs] = True
        some, others = np.divmod(np.flatnonzero(met), len(different))
        step = max(1, _BLOCK // max(1, different.shape[1]))
        parts = [slice(start, start + step) for start in range(0, len(some), step)]
        most = np.zeros(len(met))
        most[met] = np.concatenate(
            [(different[some[part]] - different[others[part]]).max(axis=1) for part in parts]
        )
        more: npt.NDArray[np.float64] = most[pairs]
        return more


class _States:
    """Sets of states, and what was found for them: variables with the same tables have the same.

    Equal sets are one object, so that what was found is looked up by their identities.
    """

    def __init__(self) -> None:
        self._sets: dict[bytes, npt.NDArray[np.int64]] = {}
        self._rows: dict[Hashable, _Rows] = {}
        self._found: dict[Hashable, npt.NDArray[np.int64]] = {}

    def every(self, count: int) -> npt.NDArray[np.int64]:
        """All states of a variable that has a number of them."""
        return self._set(np.arange(count))

    def _set(self, states: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self._sets.setdefault(states.tobytes(), states)

    def undominated(
        self,
        unary: Table,
        around: Sequence[_Side],
        left: Sequence[npt.NDArray[np.int64]],
        states: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """The states of one variable that no other state dominates."""
        if len(states) < 2:
            return states
        sides = [(id(side.table), side.turned, id(left[side.other])) for side in around]
        key = (id(unary), id(states), *sides)
        if key not in self._found:
            rows = []
            for side, read in zip(around, sides, strict=True):
                place = (id(states), read)
                if place not in self._rows:
                    self._rows[place] = _Rows.of(side.costs(states, left[side.other]))
                rows.append(self._rows[place])
            self._found[key] = self._set(states[_undominated(unary[states], rows)])
        return self._found[key]


def _undominated(own: Table, rows: Sequence[_Rows]) -> npt.NDArray[np.int64]:
    """The states of one variable that no other state dominates, of its own costs and of others."""
    kinds = [kinds_of_rows(own[:, None]), *(each.kinds for each in rows)]
    different = _first(np.stack(kinds, axis=1))
    tables = [each.costs for each in rows]
    if len(different) < len(own):
        own, tables = own[different], [costs[different] for costs in tables]
    count = len(different)
    first, second = _possible(own, tables)
    # the most that the first costs more than the second, over all states of the neighbours
    with np.errstate(invalid="ignore"):
        most = own[first] - own[second]
        for each in rows:
            most = most + each.most_more(different[first], different[second])
    better = np.zeros((count, count), dtype=bool)
    # not a number: both are forbidden, and neither dominates the other
    better[first, second] = most <= 0
    np.fill_diagonal(better, False)
    # of states with equal costs, the first remains
    alike = better & better.T
    better &= ~alike | (np.arange(count)[:, None] < np.arange(count)[None, :])
    stays = ~better.any(axis=0)
    return different[stays]


def _possible(
    own: Table, tables: Sequence[Table]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Pairs of states of which the first may dominate the second; all others do not.

    For each second state, the neighbours are set to the states in which it costs least over the
    best.  A state that costs more even there does not dominate it.
    """
    with np.errstate(invalid="ignore"):
        cost = np.tile(own, (len(own), 1))  # [second, first]
        for table in tables:
            favoured = np.argmin(table - table.min(axis=0), axis=1)
            cost += table[:, favoured].T
        least = np.diagonal(cost)[:, None]
        second, first = np.nonzero(~(cost > least + _ROUNDING * np.abs(least)))
    return first, second
