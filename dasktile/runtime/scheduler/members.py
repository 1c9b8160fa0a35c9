"""The workers in mesh order, while they join and leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distributed import Scheduler, Status

from dasktile._compat.distributed import metadata, scheduling
from dasktile.schedule.homes import Homes
from dasktile.schedule.placement import mesh_place

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

#: Topic of the scheduler's metadata that clients read to plan: the order of workers.
METADATA = "dasktile"


class Members:
    """Keeps the mesh order up to date, and publishes it for clients.

    Thousands of workers may join one after the other: for each, no other one is looked at, except
    in a search in sorted order.

    Parameters
    ----------
    scheduler
        The scheduler of the workers.
    homes
        The mesh order, which is changed.
    is_idle
        Whether no task runs or could run, so that no home worker is in use.
    reassign_later
        Called when workers have changed while tasks run.
    check_later
        Has :meth:`check` called soon.
    publishes
        Whether clients are to read the order.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        homes: Homes,
        is_idle: Callable[[], bool],
        reassign_later: Callable[[], None],
        check_later: Callable[[], None],
        publishes: bool,
    ) -> None:
        self._scheduler = scheduler
        self._homes = homes
        self._is_idle = is_idle
        self._reassign_later = reassign_later
        self._check_later = check_later
        self._publishes = publishes
        #: By address of a worker: its name, and its sort key in the mesh order.
        self._known: dict[str, tuple[object, Any]] = {}
        #: Whether the homes are in mesh order, as if all workers had joined at once.
        self._in_order = False

    def reset(self) -> None:
        """Assign mesh positions to the present workers, regardless of earlier ones."""
        present = self._scheduler.workers
        self._known = {address: _known(address, ws) for address, ws in present.items()}
        self._homes.replace(self._order())
        self._in_order = True
        self.publish()

    def _order(self) -> list[str]:
        """Addresses of the workers that do not leave, in the order of mesh positions."""
        present = self._scheduler.workers
        places = {
            address: _known(address, ws)[1] for address, ws in present.items() if not is_leaving(ws)
        }
        return sorted(places, key=places.__getitem__)

    def publish(self) -> None:
        """Let clients read the order, now and after later changes of it."""
        if self._publishes:
            metadata.publish(self._scheduler, METADATA, "workers", self._homes.workers)

    def withdraw(self) -> None:
        """Remove the order from what clients read."""
        metadata.withdraw(self._scheduler, METADATA, "workers")

    def joined(self, address: str) -> None:
        """Handle a worker that has joined."""
        ws = self._scheduler.workers[address]
        if self._is_idle():
            self._change_order(address)
            return
        self._in_order = False
        self._known[address] = _known(address, ws)
        # a restarted worker has the name of the one that it replaces
        self._homes.join(address, self._homes.namesake(ws.name))
        self.publish()
        self._reassign_later()

    def left(self, address: str) -> None:
        """Handle a worker that has left."""
        if self._is_idle():
            self._change_order(address)
            return
        self._lose(address)
        self._reassign_later()

    def lose_leaving(self) -> None:
        """Divide the mesh positions of workers that are about to leave among the others."""
        present = self._scheduler.workers
        if scheduling.all_run(self._scheduler) and len(present) == len(self._homes.workers):
            return
        for address in list(self._homes.workers):
            if is_leaving(present.get(address)):
                self._lose(address)

    def _lose(self, address: str) -> None:
        self._in_order = False
        name, _ = self._known.pop(address, (None, None))
        self._homes.lose(address, name)
        self.publish()

    def _change_order(self, address: str) -> None:
        """Assign mesh positions anew after one worker has joined or left."""
        if not self._in_order:
            self.reset()
            return
        self._known.pop(address, None)
        if address in self._homes:
            self._homes.remove(address)
        ws = self._scheduler.workers.get(address)
        if ws is not None:
            self._known[address] = _known(address, ws)
            self._homes.insert(address, lambda worker: self._known[worker][1])
        self.publish()
        if not scheduling.all_run(self._scheduler):
            self._check_later()

    def check(self, events_missed: bool = True) -> None:
        """Find changes that no event has reported, such as a retirement that was cancelled.

        Parameters
        ----------
        events_missed
            False if all workers that have joined or left were reported; then this takes constant
            time where none is paused or leaving.
        """
        present, workers = self._scheduler.workers, self._homes.workers
        if not events_missed and len(present) == len(workers):
            settled = self._in_order or not self._is_idle()
            if settled and scheduling.all_run(self._scheduler):
                return
        known = self._in_order and present.keys() == set(workers)
        if known and not any(map(is_leaving, present.values())):
            return
        order = self._order()
        if order != workers:
            if self._is_idle():
                self.reset()
            else:
                for address in sorted(set(order).difference(workers)):
                    self.joined(address)


def _known(address: str, ws: WorkerState) -> tuple[object, Any]:
    """The name of a worker, and its sort key in the mesh order."""
    return ws.name, mesh_place(address, ws.host, ws.name)


def is_leaving(ws: Any) -> bool:
    """Whether a worker has left or is about to; None is one that has."""
    return ws is None or ws.status in (Status.closing_gracefully, Status.closing, Status.closed)
