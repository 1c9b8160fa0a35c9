"""Resharding: from the tiles of an array to other tiles of it.

The new tiles are given by a sequence of windows for every axis, which may overlap (stencils),
have steps (``x[::2]``) and run backwards (flips).  Each new tile is concatenated from pieces
of the array's blocks.  A piece that is not a whole block is cut by a separate task, so that
only the piece is sent to other workers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from typing import Any

import numpy as np

from dasktile._compat.dask import (
    Alias,
    GraphNode,
    Task,
    TaskRef,
    concatenate2,
    concatenate3,
    getitem,
)
from dasktile.ir import Chunks, Edge, Tiling, Window, bounds, windows
from dasktile.lower.anchored import Anchored
from dasktile.lower.names import slices_layer_name

Key = tuple[Any, ...]
Block = tuple[int, ...]

#: A function of a block, of a block of the source that it is cut from, and of the place of the copy
#: that is made if copies are, which returns the place of the copy to read.
PlaceOf = Callable[[Block, Block, int | None], int]

#: For every axis of an array, the windows that cut it.
Windows = tuple[tuple[Window, ...], ...]

_EMPTY: Window = (0, 0, 1)
_ALL = slice(None)


def within(fine: Sequence[int], coarse: Sequence[int]) -> list[tuple[int, int, int]]:
    """For every chunk, the coarser chunk that contains it, and its range in that.

    Raises
    ------
    ValueError
        If a chunk is in no coarser one.
    """
    places = []
    edges = bounds(coarse)
    outer = 0
    for lo, hi in pairwise(bounds(fine)):
        while hi > edges[outer + 1] or (lo >= edges[outer + 1] and outer + 2 < len(edges)):
            outer += 1
        if lo < edges[outer]:
            raise ValueError(f"chunks {tuple(fine)} are not within chunks {tuple(coarse)}")
        places.append((outer, lo - edges[outer], hi - edges[outer]))
    return places


def block_windows(chunks: Chunks) -> Windows:
    """The windows that are exactly the blocks of an array, in the form of :func:`normal`."""
    return tuple(map(_blocks_along, chunks))


@lru_cache(maxsize=64)
def _blocks_along(sizes: tuple[int, ...]) -> tuple[Window, ...]:
    """The windows that are the blocks along one axis: most arrays of a program share their cuts."""
    return tuple([(lo, hi, 1) if hi > lo else _EMPTY for lo, hi in pairwise(bounds(sizes))])


def edge_windows(edge: Edge, tiling: Tiling, shape: Sequence[int]) -> Windows:
    """The windows of an array of this shape that blocks of a node need along an edge.

    They are in the form of :func:`normal`.
    """
    if edge.chunks is not None:
        return block_windows(edge.chunks)
    along = []
    for axis, size in zip(edge.axes, shape, strict=True):
        cuts = None if axis.label is None else tiling.cuts[axis.label]
        if cuts is not None and axis.identity and sum(cuts) <= size:
            along.append(_blocks_along(cuts))
        else:
            along += normal([windows(axis, cuts, size)])
    return tuple(along)


def normal(windows: Sequence[Sequence[Window]]) -> Windows:
    """The same windows in a normal form: windows of the same elements are equal."""
    return tuple(
        # those of neighbouring elements, which are nearly all, are in this form
        tuple([each if each[2] == 1 and each[0] < each[1] else _normal(each) for each in axis])
        for axis in windows
    )


def _normal(window: Window) -> Window:
    start, stop, step = window
    count = len(range(start, stop, step))
    if count == 0:
        return _EMPTY
    last = start + (count - 1) * step
    if count == 1:
        step = 1
    return start, last + (1 if step > 0 else -1), step


def lengths(windows: Windows) -> Chunks:
    """The sizes of the blocks that windows cut an array into."""
    return tuple(
        tuple(
            [
                stop - start if step == 1 and start < stop else len(range(start, stop, step))
                for start, stop, step in axis
            ]
        )
        for axis in windows
    )


def reshard(
    name: str,
    token: str,
    source: str,
    chunks: Chunks,
    windows: Windows,
    cut: Callable[[Any, Any], Any] = getitem,
    copies: Mapping[tuple[int, ...], Sequence[int]] | None = None,
    place_of: PlaceOf | None = None,
    may_fuse: bool = False,
    halo: Sequence[int] | None = None,
) -> dict[Key, GraphNode]:
    """The tasks of a layer that cuts an array into other tiles.

    Parameters
    ----------
    name
        Layer to write: its keys are ``(name, *block)``, one block for every choice of a
        window along each axis.
    token
        Distinguishes the keys of the pieces from those of other such layers.
    source, chunks
        Layer that holds the array, and its chunks.
    windows
        The windows, as :func:`normal` returns them.
    cut
        Function of a block and an index that returns the part.
    copies
        For every block, the places in the mesh that need a copy each; the keys are then
        ``(name, place, *block)``.
    place_of
        If given, the source has such keys: which copy of each of its blocks is read.
    may_fuse
        Whether Dask may fuse a tile with the task that reads it, if it is all that is cut from a
        block.
    halo
        For arrays whose blocks are extended at their ends, as the new tiles are: for every axis of
        a block, by how many elements.  `chunks` and `windows` are those without, and may have
        further axes in one piece.  No window may be empty or have a step.
    """
    ndim = len(chunks) if halo is None else len(halo)
    more = [*(halo or ()), *(0 for _ in chunks[len(halo or ()) :])]
    axes = [
        pieces(axis, sizes, extra) for axis, sizes, extra in zip(windows, chunks, more, strict=True)
    ]
    piece = slices_layer_name(token)
    tasks: dict[Key, GraphNode] = {}
    # whether pieces are cut by separate tasks, not by the tasks of the new tiles
    is_joined = any(len(parts) > 1 for axis in axes for parts in axis)
    separate = (copies is not None and place_of is None) or is_joined
    # of a block that is cut into several pieces only these should be sent
    once = all(len({part.block for (part, *_) in axis}) == len(axis) for axis in axes)
    kind = Task if may_fuse and once and not separate else Anchored
    blocks = product(*(range(len(axis)) for axis in axes))

    def refs(block: Block, per_axis: Sequence[tuple[Piece, ...]], place: int | None) -> list[Key]:
        keys: list[Key] = []
        for parts in product(*per_axis):
            whole = tuple(part.block for part in parts)
            copy: tuple[int, ...] = ()
            if place_of is not None:
                copy = (place_of(block, whole, place),)
            target: Key = (source, *copy, *whole)
            is_remote = place is not None and copy != (place,)
            if not separate and not is_remote:
                key: Key = (name, *(() if place is None else (place,)), *block)
                tasks[key] = _cut_piece(key, target, parts[:ndim], cut, kind)
            elif all(part.cut is None for part in parts):
                keys.append(target)
            else:
                key = (piece, *copy, *(part.number for part in parts))
                if key not in tasks:
                    tasks[key] = _cut_piece(key, target, parts[:ndim], cut, kind)
                keys.append(key)
        return keys

    for block, per_axis in zip(blocks, product(*axes), strict=True):
        shape = tuple(map(len, per_axis))[:ndim]
        places: Sequence[int | None] = (None,) if copies is None else copies.get(block, ())
        read: list[Key] = []
        for number, place in enumerate(places):
            if number == 0 or place_of is not None:
                read = refs(block, per_axis, place)
            if not read:
                continue
            key: Key = (name, *(() if place is None else (place,)), *block)
            if len(read) == 1:
                tasks[key] = Alias(key, read[0])
            else:
                tasks[key] = Task(key, join, shape, *map(TaskRef, read))
    return tasks


def joins(windows: Windows, chunks: Chunks) -> bool:
    """True if some window is concatenated from several blocks."""
    return any(
        len(parts) > 1
        for axis, sizes in zip(windows, chunks, strict=True)
        for parts in pieces(axis, sizes)
    )


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of one block along one axis; `cut` is None where it is all of it."""

    block: int
    cut: slice | None
    #: Equal for the same part of the same block, along one axis of one layer.
    number: int


