"""A time that no order and no plan can beat: what must cross one operation on the host.

When an operation starts, all that it needs has run, and all that needs it has not.  Data that
the former made and the latter touch exist then, and what of them does not fit into memory is
on the host: it was copied out before, and is copied in after.  Copies out thus cannot overlap
those in, however many lanes there are.  It matters where all of a backward pass comes after
all of a forward one.
"""

from __future__ import annotations

import numpy as np

from dasktile.schedule.taskgraph import Bools, Ints, TaskGraph, topological


def crossing_bound(
    graph: TaskGraph, limit: int, inward: float, outward: float, tries: int = 128
) -> float:
    """Seconds that running a graph in a memory takes at least, one operation at a time.

    Parameters
    ----------
    limit
        Bytes of the memory.
    inward, outward
        Bytes a second that can be copied into it and out of it.
    tries
        How many operations are looked at: those that most others come before or after.

    Returns
    -------
    The time of all operations; or, for one of them, that of computing what is before or copying
    out what crosses, whichever is longer, and then computing what is after or copying that in.
    """
    if not len(graph):
        return 0.0
    order = topological(graph.before, graph.after)
    ancestors = _closure(graph, order, forward=True)
    descendants = _closure(graph, order, forward=False)
    related = np.array(
        [one.bit_count() + two.bit_count() for one, two in zip(ancestors, descendants, strict=True)]
    )
    # Of all that are as much in the way as any, some from the whole length.
    wide = np.flatnonzero(related >= np.sort(related)[-min(len(graph), 4 * tries)])
    position = np.empty(len(graph), dtype=np.int64)
    position[order] = np.arange(len(graph))
    wide = wide[np.argsort(position[wide])]
    some = wide[np.unique(np.linspace(0, len(wide) - 1, tries).astype(np.int64))]
    made = graph.maker >= 0
    owners = graph.touched.owners()
    best = float(graph.time.sum())
    for op in some.tolist():
        before, after = _mask(ancestors[op], len(graph)), _mask(descendants[op], len(graph))
        after[op] = True
        needed = np.zeros(graph.data_count, dtype=np.bool_)
        needed[graph.touched.index[after[owners]]] = True
        crossing = made & needed
        crossing[crossing] = before[graph.maker[crossing]]
        over = max(0, int(graph.size[crossing].sum()) - limit)
        first = max(float(graph.time[before].sum()), over / outward)
        best = max(best, first + max(float(graph.time[after].sum()), over / inward))
    return best


def _closure(graph: TaskGraph, order: Ints, *, forward: bool) -> list[int]:
    """For every operation, all before it or all after it, as bits."""
    lists = graph.before if forward else graph.after
    pointer, index = lists.pointer.tolist(), lists.index.tolist()
    found = [0] * len(graph)
    for op in (order if forward else order[::-1]).tolist():
        bits = 0
        for other in index[pointer[op] : pointer[op + 1]]:
            bits |= found[other] | (1 << other)
        found[op] = bits
    return found


def _mask(bits: int, count: int) -> Bools:
    packed = np.frombuffer(bits.to_bytes(-(-count // 8), "little"), dtype=np.uint8)
    return np.unpackbits(packed, count=count, bitorder="little").astype(np.bool_)
