"""Loops whose steps read persisted results of the step before, on a cluster."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait

import dasktile
from benchmarks.predicted import cluster
from dasktile import templates
from tests.test_templates import differs, written


@pytest.fixture
def client() -> Iterator[Client]:
    with dask.config.set({"distributed.scheduler.work-stealing": False}), cluster(4) as client:
        dasktile.enable(client)
        yield client


def received(client: Client) -> int:
    workers = client.cluster.workers.values()
    return sum(entry["total"] for worker in workers for entry in worker.transfer_incoming_log)


def step(x: da.Array, w: da.Array) -> da.Array:
    return da.tanh(x @ w) * 0.5 + x.mean(axis=0)


def persisted(values: np.ndarray, chunk: int) -> da.Array:
    x = da.random.default_rng(0).random(values.shape, chunks=chunk) * 0
    x = (x + da.from_array(values, chunks=chunk)).persist()
    wait(x)
    return x


def test_a_step_that_was_written_reads_the_blocks_of_the_last_one(client: Client) -> None:
    rng = np.random.default_rng(0)
    values, weights = rng.random((600, 400)), rng.random((400, 400))
    x, w = da.from_array(values, chunks=100), da.from_array(weights, chunks=100)
    filled = 0
    for _ in range(6):
        with written() as graphs:
            planned = dasktile.optimize(step(x, w))
        filled += not graphs
        with dask.config.set({"dasktile.reuse-plans": False}):
            anew = dasktile.optimize(step(x, w))
            predicted = dasktile.explain(step(x, w)).bytes_after
        assert not differs(planned, anew)
        before = received(client)
        x = planned.persist()
        wait(x)
        assert received(client) - before <= 1.05 * predicted + 1e5
        values = np.tanh(values @ weights) * 0.5 + values.mean(axis=0)
    np.testing.assert_allclose(x.compute(), values)
    assert filled >= 2


def test_blocks_that_have_moved_are_planned_anew(client: Client) -> None:
    values = np.random.default_rng(0).random((400, 400))
    x = persisted(values, 100)
    with written() as graphs:
        for _ in range(2):
            dasktile.optimize(x @ x.T)
        assert len(graphs) == 1
        client.replicate(x, n=4)
        planned = dasktile.optimize(x @ x.T)
    assert len(graphs) == 2
    np.testing.assert_allclose(planned.compute(), values @ values.T)


def test_templates_do_not_keep_results_on_workers(client: Client) -> None:
    x = persisted(np.ones((400, 400)), 100)
    for _ in range(4):
        x = dasktile.optimize(step(x, x)).persist()
    wait(x)
    assert templates._store
    del x
    for _ in range(100):
        gc.collect()
        if not client.cluster.scheduler.tasks:
            break
        time.sleep(0.05)
    assert not client.cluster.scheduler.tasks
