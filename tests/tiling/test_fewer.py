"""Plans for numbers of workers that have few grids: fewer workers, and bounds that hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dasktile.ir import Program
from dasktile.tiling import Settings, planner, searches, tile
from dasktile.tiling.fewer import MOST_IDLE, fewer_workers, why_fewer
from dasktile.tiling.mesh import mesh_shape
from dasktile.tiling.objective import Objective
from dasktile.tiling.plan import TilingPlan
from dasktile.tiling.searches import SearchResult, with_fewer_workers
from tests.programs import Builder

THREADS = 2


def product(size: int, chunk: int) -> Program:
    build = Builder()
    a, b = (build.source((size, size), (chunk, chunk)) for _ in range(2))
    build.matmul(a, b)
    return build.program()


def chain(size: int, chunk: int) -> Program:
    build = Builder()
    a = build.source((size, size // 2), (chunk, chunk))
    b = build.source((size // 2, 2 * size), (chunk, chunk))
    c = build.source((2 * size, size // 4), (chunk, chunk))
    build.matmul(build.matmul(a, b), c)
    return build.program()


def gram(size: int, chunk: int) -> Program:
    build = Builder()
    a = build.source((4 * size, size // 2), (chunk, chunk))
    build.matmul(a, a, ta=True)
    return build.program()


PROGRAMS = {"product": product, "chain": chain, "gram": gram}


def planned(program: Program, workers: int, **options: object) -> TilingPlan:
    # options of several types
    return tile(program, workers=workers, threads=THREADS, **options)  # type: ignore[arg-type]


def seconds(plan: TilingPlan) -> float:
    """The time of a plan in bytes that a worker receives, tasks left out."""
    return Objective(replace(Settings(), task_bytes=0.0), THREADS).elapsed(plan.after)


def largest_prime(number: int) -> int:
    return max(mesh_shape(number, 12), default=1)


def test_only_numbers_of_workers_with_a_large_prime_factor_use_fewer() -> None:
    for workers in range(1, 200):
        fewer = fewer_workers(workers)
        assert not fewer or largest_prime(workers) >= 5
        assert all((1 - MOST_IDLE) * workers <= count < workers for count in fewer)
        assert list(fewer) == sorted(fewer, reverse=True)
    assert [fewer_workers(workers) for workers in (7, 11, 13, 14, 26, 47)] == [
        (6,), (10, 9), (12,), (12,), (25, 24), (45, 36),
    ]  # fmt: skip


def test_words_say_how_few_the_grids_are() -> None:
    assert why_fewer(13) == "work can be cut in one direction only by 13"
    assert why_fewer(26) == "26 = 13 x 2 has no grid with sides of about equal length"


def test_thirteen_workers_are_planned_as_twelve() -> None:
    plan, twelve = (planned(product(8000, 1000), workers) for workers in (13, 12))
    assert plan.used_workers == 12 and plan.workers == 13
    assert plan.tiled is not None and plan.tiled.mesh == (3, 2, 2)
    assert plan.after.bytes == twelve.after.bytes == plan.lower_bound
    assert plan.proven_optimal and plan.bytes_on_all is not None
    assert plan.bytes_on_all > 2 * plan.after.bytes
    assert plan.grids == "any grid of 12 workers or any grid of 13 workers"
    assert len(plan.after.loads) == 13 and plan.after.loads[-1] == 0
    assert plan.after.balance == pytest.approx(13 / 12, rel=0.03)
    assert twelve.used_workers == 12 and twelve.bytes_on_all is None


def test_forced_plans_are_compared_with_each_other_and_not_with_the_input() -> None:
    """One worker alone takes less time here, but a forced plan may not use one."""
    program, settings = product(1440, 1440), replace(Settings(), task_bytes=4e5)
    assert planned(program, 29, settings=settings).unchanged
    plan = planned(program, 29, settings=settings, force=True)
    assert plan.used_workers == 27 and plan.after.bytes == 6 * 1440**2 * 8


@pytest.mark.parametrize("workers", [26, 47])
def test_plans_for_fewer_workers_move_fewer_bytes_each(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    every: list[list[int]] = []

    def recorded(*args: Any) -> list[SearchResult]:
        found = with_fewer_workers(*args)
        every.append([each.least.price.bytes for each in found])
        return found

    monkeypatch.setattr(planner, "with_fewer_workers", recorded)
    planned(product(12_000, 750), workers, force=True)
    assert len(every[0]) > 1 and every[0] == sorted(set(every[0]))


@pytest.mark.parametrize(
    ("program", "workers", "tried", "used"),
    [
        (product(8000, 500), 13, (11,), 13),
        (gram(8000, 500), 24, (23,), 24),
        (product(12_000, 750), 26, (24, 23), 24),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_a_plan_for_fewer_workers_must_beat_the_best_so_far(
    program: Program,
    workers: int,
    tried: tuple[int, ...],
    used: int,
    force: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also that for all workers, if it is the best so far."""
    found: list[int] = []

    def recorded(*args: Any) -> list[SearchResult]:
        results = with_fewer_workers(*args)
        found.extend(result.planner.mesh.workers for result in results)
        return results

    monkeypatch.setattr(planner, "with_fewer_workers", recorded)
    monkeypatch.setattr(searches, "fewer_workers", lambda _: tried)
    # the least that they may move is no reason not to plan for them
    monkeypatch.setattr(searches, "share_moved", lambda *_: 0.0)
    plan = planned(program, workers, force=force)
    assert found[0] == plan.used_workers == used
    assert found == list(dict.fromkeys((used, workers)))


