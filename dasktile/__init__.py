"""Chooses the tiles of all arrays of a Dask expression together, and the workers that hold them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dasktile import defaults as _defaults  # noqa: F401  (registers the settings)

if TYPE_CHECKING:
    from dasktile.algebra.einsum import einsum
    from dasktile.api import array_optimize, compare, explain, optimize
    from dasktile.capture.user_kernels import register_kernel
    from dasktile.cluster.calibration import calibrate
    from dasktile.computing import compute
    from dasktile.diagnosing import diagnose
    from dasktile.orders.plan import plan
    from dasktile.orders.schedule_plan import SchedulePlan, load_plan
    from dasktile.report.comparison import Comparison
    from dasktile.report.explanation import Explanation
    from dasktile.runtime.install import disable, enable
    from dasktile.runtime.metrics import metrics
    from dasktile.runtime.worker.data import worker_data
    from dasktile.tiling import MemoryLimitError

    __version__: str

__all__ = [
    "Comparison",
    "Explanation",
    "MemoryLimitError",
    "SchedulePlan",
    "__version__",
    "array_optimize",
    "calibrate",
    "compare",
    "compute",
    "diagnose",
    "disable",
    "einsum",
    "enable",
    "explain",
    "load_plan",
    "metrics",
    "optimize",
    "plan",
    "register_kernel",
    "worker_data",
]

#: Names imported on first use, with their modules: importing dask.array and distributed is slow,
#: and the command ``dask`` and every process of a cluster import this package.
_LAZY = {
    "Comparison": "dasktile.report.comparison",
    "Explanation": "dasktile.report.explanation",
    "MemoryLimitError": "dasktile.tiling",
    "SchedulePlan": "dasktile.orders.schedule_plan",
    "array_optimize": "dasktile.api",
    "calibrate": "dasktile.cluster.calibration",
    "compare": "dasktile.api",
    "compute": "dasktile.computing",
    "diagnose": "dasktile.diagnosing",
    "disable": "dasktile.runtime.install",
    "einsum": "dasktile.algebra.einsum",
    "enable": "dasktile.runtime.install",
    "explain": "dasktile.api",
    "load_plan": "dasktile.orders.schedule_plan",
    "metrics": "dasktile.runtime.metrics",
    "optimize": "dasktile.api",
    "plan": "dasktile.orders.plan",
    "register_kernel": "dasktile.capture.user_kernels",
    "worker_data": "dasktile.runtime.worker.data",
}

#: Modules that users reach as attributes of the package, imported on first use.
_MODULES = ("doctor", "errors", "testing", "tiling")

#: The version of a tree that was never installed, as ``fallback-version`` in pyproject.toml.
_FALLBACK_VERSION = "0.1.0.dev0"


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def _version() -> str:
    """The version of the installed distribution; looked up on first use, as it reads files."""
    metadata = import_module("importlib.metadata")
    try:
        version: str = metadata.version("dasktile")
    except metadata.PackageNotFoundError:
        version = _FALLBACK_VERSION
    globals()["__version__"] = version
    return version


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_MODULES, "__version__"})
