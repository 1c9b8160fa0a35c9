"""Memory limits that make too many tasks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.utils import parse_bytes

import dasktile
from dasktile import api, planning, refusal, small_graphs
from dasktile.lower import writer
from dasktile.tiling import MemoryLimitError, TooManyTasksError
from tests.support import opaque, plan_for_workers

A = np.random.default_rng(0).random((400, 400))


def gram(x: da.Array | None = None) -> da.Array:
    x = da.from_array(A, chunks=100) if x is None else x
    return x.T @ x


def chain() -> da.Array:
    x = da.ones((400, 400), chunks=100)
    for _ in range(10):
        x = x * 2 + 1
    return x


def suggested(text: str) -> tuple[str, int]:
    """The limit that a message names, and its tasks."""
    match = re.search(r'such as "([^"]+)"\s+with\s+([\d,]+)\s+tasks', text)
    assert match is not None, text
    return match[1], int(match[2].replace(",", ""))


@pytest.fixture
def unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a graph is written."""

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("a graph was written")

    monkeypatch.setattr(planning, "lower", fail)


@pytest.mark.usefixtures("unwritten")
@pytest.mark.parametrize(
    ("limit", "shown", "tasks"),
    [
        ("1 kB", "1000 B", "at least 241,797"),
        ("10 kB", "10 kB (9.8 KiB)", "at least 7,909"),
        ("1 KiB", "1 KiB", "at least 233,390"),
    ],
)
def test_optimize_refuses_a_limit_that_makes_too_many_tasks(
    limit: str, shown: str, tasks: str
) -> None:
    with pytest.raises(TooManyTasksError) as caught:
        dasktile.optimize(gram(), workers=4, memory_limit=limit)
    assert isinstance(caught.value, MemoryLimitError) and isinstance(caught.value, ValueError)
    text = str(caught.value)
    assert f"memory_limit of {shown} makes {tasks} tasks instead of 128" in text
    assert "at most 3,000 are allowed" in text
    assert "dasktile.tiling.many-tasks" in text


@pytest.mark.parametrize("limit", ["1 kB", "10 kB"])
def test_the_limit_in_the_message_is_accepted(limit: str) -> None:
    with pytest.raises(TooManyTasksError) as caught:
        dasktile.optimize(gram(), workers=4, memory_limit=limit)
    larger, tasks = suggested(str(caught.value))
    assert tasks < 3_000
    assert parse_bytes(larger) < 100_000
    assert dasktile.explain(gram(), workers=4, memory_limit=larger).tasks_after == tasks
    tiled = dasktile.optimize(gram(), workers=4, memory_limit=larger)
    assert tiled.numblocks > (4, 4)


@pytest.mark.usefixtures("unwritten")
@pytest.mark.parametrize("limit", ["1 kB", "10 kB"])
def test_explain_says_so_and_raises_nothing(limit: str) -> None:
    explanation = dasktile.explain(gram(), workers=4, memory_limit=limit)
    assert explanation.refused and not explanation.changed
    assert explanation.tasks_after == explanation.tasks_before == 128
    with pytest.raises(TooManyTasksError) as caught:
        dasktile.optimize(gram(), workers=4, memory_limit=limit)
    assert explanation.verdict == str(caught.value)
    first = str(explanation).split("\n\n")[0]
    assert first.startswith("4 workers: optimize raises a TooManyTasksError: memory_limit of")
    assert suggested(" ".join(first.split())) == suggested(explanation.verdict)
    assert explanation.to_dict()["refused"] is True


def test_a_plan_of_few_tasks_is_never_refused() -> None:
    tiled = dasktile.optimize(gram(), workers=4, memory_limit="100 kB")
    assert 100 < len(tiled.__dask_graph__()) < 3_000
    explanation = dasktile.explain(gram(), workers=4, memory_limit="100 kB")
    assert explanation.changed and not explanation.refused
    # 50 for each of the input's
    one = da.fft.fft(da.ones((400, 400), chunks=(100, 400)), axis=1)
    few = dasktile.explain(one, workers=4, memory_limit="10 kB")
    assert few.changed and few.tasks_after > 10 * few.tasks_before


@pytest.mark.usefixtures("unwritten")
def test_plans_are_counted_where_the_bound_is_low() -> None:
    """Of a chain every operation has few tasks, and all of them many."""
    with pytest.raises(TooManyTasksError, match="makes 8,192 tasks instead of 32") as caught:
        dasktile.optimize(chain(), workers=4, memory_limit="1 kB")
    larger, tasks = suggested(str(caught.value))
    assert parse_bytes(larger) < 10_000 and tasks < 3_000


