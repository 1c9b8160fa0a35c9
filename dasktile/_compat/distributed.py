"""Everything undocumented of distributed that dasktile reads, calls, replaces or assigns.

`SCHEDULER`, `WORKER` and `PROCESS` are the table: for every feature of dasktile the names of
distributed that it needs.  When the plugins are installed, :func:`check` looks each name up and
compares signatures.  A feature for which a name is missing, or takes other arguments, is switched
off with one warning; all others, and distributed itself, are unaffected.

The functions below the table are the only code that uses these names.  They are grouped by
feature, and must not be called where the feature is unavailable, unless their docstring allows it.

Nothing of distributed is imported before it is used: clients may plan without it.
"""

from __future__ import annotations

import inspect
import logging
import math
import pkgutil
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import version
from types import MethodType
from typing import TYPE_CHECKING, Any, get_args

from dask.utils import key_split

if TYPE_CHECKING:
    from distributed import Client, Scheduler, SchedulerPlugin, Worker, WorkerPlugin
    from distributed.scheduler import TaskState, WorkerState

logger = logging.getLogger("dasktile")

#: Releases of distributed with which the table was checked.
CHECKED_WITH = ("2026.1.1", "2026.7.1", "2026.8.0")

# States of tasks: those of both sides, of the scheduler alone, and of workers alone.

RELEASED, WAITING, MEMORY, FORGOTTEN = "released", "waiting", "memory", "forgotten"
NO_WORKER, QUEUED, PROCESSING, ERRED = "no-worker", "queued", "processing", "erred"
EXECUTING, LONG_RUNNING, ERROR = "executing", "long-running", "error"
FETCH, FLIGHT, MISSING = "fetch", "flight", "missing"
READY, CONSTRAINED = "ready", "constrained"


class Feature(Enum):
    """A part of dasktile that can be switched off alone."""

    ENABLE = "dasktile.enable"
    PRELOAD = "dasktile.preload"
    PLACEMENT = "placement"
    ROOTS = "root throttle"
    STEALING = "protection from work stealing"
    REPLICAS = "replicas for readers"
    ORDER = "order of plans"
    HINTS = "next-use hints"
    METRICS = "metrics of transfers"
    PAGE = "dashboard page"
    SPILLING = "spilling"
    PREFETCH = "prefetch for ready tasks"
    CALIBRATION = "kept calibration"
    OWN_SCHEDULER = "planning on the scheduler"
    EMULATED = "emulated device"


#: The effect on users where a feature is unavailable.
WITHOUT = {
    Feature.ENABLE: "the cluster is unchanged",
    Feature.PRELOAD: "the scheduler or worker starts without dasktile",
    Feature.PLACEMENT: "distributed chooses the workers of tasks",
    Feature.ROOTS: "root tasks are sent to their home workers at once",
    Feature.STEALING: "idle workers may steal tasks from their home workers",
    Feature.REPLICAS: "distributed may drop copies that a task will read",
    Feature.ORDER: "plans run after graphs that were submitted later",
    Feature.HINTS: "workers evict the least recently used results",
    Feature.METRICS: "transfers are not counted, and workers get no next-use hints",
    Feature.PAGE: "the dashboard has no dasktile page",
    Feature.SPILLING: "workers store their results as distributed configures them",
    Feature.PREFETCH: "the inputs of the next task are not fetched before others",
    Feature.CALIBRATION: "a restarted scheduler forgets the calibration",
    Feature.OWN_SCHEDULER: "plans are made for the threads of one process",
    Feature.EMULATED: "arrays of the emulated device cannot be sent to other workers",
}


@dataclass(frozen=True)
class Internal:
    """One name of distributed.

    Parameters
    ----------
    owner
        The object that has it: ``package.module:Class``, or a path from one of the objects that
        are passed to :func:`check`, as in ``worker.memory_manager``.
    name
        The name of an attribute of the owner, or of an item if the owner is a mapping, a set or
        a ``Literal``.
    used_for
        The use of it in dasktile.
    signature
        Parameters, without annotations, of a function that dasktile replaces and distributed
        calls.  Empty for all other names.
    call
        Arguments with which dasktile calls it; keyword arguments end in ``=``.  None if dasktile
        does not call it.
    only_with
        The name of an object; the feature needs this name only where there is such an object.
    checked_with
        Releases of distributed with which it was checked.
    """

    owner: str
    name: str
    used_for: str
    signature: str = ""
    call: str | None = None
    only_with: str = ""
    checked_with: tuple[str, ...] = CHECKED_WITH

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}"


def _each(owner: str, used_for: str, *names: str, only_with: str = "") -> tuple[Internal, ...]:
    return tuple(Internal(owner, name, used_for, only_with=only_with) for name in names)


# The table -----------------------------------------------------------------------------

_TASK = "distributed.scheduler:TaskState"
_WORKER = "distributed.scheduler:WorkerState"
_STATES = "distributed.scheduler:ALL_TASK_STATES"
_AMM = "distributed.active_memory_manager"
_PAGES = "distributed.dashboard"
_STYLE = "distributed.dashboard.components.scheduler"
_WORKER_TASK = "distributed.worker_state_machine:TaskState"
_WORKER_STATES = "distributed.worker_state_machine:TaskStateState"
_EVENTS = "distributed.worker_state_machine"
_SERIALIZE = "distributed.protocol.serialize"

