"""Validation of task graphs, and the dependencies of their operations."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from dasktile.schedule.taskgraph import Builder, RaggedArray, TaskGraph, taskgraph, topological


def step() -> TaskGraph:
    """A layer, its gradient and an update of its weights."""
    build = Builder()
    build.parameter("w", 100)
    build.datum("x", 40)
    build.datum("y", 40, kept=True)
    build.datum("g", 100)
    build.op("load", 1.0, writes=["x"])
    build.op("dense", 2.0, reads=["x", "w"], writes=["y"])
    build.op("back", 3.0, reads=["x", "w", "y"], writes=["g"])
    build.op("update", 0.5, reads=["g"], updates=["w"])
    return build.graph()


def test_the_arrays_of_a_graph() -> None:
    graph = step()
    assert len(graph) == 4
    assert graph.data_count == 4
    assert graph.size.tolist() == [100, 40, 40, 100]
    assert graph.reads[1].tolist() == [1, 0]
    assert graph.updates[3].tolist() == [0]
    assert graph.touched[3].tolist() == [3, 0]
    assert graph.maker.tolist() == [-1, 0, 1, 2]
    assert graph.present.tolist() == [True, False, False, False]
    assert graph.kept.tolist() == [True, False, True, False]
    assert graph.working_sets().tolist() == [40, 180, 280, 200]
    assert graph.working_set(2) == 280
    assert repr(graph) == "TaskGraph(4 operations, 4 data, 280 B, 6.5 s)"


def test_an_update_runs_after_the_readers_of_the_old_values() -> None:
    graph = step()
    assert [graph.before[op].tolist() for op in range(4)] == [[], [0], [0, 1], [1, 2]]
    assert [graph.after[op].tolist() for op in range(4)] == [[1, 2], [2, 3], [3], []]


def test_readers_of_the_new_values_run_after_the_update() -> None:
    graph = taskgraph(
        [1] * 4,
        [8],
        reads=[[0], [], [0], []],
        writes=[[]] * 4,
        updates=[[], [0], [], [0]],
        present=[0],
    )
    assert [graph.before[op].tolist() for op in range(4)] == [[], [0], [1], [1, 2]]


def test_operations_may_be_given_in_any_order() -> None:
    graph = taskgraph([1, 1, 1], [1, 1], reads=[[1], [0], []], writes=[[], [1], [0]])
    assert topological(graph.before, graph.after).tolist() == [2, 1, 0]
    assert graph.check_order([2, 1, 0]).tolist() == [2, 1, 0]


def test_the_access_trace_of_an_order() -> None:
    graph = step()
    trace = graph.trace(np.arange(4))
    assert trace.touched.index.tolist() == [1, 1, 0, 2, 1, 0, 2, 3, 3, 0]
    assert trace.next.tolist() == [1, 2, 2, 2, 4, 3, 4, 3, 4, 4]
    assert trace.first.tolist() == [1, 0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    (
        ({"time": [1, -1]}, "operation 'two' takes -1 seconds; it must be at least 0"),
        ({"time": [1, float("nan")]}, "operation 'two' takes nan seconds"),
        ({"time": [1]}, "reads has 2 entries, but must have 1"),
        ({"size": [1, -5, 1]}, "datum 'b' has -5 bytes; it must be at least 0"),
        ({"size": [1, None, 1]}, "datum 'b' has None bytes"),
        ({"reads": [[0], [7]]}, "operation 'two' touches datum 7, which has no size"),
        ({"reads": [[0], [2]]}, "operation 'two' makes datum 'c' and reads it too"),
        ({"present": []}, "operation 'one' reads datum 'a', which no operation makes"),
        ({"present": [0, 1]}, "operation 'one' makes datum 'b', which is present"),
        ({"present": [5]}, "there is no datum 5; there are 3"),
        ({"writes": [[1], [1]]}, "operation 'two' makes datum 'b'"),
        ({"writes": [[1], []], "kept": [2]}, "datum 'c' is kept, but no operation makes it"),
        (
            {"reads": [[0, 2], [1]]},
            "cyclic dependency: operation 'one' needs operation 'two' needs operation 'one'",
        ),
    ),
)
def test_an_invalid_graph_is_refused(changes: dict[str, Any], message: str) -> None:
    right: dict[str, Any] = {
        "time": [1, 1],
        "size": [1, 1, 1],
        "reads": [[0], [1]],
        "writes": [[1], [2]],
        "present": [0],
        "op_names": ["one", "two"],
        "data_names": ["a", "b", "c"],
    }
    taskgraph(**right)
    with pytest.raises(ValueError, match=re.escape(message)):
        if "writes" in changes and changes["writes"] == [[1], [1]]:
            changes = {**changes, "reads": [[0], [0]]}
        taskgraph(**{**right, **changes})


def test_a_builder_refuses_duplicate_and_unknown_data() -> None:
    build = Builder()
    build.datum("a", 1)
    with pytest.raises(ValueError, match="there is a datum 'a' already"):
        build.datum("a", 1)
    build.op("f", 1.0, reads=["b"])
    with pytest.raises(ValueError, match="operation 'f' touches 'b', which has no size"):
        build.graph()


def test_a_memory_limit_below_one_working_set_is_refused() -> None:
    graph = step()
    graph.check_limit(280)
    with pytest.raises(ValueError, match="memory_limit is 279 B, but operation 'back' alone"):
        graph.check_limit(279)


@pytest.mark.parametrize(
    ("order", "message"),
    (
        ([0, 1, 2], "each of 4 operations once"),
        ([0, 1, 2, 4], "numbers from 0 to 3"),
        ([0, 1, 1, 3], "has operation 'dense' 2 times"),
        ([1, 0, 2, 3], "has operation 'dense' before operation 'load'"),
    ),
)
def test_an_invalid_order_is_refused(order: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        step().check_order(order)


def test_ragged_arrays() -> None:
    lists = RaggedArray.pack([[1, 2], [], [3]])
    assert len(lists) == 3
    assert lists.owners().tolist() == [0, 0, 2]
    taken = lists.take(np.array([2, 1, 0]))
    assert [taken[one].tolist() for one in range(3)] == [[3], [], [1, 2]]
    assert len(RaggedArray.pack([])) == 0


def test_an_empty_graph() -> None:
    graph = taskgraph([], [], [], [])
    assert len(graph) == 0
    graph.check_limit(0)
    assert graph.check_order([]).tolist() == []
