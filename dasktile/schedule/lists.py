"""Ragged arrays of integers, and topological orders."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class RaggedArray:
    """Lists of integers in two arrays, as the rows of a matrix in CSR format.

    Attributes
    ----------
    pointer
        Shape ``(count + 1,)``: the start of every list in `index`, and the end of the last.
    index
        The integers of all lists, one list after the other.
    """

    pointer: Ints
    index: Ints

    def __len__(self) -> int:
        return len(self.pointer) - 1

    def __getitem__(self, number: int) -> Ints:
        return self.index[self.pointer[number] : self.pointer[number + 1]]

    def owners(self) -> Ints:
        """For every entry of `index`, the number of its list."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.pointer))

    @staticmethod
    def pack(lists: Iterable[Iterable[int]]) -> RaggedArray:
        """A ragged array of lists."""
        packed = [np.fromiter(entries, dtype=np.int64) for entries in lists]
        pointer = np.zeros(len(packed) + 1, dtype=np.int64)
        np.cumsum([len(entries) for entries in packed], out=pointer[1:])
        return RaggedArray(pointer, np.concatenate(packed) if packed else np.zeros(0, np.int64))

    @staticmethod
    def group(owner: Ints, index: Ints, count: int) -> RaggedArray:
        """Lists of the entries of `index` with the same `owner`, in their given order."""
        order = np.argsort(owner, kind="stable")
        pointer = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(np.bincount(owner, minlength=count), out=pointer[1:])
        return RaggedArray(pointer, index[order])

    def take(self, order: Ints) -> RaggedArray:
        """The lists in another order."""
        lengths = np.diff(self.pointer)[order]
        pointer = np.zeros(len(order) + 1, dtype=np.int64)
        np.cumsum(lengths, out=pointer[1:])
        shift = np.repeat(self.pointer[order] - pointer[:-1], lengths)
        return RaggedArray(pointer, self.index[np.arange(pointer[-1]) + shift])


def topological(before: RaggedArray, after: RaggedArray) -> Ints:
    """Operations in a valid order: of all that can run, the one of the least number is next.

    Operations on a cyclic dependency, and those that depend on them, are left out.
    """
    missing = np.diff(before.pointer).tolist()
    ready = [op for op, count in enumerate(missing) if count == 0]
    order = []
    while ready:
        op = heapq.heappop(ready)
        order.append(op)
        for follower in after[op].tolist():
            missing[follower] -= 1
            if missing[follower] == 0:
                heapq.heappush(ready, follower)
    return np.array(order, dtype=np.int64)
