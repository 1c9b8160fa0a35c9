"""Arrays for tests, and checks that expressions of them have the right values in other tiles."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import dask
import dask.array as da
import numpy as np

import dasktile
from dasktile.capture.base import Captured
from dasktile.capture.highlevel import capture, describable
from dasktile.lower.writer import lower
from tests.support import check_graph, output_graphs, random_tiling

#: Settings with which a rewrite is cheaper even for the smallest arrays.
EAGER = {
    "dasktile.cost.task-bytes": 1,
    "dasktile.tiling.min-tile": 1,
    "dasktile.workers": 4,
    "dasktile.raise-errors": True,
}

X = np.random.default_rng(1).integers(-9, 9, (12, 10)).astype("f8")
Y = np.random.default_rng(2).integers(-9, 9, (10, 7)).astype("f8")
V = np.random.default_rng(3).integers(0, 9, 23)


def x() -> da.Array:
    return da.from_array(X, chunks=((5, 4, 3), (2, 6, 2)))


def y() -> da.Array:
    return da.from_array(Y, chunks=((6, 4), (3, 4)))


def v() -> da.Array:
    return da.from_array(V, chunks=((5, 9, 2, 7),))


def equal(actual: Any, expected: Any) -> None:
    assert type(actual) is type(expected) or np.ndim(expected) == 0, (type(actual), type(expected))
    actual, expected = np.asanyarray(actual), np.asanyarray(expected)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if isinstance(expected, np.ma.MaskedArray):
        np.testing.assert_array_equal(np.ma.getmaskarray(actual), np.ma.getmaskarray(expected))
        actual, expected = actual.filled(0), expected.filled(0)
    if expected.dtype.kind in "fc":
        tolerance = 1e-4 if expected.dtype.itemsize < 8 else 1e-9
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(actual, expected)


def same(lazy: da.Array | Sequence[da.Array], expected: Any) -> None:
    """Compute arrays in random tiles, in chosen ones, and with the hook."""
    arrays = [lazy] if isinstance(lazy, da.Array) else list(lazy)
    values = [expected] if isinstance(lazy, da.Array) else list(expected)
    variants: list[tuple[str, Callable[[], Any]]] = []
    if all(map(describable, arrays)):
        captured = capture(arrays)
        variants += [
            (f"random {seed}", lambda seed=seed: in_random_tiles(arrays, seed, captured))
            for seed in range(4)
        ]
    chosen = cache(partial(_chosen, arrays, False))
    variants += [
        ("chosen", lambda: dask.compute(*chosen(), scheduler="sync")),
        ("chunks kept", lambda: dask.compute(*_chosen(arrays, True), scheduler="sync")),
        ("threads", lambda: dask.compute(*chosen(), scheduler="threads")),
        ("hook", lambda: _hooked(arrays)),
    ]
    for variant, compute in variants:
        for result, value in zip(compute(), values, strict=True):
            try:
                equal(result, value)
            except AssertionError as error:
                raise AssertionError(f"{variant}: {error}") from error


def in_random_tiles(
    arrays: Sequence[da.Array], seed: int, captured: Captured | None = None
) -> Sequence[Any]:
    """Compute arrays in tiles that a seed chooses; `captured` is what `capture` reads of them."""
    captured = captured or capture(arrays)
    lowered = lower(captured, random_tiling(captured.program, random.Random(seed)))
    check_graph(lowered.graph)
    new = [
        da.Array(graph, name, chunks, meta=array._meta)
        for graph, name, chunks, array in zip(
            output_graphs(lowered), lowered.names, lowered.chunks, arrays, strict=True
        )
    ]
    return dask.compute(*new, scheduler="sync")


def _chosen(arrays: Sequence[da.Array], keep_chunks: bool) -> Sequence[da.Array]:
    with dask.config.set(EAGER):
        optimized = dasktile.optimize(list(arrays), keep_chunks=keep_chunks)
    for old, new in zip(arrays, optimized, strict=True):
        assert new.dtype == old.dtype
        assert new.ndim == old.ndim
        assert type(new._meta) is type(old._meta)
    return optimized


def _hooked(arrays: Sequence[da.Array]) -> Sequence[Any]:
    with dask.config.set({**EAGER, "array_optimize": dasktile.array_optimize}):
        return dask.compute(*arrays, scheduler="sync")
