"""Spartan's tiling: its costs by hand, its known failure, and against the optimum."""

from __future__ import annotations

import itertools
import math
from functools import cache

import dask
import dask.array as da
import numpy as np
import pytest

import dasktile
from benchmarks.papers.random_programs import Maker, programs
from benchmarks.papers.sat import (
    NO_COPIES,
    UNIT,
    draw_instances,
    least,
    main,
    plan_clauses,
    sat_program,
    satisfiable,
    violated,
)
from benchmarks.papers.spartan import PLAIN, conflict, rows
from dasktile.ir import Kind, validate
from dasktile.tiling import Settings, tile
from dasktile.tiling.candidates import Space
from dasktile.tiling.cost import TIE, Costs
from dasktile.tiling.grid import free_axes
from dasktile.tiling.mesh import Mesh
from dasktile.tiling.methods import get
from dasktile.tiling.methods.papers.spartan import mesh, node_tiles
from dasktile.tiling.methods.papers.tiling_graph import greedy, tiling_graph
from dasktile.tiling.solve.eliminate import solve
from tests.programs import chain, gram, transposed_add

BUDGET = Settings().width_budget
LIMITS = Settings().candidates
ROW, COLUMN, BLOCK, WHOLE = (0, 0), (1, 1), (0, 1), (None, None)


@cache
def random_programs():
    return programs(100)


def table(graph, producer, reader):
    """The costs between two nodes by the names of their tilings."""
    one, other = graph.groups.index(producer), graph.groups.index(reader)
    actual = graph.problem().pairwise[one, other]
    return {
        (made, used): actual[row, column]
        for row, made in enumerate(graph.tilings[one])
        for column, used in enumerate(graph.tilings[other])
    }


def test_the_mesh_is_as_square_as_the_workers_allow():
    assert [mesh(count) for count in (1, 2, 4, 6, 7, 12, 64, 128)] == [
        (), (2,), (2, 2), (3, 2), (7,), (4, 3), (8, 8), (16, 8)
    ]  # fmt: skip


def test_a_map_costs_the_size_of_each_input_that_is_cut_otherwise():
    make = Maker()
    a, b = make.newarray(40, 30), make.newarray(40, 30)
    added = make.map(a, b)
    costs = table(tiling_graph(make.program()), a, added)
    assert {pair for pair, cost in costs.items() if cost == 0} == {
        (ROW, ROW), (COLUMN, COLUMN), (BLOCK, BLOCK)
    }  # fmt: skip
    assert {cost for cost in costs.values() if cost} == {40 * 30 * 8}


def test_views_carry_tilings_through_and_cost_nothing():
    make = Maker()
    a = make.newarray(40, 30)
    half = make.slice(make.transpose(a), 0, 0, 15)
    added = make.map(half)
    graph = tiling_graph(make.program())
    assert graph.groups == (a, added)
    costs = table(graph, a, added)
    assert costs[ROW, COLUMN] == costs[COLUMN, ROW] == 0
    assert costs[ROW, ROW] == costs[BLOCK, BLOCK] == 15 * 40 * 8
    tiles = node_tiles(graph, make.program(), [0, 1])
    assert tiles == (ROW, COLUMN, COLUMN, COLUMN)


def test_folds_and_scans_are_free_along_the_axis_that_is_cut():
    make = Maker()
    a = make.newarray(40, 30)
    summed, running = make.fold(a, 1), make.scan(a, 0)
    graph = tiling_graph(make.program(), tilings=PLAIN)
    folds, scans = table(graph, a, summed), table(graph, a, running)
    assert {made for (made, _), cost in folds.items() if cost == 0} == {COLUMN}
    assert {made for (made, _), cost in scans.items() if cost == 0} == {ROW}
    assert folds[ROW, ROW] == scans[BLOCK, ROW] == 40 * 30 * 8


