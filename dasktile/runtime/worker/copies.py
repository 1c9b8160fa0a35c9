"""Copies of values between the tiers of a store, in threads.

:class:`TileCopies` executes the instructions of a
:class:`~dasktile.schedule.residency.Residency`.  For every tier that a tile is on, it has a
variable of a :class:`~dasktile.runtime.engine.Engine`: a copy reads the variable of one tier and
mutates that of the next, and a drop deletes a variable.  A copy also reads the variables that the
evictions mutate which make its room, so that the engine alone keeps the order of copies.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from dasktile._compat.distributed import storage
from dasktile.report.formatting import format_bytes
from dasktile.runtime.engine import Engine, Pool, Variable, inline
from dasktile.runtime.settings import RuntimeSettings
from dasktile.runtime.tiers import Device, Held, Tier
from dasktile.runtime.worker.buffers import memory_of
from dasktile.runtime.worker.units import Unit
from dasktile.schedule.instructions import (
    Copy,
    Drop,
    Hasten,
    Instruction,
    Ready,
    ResidencySettings,
)
from dasktile.schedule.residency import Residency

#: The logger of the store.
logger = logging.getLogger("dasktile.runtime.worker.store")
storage.limit_rate(logger, "%s to %s failed")

#: Priorities in a lane: copies ahead, those that something waits for, and removals, which are quick
#: and make room.
_AHEAD, _NEEDED, _REMOVAL = range(3)


class Spilled(NamedTuple):
    """Bytes of values that take no memory of the host, as distributed's ``SpilledSize``.

    Parameters
    ----------
    memory
        Bytes of those on disk or on a device, as the scheduler counts them.  It subtracts them from
        the bytes of all results, and the rest from the memory of the process.
    disk
        Bytes of all files.
    """

    memory: int
    disk: int

    def plus(self, memory: int = 0, disk: int = 0) -> Spilled:
        """The sum with further bytes."""
        return Spilled(self.memory + memory, self.disk + disk)


class NotCopiedError(RuntimeError):
    """A copy has failed, so that those that need it are not run."""


class TileCopies:
    """The tiles of a store, and the threads that copy them.

    Parameters
    ----------
    tiers
        The tiers below the first, fastest first.
    settings
        Settings of the residency, with a capacity for the first tier and each of `tiers`.
    threads
        Number of threads for each direction between two tiers.
    clock
        Returns seconds, for the metrics.
    device
        The device whose memory is the first tier; None if that is the host's memory.
    runtime
        Constants.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        settings: ResidencySettings,
        threads: int,
        clock: Callable[[], float],
        device: Device | None,
        runtime: RuntimeSettings,
    ) -> None:
        if len(tiers) + 1 != len(settings.capacity):
            raise ValueError(
                f"settings must have a capacity for memory and each of {len(tiers)} tiers, "
                f"not {len(settings.capacity)}"
            )
        self._runtime = runtime
        self._tiers = tuple(tiers)
        self._device = device
        self._last = len(tiers)
        self._names = (device.name if device else "memory", *(tier.name for tier in tiers))
        self._residency = Residency(settings)
        # Held for short times only, never during a copy.
        self._lock = threading.RLock()
        # The values that are in memory, and what is called when requests are ready.
        self._values: dict[Any, Any] = {}
        self._waiting: dict[Hashable, Callable[[], object]] = {}
        # Units whose memory new views may share, by the id of the array that owns the memory.
        self._memories: dict[int, Unit] = {}
        self._clock = clock
        self._metrics: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._spilled_total = Spilled(0, 0)
        # Bytes evicted from the first tier, from the start.
        self._evicted_bytes = 0
        #: Bytes evicted from the host's memory, from the start.
        self.evicted_from_host = 0
        self._pools = {
            f"{source} to {target}": ThreadPoolExecutor(
                threads, thread_name_prefix=f"dasktile-{source}-to-{target}"
            )
            for lower in range(1, len(settings.capacity))
            for source, target in ((lower - 1, lower), (lower, lower - 1))
        }
        lanes = {name: Pool(executor) for name, executor in self._pools.items()}
        self._engine = Engine({"inline": inline, **lanes})
        self._instructions: deque[Instruction] = deque()
        self._executing = False
        # Copies that are made ahead, for their priority.
        self._ahead: dict[Copy, Future[Any]] = {}
        self._copying = threading.local()
        self._closed = False
        if device is not None:
            device.on_full(self._make_room)

    @property
    def host(self) -> int:
        """Number of the tier that is the host's memory."""
        return 0 if self._device is None else 1

    def wait_all(self) -> None:
        """Wait for all copies and removals that have been started."""
        self._engine.wait_all()

    # Instructions, with the lock held

    def _execute(self, instructions: Sequence[Instruction]) -> list[Future[Any]]:
        """Execute instructions in the order in which they were decided.

        Returns
        -------
        The futures of the copies; none within another call, which executes the instructions.
        """
        copies: list[Future[Any]] = []
        if not instructions and not self._instructions:
            return copies
        self._instructions.extend(instructions)
        if self._executing:
            # a copy has failed at once
            return copies
        self._executing = True
        try:
            while self._instructions:
                match self._instructions.popleft():
                    case Copy() as copy:
                        copies.append(self._start_copy(copy))
                    case Hasten(copy):
                        if copy in self._ahead:
                            self._engine.hasten(self._ahead[copy], _NEEDED)
                    case Drop(unit, _, tier):
                        self._drop(unit, tier)
                    case Ready(name):
                        then = self._waiting.pop(name, None)
                        if then is not None:
                            then()
        finally:
            self._executing = False
        return copies

    def _start_copy(self, copy: Copy) -> Future[Any]:
        unit: Any = copy.key
        needed: list[tuple[Any, int]] = [(unit, copy.source)]
        needed += [(eviction.key, eviction.target) for eviction in copy.after]
        if any(tier not in each.variables for each, tier in needed):
            # one before it has failed already: the lanes are closed
            self._execute(self._residency.failed(copy, ran=False))
            ended: Future[Any] = Future()
            ended.set_result(None)
            return ended
        reads = [each.variables[tier] for each, tier in needed]
        target = unit.variables[copy.target] = self._engine.new_variable(unit.name)
        future = self._engine.push(
            partial(self._copy, unit, copy),
            reads,
            [target],
            f"{copy.source} to {copy.target}",
            _AHEAD if copy.ahead else _NEEDED,
        )
        if copy.ahead:
            self._ahead[copy] = future
        future.add_done_callback(partial(self._copy_ended, unit, copy, target))
        return future

    def _copy_ended(self, unit: Unit, copy: Copy, target: Variable, future: Future[Any]) -> None:
        self._ahead.pop(copy, None)
        error = future.exception()
        if error is None:
            return
        with self._lock:
            if unit.variables.get(copy.target) is not target:
                return  # it has run, and failed
            if isinstance(error, NotCopiedError) or copy.source not in unit.held:
                del unit.variables[copy.target]
                self._execute(self._residency.failed(copy, ran=False))
            else:
                # the lane is closed
                self._copy_failed(unit, copy, error)

    def _drop(self, unit: Any, tier: int) -> None:
        held = unit.held[tier]
        self._hold(unit, tier, None)
        variable = unit.variables.pop(tier)
        if tier == 0:
            self._evicted_bytes += held.size
        if tier == self.host:
            self.evicted_from_host += held.size
        if tier == unit.home:
            for key in unit.keys:
                self._values.pop(key, None)
            if self._memories.get(id(held.content)) is unit:
                del self._memories[id(held.content)]
            if not self._engine.delete_idle(variable):
                # a value that is being copied stays until that is done
                self._engine.delete(variable, partial(_keep_alive, held), "inline")
        else:
            lower, lane = self._tiers[tier - 1], f"{tier - 1} to {tier}"
            free = partial(lower.free, held)
            if not self._engine.delete_idle(variable):
                self._engine.delete(variable, free, lane, _REMOVAL)
            elif not lower.recycle(held):
                self._engine.push(free, lane=lane, priority=_REMOVAL)

    def _hold(self, unit: Unit, tier: int, held: Held | None) -> None:
        """Note what a tier has of a unit, None for nothing any more."""
        outside = self._is_outside(unit)
        before = unit.held.pop(tier, None)
        if held is not None:
            unit.held[tier] = held
        change = self._is_outside(unit) - outside
        memory = change * unit.nbytes() if change else 0
        disk = _size(held) - _size(before) if tier == self._last else 0
        if memory or disk:
            self._spilled_total = self._spilled_total.plus(memory, disk)

    def _is_outside(self, unit: Unit) -> bool:
        """Whether a unit is on tiers, but not on that of the host's memory."""
        return bool(unit.held) and self.host not in unit.held

    # In threads

    def _copy(self, unit: Unit, copy: Copy) -> None:
        """Copy a tile between two tiers."""
        if not self._copies(unit, copy):
            # not the exception itself: the frames in its traceback hold the tile
            raise NotCopiedError(f"{unit.name!r} was not copied")

    def _copies(self, unit: Unit, copy: Copy) -> bool:
        """Copy a tile; False if that fails, with the exception passed to the residency."""
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
                result = lower.store(held.content)
            else:
                result = Held(lower.load(held), unit.size)
        except Exception as error:
            with self._lock:
                self._copy_failed(unit, copy, error)
            return False
        finally:
            self._copying.now = False
        with self._lock:
            self._metrics[label, "count"] += 1
            self._metrics[label, "bytes"] += result.size if down else held.size
            self._metrics[label, "seconds"] += self._clock() - start
            self._hold(unit, copy.target, result)
            if copy.target == unit.home:
                self._restore(unit, result.content)
            self._execute(self._residency.copied(copy, result.size))
        return True

    def _restore(self, unit: Unit, content: Any) -> None:
        """Put the values of a unit back into memory."""
        if memory_of(content) is content:
            self._memories[id(content)] = unit
        for key, entry in unit.keys.items():
            if entry.is_home:
                self._values[key] = entry.value()

    def _copy_failed(self, unit: Unit, copy: Copy, error: BaseException) -> None:
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
            # its traceback would keep buffers of the size of the tile in memory
            unit.error = error.with_traceback(None)
        elif up:
            # what was given back may have been moved by the other mapping meanwhile
            if unit.keys:
                logger.error("%r could not be read back", unit.name, exc_info=error)
            unit.error = error.with_traceback(None)
        elif unit.keys and not unit.logged:
            unit.logged = True
            logger.error("Failed to serialize %r", unit.name, exc_info=error)
        self._execute(self._residency.failed(copy, full))

    def _make_room(self, size: int) -> bool:
        """Evict because a task cannot allocate `size` bytes on the device; True to try again.

        What has been evicted is free only when no thread holds it any more, as that of a task that
        has just ended may.  So it is tried again for a short while where nothing can be evicted.
        Nothing is evicted if all that can be would not be enough, as running tasks hold the rest.
        """
        if getattr(self._copying, "now", False):
            # the copy fails, and the residency retries it when there is memory
            return False
        if self._device is not None and size > self._device.total():
            # no eviction makes room for it
            return False
        free = None if self._device is None else self._device.free()
        with self._lock:
            before = self._evicted_bytes
            residency, copies = self._residency, []
            if free is None or free + residency.evictable(0) >= size:
                # where enough is free already, it is in fragments
                lacking = size if free is None or free >= size else size - free
                copies = self._execute(residency.shrink(0, lacking))
        for copy in copies:
            copy.exception()
        if self._evicted_bytes == before:
            # evictions that were in progress already may make the room; there may always be some
            self._engine.wait_pushed()
        if self._evicted_bytes > before:
            self._copying.tries = 0
            return True
        tries = getattr(self._copying, "tries", 0)
        if tries < self._runtime.room_tries:
            self._copying.tries = tries + 1
            time.sleep(self._runtime.room_pause)
            return True
        self._copying.tries = 0
        logger.warning(
            "%s has no room for %s, and no tile can be evicted",
            self._names[0],
            format_bytes(size),
        )
        return False

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
            # queued copies fail at once
            executor.shutdown()
        for tier in self._tiers:
            tier.close()


def _size(held: Held | None) -> int:
    return 0 if held is None else held.size


def _keep_alive(held: Held) -> None:
    """Keep a value alive until the engine has run the reads before this."""
