"""The version, and how little the package imports before it is used."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dasktile

ROOT = Path(__file__).parents[2]


@pytest.fixture
def no_cached_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(dasktile), "__version__", raising=False)


@pytest.mark.usefixtures("no_cached_version")
def test_version_is_that_of_the_installed_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"1.2.3+{name}")
    assert dasktile.__version__ == "1.2.3+dasktile"
    monkeypatch.undo()
    vars(dasktile).pop("__version__", None)


@pytest.mark.usefixtures("no_cached_version")
def test_version_of_a_tree_that_was_never_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert dasktile.__version__ == content["tool"]["hatch"]["version"]["fallback-version"]
    monkeypatch.undo()
    vars(dasktile).pop("__version__", None)


def test_all_public_names_exist_and_are_listed() -> None:
    for name in dasktile.__all__:
        assert getattr(dasktile, name) is not None
    assert set(dasktile.__all__) <= set(dir(dasktile))
    assert sorted(dasktile._LAZY) == list(dasktile._LAZY)
    assert {*dasktile._LAZY, "__version__"} == set(dasktile.__all__)


def test_importing_the_package_and_its_command_imports_few_modules() -> None:
    code = (
        "import json, sys, dasktile.dask_command; dasktile.__version__;"
        "import dask.config; assert dask.config.get('dasktile.bundle') == 32;"
        "print(json.dumps(sorted(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    modules = set(json.loads(result.stdout))
    assert not modules & {"numpy", "scipy", "dask.array", "distributed", "rich", "pandas"}
    own = {name for name in modules if name.startswith("dasktile")}
    assert own == {"dasktile", "dasktile.__main__", "dasktile.dask_command", "dasktile.defaults"}
