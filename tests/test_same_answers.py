"""Rewritten graphs have the same values, types and names as the originals."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, reject, settings

import dasktile
from dasktile import tiling
from dasktile.capture.highlevel import capture
from dasktile.ir import validate
from dasktile.lower.writer import Lowered, lower
from tests.agreement import EAGER
from tests.expressions import Expression, Value, expressions, grown, outputs
from tests.support import as_array, check_graph, is_exact, output_graphs, random_tiling

#: All methods but the exhaustive one, which is for very small expressions.
METHODS = tuple(name for name in tiling.methods() if name != "exhaustive")

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")

FUSION = (None, False, True)


def examples(count: int, **options: Any) -> Any:
    """Run a test on `count` random expressions, the same in every run."""
    return settings(
        max_examples=count,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        **{"derandomize": True, "database": None, **options},
    )


def many(count: int) -> Any:
    """Run a test on `count` random expressions, different in every run, however long it takes."""
    run = examples(count, derandomize=False, print_blob=True)
    return lambda test: pytest.mark.timeout(0)(run(test))


def check(
    e: Expression, expected: Sequence[Value], computation: Callable[[], Sequence[Any]]
) -> None:
    """Compare computed values with those of NumPy.

    Raises
    ------
    AssertionError, or the exception of the computation
        Unless dask without dasktile fails, too.
    """
    note(str(e))
    try:
        for value, array in zip(expected, computation(), strict=True):
            value.check(array)
    except Exception:
        if not dask_is_right(expected):
            reject()
        raise


def dask_is_right(expected: Sequence[Value]) -> bool:
    """Whether dask without dasktile is right; it fails for some empty chunks."""
    arrays = [value.lazy for value in expected]
    try:
        for optimized in (True, False):
            results = dask.compute(*arrays, scheduler="sync", optimize_graph=optimized)
            for value, array in zip(expected, results, strict=True):
                value.check(array)
    except Exception:
        return False
    return True


def compute(e: Expression, arrays: Sequence[da.Array]) -> Sequence[np.ndarray]:
    """Compute arrays together, with one of dask's settings of fusion or without optimisation."""
    with dask.config.set({"optimization.fuse.active": e.pick(FUSION)}):
        return dask.compute(*arrays, scheduler="sync", optimize_graph=e.chance(70))


def retiled(e: Expression, arrays: Sequence[da.Array]) -> list[da.Array]:
    """The same arrays in random tiles."""
    captured = capture(arrays)
    validate(captured.program)
    tiled = random_tiling(captured.program, e.rng)
    chunks = [array.chunks if e.chance(30) else None for array in arrays]
    names = [
        array.name if kept is not None and e.chance(50) else None
        for array, kept in zip(arrays, chunks, strict=True)
    ]
    lowered = lower(captured, tiled, chunks, names)
    second = lower(capture(arrays), tiled, chunks, names)
    assert second.names == lowered.names
    assert list(second.graph.layers) == list(lowered.graph.layers)
    for array, tiles, kept, name in zip(arrays, lowered.chunks, chunks, names, strict=True):
        assert tuple(map(sum, tiles)) == array.shape
        assert kept is None or kept == tiles
        assert name is None or name in lowered.names
    check_graph(lowered.graph)
    return rebuilt(lowered, arrays)


def rebuilt(lowered: Lowered, arrays: Sequence[da.Array]) -> list[da.Array]:
    return [
        as_array(graph, name, chunks, array.dtype)
        for graph, name, chunks, array in zip(
            output_graphs(lowered), lowered.names, lowered.chunks, arrays, strict=True
        )
    ]


def in_any_tiles(e: Expression) -> None:
    expected = outputs(e)
    arrays: Sequence[da.Array] = [value.lazy for value in expected]
    if e.chance(10):
        # graphs that dask has fused
        arrays = dask.optimize(*arrays)

    def results() -> Sequence[np.ndarray]:
        new = retiled(e, arrays)
        if e.chance(20):
            new = retiled(e, new)
        return compute(e, new)

    check(e, expected, results)


def in_chosen_tiles(e: Expression) -> None:
    expected = outputs(e)
    if e.chance(10):
        expected = [*expected, e.pick(expected)]
    arrays = [value.lazy for value in expected]
    options = {"method": e.pick(METHODS), "keep_chunks": e.chance(30)}

    def results() -> Sequence[np.ndarray]:
        with dask.config.set(EAGER):
            new = _tuple(dasktile.optimize(*arrays, **options))
            second = _tuple(dasktile.optimize(*arrays, **options))
            if e.chance(20):
                new = _tuple(dasktile.optimize(*new))
        for old, array, repeated in zip(arrays, new, second, strict=True):
            if is_exact(old.dask):
                check_graph(array.dask)
            assert array.dtype == old.dtype
            assert array.shape == old.shape
            assert type(array._meta) is type(old._meta)
            assert array._meta.dtype == old._meta.dtype
            assert array._meta.ndim == old._meta.ndim
            assert not options["keep_chunks"] or repeated.chunks == old.chunks
        return compute(e, new)

    check(e, expected, results)


