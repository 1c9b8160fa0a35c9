"""How much of a process's memory results may take."""

from __future__ import annotations

from collections import deque

#: Samples over which the least of what else the process takes counts.
WINDOW = 20


class Budget:
    """Bytes that results may take so that a process as a whole stays at its target.

    What the process takes besides results is not known but by subtraction.  Tasks that run
    take more of it for a moment, and freed memory is not given back at once: what counts is
    the least of several samples, which is there all the time.

    Parameters
    ----------
    window
        Samples that count.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._others: deque[int] = deque(maxlen=window)

    def sample(self, process: int, results: int) -> None:
        """Note what is taken now.

        Parameters
        ----------
        process
            Bytes of the whole process.
        results
            Bytes of results in memory.
        """
        self._others.append(max(0, process - results))

    def available(self, target: int) -> int:
        """Bytes that results may take.

        Parameters
        ----------
        target
            Bytes that the process should not be above.
        """
        return max(0, target - min(self._others, default=0))