#: What the scheduler's plugin needs.
SCHEDULER: Mapping[Feature, tuple[Internal, ...]] = {
    Feature.PLACEMENT: (
        *_each(_TASK, "assigned: the workers on which a task may run", "worker_restrictions"),
        *_each(_TASK, "assigned: whether it may run on other workers", "loose_restrictions"),
        *_each(_TASK, "restrictions by the user", "host_restrictions", "resource_restrictions"),
        *_each(_TASK, "whether it is to run", "state", "run_spec", "actor", "priority"),
        *_each(_TASK, "its inputs and readers", "dependencies", "dependents"),
        *_each(_TASK, "whether its result is needed", "waiters", "who_wants"),
        *_each(_TASK, "the workers that hold or run it", "who_has", "processing_on"),
        *_each(_WORKER, "the order of workers", "address", "host", "name", "status"),
        *_each(_WORKER, "whether a worker is idle", "processing"),
        *_each("scheduler", "whether any task is to run", "queued", "unrunnable"),
        *_each("scheduler", "names of arrays that others follow", "task_groups"),
        *_each("scheduler", "assigned: the order of workers, for clients", "task_metadata"),
        *_each(_STATES, "states of a task", RELEASED, WAITING, NO_WORKER, PROCESSING, MEMORY),
        *_each(_STATES, "states of a task", FORGOTTEN),
    ),
    Feature.ROOTS: (
        Internal(
            "scheduler",
            "transitions",
            "moves root tasks from no-worker to processing or released",
            call="recommendations, stimulus_id=",
        ),
        *_each("scheduler", "number of root tasks that are sent to a worker", "WORKER_SATURATION"),
        *_each("scheduler", "workers to which root tasks may be sent", "running"),
        *_each("scheduler", "number of threads of all workers", "total_nthreads"),
        Internal("scheduler", "is_rootish", "whether a task would be queued", call="ts"),
        Internal(
            "scheduler.queued",
            "peek",
            "whether the scheduler's next root task has a later priority",
            call="",
        ),
        *_each("scheduler", "assigned: the time since which tasks have no worker", "unrunnable"),
        *_each(
            "scheduler", "time after which tasks fail", "_no_workers_since", "no_workers_timeout"
        ),
        Internal("distributed.metrics", "monotonic", "the clock of these times", call=""),
        *_each(_WORKER, "free slots", "nthreads", "processing", "long_running"),
    ),
    Feature.STEALING: (
        *_each("scheduler", "the extension", "extensions"),
        Internal("stealing", "remove_key_from_stealable", "keeps a task at home", call="ts"),
        *_each(
            "stealing", "changed: keeps a task of unknown duration at home", "unknown_durations"
        ),
        *_each(_TASK, "the prefix of a task, for its duration", "prefix", only_with="stealing"),
    ),
    Feature.REPLICAS: (
        *_each("scheduler", "the extension", "extensions"),
        *_each("amm", "changed: the policies", "policies"),
        Internal("amm", "add_policy", "adds a policy", call="policy"),
        *_each("amm", "the scheduler", "scheduler"),
        Internal(
            f"{_AMM}:ReduceReplicas",
            "run",
            "replaced: the policy that drops copies",
            signature="(self)",
            only_with="amm",
        ),
        Internal(
            _AMM, "Suggestion", "what a policy yields", call="op, ts, candidates", only_with="amm"
        ),
        *_each(_AMM, "the type of the extension", "ActiveMemoryManagerExtension", only_with="amm"),
        *_each(f"{_AMM}:ReduceReplicas", "the extension", "manager", only_with="amm"),
        *_each(_TASK, "the workers of readers", "waiters", "worker_restrictions", only_with="amm"),
        *_each(_TASK, "the workers of readers", "who_has", "loose_restrictions", only_with="amm"),
    ),
    Feature.ORDER: (
        *_each(_TASK, "assigned: the order in which tasks run", "priority"),
        *_each(_TASK, "its position in a plan", "annotations", "state"),
    ),
    Feature.HINTS: (
        *_each("scheduler", "workers with an open connection", "stream_comms"),
        Internal("scheduler", "worker_send", "sends the hints", call="address, message"),
        *_each(_TASK, "assigned: hints that are sent with a task to its worker", "annotations"),
        *_each(_TASK, "the readers of a result", "dependencies", "dependents", "priority"),
        *_each(_TASK, "the readers of a result", "state", "waiters", "who_wants"),
        *_each(_TASK, "the workers that hold or run it", "who_has", "processing_on"),
        *_each(_STATES, "states of tasks that will read", WAITING, NO_WORKER, QUEUED, PROCESSING),
        *_each(_STATES, "states of tasks that have run", MEMORY, RELEASED, ERRED),
    ),
    Feature.METRICS: (*_each(_WORKER, "values received with heartbeats", "metrics"),),
    Feature.PAGE: (
        *_each("scheduler", "the HTTP server", "http_application"),
        *_each("scheduler.http_application", "changed: its applications", "applications"),
        Internal(
            "scheduler.http_application", "add_application", "adds the page", call="application"
        ),
        *_each("dashboard", "the path of the dashboard", "prefix"),
        Internal(
            f"{_PAGES}.core",
            "BokehApplication",
            "makes the page",
            call="applications, server, prefix=, template_variables=",
            only_with="dashboard",
        ),
        Internal(
            f"{_PAGES}.scheduler",
            "template_variables",
            "changed: the menu",
            call="scheduler",
            only_with="dashboard",
        ),
        *_each(_STYLE, "theme and templates", "BOKEH_THEME", "env", only_with="dashboard"),
    ),
}

