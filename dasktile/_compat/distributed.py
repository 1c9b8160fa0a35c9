"""Everything undocumented of distributed that dasktile reads, calls, replaces or assigns.

`SCHEDULER`, `WORKER` and `PROCESS` are the table: for every feature of dasktile the names of
distributed that it needs.  When the plugins are installed, :func:`check` looks each name up and
compares signatures.  A feature of which a name is missing, or takes other arguments, is switched
off with one warning; all others, and distributed itself, work as before.

The functions below the table are the only code that uses these names.  They are grouped by
feature, and must not be called where the feature is unavailable, unless they say otherwise.

Nothing of distributed is imported before it is used: clients may plan without it.
"""

from __future__ import annotations

import inspect
import logging
import math
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, get_args

from dask.utils import key_split

if TYPE_CHECKING:
    from distributed import Scheduler, SchedulerPlugin, Worker, WorkerPlugin
    from distributed.scheduler import TaskState, WorkerState

logger = logging.getLogger("dasktile")

#: Releases of distributed with which the table was checked.
CHECKED_WITH = ("2026.7.1", "2026.8.0")

# States of tasks: those of both sides, of the scheduler alone, and of workers alone.

RELEASED, WAITING, MEMORY, FORGOTTEN = "released", "waiting", "memory", "forgotten"
NO_WORKER, QUEUED, PROCESSING, ERRED = "no-worker", "queued", "processing", "erred"
EXECUTING, LONG_RUNNING, ERROR = "executing", "long-running", "error"
FETCH, FLIGHT, MISSING = "fetch", "flight", "missing"


class Feature(Enum):
    """A part of dasktile that works alone: without it all others do."""

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


