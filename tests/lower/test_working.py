"""Bytes that tasks hold while they run, compared with what Python allocates."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask._task_spec import DataNode, Task, TaskRef
from dask.blockwise import Blockwise

import dasktile
from dasktile.lower.merged_layers import merged
from dasktile.lower.working import working_bytes
from tests.support import plan_for_workers

zarr = pytest.importorskip("zarr")


def allocated(function: Callable[[], Any]) -> int:
    """Bytes that a function holds at most, its result included."""
    function()  # what it imports and caches
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    function()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak - before


def stored(tmp_path: Path, chunks: int) -> da.Array:
    """Rows of random numbers, in Zarr chunks of 80 kB."""
    numbers = np.random.default_rng(0).random((chunks, 10_000))
    array = zarr.create_array(
        str(tmp_path / "x"), shape=numbers.shape, chunks=(1, 10_000), dtype="f8"
    )
    array[:] = numbers
    return da.from_zarr(str(tmp_path / "x"))


def meet_after_decoding(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """Let chunks wait until ``at_once`` are decoded, as threads may decode them all before
    the first is copied into the result.
    """
    codec = zarr.codecs.ZstdCodec
    decode = codec._decode_single
    decoded = 0

    async def decode_and_meet(self: Any, encoded: Any, chunk: Any) -> Any:
        nonlocal decoded
        values = await decode(self, encoded, chunk)
        decoded += 1
        met = -(-decoded // at_once) * at_once
        while decoded < met:
            await asyncio.sleep(0)
        return values

    monkeypatch.setattr(codec, "_decode_single", decode_and_meet)


@pytest.mark.parametrize("chunks", [1, 5, 40])
def test_zarr_decodes_ten_chunks_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks: int
) -> None:
    x = stored(tmp_path, chunks)
    store = zarr.open_array(str(tmp_path / "x"))
    index = (slice(0, chunks), slice(0, 10_000))
    read = Task("read", da.core.getter, TaskRef("store"), DataNode(None, index))
    held = working_bytes(read, {}, x.nbytes, {"store": store}.get)
    assert held == 2 * 80_000 * min(10, chunks)
    meet_after_decoding(monkeypatch, min(10, chunks))
    assert allocated(lambda: store[index]) == pytest.approx(x.nbytes + held, rel=0.1)


def test_other_arrays_are_read_without_copies() -> None:
    read = Task("read", da.core.getter, TaskRef("store"), DataNode(None, (slice(0, 10),)))
    assert working_bytes(read, {}, 80, {"store": np.ones(100)}.get) == 0


@pytest.mark.parametrize("name", ["sum", "nansum", "mean", "nanmean", "var", "nanvar", "max"])
def test_reductions_hold_copies(name: str) -> None:
    values = np.random.default_rng(0).random((100, 10_000))
    x = da.from_array(values, chunks=-1)
    graph = getattr(da, name)(x, axis=0, keepdims=True).__dask_graph__()
    [step] = [
        task
        for layer, tasks in graph.layers.items()
        if "aggregate" not in layer
        for task in tasks.values()
        if isinstance(task, Task)
    ]
    held = working_bytes(step, dict.fromkeys(step.dependencies, values.nbytes), 80_000, {}.get)
    measured = allocated(lambda: step(dict.fromkeys(step.dependencies, values)))
    assert measured == pytest.approx(held + 160_000, rel=0.1, abs=values.nbytes / 10)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *(("fft", "f8"), ("fft", "c16"), ("ifft", "f8"), ("rfft", "f8"), ("irfft", "c16")),
        *(("fft2", "f8"), ("fft2", "c16"), ("ifftn", "c16"), ("rfftn", "f8"), ("irfft2", "c16")),
    ],
)
def test_transforms_hold_complex_copies(name: str, dtype: str) -> None:
    block = np.random.default_rng(0).random((400, 300)).astype(dtype)
    function = getattr(np.fft, name)
    result = function(block)
    task = Task("transform", function, TaskRef("block"))
    held = working_bytes(task, {"block": block.nbytes}, result.nbytes, {}.get)
    assert allocated(lambda: function(block)) == pytest.approx(result.nbytes + held, rel=0.05)


def test_fused_tasks_hold_what_lies_between_them(tmp_path: Path) -> None:
    total = ((stored(tmp_path, 8) + 1) * 2).sum()
    [layer] = [
        layer
        for layer in merged(total.__dask_graph__(), [total.name]).graph.layers.values()
        if isinstance(layer, Blockwise)
    ]
    store = zarr.open_array(str(tmp_path / "x"))
    for task in layer.values():
        held = working_bytes(task, {}, 8, lambda key: store if "original" in str(key) else None)
        # a chunk while it is decoded
        assert held == pytest.approx(3 * 80_000, abs=8)


def test_the_input_and_its_plan_follow_the_same_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_for_workers(monkeypatch, 1)
    x = stored(tmp_path, 64)
    told = dasktile.explain(da.nanmean(x**2, axis=1).sum())
    tiles = len(told.nodes[0].chunks_after[0])
    # a chunk, and a tile of many, while ten of them are decoded
    for peak, chunks in ((told.peak_before, 1), (told.peak_after, 64 // tiles)):
        assert peak == pytest.approx((chunks + 2 * min(10, chunks)) * 80_000, rel=0.05)
    assert told.results_before is not None and told.results_before < 10_000
