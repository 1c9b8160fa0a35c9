"""The benchmarks for asv: each runs once at a small size."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from asv_bench.suite import plans
from asv_bench.suite.expressions import EXPRESSIONS

FOLDER = Path(plans.__file__).parents[1]


def benchmarks(kind: type[Any]) -> list[str]:
    return [name for name in dir(kind) if name.startswith(("time_", "track_"))]


@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize("kind", [plans.Seconds, plans.Planned])
def test_benchmarks_run(kind: type[Any], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, "blocks", 3)
    monkeypatch.setattr(kind, "workers", 2)
    one = kind()
    one.setup(name)
    assert one.plan.tiled is not None
    assert len(benchmarks(kind)) >= 3
    for benchmark in benchmarks(kind):
        result = getattr(one, benchmark)(name)
        if benchmark.startswith("track_"):
            assert result >= 0
        else:
            assert result is None


def test_the_configuration_names_folders_that_exist() -> None:
    text = (FOLDER / "asv.conf.json").read_text(encoding="utf-8")
    settings = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    assert (FOLDER / settings["benchmark_dir"] / "plans.py").exists()
    assert (FOLDER / settings["repo"] / "pyproject.toml").exists()
    ignored = (FOLDER.parent / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert ".asv/" in ignored
