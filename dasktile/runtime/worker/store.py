"""The results a worker has, on a device, in memory or below: what ``Worker.data`` is.

:class:`TileStore` does what a :class:`~dasktile.schedule.residency.Residency` says.  Every tile
has, on every tier that it is on, a variable of a :class:`~dasktile.runtime.engine.Engine`: a
copy reads one and mutates the next, and what is dropped is deleted, so that none of these can
overtake another.  Copies run in threads of their own; nothing that only looks at memory waits
for one.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter, defaultdict
from collections.abc import (
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dasktile._compat import distributed as internals
from dasktile.runtime.engine import Engine, Variable, inline, pool
from dasktile.runtime.tiers import Device, Held, Tier
from dasktile.runtime.worker.buffers import View, is_all_of, memory_of
from dasktile.schedule.instructions import (
    DYING,
    Copy,
    Drop,
    Instruction,
    Ready,
    ResidencySettings,
)
from dasktile.schedule.residency import Residency

logger = logging.getLogger(__name__)
for _often in ("%s to %s failed", "Spill to %s reached its limit"):
    internals.limit_rate(logger, _often)

#: Values below this many bytes are not worth a file; they stay in memory.
SMALL = 1024

#: Types of values that take what their size says.
_SIMPLE = (bool, int, float, complex, str, bytes, type(None), np.generic, np.ndarray)


def _no_clock() -> float:
    return 0.0


class Spilled(NamedTuple):
    """Bytes of values that are on the last tier alone, as distributed's ``SpilledSize``.

    Parameters
    ----------
    memory
        Bytes, as the scheduler counts them.
    disk
        Bytes of files.
    """

    memory: int
    disk: int

    def plus(self, memory: int = 0, disk: int = 0) -> Spilled:
        """The sum with further bytes."""
        return Spilled(self.memory + memory, self.disk + disk)


class LostTileError(RuntimeError):
    """A tile was spilled and cannot be read back.

    No ``OSError``: a peer that gets one takes the worker for dead.
    """


@dataclass(slots=True, eq=False)
class _Key:
    """A value of a key, from its insertion to its deletion."""

    #: Bytes, as the scheduler counts them.
    size: int
    #: How it lies in the unit's memory, None where it is what the unit keeps.
    view: View | None
    next_use: float | None


@dataclass(slots=True, eq=False)
class _Unit:
    """What is kept as one: a value, or several that are views of the same memory."""

    #: The first key, for messages.
    name: Hashable
    #: Bytes.
    size: int
    #: The tier that tasks read it on.
    home: int
    keys: dict[Hashable, _Key] = field(default_factory=dict)
    #: What went wrong when it was read last.
    error: BaseException | None = None
    #: It is logged that it cannot be copied down.
    logged: bool = False
    held: dict[int, Held] = field(default_factory=dict)
    variables: dict[int, Variable] = field(default_factory=dict)

    def next_use(self) -> float | None:
        """When the first of its values is needed next."""
        uses = [one.next_use for one in self.keys.values()]
        if len(uses) == 1:
            return uses[0]
        known = [use for use in uses if use is not None and not math.isnan(use)]
        if None in uses:
            return None
        return min(known, default=DYING)


class TileStore(MutableMapping[Any, Any]):
    """Results of tasks, on the tier that suits them.

    A drop-in for ``distributed.spill.SpillBuffer``, with its ``evict``, ``spilled_total`` and
    ``cumulative_metrics``.

    Parameters
    ----------
    tiers
        Tiers below the first, from the fastest.  They are closed with the store.
    settings
        Of the residency, with one more tier.
    threads
        For each direction between two tiers.
    clock
        Seconds, for the metrics.
    device
        Whose memory the first tier is, with the host's as the second; None where the host's
        is the first.

    Attributes
    ----------
    blocked
        Seconds that the thread `waiter` has waited for values to be read back.
    waiter
        Number of a thread that should not wait, None for none.
    limit
        Bytes of memory of the worker that it was made for, None if nobody has said.
    next_use
        Says when a value that comes in is needed next.
    relieve
        Called by :meth:`evict` instead of evicting, None for nothing.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        settings: ResidencySettings,
        threads: int = 1,
        clock: Callable[[], float] = _no_clock,
        device: Device | None = None,
    ) -> None:
        if len(tiers) + 1 != len(settings.capacity):
            raise ValueError(
                f"settings must have a capacity for memory and each of {len(tiers)} tiers, "
                f"not {len(settings.capacity)}"
            )
        self._tiers = tuple(tiers)
        self._device = device
        self._last = len(tiers)
        self._names = (device.name if device else "memory", *(tier.name for tier in tiers))
        self._residency = Residency(settings)
        # Short: never held while a tile is copied.
        self._lock = threading.RLock()
        self._values: dict[Any, Any] = {}
        self._units: dict[Hashable, _Unit] = {}
        # Those of which others may become views, by the number of their memory.
        self._memories: dict[int, _Unit] = {}
        self._waiting: dict[Hashable, Callable[[], object]] = {}
        # Kept where they are; whether their size is all that they take.
        self._small: dict[Hashable, bool] = {}
        # Read since the residency was told last, in order; changed without the lock.
        self._touched: dict[Hashable, None] = {}
        self._asked = 0
        self._clock = clock
        self._metrics: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._reads = self._bytes_read = 0
        # What was counted when it was reset.
        self._counted: Counter[str] = Counter()
        self.blocked = 0.0
        self.waiter: int | None = None
        self._below = Spilled(0, 0)
        self._pools = {
            f"{source} to {target}": ThreadPoolExecutor(
                threads, thread_name_prefix=f"dasktile-{source}-to-{target}"
            )
            for lower in range(1, len(settings.capacity))
            for source, target in ((lower - 1, lower), (lower, lower - 1))
        }
        lanes = {name: pool(executor) for name, executor in self._pools.items()}
        self._engine = Engine({"inline": inline, **lanes})
        self._copying = threading.local()
        self._closed = False
        # Bytes of values that have left the first tier, from the start.
        self._gone = 0
        self.limit: int | None = None
        self.next_use: Callable[[Any], float | None] = unknown
        self.relieve: Callable[[], object] | None = None
        if device is not None:
            device.on_full(self._make_room)

    # Mapping

    def __contains__(self, key: object) -> bool:
        return key in self._values or key in self._units

    def __len__(self) -> int:
        return len(self._units) + len(self._small)

    def __iter__(self) -> Iterator[Any]:
        with self._lock:
            return iter([*self._units, *self._small])

    def __setitem__(self, key: Any, value: Any) -> None:
        size = internals.safe_sizeof(value)
        home, memory, whole = self._place(value)
        whole = max(size, whole)
        with self._lock:
            if key in self:
                del self[key]
            if whole < SMALL:
                self._small[key] = isinstance(value, _SIMPLE)
                self._values[key] = value
                return
            self._touch()
            self._add(key, value, size, whole, home, memory)
            for tier in self._residency.refusing:
                if self._residency.settings.capacity[tier] is None:
                    continue  # an error, which is logged where it happened
                logger.warning(
                    "Spill to %s reached its limit; keeping data in %s",
                    self._names[tier],
                    self._names[tier - 1],
                )

    def _place(self, value: Any) -> tuple[int, Hashable, int]:
        """The tier that a value is on, what memory it is in, and the bytes of that."""
        if self._device is None or not self._device.holds(value):
            array = memory_of(value)
            home = 0 if self._device is None else 1
            return (home, None, 0) if array is None else (home, id(array), array.nbytes)
        found = self._device.memory_of(value)
        return (0, None, 0) if found is None else (0, (self._device.name, found[0]), found[1])

    def _add(
        self, key: Hashable, value: Any, size: int, whole: int, home: int, memory: Hashable
    ) -> None:
        array = memory_of(value) if home == self.host else None
        one = _Key(size, None, self.next_use(key))
        content = value
        if array is not None and is_all_of(value, array):
            if array is not value:
                one.view, content = View.of(value, array), array
            unit = self._memories.get(id(array))
            # one without keys is removed, and only still copied
            held = unit.held.get(home) if unit is not None and unit.keys else None
            if unit is not None and held is not None and held.content is array:
                unit.keys[key] = one
                self._units[key] = unit
                self._values[key] = value
                self._do(self._residency.expect({unit: unit.next_use()}))
                return
        unit = _Unit(key, size, home, {key: one})
        if content is array:
            self._memories[id(array)] = unit
        unit.held[home] = Held(content, size)
        unit.variables[home] = self._engine.new_variable(key)
        self._units[key] = unit
        self._values[key] = value
        self._do(self._residency.add(unit, size, one.next_use, memory, whole, home))

    def __getitem__(self, key: Any) -> Any:
        try:
            value = self._values[key]
        except KeyError:
            return self._fetched(key)
        self._touched.pop(key, None)
        self._touched[key] = None
        unit = self._units.get(key)
        self._reads += 1
        if unit is not None:
            self._bytes_read += unit.size
        return value

    def __delitem__(self, key: Any) -> None:
        with self._lock:
            if key in self._small:
                del self._small[key]
                del self._values[key]
                return
            unit = self._units.pop(key)
            self._values.pop(key, None)
            one = unit.keys.pop(key)
            if self._is_spilled(unit):
                self._below = self._below.plus(memory=-one.size)
            if unit.keys:
                self._do(self._residency.expect({unit: unit.next_use()}))
            else:
                self._do(self._residency.remove(unit))

    def pop(self, key: Any, default: Any = None) -> Any:
        raise NotImplementedError(
            "pop may read the value back from disk; to forget a key, use del instead"
        )

    # What distributed asks for

    @property
    def fast(self) -> Mapping[Any, Any]:
        """What is in memory; for inspection only."""
        return self._values

    memory = fast

    @property
    def slow(self) -> Mapping[Any, Held]:
        """What is on tiers below alone; for inspection only."""
        with self._lock:
            return {
                key: unit.held[max(unit.held)]
                for key, unit in self._units.items()
                if min(unit.held, default=0) > unit.home
            }

    disk = slow

    @property
    def spilled_total(self) -> Spilled:
        """Bytes of the values that are on the last tier alone, and bytes of all files."""
        return self._below

    @property
    def cumulative_metrics(self) -> dict[tuple[str, str], float]:
        """Counts, bytes and seconds by ``(label, unit)``.

        Labels are ``disk-write`` and ``disk-read``, the same for other tiers, and
        ``memory-read`` for values that were where they are read.
        """
        read = {"count": self._reads, "bytes": self._bytes_read}
        with self._lock:
            return {**self._metrics, **{("memory-read", unit): read[unit] for unit in read}}

    def report(self) -> dict[str, Any]:
        """Numbers for :func:`dasktile.metrics`.

        Returns
        -------
        ``spilled`` and ``read_back``, bytes by tier; ``held``, bytes by tier now;
        ``prefetched`` and ``hits``, counts of values that were fetched before they were asked
        for, and of those of them that then were; ``blocked``, seconds.
        """
        with self._lock:
            counts = self._counts()
            counts.subtract(self._counted)
            below = self._names[1:]
            return {
                "spilled": {name: int(counts[f"{name}-write"]) for name in below},
                "read_back": {name: int(counts[f"{name}-read"]) for name in below},
                "held": dict(zip(self._names, self._residency.used, strict=True)),
                "prefetched": int(counts["prefetched"]),
                "hits": int(counts["hits"]),
                "blocked": counts["blocked"],
            }

    def _counts(self) -> Counter[str]:
        residency = self._residency
        copied = {label: size for (label, unit), size in self._metrics.items() if unit == "bytes"}
        ahead = {"prefetched": residency.prefetched, "hits": residency.hits}
        return Counter({**copied, **ahead, "blocked": self.blocked})

    def reset(self) -> None:
        """Let :meth:`report` count from zero; what Prometheus reads goes on."""
        with self._lock:
            self._counted = self._counts()

    def evict(self) -> int:
        """Let the value go from memory that should go first.

        Returns
        -------
        Bytes that are free now, -1 if nothing could go, or if it goes without being waited for.
        """
        if self.relieve is not None:
            self.relieve()
            return -1
        with self._lock:
            self._touch()
            residency = self._residency
            if not residency.staying(0):
                self._take_small()
            before, allowed = self._gone, residency.allowed(0)
            copies = []
            for tier in range(1, len(self._tiers) + 1):
                # what was full may have room again
                copies += self._do(residency.resize(tier, residency.settings.capacity[tier]))
            if not copies and self._gone == before:
                # the smallest step makes one buffer leave
                copies = self._do(residency.resize(0, max(0, residency.staying(0) - 1)))
        for copy in copies:
            copy.exception()
        with self._lock:
            after = self._gone
            self._do(residency.resize(0, allowed))
        return after - before if after > before else -1

    @property
    def host(self) -> int:
        """The tier that is the host's memory."""
        return 0 if self._device is None else 1

    @property
    def away(self) -> int:
        """How many values are not where tasks read them."""
        return len(self) - len(self._values)

    def used(self, tier: int) -> int:
        """Bytes on a tier, with those on their way to it or from it."""
        return self._residency.used[tier]

    def leaving(self, tier: int) -> int:
        """Bytes of these that are to leave it."""
        return self._residency.used[tier] - self._residency.staying(tier)

    def capacity(self, tier: int) -> float:
        """Bytes that a tier may have now."""
        return self._residency.capacity[tier]

    def squeeze(self, tier: int, target: int) -> None:
        """Let tiles leave a tier until it has so many bytes, without waiting for that."""
        with self._lock:
            residency = self._residency
            if target < 0 and tier == self.host and not residency.staying(tier):
                self._take_small()
            self._do(residency.shrink(tier, max(0, residency.staying(tier) - target)))

    def _take_small(self) -> None:
        """Let objects leave too that may be larger than they say."""
        for key in [key for key, certain in self._small.items() if not certain]:
            value = self._values[key]
            del self._small[key]
            size = internals.safe_sizeof(value)
            self._add(key, value, size, size, self.host, None)

    def resize(self, tier: int, capacity: int | None) -> None:
        """Give a tier more or less room.

        Parameters
        ----------
        tier
            0 for the first.
        capacity
            Bytes, None for no limit.
        """
        with self._lock:
            self._do(self._residency.resize(tier, capacity))

    def _make_room(self, size: int) -> bool:
        """A task finds no room for so many bytes on the device; True if there may be some now."""
        if getattr(self._copying, "now", False):
            # the residency is told, and finds room by itself
            return False
        if self._device is not None and size > self._device.total():
            # no eviction makes room for it
            return False
        with self._lock:
            before = self._gone
            copies = self._do(self._residency.shrink(0, size))
        for copy in copies:
            copy.exception()
        found = self._gone > before
        if not found:
            logger.warning(
                "%s has no room for %d bytes, and nothing to leave", self._names[0], size
            )
        return found

    # Asking for several

    def request(
        self,
        keys: Iterable[Any],
        then: Callable[[], object],
        room: int = 0,
        now: float | None = None,
        urgent: bool = False,
    ) -> int:
        """Have values in memory, and keep them there.

        Parameters
        ----------
        keys
            Of values.
        then
            Called once they are there, in any thread; must return at once and not raise.
        room
            Bytes that are going to be made of them.
        now
            The number of the task that asks, in the order that tasks run in.
        urgent
            Whether not to wait for room.

        Returns
        -------
        What to give to :meth:`release` in the end.

        Raises
        ------
        KeyError
            If there is no such key.
        """
        with self._lock:
            self._asked += 1
            name = self._asked
            self._waiting[name] = then
            try:
                found = [self._units[key] for key in keys if key not in self._small]
                self._touch()
                self._do(self._residency.request(name, found, now, room, urgent or self._closed))
            except BaseException:
                self._waiting.pop(name, None)
                with suppress(KeyError):
                    self._do(self._residency.release(name))
                raise
            return name

    def urge(self, name: int) -> None:
        """Do not let a request wait for room any longer."""
        with self._lock:
            self._do(self._residency.urge(name))

    def release(self, name: int) -> None:
        """Let values go that were asked for; those that wait for them are not told any more."""
        with self._lock:
            self._waiting.pop(name, None)
            self._do(self._residency.release(name))

    def settle(self) -> None:
        """Wait while values are written because memory is full."""
        while True:
            with self._lock:
                if not self._residency.crowded or not self._engine.left:
                    return
            self._engine.wait_all()

    def expect(self, uses: Mapping[Any, float | None]) -> None:
        """Say when values are needed next.

        Parameters
        ----------
        uses
            As for :meth:`Residency.expect`; keys that are not there are passed over.
        """
        if uses:
            with self._lock:
                changed: dict[Hashable, float | None] = {}
                for key, use in uses.items():
                    unit = self._units.get(key)
                    if unit is not None:
                        unit.keys[key].next_use = use
                        changed[unit] = unit.next_use()
                self._do(self._residency.expect(changed))

    def look(self, keys: Sequence[Any]) -> None:
        """Say what tasks will ask for first, as for :meth:`Residency.look`."""
        with self._lock:
            units = (self._units.get(key) for key in keys)
            self._do(self._residency.set_upcoming([unit for unit in units if unit is not None]))

    def forget_uses(self) -> None:
        """Go by age alone, and by the room that there was at first."""
        with self._lock:
            for unit in self._units.values():
                for one in unit.keys.values():
                    one.next_use = None
            self._do(self._residency.expect(dict.fromkeys(self._units.values())))
            self._do(self._residency.set_upcoming([]))
            capacity = self._residency.settings.capacity[self.host]
            self._do(self._residency.resize(self.host, capacity))

    def age(self) -> None:
        """Now and then: as for :meth:`Residency.age`; a disk that was full may have room again."""
        with self._lock:
            residency, last = self._residency, self._last
            self._do(residency.age() + residency.resize(last, residency.settings.capacity[last]))

    def may_be_read(self, key: Any) -> bool:
        """Whether a value is only waiting for room."""
        unit = self._units.get(key)
        return unit is None or unit.error is None or isinstance(unit.error, MemoryError)

    def _touch(self) -> None:
        """Tell the residency what was read."""
        touched, self._touched = self._touched, {}
        # another thread may still add to it
        for key in list(touched):
            if key in self._units:
                self._residency.touch(self._units[key])

    def _fetched(self, key: Any) -> Any:
        there = threading.Event()
        with self._lock:
            asked = self._units.get(key)
            # who waits here may be whom others wait for
            name = self.request([key], there.set, urgent=True)
        start = self._clock()
        try:
            there.wait()
            if threading.get_ident() == self.waiter:
                self.blocked += self._clock() - start
            with self._lock:
                if key in self._values:
                    return self._values[key]
                unit = self._units.get(key)
        finally:
            self.release(name)
        if unit is None:
            raise KeyError(key)
        if unit is not asked:
            # it was written again meanwhile, and has left since
            return self._fetched(key)
        error = "the store is closed" if unit.error is None and self._closed else repr(unit.error)
        raise LostTileError(f"{key!r} could not be read back: {error}")

    # Doing what the residency says; the lock is held

    def _do(self, instructions: Sequence[Instruction]) -> list[Future[Any]]:
        """Do what is said; futures of the copies."""
        copies = []
        for one in instructions:
            match one:
                case Copy():
                    copies.append(self._push(one))
                case Drop(unit, _, tier):
                    self._drop(unit, tier)
                case Ready(name):
                    then = self._waiting.pop(name, None)
                    if then is not None:
                        then()
        return copies

    def _push(self, copy: Copy) -> Future[Any]:
        unit: Any = copy.key
        source = unit.variables[copy.source]
        target = unit.variables[copy.target] = self._engine.new_variable(unit.name)
        lane = f"{copy.source} to {copy.target}"
        future = self._engine.push(partial(self._copy, unit, copy), [source], [target], lane)
        future.add_done_callback(partial(self._ended, unit, copy))
        return future

    def _ended(self, unit: _Unit, copy: Copy, future: Future[Any]) -> None:
        error = future.exception()
        if error is not None:
            # the lane is closed: what was to run there never will
            with self._lock:
                self._failed(unit, copy, error)

    def _is_spilled(self, unit: _Unit) -> bool:
        return min(unit.held, default=0) == self._last

    @staticmethod
    def _bytes(unit: _Unit) -> int:
        """Bytes of the values of a unit, as the scheduler counts them."""
        return sum(one.size for one in unit.keys.values())

    def _drop(self, unit: Any, tier: int) -> None:
        held = unit.held.pop(tier)
        variable = unit.variables.pop(tier)
        if tier == self._last:
            self._below = self._below.plus(disk=-held.size)
        elif self._is_spilled(unit):
            self._below = self._below.plus(memory=self._bytes(unit))
        if tier == 0:
            self._gone += held.size
        if tier == unit.home:
            for key in unit.keys:
                self._values.pop(key, None)
            if self._memories.get(id(held.content)) is unit:
                del self._memories[id(held.content)]
            # a value that is being written stays until it is
            self._engine.delete(variable, partial(_forget, held), "inline")
        else:
            free = partial(self._tiers[tier - 1].free, held)
            self._engine.delete(variable, free, f"{tier - 1} to {tier}")

    # In a thread

    def _copy(self, unit: _Unit, copy: Copy) -> None:
        """Copy a tile between two tiers; what goes wrong is told to the residency."""
        down = copy.target > copy.source
        held = unit.held[copy.source]
        lower = self._tiers[max(copy.source, copy.target) - 1]
        label = f"{lower.name}-write" if down else f"{lower.name}-read"
        start = self._clock()
        self._copying.now = True
        try:
            if self._closed:
                raise RuntimeError("the store is closed")
            if down:
                made = lower.store(held.content)
            else:
                made = Held(lower.load(held), unit.size)
        except Exception as error:
            with self._lock:
                self._failed(unit, copy, error)
            return
        finally:
            self._copying.now = False
        with self._lock:
            self._metrics[label, "count"] += 1
            self._metrics[label, "bytes"] += made.size if down else held.size
            self._metrics[label, "seconds"] += self._clock() - start
            if not down and self._is_spilled(unit):
                self._below = self._below.plus(memory=-self._bytes(unit))
            unit.held[copy.target] = made
            if copy.target == self._last:
                self._below = self._below.plus(disk=made.size)
            elif copy.target == unit.home:
                self._come(unit, made.content)
            self._do(self._residency.copied(copy, made.size))

    def _come(self, unit: _Unit, content: Any) -> None:
        """Have the values of a unit again."""
        if memory_of(content) is content:
            self._memories[id(content)] = unit
        for key, one in unit.keys.items():
            self._values[key] = content if one.view is None else one.view.on(content)

    def _failed(self, unit: _Unit, copy: Copy, error: BaseException) -> None:
        unit.variables.pop(copy.target)
        up = copy.target < copy.source
        full = isinstance(error, MemoryError if up else OSError)
        if self._closed:
            unit.error = error.with_traceback(None)
        elif full:
            logger.error(
                "%s to %s failed; keeping data in %s",
                "Reading back" if up else "Spill",
                self._names[copy.target],
                self._names[copy.source],
                exc_info=error,
            )
            # of its traceback, buffers of the size of the tile would be kept
            unit.error = error.with_traceback(None)
        elif up:
            logger.error("%r could not be read back", unit.name, exc_info=error)
            unit.error = error.with_traceback(None)
        elif unit.keys and not unit.logged:
            unit.logged = True
            logger.error("Failed to serialize %r", unit.name, exc_info=error)
        self._do(self._residency.failed(copy, full))

    def close(self) -> None:
        """Stop copying, and remove all files."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._device is not None:
                self._device.remove_on_full(self._make_room)
            waiting, self._waiting = list(self._waiting.values()), {}
        for then in waiting:
            then()
        for executor in self._pools.values():
            # what is queued fails at once
            executor.shutdown()
        for tier in self._tiers:
            tier.close()


def _forget(held: Held) -> None:
    """Hold on to a value until nobody reads it."""


def unknown(key: Any) -> None:
    """When a value is needed next, if nobody knows."""