#: What the worker's plugin needs.
WORKER: Mapping[Feature, tuple[Internal, ...]] = {
    Feature.METRICS: (
        *_each("worker", "changed: values sent with heartbeats", "metrics"),
        *_each("worker", "the plugin with the counts, for dasktile.metrics", "plugins"),
        *_each("worker", "results that it holds", "data"),
        *_each("worker.state", "tasks, and bytes of results", "tasks", "nbytes"),
        Internal(_WORKER_TASK, "get_nbytes", "bytes of a result", call="self"),
        *_each(_WORKER_TASK, "the tasks that wait for it", "key", "state", "waiters", "dependents"),
        *_each(_WORKER_TASK, "the tasks of a bundle that waits for it", "run_spec"),
        Internal("distributed.utils", "key_split_group", "the layer of a task", call="key"),
        *_each(_WORKER_STATES, "states of a task", MEMORY, FLIGHT, EXECUTING, LONG_RUNNING),
    ),
    Feature.SPILLING: (
        Internal(
            "worker",
            "execute",
            "replaced: runs a task once its inputs are in memory",
            signature="(key, *, stimulus_id)",
        ),
        Internal(
            "worker",
            "gather_dep",
            "replaced: fetches from a peer once there is room",
            signature="(worker, to_gather, total_nbytes, *, stimulus_id)",
        ),
        Internal(
            "worker.handlers",
            "get_data",
            "replaced: sends results once they are in memory",
            signature="(comm, keys, who=..., serializers=...)",
        ),
        Internal(
            "worker.handlers",
            "update_data",
            "replaced: takes scattered results once there is room",
            signature="(data, stimulus_id=...)",
        ),
        *_each("worker.memory_manager", "assigned: the results", "data"),
        *_each("worker.state", "assigned: the results", "data"),
        *_each("worker.memory_manager", "limits", "memory_limit", "memory_target_fraction"),
        *_each("worker.memory_manager", "limits", "memory_spill_fraction"),
        *_each("worker.memory_manager", "seconds between measurements", "memory_monitor_interval"),
        Internal("worker.monitor", "get_process_memory", "bytes of the process", call=""),
        *_each("worker", "changed: runs a function periodically", "periodic_callbacks"),
        *_each("worker", "number of requests that are being answered", "transfer_outgoing_count"),
        *_each("worker", "limit of that number", "transfer_outgoing_count_limit"),
        Internal("worker", "handle_stimulus", "reports that results are lost", call="event"),
        *_each("worker.state", "tasks, and actors", "tasks", "actors"),
        *_each(_WORKER_TASK, "the readers of a result", "dependencies", "dependents", "state"),
        *_each(
            _WORKER_TASK, "identity and order of a task", "key", "priority", "run_spec", "run_id"
        ),
        *_each(_WORKER_TASK, "changed: the seconds spent reading inputs", "startstops"),
        *_each(_WORKER_STATES, "states of a task", RELEASED, FORGOTTEN, LONG_RUNNING),
        *_each(_WORKER_STATES, "states of tasks that no longer read", MEMORY, ERROR, FETCH, FLIGHT),
        *_each(_WORKER_STATES, "states of tasks that no longer read", MISSING),
        *_each("distributed.worker", "whether a worker is closing", "WORKER_ANY_RUNNING"),
        Internal(_EVENTS, "RemoveReplicasEvent", "results are lost", call="keys=, stimulus_id="),
        Internal(_EVENTS, "RescheduleEvent", "a task is to run later", call="key=, stimulus_id="),
        Internal(
            f"{_EVENTS}:ExecuteFailureEvent",
            "from_exception",
            "a task cannot read its inputs",
            call="error, key=, run_id=, stimulus_id=",
        ),
        Internal(
            "distributed.metrics:context_meter",
            "digest_metric",
            "seconds spent reading",
            call="label, value, unit",
        ),
        Internal("distributed.sizeof", "safe_sizeof", "bytes of a result", call="value"),
        *_each("distributed.spill", "the mapping of a worker that spills", "SpillBuffer"),
        *_each("distributed.system", "memory of the machine", "MEMORY_LIMIT"),
        Internal(
            "distributed.protocol.compression",
            "get_compression_settings",
            "compression of files",
            call="setting",
        ),
        Internal(
            _SERIALIZE,
            "serialize_bytelist",
            "writes files",
            call="value, compression=, on_error=",
        ),
        Internal(_SERIALIZE, "deserialize_bytes", "reads files", call="buffer"),
        Internal(
            _SERIALIZE,
            "serialize",
            "copies from a device",
            call="value, serializers=, on_error=",
        ),
        Internal(_SERIALIZE, "deserialize", "copies to a device", call="header, frames"),
        *_each(_SERIALIZE, "sends copies", "dask_serialize", "dask_deserialize"),
        Internal("distributed.utils", "nbytes", "bytes of a buffer", call="frame"),
    ),
    Feature.HINTS: (
        *_each("worker", "changed: the handler of hints", "stream_handlers"),
        Internal(
            "worker", "heartbeat", "reports to the scheduler that there is a handler", call=""
        ),
        *_each(_WORKER_TASK, "hints that came with a task", "annotations"),
    ),
    Feature.PREFETCH: (
        *_each("worker.state", "tasks that may run", "ready"),
        Internal("worker.state.ready", "peek", "the task that runs next", call=""),
    ),
}

#: What is needed without a plugin.
PROCESS: Mapping[Feature, tuple[Internal, ...]] = {
    Feature.ENABLE: (
        *_each("scheduler", "installed plugins", "plugins", "worker_plugins"),
        Internal("scheduler", "remove_plugin", "removes the plugin", call="name"),
    ),
    Feature.PRELOAD: (
        Internal(
            "distributed:Scheduler",
            "register_scheduler_plugin",
            "adds the plugin to a scheduler",
            call="self, plugin, name=, idempotent=",
        ),
        Internal(
            "distributed:Worker",
            "plugin_add",
            "adds the plugin to a worker",
            call="self, plugin, name=",
        ),
    ),
    Feature.CALIBRATION: (
        *_each("scheduler", "assigned: the measured values", "task_metadata"),
        *_each("scheduler", "a plugin that is already installed", "plugins"),
        Internal(
            "scheduler",
            "add_plugin",
            "assigns the values again after a restart",
            call="plugin, name=",
        ),
    ),
    Feature.OWN_SCHEDULER: (
        *_each("distributed:Scheduler", "the schedulers of a process", "_instances"),
    ),
    Feature.EMULATED: (
        Internal(
            "distributed.protocol.numpy", "serialize_numpy_ndarray", "sends arrays", call="array"
        ),
        Internal(
            "distributed.protocol.numpy",
            "deserialize_numpy_ndarray",
            "sends arrays",
            call="header, frames",
        ),
        *_each(_SERIALIZE, "sends arrays", "dask_serialize", "dask_deserialize"),
    ),
}


