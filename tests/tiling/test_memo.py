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
from dasktile.tiling import MemoryLimitError, Settings, TilingPlan, memo, tile
from dasktile.tiling.memo import tile_again
from dasktile.tiling.planner import Shared
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


def test_searches_that_share_their_tables_make_the_same_plans() -> None:
    usual = OPTIONS["settings"]
    several: list[dict[str, Any]] = [
        {},
        {"settings": usual.for_less_memory(), "force": True},
        {"keep": "the input's own chunks"},
        {"settings": replace(usual, max_states=8), "workers": 6},
        {"memory_limit": 10**6},
    ]

    @examples(60)
    @given(expressions())
    def every(e: Expression) -> None:
        program = capture([value.lazy for value in outputs(e)]).program
        shared: Shared = {}
        for other in several:
            options = {**OPTIONS, **other}
            assert tile(program, shared=shared, **options) == tile(program, **options)
        assert shared

    every()


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


def test_errors_name_arrays() -> None:
    x = da.ones((400, 400), chunks=100)
    y = x @ x
    with pytest.raises(MemoryLimitError, match=x.name):
        tile_again(capture([y]).program, **OPTIONS | {"memory_limit": 1})
