"""``array_optimize`` in dask's configuration: keys, chunks and values of computations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

import dasktile
from dasktile import api, pipeline
from dasktile.cluster.target import Machine
from tests.support import accept_all_plans
from tests.test_decisions import cluster as four_workers
from tests.test_decisions import machine

RNG = np.random.default_rng(0)
A, B = RNG.random((96, 40)), RNG.random((40, 64))


def product() -> da.Array:
    return da.from_array(A, chunks=(12, 40)) @ da.from_array(B, chunks=(40, 8))


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster


@pytest.fixture(params=["threads", "distributed"])
def scheduler(request: pytest.FixtureRequest) -> Iterator[Client | None]:
    """The client of a cluster, or None for threads of this process."""
    if request.param == "threads":
        with dask.config.set(scheduler="threads"):
            yield None
        return
    with Client(request.getfixturevalue("cluster")) as client:
        yield client


@pytest.fixture
def rewrites(
    monkeypatch: pytest.MonkeyPatch, scheduler: Client | None
) -> Iterator[list[dict[str, Any]]]:
    """Enable the hook, with rewrites at any price; returns the layers of every rewritten graph."""
    graphs: list[dict[str, Any]] = []
    rewrite = pipeline.rewrite

    def recorded(*arguments: Any) -> Any:
        result = rewrite(*arguments)
        graphs.append(dict(result.graph.layers))
        return result

    # the scheduler, which optimises, is in this process
    monkeypatch.setattr(pipeline, "rewrite", recorded)
    accept_all_plans(monkeypatch)
    monkeypatch.setattr(dasktile.planning, "_moves_more", lambda *_: False)
    with dask.config.set(
        {
            "array_optimize": dasktile.array_optimize,
            "dasktile.workers": 4,
            "dasktile.cost.task-bytes": 1,
            "dasktile.tiling.min-tile": 1,
        }
    ):
        yield graphs


def retiled(graphs: list[dict[str, Any]]) -> bool:
    return any("-dasktile-" in name for layers in graphs for name in layers)


def test_compute(rewrites: list[dict[str, Any]]) -> None:
    np.testing.assert_allclose(product().compute(), A @ B)
    assert len(rewrites) == 1 and retiled(rewrites)


def test_compute_several(rewrites: list[dict[str, Any]]) -> None:
    x = product()
    y, z, rest = dask.compute(x.sum(axis=0), {"z": x.T[::2]}, 3)
    np.testing.assert_allclose(y, (A @ B).sum(axis=0))
    np.testing.assert_allclose(z["z"], (A @ B).T[::2])
    assert rest == 3
    # one rewrite for all of them
    assert len(rewrites) == 1 and retiled(rewrites)


def test_persist(rewrites: list[dict[str, Any]]) -> None:
    x = product()
    y = x.persist()
    assert (y.name, y.chunks, y.dtype) == (x.name, x.chunks, x.dtype)
    assert y.__dask_keys__() == x.__dask_keys__()
    assert sorted(y.dask) == sorted(dask.core.flatten(x.__dask_keys__()))
    blocks = y.map_blocks(lambda block: np.array([block.shape]), chunks=(1, 2))
    assert (blocks.compute() == np.array([12, 8] * 64).reshape(8, 16)).all()
    np.testing.assert_allclose(y.compute(), A @ B)
    np.testing.assert_allclose((y + 1).compute(), A @ B + 1)
    assert retiled(rewrites)


def test_persist_several(rewrites: list[dict[str, Any]]) -> None:
    x = product()
    y, z = dask.persist(x, x.mean(axis=1))
    assert (y.name, y.chunks) == (x.name, x.chunks)
    np.testing.assert_allclose(z.compute(), (A @ B).mean(axis=1))
    np.testing.assert_allclose(y.compute(), A @ B)
    assert retiled(rewrites)


def test_one_block(rewrites: list[dict[str, Any]]) -> None:
    block = product().blocks[1, 2].compute()
    np.testing.assert_allclose(block, (A @ B)[12:24, 16:24])
    np.testing.assert_allclose(product().to_delayed()[1, 2].compute(), block)


def test_store(rewrites: list[dict[str, Any]], scheduler: Client | None, tmp_path: Any) -> None:
    target = np.lib.format.open_memmap(
        tmp_path / "target.npy", mode="w+", dtype=float, shape=(96, 64)
    )
    if scheduler is None:
        da.store(product(), target)
        np.testing.assert_allclose(target, A @ B)
    path = str(tmp_path / "target.zarr")
    pytest.importorskip("zarr")
    product().to_zarr(path)
    assert retiled(rewrites)
    np.testing.assert_allclose(da.from_zarr(path).compute(), A @ B)


def test_delayed_on_top(rewrites: list[dict[str, Any]]) -> None:
    total = dask.delayed(np.sum)(product())
    values = dask.compute(total, product())
    np.testing.assert_allclose(values[0], (A @ B).sum())
    np.testing.assert_allclose(values[1], A @ B)


@pytest.mark.parametrize("scheduler", ["distributed"], indirect=True)
def test_client_computes(rewrites: list[dict[str, Any]], scheduler: Client) -> None:
    x = product()
    np.testing.assert_allclose(scheduler.compute(x).result(), A @ B)
    one, two = scheduler.gather(scheduler.compute([x + 1, x.max(axis=0)]))
    np.testing.assert_allclose(one, A @ B + 1)
    np.testing.assert_allclose(two, (A @ B).max(axis=0))
    y = scheduler.persist(x)
    assert (y.name, y.chunks) == (x.name, x.chunks)
    np.testing.assert_allclose(y.compute(), A @ B)
    assert retiled(rewrites)


@pytest.mark.parametrize("scheduler", ["distributed"], indirect=True)
def test_hook_can_be_sent(scheduler: Client) -> None:
    def tiles(hook: Any) -> bool:
        return hook is dasktile.array_optimize

    assert scheduler.submit(tiles, dasktile.array_optimize).result()


def test_blocks_that_are_not_needed_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In tiles of many rows the first row of blocks would need all of these rows."""
    machine = Machine(2, order=("0", "1"), who_has=lambda blocks: {})
    monkeypatch.setattr(api, "machine", lambda *_: machine)
    x = da.from_array(np.ones((520, 520)), chunks=10)
    y = ((x + 1) * 2 - x).blocks[0]
    with dask.config.set(array_optimize=dasktile.array_optimize):
        (tiled,) = dask.optimize(y)
    (plain,) = dask.optimize(y)
    assert len(tiled.dask) <= len(plain.dask)


