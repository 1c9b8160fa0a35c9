"""Blocks that are made where they are read, counted element by element."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest

from dasktile.capture.highlevel import capture
from dasktile.tiling import received
from dasktile.tiling.boxes import Boxes
from dasktile.tiling.received import made_where_read
from dasktile.tiling.settings import CostModel
from dasktile.tiling.strided import Strided


def _received(chunks: tuple[tuple[int, ...], ...], reads: list[list[set[tuple[int, int]]]]) -> int:
    """Elements received: `reads` are the elements that each worker reads, for several reads."""
    workers = [set().union(*per_read) for per_read in zip(*reads, strict=True)]
    edges = [np.cumsum((0, *sizes)) for sizes in chunks]
    total = 0
    for row in range(len(chunks[0])):
        for column in range(len(chunks[1])):
            block = {
                (i, j)
                for i in range(edges[0][row], edges[0][row + 1])
                for j in range(edges[1][column], edges[1][column + 1])
            }
            counts = [len(block & worker) for worker in workers]
            total += sum(counts) - max(counts)
    return total


@pytest.mark.parametrize("seed", range(60))
def test_received_elements(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    chunks = tuple(tuple(map(int, rng.integers(1, 5, rng.integers(1, 5)))) for _ in range(2))
    workers, needs, reads = 4, [], []
    for _ in range(rng.integers(1, 3)):
        steps = tuple(Strided(int(rng.integers(0, 2)), int(rng.integers(1, 3))) for _ in range(2))
        ends = [
            list(range(step.first, sum(sizes), step.step))
            for step, sizes in zip(steps, chunks, strict=True)
        ]
        bounds = [np.sort(rng.integers(0, len(end) + 1, (1, workers, 2)), axis=2) for end in ends]
        active = rng.random((1, workers)) < 0.8
        lo, hi = (np.stack([bound[..., side] for bound in bounds], axis=-1) for side in (0, 1))
        needs.append(Boxes.of_bounds(lo, hi, active, steps))
        reads.append(
            [
                {
                    (i, j)
                    for i in ends[0][lo[0, worker, 0] : hi[0, worker, 0]]
                    for j in ends[1][lo[0, worker, 1] : hi[0, worker, 1]]
                }
                if active[0, worker]
                else set()
                for worker in range(workers)
            ]
        )
    expected = _received(chunks, reads)
    assert made_where_read(chunks, needs, [], CostModel()) == [expected]
    # pairs of workers and blocks that share elements only, as for many workers
    monkeypatch.setattr(received, "BLOCK", 1)
    monkeypatch.setattr(received, "FEW", 10.0)
    assert made_where_read(chunks, needs, [], CostModel()) == [expected]


def test_random_arrays_and_data_are_roots() -> None:
    made = da.random.default_rng(0).random((8, 8), chunks=4)
    data = da.from_array(np.ones((8, 8)), chunks=4)
    nodes = capture([made + data, made.map_blocks(np.sin)]).program.nodes
    assert {node.op for node in nodes if node.root} == {"random", "array"}
    assert sum(node.root for node in nodes) == 2
