"""Addresses for lifetimes, and objects of size classes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.algorithms.allocate import (
    Packing,
    Pool,
    _place,
    lifetimes,
    objects_needed,
    pack,
    peak_bytes,
    time_in_memory,
)
from dasktile.schedule.simulate import HostLink, simulate
from dasktile.schedule.swaps import Memory, plan_swaps
from dasktile.schedule.taskgraph import taskgraph

Lives = list[tuple[int, int, int]]

lives = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 8), st.integers(0, 50)).map(
        lambda one: (one[0], one[0] + one[1], one[2])
    ),
    max_size=25,
)


def packed(lifetimes_: Lives, **how: int) -> Packing:
    start, end, size = np.array(lifetimes_, dtype=np.int64).reshape(-1, 3).T
    return pack(start, end, size, **how)


def check(lifetimes: Lives, packing: Packing, alignment: int = 1) -> None:
    """Check that no simultaneous lifetimes overlap, and that all are within the height."""
    offsets = packing.offset.tolist()
    for (one, at), (other, there) in itertools.combinations(
        zip(lifetimes, offsets, strict=True), 2
    ):
        together = max(one[0], other[0]) < min(one[1], other[1])
        apart = at + one[2] <= there or there + other[2] <= at
        assert apart or not together
    for one, at in zip(lifetimes, offsets, strict=True):
        assert at % alignment == 0
        assert at + one[2] <= packing.height or one[0] == one[1] or not one[2]
    assert packing.height >= packing.peak


@settings(deadline=None)
@given(lives, st.integers(0, 3), st.sampled_from([1, 4]))
def test_lifetimes_do_not_overlap(lifetimes: Lives, rounds: int, alignment: int) -> None:
    packing = packed(lifetimes, rounds=rounds, alignment=alignment)
    check(lifetimes, packing, alignment)


@settings(deadline=None)
@given(lives)
def test_the_peak_is_the_most_at_one_time(lifetimes: Lives) -> None:
    most = max((sum(s for a, b, s in lifetimes if a <= time < b) for time in range(30)), default=0)
    assert packed(lifetimes).peak == most


@settings(deadline=None)
@given(lives)
def test_more_rounds_are_never_worse_and_results_are_deterministic(lifetimes: Lives) -> None:
    few, many = packed(lifetimes, rounds=0), packed(lifetimes, rounds=8)
    assert many.height <= few.height
    assert many.offset.tolist() == packed(lifetimes, rounds=8).offset.tolist()


def test_sequential_lifetimes_need_the_memory_of_the_largest() -> None:
    packing = packed([(0, 1, 10), (1, 2, 30), (2, 3, 20)])
    assert packing.height == packing.peak == 30
    assert packing.fragmentation == 0.0


def test_long_lifetimes_are_placed_below_short_ones() -> None:
    # Placed by start, there is no gap of 6 for the last one although 6 bytes are free.
    lifetimes = [(0, 2, 3), (0, 9, 4), (1, 3, 3), (3, 9, 6)]
    packing = packed(lifetimes)
    check(lifetimes, packing)
    assert packing.height == packing.peak == 10


def test_a_gap_that_fits_tightly_is_taken_first() -> None:
    lifetimes = [(0, 9, 8), (0, 3, 5), (0, 9, 4), (0, 3, 3), (0, 9, 2), (4, 9, 3), (4, 9, 5)]
    assert packed(lifetimes).height == 22


def test_some_lifetimes_cannot_be_packed_at_their_peak() -> None:
    # All orders of these leave a hole: the smallest height is 1 above the peak.
    lifetimes = [(0, 4, 2), (3, 8, 2), (0, 1, 1), (2, 6, 1), (5, 8, 1), (7, 8, 1)]
    packing = packed(lifetimes)
    check(lifetimes, packing)
    assert packing.peak <= packing.height <= packing.peak + 1


def test_search_ends_at_the_capacity() -> None:
    lifetimes = [(i, i + 5, 1 + 7 * i % 13) for i in range(40)]
    assert packed(lifetimes, capacity=10**6).height >= packed(lifetimes).height


def test_no_lifetimes_need_no_memory() -> None:
    packing = packed([])
    assert (packing.height, packing.peak, packing.fragmentation) == (0, 0, 0.0)
    assert peak_bytes([1], [1], [5]) == 0


def test_size_classes() -> None:
    graph = taskgraph([1.0, 1.0], [1, 2, 2, 1], [[0, 1], [1, 2]], [[2], [3]], None, [0, 1], [3])
    assert objects_needed(graph, np.array([0, 0, 0, 0]), 1).tolist() == [3]
    assert objects_needed(graph, np.array([0, 1, 1, 0]), 2).tolist() == [1, 2]
    assert Pool(np.array([0]), np.array([1, 2]), np.array([3, 4])).bytes == 11


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0], [1, 2], [1]), "must be as many numbers each"),
        (([0, 3], [1, 2], [1, 1]), "lifetime 1 ends at 2.0, before its start at 3.0"),
        (([0], [1], [-1]), "lifetime 0 has -1 bytes"),
    ],
)
def test_wrong_arguments(arguments: tuple[list[int], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack(*arguments)
    with pytest.raises(ValueError, match="alignment must be at least 1"):
        pack([0], [1], [1], alignment=0)


@settings(deadline=None)
@given(lives)
def test_compiled_and_plain_results_are_equal(lifetimes: Lives) -> None:
    start, end, size = np.array(lifetimes, dtype=np.float64).reshape(-1, 3).T
    order = np.arange(len(start))[::-1].copy()
    plain = getattr(_place, "py_func", _place)
    arrays = order, start, end, size.astype(np.int64)
    assert _place(*arrays).tolist() == plain(*arrays).tolist()


def test_lifetimes_are_those_of_the_plan() -> None:
    # a and b are swapped in, c is computed from both; a is evicted for d and swapped in again
    graph = taskgraph(
        [1.0, 1.0, 1.0, 1.0],
        [4, 4, 4, 4, 1, 1, 1],
        [[0, 1], [1, 2], [2, 3], [0, 6, 5]],
        [[4], [5], [6], []],
        None,
        [0, 1, 2, 3],
    )
    memory = Memory.bytes(graph, 12)
    order = np.arange(4)
    plan = plan_swaps(graph, order, memory)
    run = simulate(graph, plan, memory, HostLink(4.0, 4.0, None))
    lives = lifetimes(graph, plan, run)
    assert lives.size.tolist() == graph.size[lives.datum].tolist()
    assert (lives.start <= lives.end).all()
    assert lives.end.max() <= run.makespan
    assert peak_bytes(lives.start, lives.end, lives.size) <= run.peak[0] <= 12
    assert np.bincount(lives.datum, minlength=7).tolist() == [2, 1, 1, 1, 1, 1, 1]
    # all data of an operation are in memory
    for position, op in enumerate(order.tolist()):
        begun, done = run.operations[:, position]
        there = (lives.start <= begun) & (lives.end >= done)
        assert set(graph.touched[op].tolist()) <= set(lives.datum[there].tolist())
    part = time_in_memory(graph, plan)
    assert ((part > 0) & (part <= 1)).all()
    # computed by the first operation, without later uses
    assert part[4] == 0.25
