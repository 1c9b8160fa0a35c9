"""Functions of the user whose code shows that their blocks may be cut otherwise.

What a function reads is compared with what changes in its result when one element of its block
changes.
"""

from __future__ import annotations

import functools
import random
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage, special
from scipy.ndimage import convolve

import dasktile
from dasktile.capture import tracing
from dasktile.capture.rules.pointwise import is_pointwise
from dasktile.capture.tracing import obstacle, traced_depths
from tests.agreement import EAGER

SCALE, WEIGHTS, KERNEL = 3.0, np.arange(3.0), np.arange(1.0, 16).reshape(3, 5)
SQUARE = np.ones((11, 11))
CALLS: list[Any] = []
COUNTS = np.zeros(1)
WAIT = threading.Event()


def _root(block: Any) -> Any:
    return np.sqrt(np.abs(block)) + SCALE


def _positive(block: Any, low: float = 0) -> Any:
    result = block.copy()
    result[~(result > low)] = low
    result += 1
    return result


def _between(block: Any) -> Any:
    result = block.copy()
    result[np.bitwise_and(block > 0, block < 0.5)] = 0
    return result


def _with_imports(block: Any) -> Any:
    import numpy
    from scipy import special as functions

    return numpy.clip(functions.expit(block), 0, 0.75)


def _mean_filter(block: Any, width: int) -> Any:
    return np.asarray(convolve(block, np.full((width, width), 1 / width**2)))


def _checked(block: Any) -> Any:
    if block is None:
        raise ValueError("no block")
    return np.where(block > 0, block, np.nan)


def _times(factor: Any) -> Callable[..., Any]:
    return lambda block: block * factor


def _halo(function: Any, ndim: int = 2, **kwargs: Any) -> dict[int, int] | None:
    """The depths by axis that are not zero; None if they are unknown."""
    depths = traced_depths(function, kwargs, 1)
    if depths is None:
        return None
    by_axis = {axis: depths.get(None, 0) + depths.get(axis - ndim, 0) for axis in range(ndim)}
    return {axis: depth for axis, depth in by_axis.items() if depth}


ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    "the block": lambda x: x,
    "operators": lambda x: -((2 * x + 1) ** 2) // 3 % 5,
    "a global and a function": lambda x: _root(_root(x)) - x,
    "a mask": _positive,
    "a mask of two conditions": _between,
    "imports": _with_imports,
    "a closure": _times(2),
    "bound arguments": functools.partial(np.power, 2.0),
    "a dtype": lambda x: x.astype("f4").round(1),
    "a type of Python": lambda x: x.astype(complex).real,
    "conditions": lambda x: np.isnan(x) | (x > 0) & ~(x > 1),
    "a constant": lambda x: np.full_like(x, np.pi),
    "bins": lambda x: np.digitize(x, bins=WEIGHTS) + np.digitize(x, bins=(0.0, 1.0)),
    "numbers of NumPy": lambda x: x * SINGLE + np.sqrt(2.0) * x,
    "complex numbers": lambda x: (x * 1j).conj().imag + np.asarray(x).real,
    "special functions": lambda x: special.gammaln(np.abs(x) + 1),
    "limits": lambda x: np.minimum(x.clip(min=0), x.clip(0, 1)),
}


def _loop(block: Any) -> Any:
    for _ in range(3):
        block = block + 1
    return block


def _caught(block: Any) -> Any:
    try:
        return np.sort(block)
    except Exception:
        return block


def _in_place(block: Any) -> Any:
    block += 1
    return block


def _of_a_view(block: Any) -> Any:
    result = block * 1j
    part = result.real
    part[part > 0] = 0
    return result


def _noted(block: Any) -> Any:
    CALLS.append(1)
    return block


def _counted(block: Any) -> Any:
    global COUNTS
    COUNTS = COUNTS + 1
    return block


def _counted_in_place(block: Any) -> Any:
    COUNTS[0] += 1
    return block


