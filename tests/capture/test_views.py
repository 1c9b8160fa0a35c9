"""Layers that only move elements: recognised, and written for other tiles."""

from __future__ import annotations

import cProfile
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import dask
import dask.array as da
import numpy as np
import pytest
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from dasktile.capture import user_kernels as registry
from dasktile.capture.base import ArrayInfo, GraphView, NotRecognised, Operation, Rechunked
from dasktile.capture.highlevel import capture
from dasktile.capture.rules import slabs
from dasktile.capture.rules.provenance import Trace
from dasktile.capture.rules.reshapes import Reshape, groups
from dasktile.capture.rules.stencils import Stencil
from dasktile.capture.rules.views import RECOGNISERS, Concatenate, Gather, Take
from dasktile.ir import (
    AxisMap,
    Edge,
    Kind,
    Label,
    Node,
    Program,
    Role,
    TiledProgram,
    Tiling,
    bounds,
    output_chunks,
    validate,
    windows,
)
from dasktile.lower.emit import LoweringContext, emit
from dasktile.lower.reshard import normal, reshard
from dasktile.lower.writer import lower


def recognise(array: da.Array) -> Operation | Rechunked | None:
    return recognise_layer(GraphView(array.__dask_graph__()), array.name)


def recognise_layer(view: GraphView, name: str) -> Operation | Rechunked | None:
    """The first operation or rechunk of a recogniser, as in a capture; None if all decline."""
    for recogniser in RECOGNISERS:
        answer = recogniser(view, name)
        if answer is not None and not isinstance(answer, NotRecognised):
            return answer
    return None


def random_cuts(rng: random.Random, size: int, most: int = 4) -> tuple[int, ...]:
    places = rng.sample(range(1, size), min(size - 1, rng.randrange(most)))
    edges = [0, *sorted(places), size]
    return tuple(b - a for a, b in itertools.pairwise(edges))


def node_of(view: GraphView, name: str, operation: Operation) -> tuple[Node, list[ArrayInfo]]:
    """The node of a recognised layer, checked as part of a program of its own."""
    sources = [view.array(read.layer) for read in operation.inputs]
    assert all(source is not None for source in sources)
    infos = [source for source in sources if source is not None]
    new = view.array(name)
    assert new is not None
    nodes = [
        Node(
            i.name, "", Kind.SOURCE, (), (AxisMap(None),) * len(i.shape), i.shape, "f8", 8, i.chunks
        )
        for i in infos
    ]
    node = Node(
        name,
        operation.op,
        operation.kind,
        operation.labels,
        operation.out,
        new.shape,
        str(new.dtype),
        new.dtype.itemsize,
        new.chunks,
        tuple(Edge(n, read.axes) for n, read in enumerate(operation.inputs)),
    )
    validate(Program((*nodes, node), (len(nodes),)))
    cut = output_chunks(node, [label.cuts for label in node.labels])
    if isinstance(operation.kernel, Reshape):
        # possibly more coarsely than the graph
        for mine, theirs in zip(cut, new.chunks, strict=True):
            assert set(bounds(mine)) <= set(bounds(theirs))
    else:
        assert cut == new.chunks
    return node, infos


