"""Arrays that are read several times at repeated or shifted positions move as much as they must."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest

import dasktile


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_pieces_of_a_concatenation_are_read_within_their_arrays(mode: str) -> None:
    """The loop over the result is longer than the first piece, which begins where the loop does."""
    x = da.from_array(np.ones((12, 8, 128, 128)), chunks=(1, 1, 128, 128))
    y = da.pad(x, ((0, 0), (0, 0), (5, 5), (0, 0)), mode=mode) + 1
    explanation = dasktile.explain(y, workers=4)
    assert explanation.bytes_after == 0 and explanation.proven_optimal


@pytest.mark.parametrize("chunk", [1, 2, 3, 12])
def test_repeated_positions_move_as_little_in_any_chunks(chunk: int) -> None:
    x = da.from_array(np.ones((240, 40, 60)), chunks=(30, 40, 60))
    months = da.from_array(np.ones((12, 40, 60)), chunks=(chunk, 40, 60))
    anomalies = x - months[np.arange(240) // 30 % 12]
    explanation = dasktile.explain(anomalies, workers=4)
    assert explanation.bytes_after == 0 and explanation.proven_optimal
