"""The counts of a cluster, in `metrics`, on the dashboard page and for Prometheus."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, SchedulerPlugin, wait

import dasktile
from dasktile.report.cluster_counts import LayerCounts, Metrics, WorkerCounts
from dasktile.runtime.install import disable, enable
from dasktile.runtime.metrics import metrics
from dasktile.runtime.scheduler.dashboard import (
    add_page,
    layer_bars,
    remove_page,
    tier_totals,
    worker_rows,
)
from dasktile.runtime.scheduler.left import UNNAMED, LeftWorkers
from dasktile.runtime.scheduler.prometheus import add_collector, remove_collector
from dasktile.runtime.worker.plugin import NAME, OTHER, Summary, TileWorkerPlugin, layer_of

#: Seconds after which something hangs.  To start a process may take a minute where others wait
#: for the same processors.
LIMIT = 300

SIZE = 8000
HASH = "0123456789abcdef" * 2


class Stub(SchedulerPlugin):
    """The counts of a scheduler plugin."""

    name = NAME

    def __init__(self) -> None:
        self.predicted: dict[str, int] = {"total-dasktile-1": SIZE}
        self.rows: dict[str, str] = {}
        self.left = LeftWorkers()
        self.held = 3
        self.errors = 0
        self.placed = 7
        self.stolen = 2


class Cluster:
    """Two workers in this process, a client, and their plugins."""

    def __init__(self, cluster: LocalCluster, client: Client) -> None:
        self.client = client
        self.scheduler = cluster.scheduler
        self.plugin = Stub()
        self.on_loop(lambda: self.scheduler.add_plugin(self.plugin))
        client.register_plugin(TileWorkerPlugin())
        self.first, self.second = sorted(self.scheduler.workers)

    def on_loop(self, function: Callable[[], Any]) -> Any:
        async def there() -> Any:
            return function()

        return self.client.sync(there)

    def get(self, path: str) -> str:
        url = f"http://127.0.0.1:{self.scheduler.http_server.port}{path}"
        with urllib.request.urlopen(url, timeout=LIMIT) as answer:
            assert answer.status == 200
            return str(answer.read().decode())


@pytest.fixture(scope="module")
def workers() -> Iterator[LocalCluster]:
    # Or the scheduler drops copies, sooner or later.
    keep_copies = {"distributed.scheduler.active-memory-manager.start": False}
    with (
        dask.config.set(keep_copies),
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
    ):
        yield cluster


@pytest.fixture
def cluster(workers: LocalCluster) -> Iterator[Cluster]:
    # A client of its own takes with it what a failed test still refers to.
    with Client(workers) as client:
        until(lambda: not any(client.run(tasks_known).values()))
        made = Cluster(workers, client)
        yield made
        made.on_loop(lambda: made.scheduler.plugins.pop(NAME))


def tasks_known(dask_worker: Any) -> int:
    return len(dask_worker.state.tasks)


def until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < deadline, "took too long"
        time.sleep(0.02)


def place(client: Client, name: str, worker: str) -> Any:
    """An array of `SIZE` bytes that a worker holds."""
    [future] = client.map(
        np.ones, [SIZE // 8], key=[(name, 0)], workers=[worker], allow_other_workers=False
    )
    wait(future, timeout=LIMIT)
    return future


def total(client: Client, name: str, parts: list[Any], worker: str) -> Any:
    """The sum of arrays, computed on a given worker."""
    return client.submit(sum, parts, key=(name, 0), workers=[worker], allow_other_workers=False)


def test_transfers_are_counted(cluster: Cluster) -> None:
    a = place(cluster.client, "a", cluster.first)
    b = place(cluster.client, "b", cluster.second)
    assert metrics(cluster.client).bytes_received == 0
    c = total(cluster.client, "total-dasktile-1", [a, b], cluster.first)
    np.testing.assert_array_equal(c.result(timeout=LIMIT), 2)
    measured = metrics(cluster.client)
    assert measured.received == {cluster.first: SIZE, cluster.second: 0}
    assert measured.bytes_received == measured.bytes_predicted == SIZE
    assert (measured.tasks, measured.placed, measured.errors) == (3, 7, 0)
    # Two of them hold a copy of b.
    assert measured.layers == {
        "total-dasktile-1": LayerCounts(SIZE, SIZE, 1, SIZE),
        "a": LayerCounts(0, 0, 1, SIZE),
        "b": LayerCounts(0, 0, 2, 2 * SIZE),
    }
    assert measured.workers[cluster.second] == WorkerCounts(0, 1, 1, SIZE)
    assert not measured.missing


def test_bytes_belong_to_the_layer_that_waits(cluster: Cluster) -> None:
    a = place(cluster.client, "a", cluster.first)
    waiting = [
        cluster.client.submit(np.negative, a, key=(name, 0), workers=[cluster.second])
        for name in ("y", "x")
    ]
    wait(waiting, timeout=LIMIT)
    # Both read one copy.  Which of them the second worker hears of first is not said.
    layers = metrics(cluster.client, reset=True).layers
    assert sorted((layers["x"].received, layers["y"].received)) == [0, SIZE]
    # A copy that no task waits for is its own.
    b = place(cluster.client, "b", cluster.first)
    cluster.on_loop(
        lambda: cluster.scheduler.request_acquire_replicas(
            cluster.second, [b.key], stimulus_id="test"
        )
    )
    until(lambda: metrics(cluster.client).bytes_received)
    assert metrics(cluster.client).layers["b"].received == SIZE


def fake_worker(tasks: dict[Any, Any], **metrics: Any) -> Any:
    state = SimpleNamespace(tasks=tasks, nbytes=0)
    return SimpleNamespace(metrics=metrics, plugins={}, data={}, state=state)


def test_first_of_the_layers_that_wait() -> None:
    def task(key: object, state: str = "waiting", **more: Any) -> Any:
        fields = {"waiters": [], "dependents": [], "run_spec": None, **more}
        return SimpleNamespace(key=key, state=state, get_nbytes=lambda: 5, **fields)

    done, late, soon = task(("a", 0), "memory"), task(("c", 0)), task(("b", 1, 2))
    received = [
        task(("own", 0), waiters=[done, late, soon]),
        task(("own", 1), waiters=[done], dependents=[late]),
        task(("own", 2), waiters=[done], dependents=[done]),
        task("name-1"),
    ]
    tasks = {state.key: state for state in received}
    plugin = TileWorkerPlugin()
    worker = fake_worker(tasks)
    plugin.setup(worker)
    for key in tasks:
        plugin.transition(key, "flight", "memory")
    assert plugin.received == {"b": 5, "c": 5, "own": 5, "name": 5}
    assert plugin.errors == 0
    plugin.transition("not there", "flight", "memory")
    assert plugin.errors == 1


def test_reset(cluster: Cluster) -> None:
    a = place(cluster.client, "a", cluster.first)
    y = cluster.client.submit(np.sum, a, key="y", workers=[cluster.second])
    assert y.result(timeout=LIMIT) == SIZE // 8
    assert metrics(cluster.client, reset=True).bytes_received == SIZE
    measured = metrics(cluster.client)
    assert (measured.bytes_received, measured.bytes_predicted, measured.tasks, measured.placed) == (
        0,
        0,
        0,
        0,
    )
    assert measured.layers["a"] == LayerCounts(0, 0, 2, 2 * SIZE)


def last_counts(dask_scheduler: Any) -> int:
    """Tasks of all workers by their last heartbeats."""
    return sum(
        # every worker of the test has sent one
        Summary.of(worker.metrics).tasks  # type: ignore[union-attr]
        for worker in dask_scheduler.workers.values()
    )


def test_workers_that_left_are_counted() -> None:
    with (
        LocalCluster(
            n_workers=3, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        enable(client)
        first, *rest = workers = sorted(cluster.scheduler.workers)
        parts = [place(client, name, at) for name, at in zip("abc", workers, strict=True)]
        total(client, "sum-dasktile-1", parts, first).result(timeout=LIMIT)
        before = metrics(client)
        assert (before.tasks, before.left, before.bytes_received) == (4, 0, 2 * SIZE)
        assert "left" not in str(before)
        until(lambda: client.run_on_scheduler(last_counts) == 4)
        client.retire_workers([first], close_workers=True)
        after = metrics(client)
        assert (after.left, after.of_left.tasks, after.tasks) == (1, 2, 4)
        assert after.of_left.received == 2 * SIZE and after.layers["sum-dasktile-1"].received > 0
        assert after.bytes_received >= 2 * SIZE and after.errors == 0
        assert "counted, too, as of the last heartbeat: 1 worker that left" in str(after)
        assert "1 worker that left" in after._repr_html_()
        assert after.to_dict()["of_left"]["tasks"] == 2 and after.to_dict()["left"] == 1
        # the workers continue to count, and so does the plugin that replaces the first one
        enable(client)
        again = metrics(client, reset=True)
        assert (again.left, again.of_left, again.tasks) == (1, after.of_left, after.tasks)
        assert (again.placed, again.bytes_predicted) == (after.placed, after.bytes_predicted)
        # a heartbeat of the reset has been sent: nothing of earlier counts is added
        client.retire_workers([rest[0]], close_workers=True)
        last = metrics(client)
        assert (last.left, last.of_left.tasks, last.tasks) == (1, 0, 0)


def test_counts_of_workers_that_left() -> None:
    def state(**counts: Any) -> SimpleNamespace:
        return SimpleNamespace(metrics={NAME: counts})

    left = LeftWorkers()
    store = {"spilled": {"disk": 5}, "held": {"memory": 7}, "hits": 2, "blocked": 0.5}
    left.add("a", state(received=100, tasks=3, errors=1, layers={"x": 60, "y": 30}, store=store))
    left.add("b", state(received=50, tasks=1, layers={"x": 50}, store=store))
    left.add("none", SimpleNamespace(metrics={}))
    for address in ("a", "b", "none", "unknown"):
        left.remove(address)
    assert left.report() == {
        "workers": 2,
        "received": {"x": 110, "y": 30, UNNAMED: 10},
        "tasks": 4,
        "errors": 1,
        "store": {"spilled": {"disk": 10}, "hits": 4, "blocked": 1.0},
    }
    # a worker that leaves after a reset, without a heartbeat and with one
    left.add("a", state(tasks=3, since=1.0))
    left.add("b", state(tasks=3, since=1.0))
    left.reset()
    left.add("new", state(tasks=2, since=1.0))
    left._states["b"].metrics[NAME] = {"tasks": 1, "since": 2.0}
    for address in ("a", "b", "new"):
        left.remove(address)
    assert (left.report()["workers"], left.report()["tasks"]) == (3, 3)
    left.add("c", state(tasks=1))
    other = pickle.loads(pickle.dumps(left.without_present()))
    assert other.report() == left.report() and not other._states
    left.restart()
    left.remove("c")
    assert left.report()["workers"] == left.report()["tasks"] == 0


def test_says_so_where_nothing_is_enabled(cluster: Cluster) -> None:
    cluster.on_loop(lambda: cluster.scheduler.plugins.pop(NAME))
    try:
        with pytest.raises(RuntimeError, match=r"dasktile\.enable\(client\)"):
            metrics(cluster.client)
    finally:
        cluster.on_loop(lambda: cluster.scheduler.add_plugin(cluster.plugin))


def test_asynchronous_client(cluster: Cluster) -> None:
    async def main() -> Metrics:
        async with Client(cluster.scheduler.address, asynchronous=True, set_as_default=False) as c:
            measured = await metrics(c)
            assert isinstance(measured, Metrics)
            return measured

    measured = asyncio.run(asyncio.wait_for(main(), LIMIT))
    assert set(measured.workers) == {cluster.first, cluster.second}


def test_transfers_equal_the_prediction_of_a_plan(workers: LocalCluster) -> None:
    x = np.random.default_rng(0).random((400, 400))
    a = da.from_array(x, chunks=(100, 400))
    with Client(workers) as client:
        enable(client)
        try:
            z = dasktile.optimize((a + 1) @ (a - 1), workers=2).persist()
            wait(z, timeout=LIMIT)
            measured = metrics(client)
        finally:
            disable(client)
        with pytest.raises(RuntimeError, match=r"dasktile\.enable\(client\)"):
            metrics(client)
    assert (measured.missing, measured.errors) == ({}, 0)
    assert measured.placed > 0
    assert measured.bytes_predicted > 0
    assert measured.bytes_received > 0
    predicted = [layer for layer in measured.layers.values() if layer.predicted]
    assert sum(layer.received for layer in predicted) <= measured.bytes_received


def test_workers_in_processes() -> None:
    code = f"""
