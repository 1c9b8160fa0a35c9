"""How one node is written as dask layers: what a writer is given and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

from dask.highlevelgraph import HighLevelGraph

from dasktile.ir import Chunks, Follow, Node, Share, Tiling, Where
from dasktile.lower.names import inner
from dasktile.schedule.placement import Placement, token


@dataclass(frozen=True, slots=True)
class Emission:
    """What the writer of one node needs.

    Parameters
    ----------
    node, tiling
        The operation and how it is cut.
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
        windows per axis, which the framework writes at most once.  For writers whose
        blocks are not the labels' blocks.  No window may be empty.  `where` says where
        these windows are needed, None if that is not known.
    graph
        The graph captured from.
    mesh
        Sizes of the axes of the worker mesh that ``tiling.mesh`` is about.
    leader
        The array in memory that the node follows, if it does.
    copied
        Edges of which every worker has copies of its own: their keys are
        ``(inputs[e], place, *block)``, with the :meth:`owner` of the reader's block.
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

    @property
    def work_at(self) -> Where:
        """Where the blocks of the loop nest are; all on one worker, if nobody decided."""
        return self.tiling.work_at or (Share(),) * len(self.node.labels)

    @property
    def held_at(self) -> Where:
        """The same for the blocks of the output array."""
        return self.tiling.held_at or (Share(),) * len(self.node.shape)

    @property
    def ends_at(self) -> Where:
        """For an index over the labels, where the finished result of each block is."""
        seen = {axis.label: at for at, axis in enumerate(self.node.out) if axis.label is not None}
        held = self.held_at
        if isinstance(held, Follow):
            places = {at: label for label, at in seen.items()}
            dims = (None if dim is None else places.get(dim) for dim in held.dims)
            return Follow(held.array, held.node, tuple(dims))
        return tuple(
            held[seen[label]] if label in seen else Share()
            for label in range(len(self.node.labels))
        )

    def step(self, what: str, where: Where | None) -> str:
        """The name of a layer on the way, whose blocks are `where`."""
        decided = None if where is None else self.tiling.held_at
        return inner(self.name, what, placement(self.mesh, decided, where or ()))

    def owner(self, block: Sequence[int]) -> int:
        """Place in the mesh of the worker that does a block of the loop nest."""
        return owner(self.mesh, self.work_at, self.leader, block)


def placement(
    mesh: tuple[int, ...], decided: Where | None, where: Where, predicted: int = 0
) -> Placement | None:
    """A placement, where there is a mesh and somebody decided."""
    if not mesh or decided is None:
        return None
    if isinstance(where, Follow):
        return Placement(mesh, (), predicted, (token(where.array), where.dims))
    return Placement(mesh, where, predicted)


def owner(mesh: tuple[int, ...], work_at: Where, leader: Node | None, block: Sequence[int]) -> int:
    """Place in the mesh of the worker that does a block of a loop nest."""
    if not isinstance(work_at, Follow):
        return Placement(mesh, work_at).position(block)
    if leader is None or leader.homes is None:
        return 0
    place = 0
    for dim, sizes in zip(work_at.dims, leader.chunks, strict=True):
        place = place * len(sizes) + (0 if dim is None else block[dim])
    return leader.homes[place][0] if leader.homes[place] else 0


@dataclass(slots=True)
class Emitted:
    """Layers written for one node, and the layers each of them reads."""

    layers: dict[str, Mapping[Any, Any]] = field(default_factory=dict)
    dependencies: dict[str, set[str]] = field(default_factory=dict)

    def add(self, name: str, layer: Mapping[Any, Any], reads: set[str]) -> None:
        self.layers[name] = layer
        self.dependencies[name] = reads


@singledispatch
def emit(kernel: Any, emission: Emission) -> Emitted:
    """Write one node; implementations register themselves by the kernel's class."""
    raise TypeError(f"no lowering is registered for kernels of type {type(kernel).__name__}")


__all__ = ["Chunks", "Emission", "Emitted", "emit", "owner", "placement"]
