"""Plain arrays that are computed from masked ones: values in any tiles, and what is recognised."""

from __future__ import annotations

import random
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from dasktile.capture.highlevel import capture
from dasktile.ir import Kind
from tests.agreement import same
from tests.support import random_cuts

M = da.ma
N = np.random.default_rng(4).integers(-9, 9, (12, 10)).astype("f8")
N[3, 4] = np.nan
CHUNKS = ((5, 4, 3), (2, 6, 2))


def x(dtype: str = "f8") -> da.Array:
    values = N if dtype == "f8" else np.nan_to_num(N).astype(dtype)
    return da.from_array(values, chunks=CHUNKS) + 0


def opaque(lazy: da.Array) -> set[str]:
    """The operations that keep their chunks, but for arrays in memory."""
    nodes = capture([lazy]).program.nodes
    return {node.op for node in nodes if node.kind is Kind.OPAQUE and not node.resident}


def numbers(rng: random.Random, shape: tuple[int, ...], chunks: Any) -> da.Array:
    values = np.random.default_rng(rng.randrange(1000)).integers(-4, 5, shape)
    values = values.astype(rng.choice(["f8", "f4", "i8", "i2"]))
    if values.dtype.kind == "f":
        values[values > 3] = rng.choice([np.nan, np.inf])
    return da.from_array(values, chunks=chunks) * 1


def made(rng: random.Random, array: da.Array, other: da.Array) -> da.Array:
    value, values = rng.randrange(-3, 4), rng.choice([other, other[:, :1], other[0], 1])
    return rng.choice(
        [
            lambda: M.masked_equal(array, value),
            lambda: M.masked_not_equal(array, values),
            lambda: M.masked_greater(array, values),
            lambda: M.masked_less_equal(array, values),
            lambda: M.masked_inside(array, -1, value),
            lambda: M.masked_outside(array, -1, value),
            lambda: M.masked_values(array, value),
            lambda: M.masked_invalid(array),
            lambda: M.fix_invalid(array, fill_value=rng.choice([None, 3])),
            lambda: M.masked_where(other > value, array),
            lambda: M.masked_array(array, mask=other > value, fill_value=rng.choice([None, 7])),
        ]
    )()


def changed(rng: random.Random, masked: da.Array, other: da.Array) -> da.Array:
    return rng.choice(
        [
            lambda: masked * 2.5,
            lambda: other - masked,
            lambda: masked / other,
            lambda: masked // 2,
            lambda: masked**2,
            lambda: 1 / masked,
            lambda: np.sqrt(masked),
            lambda: np.log(masked),
            lambda: abs(-(masked + 1)),
            lambda: masked > other,
            lambda: masked == 1,
            lambda: masked.astype(rng.choice(["f4", "f8", "c16"])),
            lambda: M.masked_where(other > 2, masked),
            lambda: M.masked_less(masked, other),
            lambda: M.fix_invalid(masked),
            lambda: M.where(other > 0, masked, other),
            lambda: masked + M.masked_equal(other, 1),
        ]
    )()


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
@pytest.mark.parametrize("seed", range(60))
def test_random_masked_arrays(seed: int) -> None:
    rng = random.Random(seed)
    shape = (rng.randint(1, 9), rng.randint(1, 9))
    chunks = tuple(random_cuts(size, rng) for size in shape)
    other = numbers(rng, shape, chunks)
    masked = made(rng, numbers(rng, shape, chunks), other)
    for _ in range(rng.randrange(3)):
        masked = changed(rng, masked, other)
    result = rng.choice([M.getdata, M.getmaskarray, M.filled, lambda m: M.filled(m, 1)])(masked)
    lazy = rng.choice([result, result.T, result[::-1] + other, result.sum(axis=0)])
    with np.errstate(all="ignore"):
        same(lazy, lazy.compute(scheduler="sync"))


@pytest.mark.parametrize(
    "make",
    [
        lambda a: M.filled(M.masked_greater(a, 4) * 2, 0),
        lambda a: M.getmaskarray(M.masked_invalid(a)),
        lambda a: M.getdata(np.sqrt(M.masked_where(a > a.T[:1].T, a))),
        lambda a: M.filled(M.masked_array(a, mask=a > 3)),
        lambda a: M.filled(M.masked_greater(a, 4) + M.masked_less(a, 1), 0),
        # one function of a plain array is computed again
        lambda a: (lambda m: M.getdata(m) * ~M.getmaskarray(m))(M.masked_greater(a, 4)),
    ],
)
def test_plain_arrays_of_masked_ones_are_one_operation(make: Any) -> None:
    lazy = make(x())
    assert opaque(lazy) == set()
    same(lazy, lazy.compute(scheduler="sync"))


def test_blocks_that_are_filled_with_other_values_are_not_joined() -> None:
    parts = [M.masked_array(x(), mask=x() > 3, fill_value=value) for value in (5, 6)]
    lazy = M.filled(da.concatenate(parts))
    assert "filled" in opaque(lazy)
    same(lazy, lazy.compute(scheduler="sync"))


def smallest(block: Any) -> Any:
    return np.ma.masked_greater(block, block.min())


@pytest.mark.parametrize(
    "make",
    [
        lambda a: M.filled(a.map_blocks(smallest, meta=np.ma.empty((0, 0))), 0),
        lambda a: M.filled(M.masked_greater(a, 4).rechunk(3), 0),
        lambda a: M.filled(M.masked_greater(a, 4)[1:], 0),
        lambda a: M.filled(M.masked_greater(a, 4).sum(axis=0), 0),
        lambda a: M.filled(M.masked_greater(a, 4).map_blocks(np.ma.sort), 0),
        lambda a: M.filled(da.nan_to_num(M.masked_greater(a, 4)), 0),
        lambda a: M.filled(da.from_array(np.ma.masked_greater(N, 3), chunks=CHUNKS), 0),
        lambda a: M.filled(M.set_fill_value(m := M.masked_greater(a, 4), 3) or m),
        # what a mask, or a number to fill with, is for each element is not known
        lambda a: M.masked_greater(a, 4).map_blocks(np.ma.filled, fill_value=np.arange(2.0)[:1]),
        lambda a: M.filled(a, 0),
    ],
)
def test_other_functions_of_masked_arrays_keep_their_chunks(make: Any) -> None:
    lazy = make(x("i8"))
    assert opaque(lazy) & {"filled"}
    same(lazy, lazy.compute(scheduler="sync"))


def test_arrays_that_are_masked_by_several_functions_are_not_computed_twice() -> None:
    masked = np.sqrt(M.masked_less(x(), 0))
    lazy = M.filled(masked, 0) + M.getmaskarray(masked)
    assert {"filled", "getmaskarray", "sqrt"} <= opaque(lazy)
    with dask.config.set({"dasktile.raise-errors": True}):
        same([lazy, masked], dask.compute(lazy, masked, scheduler="sync"))


def test_layers_with_annotations_keep_their_chunks() -> None:
    with dask.annotate(priority=3):
        masked = M.masked_greater(x(), 4)
    assert "filled" in opaque(M.filled(masked, 0))
