"""The order in which the tasks of a plan run, encoded in their keys.

Dask orders the tasks of a graph by its edges alone.  The keys of bundles, ``(name, home, rank)``,
have their rank in an order that was chosen with sizes and homes; keys of picks have one number
more.  Other tasks of the graph run next to those that they read, or that read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dasktile.schedule.edges import readers_of
from dasktile.schedule.placement import MARK

#: Operation in the names of layers whose keys have ranks.
BUNDLE = "bundle"

_START = BUNDLE + MARK

#: The plan of a task, by the name of its layer, and its rank in the order of that plan.
Rank = tuple[str, tuple[int, ...]]


def rank_of(key: Any) -> Rank | None:
    """The rank in the key of a task; None if it has none.

    Parameters
    ----------
    key
        A key of a graph.
    """
    if type(key) is not tuple or len(key) < 3:
        return None
    name, _, *rank = key
    if not isinstance(name, str) or not name.startswith(_START):
        return None
    return (name, tuple(rank)) if all(type(number) is int for number in rank) else None


def may_have_ranks(name: object) -> bool:
    """Whether keys with this name may have ranks."""
    return isinstance(name, str) and name.startswith(_START)


def ranked_order(ranks: Sequence[Rank | None], reads: Sequence[Sequence[int]]) -> list[int]:
    """All tasks, each after its inputs, those of a plan in the order of their ranks.

    A task without a rank runs as soon as those of its inputs that depend on ranks have run, or else
    before the first task that needs it.  If no task needs it, it runs when its inputs are there, or
    last.  Tasks that are in no way connected with ranks keep their places.  One plan runs after the
    other.

    Parameters
    ----------
    ranks
        For every task, its rank; tasks are numbered such that each follows its inputs.
    reads
        For every task, the numbers of the tasks that it reads.
    """
    first: dict[str, int] = {}
    for number, rank in enumerate(ranks):
        if rank is not None:
            first.setdefault(rank[0], number)
    ranked = sorted(
        (first[rank[0]], rank[1], number) for number, rank in enumerate(ranks) if rank is not None
    )
    if not ranked:
        return list(range(len(reads)))
    order = _Order(reads, [number for _, _, number in ranked]).order
    places = sorted(order)
    result = list(range(len(reads)))
    for place, number in zip(places, order, strict=True):
        result[place] = number
    return result


class _Order:
    """The order of all tasks that are connected with ranks.

    Parameters
    ----------
    reads
        For every task, the numbers of the tasks that it reads.
    ranked
        The tasks with ranks, in their order.
    """

    def __init__(self, reads: Sequence[Sequence[int]], ranked: Sequence[int]) -> None:
        self.reads = reads
        self.readers = readers_of(reads)
        #: For every task, whether it has a rank, or depends on a task that has one.
        self.depends = [False] * len(reads)
        for number in ranked:
            self.depends[number] = True
        for reader, inputs in enumerate(reads):
            if any(self.depends[read] for read in inputs):
                self.depends[reader] = True
        #: For every task that depends on ranks, the inputs to wait for: those that do as well.
        #: For others, all inputs.
        self.waiting = [
            sum(self.depends[read] or not self.depends[reader] for read in inputs)
            for reader, inputs in enumerate(reads)
        ]
        self.has_rank = set(ranked)
        self.done = [False] * len(reads)
        self.order: list[int] = []
        for number in ranked:
            self._add(number)
        for number in sorted(self._connected(ranked)):
            self._add(number)

    def _add(self, number: int) -> None:
        """Add a task, what it needs, and tasks that can run then."""
        pending = [number]
        while pending:
            self._add_with_inputs(pending.pop(), pending)

    def _add_with_inputs(self, number: int, can_run: list[int]) -> None:
        stack = [number]
        while stack:
            number = stack[-1]
            missing = [read for read in self.reads[number] if not self.done[read]]
            if missing and not self.done[number]:
                stack += reversed(missing)
                continue
            stack.pop()
            if self.done[number]:
                continue
            self.done[number] = True
            self.order.append(number)
            for reader in reversed(self.readers[number]):
                self.waiting[reader] -= self.depends[number] or not self.depends[reader]
                if not self.waiting[reader] and reader not in self.has_rank:
                    can_run.append(reader)

    def _connected(self, ranked: Sequence[int]) -> set[int]:
        """Tasks that are left, and connected with ranks by any edges."""
        seen = set(ranked)
        stack = list(ranked)
        while stack:
            number = stack.pop()
            for other in (*self.reads[number], *self.readers[number]):
                if other not in seen:
                    seen.add(other)
                    stack.append(other)
        return {number for number in seen if not self.done[number]}
