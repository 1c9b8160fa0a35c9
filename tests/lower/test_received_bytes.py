"""Bytes that workers receive, counted in the graph, are those that the plan predicts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest

import dasktile
from benchmarks.corpus import WORKLOADS
from benchmarks.corpus.inputs import source_of
from dasktile import small_graphs
from tests.support import opaque, plan_for_workers
from tests.traffic import traffic

sliding = da.lib.stride_tricks.sliding_window_view

#: Workloads whose arrays are all of known size, and which are planned fast.
_CORPUS = [
    "coiled.adjacent_groups", "coiled.anom_mean", "coiled.climatic_mean", "coiled.double_diff",
    "coiled.quadratic_mean", "coiled.vorticity", "local_cupy.column_sum", "local_cupy.dot",
    "pangeo.climatological_anomalies", "pangeo.vorticity", "threads.dask_6745",
    "threads.xarray_9550",
]  # fmt: skip


#: Bytes by which a prediction may differ; of steps of unknown size, such as those of `svd`.
_NEAR, _NEAR_UNKNOWN = 2**13, 2**20


def _compare(
    monkeypatch: pytest.MonkeyPatch, name: str, kind: str, workers: int, near: int
) -> None:
    plan_for_workers(monkeypatch, workers)
    workload = WORKLOADS[name]
    with tempfile.TemporaryDirectory() as folder, dask.config.set(scheduler="sync"):
        collections = workload.function(0.25, source_of(kind, Path(folder)))
        options = {"keep_chunks": workload.keep_chunks}
        plan = dasktile.explain(*collections, **options)
        planned = dasktile.optimize(*collections, **options)
        planned = planned if isinstance(planned, tuple) else (planned,)
        moved, _ = traffic(planned, workers)
    if plan.verdict:
        # Dask places the tasks of an unchanged graph when it runs: nothing can be counted before
        pytest.skip("the input itself is the plan")
    assert plan.bytes_after == pytest.approx(sum(moved.values()), rel=0.05, abs=near)
    if plan.received_after is not None:
        assert plan.received_after == pytest.approx(sum(moved.values()), rel=0.05, abs=2**20)


@pytest.mark.parametrize("workers", [4, 6, 8])
@pytest.mark.parametrize("name", _CORPUS)
def test_random_inputs(monkeypatch: pytest.MonkeyPatch, name: str, workers: int) -> None:
    _compare(monkeypatch, name, "random", workers, _NEAR)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "workers"),
    [(name, workers) for name in sorted(WORKLOADS) for workers in (4, 6)],
)
def test_inputs_from_files(monkeypatch: pytest.MonkeyPatch, name: str, workers: int) -> None:
    _compare(monkeypatch, name, "zarr", workers, _NEAR_UNKNOWN)


# without bundles, a block that several workers read equally often is made on the first of them
@pytest.mark.parametrize(("workers", "bundle"), [(3, 32), (4, 0), (4, 32), (6, 32)])
def test_files_are_read_where_most_of_a_block_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: int, bundle: int
) -> None:
    plan_for_workers(monkeypatch, workers)
    read = source_of("zarr", tmp_path)
    files = [read(f"file{number}", (3200, 400), (1000, 40)) for number in range(4)]
    joined = da.concatenate(files).rechunk((1000, 40)) + 1
    with dask.config.set({"dasktile.bundle": bundle}):
        plan, planned = dasktile.explain(joined), dasktile.optimize(joined)
    moved, _ = traffic([planned], workers)
    assert plan.bytes_after == pytest.approx(sum(moved.values()), rel=0.01, abs=64)
    # the short last block of each file, which every mesh cut of the rows crosses
    assert plan.bytes_after < 0.15 * joined.nbytes


@pytest.mark.parametrize("bundle", [0, 32])
@pytest.mark.parametrize("workers", [3, 4, 6])
def test_data_in_memory_is_read_where_most_of_a_block_is_needed(
    monkeypatch: pytest.MonkeyPatch, workers: int, bundle: int
) -> None:
    plan_for_workers(monkeypatch, workers)
    rng = np.random.default_rng(0)
    parts = [rng.random((rows, 60)) for rows in (4500, 6172, 350, 4000, 7500, 1666, 3000)]
    joined = da.concatenate(
        [da.from_array(part, chunks=(500 + 68 * i, 60)) for i, part in enumerate(parts)]
    )
    centred = joined - joined.mean(axis=0)
    with dask.config.set({"dasktile.bundle": bundle}):
        plan, planned = dasktile.explain(centred), dasktile.optimize(centred)
    moved, _ = traffic([planned], workers)
    assert plan.bytes_after == pytest.approx(sum(moved.values()), rel=0.05, abs=2**14)
    # one block at most for each boundary between two workers
    assert plan.bytes_after < workers * max(joined.chunks[0]) * 60 * 8


@pytest.mark.parametrize("workers", [4, 6, 8])
def test_simulated_bytes_of_a_function_that_nobody_registered(
    monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    plan_for_workers(monkeypatch, workers)
    made = da.random.default_rng(0).random((1500, 1500), chunks=(250, 250))
    smooth = da.map_overlap(opaque, made, depth=2, boundary="none")
    plan, planned = dasktile.explain(smooth), dasktile.optimize(smooth)
    moved, _ = traffic([planned], workers)
    # halos, not blocks
    assert 0 < sum(moved.values()) < made.nbytes / 50
    assert plan.received_after == pytest.approx(sum(moved.values()), rel=0.05, abs=_NEAR)


def test_a_slice_is_sent_and_not_the_tile_that_it_is_cut_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan_for_workers(monkeypatch, 4, room=2**30)
    rng = np.random.default_rng(0)
    table = da.from_array(rng.random((12000, 400)), chunks=(500, 100))
    scores = (table - table.mean(axis=0)) / table.std(axis=0)
    part = scores[:3000, :50]
    squares = (part**2).sum(axis=1)
    kernel = da.exp(squares[:, None] + squares[None, :] - 2 * part @ part.T)
    vector = da.ones(3000, chunks=500)
    for _ in range(3):
        vector = (kernel - kernel.mean(axis=0)) @ vector
    plan, planned = dasktile.explain(vector), dasktile.optimize(vector)
    moved, _ = traffic([planned], 4)
    assert plan.bytes_after == pytest.approx(sum(moved.values()), rel=0.05, abs=_NEAR)


def test_each_worker_joins_the_operand_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch, 4)
    rng = np.random.default_rng(0)
    weights = da.from_array(rng.random((512, 1024)), chunks=(128, 1024))
    maps = da.from_array(rng.random((200, 1024)), chunks=(50, 1024))
    scores = da.apply_gufunc(
        lambda field, table: field @ np.swapaxes(table, -1, -2), "(t,i),(o,i)->(t,o)",
        maps.reshape(4, 50, 1024), weights, output_dtypes=float, allow_rechunk=True,
    )  # fmt: skip
    plan, planned = dasktile.explain(scores), dasktile.optimize(scores)
    moved, _ = traffic([planned], 4)
    assert plan.bytes_after == pytest.approx(sum(moved.values()), rel=0.05, abs=_NEAR)
    assert np.allclose(planned.compute(scheduler="sync"), scores.compute(scheduler="sync"))


@pytest.mark.parametrize("step", [2, 3, 10, -3])
def test_slices_with_a_step(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    plan_for_workers(monkeypatch, 4)
    monkeypatch.setattr(small_graphs, "MOST_SMALL", 0)
    values = da.random.default_rng(0).random((96, 96), chunks=(4, 96))
    part = values[::step].T @ values[::step]
    plan, planned = dasktile.explain(part), dasktile.optimize(part)
    moved, _ = traffic([planned], 4)
    assert plan.bytes_after == pytest.approx(sum(moved.values()), rel=0.01, abs=64)


def test_uneven_blocks_of_a_summed_label(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch, 2)
    rng = da.random.default_rng(0)
    cuts = (2000, 2000, 2000, 6000)
    left = rng.random((100, 12000), chunks=((100,), cuts))
    product = left @ rng.random((12000, 100), chunks=(cuts, (100,)))
    plan, planned = dasktile.explain(product), dasktile.optimize(product)
    moved, _ = traffic([planned], 2)
    assert sum(moved.values()) == plan.bytes_after == 100 * 100 * 8


def test_an_element_that_is_taken_several_times_is_sent_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan_for_workers(monkeypatch, 6)
    rng = da.random.default_rng(0)
    days = rng.random((50, 6000), chunks=(1, 6000))
    groups = da.stack([days[0::2].mean(axis=0), days[1::2].mean(axis=0)])
    anomalies = days - groups[np.arange(50) % 2]
    plan, planned = dasktile.explain(anomalies), dasktile.optimize(anomalies)
    moved, _ = traffic([planned], 6)
    assert plan.bytes_after == pytest.approx(sum(moved.values()), rel=0.05, abs=2**14)


@pytest.mark.parametrize("method", ["map-reduce", "cohorts"])
@pytest.mark.parametrize("workers", [4, 6])
@pytest.mark.parametrize("func", ["nanmean", "max", "count"])
@pytest.mark.parametrize("days", [10, 17, 365])
def test_groups(
    monkeypatch: pytest.MonkeyPatch, method: str, workers: int, func: str, days: int
) -> None:
    flox = pytest.importorskip("flox")
    plan_for_workers(monkeypatch, workers)
    maps = da.random.default_rng(0).random((40, 50, 240), chunks=(40, 50, 5))
    labels = np.arange(240) // days
    result, _ = flox.groupby_reduce(maps, labels, func=func, method=method)
    plan, planned = dasktile.explain(result), dasktile.optimize(result)
    moved, lost = traffic([planned], workers)
    assert not lost
    # the dicts of partial results are counted, too, whose sizes differ between versions of Python
    assert plan.bytes_after == pytest.approx(sum(moved.values()), rel=0.08, abs=_NEAR)
    # partial results of a worker are combined on it first
    partial = {"nanmean": 16, "max": 8, "count": 8}[func]
    held = -(-240 // days) if method == "map-reduce" else -(-240 // workers // days) + 1
    assert sum(moved.values()) <= workers * 40 * 50 * held * partial


@pytest.mark.parametrize("workers", [4, 6])
@pytest.mark.parametrize("stretch", [3, 11, 24])
def test_a_take_of_positions_in_order(
    monkeypatch: pytest.MonkeyPatch, workers: int, stretch: int
) -> None:
    plan_for_workers(monkeypatch, workers)
    rng = da.random.default_rng(0)
    hours = rng.random((360, 4000), chunks=(30, 4000))
    days = rng.random((-(-360 // stretch), 4000), chunks=(1, 4000))
    anomalies = hours - days[np.arange(360) // stretch]
    plan, planned = dasktile.explain(anomalies), dasktile.optimize(anomalies)
    moved, _ = traffic([planned], workers)
    # a day at a boundary is needed by the workers on both sides
    assert sum(moved.values()) <= (workers + len(days.chunks[0]) // 2) * 4000 * 8
    assert plan.bytes_after == pytest.approx(sum(moved.values()), rel=0.05, abs=_NEAR)


def _noise(shape: tuple[int, ...], chunks: tuple[int, ...]) -> da.Array:
    """Blocks that cannot be cut otherwise."""
    return da.random.default_rng(0).random(shape, chunks=chunks)


def _windows_by_blocks_of_columns() -> da.Array:
    windows = sliding(_noise((2000, 240), (100, 240)), 20, axis=0).rechunk((1981, 30, 20))
    return windows.map_blocks(lambda block: block.mean(-1), drop_axis=2, dtype="f8")


def _windows_by_blocks_of_rows() -> da.Array:
    windows = sliding(_noise((2000, 240), (2000, 30)), 20, axis=0).rechunk((100, 240, 20))
    return windows.map_blocks(lambda block: block.mean(-1), drop_axis=2, dtype="f8")


def _windows_along_two_axes() -> da.Array:
    windows = sliding(_noise((2000, 240), (2000, 30)), (20, 5), axis=(0, 1))
    windows = windows.rechunk((100, 236, 20, 5))
    return windows.map_blocks(lambda block: block.mean((-1, -2)), drop_axis=(2, 3), dtype="f8")


def _windows_with_windows() -> da.Array:
    windows = sliding(_noise((2000, 240), (2000, 30)), 20, axis=0)[:, :40]
    return da.tensordot(windows, windows, axes=((0, 1), (0, 1)))


def _windows_and_others() -> da.Array:
    windows = sliding(_noise((2000, 240), (100, 240)), 20, axis=0)
    return (windows * _noise((1981, 240), (1981, 30))[..., None]).sum(-1)


@pytest.mark.parametrize("workers", [4, 6])
@pytest.mark.parametrize(
    "build",
    [
        _windows_by_blocks_of_columns,
        _windows_by_blocks_of_rows,
        _windows_along_two_axes,
        _windows_with_windows,
        _windows_and_others,
    ],
)
def test_windows_are_sent_as_the_tiles_that_they_are_views_of(
    monkeypatch: pytest.MonkeyPatch, build: Callable[[], da.Array], workers: int
) -> None:
    plan_for_workers(monkeypatch, workers)
    array = build()
    plan, planned = dasktile.explain(array), dasktile.optimize(array)
    moved, _ = traffic([planned], workers)
    # halos are roughly known; the windows have 20 times the bytes
    assert plan.bytes_after == pytest.approx(sum(moved.values()), rel=0.05, abs=2**19)
    assert sum(moved.values()) < 2 * 2000 * 240 * 8
    np.testing.assert_allclose(*dask.compute(array, planned, scheduler="sync"))


@pytest.mark.parametrize("axis", [0, 1])
def test_running_sums_receive_an_element_of_each_row(
    monkeypatch: pytest.MonkeyPatch, axis: int
) -> None:
    plan_for_workers(monkeypatch, 4)
    array = _noise((4000, 240), (100, 240) if axis == 0 else (4000, 10)).cumsum(axis)
    plan, planned = dasktile.explain(array), dasktile.optimize(array)
    moved, _ = traffic([planned], 4)
    assert plan.bytes_after == plan.received_after == sum(moved.values())
    assert plan.bytes_after == 3 * 8 * (240 if axis == 0 else 4000)


def test_largest_positions_are_found_where_the_columns_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only positions move; the elements are made on the worker of their columns."""
    plan_for_workers(monkeypatch)
    x = da.random.default_rng(0).random((1600, 800), chunks=(200, 200))
    lazy = da.argtopk(x, 3, axis=0)
    planned, explained = dasktile.optimize(lazy), dasktile.explain(lazy)
    received, lost = traffic([planned], 4)
    assert lost == []
    assert sum(received.values()) <= 50_000
    assert explained.bytes_predicted == pytest.approx(sum(received.values()), abs=_NEAR)
    assert explained.received_after == pytest.approx(sum(received.values()), abs=_NEAR)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: da.pad(x, ((1, 1), (0, 0)), mode="edge"),
        lambda x: da.pad(x, 3, mode="wrap"),
        lambda x: da.diff(x, axis=0).sum(axis=1),
        lambda x: da.roll(x, 5, axis=0).sum(axis=1),
        lambda x: x[1:] + x[:-1],
    ],
)
@pytest.mark.parametrize("bundle", [0, 32])
def test_simulated_roots_are_where_their_readers_and_slices_are(
    monkeypatch: pytest.MonkeyPatch, bundle: int, make: Callable[[da.Array], da.Array]
) -> None:
    """Random blocks that are read whole and in parts have no place in the plan."""
    plan_for_workers(monkeypatch)
    lazy = make(da.random.default_rng(0).random((1600, 800), chunks=(200, 200)))
    with dask.config.set({"dasktile.bundle": bundle}):
        planned, explained = dasktile.optimize(lazy), dasktile.explain(lazy)
    if explained.verdict:
        # Dask places the tasks of an unchanged graph when it runs: nothing can be counted before
        pytest.skip("the input itself is the plan")
    received, _ = traffic([planned], 4)
    assert explained.received_after == pytest.approx(sum(received.values()), rel=0.05, abs=_NEAR)
