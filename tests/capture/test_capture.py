"""What capture makes of dask arrays: kinds, roles and maps, and reasons where it declines."""

from __future__ import annotations

import doctest
import functools
import math
from typing import Any

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import Alias
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from scipy import ndimage

import dasktile
from dasktile._compat.dask import available, custom_nanquantile
from dasktile.capture import highlevel, user_kernels
from dasktile.capture.base import (
    ArrayInfo,
    Captured,
    GraphView,
    NotRecognised,
    Recogniser,
    Verbatim,
)
from dasktile.capture.failures import failures
from dasktile.capture.highlevel import RECOGNISERS, capture, capture_graph, describable
from dasktile.capture.rules import sources
from dasktile.capture.rules.blockwise import Contract, Map
from dasktile.capture.rules.sources import Create, InMemory, Read, take_eye, take_range
from dasktile.capture.user_kernels import lookup, register_kernel
from dasktile.ir import AxisMap, Kind, Label, Node, Role, output_chunks, validate
from tests.support import opaque, plan_for_workers

FREE, REDUCE, WHOLE, PINNED = Role.FREE, Role.REDUCE, Role.WHOLE, Role.PINNED


def captured(*arrays: da.Array) -> Captured:
    """A captured program, checked for what holds of every program."""
    result = capture(arrays)
    validate(result.program)
    assert len(result.kernels) == len(result.program.nodes)
    for node in result.program.nodes:
        assert node.pinned == bool(node.reason)
        assert output_chunks(node, [label.cuts for label in node.labels]) == node.chunks
    return result


def last(array: da.Array) -> tuple[Node, object]:
    result = captured(array)
    assert result.program.outputs == (len(result.program.nodes) - 1,)
    return result.program.nodes[-1], result.kernels[-1]


def ops(array: da.Array) -> list[str]:
    return [node.op for node in captured(array).program.nodes]


def roles(node: Node) -> list[Role]:
    return [label.role for label in node.labels]


x = da.ones((6, 8), chunks=(2, 4))
y = da.ones((8, 4), chunks=(4, 2))
small = da.from_array(np.arange(48).reshape(6, 8), chunks=(3, 4))


def numbered(block: np.ndarray, block_id: object = None) -> np.ndarray:
    return block


def chequered() -> da.Array:
    """Blocks of two arrays, in turn along both axes."""
    parts = [da.ones((2, 2), chunks=2), da.zeros((2, 2), chunks=2)]
    places = [(row, column) for row in (0, 1) for column in (0, 1)]
    tasks = {
        ("chequered-0", *place): Alias(("chequered-0", *place), (parts[sum(place) % 2].name, 0, 0))
        for place in places
    }
    graph = HighLevelGraph.from_collections("chequered-0", MaterializedLayer(tasks), parts)
    return da.Array(graph, "chequered-0", ((2, 2), (2, 2)), dtype="f8")


