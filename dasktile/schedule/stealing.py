"""Which tasks idle workers steal from home workers that are late.

A plan divides tasks evenly as far as their durations are known.  Those of the user's functions are
not, nor is a worker whose machine has other work to do.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Seconds that a task takes a worker at least, whatever its function does, and that it takes to
#: steal it.
_OVERHEAD, _LATENCY = 0.003, 0.01


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """A task that waits for a thread of its home worker.

    Parameters
    ----------
    key
        Its key.
    at_home, elsewhere
        Seconds that it is expected to take on its home worker, and on others.
    moved
        Bytes of its inputs and of its result, which are moved if it is stolen.
    """

    key: Any
    at_home: float
    elsewhere: float
    moved: int


@dataclass(frozen=True, slots=True)
class Queue:
    """The tasks that wait for a thread of a worker.

    Parameters
    ----------
    home
        The address of the worker.
    threads
        Number of its threads.
    count
        Number of the tasks.
    last
        The last of them in the order in which they will run, as far as they may be stolen.
    """

    home: str
    threads: int
    count: int
    last: Sequence[QueuedTask]


@dataclass(frozen=True, slots=True)
class Steal:
    """A task that a worker, the thief, steals from its home worker."""

    key: Any
    home: str
    thief: str


def steals(
    queues: Sequence[Queue],
    idle: Mapping[str, int],
    bandwidth: float,
    least_gain: float,
    horizon: float,
) -> list[Steal]:
    """The tasks that idle workers steal: those that end there clearly earlier than at home.

    The worker whose last task would begin last loses that task to the thread that is free first,
    and so on.  The last tasks are stolen since the first may begin at any moment.

    Parameters
    ----------
    queues
        Tasks that wait, by worker.
    idle
        Free threads by idle worker, in the order in which equally free ones get tasks.
    bandwidth
        Bytes per second that a worker receives and sends.
    least_gain
        Seconds that a task must end earlier at least.
    horizon
        Seconds for which a thread steals tasks; it steals one at least.

    Returns
    -------
    The tasks in the order in which they are stolen.
    """
    left = [list(queue.last) for queue in queues]
    seconds = [queue.count * _mean(queue.last) for queue in queues]
    late = [
        (-total / queue.threads, at)
        for at, (queue, total) in enumerate(zip(queues, seconds, strict=True))
        if queue.last
    ]
    heapq.heapify(late)
    threads = [
        (0.0, at, thief) for at, (thief, free) in enumerate(idle.items()) for _ in range(free)
    ]
    heapq.heapify(threads)
    #: By thief, the time until which it receives and sends what belongs to stolen tasks.
    moves_until = dict.fromkeys(idle, 0.0)
    found = []
    while late and threads:
        _, at = late[0]
        queue, task = queues[at], left[at][-1]
        free, number, thief = threads[0]
        at_home, elsewhere = _OVERHEAD + task.at_home, _OVERHEAD + task.elsewhere
        # the tasks that run now are half way through on average
        ends_at_home = (seconds[at] - at_home / 2) / queue.threads + at_home
        moved = max(moves_until[thief], _LATENCY) + task.moved / bandwidth
        ends = max(free, moved) + elsewhere
        if ends_at_home - ends < least_gain:
            heapq.heappop(late)
            continue
        left[at].pop()
        seconds[at] -= at_home
        moves_until[thief] = moved
        found.append(Steal(task.key, queue.home, thief))
        if left[at]:
            heapq.heapreplace(late, (-seconds[at] / queue.threads, at))
        else:
            heapq.heappop(late)
        if ends >= horizon:
            heapq.heappop(threads)
        else:
            heapq.heapreplace(threads, (ends, number, thief))
    return found


def _mean(tasks: Sequence[QueuedTask]) -> float:
    """Seconds that tasks take at home on average."""
    return _OVERHEAD + sum(task.at_home for task in tasks) / max(1, len(tasks))
