from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dask
import jsonschema
import pytest
import yaml

import dasktile
from dasktile import config
from dasktile.errors import UnknownSettingWarning
from dasktile.tiling.settings import Settings

FOLDER = Path(dasktile.__file__).parent


def load(name: str) -> dict[str, Any]:
    content = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def leaves(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name)


def test_defaults_fit_the_schema() -> None:
    schema = load("dasktile-schema.yaml")
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(load("dasktile.yaml"), schema)


def test_schema_rejects_unknown_settings() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"dasktile": {"worker": 4}}, load("dasktile-schema.yaml"))


def test_every_setting_is_described_and_every_description_is_a_setting() -> None:
    settings = set(leaves(load("dasktile.yaml")))
    described = set()
    pending: list[tuple[tuple[str, ...], dict[str, Any]]] = [((), load("dasktile-schema.yaml"))]
    while pending:
        path, schema = pending.pop()
        if "properties" in schema:
            pending.extend(((*path, name), sub) for name, sub in schema["properties"].items())
        else:
            assert schema["description"].strip(), path
            described.add(path)
    assert described == settings


def test_defaults_are_registered_with_dask() -> None:
    for path in leaves(load("dasktile.yaml")):
        assert dask.config.get(".".join(path), "missing") != "missing"


def test_defaults_are_those_of_the_pure_settings() -> None:
    assert config.tiling_settings() == Settings()


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("cost.task-bytes", "2 MB", "task_bytes", 2e6),
        ("cost.bandwidth", 5, "bytes_per_second", 5.0),
        ("cost.flops", "2e9", "work_per_second", 2e9),
        ("tiling.min-tile", "1 KiB", "min_tile", 1024),
        ("tiling.tiles-per-worker", "3", "tiles_per_worker", 3),
    ],
)
def test_settings_accept_strings_with_units(
    name: str, value: object, field: str, expected: object
) -> None:
    with dask.config.set({f"dasktile.{name}": value}):
        assert getattr(config.tiling_settings(), field) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cost.bandwidth", 0),
        ("cost.bandwidth", "fast"),
        ("cost.task-bytes", None),
        ("cost.task-bytes", 0),
        ("cost.flops", float("nan")),
        ("tiling.tiles-per-worker", 0),
        ("tiling.max-states", 2.5),
        ("tiling.width-budget", True),
    ],
)
def test_errors_name_the_invalid_setting(name: str, value: object) -> None:
    with (
        dask.config.set({f"dasktile.{name}": value}),
        pytest.raises(ValueError, match=rf"dasktile\.{name} must be"),
    ):
        config.tiling_settings()


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("workers", "many", "an integer >= 1, or null"),
        ("memory-limit", -1, "a number of bytes >= 1, a string such as '2 GiB', or null"),
        ("method", 3, "the name of a tiling method"),
        ("bundle", "abc", "an integer >= 0"),
        ("wait", -1, "a number of seconds >= 0, or a string such as '10 s'"),
        ("raise-errors", "no", "true or false"),
        ("spill.keep-clean", "yes", "true or false"),
        ("spill.dirty", 0.5, "a number >= 1"),
        ("plan.task-seconds", "2 GB", "a positive number of seconds, or a string such as '1 ms'"),
    ],
)
def test_settings_are_checked_even_if_they_are_not_used(
    name: str, value: object, allowed: str
) -> None:
    message = f"setting dasktile.{name} must be {allowed}; got {value!r}"
    with dask.config.set({f"dasktile.{name}": value}):
        for call in (dasktile.optimize, dasktile.explain, dasktile.compare):
            with pytest.raises(ValueError, match=re.escape(message)):
                call(1, workers=2, memory_limit="1 GB")
        with pytest.raises(ValueError, match=re.escape(message)):
            dasktile.plan(1)
    config.check()


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("bundel", "did you mean dasktile.bundle?"),
        ("cost.task-byte", "did you mean dasktile.cost.task-bytes?"),
        ("tilling.max-task", "did you mean dasktile.tiling.max-task?"),
        ("min-tile", "did you mean dasktile.tiling.min-tile?"),
        ("zzz", "allowed are workers, memory-limit"),
    ],
)
def test_names_that_do_not_exist_give_one_warning(
    name: str, near: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "_warned", set())
    message = f"setting dasktile.{name} does not exist and has no effect; {near}"
    with dask.config.set({f"dasktile.{name}": 16}):
        with pytest.warns(UnknownSettingWarning, match=re.escape(message)) as caught:
            dasktile.optimize(1)
        assert len(caught) == 1 and caught[0].filename == __file__
        with warnings.catch_warnings(), dask.config.set({"dasktile.workers": 7}):
            warnings.simplefilter("error")
            dasktile.optimize(1)


def test_names_with_underscores_exist() -> None:
    with warnings.catch_warnings(), dask.config.set({"dasktile": {"cost": {"task_bytes": 5}}}):
        warnings.simplefilter("error")
        config.check()
        # dask.config.set replaces whole sections
        assert config.tiling_settings() == Settings(task_bytes=5)


@pytest.mark.parametrize("section", ["dasktile", "dasktile.cost"])
def test_sections_cannot_be_values(section: str) -> None:
    message = rf"{section} is a section and must contain settings \(.*task-bytes.*\); got 5"
    with dask.config.set({section: 5}), pytest.raises(ValueError, match=message):
        dasktile.optimize(1)
    with dask.config.set({section: None}):
        assert config.tiling_settings() == Settings()


def test_settings_that_did_not_change_are_not_checked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config.check()
    monkeypatch.setattr(config, "setting", None)
    config.check()


def test_bundles_can_be_turned_off_and_their_setting_is_checked() -> None:
    assert config.bundle_tasks() == load("dasktile.yaml")["dasktile"]["bundle"]
    for value, expected in (("24", 24), (0, 0)):
        with dask.config.set({"dasktile.bundle": value}):
            assert config.bundle_tasks() == expected
    for value in (-1, 2.5, "many", True, None):
        with (
            dask.config.set({"dasktile.bundle": value}),
            pytest.raises(ValueError, match=r"dasktile\.bundle must be an integer >= 0"),
        ):
            config.bundle_tasks()
