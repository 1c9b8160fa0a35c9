"""The search returns the best of many plans, with valid lower bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktile.schedule import order as orders
from dasktile.schedule.search import POLICIES, SearchResult, move_operation, plan
from dasktile.schedule.simulate import HostLink, simulate
from dasktile.schedule.swaps import ON_DEMAND, Memory, check_plan, plan_swaps
from dasktile.schedule.taskgraph import Builder, TaskGraph, taskgraph
from tests.graphs import figure_41, graphs, matmul, recurrent

UNIT = HostLink(1, 1, None)


def ticks(count: int) -> Callable[[], float]:
    """A clock that advances by ``1 / count`` seconds with every call."""
    now = 0

    def clock() -> float:
        nonlocal now
        now += 1
        return now / count

    return clock


def same_plan(one: SearchResult, other: SearchResult) -> bool:
    return (
        one.makespan == other.makespan
        and one.method == other.method
        and one.order.tolist() == other.order.tolist()
        and one.swaps.in_trigger.tolist() == other.swaps.in_trigger.tolist()
    )


def price(graph: TaskGraph, order: np.ndarray, limit: int, link: HostLink) -> float:
    """Makespan of an order with the best policy, in seconds."""
    memory = Memory.bytes(graph, limit)
    return min(
        simulate(graph, plan_swaps(graph, order, memory, policy), memory, link).makespan
        for policy in (ON_DEMAND, *POLICIES)
    )


@given(graph=graphs(), more=st.integers(0, 20), repeat=st.booleans(), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_plans_are_valid_and_never_slower_than_given_orders(
    graph: TaskGraph, more: int, repeat: bool, seed: int
) -> None:
    limit = int(graph.working_sets().max()) + more
    link = HostLink(2, 1, 2)
    given_order = random_order(graph, seed)
    result = plan(graph, limit, link, given={"dask": given_order}, repeat=repeat)
    check_plan(graph, result.swaps, Memory.bytes(graph, limit), repeat)
    assert result.peak <= limit
    assert result.time_bound <= result.makespan * (1 + 1e-6) + 1e-6
    assert result.ideal <= result.makespan
    if not repeat:
        for order in (given_order, orders.get_rule("program")(graph, limit)):
            assert result.makespan <= price(graph, order, limit, link)
        assert result.swap_bound is not None
        least = result.swap_bound.read + result.swap_bound.written
        assert result.swap_in_bytes + result.swap_out_bytes >= least * (1 - 1e-6) - 1e-6
    assert same_plan(result, plan(graph, limit, link, given={"dask": given_order}, repeat=repeat))


def random_order(graph: TaskGraph, seed: int) -> np.ndarray:
    """A random valid order."""
    order = orders.get_rule("program")(graph, 0)
    rng = np.random.default_rng(seed)
    for _ in range(3 * len(graph)):
        changed = move_operation(graph, order, rng)
        order = order if changed is None else changed
    return graph.check_order(order)


def test_figure_41() -> None:
    result = plan(figure_41(), 10, UNIT)
    assert (result.makespan, result.ideal) == (6, 6)
    assert result.time_bound == 6


def test_the_best_rule_is_faster_than_the_program_order() -> None:
    graph = recurrent(layers=6, steps=8)
    result = plan(graph, 900, HostLink(12, 12, 20))
    program = plan(graph, 900, HostLink(12, 12, 20), rules=["program"])
    assert result.makespan < 0.8 * program.makespan
    assert result.swap_in_bytes < 0.5 * program.swap_in_bytes
    assert result.tried > program.tried


def test_with_enough_memory_the_makespan_is_ideal_after_the_first_read() -> None:
    graph = matmul(4)
    result = plan(graph, 10**6, HostLink(100, 100, None))
    assert result.swap_out_bytes == 0
    assert result.swap_in_bytes == int(graph.size[graph.present].sum())
    assert result.makespan == pytest.approx(result.ideal + 0.2)
    assert result.time_bound == pytest.approx(result.ideal)


@pytest.mark.parametrize("build", [lambda: matmul(6), lambda: recurrent(3, 12)])
@pytest.mark.parametrize("seed", range(3))
def test_plans_are_good_for_other_durations_and_bandwidths(
    build: Callable[[], TaskGraph], seed: int
) -> None:
    """Durations and bandwidths differ from the assumed ones by up to a third."""
    graph = build()
    limit = int(graph.working_sets().max()) * 4
    link = HostLink(20, 20, 30)
    memory = Memory.bytes(graph, limit)
    result = plan(graph, limit, link)
    rng = np.random.default_rng(seed)
    other = replace(graph, time=graph.time * rng.uniform(2 / 3, 4 / 3, len(graph)))
    slower = HostLink(*(rate * rng.uniform(2 / 3, 4 / 3) for rate in (20, 20, 30)))
    ran = simulate(other, result.swaps, memory, slower)
    assert int(ran.peak.sum()) <= limit
    # not much slower than a plan for the real values
    known = plan(other, limit, slower, bounds=False)
    usual = plan_swaps(other, result.order, memory, ON_DEMAND)
    assert ran.makespan <= 1.25 * known.makespan
    assert ran.makespan <= simulate(other, usual, memory, slower).makespan


def test_a_local_search_is_never_worse_and_reproducible() -> None:
    graph = matmul(4)
    link = HostLink(10, 10, 15)
    at_once = plan(graph, 100, link)
    longer = plan(graph, 100, link, search_seconds=1, clock=ticks(200))
    assert longer.makespan <= at_once.makespan
    assert 150 < longer.tried - at_once.tried <= 200
    check_plan(graph, longer.swaps, Memory.bytes(graph, 100))
    again = plan(graph, 100, link, search_seconds=1, clock=ticks(200))
    assert same_plan(longer, again)
    other = plan(graph, 100, link, search_seconds=1, clock=ticks(200), rng=np.random.default_rng(1))
    assert other.makespan <= at_once.makespan


def test_plans_do_not_depend_on_names() -> None:
    def build(name: Callable[[object], object]) -> TaskGraph:
        graph = recurrent(3, 3)
        assert graph.data_names is not None
        builder = Builder()
        for datum, old in enumerate(graph.data_names):
            builder.datum(
                name(old),
                int(graph.size[datum]),
                present=bool(graph.present[datum]),
                kept=bool(graph.kept[datum]),
            )
        names = [name(old) for old in graph.data_names]
        for op in range(len(graph)):
            builder.op(
                op,
                float(graph.time[op]),
                [names[datum] for datum in graph.reads[op]],
                [names[datum] for datum in graph.writes[op]],
                [names[datum] for datum in graph.updates[op]],
            )
        return builder.graph()

    one, other = (plan(build(name), 500, UNIT) for name in (lambda old: old, hash))
    assert same_plan(one, other)


def test_invalid_arguments_are_refused() -> None:
    graph = figure_41()
    with pytest.raises(ValueError, match="memory_limit is 3 B, but operation 'Conv2' alone"):
        plan(graph, 3)
    with pytest.raises(ValueError, match="before operation 'Data', which must run first"):
        plan(graph, 10, given={"mine": [1, 0, 2, 3, 4, 5]})
    with pytest.raises(ValueError, match="unknown rule 'fast'"):
        plan(graph, 10, rules=["fast"])
    with pytest.raises(ValueError, match="search_seconds needs a clock"):
        plan(graph, 10, search_seconds=1)
    with pytest.raises(ValueError, match="policies must have at least one"):
        plan(graph, 10, policies=())


def test_an_empty_graph() -> None:
    result = plan(taskgraph([], [], [], []), 0)
    assert (result.makespan, result.swap_in_bytes, result.tried) == (0, 0, 7)
