"""Home workers of tasks: which worker's address each position of a mesh has."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dasktile.ir import MAX_WORKERS, workers_of_positions
from dasktile.schedule.placement import MARK, SLICE_PREFIX, Placement, decode
from dasktile.schedule.worker_list import WorkerList
from dasktile.schedule.worker_mesh import Successors, WorkerMesh

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


def has_homes(positions: int, workers: int) -> bool:
    """Whether tasks run on the workers of their mesh positions, with this many workers.

    They do not if the plan is for at most half of the workers: the others would be idle.

    Parameters
    ----------
    positions
        Positions of the mesh.
    workers
        Number of current workers.
    """
    return 2 * positions > min(workers, MAX_WORKERS)


def positions_of(placement: Placement | None, workers: int) -> Sequence[int] | None:
    """For every position of a plan's mesh, that on a mesh of so many workers.

    Parameters
    ----------
    placement
        The placement of a layer; None if its name gives none.
    workers
        Number of workers.

    Returns
    -------
    The positions; None where tasks of the layer have none, or follow data.
    """
    if placement is None or placement.follow is not None:
        return None
    if not has_homes(placement.positions, workers):
        return None
    return workers_of_positions(placement.positions, workers)


class LayerTable(dict[Any, "LayerHomes | None"]):
    """Homes of layers by name, as :meth:`Homes.layer` gives them; each name is parsed once."""

    def __init__(self, homes: Homes) -> None:
        super().__init__()
        self._homes = homes

    def __missing__(self, name: Any) -> LayerHomes | None:
        layer = self[name] = self._homes.layer(name)
        return layer

    def home(self, key: Any) -> str | None:
        """Address for a task; None if its name gives none."""
        layer = self[key[0]] if type(key) is tuple else None
        return None if layer is None else layer.home(key[1:])


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
        Addresses of the current workers, in mesh order: always the same list.
    """

    def __init__(self, workers: Sequence[str]) -> None:
        self._order = WorkerList(workers)
        self.workers = self._order.addresses
        self._forget()

    def __contains__(self, address: object) -> bool:
        """Whether this is the address of a current worker."""
        return address in self._order

    def _forget(self) -> None:
        """Forget all meshes and the workers that have left."""
        self._successors = Successors()
        self._meshes: dict[int, WorkerMesh] = {}
        #: Workers that have left and have no successor: their index in the order, a number that
        #: increases with every loss, and their name.
        self._vacant: dict[str, tuple[int, int, object]] = {}
        self._losses = 0
        #: Those of a name, in the order of losses.
        self._vacant_names: dict[object, dict[str, None]] = {}
        #: A heap of those with a position in a mesh, the latest first, and of others since then.
        self._vacant_in_mesh: list[tuple[int, str]] = []
        self._tables: dict[int, tuple[str, ...]] = {}

    def replace(self, workers: Iterable[str]) -> None:
        """Lay all meshes over other workers."""
        self._order.replace(workers)
        self._forget()

    def insert(self, address: str, key: Callable[[str], Any]) -> None:
        """Lay all meshes over these workers and another one; their order is that of a key."""
        self._order.insert_by(address, key)
        self._forget()

    def remove(self, address: str) -> None:
        """Lay all meshes over these workers without one of them."""
        self._order.remove(address)
        self._forget()

    def lose(self, address: str, name: object = None) -> None:
        """Remove a worker, and divide its mesh positions among the others.

        Parameters
        ----------
        address
            Of the worker.
        name
            Its name; None if it has none.
        """
        if address not in self._order:
            return
        self._losses += 1
        self._vacant[address] = self._order.remove(address), self._losses, name
        self._vacant_names.setdefault(name, {})[address] = None
        if len(self._vacant) > MAX_VACANT:
            self._fill(next(iter(self._vacant)))
        for mesh in self._meshes.values():
            mesh.lose(address)
        if self._holds(address):
            heapq.heappush(self._vacant_in_mesh, (-self._losses, address))
        self._tables.clear()

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
        if address in self._order:
            return
        if instead_of not in self._vacant:
            instead_of = address if address in self._vacant else self._last_vacant()
        line = self._successors.cut(address)
        for mesh in self._meshes.values():
            mesh.come_back(address, line)
        if instead_of is None:
            self._order.insert(len(self.workers), address)
        else:
            self._order.insert(self._fill(instead_of), address)
            if instead_of != address:
                self._successors.set(instead_of, address)
                for mesh in self._meshes.values():
                    mesh.succeed(instead_of, address)
                # its own former position is not vacant any more either
                if address in self._vacant:
                    self._fill(address)
        self._tables.clear()
        for mesh in self._meshes.values():
            self._take_duplicate(mesh, address)

    def _take_duplicate(self, mesh: WorkerMesh, address: str) -> None:
        """Move a position of a worker that has several to a worker that has none."""
        if mesh.holds(address):
            return
        if mesh.complete:
            duplicate = mesh.first_duplicate()
        else:
            table = mesh.table(self.workers)
            duplicate = None if address in table else _first_duplicate(table)
        if duplicate is not None:
            mesh.give(duplicate, address)
        self._take_share(mesh, address)

    def _take_share(self, mesh: WorkerMesh, address: str) -> None:
        """Move as many positions to a worker as others have, in a mesh of several for each.

        Not while those of a worker that has left are divided: the next to join takes them over.
        """
        share = len(mesh.workers) // len(self.workers)
        if share < 2 or not mesh.complete:
            return
        positions: dict[str, list[int]] = {worker: [] for worker in self.workers}
        for position, worker in enumerate(mesh.table(self.workers)):
            positions[worker].append(position)
        while len(positions[address]) < share:
            fullest = max(self.workers, key=lambda worker: len(positions[worker]))
            position = positions[fullest].pop()
            mesh.give(position, address)
            positions[address].append(position)

    def _fill(self, address: str) -> int:
        """Note that the place of a worker that has left is vacant no more; returns its index."""
        index, _, name = self._vacant.pop(address)
        namesakes = self._vacant_names[name]
        del namesakes[address]
        if not namesakes:
            del self._vacant_names[name]
        return index

    def _holds(self, address: str) -> bool:
        return any(mesh.holds(address) for mesh in self._meshes.values())

    def _last_vacant(self) -> str | None:
        """The worker that left last of those in a mesh; if none was in one, the last of all."""
        while self._vacant_in_mesh:
            number, address = self._vacant_in_mesh[0]
            vacant = self._vacant.get(address)
            if vacant is not None and vacant[1] == -number and self._holds(address):
                return address
            heapq.heappop(self._vacant_in_mesh)
        return next(reversed(self._vacant), None)

    @property
    def vacant(self) -> tuple[str, ...]:
        """Workers that have left and whose positions are vacant."""
        return tuple(self._vacant)

    def namesake(self, name: object) -> str | None:
        """The first worker of this name that has left and whose position is vacant."""
        return next(iter(self._vacant_names.get(name, ())), None)

    def layer(self, name: object) -> LayerHomes | None:
        """Homes of the layer of this name; None if its tasks get none.

        That is so if the layer is not part of a plan, or its plan has too few positions, see
        :func:`has_homes`.
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
        if not has_homes(placement.positions, len(self.workers)):
            return None
        return LayerHomes(placement, self.table(placement.positions))

    def table(self, positions: int) -> tuple[str, ...]:
        """The worker at every position of a mesh with this number of positions."""
        if positions not in self._tables:
            mesh = self._meshes.get(positions)
            if mesh is None:
                numbers = workers_of_positions(positions, len(self.workers))
                mesh = WorkerMesh([self.workers[number] for number in numbers], self._successors)
                self._meshes[positions] = mesh
            self._tables[positions] = mesh.table(self.workers)
        return self._tables[positions]

    def place(self, address: str) -> tuple[float, str]:
        """Sort key for addresses: mesh order, with unknown workers last."""
        return self._order.place(address)


def _first_duplicate(table: Iterable[str]) -> int | None:
    """The first position whose worker has an earlier one, too; None if all are different."""
    seen: set[str] = set()
    for position, worker in enumerate(table):
        if worker in seen:
            return position
        seen.add(worker)
    return None
