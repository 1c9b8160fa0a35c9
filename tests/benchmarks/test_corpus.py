"""The corpus of published workloads: same values as Dask's, no more bytes, and its runner."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import dask
import numpy as np
import pytest
from rich.console import Console

pytest.importorskip("xarray")
pytest.importorskip("flox")
pytest.importorskip("zarr", minversion="3")

import dasktile
from benchmarks.corpus import WORKLOADS, chosen, dry, figure
from benchmarks.corpus.__main__ import main, summary
from benchmarks.corpus.inputs import Stored, random, scaled
from benchmarks.corpus.simulated import NEAR, report_predictions
from benchmarks.corpus.values import agree, flattened

#: Size at which workloads have tens of tasks.
SMALL = 0.02

pytestmark = [
    pytest.mark.filterwarnings("ignore::dask.array.PerformanceWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.fixture(autouse=True)
def cheap_tasks() -> Iterator[None]:
    """Tasks cost nothing, so that small expressions are planned for bytes, as large ones are."""
    settings = {"dasktile.cost.task-bytes": 1, "dasktile.tiling.min-tile": 1}
    with dask.config.set({**settings, "dasktile.raise-errors": True}):
        yield


@pytest.mark.parametrize("name", WORKLOADS)
def test_values_are_those_of_dask_and_no_more_bytes_move(name: str) -> None:
    collections = WORKLOADS[name].function(SMALL)
    options = {"workers": 4, "keep_chunks": WORKLOADS[name].keep_chunks}
    planned = dasktile.optimize(collections, **options)
    explanation = dasktile.explain(collections, **options)
    assert explanation.bytes_after <= explanation.bytes_before
    expected, actual = dask.compute(collections, planned, scheduler="sync")
    assert agree(flattened(expected), flattened(actual))


def test_every_workload_names_its_source() -> None:
    for name, workload in WORKLOADS.items():
        assert name.partition(".")[0] in (
            *("coiled", "pangeo", "local_cupy", "dask_ml", "threads"),
            *("flox_asv", "xarray_asv"),
        )
        assert len(workload.source.splitlines()) == 1 and ":" in workload.source, name


def test_workloads_are_chosen_by_name_or_module() -> None:
    names = [workload.name for workload in chosen(["pangeo", "coiled.ols", "pangeo.vorticity"])]
    assert len(names) == 5 and names[-1] == "coiled.ols"
    with pytest.raises(ValueError, match="nothing_like_it"):
        chosen(["nothing_like_it"])


def test_stored_inputs_are_the_random_ones(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    for dtype, law in (("f4", "uniform"), ("f8", "normal"), ("i8", "bytes"), ("f8", "zeros")):
        arguments = ("x", (50, 30), (20, 30), dtype, law)
        generated, read, again = random(*arguments), stored(*arguments), stored(*arguments)
        assert generated.chunks == read.chunks and generated.dtype == read.dtype == np.dtype(dtype)
        assert read.name == again.name
        np.testing.assert_array_equal(*dask.compute(generated, read, scheduler="sync"))
    with pytest.raises(ValueError, match="law"):
        random("x", (2,), (2,), law="none")


@pytest.mark.parametrize("name", ["coiled.double_diff", "dask_ml.truncated_svd"])
def test_values_with_stored_inputs(name: str, tmp_path: Path) -> None:
    generated = WORKLOADS[name].function(SMALL)
    planned = dasktile.optimize(WORKLOADS[name].function(SMALL, Stored(tmp_path)), workers=4)
    expected, actual = dask.compute(generated, planned, scheduler="sync")
    assert agree(flattened(expected), flattened(actual))


def test_sizes() -> None:
    assert scaled(100, 1) == 100
    assert scaled(100, 0.25, axes=2) == 50
    assert scaled(100, 0.001) == 2


def test_values_agree_up_to_rounding() -> None:
    x = np.linspace(-1, 1, 50)
    assert agree([x, x > 0, x * 1j], [x + 1e-12, x > 0, x * 1j])
    assert not agree([x * 1j], [x * 2j])
    assert not agree([x], [x + 1e-3])
    assert not agree([x], [x[1:]])
    assert not agree([x], [x.astype("f4")])
    assert not agree([x], [])
    assert agree([np.array([np.nan, 1])], [np.array([np.nan, 1])])
    assert not agree([np.array([np.nan, 1])], [np.array([1, 1])])


def _cell(engine: str, workload: str, seconds: float, moved: float) -> dict[str, object]:
    numbers = {"cpu_seconds": seconds, "seconds": seconds, "tasks": 10, "moved": moved}
    more = {"held": 1e7, "buffers": 1e7, "memory": 1e7, "read": 0, "planning": 0.5, "same": True}
    return {"workload": workload, "inputs": "random", "engine": engine, **numbers, **more}


def test_summary() -> None:
    cells = [
        _cell("stock", "faster", 4.0, 4e6),
        _cell("dasktile", "faster", 1.0, 0.0),
        _cell("stock", "slower", 1.0, 4e6),
        _cell("dasktile", "slower", 2.0, 1e6),
        _cell("stock", "failed", 1.0, 1.0),
        {"workload": "failed", "inputs": "random", "engine": "dasktile", "error": "x"},
    ]
    group = summary(cells)["random"]
    assert group["workloads"] == 2 and group["failed"] == ["dasktile failed"]
    assert math.isclose(group["ratios"]["seconds"], 0.5**0.5)
    assert math.isclose(group["ratios"]["moved"], 0.25)
    assert group["ratios"]["tasks"] == 1
    assert group["slower_seconds"] == {"slower": 0.5} and group["planning"] == 1
    assert not group["different"]


def test_walls_are_arrays_that_cannot_be_cut_otherwise() -> None:
    x = random("x", (400, 400), (100, 100))
    walls = dry.walls(dasktile.explain(x.cumsum(axis=0)[::2] + 1, workers=4))
    assert 0 < walls["inputs"] < 1
    walls = dry.walls(dasktile.explain(x[x > 0.5], workers=4))
    assert any(reason.startswith("getitem: ") for reason in walls["walls"])


def test_plans_without_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "dry.json"
    options = ["--size", "0.05", "--inputs", "random", "zarr", "--json", str(out)]
    where = ["--workloads", "coiled.sum_residuals", "local_cupy.svd"]
    assert main(["--dry", *where, *options]) == 0
    assert "sum_residuals" in capsys.readouterr().out
    cells = json.loads(out.read_text())["cells"]
    assert len(cells) == 4
    for cell in cells:
        assert cell["bytes_after"] <= cell["bytes_before"]
        assert (cell["workload"] == "local_cupy.svd") == bool(cell["walls"])


def test_unknown_workloads_are_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--workloads", "nothing_like_it"])
    assert "nothing_like_it" in capsys.readouterr().err


def test_runner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # a workload that fails is reported, and the others go on
    def broken(size: float, source: object) -> list[object]:
        raise RuntimeError("no such array")

    name = "coiled.sum_residuals"
    monkeypatch.setitem(WORKLOADS, "broken", type(WORKLOADS[name])("broken", "a: test", broken))
    out = tmp_path / "corpus.json"
    options = ["--workers", "1", "--size", "0.05", "--bundle", "8", "--json", str(out)]
    assert main(["--workloads", "broken", name, *options, "--engines", "dasktile"]) == 1
    assert "no such array" in capsys.readouterr().out
    failed, ours = json.loads(out.read_text())["cells"]
    assert "error" in failed
    assert ours["same"] and ours["tasks"] > 0 and ours["held"] > 0 and ours["planning"] > 0
    assert ours["cpu_seconds"] > ours["scheduler_seconds"] > 0


def test_simulated_plans_have_fewer_tasks_and_move_no_more_bytes(tmp_path: Path) -> None:
    file = tmp_path / "cells.json"
    names = [
        *("pangeo.vorticity", "pangeo.quadratic_means", "pangeo.eulerian_mean"),
        *("coiled.basic_sum_thin", "coiled.adjacent_groups", "dask_ml.newton_step"),
    ]
    options = ["--simulate", "--size", "0.1", "--bundle", "32", "--json", str(file)]
    assert main([*options, "--workloads", *names]) == 0
    cells = json.loads(file.read_text())["cells"]
    assert [cell["engine"] for cell in cells] == ["stock", "dasktile"] * (len(cells) // 2)
    for before, after in zip(cells[::2], cells[1::2], strict=True):
        assert after["tasks"] <= 0.75 * before["tasks"]
        # a megabyte is worth a task
        assert after["moved"] <= max(before["moved"], 1_000_000)
        assert 0 < after["held"] <= max(8 * before["held"], 2**25)
        if after["predicted"] is not None:
            # a result of a few bytes is an object of a hundred
            assert abs(after["predicted"] - after["held"]) <= NEAR * after["held"] + 100
    assert sum(cell["predicted"] is not None for cell in cells) > len(cells) // 2


def test_picture_of_processor_seconds(tmp_path: Path) -> None:
    cell = {
        "workload": "coiled.sum_residuals",
        "engine": "stock",
        "inputs": "random",
        "cpu_seconds": 10.0,
        "scheduler_seconds": 3.0,
        "task_seconds": 2.0,
        "planning_cpu": 0.0,
    }
    ours = {**cell, "engine": "dasktile", "scheduler_seconds": 1.0, "planning_cpu": 0.5}
    assert list(figure.parts(ours).values()) == [2.0, 7.0, 0.5, 0.5]
    failed = {**cell, "error": "no memory"}
    stored = {**cell, "inputs": "zarr", "cpu_seconds": 99.0}
    names = ["coiled.sum_residuals", "coiled.ols"]
    bars = figure.bars_of([cell, ours, failed, stored], names, size=SMALL)
    assert list(bars) == ["coiled.sum_residuals"]
    assert list(bars["coiled.sum_residuals"]) == ["Dask", "dasktile", "NumPy"]
    assert sum(bars["coiled.sum_residuals"]["Dask"].values()) == 10.0
    figure.draw(bars, tmp_path / "seconds.svg")
    picture = (tmp_path / "seconds.svg").read_text()
    assert picture.startswith("<?xml")


def test_order_of_predicted_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """Of three workloads, one takes as long either way, and of one the order is wrong."""
    taken = {"a": (2.0, 1.0, 3.0, 1.0), "b": (1.0, 1.2, 1.0, 2.0), "c": (1.0, 4.0, 3.0, 1.0)}
    cells = [
        {"workload": name, "inputs": "random", "engine": engine, "seconds": seconds + planning,
         "planning": planning, "predicted_seconds": predicted}
        for name, (stock, plan, of_stock, of_plan) in taken.items()
        for engine, seconds, planning, predicted in (
            ("stock", stock, 0.0, of_stock), ("dasktile", plan, 0.5, of_plan),
        )
    ]  # fmt: skip
    report_predictions(cells, Console(width=200))
    text = capsys.readouterr().out
    assert "faster for 1 of 2 pairs whose seconds differ by a factor 1.3" in text
    assert "within a factor 1.5 for 2 of 3 Dask's graphs" in text
