"""Tiles of the needed part of a program are those of a program that has only this part."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile import tiling
from dasktile.capture.highlevel import capture
from dasktile.ir import AxisMap, Edge, Kind, Label, Node, Program, Role
from dasktile.ir.verify import verify_program, verify_tiled
from dasktile.schedule.placement import decode
from tests.support import plan_for_workers
from tests.traffic import traffic

ROWS, INNER = 8000, 500


def drawn(shape: tuple[int, ...], chunks: tuple[int, ...], seed: int = 0) -> da.Array:
    """An array whose blocks may not be cut otherwise."""
    return da.random.default_rng(seed).random(shape, chunks=chunks)


def matrix() -> da.Array:
    return drawn((ROWS, INNER), (100, INNER))


def series() -> da.Array:
    return drawn((3650, 40, 60), (365, 20, 60))


#: By a name, an expression that is sliced late, and the same one that is sliced early.
PAIRS: dict[str, tuple[Callable[[], da.Array], Callable[[], da.Array]]] = {
    "rows of a product": (
        lambda: (matrix() @ matrix().T)[:800],
        lambda: matrix()[:800] @ matrix().T,
    ),
    "a block of a product": (
        lambda: (matrix() @ matrix().T)[1600:2400, 4000:],
        lambda: matrix()[1600:2400] @ matrix()[4000:].T,
    ),
    "rows of a map": (
        lambda: np.sqrt(matrix() + 1)[2000:6000].sum(axis=1),
        lambda: np.sqrt(matrix()[2000:6000] + 1).sum(axis=1),
    ),
    "years of anomalies": (
        lambda: (series() - series().mean(axis=0))[730:1460],
        lambda: series()[730:1460] - series().mean(axis=0),
    ),
    "an array of several": (
        lambda: da.concatenate([matrix(), matrix() @ drawn((500, 500), (500, 500))])[:4000] + 1,
        lambda: matrix()[:4000] + 1,
    ),
    "columns of a transform": (
        lambda: abs(da.fft.fft(series().rechunk((3650, 20, 10)), axis=0))[:, 20:].max(axis=0),
        lambda: abs(da.fft.fft(series().rechunk((3650, 20, 10))[:, 20:], axis=0)).max(axis=0),
    ),
    "the start of a running sum": (
        lambda: series().cumsum(axis=0)[:1095].max(axis=(1, 2)),
        lambda: series()[:1095].cumsum(axis=0).max(axis=(1, 2)),
    ),
    "the middle of a stencil": (
        lambda: matrix().map_overlap(np.sort, depth={0: 2, 1: 0}, boundary="none")[4000:4800],
        lambda: matrix()[3900:4900].map_overlap(np.sort, depth={0: 2, 1: 0}, boundary="none")[
            100:900
        ],
    ),
}


@pytest.mark.parametrize("workers", [2, 4, 6])
@pytest.mark.parametrize("name", PAIRS)
def test_late_slices_cost_no_more_than_early_slices(
    name: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_for_workers(monkeypatch, workers)
    late, early = (dasktile.explain(build()) for build in PAIRS[name])
    assert late.bytes_after <= early.bytes_after
    assert late.lower_bound <= late.bytes_after
    assert not late.counts_unneeded


@pytest.mark.parametrize("name", PAIRS)
def test_late_slices_receive_no_more_than_predicted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_for_workers(monkeypatch, 4)
    array = PAIRS[name][0]()
    explanation, planned = dasktile.explain(array), dasktile.optimize(array)
    if not explanation.changed:
        # names of its layers predict nothing, and give no homes
        pytest.skip("Dask's own graph is taken")
    np.testing.assert_allclose(*dask.compute(array, planned, scheduler="sync"), atol=1e-9)
    received, without_home = traffic([planned], 4)
    assert not without_home
    assert received.total() <= 1.05 * explanation.bytes_predicted + 10_000


def ranges_of(array: da.Array, index: Any) -> tuple[Program, tuple[Any, ...] | None]:
    """The program of a part of an array, and the needed ranges by what the program reads."""
    program = capture([array[index]]).program
    nothing = {
        node.name: np.zeros(tuple(map(len, node.chunks)), bool)
        for number, node in enumerate(program.nodes)
        if number not in program.outputs
    }
    return program, tiling.needed_ranges(program, nothing)


def test_ranges_are_whole_blocks() -> None:
    x = da.ones((100, 60), chunks=(10, 60)) + 1
    program, ranges = ranges_of(x, slice(25, 42))
    assert ranges is not None
    add = next(index for index, node in enumerate(program.nodes) if node.op == "add")
    assert ranges[add] == ((20, 50), (0, 60))
    part = tiling.crop(program, ranges)
    verify_program(part)
    assert part.nodes[add].shape == (30, 60)
    assert part.nodes[add].chunks == ((10, 10, 10), (60,))


def test_everything_is_needed() -> None:
    x = da.ones((100, 60), chunks=(10, 60)) + 1
    assert ranges_of(x, slice(None))[1] is None
    assert ranges_of(x.sum(axis=0), slice(None))[1] is None


def test_a_running_sum_needs_all_before_it() -> None:
    program, ranges = ranges_of(da.ones(100, chunks=10).cumsum(axis=0) + 1, slice(40, 60))
    assert ranges is not None
    by_op = dict(zip((node.op for node in program.nodes), ranges, strict=True))
    assert by_op["add"] == ((40, 60),)
    assert by_op["cumsum"] == by_op["ones_like"] == ((0, 60),)


def test_arrays_that_are_not_read_cost_nothing() -> None:
    program, ranges = ranges_of(
        da.concatenate(
            [da.ones((100, 50), chunks=(10, 50)), da.ones((500, 50), chunks=25) @ np.eye(50)]
        ),
        slice(20, 40),
    )
    assert ranges is not None
    part = tiling.crop(program, ranges)
    verify_program(part)
    plan = tiling.tile(part, workers=4, placed=True)
    whole = tiling.uncropped(plan, program, ranges)
    assert whole is not None
    product = next(
        index
        for index, node in enumerate(program.nodes)
        if "product" in node.op or node.kind.value == "contract"
    )
    assert whole.after.tasks[product] == whole.before.tasks[product] == 0
    assert whole.after.bytes == 0


@pytest.mark.parametrize("seed", range(30))
def test_blocks_around_the_ranges_are_put_back(seed: int) -> None:
    rng = random.Random(seed)
    x = drawn((240, 120), (rng.choice([20, 40]), rng.choice([30, 60, 120])))
    y = da.from_array(np.ones((240, 120)), chunks=(24, 60))
    array = ((x + y) @ y.T)[:, : rng.randrange(1, 240)]
    array = array - x.mean() if rng.random() < 0.5 else array.T + 1
    start = rng.randrange(array.shape[0])
    part = array[start : start + rng.randrange(1, 100)]
    program, ranges = ranges_of(part, slice(None))
    if ranges is None:
        return
    cropped = tiling.crop(program, ranges)
    verify_program(cropped)
    plan = tiling.tile(
        cropped, workers=rng.choice([2, 3, 4, 6]), placed=True, force=True, method="auto"
    )
    whole = tiling.uncropped(plan, program, ranges)
    assert whole is not None and whole.tiled is not None and plan.tiled is not None
    assert whole.program.nodes[-1].name == program.nodes[-1].name
    verify_tiled(whole.tiled)
    for outer, inner in zip(whole.tiled.tilings, plan.tiled.tilings, strict=True):
        for sizes, own in zip(outer.cuts, inner.cuts, strict=True):
            joined = [sizes[at : at + len(own)] for at in range(len(sizes) - len(own) + 1)]
            assert own in joined


def test_few_needed_blocks_are_made_on_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles for the whole product would put the rows on one worker."""
    plan_for_workers(monkeypatch, 4)
    x = drawn((4000, 4000), (500, 500))
    array = (x @ x)[1500:2000].sum(axis=0)
    planned = dasktile.optimize(array)
    placements = [decode(name) for name in planned.dask.layers]
    homes = {
        placement.position_of(key[1:])
        for (name, layer), placement in zip(planned.dask.layers.items(), placements, strict=True)
        for key in layer
        if placement is not None and key[0] == name
    }
    assert homes == set(range(4))


