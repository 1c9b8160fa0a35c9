"""Simulation of a worker that runs tasks in a given order: the bytes that it swaps.

Evictions and prefetches are not planned: a
:class:`~dasktile.schedule.simulated_store.SimulatedStore` decides on them, event by event, by the
rules of a worker.  The scheduler is simulated as well: it sends the tasks in a window of the order
(`dasktile.runtime.scheduler.windows`), and handles the end of a task only when the worker has
started the next one that it has.  One task, one copy in and one copy out run at a time.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from dasktile.schedule.instructions import DYING, Copy, Hasten, ResidencySettings
from dasktile.schedule.lanes import CopyLanes, lane_of
from dasktile.schedule.simulate import HostLink
from dasktile.schedule.simulated_store import SimulatedStore
from dasktile.schedule.tracking import ROOMY


@dataclass(frozen=True, slots=True)
class WorkerTasks:
    """Tasks as a worker runs them; inputs come before their readers.

    Parameters
    ----------
    reads
        For every task, the tasks whose results it reads, each once.
    sizes
        Bytes of every result.
    views
        For every task whose result is a view, the task whose result it is a view of, else -1.
    memory
        Bytes of the memory that every other result takes, at least those of the result.
    kept
        Tasks whose results are needed at the end.
    seconds
        Duration of every task.
    names
        Tasks of one name have results of similar size.
    """

    reads: Sequence[Sequence[int]]
    sizes: Sequence[int]
    views: Sequence[int]
    memory: Sequence[int]
    kept: Collection[int]
    seconds: Sequence[float]
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.reads)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Constants of a worker and its scheduler.

    Parameters
    ----------
    window
        Tasks of the order that are sent to the worker or may be, unless they have ended.
    prefetch_tasks
        Ready tasks whose inputs are prefetched.
    max_readers
        Readers of a result that are tracked at the most.
    message
        Seconds from the end of a task until the tasks that follow from it are on the worker.
    interval
        Seconds between two looks at results that should have been released.
    hints
        Whether the store knows next uses; without them it evicts the least recently used.
    small_bytes
        Bytes below which a result is never spilled.
    untracked
        Share of the memory that results take before the store decides on them.
    residency
        Settings of the residency, with any capacity.
    """

    window: int = 4
    prefetch_tasks: int = 4
    max_readers: int = 32
    message: float = 0.001
    interval: float = 0.1
    hints: bool = True
    small_bytes: int = 1024
    untracked: float = ROOMY
    residency: ResidencySettings = field(default_factory=lambda: ResidencySettings((None, None)))


@dataclass(frozen=True, slots=True)
class Span:
    """A task that ran, or a result that was copied: its number, and seconds of start and end."""

    task: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class WorkerRun:
    """What a simulated worker did.

    Attributes
    ----------
    makespan
        Seconds until the end of the last task.
    swap_in_bytes, swap_out_bytes
        Bytes read back from disk, and written to it.
    peak
        Most bytes in memory, with the result of the running task.  A worker exceeds its limit for
        a short time rather than deadlock.
    tasks
        The tasks in the order in which they ran, which is nearly the given one.
    copies_in, copies_out
        The copies.
    memory
        Bytes in memory after every change, with the time in seconds.
    """

    makespan: float
    swap_in_bytes: int
    swap_out_bytes: int
    peak: int
    tasks: tuple[Span, ...]
    copies_in: tuple[Span, ...]
    copies_out: tuple[Span, ...]
    memory: tuple[tuple[float, int], ...]

    @property
    def moved(self) -> int:
        """Bytes in both directions."""
        return self.swap_in_bytes + self.swap_out_bytes


def simulate_worker(
    tasks: WorkerTasks,
    order: Sequence[int],
    limit: int,
    link: HostLink,
    settings: WorkerSettings | None = None,
) -> WorkerRun:
    """Run tasks in an order, by the rules of a worker.

    Parameters
    ----------
    tasks
        The tasks.
    order
        Their numbers, inputs before their readers.
    limit
        Bytes of memory for results.
    link
        Bandwidths between memory and disk.
    settings
        Constants; None for the default.
    """
    return _Worker(tasks, order, limit, link, settings or WorkerSettings()).run()


