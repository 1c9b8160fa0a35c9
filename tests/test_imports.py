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
    "ir": ({"ir"}, set()),
    "tiling": ({"ir", "tiling"}, NUMERIC),
    "capture": ({"ir", "capture"}, {"dask", "numpy", "tlz"}),
    "schedule": ({"ir", "schedule"}, NUMERIC),
    "schedule.compiled": (set(), {"numba", "numpy"}),
    "lower": ({"ir", "capture", "lower", "schedule.placement"}, {"dask", "numpy"}),
    "algebra.subscripts": (set(), set()),
    "algebra.paths": ({"ir", "algebra.subscripts", "tiling"}, {"opt_einsum"}),
    "algebra.semiring": (
        {"capture.rules.blockwise", "capture.rules.einsums", "lower.kernels.einsums"},
        {"dask", "numpy"},
    ),
    "algebra.einsum": (
        {
            "ir",
            "algebra.semiring",
            "capture.rules.einsums",
            "algebra.paths",
            "lower.kernels.einsums",
            "cluster.target",
            "algebra.subscripts",
        },
        {"dask", "numpy"},
    ),
    "errors": (set(), set()),
    "config": ({"tiling.seconds", "tiling.settings"}, {"dask", "yaml"}),
    "cluster.target": (
        {"config", "tiling.plan", "tiling.seconds", "tiling.settings"},
        {"dask"},
    ),
    "cluster.located": (
        {"ir", "capture.base", "cluster.target", "schedule.placement", "tiling.mesh"},
        set(),
    ),
    "report.svg": ({"ir"}, {"cairosvg"}),
    "report.explanation": ({"ir", "report.svg", "tiling.plan"}, set()),
    "report.timeline": ({"report.explanation"}, set()),
    "orders.apply": ({"capture.tasks", "runtime.scheduler.priorities"}, {"dask"}),
    "orders.plan": (
        {
            "capture.tasks",
            "config",
            "cluster.target",
            "orders.apply",
            "report.explanation",
            "schedule",
            "report.timeline",
        },
        {"dask", "numpy"},
    ),
    "report.comparison": ({"report.explanation", "tiling.plan"}, set()),
    "collections.boundary": ({"ir", "capture"}, {"dask", "numpy"}),
    "collections.unpack": ({"ir", "collections.boundary", "capture.base"}, {"dask"}),
    "collections.building": (set(), set()),
    "collections.output_chunks": (set(), set()),
    "api": (
        {
            "ir",
            "collections.boundary",
            "collections.building",
            "capture",
            "report.comparison",
            "config",
            "errors",
            "collections.unpack",
            "cluster.located",
            "lower",
            "cluster.target",
            "report.explanation",
            "collections.output_chunks",
            "tiling",
        },
        {"dask"},
    ),
    "algebra": (set(), set()),
    "cluster": (set(), set()),
    "collections": (set(), set()),
    "orders": (set(), set()),
    "report": (set(), set()),
    "testing": (set(), set()),
    "runtime": (set(), set()),
    "runtime.scheduler.plugin": (
        {
            "runtime.scheduler.dashboard",
            "runtime.scheduler.prometheus",
            "runtime.scheduler.replicas",
            "runtime.scheduler.roots",
            "runtime.nextuse",
            "runtime.scheduler.priorities",
            "runtime.worker.plugin",
            "schedule.homes",
            "schedule.placement",
        },
        {"distributed"},
    ),
    "runtime.scheduler.priorities": (set(), set()),
    "runtime.scheduler.replicas": (set(), {"distributed"}),
    "runtime.tiers": (
        {"runtime.tiers.base", "runtime.tiers.disk", "runtime.tiers.host"},
        {"distributed"},
    ),
    "runtime.tiers.host": ({"runtime.tiers.base"}, {"dask", "distributed", "numpy"}),
    "runtime.tiers.cuda": ({"runtime.tiers.base", "runtime.tiers.host"}, {"cupy", "numpy"}),
    "testing.emulated": (
        {"runtime.tiers.base", "runtime.tiers.host"},
        {"dask", "distributed", "numpy"},
    ),
    "runtime.worker.store": (
        {"runtime.engine", "runtime.tiers", "runtime.worker.buffers", "schedule.residency"},
        {"distributed", "numpy"},
    ),
    "runtime.worker.spilling": (
        {
            "runtime.failures",
            "runtime.nextuse",
            "runtime.worker.store",
            "runtime.worker.takeover",
            "schedule.budget",
        },
        {"dask", "distributed", "tornado"},
    ),
    "runtime.worker.data": (
        {"config", "runtime.worker.store", "runtime.tiers", "schedule.residency"},
        {"dask", "distributed"},
    ),
    "runtime.failures": (set(), set()),
    "runtime.worker.takeover": (set(), set()),
    "runtime.worker.buffers": (set(), {"numpy"}),
    "runtime.nextuse": ({"schedule.residency"}, set()),
    "runtime.scheduler.roots": (set(), {"distributed"}),
    "runtime.install": (
        {
            "cluster.clients",
            "runtime.scheduler.plugin",
            "runtime.worker.data",
            "runtime.worker.plugin",
        },
        {"distributed"},
    ),
    "preload": (
        {
            "runtime.install",
            "runtime.scheduler.plugin",
            "runtime.worker.data",
            "runtime.worker.plugin",
        },
        {"distributed"},
    ),
    "runtime.worker.plugin": (
        {"runtime.failures", "runtime.worker.spilling", "runtime.worker.data"},
        {"distributed"},
    ),
    "cluster.clients": (set(), {"distributed"}),
    "runtime.metrics": (
        {"report.explanation", "cluster.clients", "runtime.worker.plugin"},
        {"distributed"},
    ),
    "runtime.scheduler.dashboard": (
        {"report.explanation", "runtime.metrics", "runtime.worker.plugin"},
        {"bokeh", "distributed", "tornado"},
    ),
    "cluster.calibration": (
        {"cluster.clients", "tiling.seconds"},
        {"dask", "distributed", "numpy"},
    ),
    "runtime.scheduler.prometheus": ({"runtime.metrics", "runtime.worker.plugin"}, {"distributed"}),
    "": (
        {
            "api",
            "capture.user_kernels",
            "report.comparison",
            "algebra.einsum",
            "orders.plan",
            "report.explanation",
            "cluster.calibration",
            "runtime.install",
            "runtime.metrics",
            "runtime.worker.data",
            "tiling",
        },
        set(),
    ),
    "__main__": ({"demo"}, set()),
    "demo": (
        {"", "report.explanation"},
        {"dask", "distributed", "numpy", "psutil", "rich", "zarr"},
    ),
}

#: Parts that may import when a function runs what they do not import at once.
LATE = {
    "__main__",
    "report.svg",
    "runtime.scheduler.dashboard",
    "runtime.install",
    "schedule.compiled",
}


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
