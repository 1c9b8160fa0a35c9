"""The bytes of plans are those that a real worker reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dasktile
from benchmarks import planned
from benchmarks.spill_meters import Setting, run_once
from benchmarks.spill_workloads import Run, Spilled, input_of
from dasktile.orders import plan as plans
from dasktile.schedule.simulated_worker import WorkerRun, simulate_worker

#: Bytes by which a plan and a worker may differ where both are small: a tile or two.
FEW = 500_000


@pytest.fixture(autouse=True)
def empty_plan_cache() -> None:
    plans._plans.clear()


def moved(workload: Spilled, scale: float, engine: str = "planned") -> dict[str, Any]:
    """What one worker with one thread reads and writes; its disk has the rate of the machine."""
    setting = Setting(workload.budget("lazy", "heavy", scale), threads=1)
    return run_once(engine, workload, "lazy", setting, scale)[0]


#: Workloads that take longest.
LONG = ("k_means_graph", "mlp")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in LONG else ())
        for name in planned.several()
    ],
)
def test_a_worker_moves_the_bytes_of_the_plan(name: str) -> None:
    # of smaller tiles, the halos that a stencil trims are more than a few per cent
    found = moved(planned.several()[name], 0.5 if name == "stencil" else 0.2)
    assert found["expected"] > 4 * FEW
    assert found["moved"] == pytest.approx(found["expected"], rel=0.1, abs=FEW)


def halves(run: Run) -> Any:
    """Views: halves of tiles outlive the tiles."""
    rows = run.rows(400)
    x = run.source("x", (24 * rows, 500), (rows, 500))
    first, second = x[:, :300], x[:, 300:]
    return [run.compute((first - first.mean(axis=0)).sum() + (second * second.max()).sum())]


def test_results_that_share_memory_are_counted_as_on_a_worker() -> None:
    workload = Spilled("halves", halves, 1, "lazy", 2.0, {"lazy": 60})
    found = moved(workload, 0.1)
    assert found["expected"] > 4 * FEW
    assert found["moved"] == pytest.approx(found["expected"], rel=0.1, abs=FEW)


def test_the_plan_of_a_stencil_moves_less_than_the_store_alone() -> None:
    """Slices of tiles are small: they do not keep the tiles in memory."""
    workload = planned.several()["stencil"]
    with_plan, without = (moved(workload, 0.5, engine) for engine in ("planned", "dasktile"))
    assert with_plan["moved"] <= without["moved"] + FEW


def test_the_bytes_of_a_plan_of_small_tiles_do_not_depend_on_the_time_of_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With tiles of some 100 kB messages take longer than tasks."""
    runs: list[Callable[[float], WorkerRun]] = []
    best_order = plans.best_order

    def recorded(tasks: Any, *args: Any) -> Any:
        best = best_order(tasks, *args)
        limit, link, settings = args[2:]
        runs.append(
            lambda message: simulate_worker(
                tasks, best.order.tolist(), limit, link, replace(settings, message=message)
            )
        )
        return best

    monkeypatch.setattr(plans, "best_order", recorded)
    workload, found = planned.several()["stencil"], []

    def keep(*arrays: Any) -> list[Any]:
        budget = workload.budget("lazy", "heavy", 0.1)
        found.append(dasktile.plan(*arrays, memory_limit=budget, workers=1))
        return list(arrays)

    workload.run(Run(input_of, keep, lambda array: None, 0.1))
    [plan], [run] = found, runs
    moved = plan.swap_in_bytes + plan.swap_out_bytes
    assert moved > 0
    assert [run(message).moved for message in (0.002, 0.004, 0.016)] == [moved] * 3
    assert all(run(message).moved <= moved for message in (0.0005, 0.001))


def test_planned_bytes_are_at_least_the_lower_bound() -> None:
    x = da.random.default_rng(0).random((2000, 400), chunks=(100, 400))
    plan = dasktile.plan((x - x.mean(axis=0)).std(axis=0), memory_limit="2 MB", workers=1)
    swapped = plan.swap_in_bytes + plan.swap_out_bytes
    assert 0 < plan.lower_bound <= swapped
    assert np.isfinite(plan.makespan) and plan.time_bound <= plan.makespan
