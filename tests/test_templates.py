"""A graph that was written is written again with the keys and the data of another request."""

from __future__ import annotations

import gc
import importlib
import itertools
import math
import pickle
import re
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import dask
import dask.array as da
import numpy as np
import pytest
from dask.highlevelgraph import HighLevelGraph

import dasktile
from dasktile import pipeline, templates
from dasktile.capture import literals, seen
from dasktile.lower import gaps
from dasktile.recent import recently_used
from tests.agreement import EAGER
from tests.graphs_alike import graph_difference
from tests.test_decisions import arrays, cluster, machine, salted, twice


@contextmanager
def written() -> Iterator[list[Any]]:
    """The graphs that are written anew."""
    graphs: list[Any] = []
    write = pipeline._written

    def spy(*args: Any) -> Any:
        graphs.append(write(*args))
        return graphs[-1]

    with mock.patch.object(pipeline, "_written", spy):
        yield graphs


def graph_of(collections: Any) -> HighLevelGraph:
    return HighLevelGraph.merge(*(array.__dask_graph__() for array in arrays(collections)))


def agree(planned: da.Array, array: da.Array) -> None:
    """Check values; computed together, the two graphs would share what has the same keys."""
    values = planned.compute(scheduler="sync")
    np.testing.assert_allclose(values, array.compute(scheduler="sync"))


def differs(one: Any, other: Any) -> str:
    """Where the graphs and the arrays of two results differ."""
    for first, second in zip(arrays(one), arrays(other), strict=True):
        if (first.name, first.chunks, first.dtype) != (second.name, second.chunks, second.dtype):
            return f"{first} and {second}"
    return graph_difference(graph_of(one), graph_of(other))


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")
@pytest.mark.parametrize("config", [{}, EAGER])
def test_a_template_makes_the_graph_that_is_written_anew(config: dict[str, Any]) -> None:
    filled = 0
    with machine(cluster()), dask.config.set(config):
        for seed in range(14):
            keep_chunks = seed % 3 == 0
            expressions = twice(seed)
            templates.forget()
            with written() as graphs:
                dasktile.optimize(*expressions[0], keep_chunks=keep_chunks)
                first = len(graphs)
                again = dasktile.optimize(*expressions[1], keep_chunks=keep_chunks)
                filled += 2 * first - len(graphs)
            with dask.config.set({"dasktile.reuse-plans": False}):
                anew = dasktile.optimize(*expressions[1], keep_chunks=keep_chunks)
            assert not differs(again, anew)
    assert filled > 7


def step(x: da.Array, w: da.Array) -> da.Array:
    return da.tanh(x @ w) * 0.5


def test_steps_of_a_loop_are_written_once() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.random((400, 400)), rng.random((400, 400))
    lazy = da.from_array(w, chunks=100)
    with machine(cluster()), written() as graphs:
        for _ in range(4):
            y = da.random.default_rng(rng).random((400, 400), chunks=100)
            z = step(y, lazy)
            planned = dasktile.optimize(z)
            agree(planned, z)
    assert len(graphs) == 1
    assert not np.array_equal(x, w)


def doubled(factor: float) -> Callable[[Any], Any]:
    return lambda block: block * factor


def with_default(factor: float) -> Callable[[Any], Any]:
    def scale(block: Any, by: float = factor) -> Any:
        return block * by

    return scale


FACTOR = 2.0
INNER: Callable[[Any], Any] = np.abs


def with_global(factor: float) -> Callable[[Any], Any]:
    def scale(block: Any) -> Any:
        return block * FACTOR

    globals()["FACTOR"] = factor
    return scale


class Scale:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, block: Any) -> Any:
        return block * self.factor


def with_inner(factor: float) -> Callable[[Any], Any]:
    inner = doubled(factor)
    return lambda block: inner(block)


def with_array(factor: float) -> Callable[[Any], Any]:
    values = np.array([factor])
    return lambda block: block * values[0]


def with_dict(factor: float) -> Callable[[Any], Any]:
    options = {"factor": factor}
    return lambda block: block * options["factor"]


def bound(factor: float) -> Callable[[Any], Any]:
    return Scale(factor).__call__


def in_module(source: str, **seen: Any) -> Callable[[Any], Any]:
    """A function `scale` of a module with some globals."""
    exec(source, seen)
    function: Callable[[Any], Any] = seen["scale"]
    return function


