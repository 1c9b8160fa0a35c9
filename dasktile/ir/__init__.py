"""Programs before and after tiling, as values of sizes and names.

``program`` describes what is computed; ``tiled`` describes how every array is cut and placed.
"""

from dasktile.ir.program import (
    MAX_WORKERS,
    AxisMap,
    Chunks,
    Edge,
    Kind,
    Label,
    Node,
    Program,
    Role,
    Window,
    bounds,
    output_chunks,
    validate,
    windows,
)
from dasktile.ir.tiled import Follow, Share, TiledProgram, Tiling, Where

__all__ = [
    "MAX_WORKERS",
    "AxisMap",
    "Chunks",
    "Edge",
    "Follow",
    "Kind",
    "Label",
    "Node",
    "Program",
    "Role",
    "Share",
    "TiledProgram",
    "Tiling",
    "Where",
    "Window",
    "bounds",
    "output_chunks",
    "validate",
    "windows",
]
