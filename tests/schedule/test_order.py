"""Every order rule gives valid orders, and has its purpose."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from dasktile.schedule import order as orders
from dasktile.schedule.swaps import Memory, Policy, plan_swaps
from dasktile.schedule.taskgraph import Builder, TaskGraph, taskgraph
from tests.graphs import graphs, matmul, recurrent


@pytest.mark.parametrize("name", orders.rule_names())
@given(graph=graphs())
@settings(max_examples=25, deadline=None)
def test_orders_are_valid_and_deterministic(name: str, graph: TaskGraph) -> None:
    limit = int(graph.working_sets().max(initial=0))
    order = orders.get_rule(name)(graph, limit)
    graph.check_order(order)
    assert (orders.get_rule(name)(graph, limit) == order).all()


@pytest.mark.parametrize("name", orders.rule_names())
def test_the_order_of_an_empty_graph(name: str) -> None:
    assert len(orders.get_rule(name)(taskgraph([], [], [], []), 0)) == 0


def test_unknown_and_duplicate_rule_names_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown rule 'best'; allowed are 'program'"):
        orders.get_rule("best")
    with pytest.raises(ValueError, match="'darts' is registered already"):
        orders.register_rule("darts")(orders.get_rule("program"))


def swapped(graph: TaskGraph, name: str, limit: int) -> int:
    order = orders.get_rule(name)(graph, limit)
    plan = plan_swaps(graph, order, Memory.bytes(graph, limit), Policy(lead=0))
    return plan.swap_in_bytes + plan.swap_out_bytes


def peak(graph: TaskGraph, name: str) -> int:
    """Most bytes in use with unlimited memory."""
    order = orders.get_rule(name)(graph, 2**40)
    trace = graph.trace(order)
    change = np.zeros(len(graph) + 1, np.int64)
    last = np.full(graph.data_count, -1)
    last[trace.touched.index] = trace.touched.owners()
    last[graph.kept] = len(graph) - 1
    np.add.at(change, trace.first, graph.size)
    np.subtract.at(change, last + 1, graph.size)
    return int(np.cumsum(change)[:-1].max())


@pytest.mark.parametrize("name", ("darts", "parameters"))
def test_shared_weights_are_copied_in_few_times(name: str) -> None:
    graph = recurrent(layers=6, steps=8)
    # room for two of six layers with their data
    assert swapped(graph, name, 500) * 4 < swapped(graph, "program", 500)


def test_darts_swaps_less_than_the_program_order_of_a_product() -> None:
    graph = matmul(6)
    # memory for a third of the inputs: row by row, every block of b is copied in for each row
    assert swapped(graph, "darts", 240) < swapped(graph, "program", 240)


def test_depth_first_finishes_one_result_before_the_next() -> None:
    build = Builder()
    for number in range(4):
        build.datum(("x", number), 10)
        build.datum(("s", number), 1)
        build.op(("load", number), 1.0, writes=[("x", number)])
    for number in range(4):
        build.op(("sum", number), 1.0, [("x", number)], [("s", number)])
    graph = build.graph()
    assert orders.get_rule("program")(graph, 100).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert orders.get_rule("depth-first")(graph, 100).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert peak(graph, "program") == 41
    assert peak(graph, "depth-first") == 11


def test_min_memory_runs_first_the_operation_that_frees_most() -> None:
    build = Builder()
    build.datum("x", 100, present=True)
    build.datum("y", 50, present=True)
    for name, source, size in (("a", "y", 40), ("b", "x", 1)):
        build.datum(name, size, kept=True)
        build.op(name, 1.0, [source], [name])
    assert orders.get_rule("min-memory")(build.graph(), 200).tolist() == [1, 0]


def test_locality_continues_with_the_most_recent_data() -> None:
    graph = matmul(4)
    order = orders.get_rule("locality")(graph, 100)
    shared = [
        len(set(graph.touched[one].tolist()) & set(graph.touched[other].tolist()))
        for one, other in zip(order[:-1], order[1:], strict=True)
    ]
    assert min(shared) >= 1
