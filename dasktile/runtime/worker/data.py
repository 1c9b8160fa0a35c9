"""Making the store that a worker keeps its results in."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from typing import Any

import dask
from dask.utils import parse_bytes
from distributed import Worker

from dasktile._compat import distributed as internals
from dasktile.config import spill_settings
from dasktile.runtime.tiers import Disk
from dasktile.runtime.tiers import device as device_called
from dasktile.runtime.worker.store import TileStore
from dasktile.schedule.instructions import ResidencySettings

logger = logging.getLogger("dasktile")

_MEMORY = "distributed.worker.memory"


def make_store(
    worker_local_directory: str,
    memory_limit: int | None = None,
    device_memory_limit: float | None = None,
    device_name: str = "cupy",
    prefetch: bool = True,
) -> TileStore:
    """A store of results in memory and on disk, by distributed's own settings.

    Parameters
    ----------
    worker_local_directory
        Where the worker has its files.
    memory_limit
        Of the worker, in bytes; results may take the part of it that
        ``distributed.worker.memory.target`` says.  None for that of the machine.
    device_memory_limit
        Bytes that results may take on the device, or a part of its memory up to 1; None for a
        worker that has no device.
    device_name
        Which one, as registered with `dasktile.runtime.tiers`.
    prefetch
        Whether results are fetched before tasks ask for them.
    """
    limit = internals.machine_memory() if memory_limit is None else memory_limit
    most = dask.config.get(f"{_MEMORY}.max-spill")
    disk = Disk(
        os.path.join(worker_local_directory, "storage"),
        internals.compression(f"{_MEMORY}.spill-compression"),
    )
    capacity = (host_budget(limit), None if most is False else parse_bytes(most))
    options = spill_settings()
    if not prefetch:
        options["prefetch"] = 0
    if device_memory_limit is None:
        store = TileStore([disk], ResidencySettings(capacity, **options), clock=time.perf_counter)
        store.limit = memory_limit
        return store
    found = device_called(device_name)
    if device_memory_limit <= 1:
        device_memory_limit *= found.total()
    settings = ResidencySettings((int(device_memory_limit), *capacity), **options)
    store = TileStore([found.host(), disk], settings, clock=time.perf_counter, device=found)
    store.limit = memory_limit
    return store


@dataclass(frozen=True)
class Spill:
    """How a running worker is to keep its results.

    Parameters
    ----------
    memory_limit
        Bytes of the worker, None for what it has been told itself.
    device_memory_limit
        As for :func:`make_store`; None for what the worker does already.
    prefetch
        Whether results are fetched before tasks ask for them.
    device
        The name of the kind of device.
    """

    memory_limit: int | None = None
    device_memory_limit: float | None = None
    prefetch: bool = True
    device: str = "cupy"


def store_of(worker: Worker, spill: Spill) -> TileStore | None:
    """The store that a running worker has or is to get.

    Parameters
    ----------
    worker
        The worker.
    spill
        What is asked for.

    Returns
    -------
    None for a worker that keeps its results in its own way: without a limit, or in a mapping of
    the user's.
    """
    data: Any = worker.data
    if isinstance(data, TileStore):
        return data
    configured = internals.limits(worker)
    limit = spill.memory_limit or configured.memory
    on_device = spill.device_memory_limit
    if type(data).__module__.startswith("dask_cuda."):
        on_device = on_device or getattr(getattr(data, "device_buffer", None), "n", None)
        limit = spill.memory_limit or getattr(getattr(data, "host_buffer", None), "n", limit)
    else:
        # where distributed spills by itself, a dict is the user's
        if type(data) is not internals.default_data(worker):
            logger.info("Results stay in the %s that this worker was given", type(data).__name__)
            return None
        if on_device is None and not (limit and (configured.target or configured.spill)):
            return None
    store = make_store(
        worker.local_directory, limit or None, on_device, spill.device, spill.prefetch
    )
    if limit == configured.memory:
        # which may be changed while the worker runs
        store.limit = None
    return store


def host_budget(limit: int) -> int | None:
    """Bytes that results may take of a worker's memory; None for any.

    Parameters
    ----------
    limit
        Bytes of the worker.
    """
    target = dask.config.get(f"{_MEMORY}.target")
    return None if target is False else int(target * limit)


def worker_data(
    memory_limit: str | float | None = None,
    device_memory_limit: str | float | None = None,
    *,
    prefetch: bool = True,
    device: str = "cupy",
) -> tuple[Any, dict[str, Any]]:
    """What workers keep their results in: for ``LocalCluster(data=...)``.

    :func:`dasktile.enable` then tells the store what tasks need next.  Without that, what was
    used longest ago is spilled.

    Parameters
    ----------
    memory_limit
        Of each worker, in bytes or as ``"2 GB"``; by default that of the machine, until
        :func:`dasktile.enable` asks the worker for its own.
    device_memory_limit
        What results may take of a GPU's memory, in bytes, as ``"10 GB"``, or a part of it up
        to 1.  None for workers without one.
    prefetch
        Whether results are fetched before tasks ask for them.
    device
        Of what kind the GPU is; see `dasktile.runtime.tiers`.

    Returns
    -------
    A function and its arguments, which every worker calls for itself.

    Raises
    ------
    ValueError, TypeError
        If a limit is none.

    Examples
    --------
    >>> from distributed import Client, LocalCluster
    >>> import dasktile
    >>> cluster = LocalCluster(data=dasktile.worker_data("2 GB"))  # doctest: +SKIP
    >>> dasktile.enable(Client(cluster))  # doctest: +SKIP
    """
    return make_store, {
        "memory_limit": bytes_of("memory_limit", memory_limit),
        "device_memory_limit": part_of("device_memory_limit", device_memory_limit),
        "device_name": device,
        "prefetch": flag("prefetch", prefetch),
    }


def bytes_of(name: str, limit: object) -> int | None:
    """A limit in bytes; None for None and ``"auto"``.

    Raises
    ------
    ValueError, TypeError
        Naming the argument, if it is nothing of the kind.
    """
    found = part_of(name, None if limit == "auto" else limit)
    if found is not None and found <= 1:
        raise ValueError(f"{name} must be bytes, or a text as '2 GB'; got {limit!r}")
    return None if found is None else int(found)


def part_of(name: str, limit: object) -> float | None:
    """A limit in bytes, or a part of what there is, up to 1; None for None.

    Raises
    ------
    ValueError, TypeError
        Naming the argument, if it is nothing of the kind.
    """
    if limit is None:
        return None
    allowed = f"{name} must be bytes, a text as '2 GB', or None"
    if isinstance(limit, bool) or not isinstance(limit, (int, float, str)):
        raise TypeError(f"{allowed}; got {limit!r} of type {type(limit).__name__}")
    try:
        found = float(parse_bytes(limit)) if isinstance(limit, str) else float(limit)
    except ValueError:
        raise ValueError(f"{allowed}; got {limit!r}") from None
    if not 0 < found < float("inf"):
        raise ValueError(f"{allowed}, and above 0; got {limit!r}")
    return found


def flag(name: str, value: object) -> bool:
    """True or False.

    Raises
    ------
    TypeError
        Naming the argument, if it is something else.
    """
    if not isinstance(value, bool):
        kind = type(value).__name__
        raise TypeError(f"{name} must be True or False; got {value!r} of type {kind}")
    return value
