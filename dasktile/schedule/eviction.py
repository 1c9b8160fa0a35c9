"""Eviction order of a tier: the buffer with the furthest next use, or the least recently used."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from dasktile.schedule.ranked import RankedQueue
from dasktile.schedule.states import BUFFERS, BufferEvent, BufferState, forbidden


@dataclass(slots=True, eq=False)
class Buffer:
    """Memory on one tier, of one tile or of several that are views of the same memory.

    Attributes
    ----------
    tier
        Number of the tier, 0 for the fastest.
    size
        Bytes.
    shared
        Identifies the memory that the tiles are views of; None for a tile of its own.
    tiles
        The tiles in this memory.
    stored
        A lower tier has a copy of all tiles: the buffer can be dropped without writing.
    next
        Next use of the first tile that is used again: a number in the order in which tasks run,
        ``inf`` if no task will read it, None if unknown.
    used
        Last use of the latest tile, by a counter.
    state
        What becomes of it.
    next_when_chosen
        The value of `next` when the buffer was chosen for eviction.
    queue
        The part of the :class:`EvictionQueue` that it is in, if it may be evicted.
    """

    tier: int
    size: int
    shared: Hashable = None
    tiles: list[Any] = field(default_factory=list)
    stored: bool = False
    next: float | None = None
    used: int = 0
    state: BufferState = BufferState.HELD
    next_when_chosen: float | None = None
    queue: RankedQueue[Buffer] | None = None

    def change(self, event: BufferEvent) -> None:
        """Enter the state that follows after an event, the only way to change it."""
        try:
            self.state = BUFFERS[self.state][event]
        except KeyError:
            raise forbidden(self.state, event) from None


class EvictionQueue:
    """The buffers of one tier that may be evicted, in the order in which they should be.

    1. Buffers that no task will read, most recently used first: a client that computes on the
       same tiles again and again would otherwise always find the next one evicted.
    2. Buffers of unknown next use, least recently used first.
    3. Buffers with a next use, the furthest first (Belady 1966).  A buffer that must be written
       before it is dropped counts as if it was needed `dirty_factor` times as soon.

    Parameters
    ----------
    dirty_factor
        At least 1.
    """

    def __init__(self, dirty_factor: float) -> None:
        self._dirty_factor = dirty_factor
        # both by Buffer.stored
        self._known: dict[bool, RankedQueue[Buffer]] = {True: RankedQueue(), False: RankedQueue()}
        self._unknown: dict[bool, RankedQueue[Buffer]] = {True: RankedQueue(), False: RankedQueue()}

    def __contains__(self, buffer: object) -> bool:
        return isinstance(buffer, Buffer) and buffer.queue is not None

    def put(self, buffer: Buffer) -> None:
        """Add a buffer that may be evicted, or update its rank."""
        if buffer.next is None:
            target, rank = self._unknown[buffer.stored], (float(buffer.used), 0.0)
        else:
            used = float(-buffer.used if math.isinf(buffer.next) else buffer.used)
            target, rank = self._known[buffer.stored], (-buffer.next, used)
        if buffer.queue is not target:
            self.discard(buffer)
            buffer.queue = target
        target.put(buffer, rank)

    def discard(self, buffer: Buffer) -> None:
        """Remove a buffer that must not be evicted."""
        if buffer.queue is not None:
            buffer.queue.discard(buffer)
            buffer.queue = None

    def first(self, now: float, stored: bool = False) -> Buffer | None:
        """The buffer to evict next, None if none may be evicted.

        Parameters
        ----------
        now
            Number of the task that runs now, ``-inf`` if none does.
        stored
            Consider only buffers that need not be written.
        """
        clean, unknown = self._known[True].first(), self._unknown[True].first()
        if stored:
            return clean if unknown is None or _is_unused(clean) else unknown
        dirty = self._known[False].first()
        unknown = min(
            (buffer for buffer in (unknown, self._unknown[False].first()) if buffer is not None),
            key=lambda buffer: buffer.used,
            default=None,
        )
        for buffer in (clean, dirty):
            if _is_unused(buffer):
                return buffer
        if unknown is not None:
            return unknown
        if clean is None or dirty is None:
            return clean or dirty
        assert clean.next is not None
        assert dirty.next is not None
        if now == -math.inf:
            now = min(clean.next, dirty.next)
        wait = max(0.0, clean.next - now) * self._dirty_factor
        return clean if wait >= max(0.0, dirty.next - now) else dirty


def _is_unused(buffer: Buffer | None) -> bool:
    return buffer is not None and buffer.next == math.inf
