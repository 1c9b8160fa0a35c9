"""The workers at the positions of one mesh, while workers join and leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import cycle


class Successors:
    """The workers that have taken over the positions of others, and of those in turn.

    They are kept, and their lines get longer with every replacement, until the cluster is idle.
    """

    def __init__(self) -> None:
        self._next: dict[str, str] = {}

    def set(self, address: str, successor: str) -> None:
        """Let a worker take over the positions of one that has left."""
        self._next[address] = successor

    def cut(self, address: str) -> list[str]:
        """Let a worker that has come back have its positions again; returns those that had them."""
        successor = self._next.pop(address, None)
        return [] if successor is None else list(self.line(successor))

    def line(self, address: str) -> Iterator[str]:
        """A worker, its successor, and so on."""
        seen = set()
        while address not in seen:
            yield address
            seen.add(address)
            address = self._next.get(address, address)

    def last(self, address: str) -> str:
        """The worker that has the positions of a worker now, by all replacements so far."""
        if address not in self._next:
            return address  # as most
        *_, last = self.line(address)
        return last


class WorkerMesh:
    """The workers at the positions of one mesh.

    Work for a worker that joins or leaves does not depend on the number of positions, except as
    the methods say.

    Parameters
    ----------
    workers
        For every position, the address of a present worker.
    successors
        The workers that take over positions.

    Attributes
    ----------
    workers
        For every position, the worker that it was given to.  If that one has left, the last of its
        successors has the position.
    """

    def __init__(self, workers: Iterable[str], successors: Successors) -> None:
        self.workers = list(workers)
        self._successors = successors
        #: By address: positions that were given to the worker, or to one whose successor it is.
        self._held = Counter(self.workers)
        #: Workers that have left, have no successor and hold positions.
        self._lost: set[str] = set()
        self._look_again()

    def _look_again(self) -> None:
        """Look for positions of workers with several from the first position on."""
        #: The workers of the first positions, which are all different, and the number of these.
        self._different: set[str] = set()
        self._looked_at = 0

    def holds(self, address: str) -> bool:
        """Whether a worker that is present, or has left and has no successor, has a position."""
        return self._held[address] > 0

    @property
    def complete(self) -> bool:
        """Whether every position is of a present worker."""
        return not self._lost

    def lose(self, address: str) -> None:
        """A worker leaves."""
        if self.holds(address):
            self._lost.add(address)
            self._look_again()

    def come_back(self, address: str, line: Iterable[str]) -> None:
        """A worker has its own positions again.

        Parameters
        ----------
        address
            The worker.
        line
            Those that have succeeded it, one after the other; empty if none has.
        """
        self._lost.discard(address)
        count = self._held[address]
        if count:
            self._subtract(count, line)
            self._look_again()

    def succeed(self, address: str, successor: str) -> None:
        """A worker takes over the positions of one that has left."""
        self._lost.discard(address)
        count = self._held[address]
        if count:
            self._held[successor] += count
            self._look_again()

    def give(self, position: int, address: str) -> None:
        """Give a position to a worker."""
        self._subtract(1, self._successors.line(self.workers[position]))
        self.workers[position] = address
        self._held[address] += 1

    def _subtract(self, count: int, line: Iterable[str]) -> None:
        for address in line:
            self._held[address] -= count
            if not self.holds(address):
                del self._held[address]
                self._lost.discard(address)

    def first_duplicate(self) -> int | None:
        """The first position whose worker has an earlier one, too; None if all are different.

        All positions of present workers.  Each is looked at once as long as only :meth:`give` is
        called for the positions that this returns.
        """
        while self._looked_at < len(self.workers):
            worker = self._successors.last(self.workers[self._looked_at])
            if worker in self._different:
                return self._looked_at
            self._different.add(worker)
            self._looked_at += 1
        return None

    def table(self, present: Iterable[str]) -> tuple[str, ...]:
        """The present worker at every position; linear in the positions.

        Parameters
        ----------
        present
            The present workers, in mesh order; they divide the positions of those that have left.
        """
        last = {address: self._successors.last(address) for address in dict.fromkeys(self.workers)}
        others = cycle(present)
        return tuple(
            next(others) if last[address] in self._lost else last[address]
            for address in self.workers
        )