def written(
    view: GraphView, name: str, operation: Operation, rng: random.Random
) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """A recognised layer written for random tiles, and computed."""
    node, infos = node_of(view, name, operation)
    cuts = tuple(
        label.cuts if label.role is Role.WHOLE else random_cuts(rng, label.size)
        for label in node.labels
    )
    tiling = Tiling(cuts, output_chunks(node, cuts))
    tasks = {}
    for layer in view.graph.layers.values():
        tasks.update(dict(layer))
    for extra in infos:
        assert extra.name in view.graph.layers
    numbers = itertools.count()

    def fetch(edge: int, box: tuple, shares: object = None) -> str:
        layer = f"fetched-{next(numbers)}"
        for axis, size in zip(box, infos[edge].shape, strict=True):
            for window in axis:
                inside = range(*window)
                assert len(inside), window
                assert 0 <= inside[0] < size and 0 <= inside[-1] < size, (window, size)
        source, chunks = infos[edge].name, infos[edge].chunks
        tasks.update(reshard(layer, layer, source, chunks, normal(box)))
        return layer

    if getattr(operation.kernel, "fetches", False):
        inputs = ("",) * len(infos)
    else:
        inputs = tuple(
            fetch(
                number,
                tuple(
                    windows(axis, None if axis.label is None else cuts[axis.label], size)
                    for axis, size in zip(edge.axes, info.shape, strict=True)
                ),
            )
            for number, (edge, info) in enumerate(zip(node.edges, infos, strict=True))
        )
    context = LoweringContext(node, tiling, f"{name}-dasktile-0", inputs, fetch, view.graph)
    emitted = emit(operation.kernel, context)
    for layer in emitted.layers.values():
        tasks.update(dict(layer))
    keys = [(context.name, *place) for place in np.ndindex(*map(len, tiling.chunks))]
    blocks = np.empty(tuple(map(len, tiling.chunks)), dtype=object)
    for key, value in zip(keys, dask.get(tasks, keys), strict=True):
        expected = tuple(sizes[b] for sizes, b in zip(tiling.chunks, key[1:], strict=True))
        assert value.shape == expected
        # an array without axes becomes a scalar, in dask as well
        assert isinstance(value, (np.ndarray, np.generic) if not expected else np.ndarray)
        blocks[key[1:]] = value
    result = np.block(blocks.tolist()) if blocks.ndim else blocks[()]
    return np.asarray(result).reshape(node.shape), [tuple(map(len, cuts))]


def check(array: da.Array, expected: np.ndarray, rng: random.Random, least: int = 1) -> None:
    """Every view layer of an array has the values of dask in any tiles."""
    view = GraphView(array.__dask_graph__())
    views = 0
    for name in view.graph._toposort_layers():
        answer = recognise_layer(view, name)
        info = view.array(name)
        if isinstance(answer, Rechunked):
            old = view.array(answer.layer)
            assert old is not None and info is not None and old.shape == info.shape
            views += 1
            by_dask = computed(view, name, info)
            np.testing.assert_array_equal(computed(view, old.name, old), by_dask)
        elif answer is not None:
            assert info is not None
            views += 1
            result, _ = written(view, name, answer, rng)
            np.testing.assert_array_equal(result, computed(view, name, info))
    assert views >= least, [type(layer).__name__ for layer in view.graph.layers.values()]
    np.testing.assert_array_equal(array.compute(scheduler="sync"), expected)


def computed(view: GraphView, name: str, info: ArrayInfo) -> np.ndarray:
    array = da.Array(view.graph, name, info.chunks, dtype=info.dtype)
    return np.asarray(array.compute(scheduler="sync", optimize_graph=False))


