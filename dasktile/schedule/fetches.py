"""Requests of tasks, and copies of tiles to faster tiers: for requests, or ahead of them.

A request is granted when it fits beside the granted ones.  Its tiles are pinned then, and those
that are not on their home tier are fetched, one after the other, in a queue.  Room is made for
them as :class:`~dasktile.schedule.tier_memory.TierMemory` does.  While no request waits, tiles are
prefetched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from dasktile.schedule.instructions import Copy, Hasten, Instruction, Ready, ResidencySettings
from dasktile.schedule.requests import Request, Tile
from dasktile.schedule.states import (
    FETCHING,
    GIVEN_UP,
    HALTED,
    HOME,
    ON_ITS_WAY,
    QUEUED,
    REFUSED,
    REMOVED,
    REQUESTED,
    RETRYING,
    STARTED,
    UNWANTED,
    WANTED,
)
from dasktile.schedule.tier_memory import TierMemory

#: States of a tile that a request does not wait for when it is granted.
_SETTLED = (HOME, REMOVED)


class Fetches(TierMemory):
    """The requests for the tiles of a worker, and the copies that follow from them.

    Parameters
    ----------
    settings
        Capacities, and numbers of the rules.
    """

    def __init__(self, settings: ResidencySettings) -> None:
        super().__init__(settings)
        self._requests: dict[Hashable, Request] = {}
        #: Requests that are not granted yet, in order.
        self._queued: deque[Request] = deque()
        #: Granted requests that are not ready yet.
        self._waiting: list[Request] = []
        #: Bytes of the results of all granted requests when the last one was granted.
        self._room = 0
        #: Counts uses of tiles, and tiles.
        self._count = 0

    def _next_instructions(self, out: list[Instruction] | None = None) -> list[Instruction]:
        """Instructions that follow from the current state, after those in `out`."""
        out = [] if out is None else out
        has_room = True
        for tier in range(self._last - 1, -1, -1):
            if self.used[tier] + self._awaited[tier] > self.capacity[tier]:
                self._make_room(tier, 0, out)
                has_room &= self.staying(tier) <= self.capacity[tier]
        if self._queued:
            self._grant_requests(out)
        if self._fetches:
            self._fetch_requested(out)
        # a prefetch would take the room that is made for an eviction from a faster tier
        if has_room and not self._queued and not self._fetches:
            if self.prefetches.upcoming:
                self._prefetch(out)
            if self.prefetches.further:
                self._prefetch_further(out)
        if self._waiting:
            self._report_ready(out)
        return out

    def _grant_requests(self, out: list[Instruction]) -> None:
        """Grant the queued requests that fit, in their order."""
        queued, self._queued = self._queued, deque()
        for request in queued:
            missing = [tile for tile in request.tiles if tile.state not in _SETTLED]
            if missing and (self._queued or not self._fits(request)):
                self._queued.append(request)
                continue
            self._grant(request, out)

    def _grant(self, request: Request, out: list[Instruction]) -> None:
        """Pin the tiles of a request, and fetch those that are not on their home tier."""
        request.granted = True
        self._room = sum(other.room for other in self._requests.values() if other.granted)
        for tile in request.tiles:
            tile.pins += 1
            if not tile.waiting:
                tile.retries = 0
            home = tile.on.get(tile.home)
            if tile.state not in _SETTLED:
                request.missing += 1
                tile.waiting.append(request)
                tile.change(REQUESTED)
                if tile.state is WANTED:
                    # if it is in the queue already, it keeps its place
                    self._fetches[tile] = None
                out += [Hasten(copy) for copy in tile.copies.values() if copy.ahead]
            self._mark_used(tile)
            if not self.settings.keep_clean and home is not None:
                # the task may change the tile: a copy in progress or on a lower tier gets stale
                self._cancel_eviction(home)
                for other in list(home.tiles):
                    self._drop_stale(other, out)
        self._waiting.append(request)

    def _fits(self, request: Request) -> bool:
        """Whether there is room for a request beside all granted ones."""
        granted = [other for other in self._requests.values() if other.granted]
        if not granted:
            return True
        tiles = {id(tile): tile for other in (*granted, request) for tile in other.tiles}
        held = [0] * len(self.capacity)
        held[0] = sum(other.room for other in (*granted, request))
        seen: set[int] = set()
        for tile in tiles.values():
            buffer = tile.on.get(tile.home)
            if buffer is None:
                held[tile.home] += tile.size
            elif id(buffer) not in seen:
                seen.add(id(buffer))
                held[tile.home] += buffer.size
        return all(size <= capacity for size, capacity in zip(held, self.capacity, strict=True))

    def _mark_used(self, tile: Tile) -> None:
        if tile.prefetched:
            self.prefetches.use(tile)
        self._count += 1
        tile.used = self._count
        self._rank_tile(tile)

    def _fetch_requested(self, out: list[Instruction]) -> None:
        """Fetch the tiles that requests wait for, as far as there is or will be room."""
        while self._fetches:
            self._update_ranks()
            tile = self._next_fetch()
            if tile.state in QUEUED:
                source = min(tile.on)
                after = self._room_for_fetch(tile, source - 1, out)
                if after is None and self._will_free(source - 1):
                    return
                if after is None and tile.state is REFUSED:
                    # no eviction could make enough room: urgent requests get ready without it
                    self._end_waits(tile, only_urgent=True)
                    if tile.waiting and self._may_be_freed(tile):
                        return
                    self._give_up(tile)
                    continue
                # without room it is fetched nevertheless, or no task could run
                tile.change(STARTED)
                self._copy(tile, source, source - 1, out, after or ())
                self._fetch_further(tile, out)
            del self._fetches[tile]

    def _fetch_further(self, tile: Tile, out: list[Instruction]) -> None:
        """Fetch a tile that is being copied to a faster tier up to its home tier."""
        for target in range(min(tile.copies) - 1, tile.home - 1, -1):
            after = self._room_for_fetch(tile, target, out)
            if after is None:
                # it is decided when the tile is on the tier below
                return
            self._copy(tile, target + 1, target, out, after)

    def _room_for_fetch(
        self, tile: Tile, tier: int, out: list[Instruction]
    ) -> tuple[Copy, ...] | None:
        """As :meth:`_make_room`; tiles of urgent requests do not wait for dying ones."""
        after = self._make_room(tier, tile.size, out)
        if after is None and self._dying and any(request.urgent for request in tile.waiting):
            for buffer in list(self._dying):
                self._make_evictable(buffer)
            self._update_ranks()
            after = self._make_room(tier, tile.size, out)
        return after

    def _next_fetch(self) -> Tile:
        """The tile to fetch next: tiles of urgent requests come before all others."""
        if any(request.urgent for request in self._requests.values()):
            for tile in self._fetches:
                if any(request.urgent for request in tile.waiting):
                    return tile
        return next(iter(self._fetches))

    def _may_be_freed(self, tile: Tile) -> bool:
        """Whether room for a tile may be freed, by a task that runs or by one that has ended."""
        return tile.retries < self.settings.retries or self._another_task_runs(tile)

    def _another_task_runs(self, tile: Tile) -> bool:
        """Whether a task runs that may free room when it is done."""
        running = (
            request
            for request in self._requests.values()
            if request.granted and not request.missing
        )
        return any(tile not in request.tiles for request in running)

    def _prefetch(self, out: list[Instruction]) -> None:
        """Prefetch the upcoming tiles, as far as that evicts no tile that is needed soon."""
        if self._active_fetches >= self.settings.prefetch:
            return
        for tile, tiers, later in self.prefetches.next_tiles(self._requests.values()):
            if self._active_fetches >= self.settings.prefetch:
                return
            if not all(self._has_room(tier, tile.size, later) for tier in tiers):
                return
            source = min(tile.on)
            rooms = [self._make_room(tier, tile.size, out, later=later) for tier in tiers]
            if any(after is None for after in rooms) or min(tile.on) != source:
                # evictions may have dropped its own copy on the way
                return
            self._copy_ahead(tile, out, rooms[-1] or ())

    def _prefetch_further(self, out: list[Instruction]) -> None:
        """Prefetch the tiles of later tasks into room that is free and that no task needs."""
        if self._active_fetches >= self.settings.prefetch:
            return
        for tile in self.prefetches.later_tiles(self._room):
            if self._active_fetches >= self.settings.prefetch:
                return
            self._copy_ahead(tile, out)

    def _copy_ahead(self, tile: Tile, out: list[Instruction], after: tuple[Copy, ...] = ()) -> None:
        """Copy a tile to the next faster tier before it is requested."""
        source = min(tile.on)
        self.prefetches.start(tile)
        tile.change(STARTED)
        self._copy(tile, source, source - 1, out, after, ahead=True)

    def _report_ready(self, out: list[Instruction]) -> None:
        """Report ready requests; while a tier is crowded, only those of tasks without a result."""
        crowded = self.crowded
        left = []
        for request in self._waiting:
            if request.missing or (crowded and request.room):
                left.append(request)
            else:
                out.append(Ready(request.name))
        self._waiting = left

    def _continue_fetch(self, tile: Tile) -> None:
        """After a copy to a faster tier, or its failure: end the wait, or fetch further."""
        if tile.state in ON_ITS_WAY and not tile.rises:
            tile.change(HALTED)
        if tile.state in QUEUED:
            if tile.waiting:
                self._fetches[tile] = None
                self._fetches.move_to_end(tile, last=False)
            else:
                tile.change(UNWANTED)
        elif tile.state is not FETCHING and tile.state is not RETRYING:
            self._end_waits(tile)
        if tile.home not in tile.on:
            self._mark_used(tile)

    def _give_up(self, tile: Tile) -> None:
        """Let no request wait for a tile whose memory was refused."""
        del self._fetches[tile]
        tile.change(GIVEN_UP)
        self._end_waits(tile)
        self._mark_used(tile)

    @staticmethod
    def _end_waits(tile: Tile, only_urgent: bool = False) -> None:
        """Let requests wait no longer for a tile."""
        ended = [each for each in tile.waiting if each.urgent or not only_urgent]
        tile.waiting = [each for each in tile.waiting if each not in ended]
        for request in ended:
            request.missing -= 1
