"""Predicted seconds on a cluster whose speed was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dasktile
from benchmarks.again import placed_machine
from dasktile import api, explaining, planning, run_seconds
from dasktile.prediction import USUAL_TASK, Prediction
from dasktile.report.explanation import Explanation
from dasktile.run_seconds import NodeWork, function_seconds, measured_seconds
from dasktile.tiling.calibration import Calibration
from dasktile.tiling.plan import TilingPlan

SPEED = Calibration(bandwidth=5e8, task_seconds=4e-4, flops=1e10, workers=4, threads=4, memory=1e9)


def _random(*shape: int, chunk: int) -> da.Array:
    return da.random.default_rng(sum(shape)).random(shape, chunks=chunk)


@contextmanager
def _measured(speed: Calibration | None = SPEED) -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        machine = replace(placed_machine(4), calibration=speed)
        patch.setattr(api, "machine", lambda *_: machine)
        yield patch


def _explained(array: da.Array, speed: Calibration | None = SPEED) -> Explanation:
    with _measured(speed):
        return dasktile.explain(array)


def test_nothing_is_predicted_without_a_measurement() -> None:
    plan = _explained(_random(400, 400, chunk=100).sum(axis=0), None)
    assert plan.seconds_before is None and plan.seconds_after is None


def test_products_take_as_long_as_their_operations() -> None:
    x = _random(2000, 2000, chunk=250)
    fast, slow = (
        _explained(x @ x, replace(SPEED, flops=flops)) for flops in (SPEED.flops, SPEED.flops / 10)
    )
    operations = 2 * 2000**3
    more = operations / 4 * (10 - 1) / SPEED.flops
    assert slow.seconds_after - fast.seconds_after == pytest.approx(more)
    assert slow.seconds_before - fast.seconds_before == pytest.approx(more)


def test_graphs_that_are_too_large_to_simulate_take_as_long_as_their_tasks() -> None:
    x = _random(12_000, 100, chunk=10)
    plan = _explained((x + 1).sum(axis=0))
    assert plan.unpredicted
    assert plan.seconds_before == pytest.approx(14_000 * USUAL_TASK * SPEED.task_seconds, rel=0.2)
    assert plan.seconds_after < plan.seconds_before / 10


def test_groups_take_longer_than_sums() -> None:
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("flox")
    days = xarray.DataArray(
        _random(6000, 4000, chunk=1000),
        dims=("time", "x"),
        coords={"month": ("time", np.arange(6000) // 500)},
    )
    grouped, summed = _explained(days.groupby("month").mean().data), _explained(days.mean("time"))
    assert grouped.seconds_before is not None and summed.seconds_before is not None
    least = 6000 * 4000 * 8 / 5e7 / 4
    assert grouped.seconds_before > summed.seconds_before + least / 2


def test_the_input_takes_as_long_as_before_where_it_is_kept() -> None:
    plan = _explained(_random(400, 400, chunk=200) + 1)
    assert not plan.changed
    assert plan.seconds_after == plan.seconds_before > 0


def test_one_block_keeps_one_thread_busy() -> None:
    x = _random(2000, 2000, chunk=2000)
    plan = _explained(x @ x)
    assert plan.seconds_before is not None
    assert plan.seconds_before > 2 * 2000**3 / SPEED.flops


def test_constants_take_no_time() -> None:
    """Their blocks are views of one element."""
    drawn, constant = _random(4000, 4000, chunk=500), da.ones((4000, 4000), chunks=500)
    (seconds, _), (none, _) = (_seconds_of_functions(x.sum()) for x in (drawn, constant))
    assert none < seconds / 100


def test_tasks_within_tasks_take_time() -> None:
    """One bundle of many small tasks takes longer than one task."""
    plan = _plan_of(_random(400, 400, chunk=100).sum())
    run = Prediction(1.0, 0, 0, tasks=10)
    machine = replace(placed_machine(4), calibration=SPEED)
    few, many = (
        measured_seconds(
            machine,
            plan,
            [NodeWork(0.0, 0.0, 1.0, (1, 1), (count, 0))],
            (run, run),
            (lambda: 10, lambda: 10),
        )
        for count in (10, 4010)
    )
    assert few is not None and many is not None
    assert few[0] is not None and many[0] is not None
    assert many[0] - few[0] == pytest.approx(4000 * run_seconds.INNER_TASK / 4)


def _plan_of(array: da.Array) -> TilingPlan:
    """The plan of an expression for four workers."""
    found: list[TilingPlan] = []
    with _measured() as patch:
        kept = run_seconds.measured_seconds

        def measured(machine: Any, plan: TilingPlan, *args: Any) -> Any:
            found.append(plan)
            return kept(machine, plan, *args)

        patch.setattr(explaining, "measured_seconds", measured)
        dasktile.explain(array)
    return found[-1]


def _seconds_of_functions(array: da.Array) -> tuple[float, float]:
    """Seconds of a thread for all functions, and their operations."""
    work = _work(array)
    return sum(node.seconds for node in work), sum(node.operations for node in work)


def test_functions_wait_for_the_busiest_worker() -> None:
    machine = replace(placed_machine(4), threads=2, calibration=SPEED)
    work = [NodeWork(8.0, 16 * SPEED.flops, 3.0, (4, 100)), NodeWork(1.0, 0.0, 1.0, (1, 1))]
    assert function_seconds(machine, work) == pytest.approx(24 / 8 + 1)
    assert function_seconds(machine, work, balance=2.0) == pytest.approx(24 / 4 + 1)
    assert function_seconds(machine, work, is_stock=True) == pytest.approx((8 + 48) / 4 + 1)


@pytest.mark.parametrize("chunk", [200, 50])
def test_returned_plans_take_as_long_as_they_were_predicted_to(chunk: int) -> None:
    x = _random(2000, 2000, chunk=chunk)
    with _measured():
        first = dasktile.explain(x.T @ x)
        again = dasktile.explain(dasktile.optimize(x.T @ x))
    assert first.changed and again.planned
    assert again.seconds_after == pytest.approx(first.seconds_after)
    # the run of the input was not simulated for it
    assert again.seconds_before in (None, first.seconds_before)


def test_seconds_are_no_reason_to_fail() -> None:
    """Where writing the graph only to count its tasks fails, those of the model count."""

    def failing(*args: object, **kwargs: object) -> None:
        raise RuntimeError

    x = _random(12_000, 100, chunk=10)
    with _measured() as patch, dask.config.set({"dasktile.raise-errors": False}):
        patch.setattr(planning, "lower", failing)
        plan = dasktile.explain((x + 1).sum(axis=0))
    assert plan.bytes_after > 0 and plan.seconds_after is not None


def test_threads_without_a_needed_block_do_not_help() -> None:
    part = da.sqrt(_random(4000, 100, chunk=100))[:200]
    alone = da.sqrt(_random(200, 100, chunk=100))
    blocks = [[node.blocks[0] for node in _work(array)] for array in (part, alone)]
    assert blocks[0] == blocks[1]


def _work(array: da.Array) -> Sequence[NodeWork]:
    """What the functions of a request take."""
    with _measured() as patch:
        found: list[Sequence[NodeWork]] = []
        kept = run_seconds.function_work

        def function_work(*args: Any) -> Any:
            result = kept(*args)
            found.append(result)
            return result

        patch.setattr(explaining, "function_work", function_work)
        dasktile.explain(array)
    return found[-1]
