"""Chunk sizes that were computed after a layer was made.

``compute_chunk_sizes`` and ``to_dask_array(lengths=True)`` set the chunks of an array, but not
those in the annotations of its layer.  What was made of the array later knows them: results of
elementwise functions and transposes have the chunks of what they read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from dask.blockwise import Blockwise

from dasktile.capture.base import ArrayInfo, GraphView, added_axes, has_all_blocks
from dasktile.capture.corrections import is_unknown_part
from dasktile.capture.rules.blockwise import has_aligned_axes
from dasktile.capture.rules.pointwise import is_pointwise_task

#: Chunk sizes along each axis; None where they are unknown.
_Known = Sequence[tuple[int, ...] | None]


def measured_arrays(view: GraphView) -> dict[str, ArrayInfo]:
    """By layer, the arrays of unknown chunk sizes of which all readers show the same."""
    found: dict[str, _Known] = {}
    for name, layer in view.layers.items():
        if not isinstance(layer, Blockwise):
            continue
        unknown = [
            (read, symbols)
            for read, symbols in layer.indices
            if isinstance(read, str)
            and symbols is not None
            and read in view.layers
            and view.result(read) is None
        ]
        info = view.array(name) if unknown else None
        if info is None or not _keeps_chunks(layer):
            continue
        for read, symbols in unknown:
            shown = _shown(layer, info, read, symbols)
            found[read] = _both(found[read], shown) if read in found else shown
    arrays = {name: _array(view, name, known) for name, known in found.items()}
    return {name: array for name, array in arrays.items() if array is not None}


def _keeps_chunks(layer: Blockwise) -> bool:
    """Whether blocks of the result have the sizes of the blocks that are read."""
    if added_axes(layer):
        return False
    if layer.task.func is np.transpose:
        return len(layer.indices) == 1
    return has_aligned_axes(layer) and is_pointwise_task(layer.task)


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
        # a single block may be broadcast along the blocks of another array
        chunks[symbol] if len(chunks[symbol]) == count and (count > 1 or symbol not in others)
        else None
        for symbol, count in zip(symbols, layer.numblocks[read], strict=True)
    ]  # fmt: skip


def _both(one: _Known, other: _Known) -> _Known:
    """What two readers show; of what they disagree on, chunk sizes that no array has."""
    if len(one) != len(other):
        return ()
    return [
        second if first is None else first if second in (None, first) else ()
        for first, second in zip(one, other, strict=True)
    ]


def _array(view: GraphView, name: str, known: _Known) -> ArrayInfo | None:
    """The array of a layer with these chunks; None if some are missing or contradict it."""
    layer = view.layers[name]
    notes = layer.collection_annotations or {}
    declared, dtype = notes.get("chunks"), notes.get("dtype")
    if declared is None or dtype is None or len(declared) != len(known):
        return None
    is_part = is_unknown_part(layer)
    if not is_part and not any(map(_is_unknown, declared)):
        return None
    chunks: list[tuple[int, ...]] = []
    for own, sizes in zip(declared, known, strict=True):
        if sizes is None and not is_part and not _is_unknown(own):
            sizes = tuple(map(int, own))
        if sizes is None or len(sizes) != len(own):
            return None
        chunks.append(sizes)
    array = ArrayInfo(name, tuple(map(sum, chunks)), np.dtype(dtype), tuple(chunks))
    return array if has_all_blocks(layer, array) else None


def _is_unknown(sizes: Sequence[float]) -> bool:
    return any(math.isnan(size) for size in sizes)
