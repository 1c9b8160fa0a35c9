"""The store of a simulated worker: the rules of a worker's store, for results without values.

As `dasktile.runtime.worker.store.TileStore` it has a
:class:`~dasktile.schedule.residency.Residency` decide what is evicted and read back.  It mirrors
what that store does before the residency is asked: small results are never spilled, results are
not tracked while they take less than half of the memory, and results that are views of one memory
take it once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from dasktile.schedule.instructions import (
    Copy,
    Drop,
    Hasten,
    Instruction,
    Ready,
    ResidencySettings,
)
from dasktile.schedule.residency import Residency
from dasktile.schedule.tracking import Untracked, first_use


class SimulatedStore:
    """Results of tasks by number, in memory and on disk.

    Parameters
    ----------
    sizes
        Bytes of the result of every task.
    views
        For every task whose result is a view, the task whose result it is a view of, else -1.
    memory
        Bytes of the memory that every other result takes, at least those of the result.
    next_use
        The next use of a result, as :meth:`Residency.add` takes it.
    settings
        Settings of the residency: memory is its first tier, followed by one other.
    small_bytes
        Bytes below which a result is never spilled.
    untracked
        Share of the memory that results take before the residency decides on them.

    Attributes
    ----------
    started
        Copies that the residency has started or hastened, in order; the caller takes and removes
        them.
    ready
        Names of the requests that are ready.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        views: Sequence[int],
        memory: Sequence[int],
        next_use: Callable[[int], float | None],
        settings: ResidencySettings,
        small_bytes: int,
        untracked: float,
    ) -> None:
        self._small_bytes = small_bytes
        self._sizes, self._next_use = sizes, next_use
        self._base, self._base_bytes = base_of(views), memory
        self.residency = Residency(settings)
        self._untracked_room = untracked * self.residency.capacity[0]
        self._untracked: Untracked[int] = Untracked()
        self.started: list[Copy | Hasten] = []
        self.ready: set[int] = set()
        #: The unit of every tracked result, named by the first result in it.
        self._unit: dict[int, int] = {}
        #: The results in every unit.
        self._results: dict[int, list[int]] = {}
        #: How often the memory of a result was read back: it is a new memory then.
        self._loads: Counter[int] = Counter()
        #: Units that are all of a memory.
        self._whole: dict[tuple[int, int], int] = {}
        #: Units that are not in memory.
        self._outside: set[int] = set()

    # Current state

    @property
    def any_outside(self) -> bool:
        """Whether a result is not in memory."""
        return bool(self._outside)

    @property
    def used(self) -> int:
        """Bytes in memory, without small results."""
        return self.residency.used[0] + self._untracked.nbytes

    def _memory(self, task: int) -> tuple[int, int]:
        """Identifies the memory of a result that is in memory."""
        base = self._base[task]
        return base, self._loads[base]

    def _is_whole(self, task: int) -> bool:
        """Whether a result is all of its memory."""
        return self._sizes[task] >= self._base_bytes[self._base[task]]

    def _memory_bytes(self, task: int) -> int:
        return max(self._sizes[task], self._base_bytes[self._base[task]])

    # Events

    def add(self, task: int) -> None:
        """A task has made its result."""
        size = self._memory_bytes(task)
        if size < self._small_bytes:
            return
        if not self._unit and self._untracked.nbytes + size <= self._untracked_room:
            self._untracked.add(task, self._memory(task), size)
            return
        self._track_all()
        self._track(task)

    def _track_all(self) -> None:
        for task in list(self._untracked):
            self._untracked.remove(task)
            self._track(task)
        while self._untracked.requests:
            name, tasks = self._untracked.requests.popitem()
            self._execute(self.residency.request(name, self._units(tasks), urgent=True))

    def _track(self, task: int) -> None:
        memory = self._memory(task)
        if self._is_whole(task):
            unit = self._whole.get(memory)
            if unit is not None and self._results.get(unit) and unit not in self._outside:
                self._results[unit].append(task)
                self._unit[task] = unit
                self._execute(self.residency.expect({unit: self._unit_use(unit)}))
                return
            self._whole[memory] = task
        self._unit[task] = task
        self._results[task] = [task]
        use, size = self._unit_use(task), self._memory_bytes(task)
        self._execute(self.residency.add(task, self._sizes[task], use, memory, size))

    def remove(self, task: int) -> None:
        """The scheduler has released a result."""
        if task in self._untracked:
            self._untracked.remove(task)
            return
        unit = self._unit.pop(task, None)
        if unit is None:
            return
        self._results[unit].remove(task)
        if self._results[unit]:
            self._execute(self.residency.expect({unit: self._unit_use(unit)}))
        else:
            del self._results[unit]
            self._outside.discard(unit)
            self._execute(self.residency.remove(unit))

    def request(self, name: int, tasks: Sequence[int], room: int, now: float) -> None:
        """A task, whose number is the name, requests the results of others."""
        if not self._unit:
            self._untracked.requests[name] = tasks
            self.ready.add(name)
            return
        self._execute(self.residency.request(name, self._units(tasks), now, room))

    def release(self, name: int) -> None:
        """A task that requested results has ended."""
        self.ready.discard(name)
        if self._untracked.requests.pop(name, None) is None:
            self._execute(self.residency.release(name))

    def expect(self, tasks: Iterable[int]) -> None:
        """The next uses of results have changed."""
        units = self._units(tasks)
        if units:
            self._execute(self.residency.expect({unit: self._unit_use(unit) for unit in units}))

    def set_upcoming(self, first: Sequence[int], further: Sequence[int]) -> None:
        """Set the results that the next tasks read, as :meth:`Residency.set_upcoming`."""
        self._execute(self.residency.set_upcoming(self._units(first), self._units(further)))

    def copied(self, copy: Copy) -> None:
        """A copy is done."""
        unit = copy.key
        assert isinstance(unit, int)
        if copy.target == 0:
            self._outside.discard(unit)
            if self._is_whole(unit):
                base = self._base[unit]
                self._loads[base] += 1
                self._whole[base, self._loads[base]] = unit
        self._execute(self.residency.copied(copy))

    def age(self) -> None:
        """Some time has passed; see :meth:`Residency.age`."""
        self._execute(self.residency.age())

    def _units(self, tasks: Iterable[int]) -> list[int]:
        return list(dict.fromkeys(self._unit[task] for task in tasks if task in self._unit))

    def _unit_use(self, unit: int) -> float | None:
        return first_use(map(self._next_use, self._results[unit]))

    def _execute(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Copy() | Hasten():
                    self.started.append(instruction)
                case Drop(int(unit), _, 0) if unit in self._results:
                    self._outside.add(unit)
                case Ready(int(name)):
                    self.ready.add(name)


def base_of(views: Sequence[int]) -> list[int]:
    """The task whose result owns the memory of each result; of views of views, the first."""
    base: list[int] = []
    for task, viewed in enumerate(views):
        # inputs come before their readers
        base.append(task if viewed < 0 else base[viewed])
    return base
