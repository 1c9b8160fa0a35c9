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
    counted.add("wide", np.broadcast_to(np.ones(1), (1000, 1000)))
    assert counted.nbytes == 8