# Checking it ---------------------------------------------------------------------------

#: Features for which this process has logged a warning.
_warned: set[Feature] = set()


def lookup(internal: Internal, objects: Mapping[str, Any]) -> Any:
    """The object of a name of the table.

    Parameters
    ----------
    internal
        The name.
    objects
        Objects by name; the first part of an owner may be one of these names.

    Raises
    ------
    Exception
        If there is no object of that name.
    """
    if internal.owner.startswith("distributed"):
        owner = pkgutil.resolve_name(internal.owner)
    else:
        first, *rest = internal.owner.split(".")
        owner = objects[first]
        for part in rest:
            owner = getattr(owner, part)
    if isinstance(owner, Mapping):
        return owner[internal.name]
    items = owner if isinstance(owner, (set, frozenset)) else get_args(owner)
    if items:
        return {item: item for item in items}[internal.name]
    return getattr(owner, internal.name)


def problem(internal: Internal, objects: Mapping[str, Any]) -> str | None:
    """Why a name cannot be used; None if it can, or if it is not needed.

    Parameters
    ----------
    internal
        The name.
    objects
        As for :func:`lookup`; the value is None for objects that a server does not have.
    """
    for each in (internal.owner.split(".")[0], internal.only_with):
        if objects.get(each, True) is None:
            return None
    try:
        value = lookup(internal, objects)
    except Exception:
        return f"there is no {internal}"
    try:
        if internal.signature and parameters(value) != internal.signature:
            return f"{internal} has the parameters {parameters(value)}, not {internal.signature}"
        if internal.call is not None and not accepts(value, internal.call):
            return (
                f"{internal} has the parameters {parameters(value)}, which ({internal.call}) lacks"
            )
    except (TypeError, ValueError):
        return f"{internal} cannot be called"
    return None


def parameters(function: Any) -> str:
    """The parameters of a function, without annotations, and with ``...`` for defaults."""
    signature = inspect.signature(function)
    empty = inspect.Parameter.empty
    return str(
        signature.replace(
            parameters=[
                each.replace(annotation=empty, default=empty if each.default is empty else ...)
                for each in signature.parameters.values()
            ],
            return_annotation=inspect.Signature.empty,
        )
    ).replace("=Ellipsis", "=...")


def accepts(function: Any, call: str) -> bool:
    """Whether a function accepts the arguments of ``Internal.call``; True if unknown."""
    arguments = [each for each in call.split(", ") if each]
    keywords = {each.removesuffix("=") for each in arguments if each.endswith("=")}
    try:
        signature = inspect.signature(function)
    except ValueError:
        return True  # a function written in C
    try:
        signature.bind(*range(len(arguments) - len(keywords)), **dict.fromkeys(keywords))
    except TypeError:
        return False
    return True


def check(
    table: Mapping[Feature, tuple[Internal, ...]],
    objects: Mapping[str, Any],
    features: Collection[Feature] | None = None,
) -> dict[Feature, str]:
    """Features that are unavailable, each with the reason.  Never raises.

    Logs a warning for each, once per process.

    Parameters
    ----------
    table
        One of `SCHEDULER`, `WORKER` and `PROCESS`.
    objects
        As for :func:`problem`.
    features
        The features to check, by default all of the table.
    """
    unavailable = {}
    for feature in table if features is None else features:
        reasons = [reason for each in table[feature] if (reason := problem(each, objects))]
        if reasons:
            unavailable[feature] = _message(feature, reasons[0])
            if feature not in _warned:
                _warned.add(feature)
                logger.warning("%s", unavailable[feature])
    return unavailable


def _message(feature: Feature, reason: str) -> str:
    return (
        f"dasktile works without its feature {feature.value!r}: {WITHOUT[feature]}. In distributed"
        f" {version('distributed')} {reason}; dasktile was checked with distributed"
        f" {' and '.join(CHECKED_WITH)}"
    )


def check_scheduler(scheduler: Scheduler) -> dict[Feature, str]:
    """Features of the scheduler's plugin that are unavailable, each with the reason."""
    objects: dict[str, Any] = {"scheduler": scheduler, "dashboard": None}
    for name in ("stealing", "amm"):
        objects[name] = (getattr(scheduler, "extensions", None) or {}).get(name)
    with suppress(AttributeError):  # the check reports this as well
        objects["dashboard"] = dashboard_of(scheduler)
    return check(SCHEDULER, objects)


def check_worker(worker: Worker, spills: bool) -> dict[Feature, str]:
    """Features of the worker's plugin that are unavailable, each with the reason.

    Parameters
    ----------
    worker
        A worker that runs or is starting.
    spills
        False where the worker keeps the mapping of its results.
    """
    return check(WORKER, {"worker": worker}, None if spills else [Feature.METRICS])


# Replacing and restoring ---------------------------------------------------------------


@dataclass(frozen=True)
class Override:
    """An attribute, or an item of a mapping, that was replaced.

    Parameters
    ----------
    owner
        The object or mapping.
    name
        Of the attribute or item.
    replacement
        The value that was assigned.
    before
        The value before; `NOTHING` where the owner had none of its own, as for methods.
    """

    owner: Any
    name: str
    replacement: Any
    before: Any


#: The value before an override, where the owner had no such attribute or item of its own.
NOTHING = object()


def install(owner: Any, name: str, replacement: Any) -> Override:
    """Replace an attribute of an object, or an item of a mapping."""
    if isinstance(owner, MutableMapping):
        before = owner.get(name, NOTHING)
        owner[name] = replacement
    else:
        before = vars(owner).get(name, NOTHING)
        setattr(owner, name, replacement)
    return Override(owner, name, replacement, before)