@pytest.mark.parametrize("rows, inner, join", [(40, 50, 1), (40, 40, 1), (50, 40, 0)])
def test_products_are_joined_along_the_sum_unless_the_first_is_taller_than_wide(rows, inner, join):
    make = Maker()
    a, b = make.newarray(rows, inner), make.newarray(inner, 7)
    product = make.dot(a, b)
    graph = tiling_graph(make.program())
    assert graph.joins == {product: join}
    along = COLUMN if join else ROW
    left, right = table(graph, a, product), table(graph, b, product)
    assert {made for (made, _), cost in left.items() if cost == 0} == {along}
    # what every task reads all of costs its size, however it is cut
    assert {made for (made, _), cost in right.items() if cost == 0} == ({ROW} if join else set())
    assert list(graph.unary[graph.groups.index(product)]) == [rows * 7 * 8] * 3


def test_greedy_costs_twice_the_best_where_two_views_conflict():
    """Figure 3.3, with the transposes as nodes and as edges."""
    for program in (conflict(100), transposed_add(100, (50, 50), pinned=False)):
        for tilings in (("row", "column"), PLAIN):
            graph = tiling_graph(program, tilings=tilings)
            problem = graph.problem()
            assert problem.cost(greedy(graph)) == 2 * 100 * 100 * 8
            best = solve(problem, BUDGET)
            assert best.exact
            assert best.cost == 100 * 100 * 8


def test_duplicates_are_taken_as_far_as_the_budget_goes():
    graph = tiling_graph(conflict(100))
    size = 100 * 100 * 8

    def duplicated(budget):
        chosen = greedy(graph, budget)
        cost = graph.problem().cost(chosen)
        return [graph.tilings[group][state] for group, state in enumerate(chosen)].count(
            WHOLE
        ), cost

    assert duplicated(0) == duplicated(size - 1) == (0, 2 * size)
    assert duplicated(size) == duplicated(2 * size - 1) == (1, size)
    assert duplicated(2 * size) == duplicated(math.inf) == (2, 0)


def test_an_array_that_is_read_once_is_not_duplicated():
    graph = tiling_graph(chain(False, size=80, chunk=20))
    assert all(WHOLE not in offer for offer in graph.tilings)


def test_the_optimum_of_its_own_costs_is_what_trying_everything_finds():
    tried = 0
    for program in random_programs():
        problem = tiling_graph(program, tilings=("row", "column")).problem()
        counts = [len(unary) for unary in problem.unary]
        if math.prod(counts) > 512:
            continue
        tried += 1
        best = min(map(problem.cost, itertools.product(*map(range, counts))))
        solution = solve(problem, BUDGET)
        assert solution.exact
        assert solution.cost == pytest.approx(best, abs=1e-6)
    assert tried >= 30


def test_random_programs_are_as_asked_and_repeatable():
    for program, again in zip(random_programs(), programs(100), strict=True):
        validate(program)
        assert program == again
        assert 2 <= sum(node.kind is not Kind.SOURCE for node in program.nodes) <= 15


def test_greedy_is_never_better_than_the_best_and_mostly_finds_it():
    actual = 0
    for program in random_programs():
        graph = tiling_graph(program, tilings=PLAIN)
        problem = graph.problem()
        best = solve(problem, BUDGET)
        cost = problem.cost(greedy(graph))
        assert best.exact
        assert cost >= best.cost - 1e-6
        actual += cost <= best.cost + 0.5
    assert actual >= 70


def test_the_default_is_proven_optimal_on_all_random_programs():
    for program in random_programs():
        plan = tile(program, workers=4, method="exact", force=True)
        assert plan.proven_optimal
        assert plan.after.bytes == plan.lower_bound


def test_the_default_is_what_trying_everything_finds():
    tried = 0
    for program in random_programs():
        costs = Costs(Space(program, Mesh((2,)), free_axes(program, 2, LIMITS), Settings()))
        if math.prod(len(variable.options) for variable in costs.space.variables) > 3000:
            continue
        tried += 1
        oracle = get("exhaustive").choose(costs, Settings(), TIE)
        choice = get("exact").choose(costs, Settings(), TIE)
        assert choice.exact
        assert choice.cost == pytest.approx(oracle.cost, abs=1e-6)
    assert tried >= 10


