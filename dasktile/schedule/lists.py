"""RaggedArray of numbers in two arrays, and orders of what needs each other."""

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
    """RaggedArray of numbers in two arrays.

    Attributes
    ----------
    pointer
        Shape ``(count + 1,)``: where every list starts.
    index
        The numbers of all lists, one list after the other.
    """

    pointer: Ints
    index: Ints

    def __len__(self) -> int:
        return len(self.pointer) - 1

    def __getitem__(self, which: int) -> Ints:
        return self.index[self.pointer[which] : self.pointer[which + 1]]

    def owners(self) -> Ints:
        """For every number, which list it is in."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.pointer))

    @staticmethod
    def pack(lists: Iterable[Iterable[int]]) -> RaggedArray:
        """Pack lists."""
        packed = [np.fromiter(one, dtype=np.int64) for one in lists]
        pointer = np.zeros(len(packed) + 1, dtype=np.int64)
        np.cumsum([len(one) for one in packed], out=pointer[1:])
        return RaggedArray(pointer, np.concatenate(packed) if packed else np.zeros(0, np.int64))

    @staticmethod
    def group(owner: Ints, index: Ints, count: int) -> RaggedArray:
        """RaggedArray of `index` by `owner`; within a list the order stays."""
        order = np.argsort(owner, kind="stable")
        pointer = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(np.bincount(owner, minlength=count), out=pointer[1:])
        return RaggedArray(pointer, index[order])

    def take(self, order: Ints) -> RaggedArray:
        """The same lists in another order."""
        lengths = np.diff(self.pointer)[order]
        pointer = np.zeros(len(order) + 1, dtype=np.int64)
        np.cumsum(lengths, out=pointer[1:])
        shift = np.repeat(self.pointer[order] - pointer[:-1], lengths)
        return RaggedArray(pointer, self.index[np.arange(pointer[-1]) + shift])


def topological(before: RaggedArray, after: RaggedArray) -> Ints:
    """Operations in an order that they may run in, of those that may the first given first.

    Those on a circle, and what needs them, are left out.
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
