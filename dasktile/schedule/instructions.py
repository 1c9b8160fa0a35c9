"""Values that go into and come out of :mod:`dasktile.schedule.residency`.

Its rules have settings, and answer every event by instructions.  A worker's store, or a simulated
one, carries these out, and reports each copy when it is done or has failed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

#: The next use of a tile that no task will read and no client wants: it is removed soon.
DYING = math.nan


@dataclass(frozen=True, slots=True)
class ResidencySettings:
    """The numbers that the rules depend on.

    Parameters
    ----------
    capacity
        Bytes of every tier, from the fastest; None for one without a limit.
    keep_clean
        Whether a tile that was fetched stays on the tier it came from.  Must be off where
        tasks change what they read in place: the copy would be of the old values.
    prefetch
        Tiles that are fetched at once before a task asks for them.
    ahead
        Part of their tier that such tiles may take from what is needed later than they, but
        sooner than what tasks read now.
    dirty
        How much later than another a tile must be needed to be chosen although it has to be
        written first.

    Raises
    ------
    ValueError
        If there are no two tiers, or a number is out of range.
    """

    capacity: Sequence[int | None]
    keep_clean: bool = True
    prefetch: int = 2
    prefetch_fraction: float = 0.05
    dirty_factor: float = 2.0

    def __post_init__(self) -> None:
        if len(self.capacity) < 2:
            raise ValueError(f"capacity must have at least two tiers, not {self.capacity!r}")
        if any(bytes_ is not None and bytes_ < 0 for bytes_ in self.capacity):
            raise ValueError(f"capacity must not be negative, but is {self.capacity!r}")
        if self.prefetch < 0:
            raise ValueError(f"prefetch must be at least 0, not {self.prefetch!r}")
        if not 0 <= self.prefetch_fraction <= 1:
            raise ValueError(
                f"prefetch_fraction must be between 0 and 1, not {self.prefetch_fraction!r}"
            )
        if self.dirty_factor < 1:
            raise ValueError(f"dirty_factor must be at least 1, not {self.dirty_factor!r}")


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy a tile from one tier to the next, and report when that is done.

    Attributes
    ----------
    key, generation
        The tile; the generation distinguishes it from an earlier tile of the same key.
    source, target
        Tiers, one apart.
    size
        Bytes that are expected on the target.
    """

    key: Hashable
    generation: int
    source: int
    target: int
    size: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Free what a tile has on a tier."""

    key: Hashable
    generation: int
    tier: int


@dataclass(frozen=True, slots=True)
class Ready:
    """All tiles of a request are where tasks read them, and stay there.

    Except for those that could not be copied there, as was reported.
    """

    request: Hashable


Instruction = Copy | Drop | Ready
