"""Shardings: which part of an array, or of the work on it, each worker of a mesh has.

The notion and most words are those of GSPMD and JAX: the axes of a mesh of workers divide the
dimensions of an array, or replicate it.  The work of an operation has a sharding, too, over the
labels of its loop nest.  Mesh axes that divide a summed label make partial sums; in the sharding of
the result they divide another dimension, along which the sum is scattered, or none if the sum ends
on one worker.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dasktile.ir.block_numbers import Numbers, followed_block
from dasktile.ir.program import bounds


def workers_of_positions(positions: int, workers: int) -> list[int]:
    """The number of the worker at every position of a mesh.

    No worker has more than one position more than another one.

    Examples
    --------
    >>> workers_of_positions(8, 6), workers_of_positions(2, 4)
    ([0, 0, 1, 2, 3, 3, 4, 5], [0, 2])
    """
    return [position * workers // positions for position in range(positions)]


@dataclass(frozen=True, slots=True)
class Share:
    """How mesh axes divide one dimension.

    Parameters
    ----------
    by
        Mesh axes that divide it, the one that makes the largest parts first; empty where it is not
        divided.
    runs
        For every part, in order, its number of blocks; empty where blocks are not decided.
    """

    by: tuple[int, ...] = ()
    runs: tuple[int, ...] = ()

    def grouped(self, groups: Sequence[Sequence[int]]) -> Share:
        """The share of groups of neighbouring blocks: a group is where its first block is.

        Parameters
        ----------
        groups
            The numbers of the blocks of every group.
        """
        if not self.by:
            return self
        ends = bounds(self.runs)[1:]
        owners = [bisect_right(ends, group[0]) if len(group) else 0 for group in groups]
        return Share(self.by, tuple(owners.count(part) for part in range(len(self.runs))))


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a mesh of workers divides an array, or the labels of a loop nest.

    Of mesh axes that neither divide nor replicate, the workers at the first position have it.

    Parameters
    ----------
    dims
        For every dimension, the mesh axes that divide it.
    replicated
        Mesh axes along which every worker has a replica.
    """

    dims: tuple[Share, ...] = ()
    replicated: tuple[int, ...] = ()

    @classmethod
    def divided(cls, axes: Iterable[Sequence[int]], replicated: Sequence[int] = ()) -> Sharding:
        """A sharding of which blocks are not decided yet.

        Parameters
        ----------
        axes
            For every dimension, the mesh axes that divide it.
        replicated
            Mesh axes along which every worker has a replica.
        """
        return cls(tuple(Share(tuple(each)) for each in axes), tuple(replicated))

    @classmethod
    def on_one(cls, dims: int) -> Sharding:
        """The sharding of an array that one worker has.

        Parameters
        ----------
        dims
            Number of its dimensions.
        """
        return cls((Share(),) * dims)

    @property
    def axes(self) -> frozenset[int]:
        """The mesh axes that divide a dimension."""
        return frozenset().union(*[share.by for share in self.dims])

    def by_axis(self, axes: int) -> tuple[int | None, ...]:
        """For each axis of the mesh, the dimension that it divides; None where it divides none.

        Parameters
        ----------
        axes
            Number of the mesh's axes.
        """
        dim_of = {axis: dim for dim, share in enumerate(self.dims) for axis in share.by}
        return tuple(dim_of.get(axis) for axis in range(axes))

    def seen(self, places: Sequence[int | None]) -> Sharding:
        """The sharding for another index.

        Parameters
        ----------
        places
            For every dimension of that index, the one of this index; None for another dimension.
        """
        dims = (Share() if place is None else self.dims[place] for place in places)
        return Sharding(tuple(dims), self.replicated)

    def grouped(self, groups: Sequence[Sequence[Sequence[int]]]) -> Sharding:
        """The sharding of groups of blocks.

        Parameters
        ----------
        groups
            For every dimension, as for :meth:`Share.grouped`.
        """
        dims = (share.grouped(each) for share, each in zip(self.dims, groups, strict=True))
        return Sharding(tuple(dims), self.replicated)

    def after(self, count: int) -> Sharding:
        """The sharding for an index with more dimensions in front.

        Parameters
        ----------
        count
            Number of these dimensions, which are not divided.
        """
        return Sharding((*(Share(),) * count, *self.dims), self.replicated)


@dataclass(frozen=True, slots=True)
class Follow:
    """A placement that follows a persisted array: each block is where one of its blocks is.

    Parameters
    ----------
    array, node
        Name of the persisted array, and the index of its node.
    dims
        For every axis of that array, the label, axis or index dimension along it; None for none.
    numbers
        For every axis of that array, the number of the block that each block of the dimension
        follows; None where that is its own number.  Without a dimension, the first counts.
    cuts
        For every axis of that array, the sizes of the blocks of the dimension, where these are
        decided with the placement.
    """

    array: str
    node: int
    dims: tuple[int | None, ...]
    numbers: tuple[Numbers | None, ...] = ()
    cuts: tuple[tuple[int, ...] | None, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if not self.numbers:
            object.__setattr__(self, "numbers", (None,) * len(self.dims))

    def seen(self, places: Sequence[int | None]) -> Follow:
        """The placement for another index, whose dimensions are `places` of this index."""
        dims = tuple(
            None if dim is None or dim not in places else places.index(dim) for dim in self.dims
        )
        numbers = (
            own if dim is not None or own is None else own[:1]
            for dim, own in zip(dims, self.numbers, strict=True)
        )
        return Follow(self.array, self.node, dims, tuple(numbers))

    def after(self, count: int) -> Follow:
        """The placement for an index with `count` more dimensions in front."""
        dims = tuple(None if dim is None else dim + count for dim in self.dims)
        return Follow(self.array, self.node, dims, self.numbers)

    def grouped(self, dim: int, blocks: Sequence[int]) -> Follow:
        """The placement where a dimension has only these of its blocks."""
        numbers = tuple(
            own if along != dim else tuple(block if own is None else own[block] for block in blocks)
            for along, own in zip(self.dims, self.numbers, strict=True)
        )
        return Follow(self.array, self.node, self.dims, numbers)

    def block(self, index: Sequence[int]) -> tuple[int, ...]:
        """The block of the array that a block of the index follows."""
        return followed_block(self.dims, self.numbers, index)


#: Which worker has each block: a mesh divides the dimensions, or each follows a persisted array.
Where = Sharding | Follow


def by_position(mesh: Sequence[int]) -> Sharding:
    """The sharding of one dimension that has a block for each worker, in their order."""
    return Sharding((Share(tuple(range(len(mesh))), (1,) * math.prod(mesh)),))


def near_even(blocks: int, parts: int, rounded: bool = False) -> tuple[int, ...]:
    """Numbers of blocks of near-even parts, whose boundaries are rounded down or `rounded`."""
    half = parts // 2 if rounded else 0
    edges = [(part * blocks + half) // parts for part in range(parts + 1)]
    return tuple(hi - lo for lo, hi in zip(edges[:-1], edges[1:], strict=True))
