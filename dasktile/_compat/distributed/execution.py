"""The tasks of a worker: how it runs, fetches and reports them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush, merge
from inspect import isawaitable
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod, ref

from dask.utils import key_split

from dasktile._compat.distributed.overrides import Override, install

if TYPE_CHECKING:
    from distributed import Worker
    from distributed.comm.core import Comm

# Its tasks -----------------------------------------------------------------------------


def worker_tasks(worker: Worker) -> Mapping[Any, Any]:
    """The tasks of a worker, by key."""
    return worker.state.tasks


def result_bytes(worker: Worker, key: Any) -> int | None:
    """Bytes of a result that a worker holds; None if they are unknown."""
    task = worker.state.tasks.get(key)
    return None if task is None else task.nbytes


def actors(worker: Worker) -> Mapping[Any, Any]:
    """Actors of a worker, by key, which are stored apart from results."""
    return worker.state.actors


def next_tasks(worker: Worker, count: int) -> list[Any]:
    """The tasks of a worker that run next, in their order; some may wait for resources."""
    heaps = [
        _smallest(heap, count) for heap in (worker.state.ready, worker.state.constrained) if heap
    ]
    if len(heaps) < 2:
        return heaps[0] if heaps else []
    return list(islice(merge(*heaps, key=attrgetter("priority")), count))


def _smallest(tasks: Any, count: int) -> list[Any]:
    """The first tasks of a ``HeapSet``, whose own method sorts all of them for more than one."""
    entries: Any = getattr(tasks, "_heap", None)
    if count < 2 or not _is_heap(entries):
        return list(tasks.peekn(count))
    # removed tasks stay in the heap until they come up: this drops those that have
    tasks.peek()
    found: list[Any] = []
    # the children of an entry of a heap are no smaller: only those of visited ones can be next
    following = [(entries[0], 0)]
    while following and len(found) < count:
        (_, _, reference), at = heappop(following)
        task = reference()
        if task in tasks and task not in found:
            found.append(task)
        for child in (2 * at + 1, 2 * at + 2):
            if child < len(entries):
                heappush(following, (entries[child], child))
    return found


def _is_heap(entries: Any) -> bool:
    """Whether these are the entries of a ``HeapSet`` in the form that is known."""
    if type(entries) is not list or not entries:
        return False
    first = entries[0]
    return type(first) is tuple and len(first) == 3 and isinstance(first[2], ref)


def is_running(worker: Worker) -> bool:
    """Whether a worker runs tasks, or is paused and will resume."""
    from distributed.worker import WORKER_ANY_RUNNING

    return worker.status in WORKER_ANY_RUNNING


def outgoing(worker: Worker) -> tuple[int, int | None]:
    """Number of requests of peers that a worker answers, and its limit; None for no limit."""
    most = worker.transfer_outgoing_count_limit
    return worker.transfer_outgoing_count, None if most is False else most


def copies_messages(comm: Comm) -> bool:
    """Whether messages are serialised on their way, which they are not within a process."""
    return not comm.peer_address.startswith("inproc://")


def layer_name(key: Any) -> str:
    """The layer of a task whose key is no tuple.  May be called without the feature."""
    try:
        from distributed.utils import key_split_group
    except ImportError:
        return key_split(key)
    return str(key_split_group(key))


# What it runs --------------------------------------------------------------------------


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
    """Replace methods and handlers of a worker; `overrides.uninstall` restores each.

    A worker keeps every handler that it has called (`distributed.core._expects_comm` has a cache
    without a limit), so that its handlers do not keep the objects of the new methods alive.
    """
    own_get, own_update = worker.handlers["get_data"], worker.handlers["update_data"]
    get, update = WeakMethod(methods.get_data), WeakMethod(methods.update_data)

    async def get_data(comm: Any, **message: Any) -> Any:
        return await (get() or own_get)(comm, **message)

    async def update_data(data: Any, **message: Any) -> Any:
        result = (update() or own_update)(data, **message)
        return await result if isawaitable(result) else result

    return [
        install(worker, "execute", methods.execute),
        install(worker, "gather_dep", methods.gather_dep),
        install(worker.handlers, "get_data", get_data),
        install(worker.handlers, "update_data", update_data),
    ]


def add_callback(worker: Worker, name: str, callback: Any) -> None:
    """Register a ``PeriodicCallback``, which a worker stops when it closes."""
    worker.periodic_callbacks[name] = callback


def remove_callback(worker: Worker, name: str) -> None:
    """Remove such a callback."""
    worker.periodic_callbacks.pop(name, None)


# Events of tasks -----------------------------------------------------------------------


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


# Messages from and to the scheduler ----------------------------------------------------


def handle_message(worker: Worker, name: str, handler: Callable[..., None]) -> None:
    """Add a handler for messages of the scheduler; a worker closes on an unknown message."""
    worker.stream_handlers[name] = handler


async def heartbeat(worker: Worker) -> None:
    """Send a heartbeat now.  Does nothing where that is unavailable."""
    if hasattr(worker, "heartbeat"):
        await worker.heartbeat()


def add_metric(worker: Worker, name: str, function: Callable[[Worker], Any]) -> None:
    """Send the value of a function with every heartbeat."""
    metrics: Any = worker.metrics
    metrics[name] = function


def remove_metric(worker: Worker, name: str, function: Callable[[Worker], Any]) -> None:
    """Stop sending the value of a function, unless another function has replaced it."""
    metrics: Any = worker.metrics
    if metrics.get(name) == function:
        del metrics[name]
