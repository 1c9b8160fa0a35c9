"""Simulated lanes: the order and the time of copies in two directions.

Copies in and copies out overlap, one of each at a time.  The order is that of
:mod:`dasktile.runtime.engine` on a worker with one thread for each direction: a copy starts when
the evictions are done that make its room, and needed ones overtake those that are made ahead.
"""

from __future__ import annotations

import math

from dasktile.schedule.instructions import Copy

#: Numbers of the lanes.
IN, OUT = 0, 1


def lane_of(copy: Copy) -> int:
    """The lane of a copy."""
    return OUT if copy.target > copy.source else IN


class CopyLanes:
    """Copies that wait or are in progress.

    Parameters
    ----------
    rates
        Bytes per second in and out, while nothing is copied in the other direction; and while
        something is.
    """

    def __init__(self, rates: tuple[float, float, float, float]) -> None:
        self._rates = rates
        self._waiting: tuple[list[Copy], list[Copy]] = ([], [])
        self._running: list[Copy | None] = [None, None]
        self._left = [0.0, 0.0]
        self._since = [0.0, 0.0]
        self._hastened: set[Copy] = set()
        #: Copies that are not done.
        self._open: set[Copy] = set()

    def push(self, copy: Copy, now: float) -> None:
        """Add a copy at a time."""
        self._open.add(copy)
        self._waiting[lane_of(copy)].append(copy)
        self._start(now)

    def hasten(self, copy: Copy) -> None:
        """Let a copy overtake those that are made ahead."""
        self._hastened.add(copy)

    def next_end(self, now: float) -> float:
        """The time at which the next copy is done; infinite if none is in progress."""
        return min(self._end(lane, now) for lane in (IN, OUT))

    def advance(self, now: float, then: float) -> list[tuple[Copy, float]]:
        """Copy from one time to another, until the first end at the most.

        Returns
        -------
        The copies that are done then, with the times at which they started.
        """
        ends = [self._end(lane, now) for lane in (IN, OUT)]
        rates = [self._rate(lane) for lane in (IN, OUT)]
        done = []
        for lane in (IN, OUT):
            copy = self._running[lane]
            self._left[lane] -= (then - now) * rates[lane]
            if copy is not None and ends[lane] <= then:
                done.append((copy, self._since[lane]))
                self._running[lane] = None
                self._open.discard(copy)
                self._hastened.discard(copy)
        if done:
            self._start(then)
        return done

    def _end(self, lane: int, now: float) -> float:
        if self._running[lane] is None:
            return math.inf
        return now + self._left[lane] / self._rate(lane)

    def _rate(self, lane: int) -> float:
        return self._rates[lane + 2 * (self._running[1 - lane] is not None)]

    def _start(self, now: float) -> None:
        """Start the next copy of every lane that is idle."""
        for lane in (IN, OUT):
            if self._running[lane] is None:
                able = [copy for copy in self._waiting[lane] if self._open.isdisjoint(copy.after)]
                needed = (copy for copy in able if not copy.ahead or copy in self._hastened)
                copy = next(needed, able[0] if able else None)
                if copy is not None:
                    self._waiting[lane].remove(copy)
                    self._running[lane] = copy
                    self._left[lane], self._since[lane] = float(copy.size), now
