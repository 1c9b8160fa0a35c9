"""The tasks of a graph as a simulation of workers sees them, and the peaks that `explain` shows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import Alias, DataNode, Task, TaskRef
from dask.base import collections_to_expr
from dask.highlevelgraph import HighLevelGraph
from dask.optimization import cull
from dask.utils import key_split

import dasktile
from benchmarks.bundles import WORKLOADS
from benchmarks.corpus.simulated import simulated
from dasktile.lower.bundle_tasks import keys_in
from dasktile.lower.placed import TaskMemory, placed
from dasktile.lower.tasks import fuses
from dasktile.schedule.placed_tasks import PlacedTasks
from dasktile.schedule.ranks import rank_of
from tests.support import plan_for_workers
from tests.traffic import traffic


@pytest.fixture
def four_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan for workers of a cluster, on which tasks run where they are planned."""
    plan_for_workers(monkeypatch)


def task(key: Any, *reads: Any) -> Task:
    return Task(key, max, *map(TaskRef, reads))


def test_chains_are_one_task_with_an_alias() -> None:
    tasks = {
        "data": DataNode("data", 1),
        "a-1": task("a-1", "data"),
        "b-1": task("b-1", "a-1"),
        "other": Alias("other", "b-1"),
        "c-1": task("c-1", "other", "data"),
        "d-1": task("d-1", "b-1"),
        "d-2": task("d-2", "d-1"),
    }
    known = {key: TaskMemory(size, 0, 1) for size, key in enumerate(tasks, 1)}
    result = placed(tasks, {"c-1", "d-2", "other"}, known, by_place=True)
    sizes: Sequence[int] = result.sizes
    # a-1 runs within b-1, whose result has an alias; d-1 within d-2, which has the same name
    expected = ["data", "b-1", "b-1", "other", "c-1", "d-2"]
    assert sorted(sizes) == sorted(known[key].size for key in expected)
    at = {size: number for number, size in enumerate(sizes)}
    data, alias, other, c, d = (
        at[known[key].size] for key in ("data", "b-1", "other", "c-1", "d-2")
    )
    chain = sizes.index(known["b-1"].size)
    assert chain < alias
    assert [sorted(result.reads[number]) for number in (data, chain, alias, other, c, d)] == [
        [],
        [data],
        [chain],
        [alias],
        sorted([other, data]),
        [alias],
    ]
    assert set(result.kept) == {other, c, d}
    assert set(result.data) == {data}
    assert set(result.aliases) == {alias, other}
    assert set(result.homes) == {1}
    assert set(placed(tasks, {"c-1"}, known, by_place=False).homes) == {None}


