"""How many processes there are to plan for, and how much memory each task may take.

Nothing here imports distributed: where it has not been imported there is no client.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any

import dask.config
from dask.system import CPU_COUNT
from dask.utils import parse_bytes

from dasktile import config
from dasktile._compat import distributed as internals
from dasktile.tiling.plan import Plan
from dasktile.tiling.seconds import Calibration, predicted
from dasktile.tiling.settings import Settings

#: The share of a worker's memory that its running tasks may fill; distributed starts to
#: spill at 0.6.
_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class Machine:
    """What a plan is made for.

    Parameters
    ----------
    workers
        Processes that must send bytes to each other.
    threads
        Tasks that each of them runs at once.
    memory_limit
        Bytes that one task may hold, its inputs and its result; None for no limit.
    asked
        True where the caller or the configuration named that limit, so that a plan must
        keep to it; a limit taken from the workers is only aimed at.
    order
        Addresses of the workers in the order in which the mesh is laid over them; empty
        where nothing makes tasks run where a plan says.
    who_has
        Says of blocks in the cluster's memory, given the tasks that stand for them by key,
        at which addresses they are.
    calibration
        How fast the cluster is, where it was measured.
    durations
        Says how many seconds tasks took so far, by what a person calls them.
    """

    workers: int
    threads: int = 1
    memory_limit: int | None = None
    asked: bool = False
    order: tuple[str, ...] = ()
    who_has: Callable[[Mapping[Any, Any]], Mapping[Any, Sequence[str]]] | None = field(
        default=None, compare=False
    )
    calibration: Calibration | None = None
    durations: Callable[[], Mapping[str, float]] | None = field(default=None, compare=False)

    @property
    def placed(self) -> bool:
        """True where tasks run where a plan says."""
        return bool(self.order)

    def settings(self) -> Settings:
        """Constants of the cost model: what was measured, unless the user says otherwise."""
        return config.tiling_settings(self.calibration)

    def seconds(self, plan: Plan) -> tuple[float, float] | None:
        """Roughly what the input's chunks and a plan take; None where nothing was measured."""
        if self.calibration is None:
            return None
        found = self.calibration
        return predicted(plan, self.settings(), found.task_seconds, self.threads, found.memory)


def machine(workers: object = None, memory_limit: object = None) -> Machine:
    """Complete what the caller said by the configuration and the current client.

    Parameters
    ----------
    workers
        A count, a ``distributed.Client``, or None.
    memory_limit
        Bytes, a string such as ``"2 GB"``, or None.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, its value and what is allowed.
    """
    limit = _bytes("memory_limit", memory_limit)
    if _is_client(workers):
        if getattr(workers, "status", "") in ("closing", "closed"):
            raise ValueError(f"workers={workers!r}: that client is closed")
        cluster = _of_client(workers)
        if cluster is None:
            raise ValueError(f"workers={workers!r}: that client's cluster has no workers yet")
    elif workers is not None:
        cluster = Machine(_count("workers", workers))
    elif (configured := config.setting("workers")) is not None:
        cluster = Machine(_count("setting dasktile.workers", configured))
    else:
        cluster = _current() or _local()
    if limit is None:
        limit = _bytes("setting dasktile.memory-limit", config.setting("memory-limit"))
    return cluster if limit is None else replace(cluster, memory_limit=limit, asked=True)


def memory_bytes(memory_limit: object) -> int | None:
    """An argument `memory_limit` as bytes.

    Raises
    ------
    TypeError, ValueError
        Naming it, its value and what is allowed.
    """
    return _bytes("memory_limit", memory_limit)


def _count(name: str, value: object) -> int:
    allowed = "must be an integer >= 1, a distributed.Client or None"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} {allowed}; got {value!r} of type {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name} {allowed}; got {value!r}")
    return int(value)


def _bytes(name: str, value: object) -> int | None:
    if value is None:
        return None
    allowed = 'must be a positive number of bytes, a string such as "2 GB", or None'
    if isinstance(value, str):
        try:
            found = float(parse_bytes(value))
        except ValueError:
            raise ValueError(f"{name} {allowed}; got {value!r}") from None
    elif isinstance(value, Real) and not isinstance(value, bool):
        found = float(value)
    else:
        raise TypeError(f"{name} {allowed}; got {value!r} of type {type(value).__name__}")
    if not 1 <= found < float("inf"):
        raise ValueError(f"{name} {allowed}; got {value!r}")
    return int(found)