class _Uses:
    """The next uses of results, as `dasktile.runtime.nextuse` computes them on a worker."""

    def __init__(self, tasks: WorkerTasks, place: Sequence[int], max_readers: int) -> None:
        count = len(tasks)
        self._place, self._max_readers, self._kept = place, max_readers, tasks.kept
        self.readers: list[list[int]] = [[] for _ in range(count)]
        self._reads = tasks.reads
        for task in sorted(range(count), key=place.__getitem__):
            for read in tasks.reads[task]:
                self.readers[read].append(task)
        #: By result: number of its first readers that have all started.
        self._first = [0] * count
        self._started = [False] * count
        #: By result: readers that are on the worker, and those of them that have run.
        self._present = [0] * count
        self._ran = [0] * count

    def arrived(self, task: int) -> None:
        """A task was sent to the worker."""
        for read in self._reads[task]:
            self._present[read] += 1

    def started(self, task: int) -> None:
        """A task has its inputs."""
        self._started[task] = True

    def ran(self, task: int) -> None:
        """A task has ended."""
        for read in self._reads[task]:
            self._ran[read] += 1

    def removed(self, task: int) -> None:
        """The worker has forgotten a task that ran."""
        for read in self._reads[task]:
            self._present[read] -= 1
            self._ran[read] -= 1

    def next_use(self, result: int) -> float:
        """The position of the first reader that has not started."""
        present = self._present[result]
        if present > self._max_readers and self._ran[result] < present:
            return -math.inf
        readers, first = self.readers[result], self._first[result]
        while first < len(readers) and self._started[readers[first]]:
            first += 1
        self._first[result] = first
        if first < len(readers):
            return float(self._place[readers[first]])
        return math.inf if result in self._kept else DYING


class _Scheduler:
    """Which tasks are on the worker, and which results are released."""

    def __init__(self, tasks: WorkerTasks, order: Sequence[int], window: int, uses: _Uses) -> None:
        self._tasks, self._uses, self._window = tasks, uses, window
        self._place = {task: position for position, task in enumerate(order)}
        self._waits = [len(reads) for reads in tasks.reads]
        self._unread = [len(readers) for readers in uses.readers]
        self._behind = deque(order)
        self._open = 0
        #: Tasks in the window that wait for inputs.
        self._waiting: set[int] = set()
        #: The tasks that the worker has and has not started, as a heap of positions and numbers.
        self.ready: list[tuple[int, int]] = []
        self._advance()

    def _advance(self) -> None:
        while self._behind and self._open < self._window:
            task = self._behind.popleft()
            self._open += 1
            if self._waits[task]:
                self._waiting.add(task)
            else:
                self._send(task)

    def _send(self, task: int) -> None:
        self._uses.arrived(task)
        heapq.heappush(self.ready, (self._place[task], task))

    def ended(self, task: int) -> list[int]:
        """Handle the end of a task; return the results that are released."""
        self._open -= 1
        released = []
        for read in self._tasks.reads[task]:
            self._unread[read] -= 1
            if not self._unread[read] and read not in self._tasks.kept:
                released.append(read)
        if not self._uses.readers[task] and task not in self._tasks.kept:
            released.append(task)
        for reader in self._uses.readers[task]:
            self._waits[reader] -= 1
            if not self._waits[reader] and reader in self._waiting:
                self._waiting.discard(reader)
                self._send(reader)
        self._advance()
        return released


