"""What a store is asked for, in order, and the least bytes that any store must read for that."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dasktile.runtime.tiers import Device
from dasktile.runtime.worker.store import TileStore, memory_of
from dasktile.schedule.bounds import Step, transfer_bound

#: ("made", key, bytes, key of which it is a view or None), ("starts", number of the request,
#: keys), ("ends", number), ("gone", key) and ("graph", None) where the client sends one.
Event = tuple[Any, ...]

#: Beyond all steps.
_NEVER = 1 << 62


@dataclass(slots=True)
class Trace:
    """What one store was asked for.

    Parameters
    ----------
    capacity
        Bytes of its memory.
    events
        In order.
    device
        That it is the memory of, None for the host.
    """

    capacity: int
    events: list[Event] = field(default_factory=list)
    device: Device | None = None
    #: The first key of arrays that have been views of the same memory, by the number of it.
    _memory: dict[Hashable, tuple[weakref.ref[Any] | None, Any]] = field(default_factory=dict)

    def made(self, key: Any, value: Any, size: int) -> None:
        """A task has made a value."""
        base, whole = self._seen(key, value)
        self.events.append(("made", key, max(size, whole), None if base == key else base))

    def starts(self, number: int, values: Mapping[Any, Any]) -> None:
        """A task reads values."""
        for key, value in values.items():
            # views of what was read back are views of that
            self._seen(key, value)
        self.events.append(("starts", number, list(values)))

    def _seen(self, key: Any, value: Any) -> tuple[Any, int]:
        """The first key that had the memory of a value, and the bytes of it."""
        found = None if self.device is None else self.device.memory_of(value)
        if found is not None:
            # its number is never another's
            return self._memory.setdefault(found, (None, key))[1], found[1]
        array = memory_of(value)
        if array is None:
            return key, 0
        known = self._memory.get(id(array))
        if known is None or known[0] is None or known[0]() is not array:
            known = self._memory[id(array)] = (weakref.ref(array), key)
        return known[1], array.nbytes

    def __reduce__(self) -> Any:
        return Trace, (self.capacity, self.events)


_TRACES: dict[int, Trace] = {}


def start_recording(store: TileStore) -> None:
    """Record what a store is asked for from now on."""
    _instrument()
    _TRACES[id(store)] = Trace(int(store.capacity(0)), device=store._device)


def graph_comes(store: TileStore) -> None:
    """The client is about to send a graph."""
    trace = _TRACES.get(id(store))
    if trace is not None:
        trace.events.append(("graph", None))


def recorded(store: TileStore) -> Trace:
    """What a store was asked for; recording ends."""
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
        trace, unit = _TRACES.get(id(self)), self._units.get(key)
        if trace is not None and unit is not None:
            trace.made(key, value, unit.size)

    def requested(
        self: TileStore, keys: Iterable[Any], then: Callable[[], object], *rest: Any, **options: Any
    ) -> int:
        trace = _TRACES.get(id(self))
        if trace is None:
            return request(self, keys, then, *rest, **options)
        keys, number = list(keys), next(numbers)

        def tell() -> object:
            trace.starts(number, {key: self._values.get(key) for key in keys})
            return then()

        name = request(self, keys, tell, *rest, **options)
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
    """Bytes that any store must read that is asked for the same in the same order.

    Tasks that run at the same time are taken one after the other, as they start.  The store has
    to hold what several read at once, and what they make, so that it may need more.

    Parameters
    ----------
    trace
        What was asked for.
    together
        Whether what a task reads is held until the task has ended, beside what others read.
    """
    found = steps_of(trace.events, together)
    return transfer_bound(found.steps, found.sizes, trace.capacity, write_cost=0).read


def least_moved(trace: Trace) -> float:
    """Bytes that any store must read and write, as for :func:`least_read`."""
    found = steps_of(trace.events)
    bound = transfer_bound(found.steps, found.sizes, trace.capacity)
    return bound.read + bound.written


def known_read(trace: Trace) -> int:
    """Bytes read by the best of simple rules that know no graph before it comes.

    What leaves memory is what tasks of graphs that have come need last; of what none of them
    needs, first what is deleted before the next graph comes, then what was used longest ago, or
    last.  No bound: what a rule comes to that is told in which order tasks run and peers ask.
    """
    steps = steps_of(trace.events, together=True)
    return min(_simulated(steps, trace.capacity, oldest) for oldest in (True, False))


def _simulated(found: Steps, capacity: int, oldest: bool) -> int:
    uses: dict[Hashable, deque[int]] = defaultdict(deque)
    for time, step in enumerate(found.steps):
        for tile in step.reads:
            uses[tile].append(time)
    memory: dict[Hashable, int] = {}
    read = 0
    for time, step in enumerate(found.steps):
        busy = (*step.reads, *step.makes)
        for tile in busy:
            while uses[tile] and uses[tile][0] <= time:
                uses[tile].popleft()
            if tile not in memory and tile in step.reads:
                read += found.sizes[tile]
            memory[tile] = time
        after = next((one for one in found.came if one > time), _NEVER)

        def rank(tile: Hashable, time: int = time, after: int = after) -> tuple[int, int]:
            """The lower the sooner it leaves."""
            if uses[tile] and found.known[uses[tile][0]] <= time:
                return 2, -uses[tile][0]
            if found.gone.get(tile, _NEVER) < after:
                return 0, 0
            return 1, memory[tile] if oldest else -memory[tile]

        held = sum(found.sizes[tile] for tile in memory)
        if held > capacity:
            for tile in sorted(memory.keys() - set(busy), key=rank):
                held -= found.sizes[tile]
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
        Of :func:`dasktile.schedule.bounds.transfer_bound`; values are numbered.
    sizes
        Bytes of every value.
    known
        For each step, that at which its graph came.
    came
        Steps at which graphs came.
    gone
        The step at which a value was deleted, where it was.
    """

    steps: list[Step]
    sizes: dict[Hashable, int]
    known: list[int]
    came: list[int]
    gone: dict[Hashable, int]


def steps_of(events: Iterable[Event], together: bool = False) -> Steps:
    """A trace as a list of steps; see :func:`least_read`."""
    numbers = itertools.count()
    tiles: dict[Hashable, int] = {}
    alive: defaultdict[Hashable, set[Hashable]] = defaultdict(set)
    pins: dict[int, list[Hashable]] = {}
    found = Steps([], {}, [], [0], {})
    for kind, what, *rest in events:
        if kind == "ends":
            pins.pop(what, None)
            continue
        if kind == "graph":
            found.came.append(len(found.steps))
            continue
        if kind == "gone":
            if what in tiles:
                alive[tiles[what]].discard(what)
                if not alive[tiles[what]]:
                    found.gone[tiles[what]] = len(found.steps)
            continue
        if kind == "made":
            size, base = rest
            # a view takes no room of its own
            tiles[what] = tiles[base] if base in tiles else next(numbers)
            alive[tiles[what]].add(what)
            found.sizes.setdefault(tiles[what], size)
            made: tuple[Hashable, ...] = (tiles[what],)
            reads: list[Hashable] = []
        else:
            reads, made = [tiles[key] for key in rest[0] if key in tiles], ()
            pins[what] = reads
        if together:
            reads = [key for pinned in pins.values() for key in pinned]
        if reads or made:
            found.steps.append(Step(tuple(reads), made))
            found.known.append(found.came[-1])
    return found