def data(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(math.prod(shape), dtype="i8").reshape(shape)


def source(rng: random.Random, shape: tuple[int, ...]) -> tuple[np.ndarray, da.Array]:
    values = data(shape)
    chunks = tuple(random_cuts(rng, size) for size in shape)
    return values, da.from_array(values, chunks=chunks)


@pytest.fixture(params=range(5))
def rng(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.param)


SINGLE = {
    "slice": lambda x: x[2:9, 1:],
    "steps": lambda x: x[1::3, ::2],
    "backwards": lambda x: x[::-1, 8:2:-2],
    "integer": lambda x: x[3],
    "integers": lambda x: x[3, -1],
    "new axes": lambda x: x[None, :, None],
    "all at once": lambda x: x[None, 5, ::-2],
    "take": lambda x: x[[1, 5, 3, 3, 0, 11, 7]],
    "take of one": lambda x: x[:, [4, 4, 4]],
    "take in order": lambda x: x[[0, 1, 2, 5, 6, 7, 10]],
    "evenly spaced take": lambda x: x[[1, 4, 7, 10]],
    "mask": lambda x: x[np.array([1, 0, 0, 1, 1, 0, 1, 1, 0, 1, 0, 1], dtype=bool)],
    "transpose": lambda x: x.T,
    "roll": lambda x: np.roll(x, 3, axis=0),
    "roll back": lambda x: np.roll(x, -4, axis=1),
    "flip": lambda x: np.flip(x, axis=1),
    "rotate": lambda x: np.rot90(x),
    "squeeze": lambda x: np.squeeze(x[4:5], axis=0),
    "expand": lambda x: np.expand_dims(x, 1),
    "broadcast": lambda x: np.broadcast_to(x, (3, 12, 10)),
    "broadcast one row": lambda x: np.broadcast_to(x[4:5], (6, 10)),
    "move": lambda x: np.moveaxis(x, 0, -1),
    "swap": lambda x: np.swapaxes(x, 0, 1),
    "repeat": lambda x: np.repeat(x, 3, axis=1),
    "tile": lambda x: np.tile(x, (2, 3)),
    "pad with zeros": lambda x: np.pad(x, 2, mode="constant"),
    "pad with edges": lambda x: np.pad(x, ((1, 2), (3, 0)), mode="edge"),
    "pad around": lambda x: np.pad(x, 3, mode="wrap"),
    "pad by reflection": lambda x: np.pad(x, 3, mode="reflect"),
    "concatenate": lambda x: np.concatenate([x[:5], x[::-1], x[7:]]),
    "concatenate across": lambda x: np.concatenate([x, x[:, 3:4], x], axis=1),
    "stack": lambda x: np.stack([x, x[::-1], x], axis=1),
    "stack the same": lambda x: np.stack([x, x]),
    "block": lambda x: np.block([[x, x[:, :3]], [x[:4], x[:4, 7:]]]),
    "delete": lambda x: np.delete(x, 4, axis=0),
    "insert": lambda x: np.insert(x, 4, 7, axis=0),
    "ravel": lambda x: x.reshape(-1),
    "split an axis": lambda x: x.reshape(2, 6, 10),
    "split both": lambda x: x.reshape(3, 4, 5, 2),
    "reshape with ones": lambda x: x.reshape(1, 12, 1, 10, 1),
    "atleast": lambda x: np.atleast_3d(x),
}


@pytest.mark.parametrize("operation", SINGLE)
def test_views_in_any_tiles_equal_numpy(operation: str, rng: random.Random) -> None:
    values, array = source(rng, (12, 10))
    function = SINGLE[operation]
    with dask.config.set({"array.slicing.split-large-chunks": False}):
        check(function(array), np.asarray(function(values)), rng)


@pytest.mark.parametrize("seed", range(60))
def test_random_indices(seed: int) -> None:
    rng = random.Random(seed)
    shape = tuple(rng.randrange(1, 14) for _ in range(rng.randrange(1, 4)))
    values, array = source(rng, shape)
    index: list[object] = []
    taken = False
    for size in shape:
        kind = rng.choice(["slice", "slice", "integer", "new", "take"])
        if kind == "integer":
            index.append(rng.randrange(-size, size))
        elif kind == "take" and not taken:
            taken = True
            index.append([rng.randrange(size) for _ in range(rng.randrange(1, 8))])
        else:
            if kind == "new":
                index.append(None)
            step = rng.choice([1, 1, 2, 3, -1, -2])
            a, b = sorted(rng.sample(range(size + 1), 2)) if size > 1 else (0, 1)
            index.append(
                slice(a, b, step) if step > 0 else slice(b - 1, a - 1 if a else None, step)
            )
    if taken:
        # NumPy moves axes where integers and lists are apart; dask does not, and cannot
        # compute a list together with a new axis
        index = [i for i in index if i is not None]
        index = [slice(i, i + 1 or None) if isinstance(i, int) else i for i in index]
    check(array[tuple(index)], values[tuple(index)], rng, least=0)


@pytest.mark.parametrize("seed", range(40))
def test_random_reshapes(seed: int) -> None:
    rng = random.Random(seed)
    factors = [rng.choice([1, 2, 2, 3, 4]) for _ in range(5)]

    def merged() -> tuple[int, ...]:
        shape = [1]
        for factor in factors:
            if rng.random() < 0.5:
                shape.append(factor)
            else:
                shape[-1] *= factor
        return tuple(shape)

    old, new = merged(), merged()
    values, array = source(rng, old)
    try:
        reshaped = array.reshape(new)
    except NotImplementedError:
        pytest.skip("dask cannot")
    check(reshaped, values.reshape(new), rng, least=0)


@pytest.mark.parametrize("seed", range(40))
def test_random_concatenations(seed: int) -> None:
    rng = random.Random(seed)
    ndim = rng.randrange(1, 4)
    shape = [rng.randrange(1, 9) for _ in range(ndim)]
    axis = rng.randrange(ndim)
    pairs = []
    for _ in range(rng.randrange(2, 6)):
        if pairs and rng.random() < 0.2:
            pairs.append(rng.choice(pairs))
            continue
        if seed % 2:
            shape[axis] = rng.randrange(1, 9)
        pairs.append(source(rng, tuple(shape)))
    values, arrays = zip(*pairs, strict=True)
    check(da.concatenate(arrays, axis=axis), np.concatenate(values, axis=axis), rng)
    if not seed % 2:
        check(da.stack(arrays, axis=axis), np.stack(values, axis=axis), rng)


@pytest.mark.parametrize("seed", range(20))
def test_long_takes(seed: int) -> None:
    rng = random.Random(seed)
    values, array = source(rng, (60, 4))
    index = [rng.randrange(60) for _ in range(rng.randrange(2, 150))]
    if seed % 3 == 0:
        index.sort()
    check(array[index], values[index], rng)
    mask = np.array([rng.random() < 0.4 for _ in range(60)])
    mask[7] = True
    check(array[mask], values[mask], rng)
    permutation = rng.sample(range(60), 60)
    check(array.shuffle([permutation[:20], permutation[20:]], axis=0), values[permutation], rng)


def test_rechunk_is_the_same_array(rng: random.Random) -> None:
    _, array = source(rng, (12, 10))
    chunks = ((5, 5, 2), (3, 3, 3, 1))
    # dask returns the same array if it has these chunks already
    other = array if array.chunks != chunks else array.rechunk((6, 5))
    assert recognise(other.rechunk(chunks)) == Rechunked(other.name)


def test_operation_of_each_kind_of_view() -> None:
    x = da.from_array(data((12, 10)), chunks=(4, 5))
    operation = recognise(x[1::3, ::-1])
    assert isinstance(operation, Operation) and operation.kernel == Gather((0, 1))
    assert operation.inputs[0].axes == (AxisMap(0, 1, 3), AxisMap(1, 9, -1))
    assert [label.cuts for label in operation.labels] == [(1, 2, 1), (5, 5)]
    assert operation.op == "getitem" and operation.kind is Kind.VIEW

    operation = recognise(x[3])
    assert isinstance(operation, Operation) and operation.kernel == Gather((1,))
    assert operation.inputs[0].axes == (AxisMap(1, 3), AxisMap(0))
    assert operation.labels[1] == Label(1, Role.WHOLE, (1,))

    y = da.from_array(data((8, 10)) + 1, chunks=(4, 5))
    operation = recognise(da.concatenate([x, y]))
    assert isinstance(operation, Operation) and isinstance(operation.kernel, Concatenate)
    assert [read.axes[0] for read in operation.inputs] == [AxisMap(0), AxisMap(0, -12)]

    operation = recognise(da.stack([x, x + 1]))
    assert isinstance(operation, Operation) and isinstance(operation.kernel, Concatenate)
    assert [read.axes for read in operation.inputs] == [(AxisMap(1), AxisMap(2))] * 2
    assert [read.within for read in operation.inputs] == [(0, 0, 1), (0, 1, 2)]

    operation = recognise(x[[5, 1, 4]])
    assert isinstance(operation, Operation) and isinstance(operation.kernel, Take)
    assert operation.inputs[0].axes == (AxisMap(2, 1, 1, 5), AxisMap(1))

    operation = recognise(da.repeat(x[:4], 2, axis=0))
    assert isinstance(operation, Operation)


def test_pieces_of_a_concatenation_are_read_within_their_range() -> None:
    x = da.from_array(data((12, 10)), chunks=(4, 5))
    program = capture([da.stack([x, x + 1, x * 2], axis=1)]).program
    node = program.nodes[-1]
    label = node.out[1].label
    assert [edge.within for edge in node.edges] == [(label, k, k + 1) for k in range(3)]

    def within(array: da.Array) -> list[tuple[int, int, int] | None]:
        return [edge.within for edge in capture([array]).program.nodes[-1].edges]

    # the ends of the array bound the range
    assert within(da.concatenate([x, x + 1])) == [None, None]
    assert within(da.roll(x, 5, axis=0)) == [None, None]
    # they do not
    row = da.ones((1, 10), chunks=(1, 5))
    assert within(da.concatenate([x, row, row + 1])) == [None, (0, 12, 13), (0, 13, 14)]
    wide = da.broadcast_to(da.arange(10, chunks=5), (3, 10)) + 0.0
    assert within(da.concatenate([x, wide])) == [None, None]


@pytest.mark.parametrize("join", [da.stack, da.concatenate])
def test_capture_is_linear_in_the_number_of_arrays(join: Callable[..., da.Array]) -> None:
    def calls(count: int) -> int:
        random = da.random.default_rng(0)
        arrays = [random.random((4, 2), chunks=(2, 2)) for _ in range(count)]
        profile = cProfile.Profile()
        joined = join(arrays)
        profile.runcall(capture, [joined])
        return sum(entry.callcount for entry in profile.getstats())

    assert calls(400) < 5 * calls(100)


def test_reshapes_loop_over_the_coarser_axis() -> None:
    x = da.from_array(data((8, 6)), chunks=(4, 3))
    operation = recognise(x.reshape(48))
    assert isinstance(operation, Operation) and operation.kernel == Reshape()
    assert operation.inputs[0].axes == (AxisMap(0), AxisMap(None))
    assert operation.out == (AxisMap(0, 0, 6, 6),)

    operation = recognise(x.reshape(2, 4, 6))
    assert isinstance(operation, Operation)
    assert operation.inputs[0].axes == (AxisMap(0, 0, 4, 4), AxisMap(1))
    assert operation.out == (AxisMap(0), AxisMap(None), AxisMap(1))


def test_a_reshape_cut_within_its_loop_is_cut_more_coarsely(rng: random.Random) -> None:
    values = data((16, 12, 4))
    x = da.from_array(values, chunks=(1, 6, 4))
    y = x.reshape(-1)
    assert y.chunks == ((24,) * 32,)
    operation = recognise(y)
    assert isinstance(operation, Operation) and operation.labels == (
        Label(16, Role.FREE, (1,) * 16),
    )
    check(y, values.reshape(-1), rng)
    assert recognise(da.from_array(values, chunks=(1, 1, 4)).reshape(-1)) is None
    few = da.from_array(data((2, 12, 4)), chunks=(1, 6, 4))
    assert recognise(few.reshape(-1)) is None


def test_groups_of_axes() -> None:
    assert groups((8, 6), (48,)) == [((0, 1), (0,))]
    assert groups((4, 1, 6, 5), (2, 2, 30, 1)) == [((0,), (0, 1)), ((2, 3), (2,))]
    assert groups((1, 1), (1,)) == []


def test_blockwise_reshape_is_not_a_reshape() -> None:
    x = da.from_array(data((4, 4, 4)), chunks=(2, 2, 2))
    assert recognise(da.reshape_blockwise(x, (4, 16))) is None


def test_repeat_widens_its_axis() -> None:
    x = da.from_array(data((4, 6)), chunks=(4, 3))
    view = GraphView(da.repeat(x, 2, axis=0).__dask_graph__())
    kinds = [recognise_layer(view, name) for name in view.graph.layers]
    (kernel,) = (k.kernel for k in kinds if isinstance(k, Operation) and k.op == "repeat")
    assert (kernel.function, kernel.after, kernel.kwargs) == (np.repeat, (2,), {"axis": 0})


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.map_blocks(lambda block: block[::-1]),
        lambda x: x.map_blocks(np.sort),
        lambda x: x + 1,
        lambda x: x.sum(axis=0),
        lambda x: x.vindex[[0, 1], [2, 3]],
        lambda x: da.random.random((4, 4), chunks=2),
        lambda x: da.from_delayed(dask.delayed(np.ones)(3), (3,), float),
        lambda x: x,
    ],
)
def test_layers_that_are_not_views_are_unchanged(make: object) -> None:
    x = da.from_array(data((6, 5)), chunks=(4, 3))
    assert recognise(make(x)) is None  # type: ignore[operator]


