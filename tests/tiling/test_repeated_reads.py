"""Arrays that are read several times at repeated or shifted positions move as much as they must."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest

import dasktile


def test_pieces_of_a_concatenation_are_read_within_their_arrays() -> None:
    """The loop over the result is longer than the first piece, which begins where the loop does."""
    x = da.from_array(np.ones((12, 40, 60)), chunks=(12, 40, 60))
    y = da.concatenate([x, x[:6], x[6:]], axis=0)
    for expression in (y + 1, da.pad(x, ((5, 5), (0, 0), (0, 0)), mode="edge")):
        explanation = dasktile.explain(expression, workers=4)
        assert explanation.bytes_after == 0 and explanation.proven_optimal


@pytest.mark.parametrize("chunk", [1, 2, 3, 12])
def test_repeated_positions_move_as_little_in_any_chunks(chunk: int) -> None:
    x = da.from_array(np.ones((240, 40, 60)), chunks=(30, 40, 60))
    months = da.from_array(np.ones((12, 40, 60)), chunks=(chunk, 40, 60))
    anomalies = x - months[np.arange(240) // 30 % 12]
    explanation = dasktile.explain(anomalies, workers=4)
    assert explanation.bytes_after == 0 and explanation.proven_optimal
