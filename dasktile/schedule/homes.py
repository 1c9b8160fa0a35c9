"""Home workers of tasks: which worker's address each position of a mesh has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dasktile.ir import MAX_WORKERS, workers_of_positions
from dasktile.schedule.placement import MARK, SLICE_PREFIX, Placement, decode

#: Largest number of vacant mesh positions that are kept, so that memory stays bounded on a cluster
#: that is never idle.
MAX_VACANT = 1000


@dataclass(frozen=True, slots=True)
class LayerHomes:
    """Homes of the tasks of one layer.

    Attributes
    ----------
    placement
        The placement in the layer's name; None if each task runs where its inputs are.
    addresses
        For every position of the placement's mesh, a worker's address.
    """

    placement: Placement | None
    addresses: tuple[str, ...]

    def home(self, index: Any) -> str | None:
        """Address for a task; None if it runs where its inputs or a followed array are."""
        placement = self.placement
        if placement is None or placement.follow is not None:
            return None
        position = placement.position_of(index)
        return None if position is None else self.addresses[position]

    def followed(self, index: Any) -> tuple[int, ...] | None:
        """The block of the followed array that has the same home as a task, None if none has."""
        return None if self.placement is None else self.placement.followed(index)


class LayerTable(dict[Any, "LayerHomes | None"]):
    """Homes of layers by name, as :meth:`Homes.layer` gives them; each name is parsed once."""

    def __init__(self, homes: Homes) -> None:
        super().__init__()
        self._homes = homes

    def __missing__(self, name: Any) -> LayerHomes | None:
        layer = self[name] = self._homes.layer(name)
        return layer


class Homes:
    """The workers in mesh order, and the homes of a layer by its name.

    Workers that join or leave while tasks run change as few homes as possible.  A new worker
    takes over a vacant mesh position, if there is one.

    Parameters
    ----------
    workers
        Addresses, in the order of :func:`~dasktile.schedule.placement.worker_order`.

    Attributes
    ----------
    workers
        Addresses of the current workers, in mesh order.
    """

    def __init__(self, workers: Sequence[str]) -> None:
        self.replace(workers)

    def replace(self, workers: Sequence[str]) -> None:
        """Lay all meshes over other workers."""
        self.workers = list(workers)
        #: By number of mesh positions, the workers that such a mesh was first laid over.
        self._initial: dict[int, tuple[str, ...]] = {}
        #: By address of a worker that has left, the worker that took over its position.
        self._successors: dict[str, str] = {}
        #: Workers that have left and have no successor, and their index in the order.
        self._vacant: dict[str, int] = {}
        self._clear_tables()

    def _clear_tables(self) -> None:
        self._tables: dict[int, tuple[str, ...]] = {}
        #: Positions of the workers in the order, once they are asked for: many may join before.
        self._known_positions: dict[str, int] | None = None

    @property
    def _positions(self) -> dict[str, int]:
        if self._known_positions is None:
            order = enumerate(self.workers)
            self._known_positions = {address: number for number, address in order}
        return self._known_positions

    def lose(self, address: str) -> None:
        """Remove a worker, and divide its mesh positions among the others."""
        if address in self._positions:
            self._vacant[address] = self.workers.index(address)
            self.workers.remove(address)
            if len(self._vacant) > MAX_VACANT:
                del self._vacant[next(iter(self._vacant))]
            self._clear_tables()

    def join(self, address: str, instead_of: str | None = None) -> None:
        """Add a worker: at a vacant position if there is one, else at the end.

        In a mesh in which it then has no position it takes over one of a worker that has
        several.

        Parameters
        ----------
        address
            Of the new worker.
        instead_of
            The worker that has left whose position is preferred.
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
                # its own former position is not vacant any more either
                self._vacant.pop(address, None)
        self._clear_tables()
        for positions in list(self._initial):
            self._take_duplicate(positions, address)

    def _take_duplicate(self, positions: int, address: str) -> None:
        """Move a position of a worker that has several to a worker that has none."""
        table = self.table(positions)
        seen: set[str] = set()
        duplicate = None
        for number, worker in enumerate(table):
            if worker == address:
                return
            if worker in seen and duplicate is None:
                duplicate = number
            seen.add(worker)
        if duplicate is not None:
            initial = self._initial[positions]
            self._initial[positions] = (
                *initial[:duplicate],
                address,
                *initial[duplicate + 1 :],
            )
            self._clear_tables()

    def _last_vacant(self) -> str | None:
        """The worker that left last of those in a mesh; if none was in one, the last of all."""
        used = {self._successor(worker) for initial in self._initial.values() for worker in initial}
        latest = list(reversed(self._vacant))
        return next((worker for worker in latest if worker in used), next(iter(latest), None))

    @property
    def vacant(self) -> tuple[str, ...]:
        """Workers that have left and whose positions are vacant."""
        return tuple(self._vacant)

    def layer(self, name: object) -> LayerHomes | None:
        """Homes of the layer of this name; None if its tasks get none.

        That is so if the layer is not part of a plan, or if the plan is for at most half of the
        current workers: the other workers would be idle.
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

    def table(self, positions: int) -> tuple[str, ...]:
        """The worker at every position of a mesh with this number of positions."""
        if positions not in self._tables:
            count = len(self.workers)
            initial = self._initial.setdefault(
                positions,
                tuple(self.workers[number] for number in workers_of_positions(positions, count)),
            )
            substitutes: dict[str, str] = {}
            for address in dict.fromkeys(initial):
                if self._successor(address) not in self._positions:
                    substitutes[address] = self.workers[len(substitutes) % count]
            self._tables[positions] = tuple(
                substitutes.get(address) or self._successor(address) for address in initial
            )
        return self._tables[positions]

    def _successor(self, address: str) -> str:
        """The worker that has the position of a worker now, by all replacements so far."""
        seen = set()
        while address in self._successors and address not in seen:
            seen.add(address)
            address = self._successors[address]
        return address

    def place(self, address: str) -> tuple[int, str]:
        """Sort key for addresses: mesh order, with unknown workers last."""
        return self._positions.get(address, len(self.workers)), address