class TestSources:
    @pytest.mark.parametrize(
        "array",
        [
            da.ones((5, 6), chunks=(2, 3)),
            da.zeros(7, chunks=3, dtype="i4"),
            da.full((4, 4), 2.5, chunks=2),
            da.empty((4, 4), chunks=2),
            da.ones_like(x, dtype="f4"),
            da.ones((), dtype=int),
        ],
    )
    def test_uniform_arrays_have_any_tiles(self, array: da.Array) -> None:
        node, kernel = last(array)
        assert node.kind is Kind.SOURCE and isinstance(kernel, Create)
        assert node.labels == tuple(Label(sum(c), FREE, c) for c in array.chunks)
        assert not node.edges

    @pytest.mark.parametrize(
        "array",
        [
            da.arange(3, 20, 4, chunks=2),
            da.arange(10, 0, -3, chunks=2),
            da.arange(9, chunks=4, dtype="f4"),
            da.arange(100, chunks=30, dtype="u1"),
        ],
    )
    def test_arange_of_integers_has_any_tiles(self, array: da.Array) -> None:
        node, kernel = last(array)
        assert node.kind is Kind.SOURCE and isinstance(kernel, Read)
        assert kernel.getter is take_range
        whole = kernel.getter(kernel.array, (slice(0, array.shape[0]),), **kernel.kwargs)
        np.testing.assert_array_equal(whole, array.compute(), strict=True)
        part = kernel.getter(kernel.array, (slice(1, 3),), **kernel.kwargs)
        np.testing.assert_array_equal(part, array.compute()[1:3], strict=True)

    @pytest.mark.parametrize(
        "array", [da.arange(0, 3, 0.1, chunks=7), da.linspace(0, 1, 9, chunks=4)]
    )
    def test_arange_of_fractions_keeps_its_chunks(self, array: da.Array) -> None:
        node, _ = last(array)
        assert node.kind is Kind.OPAQUE and "rounded" in node.reason

    @pytest.mark.parametrize("offset", [-7, -2, 0, 1, 3, 20])
    def test_identity_matrix(self, offset: int) -> None:
        array = da.eye(7, chunks=3, M=5, k=offset)
        node, kernel = last(array)
        if node.kind is Kind.SOURCE:
            assert isinstance(kernel, Read) and kernel.getter is take_eye
            part = kernel.getter(kernel.array, (slice(1, 6), slice(2, 5)), **kernel.kwargs)
            np.testing.assert_array_equal(part, np.eye(7, 5, offset)[1:6, 2:5], strict=True)
        else:
            assert abs(offset) > 5

    def test_numpy_array_is_recognised_from_its_views(self) -> None:
        data = np.arange(30.0).reshape(5, 6)
        node, kernel = last(da.from_array(data, chunks=(2, 4)))
        assert node.kind is Kind.SOURCE and isinstance(kernel, InMemory)
        np.testing.assert_array_equal(kernel.array, data)

    def test_numpy_array_in_one_block(self) -> None:
        node, kernel = last(da.from_array(np.arange(4), chunks=-1))
        assert isinstance(kernel, InMemory) and kernel.array.shape == node.shape == (4,)

    def test_small_blocks_of_different_arrays_become_one_array(self) -> None:
        """A graph that was sent to a scheduler has copies of the blocks of an array."""
        data = np.random.default_rng(0).integers(0, 9, (7, 10))
        x = da.from_array(data, chunks=(3, 4))
        graph = {key: np.array(block) for key, block in x.dask.items()}
        name = x.name
        sent = da.Array(
            HighLevelGraph.from_collections(name, graph, dependencies=()), name, x.chunks, x.dtype
        )
        node, kernel = last(sent)
        assert node.kind is Kind.SOURCE and node.labels == last(x)[0].labels
        assert isinstance(kernel, InMemory)
        np.testing.assert_array_equal(kernel.array, data)

    def test_blocks_of_different_arrays_are_resident(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sources, "MOST_COPIED", 0)
        node, kernel = last((x + 1).persist(scheduler="sync"))
        assert node.kind is Kind.OPAQUE and node.resident
        assert kernel == Verbatim((node.name,))
        assert "in memory" in node.reason

    def test_overlapping_views_are_not_one_array(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sources, "MOST_COPIED", 0)
        data = np.arange(8.0)
        name = "swapped"
        graph = HighLevelGraph.from_collections(
            name, {(name, 0): data[4:], (name, 1): data[:4]}, dependencies=()
        )
        node, _ = last(da.Array(graph, name, ((4, 4),), dtype=data.dtype))
        assert node.kind is Kind.OPAQUE

    @pytest.mark.parametrize("inline", [False, True])
    def test_lazy_reads_have_the_chunks_of_their_store(self, inline: bool) -> None:
        class Stored:
            shape, dtype, ndim, chunks = (10, 6), np.dtype("f8"), 2, (4, 6)

            def __getitem__(self, index: object) -> np.ndarray:
                return np.ones(self.shape)[index]

        store = Stored()
        array = da.from_array(store, chunks=(5, 3), inline_array=inline)
        node, kernel = last(array)
        assert node.kind is Kind.SOURCE and isinstance(kernel, Read)
        assert kernel.array is store
        assert node.stored == ((4, 4, 2), (6,))
        assert kernel.source == (None if inline else f"original-{array.name}")

    def test_locks_are_kept(self) -> None:
        _, kernel = last(da.from_array(np.ones((4, 4)), chunks=2, lock=True))
        assert isinstance(kernel, Read) and kernel.kwargs["lock"]

    def test_random_numbers_keep_their_chunks(self) -> None:
        node, _ = last(da.random.default_rng(0).random((4, 4), chunks=2))
        assert node.kind is Kind.OPAQUE and "random" in node.reason


class TestElementwise:
    @pytest.mark.parametrize(
        "array",
        [
            x + 1,
            2 / x,
            np.sin(x),
            x.astype("f4"),
            da.where(x > 1, x, 0),
            da.clip(x, 0, 1),
            da.round(x, 2),
            da.isclose(x, x),
            da.add(x, x, where=x > 0),
            da.digitize(x, np.arange(3)),
            x.map_blocks(np.sin),
            da.nan_to_num(x),
            x + small.sum(),
        ],
    )
    def test_elementwise_functions(self, array: da.Array) -> None:
        node, kernel = last(array)
        assert node.kind is Kind.MAP and isinstance(kernel, Map)
        assert roles(node) == [FREE, FREE]
        assert len(kernel.positions) == len(node.edges)

    def test_broadcast_axes_are_read_whole(self) -> None:
        column, row = x[:, :1], x[0]
        node, _ = last(x + column + row)
        inner = captured(x + column).program.nodes[-1]
        assert inner.edges[1].axes == (AxisMap(0), AxisMap(None))
        assert node.edges[1].axes == (AxisMap(1),)

    def test_array_read_twice_has_two_edges(self) -> None:
        node, kernel = last(x * x)
        assert [edge.producer for edge in node.edges] == [0, 0]
        assert isinstance(kernel, Map) and kernel.positions == (0, 1)

    @pytest.mark.parametrize(
        "array",
        [
            x.map_blocks(lambda block: block - block.mean()),
            x.map_blocks(np.sort),
            x.map_blocks(lambda block, block_id: block + block_id[0], dtype=float),
            x.map_blocks(np.add, np.arange(4)),
            x.map_blocks(np.add, dask.delayed(2)),
            da.map_blocks(np.digitize, x, x[0], dtype=int),
            da.map_blocks(np.vectorize(np.dot, otypes=[float], excluded=[1]), x, x, dtype=float),
            da.frompyfunc(lambda a: a, 1, 1)(x),
            da.divmod(small, 2)[0].astype("O"),
        ],
    )
    def test_functions_that_may_use_the_block_keep_their_chunks(self, array: da.Array) -> None:
        node, kernel = last(array)
        assert node.kind is Kind.OPAQUE and isinstance(kernel, Verbatim)
        assert roles(node) == [PINNED, PINNED]
        assert node.reason
        assert all(edge.chunks is not None for edge in node.edges)

    def test_blocks_fused_by_dask(self) -> None:
        array = (small + 1) * 2 - small
        graph = dask.blockwise.optimize_blockwise(array.__dask_graph__(), keys=[array.name])
        assert len(graph.layers) == 2
        info = ArrayInfo(array.name, array.shape, array.dtype, array.chunks)
        nodes = capture_graph(graph, [info]).program.nodes
        assert [node.kind for node in nodes] == [Kind.SOURCE, Kind.MAP]

    def test_transpose_names_axes_in_another_order(self) -> None:
        node, kernel = last(da.ones((2, 3, 4), chunks=2).transpose(2, 0, 1))
        assert isinstance(kernel, Map)
        assert node.edges[0].axes == (AxisMap(1), AxisMap(2), AxisMap(0))

    def test_identity_transpose_is_not_a_node(self) -> None:
        assert ops(x.transpose(0, 1) + 1) == ["ones_like", "add"]

    def test_broadcast_to(self) -> None:
        node, _ = last(da.broadcast_to(x[:, :1], (3, 6, 5), chunks=(2, 2, 2)))
        assert node.labels == tuple(Label(sum(c), FREE, c) for c in node.chunks)
        assert node.edges[0].axes == (AxisMap(1), AxisMap(None))

    def test_outer(self) -> None:
        for array in (da.outer(x[0], y[0]), da.add.outer(x[0], y[0])):
            node, _ = last(array)
            assert roles(node) == [FREE, FREE]
            assert [edge.axes for edge in node.edges] == [(AxisMap(0),), (AxisMap(1),)]


