"""A tiled program: how every array is cut, and which worker holds which part."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from dasktile.ir.program import Chunks, Program, bounds


@dataclass(frozen=True, slots=True)
class Share:
    """How the worker mesh divides the blocks along a label or an axis of an array.

    Parameters
    ----------
    by
        Axes of the mesh that divide it, slowest first; none where every part of the mesh
        sees all of it.
    runs
        For every part, in order, how many blocks it has.
    """

    by: tuple[int, ...] = ()
    runs: tuple[int, ...] = ()

    def grouped(self, groups: Sequence[Sequence[int]]) -> Share:
        """The same for neighbouring blocks put together: each group is where its first is."""
        if not self.by:
            return self
        ends = bounds(self.runs)[1:]
        owners = [bisect_right(ends, group[0]) if len(group) else 0 for group in groups]
        return Share(self.by, tuple(owners.count(part) for part in range(len(self.runs))))


@dataclass(frozen=True, slots=True)
class Follow:
    """Every block is where a block of an array in memory is.

    Parameters
    ----------
    array, node
        Name of that array, and its node.
    dims
        For every axis of that array, the label, axis or dimension of an index that runs
        along it; None where its first block is meant.
    """

    array: str
    node: int
    dims: tuple[int | None, ...]

    def seen(self, places: Sequence[int | None]) -> Follow:
        """The same for another index, `places` of which are dimensions of this one's."""
        return Follow(
            self.array,
            self.node,
            tuple(None if dim is None or dim not in places else places.index(dim)
                  for dim in self.dims),
        )  # fmt: skip

    def after(self, count: int) -> Follow:
        """The same for an index with so many dimensions in front."""
        dims = tuple(None if dim is None else dim + count for dim in self.dims)
        return Follow(self.array, self.node, dims)


#: Where the blocks of something are: divided by the mesh along every dimension, or where
#: those of an array are.
Where = tuple[Share, ...] | Follow


@dataclass(frozen=True, slots=True)
class Tiling:
    """How one node is cut.

    Parameters
    ----------
    mesh
        For every axis of the worker mesh, the label that it cuts, or None where the
        work is not divided along that axis.
    scatter
        For every axis of the mesh that cuts a ``REDUCE`` label, the output axis along
        which the finished result is divided again (reduce-scatter), or None where it is
        summed onto one worker; None for all other mesh axes.
    cuts
        Chunk sizes of every label, local splits included.
    chunks
        Chunk sizes of the output array: `cuts` seen through the output maps, further cut
        by `scatter`.
    work_at, held_at
        Where the blocks of the loop nest and of the output array are; None where nobody
        decided.
    """

    mesh: tuple[int | None, ...]
    scatter: tuple[int | None, ...]
    cuts: tuple[tuple[int, ...], ...]
    chunks: Chunks
    work_at: Where | None = None
    held_at: Where | None = None


@dataclass(frozen=True, slots=True)
class TiledProgram:
    """A program and a tiling for each of its nodes.

    Parameters
    ----------
    program
        What was tiled.
    mesh
        Sizes of the mesh's axes; their product is the number of workers.
    tilings
        One for each node.
    kept
        For nodes whose array is kept in other chunks than it was made in, because
        several readers want it so: those chunks.
    kept_at
        For the same nodes, where the blocks are.
    copied
        For nodes whose array is kept in copies: where the first of them are, and the axes
        of the mesh along which every worker has one.
    """

    program: Program
    mesh: tuple[int, ...]
    tilings: tuple[Tiling, ...]
    kept: dict[int, Chunks] = field(default_factory=dict)
    kept_at: dict[int, Where] = field(default_factory=dict)
    copied: dict[int, tuple[Where, tuple[int, ...]]] = field(default_factory=dict)
