"""Loops that improve a decided plan: cancelled evictions, and earlier copies in.

Events are those of :mod:`dasktile.schedule.swap_loops`.
"""

from __future__ import annotations

import numpy as np

from dasktile.schedule.compiled import compiled
from dasktile.schedule.swap_loops import READ, Array, MemoryArrays


@compiled
def fill_gaps(
    in_datum: Array,
    in_trigger: Array,
    in_gap: Array,
    out_datum: Array,
    out_at: Array,
    profile: Array,
    pools: MemoryArrays,
    last: bool,
) -> None:
    """Cancel evictions of data for which there is room until the next use, shortest gaps first.

    Cancelled events get the datum -1, and `profile` is updated.  With `last`, evictions without
    a later copy in are cancelled, too.
    """
    room, pool, capacity = pools.room, pools.pool, pools.capacity
    n = profile.shape[1]
    back = np.full(len(out_datum), -1, np.int64)
    for event in range(len(in_datum)):
        if in_datum[event] >= 0 and in_gap[event] >= 0:
            back[in_gap[event]] = event
    length = np.full(len(out_datum), 2 * n + 2, np.int64)
    for out in range(len(out_datum)):
        if back[out] >= 0:
            length[out] = in_trigger[back[out]] // 2 - out_at[out]
        elif last:
            length[out] = n - out_at[out]
    for out in np.argsort(length, kind="mergesort"):
        datum = out_datum[out]
        if datum < 0 or length[out] > n:
            continue
        line = pool[datum]
        fits = True
        for position in range(out_at[out], out_at[out] + length[out]):
            if profile[line, position] + room[datum] > capacity[line]:
                fits = False
                break
        if fits:
            for position in range(out_at[out], out_at[out] + length[out]):
                profile[line, position] += room[datum]
            out_datum[out] = -1
            if back[out] >= 0:
                in_datum[back[out]] = -1


@compiled
def advance_copies(
    in_datum: Array,
    in_trigger: Array,
    in_use: Array,
    in_gap: Array,
    out_datum: Array,
    out_after: Array,
    out_at: Array,
    copies: Array,
    profile: Array,
    pools: MemoryArrays,
    since: Array,
) -> None:
    """Move copies in to earlier positions if there is room, but not before `since`.

    A dropped datum frees its room as soon as it may be evicted.  A datum that is copied out keeps
    it until its room is reused, because the copy takes time.
    """
    room, pool, capacity = pools.room, pools.pool, pools.capacity
    n = profile.shape[1]
    change = np.zeros((profile.shape[0], n + 1), np.int64)
    for out in range(len(out_datum)):
        datum = out_datum[out]
        if datum >= 0 and out_at[out] > out_after[out] + 1 and not copies[out]:
            change[pool[datum], out_after[out] + 1] -= room[datum]
            change[pool[datum], out_at[out]] += room[datum]
    for line in range(profile.shape[0]):
        more = 0
        for position in range(n):
            more += change[line, position]
            profile[line, position] += more
    for event in range(len(in_datum)):
        datum = in_datum[event]
        if datum < 0:
            continue
        line = pool[datum]
        first = since[in_use[event]]
        if in_gap[event] >= 0:
            gap = in_gap[event]
            first = max(first, out_at[gap] if copies[gap] else out_after[gap] + 1)
        position = in_trigger[event] // 2
        moved = False
        while position > first and profile[line, position - 1] + room[datum] <= capacity[line]:
            position -= 1
            profile[line, position] += room[datum]
            moved = True
        if moved:
            in_trigger[event] = 2 * position + (position > 0)


@compiled
def needs_copy(
    at: Array,
    data: Array,
    kind: Array,
    present: Array,
    dirty_start: Array,
    out_datum: Array,
    out_after: Array,
) -> Array:
    """For every eviction, whether the datum must be copied: the host has no valid copy."""
    n = len(at) - 1
    starts = np.zeros(n + 2, np.int64)
    for out in range(len(out_datum)):
        if out_datum[out] >= 0:
            starts[out_after[out] + 2] += 1
    for position in range(n + 1):
        starts[position + 1] += starts[position]
    events = np.empty(starts[n + 1], np.int64)
    into = starts.copy()
    for out in range(len(out_datum)):
        if out_datum[out] >= 0:
            events[into[out_after[out] + 1]] = out
            into[out_after[out] + 1] += 1
    copies = np.zeros(len(out_datum), np.bool_)
    stored = np.zeros(len(present), np.bool_)
    for datum in range(len(present)):
        stored[datum] = present[datum] and not dirty_start[datum]
    for position in range(-1, n):
        if position >= 0:
            for entry in range(at[position], at[position + 1]):
                if kind[entry] != READ:
                    stored[data[entry]] = False
        for number in range(starts[position + 1], starts[position + 2]):
            out = events[number]
            copies[out] = not stored[out_datum[out]]
            stored[out_datum[out]] = True
    return copies