def test_an_unknown_function_is_never_run() -> None:
    def spy(block: object) -> object:
        raise AssertionError("run during capture")

    x = da.from_array(data((6, 5)), chunks=(4, 3))
    name = "spied"
    tasks = {(name, *place): (spy, (x.name, *place)) for place in np.ndindex(*x.numblocks)}
    graph = HighLevelGraph.from_collections(name, tasks, dependencies=[x])
    assert recognise(da.Array(graph, name, x.chunks, dtype=x.dtype)) is None


def test_a_misaligned_block_is_not_a_view() -> None:
    x = da.from_array(data((6, 6)), chunks=(3, 3))
    name = "swapped"
    tasks = {(name, *place): (x.name, *place) for place in np.ndindex(2, 2)}
    tasks[(name, 0, 1)], tasks[(name, 1, 1)] = (x.name, 1, 1), (x.name, 0, 1)
    graph = HighLevelGraph.from_collections(name, tasks, dependencies=[x])
    assert recognise(da.Array(graph, name, x.chunks, dtype=x.dtype)) is None


def test_p2p_rechunk_is_the_same_array() -> None:
    shuffle = pytest.importorskip("distributed.shuffle._rechunk")
    x = da.from_array(data((6, 6)), chunks=(3, 3))
    rechunked = shuffle.rechunk_p2p(
        x, ((2, 4), (6,)), threshold=4, block_size_limit=1, balance=False
    )
    layers = {type(layer).__name__ for layer in rechunked.__dask_graph__().layers.values()}
    assert "P2PRechunkLayer" in layers
    same = recognise(rechunked)
    assert isinstance(same, Rechunked)
    if same.layer != x.name:
        assert recognise_layer(GraphView(rechunked.__dask_graph__()), same.layer) == Rechunked(
            x.name
        )


