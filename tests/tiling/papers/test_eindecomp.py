"""EinDecomp: the paper's arithmetic, and what must hold of the tilings that it chooses."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import dask.array as da
import numpy as np
import pytest

import dasktile
from benchmarks.papers import eindecomp as benchmark
from benchmarks.papers.eindecomp import vector_count
from benchmarks.papers.matmul_bounds import (
    NEAR,
    best_grid,
    case,
    four_axes,
    lower_bound,
    report,
    share,
    sweep,
)
from benchmarks.papers.transformers import attention, classifier, llama_block
from dasktile.tiling import Settings, tile
from dasktile.tiling.candidates import Space
from dasktile.tiling.cost import TIE, Costs
from dasktile.tiling.grid import free_axes
from dasktile.tiling.mesh import Mesh
from dasktile.tiling.methods.papers.eindecomp import (
    MAX_STATES,
    _exact_tables,
    _linear,
    _paper_tables,
    _search,
    _vertices,
    eindecomp,
    eindecomp_exact,
    places,
)
from dasktile.tiling.methods.papers.partitions import (
    aggregation_cost,
    join_cost,
    repartition_cost,
    vectors,
)
from dasktile.tiling.solve.eliminate import solve
from tests.programs import Builder, chain, gram, transposed_add

METHODS = ("eindecomp", "eindecomp-exact")
LIMITS = Settings().candidates


def _costs(program, workers):
    space = Space(
        program,
        Mesh(places(workers)),
        free_axes(program, workers, LIMITS),
        Settings(max_states=MAX_STATES),
    )
    return Costs(space)


# The paper's examples ---------------------------------------------------------------


def test_repartition_of_the_paper():
    assert repartition_cost(64, 8, 16, 4) == 320
    # nothing moves where tiles are alike; where whole tiles are joined, none is extracted
    assert repartition_cost(64, 8, 8, 8) == 0
    assert repartition_cost(64, 4, 16, 4) == 4 * 3 * 20


def test_products_of_the_paper():
    def product(d, size=8):
        i, j, again, k = d
        assert j == again
        calls = i * j * k
        left, right = size / i * size / j, size / j * size / k
        return join_cost(calls, left, right), aggregation_cost(calls, j, size / i * size / k)

    assert product((4, 1, 1, 4)) == (512, 0)
    assert product((2, 4, 4, 2)) == (256, 192)


def test_number_of_vectors():
    assert vector_count(2**10, 6) == 3003
    for power, labels in itertools.product(range(5), range(1, 5)):
        actual = vectors(2**power, labels)
        assert len(actual) == len(set(actual)) == vector_count(2**power, labels)
        assert {math.prod(vector) for vector in actual} == {2**power}
    assert vectors(1, 0) == [()] and vectors(2, 0) == []
    with pytest.raises(ValueError, match="power of two; got 6"):
        vectors(6, 2)


def test_places_are_a_power_of_two():
    for workers in (1, 2, 3, 5, 6, 12, 33, 64, 100, 4096):
        actual = math.prod(places(workers))
        assert workers <= actual < 2 * workers
        assert len(places(workers)) <= 4


# The search -------------------------------------------------------------------------


def test_all_vectors_of_a_product_are_searched():
    build = Builder()
    build.matmul(build.source((256, 256), (64, 64)), build.source((256, 256), (64, 64)))
    for workers in (2, 4, 16, 64):
        vertices = _vertices(_costs(build.program(), workers))
        assert list(vertices) == [2]
        actual = sorted(map(tuple, vertices[2].vectors.tolist()))
        assert actual == sorted(vectors(workers, 3))


def test_trees_get_the_least_of_all_labellings():
    for skewed in (False, True):
        costs = _costs(chain(skewed, 64, 16), 4)
        vertices = _vertices(costs)
        own, between = tables = _paper_tables(costs, vertices)

        def price(labelling, own=own, between=between):
            return math.fsum(own[v][d] for v, d in labelling.items()) + math.fsum(
                table[labelling[u], labelling[v]] for (u, v), table in between.items()
            )

        solution = _search(vertices, tables)
        counts = [range(len(vertex.vectors)) for vertex in vertices.values()]
        least = min(
            price(dict(zip(vertices, picks, strict=True))) for picks in itertools.product(*counts)
        )
        assert price(solution) == pytest.approx(least)


def test_longest_paths_come_first_and_hold_every_vertex_once():
    #     0 - 1 - 2 - 5
    #          \      |
    #           3 - - 4 (a producer of 5)
    producers = {0: [], 1: [0], 2: [1], 3: [1], 4: [3], 5: [2, 4]}
    assert _linear(producers) == [[0, 1, 3, 4, 5], [2]]
    assert _linear({}) == []


def test_tables_of_exact_costs_are_never_above_the_truth():
    program = transposed_add(64, (16, 16), pinned=False)
    costs = _costs(program, 4)
    vertices = _vertices(costs)
    own, between = _exact_tables(costs, vertices, TIE)
    chosen = _search(vertices, (own, between))
    choice = eindecomp_exact(costs, Settings(), TIE)
    relaxed = sum(own[v][d] for v, d in chosen.items())
    relaxed += sum(table[chosen[u], chosen[v]] for (u, v), table in between.items())
    assert relaxed <= choice.cost + 1e-6


@pytest.mark.parametrize("choose", [eindecomp, eindecomp_exact])
def test_states_have_the_vectors_and_cost_what_is_said(choose):
    program = chain(True)
    costs = _costs(program, 8)
    choice = choose(costs, Settings(), TIE)
    problem = costs.problem(TIE)
    assert choice.cost == problem.cost(choice.states)
    assert (choice.bound, choice.exact) == (0.0, False)
    assert choice.cost >= solve(problem, 10**8).cost - 1e-6
    vertices = _vertices(costs)
    for vertex in vertices.values():
        calls = [math.prod(row) for row in vertex.vectors.tolist()]
        assert set(calls) == {8}
        assert choice.states[vertex.variable] in np.concatenate(vertex.states)


def _programs():
    build = Builder()
    x = build.source((96, 80), (32, 40), stored=(32, 40))
    y = build.elementwise(x, build.fold(x, (0,), keepdims=True))
    build.matmul(build.whole(y, 1), y, tb=True)
    return {
        "square": chain(False, 400, 100),
        "skewed": chain(True, 400, 100),
        "pinned": chain(False, 400, 100, pinned=True),
        "gram": gram(4000, 64, (500, 64)),
        "shared": transposed_add(400, (100, 400), pinned=True),
        "whole": build.program(),
        "attention": attention(4, 256, 4, 16),
        "llama": llama_block(2, 64, hidden=64, heads=4, ffn=256),
        "training": classifier(64, 256, 128, 100),
    }


@pytest.mark.parametrize("name", _programs())
@pytest.mark.parametrize("method", METHODS)
def test_plans_are_whole_and_alike_every_time(name, method):
    program = _programs()[name]
    for workers in (3, 4) if name == "llama" else (1, 4, 6):
        plan = tile(program, workers=workers, method=method, force=True)
        assert plan.tiled is not None
        assert math.prod(plan.tiled.mesh) == math.prod(places(workers))
        assert not plan.proven_optimal or plan.after.bytes == 0
        again = tile(program, workers=workers, method=method, force=True)
        assert again == plan
        renamed = replace(
            program,
            nodes=tuple(replace(node, name=f"z{99 - at}") for at, node in enumerate(program.nodes)),
        )
        other = tile(renamed, workers=workers, method=method, force=True)
        assert other.after == plan.after
        best = tile(program, workers=workers, method="exact", force=True)
        if math.prod(places(workers)) == workers and best.proven_optimal:
            assert plan.after.bytes >= best.after.bytes


def test_loads_are_those_of_workers_where_some_have_two_positions_of_the_mesh():
    for workers in (3, 5, 6, 7):
        plan = tile(chain(False, 400, 100), workers=workers, method="eindecomp", force=True)
        positions = math.prod(plan.tiled.mesh)
        assert len(plan.after.loads) == workers < positions
        assert plan.after.balance == pytest.approx(2 * workers / positions, rel=0.01)


@pytest.mark.parametrize("method", METHODS)
def test_memory_limit_holds(method):
    limited = 0
    for name, program in _programs().items():
        least = tile(program, workers=4, method=method, force=True)
        for share_of in (2, 8):
            limit = max(least.after.peak) // share_of
            try:
                plan = tile(program, workers=4, method=method, force=True, memory_limit=limit)
            except dasktile.tiling.MemoryLimitError:
                continue
            if name not in ("pinned", "shared", "whole", "gram"):
                # data in memory, or stored, have the tiles that they have
                assert max(plan.after.peak) <= limit, (name, share_of)
                limited += 1
    # of the other limits an error says that no plan keeps them
    assert limited >= 8


def test_copies_stay_within_the_memory():
    build = Builder()
    shared = build.elementwise(build.source((400, 400), (100, 100)))
    ways = [build.matmul(build.source((800, 400), (100, 100)), shared) for _ in range(2)]
    build.elementwise(*ways)
    costs = _costs(build.program(), 4)
    for room in (None, 10**9, 0):
        settings = Settings(replica_bytes=room)
        for choose in (eindecomp, eindecomp_exact):
            states = choose(costs, settings, TIE).states
            taken = sum(
                float(sizes[at]) for sizes, at in zip(costs.replica_bytes(), states, strict=True)
            )
            assert room is None or taken <= room


# On dask arrays ---------------------------------------------------------------------


def _expressions():
    rng = np.random.default_rng(0)
    a, b, c = (rng.random((120, 96)) for _ in range(3))
    x, y, z = (da.from_array(one, chunks=(17, 96)) for one in (a, b, c))
    return {
        "chain": (x @ y.T @ z, a @ b.T @ c),
        "softmax": (
            da.exp(x - x.max(axis=1, keepdims=True)).sum(axis=0),
            np.exp(a - a.max(axis=1, keepdims=True)).sum(axis=0),
        ),
        "shared": ((x + y).T @ (x + y) + (x * z).T @ y, (a + b).T @ (a + b) + (a * c).T @ b),
        "views": (x[::2, 3:].T @ y[::2, :5] + 1, a[::2, 3:].T @ b[::2, :5] + 1),
        "scan": (da.cumsum(x @ y.T, axis=0)[::-1], np.cumsum(a @ b.T, axis=0)[::-1]),
        "fft": (
            da.fft.fft((x.T @ y).rechunk({0: -1}), axis=0).real,
            np.fft.fft(a.T @ b, axis=0).real,
        ),
    }


@pytest.mark.parametrize("name", _expressions())
@pytest.mark.parametrize("method", METHODS)
def test_values(name, method):
    expression, expected = _expressions()[name]
    for workers in (3, 4, 6):
        got = dasktile.optimize(expression, method=method, workers=workers)
        np.testing.assert_allclose(got.compute(scheduler="sync"), expected, rtol=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_explain(method):
    x = da.random.default_rng(0).random((4000, 4000), chunks=(4000, 250))
    explanation = dasktile.explain(x.T @ x, method=method, workers=4)
    assert explanation.bytes_after <= explanation.bytes_before
    assert explanation.lower_bound <= explanation.bytes_after
    assert str(explanation)


# Against what is possible -----------------------------------------------------------


def test_lower_bound_has_its_three_cases():
    # one small matrix goes to everyone; two faces; three faces of a cube
    assert lower_bound(8000, 10, 10, 4) == 3 * 100
    assert lower_bound(800, 1, 800, 4) == pytest.approx(4 * (2 * 400 + 160_000) - 641_600)
    assert lower_bound(64, 64, 64, 8) == pytest.approx(8 * 3 * 1024 - 3 * 4096)
    for shape in itertools.product((10, 20, 80, 640), repeat=3):
        for workers in (2, 3, 6, 16, 64):
            assert lower_bound(*shape, workers) <= best_grid(*shape, workers) * (1 + 1e-9)


def test_products_are_near_their_lower_bound():
    cases = sweep((2, 3, 4, 6, 8, 12, 16), ratios=(1, 8))
    assert all(one.moved >= one.bound * (1 - 1e-9) for one in cases)
    # no grid of so few workers does better
    assert all(one.moved == one.grid for one in cases if one.workers < 8)
    assert share([one for one in cases if one.workers != 3]) >= 0.95
    many = [case(*(960 * ratio for ratio in shape), workers, four_axes())
            for shape in ((1, 1, 1), (1, 4, 16), (16, 1, 1), (4, 16, 16)) for workers in (48, 64)
            ]  # fmt: skip
    assert max(one.ratio for one in many) <= NEAR


# The benchmark ----------------------------------------------------------------------


def test_benchmark_says_what_the_paper_says():
    actual = benchmark.arithmetic()
    assert all(row["paper"] == row["ours"] for row in actual)
    for one in itertools.islice(benchmark.cases(), 2, 6):
        moved = one.moved()
        by_hand = min(nbytes for name, nbytes in moved.items() if name in one.by_hand)
        assert moved["eindecomp"] <= by_hand
        assert moved["default"] <= moved["eindecomp"]


def test_benchmarks_print(capsys):
    from rich.console import Console

    report(sweep((2,), ratios=(1, 4)), Console(width=120))
    benchmark.report(benchmark.arithmetic(), Console(width=120))
    printed = capsys.readouterr().out
    assert "320" in printed and "m : k : n" in printed
