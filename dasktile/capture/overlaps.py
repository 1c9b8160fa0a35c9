"""Blocks that are extended by the edges of their neighbours, as ``map_overlap`` makes them.

Dask's layer of overlaps writes one task for every edge of every block.  What they compute together
is read off the layer itself, so that these tasks need not be written.  That the installed Dask
writes them as is assumed here is checked with a small layer, once in a process.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from itertools import product
from operator import getitem
from typing import Any

import dask.local
import numpy as np
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
    name, part
        The first items of the layer's keys: of the extended blocks, and of parts of blocks.
    """

    array: str
    edges: tuple[tuple[int, ...], ...]
    depths: tuple[tuple[int, int], ...]
    name: str
    part: str

    @property
    def numblocks(self) -> tuple[int, ...]:
        """Number of blocks along every axis."""
        return tuple(len(edges) - 1 for edges in self.edges)

    @property
    def tasks(self) -> int:
        """Number of the layer's tasks: one for each part of a block, and for each block."""
        parts = [
            number + (number - 1) * sum(depth > 0 for depth in both)
            for number, both in zip(self.numblocks, self.depths, strict=True)
        ]
        return math.prod(parts) + math.prod(self.numblocks)

    def positions(self) -> list[list[range]]:
        """For every axis, the positions in the array of the elements of each extended block."""
        return [
            [
                range(
                    max(edges[max(number - 1, 0)], edges[number] - before),
                    min(edges[min(number + 2, len(edges) - 1)], edges[number + 1] + after),
                )
                for number in range(len(edges) - 1)
            ]
            for edges, (before, after) in zip(self.edges, self.depths, strict=True)
        ]

    def reads(self, keys: Iterable[Any]) -> dict[Any, Set[Any]]:
        """For every task of the layer that some of its keys depend on, the keys that it reads.

        Parameters
        ----------
        keys
            Some keys of the layer.
        """
        reads: dict[Any, Set[Any]] = {}
        for head, *place in keys:
            parts = [tuple(place)]
            if head == self.name:
                # numbers of the parts of blocks are those that Dask gives them
                parts = list(product(*map(self._around, range(len(place)), place)))
                reads[self.name, *place] = {(self.part, *numbers) for numbers in parts}
            for numbers in parts:
                reads[self.part, *numbers] = {(self.array, *map(round, numbers))}
        return reads

    def _around(self, axis: int, number: int) -> list[float]:
        """The parts of blocks along an axis of which an extended block consists."""
        before, after = self.depths[axis]
        parts: list[float] = [number - 0.9] if before and number else []
        parts.append(number)
        if after and number < len(self.edges[axis]) - 2:
            parts.append(number + 0.9)
        return parts


def overlap_of(name: Hashable, layer: Layer) -> Overlap | None:
    """What a layer of overlaps computes; None for other layers.

    Parameters
    ----------
    name, layer
        The layer, and its name.
    """
    overlap = _read(name, layer)
    return overlap if overlap is not None and _is_known() else None


def _read(name: Hashable, layer: Layer) -> Overlap | None:
    if type(layer) is not ArrayOverlapLayer or name != f"overlap-{layer.token}":
        return None
    if not all(map(all, layer.chunks)):
        return None
    depths = []
    for axis in range(len(layer.chunks)):
        depth = layer.axes.get(axis, 0)
        before, after = depth if isinstance(depth, tuple) else (depth, depth)
        depths.append((int(before), int(after)))
    return Overlap(
        layer.name,
        tuple(bounds(sizes) for sizes in layer.chunks),
        tuple(depths),
        f"overlap-{layer.token}",
        f"getitem-{layer.token}",
    )


@cache
def _is_known() -> bool:
    """Whether the tasks of a small layer of the installed Dask do what is read off it."""
    chunks = ((2, 3, 1), (2, 2))
    values = np.arange(24).reshape(6, 4)
    try:
        layer = ArrayOverlapLayer("x", {0: (2, 1), 1: 1}, chunks, (3, 2), "known")
        overlap = _read("overlap-known", layer)
        if overlap is None:
            return False
        places = list(np.ndindex(overlap.numblocks))
        blocks = {("x", *place): values[_cut(overlap.edges, place)] for place in places}
        tasks: Mapping[Any, Any] = dict(layer)
        reads = overlap.reads([(overlap.name, *place) for place in places])
        keys = {*tasks, *blocks}
        if reads.keys() != tasks.keys() or overlap.tasks != len(tasks):
            return False
        if any(layer.get_dependencies(key, keys) != found for key, found in reads.items()):
            return False
        made = dask.local.get_sync(
            {**tasks, **blocks}, [(overlap.name, *place) for place in places]
        )
        positions = overlap.positions()
        return all(
            np.array_equal(block, values[np.ix_(*map(getitem, positions, place))])
            for place, block in zip(places, made, strict=True)
        )
    except Exception:
        return False


def _cut(edges: Sequence[Sequence[int]], place: Sequence[int]) -> tuple[slice, ...]:
    """The elements of a block."""
    return tuple(slice(each[at], each[at + 1]) for each, at in zip(edges, place, strict=True))
