"""SwapAdvisor's genetic algorithm, which searches for an order and a pool of size classes.

An individual is an order of the operations and a pool of size classes, the lists CLS and CNT
of :mod:`benchmarks.papers.algorithms.chromosomes` (thesis of C.-C. Huang, section 4.4; Huang,
Jin and Li, ASPLOS 2020).

Choices that the thesis leaves open: the fraction of steps in CLS is uniform in the first
generation; CNT mutates by a Gaussian, whose standard deviation is a fifth of the number and at
least one object; a generation has as many children as parents; every class has at least as many
objects as one operation touches.  A pool that is too small for that takes infinite time.

As printed (``literal=True``) survival hardly depends on fitness: an individual that takes a tenth
longer survives with 0.9 times the probability.  By default differences are divided by a
temperature, the best always survive, given good orders are in the first generation, some mutations
are rare enough to keep most of an order, and the memory that a repaired pool leaves is filled with
objects.
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


#: SwapAdvisor's planner: the datum with the latest next use is evicted when memory is needed, but
#: no datum that the previous operation used; swap-ins start as soon as there is memory.
AS_WRITTEN = Policy(lead=0, back=1_000_000, fill=False, dirty_factor=1.0, threshold=1)


def in_classes(
    graph: TaskGraph, link: HostLink, policy: Policy = AS_WRITTEN, *, repeat: bool = False
) -> Evaluate:
    """A function that plans the swaps of an order in a pool of size classes and simulates them."""

    def evaluate(order: Ints, pool: Pool) -> float:
        memory = Memory.classes(pool.of, pool.counts.tolist())
        try:
            plan = plan_swaps(graph, order, memory, policy, repeat)
            return simulate(graph, plan, memory, link).makespan
        except ValueError:
            # the order does not fit, or the plan deadlocks
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
    """The result of a search.

    Attributes
    ----------
    best, pool
        The best of all individuals, and its pool.
    history
        For every generation the seconds of the best, their mean, and those of the worst, over
        individuals that can run.
    evaluations
        Number of individuals evaluated.
    """

    best: Individual
    pool: Pool
    history: tuple[tuple[float, float, float], ...]
    evaluations: int


@dataclass(frozen=True, slots=True, eq=False)
class Seed:
    """A good order for the first generation.

    Attributes
    ----------
    order
        The operations in order.
    objects
        Shape ``(data,)``: the fraction of the time that each datum is in memory in a plan by
        bytes; see :func:`benchmarks.papers.algorithms.allocate.time_in_memory`.  Initial pools are
        sized by it.
    """

    order: npt.ArrayLike
    objects: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """The problem and the operators of the search."""

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
        """Repair the pool and evaluate the order in it."""
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
        """An individual of the first generation; at most 100 pools are tried until one fits."""
        if seed is None:
            order = mutate_order(self.graph, np.arange(len(self.graph)), 1.0, self.rng)
        else:
            order = self.graph.check_order(seed.order)
        for _ in range(100):
            individual = self._random_pool(order, None if seed is None else seed.objects)
            if math.isfinite(individual.seconds):
                break
        return individual

    def _random_pool(self, order: Ints, objects: Floats | None) -> Individual:
        rng = self.rng
        steps = rng.random(len(self.sizes) - 1) < rng.random()
        cls = np.concatenate([[1], 1 + np.cumsum(steps)])
        blocks = blocks_of(cls, self.sizes)
        share = rng.exponential(size=len(blocks))
        if objects is not None:
            # bytes of the mean number of objects in memory, times a random factor
            share = blocks * np.bincount(cls[self.which] - 1, weights=objects) * (1 + share / 4)
        cnt = (share / share.sum() * self.capacity / blocks).astype(np.int64)
        return self.individual(order, cls, cnt)

    def rate(self) -> float:
        """A rate of mutation: as given if literal, else between the given rate and its cube."""
        return self.mutation if self.literal else self.mutation ** (1 + 2 * self.rng.random())

    def children(self, first: Individual, second: Individual) -> list[Individual]:
        """Four children: all pairs of two orders and two pools, mutated."""
        rng = self.rng
        orders = cross_orders(first.order, second.order, int(rng.integers(1, len(first.order) + 1)))
        cut = int(rng.integers(1, len(self.sizes) + 1))
        pools = cross_pools((first.cls, first.cnt), (second.cls, second.cnt), cut)
        individuals = []
        for order in orders:
            for cls, cnt in pools:
                mutated = mutate_cls(cls, self.rate(), rng)
                counts = averaged(mutated, extended(cls, cnt))
                counts = mutate_cnt(counts, self.rate(), rng)
                mutated_order = mutate_order(self.graph, order, self.rate(), rng)
                individuals.append(self.individual(mutated_order, mutated, counts))
        return individuals

    def survivors(
        self, individuals: Sequence[Individual], best: float, count: int, elites: int, heat: float
    ) -> list[Individual]:
        seconds = np.array([individual.seconds for individual in individuals])
        chosen = np.argsort(seconds, kind="stable")[:elites].tolist()
        rest = np.setdiff1d(np.arange(len(individuals)), chosen)
        chance = survival(seconds[rest], best, heat)
        possible = int((chance > 0).sum())
        drawn = self.rng.choice(rest, min(count - elites, possible), replace=False, p=chance)
        chosen += sorted(drawn.tolist())
        # The others have a probability of survival of 0, or nearly.
        ranked = np.argsort(seconds, kind="stable").tolist()
        others = [number for number in ranked if number not in chosen]
        return [individuals[number] for number in (*chosen, *others[: count - len(chosen)])]


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
    """Search for an order and a pool of size classes with a small makespan.

    Parameters
    ----------
    capacity
        Bytes of the memory.
    evaluate
        Seconds of an order in a pool.
    rng
        Generator of all random numbers.
    literal
        Whether to follow the thesis literally; `seeds`, `temperature` and `elites` are ignored
        then.
    seeds
        Orders for half of the first generation, in turns; the others are random.
    population
        Number of individuals of a generation.
    mutation
        Probability of a change of each element of a list.
    temperature
        Divisor of the differences of time, which are fractions of the best time.
    elites
        Number of best individuals that always survive.
    generations, evaluations
        Limits; the search ends at the first that is reached.  A generation is always finished.
    stop
        Function called after every generation; the search ends if it returns True.

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
    # A datum without bytes takes an object, too.
    sizes, which = np.unique(np.maximum(graph.size, 1), return_inverse=True)
    search = _Search(
        graph, capacity, evaluate, rng, literal, mutation, sizes, which.astype(np.int64)
    )
    elites = min(elites, population)
    if literal:
        temperature, elites = 1.0, 0
    initial: list[Seed | None] = [None] * population
    if seeds and not literal:
        half = max(len(seeds), population // 2)
        initial[:half] = [seeds[number % len(seeds)] for number in range(half)]
    parents = [search.first(seed) for seed in initial[:population]]
    evaluated = population
    best = min(parents, key=lambda individual: individual.seconds)
    history = [_summary(parents)]
    while evaluated < evaluations and (generations is None or len(history) <= generations):
        if stop is not None and stop():
            break
        offspring: list[Individual] = []
        while len(offspring) < population:
            first, second = rng.choice(population, 2, replace=False).tolist()
            offspring.extend(search.children(parents[first], parents[second]))
        evaluated += len(offspring)
        best = min(best, *offspring, key=lambda individual: individual.seconds)
        parents = search.survivors(
            [*parents, *offspring], best.seconds, population, elites, temperature
        )
        history.append(_summary(parents))
    return Evolved(best, search.pool(best.cls, best.cnt), tuple(history), evaluated)


def _summary(individuals: Sequence[Individual]) -> tuple[float, float, float]:
    finite = [
        individual.seconds for individual in individuals if math.isfinite(individual.seconds)
    ] or [math.inf]
    return min(finite), sum(finite) / len(finite), max(finite)
