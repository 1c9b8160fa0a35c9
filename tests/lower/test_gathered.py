"""The client takes the blocks of results out of the tuples that bundles return."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from unittest import mock

import dask
import dask.array as da
import numpy as np
import pytest
from dask.core import flatten
from hypothesis import given

import dasktile
from dasktile import pipeline, planning
from dasktile.api import optimize_to_gather
from dasktile.lower.bundle_tasks import is_pick, pick, run_bundle
from dasktile.lower.gathered import Part, parts_of
from dasktile.lower.settings import LowerSettings
from dasktile.lower.writer import lower
from dasktile.planning import Candidate
from dasktile.prediction import LITTLE_MEMORY
from dasktile.runtime.results import in_tuples
from dasktile.schedule.peaks import Speeds, simulate
from tests.expressions import Expression, expressions, outputs
from tests.lower.test_bundle import EAGER, MANY, tasks_of
from tests.support import check_graph, plan_for_workers
from tests.test_same_answers import check, examples, many
from tests.traffic import traffic


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Plan for workers of a cluster, on which tasks run where they are planned."""

    def plan_for(count: int, threads: int = 1, settings: LowerSettings | None = None) -> None:
        plan_for_workers(monkeypatch, count, threads)
        if settings is not None:
            monkeypatch.setattr(planning, "lower", partial(lower, settings=settings))

    with dask.config.set({"dasktile.raise-errors": True}):
        yield plan_for


def centred(block: np.ndarray) -> np.ndarray:
    return block - block.mean()


def noise(seed: int = 0) -> da.Array:
    return da.random.default_rng(seed).random((1000, 1000), chunks=50)


def keys_of(array: da.Array) -> list[Any]:
    return list(flatten([array.__dask_keys__()]))


def parts_in(arrays: Sequence[da.Array]) -> dict[Any, Part]:
    return parts_of((array.dask, keys_of(array)) for array in arrays)


def tasks_asked(arrays: Sequence[da.Array]) -> dict[Any, Any]:
    """The tasks that Dask runs where the client takes blocks out of tuples."""
    parts = parts_in(arrays)
    return tasks_of(*(in_tuples(array, parts) for array in arrays))


def blocks_taken(arrays: Sequence[da.Array]) -> dict[Any, Any]:
    """The blocks of arrays, computed as the client asks for them."""
    parts = parts_in(arrays)
    graph = tasks_asked(arrays)
    keys = [key for array in arrays for key in keys_of(array)]
    places = [parts.get(key, Part(key)) for key in keys]
    values = dask.get(graph, [place.key for place in places])
    blocks = (pick(value, place.path) for value, place in zip(values, places, strict=True))
    return dict(zip(keys, blocks, strict=True))


WORKLOADS = {
    "a user's function": lambda: [noise().map_blocks(centred)],
    "halos": lambda: [noise().map_overlap(centred, depth=2, boundary="reflect")],
    "windows": lambda: [da.lib.stride_tricks.sliding_window_view(noise(), 3, axis=0).mean(axis=-1)],
    "anomalies": lambda: [noise().map_blocks(centred) - noise().mean(0)],
    "several results": lambda: [noise().map_blocks(centred), noise(), noise().mean(0)],
}


def _peak(plan: Candidate) -> int:
    """Bytes on the worker that holds most, with those of tasks that run."""
    assert plan.lowered is not None
    tasks, _ = plan.lowered.tasks(by_place=True)
    return max(simulate(tasks, 4, 1, Speeds()).peaks)