def test_large_layers_are_traced_in_limited_time() -> None:
    x = da.ones((1000, 1000), chunks=(25, 25))
    y = x.rechunk((40, 40))
    view = GraphView(y.__dask_graph__())
    start = time.perf_counter()
    assert recognise_layer(view, y.name) == Rechunked(x.name)
    assert time.perf_counter() - start < 5


# --- map_overlap -----------------------------------------------------------------------


def smooth(block: np.ndarray, weight: int = 1) -> np.ndarray:
    padded = np.pad(block, ((2, 2), (1, 1)), mode="edge")
    rows, columns = block.shape
    return sum(
        (weight + i) * padded[i : i + rows, j : j + columns] for i in range(5) for j in range(3)
    )


@pytest.fixture
def registered() -> Iterator[None]:
    registry.register_kernel(smooth, halo={0: 2, -1: 1})
    yield
    registry._registered.pop(id(smooth))
    del smooth.__dict__[registry._ATTRIBUTE]


@pytest.mark.parametrize("boundary", ["none", "reflect", "periodic", 7, {0: "none", 1: "nearest"}])
def test_registered_stencils(registered: None, boundary: object, rng: random.Random) -> None:
    values = data((20, 14))
    chunks = (rng.choice([(20,), (9, 11), (5, 5, 10)]), rng.choice([(14,), (6, 8), (4, 4, 6)]))
    x = da.from_array(values, chunks=chunks)
    y = da.map_overlap(smooth, x, depth={0: 2, 1: 1}, boundary=boundary, weight=3, dtype="i8")
    operation = recognise(y)
    assert isinstance(operation, Operation) and isinstance(operation.kernel, Stencil)
    assert [label.role for label in operation.labels] == [Role.FREE, Role.FREE]
    assert [axis.width for axis in operation.inputs[0].axes] == [5, 3]
    check(y, y.compute(scheduler="sync"), rng)
    if boundary == "none":
        np.testing.assert_array_equal(y.compute(scheduler="sync"), smooth(values, 3))


