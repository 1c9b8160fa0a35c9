"""Which address each task belongs to: the mesh laid over the workers that there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dasktile.ir import MAX_WORKERS
from dasktile.schedule.placement import MARK, Placement, decode

#: Names of slices cut where the tile is; see ``dasktile.lower.names.slices_layer_name``.
SLICE_PREFIX = "rechunk-split-"


#: Workers that are gone, and whose places are still told apart.
MAX_VACANT = 1000


@dataclass(frozen=True, slots=True)
class LayerHomes:
    """Homes of the tasks of one layer; without a placement they are where what they read is."""

    placement: Placement | None
    addresses: tuple[str, ...]

    def home(self, index: Any) -> str | None:
        """Address for a task; None where it follows what it reads, or an array, or is no tile."""
        placement = self.placement
        if placement is None or placement.follow is not None:
            return None
        position = placement.position_of(index)
        return None if position is None else self.addresses[position]

    def followed(self, index: Any) -> tuple[int, ...] | None:
        """The block of an array that a task's home is the home of, None if it is of none."""
        return None if self.placement is None else self.placement.followed(index)


class Homes:
    """The workers in mesh order, and what follows for layers of a name.

    While tasks run, workers that come or go change as few homes as they can: who comes
    takes the place of one that is gone, or none.

    Parameters
    ----------
    workers
        Addresses, in the order of :func:`~dasktile.schedule.placement.worker_order`.
    """

    def __init__(self, workers: Sequence[str]) -> None:
        self.replace(workers)

    def replace(self, workers: Sequence[str]) -> None:
        """Lay meshes over other workers from now on."""
        self.workers = list(workers)
        #: For meshes of so many places, the workers that they were first laid over.
        self._initial: dict[int, tuple[str, ...]] = {}
        #: Who took the place of a worker that is gone.
        self._successors: dict[str, str] = {}
        #: Workers that are gone and have no heir, and where in the order they were.
        self._vacant: dict[str, int] = {}
        self._clear_tables()

    def _clear_tables(self) -> None:
        self._tables: dict[int, tuple[str, ...]] = {}
        self._positions = {known: at for at, known in enumerate(self.workers)}

    def lose(self, address: str) -> None:
        """Divide what falls to a worker among the others."""
        if address in self._positions:
            self._vacant[address] = self.workers.index(address)
            self.workers.remove(address)
            if len(self._vacant) > MAX_VACANT:
                # on a scheduler that is never idle workers come and go for ever
                del self._vacant[next(iter(self._vacant))]
            self._clear_tables()

    def join(self, address: str, instead_of: str | None = None) -> None:
        """Let a worker take the place of one that is gone, if any is, else the last.

        In meshes of which it then has nothing it takes what another has twice.

        Parameters
        ----------
        address
            Of the worker that joins.
        instead_of
            The one of those that are gone whose place it should rather take.
        """
        if address in self._positions:
            return
        if instead_of not in self._vacant:
            instead_of = address if address in self._vacant else self._last_vacant()
        self._successors.pop(address, None)
        if instead_of is None:
            self.workers.append(address)
        else:
            self.workers.insert(self._vacant.pop(instead_of), address)
            if instead_of != address:
                self._successors[instead_of] = address
                # it is there, wherever it was before
                self._vacant.pop(address, None)
        self._clear_tables()
        for places in list(self._initial):
            self._take_duplicate(places, address)

    def _take_duplicate(self, places: int, address: str) -> None:
        """Give a worker that has nothing of a mesh what another has twice."""
        table = self.table(places)
        twice = next((at for at, one in enumerate(table) if one in table[:at]), None)
        if twice is not None and address not in table:
            first = self._initial[places]
            self._initial[places] = (*first[:twice], address, *first[twice + 1 :])
            self._clear_tables()

    def _last_vacant(self) -> str | None:
        """Of the workers that are gone the last that a mesh was laid over, or else the last."""
        used = {self._successor(one) for first in self._initial.values() for one in first}
        last = list(reversed(self._vacant))
        return next((one for one in last if one in used), next(iter(last), None))

    @property
    def vacant(self) -> tuple[str, ...]:
        """Workers that are gone and whose places nobody took."""
        return tuple(self._vacant)

    def layer(self, name: object) -> LayerHomes | None:
        """What is known of a layer of this name; None if it is not one of a plan.

        Nor is one of a plan for half as many workers as there are now, or fewer: it would
        leave the others idle.
        """
        if not isinstance(name, str) or not self.workers:
            return None
        if name.startswith(SLICE_PREFIX):
            return LayerHomes(None, ())
        if MARK not in name:
            return None
        placement = decode(name)
        if placement is None:
            return LayerHomes(None, ())
        if 2 * placement.workers <= min(len(self.workers), MAX_WORKERS):
            return None
        return LayerHomes(placement, self.table(placement.workers))

    def table(self, places: int) -> tuple[str, ...]:
        """For every place of a mesh, the worker that it falls to."""
        if places not in self._tables:
            count = len(self.workers)
            first = self._initial.setdefault(
                places, tuple(self.workers[place * count // places] for place in range(places))
            )
            gone: dict[str, str] = {}
            for address in dict.fromkeys(first):
                if self._successor(address) not in self._positions:
                    gone[address] = self.workers[len(gone) % count]
            self._tables[places] = tuple(
                gone.get(address) or self._successor(address) for address in first
            )
        return self._tables[places]

    def _successor(self, address: str) -> str:
        seen = set()
        while address in self._successors and address not in seen:
            seen.add(address)
            address = self._successors[address]
        return address

    def place(self, address: str) -> tuple[int, str]:
        """Sorts addresses as the mesh does, strangers last."""
        return self._positions.get(address, len(self.workers)), address
