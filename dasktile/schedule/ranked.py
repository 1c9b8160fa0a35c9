"""Things in the order of a rank that may change, or be taken back, at any time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

#: Entries that no longer count and are not worth a look.
_MAX_STALE = 64

T = TypeVar("T", bound=Hashable)


class RankedQueue(Generic[T]):
    """A heap with one entry that counts for each item; others are passed over in time.

    Among equal ranks the one that was put first comes first.
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
        """Say where a item is in the order; the least rank is first."""
        known = self._entries.get(item)
        if known is not None and known[0] == rank:
            return
        entry = self._entries[item] = rank, next(self._count), item
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entries) + _MAX_STALE:
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)

    def discard(self, item: T) -> None:
        """Take a item out, if it is in."""
        self._entries.pop(item, None)

    def first(self) -> T | None:
        """The first, None if there is none."""
        while self._heap:
            entry = self._heap[0]
            if self._entries.get(entry[2]) is entry:
                return entry[2]
            heapq.heappop(self._heap)
        return None