class TestContractions:
    @pytest.mark.parametrize("depth", [8, 4, 1])
    def test_matmul_with_any_levels_of_sums(self, depth: int) -> None:
        # one block along the summed axis, one level of sums, several levels
        a = da.ones((6, 8), chunks=(2, depth))
        b = da.ones((8, 4), chunks=(depth, 4))
        node, kernel = last(a @ b)
        assert node.op == "matmul" and node.kind is Kind.CONTRACT
        assert roles(node) == [FREE, FREE, REDUCE]
        assert isinstance(kernel, Contract)
        assert (kernel.spec, kernel.output) == (((0, 2), (2, 1)), (0, 1))
        assert node.labels[2].cuts == (depth,) * (8 // depth)
        assert (node.partial, node.work) == (8.0, 2.0)
        assert ops(a @ b).count("matmul") == 1 and len(ops(a @ b)) == 3

    def test_batches_are_broadcast(self) -> None:
        a, b = da.ones((1, 4, 5), chunks=2), da.ones((3, 5, 2), chunks=2)
        node, kernel = last(a @ b)
        assert isinstance(kernel, Contract) and kernel.spec == ((None, 1, 3), (0, 3, 2))
        assert node.edges[0].axes[0] == AxisMap(None)

    def test_vectors(self) -> None:
        assert "matmul" in ops(x @ y[:, 0])
        assert "tensordot" in ops(da.vdot(x, x))
        assert not any(node.pinned for node in captured(x[0] @ y[:, 0]).program.nodes)

    @pytest.mark.parametrize("axes", [1, ((0, 1), (1, 0))])
    def test_tensordot(self, axes: object) -> None:
        other = y if axes == 1 else x.T
        node, _ = last(da.tensordot(x, other, axes=axes))
        assert node.op == "tensordot" and roles(node).count(REDUCE) == (1 if axes == 1 else 2)

    def test_tensordot_of_negative_axes(self) -> None:
        left, right = da.ones((3, 4, 5), chunks=2), da.ones((5, 4, 2), chunks=2)
        _, kernel = last(da.tensordot(left, right, axes=((-1,), (0,))))
        assert isinstance(kernel, Contract) and kernel.spec == ((0, 1, 4), (4, 2, 3))

    @pytest.mark.parametrize(
        ("subscripts", "count", "spec", "output"),
        [
            ("ij,jk->ki", 2, ((1, 2), (2, 0)), (0, 1)),
            ("ij,jk", 2, ((0, 2), (2, 1)), (0, 1)),
            ("ij->ji", 1, ((1, 0),), (0, 1)),
            ("ij->", 1, ((0, 1),), ()),
        ],
    )
    def test_einsum(self, subscripts: str, count: int, spec: object, output: object) -> None:
        node, kernel = last(da.einsum(subscripts, *(x, y)[:count]))
        assert node.op == "einsum" and isinstance(kernel, Contract)
        assert (kernel.spec, kernel.output) == (spec, output)

    def test_repeated_label(self) -> None:
        _, kernel = last(da.einsum("ii->i", da.ones((4, 4), chunks=2)))
        assert isinstance(kernel, Contract) and kernel.spec == ((0, 0),)

    def test_products_that_may_overflow_are_unchanged(self) -> None:
        narrow = small.astype("i2")
        for array in (da.tensordot(narrow, narrow.T, 1), (small > 3) @ (small.T > 3)):
            assert captured(array).program.nodes[-1].kind is not Kind.CONTRACT


class TestWholeAxes:
    def test_fft_does_not_cut_its_axis(self) -> None:
        node, _ = last(da.fft.fft(x.rechunk((2, -1))))
        assert node.op == "fft" and roles(node) == [FREE, WHOLE]
        assert node.edges[0].axes == (AxisMap(0), AxisMap(1))

    def test_fft_that_changes_the_length(self) -> None:
        for array in (
            da.fft.rfft(x.rechunk((2, -1))),
            da.fft.fft(x.rechunk((2, -1)), n=10),
        ):
            node, _ = last(array)
            assert roles(node) == [FREE]
            assert node.out == (AxisMap(0), AxisMap(None))

    def test_fft_of_several_axes(self) -> None:
        node, _ = last(da.fft.fft2(da.ones((3, 4, 5), chunks=(1, -1, -1))))
        assert roles(node) == [FREE, WHOLE, WHOLE]

    def test_gufunc(self) -> None:
        array = da.apply_gufunc(
            np.cross,
            "(i),(i)->(i)",
            da.ones((4, 3), chunks=(2, 3)),
            da.ones(3),
            output_dtypes=float,
        )
        node, kernel = last(array)
        assert isinstance(kernel, Map) and roles(node) == [FREE, WHOLE]
        assert [edge.axes for edge in node.edges] == [(AxisMap(0), AxisMap(1)), (AxisMap(1),)]
        assert node.out == (AxisMap(0), AxisMap(None))

    @pytest.mark.parametrize("vectorize", [False, True])
    def test_gufunc_without_core_dimensions_is_a_user_function(self, vectorize: bool) -> None:
        array = da.apply_gufunc(
            lambda a: a - np.mean(a), "()->()", x, output_dtypes=float, vectorize=vectorize
        )
        kinds = [node.kind for node in captured(array).program.nodes]
        assert (Kind.OPAQUE in kinds) is not vectorize
        assert last(da.apply_gufunc(np.sin, "()->()", x, output_dtypes=float))[0].kind is Kind.MAP

    def test_gufunc_with_several_outputs_keeps_its_chunks(self) -> None:
        first, _ = da.apply_gufunc(lambda a: (a, a), "()->(),()", x, output_dtypes=(float, float))
        assert last(first)[0].kind is Kind.OPAQUE

    @pytest.mark.parametrize("keepdims", [False, True])
    @pytest.mark.parametrize("name", ["median", "nanmedian", "quantile", "nanquantile"])
    def test_order_statistics_read_their_axes_whole(self, name: str, keepdims: bool) -> None:
        if name == "nanquantile" and not available(custom_nanquantile):
            pytest.skip("this Dask gives the probability as a keyword")
        more = (0.3,) if "quantile" in name else ()
        node, _ = last(getattr(da, name)(x, *more, axis=0, keepdims=keepdims))
        assert roles(node) == [FREE, WHOLE]
        assert node.edges[0].axes == (AxisMap(1), AxisMap(0))
        assert node.out == ((AxisMap(None), AxisMap(0)) if keepdims else (AxisMap(0),))

    @pytest.mark.parametrize("name", ["quantile", "nanquantile"])
    @pytest.mark.parametrize("probabilities", [[0.1, 0.9], [0.5]])
    def test_several_quantiles_add_an_axis(self, name: str, probabilities: list[float]) -> None:
        if not available(custom_nanquantile):
            pytest.skip("this Dask gives the probabilities as a keyword")
        node, _ = last(getattr(da, name)(x, probabilities, axis=0))
        assert roles(node) == [FREE, WHOLE, WHOLE]
        assert node.out == (AxisMap(None), AxisMap(0))
        assert [edge.axes for edge in node.edges] == [(AxisMap(1), AxisMap(0)), (AxisMap(2),)]

    def test_apply_along_axis(self) -> None:
        node, _ = last(da.apply_along_axis(np.sort, 0, x))
        assert roles(node) == [FREE, WHOLE]
        assert node.edges[0].axes == (AxisMap(1), AxisMap(0))


class TestRegistry:
    def test_registered_functions_are_tiled(self) -> None:
        def scale(block: np.ndarray) -> np.ndarray:
            # the code of a function with a loop is not looked at
            for factor in (2,):
                block = block * factor
            return block

        def rank(block: np.ndarray) -> np.ndarray:
            return block.argsort(-1)

        assert last(x.map_blocks(scale))[0].pinned
        assert register_kernel(scale, elementwise=True) is scale
        assert roles(last(x.map_blocks(scale))[0]) == [FREE, FREE]
        register_kernel(rank, whole_axes=-1)
        assert roles(last(x.rechunk((2, -1)).map_blocks(rank))[0]) == [FREE, WHOLE]
        # chunks along a whole axis change the result
        assert last(x.map_blocks(rank))[0].pinned

    def test_as_a_decorator(self) -> None:
        @register_kernel(whole_axes=-1)
        def rank(block: np.ndarray) -> np.ndarray:
            return block.argsort(-1)

        assert rank(np.array([3, 1, 2])).tolist() == [1, 2, 0]
        assert roles(last(x.rechunk((2, -1)).map_blocks(rank))[0]) == [FREE, WHOLE]
        with pytest.raises(TypeError, match="function must be callable, got 3"):
            # what is no function is what is tested
            register_kernel(elementwise=True)(3)  # type: ignore[operator]
        with pytest.raises(ValueError, match="exactly one"):
            register_kernel()

    def test_wrong_declarations_are_found_on_a_sample(self) -> None:
        calls: list[tuple[int, ...]] = []

        def centred(block: np.ndarray, by: float = 1) -> np.ndarray:
            calls.append(block.shape)
            return block - by * block.mean(axis=0)

        def smooth(block: np.ndarray) -> np.ndarray:
            return ndimage.uniform_filter(block, (3, 5), mode="nearest")

        register_kernel(centred, elementwise=True)
        node, _ = last(x.map_blocks(centred))
        assert node.pinned and node.reason == (
            "user function centred has other values on parts of a small block than its registration"
            " allows"
        )
        assert max(map(max, calls)) <= 6
        # with these arguments it does what was declared; it is applied to a sample once
        assert not last(x.map_blocks(centred, by=0))[0].pinned
        # but for the arrays without elements, and of one, that Dask applies it to
        samples = [shape for shape in calls if shape > (1, 1)]
        assert not last(x.map_blocks(centred, by=0))[0].pinned
        assert [shape for shape in calls if shape > (1, 1)] == samples
        register_kernel(centred, whole_axes=0)
        assert not last(x.rechunk((6, 2)).map_blocks(centred))[0].pinned
        register_kernel(centred, whole_axes=1)
        assert last(x.rechunk((2, 8)).map_blocks(centred))[0].pinned
        cases = (
            ({0: 1, 1: 2}, False),
            ({0: 2, 1: 2}, False),
            ({0: 1, 1: 1}, True),
            (2, False),
            (1, True),
        )
        for halo, pinned in cases:
            register_kernel(smooth, halo=halo)
            y = x.rechunk((3, 4)).map_overlap(smooth, depth=2, boundary="none", dtype=float)
            assert last(y)[0].pinned == pinned

    def test_functions_that_fail_on_a_sample_are_not_judged(self) -> None:
        def large(block: np.ndarray) -> np.ndarray:
            if len(block) != 2:
                raise ValueError
            return block - block.mean()

        register_kernel(large, elementwise=True)
        assert not last(x.map_blocks(large, dtype=float))[0].pinned

    def test_functions_carry_their_declaration_to_other_processes(self) -> None:
        def rank(block: np.ndarray) -> np.ndarray:
            return block.argsort(-1)

        register_kernel(rank, whole_axes=-1)
        sent = cloudpickle.loads(cloudpickle.dumps(rank))
        assert sent is not rank and lookup(sent) == lookup(rank)
        # a sample is only run where the function was registered
        assert not user_kernels.is_registered_here(sent)

        @functools.wraps(rank)
        def wrapper(block: np.ndarray) -> np.ndarray:
            return rank(block)[::-1]

        assert lookup(wrapper) is None

    def test_examples_run_as_written(self) -> None:
        results = doctest.testmod(user_kernels)
        assert results.attempted > 10 and not results.failed

    def test_a_halo_is_for_map_overlap(self) -> None:
        def smooth(block: np.ndarray) -> np.ndarray:
            return block

        register_kernel(smooth, halo={0: 1})
        assert last(x.map_blocks(smooth))[0].reason == (
            "user function smooth is registered with a halo, which is for map_overlap and not for"
            " map_blocks"
        )

    def test_halo_is_kept(self) -> None:
        def smooth(block: np.ndarray) -> np.ndarray:
            return block

        register_kernel(smooth, halo={0: 2, -1: 1})
        use = lookup(smooth)
        assert use is not None and use.halo == {0: 2, -1: 1}
        assert use.depths(3) == {0: 2, 2: 1} and use.depths(1) is None
        register_kernel(smooth, halo=2)
        use = lookup(cloudpickle.loads(cloudpickle.dumps(smooth)))
        assert use is not None and use.depths(2) == {0: 2, 1: 2}

    def test_wrong_arguments(self) -> None:
        with pytest.raises(TypeError, match="callable"):
            register_kernel(3, elementwise=True)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="exactly one"):
            register_kernel(np.sort)
        with pytest.raises(ValueError, match="exactly one"):
            register_kernel(np.sort, elementwise=True, whole_axes=0)
        with pytest.raises(ValueError, match="negative"):
            register_kernel(np.sort, halo={0: -1})
        with pytest.raises(ValueError, match="negative"):
            register_kernel(np.sort, halo=-1)
        with pytest.raises(ValueError, match=r"whole_axes must be different axes, got \[1, 1\]"):
            register_kernel(np.sort, whole_axes=[1, 1])
        for wrong in (1, None, "yes", np.True_):
            with pytest.raises(TypeError, match="elementwise must be True or False, got "):
                register_kernel(np.sort, elementwise=wrong)  # type: ignore[arg-type]
        for axes in ("0", 1.0, None, [0, "1"], True, {0: 1}):
            with pytest.raises(TypeError, match="whole_axes must be an integer or several"):
                register_kernel(np.sort, whole_axes=axes)  # type: ignore[arg-type]
        for halo in ("2", [1], 1.5, True, {0: 1.5}, {"x": 1}, {0: True}):
            with pytest.raises(TypeError, match="halo must be an integer, or a dict of integers"):
                register_kernel(np.sort, halo=halo)  # type: ignore[arg-type]
        assert lookup(np.sort) is None

    def test_moving_windows_read_a_halo_at_one_side(self) -> None:
        y = da.lib.stride_tricks.sliding_window_view(x, (3, 2), axis=(0, 1))
        program = captured(y).program
        assert [node.op for node in program.nodes] == ["ones_like", "sliding_window_view"]
        node = program.nodes[-1]
        assert roles(node) == [FREE, FREE]
        assert node.out == (AxisMap(0), AxisMap(1), AxisMap(None), AxisMap(None))
        assert node.edges[0].axes == (AxisMap(0, 0, 1, 3), AxisMap(1, 0, 1, 2))

    def test_two_windows_along_one_axis_keep_their_chunks(self) -> None:
        y = da.lib.stride_tricks.sliding_window_view(x, (3, 2), axis=(0, 0))
        assert last(y)[0].kind is Kind.OPAQUE

    def test_reasons_name_the_remedy(self) -> None:
        def smooth(block: np.ndarray) -> np.ndarray:
            return opaque(block) + 1

        node, _ = last(x.map_blocks(smooth))
        assert node.reason == (
            "the result of user function smooth may depend on the chunks, as it calls opaque; if"
            " not, declare it with dasktile.register_kernel"
        )
        expected = (
            "the result of smooth in map_overlap may depend on the chunks, as it calls opaque;"
            " if not, declare its halo with dasktile.register_kernel(smooth, halo=...)"
        )
        for boundary in ("none", "reflect"):
            program = captured(x.map_overlap(smooth, depth=1, boundary=boundary)).program
            assert {node.reason for node in program.nodes} == {"", expected}
        unnamed = captured(x.map_overlap(lambda a: opaque(a), depth=1, boundary="none"))
        assert unnamed.program.nodes[-1].reason.endswith("register_kernel(function, halo=...)")
        two = captured(da.map_overlap(lambda a, b: a + b, x, x, depth=1, boundary="none"))
        assert "register_kernel" not in "".join(node.reason for node in two.program.nodes)
        register_kernel(smooth, halo={0: 2})
        result = captured(x.map_overlap(smooth, depth=1, boundary="none"))
        assert (
            "smooth in map_overlap reads neighbours (2 along axis 0): depth must be"
            in result.program.nodes[-1].reason
        )
        result = captured(x.map_overlap(smooth, depth=2, boundary="none"))
        assert not any(node.reason for node in result.program.nodes)


