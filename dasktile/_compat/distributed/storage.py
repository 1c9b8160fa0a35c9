"""The results of a worker, and the memory that they take.

`safe_sizeof`, `machine_memory` and `limit_rate` may be called before the features are checked, as
workers start with a store.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Worker


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


def spilled_sizes(data: Any) -> dict[Any, tuple[int, int]]:
    """Values in the files of distributed's ``SpillBuffer``: bytes in memory and of the file.

    Empty for any other mapping, and where a release stores these sizes elsewhere.  Checked with
    distributed 2026.1.1, 2026.7.1 and 2026.8.0.
    """
    from distributed.spill import SpillBuffer

    if not isinstance(data, SpillBuffer):
        return {}
    weights: Any = getattr(getattr(data.disk, "data", None), "weight_by_key", None)
    if not isinstance(weights, dict) or set(weights) != set(data.disk):
        return {}
    return {key: (int(memory), int(disk)) for key, (memory, disk) in weights.items()}


def spilled_values(data: Any) -> Mapping[Any, Any]:
    """The values in the files of a ``SpillBuffer``; they may be read in any thread."""
    values: Mapping[Any, Any] = data.disk
    return values


def replace_data(worker: Worker, data: MutableMapping[Any, Any]) -> None:
    """Replace the mapping of a worker's results, which must already contain them."""
    worker.memory_manager.data = worker.state.data = data


def held_bytes(worker: Worker) -> int:
    """Bytes of the results that a worker holds, spilled ones included."""
    return worker.state.nbytes


def process_memory(worker: Worker) -> int:
    """Bytes that the process of a worker takes."""
    return worker.monitor.get_process_memory()


# The store -----------------------------------------------------------------------------


def safe_sizeof(value: Any) -> int:
    """Bytes of a result, as the scheduler counts them."""
    from distributed.sizeof import safe_sizeof

    return safe_sizeof(value)


def machine_memory() -> int:
    """Bytes of memory of this machine, as distributed detects them."""
    from distributed.system import MEMORY_LIMIT

    return MEMORY_LIMIT


def limit_rate(log: logging.Logger, text: str) -> None:
    """Limit the rate of log messages with this text, where distributed supports that."""
    with suppress(ImportError):
        from distributed.utils import RateLimiterFilter

        log.addFilter(RateLimiterFilter(text))
