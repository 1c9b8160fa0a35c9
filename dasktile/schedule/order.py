"""Orders of operations by simple rules, of which none is best for all graphs.

An order rule takes a graph and the bytes of memory, and returns every operation once, after its
dependencies.  Ties are broken by the number of an operation, that is by the order in which the
operations were given, so that names have no influence.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from dasktile.schedule.taskgraph import Bools, Ints, RaggedArray, TaskGraph, topological

#: Function of a graph and bytes of memory that returns the operations in a valid order.
OrderRule = Callable[[TaskGraph, int], Ints]

_RULES: dict[str, OrderRule] = {}


def register_rule(name: str) -> Callable[[OrderRule], OrderRule]:
    """Decorator that registers an order rule under a name.

    Raises
    ------
    ValueError
        If the name is taken.
    """

    def register(function: OrderRule) -> OrderRule:
        if name in _RULES:
            raise ValueError(f"a rule named {name!r} is registered already")
        _RULES[name] = function
        return function

    return register


def rule_names() -> tuple[str, ...]:
    """Names of all rules, in the order in which they were registered."""
    return tuple(_RULES)


def get_rule(name: str) -> OrderRule:
    """The rule of a name.

    Raises
    ------
    ValueError
        If there is none; it lists the registered names.
    """
    if name not in _RULES:
        allowed = ", ".join(map(repr, _RULES))
        raise ValueError(f"unknown rule {name!r}; allowed are {allowed}")
    return _RULES[name]


@register_rule("program")
def program(graph: TaskGraph, limit: int) -> Ints:
    """The given order, changed only where a dependency must come first."""
    return topological(graph.before, graph.after)


@register_rule("depth-first")
def depth_first(graph: TaskGraph, limit: int) -> Ints:
    """Depth first: for one result after the other, its dependencies just before it."""
    pointer, index = graph.before.pointer.tolist(), graph.before.index.tolist()
    state = [0] * len(graph)
    order: list[int] = []
    for last in np.flatnonzero(np.diff(graph.after.pointer) == 0).tolist():
        stack = [last]
        while stack:
            op = stack[-1]
            if state[op] == 0:
                state[op] = 1
                needs = index[pointer[op] : pointer[op + 1]]
                stack.extend(needed for needed in reversed(needs) if state[needed] == 0)
                continue
            stack.pop()
            if state[op] == 1:
                state[op] = 2
                order.append(op)
    return np.array(order, np.int64)


@register_rule("min-memory")
def min_memory(graph: TaskGraph, limit: int) -> Ints:
    """Least growth of memory first; of equals the operation that became runnable last.

    The growth is the bytes that an operation makes, less those that are dropped after it.
    """
    size = graph.size.tolist()
    touched = _to_lists(graph.touched)
    writes = _to_lists(graph.writes)
    # by datum, count and sum of the numbers of the operations that use it and have not run
    left = [0] * graph.data_count
    numbers = [0] * graph.data_count
    for op, data in enumerate(touched):
        for datum in data:
            left[datum] += 1
            numbers[datum] += op
    dropped = (~graph.kept).tolist()

    def growth(op: int) -> int:
        freed = sum(size[datum] for datum in touched[op] if left[datum] == 1 and dropped[datum])
        return sum(size[datum] for datum in writes[op]) - freed

    builder = _OrderBuilder(graph)
    since = [0] * len(graph)
    rank: dict[int, tuple[int, int, int]] = {}
    heap: list[tuple[int, int, int]] = []

    def put(op: int) -> None:
        entry = growth(op), -since[op], op
        if rank.get(op) != entry:
            rank[op] = entry
            heapq.heappush(heap, entry)

    for op in builder.ready:
        put(op)
    while heap:
        entry = heapq.heappop(heap)
        op = entry[2]
        if rank.get(op) != entry:
            continue
        del rank[op]
        for datum in touched[op]:
            left[datum] -= 1
            numbers[datum] -= op
            if left[datum] == 1 and numbers[datum] in rank:
                put(numbers[datum])
        for follower in builder.append(op):
            since[follower] = len(builder.order)
            put(follower)
    return builder.result()


@register_rule("locality")
def locality(graph: TaskGraph, limit: int) -> Ints:
    """Runnable operations that use the most recently used datum first."""
    touched = _to_lists(graph.touched)
    builder = _OrderBuilder(graph)
    waiting: list[list[int]] = [[] for _ in range(graph.data_count)]
    touch = [-1] * graph.data_count
    recent: list[tuple[int, int]] = []
    fresh: list[int] = []
    ran = [False] * len(graph)

    def enable(op: int) -> None:
        heapq.heappush(fresh, op)
        for datum in touched[op]:
            heapq.heappush(waiting[datum], op)
            if touch[datum] >= 0:
                heapq.heappush(recent, (-touch[datum], datum))

    for op in builder.ready:
        enable(op)
    while fresh:
        op = -1
        while recent and op < 0:
            time, datum = recent[0]
            line = waiting[datum]
            while line and ran[line[0]]:
                heapq.heappop(line)
            if line and touch[datum] == -time:
                op = line[0]
            else:
                heapq.heappop(recent)
        if op < 0:
            op = heapq.heappop(fresh)
            if ran[op]:
                continue
        ran[op] = True
        for datum in touched[op]:
            touch[datum] = len(builder.order)
            if waiting[datum]:
                heapq.heappush(recent, (-touch[datum], datum))
        for follower in builder.append(op):
            enable(follower)
    return builder.result()


@register_rule("parameters")
def parameters(graph: TaskGraph, limit: int) -> Ints:
    """As :func:`darts` in half of the memory, where only large data on the host take room."""
    return _darts(graph, limit // 2, graph.present & _large(graph))


@register_rule("darts")
def darts(graph: TaskGraph, limit: int) -> Ints:
    """Operations whose data are in memory first; then fetch the datum that enables most work.

    After DARTS (Gonthier, Marchal and Thibault 2022): if no operation can run with the data in
    memory, fetch the datum with the most seconds per byte of operations that lack only it.
    """
    return _darts(graph, limit, _large(graph), near=True)


@register_rule("darts, a quarter")
def darts_quarter(graph: TaskGraph, limit: int) -> Ints:
    """As :func:`darts` in a quarter of the memory, which leaves room for prefetches."""
    return _darts(graph, limit // 4, _large(graph))


def _large(graph: TaskGraph) -> Bools:
    """Data of at least 1/64 of the largest working set; smaller ones count as in memory."""
    return graph.size * 64 >= graph.working_sets().max(initial=0)


def _darts(graph: TaskGraph, limit: int, counted: Bools, near: bool = False) -> Ints:
    """Order as :func:`darts`; only the `counted` data take room and can be out of memory.

    Of the operations whose data are in memory, the one that became runnable last is next.  With
    `near`, operations that read the largest data of the previous operation come before it.
    """
    size = graph.size.tolist()
    seconds = graph.time.tolist()
    # added to every duration, so that operations of zero seconds count, too
    least = max(float(graph.time.max(initial=0.0)), 1e-30) * 1e-6
    touched = [[datum for datum in data if counted[datum]] for data in _to_lists(graph.touched)]
    made = [[datum for datum in data if counted[datum]] for data in _to_lists(graph.writes)]
    builder = _OrderBuilder(graph)
    uses = [0] * graph.data_count
    for data in touched:
        for datum in data:
            uses[datum] += 1
    resident: OrderedDict[int, None] = OrderedDict()
    used = 0
    readers: list[dict[int, None]] = [{} for _ in range(graph.data_count)]
    lacks: dict[int, int] = {}
    gain = [0.0] * graph.data_count
    best: list[tuple[float, int]] = []
    runnable: list[tuple[int, int]] = []
    nearby: list[list[int]] = [[] for _ in range(graph.data_count)]
    current: list[int] = []
    cheapest: list[tuple[float, int]] = []

    def reads(op: int) -> list[int]:
        return touched[op][: len(touched[op]) - len(made[op])]

    def credit(op: int, sign: float) -> None:
        """Add the seconds of an operation to the gain of the only datum that it lacks."""
        datum = next(read for read in reads(op) if read not in resident)
        gain[datum] += sign * (seconds[op] + least)
        heapq.heappush(best, (-gain[datum] / max(size[datum], 1), datum))

    def classify(op: int) -> None:
        if lacks[op] == 0:
            heapq.heappush(runnable, (-enabled[op], op))
            if near:
                for datum in reads(op):
                    heapq.heappush(nearby[datum], op)
        elif lacks[op] == 1:
            credit(op, 1.0)

    def enable(op: int) -> None:
        enabled[op] = len(builder.order)
        lacks[op] = 0
        for datum in reads(op):
            readers[datum][op] = None
            lacks[op] += datum not in resident
        bytes_ = sum(size[datum] for datum in reads(op))
        heapq.heappush(cheapest, (bytes_ / (seconds[op] + least), op))
        classify(op)

    def load(datum: int) -> None:
        nonlocal used
        for op in readers[datum]:
            if lacks[op] == 1:
                gain[datum] = 0.0
        resident[datum] = None
        used += size[datum]
        for op in readers[datum]:
            lacks[op] -= 1
            classify(op)

    def evict(datum: int) -> None:
        nonlocal used
        for op in readers[datum]:
            if lacks[op] == 1:
                credit(op, -1.0)
        del resident[datum]
        used -= size[datum]
        for op in readers[datum]:
            lacks[op] += 1
            if lacks[op] == 1:
                credit(op, 1.0)

    def make_room(bytes_: int, held: set[int]) -> None:
        """Evict the least recently used data."""
        over = used + bytes_ - limit
        victims = []
        for datum in resident:
            if over <= 0:
                break
            if datum not in held:
                victims.append(datum)
                over -= size[datum]
        for datum in victims:
            evict(datum)

    def fetch(data: list[int], held: set[int]) -> None:
        for datum in data:
            if datum not in resident:
                make_room(size[datum], held)
                load(datum)

    enabled = [0] * len(graph)
    for op in builder.ready:
        enable(op)
    while lacks:
        op = -1
        for datum in current:
            while op < 0 and nearby[datum]:
                candidate = heapq.heappop(nearby[datum])
                if lacks.get(candidate) == 0:
                    op = candidate
        while runnable and op < 0:
            candidate = runnable[0][1]
            if lacks.get(candidate) == 0:
                op = candidate
            heapq.heappop(runnable)
        if op < 0:
            datum = _best_datum(best, gain, size, resident)
            if datum >= 0:
                fetch([datum], set().union(*(reads(reader) for reader in readers[datum])))
                continue
            while cheapest[0][1] not in lacks:
                heapq.heappop(cheapest)
            op = cheapest[0][1]
            fetch(reads(op), set(reads(op)))
            continue
        held = set(touched[op])
        if near and held:
            current = sorted(held, key=lambda datum: (-size[datum], datum))
        del lacks[op]
        for datum in reads(op):
            del readers[datum][op]
        fetch(made[op], held)
        for datum in touched[op]:
            uses[datum] -= 1
            resident.move_to_end(datum)
            if uses[datum] == 0:
                evict(datum)
        for follower in builder.append(op):
            enable(follower)
    return builder.result()


def _best_datum(
    best: list[tuple[float, int]],
    gain: list[float],
    size: list[int],
    resident: OrderedDict[int, None],
) -> int:
    """The datum of the largest gain in seconds per byte, -1 if there is none."""
    while best:
        rank, datum = best[0]
        if datum not in resident and gain[datum] > 0 and rank == -gain[datum] / max(size[datum], 1):
            return datum
        heapq.heappop(best)
    return -1


class _OrderBuilder:
    """An order that is built operation by operation.

    Attributes
    ----------
    order
        The operations so far.
    ready
        Operations without dependencies.
    """

    def __init__(self, graph: TaskGraph) -> None:
        self.order: list[int] = []
        self._missing = np.diff(graph.before.pointer).tolist()
        self._pointer, self._index = graph.after.pointer.tolist(), graph.after.index.tolist()
        self.ready = [op for op, count in enumerate(self._missing) if count == 0]

    def append(self, op: int) -> list[int]:
        """Append an operation; returns the operations that become runnable."""
        self.order.append(op)
        now = []
        for follower in self._index[self._pointer[op] : self._pointer[op + 1]]:
            self._missing[follower] -= 1
            if self._missing[follower] == 0:
                now.append(follower)
        return now

    def result(self) -> Ints:
        return np.array(self.order, np.int64)


def _to_lists(lists: RaggedArray) -> list[list[int]]:
    pointer, index = lists.pointer.tolist(), lists.index.tolist()
    return [index[start:end] for start, end in pairwise(pointer)]
