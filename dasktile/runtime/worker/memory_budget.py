"""The memory that results of a worker may take, which is what its process and device leave."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from distributed import Worker

from dasktile._compat.distributed import storage
from dasktile.report.formatting import format_bytes, format_limit
from dasktile.runtime.settings import RuntimeSettings
from dasktile.runtime.worker.store import TileStore
from dasktile.schedule.budget import Budget, device_target

#: Distributed's logger of workers.
logger = logging.getLogger("distributed.worker")

#: Distributed's logger for its warning of unmanaged memory, which limits the rate of that warning.
_monitor = logging.getLogger("distributed.worker.memory")


class MemoryBudget:
    """Resizes the memory that a store has for results.

    Parameters
    ----------
    worker
        The worker.
    store
        The store for its results.
    limit
        Bytes of the worker's memory; None for the limit that it was started with.
    settings
        Constants.
    count_error
        Counts the exception that is being handled; called with what failed, a verb and its object.

    Attributes
    ----------
    of_process, of_device
        Samples of the memory of the process and of the device.
    """

    def __init__(
        self,
        worker: Worker,
        store: TileStore,
        limit: int | None,
        settings: RuntimeSettings,
        count_error: Callable[[str], object],
    ) -> None:
        self._worker = worker
        self._store = store
        self._given = limit
        self._settings = settings
        self._count_error = count_error
        self.of_process, self.of_device = Budget(), Budget()
        #: Whether the memory of the device is being measured.
        self._measuring = False
        #: Whether distributed's memory monitor has requested an eviction that has not ended.
        self._evicting = False
        #: Whether the log says that results have hardly any memory.
        self._warned_of_scarcity = False
        #: Bytes evicted from memory before results had hardly any.
        self._evicted_before = 0

    def update(self) -> None:
        """Resize the memory for results to what the rest of the process and the device leaves."""
        try:
            if not self._measuring:
                self._measuring = True
                # the driver may wait for kernels: not in the event loop
                if not self._store.submit_to_device(self._update_device):
                    self._measuring = False
            settings = self._settings
            store, limits = self._store, storage.limits(self._worker)
            store.age()
            budget = target = self._limit(limits.target)
            if target is not None and limits.spill is not False:
                # read before the process: bytes evicted in between must not count as other memory
                results = store.used(store.host)
                self.of_process.sample(storage.process_memory(self._worker), results)
                # half way to the monitor's threshold: the rest is for temporary memory of tasks
                spill = self._limit(limits.spill) or target
                most = (target + max(target, spill)) // 2
                budget = min(target, self.of_process.available(most))
                evicted = store.evicted_from_host
                if budget >= settings.scarce_budget * target:
                    self._evicted_before = evicted
                elif self.of_process.is_full and len(store) and evicted > self._evicted_before:
                    # not where one task holds much memory for long, and nothing is evicted
                    self._warn_of_scarcity(target, most, budget)
            if self._evicting and store.evicting(store.host):
                # a larger budget would cancel the eviction
                return
            self._evicting = False
            change = (budget or 0) - store.capacity(store.host)
            if budget is None or target is None or abs(change) > settings.budget_step * target:
                store.resize(store.host, budget)
        except Exception:
            self._count_error("update the budget of results")

    def _update_device(self) -> None:
        """Resize the device's memory for results to what others leave of it; in a thread."""
        try:
            store = self._store
            memory = store.device_memory()
            if memory is not None:
                self.of_device.sample(memory.in_use, memory.results)
                left = self.of_device.available(device_target(memory.total, memory.limit))
                budget = min(memory.limit, left)
                change = abs(budget - store.allowed(0))
                if change > self._settings.budget_step * memory.limit:
                    store.limit_device(budget)
        except Exception:
            self._count_error("update the budget of results on the device")
        finally:
            self._measuring = False

    def evict_excess(self) -> None:
        """Start to evict results until the process is at its target; does not wait."""
        store, limits = self._store, storage.limits(self._worker)
        target = self._limit(limits.target, limits.spill)
        if target is None:
            return
        results = store.used(store.host)
        above = storage.process_memory(self._worker) - target
        self._evicting = True
        store.shrink_to(store.host, results - above)
        if above > 0 and not store.used(store.host):
            _monitor.warning(
                "Unmanaged memory use is high. This may indicate a memory leak or the memory may"
                " not be released to the OS; see https://distributed.dask.org/en/latest/"
                "worker-memory.html#memory-not-released-back-to-the-os for more information."
                " -- Worker memory limit: %s",
                format_bytes(limits.memory or 0),
            )

    def crowding(self) -> Callable[[], bool]:
        """A function: whether the process has more memory than the worker's monitor lets it have.

        It never says so where other memory alone exceeds the limit: then no eviction helps.
        """
        limits = storage.limits(self._worker)
        most, limit = self._limit(limits.spill, limits.target), self._limit(1)
        other = storage.process_memory(self._worker) - self._store.used(self._store.host)
        if most is None or limit is None or other >= limit:
            return lambda: False
        least = most
        return lambda: storage.process_memory(self._worker) > least

    def _limit(self, *parts: Any) -> int | None:
        """Bytes of the first share that is configured, of the lowest of all memory limits."""
        limits = (self._given, self._store.limit, storage.limits(self._worker).memory)
        limit = min(filter(None, limits), default=None)
        part = next(filter(None, parts), None)
        return int(part * limit) if part and limit else None

    def _warn_of_scarcity(self, target: int, most: int, budget: int) -> None:
        """Log once that results have hardly any memory, and are evicted.

        Parameters
        ----------
        target, most
            Bytes that results, and that the process may take.
        budget
            Bytes that results may take now.
        """
        limit = self._limit(1)
        if self._warned_of_scarcity or limit is None:
            return
        self._warned_of_scarcity = True
        source = "set on the worker"
        if limit == self._given:
            source = "given to dasktile.enable"
        elif limit == self._store.limit:
            source = "given to dasktile.worker_data"
        other = self.of_process.other
        # results may take at most `target`, and so much that the process stays at `most`
        ample = limit * max(other / target, 2 * other / most)
        logger.warning(
            "Nearly all results of this worker are written to disk: results may take %s of this"
            " worker's memory limit (%s, %s), because its process takes %s besides them; with about"
            " %s they may take as much memory as the rest of the process",
            format_bytes(budget),
            format_limit(limit),
            source,
            format_bytes(other),
            format_bytes(ample),
        )
