"""The tasks and policies of a scheduler: on which workers tasks run, when, and in which order."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import dask

from dasktile._compat.distributed.checks import check
from dasktile._compat.distributed.features import Feature
from dasktile._compat.distributed.states import (
    NO_WORKER,
    PROCESSING,
    QUEUED,
    RELEASED,
    WAITING,
)
from dasktile._compat.distributed.table import PROCESS

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import TaskState, WorkerState

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


def nothing_to_run(
    scheduler: Scheduler, processing: int, is_ours: Callable[[TaskState], bool], may_hold: bool
) -> bool:
    """Whether no task runs or can run; looks at no worker.

    Parameters
    ----------
    scheduler
        The scheduler.
    processing
        Number of tasks that workers have and have not finished.
    is_ours
        Whether to count a task without a permitted worker; other such tasks may never run.
    may_hold
        False if there is no such task.
    """
    if not scheduler.tasks:
        return True
    busy = processing or scheduler.queued or (may_hold and any(map(is_ours, scheduler.unrunnable)))
    return not busy


def count_processing(scheduler: Scheduler) -> int:
    """Number of tasks that workers have and have not finished; looks at all workers."""
    return sum(len(ws.processing) for ws in scheduler.workers.values())


def all_run(scheduler: Scheduler) -> bool:
    """Whether no worker is paused or leaving."""
    return len(scheduler.running) == len(scheduler.workers)


def array_names(scheduler: Scheduler) -> Collection[Any]:
    """Names of all arrays that have tasks, and of other groups of tasks."""
    return scheduler.task_groups


# Root tasks ----------------------------------------------------------------------------


def limits_roots(scheduler: Scheduler) -> bool:
    """False where the configured worker saturation is infinite."""
    return not math.isinf(scheduler.WORKER_SATURATION)


def is_queued_when_ready(scheduler: Scheduler, ts: TaskState) -> bool:
    """Whether the scheduler would queue a task until a worker has a slot for it."""
    return bool(scheduler.is_rootish(ts))


def is_computing(scheduler: Scheduler, key: Any) -> bool:
    """Whether a key is that of a task that will run, or runs."""
    ts = scheduler.tasks.get(key)
    return ts is not None and ts.state in (WAITING, NO_WORKER, QUEUED, PROCESSING)


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


def return_held(scheduler: Scheduler, held: Iterable[TaskState], stimulus: str) -> None:
    """Return tasks that were held in ``no-worker`` to the scheduler, which queues them."""
    recommendations = {
        ts.key: RELEASED
        for ts in held
        if ts.state == NO_WORKER and scheduler.tasks.get(ts.key) is ts
    }
    if recommendations:
        transition(scheduler, recommendations, stimulus)


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


def may_steal(scheduler: Scheduler) -> bool:
    """Whether work stealing is switched on."""
    return "stealing" in scheduler.extensions and bool(
        dask.config.get("distributed.scheduler.work-stealing")
    )


def steal(scheduler: Scheduler, ts: TaskState, address: str) -> None:
    """Have a task that was sent to a worker, but does not run yet, run on another one."""
    stealing: Any = scheduler.extensions["stealing"]
    stealing.move_task_request(ts, ts.processing_on, scheduler.workers[address])


def is_in_flight(scheduler: Scheduler, ts: TaskState) -> bool:
    """Whether a worker was asked for a task that another one steals, and has not answered."""
    return ts in scheduler.extensions["stealing"].in_flight


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


# Order, and hints for workers ----------------------------------------------------------


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


# Schedulers of this process ------------------------------------------------------------


def own_schedulers() -> list[Scheduler]:
    """Running schedulers of this process with workers; none where the feature is unavailable."""
    distributed = sys.modules.get("distributed")
    if distributed is None or check(PROCESS, {}, [Feature.OWN_SCHEDULER]):
        return []
    return [
        scheduler
        for scheduler in distributed.Scheduler._instances
        # one that is closing may still have its workers
        if scheduler.workers and scheduler.status is distributed.core.Status.running
    ]