def _with_scaled_weights(block: Any) -> Any:
    weights = KERNEL
    weights *= 1
    return convolve(block, weights)


def _endless(block: Any) -> Any:
    return _endless(block + 1)


def _branching(block: Any, n: int = 30) -> Any:
    return block if n < 1 else _branching(block, n - 1) + _branching(block, n - 2)


def _into_a_result(block: Any) -> Any:
    result = np.zeros_like(block)
    np.clip(ndimage.gaussian_filter(block, 2), 0, 1, result)
    return result


def _into_a_view(block: Any) -> Any:
    result = np.zeros_like(block)
    part = np.real(result)
    part += ndimage.gaussian_filter(block, 2)
    return result


def _into_itself(block: Any) -> Any:
    result = np.zeros_like(block)
    part = result.round()
    part += ndimage.laplace(block)
    return result


def _enclosed() -> Callable[..., Any]:
    number = 0

    def counted(block: Any) -> Any:
        nonlocal number
        number += 1
        return block + number

    return counted


def _with_attributes(block: Any) -> Any:
    # functions have no such attribute by their type
    _with_attributes.log.append(1)  # type: ignore[attr-defined]
    return block


# functions have no such attribute by their type
_with_attributes.log = CALLS  # type: ignore[attr-defined]


# the name of a builtin is what is tested
def abs(block: Any) -> Any:  # noqa: A001
    for _ in (1,):
        pass
    return block - block.mean()


class _Number(int):
    def __mul__(self, other: Any) -> Any:
        CALLS.append(1)
        return other


NUMBER = _Number(2)
OPTIONS: dict[str, Any] = {}
LOW = np.linspace(-1, 1, 6)
MASKED = np.ma.ones((3, 5))
FLAG, SINGLE = np.bool_(True), np.float32(0.1)
LIST = [3, 3]
LARGE = np.ones((2, 101, 101))


class _Ends:
    def __mul__(self, other: Any) -> Any:
        sys.exit()


OBJECTS = np.array([_Ends()], dtype=object)
POLYNOMIAL = np.poly1d([1.0, 2, 1])
RUNNING = np.frompyfunc(lambda value: CALLS.append(value) or value, 1, 1)
ENDS = np.frompyfunc(lambda value: sys.exit(), 1, 1)

