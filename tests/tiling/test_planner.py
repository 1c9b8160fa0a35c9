"""Tiling: exact costs against counting element by element, and what must hold of plans."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from dasktile.ir import AxisMap, Role, bounds
from dasktile.tiling import Settings, tile
from dasktile.tiling.candidates import Space
from dasktile.tiling.cost import TIE, Costs
from dasktile.tiling.grid import Soft, Steps, free_axes, own_axes, sizes, split, unit
from dasktile.tiling.mesh import Mesh, mesh_shape
from dasktile.tiling.methods import get
from dasktile.tiling.solve.eliminate import Problem, solve
from tests.programs import Builder, chain, gram, transposed_add

MB = 1e6

LIMITS = Settings().candidates


def test_mesh_axes_multiply_to_the_workers():
    for workers in range(1, 200):
        assert np.prod(mesh_shape(workers), dtype=int) == workers
        assert len(mesh_shape(workers)) <= 3


def test_splits_nest_and_keep_to_the_grid():
    grid = (*tuple(range(0, 101, 7)), 100)
    for parts in (1, 2, 3, 5):
        for finer in (2, 3, 4):
            for positions in (None, grid):
                coarse = split(100, parts, positions)
                assert set(coarse) <= set(split(100, parts * finer, positions))
    assert set(split(100, 4, grid)) <= set(grid)
    assert sizes(3, 8, None) == (1, 1, 1)


@pytest.mark.parametrize("size", [2000, 6000, 8000, 9973, 12_000])
@pytest.mark.parametrize("workers", [6, 9, 12, 24, 27])
def test_tiles_nest_in_those_of_workers_on_multiples_of_a_length(size, workers):
    """Three workers of 54 units have 18 each, also where these are cut in 12 tiles."""
    length = unit(size, workers, LIMITS)
    divisors = [parts for parts in range(1, workers + 1) if workers % parts == 0]
    for parts in divisors:
        for finer in (2, 4):
            assert set(split(size, parts, length)) <= set(split(size, parts * finer, length))


def test_free_labels_are_cut_in_parts_of_one_length():
    for size in (730, 1461, 4000, 100_000, 320_017):
        for workers in (2, 3, 4, 6, 12, 64):
            length = unit(size, workers, LIMITS)
            if length is None:
                continue
            for parts in (1, workers, 2 * workers):
                actual = sizes(size, parts, length)
                assert len(actual) == parts
                assert max(actual) * parts <= 1.05 * size
                if parts <= workers:
                    assert len(set(actual[:-1])) <= 1
                    assert actual[-1] <= actual[0]
            assert set(split(size, workers, length)) <= set(split(size, 4 * workers, length))
    assert unit(100, 4, LIMITS) is None


def test_soft_grids_are_divided_where_they_are_too_coarse():
    grid = (0, 40, 80, 100)
    assert sizes(100, 6, grid) == (40, 40, 20)
    assert split(0, 2, Soft((0,))) == (0, 0, 0)
    assert sizes(100, 6, Soft(grid)) == (20, 20, 20, 20, 10, 10)


@pytest.mark.parametrize("chunk", [150, 100])
def test_plans_for_less_memory_join_no_blocks(chunk):
    build = Builder()
    x = build.source((2400, 2400), (chunk, chunk), pinned=True)
    build.fold(x, [0])
    program = build.program()
    options = {"workers": 4, "placed": True, "bundled": True, "force": True}
    usual = tile(program, **options)
    assert sum(usual.after.joined) > 0
    for settings in Settings().for_less_memory():
        small = tile(program, settings=settings, **options)
        assert sum(usual.after.tasks) < sum(small.after.tasks)
        assert sum(small.after.joined) == 0
        assert max(small.after.peak) < max(usual.after.peak) / 4
        assert small.after.bytes == usual.after.bytes


@pytest.mark.parametrize("made", [{"stored": (1, 160, 160)}, {"pinned": True}])
def test_plans_for_less_memory_cut_the_axes_along_which_blocks_are_cut(made):
    """A block of an input is in memory until all tiles that are cut from it have been made."""
    build = Builder()
    x = build.source((120, 320, 320), (1, 160, 160), **made)
    build.fold(build.elementwise(x, x), [0])
    program = build.program()
    for settings in Settings().for_less_memory():
        small = tile(program, workers=4, placed=True, bundled=True, force=True, settings=settings)
        steps, *sides = small.tiled.tilings[1].chunks
        assert len(steps) > 1
        assert sides == [(160, 160), (160, 160)]


@pytest.mark.parametrize("workers", [3, 4])
def test_slices_with_a_step_are_cut_where_their_array_is_cut(workers):
    build = Builder()
    x = build.source((400, 2000), (1, 2000), stored=(1, 2000))
    for start in range(8):
        part = build.view(x, (AxisMap(0, start, 8), AxisMap(1)), (50, 2000))
        build.fold(part, [0])
        build.fold(part, [0])
    plan = tile(build.program(), workers=workers)
    # partial sums move, and no element of x
    assert plan.after.bytes == 16 * (workers - 1) * 2000 * 8


def test_boundaries_of_steps_nest():
    for start, step in ((0, 2), (3, 8), (6, 7)):
        size = len(range(start, 400, step))
        for grid in (None, 25, tuple(range(0, 401, 16)), Soft(range(0, 401, 100))):
            steps = Steps(400, grid, start, step)
            for parts in (1, 2, 4):
                edges = split(size, parts, steps)
                assert set(edges) <= set(split(size, 4 * parts, steps))
                for at, edge in zip(split(400, parts, grid)[1:-1], edges[1:-1], strict=True):
                    # the first element that is read behind the boundary
                    assert start + step * (edge - 1) < at <= start + step * edge


def test_solver_agrees_with_trying_everything():
    rng = np.random.default_rng(0)
    for _ in range(200):
        count = int(rng.integers(1, 7))
        states = rng.integers(1, 4, count)
        unary = [rng.integers(0, 9, k).astype(float) for k in states]
        pairs = {
            (i, j): rng.integers(0, 9, (states[i], states[j])).astype(float)
            for i in range(count)
            for j in range(i + 1, count)
            if rng.random() < 0.5
        }
        problem = Problem(unary, pairs)
        best = min(problem.cost(s) for s in itertools.product(*map(range, states)))
        exact = solve(problem, 10**6)
        assert exact.exact and exact.cost == best == exact.bound
        bounded = solve(problem, 9)
        assert bounded.bound <= best + 1e-9
        assert bounded.cost >= best - 1e-9
        assert not bounded.exact or bounded.cost == best


def _random_program(rng):
    build = Builder()
    size = int(rng.integers(3, 9))
    for _ in range(2):
        build.source((size, size), tuple(int(c) for c in rng.integers(1, size + 1, 2)),
                     pinned=bool(rng.random() < 0.3))  # fmt: skip
    for _ in range(int(rng.integers(2, 6))):
        squares = [i for i, node in enumerate(build.nodes) if node.shape == (size, size)]
        one, other = (int(i) for i in rng.choice(squares, 2))
        pick = rng.integers(0, 6)
        if pick == 0:
            build.matmul(one, other, ta=bool(rng.random() < 0.5))
        elif pick == 1:
            build.elementwise(one, other, transposed=[int(rng.integers(0, 2))])
        elif pick == 2:
            build.elementwise(one, build.fold(one, (int(rng.integers(0, 2)),), keepdims=True))
        elif pick == 3:
            build.view(one, (AxisMap(0, size - 1, -1), AxisMap(1)), (size, size))
        elif pick == 4:
            build.view(one, (AxisMap(0, 1), AxisMap(1, 0, 2)), (size - 1, (size + 1) // 2))
        else:
            build.whole(one, int(rng.integers(0, 2)))
    return build.program()


def _count(costs, source, reader, row, column):
    """Elements that every worker needs and lacks, one by one."""
    space = costs.space
    holder, user = space.variables[source], space.variables[reader]
    shape = space.program.nodes[holder.node].shape
    node = space.program.nodes[user.node]
    reads = [tuple(AxisMap(axis) for axis in range(len(shape)))]
    if not user.keep:
        reads = [edge.axes for edge in node.edges if space.source(edge.producer) == source]
    box = user.held if user.keep else user.work
    total = 0
    for worker in range(space.mesh.workers):
        has = np.zeros(shape, bool)
        if holder.held.active[row, worker]:
            ends = zip(holder.held.lo[row, worker], holder.held.hi[row, worker], strict=True)
            has[tuple(slice(lo, hi) for lo, hi in ends)] = True
        wants = np.zeros(shape, bool)
        for axes in reads if box.active[column, worker] else []:
            picked = []
            for axis, size in zip(axes, shape, strict=True):
                if axis.label is None:
                    picked.append(np.arange(size))
                    continue
                steps = np.arange(box.lo[column, worker, axis.label],
                                  box.hi[column, worker, axis.label])  # fmt: skip
                picked.append(axis.start + axis.step * steps)
            wants[np.ix_(*picked)] = True
        total += int((wants & ~has).sum())
    return total


@pytest.mark.parametrize("seed", range(12))
def test_bytes_are_what_counting_elements_gives(seed):
    rng = np.random.default_rng(seed)
    program = _random_program(rng)
    for axes in (free_axes(program, 4, LIMITS), own_axes(program)):
        costs = Costs(Space(program, Mesh((2, 2)), axes, Settings()))
        assert costs.between
        for (source, reader), table in costs.between.items():
            node = program.nodes[costs.space.variables[reader].node]
            strided = any(abs(a.step) > a.width for edge in node.edges for a in edge.axes)
            for _ in range(6):
                row, column = (int(rng.integers(0, n)) for n in table.shape)
                counted = 8 * _count(costs, source, reader, row, column)
                if strided:  # the model takes a stride for a share of the box
                    assert table[row, column] == pytest.approx(counted, abs=8 * 40)
                else:
                    assert table[row, column] == counted


@pytest.mark.parametrize("seed", range(8))
def test_exact_agrees_with_the_oracle(seed):
    program = _random_program(np.random.default_rng(100 + seed))
    costs = Costs(Space(program, Mesh((2,)), free_axes(program, 2, LIMITS), Settings()))
    try:
        oracle = get("exhaustive").choose(costs, Settings(), TIE)
    except ValueError:
        pytest.skip("too many tilings for the oracle")
    choice = get("exact").choose(costs, Settings(), TIE)
    assert choice.exact
    assert choice.cost == pytest.approx(oracle.cost, abs=1e-6)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 6, 8, 64])
@pytest.mark.parametrize("seed", range(5))
def test_plans_are_well_formed_and_do_no_harm(seed, workers):
    program = _random_program(np.random.default_rng(seed))
    plan = tile(program, workers=workers, settings=Settings(task_bytes=1.0, min_tile=64))
    assert plan.lower_bound <= plan.after.bytes
    if plan.tiled is None:
        assert plan.after == plan.before
        return
    if plan.before.balance <= 1.25:
        assert plan.after.bytes <= plan.before.bytes
    for node, tiling in zip(program.nodes, plan.tiled.tilings, strict=True):
        for label, cut in zip(node.labels, tiling.cuts, strict=True):
            assert sum(cut) == label.size
            if label.role is Role.PINNED:
                assert cut == label.cuts
            if label.role is Role.WHOLE:
                assert len(cut) == 1
        assert tuple(map(sum, tiling.chunks)) == node.shape


@pytest.mark.parametrize("chunk, placing", [((3000, 300), False), ((600, 3000), True)])
def test_what_few_workers_would_do_is_not_spread(chunk, placing):
    """One tile for all, or more than workers though no multiple of them."""
    build = Builder()
    x = build.source((3000, 3000), chunk, pinned=True)
    if placing:
        build.elementwise(x)
    else:
        build.whole(x, 1)
    for placed in (False, True):
        plan = tile(build.program(), workers=4, placed=placed)
        assert plan.after is plan.before
        assert (plan.tiled is not None) == (placed and placing)


def test_data_that_lies_unevenly_is_not_moved_for_that():
    """Eight blocks that the scheduler has put on seven of eight workers."""
    build = Builder()
    a = build.source((20_000, 4000), (2500, 4000), pinned=True)
    u = build.matmul(a, build.source((4000, 32), (4000, 32)))
    build.matmul(a, u, ta=True)
    homes = tuple((min(block, 6),) for block in range(8))
    program = build.program(u, 3)
    located = replace(program.nodes[a], homes=homes)
    program = replace(program, nodes=(located, *program.nodes[1:]))
    plan = tile(program, workers=8, placed=True)
    assert plan.before.bytes < 20_000_000
    assert plan.after.bytes <= plan.before.bytes


def test_square_matmul_is_near_the_lower_bound():
    build = Builder()
    build.matmul(build.source((4000, 4000), (1000, 1000)), build.source((4000, 4000), (1000, 1000)))
    plan = tile(build.program(), workers=4)
    # words per worker beyond what it holds: 3 (mnk/P)^(2/3) - (mn + mk + nk)/P
    bound = 4 * 8 * (3 * (4000**3 / 4) ** (2 / 3) - 3 * 4000**2 / 4)
    assert bound <= plan.after.bytes <= 1.25 * bound
    assert plan.proven_optimal


def test_gram_matrix_never_moves_x():
    plan = tile(gram(320_000, 256, (10_000, 256)), workers=4)
    assert plan.after.bytes == 3 * 256 * 256 * 8
    assert plan.proven_optimal
    columns = Builder()
    x = columns.source((320_000, 256), (320_000, 8))
    columns.matmul(x, x, ta=True)
    plan = tile(columns.program(), workers=4)
    assert plan.after.bytes == 3 * 256 * 256 * 8


def test_adding_the_transpose_does_not_shatter():
    build = Builder()
    x = build.source((4000, 4000), (500, 4000))
    build.elementwise(x, x, transposed=(1,))
    plan = tile(build.program(), workers=4)
    assert sum(plan.after.tasks) < sum(plan.before.tasks)
    assert max(len(c) for t in plan.tiled.tilings for c in t.chunks) <= 4
    assert plan.proven_optimal


@pytest.mark.parametrize("skewed", [False, True])
def test_chain_is_proven_optimal(skewed):
    plan = tile(chain(skewed), workers=4)
    assert plan.proven_optimal
    assert plan.after.bytes == (89_600_000 if skewed else 768_000_000)
    assert plan.after.balance <= 1.1


def test_work_is_balanced_although_one_worker_alone_moves_nothing():
    for program in (chain(False), chain(True), gram(320_000, 256, (10_000, 256))):
        for workers in (2, 3, 4, 8):
            assert tile(program, workers=workers).after.balance <= 1.1


def test_stored_chunks_are_read_whole_and_once():
    build = Builder()
    x = build.source((1000, 1000), (1000, 1000), stored=(130, 70))
    build.matmul(x, build.source((1000, 1000), (250, 250), stored=(250, 250)))
    program = build.program()
    plan = tile(program, workers=4, settings=Settings(task_bytes=1.0))
    assert plan.tiled is not None
    for node, tiling, read in zip(program.nodes, plan.tiled.tilings, plan.after.read, strict=True):
        if node.stored is not None:
            assert read == node.nbytes
            for own, stored in zip(tiling.chunks, node.stored, strict=True):
                assert set(bounds(own)) <= set(bounds(stored))


def test_persisted_data_keeps_its_chunks_and_the_obvious_rechunk_is_not_taken():
    plan = tile(transposed_add(4000, (250, 4000), pinned=True), workers=4)
    assert plan.after.bytes <= plan.before.bytes
    assert plan.after.bytes <= 96 * MB  # re-chunking both to 2 x 2 moves 160
    pinned = tile(chain(True, pinned=True, chunk=400), workers=4)
    assert pinned.after.bytes <= pinned.before.bytes


def test_memory_limit_is_kept_by_every_task():
    program = chain(False, size=800, chunk=200)
    for limit in (4_000_000, 400_000, 40_000):
        plan = tile(program, workers=4, memory_limit=limit)
        assert max(plan.after.peak) <= limit


def test_memory_limit_below_one_tile_is_an_error_that_names_the_operation():
    with pytest.raises(ValueError, match=r"memory_limit of 10 B is below one tile: .*matmul"):
        tile(chain(False, size=80, chunk=20), workers=4, memory_limit=10)


def test_unknown_method_names_the_known_ones():
    with pytest.raises(ValueError, match="unknown method 'best'; allowed are 'auto', 'exact'"):
        tile(chain(False, size=80, chunk=20), method="best")


def test_two_to_four_tiles_a_worker_where_arrays_are_large():
    build = Builder()
    x = build.source((8000, 8000), (8000, 1000))
    build.elementwise(x, x, transposed=(1,))
    plan = tile(build.program(), workers=4)
    tiles = [len(t.cuts[0]) * len(t.cuts[1]) for t in plan.tiled.tilings]
    assert all(8 <= count <= 16 for count in tiles)


@pytest.mark.parametrize(("workers", "threads"), [(1, 2), (1, 16), (4, 8), (2, 16)])
def test_products_keep_all_threads_busy(workers, threads):
    """The tiles of one worker along the summed label are accumulated one after the other."""
    program = gram(4000, 4000, (500, 500))
    plan = tile(program, workers=workers, threads=threads)
    product, tiling = program.nodes[1], plan.tiled.tilings[1]
    independent = 1
    for index, (label, cuts) in enumerate(zip(product.labels, tiling.cuts, strict=True)):
        mesh_cuts = [plan.tiled.mesh[axis] for axis in tiling.work_at.dims[index].by]
        independent *= np.prod(mesh_cuts) if label.role is Role.REDUCE else len(cuts)
    assert independent >= workers * threads


def test_small_nodes_need_not_be_divided_but_large_ones_are():
    build = Builder()
    x = build.source((2_000_000, 3), (2_000_000, 3))
    build.elementwise(x, build.fold(x, (0,), keepdims=True))
    plan = tile(build.program(), workers=4)
    assert plan.tiled.tilings[2].work_at.by_axis(2) == (0, 0)
    assert plan.tiled.tilings[1].chunks == ((1,), (3,))
    # three partial sums meet on one worker, and the mean goes out to the other three
    assert plan.after.bytes == 6 * 3 * 8


def test_the_plan_does_not_depend_on_names():
    program = chain(True)
    renamed = type(program)(
        tuple(
            type(node)(**{f: getattr(node, f) for f in node.__slots__} | {"name": f"z{99 - i}"})
            for i, node in enumerate(program.nodes)
        ),
        program.outputs,
    )
    assert tile(program, workers=8).tiled.tilings == tile(renamed, workers=8).tiled.tilings
