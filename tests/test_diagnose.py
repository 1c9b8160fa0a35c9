"""`diagnose`: what a computation did, measured on the workers, and what a plan would save."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, SchedulerPlugin, Worker, wait

import dasktile


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
    ) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        yield client


class Transfers(SchedulerPlugin):
    """Another count of the same: tasks that a worker finished."""

    name = "transfers"

    def __init__(self) -> None:
        self.done = 0

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        self.done += start == "processing" and finish == "memory"


def gram(seed: int = 0) -> da.Array:
    values = np.random.default_rng(seed).random((400, 300))
    x = da.from_array(values, chunks=(50, 300))
    return x.T @ x


def plugins(dask_worker: Worker) -> list[str]:
    return [name for name in dask_worker.plugins if "diagnose" in name]


def test_tasks_and_bytes_are_counted(cluster: LocalCluster, client: Client) -> None:
    first, second = client.scheduler_info(n_workers=-1)["workers"]

    def make(size: int) -> np.ndarray:
        return np.ones(size)

    async def count() -> Transfers:
        other = Transfers()
        cluster.scheduler.add_plugin(other, name=other.name)
        return other

    other = client.sync(count)
    with dasktile.diagnose(client) as diagnosis:
        a = client.submit(make, 1000, workers=[first], key="make-1")
        b = client.submit(make, 3000, workers=[second], key="make-2")
        total = client.submit(lambda x, y: len(x) + len(y), a, b, workers=[first], key="add-3")
        assert total.result() == 4000
    result = diagnosis.result
    assert result.tasks == other.done == 3
    assert result.received == result.workers[first].received == 24_000
    assert result.workers[second].received == 0
    assert result.operations["make"].tasks == 2 and result.operations["make"].received == 24_000
    assert result.workers[first].results >= 32_000 > result.workers[second].results >= 24_000
    assert result.computations == ()
    assert "no dask arrays were computed" in str(diagnosis)
    for use in result.workers.values():
        shares = use.computing + use.waiting + use.idle
        assert shares > 0 and min(use.computing, use.waiting, use.idle) >= 0


@pytest.mark.parametrize("way", ["compute", "persist", "dask.compute", "client.compute", "xarray"])
def test_plans_for_what_was_computed(client: Client, way: str) -> None:
    x = gram()
    expected = x.compute(scheduler="sync")
    with dasktile.diagnose(client) as diagnosis:
        if way == "compute":
            values = x.compute()
        elif way == "persist":
            kept = x.persist()
            wait(kept)
            values = kept.compute(scheduler=client)
        elif way == "dask.compute":
            values, _ = dask.compute(x, [x.sum()])
        elif way == "client.compute":
            values = client.compute(x).result()
        else:
            xarray = pytest.importorskip("xarray")
            values = xarray.DataArray(x, dims=("i", "j")).compute().values
    np.testing.assert_allclose(values, expected)
    missed = diagnosis.result.computations[0]
    assert missed.explanation is not None and missed.explanation.workers == 2
    assert missed.name == ("matmul, sum" if way == "dask.compute" else "matmul")
    if way != "dask.compute":
        assert missed.explanation.changed
        before, after = missed.explanation.received_before, missed.explanation.received_after
        assert before is not None and after is not None and after < before
    assert "dasktile.optimize would change" in str(diagnosis)
    json.dumps(diagnosis.result.to_dict())


def test_nothing_stays_behind(client: Client) -> None:
    methods = (client.get, client.compute, client.persist)
    with pytest.raises(ZeroDivisionError), dasktile.diagnose(client) as diagnosis:
        gram().sum().compute()
        raise ZeroDivisionError
    assert (client.get, client.compute, client.persist) == methods
    assert not {"get", "compute", "persist"} & vars(client).keys()
    assert set(map(tuple, client.run(plugins).values())) == {()}
    # what was measured is there; no plans are made after an error
    assert diagnosis.result.tasks > 0 and diagnosis.result.computations == ()
    assert "no plans were made: the block raised an error" in str(diagnosis)


def test_graphs_are_unchanged(client: Client) -> None:
    x = gram(1)
    with dasktile.diagnose(client):
        measured = x.persist()
    assert measured.chunks == x.chunks and measured.name == x.name


def test_many_computations(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dasktile.diagnosing.MOST_PLANNED", 2)
    with dasktile.diagnose(client) as diagnosis:
        for seed in range(3):
            gram(seed).sum().compute()
    assert len(diagnosis.result.computations) == 2 and diagnosis.result.not_planned == 1
    assert "no plans were made for 1 computation more" in str(diagnosis)


def test_measures_only(client: Client) -> None:
    with dasktile.diagnose(client, plans=False) as diagnosis:
        gram().sum().compute()
    assert diagnosis.result.tasks > 0 and diagnosis.result.computations == ()


def test_errors_in_plans_are_shown(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr("dasktile.diagnosing.explained_graph", fails)
    with dask.config.set({"dasktile.raise-errors": False}), dasktile.diagnose(client) as diagnosis:
        gram().compute()
    assert "RuntimeError: no luck" in diagnosis.result.computations[0].reason
    assert "no luck" in str(diagnosis)


def test_two_at_once(client: Client) -> None:
    with dasktile.diagnose(client, plans=False) as outer:
        client.submit(len, [1], key="outer-1").result()
        with dasktile.diagnose(client, plans=False) as inner:
            client.submit(len, [1, 2], key="inner-1").result()
    assert inner.result.tasks == 1 and outer.result.tasks == 2


def test_spilled_bytes(tmp_path: Any) -> None:
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, memory_limit="400 MB", dashboard_address=":0",
            local_directory=str(tmp_path),
        ) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        with dasktile.diagnose(client, plans=False) as diagnosis:
            x = da.random.default_rng(0).random((40, 1_000_000), chunks=(1, 1_000_000)).persist()
            wait(x)
            x.sum().compute()
        # 320 MB of results, of which 240 MB may stay in memory
        assert diagnosis.result.spilled > 50e6
        assert 0 < diagnosis.result.read_back <= diagnosis.result.spilled
        assert "spilled to disk" in str(diagnosis)


def test_asynchronous_client() -> None:
    async def main() -> dasktile.diagnose:
        async with (
            LocalCluster(
                n_workers=1, processes=False, asynchronous=True, dashboard_address=":0"
            ) as cluster,
            Client(cluster, asynchronous=True) as client,
        ):
            with pytest.raises(TypeError, match="async with"):
                dasktile.diagnose(client).__enter__()
            async with dasktile.diagnose(client) as diagnosis:
                await client.compute(gram().sum())
            return diagnosis

    diagnosis = asyncio.run(main())
    assert diagnosis.result.tasks > 0


def test_arguments(client: Client) -> None:
    with pytest.raises(TypeError, match="client must be"):
        dasktile.diagnose(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="plans must be True or False"):
        dasktile.diagnose(client, plans=1)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="end of its with block"):
        _ = dasktile.diagnose(client).result
    assert "not ended" in repr(dasktile.diagnose(client))


def test_one_diagnosis_after_the_other_but_not_within(client: Client) -> None:
    diagnosis = dasktile.diagnose(client, plans=False)
    for count in (1, 2):
        with diagnosis:
            client.gather(client.map(len, [[1]] * count, pure=False))
            with pytest.raises(RuntimeError, match="has not ended"), diagnosis:
                pass
        assert diagnosis.result.tasks == count
    assert set(map(tuple, client.run(plugins).values())) == {()}


def test_the_client_is_closed_in_the_block(cluster: LocalCluster) -> None:
    # as the default it would leave dask's configuration as it was when it was closed
    other = Client(cluster, set_as_default=False)
    with dasktile.diagnose(other) as diagnosis:
        other.compute(gram().sum()).result()
        other.close()
    assert "the client was closed in the block" in str(diagnosis)


def test_what_was_optimised_has_nothing_to_gain(client: Client) -> None:
    dasktile.enable(client)
    z = dasktile.optimize(gram())
    with dasktile.diagnose(client) as diagnosis:
        z.compute()
    dasktile.disable(client)
    assert "dasktile.optimize would change nothing" in str(diagnosis)
