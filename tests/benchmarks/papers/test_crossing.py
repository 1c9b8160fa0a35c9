"""Bytes that cross an operation on the host bound the makespan of every order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.algorithms.crossing import crossing_bound
from dasktile.schedule.search import plan
from dasktile.schedule.simulate import HostLink
from dasktile.schedule.taskgraph import TaskGraph, taskgraph


def forward_and_backward(length: int, size: int, seconds: float) -> TaskGraph:
    """A chain whose results are all read again, in reverse order."""
    reads: list[list[int]] = [[]] + [[number] for number in range(length - 1)]
    writes = [[number] for number in range(length)]
    for step in range(length):
        reads.append([length - 1 - step] + ([length + step - 1] if step else []))
        writes.append([length + step])
    sizes = [size] * length + [0] * length
    return taskgraph([seconds] * (2 * length), sizes, reads, writes, None, (), [2 * length - 1])


def test_data_above_the_limit_are_swapped_out_and_in() -> None:
    graph = forward_and_backward(10, 8, 0.0)
    # after the last step forward 80 bytes exist, of which 24 are in memory
    assert crossing_bound(graph, 24, 4.0, 8.0) == pytest.approx(56 / 8 + 56 / 4)
    assert crossing_bound(graph, 80, 4.0, 8.0) == 0.0


def test_computing_hides_copies() -> None:
    graph = forward_and_backward(10, 8, 100.0)
    assert crossing_bound(graph, 24, 4.0, 8.0) == pytest.approx(2000.0)


def test_an_empty_graph_takes_no_time() -> None:
    assert crossing_bound(taskgraph([], [], [], []), 1, 1.0, 1.0) == 0.0


@st.composite
def graphs(draw: st.DrawFn) -> TaskGraph:
    count = draw(st.integers(1, 12))
    reads = [
        draw(st.lists(st.integers(0, op - 1), max_size=2, unique=True)) if op else []
        for op in range(count)
    ]
    sizes = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    times = draw(st.lists(st.integers(0, 3).map(float), min_size=count, max_size=count))
    kept = draw(st.lists(st.integers(0, count - 1), max_size=2))
    return taskgraph(times, sizes, reads, [[op] for op in range(count)], None, (), kept)


@settings(deadline=None, max_examples=60)
@given(graphs(), st.integers(0, 12))
def test_no_plan_is_below_the_bound(graph: TaskGraph, more: int) -> None:
    limit = int(graph.working_sets().max()) + more
    result = plan(graph, limit, HostLink(3.0, 2.0, 4.0), bounds=False)
    bound = crossing_bound(graph, limit, 3.0, 2.0)
    assert bound <= result.makespan * (1 + 1e-9) + 1e-9
    assert crossing_bound(graph, limit, 3.0, 2.0, tries=1) <= bound + 1e-9


def test_bound_is_deterministic() -> None:
    graph = forward_and_backward(6, 3, 0.5)
    bounds = {crossing_bound(graph, 7, 1.0, 1.0, tries=tries) for tries in (12, 50, np.int64(99))}
    assert len(bounds) == 1
