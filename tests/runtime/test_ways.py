"""Whichever way an array is computed, its tasks run and move bytes as the plan says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.blockwise import Blockwise
from distributed import Client, LocalCluster, wait
from distributed.utils_test import gen_cluster

import dasktile
from benchmarks import predicted

#: Bytes that may move beside the predicted ones: small results, which are not worth a task.
SMALL = 10_000

HOOK = {"array_optimize": dasktile.array_optimize}


def source(rows: int, columns: int, chunks: tuple[int, int]) -> da.Array:
    """An array whose blocks may not be cut otherwise."""
    return da.random.default_rng(0).random((rows, columns), chunks=chunks)


def on_four_workers(way: str) -> Any:
    """Run a test on a cluster, with the hook if that is the way."""
    return gen_cluster(
        client=True,
        nthreads=[("127.0.0.1", 1)] * 4,
        config={
            "dasktile.workers": 4,
            "dasktile.raise-errors": True,
            **(HOOK if way == "hook" else {}),
        },
        worker_kwargs={"memory_limit": 0},
    )


def centred() -> da.Array:
    x = source(400, 400, (40, 40))
    return x - x.mean(axis=0)


def gram() -> da.Array:
    x = source(1600, 400, (80, 100))
    return x.T @ x


@pytest.mark.parametrize("expression", [centred, gram])
@pytest.mark.parametrize("way", ["optimize", "keep_chunks", "hook"])
@pytest.mark.parametrize("end", ["persist", "sum"])
def test_all_tasks_have_home_workers_and_move_the_predicted_bytes(
    expression: Callable[[], Any], way: str, end: str
) -> None:
    @on_four_workers(way)
    async def run(c: Client, s: Any, *workers: Any) -> None:
        await dasktile.enable(c)
        array = expression()
        expected = array.compute(scheduler="sync", optimize_graph=False)
        if way != "hook":
            array = dasktile.optimize(array, workers=4, keep_chunks=way == "keep_chunks")
        if end == "sum":
            expected = expected.sum(axis=0)
            result = await c.compute(array.sum(axis=0))
        else:
            persisted = c.persist(array)
            await wait(persisted)
            measured = await dasktile.metrics(c)
            result = await c.compute(persisted)
        if end == "sum":
            measured = await dasktile.metrics(c)
        np.testing.assert_allclose(result, expected, atol=1e-9)
        # all but those that combine the summed blocks
        assert measured.placed >= 0.9 * measured.tasks
        gathered = result.nbytes if end == "sum" else 0
        assert measured.bytes_received <= 1.05 * measured.bytes_predicted + gathered + SMALL

    run()


def test_large_blocks_of_data_are_cut_where_they_are() -> None:
    @on_four_workers("hook")
    async def run(c: Client, s: Any, *workers: Any) -> None:
        await dasktile.enable(c)
        values = np.random.default_rng(0).random((2000, 300))
        uneven, even = (da.from_array(values, chunks=(rows, 300)) for rows in ((1900, 100), 500))
        # on the scheduler, where the hook runs, the blocks are kept
        result = c.persist((uneven + even).sum(axis=0))
        await wait(result)
        measured = await dasktile.metrics(c)
        # a block of 4.6 MB is read on all workers
        assert 3e6 < measured.bytes_received <= 1.05 * measured.bytes_predicted + SMALL
        assert measured.bytes_predicted < 4e6
        np.testing.assert_allclose(await c.compute(result), 2 * values.sum(axis=0))

    run()


@pytest.mark.parametrize("bundle", [0, 32])
@pytest.mark.parametrize(
    "build",
    [
        lambda x: da.lib.stride_tricks.sliding_window_view(x, (5, 3), axis=(0, 1)).max((2, 3)),
        lambda x: da.lib.stride_tricks.sliding_window_view(x, 4, axis=0).mean(2) - x[2:-1],
        lambda x: x[2:].rechunk((149, 200)) - x[:-2].rechunk((149, 200)),
    ],
    ids=["windows", "window", "differences"],
)
def test_slices_of_data_in_memory_are_sent_and_not_its_blocks(
    build: Callable[[da.Array], da.Array], bundle: int
) -> None:
    @gen_cluster(
        client=True,
        nthreads=[("127.0.0.1", 1)] * 2,
        config={"dasktile.workers": 2, "dasktile.bundle": bundle, "dasktile.raise-errors": True},
        worker_kwargs={"memory_limit": 0},
    )
    async def run(c: Client, s: Any, *workers: Any) -> None:
        await dasktile.enable(c)
        values = np.random.default_rng(0).random((600, 200))
        array = build(da.from_array(values, chunks=(300, 100)))
        planned = dasktile.optimize(array, workers=2)
        result = c.persist(planned)
        await wait(result)
        received = sum(one["total"] for w in workers for one in w.transfer_incoming_log)
        # halos: a block has 240,000 bytes
        assert received < 3 * SMALL
        np.testing.assert_allclose(await c.compute(result), array.compute(scheduler="sync"))

    run()


def test_persisted_scalars() -> None:
    # an asynchronous client does not say where blocks are
    with (
        dask.config.set({"dasktile.raise-errors": True}),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        dasktile.enable(client)
        total = da.ones((40,), chunks=20).sum().persist()
        wait(total)
        x = source(200, 200, (20, 200))
        arrays = [total * 2, da.stack([total, x.sum()]), (x - total).sum(axis=0), total + x.mean()]
        planned = [dasktile.optimize(array) for array in arrays]
        together = dasktile.optimize(*arrays)
        expected = dask.compute(*arrays)
        for results in (dask.compute(*planned), dask.compute(*together)):
            for result, values in zip(results, expected, strict=True):
                np.testing.assert_allclose(result, values)


def image(number: int) -> np.ndarray:
    return np.full((100, 200), float(number))


@pytest.mark.parametrize("way", ["optimize", "hook"])
def test_images_that_are_read_one_by_one(way: str) -> None:
    """No worker reads more than its share, and only partial means are sent."""

    @on_four_workers(way)
    async def run(c: Client, s: Any, *workers: Any) -> None:
        await dasktile.enable(c)
        parts = [
            da.from_delayed(dask.delayed(image)(number), (100, 200), float) for number in range(80)
        ]
        stack = da.stack(parts)
        array = abs(stack - stack.mean(axis=0)).sum()
        if way == "optimize":
            array = dasktile.optimize(array, workers=4)
        result = await c.compute(array)
        assert result == np.abs(np.arange(80) - 39.5).sum() * 100 * 200
        measured = await dasktile.metrics(c)
        # three partial means to one worker, and the mean to three
        assert measured.bytes_received <= 6 * 160_000 + SMALL
        assert measured.bytes_received <= 1.05 * measured.bytes_predicted + SMALL

    run()


def test_tasks_behind_a_plan_run_where_most_of_their_bytes_are() -> None:
    @on_four_workers("optimize")
    async def run(c: Client, s: Any, *workers: Any) -> None:
        await dasktile.enable(c)
        x = source(2000, 400, (100, 400))
        planned = dasktile.optimize(x - x.mean(axis=0), workers=4, keep_chunks=True)
        assert planned.name != (x - x.mean(axis=0)).name
        # each block has 97 rows of one tile and three of the next
        result = c.persist(planned.rechunk(((97, *(100,) * 19, 3), 400), method="tasks"))
        await wait(result)
        counts = await dasktile.metrics(c)
        # three rows at each cut; a tile that is sent has as much as half of that
        allowed = counts.bytes_predicted + 20 * 3 * 400 * 8
        assert counts.bytes_received <= allowed + SMALL
        assert not len(s.plugins["dasktile"].placing.joins)
        expected = (x - x.mean(axis=0)).compute(scheduler="sync")
        np.testing.assert_allclose(await c.compute(result), expected)

    run()


def test_the_hook_plans_for_the_cluster_that_has_the_plugin() -> None:
    # a scheduler of this process optimises a graph, and is not told which one it is
    with predicted.cluster(2), predicted.cluster(4) as client:
        dasktile.enable(client)
        x = source(2000, 400, (100, 400)).persist()
        wait(x)
        with dask.config.set(HOOK):
            result = (x - x.mean(axis=0)).persist()
        wait(result)
        counts = dasktile.metrics(client)
        assert counts.placed >= 0.9 * counts.tasks - x.npartitions
        assert counts.bytes_received <= 1.05 * counts.bytes_predicted + SMALL


def test_operations_that_dask_merges_with_those_of_a_plan_run_where_these_do() -> None:
    """Dask merges layers of blocks, whose names the tasks then know with axes, without blocks."""
    x = source(50_000, 40, (5_000, 40))
    mean, variance = x.mean(axis=0), x.var(axis=0)
    with predicted.cluster(8) as client:
        dasktile.enable(client)
        planned, *_ = dasktile.optimize((x - mean) / da.sqrt(variance), mean, variance)
        assert any(type(layer) is Blockwise for layer in planned.dask.layers.values())
        dasktile.metrics(client, reset=True)
        result = client.persist(2 * planned)
        wait(result)
        measured = dasktile.metrics(client)
    assert measured.placed == measured.tasks
    assert measured.bytes_received <= 1.05 * measured.bytes_predicted + SMALL < x.nbytes / 20
