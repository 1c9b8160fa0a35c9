"""A lower bound of the makespan of all orders and plans, by the bytes that cross one operation.

When an operation starts, all its ancestors have run, and none of its descendants.  Data that
ancestors computed and descendants touch exist at this time, and those that do not fit into memory
are on the host: they were swapped out before and are swapped in after.  These swap-outs therefore
cannot overlap the swap-ins.  The bound is strong where a whole backward pass follows a whole
forward pass.
"""

from __future__ import annotations

import numpy as np

from dasktile.schedule.taskgraph import Bools, Ints, TaskGraph, topological


def crossing_bound(
    graph: TaskGraph, limit: int, inward: float, outward: float, tries: int = 128
) -> float:
    """Lower bound of the seconds to run a graph in limited memory, one operation at a time.

    Parameters
    ----------
    limit
        Bytes of the memory.
    inward, outward
        Bytes per second of swap-ins and of swap-outs.
    tries
        Number of operations considered: those with most ancestors and descendants.

    Returns
    -------
    The largest of the following: the time of all operations; and for each operation considered, the
    longer of computing its ancestors and swapping out what crosses it, plus the longer of computing
    its descendants and swapping that in.
    """
    if not len(graph):
        return 0.0
    order = topological(graph.before, graph.after)
    ancestors = _closure(graph, order, forward=True)
    descendants = _closure(graph, order, forward=False)
    related = np.array(
        [up.bit_count() + down.bit_count() for up, down in zip(ancestors, descendants, strict=True)]
    )
    # of the operations with most relatives, a sample spread over the whole order
    wide = np.flatnonzero(related >= np.sort(related)[-min(len(graph), 4 * tries)])
    position = np.empty(len(graph), dtype=np.int64)
    position[order] = np.arange(len(graph))
    wide = wide[np.argsort(position[wide])]
    sample = wide[np.unique(np.linspace(0, len(wide) - 1, tries).astype(np.int64))]
    computed = graph.maker >= 0
    owners = graph.touched.owners()
    best = float(graph.time.sum())
    for op in sample.tolist():
        before, after = _mask(ancestors[op], len(graph)), _mask(descendants[op], len(graph))
        after[op] = True
        needed = np.zeros(graph.data_count, dtype=np.bool_)
        needed[graph.touched.index[after[owners]]] = True
        crossing = computed & needed
        crossing[crossing] = before[graph.maker[crossing]]
        excess = max(0, int(graph.size[crossing].sum()) - limit)
        first = max(float(graph.time[before].sum()), excess / outward)
        best = max(best, first + max(float(graph.time[after].sum()), excess / inward))
    return best


def _closure(graph: TaskGraph, order: Ints, *, forward: bool) -> list[int]:
    """For every operation, its ancestors or its descendants, as bits."""
    lists = graph.before if forward else graph.after
    pointer, index = lists.pointer.tolist(), lists.index.tolist()
    closure = [0] * len(graph)
    for op in (order if forward else order[::-1]).tolist():
        bits = 0
        for other in index[pointer[op] : pointer[op + 1]]:
            bits |= closure[other] | (1 << other)
        closure[op] = bits
    return closure


def _mask(bits: int, count: int) -> Bools:
    packed = np.frombuffer(bits.to_bytes(-(-count // 8), "little"), dtype=np.uint8)
    return np.unpackbits(packed, count=count, bitorder="little").astype(np.bool_)
