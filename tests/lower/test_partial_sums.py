"""Sums of partial products, of any number."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest

import dasktile
from dasktile.lower.settings import DEFAULTS


@pytest.mark.parametrize("workers", [2, 8, 9, 16, 17, 25, 65])
def test_products_of_vectors_are_summed(workers: int) -> None:
    assert DEFAULTS.fan_in == 8  # the last of 9, 17, ... partial products is in no group
    x = np.arange(1300.0)
    vector = da.from_array(x, chunks=20)
    for expected, array in ((x @ x, vector @ vector), ((x * x).sum(), (vector * vector).sum())):
        planned = dasktile.optimize(array, workers=workers)
        np.testing.assert_allclose(planned.compute(scheduler="sync"), expected)
    assert any(
        "partial" in str(name)
        for name in dasktile.optimize(vector @ vector, workers=workers).dask.layers
    )
