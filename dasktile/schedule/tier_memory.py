"""The memory of the tiers of a worker: what is on each, and how room is made there.

A :class:`TierMemory` has the state of a :class:`~dasktile.schedule.residency.Residency`, which
decides when room is needed, and for what.  Here is which buffers are evicted for it, and how bytes
are counted: those of copies in progress when they have their room, those of buffers that are
written or that the scheduler will remove as soon free.
"""

from __future__ import annotations

import math
import operator
from collections import OrderedDict
from collections.abc import Hashable, Iterator

from dasktile.schedule.evictable import EvictableMemory
from dasktile.schedule.eviction import Buffer
from dasktile.schedule.instructions import Copy, Drop, Instruction, ResidencySettings
from dasktile.schedule.prefetch import Prefetches
from dasktile.schedule.requests import Tile
from dasktile.schedule.states import (
    CANCELLED,
    CHOSEN,
    EMPTIED,
    EVICTED,
    EVICTING,
    HOME,
    WRITTEN,
    BufferEvent,
)

#: Buffers too large for the room below that are passed over, to evict smaller ones (chosen).
_MOST_SKIPPED = 1000


class TierMemory(EvictableMemory):
    """The tiles on all tiers.

    Parameters
    ----------
    settings
        Capacities, and numbers of the rules.

    Attributes
    ----------
    used
        Bytes on every tier, including those of copies to it that are in progress, except those
        that wait for evictions from it.
    refusing
        Tiers that had no room for the last tile to be evicted to them.
    copies
        Number of copies in progress.
    prefetches
        The tiles that may be prefetched, and counts of those that were.
    """

    def __init__(self, settings: ResidencySettings) -> None:
        super().__init__(settings)
        self._allowed = list(self.capacity)
        self.refusing: set[int] = set()
        self.copies = 0
        self.used = [0] * len(self.capacity)
        #: By tier, bytes of the copies to it that wait for evictions from it.
        self._awaited = [0] * len(self.capacity)
        #: By such a copy, the evictions that it waits for, and the other way round.
        self._waits: dict[Copy, set[Copy]] = {}
        self._makes_room: dict[Copy, list[Copy]] = {}
        #: By tier, whether a copy to it has failed for lack of room.
        self._full = [False] * len(self.capacity)
        self._tiles: dict[Hashable, Tile] = {}
        #: Removed tiles with copies in progress, by key and generation.
        self._removed: dict[tuple[Hashable, int], Tile] = {}
        #: Buffers of views, by the memory that they share.
        self._shared: dict[Hashable, Buffer] = {}
        self.prefetches = Prefetches(
            self._tiles, self.capacity, self.used, settings.prefetch_fraction
        )
        #: Tiles that granted requests wait for and that are not copied yet, each once, in the order
        #: in which they are fetched.  A tile keeps its place until it comes up if the requests end.
        self._fetches: OrderedDict[Tile, None] = OrderedDict()
        #: Number of copies to a faster tier that are in progress.
        self._active_fetches = 0

    # Current state

    def __contains__(self, key: object) -> bool:
        return key in self._tiles

    def __len__(self) -> int:
        return len(self._tiles)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._tiles)

    def tiers(self, key: Hashable) -> tuple[int, ...]:
        """Tiers on which a tile is, the fastest first."""
        return tuple(sorted(self._tiles[key].on))

    def staying(self, tier: int) -> int:
        """Bytes on a tier when the copies to it and from it are done and dying tiles removed.

        Updates ranks, as all decisions do.
        """
        return self.used[tier] + self._awaited[tier] - self.freeing(tier)

    def evictable(self, tier: int) -> int:
        """Bytes on a tier that can be freed while the present tasks run."""
        self._update_ranks()
        queue = self._queues[tier]
        buffers = {tile.on[tier] for tile in self._tiles.values() if tier in tile.on}
        freeing = self._freeing[tier]
        return freeing + sum(buffer.size for buffer in buffers if buffer in queue)

    @property
    def crowded(self) -> bool:
        """Whether a tier exceeds its capacity and evictions from it are in progress."""
        if not any(map(operator.gt, self.used, self.capacity)):
            return False
        self._update_ranks()
        return any(
            freeing and used > capacity
            for freeing, used, capacity in zip(self._freeing, self.used, self.capacity, strict=True)
        )

    # Making room

    def _make_room(
        self, tier: int, size: int, out: list[Instruction], later: float | None = None
    ) -> tuple[Copy, ...] | None:
        """Evict tiles until there is or will be room on a tier.

        Parameters
        ----------
        tier, size
            The tier, and the bytes of room.
        out
            Instructions are appended to it.
        later
            If given, only tiles whose next use is later than this are evicted.

        Returns
        -------
        The evictions in progress after which there is room, none if there is room now; None if
        they do not make enough.
        """
        if self._full[tier]:
            return None
        if self.used[tier] + self._awaited[tier] + size <= self.capacity[tier]:
            return ()
        if size and self._awaited[tier] and self.staying(tier) + size > self.capacity[tier]:
            # one at a time: tiles that are removed meanwhile make room without being written
            return None
        if tier == self._last and not self._has_room(tier, size, later):
            # tiles that lose their copies there for nothing would be written again
            return None
        skipped: list[Buffer] = []
        #: Bytes for which there is no room below.
        refused = math.inf
        while self.staying(tier) + size > self.capacity[tier]:
            for stored in (False, True):
                self._update_ranks()
                buffer = self._first(tier, stored, later)
                if buffer is None:
                    continue
                written = self._to_write(buffer)
                if written < refused and self._evict(buffer, out):
                    break
                refused = min(refused, written)
                if tier + 1 in self.refusing and len(skipped) < _MOST_SKIPPED:
                    # a smaller one may fit
                    self._queues[tier].discard(buffer)
                    skipped.append(buffer)
                    break
            else:
                break
        for buffer in skipped:
            self._mark_unranked(buffer)
        return self._evictions_for(tier, size)

    def _has_room(self, tier: int, size: int, later: float | None) -> bool:
        """Whether evictions make enough room, of tiles that are needed later than `later`."""
        lacking = self.staying(tier) + size - self.capacity[tier]
        taken: list[Buffer] = []
        while lacking > 0:
            buffer = self._first(tier, False, later) or self._first(tier, True, later)
            if buffer is None:
                break
            self._queues[tier].discard(buffer)
            taken.append(buffer)
            lacking -= buffer.size
        for buffer in taken:
            self._mark_unranked(buffer)
        return lacking <= 0

    def _first(self, tier: int, stored: bool, later: float | None) -> Buffer | None:
        """The first buffer in eviction order, if it is needed later than `later`."""
        buffer = self._queues[tier].first(self._now, stored)
        if (
            buffer is not None
            and later is not None
            and (buffer.next is None or buffer.next <= later)
        ):
            return None
        return buffer

    def _will_free(self, tier: int) -> bool:
        """Whether there will be more room on a tier without further evictions."""
        return bool(self._freeing[tier] or self._awaited[tier])

    def _evictions_for(self, tier: int, size: int) -> tuple[Copy, ...] | None:
        """The evictions in progress that make room on a tier; None if they do not make enough."""
        lacking = self.used[tier] + self._awaited[tier] + size - self.capacity[tier]
        after: list[Copy] = []
        for buffer in self._evicting[tier]:
            if lacking <= 0:
                break
            lacking -= buffer.size
            after += [tile.copies[tier + 1] for tile in buffer.tiles if tier + 1 in tile.copies]
        return tuple(after) if lacking <= 0 else None

    def _evict(self, buffer: Buffer, out: list[Instruction]) -> bool:
        """Evict a buffer, at once or when it is written; False if that is not possible."""
        tier, below = buffer.tier, buffer.tier + 1
        if buffer.stored:
            self._drop_buffer(buffer, out)
            return True
        tiles = [tile for tile in buffer.tiles if not tile.is_below(tier)]
        # the copies that its tiles have below must not be evicted for the others
        buffer.next_when_chosen = buffer.next
        self._change(buffer, CHOSEN)
        self._rank_below(buffer)
        after = self._make_room(below, sum(tile.size for tile in tiles), out)
        if after is None and (below == self._last or self._will_free(below)):
            if not self._will_free(below):
                self.refusing.add(below)
            self._end_eviction(buffer)
            return False
        self.refusing.discard(below)
        self._queues[tier].discard(buffer)
        for tile in tiles:
            self._copy(tile, tier, below, out, after or ())
        return True

    def _to_write(self, buffer: Buffer) -> int:
        """Bytes that an eviction of a buffer writes to the tier below."""
        return sum(tile.size for tile in buffer.tiles if not tile.is_below(buffer.tier))

    def _finish_eviction(self, buffer: Buffer, out: list[Instruction]) -> None:
        """Drop a buffer that :meth:`_evict` has written, unless it is needed earlier now."""
        evicting = buffer.state is EVICTING
        if evicting and all(tile.is_below(buffer.tier) for tile in buffer.tiles):
            self._end_eviction(buffer, WRITTEN)
            over = self.used[buffer.tier] > self.capacity[buffer.tier] or bool(self._fetches)
            chosen = buffer.next_when_chosen
            self._update_rank(buffer)
            # if its next use is earlier than when it was chosen, another one may be chosen now
            nearer = chosen is not None and (buffer.next is None or buffer.next < chosen)
            may = buffer in self._queues[buffer.tier]
            if may and (not self.settings.keep_clean or (over and not nearer)):
                self._drop_buffer(buffer, out)
            return
        self._mark_unranked(buffer)

    def _end_eviction(self, buffer: Buffer, event: BufferEvent = CANCELLED) -> None:
        self._change(buffer, event)
        self._rank_below(buffer)

    def _cancel_eviction(self, buffer: Buffer) -> None:
        """Keep a buffer, if it is being evicted."""
        if buffer.state is EVICTING:
            self._end_eviction(buffer)

    # Copies

    def _copy(
        self,
        tile: Tile,
        source: int,
        target: int,
        out: list[Instruction],
        after: tuple[Copy, ...] = (),
        ahead: bool = False,
    ) -> None:
        copy = Copy(tile.key, tile.generation, source, target, tile.size, after, ahead)
        tile.copies[target] = copy
        self.copies += 1
        if after:
            self._awaited[target] += copy.size
            self._waits[copy] = set(after)
            for eviction in after:
                self._makes_room.setdefault(eviction, []).append(copy)
        else:
            self.used[target] += copy.size
        self._active_fetches += target < source
        if source in tile.on:
            self._mark_unranked(tile.on[source])
        out.append(copy)

    def _end_copy(self, copy: Copy) -> Tile:
        tile = self._tiles.get(copy.key)
        if tile is None or tile.generation != copy.generation:
            tile = self._removed[copy.key, copy.generation]
        del tile.copies[copy.target]
        self.copies -= 1
        for waiting in self._makes_room.pop(copy, ()):
            self._waits[waiting].discard(copy)
            if not self._waits[waiting]:
                self._take_room(waiting)
        if copy in self._waits:
            # it was not run
            for eviction in self._waits[copy]:
                self._makes_room[eviction].remove(copy)
            self._take_room(copy)
        self.used[copy.target] -= copy.size
        self._active_fetches -= copy.target < copy.source
        return tile

    def _take_room(self, copy: Copy) -> None:
        """A copy waits for no eviction any more."""
        del self._waits[copy]
        self._awaited[copy.target] -= copy.size
        self.used[copy.target] += copy.size

    # What is on a tier

    def _place(self, tile: Tile, tier: int, size: int, shared: Hashable = None) -> None:
        buffer = self._shared.get(shared) if shared is not None else None
        if buffer is None:
            buffer = Buffer(tier, size, shared)
            self.used[tier] += size
            if shared is not None:
                self._shared[shared] = buffer
        else:
            self._cancel_eviction(buffer)
        buffer.tiles.append(tile)
        tile.on[tier] = buffer
        self._rank_tile(tile)

    def _grow(self, tier: int, size: int) -> None:
        """Raise a shrunken capacity by the bytes of a tile that were allocated on the tier."""
        if self.capacity[tier] < self._allowed[tier]:
            self.capacity[tier] = min(self.capacity[tier] + size, self._allowed[tier])

    def _drop_stale(self, tile: Tile, out: list[Instruction]) -> None:
        """Drop copies on lower tiers if tasks may change the tile on its fastest tier."""
        if not self.settings.keep_clean and not tile.copies:
            top = min(tile.on)
            if tile.on[top].state is not EVICTING:
                for tier in [tier for tier in tile.on if tier > top]:
                    self._drop_tile(tile, tier, out)

    def _drop_buffer(self, buffer: Buffer, out: list[Instruction]) -> None:
        for tile in list(buffer.tiles):
            self._drop_tile(tile, buffer.tier, out)

    def _drop_tile(self, tile: Tile, tier: int, out: list[Instruction]) -> None:
        """Drop a tile from a tier."""
        buffer = tile.on.pop(tier)
        buffer.tiles.remove(tile)
        out.append(Drop(tile.key, tile.generation, tier))
        if tier == tile.home:
            self.prefetches.end(tile)
            if tile.state is HOME:
                tile.change(EVICTED)
        if not buffer.tiles:
            self._change(buffer, EMPTIED)
            self._queues[tier].discard(buffer)
            self._unranked.pop(buffer, None)
            self.used[tier] -= buffer.size
            self._full[tier] = False
            if buffer.shared is not None:
                del self._shared[buffer.shared]
        else:
            self._finish_eviction(buffer, out)
        for other in tile.on.values():
            if other.state is EVICTING and not tile.copies and not tile.is_below(other.tier):
                # its copy below was dropped before the others were written
                self._end_eviction(other)
            self._mark_unranked(other)

    def _free_removed(self, tile: Tile, out: list[Instruction]) -> None:
        """Drop a removed tile from all tiers once all its copies have ended."""
        if not tile.copies:
            del self._removed[tile.key, tile.generation]
            for tier in sorted(tile.on):
                self._drop_tile(tile, tier, out)
