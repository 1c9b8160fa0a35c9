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
    DELETED = auto()


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
    #: No task will read its tiles, and no client holds them.
    EXPIRED = auto()
    #: One of its tiles is needed after all, was removed, or stays for long.
    SPARED = auto()
    #: Its last tile was dropped.
    EMPTIED = auto()


class StateError(RuntimeError):
    """An event that may not occur in the state of a tile or buffer; a defect of dasktile."""


# As names of this module, since an attribute of an enumeration costs 150 ns in Python 3.11.
HOME, BELOW, WANTED, REFUSED, FETCHING, RETRYING, FAILING, UNREADABLE, REMOVED = TileState
(
    REQUESTED,
    UNWANTED,
    STARTED,
    ARRIVED,
    HALTED,
    DENIED,
    FAILED,
    RETRIED,
    GIVEN_UP,
    EVICTED,
    DELETED,
) = TileEvent
HELD, EVICTING, DYING, FREED = BufferState
CHOSEN, WRITTEN, CANCELLED, EXPIRED, SPARED, EMPTIED = BufferEvent

#: The state of a tile after an event.  A tile begins in `HOME`, or in `BELOW` if it is taken over.
TILES: Mapping[TileState, Mapping[TileEvent, TileState]] = {
    HOME: {
        EVICTED: BELOW,
        DELETED: REMOVED,
    },
    BELOW: {
        REQUESTED: WANTED,
        STARTED: FETCHING,
        DELETED: REMOVED,
    },
    WANTED: {
        REQUESTED: WANTED,
        UNWANTED: BELOW,
        STARTED: FETCHING,
        DELETED: REMOVED,
    },
    REFUSED: {
        REQUESTED: WANTED,
        RETRIED: WANTED,
        UNWANTED: BELOW,
        STARTED: RETRYING,
        GIVEN_UP: UNREADABLE,
        DELETED: REMOVED,
    },
    FETCHING: {
        REQUESTED: FETCHING,
        ARRIVED: HOME,
        HALTED: WANTED,
        DENIED: RETRYING,
        FAILED: FAILING,
        DELETED: REMOVED,
    },
    RETRYING: {
        REQUESTED: FETCHING,
        RETRIED: FETCHING,
        HALTED: REFUSED,
        DENIED: RETRYING,
        FAILED: FAILING,
        DELETED: REMOVED,
    },
    FAILING: {
        REQUESTED: FETCHING,
        HALTED: UNREADABLE,
        DELETED: REMOVED,
    },
    UNREADABLE: {
        REQUESTED: WANTED,
        DELETED: REMOVED,
    },
    REMOVED: {},
}

#: The state of a buffer after an event; it begins in `HELD`.
BUFFERS: Mapping[BufferState, Mapping[BufferEvent, BufferState]] = {
    HELD: {
        CHOSEN: EVICTING,
        EXPIRED: DYING,
        EMPTIED: FREED,
    },
    EVICTING: {
        WRITTEN: HELD,
        CANCELLED: HELD,
        EMPTIED: FREED,
    },
    DYING: {
        SPARED: HELD,
        EMPTIED: FREED,
    },
    FREED: {},
}

#: States of a tile in the queue of fetches.
QUEUED = (WANTED, REFUSED)

#: States of a tile with copies to faster tiers in progress.
ON_ITS_WAY = (FETCHING, RETRYING, FAILING)

#: States of a tile whose last refusal counts.
AFTER_REFUSAL = (REFUSED, RETRYING)

#: States of a buffer whose bytes are free soon.
FREEING = (EVICTING, DYING)

_State = TypeVar("_State", bound=StrEnum)
_Event = TypeVar("_Event", bound=StrEnum)


def forbidden(state: StrEnum, event: StrEnum) -> StateError:
    """The exception for an event that may not occur in a state."""
    return StateError(f"{event.value!r} may not occur in the state {state.value!r}")


def markdown(table: Mapping[_State, Mapping[_Event, _State]]) -> str:
    """A table of transitions: a row for each event, a column for each state."""
    states = [state for state, row in table.items() if row]
    events = list(dict.fromkeys(event for state in states for event in table[state]))
    rows = [["event", *(state.value for state in states)], ["---"] * (len(states) + 1)]
    for event in events:
        nexts = [table[state][event].value if event in table[state] else "" for state in states]
        rows.append([event.value.replace("_", " "), *nexts])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
