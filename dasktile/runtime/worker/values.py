"""How the values of a store are divided into the units that its residency knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from dasktile._compat.distributed import storage
from dasktile.runtime.settings import RuntimeSettings
from dasktile.runtime.tiers import Device, Held, Tier
from dasktile.runtime.worker.buffers import (
    View,
    is_all_of,
    is_base,
    memory_of,
    overlapping_range,
    own_bytes,
)
from dasktile.runtime.worker.copies import TileCopies
from dasktile.runtime.worker.units import Entry, Part, Unit, laid_out, leaves
from dasktile.schedule.instructions import ResidencySettings
from dasktile.schedule.tracking import Untracked


@dataclass(frozen=True, slots=True, eq=False)
class Loan:
    """What is sent to a peer in place of a value.

    Parameters
    ----------
    entry
        The value.
    content
        What is sent, see :meth:`~dasktile.runtime.tiers.Tier.lend`.
    """

    entry: Entry
    content: Any


class Extent(NamedTuple):
    """Where a value is when it is made.

    Attributes
    ----------
    home
        The first tier of the value.
    memory
        Identifies its memory; None if the value is no view of any.
    nbytes
        Bytes of that memory, or those of the value if they are more.
    """

    home: int
    memory: Hashable
    nbytes: int


class TileValues(TileCopies):
    """The values that consist of the tiles of a store.

    Parameters
    ----------
    tiers, settings, threads, clock, device, runtime
        As for :class:`~dasktile.runtime.worker.copies.TileCopies`.

    Attributes
    ----------
    device_share
        Share of the device's memory that values may take, which becomes bytes with the first value
        on the device; None where the settings have the bytes.
    next_use
        Returns when a new value is needed next.
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
        super().__init__(tiers, settings, threads, clock, device, runtime)
        self._entries: dict[Hashable, Entry] = {}
        # Small values, which are not spilled, and whether their measured size is exact.
        self._small: dict[Hashable, bool] = {}
        # Values that the residency does not know, and their bytes.  While there are any, there are
        # no entries.
        self._untracked: Untracked[Hashable] = Untracked()
        self._untracked_sizes: dict[Hashable, int] = {}
        # By asyncio task that sends values to a peer, and by key.
        self._loans: dict[Any, dict[Any, Loan]] = {}
        self.next_use: Callable[[Any], float | None] = no_next_use
        self.device_share: float | None = None
        #: Whether there has been a value on the device, which may be initialised only before that.
        self._device_in_use = False
        self._device_limit = settings.capacity[0]

    @property
    def tracks_nothing(self) -> bool:
        """Whether the residency knows no values: all are in memory, and nothing is decided."""
        return not self._entries and self._device is None

    @contextmanager
    def lending(self, keys: Iterable[Any]) -> Iterator[Collection[Any]]:
        """Let spilled values of the device be sent to a peer as they are in the host's memory.

        In this context, the present asyncio task reads what is to be sent in place of such a value.
        All others, also those that it starts, read the value itself.

        Parameters
        ----------
        keys
            Keys that the peer has asked for.

        Yields
        ------
        The keys of such values among them, which need not be swapped in.
        """
        task = None if self._device is None else asyncio.current_task()
        if task is None:
            yield ()
            return
        loans: dict[Any, Loan] = {}
        try:
            with self._lock:
                for key in keys:
                    loan = self._lend(key)
                    if loan is not None:
                        loans[key] = loan
            self._loans[task] = loans
            yield loans.keys()
        finally:
            self._loans.pop(task, None)
            for loan in loans.values():
                self._tiers[0].take_back(loan.content)

    def _lend(self, key: Any) -> Loan | None:
        """A loan of a value of the device that is on the host as a whole, and not on the device."""
        entry = self._entries.get(key)
        part = None if entry is None else entry.layout
        if entry is None or type(part) is not Part or part.view is not None:
            return None
        held = part.unit.held
        if part.unit.home != 0 or 0 in held or self.host not in held:
            return None
        content = self._tiers[0].lend(held[self.host])
        if content is None:
            return None
        self._residency.touch(part.unit)
        return Loan(entry, content)

    def is_lent(self, key: Any) -> bool:
        """Whether the present asyncio task sends something in place of a value."""
        return self._lent(key) is not None

    def _lent(self, key: Any) -> Any:
        """What the present asyncio task sends in place of a value; None for the value itself."""
        if not self._loans:
            return None
        try:
            task = asyncio.current_task()
        except RuntimeError:
            # a thread without an event loop
            return None
        loan = self._loans.get(task, {}).get(key)
        # the value may have been replaced
        if loan is None or self._entries.get(key) is not loan.entry:
            return None
        return loan.content

    def _add(self, key: Hashable, value: Any, size: int, extent: Extent | None = None) -> None:
        """Add a value of `size` bytes, and of an extent if that is known."""
        entry = Entry(self.next_use(key))
        parts: list[Part] = []
        new: dict[Unit, tuple[Hashable, int]] = {}
        #: Bytes that parts of a tuple may still take without being in units.
        free = self._runtime.small_bytes

        def placed(part: Any) -> Any:
            nonlocal free
            if part is value:
                nbytes, own = size, extent or self._extent(value, own_bytes(value, size))
            else:
                nbytes = storage.safe_sizeof(part)
                own = self._extent(part, own_bytes(part, nbytes))
                if own.nbytes < free:
                    free -= own.nbytes
                    return part
            unit, view = self._unit(key, part, nbytes, own.home)
            if not unit.variables:
                unit.variables[own.home] = self._engine.new_variable(key)
                new[unit] = own.memory, own.nbytes
            unit.keys[key] = entry
            parts.append(Part(unit, nbytes, view))
            return parts[-1]

        layout = laid_out(value, placed) if self._is_divided(value) else placed(value)
        unused = self._device is not None and not self._device_in_use
        if unused and any(part.unit.home == 0 for part in parts):
            self._use_device()
        entry.lay_out(layout, parts)
        outside = sum(part.size for part in parts if self._is_outside(part.unit))
        if outside:
            self._spilled_total = self._spilled_total.plus(memory=outside)
        self._entries[key] = entry
        self._values[key] = value
        for unit, (memory, whole) in new.items():
            use, home = entry.next_use, unit.home
            self._execute(self._residency.add(unit, unit.size, use, memory, whole, home))
        shared: dict[Hashable, float | None] = {
            unit: unit.next_use() for unit in entry.units if unit not in new
        }
        if shared:
            self._execute(self._residency.expect(shared))

    def _use_device(self) -> None:
        """Note that the device is in use, and the bytes that values may take there."""
        self._device_in_use = True
        if self._device is not None and self.device_share is not None:
            self._device_limit = int(self.device_share * self._device.total())
            self._execute(self._residency.resize(0, self._device_limit))

    def _extent(self, value: Any, size: int) -> Extent:
        """The memory of a value that takes `size` bytes, with overlapping views as their base."""
        if self._device is None and is_base(value):
            # most results; no view, so that nothing else has to be looked at
            return Extent(0, id(value), max(size, value.nbytes))
        home, memory, nbytes = self._place(value)
        return Extent(home, memory, max(size, nbytes))

    def _place(self, value: Any) -> tuple[int, Hashable, int]:
        """The first tier of a value, an identifier of its memory, and the bytes of that memory."""
        if self._device is None or not self._device.holds(value):
            array = memory_of(value)
            home = 0 if self._device is None else 1
            return (home, None, 0) if array is None else (home, id(array), array.nbytes)
        memory = self._device.memory_of(value)
        return (0, None, 0) if memory is None else (0, (self._device.name, memory[0]), memory[1])

    def _own_bytes(self, value: Any, size: int) -> int:
        """Bytes that a value of measured `size` takes, with overlapping views as their base."""
        if type(value) is not tuple:
            return own_bytes(value, size)
        for part in leaves(value, self._runtime.max_parts):
            if overlapping_range(part) is not None:
                measured = storage.safe_sizeof(part)
                size -= measured - own_bytes(part, measured)
        return size

    def _is_divided(self, value: Any) -> bool:
        """Whether the parts of a value are in units of their own: a tuple with large parts."""
        if type(value) is not tuple:
            return False
        parts = leaves(value, self._runtime.max_parts)
        small = self._runtime.small_bytes
        return len(parts) > 1 and any(storage.safe_sizeof(part) >= small for part in parts)

    def _unit(self, key: Hashable, value: Any, size: int, home: int) -> tuple[Unit, View | None]:
        """The unit of a value, perhaps a new one, and the layout of the value in it."""
        array = memory_of(value) if home == self.host else None
        content, view = value, None
        if array is not None and is_all_of(value, array):
            if array is not value:
                view, content = View.of(value, array), array
            unit = self._memories.get(id(array))
            # a unit without keys was removed, although a copy of it may still run
            held = unit.held.get(home) if unit is not None and unit.keys else None
            if unit is not None and held is not None and held.content is array:
                return unit, view
        used = overlapping_range(value) if array is not None and content is value else None
        if used is not None:
            # its windows are not written, but what they are windows of
            view, content = View.of_range(value, *used)
            size = content.nbytes
        unit = Unit(key, size, home)
        if content is array:
            self._memories[id(array)] = unit
        unit.held[home] = Held(content, size)
        return unit, view

    def _units(self, keys: Iterable[Any]) -> list[Hashable]:
        """The units of values, each once."""
        entries = [self._entries[key] for key in keys if key in self._entries]
        return list(dict.fromkeys(unit for entry in entries for unit in entry.units))


def no_next_use(key: Any) -> None:
    """The next use of every value without hints: unknown."""
