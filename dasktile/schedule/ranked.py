"""A priority queue whose items can change their rank or be removed."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

#: Stale heap entries that are tolerated besides as many as there are items.
_MAX_STALE = 64

T = TypeVar("T", bound=Hashable)


class RankedQueue(Generic[T]):
    """Items in the order of their rank, the least first.

    A heap with one valid entry for each item.  Entries of earlier ranks are stale; they are
    skipped, and removed when there are too many.  Items of equal rank come in the order in which
    they got it.
    """

    def __init__(self) -> None:
        self._entries: dict[T, tuple[Any, int, T]] = {}
        self._heap: list[tuple[Any, int, T]] = []
        self._count = itertools.count()

    def __contains__(self, item: object) -> bool:
        return item in self._entries

    def __bool__(self) -> bool:
        return bool(self._entries)

    def put(self, item: T, rank: Any) -> None:
        """Add an item, or change its rank."""
        current = self._entries.get(item)
        if current is not None and current[0] == rank:
            return
        entry = self._entries[item] = rank, next(self._count), item
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entries) + _MAX_STALE:
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)

    def discard(self, item: T) -> None:
        """Remove an item, if it is there."""
        self._entries.pop(item, None)

    def first(self) -> T | None:
        """The item of the least rank, None if there are no items."""
        while self._heap:
            entry = self._heap[0]
            if self._entries.get(entry[2]) is entry:
                return entry[2]
            heapq.heappop(self._heap)
        return None
