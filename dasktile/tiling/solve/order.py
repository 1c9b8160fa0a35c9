"""The order in which variables are eliminated."""

from __future__ import annotations

import heapq
import itertools
import math

from dasktile.tiling.settings import SolverLimits
from dasktile.tiling.solve.problem import Problem


def neighbours_of(problem: Problem) -> list[set[int]]:
    """For every variable, those with which it has a table."""
    neighbours: list[set[int]] = [set() for _ in problem.unary]
    for i, j in problem.pairwise:
        neighbours[i].add(j)
        neighbours[j].add(i)
    return neighbours


def elimination_order(problem: Problem, limits: SolverLimits) -> list[int]:
    """Min-fill with ties by table size, then by index.

    Only variables whose neighbourhood changed are scored again, so that long chains are
    ordered in time linear in their length.
    """
    counts = [len(costs) for costs in problem.unary]
    count = len(counts)
    neighbours = neighbours_of(problem)

    def score(variable: int) -> tuple[int, float, int]:
        around = neighbours[variable]
        fill = len(around) * (len(around) - 1) // 2
        if len(around) > limits.counted_neighbours:
            return fill, math.inf, variable
        fill -= sum(len(neighbours[neighbour] & around) for neighbour in around) // 2
        size = math.prod(float(counts[other]) for other in around) * counts[variable]
        return fill, size, variable

    current = [score(variable) for variable in range(count)]
    heap = list(current)
    heapq.heapify(heap)
    done = [False] * count
    order: list[int] = []
    while heap:
        entry = heapq.heappop(heap)
        variable = entry[2]
        if done[variable] or entry != current[variable]:
            continue
        done[variable] = True
        order.append(variable)
        around = neighbours[variable]
        touched = set(around)
        for first, second in itertools.combinations(sorted(around), 2):
            if second not in neighbours[first]:
                neighbours[first].add(second)
                neighbours[second].add(first)
                # their common neighbours have one pair less to connect
                touched |= neighbours[first] & neighbours[second]
        for neighbour in around:
            neighbours[neighbour].discard(variable)
        touched.discard(variable)
        for other in sorted(touched):
            if not done[other]:
                current[other] = score(other)
                heapq.heappush(heap, current[other])
    return order
