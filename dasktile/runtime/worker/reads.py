"""Reads of the values of a store: those of tasks that start, and those to come.

A task, or a transfer to a peer, requests the values that it reads; a value that is read without a
request is waited for.  When values are read next decides which of them are evicted, and which are
prefetched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from dasktile.runtime.settings import RuntimeSettings
from dasktile.runtime.tiers import Device, Tier
from dasktile.runtime.worker.units import Entry, Unit
from dasktile.runtime.worker.values import TileValues
from dasktile.schedule.instructions import ResidencySettings


class LostTileError(RuntimeError):
    """A spilled tile cannot be read back.

    It is no ``OSError``, which would make a peer consider this worker lost.
    """


class TileReads(TileValues):
    """The reads of the values of a store.

    Parameters
    ----------
    tiers, settings, threads, clock, device, runtime
        As for :class:`~dasktile.runtime.worker.copies.TileCopies`.

    Attributes
    ----------
    blocked
        Seconds for which the thread `event_loop_thread` has waited for values to be read back.
    event_loop_thread
        Identifier of the thread of the worker's event loop, None outside of a worker.
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
        # Keys read since the last `_touch`, in order; changed without the lock.
        self._touched: dict[Hashable, None] = {}
        self._last_request = 0
        self.blocked = 0.0
        self.event_loop_thread: int | None = None

    def request(
        self,
        keys: Iterable[Any],
        then: Callable[[], object],
        room: int = 0,
        now: float | None = None,
        urgent: bool = False,
    ) -> int:
        """Swap values in, and keep them in memory until the request is released.

        Parameters
        ----------
        keys
            Keys of the values.
        then
            Called once they are in memory, in any thread; must return at once and not raise.
        room
            Bytes to reserve for the result of the task.
        now
            Number of the task that reads them, in the order in which tasks run.
        urgent
            True to swap in at once, even above the capacity.

        Returns
        -------
        The number of the request, for :meth:`release`.

        Raises
        ------
        KeyError
            If there is no such key.
        """
        with self._lock:
            self._last_request += 1
            name = self._last_request
            keys = list(keys)
            if self.tracks_nothing:
                for key in keys:
                    self._values[key]
                self._untracked.requests[name] = keys
                then()
                return name
            self._waiting[name] = then
            try:
                entries = [self._entries[key] for key in keys if key not in self._small]
                units = [unit for entry in entries for unit in entry.units]
                self._touch()
                self._execute(
                    self._residency.request(name, units, now, room, urgent or self._closed)
                )
            except BaseException:
                self._waiting.pop(name, None)
                with suppress(KeyError):
                    self._execute(self._residency.release(name))
                raise
            return name

    def urge(self, name: int) -> None:
        """Make a request urgent: it does not wait for memory any longer."""
        with self._lock:
            self._execute(self._residency.urge(name))

    def urge_first(self) -> None:
        """Make the first request that waits for memory urgent."""
        with self._lock:
            self._execute(self._residency.urge_first())

    @property
    def events(self) -> int:
        """Number of copies that were done, and of requests that were released."""
        return self._residency.events

    @property
    def copies(self) -> bool:
        """Whether tiles are being copied."""
        return self._residency.copies > 0

    def release(self, name: int) -> None:
        """End a request: its values can be evicted, and its callback is not called any more."""
        with self._lock:
            if self._untracked.requests.pop(name, None) is not None:
                return
            self._waiting.pop(name, None)
            self._execute(self._residency.release(name))

    def tracked(self, keys: Iterable[Any]) -> list[Any]:
        """The keys whose next uses the residency needs: not those of small values."""
        return [key for key in keys if key in self._entries]

    def expect(self, uses: Mapping[Any, float | None]) -> None:
        """Set the next uses of values.

        Parameters
        ----------
        uses
            As for :meth:`Residency.expect`; missing keys are ignored.
        """
        if uses:
            with self._lock:
                changed: dict[Unit, None] = {}
                for key, use in uses.items():
                    entry = self._entries.get(key)
                    if entry is not None:
                        entry.next_use = use
                        for unit in entry.units:
                            changed[unit] = None
                if changed:
                    next_uses: dict[Hashable, float | None] = {
                        unit: unit.next_use() for unit in changed
                    }
                    self._execute(self._residency.expect(next_uses))

    def set_upcoming(self, keys: Sequence[Any], further: Sequence[Any] = ()) -> None:
        """Set the inputs of the next tasks, as for :meth:`Residency.set_upcoming`."""
        with self._lock:
            # values in memory need no copy
            keys, further = (
                [key for key in group if key not in self._values] for group in (keys, further)
            )
            prefetches = self._residency.prefetches
            if keys or further or prefetches.upcoming or prefetches.further:
                self._execute(self._residency.set_upcoming(self._units(keys), self._units(further)))

    def age(self) -> None:
        """Age next uses and retry a full disk as :meth:`Residency.age` does.

        To be called regularly.
        """
        with self._lock:
            self._execute(self._residency.age())

    def may_become_readable(self, key: Any) -> bool:
        """Whether a value is not in memory for lack of memory only, and not by a read error."""
        entry = self._entries.get(key)
        error = None if entry is None else _error_of(entry)
        return error is None or isinstance(error, MemoryError)

    def _touch(self) -> None:
        """Pass the reads since the last call to the residency."""
        touched, self._touched = self._touched, {}
        # another thread may still add to it
        for key in list(touched):
            entry = self._entries.get(key)
            if entry is not None:
                for unit in entry.units:
                    self._residency.touch(unit)

    def _fetch(self, key: Any) -> Any:
        """A value that is not in memory."""
        lent = self._lent(key)
        if lent is not None:
            return lent
        ready = threading.Event()
        with self._lock:
            requested = self._entries.get(key)
            # urgent: other requests may wait for the task that waits here
            name = self.request([key], ready.set, urgent=True)
        start = self._clock()
        try:
            ready.wait()
            if threading.get_ident() == self.event_loop_thread:
                self.blocked += self._clock() - start
            with self._lock:
                if key in self._values:
                    return self._values[key]
                entry = self._entries.get(key)
        finally:
            self.release(name)
        if entry is None:
            raise KeyError(key)
        if entry is not requested:
            # the value was replaced meanwhile, and the new one was evicted since
            return self._fetch(key)
        error = _error_of(entry)
        reason = "the store is closed" if error is None and self._closed else repr(error)
        raise LostTileError(f"{key!r} could not be read back: {reason}")

    def _track_all(self) -> None:
        """Tell the residency of all values, of their last reads, and of requests for them."""
        if self._untracked:
            for key in list(self._untracked):
                self._add(key, self._values[key], self._untracked_sizes[key])
                self._untracked.remove(key)
                del self._untracked_sizes[key]
        self._touch()
        while self._untracked.requests:
            name, keys = self._untracked.requests.popitem()
            known = [self._entries[key] for key in keys if key in self._entries]
            units = [unit for entry in known for unit in entry.units]
            # the values are in memory, and the request was told so
            self._execute(self._residency.request(name, units, urgent=True))


def _error_of(entry: Entry) -> BaseException | None:
    """Why a part of a value could not be read back, if one could not."""
    return next((unit.error for unit in entry.units if unit.error is not None), None)
