"""The layers that hold arrays in other tiles than those in which they are made.

The windows that the blocks of a reader need are compared with the existing blocks.  Where they
differ, a layer reshards the array (:mod:`dasktile.lower.reshard`).  It is written once for all
readers that need the same windows at the same places.  An array with several readers may be *kept*
in other chunks, or in copies on several workers, from which the tiles of its readers are cut.
"""

from __future__ import annotations

import math
from itertools import product

from dask.highlevelgraph import MaterializedLayer

from dasktile._compat.dask import getitem
from dasktile.capture.rules.sources import Create
from dasktile.ir import Chunks, Kind, Sharding, Where, by_position
from dasktile.lower.block_groups import block_groups
from dasktile.lower.emit import home_position
from dasktile.lower.kernels import blocks
from dasktile.lower.names import JOIN, KEPT, RETILE, new_layer_name
from dasktile.lower.reshard import (
    PlaceOf,
    Windows,
    block_windows,
    edge_windows,
    getitem_any,
    joins,
    lengths,
    pieces,
    reshard,
)
from dasktile.lower.written import Copies, Source, WrittenArrays


def fetch_tiles(
    arrays: WrittenArrays,
    index: int,
    wanted: Windows,
    where: Where | None = None,
    predicted: int = 0,
) -> str:
    """The layer that holds a node's array cut by windows, written if there is none.

    Parameters
    ----------
    arrays
        The arrays that are written so far.
    index, wanted
        The node, and the windows along each axis of its array, in the form of `normal`.
    where
        The workers that need the windows; None if that is unknown.
    predicted
        Bytes that workers receive for it beside those of the nodes.
    """
    source = source_of(arrays, index)
    name = arrays.cut.get((index, wanted)) or arrays.cut_at.get((index, wanted, where))
    if name is None:
        name = _convert(arrays, index, wanted, source, where, predicted=predicted)
        arrays.cut_at[index, wanted, where] = name
    return name


def copy_blocks(
    arrays: WrittenArrays, index: int, wanted: Windows, source: Source, copies: Copies
) -> str:
    """The layer of blocks that each worker cuts and joins itself: only pieces are sent.

    Parameters
    ----------
    arrays
        The arrays that are written so far.
    index, wanted
        The node, and the windows along each axis of its array.
    source
        The layer that they are cut from.
    copies
        For every block, the places in the mesh that need it.
    """
    copies_first = by_position(arrays.tiled.mesh).dims
    where = Sharding((*copies_first, *Sharding.on_one(len(wanted)).dims))
    key = (index, wanted, (where, tuple(sorted(copies.items()))))
    if key not in arrays.cut_at:
        arrays.cut_at[key] = _convert(arrays, index, wanted, source, where, copies=copies)
    return arrays.cut_at[key]


def source_of(arrays: WrittenArrays, index: int) -> Source:
    """The layer that other tiles of a node's array are cut from."""
    if index not in arrays.kept:
        arrays.kept[index] = _keep(arrays, index)
    return arrays.kept[index]


def _keep(arrays: WrittenArrays, index: int) -> Source:
    """Write a node's array in its kept chunks, if these differ from its tiling."""
    chunks, tiling = arrays.tiled.kept.get(index), arrays.tiling(index)
    where = arrays.tiled.kept_at.get(index)
    made = arrays.made[index]
    replicas = arrays.tiled.replicas(index)
    if chunks is None:
        return Source(made, tiling.chunks)
    own = block_windows(chunks)
    if (
        replicas is not None
        and is_joined(arrays, index)
        and (joins(own, tiling.chunks) or _is_cut_apart(arrays, index))
    ):
        copies = _copies_kept(arrays.tiled.mesh, replicas, chunks)
        name = copy_blocks(arrays, index, own, Source(made, tiling.chunks), copies)
        return Source(name, chunks, copies)
    if chunks == tiling.chunks and (replicas or where in (None, tiling.held_at)):
        return Source(made, tiling.chunks)
    step = KEPT if arrays.node(index).edges else RETILE
    name = _convert(arrays, index, own, Source(made, tiling.chunks), where, step=step)
    arrays.cut[index, own] = name
    return Source(name, chunks)


def _is_cut_apart(arrays: WrittenArrays, index: int) -> bool:
    """Whether readers of an array cut it in several ways.

    Parts of a copy are then cut where it is: cut where a block is made, each would be sent.
    """
    program, shape = arrays.captured.program, arrays.node(index).shape
    ways = {
        edge_windows(edge, arrays.tiling(reader), shape)
        for reader in program.consumers(index)
        for edge in program.nodes[reader].edges
        if edge.producer == index
    }
    return len(ways) > 1


def _copies_kept(mesh: tuple[int, ...], where: Sharding, chunks: Chunks) -> Copies:
    """For every block of an array that is kept in copies, the places in the mesh."""
    axes = where.replicated
    steps = [
        sum(at * math.prod(mesh[axis + 1 :]) for axis, at in zip(axes, place, strict=True))
        for place in product(*(range(mesh[axis]) for axis in axes))
    ]
    position = home_position(mesh, where)
    return {
        block: tuple(position(block) + step for step in steps)
        for block in product(*(range(len(sizes)) for sizes in chunks))
    }


