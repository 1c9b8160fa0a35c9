"""The least bytes that must be copied to run tasks in a given order in a given memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from dasktile.schedule.taskgraph import Bools, Floats, Ints, RaggedArray, TaskGraph


@dataclass(frozen=True, slots=True)
class Step:
    """One task of an order.

    Attributes
    ----------
    reads
        Tiles that must be in memory while it runs.
    makes
        Tiles that are in memory from then on.
    """

    reads: tuple[Hashable, ...] = ()
    makes: tuple[Hashable, ...] = ()


@dataclass(frozen=True, slots=True)
class TransferBound:
    """Bytes that no choice of what leaves memory when can be below; see :func:`transfer_bound`.

    Attributes
    ----------
    read, written
        Bytes.
    """

    read: float
    written: float


def transfer_bound(
    steps: Sequence[Step],
    sizes: Mapping[Hashable, int],
    capacity: int,
    below: Iterable[Hashable] = (),
    write_cost: float = 1.0,
) -> TransferBound:
    """A lower bound of the bytes read into memory, and of those written out of it.

    Between two uses of a tile there is a gap, over which it is kept in memory or not.  Kept
    tiles and those in use must fit; a tile not kept is read again, and is written the first
    time unless the tier below has it.  With parts of tiles allowed this is a linear program
    (FOO, Berger, Beckmann and Harchol-Balter 2018), solved by HiGHS.

    Parameters
    ----------
    steps
        Tasks, in order.
    sizes
        Bytes of every tile.
    capacity
        Bytes of the memory.  Where a task alone needs more, nothing else is kept beside it.
    below
        Tiles that the tier below has at the start.  Those that no step makes are on it too.
    write_cost
        What a byte written costs, where a byte read costs 1; 0 to bound the reads alone.

    Returns
    -------
    The two bytes of a solution of least cost.  Their weighted sum is the bound.

    Raises
    ------
    KeyError
        If a tile has no size.
    RuntimeError
        If the solver fails.
    """
    numbers: dict[Hashable, int] = {}
    last: dict[Hashable, int] = {}
    gaps: list[tuple[int, int, int, int]] = []
    held = np.zeros(len(steps))
    first_read = 0
    made = {key for step in steps for key in step.makes} - set(below)
    for time, step in enumerate(steps):
        uses = dict.fromkeys((*step.reads, *step.makes))
        held[time] = sum(sizes[key] for key in uses)
        for key in uses:
            if key in last:
                number = numbers.setdefault(key, len(numbers)) if key in made else -1
                gaps.append((last[key], time, sizes[key], number))
            elif key not in step.makes:
                first_read += sizes[key]
            last[key] = time
    start, end, size, group = np.array(gaps, dtype=np.int64).reshape(-1, 4).T
    ones = np.ones(len(gaps), np.bool_)
    room = np.maximum(capacity - held, 0.0)
    found = _flow(start, end, size, group, ones, room, write_cost)
    return TransferBound(first_read + found.read, found.written)


def swap_bound(graph: TaskGraph, order: Ints, limit: int, write_cost: float = 1.0) -> TransferBound:
    """The same for a graph that runs in an order, of which memory has nothing at the start.

    Parameters
    ----------
    graph, order
        What runs.  A datum that was updated counts as another.
    limit, write_cost
        As `capacity` and `write_cost` of :func:`transfer_bound`.

    Raises
    ------
    RuntimeError
        If the solver fails.
    """
    trace = graph.trace(order)
    n = len(graph)
    at, data, following = trace.touched.owners(), trace.touched.index, trace.next
    kinds = RaggedArray(graph.touched.pointer, graph.kinds).take(order).index
    # versions: of equal data in order, how often it was written before
    by_datum = np.lexsort((at, data))
    writes = np.cumsum(kinds[by_datum] != 0)
    version = np.empty(len(data), np.int64)
    version[by_datum] = writes
    fresh = np.zeros(graph.data_count, np.int64)
    # the number of writes of all data before
    totals = np.bincount(data, weights=kinds != 0, minlength=graph.data_count).astype(np.int64)
    fresh[1:] = np.cumsum(totals)[:-1]
    clean = graph.present[data] & (version == fresh[data])
    group = np.where(clean, -1, version)
    back = following < n
    gap = back | graph.kept[data]
    _, group_number = np.unique(group[gap], return_inverse=True)
    group_number = group_number.reshape(-1) - int((group[gap] < 0).any())
    used = trace.first < n
    first_read = int(graph.size[used & graph.present].sum())
    room = np.maximum(limit - graph.working_sets()[order], 0).astype(np.float64)
    found = _flow(
        at[gap], following[gap], graph.size[data[gap]], group_number, back[gap], room, write_cost
    )
    return TransferBound(first_read + found.read, found.written)


def time_bound(
    graph: TaskGraph,
    order: Ints,
    limit: int,
    rates: tuple[float, float, float, float],
    read: float = 0.0,
    total: float = 0.0,
    started: Bools | None = None,
) -> float:
    """Seconds that no plan for an order can be below.

    Not below the time of all operations or of all copies.  And of all that was made before a
    position and is needed after it, what memory does not hold has been copied out before and
    is copied in after: the parts before and after each have their bound, and add up.

    Parameters
    ----------
    graph, order
        What runs, one operation at a time.
    limit
        Bytes of memory.
    rates
        Bytes a second in and out alone, and in and out when both run.
    read, total
        Bytes that must be copied in, and in both directions together, as far as that is known.
    started
        Data in memory at the start; None for nothing.

    Raises
    ------
    ValueError
        If a rate is not above 0.
    """
    if not min(rates) > 0:
        raise ValueError(f"rates must be above 0 bytes a second, not {rates!r}")
    inward, outward, slow_in, slow_out = rates
    # two lanes that share a link make this much progress together at most
    both = max(slow_in + slow_out, inward, outward)
    n = len(order)
    nothing = np.zeros(graph.data_count, np.bool_)
    started = nothing if started is None else started
    trace = graph.trace(order)
    at, data = trace.touched.owners(), trace.touched.index
    kinds = RaggedArray(graph.touched.pointer, graph.kinds).take(order).index
    last = np.full(graph.data_count, -1, np.int64)
    last[data] = at
    dirty = np.full(graph.data_count, n, np.int64)
    changes = kinds != 0
    np.minimum.at(dirty, data[changes], at[changes])
    used = last >= 0

    def over(first: Ints, end: Ints, which: Bools) -> Floats:
        """Bytes of data at the positions from `first` to `end`."""
        change = np.zeros(n + 2, np.float64)
        np.add.at(change, np.minimum(first[which], n + 1), graph.size[which])
        np.subtract.at(change, np.minimum(end[which] + 1, n + 1), graph.size[which])
        return np.cumsum(change)[: n + 1]

    # boundaries: number p lies before the operation at position p
    ends = np.where(graph.kept, n, last)
    out = np.maximum(over(dirty + 1, ends, used & (dirty < n)) - limit, 0.0)
    later = np.where(graph.present, 0, dirty + 1)
    back = np.maximum(over(later, last, used) - limit, 0.0)
    came = over(trace.first + 1, np.full(graph.data_count, n), used & graph.present & ~started)
    seconds = np.concatenate([[0.0], np.cumsum(graph.time[order])])
    before = np.maximum.reduce([seconds, out / outward, came / inward, (out + came) / both])
    after = np.maximum(seconds[-1] - seconds, back / inward)
    return max(float((before + after).max()), read / inward, total / both)


def _flow(
    start: Ints,
    end: Ints,
    size: Ints,
    group: Ints,
    back: Bools,
    room: Floats,
    write_cost: float,
) -> TransferBound:
    """Keep what costs most to copy, as far as there is room.

    Room over time is a chain of flows: each gap takes of it where it starts and gives it back
    where it ends, so that the table has two entries for a gap, however long it is.

    Parameters
    ----------
    start, end
        Positions of the uses around every gap.
    size, back
        Bytes, and whether they are read at the end.
    group
        Gaps of the same must be written once if not all are kept; those of -1 never.
    room
        Bytes at every position beside what is used there.
    """
    inner = end - start > 1
    if not inner.any():
        return TransferBound(0, 0)
    start, end, group, back = start[inner], end[inner], group[inner], back[inner]
    bytes_ = size[inner].astype(np.float64)
    dirty = np.flatnonzero(group >= 0)
    names, number = np.unique(group[dirty], return_inverse=True)
    number = number.reshape(-1)
    written = np.zeros(len(names))
    written[number] = bytes_[dirty]
    n, count = len(room), len(start)
    scale = max(float(bytes_.max()), 1.0)
    gaps, slack = np.arange(count), count + len(names) + np.arange(n)
    ends = end < n
    rows = [start + 1, end[ends], np.arange(n), np.arange(1, n)]
    columns = [gaps, gaps[ends], slack, slack[:-1]]
    values = [bytes_ / scale, -bytes_[ends] / scale, np.ones(n), -np.ones(n - 1)]
    width = count + len(names) + n
    # every process of a cluster imports this module, and hardly any needs a solver
    optimize, sparse = import_module("scipy.optimize"), import_module("scipy.sparse")
    chain = sparse.coo_array(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))),
        shape=(n, width),
    ).tocsr()
    once = sparse.coo_array(
        (
            -np.ones(2 * len(dirty)),
            (
                np.tile(np.arange(len(dirty)), 2),
                np.concatenate([gaps[dirty], count + number]),
            ),
        ),
        shape=(len(dirty), width),
    ).tocsr()
    reload = np.where(back, bytes_, 0.0)
    cost = np.concatenate([-reload, write_cost * written, np.zeros(n)]) / scale
    upper = np.concatenate([np.ones(count + len(names)), room / scale])
    found = optimize.linprog(
        cost,
        A_ub=once if len(dirty) else None,
        b_ub=-np.ones(len(dirty)) if len(dirty) else None,
        A_eq=chain,
        b_eq=np.diff(room, prepend=0.0) / scale,
        bounds=np.stack([np.zeros(width), upper], axis=1),
        method="highs",
    )
    if not found.success:
        raise RuntimeError(f"the bound was not found: {found.message}")
    # the solver's last digits are noise
    kept, stores = np.split(np.round(found.x[: count + len(names)], 10), [count])
    return TransferBound(float(reload @ (1.0 - kept)), float(written @ stores))