def test_asymmetric_depth(registered: None, rng: random.Random) -> None:
    values, x = source(rng, (20, 14))
    depth = {0: (2, 3), 1: (4, 1)}
    y = da.map_overlap(smooth, x, depth=depth, boundary="none", dtype="i8")
    assert isinstance(recognise(y), Operation)
    check(y, smooth(values), rng)


def test_a_depth_below_the_halo_depends_on_the_blocks(registered: None) -> None:
    x = da.from_array(data((20, 14)), chunks=(10, 7))
    y = da.map_overlap(smooth, x, depth=1, boundary="none", dtype="i8")
    assert recognise(y) is None


def test_unregistered_stencils_are_unchanged() -> None:
    x = da.from_array(data((20, 14)), chunks=(10, 7))
    y = da.map_overlap(smooth, x, depth=2, boundary="none", dtype="i8")
    assert recognise(y) is None


# --- captured, tiled at random, lowered ------------------------------------------------


def retiled(array: da.Array, rng: random.Random) -> np.ndarray:
    captured = capture([array])
    tilings = []
    for node in captured.program.nodes:
        free = not node.pinned
        cuts = tuple(
            random_cuts(rng, label.size) if free and label.role is Role.FREE else label.cuts
            for label in node.labels
        )
        chunks = output_chunks(node, cuts) if free else node.chunks
        tilings.append(Tiling(cuts, chunks))
    lowered = lower(captured, TiledProgram(captured.program, (), tuple(tilings)))
    result = da.Array(lowered.graph, lowered.names[0], lowered.chunks[0], dtype=array.dtype)
    return np.asarray(result.compute(scheduler="sync"))


