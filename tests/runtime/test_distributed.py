"""Optimising for, and on, a cluster."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, wait

import dasktile
from dasktile.cluster.target import machine

RNG = np.random.default_rng(0)
A, B = RNG.random((600, 400)), RNG.random((400, 500))


def product() -> da.Array:
    return da.from_array(A, chunks=(30, 400)) @ da.from_array(B, chunks=(30, 500))


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit="1 GiB", dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def test_workers_of_a_client(client: Client) -> None:
    target = machine(client)
    assert (target.workers, target.threads) == (2, 1)
    assert target.memory_limit == int(0.6 * 2**30)
    assert machine() == target
    assert machine(8).workers == 8
    assert machine(client, "1 MB").memory_limit == 1_000_000
    with dask.config.set({"dasktile.workers": 3}):
        assert machine().workers == 3


def test_workers_of_a_scheduler_that_optimises(client: Client) -> None:
    actual = []
    thread = threading.Thread(target=lambda: actual.append(machine()), name="Dask-Offload_0")
    thread.start()
    thread.join(30)
    assert actual == [machine(client)]


def test_workers_that_are_started_as_users_do() -> None:
    """Their processes have imported nothing of dasktile before the plugins arrive."""
    spawning = dask.config.set({"distributed.worker.multiprocessing-method": "spawn"})
    x = da.random.default_rng(0).random((1000, 1000), chunks=(100, 1000))
    with (
        spawning,
        LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit="1 GiB", dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        dasktile.enable(client, memory_limit="16 MB")
        planned = client.persist(dasktile.optimize(x @ x.T + x, workers=client))
        computed = client.compute(planned).result()
        counts = dasktile.metrics(client)
    dense = x.compute(scheduler="sync")
    np.testing.assert_allclose(computed, dense @ dense.T + dense)
    assert counts.placed > 0
    assert any(sum(worker.spilled.values()) for worker in counts.workers.values())


def test_client_without_workers() -> None:
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as empty,
        pytest.raises(ValueError, match="no workers"),
    ):
        dasktile.optimize(product(), workers=empty)


def test_computes_on_a_cluster(client: Client) -> None:
    y = dasktile.optimize(product().sum(axis=0), workers=client)
    np.testing.assert_allclose(y.compute(), (A @ B).sum(axis=0))


def test_optimises_persisted_arrays(client: Client) -> None:
    x = client.persist(product())
    y = dasktile.optimize(x.T @ x, workers=client)
    np.testing.assert_allclose(y.compute(), (A @ B).T @ (A @ B))


def test_hook_runs_on_the_scheduler(client: Client) -> None:
    x = product()
    stock = len(dict(x.__dask_optimize__(x.dask, x.__dask_keys__())))
    with dask.config.set({"array_optimize": dasktile.array_optimize}):
        np.testing.assert_allclose(x.compute(), A @ B)
        y = x.persist()
        wait(y)
        # The graph is written on the scheduler: look there for what was run.
        names = client.run_on_scheduler(lambda dask_scheduler: [*map(str, dask_scheduler.tasks)])
        np.testing.assert_allclose(y.compute(), A @ B)
    assert (y.name, y.chunks) == (x.name, x.chunks)
    assert len(names) < stock
