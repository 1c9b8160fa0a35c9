"""Blocks of arrays whose operations are unknown are made where few bytes are received for them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile.capture.highlevel import capture
from dasktile.inner_tasks import divisions
from tests.support import plan_for_workers
from tests.traffic import traffic


@pytest.fixture
def four_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan for workers of a cluster, on which tasks run where they are planned."""
    plan_for_workers(monkeypatch)


def part_of_product() -> da.Array:
    """Few rows of a product, and many columns, in one layer: each worker should have columns."""
    x = da.random.default_rng(0).random((2000, 120), chunks=(100, 120))
    [array] = dask.optimize((x @ x.T)[300:700, 400:])
    return array


def test_blocks_are_divided_along_the_axis_that_moves_least(four_workers: None) -> None:
    array = part_of_product()
    told = dasktile.explain(array)
    # all workers read four blocks of rows, of which one has made each
    assert told.bytes_predicted == told.received_after == 3 * 4 * 100 * 120 * 8
    assert told.received_before > 2 * told.received_after
    planned = dasktile.optimize(array)
    received, lost = traffic([planned], 4)
    assert received.total() == told.received_after and not lost
    np.testing.assert_allclose(planned.compute(), part_of_product().compute())


def test_what_is_in_memory_is_not_told_of_blocks_that_are_not(four_workers: None) -> None:
    told = dasktile.explain(part_of_product())
    assert not told.in_memory and not told.proven_optimal
    assert "in their memory already" not in str(told)
    assert "proven" not in str(told)


def test_divisions_are_equal_shares(four_workers: None) -> None:
    captured = capture([part_of_product()])
    [node] = captured.program.nodes
    ran = {(node.name, row, column): row for row in range(4) for column in range(16)}
    by_column, as_ran = divisions(captured, 4, ran)
    for divided in (by_column, as_ran):
        [new] = divided.program.nodes
        assert divided.divided
        assert Counter(new.homes) == dict.fromkeys([(0,), (1,), (2,), (3,)], 16)
    [new] = by_column.program.nodes
    assert new.homes == tuple((column // 4,) for _ in range(4) for column in range(16))
    assert not by_column.near and as_ran.near == ran


@pytest.mark.parametrize("seed", ["0", "1"])
def test_plans_of_one_layer_do_not_depend_on_hashes(seed: str, four_workers: None) -> None:
    code = (
        "from tests.test_inner_tasks import predicted\n"
        "from dasktile import api\n"
        "from dasktile.cluster.target import Machine\n"
        "api.machine = lambda *_: Machine(4, 1, order=tuple('0123'), who_has=lambda b: {})\n"
        "print(predicted())\n"
    )
    root = str(Path(__file__).parent.parent)
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    assert run.stdout.decode().strip() == predicted()


def predicted() -> str:
    """What is predicted of some expressions that Dask has optimised before."""
    x = da.random.default_rng(0).random((800, 800), chunks=100)
    told = []
    for array in (part_of_product(), (x @ x).sum(axis=0), (x - x.mean(axis=0)).std(axis=1)):
        [optimised] = dask.optimize(array)
        explanation = dasktile.explain(optimised)
        told.append((explanation.received_before, explanation.received_after))
    return str(told)


def test_unknown_bytes_are_not_told_as_none(four_workers: None) -> None:
    x = da.random.default_rng(0).random((800, 100), chunks=(100, 100))
    [array] = dask.optimize(x.map_blocks(np.sort, axis=0).sum(axis=0))
    told = dasktile.explain(array)
    assert told.bytes_predicted is None and told.unpredicted
    assert "moves an unknown number of bytes between workers" in str(told)
    [known] = dask.optimize(x.sum(axis=0))
    assert dasktile.explain(known).bytes_predicted is not None
