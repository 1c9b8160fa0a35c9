"""Fewest bytes that matrix operations move on any grid of workers, by trying all divisions.

Nothing here is shared with the tiling of dasktile: workers are tuples of digits, one for each prime
factor of their number, and every worker has a set of elements.  An array is divided by the digits:
some of them, in any order, number the rows of blocks, the others, in any order, the columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

#: ``("source",)``, ``("add", left, right, left_transposed, right_transposed)``,
#: ``("matmul", left, right, left_transposed, right_transposed)`` or ``("whole", array, axis)``:
#: matrices of one size; of ``whole`` no worker has a part of the axis only.  All ``("shared",)``
#: are one source.
Tree = tuple[Any, ...]

#: Bytes of an element.
ITEM = 8


def fewest_bytes(tree: Tree, size: int, primes: Sequence[int]) -> float:
    """Bytes that workers receive at least, if each has an equal share of the work and the arrays.

    Parameters
    ----------
    tree
        The operations.
    size
        Rows and columns of every matrix, divisible by the number of workers.
    primes
        Prime factors of the number of workers.
    """
    workers = _Workers(size, tuple(primes))
    readers = _readers(tree)
    if not readers:
        return float(workers.costs(tree)[1].min())
    made = np.array([workers.has(*by, frozenset()) for by in workers.groups(2)])
    least = np.inf
    # several readers find the array where it is kept for them, which may be in several places
    for kept in made if readers == 1 else workers.kept():
        workers.shared = kept[None]
        brought = (kept.sum() - made @ kept).min() * ITEM
        least = min(least, brought + workers.costs(tree)[1].min())
    return float(least)


def _readers(tree: Tree) -> int:
    """Operations that read the shared source."""
    inputs = [each for each in tree[1:] if isinstance(each, tuple)]
    return (("shared",) in inputs) + sum(map(_readers, inputs))


class _Workers:
    def __init__(self, size: int, primes: tuple[int, ...]) -> None:
        self.size, self.primes = size, primes
        self.digits = list(itertools.product(*map(range, primes)))
        self.has = cache(self._has)
        #: The elements of the shared source that each worker has.
        self.shared = np.empty((0, 0))

    def interval(self, worker: tuple[int, ...], by: Sequence[int]) -> slice:
        """The part of an axis that a worker has if these digits divide it."""
        number, parts = 0, 1
        for digit in by:
            number = number * self.primes[digit] + worker[digit]
            parts *= self.primes[digit]
        length = self.size // parts
        return slice(number * length, (number + 1) * length)

    def _has(self, rows: tuple[int, ...], columns: tuple[int, ...], first: frozenset) -> np.ndarray:
        """Whether each worker has each element; only workers with 0 as their `first` digits do."""
        mask = np.zeros((len(self.digits), self.size, self.size), np.float32)
        for number, worker in enumerate(self.digits):
            if not any(worker[digit] for digit in first):
                mask[number, self.interval(worker, rows), self.interval(worker, columns)] = 1
        return mask.ravel()

    def groups(self, count: int) -> Iterator[tuple[tuple[int, ...], ...]]:
        """All ways to give the digits to a number of axes, in every order."""
        found = set()
        for order in itertools.permutations(range(len(self.primes))):
            for ends in itertools.combinations_with_replacement(range(len(order) + 1), count - 1):
                edges = (0, *ends, len(order))
                found.add(tuple(order[lo:hi] for lo, hi in itertools.pairwise(edges)))
        return iter(sorted(found))

    def kept(self) -> np.ndarray:
        """All divisions of an array of which some workers may have the same part, or none."""
        found = {}
        for rows, columns, rest in self.groups(3):
            for none in itertools.product((False, True), repeat=len(rest)):
                nowhere = frozenset(itertools.compress(rest, none))
                found[rows, columns, nowhere] = self.has(rows, columns, nowhere)
        return np.array(list(found.values()))

    def costs(self, tree: Tree) -> tuple[np.ndarray, np.ndarray]:
        """For every division of the result: what workers have, and the least bytes until then."""
        if tree[0] == "shared":
            return self.shared, np.zeros(1)
        if tree[0] == "source":
            held = np.array([self.has(*by, frozenset()) for by in self.groups(2)])
            return held, np.zeros(len(held))
        if tree[0] == "whole":
            ways = [by for by in self.groups(2) if not by[tree[2]]]
            held = np.array([self.has(*by, frozenset()) for by in ways])
            return held, self.brought(tree[1], held)
        if tree[0] == "add":
            held = np.array([self.has(*by, frozenset()) for by in self.groups(2)])
            return held, self.both_brought(tree, held, held)
        ways = list(self.groups(3))
        rows_read = np.array([self.has(rows, inner, frozenset()) for rows, inner, _ in ways])
        columns_read = np.array(
            [self.has(inner, columns, frozenset()) for _, inner, columns in ways]
        )
        both = self.both_brought(tree, rows_read, columns_read)
        held, bytes_until = [], []
        for (rows, inner, columns), received in zip(ways, both, strict=True):
            parts = int(np.prod([self.primes[digit] for digit in inner], initial=1))
            for more_rows, more_columns, nowhere in _scattered(inner):
                held.append(self.has(rows + more_rows, columns + more_columns, nowhere))
                bytes_until.append(received + (parts - 1) * self.size**2 * ITEM)
        return np.array(held), np.array(bytes_until)

    def both_brought(self, tree: Tree, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Least bytes until workers have what they need of both inputs, for every need."""
        _, left, right, turn_left, turn_right = tree
        first = self.turned(first) if turn_left else first
        second = self.turned(second) if turn_right else second
        if left == right == ("shared",):
            return self.brought(left, np.maximum(first, second))
        return self.brought(left, first) + self.brought(right, second)

    def turned(self, masks: np.ndarray) -> np.ndarray:
        """The elements of the transposed matrices."""
        shape = (len(masks), len(self.digits), self.size, self.size)
        return np.swapaxes(masks.reshape(shape), 2, 3).reshape(len(masks), -1)

    def brought(self, tree: Tree, needed: np.ndarray) -> np.ndarray:
        """Least bytes until workers have what they need of an array, for every need."""
        held, until = self.costs(tree)
        missing = needed.sum(axis=1)[None] - held @ needed.T
        return (until[:, None] + ITEM * missing).min(axis=0)


def _scattered(
    inner: tuple[int, ...],
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], frozenset]]:
    """Ways to divide a sum by the digits along which it was summed: rows, columns, neither."""
    for order in itertools.permutations(inner):
        for lo, hi in itertools.combinations_with_replacement(range(len(order) + 1), 2):
            # the order of digits that divide nothing has no meaning
            if list(order[hi:]) == sorted(order[hi:]):
                yield order[:lo], order[lo:hi], frozenset(order[hi:])
