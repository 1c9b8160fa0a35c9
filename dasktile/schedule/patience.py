"""When a task that waits for memory must run without it, because no other task makes progress."""

from __future__ import annotations


class Patience:
    """Whether the tasks of a worker have made no progress for a while, although one waits.

    A task that waits for memory gets it when a running task ends.  If the running task waits for
    the other one, by a lock or otherwise, neither ends.  A running task that computes uses the
    processor, and one that waits does not.

    Parameters
    ----------
    seconds
        Time without progress after which the tasks are stuck.
    share
        Share of one processor; above it, the process computes.
    """

    def __init__(self, seconds: float, share: float) -> None:
        self._seconds = seconds
        self._share = share
        self._since = self._processor = 0.0
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
        self._since, self._events, self._processor = now, events, processor

    def is_stuck(self, now: float, events: int, processor: float, copies: bool) -> bool:
        """Whether nothing has made progress for the whole time; if so, the time starts again.

        Parameters
        ----------
        now, events, processor
            As for :meth:`restart`.
        copies
            Whether tiles are being copied.
        """
        if not copies and events == self._events:
            waited = now - self._since
            if waited < self._seconds:
                return False
            computes = processor - self._processor >= self._share * waited
        else:
            computes = True
        self.restart(now, events, processor)
        return not computes
