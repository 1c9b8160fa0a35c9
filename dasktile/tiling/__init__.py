"""Program to tiled program: how every array is cut, and what that moves."""

from dasktile.tiling.crop import crop, is_all_needed, needed_ranges
from dasktile.tiling.growth import FEW_TASKS, TooManyTasksError, least_tasks, most_tasks
from dasktile.tiling.methods import methods
from dasktile.tiling.methods.exhaustive import TooManyTilingsError
from dasktile.tiling.needed import (
    contains_unneeded,
    cut_where_needed,
    may_be_culled,
)
from dasktile.tiling.plan import Price, TilingPlan
from dasktile.tiling.planner import MemoryLimitError, tile
from dasktile.tiling.settings import Settings
from dasktile.tiling.uncrop import uncropped

__all__ = [
    "FEW_TASKS",
    "MemoryLimitError",
    "Price",
    "Settings",
    "TilingPlan",
    "TooManyTasksError",
    "TooManyTilingsError",
    "contains_unneeded",
    "crop",
    "cut_where_needed",
    "is_all_needed",
    "least_tasks",
    "may_be_culled",
    "methods",
    "most_tasks",
    "needed_ranges",
    "tile",
    "uncropped",
]