#: What happens without a feature.
WITHOUT = {
    Feature.ENABLE: "the cluster is unchanged",
    Feature.PRELOAD: "the scheduler or worker starts without dasktile",
    Feature.PLACEMENT: "tasks run where distributed sends them",
    Feature.ROOTS: "root tasks are sent to their home workers at once",
    Feature.STEALING: "idle workers may steal tasks from their home workers",
    Feature.REPLICAS: "distributed may drop copies that a task will read",
    Feature.ORDER: "plans run after graphs that were submitted later",
    Feature.HINTS: "workers evict what was used longest ago",
    Feature.METRICS: "nothing is counted, and workers get no next-use hints",
    Feature.PAGE: "the dashboard has no page of dasktile",
    Feature.SPILLING: "workers keep their results as before",
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
        :func:`check` is given, as in ``worker.memory_manager``.
    name
        Of its attribute; of its item where the owner is a mapping, a set or a ``Literal``.
    used_for
        What it is to dasktile.
    signature
        Parameters, without annotations, of what dasktile replaces: its callers are those of
        distributed.  Empty for all else.
    call
        How dasktile calls it: arguments, those by keyword with ``=`` at the end.  None for what
        it does not call.
    only_with
        The name of an object without which the feature does not need this name.
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
        *_each(_TASK, "assigned: where a task may run", "worker_restrictions"),
        *_each(_TASK, "assigned: may it run elsewhere?", "loose_restrictions"),
        *_each(_TASK, "restrictions of the user's", "host_restrictions", "resource_restrictions"),
        *_each(_TASK, "is it to run?", "state", "run_spec", "actor", "priority"),
        *_each(_TASK, "what it reads, and which tasks read it", "dependencies", "dependents"),
        *_each(_TASK, "is its result needed?", "waiters", "who_wants"),
        *_each(_TASK, "where it is", "who_has", "processing_on"),
        *_each(_WORKER, "the order of workers", "address", "host", "name", "status"),
        *_each(_WORKER, "is a worker idle?", "processing"),
        *_each("scheduler", "is any task to run?", "queued", "unrunnable"),
        *_each("scheduler", "names of arrays that others follow", "task_groups"),
        *_each("scheduler", "assigned: the order of workers, for clients", "task_metadata"),
        *_each(_STATES, "steps of a task", RELEASED, WAITING, NO_WORKER, PROCESSING, MEMORY),
        *_each(_STATES, "steps of a task", FORGOTTEN),
    ),
    Feature.ROOTS: (
        Internal(
            "scheduler",
            "transitions",
            "moves root tasks from no-worker to processing or released",
            call="recommendations, stimulus_id=",
        ),
        *_each("scheduler", "how many root tasks a worker is given", "WORKER_SATURATION"),
        *_each("scheduler", "workers that may be given root tasks", "running"),
        Internal("scheduler.queued", "peek", "is the scheduler's next root task later?", call=""),
        *_each("scheduler", "assigned: the time since which tasks have no worker", "unrunnable"),
        *_each("scheduler", "when tasks fail", "_no_workers_since", "no_workers_timeout"),
        Internal("distributed.metrics", "monotonic", "the clock of these times", call=""),
        *_each(_WORKER, "free slots", "nthreads", "processing", "long_running"),
    ),
    Feature.STEALING: (
        *_each("scheduler", "where the extension is", "extensions"),
        Internal("stealing", "remove_key_from_stealable", "keeps a task at home", call="ts"),
        *_each("stealing", "changed: keeps a new kind of task at home", "unknown_durations"),
        *_each(_TASK, "the kind of a task", "prefix", only_with="stealing"),
    ),
    Feature.REPLICAS: (
        *_each("scheduler", "where the extension is", "extensions"),
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
        *_each(_TASK, "where readers run", "waiters", "worker_restrictions", only_with="amm"),
        *_each(_TASK, "where readers run", "who_has", "loose_restrictions", only_with="amm"),
    ),
    Feature.ORDER: (
        *_each(_TASK, "assigned: when a task runs", "priority"),
        *_each(_TASK, "its place in a plan", "annotations", "state"),
    ),
    Feature.HINTS: (
        *_each("scheduler", "workers that can be sent to", "stream_comms"),
        Internal("scheduler", "worker_send", "sends the hints", call="address, message"),
        *_each(_TASK, "assigned: hints that a task takes to its worker", "annotations"),
        *_each(_TASK, "which tasks read a result", "dependencies", "dependents", "priority"),
        *_each(_TASK, "which tasks read a result", "state", "waiters", "who_wants"),
        *_each(_TASK, "where it is", "who_has", "processing_on"),
        *_each(_STATES, "tasks that will read", WAITING, NO_WORKER, QUEUED, PROCESSING),
        *_each(_STATES, "tasks that have run", MEMORY, RELEASED, ERRED),
    ),
    Feature.METRICS: (*_each(_WORKER, "what came with heartbeats", "metrics"),),
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
        *_each(_STYLE, "looks", "BOKEH_THEME", "env", only_with="dashboard"),
    ),
}

