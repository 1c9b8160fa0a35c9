"""The machine that a plan is made for: workers, threads, and the memory of a task.

This module does not import distributed: if it has not been imported, there is no client.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from numbers import Integral, Real
from time import monotonic, sleep
from types import MethodType
from typing import Any, TypeVar

import dask.config
from dask.system import CPU_COUNT
from dask.utils import parse_bytes

from dasktile import config
from dasktile._compat.distributed import scheduling
from dasktile.cluster.asked import (
    average_seconds,
    expected_workers,
    held_results,
    held_shapes,
    unplaced_keys,
)
from dasktile.cluster.settings import ClusterSettings
from dasktile.ir import ArrayType, workers_of_positions
from dasktile.tiling.calibration import Calibration
from dasktile.tiling.settings import Settings

_DEFAULT = ClusterSettings()

_Answer = TypeVar("_Answer")


#: Seconds between two questions for results that are being computed: first, and at the most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5

#: Seconds for which workers are awaited that are asked for shapes: sizes are guessed without.
_LONGEST_WAIT = 0.5


@dataclass(frozen=True, slots=True)
class Machine:
    """The workers that a plan is made for.

    Parameters
    ----------
    workers
        Processes that must send bytes to each other.
    threads
        Tasks that each of them runs at once.
    memory_limit
        Bytes that one task may hold, its inputs and its result; None for no limit.
    limit_given
        True for a user-given limit (argument or configuration), which a plan must not exceed.  A
        limit derived from the workers' memory is a target only.
    room
        Bytes of results that a process holds before it spills; None if that is unknown.
    order
        Addresses of the workers in the order of their mesh positions; empty where tasks do not run
        on the workers of the plan, because the scheduler plugin is missing.
    who_has
        Returns the addresses of the workers that have blocks in memory, given the tasks that stand
        for these blocks by key.
    calibration
        Measured speed of the cluster, or None.
    durations
        Returns the average seconds of tasks by the prefix of their keys.
    data
        Returns the bytes of results in memory, and the addresses of the workers that have them, by
        their keys.
    shapes
        Returns shapes and types of arrays in the memory of workers, by their keys, given the keys
        for every address of a worker; of none if a worker does not answer soon.
    unfinished
        Waits for results that are being computed on unknown workers, for a limited time; returns,
        of some keys, those of results that still are.
    scheduler_workers
        Workers as the scheduler counts them: more than `workers` where several are in one process.
    memory
        Bytes that a process may have in all; None if that is unknown.
    """

    workers: int
    threads: int = 1
    memory_limit: int | None = None
    limit_given: bool = False
    room: int | None = None
    order: tuple[str, ...] = ()
    who_has: Callable[[Mapping[Any, Any]], Mapping[Any, Sequence[str]]] | None = field(
        default=None, compare=False
    )
    calibration: Calibration | None = None
    durations: Callable[[], Mapping[str, float]] | None = field(default=None, compare=False)
    data: Callable[[Sequence[Any]], Mapping[Any, tuple[int, Sequence[str]]]] | None = field(
        default=None, compare=False
    )
    shapes: Callable[[Mapping[str, Sequence[Any]]], Mapping[Any, ArrayType]] | None = field(
        default=None, compare=False
    )
    unfinished: Callable[[Sequence[Any]], Sequence[Any]] | None = field(default=None, compare=False)
    scheduler_workers: int = field(default=0, compare=False)
    memory: int | None = None

    @property
    def placed(self) -> bool:
        """True where tasks run on the workers of a plan."""
        return bool(self.order)

    @property
    def hosts(self) -> tuple[int, ...]:
        """For every mesh position, the number of its worker's host; empty as `order` is."""
        names = list(map(host_of, self.order))
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        return tuple(map(numbers.__getitem__, names))

    def hosts_of(self, positions: int) -> tuple[int, ...]:
        """For every position of a mesh, the number of its worker's host.

        Parameters
        ----------
        positions
            Number of positions, at most that of the workers.
        """
        hosts = self.hosts
        return tuple(hosts[at] for at in workers_of_positions(positions, len(hosts)))

    @property
    def assumed_room(self) -> int | None:
        """What a plan assumes as `room` where that is unknown: a task's limit for each thread."""
        if self.room is not None or self.memory_limit is None:
            return None
        return self.memory_limit * self.threads

    def settings(self) -> Settings:
        """Constants of the cost model: measured values, except for those that the user set."""
        return config.tiling_settings(self.calibration)


