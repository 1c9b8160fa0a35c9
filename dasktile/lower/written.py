"""The arrays of a graph that is written: what they say of the sizes and homes of its tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any

import numpy as np
from dask.highlevelgraph import Layer, MaterializedLayer

from dasktile.capture.base import OF_VIEWS, Captured
from dasktile.capture.corrections import has_wrong_chunk_type
from dasktile.capture.culling import Needed
from dasktile.capture.references import head_of, with_head
from dasktile.capture.rules.blockwise import Map
from dasktile.capture.rules.sources import Read
from dasktile.ir import (
    Chunks,
    Follow,
    Groups,
    Kind,
    Node,
    Role,
    Sharding,
    TiledProgram,
    Tiling,
    Where,
    bounds,
    workers_of_positions,
)
from dasktile.lower.bundle_limits import BundleLimits
from dasktile.lower.emit import home_position, placement, step_layer, work_at
from dasktile.lower.fusible import FuseLimits
from dasktile.lower.names import CARRY, CHUNK, END
from dasktile.lower.reshard import Windows, block_windows, lengths
from dasktile.lower.settings import DEFAULTS, LowerSettings
from dasktile.lower.window_views import WindowView, viewing
from dasktile.schedule.placement import Placement, decode, token

#: For every block, the places in the mesh that need it.
Copies = dict[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Source:
    """A layer that holds an array, from which its tiles are cut.

    Parameters
    ----------
    name, chunks
        The layer, and the chunks that it has.
    copies
        Where several workers have a copy of a block, the places of the copies.  The keys of the
        layer contain the place then.
    """

    name: str
    chunks: Chunks
    copies: Copies | None = None


@dataclass
class WrittenArrays:
    """The arrays of a graph that is being written, and the layers that hold them.

    Parameters
    ----------
    captured, tiled, settings
        What is written, and the numbers of the policy.
    made
        By the index of a node, the layer that holds its array, in the chunks of its tiling.
    layers
        The layers that are written, by name.
    cut
        Layers that hold the array of a node cut by some windows.
    cut_at
        The same, where the mesh divides the windows in a certain way.
    views
        By the name of a layer that holds extended tiles, the views that its readers make of them.
    dependencies
        By the name of a layer that is written, the layers that it reads.
    kept
        Layers with the kept chunks of arrays that have several readers.
    named
        By the name of an output that it must have, the layer whose tiles its blocks are.
    heads
        Of tasks that are copied and whose workers were chosen, the new first items of their keys by
        those before.
    """

    captured: Captured
    tiled: TiledProgram
    settings: LowerSettings = DEFAULTS
    made: dict[int, str] = field(default_factory=dict)
    layers: dict[str, Layer] = field(default_factory=dict)
    cut: dict[tuple[int, Windows], str] = field(default_factory=dict)
    cut_at: dict[tuple[int, Windows, object], str] = field(default_factory=dict)
    views: dict[str, WindowView] = field(default_factory=dict)
    dependencies: dict[str, set[str]] = field(default_factory=dict)
    kept: dict[int, Source] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)
    heads: dict[Any, set[str]] = field(default_factory=dict)

    def node(self, index: int) -> Node:
        return self.captured.program.nodes[index]

    def tiling(self, index: int) -> Tiling:
        return self.tiled.tilings[index]

    def placement(
        self, decided: Where | None, where: Where | None, predicted: int = 0
    ) -> Placement | None:
        """A placement; None where there is no mesh, or the plan decides none (`decided`)."""
        tiled = self.tiled
        return placement(tiled.mesh, decided, where, predicted, tiled.planned_for)

    def add(self, name: str, layer: Mapping[Any, Any], reads: set[str]) -> None:
        """Add a layer that is written, and the names of the layers that it reads."""
        if name not in self.views:
            seen = {read: self.views[read] for read in sorted(reads) if read in self.views}
            layer = viewing(layer, seen)
        self.layers[name] = layer if isinstance(layer, Layer) else MaterializedLayer(layer)
        self.dependencies[name] = reads

    def hold(self, index: int, name: str) -> None:
        """Note the layer that holds a node's array in the chunks of its tiling."""
        self.made[index] = name
        self.cut[index, block_windows(self.tiling(index).chunks)] = name

    def describe(self, name: str, index: int, chunks: Chunks) -> None:
        """Add the collection annotations that Dask gives to layers of arrays."""
        try:
            dtype = np.dtype(self.node(index).dtype)
        except TypeError:  # not every dtype has a name from which NumPy makes it
            return
        notes = dict(self.layers[name].collection_annotations or {})
        if name in self.views:
            chunks = self.views[name].held(chunks)
            notes[OF_VIEWS] = True
        self.layers[name].collection_annotations = {
            **notes,
            **self.chunk_type(index),
            "shape": tuple(map(sum, chunks)),
            "dtype": dtype,
            "chunksize": tuple(max(sizes, default=0) for sizes in chunks),
            "chunks": chunks,
            "type": "dask.array.core.Array",
        }

    def chunk_type(self, index: int) -> dict[str, str]:
        """The annotated type of chunks in the input graph, so that masked ones stay known."""
        layer = self.captured.graph.layers.get(self.node(index).name)
        notes = (layer.collection_annotations or {}) if layer is not None else {}
        if layer is None or "chunk_type" not in notes or has_wrong_chunk_type(layer):
            return {}
        return {"chunk_type": notes["chunk_type"]}

    def fuse_limits(self, work: int, inputs: int, threads: int) -> FuseLimits:
        """What may be fused."""
        light, free, size = set(), set(), {}
        for index, name in self.made.items():
            kernel, node = self.captured.kernels[index], self.node(index)
            chunks, nbytes = self.tiling(index).chunks, node.nbytes
            if name in self.views:
                held = self.views[name].held(chunks)
                nbytes = math.prod(map(sum, held)) * node.itemsize
            size[name.rpartition("-")[2]] = nbytes // max(1, math.prod(map(len, chunks)))
            if isinstance(kernel, Read):
                light.add(name)
                free.add(kernel.source or f"{name}-array")
            elif (
                isinstance(kernel, Map)
                and len(node.edges) == 1
                and node.nbytes >= self.node(node.edges[0].producer).nbytes
            ):
                light.add(name)
        for name, layer in self.layers.items():
            notes = layer.collection_annotations or {}
            if "chunks" in notes and "dtype" in notes:
                size.setdefault(
                    name.rpartition("-")[2],
                    math.prod(notes["chunksize"]) * notes["dtype"].itemsize,
                )
        return FuseLimits(
            light, free, size, work, inputs, threads, unknown=self.unknown, settings=self.settings
        )

    def bundle_limits(
        self, most: int, work: int, threads: int, working: Mapping[Any, int]
    ) -> BundleLimits:
        """What may be bundled: at most `most` tasks, with `work` bytes in memory."""
        fusing = self.fuse_limits(work, 0, threads)
        size = dict(fusing.size)
        positions, placements = {}, {}
        for index, name in self.made.items():
            node, code = self.node(index), name.rpartition("-")[2]
            if node.partial and code in size:
                # the steps of an operation have its token
                size[name] = size[code]
                # a sum that is scattered is cut afterwards
                pieces = math.prod(map(len, self.tiling(index).chunks)) // math.prod(
                    len(self.tiling(index).cuts[axis.label])
                    for axis in node.out
                    if axis.label is not None
                )
                where = self.tiling(index).work_at
                leader = self.node(where.node) if isinstance(where, Follow) else None
                partial = node.partial * _groups_of_worker(node, self.tiling(index), leader)
                size[code] = math.ceil(size[code] * pieces * partial / node.itemsize)
                size |= self.carries(index, size[code])
        for index, node in enumerate(self.captured.program.nodes):
            blocks, own = self.positions(index), self.made.get(index, node.name)
            if blocks:
                positions[token(own)] = blocks
            held = self.tiling(index).held_at
            if blocks and isinstance(held, Sharding) and decode(own) is None:
                placements[own] = Placement(
                    self.tiled.mesh, held, planned_for=self.tiled.planned_for
                )
        for key, place in self.captured.near.items():
            at = key[1:] if isinstance(key, tuple) else ()
            for name in self.heads_of(key):
                positions.setdefault(token(str(name)), {}).setdefault(at, place)
        mesh = self.tiled.mesh
        tables: dict[int, Sequence[int]] = {}
        workers, places = self.tiled.planned_for, math.prod(self.tiled.mesh)
        if workers is not None and places > workers:
            # a bundle has tasks of all positions of a worker
            tables[places] = workers_of_positions(places, workers)
            positions = {
                array: {block: tables[places][at] for block, at in blocks.items()}
                for array, blocks in positions.items()
            }
            mesh, workers = (workers,), None
        return BundleLimits(
            mesh=mesh,
            planned_for=workers,
            tables=tables,
            size=size,
            free=fusing.free,
            tasks=most,
            work=work,
            threads=threads,
            positions=positions,
            placements=placements,
            named=self.named,
            tiles=self.tiles(),
            shapes=self.captured.shapes,
            inner={
                written: nbytes
                for key, nbytes in self.captured.inner.items()
                for written in (with_head(key, head) for head in self.heads_of(key))
            },
            working=working,
            unknown=self.unknown,
            settings=self.settings,
        )

    def heads_of(self, key: Any) -> tuple[Any, ...]:
        """The first items that a key of the input graph may have in the graph."""
        return head_of(key), *self.heads.get(head_of(key), ())

    @property
    def unknown(self) -> set[str]:
        """Names of layers whose tasks call functions of which it is unknown how long they take."""
        nodes = self.captured.program.nodes
        return {
            self.made.get(index, node.name)
            for index, node in enumerate(nodes)
            if node.kind is Kind.OPAQUE and node.edges
        }

    def carries(self, index: int, nbytes: int) -> dict[str, int]:
        """Bytes of what a running reduction hands from one tile to the next, by names of keys.

        They are those of one element along its axis; a tile has `nbytes`.
        """
        lengths = [
            max(sizes, default=1)
            for label, sizes in zip(self.node(index).labels, self.tiling(index).cuts, strict=True)
            if label.role is Role.SCAN
        ]
        if not lengths:
            return {}
        edge = math.ceil(nbytes / max(1, *lengths))
        return {self.step(index, step): edge for step in (CARRY, END)}

    def tiles(self) -> dict[str, tuple[Chunks, float]]:
        """By the name of a layer that holds an array, its chunks and the bytes of an element."""
        # tiles that were cut for readers may be far smaller than the largest of them
        cut = [
            *self.cut.items(),
            *(((index, windows), name) for (index, windows, _), name in self.cut_at.items()),
        ]
        whole = set(self.made.values())
        tiles = {
            name: (lengths(windows), self.node(index).itemsize)
            for (index, windows), name in cut
            if name not in whole
        }
        made = {
            name: (self.tiling(index).chunks, self.node(index).itemsize)
            for index, name in self.made.items()
        }
        held = {
            name: (self.views[name].held(chunks), size) if name in self.views else (chunks, size)
            for name, (chunks, size) in (tiles | made).items()
        }
        reductions = [index for index in self.made if self.node(index).partial]
        return held | {self.step(index, CHUNK): self.partials(index) for index in reductions}

    def partials(self, index: int) -> tuple[Chunks, float]:
        """Of the partial results of a reduction: elements along every label, and their bytes."""
        node, tiling = self.node(index), self.tiling(index)
        chunks = []
        # axes in one piece, such as that of all groups
        whole = [
            size for axis, size in zip(node.out, node.shape, strict=True) if axis.label is None
        ]
        itemsize = node.partial * (math.prod(whole) if node.groups is None else 1)
        for label, cuts in zip(node.labels, tiling.cuts, strict=True):
            if label.role is not Role.REDUCE:
                chunks.append(cuts)
            elif node.groups is None or label is not node.labels[-1]:
                chunks.append((1,) * len(cuts))
            else:
                ends = pairwise(bounds(cuts))
                chunks.append(tuple(node.groups.within(lo, hi) for lo, hi in ends))
        return tuple(chunks), itemsize

    def step(self, index: int, step: str) -> str:
        """The name of the layer of an intermediate step of a node."""
        tiling = self.tiling(index)
        tiled = self.tiled
        where = work_at(tiling)
        return step_layer(self.made[index], step, tiled.mesh, tiling, where, tiled.planned_for)

    def positions(self, index: int) -> dict[tuple[int, ...], int]:
        """Mesh positions of the blocks of an array whose name has no placement, if any."""
        node, held = self.node(index), self.tiling(index).held_at
        blocks = product(*(range(len(sizes)) for sizes in node.chunks))
        if node.homes is not None:
            places = zip(blocks, node.homes, strict=True)
            return {block: homes[0] for block, homes in places if homes}
        # arrays that only layers of the input graph read are not made, but are in it
        is_own = self.made.get(index, node.name) == node.name
        if held is None or not self.tiled.mesh or not is_own:
            return {}
        if self.tiling(index).chunks != node.chunks:
            return {}
        leader = self.node(held.node) if isinstance(held, Follow) else None
        position = home_position(self.tiled.mesh, held, leader)
        return {block: position(block) for block in blocks}


