"""What candidates have in common is computed once for those that have equally much."""

from __future__ import annotations

import numpy as np

from dasktile.tiling.boxes import Boxes
from dasktile.tiling.overlaps import Overlaps


def boxes(*ranges: tuple[int, int]) -> Boxes:
    """One candidate, with a range of one axis for each worker."""
    lo, hi = (np.array([[[pair[end]] for pair in ranges]], np.int64) for end in (0, 1))
    return Boxes.of_bounds(lo, hi, np.ones((1, len(ranges)), np.bool_))


def test_only_boxes_of_which_every_worker_has_as_much_are_alike() -> None:
    overlaps, whole = Overlaps(), boxes((0, 6), (0, 6))
    some, shifted = boxes((0, 2), (2, 6)), boxes((1, 3), (1, 5))
    # as much in all, on other workers
    other = boxes((0, 4), (4, 6))
    assert overlaps.content(some, whole) == overlaps.content(shifted, whole)
    assert overlaps.overlap(some, whole) is overlaps.overlap(shifted, whole)
    assert overlaps.content(other, whole) != overlaps.content(some, whole)
    assert overlaps.overlap(other, whole).tolist() == [[6.0]]
