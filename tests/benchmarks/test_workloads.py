"""Predicted bytes moved by the benchmark's expressions, and their values."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest

from benchmarks.workloads import WORKLOADS, generated, persisted
from dasktile.capture.extend import extend
from dasktile.capture.highlevel import capture
from dasktile.ir import Kind
from dasktile.lower.writer import lower
from dasktile.tiling import Settings, tile
from tests.support import accept_all_plans

WORKERS = 4
F8 = 8


def _plan(name, source, **options):
    arrays = WORKLOADS[name](source)
    return tile(capture(list(arrays)).program, workers=WORKERS, **options)


@pytest.mark.filterwarnings("ignore::dask.array.PerformanceWarning")
@pytest.mark.parametrize("source", [generated, persisted])
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_is_near_its_bound_balanced_and_no_worse(name, source):
    plan = _plan(name, source)
    opaque = [
        node.op for node in plan.program.nodes if node.kind is Kind.OPAQUE and not node.resident
    ]
    assert not opaque, f"not recognised: {opaque}"
    assert plan.proven_optimal or plan.after.bytes <= 1.05 * plan.lower_bound
    assert plan.after.bytes <= plan.before.bytes
    assert plan.tiled is None or plan.after.balance <= 1.1


@pytest.mark.filterwarnings("ignore::dask.array.PerformanceWarning")
def test_predicted_bytes():
    moved = {name: _plan(name, generated).after.bytes for name in WORKLOADS}
    partial_grams = 3 * 256 * 256 * F8
    assert moved["gram_rows"] == moved["gram_columns"] == partial_grams
    assert moved["matmul"] == moved["row_product"] == 256_000_000
    assert moved["chain"] == 768_000_000
    assert moved["skewed_chain"] == 89_600_000
    assert moved["transposed_sum"] == 64_000_000
    # five times a gradient is summed and new weights are sent: 64 numbers to 3 workers
    assert moved["logistic_regression"] <= 5 * 2 * 3 * 64 * F8
    assert moved["attention"] == 0
    assert moved["zscores"] == 0
    # three quarters of the array change workers between the two transforms
    assert moved["fft2"] == 4096 * 4096 * 16 * 3 // 4


def _rechunked(chunks):
    """Inputs in memory, re-chunked by hand in the obvious way."""

    def source(name, shape, own):
        array = persisted(name, shape, own)
        return array.rechunk(tuple(min(n, c) for n, c in zip(shape, chunks(shape), strict=False)))

    return source


@pytest.mark.filterwarnings("ignore::dask.array.PerformanceWarning")
@pytest.mark.parametrize(
    ("name", "chunks", "loss"),
    [
        # five steps on a column-chunked X: its rows instead
        ("logistic_regression_columns", lambda shape: (100_000, 128), 3.0),
        # anomalies of a time-chunked field: all of time in one chunk
        ("anomalies", lambda shape: (400, 45, 360), 15.0),
        # the skewed chain: everything in the quarters that suit the products
        ("skewed_chain", lambda shape: tuple(-(-n // 2) for n in shape), 1.3),
        # A + B + (A + B).T on row chunks: quarters
        ("transposed_add", lambda shape: (2000, 2000), 1.6),
    ],
)
def test_data_in_memory_is_not_rechunked_where_that_moves_more(name, chunks, loss):
    by_hand = tile(
        capture(list(WORKLOADS[name](_rechunked(chunks)))).program, workers=WORKERS, method="none"
    )
    plan = _plan(name, persisted)
    assert plan.after.bytes <= plan.before.bytes
    assert plan.after.bytes * loss <= by_hand.before.bytes


def _smaller(size: int) -> int:
    return size if size <= 128 else size // (8 if size < 10_000 else 80)


def _in_memory(name, shape, chunks):
    shape = tuple(map(_smaller, shape))
    chunks = tuple(min(_smaller(chunk), size) for chunk, size in zip(chunks, shape, strict=True))
    data = np.random.default_rng(len(name) + sum(shape)).normal(size=shape)
    return da.from_array(data, chunks=chunks)


@pytest.mark.filterwarnings("ignore::dask.array.PerformanceWarning")
@pytest.mark.parametrize("name", WORKLOADS)
def test_values_are_those_of_the_input(name, monkeypatch):
    accept_all_plans(monkeypatch)
    arrays = list(WORKLOADS[name](_in_memory))
    captured = capture(arrays)
    plan = tile(captured.program, workers=WORKERS, settings=Settings(min_tile=1000))
    assert plan.tiled is not None
    if plan.origin is not None:
        captured = extend(captured, plan.program, plan.origin)
    lowered = lower(captured, plan.tiled)
    tiled = [
        da.Array(lowered.graph, key, chunks, meta=array._meta)
        for key, chunks, array in zip(lowered.names, lowered.chunks, arrays, strict=True)
    ]
    expected = dask.compute(*arrays, scheduler="sync")
    for actual, correct in zip(dask.compute(*tiled, scheduler="sync"), expected, strict=True):
        assert actual.dtype == correct.dtype
        np.testing.assert_allclose(actual, correct, rtol=1e-9, atol=1e-9)