def _groups_of_worker(node: Node, tiling: Tiling, leader: Node | None) -> float:
    """Share of all groups that the combined partial results of a worker have on average.

    1 for other reductions.  The leader is the array that the node follows, if it does.
    """
    if node.groups is None:
        return 1.0
    edges = bounds(tiling.cuts[-1])
    where = tiling.work_at
    if isinstance(where, Follow):
        found = _groups_of_followers(node.groups, where, leader, tiling.cuts)
    else:
        share = None if where is None else where.dims[-1]
        runs = [len(tiling.cuts[-1])] if share is None or not share.by else share.runs
        ends = [edges[at] for at in bounds(runs)]
        found = [node.groups.within(lo, hi) for lo, hi in pairwise(ends) if hi > lo]
    return sum(found) / max(1, len(found) * node.groups.count)


def _groups_of_followers(
    groups: Groups, where: Follow, leader: Node | None, cuts: Chunks
) -> list[int]:
    """For each worker and each part of the result that it reduces, the groups in its blocks."""
    present = [groups.present(lo, hi) for lo, hi in pairwise(bounds(cuts[-1]))]
    position = home_position((), where, leader)
    found: dict[tuple[int, ...], set[int]] = {}
    for block in product(*(range(len(sizes)) for sizes in cuts)):
        found.setdefault((position(block), *block[:-1]), set()).update(present[block[-1]])
    return list(map(len, found.values()))


def wanted_keys(name: str, chunks: Chunks, wanted: Mapping[str, Needed]) -> list[Any]:
    """The keys of the blocks of an output that are wanted.

    Parameters
    ----------
    name, chunks
        The output's name and chunks.
    wanted
        By the name of an output, which of its blocks are wanted; of others all are.
    """
    blocks = product(*(range(len(sizes)) for sizes in chunks))
    return [(name, *block) for block in blocks if name not in wanted or wanted[name][block]]
