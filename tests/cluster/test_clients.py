"""Which client the calls of clusters mean, and what they say of clusters that lack dasktile."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import dask.array as da
import pytest
from distributed import Client, LocalCluster

import dasktile
from dasktile.cluster.calibration import KEY
from dasktile.runtime import install
from dasktile.tiling.calibration import Calibration

CALLS = [dasktile.enable, dasktile.disable, dasktile.metrics, dasktile.calibrate]

KNOWN = Calibration(bandwidth=2e9, task_seconds=1e-3, flops=50e9, workers=1, threads=1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
    ) as actual:
        yield actual


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as actual:
        yield actual
        dasktile.disable(actual)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("value", [4, "scheduler:8786", object()])
def test_what_is_no_client_is_named(call: Callable[..., Any], value: object) -> None:
    with pytest.raises(TypeError, match=r"client must be a distributed\.Client.*; got .* of type"):
        call(value)


@pytest.mark.parametrize("call", CALLS)
def test_without_a_client_there_must_be_a_current_one(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributed.client._get_global_client", lambda: None)
    with pytest.raises(ValueError, match=r"no current client.*distributed\.Client\(\.\.\.\)"):
        call()


def test_without_a_client_the_current_one_is_meant(client: Client) -> None:
    dasktile.enable()
    dasktile.enable()
    assert set(dasktile.metrics().workers) == set(client.scheduler_info()["workers"])
    client.set_metadata(KEY, KNOWN.to_dict())
    assert dasktile.calibrate() == KNOWN
    client.set_metadata(KEY, None)
    dasktile.disable()
    with pytest.raises(RuntimeError, match=r"dasktile\.enable\(client\)"):
        dasktile.metrics()


def test_asynchronous_clients_are_meant_too(cluster: LocalCluster) -> None:
    async def main() -> int:
        async with Client(cluster.scheduler_address, asynchronous=True):
            await dasktile.enable()
            measured = await dasktile.metrics()
            await dasktile.disable()
            return len(measured.workers)

    assert asyncio.run(main()) == 1


@pytest.mark.parametrize("call", CALLS)
def test_closed_clients_are_named(cluster: LocalCluster, call: Callable[..., Any]) -> None:
    closed = Client(cluster, set_as_default=False)
    closed.close()
    with pytest.raises(ValueError, match=r"client=.* is closed"):
        call(closed)
    with pytest.raises(ValueError, match=r"workers=.*that client is closed"):
        dasktile.explain(da.ones(3), workers=closed)


@pytest.mark.parametrize(
    ("answers", "where"), [([None], "by the scheduler"), ([{}, None], "by these workers: ")]
)
def test_says_what_cannot_run_where_the_package_is_missing(
    client: Client, monkeypatch: pytest.MonkeyPatch, answers: list[Any], where: str
) -> None:
    left = iter(answers)

    def finder() -> Any:
        actual = next(left)
        return lambda: actual

    monkeypatch.setattr(install, "_probe", finder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dasktile.enable(client)
    [messages] = [str(one.message) for one in caught if "dasktile" in str(one.message)]
    assert f"cannot be imported {where}" in messages
    assert "optimised collections cannot run" in messages
    assert "Install dasktile on" in messages and "every worker" in messages
    if len(answers) > 1:
        assert all(address in messages for address in client.scheduler_info()["workers"])