def test_the_plan_of_the_hook_is_explained() -> None:
    a, b = (da.random.default_rng(seed).random((600, 600), chunks=200) for seed in range(2))
    difference = a[1:, 1:] - b[:-1, :-1]
    with machine(four_workers()):
        explained = dasktile.explain(difference, by_hook=True)
        usual = dasktile.explain(difference, keep_chunks=True)
        graph = dasktile.array_optimize(difference.dask, difference.__dask_keys__())
    # to keep the names of blocks takes no more tasks
    assert explained.run_tasks_after == len(graph) == usual.run_tasks_after
    with pytest.raises(TypeError, match=r"by_hook must be True or False; got 'hook'"):
        # a value of the wrong type is what is tested
        dasktile.explain(difference, by_hook="hook")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"chunks=5 and by_hook=True exclude each other"):
        dasktile.explain(difference, by_hook=True, chunks=5)


def test_bytes_of_outputs_that_keep_their_names_are_counted_once() -> None:
    x = da.random.default_rng(0).random((48, 72, 144), chunks=(1, 72, 144), dtype="float32")
    with machine(four_workers()):
        explained = dasktile.explain(x.rechunk((48, 36, 72)), by_hook=True)
    assert explained.changed and explained.bytes_after
    assert explained.bytes_predicted == explained.bytes_after
