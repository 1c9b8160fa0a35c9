"""Blocks that are extended by the edges of their neighbours, as ``map_overlap`` makes them.

Dask's layer of overlaps writes one task for every edge of every block.  What they compute together
is read off the layer itself, so that these tasks need not be written.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import product
from typing import Any

from dask.highlevelgraph import Layer

from dasktile._compat.dask import ArrayOverlapLayer
from dasktile.ir import bounds


@dataclass(frozen=True, slots=True)
class Overlap:
    """What a layer of overlaps computes.

    Parameters
    ----------
    array
        Name of the array whose blocks are extended.
    edges
        For every axis, the boundaries of its blocks.
    depths
        For every axis, the elements of the blocks before and after that are added, at the most.
    """

    array: str
    edges: tuple[tuple[int, ...], ...]
    depths: tuple[tuple[int, int], ...]

    def reads(self, heads: tuple[str, str], keys: Iterable[Any]) -> dict[Any, Set[Any]]:
        """For every task of the layer that some of its keys depend on, the keys that it reads.

        Parameters
        ----------
        heads
            Those of the layer's keys, as :func:`heads_of_overlap` returns them.
        keys
            Some keys of the layer.
        """
        joined, part = heads
        reads: dict[Any, Set[Any]] = {}
        for head, *place in keys:
            parts = [tuple(place)]
            if head == joined:
                # numbers of the parts of blocks are those that Dask gives them
                parts = list(product(*map(self._around, range(len(place)), place)))
                reads[joined, *place] = {(part, *numbers) for numbers in parts}
            for numbers in parts:
                reads[part, *numbers] = {(self.array, *map(round, numbers))}
        return reads

    def _around(self, axis: int, number: int) -> list[float]:
        """The parts of blocks along an axis of which an extended block consists."""
        before, after = self.depths[axis]
        parts: list[float] = [number - 0.9] if before and number else []
        parts.append(number)
        if after and number < len(self.edges[axis]) - 2:
            parts.append(number + 0.9)
        return parts

    @property
    def tasks(self) -> int:
        """Number of the layer's tasks: one for each edge of a block, and for each block."""
        blocks = [len(edges) - 1 for edges in self.edges]
        parts = [
            number + (number - 1) * sum(depth > 0 for depth in both)
            for number, both in zip(blocks, self.depths, strict=True)
        ]
        return math.prod(parts) + math.prod(blocks)

    def positions(self, block: Sequence[int]) -> tuple[range, ...]:
        """The positions in the array of the elements of an extended block.

        Parameters
        ----------
        block
            The number of the block along every axis.
        """
        return tuple(
            range(
                max(edges[max(number - 1, 0)], edges[number] - before),
                min(edges[min(number + 2, len(edges) - 1)], edges[number + 1] + after),
            )
            for edges, (before, after), number in zip(self.edges, self.depths, block, strict=True)
        )


def read_overlap(layer: Layer) -> Overlap | None:
    """What a layer of overlaps computes; None for other layers.

    Parameters
    ----------
    layer
        The layer.
    """
    if type(layer) is not ArrayOverlapLayer:
        return None
    chunks = tuple(map(tuple, layer.chunks))
    if not all(map(all, chunks)):
        return None
    depths = []
    for axis in range(len(chunks)):
        depth = layer.axes.get(axis, 0)
        before, after = depth if isinstance(depth, tuple) else (depth, depth)
        depths.append((int(before), int(after)))
    return Overlap(layer.name, tuple(map(bounds, chunks)), tuple(depths))


def heads_of_overlap(name: Hashable, layer: Layer) -> tuple[str, str] | None:
    """The first items of the keys of a layer of overlaps, first that of its blocks; else None.

    Parameters
    ----------
    name, layer
        The layer, and its name.
    """
    if type(layer) is not ArrayOverlapLayer or name != f"overlap-{layer.token}":
        return None
    return f"overlap-{layer.token}", f"getitem-{layer.token}"
