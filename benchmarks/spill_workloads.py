"""Computations that need more memory than a worker has, as plain Dask users write them.

Tiles have 1 to 2 MB at scale 1.  Inputs are random numbers of fixed seeds: Dask reads each of
them from memory, and does not make it again for every reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import dask.array as da
import numpy as np

#: What workers have before the rest begins: inputs that are persisted first, or nothing.
MODES = ("persisted", "lazy")

#: Working set over budget, where not the workload's own is asked for.
PRESSURE = {"light": 1.2, "heavy": 2.25}

#: Makes an input of a name, shape and chunks.
Source = Callable[[str, tuple[int, ...], tuple[int, ...]], da.Array]

#: Has a constant of the client's where tasks compute.
Put = Callable[[np.ndarray[Any, Any]], Any]

#: Computes arrays in one graph into workers' memory, or one to the client.
Keep = Callable[..., list[da.Array]]
Compute = Callable[[da.Array], Any]


def _same(value: np.ndarray[Any, Any]) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Run:
    """What a workload is given.

    Parameters
    ----------
    source, keep, compute, put
        See there.
    scale
        Bytes of a tile, over those of this module.
    """

    source: Source
    keep: Keep
    compute: Compute
    scale: float = 1.0
    put: Put = _same

    def rows(self, number: int) -> int:
        """Rows of a tile, of as many at scale 1."""
        return round(number * self.scale)


@dataclass(frozen=True, slots=True)
class Spilled:
    """A workload that does not fit.

    Parameters
    ----------
    name
        As it is called in tables.
    run
        Does it, and returns what is compared between engines, in Dask or NumPy.
    workers
        Of two threads each.
    mode
        Its natural one of `MODES`.
    pressure
        Its natural working set over the budget of a worker.
    peak
        For each mode that it can be run in, the working set at scale 1: megabytes that the
        worker that has most holds at once where it may hold all of them, inputs included.
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
    """An input that is not made yet: uniform numbers, others for every name."""
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
    """k-means, the client waits for every iteration."""
    x = _points(run, tiles)
    centres = _first_centres(run)
    for _ in range(rounds):
        centres = run.compute(_lloyd(run, x, centres))
    return [centres]


def k_means_two(run: Run) -> Sequence[Any]:
    """The same with the points on two workers."""
    return k_means_loop(run, tiles=96, rounds=4)


# Gram times a vector ----------------------------------------------------------------


def _gram(run: Run, tiles: int = 64) -> tuple[da.Array, Any]:
    rows = run.rows(384)
    x = run.source("x", (tiles * rows, 512), (rows, 512))
    return x, run.put(np.random.default_rng(0).random((512, 16)) / 512)


def gram_graph(run: Run, rounds: int = 4) -> Sequence[Any]:
    """`x.T @ (x @ w)` again and again, in one graph."""
    x, w = _gram(run)
    found: Any = w
    for _ in range(rounds):
        found = x.T @ (x @ found) / x.shape[0]
    return [run.compute(found)]


def gram_loop(run: Run, rounds: int = 6) -> Sequence[Any]:
    """The same, the client waits for every round."""
    x, w = _gram(run)
    for _ in range(rounds):
        w = run.compute(x.T @ (x @ w) / x.shape[0])
    return [w]


# Others -----------------------------------------------------------------------------


def matmul(run: Run, blocks: int = 6) -> Sequence[Any]:
    """A product of two matrices, kept in memory."""
    side = round(384 * run.scale**0.5)
    shape, chunks = (blocks * side, blocks * side), (side, side)
    a, b = (run.source(name, shape, chunks) for name in "ab")
    return run.keep(a @ b)


def matmul_two(run: Run) -> Sequence[Any]:
    """The same on two workers."""
    return matmul(run, blocks=8)


def tree_add(run: Run, arrays: int = 16, tiles: int = 4) -> Sequence[Any]:
    """Arrays are added in pairs, and the sums of these, until one is left."""
    rows = run.rows(384)
    level = [run.source(f"x{number}", (tiles * rows, 512), (rows, 512)) for number in range(arrays)]
    while len(level) > 1:
        level = [reduce(da.add, level[at : at + 2]) for at in range(0, len(level), 2)]
    return run.keep(level[0])


def mlp(run: Run, tiles: int = 32, steps: int = 2) -> Sequence[Any]:
    """Steps of gradient descent of two layers, with hidden units centred over all rows."""
    rows = run.rows(768)
    x = run.source("x", (tiles * rows, 256), (rows, 256))
    wanted = run.source("y", (tiles * rows, 16), (rows, 16))
    rng = np.random.default_rng(0)
    first: Any = run.put(rng.normal(size=(256, 256)) / 16)
    second: Any = run.put(rng.normal(size=(256, 16)) / 16)
    for _ in range(steps):
        before = x @ first
        centred = before - before.mean(axis=0)
        hidden = da.maximum(centred, 0)
        error = (hidden @ second - wanted) / x.shape[0]
        back = (error @ second.T) * (centred > 0)
        first, second = first - 0.1 * (x.T @ back), second - 0.1 * (hidden.T @ error)
    return run.keep(first, second)


def anomalies(run: Run, tiles: int = 64) -> Sequence[Any]:
    """How far rows are from their mean."""
    rows = run.rows(384)
    x = run.source("x", (tiles * rows, 512), (rows, 512))
    return [run.compute((x - x.mean(axis=0)).std(axis=0))]


def workloads() -> dict[str, Spilled]:
    """All of them, by name."""
    found = (
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
    return {one.name: one for one in found}
