"""SwapAdvisor's genetic algorithm: which order, and which pool of size classes.

An individual is an order of the operations and a pool of size classes, the lists CLS and CNT
of :mod:`benchmarks.papers.algorithms.chromosomes` (thesis of C.-C. Huang, section 4.4; Huang,
Jin and Li, ASPLOS 2020).

What the thesis leaves open: among the first pools every share of steps in CLS is as likely;
CNT mutates by a Gaussian of a fifth of what it is, and at least one object; a generation has
as many children as parents; no class gets fewer objects than an operation needs together.
A pool that cannot have them is as bad as can be.

As printed (``literal=True``) survival hardly depends on how good an individual is: one that
takes a tenth longer is kept with 0.9 times the probability.  By default differences are
divided by a temperature, the best survive in any case, good orders known beforehand are
among the first, some mutations are rare enough to keep most of an order, and what a repaired
pool leaves of the memory is given out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.papers.algorithms.allocate import Pool, objects_needed
from benchmarks.papers.algorithms.chromosomes import (
    averaged,
    blocks_of,
    cross_orders,
    cross_pools,
    extended,
    fill_cnt,
    mutate_cls,
    mutate_cnt,
    mutate_order,
    repair_cnt,
    survival,
)
from dasktile.schedule.simulate import HostLink, simulate
from dasktile.schedule.swaps import Memory, Policy, plan_swaps
from dasktile.schedule.taskgraph import Floats, Ints, TaskGraph

#: Seconds that an order takes in a pool; ``inf`` if it cannot run.
Evaluate = Callable[[Ints, Pool], float]


#: SwapAdvisor's planner: what is needed last leaves when its room is needed, but not what the
#: operation before has used; copies in start as early as there is room.
AS_WRITTEN = Policy(lead=0, back=1_000_000, fill=False, dirty_factor=1.0, threshold=1)


def in_classes(
    graph: TaskGraph, link: HostLink, policy: Policy = AS_WRITTEN, *, repeat: bool = False
) -> Evaluate:
    """Plan the swaps of an order in a pool of size classes, and see how long they take."""

    def evaluate(order: Ints, pool: Pool) -> float:
        memory = Memory.classes(pool.of, pool.counts.tolist())
        try:
            plan = plan_swaps(graph, order, memory, policy, repeat)
            return simulate(graph, plan, memory, link).makespan
        except ValueError:
            # It does not fit, or waits for ever.
            return math.inf

    return evaluate


@dataclass(frozen=True, slots=True, eq=False)
class Individual:
    """An order, the lists CLS and CNT, and the seconds that it takes."""

    order: Ints
    cls: Ints
    cnt: Ints
    seconds: float


@dataclass(frozen=True, slots=True)
class Evolved:
    """What a search has found.

    Attributes
    ----------
    best, pool
        The best of all individuals, and its pool.
    history
        For every generation the seconds of its best, the mean, and its worst; of those that
        can run.
    evaluations
        How many individuals were tried.
    """

    best: Individual
    pool: Pool
    history: tuple[tuple[float, float, float], ...]
    evaluations: int


@dataclass(frozen=True, slots=True, eq=False)
class Seed:
    """A good order known beforehand.

    Attributes
    ----------
    order
        Operations.
    objects
        Shape ``(data,)``: the part of the time that each datum is in a memory accounted by
        bytes; see :func:`benchmarks.papers.algorithms.allocate.time_in_memory`.  Pools are made
        for it.
    """

    order: npt.ArrayLike
    objects: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """What individuals are made of, and how."""

    graph: TaskGraph
    capacity: int
    evaluate: Evaluate
    rng: np.random.Generator
    literal: bool
    mutation: float
    sizes: Ints
    which: Ints

    def pool(self, cls: Ints, cnt: Ints) -> Pool:
        return Pool(cls[self.which] - 1, blocks_of(cls, self.sizes), cnt)

    def individual(self, order: Ints, cls: Ints, cnt: Ints) -> Individual:
        """Repair the pool, and see how long the order takes in it."""
        blocks = blocks_of(cls, self.sizes)
        least = objects_needed(self.graph, cls[self.which] - 1, len(blocks))
        cnt = repair_cnt(cnt, blocks, self.capacity, least)
        seconds = math.inf
        if int(cnt @ blocks) <= self.capacity:
            if not self.literal:
                cnt = fill_cnt(cnt, blocks, self.capacity, self.rng)
            seconds = self.evaluate(order, self.pool(cls, cnt))
        return Individual(order, cls, cnt, seconds)

    def first(self, seed: Seed | None) -> Individual:
        """One of the first generation; its pool fits, if one in a hundred does."""
        if seed is None:
            order = mutate_order(self.graph, np.arange(len(self.graph)), 1.0, self.rng)
        else:
            order = self.graph.check_order(seed.order)
        for _ in range(100):
            one = self._any_pool(order, None if seed is None else seed.objects)
            if math.isfinite(one.seconds):
                break
        return one

    def _any_pool(self, order: Ints, objects: Floats | None) -> Individual:
        rng = self.rng
        steps = rng.random(len(self.sizes) - 1) < rng.random()
        cls = np.concatenate([[1], 1 + np.cumsum(steps)])
        blocks = blocks_of(cls, self.sizes)
        share = rng.exponential(size=len(blocks))
        if objects is not None:
            # bytes of as many as there are on average, give or take some
            share = blocks * np.bincount(cls[self.which] - 1, weights=objects) * (1 + share / 4)
        cnt = (share / share.sum() * self.capacity / blocks).astype(np.int64)
        return self.individual(order, cls, cnt)

    def rate(self) -> float:
        """Of mutations: by default, any from as given to its cube."""
        return self.mutation if self.literal else self.mutation ** (1 + 2 * self.rng.random())

    def children(self, one: Individual, other: Individual) -> list[Individual]:
        """Two orders and two pools, each with each, mutated."""
        rng = self.rng
        orders = cross_orders(one.order, other.order, int(rng.integers(1, len(one.order) + 1)))
        cut = int(rng.integers(1, len(self.sizes) + 1))
        pools = cross_pools((one.cls, one.cnt), (other.cls, other.cnt), cut)
        made = []
        for order in orders:
            for cls, cnt in pools:
                mutated = mutate_cls(cls, self.rate(), rng)
                counts = averaged(mutated, extended(cls, cnt))
                counts = mutate_cnt(counts, self.rate(), rng)
                ran = mutate_order(self.graph, order, self.rate(), rng)
                made.append(self.individual(ran, mutated, counts))
        return made

    def survivors(
        self, all_: Sequence[Individual], best: float, count: int, elites: int, heat: float
    ) -> list[Individual]:
        seconds = np.array([one.seconds for one in all_])
        chosen = np.argsort(seconds, kind="stable")[:elites].tolist()
        rest = np.setdiff1d(np.arange(len(all_)), chosen)
        chance = survival(seconds[rest], best, heat)
        able = int((chance > 0).sum())
        drawn = self.rng.choice(rest, min(count - elites, able), replace=False, p=chance)
        chosen += sorted(drawn.tolist())
        # All others are as bad as can be, or next to it.
        others = [one for one in np.argsort(seconds, kind="stable").tolist() if one not in chosen]
        return [all_[number] for number in (*chosen, *others[: count - len(chosen)])]


def swapadvisor(
    graph: TaskGraph,
    capacity: int,
    evaluate: Evaluate,
    rng: np.random.Generator,
    *,
    literal: bool = False,
    seeds: Sequence[Seed] = (),
    population: int = 144,
    mutation: float = 0.1,
    temperature: float = 0.02,
    elites: int = 8,
    generations: int | None = None,
    evaluations: int = 10_000,
    stop: Callable[[], bool] | None = None,
) -> Evolved:
    """Search for an order and a pool in which it takes little time.

    Parameters
    ----------
    capacity
        Bytes of the memory.
    evaluate
        Seconds of an order in a pool.
    rng
        Decides everything that is random.
    literal
        As the thesis says; then `seeds`, `temperature` and `elites` do not count.
    seeds
        What to start from, in turns, for half of the first generation; the others are random.
    population
        Individuals of a generation.
    mutation
        Probability with which each element of a list is changed.
    temperature
        What differences of time, as parts of the best time, are divided by.
    elites
        How many of the best survive in any case, if there are so many.
    generations, evaluations
        Bounds; whichever is met first.  A generation that has begun is finished.
    stop
        Asked after every generation.

    Raises
    ------
    ValueError
        If a number is out of its range, or an order cannot run.
    """
    if population < 2:
        raise ValueError(f"population must be at least 2, not {population!r}")
    if not 0 <= mutation <= 1:
        raise ValueError(f"mutation must be from 0 to 1, not {mutation!r}")
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, not {temperature!r}")
    if elites < 0:
        raise ValueError(f"elites must be at least 0, not {elites!r}")
    if not len(graph):
        raise ValueError("there is nothing to order: the graph has no operation")
    graph.check_limit(capacity)
    # What has no bytes takes an object all the same.
    sizes, which = np.unique(np.maximum(graph.size, 1), return_inverse=True)
    search = _Search(
        graph, capacity, evaluate, rng, literal, mutation, sizes, which.astype(np.int64)
    )
    elites = min(elites, population)
    if literal:
        temperature, elites = 1.0, 0
    known: list[Seed | None] = [None] * population
    if seeds and not literal:
        half = max(len(seeds), population // 2)
        known[:half] = [seeds[number % len(seeds)] for number in range(half)]
    alive = [search.first(seed) for seed in known[:population]]
    tried = population
    best = min(alive, key=lambda one: one.seconds)
    history = [_summary(alive)]
    while tried < evaluations and (generations is None or len(history) <= generations):
        if stop is not None and stop():
            break
        young: list[Individual] = []
        while len(young) < population:
            one, other = rng.choice(population, 2, replace=False).tolist()
            young.extend(search.children(alive[one], alive[other]))
        tried += len(young)
        best = min(best, *young, key=lambda one: one.seconds)
        alive = search.survivors([*alive, *young], best.seconds, population, elites, temperature)
        history.append(_summary(alive))
    return Evolved(best, search.pool(best.cls, best.cnt), tuple(history), tried)


def _summary(alive: Sequence[Individual]) -> tuple[float, float, float]:
    able = [one.seconds for one in alive if math.isfinite(one.seconds)] or [math.inf]
    return min(able), sum(able) / len(able), max(able)
