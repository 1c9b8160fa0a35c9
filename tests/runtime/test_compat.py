"""Without a name of distributed, one feature is off, with one warning, and values are right."""

from __future__ import annotations

import logging
import pkgutil
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, Scheduler, Worker, wait

import dasktile
from dasktile import preload
from dasktile._compat.distributed import (
    checks,
    execution,
    metadata,
    pages,
    scheduling,
    serialization,
    storage,
)
from dasktile._compat.distributed.features import WITHOUT, Feature, Internal
from dasktile._compat.distributed.overrides import install, uninstall
from dasktile._compat.distributed.table import PROCESS, SCHEDULER, WORKER
from dasktile.cluster import calibration
from dasktile.cluster.target import machine
from dasktile.runtime.install import NAME
from dasktile.runtime.nextuse import USES
from dasktile.runtime.scheduler.priorities import ORDER
from dasktile.runtime.worker.spilling import Spilling
from dasktile.runtime.worker.store import TileStore
from dasktile.tiling.calibration import Calibration
from tests.gated import LIMIT
from tests.support import BY_TARGET

#: A table has every module, or every private name.
pytestmark = pytest.mark.every_case

RNG = np.random.default_rng(0)
A = RNG.random((40, 16))
EXPECTED = (A - A.mean(axis=0)).T @ A

#: Every name that the plugins need, once.
NAMES = sorted(
    {
        (each.owner, each.name): each
        for table in (SCHEDULER, WORKER)
        for entries in table.values()
        for each in entries
    }.values(),
    key=str,
)
CALLED = [each for each in NAMES if each.signature or each.call is not None]

#: Names that distributed itself can do without, on a cluster that runs already.
REMOVED = [
    ("distributed.dashboard.core", "BokehApplication"),
    ("distributed.dashboard.scheduler", "template_variables"),
    ("distributed.dashboard.components.scheduler", "BOKEH_THEME"),
    ("distributed.dashboard.components.scheduler", "env"),
    ("distributed.metrics", "monotonic"),
    ("distributed.utils", "key_split_group"),
    ("distributed.utils", "nbytes"),
    ("distributed.worker_state_machine", "RemoveReplicasEvent"),
    ("distributed.worker_state_machine", "RescheduleEvent"),
    ("distributed.worker_state_machine:ExecuteFailureEvent", "from_exception"),
    ("distributed.sizeof", "safe_sizeof"),
    ("distributed.spill", "SpillBuffer"),
    ("distributed.system", "MEMORY_LIMIT"),
    ("distributed.protocol.compression", "get_compression_settings"),
    ("distributed.protocol.serialize", "serialize_bytelist"),
    ("distributed.protocol.serialize", "deserialize_bytes"),
]

#: Functions that use the names of a feature, and nothing of another.
FUNCTIONS = {
    "scheduler": {
        Feature.PLACEMENT: (
            *("restrict", "nothing_to_run", "count_processing", "all_run", "publish", "withdraw"),
            "array_names",
        ),
        Feature.ROOTS: (
            *("limits_roots", "slots", "first_queued", "transition", "now"),
            "restart_timeouts",
        ),
        Feature.STEALING: ("keep_from_stealing",),
        Feature.LATE_WORKERS: ("may_steal", "steal", "is_in_flight"),
        Feature.REPLICAS: ("swap_policy", "reduce_replicas", "drop"),
        Feature.ORDER: ("set_priority",),
        Feature.HINTS: ("annotate", "send_to_worker"),
        Feature.METRICS: ("add_page", "send_to_worker"),
        Feature.PAGE: ("add_page", "remove_page", "style"),
    },
    "worker": {
        Feature.METRICS: ("add_metric", "remove_metric", "held_bytes", "layer_name"),
        Feature.SPILLING: (
            *("limits", "default_data", "replace_data", "methods_of", "replace_methods"),
            *("add_callback", "process_memory", "outgoing", "actors", "is_running"),
            *("note_reading", "run_later", "failed", "lose", "compression", "machine_memory"),
            *("safe_sizeof", "to_frames", "from_buffer"),
        ),
        Feature.HINTS: ("handle_message", "send_to_worker"),
        Feature.PREFETCH: ("next_tasks",),
    },
}
TABLES = {"scheduler": SCHEDULER, "worker": WORKER}

