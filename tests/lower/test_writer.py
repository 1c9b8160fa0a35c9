"""Lowering: from hand-made programs and tilings to graphs that compute the same."""

from __future__ import annotations

import operator
import os
import pickle
import random
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import Alias, DataNode, Task
from dask.array.core import getter
from dask.blockwise import Blockwise
from dask.blockwise import blockwise as core_blockwise
from dask.highlevelgraph import HighLevelGraph

from dasktile.capture.base import Captured, Verbatim
from dasktile.capture.rules.blockwise import Contract, Map
from dasktile.capture.rules.sources import Create, InMemory, Read
from dasktile.ir import (
    AxisMap,
    Chunks,
    Edge,
    Kind,
    Label,
    Node,
    Program,
    Role,
    TiledProgram,
    Tiling,
    validate,
)
from dasktile.lower.kernels.blas import accumulate, multiply, total
from dasktile.lower.reshard import lengths, normal, reshard
from dasktile.lower.writer import Lowered, lower
from tests.support import (
    MESH,
    as_array,
    check_graph,
    every_way,
    output_graphs,
    random_chunks,
    random_cuts,
    random_tiling,
    sharded,
)

EMPTY = HighLevelGraph({}, {})


class Builder:
    """Builds a small program by hand, and its values with NumPy."""

    def __init__(self, graph: HighLevelGraph = EMPTY) -> None:
        self.nodes: list[Node] = []
        self.kernels: list[Any] = []
        self.values: list[np.ndarray] = []
        self.graph = graph

    def add(
        self,
        op: str,
        kind: Kind,
        labels: tuple[Label, ...],
        out: tuple[AxisMap, ...],
        kernel: Any,
        value: np.ndarray,
        edges: tuple[Edge, ...] = (),
        name: str | None = None,
        chunks: Chunks | None = None,
    ) -> int:
        whole = tuple((size,) for size in value.shape)
        self.nodes.append(
            Node(
                name=name or f"{op}-{len(self.nodes)}",
                op=op,
                kind=kind,
                labels=labels,
                out=out,
                shape=value.shape,
                dtype=str(value.dtype),
                itemsize=value.dtype.itemsize,
                chunks=chunks or whole,
                edges=edges,
                partial=value.dtype.itemsize if kind is Kind.CONTRACT else 0.0,
            )
        )
        self.kernels.append(kernel)
        self.values.append(value)
        return len(self.nodes) - 1

    def source(self, kernel: Any, value: np.ndarray, op: str = "array") -> int:
        labels = tuple(Label(size, Role.FREE, (size,)) for size in value.shape)
        out = tuple(map(AxisMap, range(value.ndim)))
        return self.add(op, Kind.SOURCE, labels, out, kernel, value)

    def array(self, value: np.ndarray) -> int:
        return self.source(InMemory(value), value)

    def contract(self, subscripts: str, *inputs: int, dtype: Any = None, **kwargs: Any) -> int:
        """A contraction, as :func:`numpy.einsum` would write it; ``1`` is an axis of one."""
        reads, result = subscripts.split("->")
        specs = reads.split(",")
        letters = sorted(set("".join(specs) + result) - {"1"})
        sizes = dict.fromkeys(letters, 1)
        for spec, index in zip(specs, inputs, strict=True):
            for letter, size in zip(spec, self.values[index].shape, strict=True):
                if letter != "1":
                    sizes[letter] = size
        number = {letter: at for at, letter in enumerate(letters)}
        tiles = [
            self.values[index][tuple(0 if letter == "1" else slice(None) for letter in spec)]
            for spec, index in zip(specs, inputs, strict=True)
        ]
        bare = ",".join(spec.replace("1", "") for spec in specs)
        present = "".join(letter for letter in result if letter in bare)
        value = np.asarray(np.einsum(f"{bare}->{present}", *tiles, dtype=dtype))
        value = value.reshape([sizes[letter] for letter in result])
        edges = tuple(
            Edge(index, tuple(AxisMap(number.get(letter)) for letter in spec))
            for spec, index in zip(specs, inputs, strict=True)
        )
        kernel = Contract(
            tuple(tuple(number.get(letter) for letter in spec) for spec in specs),
            tuple(number[letter] for letter in result),
            value.dtype,
            kwargs,
        )
        labels = tuple(
            Label(
                sizes[letter],
                Role.FREE if letter in result else Role.REDUCE,
                (sizes[letter],),
            )
            for letter in letters
        )
        out = tuple(AxisMap(number[letter]) for letter in result)
        return self.add("einsum", Kind.CONTRACT, labels, out, kernel, value, edges)

    def map(self, function: Any, *inputs: tuple[int, str], out: str, **kwargs: Any) -> int:
        """A function of blocks; indices as :func:`dask.array.blockwise` takes them."""
        sizes: dict[str, int] = {}
        for index, symbols in inputs:
            for symbol, size in zip(symbols, self.values[index].shape, strict=True):
                sizes[symbol] = (
                    max(size, sizes.get(symbol, 0)) if size != 1 else sizes.get(symbol, 1)
                )
        labels = {symbol: at for at, symbol in enumerate(out)}
        pairs = [x for index, symbols in inputs for x in (self.nodes[index].name, symbols)]
        numblocks = {self.nodes[index].name: (1,) * len(symbols) for index, symbols in inputs}
        layer = core_blockwise(function, "map", out, *pairs, numblocks=numblocks, **kwargs)
        edges = []
        for index, symbols in inputs:
            shape = self.values[index].shape
            axes = (
                AxisMap(None if size == 1 and sizes[symbol] > 1 else labels[symbol])
                for symbol, size in zip(symbols, shape, strict=True)
            )
            edges.append(Edge(index, tuple(axes)))
        return self.add(
            "map",
            Kind.MAP,
            tuple(Label(sizes[symbol], Role.FREE, (sizes[symbol],)) for symbol in out),
            tuple(map(AxisMap, range(len(out)))),
            Map(layer, labels, tuple(range(len(inputs)))),
            np.asarray(function(*(self.values[index] for index, _ in inputs), **kwargs)),
            tuple(edges),
        )

    def program(self, *outputs: int) -> Program:
        program = Program(tuple(self.nodes), outputs)
        validate(program)
        return program

    def captured(self, *outputs: int) -> Captured:
        return Captured(self.program(*outputs), tuple(self.kernels), self.graph)

    def check(self, captured: Captured, tiled: TiledProgram, **kwargs: Any) -> Lowered:
        lowered = lower(captured, tiled, **kwargs)
        check_graph(lowered.graph)
        expected = [self.values[index] for index in captured.program.outputs]
        arrays = [
            as_array(graph, name, chunks, value.dtype)
            for graph, name, chunks, value in zip(
                output_graphs(lowered), lowered.names, lowered.chunks, expected, strict=True
            )
        ]
        for values in every_way(arrays):
            for value, reference in zip(values, expected, strict=True):
                assert value.dtype == reference.dtype
                assert value.shape == reference.shape
                np.testing.assert_array_equal(value, reference)
        for name, chunks in zip(lowered.names, lowered.chunks, strict=True):
            for block in product(*(range(len(sizes)) for sizes in chunks)):
                tile = dask.get(lowered.graph, (name, *block))
                assert np.shape(tile) == tuple(c[b] for c, b in zip(chunks, block, strict=True))
        return lowered


