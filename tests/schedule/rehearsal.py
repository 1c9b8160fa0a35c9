"""Simulation of a worker's store that runs a graph in a given order.

The swaps are not planned: :class:`~dasktile.schedule.residency.Residency` decides evictions and
prefetches event by event, as on a worker.  The result is the reference for
:mod:`dasktile.schedule.simulate`: a plan must not be slower than the store without a plan.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dasktile.schedule.instructions import Copy, Instruction, Ready, ResidencySettings
from dasktile.schedule.residency import Residency
from dasktile.schedule.simulate import HostLink
from dasktile.schedule.taskgraph import Ints, TaskGraph


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Times and bytes of a simulated store.

    Attributes
    ----------
    makespan
        Seconds from the start to the end of the last operation.
    swap_in_bytes, swap_out_bytes
        Bytes of all copies that had started until then.
    peak
        Most bytes of memory in use, with results of operations; a store exceeds its limit for a
        short time rather than deadlock.
    """

    makespan: float
    swap_in_bytes: int
    swap_out_bytes: int
    peak: int


def rehearse(
    graph: TaskGraph,
    order: Ints,
    limit: int,
    link: HostLink | None = None,
    ahead: int = 4,
    prefetch: int = 2,
) -> Rehearsal:
    """Run a graph in an order with the rules of a worker's store.

    Parameters
    ----------
    graph, order
        The operations, which run one at a time.
    limit
        Bytes of memory.
    link
        Bandwidths; None for the default.
    ahead
        Prefetch distance in operations.
    prefetch
        Number of simultaneous prefetches, at most.

    Raises
    ------
    ValueError
        If an operation alone needs more than the limit, or the order cannot be run.
    """
    graph.check_limit(limit)
    order = graph.check_order(order)
    return _Worker(graph, order, limit, HostLink() if link is None else link, ahead, prefetch).run()


class _Worker:
    """The memory, the two copy lanes and the clock."""

    def __init__(
        self, graph: TaskGraph, order: Ints, limit: int, link: HostLink, ahead: int, prefetch: int
    ) -> None:
        self.graph, self.order, self.ahead = graph, order, ahead
        self.rates = link.rates
        self.residency = Residency(ResidencySettings((limit, None), prefetch=prefetch))
        #: Copies in and out in order; the first of each lane is in progress.
        self.lanes: tuple[deque[Copy], deque[Copy]] = (deque(), deque())
        self.left = [0.0, 0.0]
        self.bytes = [0, 0]
        self.ready = False
        self.peak = 0
        trace = graph.trace(order)
        self.touched, self.next = trace.touched, trace.next
        self._start(trace.first, limit)

    def _start(self, first: Ints, limit: int) -> None:
        """Add the data that are on the host at the start."""
        residency = self.residency
        residency.resize(0, 0)
        for datum in np.flatnonzero(self.graph.present).tolist():
            position = int(first[datum])
            todo = residency.add(datum, int(self.graph.size[datum]), self._use(position))
            while todo:
                copies = [instruction for instruction in todo if isinstance(instruction, Copy)]
                todo = [following for copy in copies for following in residency.copied(copy)]
        residency.resize(0, limit)

    def _use(self, position: int) -> float:
        """Next use of a datum whose next access is at a position."""
        return math.inf if position >= len(self.order) else float(position)

    def do(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Copy):
                lane = int(instruction.target > instruction.source)
                self.lanes[lane].append(instruction)
                if len(self.lanes[lane]) == 1:
                    self.left[lane] = float(instruction.size)
                self.bytes[lane] += instruction.size
            elif isinstance(instruction, Ready):
                self.ready = True

    def run(self) -> Rehearsal:
        graph, residency = self.graph, self.residency
        time = 0.0
        for position, op in enumerate(self.order.tolist()):
            reads = [*graph.reads[op].tolist(), *graph.updates[op].tolist()]
            made = int(graph.size[graph.writes[op]].sum())
            self.ready = False
            self._set_upcoming(position)
            self.do(residency.request(position, reads, position, made))
            time = self._wait(time, None)
            self.peak = max(self.peak, residency.used[0] + made)
            time = self._wait(time, time + float(graph.time[op]))
            self._done(position, op)
        return Rehearsal(time, self.bytes[0], self.bytes[1], self.peak)

    def _set_upcoming(self, position: int) -> None:
        soon = self.order[position + 1 : position + 1 + self.ahead].tolist()
        keys = [datum for op in soon for datum in self.graph.touched[op].tolist()]
        self.do(self.residency.set_upcoming(list(dict.fromkeys(keys))))

    def _done(self, position: int, op: int) -> None:
        """Report the results, updates and released inputs of an operation."""
        graph, residency = self.graph, self.residency
        entries = range(*self.touched.pointer[position : position + 2].tolist())
        uses = {
            int(self.touched.index[entry]): self._use(int(self.next[entry])) for entry in entries
        }
        for datum in graph.writes[op].tolist():
            self.do(residency.add(datum, int(graph.size[datum]), uses[datum]))
        self.do(residency.expect({datum: uses[datum] for datum in graph.reads[op].tolist()}))
        self.do(residency.release(position))
        for datum in graph.updates[op].tolist():
            # the copy on the host is stale
            self.do(residency.remove(datum))
            self.do(residency.add(datum, int(graph.size[datum]), uses[datum]))
        for datum, use in uses.items():
            if use == math.inf and not graph.kept[datum]:
                self.do(residency.remove(datum))
        self.peak = max(self.peak, residency.used[0])

    def _wait(self, time: float, until: float | None) -> float:
        """Run copies until a time, or until an operation is ready."""
        while until is not None or not self.ready:
            running = [bool(lane) for lane in self.lanes]
            fast = [self.rates[lane + 2 * running[1 - lane]] for lane in (0, 1)]
            ends = [self.left[lane] / fast[lane] for lane in (0, 1) if running[lane]]
            if not ends and until is None:
                raise RuntimeError("an operation waits and nothing is copied")
            step = min([*ends, math.inf if until is None else until - time])
            done = []
            for lane in (0, 1):
                if running[lane]:
                    if self.left[lane] / fast[lane] <= step:
                        done.append(lane)
                    self.left[lane] -= step * fast[lane]
            if until is not None and until - time <= step:
                time = until
            else:
                time += step
            for lane in done:
                copy = self.lanes[lane].popleft()
                if self.lanes[lane]:
                    self.left[lane] = float(self.lanes[lane][0].size)
                self.do(self.residency.copied(copy))
            if until is not None and time >= until:
                return time
        return time
