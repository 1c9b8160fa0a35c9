"""Which tiles are prefetched: the inputs of the tasks that run next.

:class:`Prefetches` proposes tiles in their order, and the room that each may take; the
:class:`~dasktile.schedule.residency.Residency` evicts what has to make room, and copies them.

Prefetched early, a tile takes the room of tiles that are used before it, and causes more reads
than it hides.  So a tile of the next task evicts only tiles that are needed later than all inputs
of running tasks, except for a small share of the memory, and tiles of the tasks after that evict
none.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dasktile.schedule.requests import Request, Tile
from dasktile.schedule.states import (
    BELOW,
    HOME,
    REMOVED,
)


class Proposal(NamedTuple):
    """A tile to be prefetched.

    Attributes
    ----------
    tile
        The tile.
    tiers
        The tiers on which it needs room, on its way and at the end.
    later
        Only tiles whose next use is later than this may be evicted for it.
    """

    tile: Tile
    tiers: list[int]
    later: float


class Prefetches:
    """The tiles that may be prefetched, and counts of those that were.

    Parameters
    ----------
    tiles
        All tiles by key; it changes.
    capacity, used
        Bytes that every tier may hold, and that it holds; they change.
    fraction
        As `ResidencySettings.prefetch_fraction`.

    Attributes
    ----------
    started, hits
        Number of tiles that were prefetched, and of those that were then requested while they
        were still on their home tier.
    size
        Bytes of the tiles that were prefetched and not requested since.
    upcoming
        Keys of the tiles that tasks will request next, in order.
    further
        Keys of the tiles of later tasks, in order.
    """

    def __init__(
        self,
        tiles: Mapping[Hashable, Tile],
        capacity: Sequence[float],
        used: Sequence[int],
        fraction: float,
    ) -> None:
        self._tiles, self._capacity, self._used = tiles, capacity, used
        self._fraction = fraction
        self.started = self.hits = self.size = 0
        self.upcoming: Sequence[Hashable] = ()
        self.further: Sequence[Hashable] = ()

    def start(self, tile: Tile) -> None:
        """A tile is copied to the next faster tier before it is requested."""
        self.started += min(tile.on) - 1 == tile.home
        self.size += tile.size
        tile.prefetched = True

    def use(self, tile: Tile) -> None:
        """A tile was requested or read."""
        # also if it is removed meanwhile
        self.hits += tile.prefetched and tile.home in tile.on
        self.end(tile)

    def end(self, tile: Tile) -> None:
        """A tile was requested or evicted: it does not count as prefetched any longer."""
        if tile.prefetched:
            tile.prefetched = False
            self.size -= tile.size

    def missing(self, keys: Iterable[Hashable]) -> list[Hashable]:
        """The tiles that are not on their home tier."""
        tiles = self._tiles
        return [key for key in keys if key in tiles and tiles[key].state is not HOME]

    def next_tiles(self, requests: Iterable[Request]) -> Iterator[Proposal]:
        """The upcoming tiles, until one is larger than its tier.

        A prefetch may evict tiles that are needed later than all inputs of running tasks: such a
        tile would also be evicted by a fetch on demand.  Within
        `ResidencySettings.prefetch_fraction` it may evict any tile that is needed later than the
        prefetched one.

        Parameters
        ----------
        requests
            All requests.
        """
        upcoming = [tile for key in self.upcoming if (tile := self._tiles.get(key)) is not None]
        if not any(tile.state is BELOW for tile in upcoming):
            return
        reads = [
            tile.next
            for request in requests
            if request.granted
            for tile in request.tiles
            if tile.next is not None and tile.state is not REMOVED
        ]
        last = max(reads, default=-math.inf)
        # in another order a prefetched tile could be evicted for the next one, without end
        for tile in sorted(upcoming, key=lambda tile: math.inf if tile.next is None else tile.next):
            if tile.state is not BELOW or tile.next == math.inf:
                continue
            room = self._capacity[tile.home]
            if tile.size > room:
                return
            few = self.size + tile.size <= self._fraction * room
            use = math.inf if tile.next is None else tile.next
            # room is needed on the way and at the end; what is evicted at the end would take the
            # room on the way
            tiers = sorted({tile.home, min(tile.on) - 1})
            yield Proposal(tile, tiers, use if few else max(use, last))

    def later_tiles(self, room: int) -> Iterator[Tile]:
        """The tiles of later tasks, until one does not fit into room that is free and not needed.

        Parameters
        ----------
        room
            Bytes of the results of the last tasks; the tasks that run next are assumed to need as
            much.
        """
        soon_checked = False
        for key in self.further:
            tile = self._tiles.get(key)
            if tile is None or tile.state is not BELOW:
                continue
            if tile.next == math.inf:
                return
            for tier in {tile.home, min(tile.on) - 1}:
                if self._used[tier] + tile.size + room > self._capacity[tier]:
                    # the usual case while tiles are evicted
                    return
            if not soon_checked:
                soon = map(self._tiles.get, self.upcoming)
                if any(each is not None and each.state is BELOW for each in soon):
                    return
                soon_checked = True
            yield tile