def uninstall(override: Override) -> None:
    """Restore the value before, unless another value was assigned since."""
    owner, name, before = override.owner, override.name, override.before
    if isinstance(owner, MutableMapping):
        if owner.get(name) == override.replacement:
            if before is NOTHING:
                del owner[name]
            else:
                owner[name] = before
    elif getattr(owner, name, None) == override.replacement:
        if before is NOTHING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


#: The methods of clients that compute, and their parameters for what is computed.
_COMPUTING = {"get": "dsk", "compute": "collections", "persist": "collections"}


class _Recorders:
    """The functions that receive the computations of one client, in order.

    All share one override, so that they can be removed in any order.
    """

    #: The attribute of a client that holds its recorders.
    ATTRIBUTE = "_dasktile_recorders"
    #: Diagnoses may begin and end in several threads.
    lock = threading.Lock()

    def __init__(self, client: Client) -> None:
        self.records: dict[object, Callable[[str, Any], None]] = {}
        self.overrides = [
            *(install(client, name, self._recording(client, name)) for name in _COMPUTING),
            install(client, self.ATTRIBUTE, self),
        ]

    def _recording(self, client: Client, name: str) -> Any:
        method = getattr(client, name)

        def recorded(_: Client, *args: Any, **kwargs: Any) -> Any:
            computed = args[0] if args else kwargs.get(_COMPUTING[name])
            for record in tuple(self.records.values()):
                record(name, computed)
            return method(*args, **kwargs)

        # a bound method: Dask finds the client of `Client.get` by it
        return MethodType(recorded, client)


def record_computations(client: Client, record: Callable[[str, Any], None]) -> Callable[[], None]:
    """Call a function with what each computation of a client computes, before it starts.

    Dask optimises graphs on the scheduler, so that its settings cannot be used for this.

    Parameters
    ----------
    client
        The client.
    record
        Receives the name of a method and what it computes: what is given to ``compute`` and
        ``persist``, and the expressions or graphs that are given to ``get``.

    Returns
    -------
    A function that ends this; several recordings of a client may end in any order.
    """
    token = object()
    with _Recorders.lock:
        recorders = vars(client).get(_Recorders.ATTRIBUTE) or _Recorders(client)
        recorders.records[token] = record

    def end() -> None:
        with _Recorders.lock:
            if recorders.records.pop(token, None) is not None and not recorders.records:
                for override in recorders.overrides:
                    uninstall(override)

    return end


# Plugins -------------------------------------------------------------------------------


def check_enable(scheduler: Scheduler) -> str | None:
    """The reason why plugins cannot be added to a scheduler; None if they can."""
    return check(PROCESS, {"scheduler": scheduler}, [Feature.ENABLE]).get(Feature.ENABLE)


def plugin_of(server: Scheduler | Worker, name: str) -> Any:
    """A plugin by its name, None if there is none."""
    return getattr(server, "plugins", {}).get(name)


def worker_plugin_names(scheduler: Scheduler) -> list[str]:
    """Names of the plugins that new workers get."""
    return list(getattr(scheduler, "worker_plugins", ()))


def remove_plugin(scheduler: Scheduler, name: str) -> None:
    """Remove a plugin from a scheduler."""
    scheduler.remove_plugin(name)


async def preload_scheduler(scheduler: Scheduler, plugin: SchedulerPlugin, name: str) -> None:
    """Add a plugin to a scheduler that starts; do nothing where that is unavailable."""
    if not check(PROCESS, {}, [Feature.PRELOAD]):
        await scheduler.register_scheduler_plugin(plugin, name=name, idempotent=True)


async def preload_worker(worker: Worker, plugin: WorkerPlugin, name: str) -> None:
    """Add a plugin to a worker that starts; do nothing where that is unavailable."""
    if not check(PROCESS, {}, [Feature.PRELOAD]):
        await worker.plugin_add(plugin, name=name)


# Placement -----------------------------------------------------------------------------


def restrict(ts: TaskState, workers: Any, loose: bool) -> None:
    """Set the worker restrictions of a task.

    Parameters
    ----------
    ts
        The task.
    workers
        Addresses of the workers on which it may run, None for all.
    loose
        Whether it may run on other workers if none of these is alive.
    """
    ts.worker_restrictions = workers
    ts.loose_restrictions = loose


def nothing_to_run(scheduler: Scheduler, is_ours: Callable[[TaskState], bool]) -> bool:
    """Whether no task runs or can run.

    Parameters
    ----------
    scheduler
        The scheduler.
    is_ours
        Whether to count a task without a permitted worker; other such tasks may never run.
    """
    busy = scheduler.queued or any(map(is_ours, scheduler.unrunnable))
    return not (busy or any(ws.processing for ws in scheduler.workers.values()))


def array_names(scheduler: Scheduler) -> Collection[Any]:
    """Names of all arrays that have tasks, and of other groups of tasks."""
    return scheduler.task_groups


def publish(scheduler: Scheduler, topic: str, name: str, value: Any) -> None:
    """Store a value for ``client.get_metadata([topic, name])``."""
    scheduler.task_metadata.setdefault(topic, {})[name] = value


def withdraw(scheduler: Scheduler, topic: str, name: str) -> None:
    """Remove a value that :func:`publish` has stored."""
    values = scheduler.task_metadata.get(topic, {})
    values.pop(name, None)
    if not values:
        scheduler.task_metadata.pop(topic, None)


# Root tasks ----------------------------------------------------------------------------


def limits_roots(scheduler: Scheduler) -> bool:
    """False where the configured worker saturation is infinite."""
    return not math.isinf(scheduler.WORKER_SATURATION)


def is_queued_when_ready(scheduler: Scheduler, ts: TaskState) -> bool:
    """Whether the scheduler would queue a task until a worker has a slot for it."""
    return bool(scheduler.is_rootish(ts))