#: What the worker's plugin needs.
WORKER: Mapping[Feature, tuple[Internal, ...]] = {
    Feature.METRICS: (
        *_each("worker", "changed: what heartbeats carry", "metrics"),
        *_each("worker", "where dasktile.metrics finds the counts", "plugins"),
        *_each("worker", "results that it has", "data"),
        *_each("worker.state", "tasks, and bytes of results", "tasks", "nbytes"),
        Internal(_WORKER_TASK, "get_nbytes", "bytes of a result", call="self"),
        *_each(_WORKER_TASK, "which tasks wait for it", "key", "state", "waiters", "dependents"),
        Internal("distributed.utils", "key_split_group", "the layer of a task", call="key"),
        *_each(_WORKER_STATES, "steps of a task", MEMORY, FLIGHT, EXECUTING, LONG_RUNNING),
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
        *_each("worker.memory_manager", "how often to measure", "memory_monitor_interval"),
        Internal("worker.monitor", "get_process_memory", "bytes of the process", call=""),
        *_each("worker", "changed: runs a function now and then", "periodic_callbacks"),
        *_each("worker", "results that are sent", "transfer_outgoing_count"),
        *_each("worker", "how many may be", "transfer_outgoing_count_limit"),
        Internal("worker", "handle_stimulus", "tells that results are lost", call="event"),
        *_each("worker.state", "tasks, and actors", "tasks", "actors"),
        *_each(_WORKER_TASK, "which tasks read a result", "dependencies", "dependents", "state"),
        *_each(_WORKER_TASK, "when a task runs", "key", "priority", "run_spec", "run_id"),
        *_each(_WORKER_TASK, "changed: the seconds it took to read inputs", "startstops"),
        *_each(_WORKER_STATES, "steps of a task", RELEASED, FORGOTTEN, LONG_RUNNING),
        *_each(_WORKER_STATES, "tasks that read nothing any more", MEMORY, ERROR, FETCH, FLIGHT),
        *_each(_WORKER_STATES, "tasks that read nothing any more", MISSING),
        *_each("distributed.worker", "is a worker closing?", "WORKER_ANY_RUNNING"),
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
            "seconds that reading took",
            call="label, value, unit",
        ),
        Internal("distributed.sizeof", "safe_sizeof", "bytes of a result", call="value"),
        *_each("distributed.spill", "what a worker that spills has", "SpillBuffer"),
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
        *_each("worker", "changed: what to do with a hint", "stream_handlers"),
        Internal("worker", "heartbeat", "lets the scheduler know of the handler", call=""),
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
        *_each("scheduler", "where the plugins are", "plugins", "worker_plugins"),
        Internal("scheduler", "remove_plugin", "takes the plugin off", call="name"),
    ),
    Feature.PRELOAD: (
        Internal(
            "distributed:Scheduler",
            "register_scheduler_plugin",
            "puts the plugin on a scheduler",
            call="self, plugin, name=, idempotent=",
        ),
        Internal(
            "distributed:Worker",
            "plugin_add",
            "puts the plugin on a worker",
            call="self, plugin, name=",
        ),
    ),
    Feature.CALIBRATION: (
        *_each("scheduler", "assigned: what was measured", "task_metadata"),
        *_each("scheduler", "a plugin that is there already", "plugins"),
        Internal("scheduler", "add_plugin", "assigns it after a restart", call="plugin, name="),
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

#: Features that this process has warned of.
_warned: set[Feature] = set()


def lookup(internal: Internal, objects: Mapping[str, Any]) -> Any:
    """What a name of the table stands for.

    Parameters
    ----------
    internal
        The name.
    objects
        Objects of which the first part of an owner may be the name.

    Raises
    ------
    Exception
        If there is nothing of that name.
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
        As for :func:`lookup`; None for what a server does not have.
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
    """Whether a function can be called as ``Internal.call`` says; True if that is unknown."""
    arguments = [each for each in call.split(", ") if each]
    keywords = {each.removesuffix("=") for each in arguments if each.endswith("=")}
    try:
        signature = inspect.signature(function)
    except ValueError:
        return True  # a function of C
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
    """Features that cannot be used here, and why.  Never raises.

    Logs a warning for each, once in the life of the process.

    Parameters
    ----------
    table
        One of `SCHEDULER`, `WORKER` and `PROCESS`.
    objects
        As for :func:`problem`.
    features
        Those that are wanted, by default all of the table.
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
    """Features of the scheduler's plugin that cannot be used, and why."""
    objects: dict[str, Any] = {"scheduler": scheduler, "dashboard": None}
    for name in ("stealing", "amm"):
        objects[name] = (getattr(scheduler, "extensions", None) or {}).get(name)
    with suppress(AttributeError):  # which the check says, too
        objects["dashboard"] = dashboard_of(scheduler)
    return check(SCHEDULER, objects)


def check_worker(worker: Worker, spills: bool) -> dict[Feature, str]:
    """Features of the worker's plugin that cannot be used, and why.

    Parameters
    ----------
    worker
        A worker that runs, or is about to.
    spills
        False where the worker is to keep its results as it does.
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
        What is there now.
    before
        What the owner itself had there; `NOTHING` for what it has from its class.
    """

    owner: Any
    name: str
    replacement: Any
    before: Any


#: Says of an override that the owner had no such attribute or item of its own.
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
    """Restore what was there, unless something else has been put there since."""
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


# Plugins -------------------------------------------------------------------------------


def check_enable(scheduler: Scheduler) -> str | None:
    """Why plugins cannot be put on a scheduler; None if they can."""
    return check(PROCESS, {"scheduler": scheduler}, [Feature.ENABLE]).get(Feature.ENABLE)


def plugin_of(server: Scheduler | Worker, name: str) -> Any:
    """A plugin by its name, None if there is none."""
    return getattr(server, "plugins", {}).get(name)


def worker_plugin_names(scheduler: Scheduler) -> list[str]:
    """Names of the plugins that new workers get."""
    return list(getattr(scheduler, "worker_plugins", ()))


def remove_plugin(scheduler: Scheduler, name: str) -> None:
    """Take a plugin off a scheduler."""
    scheduler.remove_plugin(name)


async def preload_scheduler(scheduler: Scheduler, plugin: SchedulerPlugin, name: str) -> None:
    """Put a plugin on a scheduler that starts; do nothing where that is unavailable."""
    if not check(PROCESS, {}, [Feature.PRELOAD]):
        await scheduler.register_scheduler_plugin(plugin, name=name, idempotent=True)


async def preload_worker(worker: Worker, plugin: WorkerPlugin, name: str) -> None:
    """Put a plugin on a worker that starts; do nothing where that is unavailable."""
    if not check(PROCESS, {}, [Feature.PRELOAD]):
        await worker.plugin_add(plugin, name=name)


# Placement -----------------------------------------------------------------------------


def restrict(ts: TaskState, workers: Any, loose: bool) -> None:
    """Say where a task may run.

    Parameters
    ----------
    ts
        The task.
    workers
        Addresses, None for any.
    loose
        Whether it may run elsewhere if there are no such workers.
    """
    ts.worker_restrictions = workers
    ts.loose_restrictions = loose


def nothing_to_run(scheduler: Scheduler, is_ours: Callable[[TaskState], bool]) -> bool:
    """Whether no task runs or could run.

    Parameters
    ----------
    scheduler
        The scheduler.
    is_ours
        Of tasks that no worker may run, which ones count: others may stay forever.
    """
    busy = scheduler.queued or any(map(is_ours, scheduler.unrunnable))
    return not (busy or any(ws.processing for ws in scheduler.workers.values()))


def array_names(scheduler: Scheduler) -> Collection[Any]:
    """Names of all arrays that have tasks, and of other groups of tasks."""
    return scheduler.task_groups


def publish(scheduler: Scheduler, topic: str, name: str, value: Any) -> None:
    """Keep a value where clients find it, as ``client.get_metadata([topic, name])``."""
    scheduler.task_metadata.setdefault(topic, {})[name] = value


def withdraw(scheduler: Scheduler, topic: str, name: str) -> None:
    """Remove such a value."""
    values = scheduler.task_metadata.get(topic, {})
    values.pop(name, None)
    if not values:
        scheduler.task_metadata.pop(topic, None)


# Root tasks ----------------------------------------------------------------------------


def limits_roots(scheduler: Scheduler) -> bool:
    """False where the scheduler is configured to send all root tasks to workers at once."""
    return not math.isinf(scheduler.WORKER_SATURATION)


def slots(scheduler: Scheduler, ws: WorkerState) -> int:
    """Tasks that a worker may be given before it is as full as the scheduler allows."""
    most = max(1, math.ceil(ws.nthreads * scheduler.WORKER_SATURATION))
    # Tasks that wait for others, which they have submitted, take no slot.
    return most - (len(ws.processing) - len(ws.long_running))


def first_queued(scheduler: Scheduler) -> TaskState | None:
    """The most urgent task of the scheduler's own queue."""
    queued: Any = scheduler.queued
    return queued.peek() if queued else None


def transition(scheduler: Scheduler, states: Mapping[Any, str], stimulus: str) -> None:
    """Bring tasks, by key, to other states."""
    recommendations: Any = states
    scheduler.transitions(recommendations, stimulus_id=stimulus)


def now() -> float:
    """Seconds, by the clock of the scheduler."""
    from distributed.metrics import monotonic

    return monotonic()


def restart_timeouts(scheduler: Scheduler, keys: Iterable[Any]) -> None:
    """Start the time again after which tasks in ``no-worker`` fail.

    From when no worker runs the time does pass.
    """
    if not scheduler.no_workers_timeout:
        return
    lacking = scheduler._no_workers_since
    unrunnable, time_now = scheduler.unrunnable, now()
    for key in keys:
        ts = scheduler.tasks.get(key)
        if ts in unrunnable and (lacking is None or unrunnable[ts] <= lacking):
            del unrunnable[ts]  # they are in order of time
            unrunnable[ts] = time_now


# Work stealing -------------------------------------------------------------------------


def keep_from_stealing(scheduler: Scheduler, ts: TaskState) -> None:
    """Leave a task that was just sent to a worker out of what other workers may steal."""
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
        The type of policy to replace, and none derived from it.
    new
        Makes the policy to put in its place.
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
    """Dask's policy that drops copies of which there are more than tasks that wait."""
    from distributed.active_memory_manager import ReduceReplicas

    return ReduceReplicas


def drop(ts: TaskState, candidates: set[WorkerState]) -> Any:
    """A policy's suggestion to drop one of the copies on some workers."""
    from distributed.active_memory_manager import Suggestion

    return Suggestion("drop", ts, candidates)


# Order, and hints from the scheduler ---------------------------------------------------


def set_priority(ts: TaskState, priority: tuple[Any, ...]) -> None:
    """Say when a task runs, among those that are not sent to a worker yet."""
    ts.priority = priority


def annotate(ts: TaskState, name: str, value: Any) -> None:
    """Give a task an annotation, which its worker gets with it."""
    # annotations may be shared by all tasks of a layer
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
    """Applications behind the scheduler's HTTP server."""
    return list(scheduler.http_application.applications)


def has_page(application: Any, route: str) -> bool:
    """Whether an application serves a page."""
    return any(path.endswith(route) for path in getattr(application, "app_paths", ()))


def add_page(scheduler: Scheduler, name: str, document: Callable[..., None]) -> bool:
    """Add a page to a scheduler's dashboard, and to the menus of all its pages.

    Parameters
    ----------
    scheduler
        The scheduler; call this where its event loop runs.
    name
        Of the page in the menus; its path is this after a slash.
    document
        Writes the page, given the scheduler, variables of the template and a Bokeh document.

    Returns
    -------
    False where there is no dashboard.
    """
    dashboard = dashboard_of(scheduler)
    if dashboard is None:
        return False
    # A dashboard is proof that there is a Bokeh that distributed can work with.
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
    # Distributed's own pages have the same list, so that their menus show this one.
    variables["pages"].append(name)
    return True


def remove_page(scheduler: Scheduler, name: str) -> None:
    """Remove such a page, if it is there."""
    for application in applications(scheduler):
        if has_page(application, f"/{name}"):
            scheduler.http_application.applications.remove(application)
            application.stop()
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
    """Have heartbeats carry what a function says."""
    metrics: Any = worker.metrics
    metrics[name] = function


def remove_metric(worker: Worker, name: str, function: Callable[[Worker], Any]) -> None:
    """Have heartbeats carry it no more, unless another function has taken its place."""
    metrics: Any = worker.metrics
    if metrics.get(name) == function:
        del metrics[name]


def worker_tasks(worker: Worker) -> Mapping[Any, Any]:
    """The tasks of a worker, by key."""
    return worker.state.tasks


def held_bytes(worker: Worker) -> int:
    """Bytes of the results that a worker has, spilled ones included."""
    return worker.state.nbytes


def layer_name(key: Any) -> str:
    """The layer of a task whose key is no tuple.  Works without metrics, too."""
    try:
        from distributed.utils import key_split_group
    except ImportError:
        return key_split(key)
    return str(key_split_group(key))


# A worker's results --------------------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """What a worker's memory manager is configured to.

    Parameters
    ----------
    memory
        Bytes of the worker, None or 0 for no limit.
    target
        Part of them that results may take, False for any.
    spill
        Part of them that the process may take before results are evicted, False for any.
    interval
        Seconds between two looks at the process, 0 where it does not look.
    """

    memory: int | None
    target: float | bool
    spill: float | bool
    interval: float


def limits(worker: Worker) -> Limits:
    """What a worker's memory manager is configured to now."""
    manager = worker.memory_manager
    return Limits(
        manager.memory_limit,
        manager.memory_target_fraction,
        manager.memory_spill_fraction,
        manager.memory_monitor_interval,
    )


def default_data(worker: Worker) -> type:
    """The type of mapping that distributed itself gives a worker for its results."""
    from distributed.spill import SpillBuffer

    configured = limits(worker)
    return SpillBuffer if configured.memory and (configured.target or configured.spill) else dict


def replace_data(worker: Worker, data: MutableMapping[Any, Any]) -> None:
    """Give a worker another mapping for its results; they must have been moved to it."""
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
    """Those that a worker has now."""
    handlers = worker.handlers
    return WorkerMethods(
        worker.execute, worker.gather_dep, handlers["get_data"], handlers["update_data"]
    )


def replace_methods(worker: Worker, methods: WorkerMethods) -> list[Override]:
    """Have a worker call others; :func:`uninstall` each to restore them."""
    return [
        install(worker, "execute", methods.execute),
        install(worker, "gather_dep", methods.gather_dep),
        install(worker.handlers, "get_data", methods.get_data),
        install(worker.handlers, "update_data", methods.update_data),
    ]


def add_callback(worker: Worker, name: str, callback: Any) -> None:
    """Have a worker stop a ``PeriodicCallback`` when it closes."""
    worker.periodic_callbacks[name] = callback


def remove_callback(worker: Worker, name: str) -> None:
    """Forget such a callback."""
    worker.periodic_callbacks.pop(name, None)


def handle_message(worker: Worker, name: str, handler: Callable[..., None]) -> None:
    """Have a worker handle a message of the scheduler; an unknown one ends a worker."""
    worker.stream_handlers[name] = handler


async def heartbeat(worker: Worker) -> None:
    """Send a heartbeat now.  Does nothing where that is unavailable."""
    if hasattr(worker, "heartbeat"):
        await worker.heartbeat()


def process_memory(worker: Worker) -> int:
    """Bytes that the process of a worker takes."""
    return worker.monitor.get_process_memory()


def outgoing(worker: Worker) -> tuple[int, int | None]:
    """Requests of peers that a worker answers now, and how many it may; None for any number."""
    most = worker.transfer_outgoing_count_limit
    return worker.transfer_outgoing_count, None if most is False else most


def actors(worker: Worker) -> Mapping[Any, Any]:
    """Actors of a worker, by key: they are no results."""
    return worker.state.actors


def next_ready(worker: Worker) -> Any:
    """The task of a worker that runs next, None if none is ready."""
    ready = worker.state.ready
    return ready.peek() if ready else None


def is_running(worker: Worker) -> bool:
    """Whether a worker runs tasks, or will again."""
    from distributed.worker import WORKER_ANY_RUNNING

    return worker.status in WORKER_ANY_RUNNING


def note_reading(task: Any, start: float, stop: float) -> None:
    """Show the seconds that a task waited for its inputs as ``Worker.execute`` does."""
    from distributed.metrics import context_meter

    task.startstops.append({"action": "disk-read", "start": start, "stop": stop})
    context_meter.digest_metric("disk-read", stop - start, "seconds")


def run_later(key: Any, stimulus: str) -> Any:
    """The event that a task is to be scheduled again."""
    from distributed.worker_state_machine import RescheduleEvent

    return RescheduleEvent(key=key, stimulus_id=stimulus)


def failed(task: Any, error: BaseException, stimulus: str) -> Any:
    """The event that a task has failed."""
    from distributed.worker_state_machine import ExecuteFailureEvent

    return ExecuteFailureEvent.from_exception(
        error, key=task.key, run_id=task.run_id, stimulus_id=stimulus
    )


def lose(worker: Worker, keys: list[Any], stimulus: str) -> None:
    """Have a worker forget results, so that the scheduler has them recomputed."""
    from distributed.worker_state_machine import RemoveReplicasEvent

    worker.handle_stimulus(RemoveReplicasEvent(keys=keys, stimulus_id=stimulus))


# The store: also what a worker has from its start, before anything is checked ------------


def safe_sizeof(value: Any) -> int:
    """Bytes of a result, as the scheduler counts them."""
    from distributed.sizeof import safe_sizeof

    return safe_sizeof(value)


def machine_memory() -> int:
    """Bytes of memory that distributed believes this machine has."""
    from distributed.system import MEMORY_LIMIT

    return MEMORY_LIMIT


def compression(setting: str) -> Any:
    """The compression that a setting of distributed's names."""
    from distributed.protocol.compression import get_compression_settings

    return get_compression_settings(setting)


def limit_rate(log: logging.Logger, text: str) -> None:
    """Log messages with this text once in a while only, where distributed can do that."""
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
    """The value that a file has."""
    from distributed.protocol.serialize import deserialize_bytes

    return deserialize_bytes(buffer)


def to_host(value: Any) -> tuple[dict[str, Any], Iterable[Any]]:
    """A value of a device as buffers of the host, and how to make it of them."""
    from distributed.protocol.serialize import serialize

    return serialize(value, serializers=("dask", "pickle"), on_error="raise")


def from_host(header: dict[str, Any], frames: Iterable[Any]) -> Any:
    """The value of a device."""
    from distributed.protocol.serialize import deserialize

    return deserialize(header, frames)


def register_serialization(
    kind: type,
    serialize: Callable[[Any], tuple[dict[str, Any], list[Any]]],
    deserialize: Callable[[dict[str, Any], list[Any]], Any],
) -> None:
    """Say how values of a type are sent to other workers, where distributed can be told."""
    with suppress(ImportError):
        from distributed.protocol.serialize import dask_deserialize, dask_serialize

        dask_serialize.register(kind, serialize)
        dask_deserialize.register(kind, deserialize)


def serialize_array(array: Any) -> tuple[dict[str, Any], list[Any]]:
    """A NumPy array as distributed sends it."""
    from distributed.protocol.numpy import serialize_numpy_ndarray

    return serialize_numpy_ndarray(array)


def deserialize_array(header: dict[str, Any], frames: list[Any]) -> Any:
    """The NumPy array of what distributed has sent."""
    from distributed.protocol.numpy import deserialize_numpy_ndarray

    return deserialize_numpy_ndarray(header, frames)


# Without a plugin ----------------------------------------------------------------------


def own_schedulers() -> list[Scheduler]:
    """Schedulers of this process that have workers; none where they cannot be found."""
    distributed = sys.modules.get("distributed")
    if distributed is None or check(PROCESS, {}, [Feature.OWN_SCHEDULER]):
        return []
    return [scheduler for scheduler in distributed.Scheduler._instances if scheduler.workers]


def check_emulated() -> str | None:
    """Why arrays of the emulated device cannot be sent to other workers; None if they can."""
    return check(PROCESS, {}, [Feature.EMULATED]).get(Feature.EMULATED)


def check_calibration(scheduler: Scheduler) -> str | None:
    """Why a scheduler cannot keep what was measured; None if it can."""
    unavailable = check(PROCESS, {"scheduler": scheduler}, [Feature.CALIBRATION])
    return unavailable.get(Feature.CALIBRATION)


def metadata_keeper(
    name: str, topic: str, item: str, value: dict[str, Any]
) -> Callable[[Scheduler], str | None]:
    """A function for ``Client.run_on_scheduler`` that has a value survive a restart.

    It is sent by value, since the scheduler may lack the package.

    Parameters
    ----------
    name
        Of the plugin that assigns the value again.
    topic, item
        Where clients find it: ``client.get_metadata([topic, item])``.
    value
        The value.

    Returns
    -------
    A function that returns why it could do nothing, or None.
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