def _is_client(value: object) -> bool:
    distributed = sys.modules.get("distributed")
    return distributed is not None and isinstance(value, distributed.Client)


def _current() -> Machine | None:
    """The cluster that a computation started here and now would run on."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    if threading.current_thread().name.startswith("Dask-Offload"):
        # On a scheduler, which optimises graphs in a thread of its own.  Asking through
        # a client would wait for the event loop that waits for this thread.
        return _own_scheduler()
    try:
        client = distributed.default_client()
    except ValueError:
        return None
    return _of_client(client) if client.status == "running" else None


def _of_client(client: Any) -> Machine | None:
    cluster = _cluster(_identity(client))
    if cluster is None:
        return None

    def who_has(blocks: Mapping[Any, Any]) -> Mapping[Any, Sequence[str]]:
        found: Mapping[Any, Sequence[str]] = client.who_has(list(blocks.values()))
        return found

    def durations() -> Mapping[str, float]:
        if client.asynchronous:
            return {}
        try:
            found: Mapping[str, float] = client.run_on_scheduler(_averages)
        except Exception:
            # a scheduler without dasktile cannot say
            return {}
        return found

    return _with_said(replace(cluster, who_has=who_has, durations=durations), _said(client))


def _averages(dask_scheduler: Any) -> dict[str, float]:
    """Seconds that tasks of each name took, on the scheduler."""
    return {
        str(name): float(prefix.duration_average)
        for name, prefix in dask_scheduler.task_prefixes.items()
        if prefix.duration_average > 0
    }


def _said(client: Any) -> Mapping[str, Any]:
    """What the scheduler keeps for clients: of its plugin, and of a calibration."""
    if client.asynchronous:
        return {}
    found = client.get_metadata(["dasktile"], default=None)
    return found if isinstance(found, Mapping) else {}


def _with_said(cluster: Machine, said: Mapping[str, Any]) -> Machine:
    return replace(
        cluster,
        order=_order(said, cluster.workers),
        calibration=Calibration.from_dict(said.get("calibration")),
    )


def _order(said: Mapping[str, Any], workers: int) -> tuple[str, ...]:
    # workers of one process are planned for as one, but are not placed as one
    order = tuple(said.get("workers") or ())
    return order if len(order) == workers else ()


def _own_scheduler() -> Machine | None:
    running = internals.own_schedulers()
    if len(running) != 1:
        return None
    # a copy at once: the event loop may add workers meanwhile
    workers = list(running[0].workers.values())
    cluster = _cluster(
        {
            "workers": {
                worker.address: {"nthreads": worker.nthreads, "memory_limit": worker.memory_limit}
                for worker in workers
            }
        }
    )
    if cluster is None:
        return None
    said = running[0].task_metadata.get("dasktile", {})
    tasks = running[0].tasks

    def who_has(blocks: Mapping[Any, Any]) -> Mapping[Any, Sequence[str]]:
        found = {key: tasks[key].who_has for key in blocks if key in tasks}
        return {key: [worker.address for worker in tuple(has or ())] for key, has in found.items()}

    return _with_said(replace(cluster, who_has=who_has), said)


def _local() -> Machine:
    """Threads of this process, as many as dask would start."""
    threads = dask.config.get("num_workers", None) or CPU_COUNT
    return Machine(1, threads if isinstance(threads, int) and threads > 0 else 1)


def _identity(client: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = client.scheduler_info()
    return found


def _cluster(identity: Mapping[str, Any]) -> Machine | None:
    """Processes and the memory of a task, from what a scheduler says of itself."""
    workers: Mapping[str, Mapping[str, Any]] = identity.get("workers", {})
    if not workers:
        # An asynchronous client knows totals only.
        count = int(identity.get("n_workers", 0))
        threads = int(identity.get("total_threads", count))
        return Machine(count, max(1, threads // count)) if count else None
    # Workers in one process hand arrays to each other without copying them:
    # "inproc://host/pid/number".
    processes: dict[str, int] = {}
    for address, facts in workers.items():
        shared = address.rpartition("/")[0] if address.startswith("inproc:") else address
        processes[shared] = processes.get(shared, 0) + int(facts["nthreads"])
    limits = [
        _SHARE * facts["memory_limit"] / max(1, facts["nthreads"])
        for facts in workers.values()
        if facts.get("memory_limit")
    ]
    return Machine(
        len(processes),
        max(1, min(processes.values())),
        int(min(limits)) if limits else None,
    )
