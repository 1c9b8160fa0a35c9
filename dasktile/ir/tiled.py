"""A tiled program: the cuts of every array, and the worker of every block."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from dasktile.ir.program import Chunks, Program, bounds


@dataclass(frozen=True, slots=True)
class Share:
    """How mesh axes divide the blocks along a label or an axis of an array.

    Parameters
    ----------
    by
        Mesh axes that divide it, slowest first; empty where it is not divided.
    runs
        For every part, in order, its number of blocks.
    """

    by: tuple[int, ...] = ()
    runs: tuple[int, ...] = ()

    def grouped(self, groups: Sequence[Sequence[int]]) -> Share:
        """The share of groups of neighbouring blocks: a group is where its first block is."""
        if not self.by:
            return self
        ends = bounds(self.runs)[1:]
        owners = [bisect_right(ends, group[0]) if len(group) else 0 for group in groups]
        return Share(self.by, tuple(owners.count(part) for part in range(len(self.runs))))


def near_even(blocks: int, parts: int, rounded: bool = False) -> tuple[int, ...]:
    """Numbers of blocks of near-even parts, whose boundaries are rounded down or `rounded`."""
    half = parts // 2 if rounded else 0
    edges = [(part * blocks + half) // parts for part in range(parts + 1)]
    return tuple(hi - lo for lo, hi in zip(edges[:-1], edges[1:], strict=True))


@dataclass(frozen=True, slots=True)
class Follow:
    """A placement that follows a persisted array: each block is where one of its blocks is.

    Parameters
    ----------
    array, node
        Name of the persisted array, and the index of its node.
    dims
        For every axis of that array, the label, axis or index dimension along it; None for its
        first block.
    """

    array: str
    node: int
    dims: tuple[int | None, ...]

    def seen(self, places: Sequence[int | None]) -> Follow:
        """The placement for another index, whose dimensions are `places` of this index."""
        return Follow(
            self.array,
            self.node,
            tuple(None if dim is None or dim not in places else places.index(dim)
                  for dim in self.dims),
        )  # fmt: skip

    def after(self, count: int) -> Follow:
        """The placement for an index with `count` more dimensions in front."""
        dims = tuple(None if dim is None else dim + count for dim in self.dims)
        return Follow(self.array, self.node, dims)


#: Placement of blocks: divided by the mesh along every dimension, or following a persisted array.
Where = tuple[Share, ...] | Follow


@dataclass(frozen=True, slots=True)
class Tiling:
    """The cuts and the placement of one node.

    Parameters
    ----------
    mesh
        For every axis of the worker mesh, the label that it cuts, or None where it does not divide
        the work.
    scatter
        For every axis of the mesh that cuts a ``REDUCE`` label, the output axis along
        which the finished result is divided again (reduce-scatter), or None where it is
        summed onto one worker; None for all other mesh axes.
    cuts
        Chunk sizes of every label, including local cuts.
    chunks
        Chunk sizes of the output array: `cuts` mapped to its axes, and cut by `scatter`.
    work_at, held_at
        Placement of the blocks of the loop nest and of the output array; None where undecided.
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
        The program.
    mesh
        Sizes of the mesh's axes; their product is the number of workers.
    tilings
        One for each node.
    kept
        For nodes whose array is kept in other chunks than it was made in, because several
        readers need these: the chunks.
    kept_at
        For the same nodes, the placement of these blocks.
    copied
        For nodes whose array is replicated: the placement of the first replica, and the mesh axes
        along which every worker has one.
    """

    program: Program
    mesh: tuple[int, ...]
    tilings: tuple[Tiling, ...]
    kept: dict[int, Chunks] = field(default_factory=dict)
    kept_at: dict[int, Where] = field(default_factory=dict)
    copied: dict[int, tuple[Where, tuple[int, ...]]] = field(default_factory=dict)