def slots(scheduler: Scheduler, ws: WorkerState) -> int:
    """Number of tasks that may still be sent to a worker until it is saturated."""
    most = max(1, math.ceil(ws.nthreads * scheduler.WORKER_SATURATION))
    # long-running tasks wait for tasks that they have submitted, and take no slot
    return most - (len(ws.processing) - len(ws.long_running))


def first_queued(scheduler: Scheduler) -> TaskState | None:
    """The task of highest priority in the scheduler's queue."""
    queued: Any = scheduler.queued
    return queued.peek() if queued else None


def transition(scheduler: Scheduler, states: Mapping[Any, str], stimulus: str) -> None:
    """Transition tasks, by key, to other states."""
    recommendations: Any = states
    scheduler.transitions(recommendations, stimulus_id=stimulus)


def now() -> float:
    """The scheduler's clock, in seconds."""
    from distributed.metrics import monotonic

    return monotonic()


def restart_timeouts(scheduler: Scheduler, keys: Iterable[Any]) -> None:
    """Restart the timeout after which tasks in ``no-worker`` fail.

    While the scheduler has no running worker, it is restarted once only, so that it passes.
    """
    if not scheduler.no_workers_timeout:
        return
    lacking = scheduler._no_workers_since
    unrunnable, time_now = scheduler.unrunnable, now()
    for key in keys:
        ts = scheduler.tasks.get(key)
        if ts in unrunnable and (lacking is None or unrunnable[ts] <= lacking):
            del unrunnable[ts]  # the mapping is in order of time
            unrunnable[ts] = time_now


# Work stealing -------------------------------------------------------------------------


def keep_from_stealing(scheduler: Scheduler, ts: TaskState) -> None:
    """Exclude a task that was just sent to a worker from work stealing."""
    stealing: Any = scheduler.extensions.get("stealing")
    if stealing is not None:
        stealing.remove_key_from_stealable(ts)
        stealing.unknown_durations.get(ts.prefix.name, set()).discard(ts)


# Replicas ------------------------------------------------------------------------------


def swap_policy(scheduler: Scheduler, old: type, new: Callable[[], Any]) -> None:
    """Replace policies of the active memory manager; do nothing where there is none.

    Parameters
    ----------
    scheduler
        The scheduler.
    old
        The exact type of the policies to replace.
    new
        Function that returns the new policy.
    """
    from distributed.active_memory_manager import ActiveMemoryManagerExtension

    manager = scheduler.extensions.get("amm")
    if not isinstance(manager, ActiveMemoryManagerExtension):
        return
    for policy in list(manager.policies):
        if type(policy) is old:
            manager.policies.discard(policy)
            manager.add_policy(new())


def reduce_replicas() -> Any:
    """Dask's policy that drops replicas if there are more of them than waiting tasks."""
    from distributed.active_memory_manager import ReduceReplicas

    return ReduceReplicas


def drop(ts: TaskState, candidates: set[WorkerState]) -> Any:
    """A policy's suggestion to drop the replica of one of some workers."""
    from distributed.active_memory_manager import Suggestion

    return Suggestion("drop", ts, candidates)


# Order, and hints from the scheduler ---------------------------------------------------


def set_priority(ts: TaskState, priority: tuple[Any, ...]) -> None:
    """Set the priority of a task, among those that are not yet sent to a worker."""
    ts.priority = priority


def annotate(ts: TaskState, name: str, value: Any) -> None:
    """Add an annotation to a task, which is sent with it to its worker."""
    # a new dict, as all tasks of a layer may share one
    ts.annotations = {**(ts.annotations or {}), name: value}


def send_to_worker(scheduler: Scheduler, address: str, message: dict[str, Any]) -> None:
    """Send a message to a worker, unless it has left."""
    if address in scheduler.stream_comms:
        scheduler.worker_send(address, message)


# The dashboard -------------------------------------------------------------------------


def dashboard_of(scheduler: Scheduler) -> Any:
    """The dashboard of a scheduler, None where it was not started."""
    for application in applications(scheduler):
        if any(path.endswith("/status") for path in getattr(application, "app_paths", ())):
            return application
    return None


def applications(scheduler: Scheduler) -> list[Any]:
    """Applications of the scheduler's HTTP server."""
    return list(scheduler.http_application.applications)


def has_page(application: Any, route: str) -> bool:
    """Whether an application serves a page."""
    return any(path.endswith(route) for path in getattr(application, "app_paths", ()))


def add_page(scheduler: Scheduler, name: str, document: Callable[..., None]) -> bool:
    """Add a page to a scheduler's dashboard, and to the menus of all its pages.

    Parameters
    ----------
    scheduler
        The scheduler; call this on the thread of its event loop.
    name
        Name of the page in the menus; its path is ``/name``.
    document
        Function of the scheduler, the variables of the template and a Bokeh document, which
        writes the page.

    Returns
    -------
    False where there is no dashboard.
    """
    dashboard = dashboard_of(scheduler)
    if dashboard is None:
        return False
    # where there is a dashboard, a Bokeh is installed that distributed supports
    from distributed.dashboard.core import BokehApplication
    from distributed.dashboard.scheduler import template_variables
    from tornado.ioloop import IOLoop

    variables = template_variables(scheduler)
    application = BokehApplication(
        {f"/{name}": document}, scheduler, prefix=dashboard.prefix, template_variables=variables
    )
    application.initialize(IOLoop.current())
    scheduler.http_application.add_application(application)
    application.start()
    # distributed's own pages share this list, so their menus show the new page
    variables["pages"].append(name)
    return True


