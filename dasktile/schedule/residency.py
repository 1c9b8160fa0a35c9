"""Residency of the tiles of a worker: a state machine that decides copies and evictions.

Tiers are numbered from the fastest to the last.  Events go in (a tile was made, a task requests
tiles, a copy is done or has failed), and instructions come out (copy a tile, drop a tile, a
request is ready).  Nothing here waits, reads a clock or touches the data of a tile, so that the
same rules run on a worker, in a test and in a simulation.

States of a tile on its home tier, the one it was made on and on which tasks read it:

- *pinned*: it belongs to a granted request, and cannot be evicted until that is released;
- *evicting*: it is being written to the tier below, and is dropped when it has a copy there;
- *dying*: no task will read it and no client holds it, so that the scheduler removes it soon.
  It is not written to a lower tier, and its bytes count as free soon.  Only if it is still there
  after a while (:meth:`Residency.age`) it can be evicted as any other tile.

Rules:

- a tile that is not pinned may be evicted, the one with the furthest next use first; see
  :mod:`dasktile.schedule.eviction`;
- a tile with a copy on a lower tier is dropped without being written again;
- a request is ready when all its tiles are on their home tier; they are pinned there;
- while tasks run, a request is granted only if it fits beside the granted ones.  Otherwise two
  tasks could each hold half of their tiles and deadlock;
- tiles are prefetched only into room that is free or taken by tiles that are needed later, and
  only while no request waits.

Tiles are copied between adjacent tiers.  Copies on lower tiers stay until room is needed there.

Nothing waits here for a copy that another one needs: a copy is instructed at once, with the
evictions whose room it takes, and over all tiers on the way of a tile.  Whoever executes the
instructions keeps their order.  Only room that nothing in progress makes is waited for.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain

from dasktile.schedule.instructions import (
    Copy,
    Hasten,
    Instruction,
    Ready,
    ResidencySettings,
)
from dasktile.schedule.requests import Request, Tile
from dasktile.schedule.tier_memory import TierMemory
from dasktile.schedule.tracking import ROOMY

#: Calls of :meth:`Residency.age` between two attempts to write to a full tier, at the most (chosen:
#: with ten calls a second a disk that has room again is found after some seconds).
_MOST_PAUSE = 64


class Residency(TierMemory):
    """The tiles of one worker on all its tiers.

    Every method for an event returns instructions, to be executed in their order.

    Parameters
    ----------
    settings
        Capacities, and numbers of the rules.

    Attributes
    ----------
    events
        Number of copies that were done, and of granted requests that were released, except
        urgent ones.
    """

    def __init__(self, settings: ResidencySettings) -> None:
        super().__init__(settings)
        self.events = 0
        #: By tier, the number of copies without room since one was done, and calls of `age` until
        #: the next.
        self._refusals = [0] * len(self.capacity)
        self._pauses = [0] * len(self.capacity)
        self._requests: dict[Hashable, Request] = {}
        #: Requests that are not granted yet, in order.
        self._queued: deque[Request] = deque()
        #: Granted requests that are not ready yet.
        self._waiting: list[Request] = []
        #: Bytes of the results of all granted requests when the last one was granted.
        self._room = 0
        self._count = 0

    # Events

    def add(
        self,
        key: Hashable,
        size: int,
        next_use: float | None = None,
        shared: Hashable = None,
        memory: int | None = None,
        tier: int = 0,
    ) -> list[Instruction]:
        """A tile was made, or received from another worker.

        Parameters
        ----------
        key
            Key of the tile; no other tile may have it.
        size
            Bytes.
        next_use
            Number of the next task that reads it; tasks run in the order of their numbers.
            ``inf`` if none will, `DYING` if it will be removed soon, None if unknown.
        shared
            Identifies the memory of the tile; equal for tiles that are views of the same memory.
        memory
            Bytes of that memory, if they are more than `size`.
        tier
            Home tier: where the tile is, and where tasks read it.

        Raises
        ------
        ValueError
            If there is a tile of this key.
        """
        tile = self._new_tile(key, size, tier, next_use)
        before = self.used[tier]
        self._place(tile, tier, size if memory is None else memory, shared)
        self._grow(tier, self.used[tier] - before)
        return self._next_instructions()

    def adopt(
        self,
        key: Hashable,
        size: int,
        stored: int,
        next_use: float | None = None,
        home: int = 0,
        tier: int | None = None,
    ) -> list[Instruction]:
        """A tile that is on one lower tier alone is taken over.

        Parameters
        ----------
        key, size, next_use
            As for :meth:`add`.
        stored
            Bytes on that tier.
        home
            The tier on which tasks will read it.
        tier
            The lower tier; by default the last one.

        Raises
        ------
        ValueError
            If there is a tile of this key.
        """
        tile = self._new_tile(key, size, home, next_use)
        # its memory was allocated before
        self._place(tile, self._last if tier is None else tier, stored)
        return self._next_instructions()

    def _new_tile(self, key: Hashable, size: int, home: int, next_use: float | None) -> Tile:
        if key in self._tiles:
            raise ValueError(f"there is a tile {key!r} already")
        self._count += 1
        tile = Tile(key, self._count, size, home, None, self._count)
        tile.expect(next_use)
        self._tiles[key] = tile
        return tile

    def remove(self, key: Hashable) -> list[Instruction]:
        """A tile is deleted."""
        tile = self._tiles.pop(key)
        tile.removed = True
        self._removed[key, tile.generation] = tile
        out: list[Instruction] = []
        # its memory is in use until all its copies have ended
        self._free_removed(tile, out)
        self._rank_tile(tile)
        self._continue_fetch(tile)
        if tile in self._fetches:
            self._fetches.remove(tile)
        return self._next_instructions(out)

    def request(
        self,
        name: Hashable,
        keys: Iterable[Hashable],
        now: float | None = None,
        room: int = 0,
        urgent: bool = False,
    ) -> list[Instruction]:
        """A task requests tiles; a :class:`Ready` reports when all are on their home tier.

        Parameters
        ----------
        name
            Name of the request, unique among those that are not released.
        keys
            Keys of the tiles.
        now
            Number of the task, in the order in which tasks run.
        room
            Bytes of the result of the task.
        urgent
            Whether running tasks may depend on this request.  It is granted at once, even if
            there is too little room, and waits neither for requests of other tasks nor for dying
            tiles to be removed.

        Raises
        ------
        ValueError
            If there is a request of this name.
        KeyError
            If there is no tile of one of the keys.
        """
        if name in self._requests:
            raise ValueError(f"there is a request {name!r} already")
        request = Request(name, [self._tiles[key] for key in dict.fromkeys(keys)], room, urgent)
        self._requests[name] = request
        self._queued.append(request)
        if now is not None:
            self._now = now
        return self.urge(name) if urgent else self._next_instructions()

    def urge(self, name: Hashable) -> list[Instruction]:
        """Grant a request at once, even if there is too little room."""
        request = self._requests.get(name)
        if request is None:
            return []
        out: list[Instruction] = []
        if not request.granted:
            self._queued.remove(request)
            self._grant(request, out)
        request.room = 0
        return self._next_instructions(out)

    def urge_first(self) -> list[Instruction]:
        """Let the first request that waits continue, because nothing else makes progress.

        It is granted as by :meth:`urge`.  If it is granted already, and waits for a fetch that was
        refused memory, that is repeated: running tasks may have freed some.  After
        `ResidencySettings.retries` of these, the request does not wait for the tile any longer.
        """
        refused = next((tile for tile in self._fetches if tile.refused), None)
        if refused is not None:
            # requests that are granted after it would wait for its memory, too
            refused.refused = False
            refused.retries += 1
            if refused.retries > self.settings.retries:
                self._fetches.remove(refused)
                refused.unreadable = True
                self._continue_fetch(refused)
            return self._next_instructions()
        waiting = (request for request in self._waiting if request.room and not request.missing)
        request = next(chain(self._queued, waiting), None)
        return [] if request is None else self.urge(request.name)

    def release(self, name: Hashable) -> list[Instruction]:
        """A request ends: its task is done or cancelled."""
        request = self._requests.pop(name)
        if request.granted:
            # peers and running tasks read again and again without an end of any task
            self.events += not request.urgent
            for tile in request.tiles:
                tile.pins -= 1
                if request in tile.waiting:
                    tile.waiting.remove(request)
                if not tile.removed:
                    self._mark_used(tile)
            if self._waiting:
                self._waiting = [other for other in self._waiting if other is not request]
            # the task may have freed other memory, too
            for tile in self._fetches:
                tile.refused = False
                if not request.urgent and any(read is not tile for read in request.tiles):
                    tile.retries = 0
        else:
            self._queued.remove(request)
        return self._next_instructions()

    def expect(self, uses: Mapping[Hashable, float | None]) -> list[Instruction]:
        """Next uses of tiles have changed.

        Parameters
        ----------
        uses
            Next use by key, as in :meth:`add`; unknown keys are ignored.
        """
        changed = False
        for key, next_use in uses.items():
            tile = self._tiles.get(key)
            if tile is not None and (tile.dying or tile.next != next_use):
                tile.expect(next_use)
                self._rank_tile(tile)
                changed = True
        return self._next_instructions() if changed else []

    def age(self) -> list[Instruction]:
        """Some time has passed: evict what should have been removed, repeat what was refused.

        Tiles that were dying at the last call already can be evicted; they are not looked at while
        all tiers are rather empty and nothing waits for room.  A fetch that was refused memory is
        repeated: a task that has ended may hold its inputs a little longer.  A full tier is tried
        again after one call, and after twice as many each time that it is still full.
        """
        for tier, full in enumerate(self._full):
            if full:
                self._pauses[tier] -= 1
                self._full[tier] = self._pauses[tier] > 0
        for tile in self._fetches:
            if tile.refused and not self._another_task_runs(tile):
                tile.refused = False
                tile.retries += 1
        sizes = zip(self.used, self.capacity, strict=True)
        roomy = all(used <= ROOMY * capacity for used, capacity in sizes)
        if roomy and not self._fetches and not self._queued:
            return []
        self._update_ranks()
        for buffer, waited in list(self._dying.items()):
            if waited:
                self._make_evictable(buffer)
            else:
                self._dying[buffer] = True
        return self._next_instructions()

    def set_upcoming(
        self, keys: Sequence[Hashable], further: Sequence[Hashable] = ()
    ) -> list[Instruction]:
        """Replace the lists of tiles that may be prefetched.

        The first should be short: a tile that is prefetched long before its use takes the room of
        tiles that are used before it, and causes more reads than it hides.

        Parameters
        ----------
        keys
            Keys of the inputs of the next few tasks, in their order.
        further
            Keys of the inputs of the tasks after those, in their order.  They are prefetched into
            free room only, from the next event on: first a task that starts gets its room.
        """
        prefetches = self.prefetches
        prefetches.upcoming, prefetches.further = prefetches.missing(keys), ()
        out = self._next_instructions() if prefetches.upcoming else []
        prefetches.further = prefetches.missing(further)
        return out

    def touch(self, key: Hashable) -> None:
        """A tile was used without a request."""
        tile = self._tiles[key]
        # pinned tiles were marked when their request was granted
        if not tile.pins:
            self._mark_used(tile)

    def resize(self, tier: int, capacity: float | None) -> list[Instruction]:
        """The capacity of a tier has changed."""
        self.capacity[tier] = self._allowed[tier] = math.inf if capacity is None else capacity
        self._full[tier] = False
        return self._next_instructions()

    def allow(self, tier: int, capacity: float) -> list[Instruction]:
        """The bytes that a tier may have have changed; what :meth:`shrink` has taken stays so."""
        shrunken = self.capacity[tier] < self._allowed[tier]
        self.capacity[tier] = min(self.capacity[tier], capacity) if shrunken else capacity
        self._allowed[tier] = capacity
        return self._next_instructions()

    def allowed(self, tier: int) -> float:
        """Bytes that a tier may have, without what :meth:`shrink` has taken of them for a time."""
        return self._allowed[tier]

    def shrink(self, tier: int, size: int) -> list[Instruction]:
        """Reduce the capacity of a tier to `size` bytes less than its tiles take now.

        Allocations other than tiles take room there.  The capacity grows again by the size of
        every tile that is made on the tier or copied to it, up to the allowed bytes.
        """
        self.capacity[tier] = max(0, min(self.capacity[tier], self.staying(tier)) - size)
        return self._next_instructions()

    def copied(self, copy: Copy, size: int | None = None) -> list[Instruction]:
        """A copy is done.

        Parameters
        ----------
        copy
            The instruction.
        size
            Bytes on the target, if they differ from the expected ones.
        """
        tile = self._end_copy(copy)
        self.events += 1
        self._place(tile, copy.target, copy.size if size is None else size)
        tile.refused, tile.retries = False, 0
        self._refusals[copy.target] = 0
        self._grow(copy.target, copy.size if size is None else size)
        out: list[Instruction] = []
        if tile.removed:
            self._free_removed(tile, out)
        elif copy.target > copy.source:
            self._finish_eviction(tile.on[copy.source], out)
            self._drop_stale(tile, out)
        else:
            self._drop_stale(tile, out)
            self._continue_fetch(tile)
        return self._next_instructions(out)

    def failed(self, copy: Copy, full: bool = False, ran: bool = True) -> list[Instruction]:
        """A copy has failed, and left nothing on the target.

        Parameters
        ----------
        copy
            The instruction.
        full
            Whether the target had no room.  After any other error the copy is not repeated: the
            tile stays where it is, at least until it is requested.
        ran
            False if it was not tried, because a copy before it has failed: what is needed of it is
            decided again.
        """
        tile = self._end_copy(copy)
        out: list[Instruction] = []
        if tile.removed:
            self._free_removed(tile, out)
            return self._next_instructions(out)
        up = copy.target < copy.source
        if not ran and up:
            for buffer in tile.on.values():
                self._mark_unranked(buffer)
            self._continue_fetch(tile)
            return self._next_instructions(out)
        source = tile.on[copy.source]
        if not up:
            if source.evicting:
                self._cancel_eviction(source)
            if not ran:
                pass
            elif full:
                self._full[copy.target] = True
                self._pauses[copy.target] = min(2 ** self._refusals[copy.target], _MOST_PAUSE)
                self._refusals[copy.target] += 1
            else:
                tile.unwritable.add(copy.source)
            self._mark_unranked(source)
        elif full:
            # there is less room than was assumed; the next eviction makes some
            self.capacity[copy.target] = min(self.capacity[copy.target], self.used[copy.target])
            tile.refused = True
            self._continue_fetch(tile)
        else:
            # the tile stays where it is; requests do not wait for it any longer
            tile.unreadable = True
            self._mark_unranked(source)
            self._continue_fetch(tile)
        if tile.is_home:
            self._drop_stale(tile, out)
            self._mark_unranked(tile.on[tile.home])
        return self._next_instructions(out)

    # Decisions

    def _next_instructions(self, out: list[Instruction] | None = None) -> list[Instruction]:
        """Instructions that follow from the current state, after those in `out`."""
        out = [] if out is None else out
        for tier in range(self._last - 1, -1, -1):
            if self.used[tier] + self._awaited[tier] > self.capacity[tier]:
                self._make_room(tier, 0, out)
        if self._queued:
            self._grant_requests(out)
        if self._fetches:
            self._fetch_requested(out)
        if not self._queued and not self._fetches:
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
            missing = [tile for tile in request.tiles if not tile.is_home and not tile.removed]
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
            tile.unreadable = tile.refused = False
            if not tile.waiting:
                tile.retries = 0
            home = tile.on.get(tile.home)
            if home is None and not tile.removed:
                request.missing += 1
                tile.waiting.append(request)
                if not tile.is_fetched and tile not in self._fetches:
                    self._fetches.append(tile)
                out += [Hasten(copy) for copy in tile.copies.values() if copy.ahead]
            self._mark_used(tile)
            if not self.settings.keep_clean and home is not None:
                # the task may change the tile: a copy in progress or on a lower tier gets stale
                if home.evicting:
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
            if tile.waiting and not tile.removed and not tile.is_home and not tile.is_fetched:
                source = min(tile.on)
                after = self._room_for_fetch(tile, source - 1, out)
                if after is None and self._will_free(source - 1):
                    return
                if after is None and tile.refused:
                    # no eviction could make enough room: urgent requests get ready without it
                    self._end_waits(tile, only_urgent=True)
                    if tile.waiting and self._may_be_freed(tile):
                        return
                    tile.refused, tile.unreadable = False, True
                    self._continue_fetch(tile)
                else:
                    # without room it is fetched nevertheless, or no task could run
                    self._copy(tile, source, source - 1, out, after or ())
                    self._fetch_further(tile, out)
            self._fetches.remove(tile)

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
        return self._fetches[0]

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
        if tile.is_home or tile.removed or tile.unreadable:
            self._end_waits(tile)
        elif tile.waiting and not tile.is_fetched:
            self._fetches.appendleft(tile)
        if not tile.is_home:
            self._mark_used(tile)

    @staticmethod
    def _end_waits(tile: Tile, only_urgent: bool = False) -> None:
        """Let requests wait no longer for a tile."""
        ended = [each for each in tile.waiting if each.urgent or not only_urgent]
        tile.waiting = [each for each in tile.waiting if each not in ended]
        for request in ended:
            request.missing -= 1
