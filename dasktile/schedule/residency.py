"""Residency of the tiles of a worker: a state machine that decides copies and evictions.

Tiers are numbered from the fastest to the last.  Events go in (a tile was made, a task requests
tiles, a copy is done or has failed), and instructions come out (copy a tile, drop a tile, a
request is ready).  Nothing here waits, reads a clock or touches the data of a tile, so that the
same rules run on a worker, in a test and in a simulation.

The states of a tile and of its memory, and all their transitions, are the tables of
:mod:`dasktile.schedule.states`.  A tile is *pinned* on its home tier, the one on which tasks read
it, while it belongs to a granted request.  Memory that is *dying* is not written to a lower tier,
and its bytes count as free soon.  Only if it is still there after a while (:meth:`Residency.age`)
it can be evicted as any other.

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
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain

from dasktile.schedule.fetches import Fetches
from dasktile.schedule.instructions import Copy, Instruction, ResidencySettings
from dasktile.schedule.requests import Request, Tile
from dasktile.schedule.states import (
    AFTER_REFUSAL,
    ARRIVED,
    BELOW,
    DELETED,
    DENIED,
    FAILED,
    HOME,
    QUEUED,
    REFUSED,
    REMOVED,
    RETRIED,
    UNWANTED,
    TileState,
)
from dasktile.schedule.tracking import ROOMY

#: Calls of :meth:`Residency.age` between two attempts to write to a full tier, at the most (chosen:
#: with ten calls a second a disk that has room again is found after some seconds).
_MOST_PAUSE = 64


class Residency(Fetches):
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
        tile = self._new_tile(key, size, home, next_use, BELOW)
        # its memory was allocated before
        self._place(tile, self._last if tier is None else tier, stored)
        return self._next_instructions()

    def _new_tile(
        self,
        key: Hashable,
        size: int,
        home: int,
        next_use: float | None,
        state: TileState = HOME,
    ) -> Tile:
        if key in self._tiles:
            raise ValueError(f"there is a tile {key!r} already")
        self._count += 1
        tile = Tile(key, self._count, size, home, None, self._count, state)
        tile.expect(next_use)
        self._tiles[key] = tile
        return tile

    def remove(self, key: Hashable) -> list[Instruction]:
        """A tile is deleted."""
        tile = self._tiles.pop(key)
        tile.change(DELETED)
        self._removed[key, tile.generation] = tile
        out: list[Instruction] = []
        # its memory is in use until all its copies have ended
        self._free_removed(tile, out)
        self._rank_tile(tile)
        self._continue_fetch(tile)
        self._fetches.pop(tile, None)
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
        refused = next((tile for tile in self._fetches if tile.state is REFUSED), None)
        if refused is not None:
            # requests that are granted after it would wait for its memory, too
            refused.retries += 1
            if refused.retries > self.settings.retries:
                self._give_up(refused)
            else:
                refused.change(RETRIED)
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
                    if not tile.waiting and tile.state in QUEUED:
                        # it keeps its place in the queue until it comes up
                        tile.change(UNWANTED)
                if tile.state is not REMOVED:
                    self._mark_used(tile)
            if self._waiting:
                self._waiting = [other for other in self._waiting if other is not request]
            # the task may have freed other memory, too
            for tile in self._fetches:
                if tile.state is REFUSED:
                    tile.change(RETRIED)
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
            if tile.state is REFUSED and not self._another_task_runs(tile):
                tile.change(RETRIED)
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
        if tile.state in AFTER_REFUSAL:
            tile.change(RETRIED)
        tile.retries = 0
        self._refusals[copy.target] = 0
        self._grow(copy.target, copy.size if size is None else size)
        out: list[Instruction] = []
        if tile.state is REMOVED:
            self._free_removed(tile, out)
        elif copy.target > copy.source:
            self._finish_eviction(tile.on[copy.source], out)
            self._drop_stale(tile, out)
        else:
            if copy.target == tile.home:
                tile.change(ARRIVED)
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
        if tile.state is REMOVED:
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
            tile.change(DENIED)
            self._continue_fetch(tile)
        else:
            # the tile stays where it is; requests do not wait for it any longer
            tile.change(FAILED)
            self._mark_unranked(source)
            self._continue_fetch(tile)
        if tile.state is HOME:
            self._drop_stale(tile, out)
            self._mark_unranked(tile.on[tile.home])
        return self._next_instructions(out)
