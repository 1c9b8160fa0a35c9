"""Choice of an order and of its swaps: the best of many simulated plans, with lower bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dasktile.schedule import order as orders
from dasktile.schedule.bounds import TransferBound, swap_bound, time_bound
from dasktile.schedule.compiled import COMPILED
from dasktile.schedule.simulate import HostLink, ideal, simulate
from dasktile.schedule.swaps import (
    ON_DEMAND,
    Memory,
    Policy,
    SwapPlan,
    TracedOrder,
    plan_traced_order,
    trace_order,
)
from dasktile.schedule.taskgraph import Ints, TaskGraph

#: Policies that are simulated with every order.  The best prefetch distance depends on the bytes
#: per operation and on how long operations take; no distance is best for all graphs.
POLICIES = (
    Policy(lead=4, back=1_000_000),
    Policy(lead=4),
    Policy(lead=16),
    Policy(lead=64),
    Policy(lead=192),
    Policy(lead=512),
)


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Weights and limits of the search.

    Parameters
    ----------
    copy_weight
        Cost of one second of copies, in seconds of makespan.  Of plans with nearly the same
        makespan the one that copies less is chosen: it is better if the real durations or
        bandwidths differ from the assumed ones.
    many_operations
        Operations above which only `few_policies` policies are simulated by default.
    few_policies
        Policies simulated by default for large graphs, and where loops are not compiled.
    bound_operations
        Operations above which no linear program is solved for a lower bound of bytes.
    start_temperature
        Temperature at which simulated annealing starts, relative to the cost of the first plan.
    end_temperature
        Temperature at which it ends, relative to that at which it starts.
    """

    copy_weight: float = 0.01
    many_operations: int = 20_000
    few_policies: int = 3
    bound_operations: int = 10_000
    start_temperature: float = 0.02
    end_temperature: float = 1e-3


_DEFAULT = SearchSettings()


