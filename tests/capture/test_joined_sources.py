"""Unchanged arrays of one block that are joined, as of `da.from_delayed` and `da.stack`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile.capture.base import Verbatim
from dasktile.capture.highlevel import capture
from dasktile.ir import Kind, validate

IMAGES = [np.arange(12.0).reshape(3, 4) + 100 * number for number in range(6)]


#: The images that were read.
CALLS: list[int] = []


@dask.delayed
def image(number: int) -> np.ndarray:
    CALLS.append(number)
    return IMAGES[number].copy()


def images() -> list[da.Array]:
    return [da.from_delayed(image(number), (3, 4), dtype="f8") for number in range(6)]


def ops(*arrays: da.Array) -> list[str]:
    program = capture(arrays).program
    validate(program)
    return [node.op for node in program.nodes]


def test_a_stack_is_one_source() -> None:
    captured = capture([da.stack(images()).mean(axis=0)])
    source, mean = captured.program.nodes
    assert (source.op, source.kind, source.edges) == ("stack", Kind.OPAQUE, ())
    assert source.chunks == ((1,) * 6, (3,), (4,))
    assert "results of image" in source.reason
    assert mean.op == "mean"
    kernel = captured.kernels[0]
    assert isinstance(kernel, Verbatim)
    # what is read from no array, and the blocks themselves
    assert len(kernel.layers) == 1 + 2 * 6
    assert kernel.reads == ()


def corrected() -> da.Array:
    """Every image is changed by operations that read no other array."""
    return da.stack([(each.astype("f4") - 1).T for each in images()])


def flattened() -> da.Array:
    return da.concatenate([each[None] for each in images()])


def nested() -> da.Array:
    first, second, third, *others = images()
    return da.block([[first, second, third], others])


@pytest.mark.parametrize("build", [corrected, flattened, nested])
def test_operations_before_the_join_are_part_of_the_source(build: Callable[[], da.Array]) -> None:
    assert len(ops(build())) == 1
    assert ops(build() + 1)[1:] == ["add"]


def test_an_array_that_all_of_them_read_is_an_input() -> None:
    dark = da.from_array(np.ones((3, 4)), chunks=(3, 4))
    program = capture([da.stack([each - dark for each in images()])]).program
    assert [node.op for node in program.nodes] == ["array", "stack"]
    [edge] = program.nodes[1].edges
    assert (edge.producer, edge.chunks) == (0, ((3,), (4,)))


def test_sources_may_have_other_readers() -> None:
    """Their tasks have the same keys in all nodes."""
    parts = images()
    assert ops(da.stack(parts), parts[0] + 1) == ["stack", "from-value", "add"]
    assert ops(da.stack(parts), parts[0]) == ["stack", "from-value"]
    joined = da.stack(parts) + da.stack(parts[::-1])
    assert ops(joined) == ["stack", "stack", "add"]
    new = dasktile.optimize(joined, parts[0], workers=3)
    CALLS.clear()
    dask.compute(*new, scheduler="sync")
    assert sorted(CALLS) == list(range(6))
    for each, old in zip(new, (joined, parts[0]), strict=True):
        np.testing.assert_array_equal(each.compute(), old.compute())


def results() -> list[da.Array]:
    """Results that others read, too, would be computed twice."""
    parts = [each - 1 for each in images()]
    return [da.stack(parts), parts[0] + 1]


def parts_of_a_large_array() -> list[da.Array]:
    x = da.random.default_rng(0).random((6, 3, 4), chunks=(2, 3, 4))
    return [da.stack([each + x[number] for number, each in enumerate(images())])]


def arrays_that_can_be_cut() -> list[da.Array]:
    return [da.stack([da.from_array(each, chunks=(3, 4)) for each in IMAGES])]


@pytest.mark.parametrize("build", [results, parts_of_a_large_array, arrays_that_can_be_cut])
def test_other_arrays_are_nodes(build: Callable[[], list[da.Array]]) -> None:
    assert len(ops(*build())) > 6


def test_blocks_that_are_made_of_several_arrays_are_none_of_one_source() -> None:
    joined = da.stack(images()).rechunk((6, 3, 4))
    assert len(ops(joined)) == 1
    halves = da.concatenate([da.stack(images()[:3]), da.stack(images()[3:])])
    assert len(ops(halves)) == 1


def test_annotated_layers_are_nodes() -> None:
    with dask.annotate(workers=["a"]):
        parts = images()
    assert len(ops(da.stack(parts))) > 6


@pytest.mark.parametrize("workers", [1, 3, 4])
@pytest.mark.parametrize(
    "reduce",
    [
        lambda x: x.mean(axis=0),
        lambda x: (x - x.mean(axis=0)).std(),
        lambda x: x.rechunk((x.shape[0], 1, -1)).max(axis=0),
        lambda x: x[::-1, 1:],
        lambda x: x.reshape(-1)[::5],
    ],
)
@pytest.mark.parametrize("build", [lambda: da.stack(images()), corrected])
def test_values_are_those_of_dask(
    build: Callable[[], da.Array], reduce: Callable[[Any], da.Array], workers: int
) -> None:
    lazy = reduce(build())
    expected = lazy.compute(scheduler="sync")
    for keep_chunks in (False, True):
        new = dasktile.optimize(lazy, workers=workers, keep_chunks=keep_chunks)
        np.testing.assert_allclose(new.compute(scheduler="sync"), expected, rtol=1e-6)
    with dask.config.set(array_optimize=dasktile.array_optimize, **{"dasktile.workers": workers}):
        np.testing.assert_allclose(lazy.compute(scheduler="sync"), expected, rtol=1e-6)