def ints(rng: random.Random, *shape: int) -> np.ndarray:
    return np.random.default_rng(rng.randrange(1 << 30)).integers(-9, 9, shape)


def tiling(node: Node, *cuts: tuple[int, ...], mesh: Any = (None, None)) -> Tiling:
    return sharded(node, cuts, MESH, mesh)


def own(node: Node) -> Tiling:
    return tiling(node, *(label.cuts for label in node.labels))


def add_transposed(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return left + right.T


CONTRACTIONS = [
    "ij,jk->ik",
    "ij,jk->ki",
    "ij,kj->ik",
    "ij,ij->",
    "i,i->",
    "i,j->ij",
    "i,j->ji",
    "ij,j->i",
    "bij,bjk->bik",
    "bij,bjk->ibk",
    "bij,bj->bi",
    "bij,jk->bik",
    "ij,ij->ij",
    "ij,jk->ijk",
    "ijk,kjl->il",
    "ijk,lkj->li",
    "ij,k->i",
    "ij,jk->",
    "ij->ji",
    "ij->i",
    "ii->",
    "ii->i",
    "ij,jk,kl->il",
    "ij,jj->i",
    "ij,kl,m->",
    "1ij,bjk->bik",
    "i1,jk->ik",
    "1,1->",
    "1ij,1jk->xik",
    "1,i->xi",
]


@pytest.mark.parametrize("subscripts", CONTRACTIONS)
@pytest.mark.parametrize("seed", range(4))
def test_contraction_equals_numpy_in_any_tiles(subscripts: str, seed: int) -> None:
    rng = random.Random(seed)
    builder = Builder()
    sizes = {letter: rng.choice([1, 4, 6, 7]) for letter in "bijklmx"} | {"1": 1}
    if seed == 3:
        sizes["j"] = 0
    inputs = [
        builder.array(ints(rng, *(sizes[letter] for letter in spec)))
        for spec in subscripts.split("->")[0].split(",")
    ]
    out = builder.contract(subscripts, *inputs)
    captured = builder.captured(out)
    for _ in range(3):
        builder.check(captured, random_tiling(captured.program, rng))


@pytest.mark.parametrize("dtype", ["i1", "u2", "f4", "f8", "c8", "?"])
def test_contraction_keeps_dtype(dtype: str) -> None:
    rng = random.Random(1)
    builder = Builder()
    left = builder.array(ints(rng, 6, 8).astype(dtype))
    right = builder.array(ints(rng, 8, 5).astype(dtype))
    batched = builder.contract("ij,jk->ik", left, right)
    for subscripts in ("ij,jk->ijk", "ij,jk->jik"):
        builder.contract(subscripts, left, right)
    captured = builder.captured(batched, batched + 1, batched + 2)
    builder.check(captured, random_tiling(captured.program, rng))


def test_contraction_in_a_wider_dtype_does_not_overflow() -> None:
    rng = random.Random(2)
    builder = Builder()
    left = builder.array(np.full((4, 300), 100, "i1"))
    right = builder.array(np.full((300, 4), 100, "i1"))
    out = builder.contract("ij,jk->ik", left, right, dtype="i8")
    assert builder.values[out].max() == 3_000_000
    captured = builder.captured(out)
    builder.check(captured, random_tiling(captured.program, rng))


def test_tiles_wider_than_their_array_says_keep_their_precision() -> None:
    kernel = Contract(((0, 1), (1, 2)), (0, 2), np.dtype("f4"))
    left, right = np.full((2, 3), 1 + 1e-12), np.full((3, 2), 1.0)
    assert multiply(kernel, left, right).dtype == "f8"
    np.testing.assert_array_equal(accumulate(kernel, left @ right, left, right), 2 * left @ right)


def test_local_cuts_accumulate_and_mesh_cuts_are_summed() -> None:
    rng = random.Random(3)
    builder = Builder()
    left, right = builder.array(ints(rng, 4, 16)), builder.array(ints(rng, 16, 4))
    out = builder.contract("ij,jk->ik", left, right)
    captured = builder.captured(out)
    nodes = captured.program.nodes

    def lowered(mesh: Any) -> Lowered:
        tilings = (
            tiling(nodes[0], (4,), (4,) * 4),
            tiling(nodes[1], (4,) * 4, (4,)),
            tiling(nodes[2], (4,), (4,) * 4, (4,), mesh=mesh),
        )
        return builder.check(captured, TiledProgram(captured.program, MESH, tilings))

    def functions(graph: HighLevelGraph) -> list[Any]:
        return [task.func for task in graph.to_dict().values() if isinstance(task, Task)]

    local = functions(lowered((None, None)).graph)
    assert (local.count(multiply), local.count(accumulate), local.count(total)) == (1, 3, 0)
    halves = functions(lowered((1, None)).graph)
    assert (halves.count(multiply), halves.count(accumulate), halves.count(total)) == (2, 2, 1)
    quarters = functions(lowered((1, 1)).graph)
    assert (quarters.count(multiply), quarters.count(total)) == (4, 1)


def test_many_partial_results_are_summed_by_a_tree() -> None:
    rng = random.Random(3)
    builder = Builder()
    left, right = builder.array(ints(rng, 4, 40)), builder.array(ints(rng, 40, 4))
    out = builder.contract("ij,jk->ik", left, right)
    captured = builder.captured(out)
    nodes = captured.program.nodes
    cuts = ((4,), (2,) * 20, (4,))
    for scattered in (False, True):
        product_tiling = sharded(
            nodes[2],
            cuts,
            (20, 1),
            (1, None),
            (0 if scattered else None, None),
            ((1, 1, 1, 1), (4,)) if scattered else ((4,), (4,)),
        )
        tilings = (own(nodes[0]), own(nodes[1]), product_tiling)
        lowered = builder.check(captured, TiledProgram(captured.program, (20, 1), tilings))
        widest = max(len(task.dependencies) for task in lowered.graph.to_dict().values())
        assert widest <= 8


def test_scattered_partials_travel_in_pieces() -> None:
    rng = random.Random(3)
    builder = Builder()
    left, right = builder.array(ints(rng, 8, 16)), builder.array(ints(rng, 16, 4))
    out = builder.contract("ij,jk->ik", left, right)
    captured = builder.captured(out)
    nodes = captured.program.nodes
    tilings = (
        own(nodes[0]),
        own(nodes[1]),
        sharded(nodes[2], ((8,), (8, 8), (4,)), MESH, (1, None), (0, None), ((4, 4), (4,))),
    )
    lowered = builder.check(captured, TiledProgram(captured.program, MESH, tilings))
    assert lowered.chunks == (((4, 4), (4,)),)
    graph = lowered.graph.to_dict()
    for row in range(2):
        for key in graph[lowered.names[0], row, 0].dependencies:
            assert dask.get(lowered.graph, key).shape == (4, 4)


def test_partial_results_are_never_changed_in_place() -> None:
    kernel = Contract(((0, 1), (1, 2)), (0, 2), np.dtype("i8"))
    before, left, right = np.ones((2, 2), int), np.ones((2, 3), int), np.ones((3, 2), int)
    assert (accumulate(kernel, before, left, right) == 4).all()
    assert (total(before, before, before) == 3).all()
    for array in (before, left, right):
        assert (array == 1).all()


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_equal_numpy(seed: int) -> None:
    rng = random.Random(seed)
    builder = Builder()
    size = rng.choice([1, 5, 8])
    arrays = [builder.array(ints(rng, size, size)) for _ in range(3)]
    row = builder.array(ints(rng, 1, size))
    for _ in range(5):
        left, right = rng.choice(arrays), rng.choice(arrays)
        kind = rng.randrange(4)
        if kind == 0:
            arrays.append(builder.contract("ij,jk->ik", left, right))
        elif kind == 1:
            arrays.append(builder.map(add_transposed, (left, "ij"), (right, "ji"), out="ij"))
        elif kind == 2:
            arrays.append(builder.map(operator.sub, (left, "ij"), (row, "ij"), out="ij"))
        else:
            arrays.append(builder.map(np.transpose, (left, "ji"), out="ij"))
    outputs = (arrays[-1], arrays[-2], arrays[-1])
    captured = builder.captured(*outputs)
    for _ in range(3):
        tiled = random_tiling(captured.program, rng)
        builder.check(captured, tiled)
        chunks = [random_chunks((size, size), rng) for _ in outputs]
        chunks[2] = chunks[0]
        lowered = builder.check(captured, tiled, output_chunks=chunks, output_names=["a", "b", "a"])
        assert lowered.names == ("a", "b", "a")
        assert lowered.chunks == tuple(chunks)


def test_windows_are_cut_from_blocks() -> None:
    rng = random.Random(0)

    def some(size: int) -> tuple[Any, ...]:
        windows = []
        for _ in range(rng.randint(1, 4)):
            start, step = rng.randrange(max(size, 1)), rng.choice([1, 1, 3, -1, -2])
            reach = range(start, size if step > 0 else -1, step) if size else ()
            windows.append((start, start + step * rng.randint(0, len(reach)), step))
        return tuple(windows)

    for trial in range(300):
        shape = tuple(rng.choice([0, 1, 2, 9]) for _ in range(rng.randint(0, 3)))
        value = np.arange(int(np.prod(shape))).reshape(shape)
        # empty chunks among others are legal
        chunks = tuple(
            tuple(
                part
                for size in random_cuts(n, rng)
                for part in ((size, 0) if trial % 2 else (size,))
            )
            for n in shape
        )
        base = da.from_array(value, chunks=chunks)
        wanted = normal([some(size) for size in shape])
        tasks = reshard("new", "token", base.name, chunks, wanted)
        graph = {**base.dask.to_dict(), **tasks}
        for block in product(*(range(len(axis)) for axis in wanted)):
            expected = value
            for axis, (at, windows) in enumerate(zip(block, wanted, strict=True)):
                expected = np.take(expected, np.arange(*windows[at]), axis=axis)
            np.testing.assert_array_equal(dask.get(graph, ("new", *block)), expected)
            assert expected.shape == tuple(
                sizes[at] for sizes, at in zip(lengths(wanted), block, strict=True)
            )


def test_whole_blocks_are_not_copied_and_pieces_are_shared() -> None:
    windows = normal([((0, 4, 1), (0, 6, 1), (2, 6, 1), (4, 8, 1))])
    tasks = reshard("new", "token", "x", ((4, 4),), windows)
    assert isinstance(tasks["new", 0], Alias)
    assert isinstance(tasks["new", 3], Alias)
    assert len(tasks) == 4 + 2
    assert ("x", 0) in tasks["new", 1].dependencies
    assert tasks["new", 1].dependencies & tasks["new", 2].dependencies


def test_resharding_layers_are_shared_among_readers() -> None:
    rng = random.Random(0)
    builder = Builder()
    x = builder.array(ints(rng, 8, 8))
    a = builder.map(np.negative, (x, "ij"), out="ij")
    b = builder.map(np.abs, (x, "ij"), out="ij")
    captured = builder.captured(a, b)
    nodes = captured.program.nodes
    fine = ((4, 4), (4, 4))
    tilings = (tiling(nodes[0], (8,), (8,)), tiling(nodes[1], *fine), tiling(nodes[2], *fine))
    lowered = builder.check(captured, TiledProgram(captured.program, MESH, tilings))
    assert len(lowered.graph.layers) == 4
    same = (tiling(nodes[0], *fine), *tilings[1:])
    lowered = builder.check(captured, TiledProgram(captured.program, MESH, same))
    assert len(lowered.graph.layers) == 3


def test_kept_chunks_are_what_readers_read() -> None:
    rng = random.Random(0)
    builder = Builder()
    x = builder.array(ints(rng, 8, 8))
    a = builder.map(np.negative, (x, "ij"), out="ij")
    b = builder.map(np.transpose, (x, "ji"), out="ij")
    captured = builder.captured(a, b)
    nodes = captured.program.nodes
    tilings = (
        tiling(nodes[0], (8,), (8,)),
        tiling(nodes[1], (4, 4), (8,)),
        tiling(nodes[2], (8,), (4, 4)),
    )
    tiled = TiledProgram(captured.program, MESH, tilings, {0: ((4, 4), (8,))})
    lowered = builder.check(captured, tiled)
    assert len(lowered.graph.layers) == 4


def test_creation_and_reads() -> None:
    rng = random.Random(5)
    made = da.full((6, 9), 7, chunks=(3, 3), dtype="i4")
    value = ints(rng, 6, 9)

    class Lazy:
        shape, dtype, ndim = value.shape, value.dtype, 2

        def __getitem__(self, index: Any) -> np.ndarray:
            return value[index]

    lazy = da.from_array(Lazy(), chunks=(3, 3), asarray=False, lock=True)
    (source,) = (name for name in lazy.dask.layers if name.startswith("original-"))
    builder = Builder(HighLevelGraph.merge(lazy.dask, made.dask))
    kwargs = lazy.dask.layers[lazy.name].task.kwargs
    nodes = [
        builder.source(Create(made.dask.layers[made.name]), np.full((6, 9), 7, "i4"), "full"),
        builder.source(Read(source, None, getter, kwargs), value),
        builder.source(Read(None, Lazy(), getter, kwargs), value),
        builder.source(Read(None, value, operator.getitem), value),
    ]
    captured = builder.captured(*nodes)
    for _ in range(4):
        lowered = builder.check(captured, random_tiling(captured.program, rng))
        assert isinstance(lowered.graph.layers[lowered.names[0]], Blockwise)
        assert not isinstance(lowered.graph.layers[lowered.names[1]], Blockwise)


def test_created_arrays_are_recomputed_for_every_reader() -> None:
    made = da.zeros((6, 9), chunks=3, dtype="i4")
    builder = Builder(made.dask)
    layer = made.dask.layers[made.name]
    x = builder.source(Create(layer), np.zeros((6, 9), "i4"), "zeros")
    y = builder.map(np.negative, (x, "ij"), out="ij")
    captured = builder.captured(x, y)
    nodes = captured.program.nodes
    tilings = (tiling(nodes[0], (6,), (9,)), tiling(nodes[1], (2, 4), (4, 5)))
    lowered = builder.check(captured, TiledProgram(captured.program, MESH, tilings))
    assert all(isinstance(layer, Blockwise) for layer in lowered.graph.layers.values())
    assert sorted(map(len, lowered.graph.dependencies.values())) == [0, 0, 1]


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 3), (1, 1)])
def test_small_arrays(shape: tuple[int, ...]) -> None:
    rng = random.Random(0)
    builder = Builder()
    x = builder.array(ints(rng, *shape))
    symbols = "ij"[: len(shape)]
    y = builder.map(operator.add, (x, symbols), (x, symbols), out=symbols)
    ones = da.ones(shape, dtype="i8")
    z = builder.source(Create(ones.dask.layers[ones.name]), np.ones(shape, "i8"), "ones")
    w = builder.contract(f"{symbols},{symbols}->", y, z)
    captured = builder.captured(x, y, z, w)
    names = ["p", "q", "r", "s"]
    builder.check(captured, random_tiling(captured.program, rng), output_names=names)