import numpy as np
from distributed import Client, LocalCluster
from dasktile.runtime.metrics import metrics
from dasktile.runtime.worker.plugin import TileWorkerPlugin
from tests.runtime.test_metrics import Stub, place, total

if __name__ == "__main__":
    with LocalCluster(
        n_workers=2, threads_per_worker=1, memory_limit="1 GiB", dashboard_address=None
    ) as cluster, Client(cluster) as client:
        client.register_plugin(Stub())
        client.register_plugin(TileWorkerPlugin())
        first, second = sorted(client.run(lambda: None))
        a = place(client, "a", first)
        total(client, "total-dasktile-1", [a], second).result(timeout={LIMIT})
        measured = metrics(client)
        assert measured.received == {{first: 0, second: {SIZE}}}, measured
        client.unregister_worker_plugin("dasktile")
        measured = metrics(client)
        names = {{first: "without the plugin", second: "without the plugin"}}
        assert measured.missing == names, measured
        assert not client.run(lambda dask_worker: "dasktile" in dask_worker.metrics)[first]
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=LIMIT)


def test_layers_of_keys() -> None:
    assert layer_of(("x-1", 0, 0)) == "x-1"
    assert layer_of("('x-1', 0)") == "x-1"
    assert layer_of((5, 0)) == "5"


