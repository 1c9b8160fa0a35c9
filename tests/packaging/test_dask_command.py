"""Dask's own command line: the package's settings, and ``dask dasktile``."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import dask.cli
import dask.config
import pytest
from click.testing import CliRunner, Result

from dasktile import dask_command
from dasktile.config import defaults

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs ``dask`` with the entry points of this tree, whatever is installed."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for name, value in content["project"]["entry-points"]["dask_cli"].items():
        dask.cli._register_command_ep(dask.cli.cli, EntryPoint(name, value, "dask_cli"))

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(dask.cli.cli, arguments)

    yield invoke
    dask.cli.cli.commands.pop("dasktile")


def test_arguments_and_options_are_passed_on(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    received = []

    def main(arguments: tuple[str, ...]) -> int:
        received.append(arguments)
        return 3

    monkeypatch.setattr(dask_command, "main", main)
    arguments = ("demo", "--size", "2", "--json", "-h", "--", "--workers=1", "--unknown")
    result = run("dasktile", *arguments)
    assert result.exit_code == 3, result.output
    (passed,) = received
    assert [each for each in passed if each != "--"] == [each for each in arguments if each != "--"]


def test_help_is_that_of_the_package(run: Any) -> None:
    result = run("dasktile", "--help")
    assert result.exit_code == 0
    assert "usage:" in result.output and "demo" in result.output


def test_invalid_options_exit_with_2(run: Any) -> None:
    assert run("dasktile", "demo", "--size", "0").exit_code == 2
    assert run("dasktile", "nothing").exit_code == 2


def test_it_is_listed_among_the_commands_of_dask(run: Any) -> None:
    assert "The command line of dasktile." in run("--help").output


def test_settings_are_shown_by_dask(run: Any) -> None:
    assert run("config", "get", "dasktile.bundle").output == "32\n"
    assert run("config", "get", "dasktile.cost.bandwidth").output == "0.8 GB\n"
    listed = run("config", "list").output
    for section in ("dasktile:", *defaults["dasktile"]):
        assert section in listed


def test_settings_of_the_user_are_kept(tmp_path: Path) -> None:
    # as after `dask config set dasktile.bundle 0`, which writes a file that is read at the start
    config = {"dasktile": {"bundle": 0}}
    dask.config.update_defaults(defaults, config=config, defaults=[])
    assert config["dasktile"]["bundle"] == 0
    assert dask.config.get("dasktile.method", config=config) == "auto"
