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
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from dasktile.schedule.eviction import Buffer, EvictionQueue
from dasktile.schedule.instructions import (
    Copy,
    Drop,
    Hasten,
    Instruction,
    Ready,
    ResidencySettings,
)
from dasktile.schedule.prefetch import Prefetches
from dasktile.schedule.requests import Request, Tile
from dasktile.schedule.tracking import ROOMY

#: Calls of :meth:`Residency.age` between two attempts to write to a full tier, at the most (chosen:
#: with ten calls a second a disk that has room again is found after some seconds).
_MOST_PAUSE = 64

#: Buffers too large for the room below that are passed over, to evict smaller ones (chosen).
_MOST_SKIPPED = 1000


class Residency:
    """The tiles of one worker on all its tiers.

    Every method for an event returns instructions, to be executed in their order.

    Parameters
    ----------
    settings
        Capacities, and numbers of the rules.

    Attributes
    ----------
    capacity
        Bytes that every tier may hold now.
    used
        Bytes on every tier, including those of copies to it that are in progress, except those
        that wait for evictions from it.
    refusing
        Tiers that had no room for the last tile to be evicted to them.
    copies
        Number of copies in progress.
    events
        Number of copies that were done, and of granted requests that were released, except
        urgent ones.
    prefetches
        The tiles that may be prefetched, and counts of those that were.
    """

    def __init__(self, settings: ResidencySettings) -> None:
        self.settings = settings
        self.capacity = [math.inf if size is None else size for size in settings.capacity]
        self._allowed = list(self.capacity)
        self.refusing: set[int] = set()
        self.copies = self.events = 0
        #: Number of the last tier.
        self._last = len(self.capacity) - 1
        self.used = [0] * len(self.capacity)
        #: By tier, bytes of the copies to it that wait for evictions from it.
        self._awaited = [0] * len(self.capacity)
        #: By such a copy, the evictions that it waits for, and the other way round.
        self._waits: dict[Copy, set[Copy]] = {}
        self._makes_room: dict[Copy, list[Copy]] = {}
        #: By tier, the buffers that are being evicted, in the order in which that began.
        self._evicting: list[dict[Buffer, None]] = [{} for _ in self.capacity]
        #: By tier, bytes of the buffers that are being evicted or dying.
        self._freeing = [0] * len(self.capacity)
        #: Dying buffers; True if they were at the last call of `age` already.
        self._dying: dict[Buffer, bool] = {}
        #: By tier, whether a copy to it has failed for lack of room.
        self._full = [False] * len(self.capacity)
        #: By tier, the number of such copies since one was done, and calls of `age` until the next.
        self._refusals = [0] * len(self.capacity)
        self._pauses = [0] * len(self.capacity)
        self._tiles: dict[Hashable, Tile] = {}
        #: Removed tiles with copies in progress, by key and generation.
        self._removed: dict[tuple[Hashable, int], Tile] = {}
        #: Buffers of views, by the memory that they share.
        self._shared: dict[Hashable, Buffer] = {}
        self.prefetches = Prefetches(
            self._tiles, self.capacity, self.used, settings.prefetch_fraction
        )
        self._queues = [EvictionQueue(settings.dirty_factor) for _ in self.capacity]
        #: Buffers whose ranks are out of date.  They are updated before a decision reads them: when
        #: a tier has too little room, which most tiers never have.
        self._unranked: dict[Buffer, None] = {}
        self._requests: dict[Hashable, Request] = {}
        #: Requests that are not granted yet, in order.
        self._queued: deque[Request] = deque()
        #: Tiles that granted requests wait for, in the order in which they are fetched.
        self._fetches: deque[Tile] = deque()
        #: Granted requests that are not ready yet.
        self._waiting: list[Request] = []
        #: Bytes of the results of all granted requests when the last one was granted.
        self._room = 0
        #: Number of copies to a faster tier that are in progress.
        self._active_fetches = 0
        self._count = 0
        #: Number of the latest task that requested tiles.
        self._now = -math.inf

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

    def freeing(self, tier: int) -> int:
        """Bytes on a tier that are being evicted or dying."""
        self._update_ranks()
        return self._freeing[tier]

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
        if all(used <= capacity for used, capacity in zip(self.used, self.capacity, strict=True)):
            return False
        self._update_ranks()
        return any(
            freeing and used > capacity
            for freeing, used, capacity in zip(self._freeing, self.used, self.capacity, strict=True)
        )

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
        if key in self._tiles:
            raise ValueError(f"there is a tile {key!r} already")
        self._count += 1
        tile = Tile(key, self._count, size, tier, None, self._count)
        tile.expect(next_use)
        self._tiles[key] = tile
        before = self.used[tier]
        self._place(tile, tier, size if memory is None else memory, shared)
        self._grow(tier, self.used[tier] - before)
        return self._next_instructions()

    def adopt(
        self, key: Hashable, size: int, stored: int, next_use: float | None = None, home: int = 0
    ) -> list[Instruction]:
        """A tile that is on the last tier alone is taken over.

        Parameters
        ----------
        key, size, next_use
            As for :meth:`add`.
        stored
            Bytes on the last tier.
        home
            The tier on which tasks will read it.

        Raises
        ------
        ValueError
            If there is a tile of this key.
        """
        if key in self._tiles:
            raise ValueError(f"there is a tile {key!r} already")
        self._count += 1
        tile = Tile(key, self._count, size, home, None, self._count)
        tile.expect(next_use)
        self._tiles[key] = tile
        self._place(tile, self._last, stored)
        return self._next_instructions()

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
        for tile, tiers, later in self.prefetches.next_tiles(self._requests.values()):
            if self._active_fetches >= self.settings.prefetch:
                return
            if not all(self._has_room(tier, tile.size, later) for tier in tiers):
                return
            rooms = [self._make_room(tier, tile.size, out, later=later) for tier in tiers]
            if any(after is None for after in rooms):
                return
            self._copy_ahead(tile, out, rooms[-1] or ())

    def _prefetch_further(self, out: list[Instruction]) -> None:
        """Prefetch the tiles of later tasks into room that is free and that no task needs."""
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

    def _to_write(self, buffer: Buffer) -> int:
        """Bytes that an eviction of a buffer writes to the tier below."""
        return sum(tile.size for tile in buffer.tiles if not tile.is_below(buffer.tier))

    def _evict(self, buffer: Buffer, out: list[Instruction]) -> bool:
        """Evict a buffer, at once or when it is written; False if that is not possible."""
        tier, below = buffer.tier, buffer.tier + 1
        if buffer.stored:
            self._drop_buffer(buffer, out)
            return True
        tiles = [tile for tile in buffer.tiles if not tile.is_below(tier)]
        # the copies that its tiles have below must not be evicted for the others
        buffer.evicting, buffer.next_when_chosen = True, buffer.next
        self._freeing[tier] += buffer.size
        self._rank_below(buffer)
        after = self._make_room(below, sum(tile.size for tile in tiles), out)
        if after is None and (below == self._last or self._will_free(below)):
            if not self._will_free(below):
                self.refusing.add(below)
            self._cancel_eviction(buffer)
            return False
        self.refusing.discard(below)
        self._queues[tier].discard(buffer)
        self._evicting[tier][buffer] = None
        for tile in tiles:
            self._copy(tile, tier, below, out, after or ())
        return True

    def _finish_eviction(self, buffer: Buffer, out: list[Instruction]) -> None:
        """Drop a buffer that :meth:`_evict` has written, unless it is needed earlier now."""
        if buffer.evicting and all(tile.is_below(buffer.tier) for tile in buffer.tiles):
            self._cancel_eviction(buffer)
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

    def _cancel_eviction(self, buffer: Buffer) -> None:
        buffer.evicting = False
        self._evicting[buffer.tier].pop(buffer, None)
        self._freeing[buffer.tier] -= buffer.size
        self._rank_below(buffer)

    def _drop_stale(self, tile: Tile, out: list[Instruction]) -> None:
        """Drop copies on lower tiers if tasks may change the tile on its fastest tier."""
        if not self.settings.keep_clean and not tile.copies:
            top = min(tile.on)
            if not tile.on[top].evicting:
                for tier in [tier for tier in tile.on if tier > top]:
                    self._drop_tile(tile, tier, out)

    # Bookkeeping

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

    def _continue_fetch(self, tile: Tile) -> None:
        """After a copy to a faster tier, or its failure: end the wait, or fetch further."""
        if tile.is_home or tile.removed or tile.unreadable:
            self._end_waits(tile)
        elif tile.waiting:
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

    def _grow(self, tier: int, size: int) -> None:
        """Raise a shrunken capacity by the bytes of a tile that were allocated on the tier."""
        if self.capacity[tier] < self._allowed[tier]:
            self.capacity[tier] = min(self.capacity[tier] + size, self._allowed[tier])

    def _place(self, tile: Tile, tier: int, size: int, shared: Hashable = None) -> None:
        buffer = self._shared.get(shared) if shared is not None else None
        if buffer is None:
            buffer = Buffer(tier, size, shared)
            self.used[tier] += size
            if shared is not None:
                self._shared[shared] = buffer
        elif buffer.evicting:
            self._cancel_eviction(buffer)
        buffer.tiles.append(tile)
        tile.on[tier] = buffer
        self._rank_tile(tile)

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
        if not buffer.tiles:
            if buffer.evicting:
                self._cancel_eviction(buffer)
            elif buffer.dying:
                self._freeing[tier] -= buffer.size
                del self._dying[buffer]
            self._queues[tier].discard(buffer)
            self._unranked.pop(buffer, None)
            self.used[tier] -= buffer.size
            self._full[tier] = False
            if buffer.shared is not None:
                del self._shared[buffer.shared]
        else:
            self._finish_eviction(buffer, out)
        for other in tile.on.values():
            if other.evicting and not tile.copies and not tile.is_below(other.tier):
                # its copy below was dropped before the others were written
                self._cancel_eviction(other)
            self._mark_unranked(other)

    def _free_removed(self, tile: Tile, out: list[Instruction]) -> None:
        """Drop a removed tile from all tiers once all its copies have ended."""
        if not tile.copies:
            del self._removed[tile.key, tile.generation]
            for tier in sorted(tile.on):
                self._drop_tile(tile, tier, out)

    def _mark_unranked(self, buffer: Buffer) -> None:
        """Have the rank of a buffer updated before it is used."""
        self._unranked[buffer] = None
        if buffer.dying and not self._is_dying(buffer):
            self._dying[buffer] = False

    def _update_ranks(self) -> None:
        """Update all ranks that are out of date; after an error the others still are."""
        while self._unranked:
            self._update_rank(self._unranked.popitem()[0])

    def _update_rank(self, buffer: Buffer) -> None:
        """Update the rank of a buffer for eviction, and whether it may be evicted."""
        self._unranked.pop(buffer, None)
        self._mark_dying(buffer)
        tier = buffer.tier
        uses = [tile.next for tile in buffer.tiles]
        known = [use for use in uses if use is not None]
        buffer.next = min(known) if len(known) == len(uses) else None
        if buffer.size > self.capacity[tier]:
            # it does not fit, even if all others were evicted
            buffer.next = math.inf
        buffer.used = max(tile.used for tile in buffer.tiles)
        if tier == self._last:
            buffer.stored = all(min(tile.on) < tier for tile in buffer.tiles)
            may = buffer.stored
        else:
            buffer.stored = all(tile.is_below(tier) for tile in buffer.tiles)
            may = buffer.stored or not any(tier in tile.unwritable for tile in buffer.tiles)
        stays = not buffer.evicting and not buffer.dying
        if may and stays and not any(self._must_stay(tile, tier) for tile in buffer.tiles):
            self._queues[tier].put(buffer)
        else:
            self._queues[tier].discard(buffer)

    def _is_dying(self, buffer: Buffer) -> bool:
        return not buffer.evicting and all(
            tile.dying and not tile.pins and not tile.removed and not tile.is_below(buffer.tier)
            for tile in buffer.tiles
        )

    def _mark_dying(self, buffer: Buffer) -> None:
        """Update whether a buffer is dying."""
        dying = self._is_dying(buffer)
        if dying and not buffer.dying:
            self._freeing[buffer.tier] += buffer.size
            self._dying[buffer] = False
        elif buffer.dying and not dying:
            self._freeing[buffer.tier] -= buffer.size
            del self._dying[buffer]
        buffer.dying = dying

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
        for buffer in tile.on.values():
            self._mark_unranked(buffer)

    def _must_stay(self, tile: Tile, tier: int) -> bool:
        """Whether a tile must not be evicted from a tier."""
        if tile.removed or any(copy.source == tier for copy in tile.copies.values()):
            return True
        if tier == tile.home:
            # copies below may be stale, and are dropped when none is in progress
            return tile.pins > 0 or (not self.settings.keep_clean and bool(tile.copies))
        if any(buffer.evicting for above, buffer in tile.on.items() if above < tier):
            return True
        return bool(tile.waiting) and tier == min(tile.on)