class TestWalk:
    def test_rechunks_are_not_nodes(self) -> None:
        result = captured(x.rechunk(3) + y.sum(), x.rechunk((6, 1)))
        assert [node.op for node in result.program.nodes].count("ones_like") == 2
        assert result.program.outputs == (2 + 1, 0)

    def test_edges_of_opaque_nodes_have_the_chunks_of_the_graph(self) -> None:
        wide = x.rechunk((3, 8))
        result = captured(wide.map_blocks(lambda block: block[::-1]))
        node, kernel = result.program.nodes[-1], result.kernels[-1]
        assert node.edges[0].chunks == ((3, 3), (8,))
        assert kernel == Verbatim((node.name,), (wide.name,))

    def test_arrays_that_several_tasks_read_are_not_needed_on_one_worker(self) -> None:
        tall = da.ones((400, 4), chunks=(100, 4)) + 1
        values = da.linalg.svd(tall)[1]
        [node] = [node for node in captured(values).program.nodes if node.reason]
        assert [edge.spread for edge in node.edges] == [True]
        assert dasktile.explain(values + 1, workers=4).bytes_after == 0

    def test_arrays_that_one_task_reads_are_needed_on_one_worker(self) -> None:
        def joined(array: da.Array, count: int) -> da.Array:
            """A block from `count` tasks, each of which reads all blocks."""
            keys = list(flatten(array.__dask_keys__()))
            name = f"joined-{count}"
            tasks = {(f"all-{count}", at): (sum, keys) for at in range(count)}
            end = {(name, 0): (sum, list(tasks))}
            graph = HighLevelGraph(
                {**array.dask.layers, f"all-{count}": tasks, name: end},
                {**array.dask.dependencies, f"all-{count}": {array.name}, name: {f"all-{count}"}},
            )
            return da.Array(graph, name, ((100,),), float)

        tall = da.ones((400,), chunks=100) + 1
        one, two = joined(tall, 1) + 1, joined(tall + 1, 2) + 1
        parts = [da.linalg.svd((tall + 2)[:, None] * da.ones(4, chunks=4))[1] + 1]
        for array in (one, two):
            assert dasktile.explain(array, workers=4).bytes_after == 3 * tall.nbytes / 4
        moved = [dasktile.explain(*each, workers=4).bytes_after
                 for each in ([one, *parts], [*parts, one])]  # fmt: skip
        # the other array moves a few bytes
        assert moved[0] == moved[1] < tall.nbytes

    def test_layers_without_arrays_belong_to_the_node_of_their_reader(self) -> None:
        offset = dask.delayed(np.float64)(3)
        array = x.map_blocks(np.add, offset)
        kernel = last(array)[1]
        assert isinstance(kernel, Verbatim)
        assert kernel.layers == (offset.key, array.name)

    def test_arrays_of_unknown_chunks_belong_to_the_node_of_their_reader(self) -> None:
        result = captured(da.topk(small[small > 5], 1))
        assert result.program.nodes[-1].kind is Kind.OPAQUE
        layers = [kernel.layers for kernel in result.kernels if isinstance(kernel, Verbatim)]
        assert any(len(names) > 1 for names in layers)
        assert any(node.op == "array" for node in result.program.nodes)

    def test_output_of_unknown_chunks(self) -> None:
        array = small[small > 5]
        assert not describable(array) and describable(small)
        with pytest.raises(ValueError, match="unknown chunk sizes"):
            capture([array])

    def test_annotated_layers_are_unchanged(self) -> None:
        with dask.annotate(priority=3):
            array = x + 1
        assert last(array)[0].reason == "the layer is annotated"

    def test_optimised_graphs_are_unchanged(self) -> None:
        (array,) = dask.optimize((small + 1).sum(axis=0))
        node, kernel = last(array)
        assert node.kind is Kind.OPAQUE and kernel == Verbatim((array.name,))

    @pytest.mark.parametrize("array", [x[:0] + 1, small.astype("O") + 1])
    def test_empty_chunks_and_objects_are_unchanged(self, array: da.Array) -> None:
        assert last(array)[0].kind is Kind.OPAQUE

    def test_masked_arrays_are_unchanged(self) -> None:
        assert "MaskedArray" in last(da.ma.masked_greater(x, 1) + 1)[0].reason

    def test_wrong_annotations_are_corrected(self) -> None:
        result = captured(-da.from_array(np.arange(12.0), chunks=4).topk(3))
        assert [node.shape for node in result.program.nodes] == [(12,), (3,), (3,)]
        places = captured(da.from_array(np.arange(12.0), chunks=4).argtopk(3) + 1)
        assert places.program.nodes[-2].dtype == "int64"

    def test_a_recogniser_that_fails_is_named_and_counted(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(view: object, name: str) -> None:
            raise KeyError("oops")

        monkeypatch.setattr(highlevel, "RECOGNISERS", (broken, *highlevel.RECOGNISERS))
        result = captured(x)
        (node,) = result.program.nodes
        assert node.kind is Kind.OPAQUE and "broken raised KeyError: 'oops'" in node.reason
        assert [type(error) for error in result.errors] == [KeyError]
        with pytest.raises(KeyError, match="oops"):
            dasktile.optimize(x)
        with dask.config.set({"dasktile.raise-errors": False}):
            assert "broken raised KeyError" in " ".join(str(dasktile.explain(x)).split())
            assert dasktile.optimize(x).compute().shape == x.shape
        (name,) = failures
        assert name.endswith(".broken") and failures[name] == 4
        failures.clear()

    def test_the_first_reason_of_a_recogniser_is_shown(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def declining(reason: str) -> Recogniser:
            return lambda view, name: NotRecognised(reason)

        both = (declining("first"), lambda view, name: None, declining("second"))
        monkeypatch.setattr(highlevel, "RECOGNISERS", both)
        assert last(x)[0].reason == "first"
        # another recogniser may accept a layer that one declines
        monkeypatch.setattr(highlevel, "RECOGNISERS", (both[0], *RECOGNISERS))
        assert last(x)[0].reason == ""

    @pytest.mark.parametrize(
        ("array", "reason"),
        [
            (x.astype("f2").sum(axis=0), "sum of float16 is rounded differently in other chunks"),
            (da.cumsum(x.astype("f2"), axis=0), "cumsum of float16 is rounded"),
            (small.map_blocks(numbered, dtype=small.dtype), "numbered uses block_id"),
            (da.argmin(x), "which of equal elements is returned depends on the chunks"),
            (da.linspace(0, 1, 9, chunks=2), "linspace is rounded differently"),
            (x.astype("i1") @ x.T.astype("i1"), "matmul of int8 overflows within a chunk"),
            (
                da.reduction(x, np.ptp, np.sum, axis=0, dtype="f8"),
                "chunk function ptp are not",
            ),
            (chequered(), "chequered: several arrays, arranged along several axes"),
        ],
    )
    def test_reasons_name_what_the_user_called(self, array: da.Array, reason: str) -> None:
        result = [node.reason for node in captured(array).program.nodes if node.reason]
        assert any(reason in text for text in result), result

    def test_deep_graphs(self) -> None:
        array = x
        for _ in range(1500):
            array = array + 1
        assert len(captured(array).program.nodes) == 1501

    def test_order_does_not_depend_on_names(self) -> None:
        def build(prefix: str) -> da.Array:
            parts = [da.from_array(np.ones(4), chunks=2, name=f"{prefix}{k}") for k in "bca"]
            return da.map_blocks(lambda a, b, c: a, *parts, name=f"{prefix}-out", dtype=float)

        for prefix in ("p", "q"):
            nodes = captured(build(prefix)).program.nodes
            assert [node.name for node in nodes] == [
                f"{prefix}b",
                f"{prefix}c",
                f"{prefix}a",
                f"{prefix}-out",
            ]

    def test_several_outputs_share_nodes(self) -> None:
        shared = x + 1
        result = captured(shared * 2, shared, shared * 2)
        assert result.program.outputs == (2, 1, 2)


def test_programs_do_not_depend_on_names():
    def shape_of(run: int) -> list[object]:
        names = [f"{'xyz'[(k + run) % 3]}{run}" for k in range(3)]
        a, b, c = (da.from_array(np.ones((6, 6)), chunks=2, name=name) for name in names)
        low = da.linalg.lu(a @ b)[0]
        y = da.concatenate([low, c, c.T])
        arrays = [da.stack([y, y * 2, y[::-1]]).map_blocks(lambda block: block), low.sum()]
        nodes = capture(arrays).program.nodes
        return [
            (node.kind, node.shape, node.labels, [(e.producer, e.axes) for e in node.edges])
            for node in nodes
        ]

    assert shape_of(0) == shape_of(1) == shape_of(2)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (lambda: da.topk(x[x > 0.5], 1), "the sizes of a selection by a boolean array are unknown"),
        (lambda: da.linalg.svd(x.rechunk((4, -1)))[1] + 1, "a step of svd, whose tasks read"),
        (
            lambda: da.from_delayed(dask.delayed(np.ones)(4), (4,), float) + 1,
            "its blocks are results of the delayed function ones",
        ),
        (lambda: x.map_blocks(np.sort) + 1, "there is no rule for sort with these"),
        (lambda: da.percentile(x[0], 50) + 1, "percentile merges percentiles of chunks"),
        (lambda: da.coarsen(np.sort, x, {0: 1}), "the result of sort in coarsen may depend on"),
    ],
)
def test_reasons_name_the_operation_and_say_why(expression: Any, reason: str) -> None:
    reasons = [node.reason for node in capture([expression()]).program.nodes]
    assert any(each.startswith(reason) for each in reasons), reasons


