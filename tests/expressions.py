"""Random dask expressions with the values that NumPy computes for them.

An :class:`Expression` grows by one operation at a time, from a pool of arrays.  Every array is a
:class:`Value`: the dask array, the NumPy array and a bound of their difference.  Most numbers are
small integers, also in floating point, so that sums are the same in any order and can be compared
exactly.  Values with rounding errors are inputs only of operations that do not amplify these.
"""

from __future__ import annotations

import itertools
import random
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import dask.array as da
import hypothesis.strategies as st
import numpy as np

DTYPES = ("f8", "f8", "f8", "f4", "f4", "c16", "i4", "i4", "i8", "bool")

#: Sizes of axes by the number of axes, so that no array gets large.
SIZES = ((1,), (1, 2, 3, 4, 6, 9, 14), (1, 2, 3, 4, 6, 7), (1, 2, 3, 4), (1, 2, 3))


@dataclass(frozen=True)
class Value:
    """An array of an expression.

    Parameters
    ----------
    lazy
        The dask array.
    value
        Its value by NumPy.
    eps
        Rounding unit of the least exact of all steps; 0 if all steps are exact.
    scale
        Largest magnitude in all steps.
    """

    lazy: da.Array
    value: np.ndarray
    eps: float = 0.0
    scale: float = 1.0

    @property
    def exact(self) -> bool:
        return self.eps == 0

    @property
    def kind(self) -> str:
        return self.value.dtype.kind

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def ndim(self) -> int:
        return self.value.ndim

    def check(self, actual: Any) -> None:
        """Raise AssertionError unless `actual` is this array's value."""
        actual = np.asanyarray(actual)
        assert type(actual) is np.ndarray, type(actual)
        assert actual.dtype == self.value.dtype, (actual.dtype, self.value.dtype)
        assert actual.shape == self.value.shape, (actual.shape, self.value.shape)
        if self.exact or actual.dtype.kind not in "fc":
            np.testing.assert_array_equal(actual, self.value)
            return
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(self.value))
        atol = 1000 * self.eps * max(self.scale, 1.0)
        np.testing.assert_allclose(actual, self.value, rtol=0, atol=atol, equal_nan=True)


