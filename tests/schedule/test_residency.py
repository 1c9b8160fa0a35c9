"""Residency: eviction order, prefetches, requests and failed copies."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from dasktile.schedule.instructions import (
    DYING,
    ResidencySettings,
)
from dasktile.schedule.residency import Residency
from tests.schedule.residency_worker import Worker, check, settle_all

INF = float("inf")


def test_the_furthest_next_use_is_evicted_first() -> None:
    worker = Worker(3, None, prefetch=0)
    for key, next_use in zip("abcd", (3, 9, 5, 4), strict=True):
        worker.add(key, next_use=next_use)
    worker.settle()
    assert worker.fast() == "acd"
    worker.do(worker.residency.expect({"d": 20}))
    worker.add("e", next_use=1)
    worker.settle()
    assert worker.fast() == "ace"


def test_unused_tiles_are_evicted_before_others_most_recently_used_first() -> None:
    worker = Worker(3, None, prefetch=0)
    for key, next_use in zip("abcd", (INF, 9, INF, 4), strict=True):
        worker.add(key, next_use=next_use)
    worker.settle()
    assert worker.fast() == "abd"
    worker.add("e", next_use=1)
    worker.settle()
    assert worker.fast() == "bde"


def test_of_unknown_next_uses_the_least_recently_used_is_evicted() -> None:
    worker = Worker(3, None)
    for key in "abc":
        worker.add(key)
    worker.residency.touch("a")
    worker.add("d")
    worker.settle()
    assert worker.fast() == "acd"
    worker.request("task", "c")
    worker.release("task")
    worker.add("e")
    worker.settle()
    assert worker.fast() == "cde"


def test_a_tile_with_a_copy_below_is_not_written_again() -> None:
    worker = Worker(2, None, prefetch=0)
    for key in "abc":
        worker.add(key)
    worker.settle()
    assert (worker.fast(), worker.written) == ("bc", 1)
    worker.request("task", "a")
    worker.settle()
    assert (worker.fast(), worker.written, worker.read) == ("ac", 2, 1)
    worker.release("task")
    worker.request("next", "b")
    worker.settle()
    # c was used longer ago, but a has a copy below
    assert worker.written == 3
    assert worker.residency.tiers("a") == (0, 1)
    worker.release("next")
    worker.request("last", "c")
    worker.settle()
    assert (worker.fast(), worker.written, worker.read) == ("bc", 3, 3)


def test_copies_are_dropped_without_keep_clean() -> None:
    worker = Worker(1, None, keep_clean=False)
    worker.add("a")
    worker.add("b")
    worker.settle()
    worker.request("task", "a")
    worker.settle()
    assert worker.residency.tiers("a") == (0,)
    assert worker.written == 2


def test_a_tile_that_must_be_written_counts_as_needed_sooner() -> None:
    for next_use, left in ((15.0, "b"), (25.0, "a")):
        worker = Worker(2, None, prefetch=0)
        worker.add("a", next_use=1)
        worker.add("c", next_use=0)
        worker.add("b", next_use=0)
        worker.settle()
        assert worker.fast() == "bc"
        worker.request("task", "a", now=0)
        worker.settle()
        worker.release("task")
        assert worker.residency.tiers("a") == (0, 1)
        other = next(key for key in "bc" if worker.top(key) == 0)
        worker.do(worker.residency.expect({"a": 10, other: next_use}))
        worker.add("d", next_use=0)
        worker.settle()
        assert worker.top("a") == (0 if left == "a" else 1)


def test_the_tiles_of_a_request_are_not_evicted() -> None:
    worker = Worker(2, None)
    for key in "ab":
        worker.add(key, next_use=9)
    worker.request("task", "a", "b")
    assert worker.ready == {"task"}
    for key in "cd":
        worker.add(key, next_use=1)
    worker.settle()
    assert worker.fast() == "ab"
    worker.release("task")
    worker.request("next", "c", "d")
    worker.settle()
    assert worker.fast() == "cd"


def test_two_requests_that_do_not_fit_together_do_not_deadlock() -> None:
    worker = Worker(3, None)
    for key in "abcdef":
        worker.add(key)
    worker.settle()
    worker.request("first", "a", "b")
    worker.request("second", "c", "d")
    worker.settle()
    assert worker.ready == {"first"}
    worker.release("first")
    worker.settle()
    assert worker.ready == {"second"}


def test_a_request_larger_than_memory_is_granted_alone() -> None:
    worker = Worker(2, None)
    for key in "abcd":
        worker.add(key)
    worker.settle()
    worker.request("small", "d")
    worker.request("large", *"abc")
    worker.settle()
    assert worker.ready == {"small"}
    worker.release("small")
    worker.settle()
    assert worker.ready == {"large"}


def test_tasks_wait_for_room_for_their_results() -> None:
    worker = Worker(2, None)
    worker.add("a")
    worker.add("b")
    worker.request("task", "b", room=1)
    assert worker.ready == {"task"}
    worker.add("c")
    worker.request("next", "c", room=1)
    worker.request("peer", "c")
    assert worker.ready == {"task", "peer"}
    worker.settle()
    worker.release("task")
    assert worker.ready == {"next", "peer"}


def test_a_tile_larger_than_memory_is_evicted_first() -> None:
    worker = Worker(4, None)
    for key in "abc":
        worker.add(key, next_use=5)
    worker.add("large", 9, next_use=2)
    worker.settle()
    assert worker.fast() == "abc"
    worker.request("task", "large")
    worker.settle()
    assert worker.ready == {"task"}
    worker.release("task")
    worker.settle()
    assert "large" not in worker.fast()


def test_prefetches_use_free_room() -> None:
    worker = Worker(4, None, prefetch=1)
    for number, key in enumerate("abcdef"):
        worker.add(key, next_use=number)
    worker.settle()
    assert worker.fast() == "abcd"
    worker.do(worker.residency.set_upcoming("abcdef"))
    assert not worker.flights
    worker.do(worker.residency.remove("a"))
    assert [copy.key for copy in worker.flights] == ["e"]
    worker.settle()
    assert worker.fast() == "bcde"
    assert not worker.flights


def test_prefetches_evict_only_tiles_needed_later() -> None:
    worker = Worker(4, None, prefetch=2)
    for number, key in enumerate("abcdef"):
        worker.add(key, next_use=number)
    worker.settle()
    worker.do(worker.residency.set_upcoming("abcdef"))
    worker.do(worker.residency.expect({"a": 7}))
    worker.settle()
    assert worker.fast() == "bcde"
    worker.do(worker.residency.set_upcoming("bcdef"))
    worker.do(worker.residency.expect({"b": 7, "c": 5.5}))
    worker.settle()
    assert worker.fast() == "cdef"


def test_tiles_of_later_tasks_are_prefetched_into_free_room_only() -> None:
    worker = Worker(6, None, prefetch=2)
    for number, key in enumerate("abcdefghij"):
        worker.add(key, next_use=number)
    worker.settle()
    assert worker.fast() == "abcdef"
    worker.request("task", "a", now=0, room=1)
    worker.do(worker.residency.set_upcoming("b", "ghij"))
    worker.do(worker.residency.expect({"a": INF, "f": 20}))
    # neither f nor a is evicted for them
    assert not worker.flights
    for key in "bc":
        worker.do(worker.residency.remove(key))
    # two tiles are free, and the task makes one
    assert [copy.key for copy in worker.flights] == ["g"]
    worker.settle()
    assert worker.fast() == "adefg"
    worker.do(worker.residency.remove("d"))
    worker.do(worker.residency.remove("e"))
    assert [copy.key for copy in worker.flights] == ["h", "i"]
    check(worker)


def test_tiles_of_the_next_task_are_prefetched_before_those_of_later_ones() -> None:
    worker = Worker(4, None, prefetch=2)
    for number, key in enumerate("abcdefgh"):
        worker.add(key, next_use=number)
    worker.settle()
    worker.request("task", "a", now=0)
    # there is no room for e without an eviction of what is needed sooner
    worker.do(worker.residency.set_upcoming("e", "gh"))
    assert not worker.flights
    worker.do(worker.residency.remove("b"))
    worker.do(worker.residency.remove("c"))
    assert [copy.key for copy in worker.flights] == ["e", "g"]


def test_a_prefetch_evicts_several_tiles_or_none() -> None:
    worker = Worker(4, None, prefetch=2)
    for key, size, use in (("big", 2, 9), ("p", 1, 1), ("q", 1, 2), ("x", 1, 2.5), ("y", 1, 8)):
        worker.add(key, size, next_use=use)
    worker.settle()
    assert worker.fast() == "pqxy"
    written = worker.written
    worker.do(worker.residency.expect({"big": 3}))
    worker.do(worker.residency.set_upcoming(["big"]))
    worker.settle()
    # to evict y would not be enough
    assert (worker.fast(), worker.written) == ("pqxy", written)
    worker.do(worker.residency.expect({"x": 7}))
    worker.settle()
    assert worker.fast() == "bigpq"


@pytest.mark.parametrize("fraction", (0, 0.25, 0.5))
def test_prefetches_evict_tiles_needed_soon_up_to_a_fraction(fraction: float) -> None:
    worker = Worker(4, None, prefetch=4, prefetch_fraction=fraction)
    for number, key in enumerate("abcdefgh"):
        worker.add(key, next_use=number)
    worker.settle()
    assert worker.fast() == "abcd"
    # a loop: the tile in use is needed last, and would be evicted after its use
    worker.request("task", "a")
    worker.do(worker.residency.expect({"a": 8, "b": 5.5, "c": 6.5, "d": 7.5}))
    worker.do(worker.residency.set_upcoming("efgh"))
    worker.settle()
    fetched = int(fraction * 4)
    assert worker.fast() == "abcd"[: 4 - fetched] + "efgh"[:fetched]
    worker.release("task")
    worker.settle()
    assert "a" not in worker.fast()


def test_a_fetch_is_instructed_with_the_evictions_that_make_its_room() -> None:
    worker = Worker(3, None)
    for number, key in enumerate("abcd"):
        worker.add(key, 1, 10 - number)
    worker.settle()
    assert worker.fast() == "bcd"
    worker.request("task", "a", now=0)
    out, fetch = worker.flights
    assert (out.key, out.target, fetch.key, fetch.target) == ("b", 1, "a", 0)
    assert fetch.after == (out,)
    assert worker.able() == [0]
    # its room is not there yet
    assert worker.residency.used[0] == 3
    worker.finish()
    assert (worker.able(), worker.residency.used[0], worker.fast()) == ([0], 3, "cd")
    worker.finish()
    assert (worker.ready, worker.fast()) == ({"task"}, "acd")


def test_evictions_are_started_for_one_fetch_at_a_time() -> None:
    """A tile that is removed while the first is written makes the room for the second."""
    worker = Worker(3, None)
    for number, key in enumerate("abcde"):
        worker.add(key, 1, 10 - number)
    worker.settle()
    assert worker.fast() == "cde"
    worker.request("task", "a", "b", now=0)
    assert [copy.key for copy in worker.flights] == ["c", "a"]
    worker.do(worker.residency.remove("d"))
    assert [copy.key for copy in worker.flights] == ["c", "a", "b"]
    written = worker.written
    worker.settle()
    assert (worker.ready, worker.written - written) == ({"task"}, 1)


def test_a_tile_is_fetched_over_all_tiers_at_once() -> None:
    worker = Worker(2, 2, None)
    for number, key in enumerate("abcdef"):
        worker.add(key, 1, 10 - number)
    worker.settle()
    assert worker.residency.tiers("a") == (2,)
    for key in "cd":
        worker.do(worker.residency.remove(key))
    worker.request("task", "a", now=0)
    first, out, second = worker.flights
    assert [(copy.key, copy.source, copy.target) for copy in worker.flights] == [
        ("a", 2, 1),
        ("e", 0, 1),
        ("a", 1, 0),
    ]
    assert (first.after, out.after, second.after) == ((), (), (out,))
    assert worker.able() == [0, 1]
    worker.settle()
    assert worker.ready == {"task"}


@pytest.mark.parametrize("full", [False, True])
def test_a_fetch_whose_room_is_not_made_is_decided_again(full: bool) -> None:
    worker = Worker(3, None)
    for number, key in enumerate("abcd"):
        worker.add(key, 1, 10 - number)
    worker.settle()
    worker.request("task", "a", now=0)
    assert [copy.key for copy in worker.flights] == ["b", "a"]
    worker.finish(failed=True, full=full)
    # of a full disk nothing is expected; else another one is evicted
    assert [copy.key for copy in worker.flights] == (["a"] if full else ["c", "a"])
    worker.settle()
    assert worker.ready == {"task"}
    assert worker.fast() == ("abcd" if full else "abd")


def test_the_way_to_the_home_tier_ends_where_a_copy_fails() -> None:
    worker = Worker(2, 2, None)
    for number, key in enumerate("abcdef"):
        worker.add(key, 1, 10 - number)
    worker.settle()
    for key in "cd":
        worker.do(worker.residency.remove(key))
    worker.request("task", "a", now=0)
    assert len(worker.flights) == 3
    worker.finish(failed=True)
    worker.settle()
    assert [copy for copy in worker.flights if copy.key == "a"] == []
    assert worker.ready == {"task"}
    worker.release("task")
    worker.request("again", "a", now=0)
    worker.settle()
    assert worker.top("a") == 0


def test_a_request_hastens_the_copy_that_was_made_ahead() -> None:
    worker = Worker(4, None, prefetch=3)
    for number, key in enumerate("abcdef"):
        worker.add(key, 1, 10 - number)
    worker.settle()
    for key in "ef":
        worker.do(worker.residency.remove(key))
    worker.do(worker.residency.set_upcoming(["a", "b"]))
    assert [(copy.key, copy.ahead) for copy in worker.flights] == [("b", True), ("a", True)]
    worker.request("task", "a", "c", now=0)
    assert worker.hastened == ["a"]
    worker.settle()
    assert worker.ready == {"task"}


def test_a_prefetch_whose_own_copy_is_evicted_for_its_room_starts_again() -> None:
    worker = Worker(2, 2, None, prefetch=1, prefetch_fraction=1.0)
    worker.adopt("p", 1, 2, 2)
    worker.do(worker.residency.set_upcoming("p"))
    [up] = worker.flights
    assert (up.key, up.source, up.target) == ("p", 2, 1)
    for key in "ab":
        worker.add(key, next_use=9)
    worker.adopt("q", 1, 1, 1)
    # the room on the first tier is made by writing "a" to the second, where "p" is dropped for it
    worker.finish()
    assert [(copy.key, copy.source, copy.target) for copy in worker.flights] == [("a", 0, 1)]
    assert worker.residency.tiers("p") == (2,)
    check(worker)


def test_a_tile_that_is_requested_again_takes_no_second_place_among_the_fetches() -> None:
    worker = Worker(4, None)
    for number, (key, size) in enumerate((("t", 1), ("b", 4), ("c", 1), ("d", 3))):
        worker.add(key, size, 20 - number)
    worker.settle()
    assert worker.fast() == "cd"
    for name, keys in (("one", "tb"), ("two", "t")):
        worker.request(name, *keys, urgent=True)
    check(worker)
    worker.settle()
    check(worker)


def test_views_of_the_same_memory_are_evicted_together() -> None:
    worker = Worker(6, None)
    worker.add("a", 5, shared="memory")
    worker.add("b", 5, shared="memory")
    assert worker.residency.used[0] == 5
    worker.add("c", 1)
    assert not worker.flights
    worker.add("d", 1)
    assert {copy.key for copy in worker.flights} == {"a", "b"}
    worker.finish()
    assert worker.top("a") == 0
    worker.settle()
    assert worker.fast() == "cd"
    assert worker.residency.used == [2, 10]


def test_a_new_view_cancels_the_eviction_of_its_memory() -> None:
    worker = Worker(5, None)
    worker.add("a", 5, shared="memory")
    worker.add("b", 1)
    assert len(worker.flights) == 1
    worker.add("v", 5, shared="memory")
    worker.finish()
    assert worker.residency.used[0] in (5, 6)
    worker.settle()
    assert worker.residency.used[0] <= 5


def test_three_tiers() -> None:
    worker = Worker(2, 3, None)
    for key in "abcdefg":
        worker.add(key)
    worker.settle()
    assert [worker.top(key) for key in "abcdefg"] == [2, 2, 1, 1, 1, 0, 0]
    worker.request("task", "a", "c")
    worker.settle()
    assert worker.fast() == "ac"
    assert worker.residency.tiers("a") in ((0, 1, 2), (0, 2))


def test_tiles_that_cannot_be_written_stay_in_memory() -> None:
    worker = Worker(2, None)
    for key in "abc":
        worker.add(key)
    assert worker.flights[0].key == "a"
    worker.finish(failed=True)
    worker.settle()
    assert worker.fast() == "ac"
    worker.add("d")
    worker.settle()
    assert worker.fast() == "ad"


def test_a_full_disk_is_not_written_to_until_room_is_freed() -> None:
    worker = Worker(2, None)
    for key in "abc":
        worker.add(key)
    worker.finish(failed=True, full=True)
    worker.add("d")
    assert not worker.flights
    assert worker.fast() == "abcd"
    worker.do(worker.residency.resize(1, None))
    worker.settle()
    assert worker.fast() == "cd"
    assert worker.residency.used == [2, 2]


def test_a_full_disk_is_tried_again_less_and_less_often() -> None:
    worker = Worker(1, None)
    worker.add("a")
    worker.add("b")
    attempts = []
    for time in range(200):
        if worker.flights:
            attempts.append(time)
            worker.finish(failed=True, full=True)
        worker.do(worker.residency.age())
    # after 1, 2, 4, ... calls, at most 64
    assert [after - before for before, after in pairwise(attempts)] == [1, 2, 4, 8, 16, 32, 64, 64]
    while not worker.flights:
        worker.do(worker.residency.age())
    worker.settle()
    assert worker.residency.used == [1, 1]
    # it had room in between: the next refusal is the first one again
    worker.add("c")
    worker.finish(failed=True, full=True)
    worker.do(worker.residency.age())
    assert worker.flights


def test_smaller_tiles_are_evicted_if_the_first_one_does_not_fit_below() -> None:
    worker = Worker(100, 45, prefetch=0)
    for key, size, use in (("l", 60, 9), ("m", 20, 2), ("n", 20, 3), ("o", 20, 1)):
        worker.add(key, size, next_use=use)
    worker.settle()
    # l is needed last, and does not fit on the last tier
    assert worker.fast() == "lmo"
    assert worker.residency.used == [100, 20]
    # it is evicted once there is room
    worker.do(worker.residency.resize(1, 100))
    worker.add("p", 20, next_use=4)
    worker.settle()
    assert worker.fast() == "mop"
    check(worker)


def test_small_tiles_are_evicted_together_if_many_others_do_not_fit_below() -> None:
    worker = Worker(400, 21, prefetch=0)
    for number in range(13):
        worker.add(f"l{number}", 30, next_use=100 - number)
    for key in "abcd":
        worker.add(key, 5, next_use=1)
    worker.settle()
    # two of the small ones had to leave, behind thirteen that find no room
    assert worker.residency.used == [400, 10]
    check(worker)


def test_a_disk_with_a_limit() -> None:
    worker = Worker(2, 2, prefetch=0)
    for key in "abcde":
        worker.add(key)
    worker.settle()
    assert worker.residency.used == [3, 2]
    worker.request("task", "a")
    worker.settle()
    worker.release("task")
    worker.settle()
    # the copy of a is dropped for tiles that have no other copy
    assert worker.residency.used[1] <= 2
    assert worker.residency.used[0] <= 3
    worker.do(worker.residency.remove("b"))
    worker.settle()
    assert worker.residency.used == [2, 2]


def test_a_failed_fetch_ends_the_wait_and_is_repeated_by_the_next_request() -> None:
    worker = Worker(1, None)
    worker.add("a", next_use=1)
    worker.add("b", next_use=0)
    worker.settle()
    worker.request("task", "a")
    while worker.flights[0].target > 0:
        worker.finish()
    worker.finish(failed=True)
    assert worker.ready == {"task"}
    assert worker.residency.tiers("a") == (1,)
    worker.release("task")
    worker.settle()
    # not before it is requested for
    assert worker.residency.tiers("a") == (1,)
    worker.failed_fetches.clear()
    worker.request("next", "a")
    worker.settle()
    assert worker.ready == {"next"}
    assert worker.top("a") == 0


def test_urgent_requests_do_not_wait_for_room() -> None:
    worker = Worker(3, None)
    for key in "abcdef":
        worker.add(key)
    worker.settle()
    worker.request("first", "a", "b")
    worker.request("second", "c", "d")
    worker.request("third", "c", "e")
    worker.settle()
    assert worker.ready == {"first"}
    worker.do(worker.residency.urge("third"))
    worker.do(worker.residency.urge("unknown"))
    worker.settle()
    assert worker.ready == {"first", "third"}
    worker.release("first")
    worker.release("third")
    worker.settle()
    assert worker.ready == {"second"}


def test_the_first_request_that_waits_is_urged() -> None:
    worker = Worker(3, None)
    for key in "abcdef":
        worker.add(key)
    worker.settle()
    worker.request("first", "a", "b")
    worker.request("second", "c", "d")
    worker.request("third", "c", "e")
    worker.settle()
    events = worker.residency.events
    worker.do(worker.residency.urge_first())
    assert worker.residency.copies
    worker.settle()
    assert worker.ready == {"first", "second"}
    assert not worker.residency.copies
    assert worker.residency.events > events
    worker.do(worker.residency.urge_first())
    worker.settle()
    assert worker.ready == {"first", "second", "third"}
    assert worker.residency.urge_first() == []


def test_fetched_views_take_only_their_own_size() -> None:
    worker = Worker(50, None)
    for number in range(5):
        worker.add(("view", number), 2, shared="memory", memory=40)
    worker.add("a", 20)
    worker.settle()
    assert worker.residency.used == [20, 10]
    worker.request("task", *(("view", number) for number in range(5)))
    worker.settle()
    assert worker.residency.used[0] == 30


def test_removed_tiles_leave_no_entries_in_the_eviction_queues() -> None:
    worker = Worker(10, None)
    for number in range(3000):
        worker.add(number, 4, number)
        worker.request("task", number, now=number)
        worker.release("task")
        worker.do(worker.residency.expect({number: INF}))
        worker.settle()
        worker.do(worker.residency.remove(number))
    entries = 0
    for queue in worker.residency._queues:
        for ranked in (*queue._known.values(), *queue._unknown.values()):
            entries += len(ranked._heap)
    assert entries < 200


def test_tiles_are_ranked_only_when_a_tier_lacks_room(monkeypatch: pytest.MonkeyPatch) -> None:
    ranked: list[Any] = []
    original = Residency._update_rank

    def update(residency: Residency, buffer: Any) -> None:
        ranked.append(buffer)
        original(residency, buffer)

    monkeypatch.setattr(Residency, "_update_rank", update)
    worker = Worker(200, None)
    for number in range(100):
        worker.add(number, 1, number)
        worker.request("task", number, now=number)
        worker.release("task")
        worker.do(worker.residency.expect({number: 1000 - number}))
        worker.do(worker.residency.age())
    assert ranked == []
    # the one whose use is the furthest is evicted
    worker.add("large", 101, 0)
    assert len(ranked) >= 100
    assert [copy.key for copy in worker.flights] == [0]


def test_a_device_with_less_room_than_its_capacity() -> None:
    worker = Worker(4, 8, None)
    for key in "abcdef":
        worker.add(key)
    worker.settle()
    worker.request("task", "a")
    first = worker.flights[0]
    assert (first.key, first.target) in (("a", 0), ("c", 1))
    while worker.flights[0].target != 0:
        worker.finish()
    worker.finish(failed=True, full=True)
    assert worker.residency.capacity[0] < 4
    worker.settle()
    assert worker.ready == {"task"}
    for number in range(4):
        worker.request(number, "abcdef"[number])
        worker.settle()
        worker.release(number)
    # the capacity grows again with every copy
    assert worker.residency.capacity[0] == 4


def test_a_device_without_room() -> None:
    worker = Worker(4, None, retries=3)
    for key in "abcdef":
        worker.add(key)
    worker.settle()
    below = next(key for key in "abcdef" if worker.residency.tiers(key) == (1,))
    worker.request("runs", next(key for key in "abcdef" if 0 in worker.residency.tiers(key)))
    worker.request("task", below)
    for _ in range(10):
        if worker.flights:
            worker.finish(failed=worker.flights[0].target == 0, full=True)
    # the running task may free some room
    assert worker.ready == {"runs"}
    worker.release("runs")
    attempts = refuse_all(worker)
    # what has run may still hold memory for a while: it is tried again later
    for _ in range(3):
        assert not worker.ready
        worker.do(worker.residency.age())
        attempts += refuse_all(worker)
    assert attempts >= 4
    assert worker.ready == {"task"}
    assert not worker.flights


def test_a_refused_fetch_is_repeated_where_nothing_proceeds() -> None:
    worker, below = refused_beside_a_running_task()
    # the running task has freed memory without an end
    worker.do(worker.residency.urge_first())
    worker.settle()
    assert worker.ready == {"runs", "task"}
    assert worker.top(below) == 0


def test_a_request_does_not_wait_for_ever_for_memory_that_a_running_task_holds() -> None:
    worker, below = refused_beside_a_running_task(retries=3)
    # it waits for the same memory, and is not passed over for ever
    other = next(key for key in "abcdef" if key != below and worker.top(key) == 1)
    worker.request("other", other)
    for attempt in range(3):
        assert worker.ready == {"runs"}, attempt
        worker.do(worker.residency.urge_first())
        assert refuse_all(worker) == 1
    worker.do(worker.residency.urge_first())
    assert worker.ready == {"runs", "task"}
    for _ in range(10):
        refuse_all(worker)
        worker.do(worker.residency.urge_first())
    assert worker.ready == {"runs", "task", "other"}
    assert worker.residency.urge_first() == []
    # later there may be memory
    worker.release("task")
    worker.request("task", below)
    worker.do(worker.residency.urge_first())
    worker.settle()
    assert worker.ready == {"runs", "task", "other"}
    assert worker.top(below) == 0


def refused_beside_a_running_task(**options: Any) -> tuple[Worker, str]:
    """A device refuses the memory for an input of "task", and "runs" holds some of it."""
    worker = Worker(4, None, **options)
    for key in "abcdef":
        worker.add(key)
    worker.settle()
    worker.request("runs", next(key for key in "abcdef" if worker.top(key) == 0))
    below = next(key for key in "abcdef" if worker.top(key) == 1)
    worker.request("task", below)
    refuse_all(worker)
    worker.do(worker.residency.age())
    assert not worker.flights
    assert worker.ready == {"runs"}
    return worker, below


def refuse_all(worker: Worker) -> int:
    """Let all copies to the device fail for lack of memory; the number of those."""
    refused = 0
    while worker.flights:
        refused += worker.flights[0].target == 0
        worker.finish(failed=worker.flights[0].target == 0, full=True)
    return refused


def test_memory_that_a_task_holds_after_its_end() -> None:
    worker = Worker(2, None)
    for key in "abc":
        worker.add(key)
    worker.settle()
    below = next(key for key in "abc" if worker.residency.tiers(key) == (1,))
    worker.request("task", below)
    worker.request("peer", below, urgent=True)
    refuse_all(worker)
    # who may not wait does not, and the task still does
    assert worker.ready == {"peer"}
    worker.do(worker.residency.age())
    worker.settle()
    assert worker.ready == {"peer", "task"}
    assert 0 in worker.residency.tiers(below)


def test_a_reduced_capacity_evicts_tiles() -> None:
    worker = Worker(6, None)
    for key in "abcdef":
        worker.add(key)
    worker.do(worker.residency.shrink(0, 2))
    worker.settle()
    assert worker.residency.used[0] == 4
    worker.do(worker.residency.shrink(0, 9))
    worker.settle()
    assert worker.residency.used[0] == 0


def test_dying_tiles_are_not_written() -> None:
    worker = Worker(2, None)
    for key in "abc":
        worker.add(key, next_use=DYING if key in "ab" else 5)
    assert not worker.flights
    worker.request("task", "c", room=1)
    # there is too little room now, but the dying tiles will be removed
    assert not worker.ready
    worker.do(worker.residency.remove("a"))
    assert worker.ready == {"task"}
    worker.add("d", next_use=6)
    assert not worker.flights
    # the removal takes long: from the second call on the tile can be evicted
    worker.do(worker.residency.age())
    assert not worker.flights
    worker.do(worker.residency.age())
    assert [copy.key for copy in worker.flights] == ["b"]


def test_a_request_that_waits_for_room_ages_dying_tiles_in_an_empty_tier() -> None:
    worker = Worker(6, None)
    worker.add("large", 5, 1)
    worker.add("other", 5, 2)
    worker.settle()
    worker.do(worker.residency.remove("large"))
    worker.add("stays", 3, DYING)
    worker.request("task", "other")
    worker.settle()
    assert worker.ready == set()
    for _ in range(2):
        worker.do(worker.residency.age())
        worker.settle()
    assert worker.ready == {"task"}


def test_requested_tiles_are_not_dying() -> None:
    worker = Worker(2, None)
    worker.add("a", next_use=DYING)
    worker.request("task", "a")
    worker.add("b", next_use=7)
    worker.add("c", next_use=6)
    assert [copy.key for copy in worker.flights] == ["b"]
    worker.settle()
    worker.release("task")
    worker.add("d", next_use=8)
    assert not worker.flights
    worker.do(worker.residency.expect({"a": 9}))
    assert [copy.key for copy in worker.flights] == ["a"]


def test_prefetches_and_their_hits_are_counted() -> None:
    worker = Worker(2, None, prefetch_fraction=1)
    for number, key in enumerate("abcd"):
        worker.add(key, next_use=number)
    worker.settle()
    for number, key in enumerate("abcd"):
        worker.do(worker.residency.set_upcoming("abcd"[number + 1 :]))
        worker.request(number, key, now=number)
        worker.settle()
        worker.do(worker.residency.expect({key: INF}))
        worker.release(number)
        worker.settle()
    assert worker.residency.prefetches.started == worker.residency.prefetches.hits == 2


def test_a_tile_removed_while_it_is_written() -> None:
    worker = Worker(1, None)
    worker.add("a")
    worker.add("b")
    [copy] = worker.flights
    assert copy.key == "a"
    worker.do(worker.residency.remove("a"))
    assert worker.residency.used == [2, 1]
    worker.add("a")
    worker.settle()
    worker.settle()
    assert worker.residency.used == [1, 1]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"capacity": (5,)}, "at least two tiers"),
        ({"capacity": (5, -1)}, "not be negative"),
        ({"capacity": (5, 5), "prefetch": -1}, "prefetch"),
        ({"capacity": (5, 5), "prefetch_fraction": 2}, "prefetch_fraction"),
        ({"capacity": (5, 5), "dirty_factor": 0.5}, "dirty_factor"),
        ({"capacity": (5, 5), "retries": -1}, "retries"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ResidencySettings(**settings)


def test_duplicate_keys_and_request_names_are_refused() -> None:
    worker = Worker(5, None)
    worker.add("a")
    with pytest.raises(ValueError, match="there is a tile 'a' already"):
        worker.residency.add("a", 1)
    worker.request("task", "a")
    with pytest.raises(ValueError, match="there is a request 'task' already"):
        worker.residency.request("task", ["a"])
    with pytest.raises(KeyError):
        worker.residency.request("other", ["b"])


@pytest.mark.parametrize("seed", [*range(60), 80, 143, 184, 230, 359])
def test_random_events_keep_the_invariants(seed: int) -> None:
    rng = random.Random(seed)
    capacity: list[int | None] = [rng.randint(4, 20)]
    if rng.random() < 0.4:
        capacity.append(rng.randint(4, 30))
    capacity.append(None if rng.random() < 0.6 else rng.randint(10, 60))
    worker = Worker(
        *capacity,
        keep_clean=rng.random() < 0.8,
        prefetch=rng.choice((0, 1, 3)),
        prefetch_fraction=rng.choice((0.2, 1.0)),
    )
    fails = rng.random() < 0.4
    count = 0

    def use() -> float | None:
        return rng.choice((None, INF, DYING, rng.randint(0, 100), rng.randint(0, 100)))

    for _ in range(600):
        keys = list(worker.residency)
        choice = rng.random()
        if choice < 0.25 or not keys:
            count += 1
            key = count if rng.random() < 0.8 else f"key {rng.randint(0, 5)}"
            if key in worker.residency:
                continue
            shared = f"shared {rng.randint(0, 9)}" if rng.random() < 0.15 else None
            # all views of the same memory are of the same size
            size = 3 if shared is not None else rng.randint(1, 6)
            worker.add(key, size, use(), shared=shared)
        elif choice < 0.4:
            worker.do(worker.residency.remove(rng.choice(keys)))
        elif choice < 0.55 and len(worker.requested) < 4:
            count += 1
            some = rng.sample(keys, min(len(keys), rng.randint(1, 3)))
            worker.request(count, *some, now=rng.randint(0, 50), room=rng.randint(0, 3))
        elif choice < 0.65 and worker.ready:
            worker.release(rng.choice(sorted(worker.ready)))
        elif choice < 0.67 and worker.requested:
            worker.release(rng.choice(sorted(worker.requested)))
        elif choice < 0.75:
            worker.do(worker.residency.expect({key: use() for key in rng.sample(keys, 1)}))
        elif choice < 0.77:
            tier = rng.randrange(len(capacity))
            worker.do(worker.residency.resize(tier, capacity[tier]))
        elif choice < 0.78:
            worker.do(worker.residency.age())
        elif choice < 0.8:
            worker.do(worker.residency.set_upcoming(rng.sample([*keys, "gone"], min(len(keys), 4))))
        elif worker.flights:
            which = rng.choice(worker.able())
            worker.finish(which, fails and rng.random() < 0.1, rng.random() < 0.5)
        check(worker)
    # at the end all requests get ready
    for _ in range(2):
        worker.do(worker.residency.age())
    for tier, size in enumerate(capacity):
        worker.do(worker.residency.resize(tier, size))
    while worker.requested:
        settle_all(worker)
        assert worker.ready
        worker.release(min(worker.ready))
    settle_all(worker)
    check(worker)
    if not fails and capacity[-1] is None:
        for tier, size in enumerate(capacity[:-1]):
            assert size is not None
            assert worker.residency.used[tier] <= max(size, 0)
    for key in list(worker.residency):
        worker.do(worker.residency.remove(key))
    worker.settle()
    assert worker.residency.used == [0] * len(capacity)
    assert not any(worker.on.values())


def test_a_prefetch_does_not_take_the_room_of_an_eviction_without_end() -> None:
    """The tile that is prefetched was dropped for the eviction of one on a faster tier.

    That one waits for the removal of another tile, which no task reads any more.
    """
    worker = Worker(20, 20, None, prefetch=1)
    worker.add("large", 17)
    worker.add("dying", 8, tier=1)
    worker.do(worker.residency.expect({"dying": DYING}))
    worker.adopt("soon", 7, 2, next_use=0.3, home=1)
    worker.do(worker.residency.set_upcoming(["soon"]))
    # a running task allocates memory on the fastest tier
    worker.do(worker.residency.shrink(0, 3))
    worker.settle()
    assert worker.read <= 2 * 7
    worker.do(worker.residency.remove("dying"))
    worker.settle()
    assert worker.top("large") > 0
    check(worker)
