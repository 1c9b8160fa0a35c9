"""The solver: dominance, elimination, the integer program, and what they claim."""

from __future__ import annotations

import itertools
import math
from typing import Any
from unittest import mock

import numpy as np
import pytest

from dasktile.tiling.settings import SolverLimits
from dasktile.tiling.solve import dominance, eliminate
from dasktile.tiling.solve.dominance import merged, pruned
from dasktile.tiling.solve.eliminate import solve
from dasktile.tiling.solve.milp import integer
from dasktile.tiling.solve.problem import Problem

#: Entries of a table: too few for most of the problems here.
NARROW = 200


def dense(seed: int, count: int = 9, share: float = 0.5, forbidden: float = 0.0) -> Problem:
    """A problem of high treewidth."""
    rng = np.random.default_rng(seed)
    states = rng.integers(2, 6, count)
    unary = [rng.integers(0, 100, size).astype(float) for size in states]
    pairwise = {}
    for i, j in itertools.combinations(range(count), 2):
        if rng.random() < share:
            table = rng.integers(0, 100, (states[i], states[j])).astype(float)
            table[rng.random(table.shape) < forbidden] = np.inf
            pairwise[i, j] = table * 1e6
    return Problem([costs * 1e6 for costs in unary], pairwise)


def least(problem: Problem) -> float:
    solution = solve(problem, 10**8)
    assert solution.exact
    return solution.cost


@pytest.mark.parametrize("seed", range(8))
def test_wide_problems_are_proven(seed: int) -> None:
    problem = dense(seed)
    solution = solve(problem, NARROW, prove=True, limits=SolverLimits(pruned_growth=1))
    assert solution.exact
    assert solution.cost == problem.cost(solution.states) == solution.bound == least(problem)


def test_larger_tables_are_eliminated_before_an_integer_program_is_written() -> None:
    problem = dense(0)
    with mock.patch.object(eliminate, "integer") as program:
        solution = solve(problem, NARROW, prove=True, limits=SolverLimits(pruned_growth=10**5))
    assert solution.exact
    assert not program.called


@pytest.mark.parametrize("seed", range(8))
def test_without_a_proof_there_is_a_bound(seed: int) -> None:
    problem = dense(seed)
    solution = solve(problem, NARROW)
    assert solution.bound <= least(problem) <= solution.cost == problem.cost(solution.states)


@pytest.mark.parametrize("seed", range(20))
def test_some_minimum_is_left_when_dominated_states_are_not(seed: int) -> None:
    problem = dense(seed, count=6, share=0.4, forbidden=0.2)
    fewer = pruned(problem)
    assert all(len(left) for left in fewer.left)
    assert least(fewer.problem) == least(problem)
    states = fewer.restored(solve(fewer.problem, 10**8).states)
    assert problem.cost(states) == least(problem)


def test_of_states_that_cost_the_same_one_is_left() -> None:
    problem = Problem([np.zeros(4), np.array([1.0, 0.0, 1.0])], {(0, 1): np.zeros((4, 3))})
    assert [left.tolist() for left in pruned(problem).left] == [[0], [1]]


@pytest.mark.parametrize("seed", range(8))
def test_equal_states_are_merged_into_the_first_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    several = dense(seed, count=5)
    copies = [rng.integers(0, len(costs), 2 * len(costs)) for costs in several.unary]
    unary = [costs[chosen] for costs, chosen in zip(several.unary, copies, strict=True)]
    pairwise = {
        (i, j): table[np.ix_(copies[i], copies[j])] for (i, j), table in several.pairwise.items()
    }
    fewer = merged(Problem(unary, pairwise))
    for left, chosen in zip(fewer.left, copies, strict=True):
        assert left.tolist() == sorted(np.unique(chosen, return_index=True)[1])
    assert least(fewer.problem) == least(Problem(unary, pairwise))
    assert solve(Problem(unary, pairwise), 10**8).cost == least(fewer.problem)


