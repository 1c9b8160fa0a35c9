"""Arrays with empty blocks, of which Dask makes the layers with fewer blocks."""

from __future__ import annotations

from collections.abc import Callable

import dask
import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile.capture.empty import with_all_blocks
from tests.agreement import EAGER
from tests.support import plan_for_workers


def nothing() -> da.Array:
    """Five blocks without rows."""
    return da.concatenate([da.zeros((0, 3), chunks=(0, 3))] * 5)


def one_row() -> da.Array:
    x = da.from_array(np.random.default_rng(0).random((24, 3)), chunks=((8, 16), (3,)))
    selected = da.from_array(np.arange(24) == 12, chunks=((8, 16),))
    return x[selected].compute_chunk_sizes()


FUNCTIONS: list[Callable[[da.Array], da.Array]] = [
    lambda x: x - x.mean(axis=0),
    lambda x: x * 2,
    lambda x: x - x.sum(),
    lambda x: x * np.arange(3),
]


@pytest.mark.parametrize("build", [nothing, one_row])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("placed", [False, True])
def test_values_are_those_of_dask(
    build: Callable[[], da.Array],
    function: Callable[[da.Array], da.Array],
    placed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    array = function(build())
    if placed:
        plan_for_workers(monkeypatch, 2)
    with np.errstate(invalid="ignore"), dask.config.set(EAGER):
        expected = array.compute(scheduler="sync")
        for keep_chunks in (False, True):
            new = dasktile.optimize(array, keep_chunks=keep_chunks)
            np.testing.assert_allclose(new.compute(scheduler="sync"), expected)


def test_a_layer_has_the_keys_of_its_array() -> None:
    array = nothing() * 2
    [name] = (name for name in array.dask.layers if name == array.name)
    keys = set(dask.core.flatten(array.__dask_keys__()))
    assert set(array.dask.layers[name]) < keys
    completed = with_all_blocks(array.dask)
    assert set(completed.layers[name]) == keys
    assert with_all_blocks(completed) is completed
    full = da.ones((4, 3), chunks=2) * 2
    assert with_all_blocks(full.dask) is full.dask
