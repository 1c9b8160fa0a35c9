"""Tiles that do not join needed blocks of an array with unneeded ones.

If only some blocks of an array are needed, Dask computes only those.  Tiles are chosen as if all
were needed.  Here they are cut at the boundaries of the needed blocks, so that each tile contains
only needed blocks or only unneeded ones; Dask culls the latter.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dasktile.ir import (
    AxisMap,
    Chunks,
    Edge,
    Follow,
    Kind,
    Node,
    Program,
    Role,
    Sharding,
    Share,
    TiledProgram,
    Tiling,
    Where,
    bounds,
)

#: For every block that an array has in the input graph, whether it is needed.
Needed = npt.NDArray[np.bool_]


def may_be_culled(program: Program, complete: Sequence[bool]) -> list[bool]:
    """For every node, False if all of its blocks are certainly needed.

    Parameters
    ----------
    program
        The program.
    complete
        For every output, whether all of its blocks are wanted.
    """
    culled = [True] * len(program.nodes)
    for index, whole in zip(program.outputs, complete, strict=True):
        if whole:
            culled[index] = False
    for index in range(len(program.nodes) - 1, -1, -1):
        node = program.nodes[index]
        if culled[index]:
            continue
        for edge in node.edges:
            if _reads_all(node, edge, program.nodes[edge.producer]):
                culled[edge.producer] = False
    return culled


def _reads_all(node: Node, edge: Edge, producer: Node) -> bool:
    """True if a node, all of whose blocks are needed, reads every block of an array."""
    label, lo, hi = edge.within or (None, 0, 0)
    if label is not None and (hi - lo < 1 or label >= len(node.labels)):
        return False

    def covers(axis: AxisMap, size: int) -> bool:
        if axis.label is None:
            # a map without a label may read a part of the axis in views and opaque nodes
            return node.kind not in (Kind.VIEW, Kind.OPAQUE)
        first, last = (lo, hi) if axis.label == label else (0, node.labels[axis.label].size)
        # on a diagonal two axes run along one label
        alone = sum(axis.label == other.label for other in edge.axes) == 1
        covered = axis.width >= abs(axis.step) and axis.interval(first, last, size) == (0, size)
        return alone and covered

    return all(
        len(sizes) == 1 or covers(axis, sum(sizes))
        for axis, sizes in zip(edge.axes, producer.chunks, strict=True)
    )


def cut_where_needed(tiled: TiledProgram, needed: Mapping[int, Needed]) -> TiledProgram:
    """Cut tiles at the boundaries between needed and unneeded blocks.

    Parameters
    ----------
    tiled
        The tiles.
    needed
        For some nodes, which of the input's blocks are needed.

    Notes
    -----
    A label that must stay in one piece is not cut.
    """
    tilings = list(tiled.tilings)
    kept, kept_at = dict(tiled.kept), dict(tiled.kept_at)
    for index, blocks in needed.items():
        node = tiled.program.nodes[index]
        edges = _edges(blocks, node.chunks)
        tilings[index] = _cut(node, tilings[index], edges)
        if index in kept:
            before = kept[index]
            kept[index] = _finer(before, edges)
            at = _finer_at(kept_at.pop(index, None), before, edges)
            if at is not None:
                kept_at[index] = at
    return replace(tiled, tilings=tuple(tilings), kept=kept, kept_at=kept_at)


def contains_unneeded(made: Needed, tiles: Chunks, needed: Needed, chunks: Chunks) -> bool:
    """Whether a computed tile overlaps an unneeded block.

    Parameters
    ----------
    made, tiles
        For every tile, whether it is computed; and the sizes of the tiles.
    needed, chunks
        For every block of the input, whether it is needed; and the sizes of the blocks.
    """
    for axis, (sizes, own) in enumerate(zip(tiles, chunks, strict=True)):
        if sizes == own:
            continue
        edges, places = bounds(sizes), bounds(own)
        # an empty tile overlaps no block
        parts = [
            range(bisect_right(places, lo) - 1, bisect_left(places, hi)) if lo < hi else range(0)
            for lo, hi in pairwise(edges)
        ]
        needed = np.stack([np.take(needed, part, axis).all(axis) for part in parts], axis)
    return bool((made & ~needed).any())


def _edges(blocks: Needed, chunks: Chunks) -> tuple[tuple[int, ...], ...]:
    """Along every axis, the boundaries between needed and unneeded blocks."""
    edges = []
    for axis, sizes in enumerate(chunks):
        lower, upper = (
            np.take(blocks, range(first, len(sizes) - 1 + first), axis) for first in (0, 1)
        )
        others = tuple(other for other in range(len(chunks)) if other != axis)
        meets = (lower != upper).any(axis=others)
        places = bounds(sizes)
        edges.append(tuple(places[1 + block] for block in np.flatnonzero(meets).tolist()))
    return tuple(edges)


def _cut(node: Node, tiling: Tiling, edges: Sequence[Sequence[int]]) -> Tiling:
    """The tiles of a node, cut at positions of its array as far as its labels allow."""
    places: list[tuple[int, ...]] = [()] * len(node.labels)
    for axis, positions in zip(node.out, edges, strict=True):
        if axis.label is None or node.labels[axis.label].role is Role.WHOLE:
            continue
        places[axis.label] += tuple(at // axis.width for at in positions if at % axis.width == 0)
    along = [
        () if axis.label is None else tuple(at * axis.width for at in places[axis.label])
        for axis in node.out
    ]
    work_at, held_at = tiling.work_at, tiling.held_at
    if isinstance(work_at, Follow) or isinstance(held_at, Follow):
        if _finer(tiling.cuts, places) != tiling.cuts:
            # parts of a block have no placement of their own
            work_at = held_at = None
    else:
        work_at = _finer_at(work_at, tiling.cuts, places)
        held_at = _finer_at(held_at, tiling.chunks, along)
    return replace(
        tiling,
        cuts=_finer(tiling.cuts, places),
        chunks=_finer(tiling.chunks, along),
        work_at=work_at,
        held_at=held_at,
    )


def _finer(chunks: Chunks, places: Sequence[Sequence[int]]) -> Chunks:
    """Chunks with further cuts at some positions."""
    finer = []
    for sizes, more in zip(chunks, places, strict=True):
        old = bounds(sizes)
        # an edge occurs twice at an empty chunk, which stays
        edges = sorted((*old, *(set(more) - set(old))))
        finer.append(tuple(hi - lo for lo, hi in pairwise(edges)))
    return tuple(finer)


def _finer_at(where: Where | None, chunks: Chunks, places: Sequence[Sequence[int]]) -> Where | None:
    """The placement of :func:`_finer` chunks: all parts of a block stay on its worker."""
    if where is None or isinstance(where, Follow):
        return where if _finer(chunks, places) == chunks else None
    shares = []
    for share, sizes, more in zip(where.dims, chunks, places, strict=True):
        edges, runs = bounds(sizes), list(share.runs)
        ends = bounds(share.runs)[1:]
        for position in set(more) - set(edges):
            if share.by:
                runs[bisect_right(ends, bisect_right(edges, position) - 1)] += 1
        shares.append(Share(share.by, tuple(runs)))
    return Sharding(tuple(shares), where.replicated)
