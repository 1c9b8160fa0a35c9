"""Check the files and the metadata of a wheel and a source distribution: the last step of a build.

``python ci/distributions.py DIRECTORY`` exits with 1 and says what is wrong.
"""

from __future__ import annotations

import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

#: Files that the package reads when it is used.
DATA = {"dasktile/py.typed", "dasktile/dasktile.yaml", "dasktile/dasktile-schema.yaml"}

#: What the tests in the source distribution read.
SOURCES = {"ci/_venv", "pyproject.toml", "tests/conftest.py", "recipe/recipe.yaml", "README.md"}


def wheel_errors(wheel: Path, modules: set[str]) -> list[str]:
    """What is wrong with a wheel that should have the given modules and :data:`DATA`."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        fields = Parser().parsestr(archive.read(metadata).decode())
        entries = archive.read(metadata.replace("METADATA", "entry_points.txt")).decode()
    packaged = {name for name in names if ".dist-info/" not in name}
    errors = [f"missing in the wheel: {name}" for name in sorted((modules | DATA) - packaged)]
    errors += [f"not part of the package: {name}" for name in sorted(packaged - modules - DATA)]
    if not wheel.name.endswith("-py3-none-any.whl"):
        errors.append(f"the wheel is not for all platforms: {wheel.name}")
    if "[dask_cli]" not in entries:
        errors.append("no entry point for the command dask")
    if not any(".dist-info/licenses/LICENSE" in name for name in names):
        errors.append("no licence in the wheel")
    if f"-{fields['Version']}-" not in wheel.name:
        errors.append(f"the version of {wheel.name} is {fields['Version']}")
    return errors


def source_errors(source: Path, modules: set[str]) -> list[str]:
    """What is wrong with a source distribution."""
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    errors = [
        f"missing in the source distribution: {name}"
        for name in sorted((modules | DATA | SOURCES) - names)
    ]
    unwanted = (name for name in names if ".venv" in name or name.endswith(".pyc"))
    return errors + [f"not part of the sources: {name}" for name in sorted(unwanted)]


def main(directory: Path) -> int:
    """Check the only wheel and the only source distribution in a directory."""
    root = Path(__file__).parents[1]
    modules = {path.relative_to(root).as_posix() for path in (root / "dasktile").rglob("*.py")}
    (wheel,), (source,) = directory.glob("*.whl"), directory.glob("*.tar.gz")
    errors = wheel_errors(wheel, modules) + source_errors(source, modules)
    for error in errors:
        print(error, file=sys.stderr)
    if not errors:
        print(f"{wheel.name}: {len(modules)} modules; {source.name}")
    return bool(errors)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
