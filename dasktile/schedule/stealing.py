"""Which tasks idle workers take from home workers that are late.

A plan divides tasks evenly as far as their durations are known.  Those of the user's functions are
not, nor is a worker whose machine has other work to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Seconds that it takes to move a task from one worker to another, without any bytes.
_LATENCY = 0.01


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
        Bytes of its inputs and of its result, which are moved if it runs on another worker.
    may_move
        Whether it may run on another worker.
    """

    key: Any
    at_home: float
    elsewhere: float
    moved: int
    may_move: bool = True


@dataclass(frozen=True, slots=True)
class Move:
    """A task that a worker takes from its home worker."""

    key: Any
    home: str
    worker: str


def moves(
    queues: Mapping[str, Sequence[QueuedTask]],
    threads: Mapping[str, int],
    idle: Mapping[str, int],
    bandwidth: float,
    least_gain: float,
    horizon: float,
) -> list[Move]:
    """The tasks that idle workers take from others: those that would end there clearly earlier.

    The worker whose last task would begin last loses that task to the worker that is free first,
    and so on.  The last tasks are taken since the first may begin at any moment.

    Parameters
    ----------
    queues
        Tasks that wait, by home worker, in the order in which they will run.
    threads
        Threads by home worker.
    idle
        Free threads by idle worker, in the order in which equally free ones get tasks.
    bandwidth
        Bytes per second between workers.
    least_gain
        Seconds that a task must end earlier at least, besides those in which its inputs and its
        result are moved.
    horizon
        Seconds for which an idle worker takes tasks; it takes at least one for each free thread.

    Returns
    -------
    The tasks in the order in which they are taken.
    """
    left = {home: list(queue) for home, queue in queues.items()}
    late = {home: sum(task.at_home for task in queue) for home, queue in left.items()}
    free = {worker: [0.0] * count for worker, count in idle.items()}
    found = []
    while late:
        home = max(late, key=lambda name: late[name] / threads[name])
        while left[home] and not left[home][-1].may_move:
            late[home] -= left[home].pop().at_home
        worker = min(free, key=lambda name: min(free[name]), default=None)
        if worker is None:
            break
        begins = min(free[worker])
        if not left[home]:
            del late[home]
            continue
        task = left[home][-1]
        # the tasks that run now are half way through on average
        ends_at_home = (late[home] - task.at_home / 2) / threads[home] + task.at_home
        ends = begins + task.elsewhere
        if ends_at_home - ends - _LATENCY - task.moved / bandwidth < least_gain:
            del late[home]
            continue
        left[home].pop()
        late[home] -= task.at_home
        found.append(Move(task.key, home, worker))
        times = free[worker]
        times[times.index(begins)] = ends
        if min(times) >= horizon:
            del free[worker]
    return found
