"""Decides how the arrays of a Dask expression are cut into tiles, and where they live."""

from __future__ import annotations

from dasktile.api import array_optimize, explain, optimize
from dasktile.capture.registry import register_kernel
from dasktile.report import Explanation
from dasktile.tiling import MemoryLimitError

__version__ = "0.1.0"

__all__ = [
    "Explanation",
    "MemoryLimitError",
    "__version__",
    "array_optimize",
    "explain",
    "optimize",
    "register_kernel",
]