@pytest.mark.parametrize("name", WORKLOADS)
def test_blocks_of_results_are_no_tasks(
    name: str, workers: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers(4)
    arrays = WORKLOADS[name]()
    chosen: list[Candidate] = []
    monkeypatch.setattr(pipeline, "remember", lambda request, plan: chosen.append(plan))
    usual = dasktile.optimize(*arrays)
    usual = usual if isinstance(usual, tuple) else (usual,)
    gathered = optimize_to_gather(*arrays)
    for array in gathered:
        check_graph(array.dask)
    tasks, before = tasks_asked(gathered), tasks_of(*usual)
    # where results have many blocks of their own, these are by far the most tasks
    most = 0.3 if sum(array.npartitions for array in usual) >= 400 else 5.0
    assert len(tasks) <= most * len(before)
    assert sum(is_pick(task) for task in tasks.values()) <= 0.25 * len(keys_of(gathered[0]))
    # no worker receives more, or has more in memory than is little
    parts = parts_in(gathered)
    received, lost = traffic([in_tuples(array, parts) for array in gathered], 4)
    assert sum(received.values()) <= sum(traffic(list(usual), 4)[0].values())
    assert not lost
    old, new = (_peak(plan) for plan in chosen) if len(chosen) == 2 else (0, _peak(chosen[-1]))
    assert new <= max(old, LITTLE_MEMORY)
    # three bundles for each thread: a progress bar moves
    assert sum(getattr(task, "func", None) is run_bundle for task in tasks.values()) >= 12
    # the blocks are tasks, too, if somebody asks for them
    results = dask.compute(*gathered, scheduler="sync")
    expected = dask.compute(*arrays, scheduler="sync")
    for taken, computed, right in zip(_joined(gathered), results, expected, strict=True):
        np.testing.assert_allclose(taken, right)
        np.testing.assert_array_equal(computed, taken)


# Random expressions -----------------------------------------------------------------


def _joined(arrays: Sequence[da.Array]) -> list[np.ndarray]:
    """Arrays whose blocks the client takes out of tuples."""
    blocks = blocks_taken(arrays)
    joined = []
    for array in arrays:
        own = {key: blocks[key] for key in keys_of(array)}
        whole = da.Array(own, array.name, array.chunks, array.dtype)
        joined.append(whole.compute(scheduler="sync"))
    return joined


def _in_tuples(e: Expression, plan_for: Callable[..., None]) -> bool:
    """Check the values of an expression; returns whether the client takes blocks out of tuples."""
    plan_for(e.pick([1, 2, 3, 4, 4, 8]), e.pick([1, 1, 2]), MANY)
    expected = outputs(e)
    arrays = [value.lazy for value in expected]
    if e.chance(60):
        # blocks that may not be cut otherwise
        arrays = [array if e.chance(30) else array.map_blocks(_same) for array in arrays]
    most, optimized_before = e.pick([2, 3, 7, 16]), e.chance(20)
    taken = False

    def results() -> Sequence[np.ndarray]:
        nonlocal taken
        # results of optimize are planned again, however few blocks they have
        again = mock.patch.object(pipeline, "MOST_ALONE", 0)
        with dask.config.set({**EAGER, "dasktile.bundle": most}), again:
            given = dasktile.optimize(*arrays) if optimized_before else arrays
            given = [given] if isinstance(given, da.Array) else given
            new = optimize_to_gather(*given)
        for array in new:
            array.dask.validate()
        parts = parts_in(new)
        taken = bool(parts)
        assert len(tasks_asked(new)) <= len(tasks_of(*new))
        # keys that somebody holds are still blocks
        joined = _joined(new)
        for one, other in zip(dask.compute(*new, scheduler="sync"), joined, strict=True):
            np.testing.assert_array_equal(one, other)
        return joined

    check(e, expected, results)
    return taken


def _same(block: Any) -> Any:
    return block


def test_random_expressions_have_the_same_values_in_tuples(workers: Callable[..., None]) -> None:
    taken = []

    @examples(120)
    @given(expressions())
    def every(e: Expression) -> None:
        taken.append(_in_tuples(e, workers))

    every()
    assert sum(taken) > 4


@pytest.mark.slow
def test_many_random_expressions_have_the_same_values_in_tuples(
    workers: Callable[..., None],
) -> None:
    @many(2000)
    @given(expressions(12))
    def every(e: Expression) -> None:
        _in_tuples(e, workers)

    every()
