"""Who may import what: decisions are pure, and one layer at a time touches dask graphs."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import dasktile

ROOT = Path(dasktile.__file__).parent
NUMERIC = {"numpy", "scipy"}

#: For every part of the package: what it may import of the package, and from elsewhere.
#: The standard library is everybody's.  A longer name outranks a shorter one.
TABLE: dict[str, tuple[set[str], set[str]]] = {
    "ir": (set(), set()),
    "tiling": ({"ir", "tiling"}, NUMERIC),
    "capture": ({"ir", "capture"}, {"dask", "numpy", "tlz"}),
    "schedule": ({"ir", "schedule"}, NUMERIC),
    "schedule.compiled": (set(), {"numba", "numpy"}),
    "lower": ({"ir", "capture", "lower", "schedule.placement"}, {"dask", "numpy"}),
    "subscripts": (set(), set()),
    "contraction_paths": ({"ir", "subscripts", "tiling"}, {"opt_einsum"}),
    "algebra": (
        {"capture.blockwise", "capture.einsums", "lower.einsums"},
        {"dask", "numpy"},
    ),
    "einsum": (
        {
            "ir",
            "algebra",
            "capture.einsums",
            "contraction_paths",
            "lower.einsums",
            "machine",
            "subscripts",
        },
        {"dask", "numpy"},
    ),
    "errors": (set(), set()),
    "config": ({"tiling.seconds", "tiling.settings"}, {"dask", "yaml"}),
    "machine": (
        {"config", "tiling.plan", "tiling.seconds", "tiling.settings"},
        {"dask"},
    ),
    "located": (
        {"ir", "capture.base", "machine", "schedule.placement", "tiling.mesh"},
        set(),
    ),
    "picture": ({"ir"}, {"cairosvg"}),
    "report": ({"ir", "picture", "tiling.plan"}, set()),
    "timeline": ({"report"}, set()),
    "ordered": ({"capture.tasks", "runtime.ordered"}, {"dask"}),
    "plans": (
        {"capture.tasks", "config", "machine", "ordered", "report", "schedule", "timeline"},
        {"dask", "numpy"},
    ),
    "comparison": ({"report", "tiling.plan"}, set()),
    "boundary": ({"ir", "capture"}, {"dask", "numpy"}),
    "holders": ({"ir", "boundary", "capture.base"}, {"dask"}),
    "storable": (set(), set()),
    "api": (
        {
            "ir",
            "boundary",
            "capture",
            "comparison",
            "config",
            "errors",
            "holders",
            "located",
            "lower",
            "machine",
            "report",
            "storable",
            "tiling",
        },
        {"dask"},
    ),
    "runtime": (set(), set()),
    "runtime.scheduler_plugin": (
        {
            "runtime.dashboard",
            "runtime.prometheus",
            "runtime.replicas",
            "runtime.roots",
            "runtime.nextuse",
            "runtime.ordered",
            "runtime.worker_plugin",
            "schedule.homes",
            "schedule.placement",
        },
        {"distributed"},
    ),
    "runtime.ordered": (set(), set()),
    "runtime.replicas": (set(), {"distributed"}),
    "runtime.tiers": (
        {"runtime.tiers.base", "runtime.tiers.disk", "runtime.tiers.host"},
        {"distributed"},
    ),
    "runtime.tiers.host": ({"runtime.tiers.base"}, {"dask", "distributed", "numpy"}),
    "runtime.tiers.cuda": ({"runtime.tiers.base", "runtime.tiers.host"}, {"cupy", "numpy"}),
    "runtime.tiers.emulated": (
        {"runtime.tiers.base", "runtime.tiers.host"},
        {"dask", "distributed", "numpy"},
    ),
    "runtime.store": (
        {"runtime.engine", "runtime.tiers", "runtime.views", "schedule.residency"},
        {"distributed", "numpy"},
    ),
    "runtime.spilling": (
        {
            "runtime.failures",
            "runtime.nextuse",
            "runtime.store",
            "runtime.takeover",
            "schedule.budget",
        },
        {"dask", "distributed", "tornado"},
    ),
    "runtime.worker_data": (
        {"config", "runtime.store", "runtime.tiers", "schedule.residency"},
        {"dask", "distributed"},
    ),
    "runtime.failures": (set(), set()),
    "runtime.takeover": (set(), set()),
    "runtime.views": (set(), {"numpy"}),
    "runtime.nextuse": ({"schedule.residency"}, set()),
    "runtime.roots": (set(), {"distributed"}),
    "runtime.install": (
        {
            "runtime.clients",
            "runtime.scheduler_plugin",
            "runtime.worker_data",
            "runtime.worker_plugin",
        },
        {"distributed"},
    ),
    "preload": (
        {
            "runtime.install",
            "runtime.scheduler_plugin",
            "runtime.worker_data",
            "runtime.worker_plugin",
        },
        {"distributed"},
    ),
    "runtime.worker_plugin": (
        {"runtime.failures", "runtime.spilling", "runtime.worker_data"},
        {"distributed"},
    ),
    "runtime.clients": (set(), {"distributed"}),
    "runtime.metrics": (
        {"report", "runtime.clients", "runtime.worker_plugin"},
        {"distributed"},
    ),
    "runtime.dashboard": (
        {"report", "runtime.metrics", "runtime.worker_plugin"},
        {"bokeh", "distributed", "tornado"},
    ),
    "runtime.calibration": (
        {"runtime.clients", "tiling.seconds"},
        {"dask", "distributed", "numpy"},
    ),
    "runtime.prometheus": ({"runtime.metrics", "runtime.worker_plugin"}, {"distributed"}),
    "": (
        {
            "api",
            "capture.registry",
            "comparison",
            "einsum",
            "plans",
            "report",
            "runtime.calibration",
            "runtime.install",
            "runtime.metrics",
            "runtime.worker_data",
            "tiling",
        },
        set(),
    ),
    "__main__": ({"demo"}, set()),
    "demo": ({"", "report"}, {"dask", "distributed", "numpy", "psutil", "rich", "zarr"}),
}

#: Parts that may import when a function runs what they do not import at once.
LATE = {"__main__", "picture", "runtime.dashboard", "runtime.install", "schedule.compiled"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


@cache
def imports(module: str) -> tuple[frozenset[str], frozenset[str], bool]:
    """Modules of the package that one imports, packages from elsewhere, and any in a function."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    own: set[str] = set()
    foreign: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            names = [
                f"{node.module}.{alias.name}"
                if f"{node.module}.{alias.name}".removeprefix("dasktile.") in MODULES
                else str(node.module)
                for alias in node.names
            ]
        else:
            continue
        for name in names:
            if name == "dasktile" or name.startswith("dasktile."):
                own.add(name.removeprefix("dasktile").removeprefix("."))
            elif name.split(".")[0] not in sys.stdlib_module_names:
                foreign.add(name.split(".")[0])
    late = any(
        isinstance(inner, (ast.Import, ast.ImportFrom))
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for inner in ast.walk(node)
    )
    return frozenset(own), frozenset(foreign), late


def part_of(module: str) -> str:
    found = [part for part in TABLE if part and (module + ".").startswith(part + ".")]
    return max(found, key=len, default="")


def allowed(module: str, parts: set[str]) -> bool:
    return any(module == part or (part and module.startswith(part + ".")) for part in parts)


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_downwards(module: str) -> None:
    part = part_of(module)
    assert part or not module, f"{module} is not in the table"
    own, foreign, late = imports(module)
    may_own, may_foreign = TABLE[part]
    assert {name for name in own if not allowed(name, may_own)} == set()
    assert foreign - may_foreign == set()
    assert not late or part in LATE


def test_no_cycles() -> None:
    graph = {module: imports(module)[0] - {module} for module in MODULES if module != "demo"}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other: {error.args[1]}")


def test_importing_dasktile_does_not_start_distributed() -> None:
    code = "import sys, dasktile; assert 'distributed' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_annotations_are_for_users_too() -> None:
    assert (ROOT / "py.typed").exists()