def test_chains_in_usual_tiles_are_accepted() -> None:
    for limit in (10_000, 100_000):
        tiled = dasktile.optimize(chain(), workers=4, memory_limit=limit)
        assert 2 * 8 * math.prod(tiled.chunksize) <= limit


def test_files(tmp_path: Any) -> None:
    zarr = pytest.importorskip("zarr")
    path = str(tmp_path / "x.zarr")
    stored = zarr.open(path, mode="w", shape=A.shape, chunks=(100, 100), dtype=A.dtype)
    stored[:] = A
    x = da.from_zarr(path)
    with pytest.raises(TooManyTasksError, match="at least 240,517 tasks instead of 128"):
        dasktile.optimize(gram(x), workers=4, memory_limit="1 kB")
    y = dasktile.optimize(gram(x), workers=4, memory_limit="100 kB")
    np.testing.assert_allclose(y.compute(scheduler="sync"), A.T @ A)


def test_the_setting_allows_more() -> None:
    with dask.config.set({"dasktile.tiling.many-tasks": 150}):
        explanation = dasktile.explain(gram(), workers=4, memory_limit="10 kB")
        assert explanation.changed and explanation.tasks_after == 18_432
        assert "as it runs: not predicted, as the graph has more than 10,000 tasks" in str(
            explanation
        )
        tiled = dasktile.optimize(gram(), workers=4, memory_limit="10 kB")
    assert len(tiled.__dask_graph__()) == 11_264


def test_a_limit_in_the_configuration_is_refused_alike() -> None:
    with dask.config.set({"dasktile.memory-limit": "1 kB"}):
        with pytest.raises(TooManyTasksError, match="memory_limit of 1000 B"):
            dasktile.optimize(gram(), workers=4)
        assert dasktile.explain(gram(), workers=4).refused
        with pytest.raises(TooManyTasksError):
            dasktile.compute(gram(), workers=4)


@pytest.mark.parametrize("task_bytes", [1, 1000, 800_000])
def test_a_limit_holds_whatever_a_task_costs(task_bytes: int) -> None:
    x = da.from_array(np.ones((400, 600)), chunks=(90, 77))
    config = {"dasktile.cost.task-bytes": task_bytes, "dasktile.raise-errors": True}
    with dask.config.set(config):
        told = dasktile.explain(x @ x.T, memory_limit=250_000, workers=4)
    steps = max(told.nodes[0].chunks_after[1])
    assert told.changed
    for node in told.nodes:
        assert 8 * np.prod([max(sizes) for sizes in node.chunks_after]) <= 250_000
    product = [max(sizes) for sizes in told.nodes[-1].chunks_after]
    assert 8 * (product[0] * product[1] + steps * sum(product)) <= 250_000


def test_a_limit_holds_for_very_large_arrays() -> None:
    x, y = (da.random.random((100_000, 100_000), chunks=5000) for _ in range(2))
    for task_bytes in (1, 800_000):
        config = {"dasktile.cost.task-bytes": task_bytes, "dasktile.raise-errors": True}
        with dask.config.set(config):
            told = dasktile.explain(x @ y, memory_limit=300_000_000, workers=16)
        assert told.nodes[-1].chunks_after[0][0] < 5000
    x, y = (da.random.random((400_000, 400_000), chunks=20_000) for _ in range(2))
    with dask.config.set({"dasktile.raise-errors": True}):
        assert dasktile.explain(x @ y, memory_limit=4_800_000_000, workers=16).refused


def test_a_limit_of_the_workers_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_for_workers(monkeypatch, memory_limit=10_000)
    assert not dasktile.explain(gram()).refused
    dasktile.optimize(gram())


