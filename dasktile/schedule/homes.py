"""Which address each task belongs to: the mesh laid over the workers that there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import index as integer
from typing import Any

from dasktile.schedule.placement import MARK, Placement, decode

#: Names of slices cut where the tile is; see ``dasktile.lower.names.slices_of``.
SLICES = "rechunk-split-"


@dataclass(frozen=True, slots=True)
class Layer:
    """Homes of the tasks of one layer; without a placement they are where what they read is."""

    placement: Placement | None
    addresses: tuple[str, ...]

    def home(self, index: Any) -> str | None:
        """Address for a task; None where it follows what it reads, or an array, or is no tile."""
        if self.placement is None or self.placement.follow is not None:
            return None
        tile = _tile(index)
        return None if tile is None else self.addresses[self.placement.position(tile)]

    def followed(self, index: Any) -> tuple[int, ...] | None:
        """The block of an array that a task's home is the home of, None if it is of none."""
        if self.placement is None or self.placement.follow is None:
            return None
        tile = _tile(index)
        _, axes = self.placement.follow
        if tile is None or any(axis is not None and axis >= len(tile) for axis in axes):
            return None
        return tuple(0 if axis is None else tile[axis] for axis in axes)


def _tile(index: Any) -> tuple[int, ...] | None:
    """What follows the name in a key, where that is the index of a tile.

    Dask's own steps on a plan's arrays may have names of the plan and any keys.
    """
    if type(index) is not tuple:
        return None
    try:
        return tuple(map(integer, index))
    except TypeError:
        return None


@dataclass
class Homes:
    """The workers in mesh order, and what follows for layers of a name.

    Parameters
    ----------
    workers
        Addresses, in the order of :func:`~dasktile.schedule.placement.worker_order`.
    """

    workers: list[str]
    _tables: dict[int, tuple[str, ...]] = field(default_factory=dict, repr=False)
    _places: dict[str, int] = field(default_factory=dict, repr=False)

    def layer(self, name: object) -> Layer | None:
        """What is known of a layer of this name; None if it is not one of a plan."""
        if not isinstance(name, str) or not self.workers:
            return None
        if name.startswith(SLICES):
            return Layer(None, ())
        if MARK not in name:
            return None
        placement = decode(name)
        if placement is None:
            return Layer(None, ())
        return Layer(placement, self.table(placement.workers))

    def table(self, places: int) -> tuple[str, ...]:
        """For every place of a mesh, the worker that it falls to."""
        if places not in self._tables:
            count = len(self.workers)
            self._tables[places] = tuple(
                self.workers[place * count // places] for place in range(places)
            )
        return self._tables[places]

    def place(self, address: str) -> tuple[int, str]:
        """Sorts addresses as the mesh does, strangers last."""
        if not self._places:
            self._places.update({known: at for at, known in enumerate(self.workers)})
        return self._places.get(address, len(self.workers)), address

    def replace(self, workers: Sequence[str]) -> None:
        """Lay meshes over other workers from now on."""
        self.workers = list(workers)
        self._tables.clear()
        self._places.clear()
