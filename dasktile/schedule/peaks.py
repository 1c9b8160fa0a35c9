"""Simulation of a cluster that runs a graph: memory of every worker, bytes received, seconds.

Workers run tasks as distributed's workers do.  A task is sent to its worker once its inputs are
computed; the worker receives the inputs that it lacks and runs the task with the lowest priority
of those that have all inputs.  Root tasks are sent when their worker has a free slot.  A result is
in memory, on all workers that have received it, until its last reader has run.
"""

from __future__ import annotations

import heapq
import itertools
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dasktile.schedule.edges import readers_of
from dasktile.schedule.families import FamilyQueue
from dasktile.schedule.joining import MOST_COMBINED, JoinedResult, worker_of_join
from dasktile.schedule.placed_tasks import PlacedTasks

#: Slots of a worker for root tasks, per thread: distributed's ``worker-saturation``.
_SATURATION = 1.1

#: Workers that have a result, in the order in which they got it, of which one sends it (chosen: all
#: would take time in proportion to the square of the workers).
_MOST_ASKED = 8

#: Workers that have a result of which a task without a home may run on one: of more, evenly spaced
#: ones (chosen, for the same reason).
_MOST_CANDIDATES = 64

#: Multiples of it, modulo 1, are spread evenly.
_GOLDEN = 0.6180339887


@dataclass(frozen=True, slots=True)
class Speeds:
    """Durations of the cluster.

    Parameters
    ----------
    task
        Seconds of a worker per task, whatever it does.
    scheduler
        Seconds of the scheduler per task, which it handles one by one.
    memory
        Bytes per second of a task, counted on its inputs and its result.
    network
        Bytes per second between two workers.
    within_host
        The same between two workers of one host; None for that of `network`.
    variation
        The largest deviation of the duration of a task, as a share of it: otherwise workers would
        run in step, and one of them would always be the first to have room.
    assumed
        Bytes per second between two workers by which tasks without a home get their workers; None
        for those of `network`.
    """

    task: float = 3e-3
    scheduler: float = 1e-3
    memory: float = 1e9
    network: float = 5e8
    within_host: float | None = None
    variation: float = 0.1
    assumed: float | None = None


@dataclass(frozen=True, slots=True)
class Simulated:
    """A simulated run.

    Parameters
    ----------
    peaks
        For every worker, the largest number of bytes in its memory.
    moved
        Bytes that workers received from each other.
    between_hosts
        Those that they received from workers of other hosts.
    seconds
        Until the last task has run.
    results
        For every worker, the largest number of bytes of results in its memory, those of running
        tasks included; what these hold besides is not in them.
    task
        Bytes of the task that has most in memory: its inputs, its result, and what it holds besides
        while it runs.
    received, sent
        For every worker, the bytes that it receives from others, and sends to them.
    ran
        For every task, the worker that ran it; -1 for data of the graph.
    """

    peaks: tuple[int, ...]
    moved: int
    between_hosts: int
    seconds: float
    results: tuple[int, ...]
    task: int
    received: tuple[int, ...] = ()
    sent: tuple[int, ...] = ()
    ran: tuple[int, ...] = ()

    @property
    def busiest_link(self) -> int:
        """Bytes that the worker with most receives, or sends."""
        return max((*self.received, *self.sent), default=0)


def simulate(
    tasks: PlacedTasks,
    workers: int,
    threads: int = 1,
    speeds: Speeds | None = None,
    hosts: Sequence[int] = (),
) -> Simulated:
    """Simulate a run.

    Parameters
    ----------
    tasks
        The tasks.
    workers, threads
        Number of workers, and of tasks that each runs at once.
    speeds
        Durations; by default those of `Speeds`.
    hosts
        For every worker, the number of its host; by default all are on one.
    """
    return _Simulation(tasks, workers, threads, speeds or Speeds(), hosts).run()


