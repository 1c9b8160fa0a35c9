"""Loops that decide the swaps of a plan, position by position of an order.

Each datum takes room in one pool.  In a pool of bytes this is its size; in the pool of a size
class it is one object.

A plan consists of events.  An event in (a copy into memory) has a datum, a trigger (``2 p``: once
the operation at position ``p - 1`` is done; ``2 p + 1``: once the one at ``p`` has started), the
position that reads it, and the number of the event out before it (-1 if the datum was on the host
from the start).  An event out (an eviction) has a datum, the position after which it may start,
and the position at which its room is reused.  Each of these is an array, by number of the event.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dasktile.schedule.compiled import compiled, heap_drop, heap_put

Array = npt.NDArray[Any]

#: Kinds of access to a datum.
READ, UPDATE, WRITE = range(3)
#: Error code of :func:`decide`: more events than there is space for.
FULL = -2
#: Eviction orders: the furthest next use first, or the least recently used first.
BELADY, LEAST_RECENT = range(2)


# Arguments of the compiled functions.  They can be named tuples, but loops unpack these first:
# reading an array from a named tuple takes as long as several iterations.


class Touches(NamedTuple):
    """The data that an order touches, position by position.

    Attributes
    ----------
    at
        Start of the entries of each position in the other arrays, and the end of the last.
    data, kind
        The datum, and the kind of access.
    following
        The position of the next access to the datum.  If there is none: -1 for a datum that is
        dropped; for a kept one ``2 n + 1``, or in a loop ``n`` plus the position of its first
        access.
    """

    at: Array
    data: Array
    kind: Array
    following: Array


class MemoryArrays(NamedTuple):
    """The room and the pool of every datum, and the capacity of every pool."""

    room: Array
    pool: Array
    capacity: Array


class Start(NamedTuple):
    """At the start: data on the host, data in memory, and those of them without a host copy."""

    present: Array
    started: Array
    dirty: Array


class Horizon(NamedTuple):
    """Range of the prefetches of every position.

    Attributes
    ----------
    reach
        The last position whose inputs may be prefetched while this position runs.
    spare
        The last position whose inputs no prefetch of this position may evict.
    """

    reach: Array
    spare: Array


class EvictionRules(NamedTuple):
    """Eviction order.

    Attributes
    ----------
    policy
        `BELADY` or `LEAST_RECENT`.
    dirty_factor
        How many times as soon a datum that must be written counts as needed.
    threshold
        Positions between the use of a datum and its eviction, at least, if others can be evicted.
    """

    policy: int
    dirty_factor: float
    threshold: int


@compiled
def follow(
    order: Array,
    pointer: Array,
    index: Array,
    kind_of: Array,
    kept: Array,
    repeat: bool,
    count: int,
) -> Touches:
    """The accesses of an order, and for each the position of the next access to the datum."""
    n = len(order)
    at = np.zeros(n + 1, np.int64)
    for position in range(n):
        op = order[position]
        at[position + 1] = at[position] + pointer[op + 1] - pointer[op]
    data = np.empty(at[n], np.int64)
    kind = np.empty(at[n], np.int64)
    following = np.empty(at[n], np.int64)
    soonest = np.full(count, -1, np.int64)
    for position in range(n):
        op = order[position]
        into = at[position]
        for entry in range(pointer[op], pointer[op + 1]):
            data[into] = index[entry]
            kind[into] = kind_of[entry]
            if soonest[index[entry]] < 0:
                soonest[index[entry]] = position
            into += 1
    for datum in range(count):
        if not kept[datum]:
            soonest[datum] = -1
        elif repeat and soonest[datum] >= 0:
            soonest[datum] += n
        else:
            soonest[datum] = 2 * n + 1
    for position in range(n - 1, -1, -1):
        for entry in range(at[position], at[position + 1]):
            following[entry] = soonest[data[entry]]
            soonest[data[entry]] = position
    return Touches(at, data, kind, following)


#: Rows of the state of all data: whether it is in memory, whether the host has a valid copy, the
#: rank for eviction, the position of the last use, the position that pins it, its pool and room.
RESIDENT, STORED, KEY, LAST, HELD, POOL, ROOM = range(7)
#: Rows of the table of heaps: where each starts, and its number of entries.  There are two heaps of
#: eviction candidates for each pool: of data that must be written, and of data that need not.
BASE, FILLED = 0, 1


@compiled
def _enter(datum: int, state: Array, keys: Array, items: Array, heaps: Array) -> None:
    """Add a datum to the eviction candidates."""
    line = 2 * state[POOL, datum] + state[STORED, datum]
    if heaps[FILLED, line] + 2 > heaps[BASE, line + 1] - heaps[BASE, line]:
        # too many stale entries: build the heap again
        count = 0
        for other in range(state.shape[1]):
            if (
                other != datum
                and state[RESIDENT, other]
                and 2 * state[POOL, other] + state[STORED, other] == line
            ):
                count = heap_put(keys, items, heaps[BASE, line], count, state[KEY, other], other)
        heaps[FILLED, line] = count
    heaps[FILLED, line] = heap_put(
        keys, items, heaps[BASE, line], heaps[FILLED, line], state[KEY, datum], datum
    )


@compiled
def _choose(
    now: int,
    beyond: int,
    pool: int,
    threshold: int,
    dirty: float,
    state: Array,
    keys: Array,
    items: Array,
    heaps: Array,
    aside: Array,
) -> int:
    """Remove from its heap the datum of a pool to evict next; -1 if none may be evicted.

    Data may not be evicted if they are pinned at this position, used within the threshold, or
    needed at `beyond` or before.
    """
    put_aside = 0
    for line in range(2 * pool, 2 * pool + 2):
        base = heaps[BASE, line]
        while heaps[FILLED, line] > 0:
            item = items[base]
            valid = (
                state[RESIDENT, item] == 1
                and 2 * state[POOL, item] + state[STORED, item] == line
                and state[KEY, item] == keys[base]
            )
            if valid and state[HELD, item] != now and state[LAST, item] < now - threshold:
                break
            if valid:
                aside[put_aside] = item
                put_aside += 1
            heaps[FILLED, line] = heap_drop(keys, items, base, heaps[FILLED, line])
    line = 2 * pool + 1
    if heaps[FILLED, 2 * pool] > 0:
        far = keys[heaps[BASE, 2 * pool]] - now
        if heaps[FILLED, line] == 0 or far / dirty > keys[heaps[BASE, line]] - now:
            line = 2 * pool
    chosen = -1
    for _ in range(2):
        if heaps[FILLED, line] > 0 and keys[heaps[BASE, line]] > beyond:
            chosen = items[heaps[BASE, line]]
            heaps[FILLED, line] = heap_drop(keys, items, heaps[BASE, line], heaps[FILLED, line])
            break
        # the best candidate of the other heap may be needed later than `beyond`
        line = 4 * pool + 1 - line
    for number in range(put_aside):
        item = aside[number]
        line = 2 * pool + state[STORED, item]
        heaps[FILLED, line] = heap_put(
            keys, items, heaps[BASE, line], heaps[FILLED, line], state[KEY, item], item
        )
    return chosen


@compiled
def _tables(steps: Touches, pools: MemoryArrays, start: Start) -> tuple[Array, Array, Array, Array]:
    """The state of all data before the first operation, and heaps: keys, items and lengths."""
    at, data, _, _ = steps
    room, pool, capacity = pools
    present, started, dirty = start
    n = len(at) - 1
    count = len(room)
    lines = len(capacity)
    state = np.full((7, count), -1, np.int64)
    state[RESIDENT] = 0
    state[POOL] = pool
    state[ROOM] = room
    for position in range(n - 1, -1, -1):
        for entry in range(at[position], at[position + 1]):
            state[KEY, data[entry]] = position
    # two heaps for each pool: data that must be written, and data that need not
    entries = np.full(lines, 64, np.int64)
    for entry in range(len(data)):
        entries[pool[data[entry]]] += 3
    for datum in range(count):
        entries[pool[datum]] += 3
    heaps = np.zeros((2, 2 * lines + 1), np.int64)
    for line in range(2 * lines):
        heaps[BASE, line + 1] = heaps[BASE, line] + entries[line // 2]
    keys = np.empty(heaps[BASE, 2 * lines], np.int64)
    items = np.empty(heaps[BASE, 2 * lines], np.int64)
    for datum in range(count):
        state[STORED, datum] = present[datum] and not dirty[datum]
        if started[datum]:
            if state[KEY, datum] < 0:
                state[KEY, datum] = 2 * n + 1
            state[RESIDENT, datum] = True
            _enter(datum, state, keys, items, heaps)
    return state, keys, items, heaps


@compiled
def _return(
    taken: Array, chosen: int, state: Array, keys: Array, items: Array, heaps: Array
) -> None:
    """Return to the heaps the first `chosen` of the data that were removed for eviction."""
    for number in range(chosen):
        state[RESIDENT, taken[number]] = True
        _enter(taken[number], state, keys, items, heaps)


@compiled
def _growth(steps: Touches, pools: MemoryArrays) -> Array:
    """Cumulative growth of every pool: room of data made, less that of data dropped before."""
    at, data, kind, following = steps
    room, pool, capacity = pools
    n = len(at) - 1
    lines = len(capacity)
    grows = np.zeros((lines, n + 1), np.int64)
    for position in range(n):
        for entry in range(at[position], at[position + 1]):
            datum = data[entry]
            if kind[entry] == WRITE:
                grows[pool[datum], position] += room[datum]
            if following[entry] < 0:
                grows[pool[datum], position + 1] -= room[datum]
        for line in range(lines):
            if position + 1 < n:
                grows[line, position + 1] += grows[line, position]
    return grows


@compiled
def _peaks(grows: Array, reach: Array) -> Array:
    """Maximum of `grows` over ``2 ** level`` positions from each, by level, pool and position."""
    lines, n = grows.shape[0], grows.shape[1] - 1
    widest = 0
    for position in range(n):
        widest = max(widest, min(reach[position], n - 1) - position)
    levels = 1
    while 2**levels <= widest:
        levels += 1
    peaks = np.empty((levels, lines, n + 1), np.int64)
    peaks[0] = grows
    for level in range(1, levels):
        half = 2 ** (level - 1)
        for line in range(lines):
            for position in range(n - 2 * half + 1):
                peaks[level, line, position] = max(
                    peaks[level - 1, line, position], peaks[level - 1, line, position + half]
                )
    return peaks


@compiled
def _raise(now: int, until: int, grows: Array, peaks: Array, high: Array) -> None:
    """Raise `high` to the most that the operations after `now` and before `until` grow."""
    level = 0
    while 2 ** (level + 1) <= until - 1 - now:
        level += 1
    for line in range(len(high)):
        most = max(peaks[level, line, now + 1], peaks[level, line, until - 2**level])
        high[line] = max(high[line], most - grows[line, now])


@compiled
def decide(
    steps: Touches,
    pools: MemoryArrays,
    start: Start,
    horizon: Horizon,
    rules: EvictionRules,
    space: int,
) -> tuple[Array, ...]:
    """Decide evictions and copies in, in one pass over an order.

    Parameters
    ----------
    steps
        As :func:`follow` returns them.
    pools, start, horizon, rules
        The memory, its content at the start, the prefetch range and the eviction order.
    space
        Length of the arrays of events in, and of events out.  (Arrays that grow on demand make
        the loops twice as slow.)

    Returns
    -------
    ``(failed, in_datum, in_trigger, in_use, in_gap, out_datum, out_after, out_at, profile,
    ended)``.  `failed` has one number: the position whose data do not fit, `FULL` if there are more
    events than `space`, else -1.  `profile` is the room in use by pool and position, and `ended`
    the data in memory at the end.
    """
    at, data, kind, following = steps
    room, pool, capacity = pools
    reach, spare = horizon
    policy, dirty, threshold = rules
    n = len(at) - 1
    count = len(room)
    lines = len(capacity)
    state, keys, items, heaps = _tables(steps, pools, start)
    aside = np.empty(len(keys), np.int64)
    taken = np.empty(count + 1, np.int64)
    made = start.present.copy()
    # the event that fetched a datum early, if it was not used since, and that led it out last
    pending = np.full(count, -1, np.int64)
    gap = np.full(count, -1, np.int64)
    used = np.zeros(lines, np.int64)
    for datum in range(count):
        if state[RESIDENT, datum]:
            used[pool[datum]] += room[datum]
    profile = np.zeros((lines, n), np.int64)
    grows = _growth(steps, pools)
    peaks = _peaks(grows, reach)
    failed = np.full(1, -1, np.int64)

    ins = 0
    in_datum = np.empty(space, np.int64)
    in_trigger = np.empty(space, np.int64)
    in_use = np.empty(space, np.int64)
    in_gap = np.empty(space, np.int64)
    outs = 0
    out_datum = np.empty(space, np.int64)
    out_after = np.empty(space, np.int64)
    out_at = np.empty(space, np.int64)

    # what may leave for what is fetched early, at most
    loose = np.full(lines, np.int64(2) ** 62, np.int64)
    highs = np.zeros(lines, np.int64)
    full = False
    ahead = 0
    for now in range(n):
        # entries that were not put while their operation ran
        if now > 0:
            for entry in range(at[now - 1], at[now]):
                datum = data[entry]
                if following[entry] < 0:
                    state[RESIDENT, datum] = False
                    used[pool[datum]] -= room[datum]
                elif state[RESIDENT, datum]:
                    loose[pool[datum]] += room[datum]
                    _enter(datum, state, keys, items, heaps)
        for entry in range(at[now], at[now + 1]):
            state[HELD, data[entry]] = now
        last = max(now, reach[now])
        position = now
        for line in range(lines):
            highs[line] = 0
        while position <= last:
            if now < position < ahead:
                # all of these were fetched before, but may need room that is not taken yet
                position = min(ahead, last + 1)
                _raise(now, position, grows, peaks, highs)
                continue
            if position > now:
                for line in range(lines):
                    highs[line] = max(highs[line], grows[line, position] - grows[line, now])
            complete = True
            for entry in range(at[position], at[position + 1]):
                datum = data[entry]
                line = pool[datum]
                if state[RESIDENT, datum]:
                    if position == now:
                        pending[datum] = -1
                    continue
                if position > now and (kind[entry] == WRITE or not made[datum]):
                    continue
                highest = highs[line]
                if (
                    position > now
                    and used[line] - loose[line] + room[datum] + highest > capacity[line]
                ):
                    complete = False
                    break
                beyond = max(position, spare[now]) if position > now else -1
                chosen = 0
                freed = 0
                while used[line] - freed + room[datum] + highest > capacity[line]:
                    victim = _choose(
                        now, beyond, line, threshold, dirty, state, keys, items, heaps, aside
                    )
                    if victim < 0 and threshold > 0 and position == now:
                        victim = _choose(now, -1, line, 0, dirty, state, keys, items, heaps, aside)
                    if victim < 0:
                        complete = False
                        break
                    taken[chosen] = victim
                    chosen += 1
                    state[RESIDENT, victim] = False
                    freed += room[victim]
                if complete and max(ins, outs + chosen) >= space:
                    full = True
                    complete = False
                if not complete:
                    if position > now:
                        loose[line] = freed
                    _return(taken, chosen, state, keys, items, heaps)
                    break
                loose[line] -= freed
                for number in range(chosen):
                    victim = taken[number]
                    used[line] -= room[victim]
                    if 0 <= state[KEY, victim] <= 2 * n and state[KEY, victim] < ahead:
                        ahead = state[KEY, victim]
                    if pending[victim] >= 0:
                        # it was fetched for nothing, so it is not fetched
                        in_datum[pending[victim]] = -1
                        pending[victim] = -1
                        continue
                    out_datum[outs] = victim
                    out_after[outs] = state[LAST, victim] if policy == BELADY else now - 1
                    out_at[outs] = now
                    gap[victim] = outs
                    state[STORED, victim] = 1
                    outs += 1
                used[line] += room[datum]
                state[RESIDENT, datum] = True
                if kind[entry] != WRITE or position > now:
                    in_datum[ins] = datum
                    in_trigger[ins] = 2 * now + (position > now)
                    in_use[ins] = position
                    in_gap[ins] = gap[datum]
                    if position > now:
                        pending[datum] = ins
                        loose[line] += room[datum]
                        _enter(datum, state, keys, items, heaps)
                    ins += 1
            if not complete:
                if full:
                    failed[0] = FULL
                elif position == now:
                    failed[0] = now
                break
            if position == now:
                for entry in range(at[now], at[now + 1]):
                    datum = data[entry]
                    made[datum] = True
                    state[LAST, datum] = now
                    state[KEY, datum] = following[entry] if policy == BELADY else 2 * n - now
                    if kind[entry] != READ:
                        state[STORED, datum] = 0
            position += 1
            ahead = max(ahead, position)
        if failed[0] != -1:
            break
        for line in range(lines):
            profile[line, now] = used[line]
    ended = np.zeros(count, np.bool_)
    if n > 0 and failed[0] == -1:
        for entry in range(at[n - 1], at[n]):
            if following[entry] < 0:
                state[RESIDENT, data[entry]] = False
        ended[:] = state[RESIDENT] == 1
    return (
        failed,
        in_datum[:ins],
        in_trigger[:ins],
        in_use[:ins],
        in_gap[:ins],
        out_datum[:outs],
        out_after[:outs],
        out_at[:outs],
        profile,
        ended,
    )