def test_leaves_a_worker_as_it_was() -> None:
    worker = fake_worker({}, other=1)
    plugin = pickle.loads(pickle.dumps(TileWorkerPlugin()))
    plugin.setup(worker)
    worker.state = None
    assert plugin.summary(worker) == {}
    assert plugin.errors == 1
    plugin.teardown(worker)
    assert worker.metrics == {"other": 1}


def test_steps_that_are_not_counted_cost_nothing() -> None:
    plugin = TileWorkerPlugin()
    calls = []
    sys.setprofile(lambda frame, event, what: calls.append(event))
    try:
        plugin.transition("x", "waiting", "ready")
    finally:
        sys.setprofile(None)
    # the call itself and its end, and that of taking the profile away: nothing is looked up
    assert calls == ["call", "return", "c_call"]


def test_layers_are_bounded() -> None:
    plugin = TileWorkerPlugin()
    tasks = {
        (f"a{number}", 0): SimpleNamespace(waiters=(), dependents=(), get_nbytes=lambda: 1)
        for number in range(3000)
    }
    worker = fake_worker(tasks)
    plugin.setup(worker)
    for key in tasks:
        plugin.transition(key, "flight", "memory")
    assert plugin.errors == 0
    assert sum(plugin.received.values()) == 3000
    assert plugin.received[OTHER] > 1000
    assert len(plugin.received) <= 1000
    summary = plugin.summary(worker)
    assert (summary["received"], len(summary["layers"])) == (3000, 32)


