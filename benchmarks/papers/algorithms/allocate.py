"""Memory allocation: pools of size classes, and addresses for lifetimes known in advance.

A pool of size classes has a number of objects of a few fixed sizes; a datum that is smaller than
its object wastes the difference (SwapAdvisor, section 4.3.1).  With addresses no size is rounded
up, but free memory may be fragmented.  When all lifetimes are known in advance, addresses can be
chosen together: rectangles of bytes and time are packed below the smallest height (dynamic storage
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
    """The size class of every datum, and the objects of every class.

    Attributes
    ----------
    of
        Shape ``(data,)``: the class of every datum.
    blocks
        Shape ``(classes,)``: bytes of an object of the class, ascending.
    counts
        Shape ``(classes,)``: number of objects of the class.
    """

    of: Ints
    blocks: Ints
    counts: Ints

    @property
    def bytes(self) -> int:
        """Bytes of all objects."""
        return int(self.blocks @ self.counts)


def objects_needed(graph: TaskGraph, of: Ints, classes: int) -> Ints:
    """The most objects of every class that one operation touches."""
    pairs = graph.touched.owners() * classes + of[graph.touched.index]
    keys, counts = np.unique(pairs, return_counts=True)
    most = np.zeros(classes, dtype=np.int64)
    np.maximum.at(most, keys % classes, counts)
    return most


def time_in_memory(graph: TaskGraph, plan: SwapPlan) -> Floats:
    """The fraction of the operations of a plan during which each datum is in memory."""
    count = len(graph)
    last = np.zeros(graph.data_count, dtype=np.int64)
    position = np.empty(count, dtype=np.int64)
    position[plan.order] = np.arange(count)
    np.maximum.at(last, graph.touched.index, position[graph.touched.owners()] + 1)
    made = np.flatnonzero(graph.maker >= 0)
    duration = np.zeros(graph.data_count, dtype=np.int64)
    duration[made] -= position[graph.maker[made]]
    np.subtract.at(duration, plan.in_datum, plan.in_trigger // 2)
    np.add.at(duration, plan.out_datum, plan.out_at)
    duration += np.where(graph.kept, np.where(plan.ended, count, 0), last)
    fraction: Floats = np.clip(duration / max(count, 1), 0.0, 1.0)
    return fraction


@dataclass(frozen=True, slots=True, eq=False)
class Lifetimes:
    """The intervals during which data are in memory; a datum that is swapped in again has several.

    Attributes
    ----------
    datum
        Number of the datum.
    start, end
        Start and end in seconds.
    size
        Bytes of the datum.
    """

    datum: Ints
    start: Floats
    end: Floats
    size: Ints


def lifetimes(graph: TaskGraph, plan: SwapPlan, run: SimulatedRun) -> Lifetimes:
    """The lifetimes in memory of a simulated plan.

    A lifetime starts with a swap-in or with the operation that computes the datum.  It ends with
    the end of a swap-out or of the last use.
    """
    count = len(graph)
    starts, ends = run.operations
    position = np.empty(count, dtype=np.int64)
    position[plan.order] = np.arange(count)
    started, computed = np.flatnonzero(plan.started), np.flatnonzero(graph.maker >= 0)
    entered = np.concatenate([started, computed, plan.in_datum])
    since = np.concatenate(
        [np.zeros(len(started)), starts[position[graph.maker[computed]]], run.copies_in[0]]
    )
    last = np.full(graph.data_count, -1, dtype=np.int64)
    np.maximum.at(last, graph.touched.index, position[graph.touched.owners()])
    dropped, remaining = np.flatnonzero(~graph.kept & (last >= 0)), np.flatnonzero(plan.ended)
    left = np.concatenate([dropped, plan.out_datum, remaining])
    until = np.concatenate(
        [ends[last[dropped]], run.copies_out[1], np.full(len(remaining), run.makespan)]
    )
    # The n-th start of a datum belongs to its n-th end.
    by_start, by_end = np.lexsort((since, entered)), np.lexsort((until, left))
    datum = entered[by_start]
    return Lifetimes(datum, since[by_start], until[by_end], graph.size[datum])


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Addresses of lifetimes.

    Attributes
    ----------
    offset
        Address of the first byte of every lifetime.
    height
        Bytes of the smallest memory that has all these addresses.
    peak
        Peak of the bytes in use, a lower bound of `height`.
    """

    offset: Ints
    height: int
    peak: int

    @property
    def fragmentation(self) -> float:
        """Bytes of memory above the peak of the bytes in use, as a fraction of this peak."""
        return self.height / self.peak - 1 if self.peak else 0.0


