"""The loops behind swap plans: what leaves memory for what, position by position of an order.

Data are accounted by the room they take of their pool.  With one pool of bytes that is their
size; a pool of one size class has room for a number of objects, and each datum takes one.

A plan is events.  One that leads in has a datum, a trigger (``2 p``: once the operation at
position ``p - 1`` is done; ``2 p + 1``: once the one at ``p`` has started), the position that
reads it, and the event that led it out (-1 if it was on the host from the start).  One that
leads out has a datum, the position after which it may go, and the one at which its room is
taken.  All of these are arrays, by number of the event.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dasktile.schedule.compiled import compiled, heap_drop, heap_put

Array = npt.NDArray[Any]

#: How data are touched.
READ, UPDATE, WRITE = range(3)
#: There are too many events.
FULL = -2
#: What leaves first: what is needed last, or what was used longest ago.
BELADY, LEAST_RECENT = range(2)


# What is given.  These are named tuples, which compiled functions take as well.


class Steps(NamedTuple):
    """The data that an order touches, position by position.

    Attributes
    ----------
    at
        Where the entries of each position start in the other arrays, and where the last ends.
    data, kind
        The datum that is touched, and how.
    following
        The position that touches it next: -1 where a datum is dropped then, and where it is
        kept but not touched again ``2 n + 1``, or the position of the next repetition that
        touches it first.
    """

    at: Array
    data: Array
    kind: Array
    following: Array


class Pools(NamedTuple):
    """What every datum takes of which pool, and what every pool has."""

    room: Array
    pool: Array
    capacity: Array


class Start(NamedTuple):
    """Data on the host at the start, those in memory, and those of them with no host copy."""

    present: Array
    started: Array
    dirty: Array


class Horizon(NamedTuple):
    """How far ahead of every position data are fetched.

    Attributes
    ----------
    reach
        For every position the last one whose reads may be fetched while it runs.
    spare
        For every position the last one such that what is needed up to it is not pushed out by
        what is fetched early.
    """

    reach: Array
    spare: Array


class Rules(NamedTuple):
    """Which data leave first.

    Attributes
    ----------
    policy
        What is needed last leaves first (`BELADY`), or what was used longest ago.
    dirty
        How many times as soon a datum counts as needed that must be written first.
    threshold
        Positions that must lie between the use of a datum and its leaving, if others may leave.
    """

    policy: int
    dirty: float
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
) -> Steps:
    """The data that an order touches, how, and the position that touches each next."""
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
    return Steps(at, data, kind, following)


# The tables of one pass

#: Rows of the state of all data: whether it is in memory, whether the host has it, when it is
#: needed next and was last, the position that holds it, its pool and the room it takes there.
RESIDENT, STORED, KEY, LAST, HELD, POOL, ROOM = range(7)
#: Rows of the heaps of those that may leave, two for each pool (of what the host has not, and
#: of what it has): where each starts, and how many entries it has.
BASE, FILLED = 0, 1
#: Rows of the events that lead in, and of those that lead out.
IN_DATUM, IN_TRIGGER, IN_USE, IN_GAP = range(4)
OUT_DATUM, OUT_AFTER, OUT_AT = range(3)
#: Numbers that change: of events in and out, and the position before which all reads that may be
#: fetched early are in memory.
INS, OUTS, AHEAD = range(3)
#: Whether there is room for a datum; else one of these or `FULL`.
FITS, TOO_SMALL = 0, -1


class Tables(NamedTuple):
    """All that changes from position to position.

    Attributes
    ----------
    state
        A row for each property of the data, see `RESIDENT` and so on.
    used, loose
        For every pool, the room taken, and how much of it may leave for what is fetched early,
        at most.
    high
        For every pool, the most room that operations from the current position to that fetched
        for take beyond what is taken now.
    made
        Data that there are.
    pending
        For every datum, the event that fetched it early, if it was not used since; else -1.
    gap
        For every datum, the last event that led it out; else -1.
    heaps, keys, items
        Those that may leave, see `BASE` and so on.
    aside, taken
        Room for data that are put aside, and for those that are to leave.
    ins, outs
        Events, see `IN_DATUM` and so on.
    counts
        See `INS` and so on.
    """

    state: Array
    used: Array
    loose: Array
    high: Array
    made: Array
    pending: Array
    gap: Array
    heaps: Array
    keys: Array
    items: Array
    aside: Array
    taken: Array
    ins: Array
    outs: Array
    counts: Array


@compiled
def _tables(steps: Steps, pools: Pools, space: int) -> Tables:
    """Tables of a memory in which nothing is."""
    count = len(pools.room)
    lines = len(pools.capacity)
    state = np.full((7, count), -1, np.int64)
    state[RESIDENT] = 0
    state[POOL] = pools.pool
    state[ROOM] = pools.room
    # a heap for each pool of what the host has not, and of what it has
    entries = np.full(lines, 64, np.int64)
    for datum in steps.data:
        entries[pools.pool[datum]] += 3
    for datum in range(count):
        entries[pools.pool[datum]] += 3
    heaps = np.zeros((2, 2 * lines + 1), np.int64)
    for line in range(2 * lines):
        heaps[BASE, line + 1] = heaps[BASE, line] + entries[line // 2]
    length = heaps[BASE, 2 * lines]
    return Tables(
        state,
        np.zeros(lines, np.int64),
        np.full(lines, np.int64(2) ** 62, np.int64),
        np.zeros(lines, np.int64),
        np.zeros(count, np.bool_),
        np.full(count, -1, np.int64),
        np.full(count, -1, np.int64),
        heaps,
        np.empty(length, np.int64),
        np.empty(length, np.int64),
        np.empty(length, np.int64),
        np.empty(count + 1, np.int64),
        np.empty((4, space), np.int64),
        np.empty((3, space), np.int64),
        np.zeros(3, np.int64),
    )


@compiled
def _begin(steps: Steps, pools: Pools, start: Start, tables: Tables) -> None:
    """Put data where they are before the first operation."""
    state = tables.state
    n = len(steps.at) - 1
    for position in range(n - 1, -1, -1):
        for entry in range(steps.at[position], steps.at[position + 1]):
            state[KEY, steps.data[entry]] = position
    for datum in range(len(pools.room)):
        tables.made[datum] = start.present[datum]
        state[STORED, datum] = start.present[datum] and not start.dirty[datum]
        if start.started[datum]:
            if state[KEY, datum] < 0:
                state[KEY, datum] = 2 * n + 1
            state[RESIDENT, datum] = True
            tables.used[pools.pool[datum]] += pools.room[datum]
            _enter(datum, tables)


# What may leave


@compiled
def _enter(datum: int, tables: Tables) -> None:
    """Put a datum among those that may leave."""
    state, keys, items, heaps = tables.state, tables.keys, tables.items, tables.heaps
    line = 2 * state[POOL, datum] + state[STORED, datum]
    if heaps[FILLED, line] + 2 > heaps[BASE, line + 1] - heaps[BASE, line]:
        # too many entries that do not count any more
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
def _choose(now: int, beyond: int, pool: int, threshold: int, dirty: float, tables: Tables) -> int:
    """The datum of a pool that should leave first, -1 if none may; it is off its heap then.

    Not one that is held at this position, or touched within the threshold, nor one needed
    at `beyond` or before.
    """
    state, keys, items, heaps = tables.state, tables.keys, tables.items, tables.heaps
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
                tables.aside[put_aside] = item
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
        # of the other kind one may be needed later all the same
        line = 4 * pool + 1 - line
    for number in range(put_aside):
        item = tables.aside[number]
        line = 2 * pool + state[STORED, item]
        heaps[FILLED, line] = heap_put(
            keys, items, heaps[BASE, line], heaps[FILLED, line], state[KEY, item], item
        )
    return chosen


@compiled
def _make_room(
    now: int,
    position: int,
    line: int,
    need: int,
    pools: Pools,
    horizon: Horizon,
    rules: Rules,
    tables: Tables,
) -> int:
    """Let data of a pool leave until there is room, or none if there would be too little.

    What is fetched early for a later position pushes out only what is needed after that.
    Returns `FITS`, `TOO_SMALL` or `FULL`.
    """
    early = position > now
    beyond = max(position, horizon.spare[now]) if early else -1
    outcome = FITS
    chosen = 0
    freed = 0
    while tables.used[line] - freed + need > pools.capacity[line]:
        victim = _choose(now, beyond, line, rules.threshold, rules.dirty, tables)
        if victim < 0 and rules.threshold > 0 and not early:
            victim = _choose(now, -1, line, 0, rules.dirty, tables)
        if victim < 0:
            outcome = TOO_SMALL
            break
        tables.taken[chosen] = victim
        chosen += 1
        tables.state[RESIDENT, victim] = False
        freed += pools.room[victim]
    if (
        outcome == FITS
        and max(tables.counts[INS], tables.counts[OUTS] + chosen) >= (tables.ins.shape[1])
    ):
        outcome = FULL
    if outcome != FITS:
        if early:
            tables.loose[line] = freed
        for number in range(chosen):
            tables.state[RESIDENT, tables.taken[number]] = True
            _enter(tables.taken[number], tables)
        return outcome
    tables.loose[line] -= freed
    for number in range(chosen):
        _lead_out(tables.taken[number], now, pools, rules, tables)
    return FITS


@compiled
def _lead_out(datum: int, now: int, pools: Pools, rules: Rules, tables: Tables) -> None:
    """Add the event of a datum whose room is taken now."""
    state, counts = tables.state, tables.counts
    tables.used[pools.pool[datum]] -= pools.room[datum]
    # a key is a position unless the datum is not touched again or was used longest ago
    if 0 <= state[KEY, datum] < counts[AHEAD]:
        counts[AHEAD] = state[KEY, datum]
    if tables.pending[datum] >= 0:
        # it was fetched for nothing, so it is not fetched
        tables.ins[IN_DATUM, tables.pending[datum]] = -1
        tables.pending[datum] = -1
        return
    event = counts[OUTS]
    tables.outs[OUT_DATUM, event] = datum
    tables.outs[OUT_AFTER, event] = state[LAST, datum] if rules.policy == BELADY else now - 1
    tables.outs[OUT_AT, event] = now
    tables.gap[datum] = event
    state[STORED, datum] = 1
    counts[OUTS] += 1


# What comes in


@compiled
def _growth(steps: Steps, pools: Pools) -> Array:
    """Room of every pool that operations take by what they make, less what is dropped before."""
    n = len(steps.at) - 1
    lines = len(pools.capacity)
    grows = np.zeros((lines, n + 1), np.int64)
    for position in range(n):
        for entry in range(steps.at[position], steps.at[position + 1]):
            datum = steps.data[entry]
            if steps.kind[entry] == WRITE:
                grows[pools.pool[datum], position] += pools.room[datum]
            if steps.following[entry] < 0:
                grows[pools.pool[datum], position + 1] -= pools.room[datum]
        for line in range(lines):
            if position + 1 < n:
                grows[line, position + 1] += grows[line, position]
    return grows


@compiled
def _peaks(grows: Array, reach: Array) -> Array:
    """The highest of ``2 ** level`` positions from each, by level, pool and position."""
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
    """Count the room that the operations after `now` and before `until` take at most."""
    level = 0
    while 2 ** (level + 1) <= until - 1 - now:
        level += 1
    for line in range(len(high)):
        most = max(peaks[level, line, now + 1], peaks[level, line, until - 2**level])
        high[line] = max(high[line], most - grows[line, now])


@compiled
def _finish(position: int, steps: Steps, pools: Pools, tables: Tables) -> None:
    """Drop what is not needed after an operation; the rest that it touched may leave."""
    state = tables.state
    for entry in range(steps.at[position], steps.at[position + 1]):
        datum = steps.data[entry]
        if steps.following[entry] < 0:
            state[RESIDENT, datum] = False
            tables.used[pools.pool[datum]] -= pools.room[datum]
        elif state[RESIDENT, datum]:
            # it was not put there while the operation ran
            tables.loose[pools.pool[datum]] += pools.room[datum]
            _enter(datum, tables)


@compiled
def _use(now: int, steps: Steps, rules: Rules, tables: Tables) -> None:
    """Note what the operation that runs now does to data, all of which are in memory."""
    state = tables.state
    n = len(steps.at) - 1
    for entry in range(steps.at[now], steps.at[now + 1]):
        datum = steps.data[entry]
        tables.made[datum] = True
        state[LAST, datum] = now
        state[KEY, datum] = steps.following[entry] if rules.policy == BELADY else 2 * n - now
        if steps.kind[entry] != READ:
            state[STORED, datum] = 0


@compiled
def _bring(
    now: int,
    position: int,
    steps: Steps,
    pools: Pools,
    horizon: Horizon,
    rules: Rules,
    tables: Tables,
) -> int:
    """Bring in what a position touches: all of it now, or what it reads early.

    Returns `FITS`, or what keeps the first datum out for which there is no room.
    """
    state = tables.state
    early = position > now
    for entry in range(steps.at[position], steps.at[position + 1]):
        datum = steps.data[entry]
        line = pools.pool[datum]
        write = steps.kind[entry] == WRITE
        if state[RESIDENT, datum]:
            if not early:
                tables.pending[datum] = -1
            continue
        if early and (write or not tables.made[datum]):
            continue
        need = pools.room[datum] + tables.high[line]
        if early and tables.used[line] - tables.loose[line] + need > pools.capacity[line]:
            return TOO_SMALL
        outcome = _make_room(now, position, line, need, pools, horizon, rules, tables)
        if outcome != FITS:
            return outcome
        tables.used[line] += pools.room[datum]
        state[RESIDENT, datum] = True
        if early or not write:
            event = tables.counts[INS]
            tables.ins[IN_DATUM, event] = datum
            tables.ins[IN_TRIGGER, event] = 2 * now + early
            tables.ins[IN_USE, event] = position
            tables.ins[IN_GAP, event] = tables.gap[datum]
            tables.counts[INS] += 1
            if early:
                tables.pending[datum] = event
                tables.loose[line] += pools.room[datum]
                _enter(datum, tables)
    return FITS


@compiled
def _fetch(
    now: int,
    steps: Steps,
    pools: Pools,
    horizon: Horizon,
    rules: Rules,
    grows: Array,
    peaks: Array,
    tables: Tables,
) -> int:
    """Bring in what the operation at a position touches, then what later ones read.

    Returns the position if its own data do not fit, `FULL` if there are too many events, else -1.
    """
    counts, high = tables.counts, tables.high
    last = max(now, horizon.reach[now])
    high[:] = 0
    position = now
    while position <= last:
        if now < position < counts[AHEAD]:
            # all of these were fetched before, but may need room that is not taken yet
            position = min(counts[AHEAD], last + 1)
            _raise(now, position, grows, peaks, high)
            continue
        if position > now:
            for line in range(len(high)):
                high[line] = max(high[line], grows[line, position] - grows[line, now])
        outcome = _bring(now, position, steps, pools, horizon, rules, tables)
        if outcome == FULL:
            return FULL
        if outcome == TOO_SMALL:
            return now if position == now else -1
        if position == now:
            _use(now, steps, rules, tables)
        position += 1
        counts[AHEAD] = max(counts[AHEAD], position)
    return -1


@compiled
def decide(
    steps: Steps, pools: Pools, start: Start, horizon: Horizon, rules: Rules, space: int
) -> tuple[Array, ...]:
    """What leaves memory for what, in one pass over an order.

    Parameters
    ----------
    steps
        As :func:`follow` returns them.
    pools, start, horizon, rules
        The memory, what is in it at the start, and what the plan may do.
    space
        Events of either kind that there is room for.  (Arrays that may be replaced by longer
        ones make the loops twice as slow.)

    Returns
    -------
    ``(failed, in_datum, in_trigger, in_use, in_gap, out_datum, out_after, out_at, profile,
    ended)``; `failed` has one number: the position whose data do not fit, `FULL` if there are more
    events than `space`, else -1.  `profile` is the room taken at every position of every pool,
    `ended` the data in memory at the end.
    """
    n = len(steps.at) - 1
    tables = _tables(steps, pools, space)
    _begin(steps, pools, start, tables)
    grows = _growth(steps, pools)
    peaks = _peaks(grows, horizon.reach)
    profile = np.zeros((len(pools.capacity), n), np.int64)
    failed = np.full(1, -1, np.int64)
    for now in range(n):
        if now > 0:
            _finish(now - 1, steps, pools, tables)
        for entry in range(steps.at[now], steps.at[now + 1]):
            tables.state[HELD, steps.data[entry]] = now
        failed[0] = _fetch(now, steps, pools, horizon, rules, grows, peaks, tables)
        if failed[0] != -1:
            break
        profile[:, now] = tables.used
    ended = np.zeros(len(pools.room), np.bool_)
    if n > 0 and failed[0] == -1:
        for entry in range(steps.at[n - 1], steps.at[n]):
            if steps.following[entry] < 0:
                tables.state[RESIDENT, steps.data[entry]] = False
        ended[:] = tables.state[RESIDENT] == 1
    ins, outs = tables.counts[INS], tables.counts[OUTS]
    return (
        failed,
        tables.ins[IN_DATUM, :ins],
        tables.ins[IN_TRIGGER, :ins],
        tables.ins[IN_USE, :ins],
        tables.ins[IN_GAP, :ins],
        tables.outs[OUT_DATUM, :outs],
        tables.outs[OUT_AFTER, :outs],
        tables.outs[OUT_AT, :outs],
        profile,
        ended,
    )
