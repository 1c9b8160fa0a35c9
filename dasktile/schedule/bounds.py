"""Lower bounds of the bytes and seconds of a given order in a given memory."""

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
        Tiles that are in memory while it runs.
    makes
        Tiles that it creates in memory.
    """

    reads: tuple[Hashable, ...] = ()
    makes: tuple[Hashable, ...] = ()


@dataclass(frozen=True, slots=True)
class TransferBound:
    """Lower bound of the bytes copied by any eviction policy; see :func:`transfer_bound`.

    Attributes
    ----------
    read, written
        Bytes copied into memory and out of it.
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
    """Lower bound of the bytes read into memory and written out of it by any eviction policy.

    In the gap between two uses a tile is kept in memory or evicted.  Kept tiles and tiles in use
    must fit.  An evicted tile is read again, and is written at its first eviction unless the
    tier below has it.  If fractions of tiles may be kept, this is a linear program (FOO, Berger,
    Beckmann and Harchol-Balter 2018).  It is solved by HiGHS.

    Parameters
    ----------
    steps
        Tasks, in order.
    sizes
        Bytes of every tile.
    capacity
        Bytes of the memory.  While a task that alone needs more runs, no other tile is kept.
    below
        Tiles that the tier below has at the start, besides all that no step makes.
    write_cost
        Cost of a written byte, relative to a byte read; 0 for a bound of the reads alone.

    Returns
    -------
    The bytes of a solution of least cost.  Their weighted sum is the lower bound.

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
    gaps_bound = _flow(start, end, size, group, ones, room, write_cost)
    return TransferBound(first_read + gaps_bound.read, gaps_bound.written)


def swap_bound(graph: TaskGraph, order: Ints, limit: int, write_cost: float = 1.0) -> TransferBound:
    """As :func:`transfer_bound`, for a graph that runs in an order with empty memory at the start.

    Parameters
    ----------
    graph, order
        The operations.  A datum counts as another one after each update.
    limit, write_cost
        As `capacity` and `write_cost` of :func:`transfer_bound`.

    Raises
    ------
    RuntimeError
        If the solver fails.
    """
    trace = graph.trace(order)
    n = len(graph)
    position, data, following = trace.touched.owners(), trace.touched.index, trace.next
    kinds = RaggedArray(graph.touched.pointer, graph.kinds).take(order).index
    # the version of a datum: how often it was written up to this position
    by_datum = np.lexsort((position, data))
    writes = np.cumsum(kinds[by_datum] != 0)
    version = np.empty(len(data), np.int64)
    version[by_datum] = writes
    fresh = np.zeros(graph.data_count, np.int64)
    # writes of all data with smaller numbers
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
    gaps_bound = _flow(
        position[gap],
        following[gap],
        graph.size[data[gap]],
        group_number,
        back[gap],
        room,
        write_cost,
    )
    return TransferBound(first_read + gaps_bound.read, gaps_bound.written)


def time_bound(
    graph: TaskGraph,
    order: Ints,
    limit: int,
    rates: tuple[float, float, float, float],
    read: float = 0.0,
    total: float = 0.0,
    started: Bools | None = None,
) -> float:
    """Lower bound of the makespan of any plan for an order, in seconds.

    The makespan is at least the time of all operations, and that of all copies.  Furthermore,
    data made before a position and used after it are copied out before it and in after it, as
    far as they do not fit in memory.  The bounds of the part before and the part after add up.

    Parameters
    ----------
    graph, order
        The operations, which run one at a time.
    limit
        Bytes of memory.
    rates
        As :attr:`dasktile.schedule.simulate.HostLink.rates`, in bytes per second.
    read, total
        Known lower bounds of the bytes copied in, and in both directions together.
    started
        Data in memory at the start; None for none.

    Raises
    ------
    ValueError
        If a rate is not above 0.
    """
    if not min(rates) > 0:
        raise ValueError(f"rates must be above 0 bytes per second, not {rates!r}")
    inward, outward, slow_in, slow_out = rates
    # bytes per second of both directions together, at most
    both = max(slow_in + slow_out, inward, outward)
    n = len(order)
    nothing = np.zeros(graph.data_count, np.bool_)
    started = nothing if started is None else started
    trace = graph.trace(order)
    position, data = trace.touched.owners(), trace.touched.index
    kinds = RaggedArray(graph.touched.pointer, graph.kinds).take(order).index
    last = np.full(graph.data_count, -1, np.int64)
    last[data] = position
    dirty = np.full(graph.data_count, n, np.int64)
    changes = kinds != 0
    np.minimum.at(dirty, data[changes], position[changes])
    used = last >= 0

    def bytes_between(first: Ints, end: Ints, which: Bools) -> Floats:
        """At every position, bytes of the data with `first` <= position <= `end`."""
        change = np.zeros(n + 2, np.float64)
        np.add.at(change, np.minimum(first[which], n + 1), graph.size[which])
        np.subtract.at(change, np.minimum(end[which] + 1, n + 1), graph.size[which])
        return np.cumsum(change)[: n + 1]

    # by boundary: number p is before the operation at position p
    ends = np.where(graph.kept, n, last)
    out = np.maximum(bytes_between(dirty + 1, ends, used & (dirty < n)) - limit, 0.0)
    later = np.where(graph.present, 0, dirty + 1)
    back = np.maximum(bytes_between(later, last, used) - limit, 0.0)
    arrived = bytes_between(
        trace.first + 1, np.full(graph.data_count, n), used & graph.present & ~started
    )
    seconds = np.concatenate([[0.0], np.cumsum(graph.time[order])])
    before = np.maximum.reduce([seconds, out / outward, arrived / inward, (out + arrived) / both])
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
    """Solve the linear program: which tiles to keep over which gaps.

    Free memory over time is a chain of flows.  A kept tile takes its bytes from the flow where
    its gap starts and returns them where it ends.  So the matrix has two entries for a gap of
    any length.

    Parameters
    ----------
    start, end
        Positions of the uses around every gap.
    size, back
        Bytes, and whether the tile is read at the end of the gap.
    group
        Gaps of one group are written once in total unless all are kept; those of -1 never.
    room
        Bytes left at every position besides the tiles in use.
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
    # imported here: every process of a cluster imports this module, few need the solver
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
    solution = optimize.linprog(
        cost,
        A_ub=once if len(dirty) else None,
        b_ub=-np.ones(len(dirty)) if len(dirty) else None,
        A_eq=chain,
        b_eq=np.diff(room, prepend=0.0) / scale,
        bounds=np.stack([np.zeros(width), upper], axis=1),
        method="highs",
    )
    if not solution.success:
        raise RuntimeError(f"the solver found no lower bound: {solution.message}")
    # removes the solver's rounding errors
    kept, stores = np.split(np.round(solution.x[: count + len(names)], 10), [count])
    return TransferBound(float(reload @ (1.0 - kept)), float(written @ stores))
