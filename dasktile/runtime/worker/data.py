"""Constructs the store for the results of a worker."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from numbers import Real
from typing import Any

import dask
from dask.utils import parse_bytes
from distributed import Worker

from dasktile._compat.distributed import serialization, storage
from dasktile.config import spill_settings
from dasktile.errors import parse_flag
from dasktile.runtime.settings import RuntimeSettings
from dasktile.runtime.tiers import Disk, takes_memory
from dasktile.runtime.tiers import device as make_device
from dasktile.runtime.worker.store import TileStore
from dasktile.runtime.worker.takeover import Handover
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
    """A store of results in memory and on disk, configured by distributed's own settings.

    Parameters
    ----------
    worker_local_directory
        The directory of the worker.
    memory_limit
        Bytes of the worker's memory, of which results may take the share
        ``distributed.worker.memory.target``.  None for the memory of the machine.
    device_memory_limit
        Bytes that results may take on the device, or a share of its memory up to 1; None for a
        worker without a device.
    device_name
        Kind of the device, as registered with `dasktile.runtime.tiers`.
    prefetch
        Whether spilled results are prefetched.
    """
    limit = storage.machine_memory() if memory_limit is None else memory_limit
    max_spill = dask.config.get(f"{_MEMORY}.max-spill")
    directory = os.path.join(worker_local_directory, "storage")
    # where the disk is limited, the limit is for all files; and memory is needed for results
    keeps_files = max_spill is False and not takes_memory(directory)
    disk = Disk(
        directory,
        serialization.compression(f"{_MEMORY}.spill-compression"),
        RuntimeSettings().spare_files if keeps_files else 0,
    )
    capacity = (host_budget(limit), None if max_spill is False else parse_bytes(max_spill))
    options = spill_settings()
    if not prefetch:
        options["prefetch"] = 0
    if device_memory_limit is None:
        store = TileStore([disk], ResidencySettings(capacity, **options), clock=time.perf_counter)
        store.limit = memory_limit
        return store
    device = make_device(device_name)
    # the bytes of a share are known when the device is in use: not yet, where other plugins of the
    # worker set it up
    share = device_memory_limit if device_memory_limit <= 1 else None
    on_device = int(device_memory_limit) if share is None else None
    store = TileStore(
        [device.host(limit), disk],
        ResidencySettings((on_device, *capacity), **options),
        clock=time.perf_counter,
        device=device,
    )
    store.device_share, store.limit = share, memory_limit
    return store


@dataclass(frozen=True)
class SpillOptions:
    """How a running worker stores its results.

    Parameters
    ----------
    memory_limit
        Bytes of the worker's memory; None for the limit that it was started with.
    device_memory_limit
        As for :func:`make_store`; None for the limit of a worker of dask-cuda.
    prefetch
        Whether spilled results are prefetched.
    device
        Kind of the device.
    """

    memory_limit: int | None = None
    device_memory_limit: float | None = None
    prefetch: bool = True
    device: str = "cupy"


def store_for(worker: Worker, spill: SpillOptions) -> TileStore | None:
    """The store of a running worker: the one that it has, or a new one.

    Parameters
    ----------
    worker
        The worker.
    spill
        The options for a new store.

    Returns
    -------
    The store; None for a worker that keeps its present mapping, because it has no memory limit,
    or because the mapping is the user's.
    """
    data: Any = worker.data
    if isinstance(data, TileStore):
        return data
    if isinstance(data, Handover):
        # its values could be moved neither to the other mapping nor back to the store
        return data.store
    configured = storage.limits(worker)
    limit = spill.memory_limit or configured.memory
    on_device = spill.device_memory_limit
    if type(data).__module__.startswith("dask_cuda."):
        on_device = on_device or getattr(getattr(data, "device_buffer", None), "n", None)
        limit = spill.memory_limit or getattr(getattr(data, "host_buffer", None), "n", limit)
    else:
        # where distributed is configured to spill, a dict is the user's
        if type(data) is not storage.default_data(worker):
            logger.info("Results stay in the %s that this worker was given", type(data).__name__)
            return None
        if on_device is None and not (limit and (configured.target or configured.spill)):
            return None
    store = make_store(
        worker.local_directory, limit or None, on_device, spill.device, spill.prefetch
    )
    if limit == configured.memory:
        # not fixed: distributed's limit may be changed while the worker runs
        store.limit = None
    return store


def host_budget(limit: int) -> int | None:
    """Bytes that results may take of a worker's memory; None for no limit.

    Parameters
    ----------
    limit
        Bytes of the worker's memory.
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
    """The mapping for the results of workers, as ``LocalCluster(data=...)`` takes it.

    After :func:`dasktile.enable`, the store evicts the results with the latest next use.  Before
    that, it evicts the least recently used.

    Parameters
    ----------
    memory_limit
        Memory of each worker, in bytes or as ``"2 GiB"``: that of its whole process, which takes
        some 150 MiB without any result.  By default that of the machine, until
        :func:`dasktile.enable` reads the limit of the worker.
    device_memory_limit
        GPU memory that results may take, in bytes, as ``"10 GiB"``, or a share of the GPU's memory
        up to 1.  None for workers without a GPU.
    prefetch
        Whether spilled results are prefetched.
    device
        Kind of the GPU; see `dasktile.runtime.tiers`.

    Returns
    -------
    tuple
        A function and its arguments, which every worker calls.

    Raises
    ------
    ValueError, TypeError
        If a limit is invalid.

    Examples
    --------
    >>> from distributed import Client, LocalCluster
    >>> import dasktile
    >>> cluster = LocalCluster(data=dasktile.worker_data("2 GiB"))  # doctest: +SKIP
    >>> dasktile.enable(Client(cluster))  # doctest: +SKIP
    """
    return make_store, {
        "memory_limit": parse_bytes_limit("memory_limit", memory_limit),
        "device_memory_limit": parse_share_limit("device_memory_limit", device_memory_limit),
        "device_name": device,
        "prefetch": parse_flag("prefetch", prefetch),
    }


def parse_bytes_limit(name: str, limit: object) -> int | None:
    """A limit in bytes; None for None and ``"auto"``.

    Raises
    ------
    ValueError, TypeError
        If the limit is invalid; the message names the argument.
    """
    allowed = f'{name} must be a positive number of bytes, a string such as "2 GiB", or None'
    size = _number(allowed, None if limit == "auto" else limit)
    if size is not None and size <= 1:
        raise ValueError(f"{allowed}; got {limit!r}")
    return None if size is None else int(size)


def parse_share_limit(name: str, limit: object) -> float | None:
    """A limit in bytes, or a share of the memory up to 1; None for None.

    Raises
    ------
    ValueError, TypeError
        If the limit is invalid; the message names the argument.
    """
    allowed = (
        f"{name} must be a positive number of bytes, a share of the memory up to 1, a string such"
        ' as "2 GiB", or None'
    )
    size = _number(allowed, limit)
    if size is not None and size > 1 and not size.is_integer():
        # a share that is too large, as 1.5
        raise ValueError(f"{allowed}; got {limit!r}")
    return size


def _number(allowed: str, limit: object) -> float | None:
    """A positive number; errors show what is `allowed`, and the limit."""
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, (Real, str)):
        raise TypeError(f"{allowed}; got {limit!r} of type {type(limit).__name__}")
    try:
        size = float(parse_bytes(limit)) if isinstance(limit, str) else float(limit)
    except ValueError:
        raise ValueError(f"{allowed}; got {limit!r}") from None
    if not 0 < size < float("inf"):
        raise ValueError(f"{allowed}; got {limit!r}")
    return size
