"""How fast a cluster is: measured once, kept for everybody, used by plans."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import dask
import dask.array as da
import pytest
from distributed import Client, LocalCluster

import dasktile
from dasktile import config
from dasktile.cluster.calibration import KEY, Calibration, _keep, calibrate
from dasktile.cluster.target import machine
from dasktile.report.describing import describe_plan
from dasktile.report.formatting import format_seconds
from dasktile.tiling.plan import Price, TilingPlan
from tests.report.test_explanation import gram

FAST = Calibration(bandwidth=2e9, task_seconds=1e-3, flops=50e9, workers=2, threads=2)

#: Seconds that anything here may take on a machine that others use, too.
PATIENCE = 60


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit="1 GiB", dashboard_address=":0"
        ) as cluster,
        Client(cluster, timeout=PATIENCE) as client,
    ):
        yield client


@pytest.fixture
def forgotten(client: Client) -> Iterator[None]:
    yield
    client.set_metadata(KEY, None)


def tasks(client: Client) -> list[Any]:
    actual: list[Any] = client.run_on_scheduler(lambda dask_scheduler: [*dask_scheduler.tasks])
    return actual


def submitted(client: Client) -> int:
    """Tasks that the scheduler ever heard of."""
    actual: int = client.run_on_scheduler(
        lambda dask_scheduler: sum(
            sum(prefix.state_counts.values()) for prefix in dask_scheduler.task_prefixes.values()
        )
    )
    return actual


def check_sane(calibration: Calibration) -> None:
    assert 0 < calibration.task_seconds < 1
    assert calibration.flops > 1e6
    assert calibration.memory is not None and calibration.memory > 1e5
    assert calibration.bandwidth is None or calibration.bandwidth > 1e5


def product() -> da.Array:
    x = da.random.default_rng(0).random((2000, 2000), chunks=(2000, 250))
    return x.T @ x


# Measured ---------------------------------------------------------------------------


@pytest.mark.usefixtures("forgotten")
def test_measures_a_cluster_and_leaves_nothing_there(client: Client) -> None:
    assert machine(client).calibration is None
    calibration = calibrate(client)
    assert isinstance(calibration, Calibration)
    check_sane(calibration)
    assert calibration.bandwidth is not None
    assert (calibration.workers, calibration.threads) == (2, 2)
    assert client.get_metadata(KEY) == calibration.to_dict()
    # releases travel behind results
    patience = time.monotonic() + PATIENCE
    while tasks(client) and time.monotonic() < patience:
        time.sleep(0.02)
    assert tasks(client) == []

    ran = submitted(client)
    assert calibrate(client) == calibration
    with Client(client.scheduler.address, timeout=PATIENCE, set_as_default=False) as other:
        assert calibrate(other) == calibration
        assert machine(other).calibration == machine().calibration == calibration
    assert submitted(client) == ran

    client.set_metadata(KEY, replace(calibration, workers=7).to_dict())
    assert calibrate(client).workers == 7  # stale, and still in use
    again = calibrate(client, refresh=True)
    assert again.workers == 2
    assert submitted(client) > ran


def test_asynchronous_client_and_one_process() -> None:
    async def run() -> Calibration:
        async with (
            LocalCluster(
                n_workers=2,
                threads_per_worker=1,
                processes=False,
                dashboard_address=":0",
                asynchronous=True,
            ) as cluster,
            Client(cluster, asynchronous=True, set_as_default=False) as client,
        ):
            calibration: Calibration = await calibrate(client)
            assert await calibrate(client) == calibration
            assert machine(client).calibration is None
            return calibration

    calibration = asyncio.run(asyncio.wait_for(run(), PATIENCE))
    check_sane(calibration)
    # two workers of one process hand arrays to each other without sending them
    assert calibration.bandwidth is None
    assert (calibration.workers, calibration.threads) == (1, 2)


def test_cluster_without_workers() -> None:
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False, timeout=PATIENCE) as empty,
        pytest.raises(ValueError, match="no workers"),
    ):
        calibrate(empty)


def test_wrong_refresh_is_named(client: Client) -> None:
    with pytest.raises(TypeError, match=r"refresh must be .*; got 1"):
        calibrate(client, refresh=1)  # type: ignore[arg-type]


# Kept -------------------------------------------------------------------------------


def test_outlives_a_restart() -> None:
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False, timeout=PATIENCE) as client,
    ):
        for calibration in (FAST, replace(FAST, workers=3)):
            client.sync(_keep, client, calibration)
            client.set_metadata(["other"], 1)
            client.restart()
            assert client.get_metadata(["other"], default=None) is None
            assert calibrate(client) == calibration


def test_calibration_travels_as_numbers() -> None:
    for calibration in (FAST, replace(FAST, bandwidth=None, workers=1), replace(FAST, memory=1e9)):
        assert Calibration.from_dict(json.loads(json.dumps(calibration.to_dict()))) == calibration


@pytest.mark.parametrize(
    "said",
    [
        None,
        4,
        {},
        {**FAST.to_dict(), "flops": 0},
        {**FAST.to_dict(), "flops": "fast"},
        {**FAST.to_dict(), "bandwidth": float("nan")},
        {**FAST.to_dict(), "memory": -1},
        {**FAST.to_dict(), "task_seconds": True},
        {**FAST.to_dict(), "workers": None},
    ],
)
def test_anything_else_is_no_calibration(said: object) -> None:
    assert Calibration.from_dict(said) is None


def test_calibration_reads_well() -> None:
    assert str(FAST) == (
        "2 workers, 2 threads: 1,907 MiB/s between two workers, 1 ms a task, 50 Gflop/s a thread"
    )
    assert str(replace(FAST, memory=3e9)).endswith("50 Gflop/s and 2,861 MiB/s to memory a thread")
    assert "no bandwidth" in str(replace(FAST, bandwidth=None))


# Used -------------------------------------------------------------------------------


def test_measurements_stand_in_for_defaults() -> None:
    calibration = config.tiling_settings(FAST)
    assert calibration.bytes_per_second == 2e9
    assert calibration.work_per_second == 50e9
    assert calibration.task_bytes == pytest.approx(2e6)
    default = config.tiling_settings()
    alone = config.tiling_settings(replace(FAST, bandwidth=None))
    assert alone.bytes_per_second == default.bytes_per_second
    assert alone.task_bytes == pytest.approx(1e-3 * default.bytes_per_second)
    assert replace(
        calibration,
        bytes_per_second=default.bytes_per_second,
        work_per_second=default.work_per_second,
        task_bytes=default.task_bytes,
    ) == default  # fmt: skip


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("cost.bandwidth", "bytes_per_second", 123e6),
        ("cost.flops", "work_per_second", 7e9),
        ("cost.task-bytes", "task_bytes", 3e6),
    ],
)
def test_what_the_user_sets_is_not_overridden(name: str, field: str, value: float) -> None:
    with dask.config.set({f"dasktile.{name}": value}):
        calibration = config.tiling_settings(FAST)
    assert getattr(calibration, field) == value
    others = {"bytes_per_second", "work_per_second"} - {field}
    measured = config.tiling_settings(FAST)
    assert all(getattr(calibration, other) == getattr(measured, other) for other in others)
    if name == "cost.bandwidth":
        assert calibration.task_bytes == pytest.approx(1e-3 * 123e6)


@pytest.mark.parametrize(("seconds", "least", "most"), [(1e-12, 0, 0.1e6), (1e6, 10e6, 100e6)])
def test_silly_measurements_are_bounded(seconds: float, least: float, most: float) -> None:
    assert least < config.tiling_settings(replace(FAST, task_seconds=seconds)).task_bytes < most


@pytest.mark.usefixtures("forgotten")
def test_plans_use_it(client: Client) -> None:
    y = product()
    before = dasktile.explain(y, workers=client)
    assert (before.seconds_before, before.seconds_after) == (None, None)
    assert "roughly" not in str(before)
    client.set_metadata(KEY, FAST.to_dict())
    for explanation in (dasktile.explain(y, workers=client), dasktile.explain(y)):
        assert explanation.seconds_before is not None and explanation.seconds_after is not None
        # 2 * 2000**3 operations on 2 threads at 50 Gflop/s
        assert explanation.seconds_before > 0.08 < explanation.seconds_after < 10
        assert explanation.seconds_before > explanation.seconds_after
        assert (
            "predicted run time" in str(explanation)
            and "predicted run time" in explanation._repr_html_()
        )
        assert explanation.to_dict()["seconds_after"] == explanation.seconds_after
    assert machine(client).settings() == config.tiling_settings(FAST)
    assert machine(4).calibration is None
    assert dasktile.explain(y, workers=4).seconds_after is None

    client.set_metadata(KEY, replace(FAST, task_seconds=10e-3).to_dict())
    dearer = dasktile.explain(y, workers=client)
    assert dearer.tasks_after <= explanation.tasks_after
    client.set_metadata(KEY, "not a calibration")
    assert dasktile.explain(y, workers=client).seconds_after is None


# Predicted --------------------------------------------------------------------------


def plan(tiled: bool = True) -> TilingPlan:
    def price(moved: int, tasks: int) -> Price:
        return Price((0, 0, moved), (0, 0, 0), (0, 0, tasks), (1e9, 3e9, 1e9, 1e9), (0, 0, 0))

    after = price(4_000_000, 10) if tiled else price(40_000_000, 1000)
    return replace(gram(tiled), before=price(40_000_000, 1000), after=after)


def test_seconds_are_shown() -> None:
    said = str(describe_plan(plan(), seconds=(200.0, 3.42)))
    assert "predicted run time: about 3.4 s instead of 3.3 min" in said
    kept = str(describe_plan(plan(tiled=False), seconds=(0.0123, 0.0123)))
    assert "predicted run time: about 12 ms\n" in kept


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 ms"),
        (0.0123, "12 ms"),
        (0.994, "990 ms"),
        (0.996, "1.0 s"),
        (99, "99 s"),
        (100, "1.7 min"),
        (7200, "2.0 h"),
        (1e7, "2,800 h"),
    ],
)
def test_seconds_for_people(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
