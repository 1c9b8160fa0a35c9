"""Plans of the swaps between memory and host while operations run in a given order.

The order gives the next use of every datum, so that the datum with the furthest next use is
evicted if there is too little room (Belady 1966; SwapAdvisor, section 4.3.2).  Room is counted in
bytes, or in objects of size classes.  A datum that must be written before it is evicted counts as
needed `Policy.dirty_factor` times as soon.  Afterwards evictions are cancelled where there is room
for the datum until its next use, and copies in are moved to earlier positions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dasktile.schedule import gap_loops as gaps
from dasktile.schedule import swap_loops as kernels
from dasktile.schedule.swap_loops import Array
from dasktile.schedule.taskgraph import Bools, Ints, TaskGraph


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """How memory is accounted.

    Attributes
    ----------
    room
        Shape ``(data,)``: room that each datum takes in its pool: bytes or objects.
    pool
        Shape ``(data,)``: the number of its pool.
    capacity
        Shape ``(pools,)``: room of every pool.
    """

    room: Ints
    pool: Ints
    capacity: Ints

    @staticmethod
    def bytes(graph: TaskGraph, limit: int) -> Memory:
        """One pool, of bytes.

        Raises
        ------
        ValueError
            If an operation alone needs more than `limit` bytes.
        """
        graph.check_limit(limit)
        pool = np.zeros(graph.data_count, np.int64)
        return Memory(graph.size, pool, np.array([limit], np.int64))

    @staticmethod
    def classes(pool: Ints, objects: Iterable[int]) -> Memory:
        """A pool of objects for each size class; every datum takes one object.

        Parameters
        ----------
        pool
            The class of every datum.
        objects
            Number of objects of every class.
        """
        capacity = np.fromiter(objects, dtype=np.int64)
        return Memory(np.ones(len(pool), np.int64), np.asarray(pool, np.int64), capacity)


@dataclass(frozen=True, slots=True)
class Policy:
    """Numbers of the eviction and prefetch rules of a plan.

    Parameters
    ----------
    lead
        Prefetch distance in operations: inputs of up to so many operations after the running
        one may evict data that are needed later.
    spare
        A prefetch evicts no datum that the next ``spare * lead`` operations need.  In a loop
        over the same data such a datum would have to be copied in again at once.
    back
        Operations by which a copy in may start earlier still, into free room.
    fill
        Whether evictions are cancelled where there is room for the datum until its next use.
    dirty_factor
        At least 1.  A datum that must be written before it is evicted counts as needed this many
        times as soon.
    threshold
        Operations between the use of a datum and its eviction, at least, if another datum can
        be evicted (SwapAdvisor's recently-used threshold).
    least_recent
        Whether the least recently used datum is evicted, at the time its room is needed, as by
        a store that has no information on the future.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    lead: int = 16
    spare: float = 1.0
    back: int = 0
    fill: bool = True
    dirty_factor: float = 2.0
    threshold: int = 0
    least_recent: bool = False

    def __post_init__(self) -> None:
        for name in ("lead", "back", "threshold"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)!r}")
        if not self.spare >= 0:
            raise ValueError(f"spare must be at least 0, not {self.spare!r}")
        if not self.dirty_factor >= 1:
            raise ValueError(f"dirty_factor must be at least 1, not {self.dirty_factor!r}")


#: Policy of a store that fetches on demand and evicts the least recently used datum.
ON_DEMAND = Policy(lead=0, back=0, fill=False, dirty_factor=1.0, least_recent=True)


@dataclass(frozen=True, slots=True, eq=False)
class SwapPlan:
    """The copies in and out while operations run in an order.

    Attributes
    ----------
    order
        Operations in the order in which they run; positions below are in it.
    in_datum, in_trigger, in_use, in_gap
        For every copy in, in the order in which they start: the datum; when it may start
        (``2 p`` once the operation at ``p - 1`` is done, ``2 p + 1`` once that at ``p`` has
        started); the position that needs it; and the number of the eviction of the datum
        before, -1 if it was on the host from the start.
    out_datum, out_after, out_at, out_copy
        For every eviction: the datum; the position after which it may start, -1 for at once;
        the position at which its room is reused; and whether the datum is copied, or dropped
        because the host has it.
    started, ended
        Shape ``(data,)``: whether in memory before the first operation, and after the last one.
    dirty_start
        Shape ``(data,)``: those of `started` without a valid copy on the host.
    swap_in_bytes, swap_out_bytes
        Bytes of all copies.
    """

    order: Ints
    in_datum: Ints
    in_trigger: Ints
    in_use: Ints
    in_gap: Ints
    out_datum: Ints
    out_after: Ints
    out_at: Ints
    out_copy: Bools
    started: Bools
    ended: Bools
    dirty_start: Bools
    swap_in_bytes: int
    swap_out_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class TracedOrder:
    """An order, and the data that each position touches.

    The arrays are those of :class:`dasktile.schedule.swap_loops.Touches`.
    """

    order: Ints
    at: Array
    data: Array
    kind: Array
    following: Array


