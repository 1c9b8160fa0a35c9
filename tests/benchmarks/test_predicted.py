"""Workers receive the predicted bytes from each other, whatever the way in."""

from __future__ import annotations

from pathlib import Path

import dask.array as da
import numpy as np
import pytest

pytest.importorskip("xarray")
pytest.importorskip("flox")
pytest.importorskip("zarr", minversion="3")

from benchmarks import predicted
from benchmarks.predicted import Case, cases, is_near, measure, measure_stock

#: Size of the workloads at which arrays have a few megabytes.
SMALL = 0.1

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def case_of(name: str, folder: Path) -> Case:
    [case] = (case for case in cases(folder, size=SMALL) if case.name == name)
    return case


@pytest.mark.parametrize(
    ("name", "way", "workers"),
    [
        # blocks that keep their names, beside persisted inputs
        ("matmul persisted", "hook", 4),
        ("gram_rows persisted", "hook", 4),
        ("coiled.quadratic_mean", "hook", 4),
        ("transposed_add free", "hook, store", 4),
        # the tasks of one operation receive blocks from each other
        ("solve", "persist", 4),
        # partial results that are no arrays
        ("monthly", "persist", 4),
        # parts that are only nearly even
        ("anomalies_by_month", "persist", 6),
    ],
)
def test_predicted_bytes_are_received(name: str, way: str, workers: int, tmp_path: Path) -> None:
    case = case_of(name, tmp_path)
    stock, values = measure_stock(case, predicted.WAYS[way], workers)
    cell = measure(case, way, workers, stock, values)
    assert not cell.complaint()
    assert cell.placed == 1
    if name == "solve":
        assert cell.tasks_predicted is not None
        assert abs(cell.tasks - cell.tasks_predicted) <= 0.05 * cell.tasks_predicted


def _several() -> list[da.Array]:
    x = da.random.default_rng(0).random((800, 400), chunks=(100, 100))
    return [x - x.mean(axis=0), x.T @ x]


# Dask's workers cannot open files for `da.to_hdf5`
@pytest.mark.parametrize("way", predicted.WAYS)
def test_no_way_in_loses_the_plan(way: str) -> None:
    """With two results of one source: the predicted bytes, and no more than Dask's."""
    # Dask computes each array for its stack
    count = 1 if way == "to_npy_stack" else 2
    case = Case("several", lambda persist, plan: _several()[:count])
    stock, values = measure_stock(case, predicted.WAYS[way], 4)
    cell = measure(case, way, 4, stock, values)
    assert not cell.complaint()
    # all but those that store the blocks
    assert cell.placed >= 0.9 and stock > 1e5


#: Expressions of which the prediction is known to be wrong, and why.
WRONG = {
    "coiled.climatic_mean": "Dask fuses small blocks of one worker with their readers on another",
    "coiled.climatology_map_blocks": "results of user functions have unknown sizes",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [case.name for case in cases(Path())])
def test_all_workloads(name: str, tmp_path: Path) -> None:
    if name in WRONG:
        pytest.xfail(WRONG[name])
    cells = predicted.run([case_of(name, tmp_path)], [4, 6, 8], list(predicted.WAYS))
    assert all(cell.same and not cell.error for cell in cells)
    # elsewhere Dask's scheduler places the tasks
    planned = [cell for cell in cells if cell.placed]
    assert not [
        cell.complaint()
        for cell in planned
        for figure in (cell.predicted, cell.booked)
        if not is_near(cell.received, figure) and abs(cell.received - figure) > 1e6
    ]


def test_predictions_that_count_as_right() -> None:
    assert is_near(0, 0) and is_near(50_000, 0) and is_near(10_400_000, 10_000_000)
    assert not is_near(11_000_000, 10_000_000) and not is_near(5_000_000, 0)
    cell = predicted.Cell(4, "x", "persist", predicted=10**7, booked=10**7, received=10**7)
    assert "Dask 0 B" in cell.complaint()
    assert "DIFFERENT" in predicted.Cell(4, "x", "persist", same=False).complaint()
    assert not np.isnan(cell.ratio) and cell.ratio == 1