def _convert(
    arrays: WrittenArrays,
    index: int,
    wanted: Windows,
    source: Source,
    where: Where | None = None,
    copies: Copies | None = None,
    step: str = RETILE,
    predicted: int = 0,
) -> str:
    """Write a layer that reshards an array for the workers that need it, `where`."""
    chunks = source.chunks
    place_of = None
    if source.copies is not None:
        place_of = _nearest(arrays.tiled.mesh, where, source.copies)
    each = None if copies is None else tuple(sorted(copies.items()))
    suffix = new_layer_name("", source.name, chunks, wanted, where, each)
    token = suffix.rpartition("-")[2]
    is_cut = not joins(wanted, chunks) and wanted != block_windows(chunks)
    if where is not None and is_cut:
        # every block is cut from one block, on the worker that has it or a copy of it
        if source.copies is None:
            covered = _covers(arrays.tiled.replicas(index), where)
        else:
            covered = _have_copies(arrays.tiled.mesh, where, wanted, source)
        where = where if covered else None
    at = arrays.placement(where, where, predicted)
    if arrays.tiled.replicas(index) is not None and arrays.node(index).edges:
        step = KEPT
    name = new_layer_name(step, token, placement=at)
    kernel = arrays.captured.kernels[index]
    if isinstance(kernel, Create):
        # all elements are equal: recomputed, nothing is held, cut or sent
        arrays.add(name, blocks.created(kernel, name, lengths(wanted)), set())
    else:
        if source.copies is None:
            source = _grouped(arrays, index, wanted, source)
            chunks = source.chunks
        halo = None
        view = arrays.views.get(source.name)
        if view is not None and view.can_cut(wanted):
            arrays.views[name], halo = view, view.halo
        cut = getitem_any if arrays.node(index).kind is Kind.OPAQUE else getitem
        alone = _is_computed_by_reader(arrays, index)
        tasks = reshard(
            name, token, source.name, chunks, wanted, cut, copies, place_of, alone, halo
        )
        arrays.add(name, MaterializedLayer(tasks), {source.name})
    arrays.describe(name, index, lengths(wanted))
    return name


def _covers(copied: Sharding | None, where: Where | None) -> bool:
    """True if the workers that need blocks of an array have copies of it."""
    if copied is None or not isinstance(where, Sharding):
        return False
    return all(
        share.by == need.by[: len(share.by)]
        for share, need in zip(copied.dims, where.dims, strict=False)
    )


def _have_copies(
    mesh: tuple[int, ...], where: Where | None, wanted: Windows, source: Source
) -> bool:
    """True if the workers that need windows have copies of the blocks that these are cut from."""
    if not isinstance(where, Sharding) or source.copies is None:
        return False
    own = home_position(mesh, where)
    cut_from = [
        [first.block for first, *_ in pieces(axis, sizes)]
        for axis, sizes in zip(wanted, source.chunks, strict=True)
    ]
    return all(
        own(block) in source.copies[tuple(map(list.__getitem__, cut_from, block))]
        for block in product(*(range(len(axis)) for axis in wanted))
    )


def _nearest(mesh: tuple[int, ...], where: Where | None, copies: Copies) -> PlaceOf:
    """A function that chooses a copy of a block to read: the reader's own, else the first."""
    own = home_position(mesh, where) if isinstance(where, Sharding) else None

    def nearest(block: tuple[int, ...], source: tuple[int, ...], reader: int | None) -> int:
        places = copies[source]
        if reader is None:
            reader = places[0] if own is None else own(block)
        return reader if reader in places else places[0]

    return nearest


def _grouped(arrays: WrittenArrays, index: int, wanted: Windows, source: Source) -> Source:
    """The layer from which tiles are cut, after neighbouring blocks were joined if need be."""
    chunks, mesh = source.chunks, arrays.tiled.mesh
    is_made = source.name == arrays.made[index]
    where = arrays.tiling(index).held_at if is_made else arrays.tiled.kept_at.get(index)
    if not mesh:
        shares = Sharding.on_one(len(chunks)).dims
    elif isinstance(where, Sharding):
        shares = where.dims
    else:
        return source  # each block is where one of another array is
    runs = [share.runs if share.by else () for share in shares]
    found = block_groups(chunks, wanted, runs, arrays.settings.most_pieces)
    if found is None:
        return source
    axis, groups = found
    sizes = tuple(sum(chunks[axis][block] for block in group) for group in groups)
    joined = (*chunks[:axis], sizes, *chunks[axis + 1 :])
    held = (*shares[:axis], shares[axis].grouped(groups), *shares[axis + 1 :])
    token = new_layer_name("", source.name, joined).rpartition("-")[2]
    name = new_layer_name(JOIN, token, placement=arrays.placement(where, Sharding(held)))
    blocks_of, halo = block_windows(joined), None
    view = arrays.views.get(source.name)
    if view is not None:
        if not view.can_cut(blocks_of):
            return source
        arrays.views[name], halo = view, view.halo
    tasks = reshard(name, token, source.name, chunks, blocks_of, halo=halo)
    arrays.add(name, MaterializedLayer(tasks), {source.name})
    arrays.describe(name, index, joined)
    return Source(name, joined)


def is_joined(arrays: WrittenArrays, index: int) -> bool:
    """False for an array that every reader recomputes from its creation function."""
    return not isinstance(arrays.captured.kernels[index], Create)


def _is_computed_by_reader(arrays: WrittenArrays, index: int) -> bool:
    """Whether a block may be computed where its only reader is, as it needs no other."""
    program, node = arrays.captured.program, arrays.node(index)
    if node.edges or node.resident or index in program.outputs:
        return False
    reads = [
        edge
        for reader in program.consumers(index)
        for edge in program.nodes[reader].edges
        if edge.producer == index
    ]
    return len(reads) == 1
