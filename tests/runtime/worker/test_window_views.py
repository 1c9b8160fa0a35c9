"""Views with overlapping windows: counted and written as what they are views of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dasktile.runtime.tiers import Disk
from dasktile.runtime.worker.buffers import overlapping_range
from dasktile.runtime.worker.store import TileStore
from dasktile.schedule.instructions import ResidencySettings

windows = np.lib.stride_tricks.sliding_window_view
BASE = np.arange(60_000.0).reshape(600, 100)


@pytest.mark.parametrize(
    "view",
    [
        windows(BASE, 101, axis=0),
        windows(BASE, 101, axis=0)[200:, ::-1],
        windows(BASE, (5, 7), axis=(0, 1)),
        np.lib.stride_tricks.as_strided(BASE.copy(), (100, 500), (8, 800)),
        np.broadcast_to(windows(BASE, 101, axis=0), (3, 500, 100, 101)),
        windows(np.asfortranarray(BASE), 101, axis=0),
    ],
)
def test_a_view_is_counted_and_spilled_as_its_base(view: Any, tmp_path: Path) -> None:
    expected, writeable = np.array(view), view.flags.writeable
    store = TileStore([Disk(str(tmp_path))], ResidencySettings((10_000_000, None)))
    try:
        store["view"] = view
        assert store.used(0) <= BASE.nbytes
        del view
        store.shrink_to(0, 0)
        store.wait_all()
        assert store.evicted_count == 1
        assert 0 < store.spilled_total.disk <= BASE.nbytes + 1000
        np.testing.assert_array_equal(store["view"], expected)
        assert store["view"].flags.writeable == writeable
    finally:
        store.close()


def test_other_arrays_are_written_as_before() -> None:
    for array in (BASE, BASE[::2], BASE.T, np.broadcast_to(BASE, (5, 600, 100)), BASE[:0]):
        assert overlapping_range(array) is None