def trace_order(graph: TaskGraph, order: Ints, repeat: bool = False) -> TracedOrder:
    """The data that an order touches, position by position."""
    touched = graph.touched
    return TracedOrder(
        order,
        *kernels.follow(
            order, touched.pointer, touched.index, graph.kinds, graph.kept, repeat, graph.data_count
        ),
    )


def plan_swaps(
    graph: TaskGraph,
    order: Ints,
    memory: Memory,
    policy: Policy | None = None,
    repeat: bool = False,
) -> SwapPlan:
    """Plan the swaps of an order.

    Parameters
    ----------
    graph, order
        The operations, and a valid order of them.
    memory
        The memory.
    policy
        Eviction and prefetch rules; None for the default.
    repeat
        The order runs in a loop: memory has the same content at the end as at the start, and
        the other kept data are on the host.  Plans are repeated until the contents are equal
        (SwapAdvisor's double pass).

    Raises
    ------
    ValueError
        Naming an operation whose data do not fit.
    """
    return plan_traced_order(graph, trace_order(graph, order, repeat), memory, policy, repeat)


def plan_traced_order(
    graph: TaskGraph,
    steps: TracedOrder,
    memory: Memory,
    policy: Policy | None = None,
    repeat: bool = False,
) -> SwapPlan:
    """As :func:`plan_swaps`, for an order that is traced already."""
    policy = Policy() if policy is None else policy
    nothing = np.zeros(graph.data_count, np.bool_)
    if not repeat:
        return _plan_once(graph, steps, memory, policy, nothing, repeat, nothing)
    # data in memory at the start must be in memory at the end
    started = graph.kept & graph.present
    plan = _plan_once(graph, steps, memory, policy, nothing, repeat, started)
    while True:
        started = started & plan.ended
        plan = _plan_once(graph, steps, memory, policy, started, repeat, started)
        if not (started & ~plan.ended).any():
            return plan


def _plan_once(
    graph: TaskGraph,
    steps: TracedOrder,
    memory: Memory,
    policy: Policy,
    started: Bools,
    repeat: bool,
    stays: Bools,
) -> SwapPlan:
    """Plan with the data `started` in memory at the start; `stays` may be in memory at the end."""
    n = len(graph)
    positions = np.arange(n, dtype=np.int64)
    dirty_start = np.zeros(graph.data_count, np.bool_)
    dirty_start[graph.updates.index] = True
    dirty_start &= started
    pools = kernels.MemoryArrays(memory.room, memory.pool, memory.capacity)
    space = len(steps.data) + 64
    failed = np.array([kernels.FULL])
    while failed[0] == kernels.FULL:
        failed, *events, profile, ended = kernels.decide(
            kernels.Touches(steps.at, steps.data, steps.kind, steps.following),
            pools,
            kernels.Start(graph.present, started, dirty_start),
            kernels.Horizon(
                np.minimum(positions + policy.lead, n - 1),
                positions + int(policy.lead * policy.spare),
            ),
            # for other types of numbers, the loops would be compiled again
            kernels.EvictionRules(
                int(policy.least_recent), float(policy.dirty_factor), int(policy.threshold)
            ),
            space,
        )
        space *= 2
    if failed[0] >= 0:
        name = graph.op_name(int(steps.order[failed[0]]))
        raise ValueError(f"the data of {name} do not fit into the memory")
    in_datum, in_trigger, in_use, in_gap, out_datum, out_after, out_at = events
    if policy.fill:
        left, returns = out_datum.copy(), in_gap[(in_datum >= 0) & (in_gap >= 0)]
        gaps.fill_gaps(
            in_datum, in_trigger, in_gap, out_datum, out_at, profile, pools, not repeat
        )  # fmt: skip
        back = (left >= 0) & (out_datum < 0)
        back[returns] = False
        ended[left[back]] = True
    if repeat:
        # data that are not in memory at the start are evicted at the end
        last = np.full(graph.data_count, -1, np.int64)
        last[steps.data] = np.repeat(positions, np.diff(steps.at))
        leaves = np.flatnonzero(ended & ~stays)
        out_datum = np.concatenate([out_datum, leaves])
        out_after = np.concatenate([out_after, last[leaves]])
        out_at = np.concatenate([out_at, np.full(len(leaves), n, np.int64)])
        ended = ended & stays
    copies = gaps.needs_copy(
        steps.at, steps.data, steps.kind, graph.present, dirty_start, out_datum, out_after
    )
    if policy.back:
        since = np.maximum(positions - policy.back, 0)
        gaps.advance_copies(
            in_datum, in_trigger, in_use, in_gap, out_datum, out_after, out_at, copies,
            profile, pools, since,
        )  # fmt: skip
    left = out_datum >= 0
    number = np.cumsum(left) - 1
    keep = np.flatnonzero(in_datum >= 0)
    keep = keep[np.lexsort((in_use[keep], in_trigger[keep]))]
    gap = in_gap[keep]
    if len(number):
        gap = np.where(gap >= 0, number[gap], -1)
    return SwapPlan(
        steps.order,
        in_datum[keep],
        in_trigger[keep],
        in_use[keep],
        gap,
        out_datum[left],
        out_after[left],
        out_at[left],
        copies[left],
        started,
        ended,
        dirty_start,
        int(graph.size[in_datum[keep]].sum()),
        int(graph.size[out_datum[left & copies]].sum()),
    )