@pytest.mark.parametrize("limit", [1_000, 10_000])
def test_on_workers_with_bundles(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    plan_for_workers(monkeypatch, memory_limit=limit, limit_given=True, room=10**8)
    written = []
    lower = writer.lower
    monkeypatch.setattr(planning, "lower", lambda *a, **k: written.append(0) or lower(*a, **k))
    with pytest.raises(TooManyTasksError):
        dasktile.optimize(gram())
    assert dasktile.explain(gram()).refused
    assert not written


def test_a_plan_with_small_tiles_is_not_tried_if_it_has_too_many_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan_for_workers(monkeypatch, memory_limit=10_000, limit_given=True)
    found = []

    def recorded(request: Any, rebuilds: Any) -> None:
        captured, settings = planning.capture(request, {}), request.machine.settings()
        found.append(planning.candidate(request, captured, settings, force=True))

    monkeypatch.setattr(api, "_rebuilt", recorded)
    dasktile.optimize(gram())
    assert found == [None]


@pytest.mark.usefixtures("unwritten")
def test_the_hook_leaves_the_graph_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    # its message is not shown, so that no other limit is searched
    monkeypatch.setattr(refusal, "_larger_limit", None)
    y = gram()
    with dask.config.set(
        {
            "array_optimize": dasktile.array_optimize,
            "dasktile.memory-limit": "1 kB",
            "dasktile.workers": 4,
            "dasktile.raise-errors": True,
        }
    ):
        (optimized,) = dask.optimize(y)
        np.testing.assert_allclose(y.compute(scheduler="sync"), A.T @ A)
    assert optimized.chunks == y.chunks
    assert len(optimized.__dask_graph__()) <= len(y.__dask_graph__())


def test_a_defect_in_the_search_for_a_limit_hides_no_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> str:
        raise RuntimeError

    monkeypatch.setattr(refusal, "_larger_limit", fail)
    with (
        dask.config.set({"dasktile.raise-errors": False}),
        pytest.raises(TooManyTasksError, match="Give a larger limit, or set"),
    ):
        dasktile.optimize(gram(), workers=4, memory_limit="1 kB")


def test_chunks_that_cannot_be_cut_are_unchanged() -> None:
    x = da.ones((400, 400), chunks=100).map_blocks(opaque, dtype=float) + 1
    assert dasktile.optimize(x, workers=4, memory_limit="1 kB") is x


def test_no_tiles_fit_is_another_error() -> None:
    for limit in (1, 20):
        with pytest.raises(MemoryLimitError, match="is below one tile") as caught:
            dasktile.optimize(gram(), workers=4, memory_limit=limit)
        assert not isinstance(caught.value, TooManyTasksError)
        # the operation and its shape, no keys
        assert re.search(r": \w+ of shape \(400, 400\) needs \d+ B for", str(caught.value))


def test_graphs_of_which_few_tasks_are_needed_are_not_planned() -> None:
    x = da.ones((40_000, 40), chunks=(10, 40)) + 1
    part = x[:10]
    with dask.config.set({"dasktile.tiling.many-tasks": 10}):
        explanation = dasktile.explain(part, workers=4, memory_limit=100)
    assert not explanation.refused and explanation.verdict == small_graphs.QUICK
    dasktile.optimize(part, workers=4, memory_limit=100)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(7, (7, "7 B")), (990, (990, "990 B")), (1_000, (1024, "1 KiB")), (12_345, (13_312, "13 KiB")),
     (1_020_000, (2**20, "1 MiB")), (9e6, (9_017_753, "8.6 MiB")),
     (1.5e9, (1_503_238_553, "1.4 GiB")),
     (123 * 2**20, (130 * 2**20, "130 MiB"))],
)  # fmt: skip
def test_limits_are_rounded_up(limit: float, expected: tuple[int, str]) -> None:
    assert refusal._rounded_up(limit) == expected
    assert expected[0] >= limit
    assert parse_bytes(expected[1]) == expected[0]


@pytest.mark.parametrize("make", [gram, chain])
def test_many_arrays_of_one_program(make: Callable[[], da.Array], monkeypatch: Any) -> None:
    """For a program whose search may be slow one limit is tried."""
    monkeypatch.setattr(refusal, "STEPS", ())
    tried = []
    plan_request = refusal.plan_request
    monkeypatch.setattr(refusal, "plan_request", lambda *a: tried.append(0) or plan_request(*a))
    arrays = [make() * number for number in range(60)]
    with pytest.raises(TooManyTasksError) as caught:
        dasktile.optimize(*arrays, workers=4, memory_limit="1 kB")
    assert len(tried) == 1
    suggested(str(caught.value))


@pytest.mark.parametrize("limit", [400_000, 1_000_000])
def test_a_limit_holds_on_workers_with_bundles(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    plan_for_workers(monkeypatch, 4, memory_limit=limit, limit_given=True)
    x = da.from_array(np.ones((1200, 1200)), chunks=300)
    product = dasktile.optimize(x @ x)
    largest = max(
        3 * 8 * rows * columns for rows in product.chunks[0] for columns in product.chunks[1]
    )
    assert largest <= limit