def test_heartbeats_carry_the_counts(cluster: Cluster) -> None:
    a = place(cluster.client, "a", cluster.first)
    y = cluster.client.submit(np.sum, a, key=("y", 0), workers=[cluster.second])
    wait(y, timeout=LIMIT)
    state = cluster.scheduler.workers[cluster.second]

    def summary() -> Summary:
        return Summary.of(state.metrics) or Summary()

    until(lambda: summary().tasks == 1 and summary().tiles == 2 and "y" in summary().layers)
    assert (summary().received, summary().tasks, summary().layers) == (SIZE, 1, {"y": SIZE})
    assert summary().held > SIZE
    assert Summary.of({}) is None
    assert Summary.of({NAME: {"received": 3, "newer": 1}}) == Summary(3)


# Dashboard --------------------------------------------------------------------------


def test_page(cluster: Cluster) -> None:
    pytest.importorskip("bokeh")
    from bokeh.client import pull_session
    from bokeh.models import Div, Plot

    scheduler, plugin = cluster.scheduler, cluster.plugin
    before = list(scheduler.http_application.applications)
    a = place(cluster.client, "a", cluster.first)
    y = cluster.client.submit(np.sum, a, key=("y", 0), workers=[cluster.second])
    wait(y, timeout=LIMIT)
    for _ in range(2):  # the second replaces the first
        assert cluster.on_loop(lambda: add_page(scheduler, plugin))
    try:
        assert len(scheduler.http_application.applications) == len(before) + 1
        assert "data-root-id" in cluster.get("/dasktile")
        # What a browser shows comes by a websocket.
        session = pull_session(url=f"http://127.0.0.1:{scheduler.http_server.port}/dasktile")
        try:
            assert session.document.title == "Dask: dasktile"
            assert len(list(session.document.select({"type": Plot}))) == 4
            texts = [div.text for div in session.document.select({"type": Div})]
            assert any("by layer" in text for text in texts)
        finally:
            session.close()
        assert cluster.get("/status").count('href="dasktile"') == 1
    finally:
        cluster.on_loop(lambda: remove_page(scheduler))
    with pytest.raises(urllib.error.HTTPError, match="404"):
        cluster.get("/dasktile")
    assert 'href="dasktile"' not in cluster.get("/status")
    assert scheduler.http_application.applications == before
    assert plugin.errors == 0