@pytest.mark.parametrize("operation", SINGLE)
def test_whole_programs_of_views(operation: str, rng: random.Random) -> None:
    values, array = source(rng, (12, 10))
    function = SINGLE[operation]
    expected = np.asarray(function(values * 2)) + 1
    np.testing.assert_array_equal(retiled(function(array * 2) + 1, rng), expected)


@pytest.mark.parametrize("seed", range(100))
def test_chains_of_views(seed: int) -> None:
    rng = random.Random(seed)
    values, array = source(rng, (8, 12))
    for _ in range(rng.randrange(2, 7)):
        name, function = rng.choice(sorted(CHAIN.items()))
        del name
        if rng.random() < 0.3:
            array = array.rechunk(tuple(random_cuts(rng, size) for size in array.shape))
        values, array = function(values), function(array)
    np.testing.assert_array_equal(retiled(array, rng), values)


CHAIN = {
    "rows": lambda x: x[1:-1] if x.shape[0] > 4 else x,
    "even": lambda x: x[:, ::2] if x.shape[1] > 4 else x,
    "flip": lambda x: np.flip(x, axis=0),
    "roll": lambda x: np.roll(x, 2, axis=1),
    "transpose": lambda x: x.T,
    "double": lambda x: np.concatenate([x, x[::-1] + 1], axis=0) if x.size < 400 else x,
    "stack": lambda x: np.stack([x, x[:, ::-1]]).reshape(-1, x.shape[1]) if x.size < 400 else x,
    "take": lambda x: x[[0, -1, 1, 1, 0]] if x.shape[0] > 1 else x,
    "add": lambda x: x + x[:1],
    "repeat": lambda x: np.repeat(x, 2, axis=0) if x.size < 400 else x,
    "flat": lambda x: np.broadcast_to(x.reshape(1, -1), (2, x.size)) if x.size < 200 else x,
    "sum": lambda x: np.expand_dims(x.sum(axis=0), 0) + x,
    "pad": lambda x: np.pad(x, 1, mode="edge") if x.size < 400 else x,
}


def test_stencils_in_a_program(registered: None, rng: random.Random) -> None:
    values, x = source(rng, (20, 14))
    y = da.map_overlap(smooth, x + 1, depth={0: 2, 1: 1}, boundary="none", dtype="i8")
    np.testing.assert_array_equal(retiled(y[::-1] * 2, rng), smooth(values + 1)[::-1] * 2)
    y = da.map_overlap(smooth, x, depth={0: 2, 1: 1}, boundary="periodic", dtype="i8")
    expected = smooth(np.pad(values, ((2, 2), (1, 1)), mode="wrap"))[2:-2, 1:-1]
    np.testing.assert_array_equal(retiled(y, rng), expected)


@pytest.mark.parametrize("reduction", [np.sum, np.mean, np.std, np.max, np.median, da.mean])
def test_neighbours_that_are_coarsened_in_any_tiles(reduction: Any, rng: random.Random) -> None:
    values, array = source(rng, (13, 12))  # the last row is left out
    lazy = da.coarsen(reduction, array, {0: 2, 1: 3}, trim_excess=True)
    numpy = getattr(np, reduction.__name__)
    check(lazy, numpy(values[:12].reshape(6, 2, 4, 3), axis=(1, 3)), rng)


