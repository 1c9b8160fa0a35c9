"""Swap plans are valid, near the lower bounds, and take the simulated time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktile.schedule import order as orders
from dasktile.schedule.bounds import swap_bound, time_bound
from dasktile.schedule.compiled import COMPILED
from dasktile.schedule.simulate import HostLink, SimulatedRun, ideal, simulate
from dasktile.schedule.swaps import ON_DEMAND, Memory, Policy, SwapPlan, check_plan, plan_swaps
from dasktile.schedule.taskgraph import Builder, TaskGraph
from tests.graphs import figure_41, figure_43, graphs, matmul, recurrent
from tests.schedule.rehearsal import rehearse

#: A byte per second in each direction, both at the same time.
UNIT = HostLink(1, 1, None)
POLICIES = (
    ON_DEMAND,
    Policy(lead=0, fill=False),
    Policy(lead=0, back=100),
    Policy(lead=1),
    Policy(lead=3, threshold=1),
    Policy(lead=8, spare=0.5, dirty_factor=1),
    Policy(lead=100, back=100),
)


def plan_and_run(
    graph: TaskGraph,
    limit: int | Memory,
    policy: Policy | None = None,
    order: list[int] | None = None,
    link: HostLink = UNIT,
    repeat: bool = False,
) -> tuple[SwapPlan, SimulatedRun]:
    numbers = np.arange(len(graph)) if order is None else np.array(order)
    memory = Memory.bytes(graph, limit) if isinstance(limit, int) else limit
    plan = plan_swaps(graph, numbers, memory, policy, repeat)
    check_plan(graph, plan, memory, repeat)
    run = simulate(graph, plan, memory, link)
    assert (run.peak <= memory.capacity).all()
    return plan, run


# Examples of the thesis

LEFT, RIGHT = [0, 1, 2, 3, 4, 5], [0, 2, 3, 4, 1, 5]
#: SwapAdvisor's planner: evictions as early as possible, none cancelled.
AS_WRITTEN = Policy(lead=0, back=100, fill=False, dirty_factor=1)


def pools(graph: TaskGraph, name: str) -> Memory:
    if name == "coarse":
        return Memory.classes(np.zeros(graph.data_count, np.int64), [5])
    return Memory.classes((graph.size == 2).astype(np.int64), [8, 1])


@pytest.mark.parametrize(
    ("order", "name", "least", "printed", "actual"),
    (
        (LEFT, "coarse", 6, 7, 7),
        (RIGHT, "coarse", 7, 8, 7),
        (RIGHT, "fine", 6, 6, 6),
        (LEFT, "fine", 7, 7, 7),
    ),
)
def test_figure_41(order: list[int], name: str, least: int, printed: int, actual: int) -> None:
    graph = figure_41()
    assert shortest(graph, order, pools(graph, name)) == least
    _, run = plan_and_run(graph, pools(graph, name), AS_WRITTEN, order)
    # dropped data make room as soon as possible: never later than by pairs of slots
    assert run.makespan == actual <= printed


@pytest.mark.parametrize("order", (LEFT, RIGHT))
def test_figure_41_with_a_pool_of_bytes(order: list[int]) -> None:
    assert plan_and_run(figure_41(), 10, AS_WRITTEN, order)[1].makespan == 6
    assert plan_and_run(figure_41(), 10, Policy(), order)[1].makespan == 6


def shortest(graph: TaskGraph, order: list[int], memory: Memory) -> int:
    """Makespan of the best plan, by exhaustive search."""
    touched = [set(graph.touched[op].tolist()) for op in order]
    makes = [set(graph.writes[op].tolist()) for op in order]
    size = graph.size.tolist()

    def fits(inside: frozenset[int]) -> bool:
        used = np.zeros(len(memory.capacity), np.int64)
        np.add.at(used, memory.pool[list(inside)], memory.room[list(inside)])
        return bool((used <= memory.capacity).all())

    def needed(datum: int, done: int) -> bool:
        return any(datum in one for one in touched[done:])

    Copying = tuple[int, int] | None
    State = tuple[int, frozenset[int], frozenset[int], Copying, Copying]
    host = frozenset(np.flatnonzero(graph.present).tolist())
    states: set[State] = {(0, frozenset(), host, None, None)}
    for time in range(1, 20):
        following: set[State] = set()
        for done, inside, stored, coming, going in states:
            free = inside - ({coming[0]} if coming else set())
            # data with a host copy that are not needed are dropped at no cost
            inside -= {one for one in free if one in stored and not needed(one, done)}
            copies_in: list[Copying] = [coming]
            if coming is None:
                copies_in += [(one, size[one]) for one in stored - inside if needed(one, done)]
            for one_in in copies_in:
                entered = inside | ({one_in[0]} if one_in else set())
                for run in (True, False):
                    held = touched[done] if run else set()
                    if run and not touched[done] - makes[done] <= free:
                        continue
                    with_made = entered | (makes[done] if run else set())
                    if not fits(with_made):
                        continue
                    copies_out: list[Copying] = [going]
                    if going is None:
                        copies_out += [(one, size[one]) for one in free - stored - held]
                    for one_out in copies_out:
                        if run and done + 1 == len(order):
                            return time
                        if one_out and one_out[0] in held:
                            continue
                        after, on_host = with_made, stored
                        next_in = one_in and (one_in[0], one_in[1] - 1)
                        if next_in and not next_in[1]:
                            next_in = None
                        next_out = one_out and (one_out[0], one_out[1] - 1)
                        if next_out and not next_out[1]:
                            after, on_host = after - {next_out[0]}, stored | {next_out[0]}
                            next_out = None
                        following.add((done + run, after, on_host, next_in, next_out))
        states = following
    raise AssertionError("no plan")


@pytest.mark.parametrize("threshold", (0, 1))
def test_figure_43(threshold: int) -> None:
    graph = figure_43()
    policy = replace(AS_WRITTEN, threshold=threshold)
    plan, run = plan_and_run(graph, 4, policy)
    names = [graph.data_names[datum] for datum in plan.out_datum] if graph.data_names else []
    assert names == ["W1", "W2"]
    # W3 comes in where W1 was while op2 runs
    assert run.copies_in[:, 2].tolist() == [2, 3]
    assert run.makespan == 4


@pytest.mark.parametrize(("threshold", "first"), ((0, 1), (1, 0)))
def test_the_threshold_keeps_recently_used_data(threshold: int, first: int) -> None:
    build = Builder()
    for datum in range(3):
        build.datum(datum, 1, present=True)
    for number, datum in enumerate((0, 1, 2, 0, 1)):
        build.op(number, 1.0, [datum])
    # datum 1 is needed last when datum 2 comes in, but it was just used
    plan, _ = plan_and_run(build.graph(), 2, Policy(lead=0, threshold=threshold))
    assert plan.out_datum[0] == first


# The lanes of the simulation


def chain(sizes: list[int], kept: bool = False) -> TaskGraph:
    """Operations that each read one datum from the host."""
    build = Builder()
    for number, size in enumerate(sizes):
        build.datum(number, size, present=True, kept=kept)
        build.op(number, 2.0, [number])
    return build.graph()


def test_copies_overlap_with_operations() -> None:
    graph = chain([2, 2, 2])
    assert plan_and_run(graph, 4, Policy(lead=1))[1].makespan == 2 + 3 * 2
    # memory for one at a time hides nothing
    assert plan_and_run(graph, 2, Policy(lead=1))[1].makespan == 3 * (2 + 2)
    assert plan_and_run(graph, 4, ON_DEMAND)[1].makespan == 3 * (2 + 2)
    assert ideal(graph) == 6


def test_copies_in_and_out_share_the_bandwidth() -> None:
    build = Builder()
    build.datum("a", 12)
    build.datum("b", 12, present=True)
    build.op("make", 0.0, writes=["a"])
    build.op("other", 0.0, reads=["b"])
    build.op("last", 0.0, reads=["a"])
    graph = build.graph()
    # a goes out in 1 s, b comes in in 1 s, and a in 1 s
    assert plan_and_run(graph, 12, Policy(lead=0), link=HostLink(12, 12, 20))[
        1
    ].makespan == pytest.approx(3)
    build = Builder()
    for name in "abcd":
        build.datum(name, 12, present=name in "cd", kept=name in "ab")
    build.op("make", 0.0, writes=["a", "b"])
    build.op("other", 0.0, reads=["c"])
    build.op("last", 0.0, reads=["d"])
    # a out, then b out while c comes in: 24 bytes at 20 a second, then d in
    plan, run = plan_and_run(build.graph(), 24, Policy(lead=1), link=HostLink(12, 12, 20))
    assert plan.swap_out_bytes == 24
    assert run.makespan == pytest.approx(1 + 24 / 20 + 1)


def test_data_with_a_host_copy_are_dropped() -> None:
    build = Builder()
    build.datum("a", 4, present=True)
    build.datum("b", 4)
    build.op("one", 1.0, reads=["a"])
    build.op("two", 1.0, writes=["b"])
    build.op("three", 1.0, reads=["a"])
    build.op("four", 1.0, reads=["b"])
    build.op("five", 1.0, reads=["a"])
    graph = build.graph()
    plan, _ = plan_and_run(graph, 4, Policy(lead=0))
    # b is written once and read once
    assert (plan.swap_in_bytes, plan.swap_out_bytes) == (16, 4)
    assert plan.out_copy.sum() == 1


def test_updated_data_are_written() -> None:
    build = Builder()
    build.parameter("w", 4)
    build.datum("x", 4, present=True)
    build.op("one", 1.0, updates=["w"])
    build.op("two", 1.0, reads=["x"])
    build.op("three", 1.0, reads=["w"])
    graph = build.graph()
    plan, _ = plan_and_run(graph, 4, Policy(lead=0))
    assert (plan.swap_in_bytes, plan.swap_out_bytes) == (12, 4)
    plan, _ = plan_and_run(graph, 8, Policy(lead=0))
    assert (plan.swap_in_bytes, plan.swap_out_bytes) == (8, 0)


def test_data_that_must_be_written_count_as_needed_sooner() -> None:
    build = Builder()
    build.datum("clean", 1, present=True)
    build.datum("dirty", 1)
    build.datum("new", 1)
    build.op("make", 1.0, reads=["clean"], writes=["dirty"])
    build.op("more", 1.0, writes=["new"])
    build.op("one", 1.0, reads=["clean"])
    build.op("two", 1.0, reads=["dirty"])
    graph = build.graph()
    assert plan_and_run(graph, 2, Policy(lead=0, dirty_factor=1))[0].swap_out_bytes == 1
    assert plan_and_run(graph, 2, Policy(lead=0, dirty_factor=2))[0].swap_out_bytes == 0


def test_evictions_are_cancelled_where_there_is_room() -> None:
    build = Builder()
    build.datum("large", 6)
    build.datum("small", 3)
    build.datum("new", 4)
    build.op("make", 1.0, writes=["large", "small"])
    build.op("more", 1.0, writes=["new"])
    build.op("use small", 1.0, reads=["small"])
    build.op("use large", 1.0, reads=["large"])
    graph = build.graph()
    plan, _ = plan_and_run(graph, 9, Policy(lead=0))
    assert plan.swap_out_bytes == 6


def test_invalid_plans_are_refused() -> None:
    graph = chain([2, 2, 2])
    memory = Memory.bytes(graph, 4)
    plan = plan_swaps(graph, np.arange(3), memory)
    with pytest.raises(ValueError, match="datum 2 is read but not in memory at position 2"):
        check_plan(graph, replace(plan, **{
            name: getattr(plan, name)[:2]
            for name in ("in_datum", "in_trigger", "in_use", "in_gap")
        }), memory)  # fmt: skip
    with pytest.raises(ValueError, match="too little memory at position 0"):
        check_plan(graph, replace(plan, in_trigger=plan.in_trigger * 0), Memory.bytes(graph, 4))
    late = replace(plan, in_trigger=plan.in_trigger + 100)
    with pytest.raises(ValueError, match="deadlocks at position 0"):
        simulate(graph, late, memory, UNIT)
    with pytest.raises(ValueError, match="operation 0 alone reads and writes 2"):
        Memory.bytes(graph, 1)
    with pytest.raises(ValueError, match="the data of operation 0 do not fit"):
        plan_swaps(graph, np.arange(3), Memory.classes(np.zeros(3, np.int64), [0]))


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="outward must be above 0 bytes per second, not 0"):
        HostLink(1, 0)
    with pytest.raises(ValueError, match="lead must be at least 0, not -1"):
        Policy(lead=-1)
    with pytest.raises(ValueError, match=r"dirty_factor must be at least 1, not 0\.5"):
        Policy(dirty_factor=0.5)


# Loops


def test_in_a_loop_memory_has_the_same_content_at_the_end_as_at_the_start() -> None:
    graph = recurrent(layers=4, steps=4)
    plan, run = plan_and_run(graph, 600, Policy(lead=2), repeat=True)
    assert plan.started.any()
    assert (plan.started == plan.ended).all()
    once, _ = plan_and_run(graph, 600, Policy(lead=2))
    assert plan.swap_in_bytes < once.swap_in_bytes
    assert run.makespan > 0


# Properties


@given(graph=graphs(), more=st.integers(0, 20), repeat=st.booleans())
@settings(max_examples=60, deadline=None)
def test_plans_of_random_graphs_are_valid_and_above_the_bounds(
    graph: TaskGraph, more: int, repeat: bool
) -> None:
    limit = int(graph.working_sets().max()) + more
    order = orders.get_rule("program")(graph, limit)
    memory = Memory.bytes(graph, limit)
    for policy in POLICIES:
        plan = plan_swaps(graph, order, memory, policy, repeat)
        check_plan(graph, plan, memory, repeat)
        run = simulate(graph, plan, memory, HostLink(2, 1, 2))
        assert run.peak[0] <= limit
        assert run.makespan >= ideal(graph)
        if not repeat:
            both = swap_bound(graph, order, limit)
            swapped = plan.swap_in_bytes + plan.swap_out_bytes
            assert swapped >= (both.read + both.written) * (1 - 1e-6) - 1e-6
            reads = swap_bound(graph, order, limit, write_cost=0.0).read
            assert plan.swap_in_bytes >= reads * (1 - 1e-6) - 1e-6
            total = both.read + both.written
            bound = time_bound(graph, order, limit, HostLink(2, 1, 2).rates, reads, total)
            assert run.makespan >= bound * (1 - 1e-6) - 1e-6


@given(graph=graphs(), more=st.integers(0, 20))
@settings(max_examples=50, deadline=None)
def test_plans_with_size_classes_are_valid(graph: TaskGraph, more: int) -> None:
    pool = (graph.size > 4).astype(np.int64)
    counts = [
        int((pool[graph.touched.index] == line).sum()) and max(
            int((pool[graph.touched[op]] == line).sum()) for op in range(len(graph))
        ) + more
        for line in (0, 1)
    ]  # fmt: skip
    memory = Memory.classes(pool, counts)
    order = orders.get_rule("program")(graph, 2**40)
    for policy in POLICIES:
        plan = plan_swaps(graph, order, memory, policy)
        check_plan(graph, plan, memory)
        assert (simulate(graph, plan, memory, UNIT).peak <= memory.capacity).all()


@pytest.mark.parametrize("limit", (200, 400, 600))
def test_plans_are_near_the_lower_bound(limit: int) -> None:
    graph = matmul(6)
    plan, _ = plan_and_run(graph, limit, Policy(lead=0))
    both = swap_bound(graph, np.arange(len(graph)), limit)
    assert plan.swap_in_bytes + plan.swap_out_bytes <= 1.05 * (both.read + both.written)


# The rules of a worker's store


@pytest.mark.parametrize("ahead", (0, 4))
@pytest.mark.parametrize("graph", (matmul(6), recurrent(4, 6)), ids=("matmul", "recurrent"))
def test_a_store_swaps_as_much_as_a_plan(graph: TaskGraph, ahead: int) -> None:
    order = np.arange(len(graph))
    store = rehearse(graph, order, 400, UNIT, ahead)
    plan, run = plan_and_run(graph, 400, Policy(lead=ahead))
    if not ahead:
        swapped = plan.swap_in_bytes + plan.swap_out_bytes
        assert abs(store.swap_in_bytes + store.swap_out_bytes - swapped) <= 0.15 * swapped
    assert store.makespan >= ideal(graph)
    assert run.makespan <= 1.05 * store.makespan


def test_a_store_swaps_nothing_out_if_there_is_room() -> None:
    graph = recurrent(3, 3)
    store = rehearse(graph, np.arange(len(graph)), 10**6, UNIT)
    assert store.swap_out_bytes == 0
    assert store.swap_in_bytes == int(graph.size[graph.present].sum())
    with pytest.raises(ValueError, match="memory_limit is 10 B,"):
        rehearse(graph, np.arange(len(graph)), 10)


# With and without compiled loops


def summary() -> list[object]:
    """A few plans, exact to the last bit."""
    plans: list[object] = []
    for graph, limit in ((matmul(5), 200), (recurrent(4, 5), 450), (figure_41(), 6)):
        for name in ("program", "darts"):
            order = orders.get_rule(name)(graph, limit)
            for policy, repeat in ((one, two) for one in POLICIES for two in (False, True)):
                memory = Memory.bytes(graph, limit)
                plan = plan_swaps(graph, order, memory, policy, repeat)
                run = simulate(graph, plan, memory, HostLink(7, 5, 9))
                plans.append([run.makespan.hex(), plan.in_trigger.tolist(), plan.out_at.tolist()])
    return plans


@pytest.mark.skipif(not COMPILED, reason="numba is not installed")
def test_plans_are_the_same_without_numba() -> None:
    code = (
        "import json, sys; sys.modules['numba'] = None; "
        "from tests.schedule.test_simulate import COMPILED, summary; assert not COMPILED; "
        "print(json.dumps(summary()))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", code],
        cwd=root,
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(json.dumps(summary()))


def test_belady_is_optimal_for_equal_sizes() -> None:
    # every pair of ten data is read once
    build = Builder()
    for number in range(10):
        build.datum(number, 1, present=True)
    for pair in combinations(range(10), 2):
        build.op(pair, 1.0, pair)
    graph = build.graph()
    plan, _ = plan_and_run(graph, 5, Policy(lead=0))
    bound = swap_bound(graph, np.arange(len(graph)), 5, write_cost=0).read
    assert bound - 1e-6 <= plan.swap_in_bytes <= np.ceil(bound - 1e-6) + 1
