"""An order for a graph and the swaps that go with it: the best of many, and how good it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dasktile.schedule import order as orders
from dasktile.schedule.bounds import Least, least_swaps, time_bound
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


@dataclass(slots=True)
class _Search:
    """The best plan so far."""

    graph: TaskGraph
    memory: Memory
    link: Link
    repeat: bool
    makespan: float = math.inf
    swaps: SwapPlan | None = None
    method: str = ""
    policy: Policy = ON_DEMAND
    tried: int = 0

    def price(self, steps: Walk, policy: Policy) -> tuple[float, SwapPlan]:
        """Plan, and see how long it takes."""
        plan = plan_walk(self.graph, steps, self.memory, policy, self.repeat)
        self.tried += 1
        return simulate(self.graph, plan, self.memory, self.link, steps).makespan, plan

    def offer(self, steps: Walk, policy: Policy, method: str) -> float:
        """Keep a plan if it is the best."""
        makespan, plan = self.price(steps, policy)
        if makespan < self.makespan:
            self.makespan, self.swaps = makespan, plan
            self.method, self.policy = method, policy
        return makespan


def plan(
    graph: TaskGraph,
    limit: int,
    link: Link | None = None,
    *,
    given: Mapping[str, npt.ArrayLike] | None = None,
    rules: Sequence[str] | None = None,
    policies: Sequence[Policy] = POLICIES,
    repeat: bool = False,
    search_seconds: float = 0.0,
    clock: Callable[[], float] | None = None,
    rng: np.random.Generator | None = None,
    bounds: bool = True,
    memory: Memory | None = None,
) -> Planned:
    """Find an order and swaps that take little time.

    Every rule for an order is tried with every policy; the best is kept, and changed for as
    long as there is time.  It is never slower than any of the orders given, nor than
    the program's own, whether those swap by plan or on demand.

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
        What is tried with every order.
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
    for name, order in candidates.items():
        if order.tobytes() in seen:
            continue
        seen.add(order.tobytes())
        steps = walk(graph, order, repeat)
        search.offer(steps, ON_DEMAND, f"{name}, on demand")
        for policy in policies:
            search.offer(steps, policy, f"{name}, {policy.lead} ahead")
    if search_seconds > 0 and clock is not None:
        anneal(search, search_seconds, clock, np.random.default_rng(0) if rng is None else rng)
    assert search.swaps is not None
    return _judged(search, search.swaps, limit, bounds)


def _judged(search: _Search, swaps: SwapPlan, limit: int, bounds: bool) -> Planned:
    """Say how good the best plan is."""
    graph, link = search.graph, search.link
    run = simulate(graph, swaps, search.memory, link, walk(graph, swaps.order, search.repeat))
    both = None
    touched = np.zeros(graph.data_count, np.bool_)
    touched[graph.touched.index] = True
    # what is in memory from the time before need not be read
    touched &= graph.present & ~swaps.started
    read = total = float(graph.size[touched].sum())
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
        time_bound(graph, swaps.order, limit, link.rates, read, total, started=swaps.started),
        both,
        read,
        search.method,
        search.tried,
    )


def anneal(
    search: _Search, seconds: float, clock: Callable[[], float], rng: np.random.Generator
) -> None:
    """Move operations about in the best order, as long as there is time.

    What is worse is taken too, the less likely the worse it is and the later.
    """
    assert search.swaps is not None
    start = clock()
    policy = search.policy
    order, makespan = search.swaps.order, search.makespan
    warm = 0.02 * makespan
    name = search.method
    while (part := (clock() - start) / seconds) < 1.0:
        changed = moved(search.graph, order, rng)
        if changed is None:
            return
        found = search.offer(
            walk(search.graph, changed, search.repeat), policy, f"{name}, annealed"
        )
        cold = warm * (1e-3 ** max(part, 0.0))
        if found <= makespan or rng.random() < math.exp((makespan - found) / cold):
            order, makespan = changed, found


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
