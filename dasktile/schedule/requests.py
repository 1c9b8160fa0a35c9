"""The tiles and requests that a :class:`~dasktile.schedule.residency.Residency` knows."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from dasktile.schedule.eviction import Buffer
from dasktile.schedule.instructions import Copy


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
    #: A copy to a faster tier has failed; the next one is tried when it is requested.
    unreadable: bool = False
    #: It is dying; see :mod:`dasktile.schedule.residency`.
    dying: bool = False
    #: A copy to a faster tier failed for lack of room, although there was room by our count.
    refused: bool = False
    #: Copies that were repeated after that while no task could free room.
    retries: int = 0
    removed: bool = False

    def expect(self, next_use: float | None) -> None:
        """Set the next use, which may be `DYING`."""
        self.dying = next_use is not None and math.isnan(next_use)
        self.next = math.inf if self.dying else next_use

    @property
    def is_home(self) -> bool:
        """Whether it is on the tier on which tasks read it."""
        return self.home in self.on

    def is_below(self, tier: int) -> bool:
        """Whether it is on a lower tier than this one."""
        return bool(self.on) and max(self.on) > tier

    @property
    def is_fetched(self) -> bool:
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