def test_content_of_the_page(cluster: Cluster) -> None:
    pytest.importorskip("bokeh")
    from bokeh.document import Document

    from dasktile.runtime.scheduler.dashboard import _Charts

    a = place(cluster.client, "a", cluster.first)
    y = total(cluster.client, f"total-dasktile-{HASH}", [a], cluster.second)
    wait(y, timeout=LIMIT)
    state = cluster.scheduler.workers[cluster.second]

    def summary() -> Summary:
        return Summary.of(state.metrics) or Summary()

    until(lambda: y.key[0] in summary().layers and summary().tiles == 2)
    cluster.plugin.predicted = {f"total-dasktile-{HASH}": 2 * SIZE}

    def look() -> _Charts:
        charts = _Charts(cluster.scheduler, cluster.plugin)
        add_page(cluster.scheduler, cluster.plugin)
        charts.update()
        remove_page(cluster.scheduler)
        cluster.plugin.predicted = {}
        charts.update()  # changes nothing any more
        Document().add_root(charts.root)
        return charts

    charts = cluster.on_loop(look)
    assert cluster.plugin.errors == 0
    assert charts.layers.source.data == {
        "name": ["total"],
        "predicted": [2 * SIZE],
        "predicted text": ["15.6 KiB"],
        "received": [SIZE],
        "received text": ["7.8 KiB"],
    }
    workers = charts.workers.source.data
    addresses = [cluster.first, cluster.second]
    assert workers["name"] == [
        f"{address.rpartition('://')[2]} ({number})" for number, address in enumerate(addresses)
    ]
    by_address = dict(
        zip(workers["about"], zip(workers["received"], workers["tiles"], strict=True), strict=True)
    )
    assert by_address == {cluster.first: ("0 B", "1"), cluster.second: ("7.8 KiB", "2")}
    assert workers["memory from"] == [0, 0]
    assert workers["disk from"] == workers["memory to"] == workers["memory"]
    assert charts.layers.chart.y_range.factors == ["total"]
    tasks = dict(zip(*map(charts.tasks.source.data.get, ("name", "tasks")), strict=True))
    assert tasks == {"held back": 3, "placed": 7, "run": 2}
    assert not charts.tiers.chart.visible
    assert "2 of 2 workers" in charts.summary.text
    assert "0 errors" in charts.summary.text


