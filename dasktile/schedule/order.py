"""Orders to run operations in: several simple rules, none of which is the best everywhere.

A rule takes a graph and the bytes of memory there are, and gives every operation once, each
after those it needs.  Ties are broken by the number of an operation, that is by the order in
which it was given, so that names decide nothing.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from dasktile.schedule.taskgraph import Bools, Ints, RaggedArray, TaskGraph, topological

#: A graph and bytes of memory, to operations in an order that they may run in.
OrderRule = Callable[[TaskGraph, int], Ints]

_RULES: dict[str, OrderRule] = {}


def register_rule(name: str) -> Callable[[OrderRule], OrderRule]:
    """Register a rule.

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
        Naming those that there are.
    """
    if name not in _RULES:
        allowed = ", ".join(map(repr, _RULES))
        raise ValueError(f"unknown rule {name!r}; allowed are {allowed}")
    return _RULES[name]


@register_rule("program")
def program(graph: TaskGraph, limit: int) -> Ints:
    """As given, as far as what an operation needs comes first."""
    return topological(graph.before, graph.after)


@register_rule("depth-first")
def depth_first(graph: TaskGraph, limit: int) -> Ints:
    """For one result after the other, all that it needs just before it."""
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
                stack.extend(one for one in reversed(needs) if state[one] == 0)
                continue
            stack.pop()
            if state[op] == 1:
                state[op] = 2
                order.append(op)
    return np.array(order, np.int64)


@register_rule("min-memory")
def min_memory(graph: TaskGraph, limit: int) -> Ints:
    """What makes least, less what is dropped after it; of equals what could run last."""
    size = graph.size.tolist()
    touched = _to_lists(graph.touched)
    writes = _to_lists(graph.writes)
    # how many have not run of those that touch a datum, and the sum of their numbers
    left = [0] * graph.data_count
    who = [0] * graph.data_count
    for op, data in enumerate(touched):
        for datum in data:
            left[datum] += 1
            who[datum] += op
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
            who[datum] -= op
            if left[datum] == 1 and who[datum] in rank:
                put(who[datum])
        for follower in builder.append(op):
            since[follower] = len(builder.order)
            put(follower)
    return builder.result()


@register_rule("locality")
def locality(graph: TaskGraph, limit: int) -> Ints:
    """What reads the datum that was touched last, of all that something can be run on."""
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
    """All that can be run on the parameters in half of the memory, before others come."""
    return _darts(graph, limit // 2, graph.present & _large(graph))


@register_rule("darts")
def darts(graph: TaskGraph, limit: int) -> Ints:
    """All that can be run on what is in memory, then what enables most work for its bytes.

    After DARTS (Gonthier, Marchal and Thibault 2022): where nothing can be run on what is in
    memory, the datum comes in that is all that lacks to operations of most seconds for a byte.
    """
    return _darts(graph, limit, _large(graph), near=True)


@register_rule("darts, a quarter")
def darts_quarter(graph: TaskGraph, limit: int) -> Ints:
    """The same in a quarter of the memory, so that there is room to fetch ahead."""
    return _darts(graph, limit // 4, _large(graph))


def _large(graph: TaskGraph) -> Bools:
    """Data that are worth a decision: what is small beside them is taken to be in memory."""
    return graph.size * 64 >= graph.working_sets().max(initial=0)


def _darts(graph: TaskGraph, limit: int, counted: Bools, near: bool = False) -> Ints:
    """Orders as :func:`darts`, where only some data take room and can be out of memory.

    Of what can be run on what is in memory, what could not for the longest time comes first;
    with `near`, before that what reads the largest datum of the operation before.
    """
    size = graph.size.tolist()
    seconds = graph.time.tolist()
    # so that operations that take no time still are some work
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
    beside: list[list[int]] = [[] for _ in range(graph.data_count)]
    current: list[int] = []
    few: list[tuple[float, int]] = []

    def reads(op: int) -> list[int]:
        return touched[op][: len(touched[op]) - len(made[op])]

    def credit(op: int, sign: float) -> None:
        """Count an operation for the one datum that it lacks."""
        datum = next(one for one in reads(op) if one not in resident)
        gain[datum] += sign * (seconds[op] + least)
        heapq.heappush(best, (-gain[datum] / max(size[datum], 1), datum))

    def note(op: int) -> None:
        if lacks[op] == 0:
            heapq.heappush(runnable, (-enabled[op], op))
            if near:
                for datum in reads(op):
                    heapq.heappush(beside[datum], op)
        elif lacks[op] == 1:
            credit(op, 1.0)

    def enable(op: int) -> None:
        enabled[op] = len(builder.order)
        lacks[op] = 0
        for datum in reads(op):
            readers[datum][op] = None
            lacks[op] += datum not in resident
        bytes_ = sum(size[datum] for datum in reads(op))
        heapq.heappush(few, (bytes_ / (seconds[op] + least), op))
        note(op)

    def bring(datum: int) -> None:
        nonlocal used
        for op in readers[datum]:
            if lacks[op] == 1:
                gain[datum] = 0.0
        resident[datum] = None
        used += size[datum]
        for op in readers[datum]:
            lacks[op] -= 1
            note(op)

    def leave(datum: int) -> None:
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
        """Let leave what was used longest ago."""
        over = used + bytes_ - limit
        leaving = []
        for datum in resident:
            if over <= 0:
                break
            if datum not in held:
                leaving.append(datum)
                over -= size[datum]
        for datum in leaving:
            leave(datum)

    def fetch(data: list[int], held: set[int]) -> None:
        for datum in data:
            if datum not in resident:
                make_room(size[datum], held)
                bring(datum)

    enabled = [0] * len(graph)
    for op in builder.ready:
        enable(op)
    while lacks:
        op = -1
        for datum in current:
            while op < 0 and beside[datum]:
                one = heapq.heappop(beside[datum])
                if lacks.get(one) == 0:
                    op = one
        while runnable and op < 0:
            one = runnable[0][1]
            if lacks.get(one) == 0:
                op = one
            heapq.heappop(runnable)
        if op < 0:
            datum = _best_datum(best, gain, size, resident)
            if datum >= 0:
                fetch([datum], set().union(*(reads(one) for one in readers[datum])))
                continue
            while few[0][1] not in lacks:
                heapq.heappop(few)
            op = few[0][1]
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
                leave(datum)
        for follower in builder.append(op):
            enable(follower)
    return builder.result()


def _best_datum(
    best: list[tuple[float, int]],
    gain: list[float],
    size: list[int],
    resident: OrderedDict[int, None],
) -> int:
    """The datum that gains most for a byte, -1 if none does."""
    while best:
        rank, datum = best[0]
        if datum not in resident and gain[datum] > 0 and rank == -gain[datum] / max(size[datum], 1):
            return datum
        heapq.heappop(best)
    return -1


class _OrderBuilder:
    """An order as it grows.

    Attributes
    ----------
    order
        Operations that have run.
    ready
        Those that may run first.
    """

    def __init__(self, graph: TaskGraph) -> None:
        self.order: list[int] = []
        self._missing = np.diff(graph.before.pointer).tolist()
        self._pointer, self._index = graph.after.pointer.tolist(), graph.after.index.tolist()
        self.ready = [op for op, count in enumerate(self._missing) if count == 0]

    def append(self, op: int) -> list[int]:
        """Run an operation; what may run now and could not before."""
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
    return [index[pointer[one] : pointer[one + 1]] for one in range(len(lists))]
