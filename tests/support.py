"""Test tools: random tilings of any program, and what a lowered graph must satisfy."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.core import keys_in_tasks
from dask.highlevelgraph import HighLevelGraph

from dasktile import api
from dasktile.cluster.target import Machine
from dasktile.ir import (
    Chunks,
    Kind,
    Node,
    Program,
    Role,
    Sharding,
    Share,
    TiledProgram,
    Tiling,
    bounds,
    output_chunks,
)
from dasktile.lower.writer import Lowered
from dasktile.tiling import planner

MESH = (2, 2)

#: Settings of workers in the process of the tests, whose memory their budgets must not depend on.
BY_TARGET = {
    "distributed.worker.memory.target": 0.6,
    **dict.fromkeys(
        (f"distributed.worker.memory.{name}" for name in ("spill", "pause", "terminate")), False
    ),
}


def opaque(block: Any) -> Any:
    """The block: a function of the user whose code is not looked at, as it has a loop."""
    for _ in (1,):
        pass
    return block


def plan_for_workers(
    monkeypatch: pytest.MonkeyPatch, count: int = 4, threads: int = 1, **options: Any
) -> None:
    """Plan for workers of a cluster, on which tasks run where they are planned, without one."""
    order = tuple(map(str, range(count)))
    target = Machine(count, threads, order=order, who_has=lambda blocks: {}, **options)
    monkeypatch.setattr(api, "machine", lambda *_: target)


def accept_all_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Carry out every plan, even one that is no better than the input's own chunks.

    It fails if the planner does not use the function that is replaced.
    """
    functions = (value for value in vars(planner).values() if inspect.isfunction(value))
    assert any(
        "objection" in function.__code__.co_names
        for function in functions
        if function.__module__ == planner.__name__
    )
    monkeypatch.setattr(planner, "objection", lambda *_: "")


def random_cuts(size: int, rng: random.Random, most: int = 5) -> tuple[int, ...]:
    """Chunk sizes, none of them empty, of an axis of `size` in at most `most` chunks."""
    if size < 2:
        return (size,)
    parts = rng.randint(1, min(most, size))
    inner = sorted(rng.sample(range(1, size), parts - 1))
    edges = [0, *inner, size]
    return tuple(hi - lo for lo, hi in pairwise(edges))


def random_chunks(shape: Sequence[int], rng: random.Random) -> Chunks:
    return tuple(random_cuts(size, rng) for size in shape)


def random_tiling(program: Program, rng: random.Random, kept: float = 0.15) -> TiledProgram:
    """A valid tiling of a program on a mesh of 2 x 2 workers, at random.

    Labels are cut anywhere their role allows; pinned ones stay as they are.  Results
    that are summed across the mesh are scattered or not.  A share `kept` of the arrays
    is kept in other chunks than it is made in.
    """
    tilings = tuple(_random_node(node, rng) for node in program.nodes)
    stored = {
        index: random_chunks(node.shape, rng)
        for index, node in enumerate(program.nodes)
        if rng.random() < kept and 0 not in node.shape
    }
    return TiledProgram(program, MESH, tilings, stored)


def _random_node(node: Node, rng: random.Random) -> Tiling:
    if node.kind is Kind.OPAQUE:
        cuts = tuple(label.cuts for label in node.labels)
        return Tiling(cuts, node.chunks)
    cuts_of: list[tuple[int, ...]] = []
    for label in node.labels:
        if label.role is Role.PINNED:
            cuts_of.append(label.cuts)
        elif label.role is Role.WHOLE:
            cuts_of.append((label.size,))
        else:
            choice = rng.random()
            cuts_of.append(label.cuts if choice < 0.15 else random_cuts(label.size, rng))
    cuts = tuple(cuts_of)
    able = [position for position, sizes in enumerate(cuts) if len(sizes) > 1]
    cut_by = tuple(rng.choice([None, *able]) for _ in MESH)
    chunks = [list(sizes) for sizes in output_chunks(node, cuts)]
    scatter: list[int | None] = []
    for size, label in zip(MESH, cut_by, strict=True):
        target = None
        if label is not None and node.labels[label].role is Role.REDUCE and chunks:
            # parts of parts of axes with few blocks would be uneven
            undivided = [at for at, axis in enumerate(node.out) if axis.label not in cut_by]
            target = rng.choice([None, *undivided])
        if target is not None:
            chunks[target] = [part for whole in chunks[target] for part in _halves(whole, size)]
        scatter.append(target)
    return sharded(node, cuts, MESH, cut_by, scatter, tuple(map(tuple, chunks)))