@pytest.mark.parametrize(
    ("array", "call"),
    [
        (lambda: x[x[:, 0] > 0][:, 1:].sum(axis=0), "sum"),
        (lambda: x[x[:, 0] > 0][:, 1:].mean(axis=0), "mean"),
        (lambda: da.nanvar(x[x[:, 0] > 0][:, 1:], axis=0), "var"),
        (lambda: x[x[:, 0] > 0].max(axis=0), "max"),
        (lambda: da.ma.masked_greater(x, 1).rechunk(3), "rechunk"),
        (lambda: da.ma.masked_greater(x, 1).argmin(axis=1), "argmin or argmax"),
        (lambda: da.argtopk(x, 2, axis=1), "argtopk"),
        (lambda: x.vindex[[0, 1], [1, 2]], "vindex"),
    ],
)
def test_rows_and_reasons_name_the_call_of_the_user(array: Any, call: str) -> None:
    nodes = [node for node in capture([array()]).program.nodes if node.reason]
    assert nodes[-1].op == call
    texts = [node.op for node in nodes]
    texts += [node.reason for node in nodes if "there is no rule" in node.reason]
    for step in ("chunk_", "_chunk", "_agg", "-aggregate", "-partial", "merge", "combine", "_pre"):
        assert not [text for text in texts if step in text]