def check_plan(graph: TaskGraph, plan: SwapPlan, memory: Memory, repeat: bool = False) -> None:
    """Check position by position that a plan is valid.

    Parameters
    ----------
    graph, plan, memory
        The operations, their plan and its memory.
    repeat
        Check that the plan can run in a loop.

    Raises
    ------
    ValueError
        If the memory is too small at a position, an operation reads a datum that is not in
        memory or an old copy of it, or a kept datum is lost.
    """
    order = graph.check_order(plan.order)
    copies_in: dict[int, list[int]] = {}
    evictions: dict[int, list[int]] = {}
    for event, trigger in enumerate(plan.in_trigger.tolist()):
        copies_in.setdefault(trigger // 2, []).append(event)
    for event, copied in enumerate(plan.out_copy.tolist()):
        position = plan.out_at[event] if copied else plan.out_after[event] + 1
        evictions.setdefault(int(position), []).append(event)
    resident = dict.fromkeys(np.flatnonzero(plan.started).tolist(), -1)
    stored = set(np.flatnonzero(graph.present & ~plan.dirty_start).tolist())
    used = np.zeros(len(memory.capacity), np.int64)
    np.add.at(used, memory.pool[plan.started], memory.room[plan.started])
    last = np.full(graph.data_count, -1)
    last[graph.trace(order).touched.index] = graph.trace(order).touched.owners()
    evicted: set[int] = set()

    def error(problem: str, datum: int, position: int) -> ValueError:
        return ValueError(f"{graph.data_name(datum)} {problem} at position {position} of the plan")

    def evict(position: int) -> None:
        for event in evictions.get(position, ()):
            datum = int(plan.out_datum[event])
            if resident.get(datum, position) > plan.out_after[event]:
                raise error("is evicted before it is used", datum, position)
            if plan.out_copy[event]:
                stored.add(datum)
            elif datum not in stored:
                raise error("is dropped without a copy", datum, position)
            del resident[datum]
            evicted.add(event)
            used[memory.pool[datum]] -= memory.room[datum]

    for position, op in enumerate(order.tolist()):
        evict(position)
        for event in copies_in.get(position, ()):
            datum, before = int(plan.in_datum[event]), int(plan.in_gap[event])
            if datum not in stored or datum in resident or (before >= 0 and before not in evicted):
                raise error("cannot be copied in", datum, position)
            resident[datum] = position - 1
            used[memory.pool[datum]] += memory.room[datum]
        for datum in (*graph.reads[op].tolist(), *graph.updates[op].tolist()):
            if datum not in resident:
                raise error("is read but not in memory", datum, position)
        for datum in graph.writes[op].tolist():
            used[memory.pool[datum]] += memory.room[datum]
        if (used > memory.capacity).any():
            raise ValueError(f"there is too little memory at position {position} of the plan")
        stored.difference_update(graph.updates[op].tolist(), graph.writes[op].tolist())
        for datum in graph.touched[op].tolist():
            resident[datum] = position
            if last[datum] == position and not graph.kept[datum]:
                del resident[datum]
                used[memory.pool[datum]] -= memory.room[datum]
    evict(len(graph))
    for datum in np.flatnonzero(graph.kept).tolist():
        if datum not in resident and datum not in stored:
            raise error("is lost", datum, len(graph))
    ended = np.flatnonzero(plan.ended).tolist()
    if sorted(resident) != ended:
        raise ValueError("the data in memory after the last operation are not those of the plan")
    if repeat:
        if ended != np.flatnonzero(plan.started).tolist():
            raise ValueError("the data in memory at the end are not those at the start")
        for datum in np.flatnonzero(graph.present & graph.kept & ~plan.dirty_start).tolist():
            if datum not in stored:
                raise error("has changed on the host", datum, len(graph))