#: The module that defines each of these functions.
MODULE_OF = {
    name: module
    for module in (execution, metadata, pages, scheduling, serialization, storage)
    for name, value in vars(module).items()
    if getattr(value, "__module__", None) == module.__name__
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    # the memory of the test's process must neither pause the workers nor reduce their budget
    with (
        dask.config.set({"distributed.worker.memory.pause": False}),
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            dashboard_address=":0",
            memory_limit="16 GiB",
        ) as cluster,
    ):
        yield cluster


@pytest.fixture(scope="module")
def one_client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        yield client


@pytest.fixture
def client(one_client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of a cluster that is restored after each test, even a failed one."""
    yield one_client
    monkeypatch.undo()
    dasktile.disable(one_client)


@pytest.fixture(autouse=True)
def first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No warning was given in this process yet."""
    monkeypatch.setattr(checks, "_warned", set())


def affected(is_lacking: Callable[[Internal], bool]) -> set[tuple[str, Feature]]:
    """Features, by the side that has them, that need such a name."""
    return {
        (side, feature)
        for side, table in TABLES.items()
        for feature, entries in table.items()
        if any(map(is_lacking, entries))
    }


def pretend(monkeypatch: pytest.MonkeyPatch, lacking: Internal, value: Any = None) -> None:
    """Let the lookup of a name in the table fail, or return another value."""
    lookup = checks.lookup

    def changed(internal: Internal, objects: Any) -> Any:
        if str(internal) != str(lacking):
            return lookup(internal, objects)
        if value is None:
            raise AttributeError(internal.name)
        return value

    monkeypatch.setattr(checks, "lookup", changed)


def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts calls of the functions that use names of distributed."""
    counts: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return function(*args, **kwargs)

        return counted

    for features in FUNCTIONS.values():
        for name in {name for names in features.values() for name in names}:
            function = getattr(MODULE_OF[name], name)
            monkeypatch.setattr(MODULE_OF[name], name, counting(name, function))
    return counts


@contextmanager
def logged() -> Iterator[list[str]]:
    """Warnings in the log of this process."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    checks.logger.addHandler(handler)
    try:
        yield messages
    finally:
        checks.logger.removeHandler(handler)


def state_of(cluster: LocalCluster) -> Any:
    """The state that the plugins change."""
    scheduler = cluster.scheduler
    # a cluster object writes its name there at any time
    metadata = {key: value for key, value in scheduler.task_metadata.items()
                if key != "cluster-manager-info"}  # fmt: skip
    return [
        sorted(scheduler.plugins),
        sorted(scheduler.worker_plugins),
        sorted(type(policy).__name__ for policy in scheduler.extensions["amm"].policies),
        metadata,
        list(scheduler.http_application.applications),
        [
            [
                *(worker.data, worker.state.data, worker.execute, worker.gather_dep),
                *(dict(worker.handlers), sorted(worker.metrics), sorted(worker.plugins)),
                sorted(worker.periodic_callbacks),
            ]
            for worker in cluster.workers.values()
        ],
    ]


def computes(client: Client) -> None:
    a = da.from_array(A, chunks=(10, 16))
    with dask.config.set({"dasktile.tiling.usual-task": "1 kB"}):
        y = dasktile.optimize((a - a.mean(axis=0)).T @ a, workers=2)
    np.testing.assert_allclose(client.compute(y).result(timeout=LIMIT), EXPECTED)


def works_without(
    monkeypatch: pytest.MonkeyPatch,
    cluster: LocalCluster,
    client: Client,
    features: set[tuple[str, Feature]],
) -> None:
    """Check that only the given features are off, with one warning each, and are never called."""
    assert features
    before = state_of(cluster)
    counts = calls(monkeypatch)
    with logged() as messages, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dasktile.enable(client)
        computes(client)
    warned = [str(each.message) for each in caught if "dasktile" in str(each.message)]
    expected = sorted(repr(feature.value) for _, feature in features)
    expected = sorted(set(expected))
    for given in (warned, messages):
        assert sorted(message.split("feature ")[1].split(":")[0] for message in given) == expected
    for side, feature in features:
        for name in FUNCTIONS[side][feature]:
            assert not counts[name], (feature, name)
    plugin: Any = cluster.scheduler.plugins[NAME]
    assert plugin.errors == 0
    assert bool(plugin.placed) == (("scheduler", Feature.PLACEMENT) not in features)
    spills = ("worker", Feature.SPILLING) not in features
    for worker in cluster.workers.values():
        assert isinstance(worker.data, TileStore) == spills
        assert worker.plugins[NAME].plugin.errors == 0
    dasktile.disable(client)
    assert state_of(cluster) == before
    assert client.submit(abs, -1, pure=False).result(timeout=LIMIT) == 1
    for worker in cluster.workers.values():
        worker.stream_handlers.pop(USES, None)


# Every name ----------------------------------------------------------------------------


def test_all_features_are_there(
    monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster, client: Client
) -> None:
    before = state_of(cluster)
    counts = calls(monkeypatch)
    with logged() as messages, warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        dasktile.enable(client)
        computes(client)
        with dask.annotate(**{ORDER: 1}):
            client.submit(abs, -1, pure=False).result(timeout=LIMIT)
        dasktile.disable(client)
    assert messages == []
    assert state_of(cluster) == before
    # without a task that fails, a result that is lost, or anything that must be spilled
    rare = {
        *(
            "nothing_to_run",
            "array_names",
            "first_queued",
            "restart_timeouts",
            "now",
            "drop",
            "style",
            "set_priority",
            "steal",
            "is_in_flight",
        ),
        *("note_reading", "run_later", "failed", "lose", "to_frames", "from_buffer"),
        *("next_tasks", "layer_name", "machine_memory", "is_running"),
    }
    functions = {
        name for features in FUNCTIONS.values() for names in features.values() for name in names
    }
    assert functions - rare == functions & counts.keys() - rare


@pytest.mark.parametrize("name", [each for each in NAMES if not each.instead], ids=str)
def test_a_name_is_missing(
    monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster, client: Client, name: Internal
) -> None:
    pretend(monkeypatch, name)
    works_without(monkeypatch, cluster, client, affected(lambda each: str(each) == str(name)))


@pytest.mark.parametrize("name", [each for each in NAMES if each.instead], ids=str)
def test_a_name_is_missing_for_which_there_is_something_else(
    monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster, client: Client, name: Internal
) -> None:
    owner = name.owner.removeprefix("worker.")
    for worker in cluster.workers.values():
        objects = {"worker": worker}
        assert checks.problem(replace(name, instead=""), objects) is None, owner
    pretend(monkeypatch, name)
    with logged() as messages:
        for worker in cluster.workers.values():
            assert checks.check_worker(worker, spills=True) == {}
    assert messages == []


@pytest.mark.parametrize("name", CALLED, ids=str)
def test_a_function_takes_other_arguments(
    monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster, client: Client, name: Internal
) -> None:
    def other(one: Any, two: Any, three: Any, four: Any, five: Any, six: Any) -> None:
        raise AssertionError("is not to be called")

    pretend(monkeypatch, name, other)
    works_without(monkeypatch, cluster, client, affected(lambda each: str(each) == str(name)))


@pytest.mark.parametrize(("owner", "name"), REMOVED)
def test_a_name_is_removed_from_distributed(
    monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster, client: Client, owner: str, name: str
) -> None:
    monkeypatch.delattr(pkgutil.resolve_name(owner), name)
    features = affected(lambda each: (each.owner, each.name) == (owner, name))
    works_without(monkeypatch, cluster, client, features)


@pytest.mark.parametrize("name", ["execute", "gather_dep"])
def test_a_method_that_is_replaced_has_another_parameter(
    monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster, client: Client, name: str
) -> None:
    method = getattr(Worker, name)

    async def changed(self: Worker, *args: Any, hint: Any = None, **kwargs: Any) -> Any:
        return await method(self, *args, **kwargs)

    monkeypatch.setattr(Worker, name, changed)
    works_without(monkeypatch, cluster, client, {("worker", Feature.SPILLING)})


@pytest.mark.parametrize("name", ["get_data", "update_data"])
def test_a_handler_that_is_replaced_has_another_parameter(
    monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster, client: Client, name: str
) -> None:
    def changed(handler: Any) -> Any:
        if name == "get_data":
            return lambda comm, keys, who=None, serializers=None, hint=None: handler(
                comm, keys, who, serializers
            )
        return lambda data, stimulus_id=None, hint=None: handler(data, stimulus_id)

    for worker in cluster.workers.values():
        monkeypatch.setitem(worker.handlers, name, changed(worker.handlers[name]))
    works_without(monkeypatch, cluster, client, {("worker", Feature.SPILLING)})


# One feature is off, and something happens that it is for ------------------------------


def test_a_worker_without_hints_spills_and_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, Internal("worker", "stream_handlers", ""))
    pretend(monkeypatch, Internal("worker.state", "ready", ""))
    size = 100_000
    with (
        dask.config.set(BY_TARGET),
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            dashboard_address=None,
            memory_limit=f"{10 * size} B",
        ) as cluster,
        Client(cluster) as client,
    ):
        with pytest.warns(UserWarning) as caught:
            dasktile.enable(client)
        features = [Feature.HINTS.value, Feature.PREFETCH.value]
        messages = [str(each.message) for each in caught if "dasktile" in str(each.message)]
        assert len(messages) == 2
        assert all(feature in message for feature, message in zip(features, messages, strict=True))
        tiles = client.map(lambda each: np.full(size // 8, each), range(20), pure=False)
        wait(tiles, timeout=LIMIT)
        [worker] = cluster.workers.values()
        assert worker.data.spilled_total.memory > 0
        totals = client.map(np.sum, tiles)
        assert client.gather(totals) == [each * (size // 8) for each in range(20)]
        assert USES not in worker.stream_handlers
        assert worker.plugins[NAME].plugin.errors == 0


def test_a_worker_that_cannot_take_the_store_is_named_with_its_error(
    monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster, client: Client
) -> None:
    first = min(worker.address for worker in cluster.workers.values())
    attach = Spilling.attach

    def fails_on_one(self: Spilling) -> None:
        if self.worker.address == first:
            raise OSError("the disk is full")
        attach(self)

    monkeypatch.setattr(Spilling, "attach", fails_on_one)
    with logged(), pytest.warns(UserWarning, match="could not install its store") as caught:
        dasktile.enable(client)
    [message] = [str(each.message) for each in caught if "its store" in str(each.message)]
    assert message.endswith(f"distributed: {first} (OSError('the disk is full'))")
    computes(client)
    dasktile.disable(client)


# Without a plugin ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plugins", "worker_plugins", "remove_plugin"])
def test_nothing_is_enabled_without_plugins(
    monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster, client: Client, name: str
) -> None:
    before = state_of(cluster)
    if name == "remove_plugin":
        monkeypatch.delattr(Scheduler, name)
    else:
        pretend(monkeypatch, Internal("scheduler", name, ""))
    for _ in range(2):
        with logged() as messages, pytest.warns(UserWarning, match=r"dasktile\.enable") as caught:
            dasktile.enable(client)
        assert len([each for each in caught if "dasktile" in str(each.message)]) == 1
        assert len(messages) == (_ == 0)
    assert state_of(cluster) == before
    computes(client)
    with pytest.raises(RuntimeError, match="not enabled"):
        dasktile.metrics(client)
    dasktile.disable(client)


@pytest.mark.parametrize(
    ("server", "method"), [(Scheduler, "register_scheduler_plugin"), (Worker, "plugin_add")]
)
def test_preloading_without_a_way_to_add_plugins(
    monkeypatch: pytest.MonkeyPatch,
    cluster: LocalCluster,
    client: Client,
    server: type,
    method: str,
) -> None:
    monkeypatch.delattr(server, method)
    servers = [cluster.scheduler, *cluster.workers.values()]
    with logged() as messages:
        for each in servers:
            client.sync(preload.dask_setup, each)
    assert len(messages) == 1
    assert Feature.PRELOAD.value in messages[0]
    assert not any(NAME in each.plugins for each in servers)


def test_planning_on_a_scheduler_that_cannot_be_found(
    monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    monkeypatch.delattr(Scheduler, "_instances")
    actual = []
    with logged() as messages:
        for _ in range(2):
            thread = threading.Thread(
                target=lambda: actual.append(machine()), name="Dask-Offload_0"
            )
            thread.start()
            thread.join(LIMIT)
    assert [each.workers for each in actual] == [1, 1]
    assert len(messages) == 1
    assert Feature.OWN_SCHEDULER.value in messages[0]
    with dask.config.set({"array_optimize": dasktile.array_optimize}):
        a = da.from_array(A, chunks=(10, 16))
        np.testing.assert_allclose((a.T @ a).compute(), A.T @ A)


@pytest.mark.parametrize("name", ["task_metadata", "plugins", "add_plugin"])
def test_a_calibration_that_a_restart_loses(
    monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster, client: Client, name: str
) -> None:
    pretend(monkeypatch, Internal("scheduler", name, ""))
    plugins = sorted(cluster.scheduler.plugins)
    actual = Calibration(None, 1e-3, 1e9, 2, 2)
    with pytest.warns(UserWarning, match=Feature.CALIBRATION.value):
        client.sync(calibration._keep, client, actual)
    assert dasktile.calibrate(client) == actual
    assert sorted(cluster.scheduler.plugins) == plugins
    cluster.scheduler.task_metadata.clear()


@pytest.mark.parametrize(
    "owner, name", sorted({(each.owner, each.name) for each in PROCESS[Feature.EMULATED]})
)
def test_emulated_arrays_without_a_way_to_send_them(
    monkeypatch: pytest.MonkeyPatch, owner: str, name: str
) -> None:
    assert checks.check_emulated() is None
    monkeypatch.delattr(pkgutil.resolve_name(owner), name)

    class Unused:
        """A type of this test alone: registrations cannot be taken back."""

    with logged() as messages:
        assert Feature.EMULATED.value in str(checks.check_emulated())
        serialization.register_serialization(
            Unused, lambda value: ({}, []), lambda header, frames: 0
        )
    assert len(messages) == 1


# The mechanism -------------------------------------------------------------------------


def test_uninstall_restores_the_original() -> None:
    class Owner:
        def method(self) -> str:
            return "of the class"

    owner = Owner()
    handlers = {"there": 1}

    def replaced() -> str:
        return "replaced"

    overrides = [
        install(owner, "method", replaced),
        install(owner, "other", 2),
        install(handlers, "there", 2),
        install(handlers, "new", 3),
    ]
    assert (owner.method(), handlers) == ("replaced", {"there": 2, "new": 3})
    for override in overrides:
        uninstall(override)
    assert (vars(owner), handlers) == ({}, {"there": 1})
    assert owner.method() == "of the class"
    owner.method = lambda: "of the object"
    override = install(owner, "method", replaced)
    uninstall(override)
    assert owner.method() == "of the object"


def test_uninstall_keeps_later_replacements() -> None:
    owner, handlers = SimpleNamespace(method=1), {"there": 1}
    overrides = [install(owner, "method", 2), install(handlers, "there", 2)]
    owner.method = handlers["there"] = 3
    for override in overrides:
        uninstall(override)
    assert (owner.method, handlers) == (3, {"there": 3})


def test_signatures_are_compared_without_annotations() -> None:
    async def function(key: str, *rest: int, who: str | None = None, stimulus_id: str) -> None: ...

    assert checks.parameters(function) == "(key, *rest, who=..., stimulus_id)"
    assert checks.accepts(function, "key, stimulus_id=")
    assert checks.accepts(function, "key, data, who=, stimulus_id=")
    assert not checks.accepts(function, "key")
    assert not checks.accepts(function, "stimulus_id=")
    assert not checks.accepts(function, "key, stimulus_id=, other=")


def test_every_feature_has_a_description_of_its_absence() -> None:
    assert set(WITHOUT) == set(Feature)
    assert set(Feature) == {*SCHEDULER, *WORKER, *PROCESS}
