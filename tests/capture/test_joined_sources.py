"""Unchanged arrays of one block that are joined, as of `da.from_delayed` and `da.stack`."""

from __future__ import annotations

import functools
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

IMAGES = [np.arange(12.0).reshape(3, 4) + 100 * number for number in range(10)]


#: The images that were read.
CALLS: list[int] = []


@dask.delayed
def image(number: int) -> np.ndarray:
    CALLS.append(number)
    return IMAGES[number].copy()


def images() -> list[da.Array]:
    return [da.from_delayed(image(number), (3, 4), dtype="f8") for number in range(10)]


def ops(*arrays: da.Array) -> list[str]:
    program = capture(arrays).program
    validate(program)
    return [node.op for node in program.nodes]


def test_a_stack_is_one_source() -> None:
    captured = capture([da.stack(images()).mean(axis=0)])
    source, mean = captured.program.nodes
    assert (source.op, source.kind, source.edges) == ("stack", Kind.OPAQUE, ())
    assert source.chunks == ((1,) * 10, (3,), (4,))
    assert source.reason == "its blocks are results of the delayed function image"
    assert mean.op == "mean"
    kernel = captured.kernels[0]
    assert isinstance(kernel, Verbatim)
    # what is read from no array, and the blocks themselves
    assert len(kernel.layers) == 1 + 2 * 10
    assert kernel.reads == ()


def corrected() -> da.Array:
    """Every image is changed by operations that read no other array."""
    return da.stack([(each.astype("f4") - 1).T for each in images()])


def flattened() -> da.Array:
    return da.concatenate([each[None] for each in images()])


def nested() -> da.Array:
    parts = images()
    return da.block([parts[:5], parts[5:]])


def normalised() -> da.Array:
    """Reductions, whose first steps are arrays that are no operations of their own."""
    parts = [each.astype("f4") for each in images()]
    return da.stack([(each - each.mean()) / (each.std() + 1) for each in parts])


def projected() -> da.Array:
    return da.stack([each.max(axis=0) + each.argmin(axis=0) for each in images()])


def running() -> da.Array:
    return da.concatenate([da.cumsum(each, axis=1).sum(axis=1) for each in images()])


def multiplied() -> da.Array:
    return da.stack([each @ each.T for each in images()])


def counted() -> da.Array:
    return da.stack([da.histogram(each, bins=3, range=(0, 999))[0] for each in images()])


def with_a_frame() -> da.Array:
    """One of the arrays is no unchanged one."""
    return da.stack([*images(), da.from_array(IMAGES[0], chunks=(3, 4))])


BUILDS = [
    corrected, flattened, nested, normalised, projected, running, multiplied, counted, with_a_frame
]  # fmt: skip


@pytest.mark.parametrize("build", BUILDS)
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
    assert sorted(CALLS) == list(range(10))
    for each, old in zip(new, (joined, parts[0]), strict=True):
        np.testing.assert_array_equal(each.compute(), old.compute())


def results() -> list[da.Array]:
    """Results that others read, too, would be computed twice."""
    parts = [each - 1 for each in images()]
    return [da.stack(parts), parts[0] + 1]


def parts_of_a_large_array() -> list[da.Array]:
    x = da.random.default_rng(0).random((10, 3, 4), chunks=(2, 3, 4))
    return [da.stack([each + x[number] for number, each in enumerate(images())])]


def arrays_that_can_be_cut() -> list[da.Array]:
    return [da.stack([da.from_array(each, chunks=(3, 4)) for each in IMAGES])]


@pytest.mark.parametrize("build", [results, parts_of_a_large_array, arrays_that_can_be_cut])
def test_other_arrays_are_nodes(build: Callable[[], list[da.Array]]) -> None:
    assert len(ops(*build())) > 10


def test_products_and_sums_join_nothing() -> None:
    """Each of their blocks is made of several others, although one task may read one key."""
    stack = da.stack(images())
    assert ops(da.tensordot(stack, stack, axes=([1, 2], [1, 2])))[0] == "stack"
    assert "stack" in ops(da.einsum("nij,nik->njk", stack, stack))
    first, *others = images()
    for other in others:
        first = first + other
    assert ops(first).count("add") == 9


