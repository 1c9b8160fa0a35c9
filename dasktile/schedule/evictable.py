"""Which memory of tiers may be evicted, and in which order; the states of this memory.

Nearly every event changes which buffers may be evicted, and when they are used next.  That is
determined only before a decision reads it: when a tier has too little room, which most tiers never
have.  Until then the buffers that an event concerns are noted.
"""

from __future__ import annotations

import math

from dasktile.schedule.eviction import Buffer, EvictionQueue
from dasktile.schedule.instructions import ResidencySettings
from dasktile.schedule.requests import Tile
from dasktile.schedule.states import (
    DYING,
    EVICTING,
    EXPIRED,
    FREEING,
    HELD,
    REMOVED,
    SPARED,
    BufferEvent,
)


class EvictableMemory:
    """The buffers on all tiers, by their states and in eviction order.

    Parameters
    ----------
    settings
        Capacities, and numbers of the rules.

    Attributes
    ----------
    capacity
        Bytes that every tier may hold now.
    """

    def __init__(self, settings: ResidencySettings) -> None:
        self.settings = settings
        self.capacity = [math.inf if size is None else size for size in settings.capacity]
        #: Number of the last tier.
        self._last = len(self.capacity) - 1
        #: By tier, the buffers that are being evicted, in the order in which that began.
        self._evicting: list[dict[Buffer, None]] = [{} for _ in self.capacity]
        #: By tier, bytes of the buffers that are being evicted or dying.
        self._freeing = [0] * len(self.capacity)
        #: Dying buffers; True if they were at the last call of `Residency.age` already.
        self._dying: dict[Buffer, bool] = {}
        self._queues = [EvictionQueue(settings.dirty_factor) for _ in self.capacity]
        #: Buffers whose ranks are out of date.
        self._unranked: dict[Buffer, None] = {}
        #: Number of the latest task that requested tiles.
        self._now = -math.inf

    def freeing(self, tier: int) -> int:
        """Bytes on a tier that are being evicted or dying."""
        self._update_ranks()
        return self._freeing[tier]

    def _change(self, buffer: Buffer, event: BufferEvent) -> None:
        """Change the state of a buffer, and what is kept by state."""
        before = buffer.state
        buffer.change(event)
        if before in FREEING:
            self._freeing[buffer.tier] -= buffer.size
            evicting = before is EVICTING
            del (self._evicting[buffer.tier] if evicting else self._dying)[buffer]
        elif buffer.state is EVICTING:
            self._freeing[buffer.tier] += buffer.size
            self._evicting[buffer.tier][buffer] = None
        elif buffer.state is DYING:
            self._freeing[buffer.tier] += buffer.size
            self._dying[buffer] = False

    def _mark_unranked(self, buffer: Buffer) -> None:
        """Have the rank of a buffer updated before it is used."""
        self._unranked[buffer] = None
        if buffer.state is DYING and not self._is_dying(buffer):
            self._dying[buffer] = False

    def _update_ranks(self) -> None:
        """Update all ranks that are out of date; after an error the others still are."""
        while self._unranked:
            self._update_rank(self._unranked.popitem()[0])

    def _update_rank(self, buffer: Buffer) -> None:
        """Update the rank of a buffer for eviction, and whether it may be evicted."""
        self._unranked.pop(buffer, None)
        tier, tiles = buffer.tier, buffer.tiles
        if buffer.state is DYING or tiles[0].dying:
            # few: a buffer is dying only if all its tiles are
            self._mark_dying(buffer)
        if len(tiles) == 1:
            # most buffers; this is called for every tile that a task makes or reads
            tile = tiles[0]
            if tile.pins and tier == tile.home and buffer.state is not EVICTING:
                # it is ranked again when it is not pinned any more
                self._queues[tier].discard(buffer)
                return
            buffer.next, buffer.used = tile.next, tile.used
            if tier == self._last:
                may = stored = min(tile.on) < tier
            else:
                stored = tile.is_below(tier)
                may = stored or tier not in tile.unwritable
            stays = self._must_stay(tile, tier)
        else:
            uses = [tile.next for tile in tiles]
            known = [use for use in uses if use is not None]
            buffer.next = min(known) if len(known) == len(uses) else None
            buffer.used = max(tile.used for tile in tiles)
            if tier == self._last:
                may = stored = all(min(tile.on) < tier for tile in tiles)
            else:
                stored = all(tile.is_below(tier) for tile in tiles)
                may = stored or not any(tier in tile.unwritable for tile in tiles)
            stays = any(self._must_stay(tile, tier) for tile in tiles)
        if buffer.size > self.capacity[tier]:
            # it does not fit, even if all others were evicted
            buffer.next = math.inf
        buffer.stored = stored
        if may and not stays and buffer.state is HELD:
            self._queues[tier].put(buffer)
        else:
            self._queues[tier].discard(buffer)

    def _must_stay(self, tile: Tile, tier: int) -> bool:
        """Whether a tile must not be evicted from a tier."""
        if tile.state is REMOVED:
            return True
        if tile.copies and any(copy.source == tier for copy in tile.copies.values()):
            return True
        if tier == tile.home:
            # copies below may be stale, and are dropped when none is in progress
            return tile.pins > 0 or (not self.settings.keep_clean and bool(tile.copies))
        if any(buffer.state is EVICTING for above, buffer in tile.on.items() if above < tier):
            return True
        return bool(tile.waiting) and tier == min(tile.on)

    def _is_dying(self, buffer: Buffer) -> bool:
        return buffer.state is not EVICTING and all(
            tile.dying
            and not tile.pins
            and tile.state is not REMOVED
            and not tile.is_below(buffer.tier)
            for tile in buffer.tiles
        )

    def _mark_dying(self, buffer: Buffer) -> None:
        """Update whether a buffer is dying."""
        was_dying = buffer.state is DYING
        if self._is_dying(buffer) is not was_dying:
            self._change(buffer, SPARED if was_dying else EXPIRED)

    def _make_evictable(self, buffer: Buffer) -> None:
        """Treat a dying buffer as any other."""
        for tile in buffer.tiles:
            tile.dying = False
        self._mark_unranked(buffer)

    def _rank_below(self, buffer: Buffer) -> None:
        """Update the ranks of the copies that the tiles of a buffer have on lower tiers."""
        for tile in buffer.tiles:
            for other in tile.on.values():
                if other.tier > buffer.tier:
                    self._mark_unranked(other)

    def _rank_tile(self, tile: Tile) -> None:
        """Update the ranks of all buffers of a tile."""
        unranked = self._unranked
        for buffer in tile.on.values():
            unranked[buffer] = None
            if buffer.state is DYING:
                self._mark_unranked(buffer)
