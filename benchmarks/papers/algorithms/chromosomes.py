"""The chromosomes of SwapAdvisor's genetic algorithm, with crossover, mutation and repair.

TS are the distinct sizes of tensors, ascending.  ``CLS[i]`` is the class of size ``TS[i]``: the
first is 1, and every other is equal to the one before or one more.  ``CNT[k]`` is the number of
objects of class ``k + 1``, which have the size of the largest tensor of the class (thesis of
C.-C. Huang, sections 4.4.2 and 4.4.3).
"""

from __future__ import annotations

import math

import numpy as np

from dasktile.schedule.compiled import compiled, heap_drop, heap_put
from dasktile.schedule.taskgraph import Floats, Ints, TaskGraph


def cross_orders(first: Ints, second: Ints, cut: int) -> tuple[Ints, Ints]:
    """Two children: the start of one parent, the rest in the order of the other (figure 4.5)."""

    def child(start: Ints, rest: Ints) -> Ints:
        taken = np.zeros(len(start), dtype=np.bool_)
        taken[start[:cut]] = True
        return np.concatenate([start[:cut], rest[~taken[rest]]])

    return child(second, first), child(first, second)


def mutate_order(graph: TaskGraph, order: Ints, rate: float, rng: np.random.Generator) -> Ints:
    """The order of a scheduler that follows `order`, but at times runs a random ready operation."""
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    dice, picks = rng.random(len(order)), rng.random(len(order))
    missing = np.diff(graph.before.pointer)
    return _scheduled(missing, graph.after.pointer, graph.after.index, rank, dice, picks, rate)


@compiled
def _scheduled(
    missing: Ints,
    pointer: Ints,
    index: Ints,
    rank: Ints,
    dice: Floats,
    picks: Floats,
    rate: float,
) -> Ints:
    count = len(missing)
    left = missing.copy()
    order = np.empty(count, np.int64)
    ready = np.empty(count + 1, np.int64)
    place = np.full(count, -1, np.int64)
    keys = np.empty(count + 1, np.int64)
    items = np.empty(count + 1, np.int64)
    waiting = 0
    filled = 0
    for op in range(count):
        if left[op] == 0:
            place[op] = waiting
            ready[waiting] = op
            waiting += 1
            filled = heap_put(keys, items, 0, filled, -rank[op], op)
    for step in range(count):
        if dice[step] < rate:
            op = ready[int(picks[step] * waiting)]
        else:
            # drop operations that were run at random and are still on the heap
            while place[items[0]] < 0:
                filled = heap_drop(keys, items, 0, filled)
            op = items[0]
            filled = heap_drop(keys, items, 0, filled)
        waiting -= 1
        ready[place[op]] = ready[waiting]
        place[ready[waiting]] = place[op]
        place[op] = -1
        order[step] = op
        for entry in range(pointer[op], pointer[op + 1]):
            follower = index[entry]
            left[follower] -= 1
            if left[follower] == 0:
                place[follower] = waiting
                ready[waiting] = follower
                waiting += 1
                filled = heap_put(keys, items, 0, filled, -rank[follower], follower)
    return order


def blocks_of(cls: Ints, sizes: Ints) -> Ints:
    """Bytes of the objects of every class."""
    return sizes[np.append(np.flatnonzero(np.diff(cls)), len(cls) - 1)]


def repair_cls(cls: Ints) -> Ints:
    """The smallest list above `cls` that never falls and rises by at most one."""
    fixed = np.maximum.accumulate(cls)
    steps = np.arange(len(fixed))
    # from the end: no element is more than one below the next
    fixed = np.maximum.accumulate((fixed - steps)[::-1])[::-1] + steps
    return np.asarray(fixed, dtype=np.int64)


def repair_cnt(cnt: Ints, blocks: Ints, capacity: int, least: Ints) -> Ints:
    """Remove objects until the pool fits: equal bytes of each class, largest objects first.

    No class gets fewer than `least` objects, so that the pool may still exceed the capacity.
    """
    fixed = np.maximum(cnt, least)
    excess = int(fixed @ blocks) - capacity
    while excess > 0 and (fixed > least).any():
        reducible = np.flatnonzero(fixed > least)[::-1]
        for done, k in enumerate(reducible.tolist()):
            share = excess / (len(reducible) - done)
            removed = min(int(fixed[k] - least[k]), math.ceil(max(share, 0.0) / int(blocks[k])))
            fixed[k] -= removed
            excess -= removed * int(blocks[k])
    return fixed


def fill_cnt(cnt: Ints, blocks: Ints, capacity: int, rng: np.random.Generator) -> Ints:
    """Add objects of random classes until no other fits."""
    filled = cnt.copy()
    left = capacity - int(filled @ blocks)
    for k in (*rng.permutation(len(blocks)).tolist(), *range(len(blocks) - 1, -1, -1)):
        most = left // int(blocks[k])
        more = int(rng.integers(0, most + 1)) if most > 0 else 0
        filled[k] += more
        left -= more * int(blocks[k])
    k = int(rng.integers(len(blocks)))
    filled[k] += left // int(blocks[k])
    return filled


def extended(cls: Ints, cnt: Ints) -> Ints:
    """The number of objects of the class of every size of tensor."""
    return cnt[cls - 1]


def averaged(cls: Ints, extended_cnt: Ints) -> Ints:
    """The number of objects of every class: the mean over its sizes of tensors."""
    sums = np.bincount(cls - 1, weights=extended_cnt.astype(np.float64))
    return (sums / np.bincount(cls - 1)).astype(np.int64)


def cross_pools(
    first: tuple[Ints, Ints], second: tuple[Ints, Ints], cut: int
) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
    """Two children of pairs of lists CLS and CNT; CNT is not repaired (figure 4.6)."""

    def child(start: tuple[Ints, Ints], rest: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
        cls = repair_cls(np.concatenate([start[0][:cut], rest[0][cut:]]))
        usable = np.concatenate([extended(*start)[:cut], extended(*rest)[cut:]])
        return cls, averaged(cls, usable)

    return child(second, first), child(first, second)


def mutate_cls(cls: Ints, rate: float, rng: np.random.Generator) -> Ints:
    """Flip random steps of CLS between 0 and 1; later elements shift."""
    steps = np.diff(cls)
    return np.concatenate([[1], 1 + np.cumsum(steps ^ (rng.random(len(steps)) < rate))])


def mutate_cnt(cnt: Ints, rate: float, rng: np.random.Generator) -> Ints:
    """Change random numbers of objects, by a Gaussian around the old number."""
    changed = np.rint(rng.normal(cnt, np.maximum(1.0, 0.2 * cnt))).astype(np.int64)
    return np.where(rng.random(len(cnt)) < rate, np.maximum(changed, 0), cnt)


def survival(seconds: Floats, best: float, temperature: float = 1.0) -> Floats:
    """Probabilities of survival: softmax of (best - seconds) / best (equation 4.1)."""
    with np.errstate(invalid="ignore"):
        weight = np.exp((best - seconds) / (best * temperature))
    weight[~np.isfinite(seconds)] = 0.0
    return weight / weight.sum() if weight.sum() else np.full(len(seconds), 1 / len(seconds))
