"""Who leaves a tier first: the buffer that is needed last, or was used longest ago."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from dasktile.schedule.ranked import RankedQueue


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
    evicting
        It is being written to the tier below, to be dropped then.
    dying
        It is about to be removed, and not worth being written.
    """

    tier: int
    size: int
    shared: Hashable = None
    tiles: list[Any] = field(default_factory=list)
    stored: bool = False
    next: float | None = None
    used: int = 0
    evicting: bool = False
    dying: bool = False
    #: When it was needed next when it was next_when_chosen to leave.
    next_when_chosen: float | None = None


class EvictionQueue:
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
        # By whether they are stored.
        self._known: dict[bool, RankedQueue[Buffer]] = {True: RankedQueue(), False: RankedQueue()}
        self._unknown: dict[bool, RankedQueue[Buffer]] = {True: RankedQueue(), False: RankedQueue()}

    def __contains__(self, buffer: object) -> bool:
        return any(buffer in one for one in self._all())

    def put(self, buffer: Buffer) -> None:
        """Say that a buffer may leave, or that what is known of it has changed."""
        if buffer.next is None:
            into, rank = self._unknown[buffer.stored], (float(buffer.used), 0.0)
        else:
            used = float(-buffer.used if math.isinf(buffer.next) else buffer.used)
            into, rank = self._known[buffer.stored], (-buffer.next, used)
        for one in self._all():
            if one is not into:
                one.discard(buffer)
        into.put(buffer, rank)

    def discard(self, buffer: Buffer) -> None:
        """Say that a buffer may not leave."""
        for one in self._all():
            one.discard(buffer)

    def _all(self) -> tuple[RankedQueue[Buffer], ...]:
        return (*self._known.values(), *self._unknown.values())

    def first(self, now: float, stored: bool = False) -> Buffer | None:
        """The buffer that should leave first, None if none may.

        Parameters
        ----------
        now
            The number of the task that runs now, ``-inf`` if none does.
        stored
            Only of those that need not be written.
        """
        clean, unknown = self._known[True].first(), self._unknown[True].first()
        if stored:
            return clean if unknown is None or _is_unused(clean) else unknown
        dirty = self._known[False].first()
        unknown = min(
            (one for one in (unknown, self._unknown[False].first()) if one is not None),
            key=lambda one: one.used,
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
        wait = max(0.0, clean.next - now) * self._dirty
        return clean if wait >= max(0.0, dirty.next - now) else dirty


def _is_unused(buffer: Buffer | None) -> bool:
    return buffer is not None and buffer.next == math.inf
