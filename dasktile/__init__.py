"""Decides how the arrays of a Dask expression are cut into tiles, and where they live."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dasktile.api import array_optimize, compare, explain, optimize
from dasktile.capture.registry import register_kernel
from dasktile.comparison import Comparison
from dasktile.einsum import einsum
from dasktile.plans import SchedulePlan, load_plan, plan
from dasktile.report import Explanation
from dasktile.tiling import MemoryLimitError

if TYPE_CHECKING:
    from dasktile.runtime.calibration import calibrate
    from dasktile.runtime.install import disable, enable
    from dasktile.runtime.metrics import metrics
    from dasktile.runtime.worker_data import worker_data

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "Explanation",
    "MemoryLimitError",
    "SchedulePlan",
    "__version__",
    "array_optimize",
    "calibrate",
    "compare",
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

#: What needs distributed, which takes longer to import than all the rest.
_OF_CLUSTERS = {
    "calibrate": "dasktile.runtime.calibration",
    "disable": "dasktile.runtime.install",
    "enable": "dasktile.runtime.install",
    "metrics": "dasktile.runtime.metrics",
    "worker_data": "dasktile.runtime.worker_data",
}


def __getattr__(name: str) -> Any:
    if name not in _OF_CLUSTERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_OF_CLUSTERS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_CLUSTERS})