UNKNOWN: Mapping[str, Callable[..., Any]] = {
    "sorts": np.sort,
    "a function that sorts": lambda x: np.sort(x),
    "a mean": lambda x: x - x.mean(),
    "a sum": lambda x: np.add.reduce(x),
    "an order": lambda x: x[::-1],
    "selected": lambda x: x[x > 0],
    "transposed": lambda x: x.T,
    "flat": lambda x: x.ravel(),
    "its shape": lambda x: x / x.shape[0],
    "its length": lambda x: x / len(x),
    "its dtype": lambda x: x.astype(x.dtype),
    "its type": lambda x: x if type(x) is np.ndarray else np.sort(x),
    "whether it is an array": lambda x: x if isinstance(x, np.ndarray) else np.sort(x),
    "an attribute": lambda x: x if hasattr(x, "mean") else np.sort(x),
    "its truth": lambda x: x if x else x + 1,
    "positions": lambda x: np.where(x > 0),
    "a scan": lambda x: np.cumsum(x, axis=0),
    "shifted": lambda x: np.roll(x, 1),
    "an array beside it": lambda x: np.maximum(x, WEIGHTS),
    "an array of its own": lambda x: x * np.arange(3),
    "a large array": lambda x: x + np.zeros(10**9).sum(),
    "products": lambda x: x @ x,
    "a number": lambda x: 3.0,
    "an array": lambda x: np.zeros((3, 3)),
    "random numbers": lambda x: x + np.random.random(),
    "other random numbers": lambda x: x + random.random(),
    "prints": lambda x: print("printed") or x,
    "waits": lambda x: WAIT.wait() or x,
    "opens a file": lambda x: Path("/dev/null").touch() or x,
    "a loop": _loop,
    "an error that is caught": _caught,
    "changes its block": _in_place,
    "changes a view": _of_a_view,
    "a list of calls": _noted,
    "a global that it sets": _counted,
    "a global that it changes": _counted_in_place,
    "calls without end": _endless,
    "into its block": lambda x: np.add(x, 1, out=x),
    "bins of blocks": lambda x: np.digitize(0.5, bins=x),
    "an array in a closure": _times(WEIGHTS),
    "a generator": lambda x: (yield x),
    "a comprehension": lambda x: sum([x for _ in range(2)]),
    "an exec": lambda x: exec("y = 1") or x,
    "a uniform filter": lambda x: ndimage.uniform_filter(x, 3),
    "a median": lambda x: ndimage.median_filter(x, 3),
    "a maximum": lambda x: ndimage.maximum_filter(x, 3),
    "the other end": lambda x: convolve(x, KERNEL, mode="wrap"),
    "into an array": lambda x: convolve(x, KERNEL, output=WEIGHTS),
    "some axes": lambda x: ndimage.gaussian_filter(x, 2, axes=(0,)),
    "into a result": _into_a_result,
    "into a view": _into_a_view,
    "into an array that may be itself": _into_itself,
    "a state": _enclosed(),
    "attributes of a function": _with_attributes,
    "a name of a builtin": lambda x: abs(x),
    "a number of another type": lambda x: NUMBER * x,
    "a changed array": lambda x: KERNEL.setflags(write=True) or x,
    "bound arguments into an array": functools.partial(np.add, 1, out=COUNTS),
    "its class": lambda x: x if x.__class__ == np.ndarray else np.sort(x),
    "its text": lambda x: x * len(f"{x}"),
    "the same array": lambda x: x if np.asarray(x) is x else np.sort(x),
    "a test for None": _checked,
    "an inner function": lambda x: (lambda y: y + 1)(x),
    "an unknown global": lambda x: x * 2 if OPTIONS else np.sort(x),
    "masked weights": lambda x: convolve(x, MASKED),
    "an unknown option": lambda x: ndimage.gaussian_filter(x, 1, axes=OPTIONS),
    "a type that is compared": lambda x, dtype=np.float64: np.sort(x) if dtype != "f4" else x,
    "a function that is compared": lambda x, f=np.sin: np.sort(x) if f == np.sin else f(x),
    "an array that is tested": lambda x: x * 2 if COUNTS else np.sort(x),
    "limits that are arrays": lambda x: np.clip(x, a_min=LOW, a_max=2),
    "limits that are tuples": lambda x: np.clip(x, a_min=(0, 1, 0, 1), a_max=2),
    "tolerances that are arrays": lambda x: np.isclose(x, 0.1, rtol=LOW),
    "a boolean of NumPy": lambda x: x * 2 if ~FLAG else np.sort(x),
    "a boolean that NumPy computes": lambda x: x * 2 if ~np.less(1, 2) else np.sort(x),
    "a number of single precision": lambda x: np.sort(x) if SINGLE == 0.1 else x,
    "a list that is compared": lambda x: x if LIST == (3, 3) else np.sort(x),
    "weights that can be called": lambda x: convolve(x, POLYNOMIAL),
    "blocks in tuples": lambda x: convolve(x, (x,)),
    "a ufunc of the user": lambda x: RUNNING(x),
    "a ufunc of the user of numbers": lambda x: x + RUNNING(3.0),
    "a ufunc that ends the process": lambda x: x + ENDS(3.0),
    "a module that is not there": lambda x: __import__("scipy.stats") and x,
    "weights that it changes": _with_scaled_weights,
    "an array of numbers in the code": lambda x: x * np.array([1.0, 2]),
    "an array times an array": lambda x: x * (WEIGHTS * 2),
    "weights that are objects": lambda x: x + (OBJECTS * np.ones(1)).sum(),
    "objects that are made": lambda x: x + np.full((1,), None).sum(),
    "many weights": lambda x: ndimage.convolve1d(x, [0] * 20_001),
    "weights of blocks": lambda x: convolve(x, [[x, x]]),
    "weights that are large": lambda x: x + (np.ones((101, 1)) * LARGE).sum(),
    "weights that are a block": lambda x: convolve(KERNEL, x),
}