def blocky(x: da.Array) -> da.Array:
    """A function whose result depends on the chunks."""
    return x.map_blocks(lambda block: block - block.min() + block.shape[0], dtype=x.dtype)


def opaque(builder: Builder, x: da.Array, *reads: tuple[int, da.Array], more: Any = ()) -> int:
    """Dask array `x` as an opaque node; `reads` has nodes, each with its dask array."""
    edges = tuple(
        Edge(index, (AxisMap(None),) * array.ndim, array.chunks) for index, array in reads
    )
    kernel = Verbatim((*more, x.name), tuple(array.name for _, array in reads))
    labels = tuple(
        Label(size, Role.PINNED, sizes) for size, sizes in zip(x.shape, x.chunks, strict=True)
    )
    out = tuple(map(AxisMap, range(x.ndim)))
    value = x.compute(scheduler="sync")
    return builder.add(
        "opaque", Kind.OPAQUE, labels, out, kernel, value, edges, name=x.name, chunks=x.chunks
    )


@pytest.mark.parametrize("names", [False, True])
def test_opaque_parts_read_their_own_chunks(names: bool) -> None:
    rng = random.Random(7)
    value = ints(rng, 8, 6)
    x = da.from_array(value, chunks=(3, 2))
    dropped = x.rechunk((4, 6))
    first = blocky(x)
    second = blocky(dropped)
    third = da.overlap.overlap(second, {0: 1, 1: 0}, {0: "none", 1: "none"})
    last = first + 1
    graph = HighLevelGraph.merge(third.dask, last.dask)
    builder = Builder(graph)
    a = builder.source(InMemory(value), value)
    b = opaque(builder, first, (a, x))
    c = opaque(builder, second, (a, dropped))
    inside = [name for name in graph.layers if name not in (*second.dask.layers, third.name)]
    inside = [name for name in inside if name in third.dask.layers]
    d = opaque(builder, third, (c, second), more=tuple(inside))
    e = builder.map(np.negative, (b, "ij"), out="ij")
    outputs = (d, b, e, c)
    captured = builder.captured(*outputs)
    for _ in range(4):
        tiled = random_tiling(captured.program, rng)
        kwargs: dict[str, Any] = {}
        if names:
            nodes = captured.program.nodes
            kwargs = {
                "output_names": [nodes[index].name for index in outputs],
                "output_chunks": [nodes[index].chunks for index in outputs],
            }
        lowered = builder.check(captured, tiled, **kwargs)
        assert first.name not in lowered.graph.layers or names


