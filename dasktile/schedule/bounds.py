"""The least bytes that must be copied to run tasks in a given order in a given memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array


@dataclass(frozen=True, slots=True)
class Step:
    """One task of an order.

    Attributes
    ----------
    reads
        Tiles that must be in memory while it runs.
    makes
        Tiles that are in memory from then on.
    """

    reads: tuple[Hashable, ...] = ()
    makes: tuple[Hashable, ...] = ()


@dataclass(frozen=True, slots=True)
class Least:
    """Bytes that no choice of what leaves memory when can be below; see :func:`least`.

    Attributes
    ----------
    read, written
        Bytes.
    """

    read: float
    written: float


def least(
    steps: Sequence[Step],
    sizes: Mapping[Hashable, int],
    capacity: int,
    below: Iterable[Hashable] = (),
    write_cost: float = 1.0,
) -> Least:
    """A lower bound of the bytes read into memory, and of those written out of it.

    Between two uses of a tile there is a gap, over which it is kept in memory or not.  Kept
    tiles and those in use must fit; a tile not kept is read again, and is written the first
    time unless the tier below has it.  With parts of tiles allowed this is a linear program
    (FOO, Berger, Beckmann and Harchol-Balter 2018), solved by HiGHS.

    Parameters
    ----------
    steps
        Tasks, in order.
    sizes
        Bytes of every tile.
    capacity
        Bytes of the memory.  Where a task alone needs more, nothing else is kept beside it.
    below
        Tiles that the tier below has at the start.  Those that no step makes are on it too.
    write_cost
        What a byte written costs, where a byte read costs 1; 0 to bound the reads alone.

    Returns
    -------
    The two bytes of a solution of least cost.  Their weighted sum is the bound.

    Raises
    ------
    KeyError
        If a tile has no size.
    RuntimeError
        If the solver fails.
    """
    gaps: list[tuple[Hashable, int, int]] = []
    last: dict[Hashable, int] = {}
    held = np.zeros(len(steps))
    first_read = 0
    for time, step in enumerate(steps):
        uses = dict.fromkeys((*step.reads, *step.makes))
        held[time] = sum(sizes[key] for key in uses)
        for key in uses:
            if key in last:
                gaps.append((key, last[key], time))
            elif key not in step.makes:
                first_read += sizes[key]
            last[key] = time
    if not gaps:
        return Least(first_read, 0)
    made = {key for step in steps for key in step.makes} - set(below)
    written = dict.fromkeys(key for key, *_ in gaps if key in made)
    dirty = {key: number for number, key in enumerate(written)}
    # Columns: the part of every gap over which its tile is not kept, then the part of every
    # tile that is ever written.
    count = len(gaps)
    size = np.array([sizes[key] for key, *_ in gaps], dtype=float)
    cost = np.concatenate([size, [write_cost * sizes[key] for key in dirty]])
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    room = np.maximum(capacity - held, 0.0)
    need = np.zeros(len(steps))
    for column, (_, start, end) in enumerate(gaps):
        inside = range(start + 1, end)
        rows.extend(inside)
        columns.extend([column] * len(inside))
        values.extend([-size[column]] * len(inside))
        need[start + 1 : end] += size[column]
    limits = [room - need]
    row = len(steps)
    for column, (key, *_) in enumerate(gaps):
        if key in dirty:
            rows.extend([row, row])
            columns.extend([column, count + dirty[key]])
            values.extend([1.0, -1.0])
            row += 1
    limits.append(np.zeros(row - len(steps)))
    table = coo_array((values, (rows, columns)), shape=(row, len(cost))).tocsr()
    found = linprog(cost, A_ub=table, b_ub=np.concatenate(limits), bounds=(0, 1), method="highs")
    if not found.success:
        raise RuntimeError(f"the bound was not found: {found.message}")
    read = float(size @ found.x[:count])
    stores = float(sum(sizes[key] * found.x[count + number] for key, number in dirty.items()))
    return Least(first_read + read, stores)
