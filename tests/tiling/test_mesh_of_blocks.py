"""Few blocks that keep their chunks are divided as evenly as single blocks can be."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile import small_graphs
from dasktile.capture.highlevel import capture
from dasktile.ir import Sharding, workers_of_positions
from dasktile.schedule.placement import Placement, decode
from dasktile.templates import forget
from dasktile.tiling import planner, tile
from dasktile.tiling.mesh_of_blocks import meshes_of_blocks
from tests.support import plan_for_workers


def opaque(block: np.ndarray) -> np.ndarray:
    """A function that nobody has declared, and whose code does not show what it reads."""
    return block + len(str(block))


def of_blocks(*counts: int) -> da.Array:
    """An array of blocks of 4 elements along each axis, made by an unknown function."""
    x = da.random.default_rng(0).random(tuple(4 * count for count in counts), chunks=4)
    return x.map_blocks(opaque, dtype=float)


def shares(y: da.Array, workers: int) -> list[int]:
    """Blocks of an array on each worker, in a plan for these workers."""
    plan = tile(capture([y]).program, workers=workers, placed=True, bundled=True)
    assert plan.tiled is not None
    numbers = list(range(workers))
    if math.prod(plan.tiled.mesh) > workers:
        numbers = workers_of_positions(math.prod(plan.tiled.mesh), workers)
    tiling = plan.tiled.tilings[plan.program.outputs[0]]
    assert isinstance(tiling.held_at, Sharding)
    placement = Placement(plan.tiled.mesh, tiling.held_at)
    blocks = np.ndindex(*map(len, tiling.chunks))
    counts = Counter(numbers[placement.position(block)] for block in blocks)
    return sorted((counts[worker] for worker in range(workers)), reverse=True)


@pytest.mark.parametrize(
    ("counts", "workers", "expected"),
    [
        ((2, 4), 3, [3, 3, 2]),
        ((4, 4), 3, [6, 5, 5]),
        ((1, 4, 4), 3, [6, 5, 5]),
        ((2, 2), 5, [1, 1, 1, 1, 0]),
        ((3, 3), 5, [2, 2, 2, 2, 1]),
        ((2, 2, 2), 3, [3, 3, 2]),
        # these are even on the workers' own mesh
        ((3, 3), 3, [3, 3, 3]),
        ((2, 4), 4, [2, 2, 2, 2]),
        ((7,), 3, [3, 2, 2]),
    ],
)
def test_blocks_of_each_worker(counts: tuple[int, ...], workers: int, expected: list[int]) -> None:
    assert shares(of_blocks(*counts), workers) == expected


def busiest(y: da.Array, workers: int) -> int:
    """The most blocks of a worker; all blocks where no worker is chosen for them."""
    plan = tile(capture([y]).program, workers=workers, placed=True, bundled=True)
    return max(shares(y, workers)) if plan.tiled is not None else y.npartitions


def test_no_worker_has_more_blocks_than_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    before, after, least = Counter[int](), Counter[int](), Counter[int]()
    for case in range(40):
        counts = [rng.randint(2, 6) for _ in range(rng.choice([2, 2, 3]))]
        workers = rng.randint(3, 9)
        if 3 * math.prod(counts) <= 2 * workers:
            continue
        y = of_blocks(*counts)
        after[case], least[case] = busiest(y, workers), -(-math.prod(counts) // workers)
        with monkeypatch.context() as patch:
            patch.setattr(planner, "on_mesh_of_blocks", lambda unchanged, before: before)
            before[case] = busiest(y, workers)
        assert least[case] == after[case] <= before[case]
    improved = [case for case in before if after[case] < before[case]]
    assert len(improved) >= len(before) / 4


def test_meshes_have_a_position_for_each_block() -> None:
    program = capture([of_blocks(8, 8)]).program
    assert meshes_of_blocks(program, 9) == [(8, 8)]
    # half of the workers would be idle after one has joined, or all have one block
    assert meshes_of_blocks(capture([of_blocks(2, 2)]).program, 5) == [(2, 2)]
    assert meshes_of_blocks(capture([of_blocks(2, 2)]).program, 6) == []
    assert meshes_of_blocks(capture([of_blocks(2, 2)]).program, 4) == []
    assert meshes_of_blocks(capture([of_blocks(8)]).program, 3) == []
    many = of_blocks(2, 4).map_blocks(np.abs, dtype=float).rechunk((2, 2))
    assert meshes_of_blocks(capture([many]).program, 3) == [(2, 4)]


def test_functions_without_inputs_count() -> None:
    x = da.map_blocks(opaque, np.ones((4, 4)), chunks=((4,) * 2, (4,) * 4), dtype=float)
    blocks = [
        [da.from_delayed(dask.delayed(opaque)(1), (4, 4), float) for _ in range(4)] for _ in "ab"
    ]
    for y in (x, da.block(blocks)):
        assert shares(y, 3) == [3, 3, 2]


def test_bundles_have_blocks_of_all_positions_of_a_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan_for_workers(monkeypatch, 5)
    x = da.random.default_rng(0).random((800, 16, 24), chunks=(50, 4, 4))
    y = x.rechunk((800, 4, 4)).map_blocks(opaque, dtype=float)
    with monkeypatch.context() as patch:
        patch.setattr(planner, "on_mesh_of_blocks", lambda unchanged, before: before)
        others = dasktile.explain(y)
    forget()
    explanation = dasktile.explain(y)
    assert explanation.balance_after < others.balance_after
    assert explanation.run_tasks_after <= others.run_tasks_after + 5
    assert explanation.nodes[-1].positions == 24
    assert "and runs several of them as one" in " ".join(str(explanation).split())


@pytest.mark.parametrize(("workers", "blocks"), [(3, (2, 4)), (5, (2, 2)), (5, (3, 3))])
def test_predictions_are_for_workers_and_not_for_positions(
    workers: int, blocks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_for_workers(monkeypatch, workers)
    # however small the arrays are
    monkeypatch.setattr(small_graphs, "MOST_SMALL", 0)
    x = da.random.default_rng(0).random((800, 4 * blocks[0], 4 * blocks[1]), chunks=(50, 4, 4))
    y = x.rechunk((800, 4, 4)).map_blocks(opaque, dtype=float)
    explanation = dasktile.explain(y)
    assert len(explanation.results_by_worker) == workers
    assert explanation.received_after == explanation.bytes_after == 0
    # a block, and those of which the last one is made while the others are there
    block = 2 * 800 * 4 * 4 * 8
    largest = math.ceil(math.prod(blocks) / workers)
    assert max(explanation.results_by_worker) <= largest * block
    tiled = dasktile.optimize(y)
    placement = decode(tiled.name)
    assert placement is not None and placement.workers == workers
    assert placement.positions == math.prod(blocks)
    np.testing.assert_array_equal(tiled.compute(), y.compute())
    # what was planned for as many workers is not planned again
    assert dasktile.optimize(tiled) is tiled or dasktile.optimize(tiled).name == tiled.name


def test_explain_says_what_a_plan_with_the_same_chunks_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan_for_workers(monkeypatch, 5)
    x = da.random.default_rng(0).random((8000, 40, 40), chunks=(1000, 20, 20))
    explanation = dasktile.explain(x.rechunk((8000, 20, 20)).map_blocks(opaque, dtype=float))
    joined = " ".join(str(explanation).split())
    assert (
        "all arrays keep their chunks: the plan decides where tasks run, and runs several of them"
        " as one"
    ) in joined
    assert "the busiest worker does 1.2 times the mean work instead of 1.6" in joined
    uneven = str(replace(explanation, balance_before=1.5, balance_after=1.5))
    expected = "the busiest worker does 1.5 times the mean work, as with the input's chunks"
    assert expected in " ".join(uneven.split())
    assert "busiest" not in str(replace(explanation, balance_before=1.2, balance_after=1.2))
