"""What is known of the result of a task is what it returns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import add, getitem, truediv
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import DataNode, List, Task, TaskRef
from dask.array.core import _vindex_slice_and_transpose
from dask.utils import methodcaller
from tlz import compose

from dasktile._compat.dask import execute_subgraph
from dasktile.lower.results import ResultGraph, array_result, known_result

X, Y = TaskRef("x"), TaskRef("y")


def result(task: Any, **blocks: np.ndarray) -> Any:
    graph = ResultGraph(
        lambda key: array_result(blocks.get(key)), lambda key: None, lambda key: None, np.unique
    )
    return known_result(task, graph)


def call(function: Any, *arguments: Any, **options: Any) -> Task:
    return Task("made", function, *arguments, **options)


#: Calls of a block of 6 x 4, each with whether its result must be known.
CALLS: list[tuple[Callable[[], Task], bool]] = [
    (lambda: call(add, X, 1), True),
    (lambda: call(add, X, Y), True),
    (lambda: call(truediv, X, 255), True),
    (lambda: call(np.sqrt, X), True),
    (lambda: call(np.isnan, X), True),
    (lambda: call(np.isreal, X), True),
    (lambda: call(np.abs, X), True),
    (lambda: call(np.where, X, 1.0, 0), True),
    (lambda: call(np.clip, X, 0.5, 3), True),
    (lambda: call(np.add, X, [1.0] * 4), False),
    (lambda: call(np.sum, X), True),
    (lambda: call(np.sum, X, axis=(0,), keepdims=True), True),
    (lambda: call(np.sum, X, axis=-1, dtype="f8"), True),
    (lambda: call(np.sum, X, 1), False),
    (lambda: call(np.max, X, 0), False),
    (lambda: call(np.max, X, axis=0), True),
    (lambda: call(np.any, X, axis=0), True),
    (lambda: call(np.count_nonzero, X, axis=1), True),
    (lambda: call(np.cumsum, X), False),
    (lambda: call(np.cumsum, X, axis=0, dtype="f8"), True),
    (lambda: call(np.transpose, X), True),
    (lambda: call(np.transpose, X, (1, 0)), True),
    (lambda: call(np.transpose, X, axes=[-1, 0]), True),
    (lambda: call(np.squeeze, X, axis=()), True),
    (lambda: call(np.reshape, X, (8, 3)), True),
    (lambda: call(np.reshape, X, (-1,)), False),
    (lambda: call(methodcaller("reshape"), X, (24,)), True),
    (lambda: call(np.broadcast_to, X, (5, 6, 4)), True),
    (lambda: call(getitem, X, (slice(1, 3), None, slice(None, None, -2))), True),
    (lambda: call(getitem, X, (slice(None), [3, 1, 1])), True),
    (lambda: call(getitem, X, ([1, 2], [3, 3])), False),
    (lambda: call(getitem, X, (slice(None), [True] * 4)), False),
    (lambda: call(_vindex_slice_and_transpose, X, (np.array([3, 1, 3]), slice(None)), 0), True),
    (lambda: call(_vindex_slice_and_transpose, X, ([3, 1], [0, 2]), 0), True),
    (lambda: call(np.fft.fft, X, None, 0), True),
    (lambda: call(np.fft.ifft, X, axis=-1), True),
    (lambda: call(np.fft.fft, X, 9, 0), False),
    (lambda: call(np.eye, 5), True),
    (lambda: call(np.eye, 5, None, 1), True),
    (lambda: call(np.zeros, 7), True),
    (lambda: call(np.zeros, (3, 7), "f4"), True),
    (lambda: call(np.zeros, (3, 7), None, "C"), True),
    (lambda: call(np.sum, List(X, X), axis=0), False),
    (lambda: call(np.transpose, List(X, X)), False),
    (lambda: call(compose(partial(np.sum, axis=0), np.stack), List(X, X)), False),
]


@pytest.mark.parametrize("dtype", ["u1", "?", "i4", "f4", "f8", "c8"])
@pytest.mark.parametrize("number", range(len(CALLS)))
def test_results_have_the_predicted_shapes_and_types(number: int, dtype: str) -> None:
    build, must_be_known = CALLS[number]
    block = np.ones((6, 4), dtype)
    real = np.asarray(build()({"x": block, "y": block[:1]}))
    known = result(build(), x=block, y=block[:1])
    small = build().func is np.cumsum and dtype in ("u1", "?", "i4", "f4")
    assert known is not None or not must_be_known or small
    if known is not None:
        assert known.shapes == (real.shape,)
        assert known.dtype == real.dtype
        shown = build().func is np.broadcast_to
        assert known.nbytes == (block.nbytes if shown else real.nbytes)


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_arguments_that_no_rule_expects_have_unknown_results(number: int) -> None:
    """A number, which has no axes."""
    build, _ = CALLS[number]
    block = np.float64(3)
    try:
        real = np.asarray(build()({"x": block, "y": block}))
    except Exception:
        real = None
    known = result(build(), x=np.asarray(block), y=np.asarray(block))
    if known is not None and real is not None:
        assert known.shapes == (real.shape,)


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: rng.random((6, 4), chunks=3),
        lambda rng: rng.random((6, 4), dtype="f4", chunks=3),
        lambda rng: rng.integers(0, 9, (6, 4), chunks=3),
        lambda rng: rng.integers(0, 9, (6, 4), dtype="u1", chunks=3),
        lambda rng: rng.normal(size=(6, 4), chunks=3),
        lambda rng: rng.multinomial(9, [0.5, 0.5], size=(6,), chunks=3),
    ],
)
def test_random_numbers(draw: Callable[[Any], da.Array]) -> None:
    [array] = dask.optimize(draw(da.random.default_rng(0)))
    for task in dict(array.dask).values():
        known, real = result(task), task({})
        if known is not None:
            assert (known.shapes, known.dtype) == ((real.shape,), real.dtype)
        else:
            assert "multinomial" in array.name


#: Reductions with the types that they have; complex numbers have no order.
REDUCTIONS = [
    (f"{prefix}{method}", dtype)
    for prefix in ("", "nan")
    for method in ("sum", "mean", "std", "max", "argmax", "cumsum")
    for dtype in ("i4", "f4", "f8", "c16")
    if dtype != "c16" or "max" not in method
]
REDUCTIONS += [("any", dtype) for dtype in ("i4", "f4", "f8", "c16")]


@pytest.mark.parametrize(("name", "dtype"), REDUCTIONS)
def test_steps_of_reductions(name: str, dtype: str) -> None:
    """Every task of an optimised graph is compared with what it returns."""
    block = da.ones((40, 30), chunks=(10, 15), dtype=dtype) * np.ones((), dtype)
    [array] = dask.optimize(getattr(da, name)(block, axis=0))
    values: dict[Any, Any] = {}
    known: dict[Any, Any] = {}
    graph = ResultGraph(known.get, lambda key: None, lambda key: None, np.unique)
    order = dask.order.order(dict(array.dask))
    for key in sorted(order, key=order.__getitem__):
        task = array.dask[key]
        values[key] = task(values)
        known[key] = known_result(task, graph)
        parts = values[key].values() if isinstance(values[key], dict) else [values[key]]
        counted = [
            each.itemsize if each.size > 1 and not any(each.strides) else each.nbytes
            for each in map(np.asarray, parts)
        ]
        if known[key] is not None:
            assert known[key].nbytes == pytest.approx(sum(counted), abs=16 * len(counted)), key
        else:
            assert dtype == "c16" or name == "cumsum" or name.startswith("nan")


def test_data_of_the_graph_that_is_none() -> None:
    """As the missing bound of a clip, which Dask makes data when it merges functions."""
    bounds = DataNode("low", 1), DataNode("high", None)
    names = {"x": X, "low": bounds[0], "high": bounds[1]}
    steps = {"clip": call(np.clip, *map(TaskRef, names))}
    fused = Task("made", execute_subgraph, steps, "clip", tuple(names), *names.values())
    block = np.ones((6, 4))
    for task in (fused, Task("all", execute_subgraph, {"in": fused}, "in", ("x",), X)):
        assert result(task, x=block).shapes == (block.shape,)
    # a result of which nothing is known is no None
    assert result(call(np.clip, X, 1, TaskRef("other")), x=block) is None
