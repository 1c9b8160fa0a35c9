"""Programs before and after tiling: values made of sizes and names.

``program`` holds what is computed, ``tiled`` how every array of it is cut and where it lies.
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
