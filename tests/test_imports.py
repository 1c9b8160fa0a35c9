"""The table of allowed imports, and where private names of dask may be used."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import dasktile
from dasktile._compat.dask import NAMES

#: A table has every module, or every private name.
pytestmark = pytest.mark.every_case

ROOT = Path(dasktile.__file__).parent
NUMERIC = {"numpy", "scipy"}

#: For every part of the package: the modules that it may import, of the package and of others.  All
#: may import the standard library.  An entry with a longer name overrides one with a shorter name.
TABLE: dict[str, tuple[set[str], set[str]]] = {
    "_compat": (set(), set()),
    "_compat.dask": ({"_compat.merged_parts", "errors"}, {"dask", "numpy"}),
    "_compat.dask_cuda": (set(), set()),
    "_compat.expressions": (set(), set()),
    "_compat.flox": (set(), {"dask"}),
    "_compat.merged_parts": (set(), set()),
    "_compat.xarray": (set(), set()),
    "ir": ({"ir"}, set()),
    "tiling": ({"ir", "tiling"}, NUMERIC),
    "tiling.memo": ({"ir", "tiling"}, {"zict"}),
    "tiling.calibration": ({"report.formatting"}, set()),
    "tiling.growth": ({"ir", "report.formatting", "tiling.local"}, set()),
    "tiling.local": ({"ir", "report.formatting", "tiling"}, {"numpy"}),
    "capture": (
        {
            "_compat.dask",
            "_compat.expressions",
            "_compat.flox",
            "_compat.xarray",
            "ir",
            "capture",
            "schedule.placement",
        },
        {"dask", "numpy", "tlz"},
    ),
    "schedule": ({"ir", "schedule"}, NUMERIC),
    "schedule.compiled": (set(), {"numba", "numpy"}),
    "schedule.taskgraph": ({"report.formatting", "schedule.lists"}, {"numpy"}),
    "lower": (
        {
            "_compat.dask",
            "_compat.flox",
            "_compat.merged_parts",
            "ir",
            "capture",
            "lower",
            "schedule.edges",
            "schedule.families",
            "schedule.homes",
            "schedule.joining",
            "schedule.placed_tasks",
            "schedule.placement",
            "schedule.ranks",
        },
        {"dask", "numpy"},
    ),
    "algebra.subscripts": (set(), set()),
    "algebra.settings": (set(), set()),
    "algebra.paths": (
        {"ir", "algebra.settings", "algebra.subscripts", "tiling"},
        {"opt_einsum"},
    ),
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
    "_compat.distributed": ({"_compat.distributed"}, {"dask", "distributed", "tornado"}),
    "_compat.distributed.features": (set(), set()),
    "_compat.distributed.overrides": (set(), set()),
    "_compat.distributed.states": (set(), set()),
    "_compat.distributed.table": (
        {"_compat.distributed.features", "_compat.distributed.states"},
        set(),
    ),
    "errors": (set(), set()),
    "defaults": (set(), {"dask", "yaml"}),
    "config": ({"defaults", "errors", "tiling.calibration", "tiling.settings"}, {"dask"}),
    "cluster.settings": (set(), set()),
    "cluster.asked": ({"_compat.distributed", "ir"}, set()),
    "cluster.target": (
        {
            "_compat.distributed",
            "cluster.asked",
            "cluster.settings",
            "config",
            "ir",
            "tiling.calibration",
            "tiling.objective",
            "tiling.plan",
            "tiling.settings",
        },
        {"dask"},
    ),
    "cluster.located": (
        {
            "ir",
            "capture.base",
            "capture.from_memory",
            "cluster.target",
            "schedule.homes",
            "schedule.placement",
            "tiling.mesh",
        },
        {"numpy"},
    ),
    "report.graphviz": (set(), set()),
    "report.svg": (
        {
            "ir",
            "report",
            "report.formatting",
            "report.graphviz",
            "report.html",
            "report.page",
            "report.palette",
        },
        {"cairosvg"},
    ),
    "report.rows": (
        {
            "ir",
            "report.folding",
            "report.formatting",
            "report.html",
            "report.svg",
            "report.tables",
        },
        set(),
    ),
    "report.plan": ({"report.rows", "tiling.plan"}, set()),
    "report.summary": ({"report.formatting", "report.plan", "report.rows", "tiling.fewer"}, set()),
    "report.explanation": (
        {
            "report.formatting",
            "report.html",
            "report.page",
            "report.plan",
            "report.rows",
            "report.summary",
            "report.svg",
        },
        {"dask"},
    ),
    "report.describing": (
        {"ir", "report.dimensions", "report.explanation", "report.rows", "tiling.plan"},
        set(),
    ),
    "report.dimensions": ({"ir"}, set()),
    "report.formatting": ({"ir"}, set()),
    "report.folding": (set(), set()),
    "report.html": ({"ir"}, set()),
    "report.page": (set(), set()),
    "report.axes": (set(), set()),
    "report.palette": (set(), set()),
    "report.timeline": (
        {"report.axes", "report.formatting", "report.html", "report.page", "report.palette"},
        set(),
    ),
    "orders.apply": (
        {
            "_compat.dask",
            "capture.references",
            "capture.tasks",
            "collections.containers",
            "collections.expressions",
            "runtime.scheduler.priorities",
        },
        {"dask"},
    ),
    "orders.graphs": (
        {"_compat.dask", "capture.tasks", "config", "cluster.target", "schedule.taskgraph"},
        {"dask", "numpy"},
    ),
    "orders.scored": ({"capture.tasks", "config", "runtime.settings", "schedule"}, {"numpy"}),
    "orders.timelines": ({"report.formatting", "report.timeline", "schedule"}, set()),
    "orders.schedule_plan": (
        {"orders.apply", "report.formatting", "report.html", "report.timeline"},
        {"numpy"},
    ),
    "orders.plan": (
        {
            "capture.tasks",
            "config",
            "cluster.target",
            "collections.hooked",
            "orders.apply",
            "orders.graphs",
            "orders.schedule_plan",
            "orders.scored",
            "orders.timelines",
            "schedule",
        },
        {"dask", "numpy", "zict"},
    ),
    "report.comparison": (
        {"report.formatting", "report.html", "report.tables", "tiling.plan"},
        set(),
    ),
    "collections.boundary": ({"_compat.dask", "ir", "capture"}, {"dask", "numpy"}),
    "collections.expressions": ({"_compat.expressions", "capture.expressions"}, {"dask"}),
    "collections.unpack": (
        {
            "_compat.expressions",
            "ir",
            "collections.boundary",
            "collections.expressions",
            "capture.base",
        },
        {"dask"},
    ),
    "collections.containers": ({"collections.unpack"}, {"dask"}),
    "collections.rechunked": ({"collections.unpack"}, {"dask", "numpy"}),
    "collections.building": (set(), set()),
    "collections.hooked": (set(), {"dask"}),
    "collections.output_chunks": (set(), set()),
    "prediction": (
        {
            "cluster.target",
            "ir",
            "lower",
            "schedule.homes",
            "schedule.peaks",
            "schedule.placed_tasks",
            "schedule.placement",
            "tiling.calibration",
        },
        {"dask"},
    ),
    "request": (
        {
            "capture.base",
            "capture.culling",
            "cluster.target",
            "collections.output_chunks",
            "collections.unpack",
            "config",
            "ir",
            "tiling",
        },
        {"dask"},
    ),
    "needs": ({"capture", "ir", "request", "tiling"}, set()),
    "planning": (
        {"capture", "cluster", "config", "ir", "lower", "needs", "prediction", "request", "tiling"},
        {"dask"},
    ),
    "decisions": (
        {
            "_compat.flox",
            "capture",
            "cluster.located",
            "config",
            "ir",
            "lower.bundle",
            "needs",
            "own_graph",
            "planning",
            "predicted",
            "prediction",
            "recent",
            "request",
            "tiling.memo",
            "tiling.plan",
        },
        {"dask"},
    ),
    "predicted": (
        {
            "capture.culling",
            "ir",
            "lower.count",
            "lower.placed",
            "lower.written",
            "needs",
            "planning",
            "prediction",
            "request",
            "schedule.peaks",
            "schedule.placed_tasks",
            "tiling.calibration",
        },
        {"dask"},
    ),
    "inner_tasks": (
        {
            "capture.base",
            "ir",
            "lower.written",
            "planning",
            "predicted",
            "prediction",
            "request",
        },
        {"numpy"},
    ),
    "cheapest": (
        {
            "capture.base",
            "inner_tasks",
            "ir",
            "lower.count",
            "planning",
            "predicted",
            "prediction",
            "request",
            "tiling.planner",
            "tiling.settings",
        },
        set(),
    ),
    "along_hosts": (
        {
            "lower.count",
            "lower.writer",
            "planning",
            "prediction",
            "request",
            "schedule.traffic",
            "tiling.axis_order",
        },
        {"numpy"},
    ),
    "choice": (
        {
            "along_hosts",
            "capture",
            "cheapest",
            "config",
            "decisions",
            "guard",
            "in_memory",
            "ir",
            "lower",
            "own_graph",
            "planning",
            "predicted",
            "prediction",
            "refusal",
            "report.formatting",
            "request",
            "schedule.placement",
            "small_graphs",
            "tiling.growth",
            "tiling.plan",
            "tiling.planner",
            "whole",
        },
        {"dask"},
    ),
    "in_memory": (
        {
            "capture.base",
            "capture.rules.views",
            "cluster.located",
            "guard",
            "ir",
            "own_graph",
            "planning",
            "predicted",
            "prediction",
            "report.formatting",
            "request",
            "tiling.plan",
        },
        set(),
    ),
    "own_graph": (
        {
            "capture.called",
            "capture.base",
            "cluster.located",
            "inner_tasks",
            "ir",
            "lower.bundle",
            "lower.writer",
            "planning",
            "predicted",
            "prediction",
            "request",
            "tiling.plan",
        },
        {"dask"},
    ),
    "recent": (set(), {"zict"}),
    "guard": ({"config"}, set()),
    "small_graphs": (
        {
            "capture.base",
            "capture.structure",
            "cheapest",
            "config",
            "guard",
            "lower.count",
            "lower.noted",
            "needs",
            "planning",
            "predicted",
            "prediction",
            "request",
            "tiling.objective",
            "tiling.settings",
        },
        {"dask"},
    ),
    "whole": (
        {"capture.base", "ir", "tiling.objective", "tiling.plan", "tiling.settings"},
        set(),
    ),
    "refusal": ({"capture.base", "config", "needs", "planning", "request", "tiling"}, set()),
    "pipeline": (
        {
            "capture.declarations",
            "capture.references",
            "capture.structure",
            "choice",
            "cluster.target",
            "collections",
            "config",
            "ir",
            "lower.culled",
            "lower.gathered",
            "planning",
            "request",
            "returned",
            "small_graphs",
            "templates",
        },
        {"dask"},
    ),
    "templates": (
        {
            "capture.structure",
            "cluster.located",
            "collections.unpack",
            "config",
            "decisions",
            "errors",
            "guard",
            "ir",
            "lower.gaps",
            "lower.names",
            "recent",
            "request",
            "returned",
        },
        {"dask"},
    ),
    "returned": (
        {
            "choice",
            "cluster.target",
            "lower",
            "planning",
            "prediction",
            "recent",
            "report.describing",
            "report.explanation",
            "request",
            "run_seconds",
            "schedule.placement",
            "tiling.plan",
        },
        set(),
    ),
    "api": (
        {
            "_compat.dask",
            "capture.undeclared",
            "cluster.located",
            "cluster.target",
            "collections.building",
            "collections.rechunked",
            "collections.unpack",
            "config",
            "errors",
            "explaining",
            "pipeline",
            "needs",
            "planning",
            "refusal",
            "report.comparison",
            "report.describing",
            "report.explanation",
            "request",
            "tiling",
        },
        {"dask"},
    ),
    "explaining": (
        {
            "capture.references",
            "lower.names",
            "_compat.dask",
            "choice",
            "cluster.located",
            "cluster.target",
            "collections.boundary",
            "config",
            "ir",
            "needs",
            "planning",
            "predicted",
            "prediction",
            "report.explanation",
            "request",
            "returned",
            "run_seconds",
            "schedule.placement",
            "tiling.plan",
        },
        {"dask"},
    ),
    "run_seconds": (
        {
            "capture.culling",
            "cluster.target",
            "guard",
            "ir",
            "lower.count",
            "needs",
            "planning",
            "prediction",
            "request",
            "tiling.objective",
            "tiling.plan",
        },
        set(),
    ),
    "diagnosing": (
        {
            "errors",
            "_compat.dask",
            "_compat.distributed",
            "_compat.expressions",
            "capture.expressions",
            "capture.undeclared",
            "cluster.clients",
            "cluster.target",
            "config",
            "explaining",
            "report.diagnosis",
            "report.explanation",
            "report.formatting",
            "runtime.meter",
            "tiling",
        },
        {"dask", "distributed"},
    ),
    "script": ({"api", "doctor", "report.explanation"}, set()),
    "doctor": (
        {
            "_compat.dask",
            "_compat.distributed",
            "cluster.clients",
            "config",
            "report.formatting",
            "report.tables",
            "runtime.install",
            "tiling.calibration",
        },
        {"dask", "distributed"},
    ),
    "report.tables": ({"report.formatting"}, set()),
    "report.layer_names": ({"schedule.placement"}, set()),
    "report.cluster_counts": (
        {
            "report.formatting",
            "report.html",
            "report.layer_names",
            "report.page",
            "report.tables",
        },
        set(),
    ),
    "report.diagnosis": (
        {
            "ir",
            "report.explanation",
            "report.formatting",
            "report.html",
            "report.page",
            "report.summary",
            "report.tables",
        },
        set(),
    ),
    "runtime.meter": ({"_compat.distributed"}, {"dask", "distributed", "psutil"}),
    "computing": (
        {
            "errors",
            "api",
            "cluster.target",
            "collections.containers",
            "runtime.results",
            "schedule.placement",
        },
        {"dask", "distributed", "rich"},
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
            "_compat.distributed",
            "runtime.scheduler.dashboard",
            "runtime.scheduler.left",
            "runtime.scheduler.members",
            "runtime.scheduler.placing",
            "runtime.scheduler.prometheus",
            "runtime.scheduler.replicas",
            "runtime.scheduler.roots",
            "runtime.scheduler.rows",
            "runtime.scheduler.stealing",
            "runtime.scheduler.windows",
            "runtime.nextuse",
            "runtime.scheduler.priorities",
            "runtime.settings",
            "runtime.worker.plugin",
            "schedule.homes",
            "schedule.ranks",
        },
        {"distributed"},
    ),
    "runtime.scheduler.members": (
        {"_compat.distributed", "schedule.homes", "schedule.placement"},
        {"distributed"},
    ),
    "runtime.scheduler.joins": (
        {
            "_compat.distributed",
            "runtime.scheduler.roots",
            "runtime.settings",
            "schedule.homes",
            "schedule.joining",
        },
        {"distributed"},
    ),
    "runtime.scheduler.placing": (
        {
            "_compat.dask",
            "_compat.distributed",
            "lower.bundle_tasks",
            "runtime.scheduler.joins",
            "runtime.scheduler.priorities",
            "runtime.scheduler.roots",
            "runtime.scheduler.windows",
            "runtime.settings",
            "schedule.families",
            "schedule.homes",
            "schedule.joining",
            "schedule.placement",
        },
        {"distributed"},
    ),
    "runtime.results": (
        {"lower.bundle_tasks", "lower.gathered"},
        {"dask", "distributed", "numpy"},
    ),
    "runtime.settings": ({"schedule.families", "schedule.joining"}, set()),
    "runtime.scheduler.left": ({"runtime.settings", "runtime.worker.plugin"}, set()),
    "runtime.scheduler.priorities": ({"_compat.distributed", "schedule.ranks"}, set()),
    "runtime.scheduler.windows": ({"_compat.distributed", "runtime.settings"}, {"distributed"}),
    "runtime.scheduler.replicas": ({"_compat.distributed"}, {"distributed"}),
    "runtime.tiers": (
        {
            "_compat.distributed",
            "runtime.tiers.base",
            "runtime.tiers.disk",
            "runtime.tiers.host",
            "runtime.tiers.spare",
        },
        {"numpy"},
    ),
    "runtime.tiers.spare": (set(), {"psutil"}),
    "runtime.tiers.host": (
        {"_compat.distributed", "runtime.tiers.base"},
        {"dask", "numpy"},
    ),
    "runtime.tiers.cuda": (
        {
            "_compat.distributed",
            "runtime.tiers.base",
            "runtime.tiers.host",
            "runtime.tiers.rmm",
        },
        {"cupy", "numpy"},
    ),
    "testing.emulated": (
        {
            "_compat.distributed",
            "runtime.tiers.base",
            "runtime.tiers.host",
            "testing.emulated_array",
        },
        {"dask", "numpy"},
    ),
    "testing.emulated_array": (set(), {"numpy"}),
    "runtime.worker.copies": (
        {
            "_compat.distributed",
            "report.formatting",
            "runtime.engine",
            "runtime.settings",
            "runtime.tiers",
            "runtime.worker.buffers",
            "runtime.worker.units",
            "schedule.instructions",
            "schedule.residency",
        },
        set(),
    ),
    "runtime.worker.values": (
        {
            "_compat.distributed",
            "runtime.settings",
            "runtime.tiers",
            "runtime.worker.buffers",
            "runtime.worker.copies",
            "runtime.worker.units",
            "schedule.instructions",
            "schedule.tracking",
        },
        set(),
    ),
    "runtime.worker.reads": (
        {
            "runtime.settings",
            "runtime.tiers",
            "runtime.worker.units",
            "runtime.worker.values",
            "schedule.instructions",
        },
        set(),
    ),
    "runtime.worker.store": (
        {
            "_compat.distributed",
            "runtime.settings",
            "runtime.tiers",
            "runtime.worker.buffers",
            "runtime.worker.copies",
            "runtime.worker.reads",
            "runtime.worker.units",
            "schedule.instructions",
            "schedule.tracking",
        },
        {"numpy"},
    ),
    "runtime.worker.memory_budget": (
        {
            "_compat.distributed",
            "report.formatting",
            "runtime.settings",
            "runtime.worker.store",
            "schedule.budget",
        },
        {"distributed"},
    ),
    "runtime.worker.spilling": (
        {
            "_compat.distributed",
            "runtime.failures",
            "runtime.nextuse",
            "runtime.settings",
            "runtime.worker.memory_budget",
            "runtime.worker.reads",
            "runtime.worker.store",
            "runtime.worker.takeover",
            "runtime.worker.values",
            "schedule.patience",
        },
        {"dask", "distributed", "tornado"},
    ),
    "runtime.worker.data": (
        {
            "errors",
            "_compat.distributed",
            "config",
            "runtime.worker.store",
            "runtime.worker.takeover",
            "runtime.settings",
            "runtime.tiers",
            "schedule.instructions",
        },
        {"dask", "distributed"},
    ),
    "runtime.failures": (set(), set()),
    "runtime.worker.takeover": (
        {
            "_compat.dask_cuda",
            "_compat.distributed",
            "runtime.tiers",
            "runtime.worker.reads",
            "runtime.worker.store",
        },
        set(),
    ),
    "runtime.worker.buffers": (set(), {"numpy"}),
    "runtime.worker.units": (
        {"runtime.engine", "runtime.tiers", "runtime.worker.buffers", "schedule.tracking"},
        set(),
    ),
    "runtime.nextuse": (
        {"_compat.distributed", "runtime.settings", "schedule.instructions"},
        set(),
    ),
    "runtime.scheduler.rows": (
        {
            "_compat.dask",
            "_compat.merged_parts",
            "lower.bundle_tasks",
            "lower.names",
            "runtime.scheduler.roots",
            "schedule.homes",
            "schedule.placement",
            "schedule.ranks",
        },
        {"distributed"},
    ),
    "runtime.scheduler.roots": (
        {
            "_compat.distributed",
            "runtime.scheduler.slots",
            "runtime.settings",
            "schedule.families",
            "schedule.joining",
        },
        {"distributed"},
    ),
    "runtime.scheduler.slots": ({"_compat.distributed"}, {"distributed"}),
    "runtime.scheduler.stealing": (
        {
            "_compat.distributed",
            "runtime.scheduler.priorities",
            "runtime.scheduler.roots",
            "runtime.settings",
            "schedule.stealing",
        },
        {"distributed"},
    ),
    "runtime.install": (
        {
            "errors",
            "_compat.distributed",
            "capture.user_kernels",
            "cluster.clients",
            "config",
            "runtime.scheduler.plugin",
            "runtime.worker.data",
            "runtime.worker.plugin",
        },
        {"distributed"},
    ),
    "preload": (
        {
            "_compat.distributed",
            "runtime.install",
            "runtime.scheduler.plugin",
            "runtime.worker.data",
            "runtime.worker.plugin",
        },
        {"distributed"},
    ),
    "runtime.worker.plugin": (
        {
            "_compat.flox",
            "_compat.distributed",
            "runtime.failures",
            "runtime.settings",
            "runtime.worker.spilling",
            "runtime.worker.takeover",
            "runtime.worker.data",
            "lower.bundle_tasks",
            "schedule.placement",
        },
        {"distributed"},
    ),
    "cluster.clients": (set(), {"distributed"}),
    "runtime.metrics": (
        {
            "errors",
            "_compat.distributed",
            "report.cluster_counts",
            "report.explanation",
            "report.layer_names",
            "cluster.clients",
            "runtime.worker.plugin",
        },
        {"distributed"},
    ),
    "runtime.scheduler.dashboard": (
        {
            "_compat.distributed",
            "report.axes",
            "report.formatting",
            "report.layer_names",
            "report.palette",
            "runtime.metrics",
            "runtime.worker.plugin",
        },
        {"bokeh", "distributed"},
    ),
    "cluster.calibration": (
        {
            "errors",
            "_compat.dask",
            "_compat.distributed",
            "cluster.clients",
            "cluster.settings",
            "cluster.target",
            "tiling.calibration",
        },
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
            "orders.schedule_plan",
            "report.explanation",
            "cluster.calibration",
            "computing",
            "defaults",
            "diagnosing",
            "runtime.install",
            "runtime.metrics",
            "runtime.worker.data",
            "tiling",
        },
        set(),
    ),
    "__main__": ({"", "demo", "doctor", "script"}, {"dask"}),
    "dask_command": ({"__main__"}, {"click"}),
    "demo": (
        {"", "report.formatting"},
        {"dask", "distributed", "numpy", "psutil", "rich", "zarr"},
    ),
}

#: Parts that may import further modules within functions.
LATE = {
    "__main__",
    "_compat.distributed",
    "report.svg",
    "runtime.scheduler.dashboard",
    "runtime.install",
    "runtime.meter",
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
    parts = [part for part in TABLE if part and (module + ".").startswith(part + ".")]
    return max(parts, key=len, default="")


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


@cache
def reached(module: str, packages: tuple[str, ...] = ("dask", "distributed")) -> frozenset[str]:
    """Full names in other packages that a module imports, or reaches as attributes of modules."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    #: What a name of this module is bound to.
    bound: dict[str, str] = {}
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in packages:
                    names.add(alias.name)
                    first = alias.name.split(".")[0]
                    bound[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in packages:
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                names.add(f"{node.module}.{alias.name}")

    def path(node: ast.AST) -> str:
        match node:
            case ast.Name(id=name):
                return bound.get(name, "")
            case ast.Attribute(value=value, attr=name):
                return f"{path(value)}.{name}" if path(value) else ""
            case ast.Call(func=ast.Name(id="getattr"), args=[value, ast.Constant(value=name), *_]):
                return f"{path(value)}.{name}" if path(value) else ""
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
                called = ast.unparse(function).rpartition(".")[2]
                known = called in ("import_module", "__import__", "importorskip")
                return name if known and name.split(".")[0] in packages else ""
        return ""

    names.update(name for node in ast.walk(tree) if (name := path(node)))
    return frozenset(names)


def is_private(name: str) -> bool:
    parts = [part for part in name.split(".") if not part.startswith("__")]
    return any(part.startswith("_") for part in parts) or any(
        name == entry.path or name.startswith(f"{entry.path}.") for entry in NAMES
    )


@pytest.mark.parametrize("module", MODULES)
def test_private_names_of_dask_are_imported_in_one_place(module: str) -> None:
    if part_of(module).split(".")[0] != "_compat":
        assert {name for name in reached(module) if is_private(name)} == set()


def test_private_names_are_noticed_however_they_are_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "example.py"
    file.write_text(
        "import dask.array as da\n"
        "import dask.array.core\n"
        "from importlib import import_module\n"
        "from dask.array import _shuffle, chunk\n"
        "from dask._task_spec import Task as T\n"
        "da.routines._matmul; dask.array.core._enforce_dtype; chunk.sum; da.sum\n"
        "getattr(da.reductions, '_sqrt', None); import_module('dask.array.ma')._chunk_count\n"
    )
    monkeypatch.setitem(MODULES, "example", file)
    assert {name for name in reached("example") if is_private(name)} == {
        "dask._task_spec.Task",
        "dask.array._shuffle",
        "dask.array.chunk.sum",
        "dask.array.core._enforce_dtype",
        "dask.array.ma._chunk_count",
        "dask.array.reductions._sqrt",
        "dask.array.routines._matmul",
    }


def test_no_cycles() -> None:
    graph = {module: imports(module)[0] - {module} for module in MODULES if module != "demo"}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other: {error.args[1]}")


def test_importing_dasktile_does_not_start_distributed() -> None:
    code = "import sys, dasktile; assert 'distributed' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


#: What is documented of distributed, and may be imported anywhere.
DOCUMENTED = {
    *("Client", "LocalCluster", "Scheduler", "SchedulerPlugin", "Status", "Worker"),
    *("WorkerPlugin", "default_client", "wait", "Future", "as_completed", "futures_of"),
    "get_worker",
}

#: What objects of distributed are called.
OF_DISTRIBUTED = {
    *("client", "scheduler", "worker", "dask_scheduler", "dask_worker", "server", "manager"),
    *("state", "ts", "ws", "task", "handlers", "stream_handlers", "worker_restrictions"),
}

#: States of tasks; "memory", "waiting", "released" and others are words of dasktile's, too.
STATES = {"no-worker", "processing", "queued", "erred", "executing", "long-running", "flight"}

OUTSIDE_COMPAT = [name for name in MODULES if not name.startswith("_compat")]


def names_in(node: ast.expr) -> set[str]:
    """All names on the way to an attribute or item: of ``self.a.b["c"].d``, self, a and b."""
    names = set()
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
        if isinstance(node, ast.Attribute):
            names.add(node.attr.removeprefix("_"))
    return names | ({node.id} if isinstance(node, ast.Name) else set())


def touches_of_distributed(tree: ast.Module) -> list[tuple[int, str]]:
    """Lines that use what is not documented of distributed, as far as names tell."""
    uses = []
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        bad = False
        match node:
            case ast.Import(names=names):
                bad = any(each.name.startswith("distributed.") for each in names)
            case ast.ImportFrom(module=str(module), names=names):
                inside = module.startswith("distributed.")
                unknown = {each.name for each in names} - DOCUMENTED
                bad = (inside or (module == "distributed" and bool(unknown))) and (
                    node not in typing_only
                )
            case ast.Attribute(value=value, attr=attr):
                private = attr.startswith("_") and not attr.startswith("__")
                own = isinstance(value, ast.Name) and value.id in ("self", "cls")
                bad = private and not own and bool(names_in(node) & OF_DISTRIBUTED)
                changed = isinstance(node.ctx, (ast.Store, ast.Del))
                bad |= changed and bool(names_in(node) & OF_DISTRIBUTED)
            case ast.Subscript(ctx=ast.Store() | ast.Del()):
                bad = bool(names_in(node) & OF_DISTRIBUTED)
            case ast.Call(func=ast.Name(id="getattr" | "setattr" | "delattr"), args=[of, name, *_]):
                of_distributed = names_in(ast.Attribute(of, "")) & OF_DISTRIBUTED
                constant = isinstance(name, ast.Constant) and str(name.value)
                bad = bool(of_distributed and (not constant or constant.startswith("_")))
            case ast.Constant(value=str(value)):
                bad = value in STATES
        if bad:
            uses.append((node.lineno, ast.unparse(node)))
    return uses


@pytest.mark.parametrize(
    "module",
    [
        name
        for name in OUTSIDE_COMPAT
        if name.startswith(("runtime", "cluster", "preload", "testing", "orders"))
    ],
)
def test_what_is_undocumented_of_distributed_is_used_in_one_place(module: str) -> None:
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    assert touches_of_distributed(tree) == []


@pytest.mark.parametrize(
    "line",
    [
        "import distributed.spill",
        "from distributed.spill import SpillBuffer",
        "from distributed import system",
        "since = self.scheduler._no_workers_since",
        "ts._queueable",
        "worker.execute = self.execute",
        "worker.handlers['get_data'] = self.get_data",
        "self.worker.memory_manager.data = store",
        "del worker.handlers['get_data']",
        "ts.priority = (0, 1)",
        "getattr(scheduler, '_no_workers_since', None)",
        "setattr(worker, name, function)",
        "ts.state == 'no-worker'",
    ],
)
def test_use_of_what_is_undocumented_is_noticed(line: str) -> None:
    assert touches_of_distributed(ast.parse(line))


def test_annotations_are_for_users_too() -> None:
    assert (ROOT / "py.typed").exists()
