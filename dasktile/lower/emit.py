"""Writing one node as dask layers: the argument of a writer, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, singledispatch
from typing import Any

from dask.highlevelgraph import HighLevelGraph

from dasktile.ir import Chunks, Follow, Node, Sharding, Tiling, Where
from dasktile.lower.names import step_layer_name
from dasktile.lower.settings import DEFAULTS, LowerSettings
from dasktile.schedule.placement import Leader, Placement, token


@dataclass(frozen=True)
class LoweringContext:
    """A node to write, its tiling, and the layers that it reads.

    Parameters
    ----------
    node, tiling
        The operation, and the tiles of it.
    name
        The layer to write.  Its keys are ``(name, *block)`` over ``tiling.chunks``.
    inputs
        For every edge, the name of a layer that holds what each block of this node
        needs: along an axis whose map has a label, block ``b`` of the layer is the
        window (see :func:`dasktile.ir.windows`) of block ``b`` of that label; an axis
        without a label has one block, the whole axis.  So the key to read is
        ``(inputs[e], *(block[axis.label] if axis.label is not None else 0 ...))``.
        For an edge with `chunks` the layer simply has those chunks.
    fetch
        ``fetch(edge, windows, where)`` returns the name of a layer that holds the array
        of that edge (an index into ``node.edges``) cut by other windows, one tuple of
        windows per axis.  It is written at most once.  For writers whose blocks are not the
        labels' blocks.  No window may be empty.  `where` is the workers that need the
        windows, None if that is unknown.
    graph
        The input graph.
    mesh
        Sizes of the axes of the worker mesh to which the shardings refer.
    leader
        The persisted array that the node follows, None if it follows none.
    copied
        Edges whose arrays have a copy for each worker: their keys are
        ``(inputs[e], place, *block)``, with the :meth:`home_position` of the reader's block.
    homes
        By the name of an array of the input graph, where the plan holds its blocks.
    settings
        Numbers of the policy by which tasks are written.
    planned_for
        Number of workers of the plan, see :class:`~dasktile.ir.TiledProgram`.
    """

    node: Node
    tiling: Tiling
    name: str
    inputs: tuple[str, ...]
    fetch: Callable[[int, tuple[tuple[tuple[int, int, int], ...], ...], Where | None], str]
    graph: HighLevelGraph
    mesh: tuple[int, ...] = ()
    leader: Node | None = None
    copied: frozenset[int] = frozenset()
    homes: Mapping[str, Placement] = field(default_factory=dict)
    settings: LowerSettings = DEFAULTS
    planned_for: int | None = None

    @property
    def work_at(self) -> Where:
        """Where the blocks of the loop nest run; all on one worker, if the plan has no mesh."""
        return work_at(self.tiling)

    @property
    def held_at(self) -> Where:
        """Where the blocks of the output array are, likewise."""
        return self.tiling.held_at or Sharding.on_one(len(self.node.shape))

    @property
    def result_at(self) -> Where:
        """Where the final result of each block is, for an index over the labels."""
        dims_of = {
            axis.label: dim for dim, axis in enumerate(self.node.out) if axis.label is not None
        }
        return self.held_at.seen([dims_of.get(label) for label in range(len(self.node.labels))])

    def step(self, step: str, where: Where | None) -> str:
        """The name of the layer of an intermediate step, whose blocks are `where`."""
        return step_layer(self.name, step, self.mesh, self.tiling, where, self.planned_for)

    @cached_property
    def home_position(self) -> Callable[[Sequence[int]], int]:
        """Position in the mesh of the home worker of a block of the loop nest."""
        return home_position(self.mesh, self.work_at, self.leader)


def work_at(tiling: Tiling) -> Where:
    """Where the blocks of a loop nest run; all on one worker, if the plan has no mesh."""
    return tiling.work_at or Sharding.on_one(len(tiling.cuts))


def step_layer(
    name: str,
    step: str,
    mesh: tuple[int, ...],
    tiling: Tiling,
    where: Where | None,
    planned_for: int | None = None,
) -> str:
    """The name of the layer of an intermediate step of layer `name`, whose blocks are `where`."""
    decided = None if where is None else tiling.held_at
    return step_layer_name(name, step, placement(mesh, decided, where, 0, planned_for))


def placement(
    mesh: tuple[int, ...],
    decided: Where | None,
    where: Where | None,
    predicted: int = 0,
    planned_for: int | None = None,
) -> Placement | None:
    """A placement; None where there is no mesh, or the plan decides none (`decided`)."""
    if not mesh or decided is None:
        return None
    if isinstance(where, Follow):
        leader = Leader(token(where.array), where.dims, where.numbers)
        return Placement(mesh, Sharding(), predicted, leader, planned_for)
    return Placement(mesh, where or Sharding(), predicted, None, planned_for)


def home_position(
    mesh: tuple[int, ...], work_at: Where, leader: Node | None = None
) -> Callable[[Sequence[int]], int]:
    """A function: the position in the mesh of the home worker of a block of a loop nest."""
    if not isinstance(work_at, Follow):
        return Placement(mesh, work_at).position
    if leader is None or leader.homes is None:
        return lambda block: 0
    homes, numblocks = leader.homes, tuple(map(len, leader.chunks))

    def position(block: Sequence[int]) -> int:
        number = 0
        for along, count in zip(work_at.block(block), numblocks, strict=True):
            number = number * count + along
        return homes[number][0] if homes[number] else 0

    return position


@dataclass(slots=True)
class EmittedLayers:
    """The layers written for one node, and the layers that each of them reads.

    Of tasks that are copied, `heads` has the new first items of their keys by those before.
    """

    layers: dict[str, Mapping[Any, Any]] = field(default_factory=dict)
    dependencies: dict[str, set[str]] = field(default_factory=dict)
    heads: dict[Any, str] = field(default_factory=dict)

    def add(self, name: str, layer: Mapping[Any, Any], reads: set[str]) -> None:
        self.layers[name] = layer
        self.dependencies[name] = reads


@singledispatch
def emit(kernel: Any, context: LoweringContext) -> EmittedLayers:
    """Write one node; there is an implementation for each class of kernel."""
    raise TypeError(f"no lowering is registered for kernels of type {type(kernel).__name__}")


__all__ = ["Chunks", "EmittedLayers", "LoweringContext", "emit", "home_position", "placement"]
