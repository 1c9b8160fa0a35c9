"""A graph run under a clock of its own by the rules that a worker's store follows.

The order is known, but not the plan: what leaves and what is fetched is decided as it comes by
:class:`~dasktile.schedule.residency.Residency`, which is told of every event as on a worker.
This is slower than :mod:`dasktile.schedule.simulate`, and the measure for it: a plan that is
not better than what a store decides by itself is not worth carrying out.
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
    """What a store did.

    Attributes
    ----------
    makespan
        Seconds from the start to the end of the last operation.
    swap_in_bytes, swap_out_bytes
        Of all copies that had ended then or were being made.
    peak
        Bytes of memory in use at most, with what operations made; a store takes more than
        its limit for a moment rather than wait for itself.
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
    """Run a graph in an order as a worker's store would.

    Parameters
    ----------
    graph, order
        What runs, one operation at a time.
    limit
        Bytes of memory.
    link
        What can be copied in a second; None for the default.
    ahead
        Operations whose reads may be fetched before they are asked for.
    prefetch
        Data that are fetched so at once.

    Raises
    ------
    ValueError
        If an operation alone needs more than the limit, or the order cannot be run.
    """
    graph.check_limit(limit)
    order = graph.check_order(order)
    return _Worker(graph, order, limit, HostLink() if link is None else link, ahead, prefetch).run()


class _Worker:
    """The memory, the two lanes and the clock."""

    def __init__(
        self, graph: TaskGraph, order: Ints, limit: int, link: HostLink, ahead: int, prefetch: int
    ) -> None:
        self.graph, self.order, self.ahead = graph, order, ahead
        self.rates = link.rates
        self.residency = Residency(ResidencySettings((limit, None), prefetch=prefetch))
        #: Copies in and out that wait, the first of them being made.
        self.lanes: tuple[deque[Copy], deque[Copy]] = (deque(), deque())
        self.left = [0.0, 0.0]
        self.bytes = [0, 0]
        self.ready = False
        self.peak = 0
        trace = graph.trace(order)
        self.touched, self.next = trace.touched, trace.next
        self._start(trace.first, limit)

    def _start(self, first: Ints, limit: int) -> None:
        """Put on the host what is there at the start."""
        residency = self.residency
        residency.resize(0, 0)
        for datum in np.flatnonzero(self.graph.present).tolist():
            position = int(first[datum])
            todo = residency.add(datum, int(self.graph.size[datum]), self._use(position))
            while todo:
                copies = [one for one in todo if isinstance(one, Copy)]
                todo = [more for one in copies for more in residency.copied(one)]
        residency.resize(0, limit)

    def _use(self, position: int) -> float:
        """When a datum is needed that is touched at a position."""
        return math.inf if position >= len(self.order) else float(position)

    def do(self, instructions: Sequence[Instruction]) -> None:
        for one in instructions:
            if isinstance(one, Copy):
                lane = int(one.target > one.source)
                self.lanes[lane].append(one)
                if len(self.lanes[lane]) == 1:
                    self.left[lane] = float(one.size)
                self.bytes[lane] += one.size
            elif isinstance(one, Ready):
                self.ready = True

    def run(self) -> Rehearsal:
        graph, residency = self.graph, self.residency
        time = 0.0
        for position, op in enumerate(self.order.tolist()):
            reads = [*graph.reads[op].tolist(), *graph.updates[op].tolist()]
            made = int(graph.size[graph.writes[op]].sum())
            self.ready = False
            self._look(position)
            self.do(residency.request(position, reads, position, made))
            time = self._wait(time, None)
            self.peak = max(self.peak, residency.used[0] + made)
            time = self._wait(time, time + float(graph.time[op]))
            self._done(position, op)
        return Rehearsal(time, self.bytes[0], self.bytes[1], self.peak)

    def _look(self, position: int) -> None:
        soon = self.order[position + 1 : position + 1 + self.ahead].tolist()
        keys = [datum for op in soon for datum in self.graph.touched[op].tolist()]
        self.do(self.residency.set_upcoming(list(dict.fromkeys(keys))))

    def _done(self, position: int, op: int) -> None:
        """Say what an operation has made, changed and is done with."""
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
            # what the host has of it is of the old values
            self.do(residency.remove(datum))
            self.do(residency.add(datum, int(graph.size[datum]), uses[datum]))
        for datum, use in uses.items():
            if use == math.inf and not graph.kept[datum]:
                self.do(residency.remove(datum))
        self.peak = max(self.peak, residency.used[0])

    def _wait(self, time: float, until: float | None) -> float:
        """Copy until a time, or until an operation may run."""
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
