"""Graphs that Dask runs in less time than a plan takes have none, and others have one."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

import dask.array as da
import numpy as np
import pytest
from dask.highlevelgraph import HighLevelGraph

import dasktile
from dasktile import api, choice, pipeline, small_graphs
from dasktile._compat.dask import Task, TaskRef
from dasktile.capture.highlevel import capture
from dasktile.cluster.target import Machine
from dasktile.tiling.objective import seconds_alone
from dasktile.tiling.settings import Settings
from tests.expressions import grown, outputs


def cluster(**known: Any) -> Machine:
    """Four workers on which tasks run where a plan places them."""
    return Machine(4, order=tuple("0123"), who_has=lambda keys: {}, room=2**30, **known)


def chosen(array: da.Array, machine: Machine) -> list[Any]:
    """The plans that are chosen for an array; None where Dask's own graph is kept at once."""
    plans = []

    def spy(*args: Any) -> Any:
        plans.append(choice.chosen_plan(*args))
        return plans[-1]

    with (
        mock.patch.object(api, "machine", lambda *_: machine),
        mock.patch.object(pipeline, "chosen_plan", spy),
    ):
        dasktile.optimize(array)
    return plans


def noise(shape: Any, chunks: Any) -> da.Array:
    return da.random.default_rng(0).random(shape, chunks=chunks)


@pytest.mark.parametrize("equation", ["i,j,k->", "i,j->", "i,j->ij"])
def test_one_task_with_many_operations_is_worth_a_plan(equation: str) -> None:
    operands = equation.partition("->")[0].count(",") + 1
    side = 1500 if operands > 2 else 20_000
    arrays = [noise(side, -1) for _ in range(operands)]
    [plan] = chosen(da.einsum(equation, *arrays), cluster())
    assert plan is not None


def test_a_small_graph_is_not_captured() -> None:
    array = (noise((1200, 1200), 400) + 1).sum(axis=0)
    with mock.patch.object(choice, "capture", lambda *_: pytest.fail("it is captured")):
        assert chosen(array, cluster()) == [None]


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")
def test_functions_on_few_workers_take_no_longer_than_is_assumed() -> None:
    seen, settings = 0, Settings()
    for seed in range(60):
        arrays = [value.lazy for value in outputs(grown(random.Random(seed)))]
        graph = HighLevelGraph.merge(*(array.__dask_graph__() for array in arrays))
        for workers in (2, 4, 16):
            most = small_graphs._most_alone(graph, workers, settings)
            if np.isfinite(most):
                seen += 1
                assert seconds_alone(capture(arrays).program, workers, settings) <= most
    assert seen > 30


def part_of(partition: Any) -> Any:
    return partition


def test_blocks_that_are_made_of_results_on_workers_have_a_plan() -> None:
    """As those of a dataframe that is persisted: the bytes of its partitions are not simulated."""
    held = {("part", at): (8 * 500 * 250 * 8, [str(at % 4)]) for at in range(8)}
    name = f"blocks-{0:032}"
    layer = {(name, at, 0): Task((name, at, 0), part_of, TaskRef(("part", at))) for at in range(8)}
    graph = HighLevelGraph({name: layer}, {name: set()})
    array = (da.Array(graph, name, ((250,) * 8, (500,)), dtype=float) + 1).sum(axis=0)
    machine = cluster(data=lambda keys: {key: held[key] for key in keys if key in held})
    [plan] = chosen(array, machine)
    assert plan is not None