@dataclass(slots=True)
class _Worker:
    """One worker."""

    number: int
    idle: int
    #: Root tasks that it may be sent.
    slots: int
    #: Tasks that can run, by priority.
    ready: list[tuple[float, int]] = field(default_factory=list)
    #: Root tasks that wait for a slot, by priority.
    roots: list[tuple[float, int]] = field(default_factory=list)
    #: Tasks that were sent and have not run.
    sent: int = 0
    memory: int = 0
    peak: int = 0
    #: Bytes that tasks hold while they run, besides their inputs and results.
    working: int = 0
    #: The largest number of bytes of results.
    results: int = 0
    #: When the last transfer to it ends, and the last one from it.
    receiving: float = 0.0
    sending: float = 0.0
    #: Bytes that it has received, and sent.
    received_bytes: int = 0
    sent_bytes: int = 0

    def hold(self, size: int) -> None:
        self.memory += size
        if self.memory > self.peak:
            self.peak = self.memory
        if self.memory - self.working > self.results:
            self.results = self.memory - self.working

    def start(self, size: int, working: int) -> None:
        """Run a task with a result of a size, and bytes that it holds while it runs."""
        self.working += working
        self.hold(size + working)

    def end(self, working: int) -> None:
        """A task has run, which held some bytes."""
        self.working -= working
        self.memory -= working


@dataclass(slots=True, eq=False)
class _Buffer:
    """Memory that several results may share: its bytes, and the results that hold it."""

    nbytes: int
    holders: set[int]


