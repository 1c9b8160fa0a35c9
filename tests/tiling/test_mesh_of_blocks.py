"""Few blocks that keep their chunks are divided as evenly as single blocks can be."""

from __future__ import annotations

import math
import random
from collections import Counter

import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile import choice
from dasktile.capture.highlevel import capture
from dasktile.ir import Sharding, workers_of_positions
from dasktile.schedule.placement import Placement, decode
from dasktile.tiling import tile
from dasktile.tiling.mesh_of_blocks import MOST_POSITIONS, meshes_of_blocks
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


@pytest.mark.parametrize("seed", range(30))
def test_no_worker_has_far_more_blocks_than_another_and_none_moves(seed: int) -> None:
    rng = random.Random(seed)
    counts = [rng.randint(1, 6) for _ in range(rng.choice([2, 2, 3]))]
    workers = rng.randint(2, 9)
    y = of_blocks(*counts)
    plan = tile(capture([y]).program, workers=workers, placed=True, bundled=True)
    assert plan.before.bytes == plan.after.bytes == 0
    assert len(plan.after.loads) == workers
    if plan.tiled is not None:
        # neighbouring blocks may have one position
        least = math.ceil(math.prod(counts) / workers)
        assert max(shares(y, workers)) <= max(least + 1, math.ceil(1.5 * least))


def test_meshes_have_a_position_for_each_block_or_for_some_neighbours() -> None:
    program = capture([of_blocks(8, 8)]).program
    assert meshes_of_blocks(program, 9) == [(8, 8)]
    assert MOST_POSITIONS == 8 and meshes_of_blocks(program, 5) == [(4, 8)]
    # half of the workers would be idle, or all have one block
    assert meshes_of_blocks(capture([of_blocks(2, 2)]).program, 8) == []
    assert meshes_of_blocks(capture([of_blocks(2, 2)]).program, 4) == []
    assert meshes_of_blocks(capture([of_blocks(8)]).program, 3) == []


@pytest.mark.parametrize(("workers", "blocks"), [(3, (2, 4)), (5, (2, 2)), (5, (3, 3))])
def test_predictions_are_for_workers_and_not_for_positions(
    workers: int, blocks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_for_workers(monkeypatch, workers)
    # however small the arrays are
    monkeypatch.setattr(choice, "MOST_SMALL", 0)
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
    text = str(dasktile.explain(x.rechunk((8000, 20, 20)).map_blocks(opaque, dtype=float)))
    joined = " ".join(text.split())
    assert (
        "all arrays keep their chunks; what the plan changes: tasks run where most of what they"
        " read is, and one task runs several blocks"
    ) in joined
    assert "the busiest worker does 1.2 times the mean work" not in joined
    plan_for_workers(monkeypatch, 7)
    text = str(dasktile.explain(x.rechunk((8000, 20, 20)).map_blocks(opaque, dtype=float)))
    assert "the busiest worker does 1.8 times the mean work" in " ".join(text.split())
