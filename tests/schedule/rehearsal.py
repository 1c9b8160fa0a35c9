"""Simulation of a worker's store that runs a graph in a given order.

The swaps are not planned: :class:`~dasktile.schedule.residency.Residency` decides evictions and
prefetches event by event, as on a worker.  The result is the reference for
:mod:`dasktile.schedule.simulate`: a plan must not be slower than the store without a plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dasktile.schedule.instructions import Copy, Hasten, Instruction, Ready, ResidencySettings
from dasktile.schedule.lanes import CopyLanes, lane_of
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
        self.residency = Residency(ResidencySettings((limit, None), prefetch=prefetch))
        self.lanes = CopyLanes(link.rates)
        self.time = 0.0
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
                self.lanes.push(instruction, self.time)
                self.bytes[lane_of(instruction)] += instruction.size
            elif isinstance(instruction, Hasten):
                self.lanes.hasten(instruction.copy)
            elif isinstance(instruction, Ready):
                self.ready = True

    def run(self) -> Rehearsal:
        graph, residency = self.graph, self.residency
        for position, op in enumerate(self.order.tolist()):
            reads = [*graph.reads[op].tolist(), *graph.updates[op].tolist()]
            made = int(graph.size[graph.writes[op]].sum())
            self.ready = False
            self._set_upcoming(position)
            self.do(residency.request(position, reads, position, made))
            while not self.ready:
                self._step(math.inf)
            self.peak = max(self.peak, residency.used[0] + made)
            end = self.time + float(graph.time[op])
            while self.time < end:
                self._step(end)
            self._done(position, op)
        return Rehearsal(self.time, self.bytes[0], self.bytes[1], self.peak)

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

    def _step(self, until: float) -> None:
        """Run copies until the end of one, or until a time."""
        then = min(self.lanes.next_end(self.time), until)
        if math.isinf(then):
            raise RuntimeError("an operation waits and nothing is copied")
        done = self.lanes.advance(self.time, then)
        self.time = then
        for copy, _ in done:
            self.do(self.residency.copied(copy))
