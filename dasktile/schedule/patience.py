"""When a task that waits for memory must run without it, because no other task makes progress.

Progress is a task that ends or a tile that was copied: either may free memory.  A process that
computes or copies may make progress later, and is waited for, but not without end: a task that
polls for the result of the waiting one uses the processor too, and a copy may fail each time.
"""

from __future__ import annotations


class Patience:
    """Whether the tasks of a worker have made no progress for a while, although one waits.

    A task that waits for memory gets it when a running task ends.  If the running task waits for
    the other one, by a lock or otherwise, neither ends.

    Parameters
    ----------
    seconds
        Time without progress, computation and copies after which the tasks are stuck.
    share
        Share of one processor; above it, the process computes.
    longest
        Seconds without progress after which the tasks are stuck although the process computes or
        copies.
    """

    def __init__(self, seconds: float, share: float, longest: float) -> None:
        self._seconds, self._share, self._longest = seconds, share, longest
        #: Time and seconds of the processor when the process was last looked at.
        self._looked = self._processor = 0.0
        #: Time of the last progress.
        self._since = 0.0
        self._events = 0

    def restart(self, now: float, events: int, processor: float) -> None:
        """Count the time from now.

        Parameters
        ----------
        now
            Seconds, by any clock.
        events
            A number that increases when a task ends or a tile was copied.
        processor
            Seconds for which the process has used the processor.
        """
        self._since, self._events = now, events
        self._looked, self._processor = now, processor

    def is_stuck(self, now: float, events: int, processor: float, copies: bool) -> bool:
        """Whether nothing has made progress for the whole time; if so, the time starts again.

        Parameters
        ----------
        now, events, processor
            As for :meth:`restart`.
        copies
            Whether tiles are being copied.
        """
        if events != self._events:
            self.restart(now, events, processor)
            return False
        looked = now - self._looked
        if not copies and looked < self._seconds:
            return False
        active = copies or processor - self._processor >= self._share * looked
        self._looked, self._processor = now, processor
        if active and now - self._since < self._longest:
            return False
        self._since = now
        return True
