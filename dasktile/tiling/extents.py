"""The ranges of one axis that candidates give to workers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dasktile.tiling.strided import ALL, Strided

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """The elements along one axis of which workers need only some, and not the range between them.

    Parameters
    ----------
    axis
        The axis.
    elements
        For every kind of candidates along it, and every worker, its elements, ascending.
    """

    axis: int
    elements: tuple[tuple[Ints, ...], ...]

    def by_block(self, edges: Ints) -> npt.NDArray[np.float64]:
        """Number of elements in blocks with these bounds: (blocks, kinds, workers)."""
        return self.within(edges[:-1, None], edges[1:, None])

    def within(self, lo: Ints, hi: Ints) -> npt.NDArray[np.float64]:
        """Number of elements in ranges: (ranges, kinds, workers).

        Parameters
        ----------
        lo, hi
            The ranges, (ranges, workers): the same ones for all workers if these are one column.
        """
        counts = np.zeros((len(lo), len(self.elements), len(self.elements[0])))
        #: Workers that have the same part share its elements.
        known: dict[tuple[int, int], Ints] = {}
        for kind, by_worker in enumerate(self.elements):
            for worker, elements in enumerate(by_worker):
                column = min(worker, lo.shape[1] - 1)
                key = id(elements), column
                if key not in known:
                    after, before = (
                        np.searchsorted(elements, bound[:, column]) for bound in (hi, lo)
                    )
                    known[key] = np.maximum(after - before, 0)
                counts[:, kind, worker] = known[key]
        return counts


@dataclass(frozen=True, slots=True, eq=False)
class Extent:
    """The ranges of one axis that candidates give to workers.

    Many candidates cut an axis alike, so that there are few kinds of them.

    Parameters
    ----------
    lo, hi
        Bounds, (kinds, workers).
    of
        The kind of every candidate.
    """

    lo: Ints
    hi: Ints
    of: Ints

    @classmethod
    def where(cls, some: Bools, of: Ints) -> Extent:
        """An axis of one element, which some workers have: (kinds, workers)."""
        return cls(np.zeros(some.shape, dtype=np.int64), some.astype(np.int64), of)

    @classmethod
    def alike(cls, lo: Ints, hi: Ints) -> Extent:
        """Ranges of candidates that are not known to be alike, (candidates, workers)."""
        number: dict[bytes, int] = {}
        rows = (lo[row].tobytes() + hi[row].tobytes() for row in range(len(lo)))
        kinds = np.array([number.setdefault(row, len(number)) for row in rows], dtype=np.int64)
        of, first = first_of_kinds(kinds)
        return cls(lo[first], hi[first], of)

    def take(self, chosen: Ints) -> Extent:
        """The ranges of some candidates."""
        return Extent(self.lo, self.hi, self.of[chosen])

    def meet(self, other: Extent) -> Extent:
        """The ranges that are in both."""
        of, first = paired(self.of, other.of)
        mine, theirs = self.of[first], other.of[first]
        lo = np.maximum(self.lo[mine], other.lo[theirs])
        return Extent(lo, np.maximum(np.minimum(self.hi[mine], other.hi[theirs]), lo), of)

    def numbered(self, step: Strided) -> Extent:
        """The same as numbers of the elements that count; all of them do so far."""
        if step is ALL:
            return self
        return Extent(step.before(self.lo), step.before(self.hi), self.of)

    def spanned(self, step: Strided) -> Extent:
        """The ranges of the axis that these numbers of elements span."""
        return self if step is ALL else Extent(*step.span(self.lo, self.hi), self.of)

    def is_equal(self, other: Extent) -> bool:
        """Whether every candidate gives workers the same ranges."""
        return self is other or (
            len(self.of) == len(other.of)
            and np.array_equal(self.lo[self.of], other.lo[other.of])
            and np.array_equal(self.hi[self.of], other.hi[other.of])
        )


def first_of_kinds(kinds: Ints) -> tuple[Ints, Ints]:
    """Kinds as numbers from 0 on, and the first candidate of each."""
    return _first_of(kinds.astype(np.int64, copy=False).tobytes())


@lru_cache(maxsize=4096)
def _first_of(kinds: bytes) -> tuple[Ints, Ints]:
    """`first_of_kinds`; arrays that are cut alike, as those of many groups, have equal kinds."""
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


def paired(first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """Kinds of candidates that are of one kind in both ways, and the first candidate of each."""
    return first_of_kinds(first * (int(second.max(initial=0)) + 1) + second)
