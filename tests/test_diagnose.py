"""`diagnose`: what a computation did, measured on the workers, and what a plan would save."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, Event, LocalCluster, SchedulerPlugin, Worker, wait

import dasktile
from dasktile._compat.dask import collections_to_expr, joins_blocks
from dasktile.report.diagnosis import Diagnosis, OperationUse


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


@contextmanager
def one_process(workers: int) -> Iterator[Client]:
    """A client of workers that are in this process."""
    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
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


def test_diagnoses_may_end_in_the_order_in_which_they_began(client: Client) -> None:
    first, second = dasktile.diagnose(client), dasktile.diagnose(client)
    with first:
        gram(0).compute()
        second.__enter__()
        gram(1).compute()
    gram(2).compute()
    second.__exit__(None, None, None)
    gram(3).compute()
    assert len(first.result.computations) == len(second.result.computations) == 2
    assert not {"get", "compute", "persist"} & vars(client).keys()
    assert not any("dasktile" in name for name in vars(client))


def test_what_others_put_over_the_client_while_measuring_stays(client: Client) -> None:
    calls: list[str] = []
    with dasktile.diagnose(client) as diagnosis:
        method = client.get

        def get(*args: Any, **kwargs: Any) -> Any:
            calls.append("get")
            return method(*args, **kwargs)

        client.get = get
        client.compute(gram()).result()
    assert client.get is get and len(diagnosis.result.computations) == 1
    with dasktile.diagnose(client) as diagnosis:
        client.get({"x-1": (len, [1])}, "x-1")
        client.compute(gram()).result()
    assert client.get is get and calls == ["get"] and len(diagnosis.result.computations) == 1
    del client.get


def test_workers_that_left_are_counted() -> None:
    with one_process(8) as client:
        workers = list(client.scheduler_info(n_workers=-1)["workers"])
        with dasktile.diagnose(client, plans=False) as diagnosis:
            client.retire_workers(workers[:2])
        assert diagnosis.result.left == 2 and len(diagnosis.result.workers) == 6
        assert "not counted: 2 workers that left" in str(diagnosis)


def test_workers_of_one_process_count_as_one() -> None:
    with one_process(3) as client:
        explanation = dasktile.explain(gram(), workers=client)
        with dasktile.diagnose(client) as diagnosis:
            gram().compute()
    assert (explanation.workers, explanation.scheduler_workers) == (1, 3)
    line = "the 3 workers of the cluster are in one process and count as 1"
    assert line in str(explanation) and line in explanation._repr_html_()
    assert str(diagnosis).count(line) == 1
    assert "of the cluster" not in str(dasktile.explain(gram(), workers=3))


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


def test_async_with_and_a_synchronous_client(client: Client) -> None:
    async def main() -> None:
        async with dasktile.diagnose(client):
            pass

    with pytest.raises(TypeError, match="use with dasktile"):
        asyncio.run(main())
    assert set(map(tuple, client.run(plugins).values())) == {()}


@pytest.mark.parametrize("step", ["identity", "record"])
def test_no_plugin_stays_if_it_cannot_begin(
    client: Client, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fails(*arguments: Any, **keywords: Any) -> None:
        raise OSError("no luck")

    with monkeypatch.context() as patches, pytest.raises(OSError, match="no luck"):
        if step == "identity":
            patches.setattr(client.scheduler, "identity", fails, raising=False)
        else:
            patches.setattr("dasktile._compat.distributed.recording.record_computations", fails)
        dasktile.diagnose(client).__enter__()
    assert set(map(tuple, client.run(plugins).values())) == {()}


def test_the_event_loop_runs_while_plans_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[bool] = []

    async def main() -> dasktile.diagnose:
        loop = asyncio.get_running_loop()

        def planned(*arguments: Any) -> None:
            # the loop answers only if it does not wait for this
            answered = threading.Event()
            loop.call_soon_threadsafe(answered.set)
            ran.append(answered.wait(timeout=30))

        monkeypatch.setattr("dasktile.diagnosing.explained_graph", planned)
        async with (
            LocalCluster(
                n_workers=1, processes=False, asynchronous=True, dashboard_address=":0"
            ) as cluster,
            Client(cluster, asynchronous=True) as client,
            dasktile.diagnose(client) as diagnosis,
        ):
            await client.compute(gram().sum())
        return diagnosis

    diagnosis = asyncio.run(main())
    assert ran == [True] and len(diagnosis.result.computations) == 1


def test_plans_of_an_asynchronous_client_follow_persisted_arrays() -> None:
    async def main() -> dasktile.diagnose:
        async with (
            LocalCluster(
                n_workers=2, threads_per_worker=1, processes=False, asynchronous=True,
                dashboard_address=":0",
            ) as cluster,
            Client(cluster, asynchronous=True) as client,
        ):  # fmt: skip
            kept = client.persist(gram())
            await wait(kept)
            async with dasktile.diagnose(client) as diagnosis:
                await client.compute(kept @ kept.T)
            return diagnosis

    (missed,) = asyncio.run(main()).result.computations
    assert missed.reason == "" and missed.explanation is not None


@pytest.mark.parametrize("way", ["keywords", "mixed", "nested"])
def test_all_legal_calls_are_recorded(client: Client, way: str) -> None:
    x = gram()
    with dasktile.diagnose(client) as diagnosis:
        if way == "keywords":
            client.compute(sync=True, collections=x)
        elif way == "mixed":
            assert client.gather(client.compute([x, 5]))[1] == 5
        else:
            client.compute([{"a": [x]}], sync=True)
        client.compute(5)
    (missed,) = diagnosis.result.computations
    assert missed.name == "matmul" and missed.explanation is not None


def test_array_expressions_are_named(cluster: LocalCluster, client: Client) -> None:
    # the setting counts when dask.array is imported
    script = f"""