@pytest.mark.parametrize("workers", [1, 2, 4, 6, 7, 64])
def test_plans_keep_the_memory_limit_and_do_no_harm(workers):
    for program in random_programs()[:8]:
        limit = 64 * 2**20
        plan = tile(program, workers=workers, method="spartan", memory_limit=limit, force=True)
        assert max(plan.after.peak) <= limit
        assert plan.lower_bound == 0
        # nobody moves less than nothing
        assert plan.proven_optimal == (plan.after.bytes == 0)
        free = tile(program, workers=workers, method="spartan")
        assert free.after.bytes <= free.before.bytes or free.before.balance > 1.25


@pytest.mark.parametrize("workers", [4, 6])
def test_states_are_candidates_and_cost_what_the_model_says(workers):
    for program in (*random_programs()[:20], chain(True), gram(3200, 256, (100, 256))):
        space = Space(program, Mesh(mesh(workers)), free_axes(program, workers, LIMITS), Settings())
        costs = Costs(space)
        choice = get("spartan").choose(costs, Settings(), TIE)
        assert choice.cost == costs.problem(TIE).cost(choice.states)
        assert (choice.bound, choice.exact) == (0.0, False)
        best = get("exact").choose(costs, Settings(), TIE)
        assert choice.cost >= best.cost - 1e-6
        assert choice == get("spartan").choose(costs, Settings(), TIE)


def test_without_a_budget_nothing_is_held_twice():
    kept = 0
    for program in random_programs()[:40]:
        space = Space(program, Mesh((2, 2)), free_axes(program, 4, LIMITS), Settings(), 0, True)
        choice = get("spartan").choose(Costs(space), Settings(), TIE)
        for variable, state in zip(space.variables, choice.states, strict=True):
            option = variable.options[state]
            if variable.keep:
                assert not option.is_replicated
                kept += 1
    assert kept > 100


def test_the_candidates_are_the_tilings_that_were_decided():
    """A product of tall matrices by rows, summed down the columns where its tiles are."""
    make = Maker()
    a, b = make.newarray(5120, 1280), make.newarray(1280, 2560)
    make.fold(make.map(make.dot(a, b)), 0)
    program = make.program()
    plan = tile(program, workers=4, method="spartan", force=True)
    assert [tiling.work_at.by_axis(2) for tiling in plan.tiled.tilings] == [(0, 0)] * 5
    # every worker fetches three quarters of b, and sends its part of the sum
    assert plan.after.bytes == 4 * (3 * 1280 * 2560 * 8 // 4) + 3 * 2560 * 8


@pytest.mark.parametrize("variables, clauses, seed", [(5, 5, 0), (8, 10, 1), (20, 40, 2),
                                                      (40, 40, 3)])  # fmt: skip
def test_satisfiable_clauses_are_tiled_at_two_units_each(variables, clauses, seed):
    instance = satisfiable(np.random.default_rng(seed), variables, clauses)
    assert {abs(literal) for clause in instance for literal in clause} == set(
        range(1, variables + 1)
    )
    program = sat_program(instance)
    validate(program)
    graph = tiling_graph(program, 1, ("row", "column"))
    best = solve(graph.problem(), BUDGET)
    assert best.exact
    assert best.cost == 2 * clauses * program.nodes[0].nbytes
    values = [tiling == (0,) for tiling in node_tiles(graph, program, best.states)[:variables]]
    assert violated(instance, values) == 0
    assert graph.problem().cost(greedy(graph)) >= best.cost
    plan = tile(program, workers=2, memory_limit=NO_COPIES, method="exact", force=True)
    assert plan.after.bytes == 2 * clauses * UNIT == plan.lower_bound
    assert plan.proven_optimal


def test_clauses_that_cannot_be_satisfied_cost_four_units_more_each():
    # not all equal, with every pattern of signs up to negation of all: no assignment does
    unsatisfiable = [(1, 2, 3), (-1, 2, 3), (1, -2, 3), (1, 2, -3)]
    for instance, violations in ((unsatisfiable, 1), (unsatisfiable * 2, 2),
                                 (unsatisfiable[:3], 0)):  # fmt: skip
        units = 2 * len(instance) + 4 * violations
        assert least(instance) == units
        program = sat_program(instance)
        best = solve(tiling_graph(program, 1, ("row", "column")).problem(), BUDGET)
        assert best.cost == units * program.nodes[0].nbytes
        plan = tile(program, workers=2, memory_limit=NO_COPIES, method="exact", force=True)
        assert plan.after.bytes == units * UNIT


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(0, id="few"),
        *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 13)),
    ],
)
def test_random_clauses_are_proven(part):
    """Of 4 to 40 clauses and 5 to 24 variables; ten instances in a part."""
    for clauses, is_hidden in draw_instances(10 if part else 4, seed=5000 + 10 * part):
        plan = plan_clauses(clauses)
        assert plan.proven_optimal
        assert plan.after.bytes == plan.lower_bound
        units, several = divmod(plan.after.bytes, UNIT)
        # a clause costs two units, and four more if its literals agree
        assert not several and (units - 2 * len(clauses)) % 4 == 0
        if is_hidden:
            assert units == 2 * len(clauses)
        elif max(abs(literal) for clause in clauses for literal in clause) <= 12:
            assert units == least(clauses)


