"""Who leaves a tier first: the buffer that is needed last, or was used longest ago."""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

#: Which heap a buffer is in: by whether its next use is known, and whether it is stored.
_KNOWN, _UNKNOWN = 0, 2

#: Entries that no longer count and are not worth a look.
_SLACK = 64


@dataclass(slots=True, eq=False)
class Buffer:
    """Memory on one tier, of one tile or of several that are views of the same.

    Attributes
    ----------
    tier
        Number of the tier, 0 for the fastest.
    size
        Bytes.
    tiles
        Whose it is.
    stored
        A tier below has all of them too: it can be dropped without writing anything.
    next
        When the first of them is needed next: a number that tasks are run in the order of,
        ``inf`` if no task will, None if nobody knows.
    used
        When one was used last, by a counter.
    leaving
        It is being written to the tier below, to be dropped then.
    """

    tier: int
    size: int
    shared: Hashable = None
    tiles: list[Any] = field(default_factory=list)
    stored: bool = False
    next: float | None = None
    used: int = 0
    leaving: bool = False
    #: When it was needed next when it was chosen to leave.
    chosen: float | None = None
    #: Of the one entry in a heap that counts, -1 if there is none, and where that is.
    entry: int = -1
    rank: tuple[float, float] = (0.0, 0.0)
    heap: int = 0


#: Rank, number, buffer.
_Entry = tuple[float, float, int, Buffer]


class Victims:
    """The buffers of one tier that may leave it, in the order in which they should.

    First what no task will ask for, used last first: a client that computes on it again and
    again would otherwise always find gone what it asks for next.  Then what nobody knows of,
    used longest ago first.  Then what is needed last (Belady 1966); a buffer that must be
    written before it can be dropped counts as if it was needed `dirty` times as soon.

    Parameters
    ----------
    dirty
        At least 1.
    """

    def __init__(self, dirty: float) -> None:
        self._dirty = dirty
        self._count = 0
        self._live = 0
        # Heaps of (rank, number, buffer); an entry counts if its number is the buffer's.
        self._heaps: list[list[_Entry]] = [[], [], [], []]

    def put(self, buffer: Buffer) -> None:
        """Say that a buffer may leave, or that what is known of it has changed."""
        used = float(buffer.used)
        if buffer.next is None:
            heap, rank = _UNKNOWN + buffer.stored, (used, 0.0)
        else:
            heap = _KNOWN + buffer.stored
            rank = (-buffer.next, -used if math.isinf(buffer.next) else used)
        if buffer.entry >= 0:
            if (heap, rank) == (buffer.heap, buffer.rank):
                return
            self._live -= 1
        self._live += 1
        self._count += 1
        buffer.heap, buffer.rank, buffer.entry = heap, rank, self._count
        heapq.heappush(self._heaps[heap], (*rank, self._count, buffer))
        if sum(map(len, self._heaps)) > 2 * self._live + _SLACK:
            for one in self._heaps:
                one[:] = [entry for entry in one if entry[3].entry == entry[2]]
                heapq.heapify(one)

    def take(self, buffer: Buffer) -> None:
        """Say that a buffer may not leave."""
        self._live -= buffer.entry >= 0
        buffer.entry = -1

    def first(self, now: float, stored: bool = False) -> Buffer | None:
        """The buffer that should leave first, None if none may.

        Parameters
        ----------
        now
            The number of the task that runs now, ``-inf`` if none does.
        stored
            Only of those that need not be written.
        """
        clean, unknown = self._top(_KNOWN + True), self._top(_UNKNOWN + True)
        if stored:
            return clean if unknown is None or _is_over(clean) else unknown
        dirty = self._top(_KNOWN)
        unknown = min(
            (one for one in (unknown, self._top(_UNKNOWN)) if one is not None),
            key=lambda one: one.used,
            default=None,
        )
        for buffer in (clean, dirty):
            if _is_over(buffer):
                return buffer
        if unknown is not None:
            return unknown
        if clean is None or dirty is None:
            return clean or dirty
        assert clean.next is not None
        assert dirty.next is not None
        if now == -math.inf:
            now = min(clean.next, dirty.next)
        wait = max(0.0, clean.next - now) * self._dirty
        return clean if wait >= max(0.0, dirty.next - now) else dirty

    def _top(self, which: int) -> Buffer | None:
        heap = self._heaps[which]
        while heap:
            *_, entry, buffer = heap[0]
            if buffer.entry == entry:
                return buffer
            heapq.heappop(heap)
        return None


def _is_over(buffer: Buffer | None) -> bool:
    return buffer is not None and buffer.next == math.inf