def test_compare_counts_what_explain_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch, 4)
    array = (matrix() @ matrix().T)[:800]
    comparison, explanation = dasktile.compare(array), dasktile.explain(array)
    assert comparison["none"].bytes == explanation.bytes_before
    assert comparison.lower_bound == explanation.lower_bound
    [product] = [node for node in explanation.nodes if node.op == "matmul"]
    assert product.needed == ((0, 800), (0, ROWS))
    assert "only parts are needed:\n  2 matmul: [0:800, :]" in str(explanation)


def test_a_limit_is_refused_by_what_is_needed() -> None:
    x = da.from_array(np.ones((4000, 4000)), chunks=500)
    product = x @ x
    limit = {"memory_limit": "300 kB", "workers": 4}
    with pytest.raises(tiling.TooManyTasksError):
        dasktile.optimize(product, **limit)
    part = dasktile.optimize(product[:500, :500], **limit)
    np.testing.assert_array_equal(part[0, :10].compute(scheduler="sync"), np.full(10, 4000.0))


@pytest.mark.parametrize("bundle", [0, 32])
def test_slices_of_one_expression_are_merged(bundle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They need other tasks of layers that would have the same names."""
    plan_for_workers(monkeypatch, 4)
    values = np.random.default_rng(0).random((4000, 60))
    x = da.from_array(values, chunks=(1000, 60))
    product = (x * 2) @ x.T
    parts = [slice(0, 100), slice(500, 600), slice(50, 2500)]
    with dask.config.set({"dasktile.bundle": bundle, "dasktile.cost.task-bytes": 1}):
        planned = [dasktile.optimize(product[part]) for part in parts]
    for part, found in zip(parts, dask.compute(*planned, scheduler="sync"), strict=True):
        np.testing.assert_allclose(found, 2 * values[part] @ values.T)


def test_nothing_is_counted_of_arrays_that_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch, 4)
    joined = da.concatenate([matrix() + 1, matrix() @ drawn((INNER, INNER), (INNER, INNER))])
    explanation = dasktile.explain((joined[:4000] @ drawn((INNER, 64), (INNER, 64))).T)
    assert explanation.bytes_after and not explanation.counts_unneeded
    [left_out] = [node for node in explanation.nodes if node.shape == (ROWS, INNER)][-1:]
    assert left_out.needed == ((0, 0), (0, 0)) and not left_out.tasks_after
    assert ": nothing" in str(explanation)


def test_one_of_two_reads_of_an_array_is_left_out() -> None:
    x = matrix() + 1
    program, ranges = ranges_of(da.concatenate([x, x])[ROWS:] + 1, slice(None))
    assert ranges is not None
    part = tiling.crop(program, ranges)
    verify_program(part)
    join = [node.op for node in program.nodes].index("concatenate")
    assert len(program.nodes[join].edges) == 2 and len(part.nodes[join].edges) == 1
    plan = tiling.tile(part, workers=4, placed=True, force=True)
    whole = tiling.uncropped(plan, program, ranges)
    assert whole is not None and whole.tiled is not None
    assert [edge.producer for edge in whole.program.nodes[join].edges] == [join - 1, join - 1]
    verify_tiled(whole.tiled)


def test_homes_of_empty_blocks_stay() -> None:
    labels = (Label(40, Role.PINNED, (10, 10, 10, 10)), Label(8, Role.PINNED, (8, 0)))
    maps = (AxisMap(0), AxisMap(1))
    homes = tuple((number % 3,) for number in range(8))
    chunks = ((10,) * 4, (8, 0))
    array = Node("x", "x", Kind.SOURCE, labels, maps, (40, 8), "f8", 8, chunks, homes=homes)
    free = tuple(Label(label.size, Role.FREE, label.cuts) for label in labels)
    add = Node("y", "y", Kind.MAP, free, maps, (40, 8), "f8", 8, chunks, (Edge(0, maps),))
    view = (Label(10, Role.FREE, (10,)), free[1])
    read = (AxisMap(0, 20), AxisMap(1))
    out = ((10,), (8, 0))
    part = Node("z", "z", Kind.VIEW, view, maps, (10, 8), "f8", 8, out, (Edge(1, read),))
    program = Program((array, add, part), (2,))
    nothing = {name: np.zeros((4, 2), bool) for name in "xy"}
    ranges = tiling.needed_ranges(program, nothing)
    assert ranges is not None
    cropped = tiling.crop(program, ranges)
    verify_program(cropped)
    assert cropped.nodes[0].homes == homes[4:6]
    assert cropped.nodes[0].chunks == ((10,), (8, 0))


def test_blocks_with_halos_run_where_their_input_is(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch)
    x = da.fromfunction(np.add, shape=(2000, 1000), chunks=(250, 250), dtype=float)
    halos = x.map_overlap(np.sort, depth={0: 4}, boundary="reflect")
    # of ten blocks of the input along the first axis, four and their halos are needed
    told = dasktile.explain(halos[5:1000], by_hook=True)
    assert told.changed
    assert told.bytes_predicted <= x.nbytes / 20
