"""What every two candidates have in common on the same workers, as products over axes."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dasktile.tiling.boxes import Boxes, Taken, numbered, paired

Ints = npt.NDArray[np.int64]
Table = npt.NDArray[np.float64]

#: Entries of a temporary float64 array while a table is computed; it bounds memory and does not
#: change any result.
BLOCK = 2_000_000

#: Steps of a product of matrices for which OpenBLAS starts no threads (by its source).
ONE_THREAD = 2**18

#: Time of a step of a product of matrices over that of an elementwise one (measured: one core).
MULTIPLIED = 0.06

#: Axes up to which every split in two groups is compared; of more, those between neighbours
#: (chosen: the number of splits doubles with each axis).
MOST_SPLIT = 12


def overlap(held: Boxes, need: Boxes, known: dict[object, Table]) -> Table:
    """Elements that workers need and hold, (candidates of the holder, of the reader).

    A worker's overlap is a product over the axes.  Candidates share the ranges of an axis, so the
    axes are split into two groups, and products of the one are multiplied, as matrices, by products
    of the other.  Tables of arrays that are cut alike, as those of many groups or iterations are,
    are `known` from the first one on.

    Parameters
    ----------
    held, need
        What each worker holds, and what it needs.
    known
        Overlaps that were computed before, by their content; new ones are added.
    """
    held_lo, held_hi = numbered(held, need.steps)
    held_kinds, need_kinds = _kinds(held), _kinds(need)
    factors = [
        _shared_of_taken(held_lo[..., axis], held_hi[..., axis], held_kinds[:, axis],
                         need.taken, need_kinds[:, axis])
        if need.taken is not None and need.taken.axis == axis
        else _shared(held_lo[..., axis], held_hi[..., axis], held_kinds[:, axis],
                     need.lo[..., axis], need.hi[..., axis], need_kinds[:, axis])
        for axis in range(held.lo.shape[-1])
    ]  # fmt: skip
    nothing = np.zeros((1, 1), dtype=np.int64)
    if not (held.active.all() and need.active.all()):
        begin, end = (np.broadcast_to(nothing, boxes.active.shape) for boxes in (held, need))
        factors.append(
            _shared(begin, held.active.astype(np.int64), held_kinds[:, -1],
                    end, need.active.astype(np.int64), need_kinds[:, -1])
        )  # fmt: skip
    rows, columns, workers = len(held.lo), len(need.lo), held.lo.shape[1]
    alike = (rows, columns, workers, *(part for factor in factors for part in factor.content()))
    if alike not in known:
        known[alike] = _summed(factors, rows, columns, workers)
    return known[alike]


@dataclass(frozen=True, slots=True)
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

    def content(self) -> tuple[object, ...]:
        """Equal for factors of equal content."""
        arrays = self.shared, self.held, self.need
        return self.shared.shape, *(array.tobytes() for array in arrays)


def _shared(
    held_lo: Ints, held_hi: Ints, held: Ints, need_lo: Ints, need_hi: Ints, need: Ints
) -> _Factor:
    """The factor of one axis, from bounds, (candidates, workers), and kinds of candidates."""
    held, some = _first(held)
    need, others = _first(need)
    lo = np.maximum(held_lo[some, None], need_lo[None, others])
    hi = np.minimum(held_hi[some, None], need_hi[None, others])
    return _Factor(np.maximum(hi - lo, 0).astype(np.float64), held, need)


def _shared_of_taken(held_lo: Ints, held_hi: Ints, held: Ints, taken: Taken, need: Ints) -> _Factor:
    """The factor of the axis along which the reader takes elements; arguments as for `_shared`."""
    held, some = _first(held)
    return _Factor(taken.within(held_lo[some], held_hi[some]), held, need)


def _first(kinds: Ints) -> tuple[Ints, Ints]:
    """Kinds as numbers from 0 on, and the first candidate of each."""
    return _first_of(kinds.astype(np.int64, copy=False).tobytes())


@functools.lru_cache(maxsize=1024)
def _first_of(kinds: bytes) -> tuple[Ints, Ints]:
    """`_first`; arrays that are cut alike, as those of many groups, have equal kinds."""
    # faster than np.unique for the few candidates that there are
    number: dict[int, int] = {}
    first: list[int] = []
    numbers = []
    for candidate, kind in enumerate(np.frombuffer(kinds, np.int64).tolist()):
        if kind not in number:
            number[kind] = len(first)
            first.append(candidate)
        numbers.append(number[kind])
    found = np.array(numbers, dtype=np.int64), np.array(first, dtype=np.int64)
    for array in found:
        array.flags.writeable = False
    return found


class _Group:
    """Some axes, with the kinds of candidates that are alike along all of them."""

    def __init__(self, factors: Sequence[_Factor], rows: int, columns: int) -> None:
        self.factors = factors
        self.held = np.zeros(rows, dtype=np.int64)
        self.need = np.zeros(columns, dtype=np.int64)
        for factor in factors:
            self.held = paired(self.held, factor.held)
            self.need = paired(self.need, factor.need)
        self.held, self._some = _first(self.held)
        self.need, self._others = _first(self.need)

    @property
    def pairs(self) -> int:
        """Pairs of kinds."""
        return len(self._some) * len(self._others)

    def product(self, workers: slice) -> Table:
        """Elements that some workers share along the axes, (pairs of kinds, workers)."""
        count = len(range(workers.start, workers.stop))
        result = np.ones((len(self._some), len(self._others), count))
        for factor in self.factors:
            rows, columns = factor.held[self._some], factor.need[self._others]
            result *= factor.shared[rows[:, None], columns[None], workers]
        return result.reshape(self.pairs, count)

    def numbers(self) -> Ints:
        """The pair of kinds of every pair of candidates, (of the holder, of the reader)."""
        return self.held[:, None] * len(self._others) + self.need[None]


def _summed(factors: Sequence[_Factor], rows: int, columns: int, workers: int) -> Table:
    """The product of factors, summed over workers, (candidates of the holder, of the reader)."""
    left, right = (_Group(some, rows, columns) for some in _split(factors, rows, columns))
    total = np.zeros((left.pairs, right.pairs))
    step = max(1, BLOCK // (left.pairs + right.pairs))
    for start in range(0, workers, step):
        part = slice(start, min(start + step, workers))
        if right.factors:
            _add_product(total, left.product(part), right.product(part))
        else:
            total[:, 0] += left.product(part).sum(axis=1)
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

    def pairs(some: Sequence[_Factor]) -> int:
        made = math.prod(len(factor.shared) for factor in some)
        read = math.prod(factor.shared.shape[1] for factor in some)
        return min(made, rows) * min(read, columns)

    def operations(groups: tuple[list[_Factor], list[_Factor]]) -> float:
        left, right = map(pairs, groups)
        multiplied = left * right * MULTIPLIED if groups[1] else 0.0
        return multiplied + sum(pairs(some) * len(some) for some in groups)

    splits = []
    rest = factors[1:]
    choices: Iterable[tuple[bool, ...]] = itertools.product((False, True), repeat=len(rest))
    if len(factors) > MOST_SPLIT:
        choices = (
            tuple(axis >= first for axis in range(len(rest))) for first in range(len(factors))
        )
    for chosen in choices:
        right = [factor for factor, is_right in zip(rest, chosen, strict=True) if is_right]
        left = [
            *factors[:1],
            *(each for each, is_right in zip(rest, chosen, strict=True) if not is_right),
        ]
        splits.append((left, right))
    return min(splits, key=operations)


def _kinds(boxes: Boxes) -> Ints:
    """The kinds of candidates along each axis, found by comparing bounds where not known."""
    if boxes.kinds is not None:
        return boxes.kinds
    parts = [*np.moveaxis(boxes.lo, -1, 0)], [*np.moveaxis(boxes.hi, -1, 0)]
    columns = [_alike(lo, hi) for lo, hi in zip(*parts, strict=True)]
    return np.stack([*columns, _alike(boxes.active)], axis=1)


def _alike(*parts: npt.NDArray[Any]) -> Ints:
    """Numbers that are equal for candidates whose rows are equal."""
    first: dict[bytes, int] = {}
    rows = (b"".join(part[row].tobytes() for part in parts) for row in range(len(parts[0])))
    return np.array([first.setdefault(row, len(first)) for row in rows], dtype=np.int64)
