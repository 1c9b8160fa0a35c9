"""Reductions and running reductions: recognised, and equal to NumPy in any tiles."""

from __future__ import annotations

import functools
import operator
import pickle
import warnings
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.sizeof import sizeof
from distributed.protocol import pickle as protocol

from dasktile.capture.base import ArrayInfo, Captured, GraphView, NotRecognised
from dasktile.capture.rules.folds import RECOGNISERS, ArgFold, Fold
from dasktile.capture.rules.scans import Scan
from dasktile.capture.rules.sources import InMemory
from dasktile.ir import (
    AxisMap,
    Kind,
    Label,
    Node,
    Program,
    Role,
    TiledProgram,
    Tiling,
    validate,
)
from dasktile.ir import Edge as ReadEdge
from dasktile.lower.writer import lower
from tests.support import sharded

CHUNKS = [((4, 3, 5), (6, 3)), ((12,), (9,)), ((1,) * 12, (2, 3, 4)), ((12,), (3, 3, 3))]


def recognised(x):
    """The operation of an array's own layer, or None."""
    view = GraphView(x.dask, {x.name: ArrayInfo(x.name, x.shape, x.dtype, x.chunks)})
    for recognise in RECOGNISERS:
        operation = recognise(view, x.name)
        if operation is not None:
            return None if isinstance(operation, NotRecognised) else operation
    return None


def tiled(x, arrays, cuts=None, mesh=(), cut_by=(), scatter=(), chunks=None):
    """`x` computed with other tiles.

    `arrays` are the values of the arrays that the operation reads, by layer name; `cuts`
    the chunk sizes of the labels.
    """
    operation = recognised(x)
    assert operation is not None
    cuts = tuple(label.cuts for label in operation.labels) if cuts is None else cuts
    nodes, kernels, tilings, edges = [], [], [], []
    for read in operation.inputs:
        value = arrays[read.layer]
        whole = tuple((size,) for size in value.shape)
        labels = tuple(Label(size, Role.FREE, (size,)) for size in value.shape)
        maps = tuple(AxisMap(axis) for axis in range(value.ndim))
        nodes.append(
            Node(read.layer, "array", Kind.SOURCE, labels, maps, value.shape, str(value.dtype),
                 value.itemsize, whole)
        )  # fmt: skip
        kernels.append(InMemory(value))
        tilings.append(Tiling(whole, whole))
        edges.append(ReadEdge(len(nodes) - 1, read.axes))
    node = Node(
        x.name,
        operation.op,
        operation.kind,
        operation.labels,
        operation.out,
        x.shape,
        str(x.dtype),
        x.dtype.itemsize,
        x.chunks,
        tuple(edges),
        operation.partial,
        operation.work,
    )
    nodes.append(node)
    kernels.append(operation.kernel)
    tilings.append(sharded(node, cuts, mesh, cut_by or (None,) * len(mesh), scatter, chunks))
    program = Program(tuple(nodes), (len(nodes) - 1,))
    validate(program)
    captured = Captured(program, tuple(kernels), x.dask)
    lowered = lower(captured, TiledProgram(program, mesh, tuple(tilings)))
    y = da.Array(lowered.graph, lowered.names[0], lowered.chunks[0], dtype=x.dtype)
    assert y.shape == x.shape
    return y, lowered.graph


def random_cuts(rng, size):
    count = int(rng.integers(1, size + 1))
    inner = np.sort(rng.choice(np.arange(1, size), count - 1, replace=False)) if size > 1 else []
    edges = [0, *map(int, inner), size]
    return tuple(b - a for a, b in zip(edges[:-1], edges[1:], strict=True))


