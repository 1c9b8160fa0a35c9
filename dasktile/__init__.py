"""Chooses the tiles of all arrays of a Dask expression together, and the workers that hold them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dasktile.algebra.einsum import einsum
from dasktile.api import array_optimize, compare, explain, optimize
from dasktile.capture.user_kernels import register_kernel
from dasktile.report.comparison import Comparison
from dasktile.report.explanation import Explanation
from dasktile.tiling import MemoryLimitError

if TYPE_CHECKING:
    from dasktile.cluster.calibration import calibrate
    from dasktile.computing import compute
    from dasktile.diagnosing import diagnose
    from dasktile.orders.plan import SchedulePlan, load_plan, plan
    from dasktile.runtime.install import disable, enable
    from dasktile.runtime.metrics import metrics
    from dasktile.runtime.worker.data import worker_data

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

#: Names imported on first use, with their modules: importing distributed is slow, and every process
#: of a cluster imports this package.
_LAZY = {
    "SchedulePlan": "dasktile.orders.plan",
    "calibrate": "dasktile.cluster.calibration",
    "compute": "dasktile.computing",
    "diagnose": "dasktile.diagnosing",
    "disable": "dasktile.runtime.install",
    "enable": "dasktile.runtime.install",
    "load_plan": "dasktile.orders.plan",
    "metrics": "dasktile.runtime.metrics",
    "plan": "dasktile.orders.plan",
    "worker_data": "dasktile.runtime.worker.data",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
