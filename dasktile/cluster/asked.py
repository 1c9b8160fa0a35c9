"""What a scheduler and its workers are asked for a plan: functions that run there.

Those of a scheduler take it as `dask_scheduler`, and those of a worker as `dask_worker`, as
``Client.run_on_scheduler`` and ``Client.run`` pass them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from dasktile._compat.distributed import scheduling
from dasktile.ir import ArrayType


def expected_workers(dask_scheduler: Any, keys: Sequence[Any]) -> dict[Any, str]:
    """The workers on which tasks run, or will run by a plan; runs on the scheduler.

    Parameters
    ----------
    dask_scheduler
        The scheduler.
    keys
        The keys.
    """
    found = {}
    for key in keys:
        ts = dask_scheduler.tasks.get(key)
        if ts is None or ts.who_has:
            continue
        if ts.processing_on is not None:
            found[key] = ts.processing_on.address
        elif ts.worker_restrictions is not None and len(ts.worker_restrictions) == 1:
            (found[key],) = ts.worker_restrictions
    return found


def unplaced_keys(
    dask_scheduler: Any, keys: Sequence[Any], pending: Collection[Any] = ()
) -> list[Any]:
    """Keys of tasks that will run on unknown workers; runs on the scheduler.

    So will those of a graph that it has not received yet, whose results a client awaits.

    Parameters
    ----------
    dask_scheduler
        The scheduler.
    keys
        The keys.
    pending
        Those of them that a client awaits.
    """
    late = {key for key in pending if key not in dask_scheduler.tasks}
    left = [key for key in keys if key in late or scheduling.is_computing(dask_scheduler, key)]
    expected = expected_workers(dask_scheduler, left)
    return [key for key in left if key not in expected]


def average_seconds(dask_scheduler: Any) -> dict[str, float]:
    """Average seconds of tasks by the prefix of their keys; runs on the scheduler.

    Parameters
    ----------
    dask_scheduler
        The scheduler.
    """
    return {
        str(name): float(prefix.duration_average)
        for name, prefix in dask_scheduler.task_prefixes.items()
        if prefix.duration_average > 0
    }


def held_results(dask_scheduler: Any, keys: Sequence[Any]) -> dict[Any, tuple[int, list[str]]]:
    """Bytes and workers of results in memory by key; runs on the scheduler.

    Parameters
    ----------
    dask_scheduler
        The scheduler.
    keys
        The keys.
    """
    found = {}
    for key in keys:
        ts = dask_scheduler.tasks.get(key)
        workers = tuple(ts.who_has or ()) if ts is not None else ()
        if workers:
            found[key] = max(0, ts.nbytes), sorted(ws.address for ws in workers)
    return found


def held_shapes(keys: Sequence[Any], dask_worker: Any) -> dict[Any, ArrayType]:
    """Shapes and types of arrays in memory by key; runs on a worker.

    Data that was spilled is not read.

    Parameters
    ----------
    keys
        The keys.
    dask_worker
        The worker.
    """
    values = getattr(dask_worker.data, "fast", dask_worker.data)
    # a look-up in distributed's own would change the order in which it spills
    values = getattr(values, "d", values)
    found = {key: values.get(key) for key in keys}
    # of NumPy or CuPy, no subclass of theirs
    return {
        key: (value.shape, value.dtype)
        for key, value in found.items()
        if type(value).__name__ == "ndarray" and not value.dtype.hasobject
    }
