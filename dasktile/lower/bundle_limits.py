"""What may be bundled, and what the plan knows of the tasks that may be."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dasktile.ir import ArrayType, Chunks
from dasktile.lower.settings import DEFAULTS, LowerSettings
from dasktile.schedule.placement import Placement

Key = Any


@dataclass(frozen=True, slots=True)
class BundleLimits:
    """What may be bundled.

    Parameters
    ----------
    mesh
        Sizes of the axes of the worker mesh; empty where all tasks run in one process.
    size
        Bytes of one result, by the name of its layer or the last part of that name.
    free
        Names of layers that are on every worker: the array-likes that are read.
    tasks
        Tasks that one bundle runs at most; less than 2 disables bundles.
    work
        Bytes of a bundle's inputs and of its results that are in memory at the same time.
    threads
        Tasks that a worker runs at once.
    positions
        By the token of an array whose name has no placement, the mesh positions of its blocks:
        persisted arrays, and arrays of the input graph.  So have tasks that read data in memory, by
        the first item of their keys and the rest, which is empty for a key that is a string.
    placements
        By the name of a layer without a placement, the one that the plan gives it.
    named
        By the name of an output that it must have, that of the layer whose tiles its blocks are,
        which may have a placement.
    tables
        For meshes of other plans, by their number of positions: the mesh position that has each of
        theirs.  Tasks of meshes without a table have no place.
    tiles
        By the name of a layer that holds an array, its chunks and the bytes of an element.
    shapes
        By the key of an array in memory that is not of the graph, its shape and type.
    inner
        By the key of a task, bytes of its result, where these are known by its key only.
    working
        By key of a task, bytes that it holds while it runs, besides its inputs and its result.
    gathered
        Names of the layers of outputs whose blocks the client takes out of tuples.
    unknown
        Names of layers whose tasks call functions of which it is unknown how long they take.
    settings
        Numbers of the policy.
    planned_for
        Number of workers of the plan, see :class:`~dasktile.ir.TiledProgram`.
    """

    mesh: tuple[int, ...]
    size: Mapping[str, int]
    free: Collection[str]
    tasks: int
    work: int
    threads: int = 1
    positions: Mapping[str, Mapping[tuple[int, ...], int]] = field(default_factory=dict)
    placements: Mapping[str, Placement] = field(default_factory=dict)
    named: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[int, Sequence[int]] = field(default_factory=dict)
    tiles: Mapping[str, tuple[Chunks, float]] = field(default_factory=dict)
    shapes: Mapping[Key, ArrayType] = field(default_factory=dict)
    inner: Mapping[Key, int] = field(default_factory=dict)
    working: Mapping[Key, int] = field(default_factory=dict)
    gathered: Collection[str] = ()
    unknown: Collection[str] = ()
    settings: LowerSettings = DEFAULTS
    planned_for: int | None = None
