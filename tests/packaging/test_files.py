"""The files around the package: workflows, forms, the recipe and what they refer to."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))

#: The package of conda-forge that a requirement of PyPI is, if it has another name.
CONDA_NAMES = {"dask": "dask-core"}


def load(path: Path) -> dict[str, Any]:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def steps(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        # a job that calls another workflow has no steps
        yield from job.get("steps", ())


# Workflows --------------------------------------------------------------------------


def test_there_are_workflows_and_forms() -> None:
    assert [path.stem for path in WORKFLOWS] == ["ci", "docs", "release", "tests"]
    assert [path.stem for path in FORMS] == ["bug_report", "config", "feature_request"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_scripts_that_exist(path: Path) -> None:
    workflow = load(path)
    # YAML 1.1 reads the key `on` as true
    assert workflow[True] and workflow["permissions"] == {"contents": "read"}
    for step in steps(workflow):
        assert ("run" in step) != ("uses" in step)
        assert re.search(r"@\w", step.get("uses", "@v1")), step
        for script in re.findall(r"(?:\./|bash )(\.?ci/[\w-]+)", step.get("run", "")):
            assert (ROOT / script).exists(), script


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_fetch_the_history_from_which_the_version_comes(path: Path) -> None:
    checkouts = [
        step for step in steps(load(path)) if step.get("uses", "").startswith("actions/checkout")
    ]
    assert checkouts and all(step["with"]["fetch-depth"] == 0 for step in checkouts)


def test_the_matrix_has_every_supported_python() -> None:
    matrix = load(ROOT / ".github/workflows/tests.yml")["jobs"]["test"]["strategy"]["matrix"]
    tested = {*matrix["python"], *(entry["python"] for entry in matrix["include"])}
    prefix = "Programming Language :: Python :: 3."
    classified = {
        classifier.removeprefix("Programming Language :: Python :: ")
        for classifier in PROJECT["project"]["classifiers"]
        if classifier.startswith(prefix)
    }
    assert tested == classified
    least = SpecifierSet(PROJECT["project"]["requires-python"])
    assert all(least.contains(version) for version in tested)
    assert not least.contains("3.10")


def test_only_publishing_may_obtain_an_identity() -> None:
    for path in WORKFLOWS:
        for name, job in load(path)["jobs"].items():
            rights = job.get("permissions", {})
            assert not rights or name == "publish", (path.name, name)
            if name == "publish":
                # what publishes runs no code of the repository
                assert all("run" not in step for step in job["steps"])


def test_what_is_published_passes_the_test_suite() -> None:
    jobs = load(ROOT / ".github/workflows/release.yml")["jobs"]
    assert set(jobs["publish"]["needs"]) == {"ci", "build"}
    called = load(ROOT / jobs["ci"]["uses"])
    assert "workflow_call" in called[True]
    assert any(".ci/run" in step.get("run", "") for step in steps(called))


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_forms_are_complete(path: Path) -> None:
    form = load(path)
    if path.stem == "config":
        return
    assert form["name"] and form["description"]
    names = [field["id"] for field in form["body"]]
    assert len(names) == len(set(names))
    for field in form["body"]:
        assert field["type"] in {"textarea", "input", "checkboxes", "dropdown"}
        assert field["attributes"]["label"]


# Metadata ---------------------------------------------------------------------------


def test_the_recipe_requires_what_the_package_requires() -> None:
    recipe = load(ROOT / "recipe" / "recipe.yaml")
    least = recipe["context"]["python_min"]
    assert PROJECT["project"]["requires-python"] == f">={least}"
    expected = {"python": SpecifierSet(f">={least}")}
    for text in PROJECT["project"]["dependencies"]:
        requirement = Requirement(text)
        name = CONDA_NAMES.get(requirement.name, requirement.name)
        expected[name] = requirement.specifier
    actual = {}
    for text in recipe["requirements"]["run"]:
        name, _, versions = text.replace("${{ python_min }}", least).partition(" ")
        actual[name] = SpecifierSet(versions)
    assert actual == expected


def test_the_recipe_builds_with_what_the_package_builds_with() -> None:
    recipe = load(ROOT / "recipe" / "recipe.yaml")
    host = {text.replace(" ", "") for text in recipe["requirements"]["host"][2:]}
    assert host == set(PROJECT["build-system"]["requires"])
    assert recipe["build"]["noarch"] == "python"
    fallback = PROJECT["tool"]["hatch"]["version"]["fallback-version"]
    assert f'default="{fallback}"' in recipe["context"]["version"]
    assert recipe["about"]["summary"] == PROJECT["project"]["description"]


def test_the_oldest_releases_are_those_that_are_tested() -> None:
    text = (ROOT / "ci" / "_venv").read_text(encoding="utf-8")
    tested = dict(re.findall(r"\b(\w+)==(\d+(?:\.\d+)+)", text))
    required = {}
    for line in PROJECT["project"]["dependencies"]:
        requirement = Requirement(line)
        required[requirement.name] = str(requirement.specifier).removeprefix(">=")
    untested = {"psutil", "pyyaml", "rich"}
    assert {name: tested.get(name) for name in required if name not in untested} == {
        name: version for name, version in required.items() if name not in untested
    }


def test_the_citation_is_complete() -> None:
    citation = load(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["license"] == PROJECT["project"]["license"]


def test_every_extra_is_optional() -> None:
    required = {Requirement(text).name for text in PROJECT["project"]["dependencies"]}
    assert not required & {"bokeh", "cupy-cuda12x", "graphviz", "matplotlib", "numba", "zarr"}


# Scripts ----------------------------------------------------------------------------

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def scripts() -> list[Path]:
    files = [path for path in (ROOT / "ci").iterdir() if not path.suffix and path.is_file()]
    return [*sorted(files), ROOT / ".ci" / "run"]


@needs_bash
@pytest.mark.parametrize("path", scripts(), ids=lambda path: path.name)
def test_scripts_have_no_syntax_error(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], check=True)
    # Windows has another folder for the programs of a virtual environment
    assert ".venv/bin" not in path.read_text(encoding="utf-8")


@needs_bash
@pytest.mark.parametrize(
    ("system", "python", "folder"),
    [("Linux", "python3", "bin"), ("MINGW64_NT-10.0-20348", "python", "Scripts")],
)
def test_virtual_environments_are_made_once_on_every_system(
    tmp_path: Path, system: str, python: str, folder: str
) -> None:
    log = tmp_path / "log"
    program = f'#!/bin/sh\necho "$0 $*" >>"{log.as_posix()}"\n'
    # as `python -m venv` does
    make = f'if [ "$2" = venv ]; then mkdir -p "$3/{folder}"; cp "$0" "$3/{folder}/python"; fi\n'
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    for name, content in ((python, program + make), ("uname", f"#!/bin/sh\necho {system}\n")):
        (stubs / name).write_text(content, encoding="utf-8")
        (stubs / name).chmod(0o755)
    (tmp_path / "pyproject.toml").write_text("# nothing\n", encoding="utf-8")
    code = f'PATH="{stubs.as_posix()}:$PATH"; . "{(ROOT / "ci" / "_venv").as_posix()}"\n'
    code += 'set -eu; make_venv .venv test; make_venv .venv test; echo ".venv/$bin/python"\n'
    result = subprocess.run(
        ["bash", "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert result.stdout.splitlines()[-1] == f".venv/{folder}/python"
    lines = log.read_text(encoding="utf-8").splitlines()
    installations = [line for line in lines if "pip install" in line]
    assert len(installations) == 1
    assert installations[0].startswith(f".venv/{folder}/python -m pip install")
    assert installations[0].endswith("--editable .[test]")


# What the script ci/package checks --------------------------------------------------


def distributions() -> ModuleType:
    spec = spec_from_file_location("distributions", ROOT / "ci" / "distributions.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_missing_and_unwanted_files_of_distributions_are_found(tmp_path: Path) -> None:
    checks = distributions()
    wheel = tmp_path / "dasktile-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        info = "dasktile-0.1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Name: dasktile\nVersion: 0.1.0\n")
        archive.writestr(f"{info}/entry_points.txt", "[dask_cli]\n")
        archive.writestr(f"{info}/licenses/LICENSE", "")
        for name in ("dasktile/a.py", "dasktile/py.typed", "tests/test_a.py"):
            archive.writestr(name, "")
    assert checks.wheel_errors(wheel, {"dasktile/a.py", "dasktile/b.py"}) == [
        "missing in the wheel: dasktile/b.py",
        "missing in the wheel: dasktile/dasktile-schema.yaml",
        "missing in the wheel: dasktile/dasktile.yaml",
        "not part of the package: tests/test_a.py",
    ]
    source = tmp_path / "dasktile-0.1.0.tar.gz"
    with tarfile.open(source, "w:gz") as archive:
        for name in checks.DATA | checks.SOURCES | {".venv/bin/python"}:
            archive.addfile(tarfile.TarInfo(f"dasktile-0.1.0/{name}"))
    assert checks.source_errors(source, {"dasktile/a.py"}) == [
        "missing in the source distribution: dasktile/a.py",
        "not part of the sources: .venv/bin/python",
    ]


def test_sources_that_distributions_need_exist() -> None:
    checks = distributions()
    assert all((ROOT / name).exists() for name in checks.SOURCES)


@needs_bash
@pytest.mark.slow
def test_the_package_can_be_built_and_installed(tmp_path: Path) -> None:
    subprocess.run(["bash", str(ROOT / "ci" / "package"), str(tmp_path)], check=True)
    assert {path.suffix for path in tmp_path.iterdir()} == {".gz", ".whl"}