def test_blocks_in_memory_are_in_no_family() -> None:
    tasks = {("x", at): task(("x", at)) for at in range(64)}
    tasks |= {("y", at): task(("y", at)) for at in range(64)}
    tasks |= {
        ("sum", at): task(("sum", at), *[("xy"[at % 2], 4 * (at // 2) + part) for part in range(4)])
        for at in range(32)
    }
    there = {("y", at): 0 for at in range(64)}
    ends = [("sum", at) for at in range(32)]

    def found(**options: Any) -> PlacedTasks:
        return placed(tasks, ends, {}, by_place=False, there=there, **options)

    divided = found(threads=4, is_enabled=True)
    assert [{divided.keys[at][-1][0] for at in family} for family in divided.families] == [
        {"x"}
    ] * 16
    assert not found(threads=4).families and not found().queued


def test_tasks_that_distributed_queues() -> None:
    """Large groups that read few tasks: not only root tasks, and fused ones by their new names."""
    tasks = {("source", 0): task(("source", 0)), ("y", 0): task(("y", 0))}
    for at in range(20):
        tasks["start-" + str(at)] = task("start-" + str(at))
        tasks["first", at] = task(("first", at), ("source", 0))
        tasks["second", at] = task(("second", at), ("first", at))
        tasks["end", at] = task(("end", at), ("second", at), "start-" + str(at))
    ends = [("end", at) for at in range(20)]
    result = placed(tasks, ends, {}, by_place=False, threads=4)
    names = {key_split(result.keys[at][-1]) for at in result.queued}
    assert names == {"second", "start"}
    assert not placed(tasks, ends, {}, by_place=False, threads=10).queued


def blocks(*shape: int) -> da.Array:
    return da.random.default_rng(0).random(shape, chunks=100)


@pytest.mark.parametrize(
    "array",
    [
        blocks(400, 400) + 1,
        (blocks(400, 400) + blocks(400, 400).T).sum(axis=0),
        blocks(400, 400).rechunk((30, 70))[33:120, 5:300] * 2,
        da.block([[blocks(200, 200), blocks(200, 200)]]) @ da.ones((400, 100), chunks=100),
        da.concatenate([blocks(200), blocks(200)[10:]]) - 1,
        da.from_array(np.ones((400, 400)), chunks=100).mean(axis=0),
        da.map_overlap(np.negative, blocks(400, 400), depth=1, boundary="none"),
    ],
)
def test_tasks_are_counted_as_dask_runs_them(array: da.Array, four_workers: None) -> None:
    graph = collections_to_expr([array]).optimize().__dask_graph__()
    assert dasktile.explain(array).run_tasks_before == len(graph)


@pytest.mark.parametrize("name", ["ndvi", "weekly_maxima", "scores", "transposed"])
def test_peaks_are_those_of_the_real_sizes(name: str, four_workers: None) -> None:
    array = WORKLOADS[name](0.3)
    told = dasktile.explain(array)
    new = dasktile.optimize(array)
    for results, graph in ((told.results_before, array), (told.results_after, new)):
        assert results is not None
        real = max(simulated([graph], 4, enabled=True)[1].results)
        assert abs(results - real) <= 0.2 * real


def by_blocks_of_xarray() -> Any:
    """A function of datasets: its tasks return dicts, and read tuples that make variables."""
    xarray = pytest.importorskip("xarray")
    x = xarray.DataArray(blocks(400, 400), dims=("i", "j"), coords={"j": np.arange(400.0)})
    return xarray.map_blocks(lambda block: block - block.mean("i"), x, template=x).data.sum(axis=0)


@pytest.mark.parametrize(
    "result",
    [
        lambda: blocks(400, 400).cumsum(axis=0),
        lambda: da.cumprod(blocks(400, 400), axis=1).sum(axis=0),
        by_blocks_of_xarray,
    ],
)
def test_results_of_scans_and_of_blocks_of_xarray_have_known_sizes(
    result: Callable[[], Any], four_workers: None
) -> None:
    array = result()
    predicted = dasktile.explain(array).results_before
    real = max(simulated([array], 4)[1].results)
    assert predicted == pytest.approx(real, rel=0.2)


def shrinking(steps: int) -> da.Array:
    """An explicit solver without boundaries: the chunks get rims of one element at each step."""
    field = da.random.default_rng(0).random((400, 400), chunks=(100, 100))
    for _ in range(steps):
        inner = field[1:-1, 1:-1]
        sides = field[:-2, 1:-1] + field[2:, 1:-1] + field[1:-1, :-2] + field[1:-1, 2:]
        field = inner + 0.1 * (sides - 4 * inner)
    return field


def padded(steps: int) -> da.Array:
    field = da.random.default_rng(0).random((400, 400), chunks=(200, 200))
    for _ in range(steps):
        wide = da.pad(field, 1, mode="edge")
        field = field + 0.1 * (wide[:-2, 1:-1] + wide[2:, 1:-1] - 2 * field)
    return field


def fixed_ends(steps: int) -> da.Array:
    field = da.random.default_rng(0).random((400, 400), chunks=(50, 400))
    for _ in range(steps):
        inner = field[1:-1] + 0.1 * (field[:-2] + field[2:] - 2 * field[1:-1])
        field = da.concatenate([field[:1], inner, field[-1:]])
    return field


@pytest.mark.parametrize("build", [shrinking, padded, fixed_ends])
@pytest.mark.parametrize("keep_chunks", [True, False])
def test_received_bytes_of_stencils_are_those_of_the_real_sizes(
    build: Callable[[int], da.Array], keep_chunks: bool, four_workers: None
) -> None:
    """Blocks at the rims of other blocks are small: none counts as much as the largest."""
    array = build(2)
    plan = dasktile.explain(array, keep_chunks=keep_chunks)
    new = dasktile.optimize(array, keep_chunks=keep_chunks)
    moved, homeless = traffic([new], 4)
    assert plan.changed and not homeless
    assert plan.received_after == pytest.approx(sum(moved.values()), rel=0.15)


def test_an_unchanged_graph_has_one_peak() -> None:
    told = dasktile.explain(da.ones((4000, 1000), chunks=1000) + 1, workers=4)
    assert not told.changed
    # a block of 8 MB on each worker
    assert told.peak_before == told.peak_after == 8_000_000
    assert "results in memory: at most about 7.6 MiB on one worker" in str(told)


def test_no_peak_without_sizes(four_workers: None) -> None:
    blocks = [
        da.from_delayed(dask.delayed(np.ones)((n, 10)), (np.nan, 10), float) for n in (1, 2, 3)
    ]
    x = da.ones((300, 10), chunks=100)
    told = dasktile.explain(x.T @ x, da.concatenate(blocks).sum())
    assert told.peak_before is None
    assert "on one worker" not in str(told)


@pytest.mark.parametrize("seed", ["0", "1"])
def test_peaks_do_not_depend_on_hashes(seed: str, four_workers: None) -> None:
    code = (
        "import dasktile\n"
        "from dasktile import api\n"
        "from dasktile.cluster.target import Machine\n"
        "from benchmarks.bundles import WORKLOADS\n"
        "api.machine = lambda *_: Machine(4, 1, order=tuple('0123'), who_has=lambda b: {})\n"
        "told = dasktile.explain(WORKLOADS['ndvi'](0.3))\n"
        "print(told.peak_before, told.peak_after)\n"
    )
    env = {**os.environ, "PYTHONHASHSEED": seed}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    told = dasktile.explain(WORKLOADS["ndvi"](0.3))
    assert run.stdout.decode().split() == [str(told.peak_before), str(told.peak_after)]


def _matrix(side: int = 400, chunk: int = 100) -> da.Array:
    x = da.random.default_rng(0).random((side, side), chunks=chunk)
    return x + side * da.eye(side, chunks=chunk)


DECOMPOSED: dict[str, Callable[[], da.Array]] = {
    "inv": lambda: da.linalg.inv(_matrix()),
    "solve": lambda: da.linalg.solve(_matrix(), _matrix()[:, :200] / 7),
}


@pytest.mark.parametrize("name", DECOMPOSED)
def test_tasks_within_one_operation_run_where_they_are_predicted(
    name: str, four_workers: None
) -> None:
    result = DECOMPOSED[name]()
    explanation = dasktile.explain(result, workers=4)
    planned = dasktile.optimize(result, workers=4)
    moved, homeless = traffic([planned], 4)
    assert not homeless
    assert sum(moved.values()) == pytest.approx(explanation.bytes_predicted, rel=0.01)
    assert f"{explanation.bytes_predicted / 2**20:.1f} MiB in all" in str(explanation)
    np.testing.assert_allclose(*dask.compute(planned, result, scheduler="sync"), atol=1e-12)
    # the three factors of the decomposition are made by the same tasks
    graph = dict(collections_to_expr([planned]).optimize().__dask_graph__())
    steps = [key for task in graph.values() for key in (*keys_in(task), task.key)]
    diagonal = [key for key in steps if "lu-lu-" in str(key[0]) and key[-1] == key[-2]]
    assert len(set(diagonal)) == 4


def _brightness() -> da.Array:
    """All pixels of a stack, in tiles that the plan changes."""
    rng = np.random.default_rng(0)
    stack = da.from_array(rng.integers(0, 9, (48, 64, 80)).astype("f4"), chunks=(7, 32, 40))
    return (stack - stack.max(axis=0)).ravel()


def _counted(pixels: da.Array) -> da.Array:
    """Tasks that no rule of a size knows: a dict for each block, and one sum."""

    def count(block: Any) -> dict[str, int]:
        return {"bright": int((block > -4).sum())}

    def total(counts: Sequence[dict[str, int]]) -> Any:
        return np.array(float(sum(each["bright"] for each in counts)))

    graph: dict[Any, Any] = {
        ("count-1", at): (count, key) for at, key in enumerate(pixels.__dask_keys__())
    }
    graph["total-1",] = (total, sorted(graph))
    layers = HighLevelGraph.from_collections("total-1", graph, dependencies=[pixels])
    return da.Array(layers, "total-1", chunks=(), dtype="f8")


#: Tasks of one operation that send each other far less than they read.
SUMMARIES: dict[str, Callable[[], da.Array]] = {
    "percentile": lambda: da.percentile(_brightness(), [5, 50]).sum() + da.ones(48, chunks=7),
    "written by hand": lambda: _counted(_brightness()) + da.ones(48, chunks=7),
    "unique": lambda: da.unique(_brightness()).sum() + da.ones(48, chunks=7),
}


@pytest.mark.parametrize("name", SUMMARIES)
def test_small_results_of_one_operation_are_not_predicted_as_whole_blocks(
    name: str, four_workers: None
) -> None:
    result = SUMMARIES[name]()
    explanation = dasktile.explain(result, workers=4)
    planned = dasktile.optimize(result, workers=4)
    moved, _ = traffic([planned], 4)
    assert sum(moved.values()) == pytest.approx(explanation.bytes_counted, rel=0.1)
    # most results of the others have unknown sizes
    is_known = explanation.bytes_predicted is not None
    assert is_known is (name == "percentile")
    np.testing.assert_allclose(*dask.compute(planned, result, scheduler="sync"))


def test_no_task_is_fused_with_a_reader_at_another_home(four_workers: None) -> None:
    """Which of them Dask fuses depends on hashes of keys."""
    graph = dict(dasktile.optimize(DECOMPOSED["inv"](), workers=4).__dask_graph__())
    readers: dict[Any, list[Any]] = {}
    for key, task in graph.items():
        for read in task.dependencies:
            readers.setdefault(read, []).append(key)
    # the home is the first number of such keys
    pairs = [
        (graph[key], own[0])
        for key, own in readers.items()
        if len(own) == 1 and rank_of(key) and rank_of(own[0]) and key[1] != own[0][1]
    ]
    assert pairs
    assert not any(fuses(task, graph[reader]) for task, reader in pairs)


@pytest.mark.parametrize("name", DECOMPOSED)
def test_tasks_of_decompositions_have_known_sizes(name: str, four_workers: None) -> None:
    result = DECOMPOSED[name]()
    explanation = dasktile.explain(result, workers=4)
    graph = dict(collections_to_expr([result]).optimize().__dask_graph__())
    # Dask leaves tasks that nothing reads where the order of its sets is such: lu has layers that
    # contain each other's tasks
    needed, _ = cull(graph, list(dask.core.flatten(result.__dask_keys__())))
    assert explanation.run_tasks_before == len(needed)


@pytest.mark.parametrize("centred", [False, True])
def test_sizes_are_known_where_reads_and_steps_are_fused(
    centred: bool, four_workers: None, tmp_path: Path
) -> None:
    numbers = np.random.default_rng(0).random((4000, 20))
    da.from_array(numbers, chunks=(200, 20)).to_zarr(tmp_path / "tall")
    # the order of Dask's tasks depends on names, and that of a store on its folder
    x = da.from_zarr(tmp_path / "tall", name="tall")
    result = list(da.linalg.svd(x - x.mean(axis=0) if centred else x))
    explanation = dasktile.explain(*result, workers=4)
    _, run = simulated(result, 4)
    assert explanation.results_before == pytest.approx(max(run.results), rel=0.1)


def _numbered(block: np.ndarray, block_info: Any = None) -> np.ndarray:
    """A function that must keep its chunks, as its result depends on them."""
    values: np.ndarray = block + block_info[None]["chunk-location"][-1]
    return values


def test_tasks_that_keep_their_keys_have_the_homes_of_what_is_fused_into_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Simulated runs took them to run where their inputs are, and chose fewer, larger tiles."""
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("flox")
    plan_for_workers(monkeypatch, 6)
    x = da.random.default_rng(0).random((90, 180, 72), chunks=(90, 180, 4))
    months = xarray.DataArray(
        x, dims=("y", "x", "time"), coords={"month": ("time", np.arange(72) % 12)}
    )
    sums = months.groupby("month").sum().data.rechunk((90, 180, 4))
    result = sums.map_blocks(_numbered, dtype=float)
    explanation = dasktile.explain(result, keep_chunks=True, by_hook=True)
    with dask.config.set(array_optimize=dasktile.array_optimize):
        moved, homeless = traffic([result], 6)
    assert not homeless
    assert sum(moved.values()) == pytest.approx(explanation.received_after, abs=20_000)
    assert explanation.proven_optimal


def test_large_blocks_of_data_are_cut_where_most_of_them_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bundles cut them where they need the slices, and each received the whole blocks."""
    plan_for_workers(monkeypatch, 4)
    values = np.random.default_rng(0).random((1500, 1000))
    x = da.from_array(values, chunks=((337, 463, 650, 50), (390, 610)))[:1000]
    result = da.einsum("ii,ij->j", x, x)
    explanation = dasktile.explain(result)
    assert explanation.changed
    assert explanation.received_after == pytest.approx(explanation.bytes_after, rel=0.05)
    expected = np.einsum("ii,ij->j", values[:1000], values[:1000])
    planned = dasktile.optimize(result)
    np.testing.assert_allclose(planned.compute(scheduler="sync"), expected)
