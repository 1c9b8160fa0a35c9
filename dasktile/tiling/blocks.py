"""Blocks of an array, each on any worker, and what two such grids of blocks have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dasktile.tiling.strided import Strided

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

#: Workers that have each block, on the mean, up to which blocks are looked at one by one (chosen).
FEW_OWNERS = 4

#: Entries of a temporary array, which bound memory and change no result.
_ENTRIES = 2_000_000


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
        workers, *blocks = np.nonzero(self.owned)
        elements = np.ones(len(workers))
        for edges, at in zip(self.edges, blocks, strict=True):
            elements *= np.diff(edges)[at]
        return np.bincount(workers, elements, len(self.owned)).astype(np.float64, copy=False)

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
        if self.owned.sum() <= FEW_OWNERS * math.prod(self.owned.shape[1:]):
            return self._one_by_one(lo, hi, active, counted)
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

    def _one_by_one(
        self, lo: Ints, hi: Ints, active: Bools, counted: tuple[int, Floats, Ints] | None
    ) -> Floats:
        """The same, from each block that a worker has: no others are looked at."""
        workers, *blocks = np.nonzero(self.owned)
        elements = np.zeros((len(lo), len(self.owned)))
        step = max(1, _ENTRIES // max(1, len(lo)))
        for start in range(0, len(workers), step):
            worker, *places = (each[start : start + step] for each in (workers, *blocks))
            shared = active[:, worker].astype(np.float64)
            for axis, (edges, at) in enumerate(zip(self.edges, places, strict=True)):
                if counted is not None and counted[0] == axis:
                    shared *= counted[1][at[None], counted[2][:, None], worker[None]]
                    continue
                ends = np.minimum(hi[:, worker, axis], edges[at + 1])
                shared *= np.maximum(ends - np.maximum(lo[:, worker, axis], edges[at]), 0)
            # workers are in ascending order
            first = np.flatnonzero(np.diff(worker, prepend=-1))
            elements[:, worker[first]] += np.add.reduceat(shared, first, axis=1)
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