def test_few_sources_are_nodes() -> None:
    """They may be fewer than the workers."""
    assert len(ops(da.stack(images()[:7]))) == 8
    assert len(ops(da.stack(images()[:8]))) == 1


def items() -> da.Array:
    """Every block would be sent with all others."""
    every = dask.delayed(lambda: IMAGES)()
    return da.stack([da.from_delayed(every[at], (3, 4), dtype="f8") for at in range(10)])


def items_of_lists() -> da.Array:
    lists = [dask.delayed(lambda at: IMAGES[at : at + 2])(at) for at in range(0, 10, 2)]
    return da.stack(
        [da.from_delayed(lists[at // 2][at % 2], (3, 4), dtype="f8") for at in range(10)]
    )


def with_a_handle() -> da.Array:
    """Every function reads the same small result."""
    handle = dask.delayed(lambda: 1.0)()
    read = dask.delayed(lambda factor, at: IMAGES[at] * factor)
    return da.stack([da.from_delayed(read(handle, at), (3, 4), dtype="f8") for at in range(10)])


@pytest.mark.parametrize(("build", "nodes"), [(items, 11), (items_of_lists, 1), (with_a_handle, 1)])
def test_items_of_one_result_are_not_divided(build: Callable[[], da.Array], nodes: int) -> None:
    assert len(ops(build())) == nodes
    new = dasktile.optimize(build().sum(axis=0), workers=4)
    np.testing.assert_array_equal(new.compute(scheduler="sync"), sum(IMAGES))


def annotated_sources() -> da.Array:
    with dask.annotate(workers=["a"]):
        parts = images()
    return da.stack(parts)


def annotated_join() -> da.Array:
    parts = images()
    with dask.annotate(workers=["a"]):
        return da.stack(parts)


def persisted() -> da.Array:
    return da.stack([each.persist(scheduler="sync") for each in images()])


@pytest.mark.parametrize("build", [annotated_sources, annotated_join, persisted])
def test_annotated_and_persisted_arrays_are_nodes(build: Callable[[], da.Array]) -> None:
    assert len(ops(build())) > 10


def test_annotations_of_delayed_functions_are_kept() -> None:
    with dask.annotate(priority=5):
        parts = [image(number) for number in range(10)]
    stack = da.stack([da.from_delayed(each, (3, 4), dtype="f8") for each in parts])
    new = dasktile.optimize(stack + 1, workers=3)
    annotations = [layer.annotations for layer in new.dask.layers.values() if layer.annotations]
    assert annotations == [{"priority": 5}] * 10


@functools.cache
def with_values(
    build: Callable[[], da.Array], reduce: Callable[[Any], da.Array]
) -> tuple[da.Array, np.ndarray]:
    """An expression, and what Dask computes of it."""
    lazy = reduce(build())
    return lazy, lazy.compute(scheduler="sync")


@pytest.mark.parametrize("workers", [1, 3, 4])
@pytest.mark.parametrize(
    "reduce",
    [
        lambda x: x.mean(axis=0),
        lambda x: (x - x.mean(axis=0)).std(),
        lambda x: x.rechunk({0: -1, x.ndim - 1: 1}).max(axis=0),
        lambda x: x[::-1, ...][1:],
        lambda x: x.reshape(-1)[::5],
        lambda x: da.tensordot(x, x, axes=(-1, -1)),
    ],
)
@pytest.mark.parametrize("build", [lambda: da.stack(images()), *BUILDS])
def test_values_are_those_of_dask(
    build: Callable[[], da.Array], reduce: Callable[[Any], da.Array], workers: int
) -> None:
    lazy, expected = with_values(build, reduce)
    for keep_chunks in (False, True):
        new = dasktile.optimize(lazy, workers=workers, keep_chunks=keep_chunks)
        np.testing.assert_allclose(new.compute(scheduler="sync"), expected, rtol=1e-5, atol=1e-5)
    with dask.config.set(array_optimize=dasktile.array_optimize, **{"dasktile.workers": workers}):
        np.testing.assert_allclose(lazy.compute(scheduler="sync"), expected, rtol=1e-5, atol=1e-5)
