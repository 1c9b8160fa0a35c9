"""Program to tiled program: how every array is cut, and what that moves."""

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

__all__ = [
    "MemoryLimitError",
    "Price",
    "Settings",
    "TilingPlan",
    "TooManyTilingsError",
    "contains_unneeded",
    "cut_where_needed",
    "may_be_culled",
    "methods",
    "tile",
]
