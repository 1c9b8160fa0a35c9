"""Plans that are saved, loaded and drawn."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dasktile
from tests.orders.test_plan import EXPECTED, plan_of_product, product, source


def test_a_plan_can_be_saved(tmp_path: Path) -> None:
    plan = plan_of_product()
    loaded = dasktile.load_plan(plan.save(tmp_path / "plan.json"))
    assert loaded.to_dict() == plan.to_dict()
    with pytest.raises(ValueError, match="pass those that were planned"):
        loaded.apply()
    np.testing.assert_allclose(loaded.apply(product()).compute(), EXPECTED)
    with pytest.raises(ValueError, match="are not in these collections"):
        loaded.apply(source() @ source().T)
    with pytest.raises(ValueError, match="has no timeline"):
        loaded.visualize(tmp_path / "plan.svg")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "contains no plan: it must be a file that the method save"),
        ("[]", "contains no plan: it must be a file that the method save"),
        ("no JSON", "contains no plan: it is not JSON"),
        ({"version": 7}, "contains a plan of version 7; this dasktile reads version 1"),
        ({"peak": None}, "contains no plan: 'peak' is missing"),
        ({"peak": "1 GB"}, "contains no plan: 'peak' must be a number; got '1 GB'"),
        ({"order": 3}, "contains no plan: 'order' must be a list; got 3"),
        ({"before": [1]}, r"contains no plan: 'before' must be three numbers; got \[1\]"),
        ({"other": 1}, "contains no plan: a plan has no 'other'"),
    ],
)
def test_files_that_contain_no_plan_are_refused(content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    if isinstance(content, dict):
        plan = plan_of_product()
        fields = {**plan.to_dict(), **content}
        content = json.dumps({name: value for name, value in fields.items() if value is not None})
    path.write_text(content)
    with pytest.raises(ValueError, match=f"other.json' {message}"):
        dasktile.load_plan(path)


@pytest.mark.parametrize("filename", [None, 3, {"order": []}])
def test_a_plan_is_loaded_from_a_path(filename: Any, tmp_path: Path) -> None:
    message = "filename must be a string or a path; got .* of type " + type(filename).__name__
    with pytest.raises(TypeError, match=message):
        dasktile.load_plan(filename)
    with pytest.raises(FileNotFoundError, match=r"missing\.json"):
        dasktile.load_plan(tmp_path / "missing.json")


@pytest.mark.parametrize("suffix", ["svg", "png", "html"])
def test_a_plan_can_be_drawn(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    plan = plan_of_product()
    path = plan.visualize(tmp_path / f"plan.{suffix}")
    assert path.stat().st_size > 1000
    text = path.read_bytes()
    assert plan.visualize(path).read_bytes() == text
    if suffix == "html":
        assert b"compute" in text
        assert not re.search(rb"<(script|img|link)[^>]*(src|href)=.http", text)
    with pytest.raises(ValueError, match=r"must end in .svg.*got 'plan.gif'"):
        plan.visualize("plan.gif")


def test_memory_over_time_agrees_with_the_simulated_peak() -> None:
    plan = plan_of_product()
    taken = [size for _, size in plan._draw().memory]
    assert min(taken) >= 0
    assert max(taken) == plan.peak