def test_reasons_name_the_package_of_a_private_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def _hidden(block: np.ndarray) -> np.ndarray:
        return block[::-1]

    monkeypatch.setattr(_hidden, "__module__", "package.inner")
    assert last(x.map_blocks(_hidden))[0].reason.startswith(
        "there is no rule for _hidden of package, which may depend on the chunks"
    )


def test_only_the_tasks_that_keys_depend_on_are_converted() -> None:
    x = da.ones((8, 8), chunks=2)
    y = da.overlap.overlap(x, depth=1, boundary="reflect") + 1
    view = GraphView(y.__dask_graph__())
    needed = view.needed_tasks([(y.name, 0, 0)])
    whole = GraphView(y.__dask_graph__())
    every = {key: task for name in whole.layers for key, task in whole.tasks(name).items()}
    stack, keys = [(y.name, 0, 0)], set()
    while stack:
        key = stack.pop()
        if key not in keys:
            keys.add(key)
            stack.extend(every[key].dependencies)
    found = {key: task for tasks in needed.values() for key, task in tasks.items()}
    assert set(found) == keys
    assert {key: task.dependencies for key, task in found.items()} == {
        key: every[key].dependencies for key in keys
    }
    for name, tasks in needed.items():
        assert list(tasks) == [key for key in view.layers[name] if key in tasks]
    assert len(found) < len(every) / 4


