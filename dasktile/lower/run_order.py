"""The order of tasks from which runs are cut: results should be in memory for a short time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import inf
from typing import Protocol, TypeVar

from dasktile.schedule.edges import readers_of

_Task = TypeVar("_Task", bound=Hashable)

#: Inputs over results, in bytes, up to which a task counts as one that changes no size: one of its
#: inputs may be a small array that is broadcast.
SAME_SIZE = 1.25


def inputs_first(reads: Sequence[Sequence[int]], starts: Iterable[int] | None = None) -> list[int]:
    """All tasks, each after its inputs, depth first.

    Parameters
    ----------
    reads
        For every task, the numbers of the tasks that it reads.
    starts
        All tasks in an order that is kept where inputs allow; by default that of their numbers.
    """
    done = [False] * len(reads)
    order: list[int] = []
    for start in range(len(reads)) if starts is None else starts:
        stack = [start]
        while stack:
            number = stack[-1]
            if not done[number]:
                waiting = [read for read in reads[number] if not done[read]]
                if waiting:
                    stack.extend(reversed(waiting))
                    continue
                done[number] = True
                order.append(number)
            stack.pop()
    return order


@dataclass(frozen=True)
class Edges:
    """What follows from what tasks read alone, computed once for all orders of them.

    Parameters
    ----------
    reads
        For every task, the numbers of the tasks that it reads.
    """

    reads: Sequence[Sequence[int]]

    @cached_property
    def readers(self) -> list[list[int]]:
        """For every task, the tasks that read it."""
        return readers_of(self.reads)

    @cached_property
    def inputs_first(self) -> list[int]:
        """All tasks in the order of :func:`inputs_first`."""
        return inputs_first(self.reads)

    @cached_property
    def heights(self) -> list[int]:
        """For every task, the tasks on the longest path to it."""
        heights, reads = [1] * len(self.reads), self.reads
        for number in self.inputs_first:
            if reads[number]:
                heights[number] = 1 + max([heights[read] for read in reads[number]])
        return heights


class Arrange(Protocol):
    """A function that orders tasks, with the parameters of `run_order`."""

    def __call__(
        self,
        reads: Sequence[Sequence[int]],
        sizes: Sequence[int],
        homes: Sequence[Hashable],
        kept: Collection[int],
        edges: Edges | None = None,
    ) -> list[int]: ...


def run_order(
    reads: Sequence[Sequence[int]],
    sizes: Sequence[int],
    homes: Sequence[Hashable],
    kept: Collection[int],
    edges: Edges | None = None,
) -> list[int]:
    """All tasks, each after its inputs: of two orders, the one that needs less memory.

    In the first one, each task follows its inputs as closely as possible.  In the second one, a
    result that is in memory is also released early by running tasks for its last reader.

    Parameters
    ----------
    reads
        For every task, the numbers of the tasks that it reads.
    sizes
        Bytes of every result.
    homes
        Home of every task; None for tasks that no run may contain.
    kept
        Tasks whose results are in memory to the end.
    edges
        What follows from the reads, if it is known already.
    """
    edges = edges or Edges(reads)
    readers, height = edges.readers, edges.heights
    # data that takes no memory, such as the file that all of them read, is no input
    data = [
        number
        for number, each in enumerate(reads)
        if not each and homes[number] is None and not sizes[number]
    ]
    eager = _DepthFirst(reads, readers, sizes, height, data, kept, eager=True)
    early = eager.order()
    if not eager.requested:
        return early  # the other order is the same
    plain = _DepthFirst(reads, readers, sizes, height, data, kept, eager=False)
    return min(plain.order(), early, key=lambda order: peak(order, reads, sizes, homes, kept))


def step_order(
    reads: Sequence[Sequence[int]],
    sizes: Sequence[int],
    homes: Sequence[Hashable],
    kept: Collection[int],
    edges: Edges | None = None,
) -> list[int]:
    """All tasks, each after its inputs, step by step: those with equally many after them together.

    All sums of products get one term before any of them gets the next, so that the factors are in
    memory for a short time only, and the sums to the end.

    Parameters
    ----------
    reads, sizes, homes, kept, edges
        As in `run_order`.
    """
    edges = edges or Edges(reads)
    readers, height = edges.readers, edges.heights
    latest = list(height)
    for number in reversed(edges.inputs_first):
        if readers[number]:
            latest[number] = min([latest[reader] for reader in readers[number]]) - 1
    # what may wait is made for the first task that reads it
    steps = sorted(range(len(reads)), key=lambda at: (latest[at] > height[at], latest[at]))
    return inputs_first(reads, steps)


def peak(
    order: Iterable[int],
    reads: Sequence[Sequence[int]],
    sizes: Sequence[int],
    homes: Sequence[Hashable],
    kept: Collection[int],
    enough: float = inf,
) -> int:
    """Bytes of results at one home at most, if tasks run one by one in an order.

    A result is at other homes from its first reader there on, and is released everywhere after its
    last reader.

    Parameters
    ----------
    order
        All tasks, each after its inputs.
    reads, sizes, homes, kept
        As in `run_order`.
    enough
        Bytes at which to stop: results that are no less than these may be too small.
    """
    unread = [0] * len(reads)
    for number in chain.from_iterable(reads):
        unread[number] += 1
    for number in kept:
        unread[number] += 1
    live = dict.fromkeys(homes, 0)
    #: For every result, the homes that have it.
    there = [[home] for home in homes]
    most = 0
    for number in order:
        home = homes[number]
        nbytes = live[home] + sizes[number]
        for read in reads[number]:
            if home not in there[read]:
                there[read].append(home)
                nbytes += sizes[read]
        live[home] = nbytes
        if nbytes > most and home is not None:
            most = nbytes
            if most >= enough:
                return most
        for read in reads[number]:
            unread[read] -= 1
            if not unread[read]:
                for other in there[read]:
                    live[other] -= sizes[read]
    return most


def live_bytes(
    steps: Sequence[_Task],
    reads: Callable[[_Task], Iterable[_Task]],
    size: Callable[[_Task], int],
    returned: Collection[_Task],
    working: Callable[[_Task], int] | None = None,
) -> int:
    """Bytes of the results of some tasks at most, if each is released after its last reader.

    Parameters
    ----------
    steps
        The tasks that one task runs, in this order.
    reads, size
        What a task reads, each once, and the bytes of its result.
    returned
        Tasks whose results are in memory to the end.
    working
        Bytes that a task holds while it runs, besides its inputs and its result.
    """
    unread = dict.fromkeys(steps, 0)
    for number in returned:
        unread[number] += 1
    inside = [[read for read in reads(step) if read in unread] for step in steps]
    for read in chain.from_iterable(inside):
        unread[read] += 1
    live = most = 0
    for step, inputs in zip(steps, inside, strict=True):
        live += size(step)
        held = live + working(step) if working else live
        if held > most:
            most = held
        for read in inputs:
            unread[read] -= 1
            if not unread[read]:
                live -= size(read)
    return most


class _DepthFirst:
    """All tasks, each after its inputs, depth first from each task that nothing reads.

    Of the inputs of a task, the one that most tasks must precede is first: the sum so far is
    computed before the term that is added.  A task whose inputs are there runs at once if it frees
    memory.

    Parameters
    ----------
    reads, sizes, kept
        As in `run_order`.
    readers
        For every task, the tasks that read it.
    height
        For every task, the tasks on the longest path to it.
    data
        Tasks without inputs whose results take no memory; they come first, and count as no inputs.
    eager
        Whether tasks without inputs run for a task that lacks them, if it then frees memory.
    """

    def __init__(
        self,
        reads: Sequence[Sequence[int]],
        readers: Sequence[Sequence[int]],
        sizes: Sequence[int],
        height: Sequence[int],
        data: Collection[int],
        kept: Collection[int],
        eager: bool,
    ) -> None:
        self.reads, self.readers, self.sizes = reads, readers, sizes
        self.height, self.data, self.eager = height, data, eager
        #: For every task, whether it has no inputs.
        known = set(data)
        self.first = first = [known.issuperset(each) for each in reads]
        self.done = [False] * len(reads)
        #: For every task, the readers that have not run; one more for results that are kept.
        self.unread = list(map(len, readers))
        for number in kept:
            self.unread[number] += 1
        #: For every task, the inputs that are not there, those of them that have inputs
        #: themselves, and the bytes of the others.
        self.missing = list(map(len, reads))
        self.missing_inner = [len(each) - sum(map(first.__getitem__, each)) for each in reads]
        self.missing_bytes = [sum([sizes[read] for read in each if first[read]]) for each in reads]
        #: For every task, the bytes of the results of which it is the last reader.
        self.released = [0] * len(reads)
        #: By reader: tasks that free no memory before it runs, which wait for its other inputs.
        self.postponed: dict[int, list[int]] = {}
        #: Tasks whose missing inputs run for them.
        self.requested: set[int] = set()
        #: Tasks that can run now; the next one is at the end.
        self.ready: list[int] = []

    def order(self) -> list[int]:
        done, ready, height = self.done, self.ready, self.height
        order = list(self.data)
        for number in self.data:
            self._set_done(number)
        for start, readers in enumerate(self.readers):
            if readers or done[start]:
                continue
            stack = [start]
            while stack:
                number = stack[-1]
                if not done[number]:
                    waiting = [read for read in self.reads[number] if not done[read]]
                    if waiting:
                        # the next one is at the end
                        waiting.sort(key=lambda read: (height[read], -read))
                        stack.extend(waiting)
                        continue
                stack.pop()
                ready.append(number)
                while ready:
                    number = ready.pop()
                    if not done[number]:
                        order.append(number)
                        self._run(number)
        return order

    def _run(self, number: int) -> None:
        """Note that a task has run, and add the tasks that should run next."""
        self._set_done(number)
        candidates = list(self.readers[number])
        if self.unread[number] == 1:
            self._note_last_reader(number)
        for read in self.reads[number]:
            self.unread[read] -= 1
            if self.unread[read] == 1:
                # the last reader of a result may release it
                candidates += self._note_last_reader(read)
        for reader in reversed(candidates):
            missing = self.missing[reader]
            if not missing:
                if self.done[reader]:
                    continue
                if self._frees(reader) and not self._is_postponed(reader):
                    self.ready.append(reader)
            elif len(self.postponed.get(reader, ())) == missing:
                self.ready += self.postponed.pop(reader)
            elif self._frees_with_inputs(reader):
                self.requested.add(reader)
                lacking = (read for read in self.reads[reader] if not self.done[read])
                self.ready += [reader, *lacking]

    def _set_done(self, number: int) -> None:
        self.done[number] = True
        is_first, nbytes = self.first[number], self.sizes[number]
        for reader in self.readers[number]:
            self.missing[reader] -= 1
            if is_first:
                self.missing_bytes[reader] -= nbytes
            else:
                self.missing_inner[reader] -= 1

    def _note_last_reader(self, number: int) -> list[int]:
        """Note which task releases a result, if one does; return it in a list."""
        for reader in self.readers[number]:
            if not self.done[reader]:
                # there is no other: a result has one unread reader, or is kept and has none
                self.released[reader] += self.sizes[number]
                return [reader]
        return []

    def _frees(self, number: int) -> bool:
        """Whether a task needs less memory than it releases, now or with its siblings."""
        reads, sizes = self.reads[number], self.sizes
        if len(reads) == 1 and sizes[number] < sizes[reads[0]]:
            return True
        return self.released[number] >= sizes[number]

    def _frees_with_inputs(self, number: int) -> bool:
        """Whether a task and the inputs that it lacks need no more memory than it releases."""
        if not self.eager or self.missing_inner[number] or number in self.requested:
            return False
        made = self.sizes[number] + self.missing_bytes[number]
        return made <= SAME_SIZE * self.released[number]

    def _is_postponed(self, number: int) -> bool:
        """Whether a task waits until its reader has its other inputs."""
        after = self.readers[number]
        if len(after) != 1 or self.missing[after[0]] == 1:
            return False
        most = max(map(self.sizes.__getitem__, self.reads[number]), default=0)
        if self.sizes[number] * SAME_SIZE < max(most, self.released[number]):
            return False
        others = self.postponed.setdefault(after[0], [])
        if len(others) + 1 == self.missing[after[0]]:
            self.ready += self.postponed.pop(after[0])
            return False
        others.append(number)
        return True