FILTERS: Mapping[str, tuple[Callable[..., Any], dict[int, int]]] = {
    "weights": (lambda x: convolve(x, KERNEL), {0: 1, 1: 2}),
    "an origin": (lambda x: ndimage.correlate(x, KERNEL, origin=(0, 1)), {0: 1, 1: 3}),
    "one axis": (lambda x: ndimage.correlate1d(x, WEIGHTS, mode="nearest"), {1: 1}),
    "a first axis": (lambda x: ndimage.convolve1d(x, WEIGHTS, axis=0), {0: 1, 1: 1}),
    "a Gaussian": (lambda x: ndimage.gaussian_filter(x, (0.5, 0), truncate=2), {0: 1}),
    "another": (lambda x: ndimage.gaussian_filter1d(x, 0.4, order=1), {1: 2}),
    "a radius": (lambda x: ndimage.gaussian_filter(x, 1, radius=2), {0: 2, 1: 2}),
    "two": (lambda x: convolve(convolve(x, KERNEL), KERNEL) - x, {0: 2, 1: 4}),
    "edges": (lambda x: np.hypot(ndimage.sobel(x, 0), ndimage.prewitt(x)), {0: 1, 1: 1}),
    "a Laplacian": (lambda x: ndimage.laplace(x, mode="constant"), {0: 1, 1: 1}),
    "of Gaussians": (lambda x: ndimage.gaussian_laplace(x, 0.5), {0: 2, 1: 2}),
    "a gradient": (lambda x: ndimage.gaussian_gradient_magnitude(x, 0.5), {0: 2, 1: 2}),
    "lists": (lambda x: convolve(x, [[0.0, 1, 0], [1, 4, 1], [0, 1, 0]]), {0: 1, 1: 1}),
    "numbers in the code": (lambda x: convolve(x, np.array([[1.0, 2, 1]]) / 4), {1: 1}),
    "equal weights": (lambda x: convolve(x, np.ones((3, 5)) / 15), {0: 1, 1: 2}),
    "products of weights": (lambda x: convolve(x, SQUARE * SQUARE), {0: 5, 1: 5}),
    "normalised weights": (lambda x: convolve(x, 2 * KERNEL / KERNEL.sum()), {0: 1, 1: 2}),
    "a computed width": (
        lambda x: ndimage.gaussian_filter(x, np.full((2, 2), 0.0625).sum()),
        {0: 1, 1: 1},
    ),
    "a mask": (lambda x: (convolve(x, KERNEL) > 0) & (x > 0), {0: 1, 1: 2}),
}


def _reach(function: Callable[..., Any], shape: tuple[int, int]) -> np.ndarray:
    """The most positions by which an element of the result is away from one that it depends on."""
    block = np.random.default_rng(0).normal(size=shape)
    before = function(block.copy())
    most = np.zeros(2, int)
    for place in np.ndindex(*shape):
        for value in (np.nan, 1e3, -1e3):
            changed = block.copy()
            changed[place] = value
            after = function(changed)
            differs = ~((before == after) | (np.isnan(before) & np.isnan(after)))
            if differs.any():
                away = np.abs(np.argwhere(differs) - np.array(place)).max(axis=0)
                most = np.maximum(most, away)
    return most