def test_arguments_of_the_function_that_coarsens(rng: random.Random) -> None:
    values, array = source(rng, (8, 6))
    lazy = da.coarsen(np.var, array, {0: 4}, ddof=1, dtype="f4")
    check(lazy, values.reshape(2, 4, 6).var(axis=1, ddof=1, dtype="f4"), rng)


def test_a_function_of_the_user_in_coarsen_reads_its_own_block_alone() -> None:
    def spread(block: Any, axis: Any = None) -> Any:
        return block.max(axis=axis) - block.min(axis=axis)

    node = capture([da.coarsen(spread, da.ones((12, 9), chunks=3), {1: 3})]).program.nodes[-1]
    assert node.reason == "the result of spread in coarsen may depend on the chunks"
    assert node.kind is Kind.OPAQUE
    assert [edge.axes for edge in node.edges] == [(AxisMap(0), AxisMap(1, 0, 3, 3))]


def test_blocks_that_are_transposed_in_place_are_no_transpose_of_the_array():
    x = da.from_array(np.arange(36).reshape(6, 6), chunks=3)
    in_place = da.blockwise(np.transpose, "ij", x, "ij", dtype=x.dtype)
    assert recognise(x.T) is not None
    assert recognise(in_place) is None


@pytest.mark.parametrize(
    "make",
    [lambda x: x[:, None], lambda x: x[None, :, None], lambda x: x[:, None][:, 0]],
    ids=["new axis", "new axes", "only element"],
)
def test_the_same_index_of_many_blocks_is_read_off_once(make: Callable[[Any], Any]) -> None:
    array = make(da.ones(100, chunks=1))
    with mock.patch.object(Trace, "block", side_effect=AssertionError):
        operation = recognise(array)
    with mock.patch.object(slabs, "_indexed", return_value=None):
        traced = recognise(array)
    assert isinstance(operation, Operation) and operation == traced


def test_other_blocks_at_the_same_index_are_traced() -> None:
    x = da.ones(4, chunks=1)
    y = x[:, None]
    tasks = dict(y.dask.layers[y.name])
    keys = list(tasks)
    swapped = {
        key: tasks[other].substitute({}, key) for key, other in zip(keys, keys[::-1], strict=True)
    }
    layer = MaterializedLayer(swapped)
    layer.collection_annotations = y.dask.layers[y.name].collection_annotations
    graph = HighLevelGraph({**y.dask.layers, y.name: layer}, y.dask.dependencies)
    operation = recognise_layer(GraphView(graph), y.name)
    assert isinstance(operation, Operation)
    [edge] = operation.inputs
    assert edge.axes[0].step == -1


@pytest.mark.parametrize("chunks", [(3, 8), (2, 4), ((1, 5, 2, 4), 8), ((6, 2, 4), (3, 5))])
def test_smaller_chunks_are_read_off_without_a_trace(chunks: Any) -> None:
    x = da.ones((12, 8), chunks=(6, 8))
    y = x.rechunk(chunks)
    with mock.patch.object(Trace, "block", side_effect=AssertionError):
        assert recognise(y) == Rechunked(x.name)
    with mock.patch.object(slabs, "_divided", return_value=None):
        assert recognise(y) == Rechunked(x.name)


def test_blocks_that_are_cut_in_another_order_are_traced() -> None:
    x = da.ones((12, 8), chunks=(6, 8))
    y = x.rechunk((3, 8))
    [(name, layer)] = [(name, layer) for name, layer in y.dask.layers.items() if name != x.name]
    blocks = [(name, number, 0) for number in range(4)]
    others = [blocks[at] for at in (1, 0, 3, 2)]
    tasks = dict(layer)
    for block, other in zip(blocks, others, strict=True):
        tasks[block] = layer[other].substitute({}, block)
    swapped = MaterializedLayer(tasks)
    swapped.collection_annotations = layer.collection_annotations
    graph = HighLevelGraph({**y.dask.layers, name: swapped}, y.dask.dependencies)
    operation = recognise_layer(GraphView(graph), name)
    assert isinstance(operation, Operation) and isinstance(operation.kernel, Concatenate | Take)
