"""Plans move as few bytes as any grid of workers, with its axes in any order, allows."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dasktile.tiling import Settings, TooManyTilingsError, methods, tile
from dasktile.tiling.fewer import fewer_workers
from dasktile.tiling.mesh import mesh_shape, mesh_shapes
from dasktile.tiling.plan import TilingPlan
from tests.programs import BYTES_DECIDE, Builder
from tests.tiling.grid_oracle import Tree, fewest_bytes

#: Rows and columns, divisible by most numbers of workers.
SIZE = 48

#: Rows and columns for others, divisible by these and by the numbers that plans for them may use.
SIZES = {5: 40, 7: 42}

#: Prime factors by the number of workers.
PRIMES = {2: (2,), 3: (3,), 4: (2, 2), 5: (5,), 6: (3, 2), 7: (7,), 8: (2, 2, 2)}

#: Numbers of workers for which the oracle is quick enough where operations share an array.
FEWER = (2, 3, 4, 5, 6, 7)


def random_tree(rng: np.random.Generator, depth: int, shared: float = 0.0) -> Tree:
    if not depth:
        return ("shared",) if rng.random() < shared else ("source",)
    kind = rng.choice(["add", "matmul", "matmul", "whole"])
    if kind == "whole":
        return kind, random_tree(rng, depth - 1, shared), int(rng.integers(2))
    one = random_tree(rng, depth - 1, shared)
    other = random_tree(rng, int(rng.integers(depth)), shared)
    turned = [bool(turn) for turn in rng.random(2) < 0.3]
    return (
        (str(kind), one, other, *turned) if rng.random() < 0.5 else (str(kind), other, one, *turned)
    )


def planned(
    tree: Tree,
    size: int,
    workers: int,
    settings: Settings = BYTES_DECIDE,
    method: str = "auto",
) -> TilingPlan:
    build, chunk = Builder(), (2, 2) if size <= SIZE else (size // 8,) * 2
    shared: list[int] = []

    def add(tree: Tree) -> int:
        if tree[0] == "shared":
            shared[:] = shared or [build.source((size, size), chunk)]
            return shared[0]
        if tree[0] == "source":
            return build.source((size, size), chunk)
        if tree[0] == "whole":
            return build.whole(add(tree[1]), tree[2])
        kind, left, right, turn_left, turn_right = tree
        one, other = add(left), add(right)
        if kind == "add":
            turned = [at for at, turn in enumerate((turn_left, turn_right)) if turn]
            return build.elementwise(one, other, transposed=turned)
        return build.matmul(one, other, ta=turn_left, tb=turn_right)

    add(tree)
    return tile(build.program(), workers=workers, settings=settings, method=method, force=True)


def agrees(seed: int, counts: Sequence[int] = tuple(PRIMES), shared: float = 0.0) -> None:
    rng = np.random.default_rng(seed)
    workers = int(rng.choice(counts))
    tree = random_tree(rng, int(rng.integers(1, 4)), shared)
    size = SIZES.get(workers, SIZE)
    plan = planned(tree, size, workers, method="exact")
    least = fewest_bytes(tree, size, PRIMES[workers])
    assert plan.after.bytes == least
    assert plan.proven_optimal
    assert plan.grids in ("", f"any grid of {workers} workers")
    # of fewer workers, if plans may use them, their optimum, and a bound for all
    auto = planned(tree, size, workers)
    assert auto.proven_optimal
    if auto.used_workers == workers:
        assert auto.after.bytes == auto.lower_bound == least
    else:
        assert auto.used_workers in fewer_workers(workers)
        assert auto.bytes_on_all == least
        assert auto.after.bytes == fewest_bytes(tree, size, PRIMES[auto.used_workers]) < least
        assert auto.lower_bound == auto.after.bytes


@pytest.mark.parametrize("workers", PRIMES)
@pytest.mark.parametrize("seed", range(3))
def test_trees_have_the_optimum_of_any_grid(seed: int, workers: int) -> None:
    agrees(seed, [workers])


@pytest.mark.parametrize("workers", FEWER)
@pytest.mark.parametrize("seed", range(2))
def test_arrays_with_several_readers_have_the_optimum_of_any_grid(seed: int, workers: int) -> None:
    agrees(seed, [workers], shared=0.6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 220))
def test_many_trees_have_the_optimum_of_any_grid(seed: int) -> None:
    agrees(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 110))
def test_many_arrays_with_several_readers_have_the_optimum_of_any_grid(seed: int) -> None:
    agrees(seed, FEWER, shared=0.6)


#: Elements that products of n x n matrices move on a grid of equal sides, over n x n.
MOVED = {8: 3, 27: 6, 64: 9}


@pytest.mark.parametrize("workers", MOVED)
def test_one_more_operation_on_a_product_moves_nothing_more(workers: int) -> None:
    size = 432
    product = ("matmul", ("source",), ("source",), False, False)
    more = ("add", product, ("source",), False, False)
    turned = ("add", product, ("source",), True, True)
    settings = replace(BYTES_DECIDE, task_bytes=1.0)
    for tree in (product, more, turned):
        plan = planned(tree, size, workers, settings)
        assert plan.after.bytes == plan.lower_bound == MOVED[workers] * size**2 * 8
        assert plan.proven_optimal


def test_products_have_the_optimum_of_grids_with_at_most_three_axes() -> None:
    product = ("matmul", ("source",), ("source",), False, True)
    wider = replace(BYTES_DECIDE.wider, bytes_per_sum=0)
    for workers, primes in ((12, (3, 2, 2)), (16, (2, 2, 2, 2))):
        plan = planned(product, SIZE, workers, replace(BYTES_DECIDE, wider=wider))
        assert plan.after.bytes == fewest_bytes(product, SIZE, primes)
    assert plan.proven_optimal
    assert plan.grids == "any grid of 16 workers with at most 3 axes"


def test_meshes_of_three_axes() -> None:
    assert mesh_shapes(24, 3) == [(6, 2, 2), (4, 3, 2)]
    assert mesh_shapes(7, 3) == mesh_shapes(4, 3) == [] and mesh_shapes(7, 1) == [(7,)]
    for workers in (8, 30, 64, 96):
        shapes = mesh_shapes(workers, 3)
        assert mesh_shape(workers) in shapes and len(set(shapes)) == len(shapes)
        assert all(np.prod(shape) == workers for shape in shapes)


def test_a_grid_that_was_searched_in_one_order_says_so() -> None:
    product = ("matmul", ("source",), ("source",), False, False)
    for min_bytes, grids in (
        (0, "any grid of 8 workers"),
        (1e9, "a grid of 2 x 2 x 2 workers with its axes in one order"),
    ):
        wider = replace(BYTES_DECIDE.wider, min_bytes=min_bytes)
        assert planned(product, SIZE, 8, replace(BYTES_DECIDE, wider=wider)).grids == grids


@pytest.mark.parametrize("workers", [*range(1, 17), 30, 36])
def test_all_methods_have_a_plan_for_any_number_of_workers(workers: int) -> None:
    build = Builder()
    x = build.source((64, 64), (16, 16))
    build.elementwise(build.matmul(x, x))
    program = build.program()
    for method in methods():
        with contextlib.suppress(TooManyTilingsError):
            plan = tile(program, workers=workers, method=method, force=True)
            assert plan.lower_bound <= plan.after.bytes
            assert plan.grids or not plan.lower_bound


@pytest.mark.parametrize("workers", [4, 6, 8, 12])
@pytest.mark.parametrize("scarce", [{"max_states": 8}, {"width_budget": 50}])
def test_bounds_hold_where_the_search_is_cut_short(workers: int, scarce: dict[str, int]) -> None:
    rng = np.random.default_rng(3)
    tree = random_tree(rng, 3, shared=0.3)
    whole = planned(tree, SIZE, workers)
    cut_short = planned(tree, SIZE, workers, replace(BYTES_DECIDE, **scarce))
    assert cut_short.lower_bound <= whole.after.bytes <= cut_short.after.bytes
    assert cut_short.grids or not cut_short.lower_bound
