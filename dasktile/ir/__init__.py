"""Programs before and after tiling, as values of sizes and names.

``program`` describes what is computed, ``sharding`` how workers divide an array or the work on it,
``tiled`` how every array is cut and placed, and ``handover`` where an array is cut into the chunks
that it must have.
"""

from dasktile.ir.handover import Handover, are_cut, hand_over, hand_over_evenly
from dasktile.ir.program import (
    ALREADY_TILED,
    MAX_WORKERS,
    ArrayType,
    AxisMap,
    Chunks,
    Edge,
    Groups,
    Kind,
    Label,
    Node,
    Picks,
    Program,
    Range,
    Ranges,
    Role,
    Window,
    axis_ranges,
    bounds,
    output_chunks,
    validate,
    windows,
)
from dasktile.ir.sharding import (
    Follow,
    Sharding,
    Share,
    Where,
    by_position,
    near_even,
    workers_of_positions,
)
from dasktile.ir.tiled import TiledProgram, Tiling

__all__ = [
    "ALREADY_TILED",
    "MAX_WORKERS",
    "ArrayType",
    "AxisMap",
    "Chunks",
    "Edge",
    "Follow",
    "Groups",
    "Handover",
    "Kind",
    "Label",
    "Node",
    "Picks",
    "Program",
    "Range",
    "Ranges",
    "Role",
    "Sharding",
    "Share",
    "TiledProgram",
    "Tiling",
    "Where",
    "Window",
    "are_cut",
    "axis_ranges",
    "bounds",
    "by_position",
    "hand_over",
    "hand_over_evenly",
    "near_even",
    "output_chunks",
    "validate",
    "windows",
    "workers_of_positions",
]
