"""The part of a process's memory, or of a device's, that is left for results."""

from __future__ import annotations

from collections import deque

#: Most of a device's memory that is left to temporary memory of tasks (chosen), as a share.
_TEMPORARY = 0.1


def device_target(total: int, limit: int) -> int:
    """Bytes of a device that results and all other memory may take together.

    The rest is for temporary memory of tasks: half of what the limit leaves, and at most a tenth
    of the device.

    Parameters
    ----------
    total
        Bytes of the device's memory.
    limit
        Bytes that results may take.
    """
    return total - max(0, min(int(_TEMPORARY * total), (total - limit) // 2))


class Budget:
    """Bytes that results may take so that the whole process, or device, stays at its target.

    The other memory of the process is the difference between its total and the results.  Running
    tasks increase it for a short time, and freed memory is not returned to the system at once.
    The minimum of several samples is the part that is in use all the time.

    Parameters
    ----------
    window
        Number of the latest samples of which the minimum counts.  distributed takes one every
        100 ms by default, so that 20 samples are 2 s.
    """

    def __init__(self, window: int = 20) -> None:
        self._others: deque[int] = deque(maxlen=window)

    @property
    def is_full(self) -> bool:
        """Whether there are as many samples as count."""
        return len(self._others) == self._others.maxlen

    @property
    def other(self) -> int:
        """Bytes of the process besides results."""
        return min(self._others, default=0)

    def sample(self, process: int, results: int) -> None:
        """Add a sample of the current memory.

        Parameters
        ----------
        process
            Bytes in use by the whole process.
        results
            Bytes of results in memory.
        """
        self._others.append(max(0, process - results))

    def available(self, target: int) -> int:
        """Bytes that results may take.

        Parameters
        ----------
        target
            Most bytes that the whole process should use.
        """
        return max(0, target - self.other)