import dask, dask.array as da, dasktile
from distributed import Client
with Client({cluster.scheduler_address!r}) as client, dasktile.diagnose(client) as diagnosis:
    da.ones((4, 4), chunks=2).sum().compute()
    client.compute(da.ones((4, 4), chunks=2).sum(), sync=True)
for missed in diagnosis.result.computations:
    print(missed.explanation, missed.reason)
print(*diagnosis.result.advice())
"""
    environment = {**os.environ, "DASK_ARRAY__QUERY_PLANNING": "True"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    reason = "dasktile does not read array expressions (dask's setting array.query-planning)"
    lines = [f"None {reason}", f"None {reason}", f"no plans were made: {reason}"]
    assert done.stdout.splitlines() == lines


def test_no_expressions_are_built_beyond_the_most_planned(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []

    def count(collections: list[Any]) -> Any:
        built.append(len(collections))
        return collections_to_expr(collections)

    monkeypatch.setattr("dasktile.diagnosing.MOST_PLANNED", 1)
    monkeypatch.setattr("dasktile.diagnosing.collections_to_expr", count)
    with dasktile.diagnose(client) as diagnosis:
        for seed in range(3):
            client.compute(gram(seed), sync=True)
    assert built == [1]
    assert len(diagnosis.result.computations) == 1 and diagnosis.result.not_planned == 2


def test_joined_results_are_those_of_compute_alone(client: Client) -> None:
    def finalize_report(value: int) -> int:
        return value

    with dasktile.diagnose(client, plans=False) as diagnosis:
        dask.compute(*(dask.delayed(finalize_report)(number) for number in range(3)))
    assert diagnosis.result.operations["finalize_report"].tasks == 3
    assert "joined" not in str(diagnosis)
    with dasktile.diagnose(client, plans=False) as diagnosis:
        da.ones((512, 256), chunks=(256, 256)).compute()
    assert "dask.compute joined 1 result (1.0 MiB) on a worker" in str(diagnosis)


def test_small_results_that_are_joined_are_not_mentioned(client: Client) -> None:
    with dasktile.diagnose(client, plans=False) as diagnosis:
        da.ones((512, 255), chunks=(256, 255)).compute()
        da.ones(8, chunks=4).sum().compute()
    joined = diagnosis.result.operations["finalize-hlgfinalizecompute"]
    # the sum is one number, of Python or of NumPy
    assert joined.tasks == 2 and 0 <= joined.made - 512 * 255 * 8 < 256
    assert "joined" not in str(diagnosis)


def test_the_prefix_of_joined_results_is_that_of_dask() -> None:
    prefix = "finalize-hlgfinalizecompute"
    assert joins_blocks(f"{prefix}-0")
    diagnosis = Diagnosis(1.0, {}, {prefix: OperationUse(2, 0.0, 0, 3 * 2**20)})
    assert any("joined 2 results (3.0 MiB)" in line for line in diagnosis.summary())


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
            with pytest.raises(RuntimeError, match="end of its with block"):
                _ = diagnosis.result
            assert "has not ended" in str(diagnosis)
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
    assert diagnosis.result.left == 0
    # other tests use the workers, too
    with Client(cluster, set_as_default=False) as another:
        for name in set().union(*another.run(plugins).values()):
            another.unregister_worker_plugin(name)


def test_what_was_optimised_has_nothing_to_gain(client: Client) -> None:
    dasktile.enable(client)
    z = dasktile.optimize(gram())
    with dasktile.diagnose(client) as diagnosis:
        z.compute()
    dasktile.disable(client)
    assert "dasktile.optimize would change nothing" in str(diagnosis)


@pytest.mark.parametrize("placed", [False, True])
def test_savings_of_large_graphs_are_not_predicted(
    client: Client, monkeypatch: pytest.MonkeyPatch, placed: bool
) -> None:
    """A plan that only bundles tasks has no savings but those that a simulation counts."""
    monkeypatch.setattr("dasktile.choice.MAX_TASKS", 50)
    monkeypatch.setattr("dasktile.predicted.MAX_TASKS", 50)
    if placed:
        dasktile.enable(client)
    x = da.random.default_rng(0).random((64_000, 64), chunks=(1_000, 64)) + 1
    with dasktile.diagnose(client) as diagnosis:
        wait(x.persist())
        client.compute(gram(), sync=True)
    if placed:
        z = dasktile.optimize(x)
        with dasktile.diagnose(client) as again:
            wait(z.persist())
        assert "dasktile.optimize would change nothing" in str(again)
        assert "not predicted" not in str(again)
    dasktile.disable(client)
    first, second = diagnosis.result.computations
    plan = first.explanation
    assert plan is not None and plan.changed and plan.run_tasks_after is None
    assert (plan.tasks_before, plan.bytes_before) == (plan.tasks_after, plan.bytes_after)
    text = " ".join(str(diagnosis).split())
    assert "would change nothing" not in text
    assert "not predicted for 1 of 2 computations: what dasktile.optimize would save" in text
    assert "as the graph has more than 50 tasks" in text
    assert "computations[0].explanation) shows the plan" in text
    assert "128 (by the model)" in text
    # what can be compared is
    assert second.explanation is not None
    assert "dasktile.optimize would change 1 of 2 computations" in text


def test_results_that_are_incomplete_at_the_end_are_named(client: Client) -> None:
    gate = Event(client=client)
    with dasktile.diagnose(client) as diagnosis:
        future = client.submit(gate.wait)
    gate.set()
    assert future.result()
    assert diagnosis.result.pending == 1
    assert "1 result incomplete at the end" in str(diagnosis)
    with dasktile.diagnose(client) as diagnosis:
        pass
    assert diagnosis.result.pending == 0 and "incomplete" not in str(diagnosis)


def test_plans_need_workers_and_their_absence_is_no_error() -> None:
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        with dasktile.diagnose(client) as diagnosis:
            wait(gram().persist())
            client.retire_workers(list(client.scheduler_info(n_workers=-1)["workers"]))
        assert diagnosis.result.left == 1
        assert diagnosis.result.reason


def test_bytes_of_shuffles_are_said_not_to_be_counted() -> None:
    use = OperationUse(1, 0.1, 0, 0)
    text = "bytes that Dask's P2P shuffles send outside of tasks are not counted in received"
    assert text in Diagnosis(1.0, {}, {"shuffle-barrier": use}, ()).summary()
    assert text not in Diagnosis(1.0, {}, {"rechunk-merge": use}, ()).summary()
