"""The names of distributed that each feature needs, in three tables.

`SCHEDULER` has the features of the scheduler's plugin, `WORKER` those of the worker's plugin, and
`PROCESS` those that need no plugin.  A feature with parts on both sides is in two tables.
"""

from __future__ import annotations

from collections.abc import Mapping

from dasktile._compat.distributed.features import Feature, Internal
from dasktile._compat.distributed.states import (
    ERRED,
    ERROR,
    EXECUTING,
    FETCH,
    FLIGHT,
    FORGOTTEN,
    LONG_RUNNING,
    MEMORY,
    MISSING,
    NO_WORKER,
    PROCESSING,
    QUEUED,
    RELEASED,
    WAITING,
)


def _each(owner: str, used_for: str, *names: str, only_with: str = "") -> tuple[Internal, ...]:
    return tuple(Internal(owner, name, used_for, only_with=only_with) for name in names)


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
_UNSORTED = "the tasks that run next, where tasks are not sorted"

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
        *_each(_WORKER, "number of tasks that workers have", "processing"),
        *_each("scheduler", "whether all workers run", "running"),
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
    Feature.LATE_WORKERS: (
        *_each("scheduler", "the extension", "extensions"),
        *_each("scheduler", "the time to move a result", "bandwidth"),
        *_each("scheduler", "workers that may take tasks", "running"),
        Internal(
            "stealing",
            "move_task_request",
            "moves a task that was sent",
            call="ts, victim, thief",
            only_with="stealing",
        ),
        *_each("stealing", "tasks that a worker was asked for", "in_flight", only_with="stealing"),
        *_each(_WORKER, "tasks that wait", "nthreads", "processing", "long_running"),
        *_each(_TASK, "the size of a result", "nbytes"),
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
        *_each(_TASK, "the workers of readers", "processing_on", only_with="amm"),
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
        *_each(_TASK, "whether its inputs are in memory", "waiting_on"),
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
        *_each("worker.state", "tasks that may run", "ready", "constrained"),
        Internal("worker.state.ready", "peek", "drops removed tasks that are first", call=""),
        Internal("worker.state.constrained", "peek", "drops removed tasks that are first", call=""),
        Internal("worker.state.ready", "peekn", "the tasks that run next", call="n"),
        Internal("worker.state.constrained", "peekn", "the tasks that run next", call="n"),
        Internal("worker.state.ready", "_heap", _UNSORTED, instead="peekn, which sorts them"),
        Internal("worker.state.constrained", "_heap", _UNSORTED, instead="peekn, which sorts them"),
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
