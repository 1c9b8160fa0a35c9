"""Traces of the requests to a store, and lower bounds of the bytes read for a trace."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dasktile.runtime.tiers import Device
from dasktile.runtime.worker.buffers import memory_of
from dasktile.runtime.worker.store import TileStore
from dasktile.schedule.bounds import Step, transfer_bound

#: A result was stored: ("made", key, bytes, key of the array that it is a view of, or None).  A
#: task started to read: ("starts", number of the request, keys), and ended: ("ends", number).  A
#: key was deleted: ("gone", key).  The client sends a graph: ("graph", None).
Event = tuple[Any, ...]

#: The number of a step after all others.
_NEVER = 1 << 62


@dataclass(slots=True)
class Trace:
    """The requests to one store.

    Parameters
    ----------
    capacity
        Bytes of its memory.
    events
        The requests, in order.
    device
        The device whose memory it is; None for the host.
    """

    capacity: int
    events: list[Event] = field(default_factory=list)
    device: Device | None = None
    #: The first key of the arrays that are views of the same memory, by the number or id of this
    #: memory, with a reference to the array that owns it.
    _memory: dict[Hashable, tuple[weakref.ref[Any] | None, Any]] = field(default_factory=dict)

    def made(self, key: Any, value: Any, size: int) -> None:
        """Record that the result of a task was stored."""
        base, memory_size = self._first_key(key, value)
        self.events.append(("made", key, max(size, memory_size), None if base == key else base))

    def starts(self, number: int, values: Mapping[Any, Any]) -> None:
        """Record that a task starts to read values."""
        for key, value in values.items():
            # a value that was read back has other memory than before
            self._first_key(key, value)
        self.events.append(("starts", number, list(values)))

    def _first_key(self, key: Any, value: Any) -> tuple[Any, int]:
        """The first key whose value is in the same memory, and the bytes of this memory."""
        allocation = None if self.device is None else self.device.memory_of(value)
        if allocation is not None:
            # numbers of allocations are unique
            return self._memory.setdefault(allocation, (None, key))[1], allocation[1]
        array = memory_of(value)
        if array is None:
            return key, 0
        entry = self._memory.get(id(array))
        if entry is None or entry[0] is None or entry[0]() is not array:
            entry = self._memory[id(array)] = (weakref.ref(array), key)
        return entry[1], array.nbytes

    def __reduce__(self) -> Any:
        return Trace, (self.capacity, self.events)


_TRACES: dict[int, Trace] = {}


def start_recording(store: TileStore) -> None:
    """Start recording the requests to a store."""
    _instrument()
    _TRACES[id(store)] = Trace(int(store.capacity(0)), device=store._device)


def record_graph(store: TileStore) -> None:
    """Record that the client is about to send a graph."""
    trace = _TRACES.get(id(store))
    if trace is not None:
        trace.events.append(("graph", None))


def recorded(store: TileStore) -> Trace:
    """Stop recording; returns the trace of a store."""
    return _TRACES.pop(id(store))


@functools.cache
def _instrument() -> None:
    # methods of the class are replaced once in a process
    set_, request, release = TileStore.__setitem__, TileStore.request, TileStore.release
    delete = TileStore.__delitem__
    numbers = itertools.count()
    names: dict[tuple[int, int], int] = {}

    def made(self: TileStore, key: Any, value: Any) -> None:
        set_(self, key, value)
        trace, entry = _TRACES.get(id(self)), self._entries.get(key)
        if trace is None:
            return
        if entry is not None:
            trace.made(key, value, sum(part.size for part in entry.parts))
        elif key in self._untracked:
            trace.made(key, value, self._untracked_sizes[key])

    def requested(
        self: TileStore, keys: Iterable[Any], then: Callable[[], object], *rest: Any, **options: Any
    ) -> int:
        trace = _TRACES.get(id(self))
        if trace is None:
            return request(self, keys, then, *rest, **options)
        keys, number = list(keys), next(numbers)

        def record_start() -> object:
            trace.starts(number, {key: self._values.get(key) for key in keys})
            return then()

        name = request(self, keys, record_start, *rest, **options)
        names[id(self), name] = number
        return name

    def released(self: TileStore, name: int) -> None:
        trace, number = _TRACES.get(id(self)), names.pop((id(self), name), None)
        if trace is not None and number is not None:
            trace.events.append(("ends", number))
        release(self, name)

    def deleted(self: TileStore, key: Any) -> None:
        trace = _TRACES.get(id(self))
        if trace is not None:
            trace.events.append(("gone", key))
        delete(self, key)

    TileStore.__delitem__ = deleted  # type: ignore[method-assign]
    TileStore.__setitem__ = made  # type: ignore[method-assign]
    TileStore.request = requested  # type: ignore[method-assign]
    TileStore.release = released  # type: ignore[method-assign]


def least_read(trace: Trace, together: bool = False) -> float:
    """Lower bound of the bytes that a store reads for the same requests in the same order.

    Tasks that run at the same time are taken one after the other, in the order of their starts.  A
    store has to hold the inputs and results of all of them at once, so that it may read more.

    Parameters
    ----------
    trace
        The requests.
    together
        Whether the inputs of a task are held until the task has ended, beside those of others.
    """
    steps = steps_of(trace.events, together)
    return transfer_bound(steps.steps, steps.sizes, trace.capacity, write_cost=0).read


def least_moved(trace: Trace) -> float:
    """Lower bound of the bytes read and written; see :func:`least_read`."""
    steps = steps_of(trace.events)
    bound = transfer_bound(steps.steps, steps.sizes, trace.capacity)
    return bound.read + bound.written


def known_read(trace: Trace) -> int:
    """Bytes read by the better of two simple rules, which use only the graphs sent so far.

    The rules evict the tile with the latest next use in these graphs.  Tiles without a next use
    come first: those that are deleted before the next graph is sent, then the least recently used
    ones, or, by the other rule, the most recently used ones.  This is no lower bound, but the
    result of a rule with knowledge of the order in which tasks run and other workers fetch.
    """
    steps = steps_of(trace.events, together=True)
    return min(_simulated(steps, trace.capacity, oldest) for oldest in (True, False))


def _simulated(trace: Steps, capacity: int, oldest: bool) -> int:
    uses: dict[Hashable, deque[int]] = defaultdict(deque)
    for time, step in enumerate(trace.steps):
        for tile in step.reads:
            uses[tile].append(time)
    memory: dict[Hashable, int] = {}
    read = 0
    for time, step in enumerate(trace.steps):
        busy = (*step.reads, *step.makes)
        for tile in busy:
            while uses[tile] and uses[tile][0] <= time:
                uses[tile].popleft()
            if tile not in memory and tile in step.reads:
                read += trace.sizes[tile]
            memory[tile] = time
        after = next((start for start in trace.came if start > time), _NEVER)

        def rank(tile: Hashable, time: int = time, after: int = after) -> tuple[int, int]:
            """Rank of a tile: tiles of lower rank are evicted first."""
            if uses[tile] and trace.known[uses[tile][0]] <= time:
                return 2, -uses[tile][0]
            if trace.gone.get(tile, _NEVER) < after:
                return 0, 0
            return 1, memory[tile] if oldest else -memory[tile]

        held = sum(trace.sizes[tile] for tile in memory)
        if held > capacity:
            for tile in sorted(memory.keys() - set(busy), key=rank):
                held -= trace.sizes[tile]
                del memory[tile]
                if held <= capacity:
                    break
    return read


@dataclass(frozen=True, slots=True)
class Steps:
    """A trace as a list of steps.

    Parameters
    ----------
    steps
        The steps, as for :func:`dasktile.schedule.bounds.transfer_bound`; values are numbered.
    sizes
        Bytes of every value.
    known
        For each step, the step at which its graph was sent.
    came
        The steps at which graphs were sent.
    gone
        The step at which a value was deleted, for the deleted ones.
    """

    steps: list[Step]
    sizes: dict[Hashable, int]
    known: list[int]
    came: list[int]
    gone: dict[Hashable, int]


def steps_of(events: Iterable[Event], together: bool = False) -> Steps:
    """A trace as a list of steps; see :func:`least_read`."""
    numbers = itertools.count()
    values: dict[Hashable, int] = {}
    alive: defaultdict[Hashable, set[Hashable]] = defaultdict(set)
    pins: dict[int, list[Hashable]] = {}
    result = Steps([], {}, [], [0], {})
    for kind, subject, *rest in events:
        if kind == "ends":
            pins.pop(subject, None)
            continue
        if kind == "graph":
            result.came.append(len(result.steps))
            continue
        if kind == "gone":
            if subject in values:
                alive[values[subject]].discard(subject)
                if not alive[values[subject]]:
                    result.gone[values[subject]] = len(result.steps)
            continue
        if kind == "made":
            size, base = rest
            # a view has no memory of its own
            values[subject] = values[base] if base in values else next(numbers)
            alive[values[subject]].add(subject)
            result.sizes.setdefault(values[subject], size)
            makes: tuple[Hashable, ...] = (values[subject],)
            reads: list[Hashable] = []
        else:
            reads, makes = [values[key] for key in rest[0] if key in values], ()
            pins[subject] = reads
        if together:
            reads = [key for pinned in pins.values() for key in pinned]
        if reads or makes:
            result.steps.append(Step(tuple(reads), makes))
            result.known.append(result.came[-1])
    return result
