"""What every two candidates have in common on the same workers, as products over axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dasktile.tiling.boxes import Boxes
from dasktile.tiling.extents import Extent, Taken, first_of_kinds, paired
from dasktile.tiling.strided import ALL, Strided

Ints = npt.NDArray[np.int64]
Table = npt.NDArray[np.float64]

#: Entries of a temporary float64 array while a table is computed; it bounds memory and does not
#: change any result.
BLOCK = 2_000_000

#: The same where it is read again at once: it fits a core's cache.
CACHED = 32_768

#: Steps of a product of matrices for which OpenBLAS starts no threads (by its source).
ONE_THREAD = 2**18

#: Time of a step of a product of matrices over that of an elementwise one (measured: one core).
MULTIPLIED = 0.06

#: Axes up to which every split in two groups is compared; of more, those between neighbours
#: (chosen: the number of splits doubles with each axis).
MOST_SPLIT = 12


class Overlaps:
    """Overlaps of boxes, each of which is found once.

    Arrays that are cut alike, as those of many groups or iterations are, share their overlaps.
    """

    def __init__(self) -> None:
        self._factors: dict[object, _Factor] = {}
        #: The same by a summary of them, so that equal ones are the same object.
        self._alike: dict[object, list[_Factor]] = {}
        self._tables: dict[object, Table] = {}
        self._volumes: dict[object, Table] = {}

    def volume(self, boxes: Boxes) -> Table:
        """Elements of all workers together, for every candidate."""
        key = boxes.extents, boxes.present, boxes.taken
        if key not in self._volumes:
            self._volumes[key] = boxes.volume().sum(axis=1)
        return self._volumes[key]

    def overlap(self, held: Boxes, need: Boxes) -> Table:
        """Elements that workers need and hold, (candidates of the holder, of the reader).

        A worker's overlap is a product over the axes.  Candidates share the ranges of an axis, so
        the axes are split into two groups, and products of the one are multiplied, as matrices, by
        products of the other.

        Parameters
        ----------
        held, need
            What each worker holds, and what it needs.
        """
        key = self._factors_of(held, need)
        if key not in self._tables:
            self._tables[key] = _summed(*key)
        return self._tables[key]

    def content(self, held: Boxes, need: Boxes) -> tuple[object, ...]:
        """Equal for boxes of which workers need and lack as many elements, in all candidates.

        Parameters
        ----------
        held, need
            As for :meth:`overlap`.
        """
        return id(self.volume(need)), *self._factors_of(held, need)

    def _factors_of(self, held: Boxes, need: Boxes) -> tuple[tuple[_Factor, ...], int, int, int]:
        """The factors of an overlap, and the numbers of candidates of both, and of workers."""
        factors = []
        for axis, (have, want) in enumerate(zip(held.extents, need.extents, strict=True)):
            is_taken = need.taken is not None and need.taken.axis == axis
            taken = need.taken if is_taken else None
            factors.append(self._factor(have, want, need.step(axis), taken))
        if not (held.present.hi.all() and need.present.hi.all()):
            factors.append(self._factor(held.present, need.present, ALL, None))
        return tuple(factors), len(held), len(need), held.workers

    def _factor(self, have: Extent, want: Extent, step: Strided, taken: Taken | None) -> _Factor:
        """What candidates share along one axis, of which every `step` or what is `taken` counts."""
        key = have, want, step, taken
        if key not in self._factors:
            factor = _shared(have.numbered(step), want, taken)
            alike = self._alike.setdefault(factor.summary(), [])
            equal = (each for each in alike if np.array_equal(each.shared, factor.shared))
            known = next(equal, None)
            if known is None:
                alike.append(factor)
            self._factors[key] = factor if known is None else known
        return self._factors[key]


@dataclass(frozen=True, slots=True, eq=False)
class _Factor:
    """What candidates share along one axis.

    Parameters
    ----------
    shared
        Elements that each worker has of both, (kinds of the holder, of the reader, workers).
    held, need
        The kind of every candidate of the holder, and of the reader.
    """

    shared: Table
    held: Ints
    need: Ints

    def summary(self) -> tuple[object, ...]:
        """Equal for factors of equal content; of `shared`, which may be large, it has the sums."""
        arrays = self.shared.sum(axis=-1), self.held, self.need
        return self.shared.shape, *(array.tobytes() for array in arrays)


def _shared(have: Extent, want: Extent, taken: Taken | None) -> _Factor:
    """The factor of one axis, along which the reader may take some elements only."""
    if taken is not None:
        return _Factor(taken.within(have.lo, have.hi), have.of, want.of)
    lows, highs = (
        [bound.astype(np.float64) for bound in each]
        for each in ((have.lo, want.lo), (have.hi, want.hi))
    )
    # these arrays may be large
    shared = np.minimum(highs[0][:, None], highs[1][None])
    shared -= np.maximum(lows[0][:, None], lows[1][None])
    np.maximum(shared, 0.0, out=shared)
    return _Factor(shared, have.of, want.of)


class _Group:
    """Some axes, with the kinds of candidates that are alike along all of them."""

    def __init__(self, factors: Sequence[_Factor], rows: int, columns: int) -> None:
        self.factors = factors
        self.held, self._some = first_of_kinds(np.zeros(rows, dtype=np.int64))
        self.need, self._others = first_of_kinds(np.zeros(columns, dtype=np.int64))
        for factor in factors:
            self.held, self._some = paired(self.held, factor.held)
            self.need, self._others = paired(self.need, factor.need)

    @property
    def pairs(self) -> int:
        """Pairs of kinds."""
        return len(self._some) * len(self._others)

    def product(self, workers: slice, pairs: slice = slice(None)) -> Table:
        """Elements that some workers share along the axes, (pairs of kinds, workers)."""
        row, column = np.divmod(np.arange(self.pairs)[pairs], len(self._others))
        result: Table | None = None
        for factor in self.factors:
            held, need = factor.held[self._some][row], factor.need[self._others][column]
            readers, every = factor.shared.shape[1:]
            shared = factor.shared.reshape(-1, every)[:, workers]
            shared = shared.take(held * readers + need, axis=0)
            result = shared if result is None else np.multiply(result, shared, out=result)
        if result is None:
            return np.ones((len(row), len(range(workers.start, workers.stop))))
        return result

    def numbers(self) -> Ints:
        """The pair of kinds of every pair of candidates, (of the holder, of the reader)."""
        return self.held[:, None] * len(self._others) + self.need[None]


def _summed(factors: Sequence[_Factor], rows: int, columns: int, workers: int) -> Table:
    """The product of factors, summed over workers, (candidates of the holder, of the reader)."""
    left, right = (_Group(some, rows, columns) for some in _split(factors, rows, columns))
    total = np.zeros((left.pairs, right.pairs))
    if not right.factors:
        step = max(1, CACHED // max(1, workers))
        for start in range(0, left.pairs, step):
            pairs = slice(start, start + step)
            total[pairs, 0] = left.product(slice(0, workers), pairs).sum(axis=1)
        return np.take(total, left.numbers())
    step = max(1, BLOCK // (left.pairs + right.pairs))
    for start in range(0, workers, step):
        part = slice(start, min(start + step, workers))
        _add_product(total, left.product(part), right.product(part))
    elements: Table = np.take(total, left.numbers() * right.pairs + right.numbers())
    return elements


def _add_product(total: Table, left: Table, right: Table) -> None:
    """Add the product of matrices (pairs, workers), in blocks that take one thread.

    Threads of a BLAS library spend more time on waiting for each other than such products take.
    """
    side = max(1, math.isqrt(ONE_THREAD // max(1, left.shape[1])))
    for row in range(0, len(left), side):
        for column in range(0, len(right), side):
            rows, columns = slice(row, row + side), slice(column, column + side)
            total[rows, columns] += left[rows] @ right[columns].T


def _split(
    factors: Sequence[_Factor], rows: int, columns: int
) -> tuple[list[_Factor], list[_Factor]]:
    """Factors in two groups, such that the product takes least time."""
    kinds = tuple((len(factor.shared), factor.shared.shape[1]) for factor in factors)
    is_right = _best_split(kinds, rows, columns)
    groups = [
        [factor for factor, is_there in zip(factors, is_right, strict=True) if is_there is right]
        for right in (False, True)
    ]
    return groups[0], groups[1]


@lru_cache(maxsize=1024)
def _best_split(kinds: tuple[tuple[int, int], ...], rows: int, columns: int) -> tuple[bool, ...]:
    """For every factor, whether it is in the second group.

    Parameters
    ----------
    kinds
        For every factor, the kinds of the holder and of the reader.
    rows, columns
        Numbers of candidates of both.
    """

    def pairs(some: Sequence[tuple[int, int]]) -> int:
        made = math.prod(held for held, _ in some)
        read = math.prod(need for _, need in some)
        return min(made, rows) * min(read, columns)

    def operations(is_right: tuple[bool, ...]) -> float:
        left, right = (
            [each for each, is_there in zip(kinds, is_right, strict=True) if is_there is side]
            for side in (False, True)
        )
        multiplied = pairs(left) * pairs(right) * MULTIPLIED if right else 0.0
        return multiplied + sum(pairs(some) * len(some) for some in (left, right))

    if not kinds:
        return ()  # of arrays without axes
    others = len(kinds) - 1
    choices: Iterable[tuple[bool, ...]] = itertools.product((False, True), repeat=others)
    if len(kinds) > MOST_SPLIT:
        choices = (tuple(axis >= first for axis in range(others)) for first in range(len(kinds)))
    return min(((False, *chosen) for chosen in choices), key=operations)
