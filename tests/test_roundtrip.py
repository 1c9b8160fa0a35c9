"""Dask expressions have the same values after capture, random tiling and lowering."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from dasktile.capture.highlevel import capture
from dasktile.lower.writer import lower
from tests.support import (
    as_array,
    check_graph,
    every_way,
    output_graphs,
    random_chunks,
    random_tiling,
)


class Lazy:
    """An array-like that is read when it is sliced."""

    def __init__(self, value: np.ndarray) -> None:
        self.value, self.shape, self.dtype, self.ndim = value, value.shape, value.dtype, value.ndim

    def __getitem__(self, index: Any) -> np.ndarray:
        return self.value[index]


def ints(*shape: int, seed: int = 0) -> da.Array:
    value = np.random.default_rng(seed).integers(-9, 9, shape)
    return da.from_array(value, chunks=tuple(max(1, size // 3) for size in shape))


def floats(*shape: int, seed: int = 0) -> da.Array:
    return ints(*shape, seed=seed).astype("f8")


def lazy(*shape: int, **kwargs: Any) -> da.Array:
    value = np.random.default_rng(0).integers(-9, 9, shape)
    return da.from_array(Lazy(value), chunks=4, **kwargs)


def lowest_zero(block: np.ndarray) -> np.ndarray:
    """A function whose value depends on the chunks."""
    return block - block.min()


def blurred(x: da.Array) -> da.Array:
    return x.map_overlap(
        lambda block: block + np.roll(block, 1, 0),
        depth={0: 1, 1: 0},
        boundary="reflect",
        dtype=x.dtype,
    )


def softmax(x: da.Array) -> da.Array:
    powers = da.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def covariance(x: da.Array) -> da.Array:
    centred = x - x.mean(axis=0)
    return centred.T @ centred / (len(x) - 1)


EXPRESSIONS: dict[str, Callable[[], da.Array]] = {
    "elementwise": lambda: ints(9, 8).T + ints(8, 9) * 2,
    "broadcast": lambda: ints(9, 1) + ints(1, 8) - ints(8),
    "matmul": lambda: (ints(9, 8) @ ints(8, 7)) @ ints(7, 9) + 1,
    "matvec": lambda: ints(9, 8) @ ints(8),
    "batched matmul": lambda: ints(4, 9, 8) @ ints(4, 8, 5),
    "broadcast matmul": lambda: ints(1, 9, 8) @ ints(4, 8, 5),
    "tensordot": lambda: da.tensordot(ints(4, 9, 8), ints(8, 9, 3), axes=((1, 2), (1, 0))),
    "einsum of three": lambda: da.einsum("ij,jk,kl->il", ints(5, 6), ints(6, 7), ints(7, 4)),
    "einsum diagonal": lambda: da.einsum("ii->i", ints(6, 6)),
    "outer": lambda: da.outer(ints(6), ints(7)),
    "sum": lambda: ints(9, 8).sum(),
    "mean": lambda: floats(9, 8).mean(axis=1),
    "var": lambda: floats(9, 8).var(axis=0),
    "argmax": lambda: ints(9, 8).argmax(axis=1),
    "cumsum": lambda: ints(9, 8).cumsum(axis=0),
    "slices": lambda: ints(20, 8)[3:17, ::2],
    "backwards": lambda: ints(20, 8)[15:2:-4, 1::3],
    "fancy": lambda: ints(20, 8)[[3, 1, 1, 19]],
    "reshape": lambda: ints(4, 6, 8).reshape(24, 8),
    "concatenate": lambda: da.concatenate([ints(6, 8), ints(5, 8), ints(1, 8)]),
    "stack": lambda: da.stack([ints(6, 8), ints(6, 8, seed=1)], axis=1),
    "roll": lambda: da.roll(ints(9, 8), 3, axis=0),
    "rechunk": lambda: ints(9, 8).rechunk((2, 8)) + ints(9, 8),
    "overlap": lambda: blurred(ints(20, 9)),
    "fft": lambda: da.fft.fft(floats(9, 8).rechunk((3, 8)), axis=1),
    "creation": lambda: da.ones((9, 8), chunks=3) + ints(9, 8),
    "random": lambda: da.random.default_rng(0).random((9, 8), chunks=4) @ floats(8, 4),
    "user function": lambda: (ints(9, 8) @ ints(8, 8)).map_blocks(lowest_zero).sum(axis=0),
    "lazy": lambda: lazy(9, 8)[2:7] + 1,
    "locked": lambda: lazy(9, 8, lock=True, asarray=False).sum(axis=0),
    "inlined": lambda: lazy(9, 8, inline_array=True) @ ints(8, 3),
    "softmax": lambda: softmax(floats(9, 8)),
    "covariance": lambda: covariance(floats(9, 8)),
    "qr": lambda: da.linalg.qr(floats(20, 4).rechunk((5, 4)))[1],
    "topk": lambda: da.topk(ints(20), 3),
    "delayed": lambda: da.from_delayed(dask.delayed(np.ones)(4), (4,), dtype="f8") + 1,
    "gufunc": lambda: da.apply_gufunc(
        lambda a: a.sum(-1), "(i)->()", ints(9, 8).rechunk((3, 8)), output_dtypes="i8"
    ),
    "nothing": lambda: ints(9, 8)[4:4].sum(axis=0),
}


def random_expression(rng: random.Random) -> list[da.Array]:
    """Some of the arrays of a random program on square integer matrices."""
    size = rng.choice([6, 7, 12])

    def source() -> da.Array:
        value = np.random.default_rng(rng.randrange(1 << 30)).integers(-3, 4, (size, size))
        chunks = random_chunks((size, size), rng)
        return rng.choice(
            [
                lambda: da.from_array(value, chunks=chunks),
                lambda: da.ones((size, size), chunks=chunks, dtype="i8"),
                lambda: da.from_array(Lazy(value), chunks=chunks, inline_array=True, lock=True),
                lambda: da.from_array(value, chunks=chunks).map_blocks(lowest_zero),
            ]
        )()

    pool = [source() for _ in range(3)]
    for _ in range(rng.randint(3, 8)):
        a, b = rng.choice(pool), rng.choice(pool)
        half, picks = size // 2, [rng.randrange(size) for _ in range(size)]
        steps: list[Callable[[], da.Array]] = [
            lambda a=a, b=b: a @ b % 5,
            lambda a=a, b=b: a.T - b,
            lambda a=a: a[::-1],
            lambda a=a: a - a.max(axis=0),
            lambda a=a, b=b, half=half: da.concatenate([a[:half], b[half:]]),
            lambda a=a: a.cumsum(axis=1),
            lambda a=a: a.reshape(size * size).reshape(size, size),
            lambda a=a: a.rechunk(random_chunks((size, size), rng)),
            lambda a=a: a.map_blocks(lowest_zero),
            lambda a=a: da.roll(a, 2, axis=1),
            lambda a=a: blurred(a),
            lambda a=a, picks=picks: a[:, picks],
            lambda a=a, b=b: da.einsum("ij,jk,kl->li", a, b, a) % 7,
            lambda a=a, b=b: da.stack([a, b]).sum(axis=0),
            lambda a=a, b=b: da.where(a > b, a, b),
        ]
        pool.append(rng.choice(steps)())
    return rng.sample(pool, rng.randint(1, 3))


def retiled(arrays: Sequence[da.Array], rng: random.Random, how: str) -> list[da.Array]:
    """The same arrays in random tiles: with any chunks, the same chunks, or also the same names."""
    captured = capture(arrays)
    kwargs: dict[str, Any] = {}
    if how != "anyhow":
        kwargs["output_chunks"] = [array.chunks for array in arrays]
    if how == "names":
        kwargs["output_names"] = [array.name for array in arrays]
    lowered = lower(captured, random_tiling(captured.program, rng), **kwargs)
    check_graph(lowered.graph)
    result = [
        as_array(graph, name, chunks, array.dtype)
        for graph, name, chunks, array in zip(
            output_graphs(lowered), lowered.names, lowered.chunks, arrays, strict=True
        )
    ]
    for before, after in zip(arrays, result, strict=True):
        assert how == "anyhow" or after.chunks == before.chunks
        assert how != "names" or after.name == before.name
    return result


def check(arrays: Sequence[da.Array], expected: Sequence[Any]) -> None:
    for results in every_way(arrays):
        for value, correct in zip(results, expected, strict=True):
            assert value.dtype == correct.dtype
            if correct.dtype.kind in "fc":
                np.testing.assert_allclose(value, correct, rtol=1e-10, atol=1e-10)
            else:
                np.testing.assert_array_equal(value, correct)


@pytest.mark.parametrize("how", ["anyhow", "chunks", "names"])
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expression(name: str, how: str) -> None:
    array = EXPRESSIONS[name]()
    expected = array.compute(scheduler="sync")
    rng = random.Random(f"{name} {how}")
    for _ in range(2):
        check(retiled([array], rng, how), [expected])


@pytest.mark.parametrize("seed", range(20))
def test_random_expressions_together_and_twice(seed: int) -> None:
    rng = random.Random(seed)
    arrays = random_expression(rng)
    expected = dask.compute(*arrays, scheduler="sync")
    for how in ("anyhow", "names"):
        once = retiled(arrays, rng, how)
        check(once, expected)
        check(retiled(once, rng, "names"), expected)
