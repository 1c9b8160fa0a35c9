"""SoyBean: the paper's arithmetic, its cuts, and what comes of them."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import dask.array as da
import numpy as np
import pytest

import dasktile
from benchmarks.papers import networks
from benchmarks.papers import soybean as paper
from dasktile.ir import AxisMap, Program, validate
from dasktile.tiling import MemoryLimitError, tile
from dasktile.tiling.methods.papers.onecut import OneCut, by_levels, conversion
from dasktile.tiling.methods.papers.soybean import k_cuts, soybean_mesh
from dasktile.tiling.solve.eliminate import solve
from tests.programs import Builder, chain, gram, transposed_add


def _moved(program, workers, method):
    return tile(program, workers=workers, method=method, force=True).after.bytes


def _one_cut(program, parts=2):
    return OneCut(
        program,
        parts,
        [[1] * len(node.labels) for node in program.nodes],
        [[1] * len(node.shape) for node in program.nodes],
        lambda index, labels: labels,
    )


def test_the_papers_arithmetic():
    printed = {"data": 57.6e6, "model": 76.8e6, "hybrid": 33.6e6}
    assert paper.example(printed=True) == pytest.approx(printed)
    assert paper.example() == pytest.approx({"data": 54e6, "model": 72e6, "hybrid": 25.2e6})
    printed = {"data": 64e6, "model": 38.4e6, "hybrid": 25.6e6}
    assert paper.slides(printed=True) == pytest.approx(printed)
    assert paper.slides() == pytest.approx({"data": 60e6, "model": 36e6, "hybrid": 19.2e6})


def test_conversions_of_one_cut():
    for wanted in (0, 1, "r"):
        assert conversion("r", wanted) == 0
    assert conversion(0, 0) == 0
    assert conversion(0, 1) == conversion(1, 0) == 0.5
    assert conversion(0, "r") == 1
    assert conversion("red", 0) == conversion("red", 1) == 1
    assert conversion("red", "r") == 2
    # over three parts: each lacks two thirds
    assert conversion(0, 1, 3) == pytest.approx(2 / 3)
    assert conversion(0, "r", 3) == 2


def test_a_product_has_three_aligned_forms():
    build = Builder()
    x, y = build.source((8, 4), (8, 4)), build.source((4, 6), (4, 6))
    product = build.matmul(x, y)
    cut = _one_cut(build.program())
    assert cut.forms[product] == [0, 1, 2]
    tables = cut.problem().pairwise
    sizes = {name: 8 * count for name, count in (("x", 32), ("y", 24), ("z", 48))}
    form = 2 * product + 1
    # rows: tilings R, C, r; columns: (R, r -> R), (C, R -> red), (r, C -> C)
    expected = {
        (2 * x, form): [[0, 0.5, 1], [0.5, 0, 1], [0, 0, 0]],
        (2 * y, form): [[1, 0, 0.5], [1, 0.5, 0], [0, 0, 0]],
        (2 * product, form): [[0, 1, 0.5], [0.5, 1, 0], [1, 2, 1]],
    }
    for (pair, table), size in zip(expected.items(), sizes.values(), strict=True):
        assert tables[pair] == pytest.approx(size * np.array(table))


def test_elementwise_operations_are_never_replicated():
    build = Builder()
    x, y = (build.source((8, 4), (8, 4)) for _ in range(2))
    added = build.elementwise(x, y)
    cut = _one_cut(build.program())
    assert cut.forms[added] == [0, 1]
    tables = cut.problem().pairwise
    for source in (x, y):
        assert tables[2 * source, 2 * added + 1] == pytest.approx(
            8 * 32 * np.array([[0, 0.5], [0.5, 0], [0, 0]])
        )


def test_sums_are_cut_like_products_and_whole_labels_never():
    build = Builder()
    x = build.source((8, 4), (8, 4))
    total = build.fold(x, (0,))
    sorted_ = build.whole(x, 1)
    scalar = build.fold(total, (0,))
    cut = _one_cut(build.program(sorted_, scalar))
    assert cut.forms[total] == [0, 1]
    assert cut.forms[sorted_] == [0]
    assert cut.problem().pairwise[2 * total, 2 * total + 1] == pytest.approx(
        8 * 4 * np.array([[1, 0], [2, 1]])
    )


def test_windows_cost_what_the_parts_lack():
    build = Builder()
    x = build.source((8, 4), (8, 4))
    flipped = build.view(x, (AxisMap(0, 7, -1), AxisMap(1)), (8, 4))
    blurred = build.view(x, (AxisMap(0, -1, 1, 3), AxisMap(1)), (8, 4))
    tables = _one_cut(build.program(flipped, blurred)).problem().pairwise
    # flipped, each half is where the other was; of windows each half lacks one row
    assert tables[2 * x, 2 * flipped + 1][:, 0] == pytest.approx([256, 128, 0])
    assert tables[2 * x, 2 * blurred + 1][0, 0] == pytest.approx(2 * 4 * 8)


@pytest.mark.parametrize("program", [
    chain(False, 400, 400), chain(True, 400, 400), gram(4000, 40, (1000, 40)),
    transposed_add(400, (400, 400), False), networks.mlp(400, 300, 3),
], ids=["chain", "skewed", "gram", "transposed", "mlp"])  # fmt: skip
def test_levels_find_the_best_cut(program):
    problem = _one_cut(program).problem()
    best = solve(problem, 10**7)
    assert best.exact
    assert problem.cost(by_levels(problem)) == pytest.approx(best.cost)
    # where levels are wider than there is room for, another order is as good
    assert problem.cost(by_levels(problem, 2)) == pytest.approx(best.cost)


def test_total_is_the_weighted_sum_of_the_cuts():
    cuts = k_cuts(networks.mlp(400, 300, 5), (2, 2, 2, 2))
    assert cuts.total == sum(2**i * delta for i, delta in enumerate(cuts.deltas))
    # theorem 3: what a cut costs in all grows from cut to cut
    for one, other in itertools.pairwise(cuts.deltas):
        assert one <= 2 * other
    cuts = k_cuts(networks.mlp(300, 300, 2), (3, 2))
    assert cuts.total == pytest.approx(cuts.deltas[0] + 3 * cuts.deltas[1])


def test_cut_by_cut_is_not_optimal_under_exact_costs():
    program = networks.mlp(400, 300, 2, input_gradient=True, placed=True)
    exact = tile(program, workers=4, force=True)
    assert exact.proven_optimal
    assert exact.after.bytes == pytest.approx(2.76e6)
    assert _moved(program, 4, "soybean") >= 3.06e6


def test_the_example_moves_less_than_the_papers_hybrid():
    program = networks.mlp(400, 300, 5)
    assert _moved(program, 16, "soybean") < paper.example()["hybrid"]
    # 20.04 MB is the best that is known for one tiling an array; its three axes move 21.6
    assert _moved(program, 16, "auto") <= 20.1e6 < paper.example()["hybrid"]


def test_convolutions_by_batch_and_dense_layers_by_weights():
    program = networks.alexnet()
    cuts = k_cuts(program, (2, 2, 2))
    by_name = dict(zip((node.name for node in program.nodes), cuts.forms, strict=True))
    for name in ("x0", "x2", "x4", "x5", "x6"):
        assert by_name[name] == (0, 0, 0)
    for name in ("x8", "x9"):
        assert set(by_name[name]) != {0}


def test_networks_are_well_formed():
    for program in (networks.alexnet(8), networks.vgg(8), networks.cnn(8, 6, 16)):
        validate(program)
    shapes = {node.name: node.shape for node in networks.alexnet().nodes}
    assert shapes["x7"] == (256, 6, 6, 256)
    weights = sum(math.prod(shape) for name, shape in shapes.items() if name.startswith("w"))
    assert weights == pytest.approx(62e6, rel=0.02)
    shapes = {node.name: node.shape for node in networks.vgg().nodes}
    weights = sum(math.prod(shape) for name, shape in shapes.items() if name.startswith("w"))
    assert weights == pytest.approx(138e6, rel=0.01)


def test_windows_of_convolutions_cover_what_they_read():
    program = networks.cnn(8, 6, 16, layers=2)
    node = next(node for node in program.nodes if node.name == "x0")
    rows = node.edges[0].axes[1]
    assert [rows.interval(row, row + 1, 6) for row in (0, 1, 5)] == [(0, 2), (0, 3), (4, 6)]


def test_mesh_is_the_prime_factors():
    assert soybean_mesh(1) == ()
    assert soybean_mesh(8) == (2, 2, 2)
    assert soybean_mesh(12) == (3, 2, 2)
    for workers in range(1, 200):
        assert math.prod(soybean_mesh(workers)) == workers
        assert len(soybean_mesh(workers)) <= 4


def _programs():
    yield chain(False, 400, 100)
    yield chain(True, 400, 100, pinned=True)
    yield gram(4000, 40, (1000, 40))
    yield transposed_add(400, (100, 400), True)
    build = Builder()
    x = build.source((60, 40), (20, 40))
    centred = build.elementwise(x, build.fold(x, (0,), keepdims=True))
    build.fold(build.whole(build.matmul(centred, centred, tb=True), 1), (0, 1))
    yield build.program()
    build = Builder()
    build.source((7,), (7,))
    yield build.program()


def test_never_over_the_memory_limit():
    for program in _programs():
        for limit in (10_000, 100_000, 10_000_000):
            try:
                plan = tile(program, workers=4, method="soybean", memory_limit=limit, force=True)
            except MemoryLimitError:
                with pytest.raises(MemoryLimitError):
                    tile(program, workers=4, memory_limit=limit, force=True)
            else:
                # what is stored or placed in larger chunks is read as it is
                free = [peak for node, peak in zip(program.nodes, plan.after.peak, strict=True)
                        if node.stored is None and not node.pinned]  # fmt: skip
                assert max(free) <= limit


def test_same_plan_whatever_the_names():
    for program in _programs():
        plan = tile(program, workers=8, method="soybean", force=True)
        assert plan.after.bytes >= tile(program, workers=8, force=True).lower_bound
        renamed = Program(
            tuple(replace(node, name=f"n{i}-{hash(node.name)}")
                  for i, node in enumerate(program.nodes)),
            program.outputs,
        )  # fmt: skip
        again = tile(renamed, workers=8, method="soybean", force=True)
        assert again.after == plan.after
        assert [t.chunks for t in again.tiled.tilings] == [t.chunks for t in plan.tiled.tilings]


def test_expressions_of_dask():
    rng = np.random.default_rng(0)
    a, b = rng.random((120, 80)), rng.random((80, 60))
    x = da.from_array(a, chunks=(30, 20))
    y = da.from_array(b, chunks=(20, 60))
    z = (x - x.mean(axis=0)) @ y
    expected = (a - a.mean(axis=0)) @ b
    explained = dasktile.explain(z, method="soybean", workers=4)
    assert explained.bytes_after <= explained.bytes_before
    optimized = dasktile.optimize(z, method="soybean", workers=4)
    assert optimized.shape == z.shape
    np.testing.assert_allclose(optimized.compute(scheduler="sync"), expected)


def test_benchmark_compares_all_methods():
    program = networks.mlp(400, 300, 2, input_gradient=True, placed=True)
    actual = paper.moved(program, 4)
    assert list(actual) == ["data", "model", "hybrid", "soybean", "default", "bound"]
    assert actual["default"] == actual["bound"] == min(actual.values())
    assert paper.speed_up(program, 4, 0) == pytest.approx(4)