def host_of(address: str) -> str:
    """The part of an address that the workers of one host have in common.

    Parameters
    ----------
    address
        As ``"tcp://10.0.0.1:8786"``.
    """
    return address.rpartition(":")[0]


#: Workers that an argument may give (chosen: plans take memory for each).
MOST_WORKERS = 1_000_000


def machine(workers: object = None, memory_limit: object = None) -> Machine:
    """The machine of the arguments, completed by the configuration and the current client.

    Parameters
    ----------
    workers
        A count, a ``distributed.Client``, or None.
    memory_limit
        Bytes, a string such as ``"2 GiB"``, or None.

    Raises
    ------
    TypeError, ValueError
        For a wrong argument; the message names it, its value and what is allowed.
    """
    limit = _bytes("memory_limit", memory_limit)
    if _is_client(workers):
        if getattr(workers, "status", "") in ("closing", "closed"):
            raise ValueError(f"workers={workers!r}: that client is closed")
        cluster = _client_machine(workers)
        if cluster is None:
            raise ValueError(f"workers={workers!r}: that client's cluster has no workers yet")
    elif workers is not None:
        cluster = Machine(_count("workers", workers))
    elif (configured := config.setting("workers")) is not None:
        cluster = Machine(configured)
    else:
        cluster = _current_machine() or _local_machine()
    if limit is None and (configured := config.setting("memory-limit")) is not None:
        limit = int(configured)
    return cluster if limit is None else replace(cluster, memory_limit=limit, limit_given=True)


def memory_bytes(memory_limit: object) -> int | None:
    """An argument `memory_limit` as bytes.

    Raises
    ------
    TypeError, ValueError
        For a wrong value; the message names the argument, the value and what is allowed.
    """
    return _bytes("memory_limit", memory_limit)


def _count(name: str, value: object) -> int:
    allowed = f"must be an integer from 1 to {MOST_WORKERS:,}, a distributed.Client or None"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} {allowed}; got {value!r} of type {type(value).__name__}")
    if not 1 <= int(value) <= MOST_WORKERS:
        raise ValueError(f"{name} {allowed}; got {value!r}")
    return int(value)


def _bytes(name: str, value: object) -> int | None:
    if value is None:
        return None
    allowed = 'must be a positive number of bytes, a string such as "2 GiB", or None'
    if isinstance(value, str):
        try:
            # Dask reads a number that is missing as 1
            number = float(parse_bytes(value)) if value.strip() else 0.0
        except ValueError:
            raise ValueError(f"{name} {allowed}; got {value!r}") from None
    elif isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
    else:
        raise TypeError(f"{name} {allowed}; got {value!r} of type {type(value).__name__}")
    if not 1 <= number < float("inf"):
        raise ValueError(f"{name} {allowed}; got {value!r}")
    return int(number)


def _is_client(value: object) -> bool:
    distributed = sys.modules.get("distributed")
    return distributed is not None and isinstance(value, distributed.Client)


def _current_machine() -> Machine | None:
    """The cluster on which a computation started here would run, or None."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    if threading.current_thread().name.startswith("Dask-Offload"):
        # This is a scheduler, which optimises graphs in a thread of its own.  A request of a
        # client would wait for the event loop, which waits for this thread.
        return _own_scheduler()
    client = _configured_client(dask.config.get("scheduler", None), distributed)
    return _client_machine(client) if client is not None and client.status == "running" else None


def _configured_client(scheduler: Any, distributed: Any) -> Any:
    """The client that computes with Dask's setting `scheduler`; None if no client does."""
    if isinstance(scheduler, MethodType):  # as client.get
        scheduler = scheduler.__self__
    if _is_client(scheduler):
        return scheduler
    names = (None, "dask.distributed", "distributed")
    if (scheduler.lower() if isinstance(scheduler, str) else scheduler) not in names:
        return None
    try:
        return distributed.default_client()
    except ValueError:
        return None


