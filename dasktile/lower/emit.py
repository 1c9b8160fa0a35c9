"""How one node is written as dask layers: what a writer is given and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

from dask.highlevelgraph import HighLevelGraph

from dasktile.ir import Chunks, Node, Share, Tiling
from dasktile.lower.names import inner
from dasktile.schedule.placement import Placement


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
        ``fetch(edge, windows, shares)`` returns the name of a layer that holds the array
        of that edge (an index into ``node.edges``) cut by other windows, one tuple of
        windows per axis, which the framework writes at most once.  For writers whose
        blocks are not the labels' blocks.  No window may be empty.  `shares` says how the
        mesh divides these windows along each axis, None if that is not known.
    graph
        The graph captured from.
    mesh
        Sizes of the axes of the worker mesh that ``tiling.mesh`` is about.
    """

    node: Node
    tiling: Tiling
    name: str
    inputs: tuple[str, ...]
    fetch: Callable[
        [int, tuple[tuple[tuple[int, int, int], ...], ...], tuple[Share, ...] | None], str
    ]
    graph: HighLevelGraph
    mesh: tuple[int, ...] = ()

    @property
    def work_at(self) -> tuple[Share, ...]:
        """How the mesh divides the blocks of the labels; not at all, if nobody decided."""
        return self.tiling.work_at or (Share(),) * len(self.node.labels)

    @property
    def held_at(self) -> tuple[Share, ...]:
        """The same for the blocks of the output array."""
        return self.tiling.held_at or (Share(),) * len(self.node.shape)

    def step(self, what: str, shares: tuple[Share, ...]) -> str:
        """The name of a layer on the way, for an index whose dimensions are so divided."""
        return inner(self.name, what, placement(self.mesh, self.tiling.held_at, shares))


def placement(
    mesh: tuple[int, ...],
    decided: tuple[Share, ...] | None,
    shares: tuple[Share, ...],
    predicted: int = 0,
) -> Placement | None:
    """A placement, where there is a mesh and somebody decided."""
    if not mesh or decided is None:
        return None
    return Placement(mesh, shares, predicted)


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


__all__ = ["Chunks", "Emission", "Emitted", "emit", "placement"]
