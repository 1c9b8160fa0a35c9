"""States of tiles and buffers: all transitions of the tables occur, and no others."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import dasktile.schedule
from dasktile.schedule.eviction import Buffer
from dasktile.schedule.instructions import DYING
from dasktile.schedule.requests import Tile
from dasktile.schedule.states import (
    BUFFERS,
    TILES,
    BufferEvent,
    BufferState,
    StateError,
    TileEvent,
    TileState,
    markdown,
)
from tests.schedule.residency_worker import Worker, check

INF = float("inf")
ROOT = Path(dasktile.schedule.__file__).parent
DESIGN = ROOT.parents[1] / "docs" / "design.md"

#: A state and an event.
Row = tuple[TileState, TileEvent] | tuple[BufferState, BufferEvent]

TABLE: set[Row] = {
    *((state, event) for state, row in TILES.items() for event in row),
    *((state, event) for state, row in BUFFERS.items() for event in row),
}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Row]]:
    """The transitions that have occurred."""
    rows: set[Row] = set()
    change_tile, change_buffer = Tile.change, Buffer.change

    def change(tile: Tile, event: TileEvent) -> None:
        rows.add((tile.state, event))
        change_tile(tile, event)

    def change_memory(buffer: Buffer, event: BufferEvent) -> None:
        rows.add((buffer.state, event))
        change_buffer(buffer, event)

    monkeypatch.setattr(Tile, "change", change)
    monkeypatch.setattr(Buffer, "change", change_memory)
    yield rows
    assert rows <= TABLE


# Tables


def test_another_event_raises() -> None:
    tile = Tile("a", 1, 1, 0, None, 1)
    with pytest.raises(StateError, match="'requested' may not occur in the state 'home'"):
        tile.change(TileEvent.REQUESTED)
    buffer = Buffer(0, 1)
    with pytest.raises(StateError, match="'written' may not occur in the state 'held'"):
        buffer.change(BufferEvent.WRITTEN)
    tile.change(TileEvent.DELETED)
    for event in TileEvent:
        with pytest.raises(StateError):
            tile.change(event)
    assert tile.state is TileState.REMOVED


def test_all_states_and_events_are_in_the_tables() -> None:
    assert set(TILES) == set(TileState)
    assert set(BUFFERS) == set(BufferState)
    assert {event for row in TILES.values() for event in row} == set(TileEvent)
    assert {event for row in BUFFERS.values() for event in row} == set(BufferEvent)
    begin = {TileState.HOME, TileState.BELOW, BufferState.HELD}
    ends = {state for table in (TILES, BUFFERS) for row in table.values() for state in row.values()}
    assert ends | begin == {*TileState, *BufferState}


def test_the_design_has_the_tables() -> None:
    text = DESIGN.read_text(encoding="utf-8")
    for table in (markdown(TILES), markdown(BUFFERS)):
        assert table in text, f"docs/design.md lacks\n\n{table}"


def test_states_change_in_one_place_only() -> None:
    for path in ROOT.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        changes = {
            id(node)
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef) and function.name == "change"
            for node in ast.walk(function)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == "state":
                assert isinstance(node.ctx, ast.Load) or id(node) in changes, (path, node.lineno)


# Sequences


def states(worker: Worker, *keys: str) -> list[TileState]:
    check(worker)
    return [worker.residency._tiles[key].state for key in keys]


def test_the_life_of_a_tile(taken: set[Row]) -> None:
    worker = Worker(1, None)
    worker.add("a", next_use=2)
    worker.add("b", next_use=1)
    assert states(worker, "a") == [TileState.HOME]
    assert buffer_state(worker, "a", 0) is BufferState.EVICTING
    worker.settle()
    assert states(worker, "a") == [TileState.BELOW]
    worker.request("task", "a")
    assert states(worker, "a") == [TileState.FETCHING]
    worker.settle()
    assert states(worker, "a") == [TileState.HOME]
    worker.do(worker.residency.remove("a"))
    check(worker)
    assert taken == {
        (TileState.HOME, TileEvent.EVICTED),
        (TileState.BELOW, TileEvent.REQUESTED),
        (TileState.WANTED, TileEvent.STARTED),
        (TileState.FETCHING, TileEvent.ARRIVED),
        (TileState.HOME, TileEvent.DELETED),
        (BufferState.HELD, BufferEvent.CHOSEN),
        (BufferState.EVICTING, BufferEvent.WRITTEN),
        (BufferState.HELD, BufferEvent.EMPTIED),
    }


def buffer_state(worker: Worker, key: str, tier: int) -> BufferState:
    worker.residency.freeing(tier)  # updates what follows from the tiles
    return worker.residency._tiles[key].on[tier].state


def test_a_removed_tile_is_in_no_queue(taken: set[Row]) -> None:
    worker = Worker(2, None)
    for key in "abcd":
        worker.add(key)
    worker.settle()
    worker.request("runs", "c", "d")
    worker.request("one", "a", urgent=True)
    worker.request("two", "b", urgent=True)
    for key in "ab":
        worker.do(worker.residency.remove(key))
        check(worker)
    worker.settle()
    assert worker.ready == {"runs", "one", "two"}


def test_a_dying_tile_is_spared_when_it_is_requested(taken: set[Row]) -> None:
    worker = Worker(2, None)
    worker.add("a", next_use=DYING)
    assert buffer_state(worker, "a", 0) is BufferState.DYING
    worker.request("task", "a")
    assert buffer_state(worker, "a", 0) is BufferState.HELD
    worker.release("task")
    assert buffer_state(worker, "a", 0) is BufferState.DYING
    assert states(worker, "a") == [TileState.HOME]


# The rest of the way of a tile to its home tier, after its first copy has failed


def halfway(full: bool) -> Worker:
    """The first of two copies of "a" has failed; the other waits for an eviction before it."""
    worker = Worker(2, 2, None)
    for number, key in enumerate("abcdef"):
        worker.add(key, 1, 10 - number)
    worker.settle()
    for key in "cd":
        worker.do(worker.residency.remove(key))
    worker.request("task", "a", now=0)
    assert [(copy.key, copy.target) for copy in worker.flights] == [("a", 1), ("e", 1), ("a", 0)]
    assert states(worker, "a") == [TileState.FETCHING]
    worker.finish(failed=True, full=full)
    assert [(copy.key, copy.target) for copy in worker.flights] == [("e", 1), ("a", 0)]
    return worker


@pytest.mark.parametrize(
    "full, state, rests",
    [
        (True, TileState.RETRYING, TileState.REFUSED),
        (False, TileState.FAILING, TileState.UNREADABLE),
    ],
)
def test_the_rest_of_a_way_that_ended(
    full: bool, state: TileState, rests: TileState, taken: set[Row]
) -> None:
    worker = halfway(full)
    assert states(worker, "a") == [state]
    assert worker.ready == (set() if full else {"task"})
    # refused memory is requested again as soon as nothing is in progress
    worker.finish()
    assert (state, TileEvent.HALTED) in taken
    assert TILES[state][TileEvent.HALTED] is rests
    assert states(worker, "a") == [TileState.RETRYING if full else TileState.UNREADABLE]
    worker.settle()
    assert worker.ready == {"task"}
    assert states(worker, "a") == [TileState.HOME if full else TileState.UNREADABLE]


@pytest.mark.parametrize("full", [False, True])
def test_a_request_during_the_rest_of_a_way_that_ended(full: bool, taken: set[Row]) -> None:
    worker = halfway(full)
    worker.request("next", "a", urgent=True)
    assert states(worker, "a") == [TileState.FETCHING]
    worker.settle()
    assert states(worker, "a") == [TileState.HOME]
    assert worker.ready == {"task", "next"}


@pytest.mark.parametrize("full", [False, True])
def test_a_removal_during_the_rest_of_a_way_that_ended(full: bool, taken: set[Row]) -> None:
    worker = halfway(full)
    worker.do(worker.residency.remove("a"))
    check(worker)
    assert worker.residency._removed
    worker.settle()
    check(worker)
    assert not worker.residency._removed
    assert worker.ready == {"task"}


# A tile whose memory was refused


def refused() -> Worker:
    """A tile that "task" waits for, and whose memory was refused while another task runs."""
    worker = Worker(4, None)
    for key in "abcdef":
        worker.add(key)
    worker.settle()
    worker.request("runs", "f")
    worker.request("task", "a")
    while worker.flights:
        worker.finish(failed=worker.flights[0].target == 0, full=True)
    assert states(worker, "a") == [TileState.REFUSED]
    return worker


def test_a_new_request_for_a_tile_whose_memory_was_refused(taken: set[Row]) -> None:
    worker = refused()
    worker.request("again", "a", urgent=True)
    assert (TileState.REFUSED, TileEvent.REQUESTED) in taken
    worker.settle()
    assert states(worker, "a") == [TileState.HOME]


@pytest.mark.parametrize("full, state", [(True, TileState.REFUSED), (False, TileState.UNREADABLE)])
def test_a_second_failure_of_a_tile_whose_memory_was_refused(
    full: bool, state: TileState, taken: set[Row]
) -> None:
    worker = refused()
    worker.do(worker.residency.resize(0, 4))
    assert states(worker, "a") == [TileState.RETRYING]
    worker.finish(failed=True, full=full)
    assert (TileState.RETRYING, TileEvent.DENIED if full else TileEvent.FAILED) in taken
    assert states(worker, "a") == [state]


# Random events


def play(worker: Worker, rng: random.Random, events: int) -> None:
    """Random events of all kinds, with copies that fail and homes on two tiers."""
    residency = worker.residency
    tiers = len(residency.capacity)
    capacity = residency.settings.capacity
    homes = (0, 0, 1) if tiers > 2 and rng.random() < 0.4 else (0,)
    fails, full = rng.choice((0, 0.1, 0.1, 0.4, 0.7)), rng.choice((0.2, 0.5, 0.9))
    largest, most = rng.choice((2, 3, 6)), rng.choice((2, 4, 8))
    kinds = {
        "add": 25, "remove": 12, "request": 15, "release": 12, "cancel": 2, "expect": 8,
        "resize": 2, "shrink": 2, "allow": 2, "age": 4, "upcoming": 2, "urge": 1, "urge first": 2,
        "touch": 1, "copy": 60, "adopt": 3,
    }  # fmt: skip
    weights = [rng.choice((0.3, 1, 3)) * weight for weight in kinds.values()]

    def use() -> float | None:
        return rng.choice((None, INF, DYING, *(rng.randint(0, 100) for _ in range(3))))

    for count in range(events):
        keys = list(residency)
        [kind] = rng.choices(list(kinds), weights)
        match kind:
            case "add" if len(keys) < 40:
                key = count if rng.random() < 0.8 else f"key {rng.randint(0, 5)}"
                home = rng.choice(homes)
                shared = f"shared {home} {rng.randint(0, 5)}" if rng.random() < 0.2 else None
                # all views of the same memory are of the same size
                size = 3 if shared is not None else rng.randint(1, largest)
                if key not in residency:
                    worker.add(key, size, use(), shared=shared, tier=home)
            case "adopt":
                home = rng.choice(homes)
                size, tier = rng.randint(1, largest), rng.randint(home + 1, tiers - 1)
                worker.adopt(count, size, tier, use(), home)
            case "remove" if keys:
                worker.do(residency.remove(rng.choice(keys)))
            case "request" if keys and len(worker.requested) < most:
                some = rng.sample(keys, min(len(keys), rng.randint(1, 4)))
                now, urgent = rng.choice((None, rng.randint(0, 50))), rng.random() < 0.15
                worker.request(count, *some, now=now, room=rng.randint(0, 3), urgent=urgent)
            case "release" if worker.ready:
                worker.release(rng.choice(sorted(worker.ready, key=str)))
            case "cancel" if worker.requested:
                worker.release(rng.choice(list(worker.requested)))
            case "urge" if worker.requested:
                name = rng.choice(list(worker.requested))
                worker.urgent.add(name)
                worker.do(residency.urge(name))
            case "urge first":
                worker.do(residency.urge_first())
            case "expect" if keys:
                some = rng.sample(keys, min(len(keys), rng.randint(1, 3)))
                worker.do(residency.expect({key: use() for key in some}))
            case "upcoming" if keys:
                most_keys = min(len(keys), 4)
                upcoming = rng.sample([*keys, "gone"], most_keys)
                worker.do(residency.set_upcoming(upcoming, rng.sample(keys, most_keys)))
            case "touch" if keys:
                residency.touch(rng.choice(keys))
            case "resize":
                tier = rng.randrange(tiers)
                worker.do(residency.resize(tier, capacity[tier]))
            case "shrink":
                worker.do(residency.shrink(rng.randrange(tiers), rng.randint(0, 4)))
            case "allow":
                worker.do(residency.allow(0, rng.randint(3, 15)))
            case "age":
                worker.do(residency.age())
            case "copy" if worker.flights:
                which = rng.choice(worker.able())
                worker.finish(which, rng.random() < fails, rng.random() < full)
        check(worker)


def worker_of(rng: random.Random) -> Worker:
    """A worker with random settings."""
    capacity: list[int | None] = [rng.randint(3, 15) for _ in range(rng.choice((1, 1, 2, 2, 3)))]
    capacity.append(None if rng.random() < 0.6 else rng.randint(8, 60))
    return Worker(
        *capacity,
        keep_clean=rng.random() < 0.75,
        prefetch=rng.choice((0, 1, 3)),
        prefetch_fraction=rng.choice((0.05, 0.2, 1.0)),
        dirty_factor=rng.choice((1.0, 2.0)),
        retries=rng.choice((0, 1, 3, 20)),
    )


@pytest.mark.parametrize("seed", range(40))
def test_random_events_keep_what_holds_in_each_state(seed: int, taken: set[Row]) -> None:
    rng = random.Random(seed)
    worker = worker_of(rng)
    play(worker, rng, 250)
    for key in list(worker.residency):
        worker.do(worker.residency.remove(key))
    worker.settle()
    check(worker)
    assert not worker.residency._removed
    assert not any(worker.residency.used)


def test_all_transitions_occur(taken: set[Row]) -> None:
    for full in (False, True):
        for again in (False, True):
            worker = halfway(full)
            if again:
                worker.request("next", "a", urgent=True)
            else:
                worker.do(worker.residency.remove("a"))
            worker.settle()
            worker = refused()
            if again:
                worker.request("again", "a", urgent=True)
            else:
                worker.do(worker.residency.resize(0, 4))
            worker.finish(failed=True, full=full)
    for seed in range(40):
        if taken == TABLE:
            break
        rng = random.Random(seed)
        play(worker_of(rng), rng, 250)
    assert taken == TABLE, f"do not occur: {sorted(map(str, TABLE - taken))}"
