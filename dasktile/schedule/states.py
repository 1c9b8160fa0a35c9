"""States of the tiles of a worker and of their memory, and the events that change them.

A :class:`~dasktile.schedule.requests.Tile` has one `TileState`: where it is, seen from the tier on
which tasks read it, and what becomes of it.  A :class:`~dasktile.schedule.eviction.Buffer`, its
memory on one tier, has one `BufferState`.  The states of a kind exclude each other.  `TILES` and
`BUFFERS` have all transitions: the state after each event that may occur in a state.  Any other
event is an error of the residency, and raises `StateError`.

What combines with any state is no state but a field: the requests that pin a tile or wait for it,
its next use, whether it was prefetched or cannot be written to the tier below.  Whether a buffer
may be evicted follows from all these, and is found when a tier has too little room.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum, auto
from typing import TypeVar


class TileState(StrEnum):
    """Where a tile is."""

    #: On its home tier.  It may have copies on lower ones.
    HOME = auto()
    #: On lower tiers only, and no request waits for it.
    BELOW = auto()
    #: On lower tiers only.  Requests wait for it, and it is fetched when it comes up.
    WANTED = auto()
    #: As `WANTED`; the last copy to a faster tier was refused memory that was free by our count.
    REFUSED = auto()
    #: It is being copied to a faster tier: for requests, or ahead of them.
    FETCHING = auto()
    #: As `FETCHING`, after a refusal that still counts if the copies in progress are not run.
    RETRYING = auto()
    #: A copy to a faster tier has failed.  The rest of its way is reported as not run soon.
    FAILING = auto()
    #: On lower tiers only, as a copy to a faster one has failed.  Requests do not wait for it; the
    #: next one that is granted has it fetched again, and it is not prefetched.
    UNREADABLE = auto()
    #: Removed.  Its memory is freed when its copies in progress have ended.
    REMOVED = auto()


class TileEvent(StrEnum):
    """What changes the state of a tile."""

    #: A request for it is granted.
    REQUESTED = auto()
    #: No request waits for it.
    UNWANTED = auto()
    #: The first copy on its way to its home tier is instructed.
    STARTED = auto()
    #: It was copied to its home tier.
    ARRIVED = auto()
    #: No copy to a faster tier is in progress any more, and it is not on its home tier.
    HALTED = auto()
    #: A copy to a faster tier was refused memory.
    DENIED = auto()
    #: A copy to a faster tier has failed for another reason.
    FAILED = auto()
    #: Memory may be free since it was refused, or the refusal was some time ago.
    RETRIED = auto()
    #: It was refused memory too often.
    GIVEN_UP = auto()
    #: It was dropped from its home tier.
    EVICTED = auto()
    #: It was deleted.
    REMOVED = auto()


class BufferState(StrEnum):
    """What becomes of the memory of tiles on one tier."""

    #: It stays for now.
    HELD = auto()
    #: It is being written to the tier below, and is dropped then.
    EVICTING = auto()
    #: No task will read its tiles and no client holds them: the scheduler removes them soon, so
    #: that writing them would be useless.
    DYING = auto()
    #: It is freed.
    FREED = auto()


class BufferEvent(StrEnum):
    """What changes the state of a buffer."""

    #: It is chosen for eviction, and some of its tiles must be written.
    CHOSEN = auto()
    #: All its tiles are written.
    WRITTEN = auto()
    #: Its eviction ends early: without room below, by a failed copy, or as a task needs it.
    CANCELLED = auto()
    #: The last of its tiles is not needed any more.
    EXPIRED = auto()
    #: One of its tiles is needed after all, was removed, or stays for long.
    SPARED = auto()
    #: Its last tile was dropped.
    EMPTIED = auto()


class StateError(RuntimeError):
    """An event that may not occur in the state of a tile or buffer; a defect of dasktile."""


_T, _TE, _B, _BE = TileState, TileEvent, BufferState, BufferEvent

#: The state of a tile after an event.  A tile begins in `HOME`, or in `BELOW` if it is taken over.
TILES: Mapping[TileState, Mapping[TileEvent, TileState]] = {
    _T.HOME: {
        _TE.EVICTED: _T.BELOW,
        _TE.REMOVED: _T.REMOVED,
    },
    _T.BELOW: {
        _TE.REQUESTED: _T.WANTED,
        _TE.STARTED: _T.FETCHING,
        _TE.REMOVED: _T.REMOVED,
    },
    _T.WANTED: {
        _TE.REQUESTED: _T.WANTED,
        _TE.UNWANTED: _T.BELOW,
        _TE.STARTED: _T.FETCHING,
        _TE.REMOVED: _T.REMOVED,
    },
    _T.REFUSED: {
        _TE.REQUESTED: _T.WANTED,
        _TE.RETRIED: _T.WANTED,
        _TE.UNWANTED: _T.BELOW,
        _TE.STARTED: _T.RETRYING,
        _TE.GIVEN_UP: _T.UNREADABLE,
        _TE.REMOVED: _T.REMOVED,
    },
    _T.FETCHING: {
        _TE.REQUESTED: _T.FETCHING,
        _TE.ARRIVED: _T.HOME,
        _TE.HALTED: _T.WANTED,
        _TE.DENIED: _T.RETRYING,
        _TE.FAILED: _T.FAILING,
        _TE.REMOVED: _T.REMOVED,
    },
    _T.RETRYING: {
        _TE.REQUESTED: _T.FETCHING,
        _TE.RETRIED: _T.FETCHING,
        _TE.HALTED: _T.REFUSED,
        _TE.DENIED: _T.RETRYING,
        _TE.FAILED: _T.FAILING,
        _TE.REMOVED: _T.REMOVED,
    },
    _T.FAILING: {
        _TE.REQUESTED: _T.FETCHING,
        _TE.HALTED: _T.UNREADABLE,
        _TE.REMOVED: _T.REMOVED,
    },
    _T.UNREADABLE: {
        _TE.REQUESTED: _T.WANTED,
        _TE.REMOVED: _T.REMOVED,
    },
    _T.REMOVED: {},
}

#: The state of a buffer after an event; it begins in `HELD`.
BUFFERS: Mapping[BufferState, Mapping[BufferEvent, BufferState]] = {
    _B.HELD: {
        _BE.CHOSEN: _B.EVICTING,
        _BE.EXPIRED: _B.DYING,
        _BE.EMPTIED: _B.FREED,
    },
    _B.EVICTING: {
        _BE.WRITTEN: _B.HELD,
        _BE.CANCELLED: _B.HELD,
        _BE.EMPTIED: _B.FREED,
    },
    _B.DYING: {
        _BE.SPARED: _B.HELD,
        _BE.EMPTIED: _B.FREED,
    },
    _B.FREED: {},
}

#: States of a tile in the queue of fetches.
QUEUED = (TileState.WANTED, TileState.REFUSED)

#: States of a tile with copies to faster tiers in progress.
ON_ITS_WAY = (TileState.FETCHING, TileState.RETRYING, TileState.FAILING)

#: States of a tile whose memory was refused.
DENIED = (TileState.REFUSED, TileState.RETRYING)

#: States of a buffer whose bytes are free soon.
FREEING = (BufferState.EVICTING, BufferState.DYING)

_State = TypeVar("_State", bound=StrEnum)
_Event = TypeVar("_Event", bound=StrEnum)


def after(table: Mapping[_State, Mapping[_Event, _State]], state: _State, event: _Event) -> _State:
    """The state after an event.

    Parameters
    ----------
    table
        `TILES` or `BUFFERS`.
    state, event
        The state before it, and the event.

    Raises
    ------
    StateError
        If the event may not occur in the state.
    """
    try:
        return table[state][event]
    except KeyError:
        raise StateError(f"{event.value!r} may not occur in the state {state.value!r}") from None


def markdown(table: Mapping[_State, Mapping[_Event, _State]]) -> str:
    """A table of transitions: a row for each event, a column for each state."""
    states = [state for state, row in table.items() if row]
    events = list(dict.fromkeys(event for state in states for event in table[state]))
    rows = [["event", *(state.value for state in states)], ["---"] * (len(states) + 1)]
    for event in events:
        nexts = [table[state][event].value if event in table[state] else "" for state in states]
        rows.append([event.value.replace("_", " "), *nexts])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
