"""Simulation of a plan: one lane computes, one copies in and one copies out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dasktile.schedule.compiled import compiled, heap_drop, heap_put
from dasktile.schedule.swap_loops import Array
from dasktile.schedule.swaps import Memory, SwapPlan, TracedOrder, trace_order
from dasktile.schedule.taskgraph import Floats, Ints, TaskGraph


@dataclass(frozen=True, slots=True)
class HostLink:
    """Bandwidths between a memory and the tier below it.

    The defaults are those of ``benchmarks.papers.swapadvisor``.

    Parameters
    ----------
    inward, outward
        Bytes per second into the memory and out of it, if only one direction is in use.
    both
        Bytes per second in both directions together; None for the sum of the two.

    Raises
    ------
    ValueError
        If a number is not above 0.
    """

    inward: float = 12e9
    outward: float = 12e9
    both: float | None = 20e9

    def __post_init__(self) -> None:
        for name in ("inward", "outward", "both"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0 bytes per second, not {value!r}")

    @property
    def rates(self) -> tuple[float, float, float, float]:
        """Bytes per second: in alone, out alone, and in and out if both are in use."""
        both = np.inf if self.both is None else self.both
        share = min(1.0, both / (self.inward + self.outward))
        one_in, one_out = min(self.inward, both), min(self.outward, both)
        # for other types of numbers, the loops would be compiled again
        return float(one_in), float(one_out), self.inward * share, self.outward * share


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedRun:
    """Times and peak memory of a simulated plan.

    Attributes
    ----------
    makespan
        Seconds until the end of the last operation or copy.
    peak
        Shape ``(pools,)``: most room in use; bytes if there is one pool of bytes.
    operations
        Shape ``(2, operations)``: start and end in seconds, by position in the order.
    copies_in, copies_out
        Shape ``(2, events)``: start and end of every copy in seconds, by its number in the plan.
        They are equal for data dropped without a copy.
    """

    makespan: float
    peak: Ints
    operations: Floats
    copies_in: Floats
    copies_out: Floats

    @property
    def stalled(self) -> float:
        """Seconds in which no operation ran."""
        return self.makespan - float((self.operations[1] - self.operations[0]).sum())


def simulate(
    graph: TaskGraph,
    plan: SwapPlan,
    memory: Memory,
    link: HostLink,
    steps: TracedOrder | None = None,
) -> SimulatedRun:
    """Simulate a plan.

    Operations run one after the other.  Each starts as soon as its inputs are in memory and
    there is room for its outputs.  At most one copy in and one copy out run at a time.  A datum
    is copied out after its last use; of several, the one whose room is needed first.

    Parameters
    ----------
    graph, plan, memory
        The operations, their plan and its memory.
    link
        Bandwidths of the copies.
    steps
        The traced order of the plan, if it is available.

    Raises
    ------
    ValueError
        If the plan deadlocks.
    """
    steps = trace_order(graph, plan.order) if steps is None else steps
    makespan, peak, *times = run(
        graph.time[plan.order],
        steps.at,
        steps.data,
        steps.kind,
        steps.following,
        graph.size,
        memory.room,
        memory.pool,
        memory.capacity,
        plan.started,
        plan.in_datum,
        plan.in_trigger,
        plan.in_use,
        plan.in_gap,
        plan.out_datum,
        plan.out_after,
        plan.out_at,
        plan.out_copy,
        link.rates,
    )
    if makespan == np.inf:
        position = int(np.isnan(times[0][0]).argmax())
        raise ValueError(f"the plan deadlocks at position {position}")
    return SimulatedRun(float(makespan), peak, *times)


def ideal(graph: TaskGraph) -> float:
    """Seconds of all operations with unlimited memory."""
    return float(graph.time.sum())


@compiled
def run(
    seconds: Array,
    at: Array,
    data: Array,
    kind: Array,
    following: Array,
    size: Array,
    room: Array,
    pool: Array,
    capacity: Array,
    started: Array,
    in_datum: Array,
    in_trigger: Array,
    in_use: Array,
    in_gap: Array,
    out_datum: Array,
    out_after: Array,
    out_at: Array,
    out_copy: Array,
    rates: tuple[float, float, float, float],
) -> tuple[float, Array, Array, Array, Array]:
    """Simulate a plan on arrays.

    Parameters
    ----------
    seconds
        Seconds of the operation at every position.
    at, data, kind, following, in_datum, in_trigger, in_use, in_gap, out_datum, out_after, out_at
        See :mod:`dasktile.schedule.swap_loops`; copies in start in the order of their numbers.
    size, room, pool, capacity
        Bytes, room and pool of every datum, and the capacity of every pool.
    started
        Data in memory at the start.
    out_copy
        Whether each event out copies the datum, or drops it because the host has it.
    rates
        As :attr:`HostLink.rates`.

    Returns
    -------
    ``(makespan, peak, op, into, out)``: seconds, the most room in use of every pool, and start
    and end of every operation and copy.  The makespan is ``inf`` if the plan deadlocks.
    """
    n = len(seconds)
    pools = len(capacity)
    op_times = np.full((2, n), np.nan)
    in_times = np.full((2, len(in_datum)), np.nan)
    out_times = np.full((2, len(out_datum)), np.nan)
    used = np.zeros(pools, np.int64)
    for datum in range(len(room)):
        if started[datum]:
            used[pool[datum]] += room[datum]
    peak = used.copy()
    missing = np.zeros(n + 1, np.int64)
    for event in range(len(in_datum)):
        missing[in_use[event]] += 1
    # events out, by the position after which they may start
    starts = np.zeros(n + 2, np.int64)
    for out in range(len(out_datum)):
        starts[out_after[out] + 2] += 1
    for position in range(n + 1):
        starts[position + 1] += starts[position]
    leaving = np.empty(starts[n + 1], np.int64)
    into = starts.copy()
    for out in range(len(out_datum)):
        leaving[into[out_after[out] + 1]] = out
        into[out_after[out] + 1] += 1
    gone = np.zeros(len(out_datum), np.bool_)
    waiting_keys = np.empty(len(leaving) + 1, np.int64)
    waiting = np.empty(len(leaving) + 1, np.int64)
    waits = 0
    wanted = np.zeros(pools, np.int64)

    time = 0.0
    done = 0
    running = False
    op_end = 0.0
    head = 0
    coming, going = -1, -1
    in_left, out_left = 0.0, 0.0
    fresh = True
    while True:
        # start what can start now
        if fresh:
            # data that may be evicted since the last operation ended
            fresh = False
            for number in range(starts[done], starts[done + 1]):
                out = leaving[number]
                datum = out_datum[out]
                if out_copy[out]:
                    waits = heap_put(waiting_keys, waiting, 0, waits, -out_at[out], out)
                else:
                    used[pool[datum]] -= room[datum]
                    gone[out] = True
                    out_times[0, out] = time
                    out_times[1, out] = time
        if going < 0 and waits > 0:
            going = waiting[0]
            waits = heap_drop(waiting_keys, waiting, 0, waits)
            out_left = float(size[out_datum[going]])
            out_times[0, going] = time
        if not running and done < n and missing[done] == 0:
            for line in range(pools):
                wanted[line] = 0
            for entry in range(at[done], at[done + 1]):
                if kind[entry] == 2:
                    wanted[pool[data[entry]]] += room[data[entry]]
            fits = True
            for line in range(pools):
                if used[line] + wanted[line] > capacity[line]:
                    fits = False
            if fits:
                for line in range(pools):
                    used[line] += wanted[line]
                    peak[line] = max(peak[line], used[line])
                running = True
                op_end = time + seconds[done]
                op_times[0, done] = time
        if coming < 0 and head < len(in_datum):
            event = head
            datum = in_datum[event]
            if (
                2 * done + running >= in_trigger[event]
                and (in_gap[event] < 0 or gone[in_gap[event]])
                and used[pool[datum]] + room[datum] <= capacity[pool[datum]]
            ):
                used[pool[datum]] += room[datum]
                peak[pool[datum]] = max(peak[pool[datum]], used[pool[datum]])
                coming = event
                head += 1
                in_left = float(size[datum])
                in_times[0, event] = time
        # advance to the next end
        fast_in = rates[2] if going >= 0 else rates[0]
        fast_out = rates[3] if coming >= 0 else rates[1]
        step = np.inf
        if running:
            step = op_end - time
        if coming >= 0:
            step = min(step, in_left / fast_in)
        if going >= 0:
            step = min(step, out_left / fast_out)
        if step == np.inf:
            break
        ends_op = running and op_end - time <= step
        ends_in = coming >= 0 and in_left / fast_in <= step
        ends_out = going >= 0 and out_left / fast_out <= step
        time = op_end if ends_op else time + step
        if coming >= 0:
            in_left -= step * fast_in
        if going >= 0:
            out_left -= step * fast_out
        if ends_op:
            for entry in range(at[done], at[done + 1]):
                if following[entry] < 0:
                    used[pool[data[entry]]] -= room[data[entry]]
            op_times[1, done] = time
            running = False
            done += 1
            fresh = True
        if ends_in:
            in_times[1, coming] = time
            missing[in_use[coming]] -= 1
            coming = -1
        if ends_out:
            datum = out_datum[going]
            used[pool[datum]] -= room[datum]
            gone[going] = True
            out_times[1, going] = time
            going = -1
    if done < n:
        time = np.inf
    return time, peak, op_times, in_times, out_times