@pytest.mark.parametrize(
    "make",
    [doubled, with_default, with_global, with_inner, with_array, with_dict, Scale, bound],
)
def test_functions_that_differ_in_what_they_see_are_not_taken_for_each_other(
    make: Callable[[float], Callable[[Any], Any]],
) -> None:
    x = da.random.default_rng(0).random((400, 400), chunks=100)
    with machine(cluster()):
        for factor in (2.0, 3.0, 2.0):
            y = x.map_blocks(make(factor), dtype=x.dtype)
            y = y.T @ y
            planned = dasktile.optimize(y)
            agree(planned, y)


def test_a_module_of_the_user_may_have_the_name_of_one_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trace.py").write_text(
        "def inner(block): return block * 2\ndef outer(block): return inner(block)\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "trace", raising=False)
    module = importlib.import_module("trace")
    monkeypatch.setitem(sys.modules, "trace", module)
    seen._is_fixed.cache_clear()
    with machine(cluster()):
        for inner in (module.inner, lambda block: block - block.mean()):
            module.inner = inner
            x = da.random.default_rng(0).random((400, 400), chunks=100)
            y = x.map_blocks(module.outer, dtype=x.dtype).T @ x
            agree(dasktile.optimize(y), y)
    seen._is_fixed.cache_clear()


def test_a_partial_that_a_function_sees_is_read() -> None:
    def applied(inner: Callable[..., Any]) -> Callable[[Any], Any]:
        bound = partial(inner, by=2.0)
        return lambda block: bound(block)

    def times(block: Any, by: float) -> Any:
        return block * by

    def summed(block: Any, by: float) -> Any:
        return np.cumsum(block, axis=1) * by

    summed.__qualname__, summed.__name__ = times.__qualname__, times.__name__
    with machine(cluster()), written() as graphs:
        for inner in (times, summed):
            x = da.random.default_rng(0).random((400, 400), chunks=100)
            y = x.map_blocks(applied(inner), dtype=x.dtype).T @ x
            agree(dasktile.optimize(y), y)
    assert len(graphs) == 2


