"""Settings and instructions of :mod:`dasktile.schedule.residency`.

The residency returns instructions for every event.  A worker's store, or a simulated store,
executes them, and reports each copy when it is done or has failed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

#: Next use of a dying tile: no task will read it and no client holds it, so that the scheduler
#: removes it soon.
DYING = math.nan


@dataclass(frozen=True, slots=True)
class ResidencySettings:
    """Capacities of the tiers, and numbers of the eviction and prefetch rules.

    Parameters
    ----------
    capacity
        Bytes of every tier, from the fastest; None for unlimited.
    keep_clean
        Whether a fetched tile keeps its copy on the lower tier.  Must be False if tasks change
        their inputs in place: the copy would have the old values.
    prefetch
        Number of tiles that are prefetched at the same time, at most.
    prefetch_fraction
        Fraction of a tier's capacity that prefetched tiles may take from tiles whose next use is
        later than theirs but earlier than that of the inputs of running tasks.  Above it, a
        prefetch evicts only tiles that are needed later than those inputs too.
    dirty_factor
        At least 1.  A tile that must be written before it is evicted counts as needed this many
        times as soon as a tile that has a copy on the tier below.
    retries
        Times that a fetch is repeated after its tier refused memory although no task runs that
        could free some, one for each call of :meth:`Residency.age`; or although the tasks that run
        make no progress, one for each call of :meth:`Residency.urge_first`.

    Raises
    ------
    ValueError
        If there are fewer than two tiers, or a number is out of range.
    """

    capacity: Sequence[int | None]
    keep_clean: bool = True
    prefetch: int = 2
    prefetch_fraction: float = 0.05
    dirty_factor: float = 2.0
    retries: int = 20

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
        if self.retries < 0:
            raise ValueError(f"retries must be at least 0, not {self.retries!r}")


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy a tile to the next tier, and report when the copy is done or has failed.

    It reads the tile on the source, and those of `after` where they are written to: whoever
    executes it starts it when earlier copies to these places are done, and reports it as not run
    if one of them has failed.

    Attributes
    ----------
    key, generation
        The tile; the generation distinguishes it from an earlier tile of the same key.
    source, target
        Numbers of adjacent tiers.
    size
        Expected bytes on the target.
    after
        Evictions from the target that make its room.
    ahead
        Whether no task waits for it: others to the same tier overtake it.
    """

    key: Hashable
    generation: int
    source: int
    target: int
    size: int
    after: tuple[Copy, ...] = ()
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Drop:
    """Free the memory of a tile on a tier."""

    key: Hashable
    generation: int
    tier: int


@dataclass(frozen=True, slots=True)
class Hasten:
    """A task waits for a copy that was made ahead."""

    copy: Copy


@dataclass(frozen=True, slots=True)
class Ready:
    """All tiles of a request are on the tier where tasks read them, until it is released.

    Exceptions are tiles whose copy was reported as failed.
    """

    request: Hashable


Instruction = Copy | Hasten | Drop | Ready
