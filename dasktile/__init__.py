"""Decides how the arrays of a Dask expression are cut into tiles, and where they live."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dasktile.api import array_optimize, compare, explain, optimize
from dasktile.capture.registry import register_kernel
from dasktile.comparison import Comparison
from dasktile.einsum import einsum
from dasktile.report import Explanation
from dasktile.tiling import MemoryLimitError

if TYPE_CHECKING:
    from dasktile.plans import SchedulePlan, load_plan, plan
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

#: What is imported when it is asked for: distributed takes longer than all the rest, and every
#: process of a cluster imports this package.
_LATER = {
    "SchedulePlan": "dasktile.plans",
    "calibrate": "dasktile.runtime.calibration",
    "disable": "dasktile.runtime.install",
    "enable": "dasktile.runtime.install",
    "load_plan": "dasktile.plans",
    "metrics": "dasktile.runtime.metrics",
    "plan": "dasktile.plans",
    "worker_data": "dasktile.runtime.worker_data",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