def remove_page(scheduler: Scheduler, name: str) -> None:
    """Remove a page that :func:`add_page` has added, if there is one."""
    for application in applications(scheduler):
        if has_page(application, f"/{name}"):
            scheduler.http_application.applications.remove(application)
            # since Bokeh 3.10 an error if it should wait on the thread of the event loop
            application.stop(wait=False)
    if dashboard_of(scheduler) is not None:
        from distributed.dashboard.scheduler import template_variables

        pages = template_variables(scheduler)["pages"]
        pages[:] = [page for page in pages if page != name]


def style(doc: Any) -> None:
    """Make a Bokeh document look like distributed's own pages."""
    from distributed.dashboard.components.scheduler import BOKEH_THEME, env

    doc.template = env.get_template("simple.html")
    doc.theme = BOKEH_THEME


# Counts of a worker --------------------------------------------------------------------


def add_metric(worker: Worker, name: str, function: Callable[[Worker], Any]) -> None:
    """Send the value of a function with every heartbeat."""
    metrics: Any = worker.metrics
    metrics[name] = function


def remove_metric(worker: Worker, name: str, function: Callable[[Worker], Any]) -> None:
    """Stop sending the value of a function, unless another function has replaced it."""
    metrics: Any = worker.metrics
    if metrics.get(name) == function:
        del metrics[name]


def worker_tasks(worker: Worker) -> Mapping[Any, Any]:
    """The tasks of a worker, by key."""
    return worker.state.tasks


def held_bytes(worker: Worker) -> int:
    """Bytes of the results that a worker holds, spilled ones included."""
    return worker.state.nbytes


def layer_name(key: Any) -> str:
    """The layer of a task whose key is no tuple.  May be called without the feature."""
    try:
        from distributed.utils import key_split_group
    except ImportError:
        return key_split(key)
    return str(key_split_group(key))


# A worker's results --------------------------------------------------------------------


@dataclass(frozen=True)
class MemoryLimits:
    """The configured limits of a worker's memory manager.

    Parameters
    ----------
    memory
        Bytes of the worker, None or 0 for no limit.
    target
        Fraction of them that results may take, False for no limit.
    spill
        Fraction of them that the process may take before results are evicted, False for no
        limit.
    interval
        Seconds between two measurements of the process, 0 for none.
    """

    memory: int | None
    target: float | bool
    spill: float | bool
    interval: float


def limits(worker: Worker) -> MemoryLimits:
    """The current limits of a worker's memory manager."""
    manager = worker.memory_manager
    return MemoryLimits(
        manager.memory_limit,
        manager.memory_target_fraction,
        manager.memory_spill_fraction,
        manager.memory_monitor_interval,
    )


def default_data(worker: Worker) -> type:
    """The type of mapping in which distributed stores the results of a worker."""
    from distributed.spill import SpillBuffer

    configured = limits(worker)
    return SpillBuffer if configured.memory and (configured.target or configured.spill) else dict


def replace_data(worker: Worker, data: MutableMapping[Any, Any]) -> None:
    """Replace the mapping of a worker's results, which must already contain them."""
    worker.memory_manager.data = worker.state.data = data


@dataclass(frozen=True)
class WorkerMethods:
    """Methods and handlers of a worker.

    Parameters
    ----------
    execute
        Runs a task.
    gather_dep
        Fetches results from a peer.
    get_data
        Sends results to a peer.
    update_data
        Takes results from a client.
    """

    execute: Any
    gather_dep: Any
    get_data: Any
    update_data: Any


def methods_of(worker: Worker) -> WorkerMethods:
    """The current methods and handlers of a worker."""
    handlers = worker.handlers
    return WorkerMethods(
        worker.execute, worker.gather_dep, handlers["get_data"], handlers["update_data"]
    )


def replace_methods(worker: Worker, methods: WorkerMethods) -> list[Override]:
    """Replace methods and handlers of a worker; :func:`uninstall` restores each."""
    return [
        install(worker, "execute", methods.execute),
        install(worker, "gather_dep", methods.gather_dep),
        install(worker.handlers, "get_data", methods.get_data),
        install(worker.handlers, "update_data", methods.update_data),
    ]


def add_callback(worker: Worker, name: str, callback: Any) -> None:
    """Register a ``PeriodicCallback``, which a worker stops when it closes."""
    worker.periodic_callbacks[name] = callback


def remove_callback(worker: Worker, name: str) -> None:
    """Remove such a callback."""
    worker.periodic_callbacks.pop(name, None)


def handle_message(worker: Worker, name: str, handler: Callable[..., None]) -> None:
    """Add a handler for messages of the scheduler; a worker closes on an unknown message."""
    worker.stream_handlers[name] = handler


async def heartbeat(worker: Worker) -> None:
    """Send a heartbeat now.  Does nothing where that is unavailable."""
    if hasattr(worker, "heartbeat"):
        await worker.heartbeat()


def process_memory(worker: Worker) -> int:
    """Bytes that the process of a worker takes."""
    return worker.monitor.get_process_memory()


def outgoing(worker: Worker) -> tuple[int, int | None]:
    """Number of requests of peers that a worker answers, and its limit; None for no limit."""
    most = worker.transfer_outgoing_count_limit
    return worker.transfer_outgoing_count, None if most is False else most


def actors(worker: Worker) -> Mapping[Any, Any]:
    """Actors of a worker, by key, which are stored apart from results."""
    return worker.state.actors


def next_ready(worker: Worker) -> Any:
    """The task of a worker that runs next, None if none is ready."""
    ready = worker.state.ready
    return ready.peek() if ready else None


def is_running(worker: Worker) -> bool:
    """Whether a worker runs tasks, or is paused and will resume."""
    from distributed.worker import WORKER_ANY_RUNNING

    return worker.status in WORKER_ANY_RUNNING


def note_reading(task: Any, start: float, stop: float) -> None:
    """Record the seconds that a task waited for its inputs, as ``Worker.execute`` does."""
    from distributed.metrics import context_meter

    task.startstops.append({"action": "disk-read", "start": start, "stop": stop})
    context_meter.digest_metric("disk-read", stop - start, "seconds")


