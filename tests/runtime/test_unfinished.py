"""Plans for persisted arrays whose blocks are still being computed."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import dask
import dask.array as da
import distributed
import numpy as np
import pytest
from distributed import Client, wait
from distributed.utils_test import gen_cluster

import dasktile
from benchmarks.predicted import cluster
from dasktile import in_memory
from dasktile.cluster import target
from dasktile.cluster.asked import expected_workers
from dasktile.report.formatting import format_bytes

LIMIT = 60
# of threads: the event of distributed takes the newest client of the process, also one that is not
# connected yet
EVENTS: defaultdict[str, threading.Event] = defaultdict(threading.Event)


@pytest.fixture
def client() -> Iterator[Client]:
    EVENTS.clear()
    with dask.config.set({"distributed.scheduler.work-stealing": False}), cluster(4) as client:
        dasktile.enable(client)
        yield client


def when_set(block: np.ndarray, event: str) -> np.ndarray:
    assert EVENTS[event].wait(LIMIT)
    return block + 1


def held(event: str, rows: int = 4000) -> da.Array:
    """A persisted array whose blocks are computed once an event is set."""
    x = da.random.default_rng(0).random((rows, 500), chunks=(rows // 20, 500))
    # with `meta`, Dask does not call the function to find out what it returns
    return x.map_blocks(when_set, event, meta=x._meta).persist()


def scores(x: da.Array) -> da.Array:
    return ((x - x.mean(axis=0)) / x.std(axis=0)).max(axis=1)


def received(client: Client) -> int:
    workers = client.cluster.workers.values()
    return sum(entry["total"] for worker in workers for entry in worker.transfer_incoming_log)


@pytest.mark.parametrize("whose", ["own", "other"])
def test_blocks_are_awaited(whose: str, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    x = held("first")
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        EVENTS["first"].set()
        wait(x)

    monkeypatch.setattr(target, "sleep", pause)
    with Client(client.scheduler.address) if whose == "other" else nullcontext():
        planned = dasktile.optimize(scores(x))
        before = received(client)
        values = planned.compute()
    assert len(pauses) == 1
    # means, deviations and the result; a block has 800 kB
    assert received(client) - before < 400_000
    np.testing.assert_allclose(values, scores(x).compute(), rtol=1e-9)


def test_the_input_is_kept_where_it_is_unknown_what_moves(client: Client) -> None:
    with dask.config.set({"dasktile.wait": 0}):
        x = held("second")
        array = scores(x)
        told = dasktile.explain(array)
        assert told.verdict == in_memory.COMPUTING.format(format_bytes(x.nbytes))
        assert dasktile.optimize(array) is array
        # more is saved of the other array than this one has
        small = held("second", 40)
        y = da.random.default_rng(1).random((4000, 4000), chunks=(200, 4000))
        other = y.T @ y + small.sum()
        assert dasktile.explain(other).changed
    EVENTS["second"].set()
    wait([x, small])
    # now it is known
    assert dasktile.explain(array).changed


def test_a_graph_that_the_scheduler_has_not_received_is_unfinished(client: Client) -> None:
    scheduler = client.cluster.scheduler
    receive, arrived = scheduler.stream_handlers["update-graph"], asyncio.Event()

    async def late(**message: Any) -> None:
        await arrived.wait()
        await receive(**message)

    with (
        mock.patch.dict(scheduler.stream_handlers, {"update-graph": late}),
        dask.config.set({"dasktile.wait": 0}),
    ):
        x = held("third")
        told = dasktile.explain(scores(x))
        assert told.verdict == in_memory.COMPUTING.format(format_bytes(x.nbytes))
        client.loop.add_callback(arrived.set)
        EVENTS["third"].set()
        wait(x)
    assert dasktile.explain(scores(x)).changed


def test_a_task_does_not_wait_for_others(client: Client) -> None:
    def planned() -> str:
        # the blocks need the thread of this task
        x = da.random.default_rng(0).random((400, 500), chunks=(20, 500)).persist()
        return str(dasktile.explain(scores(x), workers=distributed.get_client()).verdict)

    with dask.config.set({"dasktile.wait": 1e9}):
        assert "persisted blocks" in client.submit(planned, pure=False).result()


def test_an_asynchronous_client_does_not_know_where_blocks_are() -> None:
    @gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 4)
    async def run(c: Any, s: Any, *workers: Any) -> None:
        await dasktile.enable(c)
        x = da.random.default_rng(0).random((4000, 500), chunks=(200, 500))
        there = c.persist(x)
        await distributed.wait(there)
        told = dasktile.explain(scores(there))
        assert told.verdict == in_memory.COMPUTING.format(format_bytes(x.nbytes))
        # nothing is there
        assert dasktile.explain(scores(x)).changed

    run()


def test_tasks_that_have_a_worker_are_where_that_is() -> None:
    def task(runs: str | None = None, has: tuple[str, ...] = (), only: Any = None) -> Any:
        on = None if runs is None else SimpleNamespace(address=runs)
        return SimpleNamespace(processing_on=on, who_has=set(has), worker_restrictions=only)

    tasks = {
        "runs": task("a"),
        "placed": task(only={"b"}),
        "anywhere": task(),
        "either": task(only={"a", "b"}),
        "there": task(has=("c",)),
    }
    scheduler = SimpleNamespace(tasks=tasks)
    assert expected_workers(scheduler, [*tasks, "unknown"]) == {"runs": "a", "placed": "b"}


def test_errors_of_blocks_are_not_awaited(client: Client) -> None:
    def fail(block: np.ndarray) -> np.ndarray:
        raise OSError("no such block")

    x = da.ones((400, 400), chunks=100).map_blocks(fail, meta=np.empty((0, 0))).persist()
    planned = dasktile.optimize(scores(x))
    with pytest.raises(OSError, match="no such block"):
        planned.compute()
