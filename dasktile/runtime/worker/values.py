"""How the values of a store are divided into the units that its residency knows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from dasktile._compat.distributed import storage
from dasktile.runtime.settings import RuntimeSettings
from dasktile.runtime.tiers import Device, Held, Tier
from dasktile.runtime.worker.buffers import View, is_all_of, memory_of, overlapping_range, own_bytes
from dasktile.runtime.worker.copies import TileCopies
from dasktile.runtime.worker.units import Entry, Part, Unit, laid_out, leaves
from dasktile.schedule.instructions import ResidencySettings

#: What is sent to a peer by the present asyncio task in place of values, by key.
_LENT: ContextVar[Mapping[Any, Any]] = ContextVar("lent", default=MappingProxyType({}))


class TileValues(TileCopies):
    """The values that consist of the tiles of a store.

    Parameters
    ----------
    tiers, settings, threads, clock, device, runtime
        As for :class:`~dasktile.runtime.worker.copies.TileCopies`.

    Attributes
    ----------
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
        self.next_use: Callable[[Any], float | None] = no_next_use

    @contextmanager
    def lending(self, keys: Iterable[Any]) -> Iterator[Collection[Any]]:
        """Let spilled values of the device be sent to a peer as they are in the host's memory.

        In this context, reads give what is to be sent in place of such a value.  Other threads and
        asyncio tasks still get the value.

        Parameters
        ----------
        keys
            Keys that the peer has asked for.

        Yields
        ------
        The keys of such values among them, which need not be swapped in.
        """
        loans: dict[Any, tuple[Held, Any]] = {}
        with self._lock:
            for key in keys:
                held = self._in_host_memory(key)
                lent = None if held is None else self._tiers[0].lend(held)
                if held is not None and lent is not None:
                    loans[key] = held, lent
        token = _LENT.set({key: lent for key, (_, lent) in loans.items()})
        try:
            yield loans.keys()
        finally:
            _LENT.reset(token)
            for held, _ in loans.values():
                self._tiers[0].take_back(held)

    def _in_host_memory(self, key: Any) -> Held | None:
        """What the host's memory has of a value of the device that is spilled there as a whole."""
        entry = self._entries.get(key)
        if self._device is None or entry is None or type(entry.layout) is not Part:
            return None
        unit = entry.layout.unit
        is_spilled = unit.home == 0 and 0 not in unit.held and entry.layout.view is None
        return unit.held.get(self.host) if is_spilled else None

    def _add(self, key: Hashable, value: Any, size: int) -> None:
        """Add a value of `size` bytes."""
        entry = Entry(None, (), self.next_use(key))
        parts: list[Part] = []
        new: dict[Unit, tuple[Hashable, int]] = {}
        #: Bytes that parts of a tuple may still take without being in units.
        free = self._runtime.small_bytes

        def placed(part: Any) -> Any:
            nonlocal free
            nbytes = size if part is value else storage.safe_sizeof(part)
            home, memory, whole = self._place(part)
            whole = max(own_bytes(part, nbytes), whole)
            if part is not value and whole < free:
                free -= whole
                return part
            unit, view = self._unit(key, part, nbytes, home)
            if not unit.variables:
                unit.variables[home] = self._engine.new_variable(key)
                new[unit] = memory, whole
            unit.keys[key] = entry
            parts.append(Part(unit, nbytes, view))
            return parts[-1]

        if self._is_divided(value):
            entry.layout = laid_out(value, placed)
        else:
            entry.layout = placed(value)
        entry.parts = tuple(parts)
        outside = sum(part.size for part in parts if self._is_outside(part.unit))
        self._spilled_total = self._spilled_total.plus(memory=outside)
        self._entries[key] = entry
        self._values[key] = value
        for unit, (memory, whole) in new.items():
            use, home = entry.next_use, unit.home
            self._execute(self._residency.add(unit, unit.size, use, memory, whole, home))
        shared: dict[Hashable, float | None] = {
            unit: unit.next_use() for unit in entry.units() if unit not in new
        }
        if shared:
            self._execute(self._residency.expect(shared))

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
        entries = (self._entries[key] for key in keys if key in self._entries)
        return list(dict.fromkeys(unit for entry in entries for unit in entry.units()))


def lent_value(key: Any) -> Any:
    """What is sent in place of a value, see `TileValues.lending`; None for the value itself."""
    return _LENT.get().get(key)


def no_next_use(key: Any) -> None:
    """The next use of every value without hints: unknown."""
