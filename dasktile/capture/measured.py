"""Chunk sizes that were computed after a layer was made.

``compute_chunk_sizes`` and ``to_dask_array(lengths=True)`` set the chunks of an array, but not
those in the annotations of its layer.  What was made of the array later knows them: results of
elementwise functions and transposes have the chunks of what they read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from graphlib import TopologicalSorter

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import Layer

from dasktile._compat.dask import getitem_variadic
from dasktile.capture.base import ArrayInfo, GraphView, added_axes, has_all_blocks
from dasktile.capture.corrections import is_unknown_part
from dasktile.capture.rules.blockwise import has_aligned_axes, is_transpose
from dasktile.capture.rules.pointwise import is_pointwise_task

#: Chunk sizes along each axis; None where they are unknown.
_Known = Sequence[tuple[int, ...] | None]

#: The length of an axis in no block: two readers show other chunks.
_CONTRADICTION: tuple[int, ...] = ()


def measured_arrays(view: GraphView) -> dict[str, ArrayInfo]:
    """By layer, the arrays of unknown chunk sizes that their readers show.

    An axis is known if one reader shows its chunks at least, and no two show different ones.
    """
    # many layers have the same chunks, of which there may be thousands
    are_unknown: dict[int, bool] = {}
    annotated = {name: _annotated(layer, are_unknown) for name, layer in view.layers.items()}
    unknown = {
        name: known
        for name, known in annotated.items()
        if known is not None and None in known and name not in view.roots
    }
    if not unknown:
        return {}
    arrays: dict[str, ArrayInfo] = {}
    # readers first: one that was unknown itself shows the chunks of what it reads
    for name in reversed(list(TopologicalSorter(view.graph.dependencies).static_order())):
        layer = view.layers.get(name)
        if name in unknown and (array := _array(view, name, unknown[name])) is not None:
            arrays[name] = array
        if not isinstance(layer, Blockwise):
            continue
        reads = [
            (read, symbols)
            for read, symbols in layer.indices
            if isinstance(read, str) and symbols is not None and read in unknown
        ]
        info = (arrays.get(name) or view.array(name)) if reads else None
        if info is None or not _keeps_chunks(layer):
            continue
        for read, symbols in reads:
            unknown[read] = _both(unknown[read], _shown(layer, info, read, symbols))
    return arrays


def _annotated(layer: Layer, are_unknown: dict[int, bool]) -> _Known | None:
    """The chunks in the annotations of a layer, those that are right; None if it has none.

    By the identity of chunk sizes, `are_unknown` tells which are.
    """
    notes = layer.collection_annotations or {}
    chunks = notes.get("chunks")
    if chunks is None or notes.get("dtype") is None:
        return None
    for sizes in chunks:
        if id(sizes) not in are_unknown:
            are_unknown[id(sizes)] = math.isnan(sum(sizes))
    known = [None if are_unknown[id(sizes)] else sizes for sizes in chunks]
    if not is_unknown_part(layer):
        return known
    # noted are the chunks of what the parts are selected from
    return [sizes if _is_whole(layer, axis) else None for axis, sizes in enumerate(known)]


def _is_whole(layer: Layer, axis: int) -> bool:
    """Whether blocks of a selection by masks are whole along an axis."""
    if not isinstance(layer, Blockwise) or layer.task.func is not getitem_variadic:
        return False
    # after what is selected from come the masks or slices of its axes
    index, symbols = layer.indices[axis + 1]
    return symbols is None and isinstance(index, slice) and index == slice(None)


def _keeps_chunks(layer: Blockwise) -> bool:
    """Whether blocks of the result have the sizes of the blocks that are read."""
    if added_axes(layer):
        return False
    return is_transpose(layer) or (has_aligned_axes(layer) and is_pointwise_task(layer.task))


def _shown(layer: Blockwise, info: ArrayInfo, read: str, symbols: Sequence[str]) -> _Known:
    """The chunks of an array by one of its readers."""
    chunks = dict(zip(layer.output_indices, info.chunks, strict=True))
    others = {
        symbol
        for other, names in layer.indices
        if names is not None and other != read
        for symbol in names
    }
    return [
        # blocks may be broadcast along those of another array
        chunks[symbol] if len(chunks[symbol]) == count and symbol not in others else None
        for symbol, count in zip(symbols, layer.numblocks[read], strict=True)
    ]  # fmt: skip


def _both(one: _Known, other: _Known) -> _Known:
    """What is known from two sources."""
    if len(one) != len(other):
        return [_CONTRADICTION for _ in one]
    return [
        second if first is None else first if second in (None, first) else _CONTRADICTION
        for first, second in zip(one, other, strict=True)
    ]


def _array(view: GraphView, name: str, known: _Known) -> ArrayInfo | None:
    """The array of a layer with these chunks; None if some are missing or contradict it."""
    layer = view.layers[name]
    notes = layer.collection_annotations or {}
    chunks: list[tuple[int, ...]] = []
    for own, sizes in zip(notes["chunks"], known, strict=True):
        if sizes is None or len(sizes) != len(own):
            return None
        chunks.append(tuple(map(int, sizes)))
    dtype = np.dtype(notes["dtype"])
    array = ArrayInfo(name, tuple(map(sum, chunks)), dtype, tuple(chunks))
    return array if has_all_blocks(layer, array) else None