def _tuple(result: Any) -> tuple[da.Array, ...]:
    return result if isinstance(result, tuple) else (result,)


def when_computed(e: Expression) -> None:
    expected = outputs(e)

    def results() -> Sequence[np.ndarray]:
        with dask.config.set({**EAGER, "array_optimize": dasktile.array_optimize}):
            if e.chance(50):
                return dask.compute(*(value.lazy for value in expected), scheduler="sync")
            persisted = dask.persist(*(value.lazy for value in expected), scheduler="sync")
            for array, value in zip(persisted, expected, strict=True):
                assert array.chunks == value.lazy.chunks
                assert array.name == value.lazy.name
        return dask.compute(*persisted, scheduler="sync")

    check(e, expected, results)


def no_harm(e: Expression) -> bool:
    """Check that a plan is no more expensive than the chunks; returns whether it differs."""
    note(str(e))
    program = capture([value.lazy for value in outputs(e)]).program
    method = e.pick(METHODS)
    eager = tiling.Settings(task_bytes=e.pick((1.0, 1e3, 1e6)), min_tile=1)
    plan = tiling.tile(program, workers=e.pick((1, 2, 4, 6)), method=method, settings=eager)
    # replicas are nodes of the plan's own program
    assert len(plan.reasons) == len(plan.program.nodes) >= len(program.nodes)
    assert plan.lower_bound <= plan.after.bytes
    if plan.tiled is None:
        assert plan.after is plan.before
        return False
    if plan.before.balance <= 1.25:
        assert plan.after.bytes <= plan.before.bytes

    def cost(price: tiling.plan.Price) -> float:
        return price.bytes + sum(price.read) + sum(price.tasks) * eager.task_bytes

    # the planner also weighs the time lost by imbalance, and by einsum blocks that do not use BLAS
    slow = any("einsum" in node.op for node in program.nodes)
    even = plan.after.balance >= plan.before.balance
    assert slow or not even or cost(plan.after) < cost(plan.before)
    return True


@examples(200)
@given(expressions())
def test_any_tiles_give_the_same_answers(e: Expression) -> None:
    in_any_tiles(e)


@examples(150)
@given(expressions())
def test_chosen_tiles_give_the_same_answers(e: Expression) -> None:
    in_chosen_tiles(e)


@examples(150)
@given(expressions())
def test_tiling_when_computing_gives_the_same_answers(e: Expression) -> None:
    when_computed(e)


def test_a_plan_does_no_harm() -> None:
    retiled = 0

    @examples(150)
    @given(expressions())
    def run(e: Expression) -> None:
        nonlocal retiled
        retiled += no_harm(e)

    run()
    assert retiled >= 20


@pytest.mark.slow
@many(12_000)
@given(expressions(12))
def test_any_tiles_of_many_expressions_give_the_same_answers(e: Expression) -> None:
    in_any_tiles(e)


@pytest.mark.slow
@many(5_000)
@given(expressions(12))
def test_chosen_tiles_of_many_expressions_give_the_same_answers(e: Expression) -> None:
    in_chosen_tiles(e)


@pytest.mark.slow
@many(2_000)
@given(expressions(12))
def test_tiling_many_expressions_when_computing_gives_the_same_answers(e: Expression) -> None:
    when_computed(e)


@pytest.mark.slow
@many(1_000)
@given(expressions(12))
def test_many_plans_do_no_harm(e: Expression) -> None:
    no_harm(e)


def test_names_do_not_depend_on_the_process() -> None:
    """Names do not depend on hash seeds either, if dask's own names do not."""
    outputs_of_runs = []
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.test_same_answers"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parent.parent,
            capture_output=True,
            text=True,
            check=True,
        )
        outputs_of_runs.append(json.loads(run.stdout))
    comparable = [
        (first, second)
        for first, second in zip(*outputs_of_runs, strict=True)
        if first["input"] == second["input"]
    ]
    assert len(comparable) > 20
    for first, second in comparable:
        assert first == second


def _names(seed: int) -> dict[str, Any]:
    e = grown(random.Random(seed))
    arrays = [value.lazy for value in outputs(e)]
    random_tiles = retiled(e, arrays)
    with dask.config.set(EAGER):
        chosen = _tuple(dasktile.optimize(*arrays))
    return {
        "input": [sorted(array.dask.layers) for array in arrays],
        "any tiles": [sorted(array.dask.layers) for array in random_tiles],
        "chosen tiles": [[array.name, array.chunks] for array in chosen],
    }


if __name__ == "__main__":
    print(json.dumps([_names(seed) for seed in range(30)]))