def test_bars_are_bounded() -> None:
    predicted = {f"x{number}": number for number in range(99)}
    bars = layer_bars(predicted, {"cut": "x1"}, [Summary(layers={"cut": 500})])
    assert len(bars) == 40
    assert list(bars.items())[:2] == [("x1", (1, 500)), ("x98", (98, 0))]
    workers = {
        f"tcp://10.0.0.1:{number}": (number, Summary(held=number, received=2))
        for number in range(999)
    }
    rows = worker_rows(workers)
    assert len(rows) == 40
    assert [*rows][:2] == ["10.0.0.1:960 (960)", "10.0.0.1:961 (961)"]
    assert rows["960 others, mean"].on == {"memory": 479}
    assert rows["960 others, mean"].received == 2


def test_rows_of_workers_and_tiers() -> None:
    store = {"held": {"memory": 2, "disk": 5}, "spilled": {"disk": 3}, "read_back": {"disk": 1}}
    summaries = [Summary(held=7, store=store), Summary(held=4), Summary(store=store)]
    named = dict(zip(("tcp://a:1", "tcp://b:2", "tcp://b:3"), ("x", "y", "y"), strict=True))
    workers = {
        address: (name, summary)
        for (address, name), summary in zip(named.items(), summaries, strict=True)
    }
    rows = worker_rows(workers)
    assert {name: row.on for name, row in rows.items()} == {
        "x": {"memory": 2, "disk": 5},
        "b:2": {"memory": 4},
        "b:3": {"memory": 2, "disk": 5},
    }
    assert tier_totals(summaries) == {"disk": (6, 2)}
    device = Summary(store={"spilled": {"memory": 1, "disk": 0}, "read_back": {}})
    assert tier_totals([device]) == {"memory": (1, 0), "disk": (0, 0)}


def test_no_dashboard_no_page() -> None:
    scheduler: Any = SimpleNamespace(http_application=SimpleNamespace(applications=[]))
    plugin = Stub()
    assert not add_page(scheduler, plugin)
    remove_page(scheduler)
    assert plugin.errors == 0
    assert not add_page(None, plugin)  # type: ignore[arg-type]
    assert plugin.errors == 1


# Prometheus -------------------------------------------------------------------------


def test_prometheus(cluster: Cluster) -> None:
    pytest.importorskip("prometheus_client")
    scheduler, plugin = cluster.scheduler, cluster.plugin
    a = place(cluster.client, "a", cluster.first)
    y = cluster.client.submit(np.sum, a, key=("y", 0), workers=[cluster.second])
    wait(y, timeout=LIMIT)
    state = scheduler.workers[cluster.second]
    until(lambda: "y" in (Summary.of(state.metrics) or Summary()).layers)
    for _ in range(2):
        assert add_collector(scheduler, plugin)
    try:
        lines = cluster.get("/metrics").splitlines()
        assert f'dasktile_bytes_received_total{{worker="{cluster.second}"}} {SIZE}.0' in lines
        assert f"dasktile_bytes_predicted_total {SIZE}.0" in lines
        assert "dasktile_tasks_placed_total 7.0" in lines
        assert "dasktile_tasks_stolen_total 2.0" in lines
        assert "dasktile_plugin_errors_total 0.0" in lines
        plugin.predicted = None  # type: ignore[assignment]
        text = cluster.get("/metrics")
        assert "dasktile_bytes" not in text
        assert "dask_scheduler_workers" in text
        assert plugin.errors == 1
    finally:
        remove_collector(scheduler)
        remove_collector(scheduler)
    assert "dasktile_bytes" not in cluster.get("/metrics")


def test_without_prometheus_client(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert not add_collector(cluster.scheduler, cluster.plugin)
    remove_collector(cluster.scheduler)
    assert cluster.plugin.errors == 0