def test_all_workers_are_used_where_work_takes_longer_than_bytes() -> None:
    slow = replace(Settings(), work_per_second=1e8)
    plan = planned(product(8000, 1000), 13, settings=slow, force=True)
    assert plan.used_workers == 13 and plan.tiled is not None and plan.tiled.mesh == (13,)


def test_all_workers_are_used_for_few_bytes_and_by_other_methods() -> None:
    small = planned(product(400, 100), 13, force=True)
    assert small.used_workers == 13
    for method in ("exact", "spartan"):
        plan = planned(product(8000, 1000), 13, force=True, method=method)
        assert plan.used_workers == 13 and plan.bytes_on_all is None


def test_persisted_arrays_are_on_all_workers() -> None:
    program = product(8000, 1000)
    homes = tuple((number % 13,) for number in range(64))
    nodes = tuple(replace(node, homes=homes) if not node.edges else node for node in program.nodes)
    plan = planned(Program(nodes, program.outputs), 13, placed=True)
    assert plan.used_workers == 13


@pytest.mark.parametrize("build", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("seed", range(2))
def test_bounds_are_below_what_the_planner_returns_and_keeps(
    build: Callable[[int, int], Program], seed: int
) -> None:
    """Of all numbers of workers from 2 to 128, and of every prime, some with each seed."""
    rng = np.random.default_rng(seed)
    primes = [number for number in range(2, 129) if largest_prime(number) == number]
    rules = Settings().acceptance
    for workers in {*primes[seed::4], *rng.integers(2, 129, 8).tolist()}:
        size = int(rng.choice([2000, 6000, 12_000]))
        plan = planned(build(size, size // int(rng.integers(4, 17))), workers, placed=True)
        assert plan.lower_bound <= plan.after.bytes
        # else the input leaves some workers idle, and is not kept
        if plan.lower_bound > plan.before.bytes:
            assert plan.before.balance > rules.uneven and not plan.unchanged
        if plan.unchanged:
            assert plan.lower_bound <= plan.before.bytes


@pytest.mark.parametrize("build", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("workers", [5, 7, 11, 13, 22, 29])
def test_no_fewer_workers_are_clearly_faster(
    build: Callable[[int, int], Program], workers: int
) -> None:
    """One worker more takes no longer, by the time that bytes and work take."""
    program = build(8000, 500)
    plan = planned(program, workers, force=True)
    for count in range(math.ceil(workers * (1 - MOST_IDLE)), workers):
        other = planned(program, count, force=True)
        # those that have no tiles receive nothing
        received = other.after.bytes / count
        work = Objective(Settings(), THREADS).lost(max(other.after.loads))
        assert seconds(plan) <= 1.1 * (received + work), count
