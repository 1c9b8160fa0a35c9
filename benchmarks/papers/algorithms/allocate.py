"""Where in a memory things are: size classes, and addresses for lifetimes known beforehand.

A pool of size classes has a number of objects of a few fixed sizes; what takes one wastes the
difference (SwapAdvisor, section 4.3.1).  With addresses nothing is rounded up, but what is free
may lie in pieces.  When it is known what is in memory from when to when, addresses can be
chosen together: rectangles of bytes and time, as low as they can lie (dynamic storage
allocation, which is NP-hard; Robson 1974, Buchsbaum et al. 2003).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dasktile.schedule.compiled import compiled
from dasktile.schedule.simulate import SimulatedRun
from dasktile.schedule.swaps import SwapPlan
from dasktile.schedule.taskgraph import Floats, Ints, TaskGraph

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Which datum takes an object of which size, and how many of them there are.

    Attributes
    ----------
    of
        Shape ``(data,)``: the class of every datum.
    blocks
        Shape ``(classes,)``: bytes of an object, ascending.
    counts
        Shape ``(classes,)``: how many objects.
    """

    of: Ints
    blocks: Ints
    counts: Ints

    @property
    def bytes(self) -> int:
        """Of all objects."""
        return int(self.blocks @ self.counts)


def objects_needed(graph: TaskGraph, of: Ints, classes: int) -> Ints:
    """The most objects of every class that one operation touches."""
    pairs = graph.touched.owners() * classes + of[graph.touched.index]
    which, counts = np.unique(pairs, return_counts=True)
    most = np.zeros(classes, dtype=np.int64)
    np.maximum.at(most, which % classes, counts)
    return most


