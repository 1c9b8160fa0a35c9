"""The tiles and requests that a :class:`~dasktile.schedule.residency.Residency` knows."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from dasktile.schedule.eviction import Buffer
from dasktile.schedule.instructions import Copy
from dasktile.schedule.states import TILES, TileEvent, TileState, forbidden


@dataclass(slots=True, eq=False)
class Tile:
    """A tile on the tiers of a worker; all of its fields are changed by the residency."""

    key: Hashable
    #: Distinguishes it from earlier tiles of its key.
    generation: int
    #: Bytes.
    size: int
    #: The tier on which tasks read it.
    home: int
    #: Next use, as in `Buffer.next`.
    next: float | None
    #: Last use, by a counter.
    used: int
    state: TileState = TileState.HOME
    #: Its memory, by tier.
    on: dict[int, Buffer] = field(default_factory=dict)
    #: Copies in progress, by target tier.
    copies: dict[int, Copy] = field(default_factory=dict)
    #: Number of granted requests that pin it on its home tier.
    pins: int = 0
    #: Granted requests that wait for it.
    waiting: list[Request] = field(default_factory=list)
    #: Tiers from which it cannot be written to the tier below.
    unwritable: set[int] = field(default_factory=set)
    #: It was prefetched, and not requested since.
    prefetched: bool = False
    #: No task will read it and no client holds it; see `BufferState.DYING`.
    dying: bool = False
    #: Copies to a faster tier that were repeated after a refusal while no task could free room.
    retries: int = 0

    def change(self, event: TileEvent) -> None:
        """Enter the state that follows after an event, the only way to change it."""
        try:
            self.state = TILES[self.state][event]
        except KeyError:
            raise forbidden(self.state, event) from None

    def expect(self, next_use: float | None) -> None:
        """Set the next use, which may be `DYING`."""
        self.dying = next_use is not None and math.isnan(next_use)
        self.next = math.inf if self.dying else next_use

    def is_below(self, tier: int) -> bool:
        """Whether it is on a lower tier than this one."""
        return bool(self.on) and max(self.on) > tier

    @property
    def rises(self) -> bool:
        """Whether a copy to a faster tier is in progress."""
        return bool(self.copies) and any(copy.target < copy.source for copy in self.copies.values())


@dataclass(slots=True, eq=False)
class Request:
    """A task that requests tiles."""

    name: Hashable
    tiles: list[Tile]
    #: Bytes that its task will make.
    room: int
    #: It waits for copies only, not for room of other requests.
    urgent: bool = False
    #: Its tiles are pinned, and fetched if necessary.
    granted: bool = False
    #: Number of its tiles that are not on their home tier yet.
    missing: int = 0