def test_unchanged_parts_are_carried_over() -> None:
    x = blocky(da.random.default_rng(0).random((8, 8), chunks=4))
    y = blocky(x)
    builder = Builder(y.dask)
    a = opaque(builder, x)
    b = opaque(builder, y, (a, x))
    c = builder.map(np.negative, (a, "ij"), out="ij")
    captured = builder.captured(b, c)
    nodes = captured.program.nodes
    tilings = (own(nodes[0]), own(nodes[1]), tiling(nodes[2], (2,) * 4, (8,)))
    tiled = TiledProgram(captured.program, MESH, tilings)
    lowered = builder.check(captured, tiled)
    for name in y.dask.layers:
        assert lowered.graph.layers[name] is y.dask.layers[name]
    assert lowered.names[0] == y.name
    # nor is it written only because the output has a given name
    named = builder.check(captured, tiled, output_names=[y.name, "negative"])
    assert named.graph.layers[y.name] is y.dask.layers[y.name]


def test_a_rechunk_between_unchanged_parts_is_written() -> None:
    """Dask's tasks for it have no homes."""
    x = blocky(da.random.default_rng(0).random((8, 8), chunks=4))
    y = blocky(x.rechunk((8, 2)))
    builder = Builder(y.dask)
    a = opaque(builder, x)
    b = opaque(builder, y, (a, x.rechunk((8, 2))))
    captured = builder.captured(b)
    nodes = captured.program.nodes
    tiled = TiledProgram(captured.program, MESH, (own(nodes[0]), own(nodes[1])))
    lowered = builder.check(captured, tiled)
    assert lowered.graph.layers[x.name] is y.dask.layers[x.name]
    assert not [name for name in lowered.graph.layers if name.startswith("rechunk")]