class _Worker:
    """The clock, the running task and the two copy lanes."""

    def __init__(
        self,
        tasks: WorkerTasks,
        order: Sequence[int],
        limit: int,
        link: HostLink,
        settings: WorkerSettings,
    ) -> None:
        self.tasks, self.settings = tasks, settings
        self.place = [0] * len(tasks)
        for position, task in enumerate(order):
            self.place[task] = position
        self.uses = _Uses(tasks, self.place, settings.max_readers)
        self.scheduler = _Scheduler(tasks, order, settings.window, self.uses)
        self.store = SimulatedStore(
            tasks.sizes,
            tasks.views,
            tasks.memory,
            self.uses.next_use if settings.hints else lambda result: None,
            replace(settings.residency, capacity=(limit, None)),
            settings.small_bytes,
            settings.untracked,
        )
        self.time, self.next_age = 0.0, settings.interval
        #: Tasks that have ended, with the time at which the scheduler's answer arrives.
        self.messages: deque[tuple[float, int]] = deque()
        self.lanes = CopyLanes(link.rates)
        self.swapped = [0, 0]
        self.copies: tuple[list[Span], list[Span]] = ([], [])
        self.ran: list[Span] = []
        #: Bytes of the last result of every kind of tasks.
        self.last_size: dict[str, int] = {}
        #: Bytes of the result of the running task.
        self.result = 0
        self.memory: list[tuple[float, int]] = [(0.0, 0)]

    def run(self) -> WorkerRun:
        for _ in range(len(self.tasks)):
            while not self.scheduler.ready:
                self._step(math.inf)
            _, task = heapq.heappop(self.scheduler.ready)
            self._run_task(task)
        read, written = self.swapped
        copies_in, copies_out = map(tuple, self.copies)
        ran, memory = tuple(self.ran), tuple(self.memory)
        peak = max(used for _, used in memory)
        return WorkerRun(self.time, read, written, peak, ran, copies_in, copies_out, memory)

    def _run_task(self, task: int) -> None:
        reads, name = self.tasks.reads[task], self.tasks.names[task]
        if self.store.any_outside:
            self._prefetch()
        # the size of the first result of its kind is unknown
        self.store.request(task, reads, self.last_size.get(name, 1), self.place[task])
        self._changed()
        while task not in self.store.ready:
            self._step(math.inf)
        self.uses.started(task)
        self.store.expect(reads)
        start = self.time
        end = start + self.tasks.seconds[task]
        self.result = self.tasks.memory[task] if self.tasks.views[task] < 0 else 0
        self._changed()
        while self.time < end:
            self._step(end)
        self.ran.append(Span(task, start, end))
        self.store.release(task)
        self.uses.ran(task)
        self.store.add(task)
        self.result = 0
        self._changed()
        self.last_size[name] = self.tasks.sizes[task]
        self.messages.append((end + self.settings.message, task))

    def _prefetch(self) -> None:
        soon = heapq.nsmallest(self.settings.prefetch_tasks, self.scheduler.ready)
        reads = [self.tasks.reads[task] for _, task in soon]
        further = [read for several in reads[1:] for read in several]
        self.store.set_upcoming(reads[0] if reads else (), further)

    def _changed(self) -> None:
        """Queue the copies that the store has started, and note the bytes in memory."""
        for instruction in self.store.started:
            if isinstance(instruction, Hasten):
                self.lanes.hasten(instruction.copy)
            else:
                self.swapped[lane_of(instruction)] += instruction.size
                self.lanes.push(instruction, self.time)
        self.store.started.clear()
        used = self.store.used + self.result
        if used != self.memory[-1][1]:
            self.memory.append((self.time, used))

    def _step(self, until: float) -> None:
        """Advance to the next event, or to a time."""
        end = self.lanes.next_end(self.time)
        message = self.messages[0][0] if self.messages else math.inf
        now = max(self.time, min(end, message, until, self.next_age))
        done = self.lanes.advance(self.time, now)
        self.time = now
        for copy, since in done:
            self._copied(copy, since)
        while self.messages and self.messages[0][0] <= now:
            self._answered(self.messages.popleft()[1])
        if self.next_age <= now:
            self.next_age = now + self.settings.interval
            self.store.age()
        self._changed()

    def _copied(self, copy: Copy, since: float) -> None:
        assert isinstance(copy.key, int)
        self.copies[lane_of(copy)].append(Span(copy.key, since, self.time))
        self.store.copied(copy)

    def _answered(self, task: int) -> None:
        """The scheduler has handled the end of a task."""
        for result in self.scheduler.ended(task):
            self.store.remove(result)
            self.uses.removed(result)