def sharded(
    node: Node,
    cuts: tuple[tuple[int, ...], ...],
    mesh: Sequence[int],
    cut_by: Sequence[int | None],
    scatter: Sequence[int | None] = (),
    chunks: Chunks | None = None,
) -> Tiling:
    """A node cut into tiles that a mesh divides.

    `cut_by` has the label that each mesh axis cuts, or None; `scatter` the output axis along which
    sums over it are scattered, None for one worker.
    """
    chunks = output_chunks(node, cuts) if chunks is None else chunks
    work = [share(sizes, mesh, cut_by, label) for label, sizes in enumerate(cuts)]
    held: list[Share] = []
    divided: set[int] = set()
    for place, (axis, sizes) in enumerate(zip(node.out, chunks, strict=True)):
        if axis.label is None:
            held.append(Share())
            continue
        made, ends = Share(), [0, len(sizes)]
        # on a diagonal two axes run along one label
        if axis.label not in divided and work[axis.label].by:
            divided.add(axis.label)
            made = work[axis.label]
            edges = bounds(cuts[axis.label])
            ends = [bounds(sizes).index(axis.width * edges[at]) for at in bounds(made.runs)]
        inner = [share(sizes[lo:hi], mesh, scatter, place) for lo, hi in pairwise(ends)]
        by = made.by + inner[0].by
        runs = [run for (lo, hi), each in zip(pairwise(ends), inner, strict=True)
                for run in each.runs or (hi - lo,)]  # fmt: skip
        held.append(Share(by, tuple(runs)) if by else Share())
    return Tiling(cuts, chunks, Sharding(tuple(work)), Sharding(tuple(held)))


def share(
    sizes: Sequence[int], mesh: Sequence[int], divides: Sequence[int | None], dim: int
) -> Share:
    """How the mesh axes that divide a dimension do so, by the start of its blocks."""
    by = tuple(axis for axis, divided in enumerate(divides) if divided == dim)
    if not by:
        return Share()
    runs = [0] * math.prod(mesh[axis] for axis in by)
    for start in bounds(sizes)[:-1]:
        runs[min(start * len(runs) // max(1, sum(sizes)), len(runs) - 1)] += 1
    return Share(by, tuple(runs))


def _halves(size: int, parts: int) -> list[int]:
    edges = [part * size // parts for part in range(parts + 1)]
    sizes = [hi - lo for lo, hi in pairwise(edges) if hi > lo]
    return sizes or [size]


def as_array(graph: HighLevelGraph, name: str, chunks: Chunks, dtype: Any) -> da.Array:
    """The dask array of a name in a graph."""
    return da.Array(graph, name, chunks, dtype=dtype, meta=np.empty((0,) * len(chunks), dtype))


def output_graphs(lowered: Lowered) -> list[HighLevelGraph]:
    """For every output of a lowered program, the layers that it needs.

    A dask collection must have no other: Dask takes layers that none reads for its own.
    """
    return [lowered.graph.cull_layers([name]) for name in lowered.names]


def validate(graph: HighLevelGraph) -> None:
    """``HighLevelGraph.validate`` in time linear in tasks, where dask's is quadratic in layers.

    Raises
    ------
    ValueError
        If the dependencies of some layer are not exactly the layers that its tasks read.
    """
    if graph.dependencies.keys() != graph.layers.keys():
        raise ValueError("layers and dependencies have different names")
    owner: dict[Any, str] = {}
    for name, layer in graph.layers.items():
        for key in layer:
            owner.setdefault(key, name)
    for name, layer in graph.layers.items():
        own = set(layer)
        reads = {owner[key] for key in keys_in_tasks(owner, layer.values()) if key not in own}
        if reads != set(graph.dependencies[name]):
            raise ValueError(f"{name!r} reads {reads}, and depends on {graph.dependencies[name]}")


def is_exact(graph: HighLevelGraph) -> bool:
    """Whether a graph of dask passes `check_graph`.

    Dask declares dependencies that are not read for assignments, and clones have tasks of other
    keys.
    """
    try:
        check_graph(graph)
    except (ValueError, AssertionError):
        return False
    return True


def check_graph(graph: HighLevelGraph) -> None:
    """Check that dependencies are exact, and that tasks have the keys they are stored under."""
    validate(graph)
    for name, layer in graph.layers.items():
        for key, task in layer.items():
            assert getattr(task, "key", key) in (key, None), (name, key)


def every_way(arrays: Sequence[da.Array]) -> list[list[np.ndarray]]:
    """What arrays come to when the graph runs unoptimised, optimised, and in threads."""
    return [
        list(dask.compute(*arrays, scheduler="sync", optimize_graph=False)),
        list(dask.compute(*arrays, scheduler="sync")),
        list(dask.compute(*arrays, scheduler="threads", num_workers=3)),
    ]
