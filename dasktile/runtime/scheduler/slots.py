"""Free slots of workers: how many tasks may still be sent to each."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dasktile._compat.distributed import scheduling

if TYPE_CHECKING:
    from distributed import Scheduler


class Slots(dict[str, int]):
    """Tasks that may still be sent to running workers, by address, counted when asked for."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler

    def __missing__(self, address: str) -> int:
        count = scheduling.slots(self._scheduler, self._scheduler.workers[address])
        self[address] = count
        return count

    def __contains__(self, address: object) -> bool:
        return self._scheduler.workers.get(address) in self._scheduler.running  # type: ignore[call-overload]

    def running(self) -> list[str]:
        """Addresses of all running workers."""
        return [ws.address for ws in self._scheduler.running]


class Free:
    """Those of some workers that have free slots.

    Parameters
    ----------
    workers
        Addresses of running workers.
    slots
        Free slots by worker; while this is in use they only become fewer.
    """

    def __init__(self, workers: Sequence[str], slots: Slots) -> None:
        self._workers = workers
        self._slots = slots
        #: A heap of (-slots, address); as most calls of `Roots.release` need none, built late.
        self._heap: list[tuple[int, str]] | None = None

    def most(self) -> str | None:
        """The worker with the most free slots; None if none has any."""
        if self._heap is None:
            self._heap = [(-self._slots[address], address) for address in self._workers]
            heapq.heapify(self._heap)
        while self._heap:
            count, address = self._heap[0]
            if count >= 0:
                return None
            if count == -self._slots[address]:
                return address
            heapq.heapreplace(self._heap, (-self._slots[address], address))
        return None
