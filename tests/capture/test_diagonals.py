"""Diagonals of matrices, and matrices made of their diagonal."""

from __future__ import annotations

import random

import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile.capture.highlevel import capture
from dasktile.ir import AxisMap, Kind
from dasktile.tiling.needed import may_be_culled
from tests.agreement import same
from tests.capture.test_views import random_cuts

KINDS = ("f8", "f4", "i8", "bool", "c16")


def random_array(rng: random.Random, *shape: int) -> da.Array:
    values = np.random.default_rng(rng.randrange(1000)).integers(-4, 5, shape)
    values = values.astype(rng.choice(KINDS))
    if values.dtype.kind == "f":
        values[values > 3] = rng.choice([np.nan, np.inf])
    return da.from_array(values, chunks=tuple(random_cuts(rng, size) for size in shape))


@pytest.mark.parametrize("seed", range(25))
def test_diagonals_of_any_axes(seed: int) -> None:
    rng = random.Random(seed)
    ndim = rng.choice([2, 2, 3, 4])
    x = random_array(rng, *(rng.choice([1, 2, 4, 6, 9]) for _ in range(ndim)))
    one, two = rng.sample(range(ndim), 2)
    y = da.diagonal(x * 2 if seed % 3 else x.T, rng.randrange(-3, 4), one, two)
    if y.shape[-1]:
        assert all(node.kind is not Kind.OPAQUE for node in capture([y]).program.nodes)
    same(y[::-1] + 1 if seed % 2 else y, (y[::-1] + 1 if seed % 2 else y).compute())


@pytest.mark.parametrize("seed", range(25))
def test_matrices_with_a_diagonal(seed: int) -> None:
    rng = random.Random(seed)
    y = da.diag(random_array(rng, rng.choice([1, 2, 5, 12])), rng.choice([0, 0, 1, -2]))
    assert all(node.kind is not Kind.OPAQUE for node in capture([y]).program.nodes)
    y = [y, y + random_array(rng, *y.shape), da.diag(y), y.T[1:]][seed % 4]
    same(y, y.compute())


def test_the_axes_of_a_diagonal_run_along_one_label() -> None:
    x = da.ones((7, 12, 9), chunks=3)
    *_, node = capture([da.diagonal(x, 2, 0, 2)]).program.nodes
    assert [axis.label for axis in node.out] == [0, 1]
    assert node.edges[0].axes == (AxisMap(1), AxisMap(0), AxisMap(1, 2))


def test_tasks_of_another_diagonal_are_not_recognised() -> None:
    x = da.from_array(np.arange(36.0).reshape(6, 6), chunks=3)
    diagonal = da.diagonal(x)
    layer = diagonal.dask.layers[diagonal.name]
    task = layer[(diagonal.name, 1)]
    layer.mapping[(diagonal.name, 1)] = type(task)(task.key, np.diagonal, task.args[0], 0, 1, 0)
    assert capture([diagonal]).program.nodes[-1].kind is Kind.OPAQUE


def test_blocks_beside_a_diagonal_are_not_surely_computed() -> None:
    x = da.ones((400, 40), chunks=(20, 40))
    program = capture([da.diagonal(x @ x.T)]).program
    assert [program.nodes[-2].op, program.nodes[-1].op] == ["matmul", "diagonal"]
    assert may_be_culled(program, [True])[-2:] == [True, False]


def test_bytes_of_a_diagonal_are_known() -> None:
    shown = str(dasktile.explain(da.diagonal(da.ones((400, 40), chunks=20)), workers=4))
    assert "diagonal" in shown and "unknown which blocks" not in shown
