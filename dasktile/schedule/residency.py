"""Which tier every tile lies on: what to copy where, what to drop, decided from events alone.

Tiers are numbered from the fastest, on which tasks read, to the last, below which there is
nothing.  Whoever does the copying tells what has happened (a tile was made, tasks ask for
tiles, a copy is done or has failed) and is told what to do.  Nothing here waits, reads a clock
or touches a tile, so that the same rules run on a worker, in a test and in a simulation.

The rules:

- what no running task reads may leave a tier, the tile that is needed last first; see
  :mod:`dasktile.schedule.eviction`;
- a tile that a lower tier has already is dropped and never written again;
- nothing is written of a tile that will be removed in a moment: its room counts as free soon;
- a task runs when all that it reads is on the tier it was made on, and stays there until the
  task is done;
- tasks that ask while others run get room only as far as theirs leaves some: two that wait for
  half of their tiles each would wait forever;
- tiles are fetched before tasks ask for them only into room that is free or held by what is
  needed later, and only while nobody waits.

A tile is copied from tier to tier, one at a time.  Copies that a tile left behind on lower
tiers stay there until room is needed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dasktile.schedule.eviction import Buffer, EvictionQueue
from dasktile.schedule.instructions import Copy, Drop, Instruction, Ready, ResidencySettings


@dataclass(slots=True, eq=False)
class _Tile:
    key: Hashable
    #: Distinguishes it from earlier tiles of its key.
    generation: int
    size: int
    #: The tier that tasks read it on.
    home: int
    next: float | None
    used: int
    on: dict[int, Buffer] = field(default_factory=dict)
    #: Copies that are being made, by their target.
    copies: dict[int, Copy] = field(default_factory=dict)
    #: Requests that hold it where it is read, and those of them that wait for it.
    pins: int = 0
    waiting: list[_Request] = field(default_factory=list)
    #: Tiers that it cannot be copied down from.
    unwritable: set[int] = field(default_factory=set)
    #: It was fetched before anybody asked for it.
    prefetched: bool = False
    #: It could not be copied up, and is not tried again until somebody asks for it.
    unreadable: bool = False
    #: It will be removed in a moment.
    dying: bool = False
    #: There was no room above, although there should have been.
    refused: bool = False
    removed: bool = False

    def expect(self, next_use: float | None) -> None:
        self.dying = next_use is not None and math.isnan(next_use)
        self.next = math.inf if self.dying else next_use

    @property
    def is_home(self) -> bool:
        return self.home in self.on

    def is_below(self, tier: int) -> bool:
        return any(other > tier for other in self.on)

    @property
    def is_fetched(self) -> bool:
        return any(copy.target < copy.source for copy in self.copies.values())


@dataclass(slots=True, eq=False)
class _Request:
    name: Hashable
    tiles: list[_Tile]
    room: int
    #: Nobody may be waited for but copies.
    urgent: bool = False
    granted: bool = False
    #: Tiles that are not there yet.
    missing: int = 0


class Residency:
    """The tiles of one worker on all its tiers.

    Every method that tells of an event returns what is to be done now, in that order.

    Parameters
    ----------
    settings
        Of the tiers.

    Attributes
    ----------
    capacity
        Bytes that every tier may have now.
    used
        Bytes on every tier, with those on their way to it.
    refusing
        Tiers that have had no room for what was to leave to them last.
    prefetched, hits
        Tiles that were fetched before a task asked for them, and those of them that one has
        asked for since while they were there.
    """

    def __init__(self, settings: ResidencySettings) -> None:
        self.settings = settings
        self.capacity = [math.inf if size is None else size for size in settings.capacity]
        self._allowed = list(self.capacity)
        self.refusing: set[int] = set()
        self.prefetched = self.hits = 0
        self._last = len(self.capacity) - 1
        self.used = [0] * len(self.capacity)
        self._freeing = [0] * len(self.capacity)
        # Buffers that will be removed soon: whether they have been for a while.
        self._dying: dict[Buffer, bool] = {}
        self._full = [False] * len(self.capacity)
        self._tiles: dict[Hashable, _Tile] = {}
        #: Removed tiles whose copies have not ended, by key and generation.
        self._removed: dict[tuple[Hashable, int], _Tile] = {}
        self._shared: dict[Hashable, Buffer] = {}
        self._queues = [EvictionQueue(settings.dirty_factor) for _ in self.capacity]
        self._requests: dict[Hashable, _Request] = {}
        self._queued: deque[_Request] = deque()
        self._fetches: deque[_Tile] = deque()
        #: Requests that were granted and not answered.
        self._waiting: list[_Request] = []
        #: Keys that tasks will ask for first, in order.
        self._upcoming: Sequence[Hashable] = ()
        self._prefetched_bytes = 0
        self._active_fetches = 0
        self._count = 0
        self._now = -math.inf

    # What is where

    def __contains__(self, key: object) -> bool:
        return key in self._tiles

    def __len__(self) -> int:
        return len(self._tiles)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._tiles)

    def tiers(self, key: Hashable) -> tuple[int, ...]:
        """Tiers that have a tile, the fastest first."""
        return tuple(sorted(self._tiles[key].on))

    def staying(self, tier: int) -> int:
        """Bytes on a tier, without what is being written to leave it or will be removed."""
        return self.used[tier] - self._freeing[tier]

    @property
    def crowded(self) -> bool:
        """Whether tiles are being written to make room on a tier that has too little."""
        return any(
            leaving and used > capacity
            for leaving, used, capacity in zip(self._freeing, self.used, self.capacity, strict=True)
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
        """A tile was made, or came from elsewhere.

        Parameters
        ----------
        key
            Unlike those of all tiles that are there.
        size
            Bytes.
        next_use
            When a task needs it: tasks run in the order of these numbers.  ``inf`` if none
            will, `DYING` if it will be removed soon, None if nobody knows.
        shared
            The same for tiles that are views of the same memory.
        memory
            Bytes of that memory, which is more than a view of a part of it.
        tier
            Where it is, and where tasks read it.

        Raises
        ------
        ValueError
            If there is such a tile.
        """
        if key in self._tiles:
            raise ValueError(f"{key!r} is there already")
        self._count += 1
        tile = _Tile(key, self._count, size, tier, None, self._count)
        tile.expect(next_use)
        self._tiles[key] = tile
        self._place(tile, tier, size if memory is None else memory, shared)
        self._grow(tier, size)
        return self._next_instructions()

    def remove(self, key: Hashable) -> list[Instruction]:
        """A tile is needed no more."""
        tile = self._tiles.pop(key)
        tile.removed = True
        self._removed[key, tile.generation] = tile
        out: list[Instruction] = []
        # its memory is read or written until all copies have ended
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
        """A task asks for tiles; they are where it reads them once a :class:`Ready` says so.

        Parameters
        ----------
        name
            Of the request, unlike those of others that are not released.
        keys
            Of tiles.
        now
            The task's own number in the order that tasks run in.
        room
            Bytes that it is going to make.
        urgent
            Others that run may wait for it: it gets room at once, if there is too little all
            the same, and waits neither for others that run nor for tiles to be removed.

        Raises
        ------
        ValueError
            If there is such a request.
        KeyError
            If there is no such tile.
        """
        if name in self._requests:
            raise ValueError(f"{name!r} has asked already")
        request = _Request(name, [self._tiles[key] for key in dict.fromkeys(keys)], room, urgent)
        self._requests[name] = request
        self._queued.append(request)
        if now is not None:
            self._now = now
        return self.urge(name) if urgent else self._next_instructions()

    def urge(self, name: Hashable) -> list[Instruction]:
        """Do not let a request wait for room any longer."""
        request = self._requests.get(name)
        if request is None:
            return []
        out: list[Instruction] = []
        if not request.granted:
            self._queued.remove(request)
            self._grant(request, out)
        request.room = 0
        return self._next_instructions(out)

    def release(self, name: Hashable) -> list[Instruction]:
        """A task is done with what it asked for, or asks for it no more."""
        request = self._requests.pop(name)
        if request.granted:
            for tile in request.tiles:
                tile.pins -= 1
                if request in tile.waiting:
                    tile.waiting.remove(request)
                if not tile.removed:
                    self._mark_used(tile)
            self._waiting = [one for one in self._waiting if one is not request]
            # it may have given back more than tiles
            for tile in self._fetches:
                tile.refused = False
        else:
            self._queued.remove(request)
        return self._next_instructions()

    def expect(self, uses: Mapping[Hashable, float | None]) -> list[Instruction]:
        """Tiles are needed at other times than was said.

        Parameters
        ----------
        uses
            When a task needs a tile next; keys that are not there are passed over.
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
        """A while has passed: what should have been removed since the last time may leave."""
        for buffer, waited in list(self._dying.items()):
            if waited:
                self._make_evictable(buffer)
            else:
                self._dying[buffer] = True
        return self._next_instructions()

    def set_upcoming(self, keys: Sequence[Hashable]) -> list[Instruction]:
        """Tasks will ask for these first: they may be fetched before they do.

        Whatever is fetched long before it is used takes the place of what would have been used
        in between, and costs more reads than it hides.

        Parameters
        ----------
        keys
            What the next few tasks read, in their order; instead of what was said before.
        """
        soon = (key for key in keys if key in self._tiles)
        self._upcoming = [key for key in soon if not self._tiles[key].is_home]
        return self._next_instructions() if self._upcoming else []

    def touch(self, key: Hashable) -> None:
        """A tile was used without being asked for."""
        tile = self._tiles[key]
        # of what a task holds that is known
        if not tile.pins:
            self._mark_used(tile)

    def resize(self, tier: int, capacity: float | None) -> list[Instruction]:
        """A tier has more or less room than before."""
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
            As it was told.
        size
            Bytes that it takes on the target, if they are others.
        """
        tile = self._end_copy(copy)
        self._place(tile, copy.target, copy.size if size is None else size)
        tile.refused = False
        self._grow(copy.target, copy.size)
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

    def failed(self, copy: Copy, full: bool = False) -> list[Instruction]:
        """A copy has failed, and left nothing on the target.

        Parameters
        ----------
        copy
            As it was told.
        full
            The target had no room for it.  Otherwise the tile is not tried again: it stays
            where it is, at least until it is asked for.
        """
        tile = self._end_copy(copy)
        out: list[Instruction] = []
        if tile.removed:
            self._free_removed(tile, out)
            return self._next_instructions(out)
        source = tile.on[copy.source]
        if copy.target > copy.source:
            if source.evicting:
                self._cancel_eviction(source)
            if full:
                self._full[copy.target] = True
            else:
                tile.unwritable.add(copy.source)
            self._rank(source)
        elif full:
            # there is less room than was thought; whatever leaves next makes some
            self.capacity[copy.target] = min(self.capacity[copy.target], self.used[copy.target])
            tile.refused = True
            self._continue_fetch(tile)
        else:
            # it stays where it is, and whoever waits for it is told
            tile.unreadable = True
            self._rank(source)
            self._continue_fetch(tile)
        if tile.is_home:
            self._drop_stale(tile, out)
            self._rank(tile.on[tile.home])
        return self._next_instructions(out)

    # What follows

    def _next_instructions(self, out: list[Instruction] | None = None) -> list[Instruction]:
        out = [] if out is None else out
        for tier in range(self._last - 1, -1, -1):
            if self.used[tier] > self.capacity[tier]:
                self._make_room(tier, 0, out)
        if self._queued:
            self._grant_requests(out)
        if self._fetches:
            self._fetch_requested(out)
        if self._upcoming and not self._queued and not self._fetches:
            self._prefetch(out)
        if self._waiting:
            self._report_ready(out)
        return out

    def _grant_requests(self, out: list[Instruction]) -> None:
        """Let requests have room, the first in line first."""
        line, self._queued = self._queued, deque()
        for request in line:
            missing = [tile for tile in request.tiles if not tile.is_home and not tile.removed]
            if missing and (self._queued or not self._fits(request)):
                self._queued.append(request)
                continue
            self._grant(request, out)

    def _grant(self, request: _Request, out: list[Instruction]) -> None:
        """Let a request have what it asks for."""
        request.granted = True
        for tile in request.tiles:
            tile.pins += 1
            tile.unreadable = tile.refused = False
            home = tile.on.get(tile.home)
            if home is None and not tile.removed:
                request.missing += 1
                tile.waiting.append(request)
                self._fetches.append(tile)
            self._mark_used(tile)
            if not self.settings.keep_clean and home is not None:
                # it may be changed while it is written, and what is written already gets old
                if home.evicting:
                    self._cancel_eviction(home)
                for one in list(home.tiles):
                    self._drop_stale(one, out)
        self._waiting.append(request)

    def _fits(self, request: _Request) -> bool:
        """Whether there is room for a request beside all that were granted."""
        granted = [one for one in self._requests.values() if one.granted]
        if not granted:
            return True
        tiles = {id(tile): tile for one in (*granted, request) for tile in one.tiles}
        held = [0] * len(self.capacity)
        held[0] = sum(one.room for one in (*granted, request))
        seen: set[int] = set()
        for tile in tiles.values():
            buffer = tile.on.get(tile.home)
            if buffer is None:
                held[tile.home] += tile.size
            elif id(buffer) not in seen:
                seen.add(id(buffer))
                held[tile.home] += buffer.size
        return all(size <= capacity for size, capacity in zip(held, self.capacity, strict=True))

    def _mark_used(self, tile: _Tile) -> None:
        self.hits += tile.prefetched and tile.is_home
        self._clear_prefetched(tile)
        self._count += 1
        tile.used = self._count
        self._rank_tile(tile)

    def _clear_prefetched(self, tile: _Tile) -> None:
        if tile.prefetched:
            tile.prefetched = False
            self._prefetched_bytes -= tile.size

    def _fetch_requested(self, out: list[Instruction]) -> None:
        """Fetch what requests wait for, as far as there is room."""
        while self._fetches:
            tile = self._next_fetch()
            if tile.waiting and not tile.removed and not tile.is_home and not tile.is_fetched:
                source = min(tile.on)
                urgent = any(request.urgent for request in tile.waiting)
                fits = self._make_room(source - 1, tile.size, out)
                if not fits and urgent and self._dying:
                    for buffer in list(self._dying):
                        self._make_evictable(buffer)
                    fits = self._make_room(source - 1, tile.size, out)
                if not fits and self._freeing[source - 1]:
                    return
                if not fits and tile.refused:
                    if not urgent and self._another_task_runs(tile):
                        return
                    # whatever else happened, there would be no room for it
                    tile.refused, tile.unreadable = False, True
                    self._continue_fetch(tile)
                else:
                    # without room it is fetched all the same: somebody must go on
                    self._copy(tile, source, source - 1, out)
            self._fetches.remove(tile)

    def _next_fetch(self) -> _Tile:
        """What is fetched next: what is urgent must not wait behind what waits for others."""
        if any(request.urgent for request in self._requests.values()):
            for tile in self._fetches:
                if any(request.urgent for request in tile.waiting):
                    return tile
        return self._fetches[0]

    def _another_task_runs(self, tile: _Tile) -> bool:
        """Whether a task runs that may give room back when it is done."""
        running = (one for one in self._requests.values() if one.granted and not one.missing)
        return any(tile not in one.tiles for one in running)

    def _prefetch(self, out: list[Instruction]) -> None:
        """Fetch what tasks will ask for first, as far as that is little harm.

        What leaves for it should be needed later than all that tasks read now: one of those
        would leave instead if it was fetched when it is asked for.  Others leave for as much
        as `ResidencySettings.prefetch_fraction` says.
        """
        reads = [
            tile.next
            for request in self._requests.values()
            if request.granted
            for tile in request.tiles
            if tile.next is not None and not tile.removed
        ]
        last = max(reads, default=-math.inf)
        wanted = [tile for key in self._upcoming if (tile := self._tiles.get(key)) is not None]
        # in another order one that is fetched could leave again for the next, for ever
        for tile in sorted(wanted, key=lambda tile: math.inf if tile.next is None else tile.next):
            if tile.is_home or tile.is_fetched or tile.unreadable or tile.next == math.inf:
                continue
            source, room = min(tile.on), self.capacity[tile.home]
            if self._active_fetches >= self.settings.prefetch or tile.size > room:
                return
            few = self._prefetched_bytes + tile.size <= self.settings.prefetch_fraction * room
            use = math.inf if tile.next is None else tile.next
            # room on the way alone would be taken by what has to leave at its end
            for tier in sorted({tile.home, source - 1}):
                if not self._make_room(tier, tile.size, out, later=use if few else max(use, last)):
                    return
            tile.prefetched = True
            self.prefetched += source - 1 == tile.home
            self._prefetched_bytes += tile.size
            self._copy(tile, source, source - 1, out)

    def _report_ready(self, out: list[Instruction]) -> None:
        """Tell requests that all is there, unless they would make more where there is no room."""
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
    ) -> bool:
        """Make room on a tier; True if it is there now.

        Parameters
        ----------
        tier, size
            Where, and for how many bytes.
        out
            Gets what is to be done.
        later
            Only what is needed later than this may leave.
        """
        if self._full[tier]:
            return False
        while self.staying(tier) + size > self.capacity[tier]:
            for stored in (False, True):
                buffer = self._queues[tier].first(self._now, stored)
                if buffer is None:
                    continue
                if later is not None and (buffer.next is None or buffer.next <= later):
                    continue
                if self._evict(buffer, out):
                    break
            else:
                break
        return self.used[tier] + size <= self.capacity[tier]

    def _evict(self, buffer: Buffer, out: list[Instruction]) -> bool:
        """Let a buffer leave its tier, at once or when it is written; False if it cannot."""
        tier, below = buffer.tier, buffer.tier + 1
        if buffer.stored:
            self._drop_buffer(buffer, out)
            return True
        tiles = [tile for tile in buffer.tiles if not tile.is_below(tier)]
        # what is below of it already must not make room for the rest
        buffer.evicting, buffer.next_when_chosen = True, buffer.next
        self._freeing[tier] += buffer.size
        self._rank_below(buffer)
        fits = self._make_room(below, sum(tile.size for tile in tiles), out)
        if not fits and (below == self._last or self._freeing[below]):
            if not self._freeing[below]:
                self.refusing.add(below)
            self._cancel_eviction(buffer)
            return False
        self.refusing.discard(below)
        self._queues[tier].discard(buffer)
        for tile in tiles:
            self._copy(tile, tier, below, out)
        return True

    def _finish_eviction(self, buffer: Buffer, out: list[Instruction]) -> None:
        """End what :meth:`_evict` has begun."""
        if buffer.evicting and all(tile.is_below(buffer.tier) for tile in buffer.tiles):
            self._cancel_eviction(buffer)
            over = self.used[buffer.tier] > self.capacity[buffer.tier] or bool(self._fetches)
            chosen = buffer.next_when_chosen
            self._rank(buffer)
            # if it is needed sooner than it was when it was chosen, another may be chosen now
            nearer = chosen is not None and (buffer.next is None or buffer.next < chosen)
            may = buffer in self._queues[buffer.tier]
            if may and (not self.settings.keep_clean or (over and not nearer)):
                self._drop_buffer(buffer, out)
            return
        self._rank(buffer)

    def _cancel_eviction(self, buffer: Buffer) -> None:
        buffer.evicting = False
        self._freeing[buffer.tier] -= buffer.size
        self._rank_below(buffer)

    def _drop_stale(self, tile: _Tile, out: list[Instruction]) -> None:
        """Drop copies of what may be changed above, if there are to be none."""
        if not self.settings.keep_clean and not tile.copies:
            top = min(tile.on)
            if not tile.on[top].evicting:
                for tier in [tier for tier in tile.on if tier > top]:
                    self._drop_tile(tile, tier, out)

    # Bookkeeping

    def _copy(self, tile: _Tile, source: int, target: int, out: list[Instruction]) -> None:
        copy = Copy(tile.key, tile.generation, source, target, tile.size)
        tile.copies[target] = copy
        self.used[target] += copy.size
        self._active_fetches += target < source
        self._rank(tile.on[source])
        out.append(copy)

    def _end_copy(self, copy: Copy) -> _Tile:
        tile = self._tiles.get(copy.key)
        if tile is None or tile.generation != copy.generation:
            tile = self._removed[copy.key, copy.generation]
        del tile.copies[copy.target]
        self.used[copy.target] -= copy.size
        self._active_fetches -= copy.target < copy.source
        return tile

    def _continue_fetch(self, tile: _Tile) -> None:
        """A tile came nearer; tell who waits for it, or fetch it further."""
        if tile.is_home or tile.removed or tile.unreadable:
            for request in tile.waiting:
                request.missing -= 1
            tile.waiting = []
        elif tile.waiting:
            self._fetches.appendleft(tile)
        if not tile.is_home:
            self._mark_used(tile)

    def _grow(self, tier: int, size: int) -> None:
        """Raise a shrunken capacity by the size of a tile that was allocated on the tier."""
        if self.capacity[tier] < self._allowed[tier]:
            self.capacity[tier] = min(self.capacity[tier] + size, self._allowed[tier])

    def _place(self, tile: _Tile, tier: int, size: int, shared: Hashable = None) -> None:
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

    def _drop_tile(self, tile: _Tile, tier: int, out: list[Instruction]) -> None:
        """Take a tile off a tier."""
        buffer = tile.on.pop(tier)
        buffer.tiles.remove(tile)
        out.append(Drop(tile.key, tile.generation, tier))
        if tier == tile.home:
            self._clear_prefetched(tile)
        if not buffer.tiles:
            if buffer.evicting:
                self._cancel_eviction(buffer)
            elif buffer.dying:
                self._freeing[tier] -= buffer.size
                del self._dying[buffer]
            self._queues[tier].discard(buffer)
            self.used[tier] -= buffer.size
            self._full[tier] = False
            if buffer.shared is not None:
                del self._shared[buffer.shared]
        else:
            self._finish_eviction(buffer, out)
        for other in tile.on.values():
            if other.evicting and not tile.copies and not tile.is_below(other.tier):
                # what had been written of it is gone again
                self._cancel_eviction(other)
            self._rank(other)

    def _free_removed(self, tile: _Tile, out: list[Instruction]) -> None:
        """Take a removed tile off all tiers once none of its copies is being made."""
        if not tile.copies:
            del self._removed[tile.key, tile.generation]
            for tier in sorted(tile.on):
                self._drop_tile(tile, tier, out)

    def _rank(self, buffer: Buffer) -> None:
        """Say when a buffer should leave."""
        self._mark_dying(buffer)
        tier = buffer.tier
        uses = [tile.next for tile in buffer.tiles]
        known = [use for use in uses if use is not None]
        buffer.next = min(known) if len(known) == len(uses) else None
        if buffer.size > self.capacity[tier]:
            # whatever else left, there would be no room for it
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

    def _mark_dying(self, buffer: Buffer) -> None:
        """Note whether a buffer is about to be removed."""
        dying = not buffer.evicting and all(
            tile.dying and not tile.pins and not tile.removed and not tile.is_below(buffer.tier)
            for tile in buffer.tiles
        )
        if dying and not buffer.dying:
            self._freeing[buffer.tier] += buffer.size
            self._dying[buffer] = False
        elif buffer.dying and not dying:
            self._freeing[buffer.tier] -= buffer.size
            del self._dying[buffer]
        buffer.dying = dying

    def _make_evictable(self, buffer: Buffer) -> None:
        """Let a buffer leave although it was to be removed."""
        for tile in buffer.tiles:
            tile.dying = False
        self._rank(buffer)

    def _rank_below(self, buffer: Buffer) -> None:
        """Say when what is below of the tiles of a buffer should leave there."""
        for tile in buffer.tiles:
            for other in tile.on.values():
                if other.tier > buffer.tier:
                    self._rank(other)

    def _rank_tile(self, tile: _Tile) -> None:
        """The same for all that a tile is on."""
        for buffer in tile.on.values():
            self._rank(buffer)

    def _must_stay(self, tile: _Tile, tier: int) -> bool:
        """Whether a tile must stay on a tier."""
        if tile.removed or any(copy.source == tier for copy in tile.copies.values()):
            return True
        if tier == tile.home:
            # what is below may be of old values, and is dropped when it is not copied any more
            return tile.pins > 0 or (not self.settings.keep_clean and bool(tile.copies))
        if any(buffer.evicting for above, buffer in tile.on.items() if above < tier):
            return True
        return bool(tile.waiting) and tier == min(tile.on)