def _client_machine(client: Any) -> Machine | None:
    cluster = _cluster(_identity(client))
    if cluster is None:
        return None

    def ask(function: Callable[..., _Answer], otherwise: _Answer, **options: Any) -> _Answer:
        if client.asynchronous:
            return otherwise
        try:
            answer: _Answer = client.run_on_scheduler(function, **options)
        except Exception:
            # a scheduler without dasktile cannot run the function
            return otherwise
        return answer

    def who_has(blocks: Mapping[Any, Any]) -> Mapping[Any, Sequence[str]]:
        found: Mapping[Any, Sequence[str]] = client.who_has(list(blocks.values()))
        return _with_expected(found, blocks, lambda keys: ask(expected_workers, {}, keys=keys))

    def shapes(keys: Mapping[str, Sequence[Any]]) -> Mapping[Any, ArrayType]:
        async def ask_workers() -> list[Mapping[str, Mapping[Any, ArrayType]]]:
            return await asyncio.gather(*(
                client.run(held_shapes, each, workers=[address], on_error="ignore")
                for address, each in keys.items()
            ))  # fmt: skip

        if client.asynchronous:
            return {}
        try:
            answers = client.sync(ask_workers, callback_timeout=_LONGEST_WAIT)
        except Exception:
            # a worker is busy, or has no dasktile
            return {}
        return {
            key: found for answer in answers for each in answer.values()
            for key, found in each.items()
        }  # fmt: skip

    def unplaced(keys: Sequence[Any]) -> list[Any]:
        # the scheduler may not have their graph yet
        pending = [key for key in keys if _is_pending(client.futures.get(key))]
        left: list[Any] = ask(unplaced_keys, [], keys=keys, pending=pending)
        return left

    deadline = monotonic() + config.setting("wait")

    def unfinished(keys: Sequence[Any]) -> Sequence[Any]:
        if client.asynchronous:
            # it cannot ask where any results are
            return [key for key in keys if key in client.futures]
        left = unplaced(keys)
        pause = 0.0 if _is_task() else _FIRST_PAUSE
        while left and pause and (seconds := deadline - monotonic()) > 0:
            # futures of other clients are not announced to this one
            sleep(min(pause, seconds))
            pause = min(2 * pause, _LONGEST_PAUSE)
            left = unplaced(left)
        return left

    cluster = replace(
        cluster,
        who_has=who_has,
        durations=lambda: ask(average_seconds, {}),
        data=lambda keys: ask(held_results, {}, keys=keys),
        shapes=shapes,
        unfinished=unfinished,
    )
    cluster = _with_metadata(cluster, _metadata(client))
    # elsewhere tasks run on workers that have their inputs
    return cluster if cluster.placed or client.asynchronous else replace(cluster, unfinished=None)


def _with_expected(
    found: Mapping[Any, Sequence[str]],
    keys: Iterable[Any],
    ask: Callable[[Sequence[Any]], Mapping[Any, str]],
) -> Mapping[Any, Sequence[str]]:
    """The workers that have results, and those on which others will be."""
    missing = [key for key in keys if not found.get(key)]
    expected = ask(missing) if missing else {}
    return {**found, **{key: [address] for key, address in expected.items()}}


def _is_pending(state: Any) -> bool:
    """Whether a client awaits a result, given what it knows of it; None if that is nothing."""
    return state is not None and state.status == "pending"


def _is_task() -> bool:
    """Whether this is run by a task, which may have the thread that other tasks need."""
    try:
        sys.modules["distributed"].get_worker()
    except ValueError:
        return False
    return True


def _metadata(client: Any) -> Mapping[str, Any]:
    """Metadata on the scheduler: the plugin's order of workers, and a calibration."""
    if client.asynchronous:
        return {}
    metadata = client.get_metadata(["dasktile"], default=None)
    return metadata if isinstance(metadata, Mapping) else {}


