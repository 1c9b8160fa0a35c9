"""A worker that carries out what a residency decides, and what must hold after each event."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import chain
from typing import Any

from dasktile.schedule.eviction import Buffer
from dasktile.schedule.instructions import (
    Copy,
    Drop,
    Hasten,
    Instruction,
    Ready,
    ResidencySettings,
)
from dasktile.schedule.requests import Tile
from dasktile.schedule.residency import Residency
from dasktile.schedule.states import FREEING, ON_ITS_WAY, QUEUED, BufferState, TileState


class Worker:
    """A simulated store: executes instructions and checks that each is valid."""

    def __init__(self, *capacity: int | None, **options: Any) -> None:
        self.residency = Residency(ResidencySettings(capacity, **options))
        self.on: dict[tuple[Hashable, int], set[int]] = {}
        self.sizes: dict[tuple[Hashable, int], int] = {}
        self.homes: dict[tuple[Hashable, int], int] = {}
        self.flights: list[Copy] = []
        #: By copy: those in progress that it needs.  Copies that need one that has failed.
        self.needs: dict[Copy, set[Copy]] = {}
        self.broken: set[Copy] = set()
        self.hastened: list[Hashable] = []
        self.ready: set[Hashable] = set()
        self.requested: dict[Hashable, list[tuple[Hashable, int]]] = {}
        self.failed_fetches: set[Hashable] = set()
        self.urgent: set[Hashable] = set()
        self.read = self.written = 0

    def do(self, instructions: Sequence[Instruction]) -> None:
        # a request does not wait for these, also if another one has them fetched again
        ended = (TileState.UNREADABLE, TileState.FAILING)
        tiles = self.residency._tiles.items()
        self.failed_fetches |= {key for key, tile in tiles if tile.state in ended}
        for instruction in instructions:
            match instruction:
                case Copy(key, generation, source, target, size, after):
                    before = [
                        copy
                        for copy in self.flights
                        if (copy.key, copy.generation, copy.target) == (key, generation, source)
                    ]
                    assert source in self.on[key, generation] or before
                    assert target not in self.on[key, generation]
                    assert abs(source - target) == 1
                    assert size == self.sizes[key, generation]
                    assert all(copy.source == target == copy.target - 1 for copy in after)
                    assert set(after) <= set(self.flights)
                    self.needs[instruction] = {*after, *before}
                    self.flights.append(instruction)
                case Hasten(copy):
                    assert copy.ahead and copy in self.flights
                    self.hastened.append(copy.key)
                case Drop(key, generation, tier):
                    on = self.on[key, generation]
                    on.remove(tier)
                    for copy in self.flights:
                        assert (copy.key, copy.generation, copy.source) != (key, generation, tier)
                    pinned = {
                        tile
                        for name in self.ready
                        if name in self.requested
                        for tile in self.requested[name]
                    }
                    if self.is_there(key, generation):
                        assert on
                        home = self.homes[key, generation]
                        assert tier != home or (key, generation) not in pinned
                case Ready(name):
                    assert name not in self.ready
                    self.ready.add(name)
                    for key, generation in self.requested[name]:
                        assert (
                            self.homes[key, generation] in self.on[key, generation]
                            or not self.is_there(key, generation)
                            or key in self.failed_fetches
                            or name in self.urgent
                        )

    def generation(self, key: Hashable) -> int:
        return self.residency._tiles[key].generation

    def is_there(self, key: Hashable, generation: int) -> bool:
        return key in self.residency and self.generation(key) == generation

    def add(self, key: Hashable, size: int = 1, next_use: float | None = None, **more: Any) -> None:
        home = more.get("tier", 0)
        self._expect_tile(key, size, home, home)
        self.do(self.residency.add(key, size, next_use, **more))

    def adopt(
        self, key: Hashable, size: int, tier: int, next_use: float | None = None, home: int = 0
    ) -> None:
        self._expect_tile(key, size, tier, home)
        self.do(self.residency.adopt(key, size, size, next_use, home, tier))

    def _expect_tile(self, key: Hashable, size: int, tier: int, home: int) -> None:
        """Know a tile that is made next: instructions for it are checked before `add` returns."""
        tile = key, self.residency._count + 1
        self.on[tile], self.sizes[tile], self.homes[tile] = {tier}, size, home

    def request(
        self,
        name: Hashable,
        *keys: Hashable,
        now: float | None = None,
        room: int = 0,
        urgent: bool = False,
    ) -> None:
        self.requested[name] = [(key, self.generation(key)) for key in keys]
        self.urgent |= {name} if urgent else set()
        self.do(self.residency.request(name, keys, now, room, urgent))

    def release(self, name: Hashable) -> None:
        self.ready.discard(name)
        del self.requested[name]
        self.do(self.residency.release(name))

    def able(self) -> list[int]:
        """The copies that may run, by their place."""
        return [place for place, copy in enumerate(self.flights) if not self.needs[copy]]

    def finish(self, which: int = 0, failed: bool = False, full: bool = False) -> None:
        copy = self.flights.pop(which)
        assert not self.needs.pop(copy)
        for other, needs in self.needs.items():
            if failed and copy in needs:
                self.broken.add(other)
            needs.discard(copy)
        self._finish(copy, failed, full)
        while broken := [
            copy for copy in self.flights if copy in self.broken and not self.needs[copy]
        ]:
            for copy in broken:
                # as an engine: what needs a copy that has failed fails as well
                self.broken |= {other for other, needs in self.needs.items() if copy in needs}
                self.broken.discard(copy)
                for needs in self.needs.values():
                    needs.discard(copy)
                del self.needs[copy]
                self.flights.remove(copy)
                self.do(self.residency.failed(copy, ran=False))

    def _finish(self, copy: Copy, failed: bool, full: bool) -> None:
        assert copy.source in self.on[copy.key, copy.generation]
        if failed:
            self.failed_fetches |= {copy.key} if copy.target < copy.source and not full else set()
            self.do(self.residency.failed(copy, full))
            return
        self.on[copy.key, copy.generation].add(copy.target)
        if copy.target > copy.source:
            self.written += copy.size
        else:
            self.read += copy.size
        self.do(self.residency.copied(copy))

    def settle(self) -> None:
        for _ in range(5000):
            if not self.flights:
                return
            self.finish()
        raise AssertionError("tiles are copied without end")

    def top(self, key: Hashable) -> int:
        return self.residency.tiers(key)[0]

    def fast(self) -> str:
        return "".join(sorted(str(key) for key in self.residency if self.top(key) == 0))


def settle_all(worker: Worker) -> None:
    """Finish all copies that follow from the current state."""
    for _ in range(20):
        worker.do(worker.residency.age())
        worker.settle()


def check(worker: Worker) -> None:
    """Check that the counters agree with the buffers and copies."""
    residency = worker.residency
    used, awaited = ([0] * len(residency.used) for _ in range(2))
    seen = set()
    for tile in [*residency._tiles.values(), *residency._removed.values()]:
        assert set(tile.on) == worker.on[tile.key, tile.generation]
        for buffer in tile.on.values():
            assert tile in buffer.tiles
            if id(buffer) not in seen:
                seen.add(id(buffer))
                used[buffer.tier] += buffer.size
        for copy in tile.copies.values():
            (awaited if copy in residency._waits else used)[copy.target] += copy.size
    assert used == residency.used
    assert awaited == residency._awaited
    assert set(residency._waits) <= set(worker.flights)
    buffers = {
        id(buffer): buffer for tile in residency._tiles.values() for buffer in tile.on.values()
    }
    buffers |= {
        id(buffer): buffer for tile in residency._removed.values() for buffer in tile.on.values()
    }
    for tier, size in enumerate(residency._freeing):
        on_tier = [buffer for buffer in buffers.values() if buffer.tier == tier]
        freeing = [buffer for buffer in on_tier if buffer.state in FREEING]
        assert size == sum(buffer.size for buffer in freeing)
    assert {id(buffer) for buffer in residency._dying} == {
        number for number, buffer in buffers.items() if buffer.state is BufferState.DYING
    }
    check_states(residency)
    prefetched = sum(tile.size for tile in residency._tiles.values() if tile.prefetched)
    prefetched += sum(tile.size for tile in residency._removed.values() if tile.prefetched)
    assert residency.prefetches.size == prefetched


def check_states(residency: Residency) -> None:
    """Check what must hold in each state of a tile and of a buffer."""
    tiles = [*residency._tiles.values(), *residency._removed.values()]
    assert set(residency._fetches) <= set(residency._tiles.values())
    for tile in residency._removed.values():
        assert tile.state is TileState.REMOVED
        assert tile.copies
    for tile in residency._tiles.values():
        check_tile(tile, tile in residency._fetches)
    rising = [copy for tile in tiles for copy in tile.copies.values() if copy.target < copy.source]
    assert residency._active_fetches == len(rising)
    buffers = {buffer for tile in tiles for buffer in tile.on.values()}
    for buffer in buffers:
        check_buffer(residency, buffer)
    # what is freed is known nowhere any more
    known = chain(residency._unranked, residency._dying, *residency._evicting)
    assert buffers.issuperset(known)
    assert buffers.issuperset(residency._shared.values())
    for queue in residency._queues:
        for ranked in (*queue._known.values(), *queue._unknown.values()):
            assert buffers.issuperset(ranked._entries)


def check_tile(tile: Tile, queued: bool) -> None:
    """Check a tile that is not removed; `queued` if it is in the queue of fetches."""
    assert tile.on
    assert tile.state is not TileState.REMOVED
    assert (tile.state is TileState.HOME) == (tile.home in tile.on)
    assert (tile.state in ON_ITS_WAY) == tile.rises
    if tile.state in QUEUED:
        assert queued
        assert tile.waiting
    elif tile.state not in (TileState.FETCHING, TileState.RETRYING):
        assert not tile.waiting
    if queued:
        # requests that have ended leave their tiles there until they come up
        assert tile.state in QUEUED or tile.state is TileState.BELOW
    assert all(request.granted and tile in request.tiles for request in tile.waiting)
    assert len(tile.waiting) <= tile.pins
    if tile.prefetched:
        assert not tile.pins


def check_buffer(residency: Residency, buffer: Buffer) -> None:
    """Check a buffer that a tile is in."""
    tier, evictable = buffer.tier, buffer in residency._queues[buffer.tier]
    assert buffer.tiles
    assert all(tile.on[tier] is buffer for tile in buffer.tiles)
    assert buffer.state is not BufferState.FREED
    assert (buffer in residency._evicting[tier]) == (buffer.state is BufferState.EVICTING)
    assert (buffer in residency._dying) == (buffer.state is BufferState.DYING)
    if buffer.state is BufferState.EVICTING:
        unwritten = [tile for tile in buffer.tiles if not tile.is_below(tier)]
        assert all(tile.copies[tier + 1].source == tier for tile in unwritten)
        # what is removed stays until its last copy has ended, to whichever tier
        assert unwritten or any(tile.state is TileState.REMOVED for tile in buffer.tiles)
        assert not evictable
    elif buffer not in residency._unranked:
        pinned = any(tile.pins and tile.home == tier for tile in buffer.tiles)
        if buffer.state is BufferState.DYING:
            assert all(tile.dying for tile in buffer.tiles)
            assert not pinned
            assert not evictable
        assert not (evictable and pinned)
