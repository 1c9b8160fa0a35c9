"""Memory of results, each buffer once."""

from __future__ import annotations

import numpy as np

from benchmarks.buffers import Buffers


def test_views_and_tuples_share_memory() -> None:
    counted = Buffers()
    whole, other = np.ones(100), np.ones(10)
    counted.add("tuple", (whole, (other, whole[:3])))
    assert counted.nbytes == 880
    counted.add("part", whole[5:7])
    assert counted.nbytes == 880
    counted.remove("tuple")
    # a view keeps the whole array
    assert counted.nbytes == 800
    counted.remove("part")
    counted.remove("part")
    assert (counted.nbytes, counted.peak) == (0, 880)


def test_received_arrays_count_with_the_message_that_they_are_in() -> None:
    counted = Buffers()
    message = bytearray(1000)
    for key, start in (("first", 0), ("second", 80)):
        counted.add(key, np.frombuffer(memoryview(message)[start : start + 80]))
    assert 1000 <= counted.nbytes < 1100


def test_a_repeated_element_takes_its_own_bytes() -> None:
    counted = Buffers()
    wide = np.broadcast_to(np.ones(1), (1000, 1000))
    counted.add("wide", wide)
    assert counted.nbytes == 8


def test_buffers_that_are_freed_under_their_name_count_no_longer() -> None:
    counted = Buffers()
    for number in range(20):
        # the memory of the array before, which is on disk now, may be used again
        counted.add(number, np.ones(1000))
    assert (counted.nbytes, counted.peak) == (0, 8000)
    for number in range(20):
        counted.remove(number)
    assert counted.nbytes == 0


def test_a_masked_array_has_a_mask() -> None:
    counted = Buffers()
    masked = np.ma.masked_array(np.ones(100), np.ones(100, dtype=bool))
    counted.add("masked", masked)
    assert counted.nbytes == 900
