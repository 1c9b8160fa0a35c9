"""What functions see, and what they are handed, in graphs that are written again."""

from __future__ import annotations

import importlib
import sys
import threading
import types
from collections.abc import Callable, Iterator
from functools import partial, wraps
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.ndimage
import scipy.special
from dask.highlevelgraph import HighLevelGraph
from dask.tokenize import tokenize
from tlz import curry  # type: ignore[import-untyped]  # it has no types

import dasktile
from dasktile._compat.dask import Task, TaskRef
from dasktile.capture import seen
from dasktile.schedule.placement import token
from tests.test_decisions import cluster, machine
from tests.test_templates import agree, doubled, in_module, written


@pytest.fixture(autouse=True)
def first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules are seen for the first time in each test."""
    monkeypatch.setattr(seen, "_FIRST", {})


def plan(function: Callable[[Any], Any]) -> None:
    """Plan a product with blocks of a function, and compare its values."""
    x = da.random.default_rng(0).random((400, 400), chunks=100)
    y = x.map_blocks(function, dtype=x.dtype, meta=x._meta).T @ x
    agree(dasktile.optimize(y), y)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A module of an installed package, whose functions take the mean off if `CENTRED`."""
    name = "dasktile_test_installed"
    (tmp_path / f"{name}.py").write_text(
        """
from functools import wraps
from dask.array.chunk import trim
CENTRED = False
def scale(block):
    return block - block.mean() if CENTRED else block * 2
def outer(block):
    return scale(block) + 1
def made():
    def inner(block):
        return scale(block)
    return inner
def wrapped():
    @wraps(trim)
    def inner(block):
        return block - block.mean() if CENTRED else block * 2
    return inner
""",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(seen.sysconfig, "get_path", lambda name: str(tmp_path))
    seen._is_fixed.cache_clear()
    yield importlib.import_module(name)
    sys.modules.pop(name)
    seen._is_fixed.cache_clear()


@pytest.mark.parametrize(
    "applied",
    [
        lambda module: module.scale,
        lambda module: module.outer,
        lambda module: module.made(),
        lambda module: in_module("def scale(b): return f(b)", f=module.scale),
        lambda module: in_module("def scale(b): return f(b)", f=module.wrapped()),
        lambda module: partial(module.outer),
    ],
    ids=["itself", "one that it calls", "closure", "one of a user", "wraps another", "partial"],
)
def test_a_variable_of_an_installed_package_may_change(
    applied: Callable[[Any], Callable[[Any], Any]], installed: Any
) -> None:
    with machine(cluster()), written() as graphs:
        for is_centred in (False, True, False):
            installed.CENTRED = is_centred
            plan(applied(installed))
    assert len(graphs) == 2


def test_callable_objects_that_an_installed_function_sees_are_not_compared(installed: Any) -> None:
    class Locked:
        lock = threading.Lock()

        def __call__(self, block: Any) -> Any:
            return block * 2

    installed.scale = Locked()
    with machine(cluster()), written() as graphs:
        for _ in range(3):
            plan(installed.outer)
    assert len(graphs) == 1


def by_global(name: str) -> Callable[[Any], Any]:
    return in_module(f"def scale(b): return np.{name}(b)", np=np)


def by_import(name: str) -> Callable[[Any], Any]:
    return in_module(f"def scale(b):\n import numpy as n\n return n.{name}(b)")


def by_name(name: str) -> Callable[[Any], Any]:
    return in_module(f"def scale(b):\n from numpy import {name} as f\n return f(b)")


def by_argument(name: str) -> Callable[[Any], Any]:
    return partial(in_module(f"def scale(b, xp): return xp.{name}(b)"), xp=np)


@pytest.mark.parametrize("used", [by_global, by_import, by_name, by_argument])
def test_a_function_on_numpy_may_be_replaced(
    used: Callable[[str], Callable[[Any], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    elementwise = doubled(2.0)
    with machine(cluster()), written() as graphs:
        for function in (elementwise, centred, elementwise):
            monkeypatch.setattr(np, "applied_in_a_test", function, raising=False)
            plan(used("applied_in_a_test"))
    assert len(graphs) == 2


def test_a_function_on_numpy_may_change_while_it_stays_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module: dict[str, Any] = {"CENTRED": False}
    exec("def scale(b): return b - b.mean() if CENTRED else b * 2", module)
    monkeypatch.setattr(np, "applied_in_a_test", module["scale"], raising=False)
    with machine(cluster()), written() as graphs:
        for is_centred in (False, True, False):
            module["CENTRED"] = is_centred
            plan(by_global("applied_in_a_test"))
    assert len(graphs) == 2


def test_a_number_that_was_put_on_a_module_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = in_module(
        "def scale(b): return b - b.mean() if np.is_centred_in_a_test else b * 2", np=np
    )
    with machine(cluster()), written() as graphs:
        for is_centred in (False, True, False):
            monkeypatch.setattr(np, "is_centred_in_a_test", is_centred, raising=False)
            plan(scale)
    assert len(graphs) == 2


def test_a_module_with_the_name_of_numpy_is_not_numpy() -> None:
    with machine(cluster()):
        for function in (doubled(2.0), centred):
            module = types.ModuleType("numpy")
            vars(module)["applied"] = function
            plan(in_module("def scale(b): return np.applied(b)", np=module))


def test_modules_that_are_imported_later_decide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with machine(cluster()), written() as graphs:
        for number in range(3):
            plan(doubled(2.0))
            later = types.ModuleType(f"numpy.later{number}")
            monkeypatch.setattr(np, f"later{number}", later, raising=False)
    assert len(graphs) == 1


def test_what_cannot_be_compared_on_numpy_means_no_template(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock = threading.Lock()
    with machine(cluster()), written() as graphs:
        for _ in range(2):
            function = in_module("def scale(b): return lock", lock=lock)
            plan(doubled(2.0))
            monkeypatch.setattr(np, "applied_in_a_test", function, raising=False)
        plan(doubled(2.0))
    assert len(graphs) == 3


def of_two(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The second of two functions of one name, which call each other.

    The first calls itself, or the second where `inner` does not work element by element.
    """
    is_elementwise = "cumsum" not in inner.__code__.co_names

    def made(last: Callable[[Any], Any]) -> tuple[Any, Callable[[Any], None]]:
        other: Any = None

        def scale(block: Any, left: int = 2) -> Any:
            if left > 0:
                return other(block, left - 1)
            return last(block)

        def link(function: Any) -> None:
            nonlocal other
            other = function

        return scale, link

    (first, link_first), (second, link_second) = made(doubled(2.0)), made(centred)
    link_second(first)
    link_first(first if is_elementwise else second)
    return second


def centred(block: Any) -> Any:
    return block - block.mean()


@pytest.mark.parametrize(
    "applied",
    [
        lambda inner: lambda block: inner(block),
        lambda inner: in_module("def scale(b): return abs(b)", __builtins__={"abs": inner}),
        lambda inner: in_module("def scale(b): return f(b)", __name__="numpy.lib", f=inner),
        of_two,
    ],
    ids=["closure", "builtins", "name of a module", "each other"],
)
def test_a_function_that_no_longer_works_element_by_element_is_planned_anew(
    applied: Callable[[Callable[[Any], Any]], Callable[[Any], Any]],
) -> None:
    elementwise = doubled(2.0)
    with machine(cluster()), written() as graphs:
        for inner in (elementwise, lambda block: np.cumsum(block, axis=1), elementwise):
            plan(applied(inner))
    assert len(graphs) == 2


@pytest.mark.parametrize(
    "make", [lambda: [1], lambda: {"a": 1}, lambda: {1}, lambda: [[2.5], {"a": [1]}]]
)
def test_what_a_function_may_change_is_handed_on(make: Callable[[], Any]) -> None:
    def note(block: Any, value: Any) -> Any:
        seen.add(id(value))
        return block

    with machine(cluster()), written() as graphs:
        for seed in range(3):
            value, seen = make(), set[int]()
            x = da.random.default_rng(seed).random((400, 400), chunks=100)
            y = x.map_blocks(note, value=value, dtype=x.dtype, meta=x._meta)
            dasktile.optimize(y.T @ x).compute(scheduler="sync")
            assert seen == {id(value)}
    assert len(graphs) == 1


def test_each_block_is_handed_the_list_that_it_has() -> None:
    def note(block: Any, value: Any) -> Any:
        seen.append(value)
        return block

    with machine(cluster()), written() as graphs:
        for seed in range(3):
            lists: list[list[float]] = [[0.5] for _ in range(16)]
            seen: list[list[float]] = []
            x = da.random.default_rng(seed).random((400, 400), chunks=100)
            name = f"noted-{tokenize(seed)}"
            tasks = {
                key: Task(key, note, TaskRef((x.name, *key[1:])), value)
                for at, value in enumerate(lists)
                for key in [(name, *divmod(at, 4))]
            }
            graph = HighLevelGraph.from_collections(name, tasks, dependencies=[x])
            y = da.Array(graph, name, x.chunks, meta=x._meta)
            dasktile.optimize(y.T @ x).compute(scheduler="sync")
            assert sorted(map(id, seen)) == sorted(map(id, lists))
    assert len(graphs) == 1


class Decorated:
    """Methods that have other names than their functions."""

    def plus(self, block: Any) -> Any:
        return block + 1

    @wraps(plus)
    def minus(self, block: Any) -> Any:
        return block - 1


def first_option(block: Any, **options: float) -> Any:
    return block * next(iter(options.values()))


def first_item(block: Any, items: set[int]) -> Any:
    return block * next(iter(items))


@pytest.mark.parametrize(
    "functions",
    [
        [Decorated().minus, Decorated().minus],
        [partial(first_option, a=2.0, b=3.0), partial(first_option, b=3.0, a=2.0)],
        [partial(first_item, items={8, 16}), partial(first_item, items={16, 8})],
    ],
    ids=["method", "order of keywords", "order of a set"],
)
def test_functions_of_a_filled_graph_are_those_of_the_request(
    functions: list[Callable[[Any], Any]],
) -> None:
    with machine(cluster()), written() as graphs:
        for function in functions:
            plan(function)
    assert len(graphs) == 1


def test_a_curried_function_is_not_the_one_of_its_name() -> None:
    # as in a notebook, where a function is defined again
    with machine(cluster()), written() as graphs:
        first = defined(2.0)
        plan(first)
        defined(3.0)
        plan(first)
    assert len(graphs) == 1


def defined(factor: float) -> Any:
    """A curried function under a name of this module."""
    function = in_module("def scale(b): return b * factor", factor=factor)
    function.__module__, function.__qualname__ = __name__, "defined_in_a_test"
    globals()["defined_in_a_test"] = curry(function)
    return globals()["defined_in_a_test"]


def test_a_text_that_looks_like_a_short_token_is_not_replaced() -> None:
    def labelled(block: Any, label: str) -> Any:
        return block + sum(map(ord, label))

    names = [f"labelled-{tokenize(number)}" for number in range(2)]
    with machine(cluster()):
        for name in names:
            x = da.from_array(np.ones((400, 400)), chunks=100, name=name)
            y = x.map_blocks(labelled, label=token(names[0]), dtype=x.dtype).T @ x
            agree(dasktile.optimize(y), y)


def test_a_global_that_takes_the_place_of_another_decides() -> None:
    seen: dict[str, Any] = {"nd": scipy.ndimage, "s": 0, "a": 6, "b": 0}
    source = "def scale(x):\n t = 1 if not s else a\n t = b if not s else c\n"
    exec(f"{source} return nd.gaussian_filter(x, t)", seen)
    with machine(cluster()):
        plan(seen["scale"])
        del seen["a"]
        seen.update(b=6, c=0)
        plan(seen["scale"])


def test_defaults_of_a_filter_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = scipy.ndimage.gaussian_filter.__defaults__
    with machine(cluster()):
        # the last one is where the filter ends, in sigmas
        for ends in ((*defaults[:-1], 0.0), defaults):
            monkeypatch.setattr(scipy.ndimage.gaussian_filter, "__defaults__", ends)
            plan(lambda block: scipy.ndimage.gaussian_filter(block, 2))


def test_which_ufunc_is_called_on_a_number_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    width = in_module(
        "def scale(x): return nd.gaussian_filter(x, sp.gamma(3.0), truncate=2.0)",
        nd=scipy.ndimage,
        sp=scipy.special,
    )
    with machine(cluster()):
        for ufunc in (scipy.special.gamma, scipy.special.kolmogorov, scipy.special.itmodstruve0):
            monkeypatch.setattr(scipy.special, "gamma", ufunc)
            plan(width)


def test_values_on_numpy_may_change_places(monkeypatch: pytest.MonkeyPatch) -> None:
    blurred = in_module(
        "def scale(x): return nd.gaussian_filter(x, np.first_in_a_test)",
        nd=scipy.ndimage,
        np=np,
    )
    with machine(cluster()):
        monkeypatch.setattr(np, "first_in_a_test", 0, raising=False)
        monkeypatch.setattr(np, "second_in_a_test", 6, raising=False)
        plan(blurred)
        del vars(np)["first_in_a_test"], vars(np)["second_in_a_test"]
        vars(np).update(second_in_a_test=0, first_in_a_test=6)
        plan(blurred)


def test_the_code_of_a_function_on_numpy_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    def looped(block: Any) -> Any:
        for _ in range(2):
            block = block + 1
        return block

    def blurred(sigma: int) -> Any:
        return in_module(f"def scale(x): return nd.gaussian_filter(x, {sigma})").__code__

    monkeypatch.setattr(np, "applied_in_a_test", looped, raising=False)
    monkeypatch.setitem(globals(), "nd", scipy.ndimage)
    with machine(cluster()):
        plan(by_global("applied_in_a_test"))
        for sigma in (0, 6):
            looped.__code__ = blurred(sigma)
            plan(in_module("def scale(b): return np.applied_in_a_test(b) + 0", np=np))