class Lazy:
    """An array-like that is not a NumPy array, and is read when it is sliced."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim

    def __getitem__(self, index: Any) -> np.ndarray:
        return np.array(self.array[index])

    def __dask_tokenize__(self) -> Any:
        return type(self).__name__, self.array.tolist(), str(self.dtype)


@dataclass
class Expression:
    """A pool of arrays, and a record of the steps that computed them.

    Parameters
    ----------
    rng
        Generator of all random choices.
    """

    rng: random.Random
    values: list[Value] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    #: Operations that dask or NumPy rejected for the chosen arguments, for tuning of the choices.
    refused: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(self.steps)

    # random choices

    def chance(self, percent: int) -> bool:
        return self.rng.randrange(100) >= 100 - percent

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.rng.randrange(len(options))]

    def some(self, options: Iterable[Any], least: int = 0) -> list[Any]:
        """A random subset, in order."""
        options = list(options)
        subset = [option for option in options if self.chance(50)]
        while len(subset) < least:
            subset = sorted({*subset, self.pick(options)})
        return subset

    def shuffled(self, options: Iterable[Any]) -> list[Any]:
        remaining, result = list(options), []
        while remaining:
            result.append(remaining.pop(self.rng.randrange(len(remaining))))
        return result

    def cuts(self, size: int, most: int = 4) -> tuple[int, ...]:
        """Random chunks of an axis."""
        if size < 2:
            return (size,)
        parts = 1 + self.rng.randrange(min(most, size))
        positions = list(range(1, size))
        inner = sorted(positions.pop(self.rng.randrange(len(positions))) for _ in range(parts - 1))
        edges = [0, *inner, size]
        sizes = [hi - lo for lo, hi in zip(edges[:-1], edges[1:], strict=True)]
        if self.chance(1):
            sizes.insert(self.rng.randrange(len(sizes) + 1), 0)
        return tuple(sizes)

    def chunks(self, shape: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        return tuple(self.cuts(size, 3 if len(shape) > 2 else 4) for size in shape)

    def new_shape(self) -> tuple[int, ...]:
        ndim = self.pick((1, 1, 2, 2, 2, 2, 2, 3, 3, 0, 4))
        return tuple(0 if self.chance(1) else self.pick(SIZES[ndim]) for _ in range(ndim))

    # arrays

    def numbers(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        """Mostly small integers, at times normally distributed; at times some are NaN."""
        seed = self.rng.randrange(1000)
        draw = np.random.default_rng(seed)
        if dtype == "bool":
            return draw.random(shape) < 0.6
        whole = not self.chance(25) or np.dtype(dtype).kind in "iu"
        if whole:
            value = draw.integers(-4, 5, shape).astype(dtype)
            if dtype == "c16":
                value = value + 1j * draw.integers(-3, 4, shape)
        else:
            value = draw.normal(size=shape).astype(dtype)
            if dtype == "c16":
                value = value + 1j * draw.normal(size=shape)
        if np.dtype(dtype).kind in "fc" and self.chance(12):
            value = np.where(draw.random(shape) < 0.25, np.nan, value).astype(dtype)
        return np.asarray(value)

    def source(self, shape: Sequence[int] | None = None, dtype: str | None = None) -> Value:
        """Add a source array."""
        shape = self.new_shape() if shape is None else tuple(shape)
        dtype = dtype or self.pick(DTYPES)
        chunks = self.chunks(shape)
        kind = self.pick(SOURCES)
        text, lazy, value = kind(self, shape, dtype, chunks)
        return self.keep(f"{text}  # chunks {lazy.chunks}", lazy, value, 0.0, _largest(value))

    def keep(self, text: str, lazy: da.Array, value: np.ndarray, eps: float, scale: float) -> Value:
        result = Value(lazy, np.asarray(value), eps, scale)
        self.values.append(result)
        self.steps.append(f"v{len(self.values) - 1} = {text}")
        return result

    def name(self, value: Value) -> str:
        return f"v{next(n for n, other in enumerate(self.values) if other is value)}"

    def operand(self) -> Value:
        """One of the arrays so far, later ones more often."""
        if not self.values or self.chance(8):
            return self.source()
        return self.pick(self.values[-3:] if self.chance(70) else self.values)

    def like(self, shape: Sequence[int], dtype: str | None = None) -> Value:
        """An array of a shape: an existing or a new one."""
        fitting = [
            value
            for value in self.values
            if value.shape == tuple(shape) and dtype in (None, str(value.value.dtype))
        ]
        if fitting and self.chance(50):
            return self.pick(fitting)
        return self.source(shape, dtype)

    def call(
        self,
        text: str,
        on_dask: Callable[..., da.Array] | None,
        on_numpy: Callable[..., Any] | None,
        *operands: Value,
        rounds: bool = False,
        product: bool = False,
        squares: bool = False,
        bound: float | None = None,
    ) -> Value | None:
        """Apply an operation in dask and in NumPy; None if one of them raises an error.

        Parameters
        ----------
        text
            The operation, with ``@`` for every operand, or ``@0`` for the first.
        on_dask, on_numpy
            The operation.  If `on_numpy` is None, the expected value is that of the dask array
            before tiling, for operations whose value depends on the chunks.
        rounds
            Whether the value depends on the order of additions.
        product, squares
            Whether magnitudes of the operands multiply with each other, or with themselves.
        bound
            Bound of all intermediate numbers: for integers below it additions are exact in any
            order.
        """
        names = [self.name(x) for x in operands]
        count = itertools.count()
        line = re.sub(r"@(\d?)", lambda match: names[int(match[1] or next(count))], text)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                lazy = on_dask(*(x.lazy for x in operands))
                # dask_array joins the chunks of operands here; it fails for some empty blocks
                shape = lazy.shape
                if on_numpy is None:
                    value = lazy.compute(scheduler="sync")
                else:
                    value = np.asarray(on_numpy(*(x.value for x in operands)))
            except (
                ValueError,
                TypeError,
                NotImplementedError,
                IndexError,
                KeyError,
                AttributeError,
                ZeroDivisionError,
                AssertionError,
                np.exceptions.AxisError,
            ) as error:
                self.refused.append(f"{line}: {type(error).__name__}: {error}"[:300])
                return None
        if not isinstance(lazy, da.Array) or shape != value.shape:
            self.refused.append(f"{line}: shape {shape}, NumPy {value.shape}")
            return None
        if lazy.dtype != value.dtype:
            cast = value.astype(lazy.dtype)
            if not np.array_equal(
                cast.astype(value.dtype), value, equal_nan=value.dtype.kind in "fc"
            ):
                self.refused.append(f"{line}: dtype {lazy.dtype}, NumPy {value.dtype}")
                return None
            value = cast
        eps = max((x.eps for x in operands), default=0.0)
        scale = _largest(value)
        if operands:
            scales = [max(x.scale, 1.0) for x in operands]
            scale = max(scale, float(np.prod(scales)) if product else max(scales) ** (1 + squares))
        rough = [x.value.dtype for x in operands if x.kind in "fc"]
        if value.dtype.kind in "fc":
            rough.append(value.dtype)
            if eps or (rounds and not _whole(operands, bound, rough)):
                # intermediate results may be in the type of any operand
                eps = max(eps, *(float(np.finfo(dtype).eps) for dtype in rough))
        if not np.isfinite(scale) or scale > 1e8:
            self.refused.append(f"{line}: too large")
            return None
        return self.keep(line, lazy, value, eps, scale)


def _largest(value: np.ndarray) -> float:
    if value.dtype.kind == "b" or not value.size:
        return 1.0
    magnitude = np.abs(value.astype("c16") if value.dtype.kind == "c" else value.astype("f8"))
    finite = magnitude[np.isfinite(magnitude)]
    return float(finite.max()) if finite.size else 1.0


def _whole(operands: Iterable[Value], bound: float | None, rough: list[np.dtype]) -> bool:
    """Whether all operands are exact integers, and all their sums are exact."""
    if bound is None or any(bound >= 2 ** np.finfo(dtype).nmant for dtype in rough):
        return False
    for x in operands:
        if not x.exact:
            return False
        if x.kind in "fc":
            value = x.value[~np.isnan(x.value)]
            if not np.isfinite(value).all() or not np.array_equal(value, np.round(value)):
                return False
    return True


# Sources: (text, dask array, NumPy array)

_Source = tuple[str, da.Array, np.ndarray]
_Chunks = tuple[tuple[int, ...], ...]


def _text(kind: str, value: np.ndarray, extra: str = "") -> str:
    return f"{kind}({value.shape}, {value.dtype}{extra})"


def from_numpy(e: Expression, shape: Sequence[int], dtype: str, chunks: _Chunks) -> _Source:
    value = e.numbers(shape, dtype)
    if e.chance(15) and value.ndim:
        value = np.asfortranarray(value)
    elif e.chance(15) and value.ndim:
        value = np.repeat(value, 2, axis=0)[::2]
    return _text("from_array", value), da.from_array(value, chunks=chunks), value


def from_lazy(e: Expression, shape: Sequence[int], dtype: str, chunks: _Chunks) -> _Source:
    value = e.numbers(shape, dtype)
    inline, lock = e.chance(50), e.chance(20)
    lazy = da.from_array(Lazy(value), chunks=chunks, inline_array=inline, lock=lock)
    return _text("from_lazy", value, f", inline={inline}, lock={lock}"), lazy, value


def from_zarr(e: Expression, shape: Sequence[int], dtype: str, chunks: _Chunks) -> _Source:
    import zarr

    value = e.numbers(shape, dtype)
    if 0 in value.shape:
        return from_lazy(e, shape, dtype, chunks)
    stored = tuple(max(sizes) for sizes in chunks)
    store = zarr.storage.MemoryStore()
    array = zarr.create_array(store, shape=value.shape, dtype=value.dtype, chunks=stored)
    array[...] = value
    lazy = da.from_zarr(array) if e.chance(50) else da.from_zarr(array, chunks=chunks)
    return _text("from_zarr", value), lazy, value


def filled(e: Expression, shape: Sequence[int], dtype: str, chunks: _Chunks) -> _Source:
    name, number = e.pick((("ones", 1), ("zeros", 0), ("full", 3)))
    if name == "full":
        lazy = da.full(shape, number, dtype=dtype, chunks=chunks)
    else:
        lazy = getattr(da, name)(shape, dtype=dtype, chunks=chunks)
    value = np.full(shape, number, dtype=dtype)
    return _text(name, value), lazy, value


def counted(e: Expression, shape: Sequence[int], dtype: str, chunks: _Chunks) -> _Source:
    size = int(np.prod(shape, dtype=int))
    if dtype in ("bool", "c16") or not size or len(shape) > 2:
        return from_numpy(e, shape, dtype, chunks)
    start, step = e.pick((0, 1, -3)), e.pick((1, 2, -1))
    value = np.arange(start, start + step * size, step, dtype=dtype)
    if len(shape) == 1:
        lazy = da.arange(start, start + step * size, step, dtype=dtype, chunks=(chunks[0],))
        return _text("arange", value, f", {start}, {step}"), lazy, value
    lazy = da.arange(start, start + step * size, step, dtype=dtype, chunks=max(1, size // 3))
    value, lazy = value.reshape(shape), lazy.reshape(shape).rechunk(chunks)
    return _text("arange.reshape", value, f", {start}, {step}"), lazy, value


def persisted(e: Expression, shape: Sequence[int], dtype: str, chunks: _Chunks) -> _Source:
    value = e.numbers(shape, dtype)
    lazy = (da.from_array(value, chunks=chunks) * np.array(1, dtype)).persist(scheduler="sync")
    return _text("persisted", value), lazy, value


def drawn(e: Expression, shape: Sequence[int], dtype: str, chunks: _Chunks) -> _Source:
    draw = da.random.default_rng(e.rng.randrange(100))
    if np.dtype(dtype).kind in "iu":
        lazy = draw.integers(-4, 5, size=shape, chunks=chunks)
    else:
        lazy = draw.random(size=shape, chunks=chunks)
    value = lazy.compute(scheduler="sync")
    return _text("random", value), lazy, np.asarray(value)


SOURCES = (
    *(from_numpy, from_numpy, from_numpy, from_lazy, from_lazy, from_zarr),
    *(filled, counted, persisted, drawn),
)


# Strategies


@st.composite
def expressions(draw: st.DrawFn, most: int = 8) -> Expression:
    """Expressions of one to `most` operations."""
    rng = draw(st.randoms(use_true_random=False))
    return grown(rng, most)


def grown(rng: random.Random, most: int = 8) -> Expression:
    """An expression of one to `most` operations."""
    from tests.operations import OPERATIONS

    expression = Expression(rng)
    expression.source()
    for _ in range(1 + rng.randrange(most)):
        for _ in range(4):
            if expression.pick(OPERATIONS)(expression, expression.operand()) is not None:
                break
    return expression


def outputs(e: Expression) -> list[Value]:
    """Arrays of an expression to compute together: the last one, and sometimes others."""
    others = [value for value in e.values[:-1] if e.chance(15)]
    return [*others[-2:], e.values[-1]]
