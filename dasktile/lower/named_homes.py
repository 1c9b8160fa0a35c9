"""The mesh positions that names of tasks give, as the scheduler plugin reads them."""

from __future__ import annotations

import math
from typing import Any

from dasktile.capture.references import head_of
from dasktile.lower.bundle_limits import BundleLimits
from dasktile.lower.bundle_tasks import keys_in
from dasktile.schedule.placement import Placement, decode

Key = Any


class NamedHomes:
    """Finds the mesh positions that names give.

    Parameters
    ----------
    limits
        The mesh of the plan, those of earlier plans, and where blocks in memory are.
    """

    def __init__(self, limits: BundleLimits) -> None:
        self._limits = limits
        self._placements: dict[str, Placement | None] = {}

    def of_task(self, task: Any, key: Key) -> int | None:
        """The mesh position that the name of a task gives; None if it gives none.

        Names of outputs may give none: those of tasks that were fused into one of their tasks do.

        Parameters
        ----------
        task, key
            The task, and its key in the graph.
        """
        home = self.of(key)
        if home is not None:
            return home
        homes = (self.of(part) for part in reversed(keys_in(task)))
        return next((home for home in homes if home is not None), None)

    def of(self, key: Key, name: str | None = None, new: Placement | None = None) -> int | None:
        """The mesh position that a key gives; None if it gives none.

        Parameters
        ----------
        key
            The key.
        name
            The name whose placement counts, by default the key's own.
        new
            The placement of another name that the task will have, instead of that.
        """
        if type(key) is not tuple:
            return None
        placement = new or self._placement(str(head_of(key)) if name is None else name)
        if placement is None:
            return None
        limits = self._limits
        if placement.follow is not None:
            block = placement.followed(key[1:])
            blocks = limits.positions.get(placement.follow.token, {})
            return None if block is None else blocks.get(block)
        position = placement.position_of(key[1:])
        if position is None or placement.mesh == limits.mesh:
            return position
        if placement.positions == math.prod(limits.mesh):
            return position
        table = limits.tables.get(placement.positions)
        return None if table is None else table[position]

    def _placement(self, name: str) -> Placement | None:
        if name not in self._placements:
            self._placements[name] = decode(name)
        return self._placements[name]