def _cut_piece(
    key: Key,
    target: Key,
    parts: Sequence[Piece],
    cut: Callable[[Any, Any], Any],
    kind: type[Task],
) -> GraphNode:
    """The task of one piece of one block, of a class of tasks."""
    if all(part.cut is None for part in parts):
        return Alias(key, target)
    index = tuple(_ALL if part.cut is None else part.cut for part in parts)
    return kind(key, cut, TaskRef(target), index)


def pieces(
    windows: Sequence[Window], sizes: Sequence[int], more: int = 0
) -> list[tuple[Piece, ...]]:
    """For every window along an axis, its pieces in order.

    Parameters
    ----------
    windows
        The windows.
    sizes
        Sizes of the blocks along the axis.
    more
        Elements by which the blocks, and the result of every window, are extended at the end.
    """
    edges = bounds(sizes)
    numbers: dict[tuple[int, int, int, int], int] = {}
    found = []
    for start, stop, step in windows:
        elements = range(start, stop, step)
        parts = []
        position = 0
        while position < len(elements):
            # an empty block holds no element: it ends where the next block starts
            block = bisect_right(edges, elements[position]) - 1
            lo, hi = edges[block], edges[block + 1]
            last = (hi - 1 - start) // step if step > 0 else (start - lo) // -step
            last = min(last, len(elements) - 1)
            # the last piece has the elements after the window
            after = more if last == len(elements) - 1 else 0
            ends = elements[position] - lo, elements[last] - lo + after
            parts.append(_piece(numbers, block, *ends, step, hi - lo + more))
            position = last + 1
        if not parts:
            parts.append(_piece(numbers, 0, 0, -1, 1, sizes[0] if sizes else 0))
        found.append(tuple(parts))
    return found


def _piece(
    numbers: dict[tuple[int, int, int, int], int],
    block: int,
    first: int,
    last: int,
    step: int,
    size: int,
) -> Piece:
    if first == last:
        step = 1
    number = numbers.setdefault((block, first, last, step), len(numbers))
    if step == 1 and first == 0 and last == size - 1:
        return Piece(block, None, number)
    stop = last + (1 if step > 0 else -1)
    return Piece(block, slice(first, None if step < 0 and stop < 0 else stop, step), number)


def getitem_any(block: Any, index: Any) -> Any:
    """A part of a block that may not be an array, since functions may return any value."""
    return getitem(_as_array(block), index)


def _as_array(block: Any) -> Any:
    return block if hasattr(block, "dtype") else np.asarray(block)


def join(shape: tuple[int, ...], *blocks: Any) -> Any:
    """Concatenate a grid of blocks, given in C order, `shape` blocks along each axis."""
    blocks = tuple(map(_as_array, blocks))
    nested: list[Any] = list(blocks)
    for size in reversed(shape[1:]):
        nested = [nested[start : start + size] for start in range(0, len(nested), size)]
    if any(block.dtype != blocks[0].dtype for block in blocks):
        # concatenate3 would cast all blocks to the dtype of the first
        return concatenate2(nested, axes=list(range(len(shape))))
    return concatenate3(nested)