def test_readers_of_a_layer_whose_name_an_output_takes_are_written() -> None:
    x = blocky(da.random.default_rng(0).random((8, 8), chunks=4))
    y = blocky(x)
    builder = Builder(y.dask)
    a = opaque(builder, x)
    b = opaque(builder, y, (a, x))
    captured = builder.captured(a, b)
    nodes = captured.program.nodes
    tiled = TiledProgram(captured.program, MESH, (own(nodes[0]), own(nodes[1])))
    builder.check(captured, tiled, output_names=[x.name, y.name])
    other = ((8,), (8,))
    lowered = builder.check(
        captured, tiled, output_names=[x.name, y.name], output_chunks=[other, None]
    )
    assert lowered.chunks[0] == other


def test_delayed_arguments_are_carried_over() -> None:
    rng = random.Random(0)
    value = ints(rng, 6)
    x = da.from_array(value, chunks=3)
    three = dask.delayed(operator.add)(1, 2)
    y = da.blockwise(operator.add, "i", x, "i", three, None, dtype=x.dtype)
    builder = Builder(y.dask)
    a = builder.array(value)
    layer = y.dask.layers[y.name]
    (position,) = (at for at, (name, _) in enumerate(layer.indices) if name == x.name)
    (symbol,) = layer.output_indices
    builder.add(
        "add",
        Kind.MAP,
        (Label(6, Role.FREE, (3, 3)),),
        (AxisMap(0),),
        Map(layer, {symbol: 0}, (position,)),
        value + 3,
        (Edge(a, (AxisMap(0),)),),
    )
    captured = builder.captured(1)
    builder.check(captured, random_tiling(captured.program, rng))


