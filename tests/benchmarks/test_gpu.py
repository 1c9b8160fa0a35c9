"""The GPU benchmark, on an emulated device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu


def cell(**seconds: float) -> dict[str, Any]:
    return {
        engine.replace("_", "-"): {"seconds": each, "moved": 1e6 * each, "same": True}
        for engine, each in seconds.items()
    }


def test_figures_of_a_gpu() -> None:
    directions = ("up", "down", "both")
    tier = dict.fromkeys((*directions, *(f"{name} beside" for name in directions)), 5e9)
    results = {
        "link": {
            "link": {"up": 10e9, "down": 5e9, "both": 20e9},
            "tier": {str(size): {**tier, "compute": 1.1} for size in gpu.TILES},
        },
        "above": {"a": cell(dask_cuda=4, dasktile=1), "b": {"error": "failed"}},
        "below": {"a": cell(dict=2, dask_cuda=3, dasktile=2)},
    }
    assert gpu.ratios(results["above"]) == {"a": 4}
    made = gpu.summary(results)
    assert made["up, share of the link"] == 0.5
    assert made["down beside products, share"] == 1
    assert made["above: dask-cuda / dasktile, seconds"] == 4
    assert made["below: dict / dasktile, seconds"] == 1
    assert not any("operations" in title for title in made)


def test_all_parts_run_on_an_emulated_device(tmp_path: Path) -> None:
    pytest.importorskip("dask_cuda")
    where = ["--device", "emulated", "--out", str(tmp_path), "--scale", "0.05", "--rounds", "1"]
    names = ["tree_add", "transpose_sum", "svd", "column_mask"]
    assert gpu.main([*where, "--workloads", *names]) == 0
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert "link" not in results
    assert {part: set(results[part]) for part in gpu.PARTS[1:]} == {
        "above": {"tree_add"},
        "below": {"tree_add"},
        "operations": {"transpose_sum", "svd", "column_mask"},
    }
    for part, kept in (("above", True), ("below", False), ("operations", True)):
        for measured in results[part].values():
            assert (measured["dasktile"]["written"] > 0) == kept
    assert (tmp_path / "gpu.png").exists()


@pytest.mark.gpu
def test_copies_are_counted_on_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("dask_cuda")
    where = ["--out", str(tmp_path), "--scale", "1", "--rounds", "1", "--parts", "above", "below"]
    assert gpu.main([*where, "--workloads", "anomalies"]) == 0
    results = json.loads((tmp_path / "gpu.json").read_text())
    ours, theirs = (results["above"]["anomalies"][each] for each in ("dasktile", "dask-cuda"))
    assert 0 < ours["moved"] <= theirs["moved"]
    assert results["below"]["anomalies"]["dasktile"]["moved"] < 1e6
