"""Handing an array over in other chunks than its tiles: where these are made, and what is sent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from dasktile.ir.program import Chunks, bounds
from dasktile.ir.sharding import Follow, Sharding, Share, Where, near_even
from dasktile.ir.tiled import TiledProgram


@dataclass(frozen=True, slots=True)
class Handover:
    """An array in its final chunks.

    Parameters
    ----------
    where
        Which workers make the final chunks.
    elements
        Elements that workers receive from each other; 0 where it is unknown which worker has which
        tile, as where tiles or chunks follow data in memory.
    """

    where: Where
    elements: int


def are_cut(edges: Iterable[Iterable[int]], chunks: Chunks) -> bool:
    """Whether every chunk is a part of one tile.

    Parameters
    ----------
    edges
        For every axis, the boundaries of the tiles.
    chunks
        The chunks.
    """
    return all(set(old) <= set(bounds(new)) for old, new in zip(edges, chunks, strict=True))


def hand_over(tiled: TiledProgram, index: int, chunks: Chunks) -> Handover | None:
    """Where the final chunks of a node's array are made, and what workers receive for that.

    Where that was not decided with the tiles, each worker makes the chunks that lie in its own
    part.  Where an axis has fewer chunks than parts, the mesh axes that cut it divide the axis with
    the most chunks a part instead, so that one worker does not make all chunks.

    Parameters
    ----------
    tiled
        The tiles, and where they are.
    index
        The node.
    chunks
        The final chunks.

    Returns
    -------
    None where the tiles have no homes in a mesh, or copies on several workers.
    """
    tiling, mesh = tiled.tilings[index], tiled.mesh
    tiles = tiled.kept.get(index, tiling.chunks)
    held = tiled.kept_at.get(index) if index in tiled.kept else tiling.held_at
    decided = tiled.final.get((index, chunks))
    follows = isinstance(held, Follow) or isinstance(decided, Follow)
    if follows and decided is not None and not are_cut(map(bounds, tiles), chunks):
        return Handover(decided, 0)
    if not mesh or not isinstance(held, Sharding) or held.replicated:
        return None
    if isinstance(decided, Follow):
        return Handover(decided, 0)
    where = None if decided is None else decided.dims
    return _between(mesh, held.dims, tiles, chunks, where)


def hand_over_evenly(workers: int, before: Chunks, after: Chunks) -> Handover:
    """As :func:`hand_over` for blocks of which every worker has an even run along one axis.

    Parameters
    ----------
    workers
        Number of workers.
    before, after
        The chunks of the array, and the final ones.
    """
    longest = max(range(len(before)), key=lambda axis: len(before[axis]), default=None)
    held = [Share() for _ in before]
    if longest is not None:
        held[longest] = Share((0,), near_even(len(before[longest]), workers))
    return _between((workers,), held, before, after)


def _between(
    mesh: tuple[int, ...],
    held: Sequence[Share],
    tiles: Chunks,
    chunks: Chunks,
    decided: tuple[Share, ...] | None = None,
) -> Handover:
    """From tiles to chunks on the same mesh."""
    parts = [_part_bounds(share, sizes) for share, sizes in zip(held, tiles, strict=True)]
    where = _divided(mesh, held, parts, chunks) if decided is None else decided
    if are_cut(map(bounds, tiles), chunks):
        return Handover(Sharding(where), 0)  # every chunk is cut from one tile, where that is
    needed = [_part_bounds(share, sizes) for share, sizes in zip(where, chunks, strict=True)]
    used = {axis for share in (*held, *where) for axis in share.by}
    elements = 0
    for place in _places(mesh, used):
        if not _is_member(where, place):
            continue
        need = [_range(mesh, share, ends, place) for share, ends in zip(where, needed, strict=True)]
        have = [_range(mesh, share, ends, place) for share, ends in zip(held, parts, strict=True)]
        elements += math.prod(stop - start for start, stop in need)
        if _is_member(held, place):
            elements -= math.prod(
                max(0, min(mine[1], its[1]) - max(mine[0], its[0]))
                for mine, its in zip(have, need, strict=True)
            )
    return Handover(Sharding(where), elements)


def _part_bounds(share: Share, sizes: Sequence[int]) -> list[int]:
    """The boundaries of the parts of an axis, in elements."""
    edges = bounds(sizes)
    runs = share.runs if share.by else (len(sizes),)
    return [edges[block] for block in accumulate(runs, initial=0)]


def _divided(
    mesh: tuple[int, ...],
    held: Sequence[Share],
    parts: Sequence[Sequence[int]],
    chunks: Chunks,
) -> tuple[Share, ...]:
    """For every axis, how the mesh divides the final chunks."""
    axes = [share.by for share in held]

    def parts_of(dim: int) -> int:
        return math.prod(mesh[axis] for axis in axes[dim])

    for dim, share in enumerate(held):
        for axis in reversed(share.by):
            if parts_of(dim) <= len(chunks[dim]):
                break
            per_part = [len(sizes) // parts_of(other) for other, sizes in enumerate(chunks)]
            most = max(range(len(chunks)), key=per_part.__getitem__)
            if most != dim and per_part[most] >= mesh[axis]:
                axes[dim] = tuple(other for other in axes[dim] if other != axis)
                axes[most] = (*axes[most], axis)
    return tuple(
        Share(by, _runs(math.prod(mesh[axis] for axis in by), by == share.by, ends, sizes))
        if by
        else Share()
        for by, share, ends, sizes in zip(axes, held, parts, chunks, strict=True)
    )


def _runs(parts: int, same: bool, ends: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """For every part of an axis, its number of chunks: those with their middle in it, or equal."""
    if same:
        middles = [(start + stop) / 2 for start, stop in pairwise(bounds(sizes))]
        runs = tuple(
            sum(start <= middle < stop for middle in middles) for start, stop in pairwise(ends)
        )
        if sum(runs) == len(sizes) and (all(runs) or len(sizes) < parts):
            return runs
    return near_even(len(sizes), parts)


def _places(mesh: tuple[int, ...], used: set[int]) -> list[dict[int, int]]:
    """All combinations of positions along the mesh axes that are used."""
    places: list[dict[int, int]] = [{}]
    for axis in sorted(used):
        places = [{**place, axis: at} for place in places for at in range(mesh[axis])]
    return places


def _range(
    mesh: tuple[int, ...], share: Share, ends: Sequence[int], place: dict[int, int]
) -> tuple[int, int]:
    """The elements along an axis of a worker's part."""
    part = 0
    for axis in share.by:
        part = part * mesh[axis] + place[axis]
    return ends[part], ends[part + 1]


def _is_member(where: Sequence[Share], place: dict[int, int]) -> bool:
    """Whether a worker has a part: those at the first position of mesh axes that divide nothing."""
    by = {axis for share in where for axis in share.by}
    return all(at == 0 for axis, at in place.items() if axis not in by)
