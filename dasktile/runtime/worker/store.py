"""The store of a worker's results on several tiers: device, memory, disk.

It replaces the mapping ``Worker.data``.  A :class:`~dasktile.schedule.residency.Residency` decides
where values are.  :class:`~dasktile.runtime.worker.values.TileValues` divides them into the units
that it knows, :class:`~dasktile.runtime.worker.copies.TileCopies` copies these in threads of their
own, and :class:`~dasktile.runtime.worker.reads.TileReads` has the requests for values and their
next uses; an access to a value in memory waits for no copy.

While memory is rather empty nothing has to be decided: values are *untracked*, known to the store
but not to the residency.  When they take more than a share of the capacity, it is told of all of
them, and of further ones until the store is empty.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import (
    Callable,
    Hashable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from typing import Any, NamedTuple

import numpy as np

from dasktile._compat.distributed import storage
from dasktile.runtime.settings import RuntimeSettings
from dasktile.runtime.tiers import Device, Foreign, Held, Tier
from dasktile.runtime.worker.copies import Spilled, logger
from dasktile.runtime.worker.reads import TileReads
from dasktile.runtime.worker.units import Entry, Part, Unit
from dasktile.schedule.instructions import ResidencySettings
from dasktile.schedule.tracking import ROOMY

storage.limit_rate(logger, "Spill to %s reached its limit")

#: Types whose measured size is all the memory that a value takes.
_EXACT_SIZE_TYPES = (bool, int, float, complex, str, bytes, type(None), np.generic, np.ndarray)


def _no_clock() -> float:
    return 0.0


class DeviceMemory(NamedTuple):
    """The memory of a device in bytes.

    Attributes
    ----------
    results
        Values of the store.
    in_use
        All that is in use, also by other processes.
    total
        What the device has.
    limit
        What values of the store may take at the most.
    """

    results: int
    in_use: int
    total: int
    limit: int


class TileStore(TileReads, MutableMapping[Any, Any]):
    """A mapping of results that keeps each on the tier that a `Residency` decides.

    A drop-in for ``distributed.spill.SpillBuffer``, with its ``evict``, ``spilled_total`` and
    ``cumulative_metrics``.

    Parameters
    ----------
    tiers
        The tiers below the first, fastest first.  They are closed with the store.
    settings
        Settings of the residency, with a capacity for the first tier and each of `tiers`.
    threads
        Number of threads for each direction between two tiers.
    clock
        Returns seconds, for the metrics.
    device
        The device whose memory is the first tier, followed by the host's memory; None if the
        host's memory is the first tier.
    runtime
        Constants; by default those of `RuntimeSettings`.

    Attributes
    ----------
    limit
        Bytes of memory that the worker was started with, None if unknown.
    next_use
        Returns when a new value is needed next.
    on_evict
        Called by :meth:`evict` instead of evicting; None to evict.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        settings: ResidencySettings,
        threads: int = 1,
        clock: Callable[[], float] = _no_clock,
        device: Device | None = None,
        runtime: RuntimeSettings | None = None,
    ) -> None:
        super().__init__(tiers, settings, threads, clock, device, runtime or RuntimeSettings())
        self._reads = self._bytes_read = 0
        # The counts at the last reset.
        self._counts_at_reset: Counter[str] = Counter()
        self.limit: int | None = None
        self.on_evict: Callable[[], object] | None = None

    # Mapping

    def __contains__(self, key: object) -> bool:
        return key in self._values or key in self._entries

    def __len__(self) -> int:
        return len(self._entries) + len(self._small) + len(self._untracked)

    def __iter__(self) -> Iterator[Any]:
        with self._lock:
            return iter([*self._entries, *self._small, *self._untracked])

    def __setitem__(self, key: Any, value: Any) -> None:
        size = storage.safe_sizeof(value)
        extent = self._extent(value, self._own_bytes(value, size))
        with self._lock:
            if key in self._values or key in self._entries:
                del self[key]
            if extent.nbytes < self._runtime.small_bytes:
                self._small[key] = isinstance(value, _EXACT_SIZE_TYPES)
                self._values[key] = value
                return
            if self._leaves_room(self._untracked.nbytes + extent.nbytes):
                memory = ("value", key) if extent.memory is None else extent.memory
                self._untracked.add(key, memory, extent.nbytes)
                self._untracked_sizes[key] = size
                self._values[key] = value
                return
            self._track_all()
            self._add(key, value, size, None if type(value) is tuple else extent)
            for tier in self._residency.refusing:
                if self._residency.settings.capacity[tier] is None:
                    continue  # the reason was an exception, which is logged already
                logger.warning(
                    "Spill to %s reached its limit; keeping data in %s",
                    self._names[tier],
                    self._names[tier - 1],
                )

    def _leaves_room(self, size: int) -> bool:
        """Whether memory is rather empty if untracked values take `size` bytes."""
        return self.tracks_nothing and size <= ROOMY * self._residency.capacity[0]

    def adopt(
        self,
        key: Hashable,
        held: Held,
        size: int,
        *,
        tier: int | None = None,
        home: int | None = None,
    ) -> None:
        """Take over a value that is on a lower tier, without reading it.

        Parameters
        ----------
        key
            Key of the value; it must be new.
        held
            What the tier has of it: in a file of another mapping a `Foreign`.
        size
            Bytes of the value, as the scheduler counts them.
        tier
            Number of the tier; by default the last one.
        home
            Number of the tier on which tasks read it; by default that of the host's memory.
        """
        with self._lock:
            self._track_all()
            if home is not None and home < self.host and not self._device_in_use:
                self._use_device()
            tier = self._last if tier is None else tier
            unit = Unit(key, size, self.host if home is None else home)
            part = Part(unit, size)
            entry = Entry(self.next_use(key))
            entry.lay_out(part, [part])
            unit.keys[key] = entry
            unit.variables[tier] = self._engine.new_variable(key)
            self._entries[key] = entry
            self._hold(unit, tier, held)
            use = entry.next_use
            self._execute(self._residency.adopt(unit, size, held.size, use, unit.home, tier))

    def adopt_serialized(
        self, key: Hashable, header: dict[str, Any], frames: list[Any], size: int | None = None
    ) -> bool:
        """Take over a value of the device that distributed has serialized into the host's memory.

        Parameters
        ----------
        key
            Key of the value; it must be new.
        header, frames
            As of distributed's serialization; the frames are used as they are.
        size
            Bytes of the value, as the scheduler counts them; by default those of the frames.

        Returns
        -------
        Whether the tier of the host's memory keeps such values.
        """
        held = None if self._device is None else self._tiers[0].adopt(header, frames)
        if held is None:
            return False
        self.adopt(key, held, held.size if size is None else size, tier=self.host, home=0)
        return True

    def give_back(self) -> list[Any]:
        """Forget the values that are in files of another mapping; return their keys."""
        with self._lock:
            given = []
            for key, entry in list(self._entries.items()):
                held = [part.unit.held.get(self._last) for part in entry.parts]
                content = held[0].content if len(held) == 1 and held[0] is not None else None
                if isinstance(content, Foreign):
                    content.kept = True
                    del self[key]
                    given.append(key)
            return given

    def __getitem__(self, key: Any) -> Any:
        try:
            value = self._values[key]
        except KeyError:
            return self._fetch(key)
        self._touched.pop(key, None)
        self._touched[key] = None
        entry = self._entries.get(key)
        self._reads += 1
        if entry is not None:
            for part in entry.parts:
                self._bytes_read += part.unit.size
        else:
            self._bytes_read += self._untracked_sizes.get(key, 0)
        return value

    def __delitem__(self, key: Any) -> None:
        with self._lock:
            if key in self._small or key in self._untracked:
                if self._small.pop(key, None) is None:
                    self._untracked.remove(key)
                    del self._untracked_sizes[key]
                del self._values[key]
                self._touched.pop(key, None)
                return
            entry = self._entries.pop(key)
            self._values.pop(key, None)
            for part in entry.parts:
                if self._is_outside(part.unit):
                    self._spilled_total = self._spilled_total.plus(memory=-part.size)
                part.unit.keys.pop(key, None)
            # only then: an instruction for one unit may drop another one of the same value
            for unit in entry.units:
                if unit.keys:
                    self._execute(self._residency.expect({unit: unit.next_use()}))
                else:
                    self._execute(self._residency.remove(unit))

    def pop(self, key: Any, default: Any = None) -> Any:
        raise NotImplementedError(
            "pop may read the value back from disk; to forget a key, use del instead"
        )

    # The interface of distributed.spill.SpillBuffer

    @property
    def fast(self) -> Mapping[Any, Any]:
        """The values in memory; for inspection only."""
        return self._values

    memory = fast

    @property
    def slow(self) -> Mapping[Any, Held]:
        """What lower tiers have of the values that are not in memory; for inspection only.

        For a tuple of several units it is what they have of the first that is not in memory.
        """
        with self._lock:
            units = {
                key: next((unit for unit in entry.units if unit.home not in unit.held), None)
                for key, entry in self._entries.items()
            }
            return {
                key: unit.held[max(unit.held)]
                for key, unit in units.items()
                if unit is not None and unit.held
            }

    disk = slow

    @property
    def spilled_total(self) -> Spilled:
        """Bytes of the values that are not in the host's memory, and bytes of all files."""
        return self._spilled_total

    @property
    def cumulative_metrics(self) -> dict[tuple[str, str], float]:
        """Counts, bytes and seconds by ``(label, unit)``.

        Labels are ``disk-write`` and ``disk-read``, the same for other tiers, and
        ``memory-read`` for reads of values that were in memory.
        """
        read = {"count": self._reads, "bytes": self._bytes_read}
        with self._lock:
            return {**self._metrics, **{("memory-read", unit): read[unit] for unit in read}}

    def report(self) -> dict[str, Any]:
        """Counts for :func:`dasktile.metrics`.

        Returns
        -------
        ``spilled`` and ``read_back``, bytes by tier; ``held``, bytes on each tier now;
        ``prefetched``, the number of prefetched values; ``hits``, the number of those that were
        prefetched on time; ``blocked``, seconds.
        """
        with self._lock:
            counts = self._counts()
            counts.subtract(self._counts_at_reset)
            below = self._names[1:]
            return {
                "spilled": {name: int(counts[f"{name}-write"]) for name in below},
                "read_back": {name: int(counts[f"{name}-read"]) for name in below},
                "held": {name: self.used(tier) for tier, name in enumerate(self._names)},
                "prefetched": int(counts["prefetched"]),
                "hits": int(counts["hits"]),
                "blocked": counts["blocked"],
            }

    def _counts(self) -> Counter[str]:
        residency = self._residency
        copied = {label: size for (label, unit), size in self._metrics.items() if unit == "bytes"}
        ahead = {"prefetched": residency.prefetches.started, "hits": residency.prefetches.hits}
        return Counter({**copied, **ahead, "blocked": self.blocked})

    def reset(self) -> None:
        """Let :meth:`report` count from zero; `cumulative_metrics` are not reset."""
        with self._lock:
            self._counts_at_reset = self._counts()

    def evict(self) -> int:
        """Evict the value that is first in eviction order from memory.

        Returns
        -------
        Freed bytes; -1 if none can be evicted, or if the eviction is not waited for.
        """
        if self.on_evict is not None:
            self.on_evict()
            return -1
        with self._lock:
            self._track_all()
            residency = self._residency
            if not residency.staying(0):
                self._add_small()
            before, allowed = self._evicted_bytes, residency.allowed(0)
            copies = []
            for tier in range(1, len(self._tiers) + 1):
                # a lower tier that was full may have space again
                copies += self._execute(residency.resize(tier, residency.settings.capacity[tier]))
            if not copies and self._evicted_bytes == before:
                # to reduce the capacity by the smallest step evicts one buffer
                copies = self._execute(residency.resize(0, max(0, residency.staying(0) - 1)))
        for copy in copies:
            copy.exception()
        with self._lock:
            after = self._evicted_bytes
            self._execute(residency.resize(0, allowed))
        return after - before if after > before else -1

    @property
    def evicted_count(self) -> int:
        """Number of values that are not on the tier on which tasks read them."""
        return len(self) - len(self._values)

    def used(self, tier: int) -> int:
        """Bytes on a tier, including those of copies to it or from it that are not done."""
        return self._residency.used[tier] + (self._untracked.nbytes if tier == self.host else 0)

    def evicting(self, tier: int) -> int:
        """Those bytes of a tier that are being evicted."""
        with self._lock:
            return self._residency.freeing(tier)

    @property
    def crowded(self) -> bool:
        """Whether a tier exceeds its capacity and evictions from it are in progress."""
        with self._lock:
            return self._residency.crowded

    def wait_for_writes(self) -> None:
        """Wait for evictions while memory is full."""
        while True:
            with self._lock:
                if not self.crowded or not self._engine.left:
                    return
            self._engine.wait_pushed()

    def capacity(self, tier: int) -> float:
        """Present capacity of a tier in bytes."""
        return self._residency.capacity[tier]

    def shrink_to(self, tier: int, target: int) -> None:
        """Start to evict tiles until a tier has at most `target` bytes; does not wait."""
        with self._lock:
            residency = self._residency
            if tier == self.host:
                self._track_all()
            if target < 0 and tier == self.host and not residency.staying(tier):
                self._add_small()
            self._execute(residency.shrink(tier, max(0, residency.staying(tier) - target)))

    def _add_small(self) -> None:
        """Make small values evictable that may take more memory than was measured."""
        for key in [key for key, exact in self._small.items() if not exact]:
            value = self._values[key]
            del self._small[key]
            self._add(key, value, storage.safe_sizeof(value))

    def resize(self, tier: int, capacity: int | None) -> None:
        """Change the capacity of a tier.

        Parameters
        ----------
        tier
            Number of the tier, 0 for the first.
        capacity
            Bytes, None for no limit.
        """
        with self._lock:
            room = ROOMY * (math.inf if capacity is None else capacity)
            if tier == self.host and self._untracked.nbytes > room:
                self._track_all()
            self._execute(self._residency.resize(tier, capacity))

    def forget_uses(self) -> None:
        """Forget all next uses, so that eviction is by age, and restore the first capacity."""
        with self._lock:
            units: dict[Hashable, None] = {}
            for entry in self._entries.values():
                entry.next_use = None
                units.update(dict.fromkeys(entry.units))
            self._execute(self._residency.expect(units))
            self._execute(self._residency.set_upcoming([]))
            self.resize(self.host, self._residency.settings.capacity[self.host])

    def device_memory(self) -> DeviceMemory | None:
        """The memory of the device; None if it is not in use, or what is used there is unknown.

        To be called in a thread that may wait for the device.
        """
        if self._device is None or not self._device_in_use or self._device_limit is None:
            return None
        # read before the device: bytes evicted in between must not count as other memory
        results = self.used(0)
        in_use = self._device.in_use()
        if in_use is None:
            return None
        return DeviceMemory(results, in_use, self._device.total(), self._device_limit)

    def limit_device(self, capacity: float) -> None:
        """Change the bytes that values may take on the device."""
        with self._lock:
            self._execute(self._residency.allow(0, capacity))

    def allowed(self, tier: int) -> float:
        """Capacity of a tier without what failed allocations have taken of it for a time."""
        return self._residency.allowed(tier)

    def submit_to_device(self, function: Callable[[], object]) -> bool:
        """Run a function in a thread that copies from the device; False if that is not in use."""
        if self._device is None or not self._device_in_use:
            return False
        self._pools["0 to 1"].submit(function)
        return True
