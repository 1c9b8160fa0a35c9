"""Plans of programs that were tiled before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given

import dasktile
from dasktile.capture.highlevel import capture
from dasktile.ir import Program
from dasktile.tiling import MemoryLimitError, Settings, TilingPlan, memo, mesh_planner, tile
from dasktile.tiling.cost import Costs
from dasktile.tiling.memo import tile_again
from dasktile.tiling.planner import SearchTables
from dasktile.tiling.settings import CandidateLimits, CostModel
from tests.expressions import Expression, expressions, outputs
from tests.test_same_answers import examples

OPTIONS: dict[str, Any] = {
    "workers": 4,
    "threads": 1,
    "memory_limit": None,
    "method": "auto",
    "settings": Settings(task_bytes=1, min_tile=1),
    "placed": True,
    "bundled": False,
    "force": False,
}


def renamed(program: Program) -> Program:
    nodes = tuple(replace(node, name=f"other-{node.name}") for node in program.nodes)
    return Program(nodes, program.outputs)


def test_a_plan_is_the_same_as_without_the_memo() -> None:
    @examples(60)
    @given(expressions())
    def every(e: Expression) -> None:
        program = capture([value.lazy for value in outputs(e)]).program
        for one in (program, renamed(program)):
            assert tile_again(one, **OPTIONS) == tile(one, **OPTIONS)

    every()


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"max_states": 4}, {}),
        ({"candidates": CandidateLimits(balance=3.0, scatter_axes=0)}, {}),
        ({"model": CostModel(byte_work=500.0)}, {}),
        ({"model": CostModel(exact_union=1)}, {}),
        ({"model": CostModel(kept_to_be_read=0.9)}, {}),
        ({"width_budget": 10}, {}),
        ({"task_bytes": 10**6}, {}),
        ({}, {"memory_limit": 3000}),
        ({}, {"memory_limit": 3000, "room": 5000}),
        ({}, {"workers": 6}),
        ({}, {"method": "spartan"}),
        ({}, {"keep": "the input's own chunks"}),
    ],
)
def test_searches_that_share_their_tables_make_the_same_plans(
    changes: dict[str, Any], options: dict[str, Any]
) -> None:
    other = {**OPTIONS, **options, "settings": replace(OPTIONS["settings"], **changes)}

    @examples(25)
    @given(expressions())
    def every(e: Expression) -> None:
        program = capture([value.lazy for value in outputs(e)]).program
        tables = SearchTables()
        tile(program, tables=tables, **OPTIONS)
        assert plan_of(program, tables=tables, **other) == plan_of(program, **other)

    every()


def plan_of(program: Program, **options: Any) -> TilingPlan | str:
    try:
        return tile(program, **options)
    except MemoryLimitError as error:
        return str(error)


def test_tables_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(space: Any) -> Costs:
        made.append(space)
        return Costs(space)

    monkeypatch.setattr(mesh_planner, "Costs", counted)
    x = da.ones((400, 400), chunks=(50, 400))
    program = capture([x.T @ x]).program
    tables = SearchTables()
    tile(program, tables=tables, **OPTIONS)
    first = len(made)
    small = {**OPTIONS, "settings": OPTIONS["settings"].for_less_memory()[0]}
    tile(program, tables=tables, **small)
    assert len(made) == first > 0
    tile(program, tables=tables, **{**OPTIONS, "workers": 6})
    assert len(made) > first


def test_a_program_is_tiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*args: Any, **options: Any) -> TilingPlan:
        calls.append(args)
        return tile(*args, **options)

    monkeypatch.setattr(memo, "tile", counted)
    for number in range(3):
        x = da.random.default_rng(number).random((400, 400), chunks=100)
        dasktile.optimize(x.T @ x + number, workers=4)
    assert len(calls) == 1
    dasktile.optimize(x.T @ x + 1, workers=5)
    dasktile.optimize(x.T @ x + 1, workers=4, memory_limit="10 MB")
    assert len(calls) == 3


def test_names_of_persisted_arrays_are_those_of_the_program() -> None:
    for _ in range(2):
        x = da.from_array(np.random.default_rng().random((400, 400)), chunks=100)
        kept = (x + 1).persist(scheduler="sync")
        y = kept - kept.mean(axis=0)
        program = capture([y]).program
        homes = tuple((number % 4,) for number in range(16))
        nodes = tuple(
            replace(node, homes=homes) if node.resident else node for node in program.nodes
        )
        program = Program(nodes, program.outputs)
        plan = tile_again(program, **OPTIONS)
        assert plan == tile(program, **OPTIONS)
        assert kept.name in repr(plan.tiled)


def test_errors_name_operations_and_shapes() -> None:
    x = da.ones((400, 400), chunks=100)
    y = x @ x
    with pytest.raises(MemoryLimitError, match=r"ones\w* of shape \(400, 400\)"):
        tile_again(capture([y]).program, **OPTIONS | {"memory_limit": 1})