def _with_metadata(cluster: Machine, metadata: Mapping[str, Any]) -> Machine:
    return replace(
        cluster,
        order=_order(metadata, cluster.workers),
        calibration=Calibration.from_dict(metadata.get("calibration")),
    )


def _order(metadata: Mapping[str, Any], workers: int) -> tuple[str, ...]:
    # workers of one process count as one here, but have a position each in the plugin
    order = tuple(metadata.get("workers") or ())
    return order if len(order) == workers else ()


def _own_scheduler() -> Machine | None:
    running = scheduling.own_schedulers()
    # the graph does not say whose it is: that of the cluster that has the plugin, if one has
    running = [scheduler for scheduler in running if "dasktile" in scheduler.plugins] or running
    clusters = list(map(_cluster_of, running))
    if not clusters or clusters.count(clusters[0]) < len(clusters):
        return None
    cluster = clusters[0]
    if cluster is None or len(clusters) > 1:
        return cluster  # of several alike, it is unknown which one has the blocks
    metadata = running[0].task_metadata.get("dasktile", {})
    tasks = running[0].tasks

    expected = partial(expected_workers, running[0])

    def who_has(blocks: Mapping[Any, Any]) -> Mapping[Any, Sequence[str]]:
        holders = {key: tasks[key].who_has for key in blocks if key in tasks}
        found = {
            key: [worker.address for worker in tuple(has or ())] for key, has in holders.items()
        }
        return _with_expected(found, blocks, expected)

    # nothing is awaited on the scheduler, which makes the plans of all clients
    unfinished = partial(unplaced_keys, running[0])
    data = partial(held_results, running[0])
    cluster = replace(cluster, who_has=who_has, data=data, unfinished=unfinished)
    return _with_metadata(cluster, metadata)


def _cluster_of(scheduler: Any) -> Machine | None:
    """The workers of a scheduler of this process."""
    # copied first, since the event loop may add workers during the iteration
    workers = list(scheduler.workers.values())
    return _cluster(
        {
            "workers": {
                worker.address: {"nthreads": worker.nthreads, "memory_limit": worker.memory_limit}
                for worker in workers
            }
        }
    )


def _local_machine() -> Machine:
    """Threads of this process, as many as Dask would start."""
    threads = dask.config.get("num_workers", None) or CPU_COUNT
    return Machine(1, threads if isinstance(threads, int) and threads > 0 else 1)


def _identity(client: Any) -> Mapping[str, Any]:
    info: Mapping[str, Any] = client.scheduler_info()
    return info


def _cluster(identity: Mapping[str, Any], settings: ClusterSettings = _DEFAULT) -> Machine | None:
    """Processes and memory of a task, from the identity of a scheduler."""
    workers: Mapping[str, Mapping[str, Any]] = identity.get("workers", {})
    if not workers:
        # an asynchronous client has totals only
        count = int(identity.get("n_workers", 0))
        threads = int(identity.get("total_threads", count))
        return Machine(count, max(1, threads // count)) if count else None
    # Workers in one process hand arrays to each other without copying them:
    # "inproc://host/pid/number".
    processes: dict[str, int] = {}
    rooms: dict[str, float] = {}
    for address, facts in workers.items():
        shared = address.rpartition("/")[0] if address.startswith("inproc:") else address
        processes[shared] = processes.get(shared, 0) + int(facts["nthreads"])
        # a worker without a limit never spills
        room = settings.memory_share * (facts.get("memory_limit") or inf)
        rooms[shared] = rooms.get(shared, 0.0) + room
    limits = [
        settings.memory_share * facts["memory_limit"] / max(1, facts["nthreads"])
        for facts in workers.values()
        if facts.get("memory_limit")
    ]
    least = min(rooms.values())
    return Machine(
        len(processes),
        max(1, min(processes.values())),
        int(min(limits)) if limits else None,
        room=int(least) if least < inf else None,
        memory=round(least / settings.memory_share) if least < inf else None,
        scheduler_workers=len(workers),
    )