@dataclass(frozen=True, slots=True, eq=False)
class SearchResult:
    """The best plan of a search, and lower bounds for its order.

    Attributes
    ----------
    order
        Operations in the order in which they run.
    swaps
        Copies into memory and out of it.
    makespan
        Seconds, by :func:`~dasktile.schedule.simulate.simulate`.
    swap_in_bytes, swap_out_bytes
        Bytes of all copies.
    peak
        Most bytes in memory at any time.
    ideal
        Seconds of all operations with unlimited memory.
    time_bound
        Lower bound of the makespan of any plan for this order and memory, in seconds.
    swap_bound
        Lower bound of the bytes in both directions together for this order; None if it was not
        requested or the graph is too large.
    read_bound
        Lower bound of the bytes copied in alone for this order.  Where `swap_bound` is None this
        is the size of the data that are on the host at the start and used.
    method
        The rule that gave the order, and the prefetch distance in operations.
    tried
        Number of plans that were simulated.
    finalists
        The orders that were tried and the rules that gave them, those of the best plans first.
    """

    order: Ints
    swaps: SwapPlan
    makespan: float
    swap_in_bytes: int
    swap_out_bytes: int
    peak: int
    ideal: float
    time_bound: float
    swap_bound: TransferBound | None
    read_bound: float
    method: str
    tried: int
    finalists: tuple[tuple[str, Ints], ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A simulated plan.

    Attributes
    ----------
    makespan
        Seconds.
    cost
        Seconds, with the weighted time of all copies.
    rule, policy
        Where its order and its swaps come from.
    method
        Both, as text.
    """

    makespan: float
    cost: float
    swaps: SwapPlan
    rule: str
    policy: Policy

    @property
    def method(self) -> str:
        how = "on demand" if self.policy is ON_DEMAND else f"{self.policy.lead} ahead"
        return f"{self.rule}, {how}"


@dataclass(slots=True)
class _PlanSearch:
    """The best plans so far: of the least makespan, of the least cost, and of every rule."""

    graph: TaskGraph
    memory: Memory
    link: HostLink
    repeat: bool
    settings: SearchSettings
    fastest: _Candidate | None = None
    best: _Candidate | None = None
    by_rule: dict[str, _Candidate] = field(default_factory=dict)
    tried: int = 0

    def offer(self, steps: TracedOrder, policy: Policy, rule: str) -> _Candidate:
        """Plan and simulate an order, and keep the plan if it is the best."""
        plan = plan_traced_order(self.graph, steps, self.memory, policy, self.repeat)
        self.tried += 1
        makespan = simulate(self.graph, plan, self.memory, self.link, steps).makespan
        inward, outward, _, _ = self.link.rates
        copies = plan.swap_in_bytes / inward + plan.swap_out_bytes / outward
        cost = makespan + self.settings.copy_weight * copies
        candidate = _Candidate(makespan, cost, plan, rule, policy)
        if rule not in self.by_rule or cost < self.by_rule[rule].cost:
            self.by_rule[rule] = candidate
        if self.fastest is None or makespan < self.fastest.makespan:
            self.fastest = candidate
        if self.best is None or cost < self.best.cost:
            self.best = candidate
        return candidate

    def chosen(self, slowest: float) -> _Candidate:
        """The plan of the least cost if its makespan is at most `slowest`, else the fastest."""
        assert self.fastest is not None
        assert self.best is not None
        return self.best if self.best.makespan <= slowest else self.fastest


def plan(
    graph: TaskGraph,
    limit: int,
    link: HostLink | None = None,
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
    settings: SearchSettings = _DEFAULT,
) -> SearchResult:
    """Find an order and swaps of a small makespan.

    Every order is simulated with every policy.  The best plan is the start of a local search,
    if there is time for one.  Of plans with nearly the same makespan the one that copies least
    is chosen.  The result is never slower than a given order or the order of the program, with
    planned swaps or with fetching on demand.

    Parameters
    ----------
    graph
        The operations.
    limit
        Bytes of memory.
    link
        Bandwidths between the memory and the host; None for the default.
    given
        Further orders, by name.
    rules
        Names of order rules (:func:`dasktile.schedule.order.rule_names`); None for all.
    policies
        Policies simulated with every order; None for :data:`POLICIES`, or the first few of them
        for a large graph.
    repeat
        The order runs in a loop; see :func:`~dasktile.schedule.swaps.plan_swaps`.
    search_seconds
        Seconds of local search (simulated annealing), by `clock`.
    clock
        Function that returns a time in seconds; needed if `search_seconds` is above 0.
    rng
        Random generator of the local search; None for one with seed 0.
    bounds
        Whether to solve linear programs for lower bounds of bytes.
    memory
        How memory is accounted; None for bytes.
    settings
        Weights and limits of the search.

    Raises
    ------
    ValueError
        If an operation alone needs more than the limit, an order is not valid, a rule is
        unknown, or there is no clock for the search.
    """
    if search_seconds > 0 and clock is None:
        raise ValueError("search_seconds needs a clock")
    if policies is None:
        small = COMPILED and len(graph) <= settings.many_operations
        policies = POLICIES if small else POLICIES[: settings.few_policies]
    if not policies:
        raise ValueError("policies must have at least one")
    link = HostLink() if link is None else link
    memory = Memory.bytes(graph, limit) if memory is None else memory
    search = _PlanSearch(graph, memory, link, repeat, settings)
    candidates = {name: graph.check_order(order) for name, order in (given or {}).items()}
    for name in orders.rule_names() if rules is None else rules:
        candidates.setdefault(name, orders.get_rule(name)(graph, limit))
    candidates.setdefault("program", orders.get_rule("program")(graph, limit))
    seen: set[bytes] = set()
    slowest = math.inf
    for name, order in candidates.items():
        reference = name == "program" or name in (given or {})
        if order.tobytes() in seen and not reference:
            continue
        seen.add(order.tobytes())
        steps = trace_order(graph, order, repeat)
        for policy in (ON_DEMAND, *policies):
            candidate = search.offer(steps, policy, name)
            if reference:
                slowest = min(slowest, candidate.makespan)
    if search_seconds > 0 and clock is not None:
        anneal(search, search_seconds, clock, np.random.default_rng(0) if rng is None else rng)
    return _evaluate(search, search.chosen(slowest), limit, bounds)


def _evaluate(search: _PlanSearch, candidate: _Candidate, limit: int, bounds: bool) -> SearchResult:
    """Add peak memory and lower bounds to a plan."""
    graph, link, swaps = search.graph, search.link, candidate.swaps
    steps = trace_order(graph, swaps.order, search.repeat)
    run = simulate(graph, swaps, search.memory, link, steps)
    most = search.settings.bound_operations if bounds else 0
    bound = lower_bounds(graph, swaps.order, limit, link, search.repeat, most)
    best = sorted(search.by_rule.values(), key=lambda each: each.cost)
    return SearchResult(
        swaps.order,
        swaps,
        run.makespan,
        swaps.swap_in_bytes,
        swaps.swap_out_bytes,
        int(run.peak.sum()),
        ideal(graph),
        bound.seconds,
        bound.swapped,
        bound.read,
        candidate.method,
        search.tried,
        tuple((each.rule, each.swaps.order) for each in best),
    )


@dataclass(frozen=True, slots=True)
class LowerBounds:
    """Lower bounds for all plans of an order.

    Attributes
    ----------
    seconds
        Of the makespan.
    swapped
        Of the bytes in both directions together; None if no linear program was solved.
    read
        Of the bytes copied in alone.
    """

    seconds: float
    swapped: TransferBound | None
    read: float


def lower_bounds(
    graph: TaskGraph,
    order: Ints,
    limit: int,
    link: HostLink,
    repeat: bool = False,
    bound_operations: int = _DEFAULT.bound_operations,
) -> LowerBounds:
    """Lower bounds of the seconds and bytes of an order.

    Parameters
    ----------
    graph, order, limit, link, repeat
        As for :func:`plan`.
    bound_operations
        As `SearchSettings.bound_operations`.
    """
    both = None
    touched = np.zeros(graph.data_count, np.bool_)
    touched[graph.touched.index] = True
    touched &= graph.present
    read = total = float(graph.size[touched].sum())
    started = None
    if repeat:
        # data that fit may be in memory from the previous repetition
        read = total = max(0.0, read - limit)
        started = touched
    if len(graph) <= bound_operations and not repeat:
        both = swap_bound(graph, order, limit)
        total = both.read + both.written
        read = swap_bound(graph, order, limit, write_cost=0.0).read
    seconds = time_bound(graph, order, limit, link.rates, read, total, started=started)
    return LowerBounds(seconds, both, read)


def anneal(
    search: _PlanSearch, seconds: float, clock: Callable[[], float], rng: np.random.Generator
) -> None:
    """Improve the best order by moving single operations (simulated annealing).

    A change for the worse is accepted with a probability that falls with its cost and with time.
    """
    start = clock()
    best = search.chosen(math.inf)
    order, cost = best.swaps.order, best.cost
    hot = search.settings.start_temperature * cost
    while (elapsed := (clock() - start) / seconds) < 1.0:
        changed = move_operation(search.graph, order, rng)
        if changed is None:
            return
        steps = trace_order(search.graph, changed, search.repeat)
        candidate = search.offer(steps, best.policy, f"{best.rule}, annealed")
        temperature = hot * (search.settings.end_temperature ** max(elapsed, 0.0))
        worse = candidate.cost - cost
        if worse <= 0 or rng.random() < math.exp(-worse / temperature):
            order, cost = changed, candidate.cost


def move_operation(graph: TaskGraph, order: Ints, rng: np.random.Generator) -> Ints | None:
    """The order with one operation moved, None if no operation can be moved."""
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    for op in _operations_to_move(len(order), rng):
        before, after = graph.before[op], graph.after[op]
        first = int(position[before].max()) + 1 if len(before) else 0
        last = int(position[after].min()) - 1 if len(after) else len(order) - 1
        if first < last:
            source = int(position[op])
            target = int(rng.integers(first, last))
            target += target >= source
            return np.insert(np.delete(order, source), target, op)
    return None


def _operations_to_move(count: int, rng: np.random.Generator) -> Iterator[int]:
    """64 random operations, then all in order."""
    if count:
        yield from rng.integers(0, count, 64).tolist()
    yield from range(count)
