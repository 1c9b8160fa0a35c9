"""Chunks that results keep are made on decided workers, and the plan counts what is sent for it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile.ir import Program, Sharding, Share, TiledProgram, Tiling, hand_over, hand_over_evenly
from dasktile.schedule.placement import Placement
from tests.support import plan_for_workers
from tests.traffic import traffic

#: Bytes of the Python objects in which partial means are sent.
DICTS = 2000


def centred_product(rng: np.random.Generator) -> da.Array:
    a = da.from_array(rng.random((480, 720)), chunks=(24, 720))
    b = da.from_array(rng.random((720, 480)), chunks=(24, 480))
    return (a - a.mean(axis=0)) @ b


def centred(rng: np.random.Generator) -> da.Array:
    x = da.from_array(rng.random((480, 480)), chunks=(24, 24))
    return x - x.mean(axis=0)


def gram(rng: np.random.Generator) -> da.Array:
    x = da.from_array(rng.random((480, 480)), chunks=(24, 480))
    return x.T @ x


def cumulated(rng: np.random.Generator) -> da.Array:
    return da.from_array(rng.random((480, 480)), chunks=(24, 480)).cumsum(axis=0) + 1


@pytest.mark.parametrize("workers", [3, 4, 6, 8])
@pytest.mark.parametrize("build", [centred_product, centred, gram, cumulated])
def test_explain_counts_the_bytes_for_kept_chunks(
    monkeypatch: pytest.MonkeyPatch, build: Callable[[np.random.Generator], da.Array], workers: int
) -> None:
    plan_for_workers(monkeypatch, workers)
    array = build(np.random.default_rng(0))
    plan = dasktile.explain(array, keep_chunks=True)
    kept = dasktile.optimize(array, keep_chunks=True)
    moved, homeless = traffic([kept], workers)
    assert kept.chunks == array.chunks
    np.testing.assert_allclose(kept.compute(scheduler="sync"), array.compute(scheduler="sync"))
    assert not homeless or not plan.changed
    assert plan.bytes_after <= plan.bytes_before
    if any(node.chunks_after != node.chunks_before for node in plan.nodes):
        assert sum(moved.values()) == pytest.approx(plan.bytes_after, rel=1e-3, abs=DICTS)
    assert dasktile.explain(array).bytes_after <= plan.bytes_after


@pytest.mark.parametrize(
    "chunks", [100, (120, -1), {0: 480}, (-1, 120), "200 kB", ((100, 380), (480,))]
)
@pytest.mark.parametrize("build", [centred_product, centred, gram])
def test_explain_counts_the_bytes_for_wanted_chunks(
    monkeypatch: pytest.MonkeyPatch,
    build: Callable[[np.random.Generator], da.Array],
    chunks: Any,
) -> None:
    plan_for_workers(monkeypatch, 4)
    array = build(np.random.default_rng(0))
    plan = dasktile.explain(array, chunks=chunks)
    result = dasktile.optimize(array, chunks=chunks)
    assert result.chunks == array.rechunk(chunks).chunks == plan.nodes[-1].chunks_after
    np.testing.assert_allclose(result.compute(scheduler="sync"), array.compute(scheduler="sync"))
    assert plan.bytes_after <= plan.bytes_before
    if not plan.changed:
        return
    moved, homeless = traffic([result], 4)
    assert not homeless
    assert sum(moved.values()) == pytest.approx(plan.bytes_after, rel=1e-3, abs=DICTS)


def chunks_of(rng: np.random.Generator, size: int) -> tuple[int, ...]:
    cuts = sorted({0, size, *rng.integers(1, size, rng.integers(0, 6)).tolist()})
    return tuple(stop - start for start, stop in zip(cuts, cuts[1:], strict=False))


def runs_of(rng: np.random.Generator, parts: int, count: int) -> tuple[int, ...]:
    ends = sorted([0, count, *rng.integers(0, count + 1, parts - 1).tolist()])
    return tuple(stop - start for start, stop in zip(ends, ends[1:], strict=False))


def owners(
    mesh: tuple[int, ...], where: Sharding, chunks: tuple[tuple[int, ...], ...]
) -> np.ndarray:
    """For every element, the worker that has it."""
    place = Placement(mesh, where)
    numbers = np.array(
        [place.position(block) for block in product(*(range(len(sizes)) for sizes in chunks))]
    ).reshape(tuple(map(len, chunks)))
    for axis, sizes in enumerate(chunks):
        numbers = np.repeat(numbers, sizes, axis=axis)
    return numbers


@pytest.mark.parametrize("seed", range(60))
def test_elements_received_are_those_with_another_owner(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mesh = tuple(rng.integers(2, 4, rng.integers(1, 4)).tolist())
    shape = tuple(rng.integers(2, 12, 2).tolist())
    tiles, chunks = (tuple(chunks_of(rng, size) for size in shape) for _ in range(2))
    axes: list[list[int]] = [[], []]
    for axis in rng.permutation(len(mesh)).tolist():
        axes[rng.integers(2)].append(axis)
    held = Sharding(
        tuple(
            Share(tuple(by), runs_of(rng, int(np.prod([mesh[axis] for axis in by])), len(sizes)))
            if by
            else Share()
            for by, sizes in zip(axes, tiles, strict=True)
        )
    )
    tiling = Tiling((), tiles, held_at=held)
    moved = hand_over(TiledProgram(Program((), ()), mesh, (tiling,)), 0, chunks)
    assert moved is not None
    before, after = owners(mesh, held, tiles), owners(mesh, moved.where, chunks)
    cut_only = all(
        set(np.cumsum(old)) <= set(np.cumsum(new)) for old, new in zip(tiles, chunks, strict=True)
    )
    assert moved.elements == (0 if cut_only else (before != after).sum())


def test_an_axis_with_too_few_chunks_is_not_made_on_one_worker() -> None:
    held = Sharding((Share(), Share((0,), (1, 1, 1, 1))))
    tiling = Tiling((), ((8,), (2, 2, 2, 2)), held_at=held)
    moved = hand_over(TiledProgram(Program((), ()), (4,), (tiling,)), 0, ((1,) * 8, (8,)))
    assert moved is not None
    assert moved.where == Sharding((Share((0,), (2, 2, 2, 2)), Share()))
    assert moved.elements == 48


def test_a_rechunk_of_the_input_moves_bytes_too() -> None:
    assert hand_over_evenly(4, ((2,) * 4, (8,)), ((8,), (2,) * 4)).elements == 48
    assert hand_over_evenly(4, ((2,) * 4, (8,)), ((4, 4), (8,))).elements == 32
    assert hand_over_evenly(4, (), ()).elements == 0


@pytest.mark.parametrize("chunks", [-1, (32, 64, 64), None])
def test_large_chunks_of_the_result_are_no_reason_for_large_tiles(chunks: Any) -> None:
    x = da.from_array(np.ones((64, 64, 64)), chunks=(16, 64, 64)) + 1
    options = {"keep_chunks": True} if chunks is None else {"chunks": chunks}
    result = dasktile.optimize(x, workers=1, memory_limit="1 MiB", **options)
    assert (result.compute(scheduler="sync") == 2).all()


def test_no_bound_is_above_an_input_that_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch, 4)
    a, b = (da.from_array(np.ones(shape), chunks=-1) for shape in ((2400, 3000), (3000, 200)))
    for options in ({}, {"keep_chunks": True}):
        plan = dasktile.explain(a @ b, **options)
        assert plan.lower_bound <= plan.bytes_after
