"""``compute``: the same results as Dask's, joined in the client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from distributed import Client, LocalCluster

import dasktile
from dasktile.runtime import results


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=False,
        protocol="tcp",
        memory_limit="16 GiB",
        dashboard_address=None,
    ) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        dasktile.enable(client)
        yield client
        dasktile.disable(client)


def noise(seed: int = 0) -> da.Array:
    return da.random.default_rng(seed).random((300, 300), chunks=100)


def masked_blocks(block: np.ndarray) -> Any:
    return np.ma.masked_greater(block, 0.5)


def frame() -> Any:
    return dd.from_pandas(pd.DataFrame({"a": range(10), "b": range(10)}), npartitions=3)


def dataset() -> xr.Dataset:
    return xr.Dataset({"t": (("x", "y"), noise()), "u": (("x",), noise(1).mean(axis=1))})


def many_partitions() -> dd.DataFrame:
    pandas = pd.DataFrame({"a": np.arange(1000) % 11, "b": np.arange(1000.0)})
    return dd.from_pandas(pandas, npartitions=40)


COLLECTIONS = {
    "several blocks": lambda: noise() + 1,
    "one block": lambda: noise().sum(),
    "a matrix product": lambda: noise().T @ noise(),
    "another dtype than declared": lambda: noise().map_blocks(
        lambda block: block.astype("f4"), dtype="f8", meta=np.empty((0, 0))
    ),
    "masked arrays": lambda: noise().map_blocks(masked_blocks, meta=np.ma.empty((0, 0))),
    "unknown sizes": lambda: noise()[noise() > 0.5],
    "no elements": lambda: noise()[:0],
    "a dataset": lambda: dataset() * 2,
    "a data array": lambda: dataset().t.mean("y"),
    "a delayed object": lambda: dask.delayed(sum)([1, 2, 3]),
    "a dataframe": lambda: frame() + 1,
    "a column's sum": lambda: frame().a.sum(),
    # Dask makes it in more partitions than the collection has
    "groups of a dataframe": lambda: many_partitions().groupby("a").mean(),
    "a bag": lambda: db.from_sequence(range(10), npartitions=3).map(str),
}


@pytest.mark.parametrize("name", COLLECTIONS)
def test_results_are_those_of_dask(client: Client, name: str) -> None:
    collection = COLLECTIONS[name]()
    (result,) = dasktile.compute(collection)
    (expected,) = dask.compute(collection)
    assert type(result) is type(expected)
    if isinstance(expected, (xr.Dataset, xr.DataArray)):
        xr.testing.assert_allclose(result, expected)
    elif isinstance(expected, pd.DataFrame):
        pd.testing.assert_frame_equal(result, expected)
    elif isinstance(expected, np.ndarray):
        assert result.dtype == expected.dtype
        np.testing.assert_allclose(result, expected)
        np.testing.assert_array_equal(np.ma.getmaskarray(result), np.ma.getmaskarray(expected))
    else:
        assert result == pytest.approx(expected) if np.isscalar(expected) else result == expected


def test_containers_and_other_objects(client: Client) -> None:
    x = noise()
    nested, other, same = dasktile.compute({"mean": [x.mean(), "text"]}, 5, x.mean())
    assert nested == {"mean": [same, "text"]}
    assert other == 5
    assert same == pytest.approx(x.mean().compute())
    assert dasktile.compute(1, [x], traverse=False)[1] == [x]
    assert dasktile.compute() == ()


@pytest.mark.parametrize("scheduler", ["threads", "sync", dask.get])
def test_another_scheduler_computes_with_a_plan_for_this_process(
    client: Client, scheduler: Any
) -> None:
    before = dasktile.metrics(client).tasks
    (result,) = dasktile.compute(noise() + 1, scheduler=scheduler)
    np.testing.assert_allclose(result, (noise() + 1).compute(scheduler="sync"))
    with dask.config.set(scheduler=scheduler):
        assert dasktile.explain(noise() + 1).workers == 1
    assert dasktile.metrics(client).tasks == before


@pytest.mark.parametrize("name", ["a client", "its method", "distributed"])
def test_a_client_may_be_the_scheduler(client: Client, name: str) -> None:
    scheduler = {"a client": client, "its method": client.get}.get(name, name)
    before = dasktile.metrics(client).tasks
    (result,) = dasktile.compute(noise() + 1, scheduler=scheduler)
    np.testing.assert_allclose(result, (noise() + 1).compute(scheduler="sync"))
    with dask.config.set(scheduler=scheduler):
        assert dasktile.explain(noise() + 1).workers == 2
    assert dasktile.metrics(client).tasks > before


def test_an_unknown_scheduler_is_refused_as_dask_does(client: Client) -> None:
    with pytest.raises(ValueError, match="Expected one of"):
        dasktile.compute(noise(), scheduler="quick")


def test_no_task_joins_blocks_on_a_worker(cluster: LocalCluster, client: Client) -> None:
    seen: list[str] = []

    def transition(key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if finish == "processing":
            seen.append(str(key))

    plugin = cluster.scheduler.plugins["dasktile"]
    original = plugin.transition

    def both(*args: Any, **kwargs: Any) -> None:
        transition(*args, **kwargs)
        original(*args, **kwargs)

    plugin.transition = both
    try:
        dasktile.compute(noise() + 1)
        assert seen
        assert not any("finalize" in key for key in seen)
        seen.clear()
        dask.compute(noise() + 1)
        assert any("finalize" in key for key in seen)
    finally:
        del plugin.transition


def test_blocks_are_received_a_limited_number_of_bytes_at_a_time(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "MOST_BYTES", 2 * noise().nbytes // 9)
    asked: list[int] = []
    original = client.gather

    def counted(futures: Any, **options: Any) -> Any:
        asked.append(len(futures))
        return original(futures, **options)

    monkeypatch.setattr(client, "gather", counted)
    with dask.config.set({"dasktile.bundle": 0}):
        (result,) = dasktile.compute(noise())
    monkeypatch.undo()
    np.testing.assert_array_equal(result, noise().compute())
    assert sum(asked) == 9
    assert max(asked) <= 2


def test_nothing_stays_on_the_cluster(cluster: LocalCluster, client: Client) -> None:
    def fails(block: np.ndarray) -> np.ndarray:
        raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError, match="no") as raised:
        dasktile.compute(noise().map_blocks(fails, meta=np.empty((0, 0))))
    assert raised.traceback
    # futures are released by callbacks of the client's event loop
    client.sync(asyncio.sleep, 0)
    assert not client.futures
    dasktile.compute(noise() + 1)
    client.sync(asyncio.sleep, 0)
    assert not client.futures


def test_results_are_returned_as_they_are(client: Client) -> None:
    shared = [1]
    (result,) = dasktile.compute(dask.delayed(lambda: [shared, shared])(), scheduler="sync")
    assert result[0] is result[1]
    with dask.config.set(scheduler="distributed"):
        assert dasktile.compute(noise().sum(), [noise().min()])[1][0] >= 0


@pytest.mark.parametrize("scheduler", ["distributed", "unknown"])
def test_nothing_to_compute_needs_no_scheduler(scheduler: str) -> None:
    assert dasktile.compute(5, scheduler=scheduler) == dask.compute(5, scheduler=scheduler) == (5,)


def test_futures_are_released_if_the_progress_bar_fails(client: Client) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        results.gather(client, [noise() + 1], fails)
    client.sync(asyncio.sleep, 0)
    assert not client.futures


def test_a_progress_bar(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    dasktile.compute(noise() + 1, progress=True)
    shown = capsys.readouterr()
    assert "/" in shown.err
    assert shown.out == ""


def test_a_task_computes_on_its_own_worker(client: Client) -> None:
    def total() -> float:
        return float(dasktile.compute(noise().sum())[0])

    # a task on every thread, each of which waits for tasks
    futures = [client.submit(total, pure=False) for _ in range(3)]
    for value in client.gather(futures):
        assert value == pytest.approx(noise().sum().compute(scheduler="sync"))


def test_an_asynchronous_client(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    x = noise()
    expected = dask.compute(x + 1, x.sum(), scheduler="sync")

    async def computed(**options: Any) -> Any:
        client = Client(cluster.scheduler_address, asynchronous=True, set_as_default=not options)
        async with client:
            options = dict.fromkeys(options, client)
            total = dask.delayed(float)(x.sum())
            array, again, total, other = await dasktile.compute(
                x + 1, {"sum": x.sum()}, total, "no collection", progress=True, **options
            )
            np.testing.assert_array_equal(array, expected[0])
            assert again["sum"] == pytest.approx(expected[1]) == total
            assert other == "no collection"
            await asyncio.sleep(0)
            assert not client.futures
            with pytest.raises(ZeroDivisionError):
                await dasktile.compute(dask.delayed(divmod)(1, 0), **options)
            await asyncio.sleep(0)
            assert not client.futures
            assert await dasktile.compute(5, **options) == (5,)

    asyncio.run(computed())
    assert "/" in capsys.readouterr().err
    for name in ("workers", "scheduler"):
        asyncio.run(computed(**{name: None}))


def test_few_requests_for_many_blocks(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    original = client.gather

    def counted(futures: Any, **options: Any) -> Any:
        asked.append(len(futures))
        return original(futures, **options)

    array = da.ones((200,), chunks=1)
    monkeypatch.setattr(client, "gather", counted)
    with dask.config.set({"dasktile.bundle": 0, "dasktile.method": "none"}):
        (result,) = dasktile.compute(array.map_blocks(np.negative))
    np.testing.assert_array_equal(result, -1)
    assert sum(asked) == 200
    assert len(asked) <= 21


def test_without_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    with dask.config.set(scheduler="threads"):
        total, nested = dasktile.compute(noise().sum(), [noise() + 1], progress=True)
    assert total == pytest.approx(noise().sum().compute(scheduler="sync"))
    np.testing.assert_array_equal(nested[0], (noise() + 1).compute(scheduler="sync"))
    assert "100%" in capsys.readouterr().err


def test_the_client_of_the_argument_computes(cluster: LocalCluster, client: Client) -> None:
    main = threading.get_ident()

    def thread(block: np.ndarray) -> np.ndarray:
        return np.full(block.shape, float(threading.get_ident() == main))

    array = noise().map_blocks(thread, meta=np.empty((0, 0)))
    with dask.config.set(scheduler="sync"):
        assert dasktile.compute(array)[0].all()
        assert not dasktile.compute(array, workers=client)[0].any()


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="method"):
        dasktile.compute(noise(), method="best")
    with pytest.raises(TypeError, match="workers"):
        dasktile.compute(noise(), workers="four")


def test_explain_says_where_results_are_joined(client: Client) -> None:
    large = da.random.default_rng(0).random((1000, 1000), chunks=250)
    told = dasktile.explain(large + large.T)
    assert told.joined == large.nbytes
    assert "dask.compute joins a result of 7.6 MiB on one worker" in str(told)
    assert dasktile.explain(large.sum()).joined == 0
    assert dasktile.explain(large + 1, workers=2).joined == 0