def time_in_memory(graph: TaskGraph, plan: SwapPlan) -> Floats:
    """The part of the operations, as planned, over which each datum is in memory."""
    count = len(graph)
    last = np.zeros(graph.data_count, dtype=np.int64)
    at = np.empty(count, dtype=np.int64)
    at[plan.order] = np.arange(count)
    np.maximum.at(last, graph.touched.index, at[graph.touched.owners()] + 1)
    made = np.flatnonzero(graph.maker >= 0)
    spent = np.zeros(graph.data_count, dtype=np.int64)
    spent[made] -= at[graph.maker[made]]
    np.subtract.at(spent, plan.in_datum, plan.in_trigger // 2)
    np.add.at(spent, plan.out_datum, plan.out_at)
    spent += np.where(graph.kept, np.where(plan.ended, count, 0), last)
    part: Floats = np.clip(spent / max(count, 1), 0.0, 1.0)
    return part


@dataclass(frozen=True, slots=True, eq=False)
class Lifetimes:
    """What is in memory from when to when; a datum that leaves and comes back is there twice.

    Attributes
    ----------
    datum
        Which.
    start, end
        Seconds.
    size
        Bytes.
    """

    datum: Ints
    start: Floats
    end: Floats
    size: Ints


def lifetimes(graph: TaskGraph, plan: SwapPlan, run: SimulatedRun) -> Lifetimes:
    """What is in memory while a plan is carried out: from the start of a copy in, or of the
    operation that makes it, to the end of a copy out, or of its last use.
    """
    count = len(graph)
    starts, ends = run.operations
    at = np.empty(count, dtype=np.int64)
    at[plan.order] = np.arange(count)
    started, made = np.flatnonzero(plan.started), np.flatnonzero(graph.maker >= 0)
    entered = np.concatenate([started, made, plan.in_datum])
    since = np.concatenate(
        [np.zeros(len(started)), starts[at[graph.maker[made]]], run.copies_in[0]]
    )
    last = np.full(graph.data_count, -1, dtype=np.int64)
    np.maximum.at(last, graph.touched.index, at[graph.touched.owners()])
    dropped, stay = np.flatnonzero(~graph.kept & (last >= 0)), np.flatnonzero(plan.ended)
    left = np.concatenate([dropped, plan.out_datum, stay])
    until = np.concatenate(
        [ends[last[dropped]], run.copies_out[1], np.full(len(stay), run.makespan)]
    )
    # The first time that a datum comes belongs to the first time that it leaves, and so on.
    come, go = np.lexsort((since, entered)), np.lexsort((until, left))
    datum = entered[come]
    return Lifetimes(datum, since[come], until[go], graph.size[datum])


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Addresses.

    Attributes
    ----------
    offset
        For every lifetime, where its first byte lies.
    height
        Bytes of the smallest memory that they fit in as they lie.
    peak
        Bytes in use at most at one time: no addresses need less.
    """

    offset: Ints
    height: int
    peak: int

    @property
    def fragmentation(self) -> float:
        """What the memory must have beyond the bytes in use, as a part of these."""
        return self.height / self.peak - 1 if self.peak else 0.0


def peak_bytes(start: npt.ArrayLike, end: npt.ArrayLike, size: npt.ArrayLike) -> int:
    """Bytes in use at most, of lifetimes that have ended when others start at their end."""
    starts, ends, sizes = np.asarray(start), np.asarray(end), np.asarray(size, dtype=np.int64)
    lives = starts < ends
    times = np.concatenate([starts[lives], ends[lives]])
    change = np.concatenate([sizes[lives], -sizes[lives]])
    # At one time, what ends before what starts.
    order = np.lexsort((change, times))
    return int(np.cumsum(change[order]).max(initial=0))


def pack(
    start: npt.ArrayLike,
    end: npt.ArrayLike,
    size: npt.ArrayLike,
    *,
    alignment: int = 1,
    rounds: int = 64,
    capacity: int | None = None,
) -> Packing:
    """Choose addresses for lifetimes, so that they need little memory.

    Each is laid, in some order, into the tightest gap that those laid before leave it while it
    lives, or above them.  Orders tried are those by size, by bytes times duration, by duration
    and by start; then, from the best of them, what ends too high is moved to the front and all
    are laid again, and so on (squeaky wheel optimisation, Joslin and Clements 1999).

    Parameters
    ----------
    start, end
        When each lifetime begins, and when its memory is free again: numbers of any clock.
    size
        Bytes of each.
    alignment
        Addresses are multiples of it.
    rounds
        How often all are laid again.
    capacity
        Bytes at which it is good enough.

    Returns
    -------
    Packing
        The lowest found.

    Raises
    ------
    ValueError
        If the arrays are not equally long, something ends before it starts, or a size is
        negative.
    """
    starts = np.asarray(start, dtype=np.float64)
    ends = np.asarray(end, dtype=np.float64)
    sizes = np.asarray(size, dtype=np.int64)
    if not starts.shape == ends.shape == sizes.shape or starts.ndim != 1:
        raise ValueError(
            "start, end and size must be as many numbers each, but have shapes "
            f"{starts.shape}, {ends.shape} and {sizes.shape}"
        )
    if not (starts <= ends).all():
        at = int((~(starts <= ends)).argmax())
        raise ValueError(f"lifetime {at} ends at {ends[at]}, before its start at {starts[at]}")
    if (sizes < 0).any():
        at = int((sizes < 0).argmax())
        raise ValueError(f"lifetime {at} has {sizes[at]} bytes; it must be at least 0")
    if alignment < 1:
        raise ValueError(f"alignment must be at least 1, not {alignment!r}")
    sizes = -(-sizes // alignment) * alignment
    peak = peak_bytes(starts, ends, sizes)
    enough = peak if capacity is None else max(peak, capacity)
    # What takes no room or no time lies anywhere.
    real = np.flatnonzero((sizes > 0) & (starts < ends))
    offset = np.zeros(len(sizes), dtype=np.int64)
    if not len(real):
        return Packing(offset, 0, 0)
    begin, until, room = starts[real], ends[real], sizes[real]
    duration = until - begin
    best: tuple[int, Array, Array] | None = None
    for rank in (-room, -room * duration, -duration, begin):
        order = np.lexsort((np.arange(len(real)), begin, -duration, -room, rank))
        laid = _lay(order, begin, until, room)
        height = int((laid + room).max())
        if best is None or height < best[0]:
            best = height, laid, order
        if best[0] <= enough:
            break
    assert best is not None
    height, laid, order = best
    for _ in range(rounds):
        if best[0] <= enough:
            break
        # What ends too high goes before all others, which stay as they are ordered.
        high = (laid + room)[order] > enough
        order = np.concatenate([order[high], order[~high]])
        laid = _lay(order, begin, until, room)
        height = int((laid + room).max())
        if height < best[0]:
            best = height, laid, order
    offset[real] = best[1]
    return Packing(offset, best[0], peak)


@compiled
def _lay(order: Array, start: Array, end: Array, size: Array) -> Array:
    """Lay lifetimes one after the other into the tightest gap, the lowest of equal ones."""
    count = len(order)
    offset = np.zeros(count, np.int64)
    # those that were laid, by where they lie
    laid = np.empty(count, np.int64)
    for number in range(count):
        one = order[number]
        below = 0
        found = -1
        slack = -1
        for other in laid[:number]:
            if end[other] <= start[one] or end[one] <= start[other]:
                continue
            gap = offset[other] - below
            if gap >= size[one] and (found < 0 or gap - size[one] < slack):
                found, slack = below, gap - size[one]
            below = max(below, offset[other] + size[other])
        offset[one] = below if found < 0 else found
        at = number
        while at > 0 and offset[laid[at - 1]] > offset[one]:
            laid[at] = laid[at - 1]
            at -= 1
        laid[at] = one
    return offset