class _Simulation:
    """The state of a simulated run."""

    def __init__(
        self,
        tasks: PlacedTasks,
        workers: int,
        threads: int,
        speeds: Speeds,
        hosts: Sequence[int] = (),
    ) -> None:
        self.tasks, self.speeds, self.hosts = tasks, speeds, hosts
        self.has_hosts = len(set(hosts)) > 1
        slots = math.ceil(_SATURATION * threads)
        self.workers = [_Worker(number, threads, slots) for number in range(workers)]
        count = len(tasks.reads)
        self.data = set(tasks.data)
        self.kept = {*tasks.kept, *tasks.there}
        self.parts = set(tasks.parts)
        self.reads = [[read for read in reads if read not in self.data] for reads in tasks.reads]
        self.readers = readers_of(self.reads)
        self.aliases = {number for number in tasks.aliases if self.reads[number]}
        #: By result on the worker that made it: the buffers that it consists of.  Results that have
        #: a buffer of their own, and share it with no other, are missing.
        self.buffers: dict[int, list[_Buffer]] = {}
        sharing = [*self.aliases, *self.parts]
        self.sharing = {*sharing, *(self.reads[number][0] for number in sharing)}
        self.working = tasks.working or [0] * count
        #: Bytes in memory of every result, where it is made.
        self.made = [
            size - shared
            for size, shared in zip(tasks.sizes, tasks.shared or [0] * count, strict=True)
        ]
        self.waiting = list(map(len, self.reads))
        self.unread = list(map(len, self.readers))
        self.where: list[int] = [-1] * count
        #: For every result in memory or on its way, when each worker has it.
        self.there: list[dict[int, float]] = [{} for _ in range(count)]
        self.queued = set(tasks.queued)
        #: Tasks of any worker that wait for a slot, by priority.
        self.queue: list[tuple[float, int]] = []
        #: Root tasks of families, which run on one worker each.
        self.families = FamilyQueue()
        #: What happens: time, a counter, and a task that ends or, if negative, can run.
        self.events: list[tuple[float, int, int]] = []
        self.number = 0
        self.scheduled = 0.0
        self.moved = 0
        self.between_hosts = 0
        self.now = 0.0
        #: Bytes of the task that has most in memory.
        self.most = 0

    def run(self) -> Simulated:
        there = self.tasks.there
        for family in self.tasks.families:
            self.families.add(family)
            for number in family:
                self.families.push(number, (0, 0, self.tasks.priorities[number]))
        for number, reads in enumerate(self.reads):
            if number in self.families.of:
                continue
            if not reads and number not in self.data and number not in there:
                home = self.tasks.homes[number]
                heap = self.queue if home is None else self.workers[home].roots
                heapq.heappush(heap, (self.tasks.priorities[number], number))
        # the next root task is sent to the worker with fewest
        for slots in range(1, 1 + self.workers[0].slots):
            for at in range(len(self.workers)):
                self._fill(at, slots)
        for number, at in there.items():
            self.where[number], self.there[number] = at, {at: 0.0}
            if number in self.sharing:
                self.buffers[number] = [_Buffer(self.made[number], {number})]
            for reader in self.readers[number]:
                self.waiting[reader] -= 1
        ready = (at for at, reads in enumerate(self.reads) if reads and not self.waiting[at])
        for number in sorted(ready, key=self.tasks.priorities.__getitem__):
            self._send(number, self._worker_of(number))
        while self.events:
            self.now, _, number = heapq.heappop(self.events)
            if number < 0:
                number = -1 - number
                worker = self.workers[self.where[number]]
                heapq.heappush(worker.ready, (self.tasks.priorities[number], number))
                self._start(self.where[number])
            else:
                self._finish(number)
        return Simulated(
            tuple(worker.peak for worker in self.workers),
            self.moved,
            self.between_hosts,
            self.now,
            tuple(worker.results for worker in self.workers),
            self.most,
            tuple(worker.received_bytes for worker in self.workers),
            tuple(worker.sent_bytes for worker in self.workers),
            tuple(self.where),
        )

    def _event(self, time: float, number: int) -> None:
        self.number += 1
        heapq.heappush(self.events, (time, self.number, number))

    def _fill(self, at: int, slots: int = sys.maxsize) -> None:
        """Send root tasks to a worker that has free slots, of which it may use some."""
        worker, queue = self.workers[at], self.queue
        while worker.sent < min(slots, worker.slots) and (worker.roots or queue):
            is_own = worker.roots and (not queue or worker.roots[0] < queue[0])
            self._send(heapq.heappop(worker.roots if is_own else queue)[1], at)
        families = self.families
        while worker.sent < worker.slots and families.any_ready:
            if families.priority(at) is None and not families.divide(at):
                break
            member = families.take(at)
            if member is not None:
                self._send(member[1], at)

    def _wait(self, number: int) -> None:
        """Let a task with inputs wait for a slot, which a worker may have at once."""
        heapq.heappush(self.queue, (self.tasks.priorities[number], number))
        worker = min(self.workers, key=lambda worker: worker.sent)
        self._fill(worker.number, worker.sent + 1)

    def _send(self, number: int, at: int) -> None:
        """Send a task to a worker, which receives the inputs that it lacks."""
        worker = self.workers[at]
        self.where[number] = at
        worker.sent += 1
        self.scheduled = can_run = max(self.now, self.scheduled) + self.speeds.scheduler
        for read in self.reads[number]:
            there = self.there[read]
            if at not in there:
                there[at] = self._transfer(self.tasks.sizes[read], there, at)
            if there[at] > can_run:
                can_run = there[at]
        self._event(can_run, -1 - number)

    def _transfer(self, size: int, there: Mapping[int, float], at: int) -> float:
        """Send a result to a worker: when it arrives.

        Parameters
        ----------
        size
            Its bytes.
        there
            When each worker that has it, or will, has it.
        at
            The worker.
        """
        worker, speed = self.workers[at], self.speeds.network
        sender = self._sender(there, at)
        if self.has_hosts and self.hosts[sender.number] == self.hosts[at]:
            speed = self.speeds.within_host or speed
        elif self.has_hosts:
            self.between_hosts += size
        # each of both links carries one result after the other: while one of them waits for the
        # other, it counts as free
        worker.receiving = max(self.scheduled, worker.receiving) + size / speed
        sender.sending = max(self.scheduled, sender.sending) + size / speed
        worker.hold(size)
        worker.received_bytes += size
        sender.sent_bytes += size
        self.moved += size
        return max(worker.receiving, sender.sending)

    def _sender(self, there: Mapping[int, float], at: int) -> _Worker:
        """The worker that sends a result to another: of the first that have it, see `_MOST_ASKED`.

        It is one of the same host, if there is any, and the one that has sent least.
        """
        if len(there) == 1:
            return self.workers[next(iter(there))]
        first: list[int] = []
        if self.has_hosts:
            host = self.hosts[at]
            near = (
                other
                for other, since in there.items()
                if self.hosts[other] == host and since <= self.now
            )
            first = list(itertools.islice(near, _MOST_ASKED))
        first = first or list(itertools.islice(there, _MOST_ASKED))
        having = [other for other in first if there[other] <= self.now] or first
        return min((self.workers[other] for other in having), key=lambda worker: worker.sent_bytes)

    def _start(self, at: int) -> None:
        """Run the tasks for which a worker has idle threads."""
        worker, sizes = self.workers[at], self.tasks.sizes
        while worker.idle and worker.ready:
            _, number = heapq.heappop(worker.ready)
            worker.idle -= 1
            is_part = number in self.aliases or number in self.parts
            if is_part and self.where[self.reads[number][0]] == at:
                worker.start(0, self.working[number])
                self._share(number)
            else:
                worker.start(self.made[number], self.working[number])
                if number in self.sharing:
                    self.buffers[number] = [_Buffer(self.made[number], {number})]
            size = 0  # it takes no time to share memory
            if not is_part:
                inputs = sum(map(sizes.__getitem__, self.reads[number]))
                size = sizes[number] + inputs
                self.most = max(self.most, self.made[number] + self.working[number] + inputs)
            duration = self.speeds.task + size / self.speeds.memory
            vary = 1 + self.speeds.variation * (2 * (number * _GOLDEN % 1) - 1)
            self._event(self.now + duration * vary, number)

    def _finish(self, number: int) -> None:
        """A task has run: release inputs, send readers, run the next task."""
        at = self.where[number]
        worker = self.workers[at]
        worker.idle += 1
        worker.sent -= 1
        worker.end(self.working[number])
        self.there[number][at] = self.now
        for read in self.reads[number]:
            self.unread[read] -= 1
            if not self.unread[read]:
                self._release(read)
        if not self.unread[number]:
            self._release(number)
        for reader in self.readers[number]:
            self.waiting[reader] -= 1
            if self.waiting[reader]:
                continue
            if reader in self.queued:
                self._wait(reader)
            else:
                self._send(reader, self._worker_of(reader))
        self._fill(at)
        self._start(at)

    def _release(self, number: int) -> None:
        if number in self.kept:
            return
        for at in self.there[number]:
            if at != self.where[number]:
                freed = self.tasks.sizes[number]
            else:
                freed = self._left(number) if number in self.buffers else self.made[number]
            self.workers[at].memory -= freed
        self.there[number] = {}

    def _share(self, number: int) -> None:
        """Let an alias or a part be in the memory of what it reads."""
        source = self.reads[number][0]
        if number in self.aliases:
            self.buffers[number] = list(self.buffers[source])
            for buffer in self.buffers[number]:
                buffer.holders.add(number)
            return
        # what no part is in is the first buffer
        rest = self.buffers[source][0]
        part = _Buffer(min(self.tasks.sizes[number], rest.nbytes), set(rest.holders))
        rest.nbytes -= part.nbytes
        for holder in rest.holders:
            self.buffers[holder].append(part)
        part.holders.add(number)
        self.buffers[number] = [part]

    def _left(self, number: int) -> int:
        """Bytes of a released result that no other one holds."""
        freed = 0
        for buffer in self.buffers.pop(number):
            buffer.holders.remove(number)
            if not buffer.holders:
                freed += buffer.nbytes
        return freed

    def _joined(self, read: int) -> JoinedResult:
        """A result that a task joins with others."""
        return JoinedResult(
            self.tasks.sizes[read],
            [at for at, since in self.there[read].items() if since <= self.now],
            len(self.readers[read]),
            sum(len(self.reads[reader]) > 1 for reader in self.readers[read][:MOST_COMBINED]),
        )

    def _some_workers_with(self, read: int, number: int) -> Iterable[int]:
        """Workers that have a result, of which a task may run on one, see `_MOST_CANDIDATES`."""
        there = self.there[read]
        step = -(-len(there) // _MOST_CANDIDATES)
        # not with every so manieth worker: numbers of tasks that do the same have a stride
        return itertools.islice(there, int(number * _GOLDEN % 1 * step), None, step)

    def _worker_of(self, number: int) -> int:
        """The home of a task; else the worker with an input where it would start first.

        Of several, as distributed's ``worker_objective``, the one with the fewest bytes.  The time
        counts in whole tasks: smaller differences are noise.
        """
        home = self.tasks.homes[number]
        if home is not None:
            return home
        if number in self.tasks.joins:
            best: int | None = worker_of_join(list(map(self._joined, self.reads[number])), int)
            if best is not None:
                return best
        reads, assumed = self.reads[number], self.speeds.assumed or self.speeds.network
        #: Bytes of inputs on each worker that has any.
        present = {at: 0 for read in reads for at in self._some_workers_with(read, number)}
        for read in reads:
            for at in present.keys() & self.there[read].keys():
                present[at] += self.tasks.sizes[read]
        total = sum(self.tasks.sizes[read] for read in reads)
        if len(present) == 1:
            return next(iter(present))

        def cost(at: int) -> tuple[float, int, int]:
            wait = self.workers[at].sent * self.speeds.task
            start = (total - present[at]) / assumed + wait
            return int(start / self.speeds.task), self.workers[at].memory, at

        return min(present, key=cost)