def test_a_plan_does_not_depend_on_what_was_computed_before() -> None:
    """Dask's fusion enters the axes of layers below a layer into the layer itself."""
    y = da.lib.stride_tricks.sliding_window_view(x, 3, axis=0).max(-1)
    before = [(node.op, node.kind) for node in captured(y).program.nodes]
    y.compute(scheduler="sync")
    assert [(node.op, node.kind) for node in captured(y).program.nodes] == before
    assert Kind.OPAQUE not in [kind for _, kind in before]


def test_a_product_of_blocks_of_which_one_is_empty() -> None:
    a = da.ones((6, 16), chunks=(2, (13, 3, 0)))
    b = da.ones((16, 6), chunks=(16, 3))
    with dask.config.set({"dasktile.raise-errors": True}):
        planned = dasktile.optimize(a @ b, workers=2)
    np.testing.assert_array_equal(planned.compute(scheduler="sync"), np.full((6, 6), 16.0))


@pytest.mark.parametrize("threads", [1, 4])
def test_small_tiles_of_a_registered_function_keep_all_threads_busy(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    def slow(block: np.ndarray) -> np.ndarray:
        return block + 1

    def smooth(block: np.ndarray) -> np.ndarray:
        return ndimage.uniform_filter1d(block, 3, axis=0)

    register_kernel(slow, elementwise=True)
    register_kernel(smooth, halo={0: 1})
    plan_for_workers(monkeypatch, 2, threads)
    x = da.random.default_rng(0).random((400, 100), chunks=(10, 100))
    with dask.config.set({"dasktile.raise-errors": True}):
        known = dasktile.optimize((x + 1).map_blocks(np.sqrt))
        unknown = dasktile.optimize(x.map_blocks(slow, dtype=float))
        halo = dasktile.optimize(x.map_overlap(smooth, depth={0: 1}, boundary=0, dtype=float))
    assert math.prod(known.numblocks) == 2
    assert math.prod(unknown.numblocks) == 2 * threads
    assert math.prod(halo.numblocks) == 2 * threads
