"""Computations that need more memory than a worker has, as plain Dask users write them.

Chunks have 1 to 2 MB at scale 1.  Inputs are random numbers of fixed seeds: Dask does not fuse
their tasks into every reader, so that they are computed once and kept in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import dask.array as da
import numpy as np

#: Whether inputs are persisted before the computation, or computed within its graph.
MODES = ("persisted", "lazy")

#: Working set over memory budget, by the name of the pressure.
PRESSURE = {"light": 1.2, "heavy": 2.25}

#: Function that creates an input from a name, a shape and chunks.
Source = Callable[[str, tuple[int, ...], tuple[int, ...]], da.Array]

#: Function that copies a constant of the client to where tasks compute: the host or the device.
Put = Callable[[np.ndarray[Any, Any]], Any]

#: Functions that compute arrays in one graph: into workers' memory, or one to the client.
Keep = Callable[..., list[da.Array]]
Compute = Callable[[da.Array], Any]


def _same(value: np.ndarray[Any, Any]) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Run:
    """The functions and the scale that a workload runs with.

    Parameters
    ----------
    source, keep, compute, put
        See `Source`, `Keep`, `Compute` and `Put`.
    scale
        Factor of the bytes of every chunk.
    """

    source: Source
    keep: Keep
    compute: Compute
    scale: float = 1.0
    put: Put = _same

    def rows(self, number: int) -> int:
        """Rows of a chunk that has `number` rows at scale 1."""
        return round(number * self.scale)


@dataclass(frozen=True, slots=True)
class Spilled:
    """A workload whose working set exceeds the memory budget.

    Parameters
    ----------
    name
        Name in tables.
    run
        Function that runs it and returns Dask or NumPy arrays, which are compared between
        engines.
    workers
        Number of workers, of two threads each.
    mode
        Its default mode, one of `MODES`.
    pressure
        Its default ratio of working set and budget of a worker.
    peak
        For each mode that it supports, the working set at scale 1: peak megabytes of results of
        the worker with most, inputs included, with unlimited memory.
    """

    name: str
    run: Callable[[Run], Sequence[Any]]
    workers: int
    mode: str
    pressure: float
    peak: Mapping[str, float]

    def budget(self, mode: str, pressure: str, scale: float = 1.0) -> int:
        """Bytes that results may take on each worker.

        Parameters
        ----------
        mode
            One of those of `peak`.
        pressure
            A name in `PRESSURE`, or ``natural``.
        scale
            As for :class:`Run`.
        """
        times = self.pressure if pressure == "natural" else PRESSURE[pressure]
        return round(self.peak[mode] * 1e6 * scale / times)


def input_of(name: str, shape: tuple[int, ...], chunks: tuple[int, ...]) -> da.Array:
    """A lazy input of uniform random numbers, seeded by the name."""
    return da.random.default_rng(sum(map(ord, name))).random(shape, chunks=chunks)


# k-means ----------------------------------------------------------------------------

_CLUSTERS, _FEATURES = 8, 32


def _points(run: Run, tiles: int) -> da.Array:
    rows = run.rows(6144)
    return run.source("x", (tiles * rows, _FEATURES), (rows, _FEATURES))


def _first_centres(run: Run) -> Any:
    return run.put(np.random.default_rng(0).random((_CLUSTERS, _FEATURES)))


def _lloyd(run: Run, x: da.Array, centres: Any) -> da.Array:
    """One iteration."""
    distances = (centres * centres).sum(axis=1) - 2 * (x @ centres.T)
    nearest = distances.argmin(axis=1)
    member = (nearest[:, None] == run.put(np.arange(_CLUSTERS))).astype(x.dtype)
    return (member.T @ x) / da.maximum(member.sum(axis=0), 1)[:, None]


def k_means_graph(run: Run, tiles: int = 64, rounds: int = 4) -> Sequence[Any]:
    """k-means, all iterations in one graph."""
    x = _points(run, tiles)
    centres: Any = _first_centres(run)
    for _ in range(rounds):
        centres = _lloyd(run, x, centres)
    return [run.compute(centres)]


def k_means_loop(run: Run, tiles: int = 64, rounds: int = 6) -> Sequence[Any]:
    """k-means, with one graph per iteration."""
    x = _points(run, tiles)
    centres = _first_centres(run)
    for _ in range(rounds):
        centres = run.compute(_lloyd(run, x, centres))
    return [centres]


def k_means_two(run: Run) -> Sequence[Any]:
    """`k_means_loop` with the points on two workers."""
    return k_means_loop(run, tiles=96, rounds=4)


# Gram times a vector ----------------------------------------------------------------


def _gram(run: Run, tiles: int = 64) -> tuple[da.Array, Any]:
    rows = run.rows(384)
    x = run.source("x", (tiles * rows, 512), (rows, 512))
    return x, run.put(np.random.default_rng(0).random((512, 16)) / 512)


def gram_graph(run: Run, rounds: int = 4) -> Sequence[Any]:
    """Repeated `x.T @ (x @ w)`, in one graph."""
    x, w = _gram(run)
    product: Any = w
    for _ in range(rounds):
        product = x.T @ (x @ product) / x.shape[0]
    return [run.compute(product)]


def gram_loop(run: Run, rounds: int = 6) -> Sequence[Any]:
    """Repeated `x.T @ (x @ w)`, with one graph per round."""
    x, w = _gram(run)
    for _ in range(rounds):
        w = run.compute(x.T @ (x @ w) / x.shape[0])
    return [w]


# Others -----------------------------------------------------------------------------


def matmul(run: Run, blocks: int = 6) -> Sequence[Any]:
    """A product of two matrices, persisted."""
    side = round(384 * run.scale**0.5)
    shape, chunks = (blocks * side, blocks * side), (side, side)
    a, b = (run.source(name, shape, chunks) for name in "ab")
    return run.keep(a @ b)


def matmul_two(run: Run) -> Sequence[Any]:
    """`matmul` on two workers."""
    return matmul(run, blocks=8)


def tree_add(run: Run, arrays: int = 16, tiles: int = 4) -> Sequence[Any]:
    """A sum of arrays, as a binary tree of additions."""
    rows = run.rows(384)
    level = [run.source(f"x{number}", (tiles * rows, 512), (rows, 512)) for number in range(arrays)]
    while len(level) > 1:
        level = [reduce(da.add, level[start : start + 2]) for start in range(0, len(level), 2)]
    return run.keep(level[0])


def mlp(run: Run, tiles: int = 32, steps: int = 2) -> Sequence[Any]:
    """Gradient descent of a network of two layers, with hidden units centred over all rows."""
    rows = run.rows(768)
    x = run.source("x", (tiles * rows, 256), (rows, 256))
    target = run.source("y", (tiles * rows, 16), (rows, 16))
    rng = np.random.default_rng(0)
    first: Any = run.put(rng.normal(size=(256, 256)) / 16)
    second: Any = run.put(rng.normal(size=(256, 16)) / 16)
    for _ in range(steps):
        before = x @ first
        centred = before - before.mean(axis=0)
        hidden = da.maximum(centred, 0)
        error = (hidden @ second - target) / x.shape[0]
        back = (error @ second.T) * (centred > 0)
        first, second = first - 0.1 * (x.T @ back), second - 0.1 * (hidden.T @ error)
    return run.keep(first, second)


def anomalies(run: Run, tiles: int = 64) -> Sequence[Any]:
    """The standard deviation of the differences from the mean row."""
    rows = run.rows(384)
    x = run.source("x", (tiles * rows, 512), (rows, 512))
    return [run.compute((x - x.mean(axis=0)).std(axis=0))]


def workloads() -> dict[str, Spilled]:
    """All workloads, by name."""
    all_workloads = (
        Spilled("k_means_graph", k_means_graph, 1, "lazy", 1.6, {"lazy": 110, "persisted": 110}),
        Spilled("k_means_loop", k_means_loop, 1, "persisted", 2.0, {"persisted": 110}),
        Spilled("gram_graph", gram_graph, 1, "lazy", 2.2, {"lazy": 205, "persisted": 205}),
        Spilled("gram_loop", gram_loop, 1, "persisted", 1.5, {"persisted": 103}),
        Spilled("matmul", matmul, 1, "lazy", 1.8, {"lazy": 100, "persisted": 140}),
        Spilled("tree_add", tree_add, 1, "persisted", 1.4, {"persisted": 107}),
        Spilled("mlp", mlp, 1, "lazy", 2.0, {"lazy": 190, "persisted": 185}),
        Spilled("anomalies", anomalies, 1, "persisted", 1.6, {"lazy": 101, "persisted": 101}),
        Spilled("matmul_two", matmul_two, 2, "persisted", 1.8, {"lazy": 136, "persisted": 196}),
        Spilled("k_means_two", k_means_two, 2, "persisted", 1.6, {"persisted": 95}),
    )
    return {workload.name: workload for workload in all_workloads}
