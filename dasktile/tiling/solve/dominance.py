"""Dominated states: another state of the same variable is never worse, so they are left out."""

from __future__ import annotations

from collections.abc import Sequence
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
            known[id(costs)] = (_kinds(costs[:, None]),)
        kinds.append([known[id(costs)][0]])
    for (i, j), table in problem.pairwise.items():
        if id(table) not in known:
            known[id(table)] = _kinds(table), _kinds(table.T)
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


def _kinds(table: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """For every row, a number that equal rows share."""
    if not table.size:
        return np.zeros(len(table), dtype=np.int64)
    rows = np.ascontiguousarray(table).view(f"V{table.itemsize * table.shape[1]}").ravel().tolist()
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(row, len(numbers)) for row in rows], dtype=np.int64)


def _first(table: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The first of every set of equal rows."""
    return _first_of_kinds(_kinds(table))


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
    return _restricted(problem, left)


def _undominated(
    unary: Table,
    around: Sequence[tuple[int, Table]],
    left: Sequence[npt.NDArray[np.int64]],
    states: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """The states of one variable that no other state dominates."""
    if len(states) < 2:
        return states
    costs = [table[np.ix_(states, left[other])] for other, table in around]
    different = _first(np.concatenate([unary[states, None], *costs], axis=1))
    tables = [table[different] for table in costs]
    states = states[different]
    own, count = unary[states], len(states)
    first, second = _possible(own, tables)
    # the most that the first costs more than the second, over all states of the neighbours
    with np.errstate(invalid="ignore"):
        most = own[first] - own[second]
        for table in tables:
            most = most + _most_more(table, first, second)
    worse = np.full((count, count), np.inf)
    # both forbidden: neither dominates the other
    worse[first, second] = np.nan_to_num(most, nan=np.inf, posinf=np.inf, neginf=-np.inf)
    better = worse <= 0
    np.fill_diagonal(better, False)
    # of states with equal costs, the first remains
    alike = better & better.T
    better &= ~alike | (np.arange(count)[:, None] < np.arange(count)[None, :])
    stays = ~better.any(axis=0)
    return states[stays]


def _most_more(
    table: Table, first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """The most that an entry of one row exceeds that of another, for pairs of rows."""
    kinds = _kinds(table)
    different = table[_first_of_kinds(kinds)]
    # so are many columns
    different = different[:, _first(different.T)]
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