def agree(y, expected, exact):
    """Compare block by block, so that every block has its declared shape."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        pieces = dask.compute(*y.to_delayed().ravel(), scheduler="sync")
    expected = np.asarray(expected)
    assert y.shape == expected.shape
    edges = [np.cumsum((0, *sizes)) for sizes in y.chunks]
    for block, piece in zip(np.ndindex(*y.numblocks), pieces, strict=True):
        index = tuple(slice(edge[at], edge[at + 1]) for edge, at in zip(edges, block, strict=True))
        part = expected[index]
        assert np.shape(piece) == part.shape
        assert piece.dtype == expected.dtype
        if exact:
            np.testing.assert_array_equal(piece, part)
        else:
            rtol = 2e-4 if piece.dtype.itemsize == 4 else 1e-9
            np.testing.assert_allclose(piece, part, rtol=rtol)


def values(dtype, shape=(12, 9), missing=False, seed=0):
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.4
    if dtype.kind in "iu":
        return rng.integers(0, 7, shape).astype(dtype)
    x = rng.standard_normal(shape)
    if dtype.kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    if missing:
        x[rng.random(shape) < 0.3] = np.nan
        x[:, 0] = 1
    return x.astype(dtype)


PLAIN = ["sum", "prod", "any", "all", "min", "max", "mean", "var"]
MISSING = ["nansum", "nanprod", "nanmin", "nanmax", "nanmean", "nanvar"]


def check(x, a, expected, exact, seed=0, rounds=3):
    rng = np.random.default_rng(seed)
    operation = recognised(x)
    assert operation is not None, x.name
    layer = operation.inputs[0].layer
    agree(tiled(x, {layer: a})[0], expected, exact)
    for _ in range(rounds):
        cuts = tuple(random_cuts(rng, label.size) for label in operation.labels)
        agree(tiled(x, {layer: a}, cuts)[0], expected, exact)


@pytest.mark.parametrize(
    ("axis", "keepdims", "split_every"),
    [(None, False, None), (0, True, 2), (1, False, 2), ((1, 0), True, None)],
)
@pytest.mark.parametrize("dtype", ["f8", "f4", "c16", "i4", "bool"])
@pytest.mark.parametrize("name", PLAIN + MISSING)
def test_reductions(name, dtype, axis, keepdims, split_every):
    a = values(dtype, missing=name.startswith("nan") and np.dtype(dtype).kind == "f")
    for at, chunks in enumerate(CHUNKS[keepdims::2]):
        x = getattr(da, name)(
            da.from_array(a, chunks), axis=axis, keepdims=keepdims, split_every=split_every
        )
        expected = getattr(np, name)(a, axis=axis, keepdims=keepdims)
        exact = x.dtype.kind in "bi" or name.endswith(("min", "max"))
        if x.dtype != np.asarray(expected).dtype:
            expected = np.asarray(expected).astype(x.dtype)
        operation = recognised(x)
        assert operation.op == name and operation.kind is Kind.FOLD
        check(x, a, expected, exact, seed=at, rounds=1)


def test_labels_maps_and_partials():
    a = values("f8")
    x = da.from_array(a, ((4, 3, 5), (6, 3)))
    operation = recognised(x.mean(axis=0, keepdims=True))
    assert operation.labels == (Label(12, Role.REDUCE, (4, 3, 5)), Label(9, Role.FREE, (6, 3)))
    assert operation.out == (AxisMap(None), AxisMap(1))
    assert operation.inputs[0].layer == x.name
    assert operation.inputs[0].axes == (AxisMap(0), AxisMap(1))
    assert isinstance(operation.kernel, Fold)
    # all counts of a tile are one number
    assert operation.partial == 8
    assert recognised(da.nanmean(x, axis=0)).partial == 16
    assert recognised(x.sum(axis=1)).partial == 8
    assert recognised(x.var()).partial == 16
    assert recognised(da.nanvar(x)).partial == 24
    assert recognised(da.moment(x, 4)).partial == 32
    assert recognised(x.argmin(axis=1)).partial == 16
    assert isinstance(recognised(x.argmin(axis=1)).kernel, ArgFold)
    assert isinstance(recognised(x.cumsum(axis=1)).kernel, Scan)


@pytest.mark.parametrize("split_every", [None, 2, {0: 3, 1: 2}])
def test_three_axes(split_every):
    a = values("f8", (6, 7, 8))
    x = da.from_array(a, (2, 3, 3))
    for axis in [(0, 2), (1, 2), 1, (0, 1, 2)]:
        check(x.sum(axis, split_every=split_every), a, a.sum(axis), False, rounds=1)
        check(x.var(axis, ddof=1), a, a.var(axis, ddof=1), False, rounds=1)


@pytest.mark.parametrize("order", [2, 3, 4])
def test_moments(order):
    a = values("f8")
    expected = ((a - a.mean(axis=0)) ** order).mean(axis=0)
    for chunks in CHUNKS:
        check(da.moment(da.from_array(a, chunks), order, axis=0), a, expected, False)


def test_nanvar_of_blocks_without_numbers():
    a = values("f8")
    a[:4] = np.nan
    for chunks in CHUNKS:
        for split_every in (None, 2):
            x = da.nanvar(da.from_array(a, chunks), axis=0, split_every=split_every)
            check(x, a, np.nanvar(a, axis=0), False)


def test_variance_in_integers_depends_on_chunks():
    x = da.from_array(values("i4"), (4, 3))
    assert recognised(x.var(dtype="i4")) is None
    assert recognised(x.var()) is not None


@pytest.mark.parametrize("dtype", ["f8", "i4"])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("name", ["argmin", "argmax", "nanargmin", "nanargmax"])
def test_position_of_an_extremum(name, axis, keepdims, dtype):
    a = values(dtype, missing=name.startswith("nan") and dtype == "f8")
    expected = getattr(np, name)(a, axis=axis, keepdims=keepdims)
    for chunks in CHUNKS:
        for split_every in (None, 2):
            x = getattr(da, name)(
                da.from_array(a, chunks), axis=axis, keepdims=keepdims, split_every=split_every
            )
            if axis is None and sum(len(sizes) > 1 for sizes in chunks) > (len(chunks[1]) == 1):
                assert recognised(x) is None
            else:
                assert recognised(x).op == name
                check(x, a, expected, True, rounds=1)


def test_first_of_equal_extrema_wins():
    a = np.zeros((12, 9))
    x = da.from_array(a, ((4, 8), (9,)))
    check(x.argmin(), a, 0, True)
    a[3:, 2] = -1
    check(x.argmin(), a, a.argmin(), True)
    check(x.argmin(axis=0), a, a.argmin(axis=0), True)


def test_infinity_wins_over_missing_numbers():
    a = np.array([[np.nan, np.nan], [np.nan, np.inf], [1.0, np.inf]])
    x = da.from_array(a, ((3,), (2,)))
    for cuts in [((3,), (2,)), ((2, 1), (2,)), ((1, 1, 1), (2,))]:
        y, _ = tiled(da.nanargmin(x, axis=0), {x.name: a}, cuts)
        agree(y, np.array([2, 1]), True)


def test_slices_of_nan_only_are_an_error():
    a = np.full((4, 3), np.nan)
    x = da.from_array(a, (2, 3))
    y, _ = tiled(da.nanargmax(x, axis=0), {x.name: a}, ((1, 3), (3,)))
    with pytest.raises(ValueError, match="All NaN"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        y.compute(scheduler="sync")


@pytest.mark.parametrize("method", ["sequential", "blelloch"])
@pytest.mark.parametrize("dtype", ["f8", "f4", "i4", "c16", "bool"])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "nancumsum", "nancumprod"])
def test_scans(name, dtype, method):
    a = values(dtype, missing=name.startswith("nan") and dtype == "f8")
    for axis in (0, 1):
        for chunks in CHUNKS[axis::2]:
            x = getattr(da, name)(da.from_array(a, chunks), axis=axis, method=method)
            operation = recognised(x)
            assert operation.op == name and operation.kind is Kind.SCAN
            assert [label.role is Role.SCAN for label in operation.labels] == [
                axis == 0,
                axis == 1,
            ]
            expected = getattr(np, name)(a, axis=axis)
            check(x, a, expected, x.dtype.kind == "i", rounds=1)


def test_scan_of_one_axis():
    a = np.arange(20) + 0.5
    check(da.from_array(a, 4).cumsum(0), a, a.cumsum(), False)


@pytest.mark.parametrize("k", [1, 3, -2])
@pytest.mark.parametrize("axis", [0, 1])
def test_topk(k, axis):
    for dtype in ("f8", "i4"):
        a = values(dtype)
        ordered = np.sort(a, axis=axis)
        expected = np.take(ordered, range(-k) if k < 0 else range(-1, -k - 1, -1), axis=axis)
        for chunks in CHUNKS:
            for split_every in (None, 2):
                x = da.topk(da.from_array(a, chunks), k, axis=axis, split_every=split_every)
                check(x, a, expected, True, rounds=1)


def test_topk_of_fewer_elements_is_unchanged():
    x = da.from_array(values("f8"), (4, 3))
    assert recognised(da.topk(x, 20, axis=0)) is None


def test_argtopk_is_unchanged():
    """Which of equal elements it returns depends on the chunks; other axes are read apart."""
    x = da.argtopk(da.from_array(values("f8"), (4, 3)), 2, axis=0)
    view = GraphView(x.dask, {x.name: ArrayInfo(x.name, x.shape, x.dtype, x.chunks)})
    answers = [recognise(view, x.name) for recognise in RECOGNISERS]
    [refused] = [answer for answer in answers if isinstance(answer, NotRecognised)]
    assert "equal elements" in refused.reason
    [read] = refused.known.inputs
    assert read.axes == (AxisMap(None), AxisMap(1))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bins", [5, [-2.0, 0.0, 0.5, 3.0]])
def test_histogram(bins, weighted):
    a, w = values("f8"), values("f8", seed=1)
    expected = np.histogram(a, bins, range=(-2, 2), weights=w if weighted else None)[0]
    rng = np.random.default_rng(0)
    for chunks in CHUNKS:
        x, wx = da.from_array(a, chunks), da.from_array(w, chunks)
        y, _ = da.histogram(x, bins, range=(-2, 2), weights=wx if weighted else None)
        operation = recognised(y)
        assert operation.op == "histogram"
        assert all(label.role is Role.REDUCE for label in operation.labels)
        for _ in range(3):
            cuts = tuple(random_cuts(rng, size) for size in a.shape)
            agree(tiled(y, {x.name: a, wx.name: w}, cuts)[0], expected, not weighted)


def test_histogram_with_computed_bins_is_unchanged():
    x = da.from_array(values("f8"), (4, 3))
    y, _ = da.histogram(x, bins=4, range=(x.min(), x.max()))
    assert recognised(y) is None


def test_histogram_weighted_by_itself():
    a = values("f8")
    x = da.from_array(a, (4, 3))
    y, _ = da.histogram(x, 4, range=(-2, 2), weights=x)
    z, _ = tiled(y, {x.name: a}, ((5, 7), (9,)))
    agree(z, np.histogram(a, 4, range=(-2, 2), weights=a)[0], False)


@pytest.mark.parametrize("weighted", [False, True])
def test_bincount(weighted):
    a, w = values("i8", (20,)), values("f8", (20,))
    expected = np.bincount(a, w if weighted else None, minlength=9)
    for chunks in (4, 20, 1):
        x, wx = da.from_array(a, chunks), da.from_array(w, chunks)
        y = da.bincount(x, wx if weighted else None, minlength=9)
        for cuts in [((20,),), ((7, 13),), ((1,) * 20,)]:
            agree(tiled(y, {x.name: a, wx.name: w}, cuts)[0], expected, not weighted)
        assert recognised(da.bincount(x)) is None


def test_unsupported_functions_are_unchanged():
    x = da.from_array(values("f8"), (4, 3))

    def own(block, axis, keepdims):
        return np.sum(block, axis=axis, keepdims=keepdims)

    def reduction(*functions, **more):
        return recognised(da.reduction(x, *functions, dtype="f8", axis=0, **more))

    assert reduction(own, own) is None
    assert reduction(np.sum, np.max) is None
    assert reduction(functools.partial(np.sum, initial=1), np.sum) is None
    assert reduction(np.sum, np.sum, combine=np.max, split_every=2) is None
    assert reduction(np.sum, np.sum, weights=x) is None
    assert reduction(np.sum, np.sum) is not None
    scan = da.reductions.cumreduction
    assert recognised(scan(np.cumsum, operator.mul, 0, x, axis=0)) is None
    assert recognised(scan(np.maximum.accumulate, np.maximum, -np.inf, x, axis=0)) is None


def test_reductions_that_depend_on_chunks_are_unchanged():
    x = da.from_array(values("f8"), (4, 3))
    assert recognised(x.astype("f2").sum()) is None
    assert recognised(da.from_array(np.array([1, "a", None], dtype=object), 1).sum()) is None
    empty = da.from_array(values("f8"), ((4, 0, 8), (9,)))
    assert recognised(empty.max(axis=0)) is None
    masked = x[x > 0]
    assert recognised(masked.sum()) is None
    assert recognised(x + 1) is None
    assert recognised(x) is None


def test_datetimes():
    a = np.arange("2020-01-01", "2020-02-01", dtype="M8[D]")
    check(da.from_array(a, 7).max(), a, a.max(), True)


def test_masked_arrays():
    a = np.ma.masked_greater(values("f8"), 0.5)
    x = da.from_array(a, (4, 3))
    y, _ = tiled(x.sum(axis=0), {x.name: a}, ((5, 7), (4, 5)))
    np.testing.assert_allclose(y.compute(scheduler="sync"), a.sum(axis=0))
    y, _ = tiled(da.ma.count(x, axis=1), {x.name: a}, ((5, 7), (4, 5)))
    np.testing.assert_array_equal(y.compute(scheduler="sync"), a.count(axis=1))


@pytest.mark.parametrize("function", [da.mean, da.var, da.nanmean])
@pytest.mark.parametrize("combined", [False, True])
def test_bytes_of_partial_results(function: Any, combined: bool) -> None:
    a = values("f8", (24, 20))
    operation = recognised(function(da.from_array(a, (6, 5)), axis=0))
    fold = operation.kernel
    assert isinstance(fold, Fold)
    made = fold.chunk(a)
    if combined:
        made = fold.combine([fold.chunk(a[:10]), fold.chunk(a[10:])])
    assert pickle.loads(pickle.dumps(made))["n"].tolist() == [[24] * 20]
    sent = sum(sizeof(array) - sizeof(np.empty(0)) for array in made.values())
    assert sent == pytest.approx(20 * operation.partial, abs=16)


@pytest.mark.parametrize("name", ["argmin", "argmax", "nanargmin", "nanargmax", "mean", "var"])
def test_graphs_from_another_process(name: str) -> None:
    """A scheduler tiles what a client has sent."""
    a = values("f8", (24, 20))
    x = getattr(da, name)(da.from_array(a, (6, 5)), axis=0)
    sent = da.Array(protocol.loads(protocol.dumps(x.dask)), x.name, x.chunks, dtype=x.dtype)
    assert recognised(sent).op == name == recognised(x).op


def test_counts_of_masked_arrays_differ() -> None:
    a = np.ma.masked_greater(values("f8", (24, 20)), 1)
    operation = recognised(da.from_array(np.zeros((24, 20)), (6, 5)).mean(axis=0))
    fold = operation.kernel
    assert isinstance(fold, Fold)
    made = fold.combine([fold.chunk(a[:10]), fold.chunk(a[10:])])
    np.testing.assert_array_equal(made["n"][0], a.count(axis=0))
    np.testing.assert_allclose(fold.aggregate([made]), a.mean(axis=0))


SCATTERED = [
    ("mean", (0,), ((3,) * 8, (20,))),
    ("var", (0,), ((3,) * 8, (20,))),
    ("sum", (0,), ((3,) * 8, (12, 8))),
    ("max", (0,), ((1,) * 24, (20,))),
    ("argmin", 0, ((2,) * 12, (20,))),
]


@pytest.mark.parametrize(("name", "axis", "cuts"), SCATTERED)
def test_scattered_results(name, axis, cuts):
    a = values("f8", (24, 20))
    x = da.from_array(a, (6, 5))
    y = getattr(da, name)(x, axis=axis)
    chunks = (sum(((size // 4,) * 4 for size in cuts[1]), ()),)
    z, graph = tiled(y, {x.name: a}, cuts, (4,), (0,), (0,), chunks)
    assert z.chunks == chunks
    agree(z, getattr(np, name)(a, axis=axis), name == "max" or name == "argmin")
    # partial results of a worker are combined before they are cut, and only pieces are sent
    pieces = next(layer for layer in graph.layers if layer.startswith("rechunk-split-"))
    assert len(graph.layers[pieces]) == 4 * len(chunks[0])


def test_partials_of_one_worker_are_combined_first():
    a = values("f8", (24, 20))
    x = da.from_array(a, (6, 5))
    y, graph = tiled(x.sum(axis=0), {x.name: a}, ((1,) * 24, (20,)), (2,), (0,), (None,))
    agree(y, a.sum(axis=0), False)
    (final,) = (task for key, task in dict(graph.layers[y.name]).items())
    assert len(final.dependencies) == 2
    combines = [layer for layer in graph.layers if "-combine" in layer]
    assert combines
    for layer in combines:
        for _, task in dict(graph.layers[layer]).items():
            assert len(task.dependencies) <= 8


def test_scattered_bins():
    a = values("f8")
    x = da.from_array(a, (4, 3))
    y, _ = da.histogram(x, 6, range=(-2, 2))
    z, _ = tiled(y, {x.name: a}, ((6, 6), (9,)), chunks=((2, 4),))
    agree(z, np.histogram(a, 6, range=(-2, 2))[0], True)


def test_layers_are_ordinary_tasks():
    a = values("f8")
    x = da.from_array(a, (4, 3))
    for y in (x.var(axis=0), x.max(), x.argmax(axis=1), x.cumsum(axis=0)):
        z, graph = tiled(y, {x.name: a})
        graph.validate()
        (got,) = dask.compute(z, scheduler="threads", num_workers=2)
        np.testing.assert_allclose(got, y.compute(scheduler="sync"))