def test_forbidden_states_are_left_out() -> None:
    problem = Problem([np.array([np.inf, 2.0]), np.zeros(1)], {(0, 1): np.array([[0.0], [5.0]])})
    assert pruned(problem).left[0].tolist() == [1]


@pytest.mark.parametrize("seed", range(4))
def test_the_integer_program_keeps_to_what_is_allowed(seed: int) -> None:
    problem = dense(seed, count=6, forbidden=0.3)
    start = solve(problem, 10**8).states
    solution = integer(problem, start, SolverLimits())
    assert solution is not None and solution.exact
    assert np.isfinite(solution.cost) and solution.cost == least(problem)


def test_programs_too_large_are_not_written() -> None:
    large = Problem([np.zeros(300), np.zeros(300)], {(0, 1): np.zeros((300, 300))})
    assert integer(large, (0, 0), SolverLimits()) is None


def test_the_same_problem_has_the_same_solution() -> None:
    assert solve(dense(3), NARROW, prove=True) == solve(dense(3), NARROW, prove=True)


@pytest.mark.parametrize("seed", range(20))
def test_tables_that_several_variables_share_change_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = [rng.integers(0, 3, (3, 3)).astype(float) for _ in range(2)]
    tables[0][rng.integers(3), rng.integers(3)] = np.inf
    costs = [rng.integers(0, 3, 3).astype(float) for _ in range(2)]
    pairs = [pair for pair in itertools.combinations(range(6), 2) if rng.random() < 0.5]
    # some are the same object, others equal ones
    problem = Problem(
        [costs[rng.integers(2)] for _ in range(6)],
        {
            pair: table if rng.random() < 0.5 else table.copy(order="F")
            for pair in pairs
            for table in [tables[rng.integers(2)]]
        },
    )
    cheapest = min(map(problem.cost, itertools.product(range(3), repeat=6)))
    for budget in (10**8, NARROW):
        solution = solve(problem, budget, prove=True)
        assert solution.cost == solution.bound == problem.cost(solution.states) == cheapest


def test_variables_of_equal_tables_are_compared_once() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.random(5), rng.random(4)
    table = rng.random((5, 4))
    unary = [first, second] * 8
    problem = Problem(unary, {(i, i + 1): table for i in range(0, len(unary), 2)})
    with mock.patch.object(dominance, "_undominated", wraps=dominance._undominated) as compared:
        several = pruned(problem)
    alone = pruned(Problem(unary[:2], {(0, 1): table}))
    assert compared.call_count < len(unary)
    assert [left.tolist() for left in several.left] == [left.tolist() for left in alone.left] * 8


@pytest.mark.parametrize("seed", range(8))
def test_rows_that_are_equal_in_all_tables_that_are_added_are_added_once(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    several = dense(seed, count=6, forbidden=0.1)
    # of each table, other states are equal, so that states that differ in all are few
    rows = {pair: rng.integers(0, 2, 12) for pair in several.pairwise}
    columns = {pair: rng.integers(0, 2, 12) for pair in several.pairwise}
    problem = Problem(
        [rng.integers(0, 2, 12).astype(float) for _ in several.unary],
        {
            pair: table[np.ix_(rows[pair], columns[pair])] / 7
            for pair, table in several.pairwise.items()
        },
    )
    minimised = eliminate._minimised
    sizes: list[int] = []

    def noted(factors: Any, variable: int, rest: Any, counts: Any) -> Any:
        sizes.append(math.prod(counts[other] for other in (variable, *rest)))
        return minimised(factors, variable, rest, counts)

    monkeypatch.setattr(eliminate, "_minimised", noted)
    solutions, added = [], []
    for least_size in (0, 10**9):
        monkeypatch.setattr(eliminate, "_LARGE", least_size)
        sizes.clear()
        solutions.append([solve(problem, 10**6), solve(problem, 2000, prove=True)])
        added.append(sum(sizes))
    assert solutions[0] == solutions[1]
    assert added[0] < added[1] / 2
