"""Blocks of arrays whose operations are unknown are made where few bytes are received for them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile import api
from dasktile.capture.highlevel import capture
from dasktile.cluster.target import Machine
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
    assert told.bytes_counted == told.received_after
    planned = dasktile.optimize(array)
    received, lost = traffic([planned], 4)
    assert received.total() == told.received_after and not lost
    np.testing.assert_allclose(planned.compute(), part_of_product().compute())


def test_arrays_that_were_optimised_together_can_be_computed_alone(four_workers: None) -> None:
    x = da.random.default_rng(0).random((2000, 120), chunks=(100, 120))
    part, row = (x @ x.T)[300:700, 400:], (x @ x.T)[:100].sum(axis=0)
    for arrays in ((part, x.sum()), (part, row), (x.sum(axis=0), x.max(axis=1))):
        planned = dasktile.optimize(*dask.optimize(*arrays))
        for new, array in zip(planned, arrays, strict=True):
            np.testing.assert_allclose(new.compute(), array.compute())


def test_a_division_moves_hardly_more_bytes_than_the_usual_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan_for_workers(monkeypatch, 8)
    x = da.random.default_rng(0).random((2000, 120), chunks=(100, 120))
    [product] = dask.optimize(x @ x.T)
    array = product.sum(axis=0)
    told = dasktile.explain(array)
    monkeypatch.setattr("dasktile.inner_tasks.divisions", lambda *_: ())
    usual = dasktile.explain(array)
    assert usual.received_after < 0.6 * usual.received_before
    assert told.received_after <= usual.received_after + 0.05 * usual.received_before


def test_a_plan_of_divided_blocks_is_known_as_one(four_workers: None) -> None:
    planned = dasktile.optimize(part_of_product())
    told = dasktile.explain(planned)
    assert told.planned and not told.changed
    assert "it is the result of optimize already" in " ".join(str(told).split())


def test_blocks_that_a_plan_divides_are_not_in_memory(four_workers: None) -> None:
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
    for arrays in (
        [part_of_product()],
        [(x @ x).sum(axis=0)],
        [(x - x.mean(axis=0)).std(axis=1)],
        [x.sum(), x.sum(axis=1), (x @ x)[:100]],
    ):
        optimised = dask.optimize(*arrays)
        # another operation behind them, too
        for given in (optimised, [array + 1 for array in optimised]):
            explanation = dasktile.explain(*given)
            told.append((explanation.received_before, explanation.received_after))
            told.append(tuple(len(new.dask) for new in as_tuple(dasktile.optimize(*given))))
    return str(told)


def as_tuple(arrays: Any) -> tuple[da.Array, ...]:
    return arrays if isinstance(arrays, tuple) else (arrays,)


def test_unknown_bytes_are_not_shown_as_none(four_workers: None) -> None:
    x = da.random.default_rng(0).random((800, 100), chunks=(100, 100))
    [array] = dask.optimize(x.map_blocks(np.sort, axis=0).sum(axis=0))
    told = dasktile.explain(array)
    assert told.bytes_predicted is None and told.unpredicted
    assert "moves an unknown number of bytes between workers" in str(told)
    [known] = dask.optimize(x.sum(axis=0))
    assert dasktile.explain(known).bytes_predicted is not None


def test_unknown_bytes_of_the_input_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "machine", lambda *_: Machine(4))
    x = da.random.default_rng(0).random((800, 100), chunks=(100, 100))
    told = dasktile.explain(dask.optimize(x.map_blocks(np.sort, axis=0).sum(axis=0))[0])
    assert not told.changed and told.bytes_predicted is None
    assert "it moves an unknown number of bytes between workers" in " ".join(str(told).split())


def test_no_worker_makes_most_of_the_results_so_that_few_bytes_are_moved(
    four_workers: None,
) -> None:
    """Dask joins all rows in one block, from which it cuts columns, on one worker."""
    x = da.random.default_rng(0).random((800, 800), chunks=(100, 800))
    [array] = dask.optimize(da.fft.fft(da.fft.fft(x, axis=1).rechunk((800, 100)), axis=0))
    told = dasktile.explain(array)
    # on one worker, nothing would be moved
    assert told.bytes_predicted is not None and told.bytes_predicted >= 0.7 * 2 * x.nbytes