def run_later(key: Any, stimulus: str) -> Any:
    """The event for a task that is to be scheduled again."""
    from distributed.worker_state_machine import RescheduleEvent

    return RescheduleEvent(key=key, stimulus_id=stimulus)


def failed(task: Any, error: BaseException, stimulus: str) -> Any:
    """The event for a task that has failed."""
    from distributed.worker_state_machine import ExecuteFailureEvent

    return ExecuteFailureEvent.from_exception(
        error, key=task.key, run_id=task.run_id, stimulus_id=stimulus
    )


def lose(worker: Worker, keys: list[Any], stimulus: str) -> None:
    """Remove lost results from a worker, so that the scheduler recomputes them."""
    from distributed.worker_state_machine import RemoveReplicasEvent

    worker.handle_stimulus(RemoveReplicasEvent(keys=keys, stimulus_id=stimulus))


# The store: may be called before the features are checked, as workers start with a store ---


def safe_sizeof(value: Any) -> int:
    """Bytes of a result, as the scheduler counts them."""
    from distributed.sizeof import safe_sizeof

    return safe_sizeof(value)


def machine_memory() -> int:
    """Bytes of memory of this machine, as distributed detects them."""
    from distributed.system import MEMORY_LIMIT

    return MEMORY_LIMIT


def compression(setting: str) -> Any:
    """The compression for a value of distributed's setting."""
    from distributed.protocol.compression import get_compression_settings

    return get_compression_settings(setting)


def limit_rate(log: logging.Logger, text: str) -> None:
    """Limit the rate of log messages with this text, where distributed supports that."""
    with suppress(ImportError):
        from distributed.utils import RateLimiterFilter

        log.addFilter(RateLimiterFilter(text))


def frame_bytes(frame: Any) -> int:
    """Bytes of a buffer."""
    from distributed.utils import nbytes

    return nbytes(frame)


def to_frames(value: Any, compression: Any) -> list[Any]:
    """A value as buffers to write to a file."""
    from distributed.protocol.serialize import serialize_bytelist

    return serialize_bytelist(value, compression=compression, on_error="raise")


def from_buffer(buffer: bytearray) -> Any:
    """The value that is stored in a file."""
    from distributed.protocol.serialize import deserialize_bytes

    return deserialize_bytes(buffer)


def to_host(value: Any) -> tuple[dict[str, Any], Iterable[Any]]:
    """A value of a device as buffers in host memory, and a header to restore it."""
    from distributed.protocol.serialize import serialize

    return serialize(value, serializers=("dask", "pickle"), on_error="raise")


def from_host(header: dict[str, Any], frames: Iterable[Any]) -> Any:
    """The value on a device, restored from its header and buffers."""
    from distributed.protocol.serialize import deserialize

    return deserialize(header, frames)


def register_serialization(
    kind: type,
    serialize: Callable[[Any], tuple[dict[str, Any], list[Any]]],
    deserialize: Callable[[dict[str, Any], list[Any]], Any],
) -> None:
    """Register functions that serialize values of a type, where distributed supports that."""
    with suppress(ImportError):
        from distributed.protocol.serialize import dask_deserialize, dask_serialize

        dask_serialize.register(kind, serialize)
        dask_deserialize.register(kind, deserialize)


def serialize_array(array: Any) -> tuple[dict[str, Any], list[Any]]:
    """The header and frames of a NumPy array, as distributed sends it."""
    from distributed.protocol.numpy import serialize_numpy_ndarray

    return serialize_numpy_ndarray(array)


def deserialize_array(header: dict[str, Any], frames: list[Any]) -> Any:
    """The NumPy array of a header and frames."""
    from distributed.protocol.numpy import deserialize_numpy_ndarray

    return deserialize_numpy_ndarray(header, frames)


# Without a plugin ----------------------------------------------------------------------


def own_schedulers() -> list[Scheduler]:
    """Schedulers of this process that have workers; none where the feature is unavailable."""
    distributed = sys.modules.get("distributed")
    if distributed is None or check(PROCESS, {}, [Feature.OWN_SCHEDULER]):
        return []
    return [scheduler for scheduler in distributed.Scheduler._instances if scheduler.workers]


def check_emulated() -> str | None:
    """The reason why emulated arrays cannot be sent to other workers; None if they can."""
    return check(PROCESS, {}, [Feature.EMULATED]).get(Feature.EMULATED)


def check_calibration(scheduler: Scheduler) -> str | None:
    """The reason why a scheduler cannot keep measured values; None if it can."""
    unavailable = check(PROCESS, {"scheduler": scheduler}, [Feature.CALIBRATION])
    return unavailable.get(Feature.CALIBRATION)


def metadata_keeper(
    name: str, topic: str, item: str, value: dict[str, Any]
) -> Callable[[Scheduler], str | None]:
    """A function for ``Client.run_on_scheduler`` that stores a value and restores it on restart.

    It is pickled by value, since the scheduler may lack this package.

    Parameters
    ----------
    name
        Name of the plugin that assigns the value again.
    topic, item
        Clients read it by ``client.get_metadata([topic, item])``.
    value
        The value.

    Returns
    -------
    A function that returns None, or the reason why it could not store the value.
    """
    from distributed import SchedulerPlugin

    def keep(dask_scheduler: Scheduler) -> str | None:
        try:
            from dasktile._compat.distributed import check_calibration
        except ImportError:
            pass
        else:
            reason = check_calibration(dask_scheduler)
            if reason is not None:
                return reason

        class Keeper(SchedulerPlugin):
            def restart(self, scheduler: Scheduler) -> None:
                scheduler.task_metadata.setdefault(topic, {})[item] = dict(value)

        dask_scheduler.plugins.pop(name, None)
        keeper = Keeper()
        dask_scheduler.add_plugin(keeper, name=name)
        keeper.restart(dask_scheduler)
        return None

    return keep