def peak_bytes(start: npt.ArrayLike, end: npt.ArrayLike, size: npt.ArrayLike) -> int:
    """Peak of the bytes in use; a lifetime does not overlap one that starts at its end."""
    starts, ends, sizes = np.asarray(start), np.asarray(end), np.asarray(size, dtype=np.int64)
    lives = starts < ends
    times = np.concatenate([starts[lives], ends[lives]])
    change = np.concatenate([sizes[lives], -sizes[lives]])
    # Of events at the same time, ends come first.
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
    """Choose addresses for lifetimes such that the memory is small.

    The lifetimes are placed one by one, each into the tightest gap between those that overlap it in
    time, or above them.  The orders tried are by size, by bytes times duration, by duration and by
    start.  Starting from the best of them, the lifetimes that end above the target are repeatedly
    moved to the front and all are placed again (squeaky wheel optimisation, Joslin and Clements
    1999).

    Parameters
    ----------
    start, end
        Start and end of each lifetime, in any unit of time.
    size
        Bytes of each lifetime.
    alignment
        Addresses are multiples of this number of bytes.
    rounds
        Largest number of repetitions.
    capacity
        Bytes of memory that suffice: the search ends at this height.

    Returns
    -------
    Packing
        The packing with the smallest height.

    Raises
    ------
    ValueError
        If the arrays differ in length, an end is before its start, or a size is negative.
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
        position = int((~(starts <= ends)).argmax())
        raise ValueError(
            f"lifetime {position} ends at {ends[position]}, before its start at {starts[position]}"
        )
    if (sizes < 0).any():
        position = int((sizes < 0).argmax())
        raise ValueError(f"lifetime {position} has {sizes[position]} bytes; it must be at least 0")
    if alignment < 1:
        raise ValueError(f"alignment must be at least 1, not {alignment!r}")
    sizes = -(-sizes // alignment) * alignment
    peak = peak_bytes(starts, ends, sizes)
    enough = peak if capacity is None else max(peak, capacity)
    # Lifetimes without bytes or without duration get address 0.
    nonempty = np.flatnonzero((sizes > 0) & (starts < ends))
    offset = np.zeros(len(sizes), dtype=np.int64)
    if not len(nonempty):
        return Packing(offset, 0, 0)
    begin, until, space = starts[nonempty], ends[nonempty], sizes[nonempty]
    duration = until - begin
    best: tuple[int, Array, Array] | None = None
    for rank in (-space, -space * duration, -duration, begin):
        order = np.lexsort((np.arange(len(nonempty)), begin, -duration, -space, rank))
        placed = _place(order, begin, until, space)
        height = int((placed + space).max())
        if best is None or height < best[0]:
            best = height, placed, order
        if best[0] <= enough:
            break
    assert best is not None
    height, placed, order = best
    for _ in range(rounds):
        if best[0] <= enough:
            break
        # Lifetimes that end above the target come first; the others keep their order.
        high = (placed + space)[order] > enough
        order = np.concatenate([order[high], order[~high]])
        placed = _place(order, begin, until, space)
        height = int((placed + space).max())
        if height < best[0]:
            best = height, placed, order
    offset[nonempty] = best[1]
    return Packing(offset, best[0], peak)


@compiled
def _place(order: Array, start: Array, end: Array, size: Array) -> Array:
    """Place lifetimes one by one into the tightest gap, the lowest of equally tight ones."""
    count = len(order)
    offset = np.zeros(count, np.int64)
    # the placed lifetimes, by address
    placed = np.empty(count, np.int64)
    for number in range(count):
        current = order[number]
        below = 0
        best = -1
        slack = -1
        for other in placed[:number]:
            if end[other] <= start[current] or end[current] <= start[other]:
                continue
            gap = offset[other] - below
            if gap >= size[current] and (best < 0 or gap - size[current] < slack):
                best, slack = below, gap - size[current]
            below = max(below, offset[other] + size[other])
        offset[current] = below if best < 0 else best
        position = number
        while position > 0 and offset[placed[position - 1]] > offset[current]:
            placed[position] = placed[position - 1]
            position -= 1
        placed[position] = current
    return offset