def test_the_module_of_a_wrapper_is_its_own() -> None:
    def applied(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
        globals()["INNER"] = inner

        @wraps(math.sqrt)
        def wrapper(block: Any) -> Any:
            return INNER(block)

        return wrapper

    with machine(cluster()), written() as graphs:
        for inner in (lambda block: block * 2, lambda block: np.cumsum(block, axis=1)):
            x = da.random.default_rng(0).random((400, 400), chunks=100)
            y = x.map_blocks(applied(inner), dtype=x.dtype).T @ x
            agree(dasktile.optimize(y), y)
    assert len(graphs) == 2


def test_a_declaration_after_the_first_plan_counts() -> None:
    scale = Scale(2.0)
    with machine(cluster()), written() as graphs:
        for declared in (False, True):
            if declared:
                dasktile.register_kernel(scale, elementwise=True)
            x = da.random.default_rng(0).random((400, 400), chunks=100)
            y = x.map_blocks(scale, dtype=x.dtype).T @ x
            agree(dasktile.optimize(y), y)
    assert len(graphs) == 2


class Options(dict):
    """A dict with an attribute."""

    factor = 1.0


class Partial(partial):
    """A function with some arguments, and an attribute."""


def options(factor: float) -> Options:
    made = Options(one=1)
    made.factor = factor
    return made


def partials(factor: float) -> Partial:
    made = Partial(np.sin)
    made.factor = factor
    return made


RECORD = np.dtype([("a", "f4"), ("b", "f8")])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (RECORD, np.dtype([("b", "f4"), ("a", "f8")])),
        (np.dtype("f8", metadata={"k": 1}), np.dtype("f8", metadata={"k": 2})),
        (np.zeros(1, RECORD)[0], np.zeros(1, np.dtype([("b", "f4"), ("a", "f8")]))[0]),
        (options(2.0), options(3.0)),
        ({"k": 1}, OrderedDict(k=1)),
        ({1, 2}, frozenset({1, 2})),
        (partials(2.0), partials(3.0)),
        (0.0, -0.0),
        (np.float64(0.0), np.float64(-0.0)),
        (float("nan"), 1.0),
        ("a" * 32, "b" * 32),
        (np.array([0.0, 1.0]), np.array([0.0, -1.0])),
        (np.ma.masked_array([1, 2], [0, 1]), np.ma.masked_array([1, 2], [1, 0])),
        (np.array(["a-b", "c"], object), np.array(["a", "b-c"], object)),
        (np.datetime64("2020-01-01"), np.datetime64("2020-01-02")),
        (np.timedelta64(10, "m"), np.timedelta64(10, "s")),
        (SimpleNamespace(k=1), SimpleNamespace(k=2)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_literals_that_differ_are_not_taken_for_each_other(first: Any, second: Any) -> None:
    seen: list[Any] = []

    def note(block: Any, value: Any) -> Any:
        seen.append(value)
        return block

    with machine(cluster()):
        for value in (first, second):
            seen.clear()
            x = da.random.default_rng(0).random((400, 400), chunks=100)
            y = x.map_blocks(note, value, dtype=x.dtype, meta=x._meta)
            dasktile.optimize(y.T @ x).compute(scheduler="sync")
            assert seen and all(pickle.dumps(each) == pickle.dumps(value) for each in seen)


def test_an_empty_list_of_the_user_is_handed_on() -> None:
    def note(block: Any, log: list[int]) -> Any:
        log.append(1)
        return block

    with machine(cluster()), written() as graphs:
        for seed in range(3):
            log: list[int] = []
            x = da.random.default_rng(seed).random((400, 400), chunks=100)
            y = x.map_blocks(note, log, dtype=x.dtype, meta=x._meta)
            dasktile.optimize(y.T @ x).compute(scheduler="sync")
            assert len(log) == 16
    assert len(graphs) == 1


def test_large_values_that_functions_see_are_not_read() -> None:
    table = dict.fromkeys(map(float, range(100_000)), 1.0)
    with machine(cluster()), written() as graphs:
        for seed in range(2):
            x = da.random.default_rng(seed).random((400, 400), chunks=100)
            y = x.map_blocks(lambda block: block * table[1.0], dtype=x.dtype).T @ x
            agree(dasktile.optimize(y), y)
    assert len(graphs) == 2


def test_data_of_filled_graphs_is_not_kept() -> None:
    held = []
    with machine(cluster()), written() as graphs:
        for seed in range(3):
            data, function = np.ones((400, 400)), doubled(2.0)
            noise = da.random.default_rng(seed).random((400, 400), chunks=100)
            y = da.from_array(data, chunks=100).T @ noise.map_blocks(function, dtype=float)
            z = dasktile.optimize(y)
            held += [weakref.ref(data), weakref.ref(function), weakref.ref(z.__dask_graph__())]
            assert dasktile.explain(z).planned
            del data, function, noise, y, z
        assert len(graphs) == 1
        graphs.clear()
        gc.collect()
    assert [each() for each in held] == [None] * 9


def test_a_module_that_may_change_is_not_compared() -> None:
    # the module of this test is one of the user
    import tests.test_templates as module

    def scale(block: Any) -> Any:
        return block * module.FACTOR

    with machine(cluster()), written() as graphs:
        for seed in range(2):
            x = da.random.default_rng(seed).random((400, 400), chunks=100)
            dasktile.optimize(x.map_blocks(scale, dtype=x.dtype).T @ x)
    assert len(graphs) == 2


def test_which_of_two_functions_of_one_name_is_called_decides() -> None:
    one, two = doubled(2.0), doubled(3.0)
    x = da.random.default_rng(0).random((400, 400), chunks=100)
    with machine(cluster()):
        for functions in ((one, two, one), (one, two, two)):
            y = x
            for function in functions:
                y = y.map_blocks(function, dtype=x.dtype)
            agree(dasktile.optimize(y.T @ y), y.T @ y)


@pytest.mark.parametrize("make", [da.random.default_rng, da.random.RandomState])
def test_random_numbers_are_those_of_the_request(make: Callable[[int], Any]) -> None:
    with machine(cluster()):
        for seed in (0, 1, 2):
            x = make(seed).normal(size=(400, 400), chunks=100)
            y = x.T @ x
            planned = dasktile.optimize(y)
            agree(planned, y)


def test_data_that_was_changed_in_place_is_not_used() -> None:
    data = np.arange(160_000.0).reshape(400, 400)
    copy = data.copy()
    with machine(cluster()):
        for values in (data, copy):
            x = da.from_array(values, chunks=100)
            planned = dasktile.optimize(x.T @ x)
            np.testing.assert_allclose(planned.compute(scheduler="sync"), copy.T @ copy)
            data[:] = 0


def test_names_of_the_user_that_differ_are_planned_anew() -> None:
    with machine(cluster()), written() as graphs:
        for name in ("one", "two", "one"):
            x = da.from_array(np.ones((400, 400)), chunks=100, name=name)
            y = x.T @ x
            planned = dasktile.optimize(y)
            agree(planned, y)
    assert len(graphs) == 2


def test_texts_that_are_names_of_arrays() -> None:
    def tagged(block: Any, tag: str) -> Any:
        return block + len(tag)

    with machine(cluster()):
        for seed, other in ((0, ""), (1, "x"), (2, "x")):
            x = da.random.default_rng(seed).random((400, 400), chunks=100)
            y = x.map_blocks(tagged, x.name + other, dtype=x.dtype)
            z = y.T @ y
            planned = dasktile.optimize(z)
            agree(planned, z)


def test_templates_hold_neither_data_nor_functions_nor_graphs() -> None:
    with machine(cluster()):
        data = np.random.default_rng(0).random((400, 400))
        function = doubled(2.0)
        x = da.from_array(data, chunks=100)
        y = x.T @ x.map_blocks(function, dtype=x.dtype)
        z = dasktile.optimize(y)
        graphs = [weakref.ref(each.__dask_graph__()) for each in (y, z)]
        held = [weakref.ref(data), weakref.ref(function), *graphs]
        del data, function, x, y, z
        gc.collect()
        assert templates._store
        assert [each() for each in held] == [None] * 4


def test_templates_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    few = recently_used(2, templates.MOST_BYTES, attrgetter("nbytes"))
    monkeypatch.setattr(templates, "_store", few)
    with machine(cluster()), written() as graphs:
        for side in (250, 300, 400, 300):
            x = da.random.default_rng(0).random((side, side), chunks=100)
            dasktile.optimize(x.T @ x)
        assert len(graphs) == 3
    assert len(few) == 2
    few.n = 1
    with machine(cluster()):
        x = da.random.default_rng(0).random((260, 260), chunks=100)
        dasktile.optimize(x.T @ x)
    assert not few


def test_plans_of_filled_graphs_are_explained() -> None:
    texts = []
    with machine(cluster()):
        for seed in (0, 1):
            x = da.random.default_rng(seed).random((400, 400), chunks=100)
            y = dasktile.optimize(x.T @ x)
            texts.append(str(dasktile.explain(y)))
    assert texts[0] == texts[1]


def test_arrays_of_one_value_that_are_created_in_other_chunks_have_templates() -> None:
    # Dask names the chunk sizes in a layer by a token
    with written() as graphs:
        for salt in "ab":
            with salted(salt):
                x = da.ones((32_000, 100), chunks=(4000, 100))
                y = x.T @ (1 / (1 + da.exp(-(x @ da.ones(100)))))
            again = dasktile.optimize(y, workers=4)
        assert len(graphs) == 1
    with dask.config.set({"dasktile.reuse-plans": False}):
        anew = dasktile.optimize(y, workers=4)
    created = [layer for layer in graph_of(anew).layers.values() if getattr(layer, "io_deps", None)]
    assert created
    assert not differs(again, anew)


def test_graphs_that_stay_as_they_are_are_not_planned_again() -> None:
    with machine(cluster()), written() as graphs:
        for seed in (0, 1):
            x = da.random.default_rng(seed).random((4000,), chunks=100)
            y = x.map_blocks(np.sort, dtype=x.dtype)
            assert dasktile.optimize(y) is y or graphs[0].rewritten is not None
    assert len(graphs) == 1


def test_names_in_texts_of_keys_are_taken_apart_once() -> None:
    names = [f"x-{digit * 32}" for digit in "ab"]
    texts = [str((name, number)) for name in names for number in range(50)]
    split = gaps._Writer._split
    with mock.patch.object(gaps._Writer, "_split", autospec=True, side_effect=split) as called:
        gapped = gaps.with_gaps(texts, gaps.Source(tuple(names), {}, ()), {})
    assert called.call_count == len(names)
    others = [f"x-{digit * 32}" for digit in "cd"]
    expected = [str((name, number)) for name in others for number in range(50)]
    assert gapped.filled(gaps.Source(tuple(others), {}, ())) == expected


def test_tokens_are_looked_for_by_one_pattern() -> None:
    pattern = f"({literals.TOKEN.pattern}|{literals.SHORT_TOKEN.pattern})"
    parts = ["0", "af", "_f", "-", ".", "x", "0123", "a" * 8, "-abcd-0123-4567-0123456789ab"]
    parts += ["b" * 10, "c" * 31, "d" * 32, "9" * 33]
    found = 0
    for chosen in itertools.product(parts, repeat=4):
        text = "".join(chosen)
        pieces = gaps._TOKENS.split(text)
        assert pieces == re.split(pattern, text)
        found += len(pieces) > 1
    assert found > 10_000
