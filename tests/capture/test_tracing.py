"""Functions of the user whose code shows that their blocks may be cut otherwise.

What a function reads is compared with what changes in its result when one element of its block
changes.
"""

from __future__ import annotations

import functools
import random
import sys
import time
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
from dasktile.capture.rules.pointwise import use_of
from dasktile.capture.user_kernels import KernelUse
from tests.agreement import EAGER

SCALE, WEIGHTS, KERNEL = 3.0, np.arange(3.0), np.arange(1.0, 16).reshape(3, 5)
CALLS: list[Any] = []
COUNTS = np.zeros(1)


def _root(block: Any) -> Any:
    return np.sqrt(np.abs(block)) + SCALE


def _positive(block: Any, low: float = 0) -> Any:
    result = block.copy()
    result[~(result > low)] = low
    result += 1
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


ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    "the block": lambda x: x,
    "operators": lambda x: -((2 * x + 1) ** 2) // 3 % 5,
    "a global and a function": lambda x: _root(_root(x)) - x,
    "a mask": _positive,
    "imports": _with_imports,
    "a check": _checked,
    "a closure": _times(2),
    "bound arguments": functools.partial(np.power, 2.0),
    "a dtype": lambda x: x.astype("f4").round(1),
    "conditions": lambda x: np.isnan(x) | (x > 0) & ~(x > 1),
    "a constant": lambda x: np.full_like(x, np.pi),
    "bins": lambda x: np.digitize(x, bins=WEIGHTS),
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


def _endless(block: Any) -> Any:
    return _endless(block + 1)


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
    "waits": lambda x: time.sleep(10) or x,
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
    if not isinstance(function, functools.partial):
        assert use_of(function, {}) == KernelUse(elementwise=True)
    assert not _reach(function, (3, 4)).any()
    x = da.from_array(np.random.default_rng(1).normal(size=(8, 6)), chunks=(2, 6))
    y = x.map_blocks(function, meta=function(np.ones((1, 1))))
    _check(y.T @ y)


@pytest.mark.parametrize("function", UNKNOWN.values(), ids=UNKNOWN)
def test_unknown(function: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    started = time.process_time()
    assert use_of(function, {}, ndim=2) is None
    assert time.process_time() - started < 5
    assert not capsys.readouterr().out and not CALLS and not COUNTS.any()


@pytest.mark.parametrize(("function", "halo"), FILTERS.values(), ids=FILTERS)
def test_filters(function: Callable[..., Any], halo: dict[int, int]) -> None:
    assert use_of(function, {}, ndim=2) == KernelUse(halo=halo)
    assert (_reach(function, (9, 11)) <= [halo.get(axis, 0) for axis in (0, 1)]).all()
    x = da.from_array(np.random.default_rng(1).normal(size=(16, 20)), chunks=(16, 5))
    depth = {axis: halo.get(axis, 0) for axis in (0, 1)}
    for boundary in ("none", "reflect", 0.5):
        _check(x.map_overlap(function, depth=depth, boundary=boundary, dtype=float) + x.T.sum())
    # the result depends on the chunks
    axis = next(iter(halo))
    depth[axis] -= 1
    y = x.map_overlap(function, depth=depth, boundary="none", dtype=float)
    if depth[axis]:
        text = str(dasktile.explain(y, workers=2))
        assert f"reads {max(halo.values())} elements on either side" in " ".join(text.split())


def _check(y: da.Array) -> None:
    with dask.config.set(EAGER):
        explanation = dasktile.explain(y, workers=2)
        z = dasktile.optimize(y, workers=2)
    assert not [node.reason for node in explanation.nodes if "register_kernel" in node.reason]
    np.testing.assert_allclose(z.compute(), y.compute(), rtol=1e-12)
    assert z.dtype == y.dtype


def test_keyword_arguments() -> None:
    assert use_of(_mean_filter, {"width": 5}, ndim=2) == KernelUse(halo={0: 2, 1: 2})
    assert use_of(ndimage.gaussian_filter, {"sigma": 1}, ndim=3) == KernelUse(
        halo={0: 4, 1: 4, 2: 4}
    )
    assert use_of(_positive, {"low": 1}) == KernelUse(elementwise=True)
    assert use_of(_times(2), {"low": 1}) is None
    assert use_of(lambda x, w: x * w, {"w": WEIGHTS}) is None


def test_several_blocks() -> None:
    assert use_of(lambda a, b: np.where(a > 0, b, 0), {}, 2, 2) == KernelUse(elementwise=True)
    assert use_of(lambda a, b: np.zeros_like(a) + b, {}, 2, 2) == KernelUse(elementwise=True)
    # the shape of its result may be that of one block alone
    assert use_of(lambda a, b: a * 2, {}, 2, 2) is None

    def masked(a: Any, b: Any) -> Any:
        result = a + b
        result[b > 0] = 0  # of a block with fewer axes, this is along the first
        return result

    assert use_of(masked, {}, 2, 2) is None


def test_globals_are_those_of_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(block: Any) -> Any:
        return block * SCALE

    assert use_of(scaled, {}) == KernelUse(elementwise=True)
    monkeypatch.setattr(sys.modules[__name__], "SCALE", WEIGHTS)
    assert use_of(scaled, {}) is None
    # a name of NumPy may be anything
    monkeypatch.setattr(sys.modules[__name__], "np", random)
    assert use_of(_root, {}) is None


_STEPS = st.recursive(
    st.sampled_from(("x", "2.5", "SCALE")),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", ">", "<"]), inner).map(
            lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
        ),
        st.tuples(
            st.sampled_from(
                (
                    *("np.sin", "np.abs", "np.sort", "np.cumsum", "np.flip", "np.tanh", "np.mean"),
                    *("np.copy", "np.asarray", "np.ones_like", "np.isnan", "ndimage.laplace"),
                    *("ndimage.sobel", "np.ravel", "_positive", "_root"),
                )
            ),
            inner,
        ).map(lambda parts: f"{parts[0]}({parts[1]})"),
        inner.map(lambda part: f"convolve({part}, KERNEL)"),
        st.tuples(inner, inner, inner).map(lambda parts: f"np.where({', '.join(parts)})"),
        inner.map(lambda part: f"np.clip({part}, -0.5, 0.5)"),
    ),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None)
@given(_STEPS)
def test_random_functions(source: str) -> None:
    function = eval(f"lambda x: {source}", globals())
    use = use_of(function, {}, ndim=2)
    if use is None:
        return
    with np.errstate(all="ignore"):
        try:
            result = function(np.ones((7, 9)))
        except TypeError:
            # fails for every block: -True
            return
        assert result.shape == (7, 9)
        reach = _reach(function, (7, 9))
    assert use.elementwise == (not use.halo)
    assert (reach <= [use.halo.get(axis, 0) for axis in (0, 1)]).all()
