"""What leaves memory and comes back while operations run in a given order.

The order says when everything is needed next, so that what is needed last leaves first (Belady
1966; SwapAdvisor, section 4.3.2), as long as there is no room: by bytes, or by objects of size
classes.  What must be written before it can leave counts as needed twice as soon.  Then data
stay after all whose gap has room, and what comes in may come earlier than it must.
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
    """How room is accounted.

    Attributes
    ----------
    room
        Shape ``(data,)``: what each datum takes of its pool.
    pool
        Shape ``(data,)``: the number of its pool.
    capacity
        Shape ``(pools,)``: what every pool has.
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
            If an operation alone needs more.
        """
        graph.check_limit(limit)
        pool = np.zeros(graph.data_count, np.int64)
        return Memory(graph.size, pool, np.array([limit], np.int64))

    @staticmethod
    def classes(pool: Ints, objects: Iterable[int]) -> Memory:
        """A pool for each size class, of which every datum takes one object.

        Parameters
        ----------
        pool
            The class of every datum.
        objects
            Of every class.
        """
        capacity = np.fromiter(objects, dtype=np.int64)
        return Memory(np.ones(len(pool), np.int64), np.asarray(pool, np.int64), capacity)


@dataclass(frozen=True, slots=True)
class Policy:
    """What a plan for an order may do.

    Parameters
    ----------
    lead
        Operations ahead of the running one whose reads may push out what is needed later.
    spare
        What is fetched ahead pushes out nothing that the next ``spare * lead`` operations
        need: where operations go round and round the same data, it would come back at once.
    back
        Operations by which a copy may come in earlier than that where there is room.
    fill
        Whether what leaves although there is room stays after all.
    dirty
        How many times as soon a datum counts as needed that must be written to leave.
    threshold
        Operations that must lie between the use of a datum and its leaving, while others
        may leave (SwapAdvisor's recently-used threshold).
    least_recent
        Let leave what was used longest ago, when its room is needed: what a store does that
        knows nothing of what comes.

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


#: What a store does that fetches what is asked for and drops what was used longest ago.
ON_DEMAND = Policy(lead=0, back=0, fill=False, dirty_factor=1.0, least_recent=True)


@dataclass(frozen=True, slots=True, eq=False)
class SwapPlan:
    """What is copied in and out while operations run in an order.

    Attributes
    ----------
    order
        Operations; positions below are in it.
    in_datum, in_trigger, in_use, in_gap
        For every copy in, in the order in which they are made: the datum; when it may start
        (``2 p`` once the operation at ``p - 1`` is done, ``2 p + 1`` once that at ``p`` has
        started); the position that waits for it; and the number of the event by which the
        datum left, -1 if it was on the host from the start.
    out_datum, out_after, out_at, out_copy
        For every datum that leaves: which; the position after which it may, -1 for at once;
        that at which its room is taken; and whether it is copied, or dropped because the host
        has it.
    started, ended
        Shape ``(data,)``: in memory before the first operation and after the last one.
    dirty_start
        Shape ``(data,)``: those of `started` that the host has no copy of.
    swap_in_bytes, swap_out_bytes
        Of all copies.
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
    """An order as the loops want it; see :func:`dasktile.schedule.swap_loops.follow`."""

    order: Ints
    at: Array
    data: Array
    kind: Array
    following: Array


def trace_order(graph: TaskGraph, order: Ints, repeat: bool = False) -> TracedOrder:
    """Follow an order through a graph."""
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
    """Plan for an order.

    Parameters
    ----------
    graph, order
        What runs, in an order that it may run in.
    memory
        The room there is.
    policy
        What the plan may do; None for the default.
    repeat
        The order is run again and again: what is in memory at the end is what was at the
        start, and the rest of what is kept is on the host.  What that is is found by planning
        again until it is the same, as SwapAdvisor's double pass does.

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
    """As :func:`plan_swaps`, for an order that is followed already."""
    policy = Policy() if policy is None else policy
    nothing = np.zeros(graph.data_count, np.bool_)
    if not repeat:
        return _plan_once(graph, steps, memory, policy, nothing, repeat, nothing)
    may = graph.kept & graph.present
    # data that may be there at the start are those that are left at the end
    started = may
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
    """Plan with some data in memory at the start; `stays` may be there after a repetition."""
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
            kernels.EvictionRules(int(policy.least_recent), policy.dirty_factor, policy.threshold),
            space,
        )
        space *= 2
    if failed[0] >= 0:
        name = graph.op_name(int(steps.order[failed[0]]))
        raise ValueError(f"what {name} touches does not fit into the memory")
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
        # what others do not find there at the start of the next time goes to the host
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
    """Go through a plan position by position and see that it may be carried out.

    Parameters
    ----------
    graph, plan, memory
        What is planned.
    repeat
        See that the plan can be carried out again and again too.

    Raises
    ------
    ValueError
        If memory is too small at a position, something is read that is not in memory or has
        changed since it was copied, or something is lost that is wanted.
    """
    order = graph.check_order(plan.order)
    arrive: dict[int, list[int]] = {}
    depart: dict[int, list[int]] = {}
    for event, trigger in enumerate(plan.in_trigger.tolist()):
        arrive.setdefault(trigger // 2, []).append(event)
    for event, copied in enumerate(plan.out_copy.tolist()):
        position = plan.out_at[event] if copied else plan.out_after[event] + 1
        depart.setdefault(int(position), []).append(event)
    inside = dict.fromkeys(np.flatnonzero(plan.started).tolist(), -1)
    stored = set(np.flatnonzero(graph.present & ~plan.dirty_start).tolist())
    used = np.zeros(len(memory.capacity), np.int64)
    np.add.at(used, memory.pool[plan.started], memory.room[plan.started])
    last = np.full(graph.data_count, -1)
    last[graph.trace(order).touched.index] = graph.trace(order).touched.owners()
    gone: set[int] = set()

    def wrong(what: str, datum: int, position: int) -> ValueError:
        return ValueError(f"{graph.data_name(datum)} {what} at position {position} of the plan")

    def leave(position: int) -> None:
        for event in depart.get(position, ()):
            datum = int(plan.out_datum[event])
            if inside.get(datum, position) > plan.out_after[event]:
                raise wrong("leaves before it is used", datum, position)
            if plan.out_copy[event]:
                stored.add(datum)
            elif datum not in stored:
                raise wrong("is dropped without a copy", datum, position)
            del inside[datum]
            gone.add(event)
            used[memory.pool[datum]] -= memory.room[datum]

    for position, op in enumerate(order.tolist()):
        leave(position)
        for event in arrive.get(position, ()):
            datum, before = int(plan.in_datum[event]), int(plan.in_gap[event])
            if datum not in stored or datum in inside or (before >= 0 and before not in gone):
                raise wrong("cannot come in", datum, position)
            inside[datum] = position - 1
            used[memory.pool[datum]] += memory.room[datum]
        for datum in (*graph.reads[op].tolist(), *graph.updates[op].tolist()):
            if datum not in inside:
                raise wrong("is read and not in memory", datum, position)
        for datum in graph.writes[op].tolist():
            used[memory.pool[datum]] += memory.room[datum]
        if (used > memory.capacity).any():
            raise ValueError(f"there is too little memory at position {position} of the plan")
        stored.difference_update(graph.updates[op].tolist(), graph.writes[op].tolist())
        for datum in graph.touched[op].tolist():
            inside[datum] = position
            if last[datum] == position and not graph.kept[datum]:
                del inside[datum]
                used[memory.pool[datum]] -= memory.room[datum]
    leave(len(graph))
    for datum in np.flatnonzero(graph.kept).tolist():
        if datum not in inside and datum not in stored:
            raise wrong("is lost", datum, len(graph))
    wanted = np.flatnonzero(plan.ended).tolist()
    if sorted(inside) != wanted:
        raise ValueError("what is in memory after the last operation is not what the plan says")
    if repeat:
        if wanted != np.flatnonzero(plan.started).tolist():
            raise ValueError("what is in memory at the end is not what was at the start")
        for datum in np.flatnonzero(graph.present & graph.kept & ~plan.dirty_start).tolist():
            if datum not in stored:
                raise wrong("has changed on the host", datum, len(graph))
