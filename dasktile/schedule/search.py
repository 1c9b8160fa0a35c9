"""An order for a graph and the swaps that go with it: the best of many, and how good it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dasktile.schedule import order as orders
from dasktile.schedule.bounds import Least, least_swaps, time_bound
from dasktile.schedule.compiled import COMPILED
from dasktile.schedule.simulate import Link, ideal, simulate
from dasktile.schedule.swaps import ON_DEMAND, Memory, Policy, SwapPlan, Walk, plan_walk, walk
from dasktile.schedule.taskgraph import Ints, TaskGraph

#: What is tried with every order.  How far ahead it pays to fetch depends on how much is fetched
#: at once and on how long operations take; nothing is the best everywhere.
POLICIES = (
    Policy(lead=4, back=1_000_000),
    Policy(lead=4),
    Policy(lead=16),
    Policy(lead=64),
    Policy(lead=192),
    Policy(lead=512),
)

#: What a second of copies costs that are hidden, in seconds: of plans that take as long the one
#: that copies less is better, where times are other than was thought.
THRIFT = 0.01

#: Operations beyond which fewer policies are tried.
MANY = 20_000

#: Operations beyond which bounds by linear program are left out.
BOUND_LIMIT = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """The best plan that was found.

    Attributes
    ----------
    order
        Operations in the order in which they run.
    swaps
        What is copied in and out then.
    makespan
        Seconds that it takes, by :func:`~dasktile.schedule.simulate.simulate`.
    swap_in_bytes, swap_out_bytes
        Of all copies.
    peak
        Bytes of memory in use at most.
    ideal
        Seconds of all operations, where memory has no end.
    bound
        Seconds that no plan for this order and memory can be below.
    least
        Bytes in both directions together that no plan for this order can be below, as a
        solution of least sum; None where it was not asked for.
    least_read
        Bytes in alone that no plan for this order can be below: by linear program too where
        `least` is, else what is on the host at the start and used.
    method
        How it was found: a rule for the order and operations fetched ahead.
    tried
        Plans that were simulated.
    """

    order: Ints
    swaps: SwapPlan
    makespan: float
    swap_in_bytes: int
    swap_out_bytes: int
    peak: int
    ideal: float
    bound: float
    least: Least | None
    least_read: float
    method: str
    tried: int


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """A plan, and how it was found."""

    makespan: float
    cost: float
    swaps: SwapPlan
    method: str
    policy: Policy


@dataclass(slots=True)
class _Search:
    """The best plans so far: the fastest, and the one of least cost."""

    graph: TaskGraph
    memory: Memory
    link: Link
    repeat: bool
    fastest: _Found | None = None
    best: _Found | None = None
    tried: int = 0

    def offer(self, steps: Walk, policy: Policy, method: str) -> _Found:
        """Plan, see how long it takes, and keep it if it is the best."""
        plan = plan_walk(self.graph, steps, self.memory, policy, self.repeat)
        self.tried += 1
        makespan = simulate(self.graph, plan, self.memory, self.link, steps).makespan
        inward, outward, _, _ = self.link.rates
        copies = plan.swap_in_bytes / inward + plan.swap_out_bytes / outward
        found = _Found(makespan, makespan + THRIFT * copies, plan, method, policy)
        if self.fastest is None or makespan < self.fastest.makespan:
            self.fastest = found
        if self.best is None or found.cost < self.best.cost:
            self.best = found
        return found

    def chosen(self, slowest: float) -> _Found:
        """The plan of least cost, if it takes no longer than that; else the fastest."""
        assert self.fastest is not None
        assert self.best is not None
        return self.best if self.best.makespan <= slowest else self.fastest


def plan(
    graph: TaskGraph,
    limit: int,
    link: Link | None = None,
    *,
    given: Mapping[str, npt.ArrayLike] | None = None,
    rules: Sequence[str] | None = None,
    policies: Sequence[Policy] | None = None,
    repeat: bool = False,
    search_seconds: float = 0.0,
    clock: Callable[[], float] | None = None,
    rng: np.random.Generator | None = None,
    bounds: bool = True,
    memory: Memory | None = None,
) -> Planned:
    """Find an order and swaps that take little time.

    Every rule for an order is tried with every policy; the best is kept, and changed for as
    long as there is time.  Of plans that take about as long, the best copies least.  It is
    never slower than any of the orders given, nor than the program's own, whether those swap
    by plan or on demand.

    Parameters
    ----------
    graph
        What runs.
    limit
        Bytes of memory.
    link
        What can be copied in a second; None for the default.
    given
        More orders to try, by name.
    rules
        Names of rules for an order (:func:`dasktile.schedule.order.rules`); None for all.
    policies
        What is tried with every order; None for :data:`POLICIES`, or fewer of them where trying
        takes long.
    repeat
        The order is run again and again; see :func:`~dasktile.schedule.swaps.plan_swaps`.
    search_seconds
        For how long changes of the best order are tried (simulated annealing).
    clock
        Tells the seconds since whenever; needed if `search_seconds` is above 0.
    rng
        Of the changes; None for one of seed 0.
    bounds
        Whether to find bounds of bytes by linear program, for graphs of at most
        :data:`BOUND_LIMIT` operations.
    memory
        How room is accounted, if not by bytes.

    Raises
    ------
    ValueError
        If an operation alone needs more than the limit, an order cannot be run, a rule is not
        known, or there is no clock to search by.
    """
    if search_seconds > 0 and clock is None:
        raise ValueError("search_seconds needs a clock to be measured by")
    if policies is None:
        policies = POLICIES if COMPILED and len(graph) <= MANY else POLICIES[:3]
    if not policies:
        raise ValueError("policies must have at least one")
    link = Link() if link is None else link
    memory = Memory.bytes(graph, limit) if memory is None else memory
    search = _Search(graph, memory, link, repeat)
    candidates = {name: graph.check_order(one) for name, one in (given or {}).items()}
    for name in orders.rules() if rules is None else rules:
        candidates.setdefault(name, orders.get(name)(graph, limit))
    candidates.setdefault("program", orders.get("program")(graph, limit))
    seen: set[bytes] = set()
    slowest = math.inf
    for name, order in candidates.items():
        known = name == "program" or name in (given or {})
        if order.tobytes() in seen and not known:
            continue
        seen.add(order.tobytes())
        steps = walk(graph, order, repeat)
        for policy in (ON_DEMAND, *policies):
            how = "on demand" if policy is ON_DEMAND else f"{policy.lead} ahead"
            found = search.offer(steps, policy, f"{name}, {how}")
            if known:
                slowest = min(slowest, found.makespan)
    if search_seconds > 0 and clock is not None:
        anneal(search, search_seconds, clock, np.random.default_rng(0) if rng is None else rng)
    return _judged(search, search.chosen(slowest), limit, bounds)


def _judged(search: _Search, found: _Found, limit: int, bounds: bool) -> Planned:
    """Say how good a plan is."""
    graph, link, swaps = search.graph, search.link, found.swaps
    run = simulate(graph, swaps, search.memory, link, walk(graph, swaps.order, search.repeat))
    both = None
    touched = np.zeros(graph.data_count, np.bool_)
    touched[graph.touched.index] = True
    touched &= graph.present
    read = total = float(graph.size[touched].sum())
    started = None
    if search.repeat:
        # as much as fits may be in memory from the time before, whatever that is
        read = total = max(0.0, read - limit)
        started = touched
    if bounds and len(graph) <= BOUND_LIMIT and not search.repeat:
        both = least_swaps(graph, swaps.order, limit)
        total = both.read + both.written
        read = least_swaps(graph, swaps.order, limit, write_cost=0.0).read
    return Planned(
        swaps.order,
        swaps,
        run.makespan,
        swaps.swap_in_bytes,
        swaps.swap_out_bytes,
        int(run.peak.sum()),
        ideal(graph),
        time_bound(graph, swaps.order, limit, link.rates, read, total, started=started),
        both,
        read,
        found.method,
        search.tried,
    )


def anneal(
    search: _Search, seconds: float, clock: Callable[[], float], rng: np.random.Generator
) -> None:
    """Move operations about in the best order, as long as there is time.

    What is worse is taken too, the less likely the worse it is and the later.
    """
    start = clock()
    best = search.chosen(math.inf)
    order, cost = best.swaps.order, best.cost
    warm = 0.02 * cost
    while (part := (clock() - start) / seconds) < 1.0:
        changed = moved(search.graph, order, rng)
        if changed is None:
            return
        steps = walk(search.graph, changed, search.repeat)
        found = search.offer(steps, best.policy, f"{best.method}, annealed")
        cold = warm * (1e-3 ** max(part, 0.0))
        if found.cost <= cost or rng.random() < math.exp((cost - found.cost) / cold):
            order, cost = changed, found.cost


def moved(graph: TaskGraph, order: Ints, rng: np.random.Generator) -> Ints | None:
    """An order with one operation elsewhere, None if no operation can go anywhere."""
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    for op in _some(len(order), rng):
        before, after = graph.before[op], graph.after[op]
        first = int(position[before].max()) + 1 if len(before) else 0
        last = int(position[after].min()) - 1 if len(after) else len(order) - 1
        if first < last:
            at = int(position[op])
            to = int(rng.integers(first, last))
            to += to >= at
            return np.insert(np.delete(order, at), to, op)
    return None


def _some(count: int, rng: np.random.Generator) -> Iterator[int]:
    """Operations by chance, then all of them."""
    if count:
        yield from rng.integers(0, count, 64).tolist()
    yield from range(count)
