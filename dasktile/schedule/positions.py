"""The order in which the tasks of a plan run, encoded in their keys.

Dask orders the tasks of a graph by its edges alone.  The keys of bundles, ``(name, home,
position)``, have their position in an order that was chosen with sizes and homes; the keys of
their parts have one number more.  Other tasks of the graph run next to those that they read, or
that read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dasktile.schedule.placement import MARK

#: Operation in the names of layers whose keys have positions.
BUNDLE = "bundle"

_START = BUNDLE + MARK

#: Before, at and after a position.
_BEFORE, _AT, _AFTER = -1, 0, 1

#: A position, where a task runs beside it, and the order of such tasks.
_Rank = tuple[int, int, tuple[int, ...]]


def position_of(key: Any) -> tuple[int, ...] | None:
    """The position in the key of a task; None if it has none.

    Parameters
    ----------
    key
        A key of a graph.
    """
    if type(key) is not tuple or len(key) < 3:
        return None
    name, _, *position = key
    if not isinstance(name, str) or not name.startswith(_START):
        return None
    return tuple(position) if all(type(number) is int for number in position) else None


def planned_order(
    positions: Sequence[tuple[int, ...] | None], reads: Sequence[Sequence[int]]
) -> list[int]:
    """All tasks in the order of a plan.

    A task without a position runs after the last of its inputs that have one; if none has, before
    the first of its readers.  Tasks that are in no way connected with positions keep their places.

    Parameters
    ----------
    positions
        For every task, its position; tasks are numbered such that each follows its inputs.
    reads
        For every task, the numbers of the tasks that it reads.
    """
    ranks: list[_Rank | None] = [
        None if position is None else (position[0], _AT, position[1:]) for position in positions
    ]
    unknown = -1
    while unknown != ranks.count(None):
        unknown = ranks.count(None)
        _follow_inputs(ranks, reads)
        _precede_readers(ranks, reads)
    places = [number for number, rank in enumerate(ranks) if rank is not None]
    order = list(range(len(reads)))
    moved = sorted((rank, number) for number, rank in enumerate(ranks) if rank is not None)
    for place, (_, number) in zip(places, moved, strict=True):
        order[place] = number
    return order


def _follow_inputs(ranks: list[_Rank | None], reads: Sequence[Sequence[int]]) -> None:
    """Rank tasks behind the last of their inputs that have a rank."""
    for number, inputs in enumerate(reads):
        known = [rank for read in inputs if (rank := ranks[read]) is not None]
        if ranks[number] is None and known:
            position, side, _ = max(known)
            ranks[number] = (position, side or _AFTER, (number,))


def _precede_readers(ranks: list[_Rank | None], reads: Sequence[Sequence[int]]) -> None:
    """Rank tasks before the first of their readers that have a rank."""
    unknown = {number for number, rank in enumerate(ranks) if rank is None}
    for number in reversed(range(len(reads))):
        rank = ranks[number]
        if rank is None:
            continue
        before = rank[0], rank[1] or _BEFORE
        for read in unknown.intersection(reads[number]):
            now = ranks[read]
            new = (*before, (read,))
            ranks[read] = new if now is None else min(new, now)