def test_a_sweep_of_no_instances_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--instances", "0"])
    assert "--instances must be at least 1, got 0" in capsys.readouterr().err


def test_instances_that_cannot_be_made_are_refused():
    with pytest.raises(ValueError, match=r"variables must be from 3 to 3 \* clauses, got 7 and 2"):
        satisfiable(np.random.default_rng(0), 7, 2)


def test_the_benchmark_has_a_row_for_every_figure():
    actual = rows(count=1, repeat=1)
    assert {"experiment", "what", "paper", "ours", "note"} == set(actual[0])
    assert actual[0]["ours"] == "2"
    assert [row["ours"] for row in actual if "clauses" in row["what"]] == ["20", "40", "80", "80"]


def _expressions(x, y, xp):
    yield x @ y + (x.T @ y.T).T.sum(axis=0)
    yield (x + y) + (x.T + y.T)
    yield xp.cumsum(x, axis=0)[::-1][3:30] - y.mean(axis=1)[:27, None]
    yield xp.concatenate([x, y.T]).sum(axis=0), (x * y).max()


def test_values_are_those_of_numpy():
    rng = np.random.default_rng(0)
    one, other = (rng.integers(0, 9, (48, 48)).astype(float) for _ in range(2))
    lazy = da.from_array(one, chunks=(12, 48)), da.from_array(other, chunks=(48, 16))
    for ours, expected in zip(_expressions(*lazy, da), _expressions(one, other, np), strict=True):
        collections = ours if isinstance(ours, tuple) else (ours,)
        wanted = expected if isinstance(expected, tuple) else (expected,)
        for workers in (1, 4, 6):
            tiled = dasktile.optimize(*collections, method="spartan", workers=workers)
            tiled = tiled if isinstance(tiled, tuple) else (tiled,)
            for got, value in zip(dask.compute(*tiled, scheduler="sync"), wanted, strict=True):
                np.testing.assert_array_equal(got, value)


@pytest.mark.filterwarnings("ignore::dask.array.PerformanceWarning")
def test_large_arrays_are_tiled_and_explained():
    x = da.ones((32_000, 256), chunks=(32_000, 8))
    product = x.T @ x
    explained = dasktile.explain(product, method="spartan", workers=4)
    # joined along the rows: three partial results meet the fourth
    assert explained.bytes_after == 3 * 256 * 256 * 8 < explained.bytes_before
    assert not explained.proven_optimal
    assert "4 workers" in str(explained)
    tiled = dasktile.optimize(product, method="spartan", workers=4)
    assert tiled.chunks != product.chunks
    assert float(tiled[:3, :3].sum().compute(scheduler="sync")) == 9 * 32_000