@pytest.mark.parametrize("function", ELEMENTWISE.values(), ids=ELEMENTWISE)
def test_elementwise(function: Callable[..., Any]) -> None:
    assert is_pointwise(function, {}, 1)
    assert not _reach(function, (3, 4)).any()
    x = da.from_array(np.random.default_rng(1).normal(size=(8, 6)), chunks=(2, 6))
    y = x.map_blocks(function, meta=function(np.ones((1, 1))))
    _check(y.T @ y)
    columns = da.from_array(np.ones((8, 6)), chunks=(8, 2))
    with dask.config.set(EAGER):
        explanation = dasktile.explain(y.T.rechunk((2, 8)).T + columns, workers=2)
    assert any(node.chunks_after != node.chunks_before for node in explanation.nodes if node.inputs)


@pytest.mark.parametrize("function", UNKNOWN.values(), ids=UNKNOWN)
def test_unknown(function: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert _halo(function) is None
    assert not is_pointwise(function, {}, 1)
    assert not capsys.readouterr().out and not CALLS and not COUNTS.any() and KERNEL[0, 0] == 1


@pytest.mark.parametrize(
    "function",
    [
        functools.partial(ndimage.gaussian_filter, sigma=0.5, truncate=2),
        functools.partial(lambda weights, x: convolve(x, weights), KERNEL[:, 1:4]),
    ],
)
def test_filters_with_bound_arguments(function: Callable[..., Any]) -> None:
    x = da.from_array(np.random.default_rng(1).normal(size=(16, 20)), chunks=(16, 5))
    assert _halo(function) == {0: 1, 1: 1}
    _check(x.map_overlap(function, depth=1, boundary="reflect", dtype=float) + x.T.sum())
    assert traced_depths(functools.partial(da.overlap.trim_internal, axes={}), {}, 1) is None


@pytest.mark.parametrize(("function", "halo"), FILTERS.values(), ids=FILTERS)
def test_filters(function: Callable[..., Any], halo: dict[int, int]) -> None:
    assert _halo(function) == halo
    # with the depths of the halo only
    assert not is_pointwise(function, {}, 1)
    assert (_reach(function, (9, 11)) <= [halo.get(axis, 0) for axis in (0, 1)]).all()
    x = da.from_array(np.random.default_rng(1).normal(size=(16, 20)), chunks=(16, 5))
    depth = {axis: halo.get(axis, 0) for axis in (0, 1)}
    for unknown in (x.map_blocks(function, dtype=float), _overlapped(x, function, 0)):
        assert "register_kernel" in str(dasktile.explain(unknown, workers=2)).replace("\n", "")
        z = dasktile.optimize(unknown + x.T.sum(), workers=2)
        np.testing.assert_allclose(z.compute(), (unknown + x.T.sum()).compute())
    for boundary in ("none", "reflect", 0.5):
        _check(x.map_overlap(function, depth=depth, boundary=boundary, dtype=float) + x.T.sum())
    # the result depends on the chunks
    axis = next(iter(halo))
    depth[axis] -= 1
    y = x.map_overlap(function, depth=depth, boundary="none", dtype=float)
    if depth[axis]:
        text = str(dasktile.explain(y, workers=2))
        expected = ", ".join(f"{each} along axis {axis}" for axis, each in halo.items())
        assert f"in map_overlap reads neighbours ({expected})" in " ".join(text.split())


def _overlapped(x: da.Array, function: Callable[..., Any], depth: int) -> da.Array:
    return da.map_overlap(function, x, depth=depth, boundary="none", dtype=float)


def _check(y: da.Array) -> None:
    with dask.config.set(EAGER):
        explanation = dasktile.explain(y, workers=2)
        z = dasktile.optimize(y, workers=2)
    assert not [node.reason for node in explanation.nodes if "register_kernel" in node.reason]
    np.testing.assert_allclose(z.compute(), y.compute(), rtol=1e-12)
    assert z.dtype == y.dtype


def test_keyword_arguments() -> None:
    assert _halo(_mean_filter, width=5) == {0: 2, 1: 2}
    assert _halo(ndimage.gaussian_filter, 3, sigma=1) == {0: 4, 1: 4, 2: 4}
    assert _halo(_positive, low=1) == {}
    assert _halo(_times(2), low=1) is None
    assert _halo(lambda x, w: x * w, w=WEIGHTS) is None
    # SciPy does not filter with these, or raises an error
    for options in ({"sigma": -2}, {"sigma": 1, "truncate": -1}, {"sigma": 1, "radius": -3}):
        assert _halo(ndimage.gaussian_filter, **options) is None
    assert _halo(ndimage.convolve, weights=np.zeros((0, 3))) is None


def test_several_arguments() -> None:
    def masked(a: Any, b: Any) -> Any:
        result = a + b
        result[b > 0] = 0  # of a block with fewer axes, this is along the first
        return result

    def added(a: Any, b: Any) -> Any:
        result = a * 2
        result += b
        return result

    assert is_pointwise(lambda a, b: np.where(a > 0, b, 0), {}, 2)
    assert is_pointwise(lambda a, b: np.zeros_like(a) + b, {}, 2)
    # the shape of its result may be that of one block alone
    assert not is_pointwise(lambda a, b: a * 2, {}, 2)
    assert not is_pointwise(masked, {}, 2)
    assert not is_pointwise(added, {}, 2)


def test_arguments_that_are_no_blocks() -> None:
    def masked(block: Any, mask: Any) -> Any:
        if mask is None:
            return block / block.max()
        return np.where(mask, block, 0)

    def same(a: Any, b: Any) -> Any:
        return a - a.mean() if a is b else a - b

    def of_a_kind(block: Any, number: Any) -> Any:
        match number:
            case int():
                return block - block.mean()
            case _:
                return block + number

    x = da.from_array(np.random.default_rng(1).normal(size=(8, 6)), chunks=(2, 6))
    for function, other in ((masked, None), (same, x), (of_a_kind, 3)):
        y = da.map_blocks(function, x, other, dtype=float)
        z = dasktile.optimize(y.T @ y, workers=2)
        np.testing.assert_allclose(z.compute(), (y.T @ y).compute())
    power = da.map_blocks(lambda block, number: block**number, x, 3, dtype=float)
    _check(power.T @ power)


def test_names_that_others_take(monkeypatch: pytest.MonkeyPatch) -> None:
    spaces: dict[str, Any] = {"__builtins__": {"abs": np.sort}}
    exec("def function(block): return abs(block)", spaces)
    assert _halo(spaces["function"]) is None
    original = ndimage.laplace
    monkeypatch.setattr(ndimage, "laplace", lambda block: original(original(block)))
    assert _halo(lambda x: ndimage.laplace(x)) is None
    odd = _times(2)
    # a module's name that is no text is what is tested
    odd.__module__ = 5  # type: ignore[assignment]
    assert _halo(odd) == {}
    nested: list[Any] = [0]
    for _ in range(40):
        nested = [nested, nested]
    assert _halo(_times(nested)) is None


def test_calls_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    count = tracing._Trace.count
    monkeypatch.setattr(tracing._Trace, "count", lambda self: (calls.append(1), count(self)))
    assert _halo(_endless) is None
    assert _halo(_branching) is None
    assert len(calls) < 1100


def test_globals_are_those_of_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(block: Any) -> Any:
        return block * SCALE

    assert _halo(scaled) == {}
    monkeypatch.setattr(sys.modules[__name__], "SCALE", WEIGHTS)
    assert _halo(scaled) is None
    # a name of NumPy may be anything
    monkeypatch.setattr(sys.modules[__name__], "np", random)
    assert _halo(_root) is None


_TERMS = st.recursive(
    st.sampled_from(("x", "y", "z", "2.5", "SCALE")),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", ">", "<"]), inner).map(
            lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
        ),
        st.tuples(
            st.sampled_from(
                (
                    *("np.sin", "np.abs", "np.sort", "np.cumsum", "np.flip", "np.tanh", "np.mean"),
                    *("np.copy", "np.asarray", "np.ones_like", "np.isnan", "ndimage.laplace"),
                    *("ndimage.sobel", "np.ravel", "_positive", "_root", "np.real", "np.round"),
                )
            ),
            inner,
        ).map(lambda parts: f"{parts[0]}({parts[1]})"),
        inner.map(lambda part: f"convolve({part}, KERNEL)"),
        st.tuples(inner, inner, inner).map(lambda parts: f"np.where({', '.join(parts)})"),
        st.tuples(inner, inner).map(lambda parts: f"np.clip({parts[0]}, -0.5, 0.5, {parts[1]})"),
        inner.map(lambda part: f"{part}.clip(-0.5, 0.5)"),
    ),
    max_leaves=4,
)

_STATEMENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("y", "z")), _TERMS).map(" = ".join),
        st.tuples(st.sampled_from(("x", "y", "z")), st.sampled_from("+-*"), _TERMS).map(
            lambda parts: f"{parts[0]} {parts[1]}= {parts[2]}"
        ),
        st.tuples(st.sampled_from(("y", "z")), _TERMS, st.sampled_from(("0", "SCALE"))).map(
            lambda parts: f"{parts[0]}[{parts[1]} > 0] = {parts[2]}"
        ),
        st.sampled_from(("z = np.real(y)", "z = y", "y = x.copy()", "y = np.zeros_like(x)")),
    ),
    max_size=4,
)


@settings(max_examples=400, deadline=None)
@given(_STATEMENTS, _TERMS)
def test_random_functions(statements: list[str], result: str) -> None:
    lines = ["def function(x):", "y = z = x * 1.5", *statements, f"return {result}"]
    names: dict[str, Any] = dict(globals())
    exec("\n    ".join(lines), names)
    function = names["function"]
    halo = _halo(function)
    if halo is None:
        return
    with np.errstate(all="ignore"):
        try:
            made = function(np.ones((7, 9)))
        except (RuntimeError, TypeError, ValueError):
            # fails for every block, as -True does, and filters of half precision
            return
        assert np.shape(made) == (7, 9)
        reach = _reach(function, (7, 9))
    assert (reach <= [halo.get(axis, 0) for axis in (0, 1)]).all()


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: ndimage.uniform_filter(x, 3), "it calls uniform_filter"),
        (lambda x: np.sort(x) + 1, "it calls sort"),
        (_endless, "it makes more than 500 calls"),
        (lambda x: x[1:], "it takes parts of arrays"),
        (
            lambda x: convolve(x, KERNEL, mode="wrap"),
            "it calls convolve in a form that is not supported",
        ),
        (lambda x: x - x.mean(), "it uses .mean"),
        (lambda x: x + np.random.random(), "it uses numpy.random"),
        (lambda x: x + random.random(), "it uses random.random"),
        (lambda x: print("printed") or x, "it uses print"),
        (_loop, "it has a loop"),
        (lambda x: (lambda y: y + 1)(x), "it has an inner function"),
        (lambda x: x, ""),
        (np.sort, ""),
    ],
)
def test_what_keeps_a_function_from_being_read(function: Any, expected: str) -> None:
    assert obstacle(function, {}, 1) == expected


def test_explain_says_what_keeps_a_function_from_being_read() -> None:
    x = da.ones((40, 40), chunks=10)

    def centred(block: Any) -> Any:
        return block - block.mean()

    text = " ".join(str(dasktile.explain(x.map_blocks(centred).sum(axis=0))).split())
    assert "user function centred may depend on the chunks, as it uses .mean; if not, " in text
    y = x.map_overlap(lambda block: ndimage.maximum_filter(block, 3), depth=1, boundary="none")
    text = " ".join(str(dasktile.explain(y)).split())
    assert "in map_overlap may depend on the chunks, as it calls maximum_filter; if not, " in text
