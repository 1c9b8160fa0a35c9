"""Blocks of an array, each on any worker, and what two such grids of blocks have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dasktile.tiling.strided import Strided

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """A grid of blocks, and the worker that has each.

    Parameters
    ----------
    edges
        Boundaries of the blocks along each axis.
    owned
        True where a worker has a block, (workers, blocks along each axis).
    steps
        As in :class:`~dasktile.tiling.candidates.Boxes`.
    """

    edges: tuple[Ints, ...]
    owned: Bools
    steps: tuple[Strided, ...] = ()

    def volume(self) -> Floats:
        """Elements of each worker."""
        elements = self.owned.astype(np.float64)
        for edges in reversed(self.edges):
            elements = elements @ np.diff(edges).astype(np.float64)
        return elements

    def numbered(self, steps: Sequence[Strided]) -> Blocks:
        """The blocks of these elements of each axis; all elements count so far."""
        if not steps:
            return self
        edges = (step.before(edges) for step, edges in zip(steps, self.edges, strict=True))
        return Blocks(tuple(edges), self.owned, tuple(steps))

    def in_boxes(
        self, lo: Ints, hi: Ints, active: Bools, counted: tuple[int, Floats, Ints] | None = None
    ) -> Floats:
        """Elements that each worker has of its boxes, (candidates, workers).

        All elements count in the boxes, or those that count in the blocks.  `counted` are an axis
        along which only some do, their numbers by block, kind and worker, and the kind of each
        candidate.
        """
        elements = np.zeros((len(lo), len(self.owned)))
        for worker, owned in enumerate(self.owned):
            if not owned.any():
                continue
            left = np.broadcast_to(owned.astype(np.float64), (len(lo), *owned.shape))
            for axis, edges in enumerate(self.edges):
                if counted is not None and counted[0] == axis:
                    shared = counted[1][..., worker][:, counted[2]].T
                else:
                    shared = np.maximum(
                        np.minimum(hi[:, worker, axis, None], edges[None, 1:])
                        - np.maximum(lo[:, worker, axis, None], edges[None, :-1]),
                        0,
                    )
                left = np.einsum("cb,cb...->c...", shared.astype(np.float64), left)
            elements[:, worker] = left * active[:, worker]
        return elements

    def by_block(self, other: Blocks) -> Floats:
        """Elements that each worker has in the other, by block of this grid: (workers, blocks)."""
        left = other.owned.astype(np.float64)
        for own, others in zip(self.edges, other.edges, strict=True):
            lo = np.maximum(own[None, :-1], others[:-1, None])
            hi = np.minimum(own[None, 1:], others[1:, None])
            matrix = np.maximum(hi - lo, 0).astype(np.float64)
            # the first axis of the other's blocks becomes the last, an axis of this grid
            left = np.tensordot(left, matrix, axes=(1, 0))
        return left.reshape(len(left), -1)

    def common(self, other: Blocks) -> Floats:
        """Elements that each worker has in both."""
        mine, theirs, lengths = self.owned, other.owned, []
        for axis, (own, others) in enumerate(zip(self.edges, other.edges, strict=True), 1):
            # each cell between two cuts of either is in one block of both
            lo, hi = max(own[0], others[0]), min(own[-1], others[-1])
            cuts = np.unique(np.concatenate([own, others]))
            cuts = cuts[(lo <= cuts) & (cuts <= hi)]
            if len(cuts) < 2:
                return np.zeros(len(mine))
            mine = mine.take(np.searchsorted(own, cuts[:-1], side="right") - 1, axis=axis)
            theirs = theirs.take(np.searchsorted(others, cuts[:-1], side="right") - 1, axis=axis)
            lengths.append(np.diff(cuts).astype(np.float64))
        both = (mine & theirs).astype(np.float64)
        for length in reversed(lengths):
            both = both @ length
        return both

    def union(self, other: Blocks) -> Blocks | None:
        """What a worker has in either; None where the grids differ."""
        if self.steps != other.steps or any(
            not np.array_equal(own, others)
            for own, others in zip(self.edges, other.edges, strict=True)
        ):
            return None
        return Blocks(self.edges, self.owned | other.owned, self.steps)