def test_names_are_deterministic_and_depend_on_the_tiling() -> None:
    script = """
import random
from tests.lower.test_writer import Builder, ints, random_tiling, lower
import numpy as np
rng = random.Random(0)
builder = Builder()
x, y = builder.array(ints(rng, 8, 8)), builder.array(ints(rng, 8, 8))
z = builder.contract("ij,jk->ik", x, y)
w = builder.map(np.transpose, (z, "ji"), out="ij")
captured = builder.captured(w, z)
for seed in (1, 2):
    tiled = random_tiling(captured.program, random.Random(seed))
    graph = lower(captured, tiled).graph
    print(list(graph.layers), [list(layer) for layer in graph.layers.values()])
"""
    root = Path(__file__).parents[2]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    first, second = outputs.pop().splitlines()
    assert first != second


def test_graphs_can_be_pickled() -> None:
    rng = random.Random(0)
    builder = Builder()
    x = builder.array(ints(rng, 8, 8))
    z = builder.contract("ij,jk->ik", x, x)
    captured = builder.captured(z)
    lowered = builder.check(captured, random_tiling(captured.program, rng))
    loaded = pickle.loads(pickle.dumps(lowered.graph))
    array = as_array(loaded, lowered.names[0], lowered.chunks[0], "i8")
    np.testing.assert_array_equal(array.compute(scheduler="sync"), builder.values[z])


def test_wrong_arguments_are_named() -> None:
    builder = Builder()
    x = builder.array(np.ones(3))
    captured = builder.captured(x)
    tiled = random_tiling(captured.program, random.Random(0))
    with pytest.raises(ValueError, match="output_names has 2 entries, the program needs 1"):
        lower(captured, tiled, output_names=["a", "b"])
    with pytest.raises(ValueError, match="tilings has 0 entries"):
        lower(captured, TiledProgram(captured.program, MESH, ()))


def test_all_tasks_are_task_objects() -> None:
    rng = random.Random(0)
    builder = Builder()
    x = builder.array(ints(rng, 8, 8))
    z = builder.contract("ij,jk->ik", x, x)
    captured = builder.captured(z)
    lowered = lower(captured, random_tiling(captured.program, rng))
    for layer in lowered.graph.layers.values():
        for task in layer.values():
            assert isinstance(task, (Task, Alias, DataNode))
            for argument in getattr(task, "args", ()):
                # dask finds no references in plain lists
                assert not isinstance(argument, list)
