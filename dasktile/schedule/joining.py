"""The worker of a task whose name gives none: that of most of its neighbours, or of most bytes.

The scheduler plugin places tasks beside and behind a plan so (:mod:`dasktile.runtime.scheduler`),
and simulations of the plan's graph do the same (:mod:`dasktile.lower.placed`,
:mod:`dasktile.schedule.peaks`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

#: Inputs of a task that is taken to combine results, and readers of a result that many tasks
#: combine, at the most; and tasks that join a result with others, up to which they run where it is.
MOST_COMBINED, MOST_JOINED = 64, 4

#: Bytes of a block of data of the graph from which its slices, and not the block, are sent to
#: several workers (chosen: positions of elements are smaller).
CUT_DATA = 2**16


@dataclass(frozen=True, slots=True)
class JoinedResult:
    """A result that a task joins with others.

    Parameters
    ----------
    nbytes
        Bytes of it.
    workers
        The workers that have it.
    readers
        Tasks that read it.
    joins
        Those of them that read other results, too; only asked where `readers` are few.
    """

    nbytes: int
    workers: Iterable[Any]
    readers: int
    joins: int


def worker_of_most(
    neighbours: Iterable[tuple[Any, bool]], place: Callable[[Any], Any], breaks_ties: bool = True
) -> Any | None:
    """The worker that has most neighbours of a task; None if no worker has any.

    Parameters
    ----------
    neighbours
        Of each neighbour, its worker, None if it has none; and whether it only breaks ties, as one
        that has no worker by its own name.
    place
        Of a worker, what decides between workers with as many: the least.
    breaks_ties
        Whether one of several workers with as many is returned; otherwise None.
    """
    counts: dict[Any, tuple[int, int]] = {}
    for worker, only_breaks_ties in neighbours:
        if worker is not None:
            named, every = counts.get(worker, (0, 0))
            counts[worker] = named + (not only_breaks_ties), every + 1
    if len(counts) < 2:
        return next(iter(counts), None)
    if not breaks_ties and list(counts.values()).count(max(counts.values())) > 1:
        return None
    return max(sorted(counts, key=place), key=counts.__getitem__)


def worker_of_join(
    results: Sequence[JoinedResult],
    place: Callable[[Any], Any],
    most_combined: int = MOST_COMBINED,
    most_joined: int = MOST_JOINED,
) -> Any | None:
    """The worker that has most bytes of some results; None if that is none to run the join on.

    It must have more than half of them, unless nothing else reads them.  Results that many tasks
    join do not count: all of these would run on one worker.

    Parameters
    ----------
    results
        What the task reads.
    place
        Of a worker, what decides between workers with as many bytes: the least.
    most_combined, most_joined
        As :data:`MOST_COMBINED` and :data:`MOST_JOINED`.
    """
    there: Counter[Any] = Counter()
    for result in results:
        if result.readers <= most_combined and result.joins <= most_joined:
            for worker in result.workers:
                there[worker] += result.nbytes
    if not there:
        return None
    best = min(there, key=lambda worker: (-there[worker], place(worker)))
    is_only = all(result.readers == 1 for result in results)
    total = sum(result.nbytes for result in results)
    return best if is_only or 2 * there[best] > total else None
