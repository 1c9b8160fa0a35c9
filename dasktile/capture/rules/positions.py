"""Blocks as positions in the array that they come from, and the functions that only move elements.

A :class:`TracedBlock` holds source positions along each axis instead of elements.  Each function of
:data:`MOVES` has an equivalent here that moves positions.  Positions are ranges where possible, so
that the time does not depend on the size of the blocks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from dask.utils import M

from dasktile._compat.dask import (
    concatenate3,
    concatenate_shaped,
    getitem,
    getter,
    getter_inline,
    getter_nofancy,
    identity_cast,
    shuffle_concatenate,
    shuffle_getitem,
)

#: Types of integers; a check against the abstract class is much slower.
INTEGERS = (int, np.integer)

#: The type of nearly all indices, for a quick check of all of them.
_SLICES = frozenset({slice})

#: Positions along one axis of a source array.
Positions = range | np.ndarray[Any, np.dtype[np.int64]]


class NotTraceable(Exception):  # noqa: N818 - control flow inside capture, never seen outside
    """The layer does not only move elements, or not axis by axis."""


class UnknownFunction(NotTraceable):
    """The layer calls a function that is not in :data:`MOVES`, or with other arguments."""


class TracedAxis(NamedTuple):
    """One axis of a block.

    `source` is an axis of the source array and `positions` are positions along it.  With None the
    block repeats along the axis, and only the length of `positions` has a meaning.
    """

    source: int | None
    positions: Positions


class TracedBlock(NamedTuple):
    """The source positions of the elements of a block.

    `name` is the source array.  `fixed` has the (axis, position) pairs, sorted, of the source
    axes that are not axes of the block.
    """

    name: str
    axes: tuple[TracedAxis, ...]
    fixed: tuple[tuple[int, int], ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple([len(axis.positions) for axis in self.axes])


def same_positions(first: Positions, second: Positions) -> bool:
    """Whether two sequences of positions are equal."""
    if isinstance(first, range) and isinstance(second, range):
        return first == second
    return first is second or np.array_equal(np.asarray(first), np.asarray(second))


def joined(parts: Iterable[Positions]) -> list[Positions]:
    """Consecutive positions, with ranges that continue one another merged."""
    pieces: list[Positions] = []
    for part in parts:
        if not len(part):
            continue
        previous = pieces[-1] if pieces else None
        if isinstance(part, range) and isinstance(previous, range):
            longer = _extended(previous, part)
            if longer is not None:
                pieces[-1] = longer
                continue
        pieces.append(part)
    return pieces


def _extended(first: range, second: range) -> range | None:
    if len(first) > 1:
        step = first.step
    elif len(second) > 1:
        step = second.step
    else:
        step = second[0] - first[0]
    if not step or second[0] != first[-1] + step or (len(second) > 1 and second.step != step):
        return None
    return range(first[0], second[-1] + (1 if step > 0 else -1), step)


def _merge(parts: Sequence[Positions]) -> Positions:
    merged = joined(parts)
    if len(merged) == 1:
        return merged[0]
    if not merged:
        return range(0)
    return np.concatenate([np.asarray(piece, dtype=np.int64) for piece in merged])


def _block(value: Any) -> TracedBlock:
    if not isinstance(value, TracedBlock):
        raise UnknownFunction("an argument is not a block of an array")
    return value


def _getitem(block: Any, index: Any) -> Any:
    if not isinstance(block, TracedBlock):
        raise UnknownFunction("an index into a value that is not an array")
    if (
        type(index) is tuple
        and len(index) == len(block.axes)
        and _SLICES.issuperset(map(type, index))
    ):
        # by far the most
        return TracedBlock(block.name, tuple(map(_cut, block.axes, index)), block.fixed)
    entries = list(index) if isinstance(index, tuple) else [index]
    used = sum(1 for entry in entries if entry is not None and entry is not Ellipsis)
    ellipses = [place for place, entry in enumerate(entries) if entry is Ellipsis]
    full: list[Any] = [slice(None)] * (len(block.axes) - used)
    if used > len(block.axes) or len(ellipses) > 1:
        raise NotTraceable("more indices than axes")
    if ellipses:
        entries[ellipses[0] : ellipses[0] + 1] = full
    else:
        entries += full
    if _mixed(entries):
        raise NotTraceable("an index with several arrays")
    axes: list[TracedAxis] = []
    fixed = list(block.fixed)
    remaining = iter(block.axes)
    for entry in entries:
        if entry is None:
            axes.append(TracedAxis(None, range(1)))
            continue
        axis = next(remaining)
        size = len(axis.positions)
        if isinstance(entry, slice):
            axes.append(_cut(axis, entry))
        elif isinstance(entry, INTEGERS) and not isinstance(entry, (bool, np.bool_)):
            if not -size <= int(entry) < size:
                raise NotTraceable("an index is out of bounds")
            if axis.source is not None:
                fixed.append((axis.source, int(axis.positions[int(entry)])))
        else:
            axes.append(_taken(axis, entry))
    return TracedBlock(block.name, tuple(axes), tuple(sorted(fixed)))


def _cut(axis: TracedAxis, entry: slice) -> TracedAxis:
    """A part of an axis; the same object if that is all of it, which is quick to compare."""
    positions = axis.positions[entry]
    if len(positions) == len(axis.positions) and entry.step in (None, 1):
        return axis
    return _picked(axis, positions)


def _mixed(entries: Sequence[Any]) -> bool:
    # An integer and an array in one index are broadcast against each other, which may move axes.
    arrays = [entry for entry in entries if not (entry is None or isinstance(entry, slice))]
    lists = [entry for entry in arrays if not isinstance(entry, INTEGERS)]
    return bool(lists) and len(arrays) > 1


def _picked(axis: TracedAxis, index: Positions) -> TracedAxis:
    return TracedAxis(axis.source, index if axis.source is not None else range(len(index)))


def _taken(axis: TracedAxis, entry: Any) -> TracedAxis:
    if not isinstance(entry, (list, np.ndarray)):
        raise NotTraceable("an index of an unsupported type")
    chosen = np.asarray(entry)
    size = len(axis.positions)
    if chosen.ndim != 1 or chosen.dtype.kind not in "biu":
        raise NotTraceable("an index array that is not one-dimensional")
    if chosen.dtype.kind == "b":
        if len(chosen) != size:
            raise NotTraceable("a mask whose length is not that of its axis")
        chosen = np.flatnonzero(chosen)
    chosen = chosen.astype(np.int64)
    least, most = (chosen.min(), chosen.max()) if len(chosen) else (0, -1)
    if not (-size <= least and most < size):
        raise NotTraceable("an index is out of bounds")
    if isinstance(axis.positions, range):
        # the range is not expanded: the axis may be long and the index short
        if least < 0:
            chosen = np.where(chosen < 0, chosen + size, chosen)
        return _picked(axis, axis.positions.start + axis.positions.step * chosen)
    return _picked(axis, axis.positions[chosen])


def _boxed_getitem(block: Any, index: Any) -> Any:
    return _getitem(block, index[1])


def _getter(block: Any, index: Any, asarray: bool = True, lock: Any = None) -> Any:
    entries = index if isinstance(index, tuple) else (index,)
    if None in [entry if entry is None else 0 for entry in entries]:
        raise NotTraceable("a new axis in a read")
    return _getitem(block, index)


def _concatenate(blocks: Any, axis: int = 0) -> TracedBlock:
    if not isinstance(blocks, (list, tuple)) or not blocks:
        raise NotTraceable("nothing to concatenate")
    first = _block(blocks[0])
    if len(blocks) == 1:
        return first
    axis = operator.index(axis)
    place = axis + len(first.axes) if axis < 0 else axis
    if not 0 <= place < len(first.axes):
        raise NotTraceable("an axis is out of bounds")
    parts = [_block(block) for block in blocks]
    name, axes, fixed = first
    if any(
        part.name != name or part.fixed != fixed or len(part.axes) != len(axes) for part in parts
    ):
        raise NotTraceable("blocks of several arrays are concatenated")
    for number, expected in enumerate(axes):
        along = [part.axes[number] for part in parts]
        if number == place:
            continued = all(axis.source == expected.source for axis in along)
        else:
            continued = _all_same(along)
        if not continued:
            raise NotTraceable("concatenated blocks have different positions along other axes")
    source = axes[place].source
    positions = [part.axes[place].positions for part in parts]
    merged = _merge(positions) if source is not None else range(sum(map(len, positions)))
    return TracedBlock(name, (*axes[:place], TracedAxis(source, merged), *axes[place + 1 :]), fixed)


def _all_same(axes: list[TracedAxis]) -> bool:
    """Whether some blocks have the same positions along an axis."""
    first = axes[0]
    try:
        # fast for ranges; arrays of several positions have no truth value
        if axes.count(first) == len(axes):
            return True
    except ValueError:
        pass
    return all(
        axis.source == first.source and same_positions(axis.positions, first.positions)
        for axis in axes
    )


def _nested(arrays: Any, axis: int) -> TracedBlock:
    if isinstance(arrays, TracedBlock):
        return arrays
    if not isinstance(arrays, (list, tuple)):
        raise UnknownFunction("a list with other items than blocks")
    return _concatenate([_nested(part, axis + 1) for part in arrays], axis)


def _concatenate3(arrays: Any) -> TracedBlock:
    depth, inner = 0, arrays
    while isinstance(inner, (list, tuple)) and not isinstance(inner, TracedBlock):
        if not inner:
            raise NotTraceable("nothing to concatenate")
        depth, inner = depth + 1, inner[0]
    if depth and depth != len(_block(inner).axes):
        raise NotTraceable("the nesting of lists differs from the number of axes")
    return _nested(arrays, 0)


def _concatenate_shaped(arrays: Any, shape: Any) -> TracedBlock:
    shape = tuple(shape)
    blocks = list(arrays)
    if int(np.prod(shape, dtype=np.int64)) != len(blocks):
        raise NotTraceable("the number of blocks does not match their shape")
    if shape and len(shape) != len(_block(blocks[0]).axes):
        raise NotTraceable("the shape of the blocks has another number of axes than a block")
    for axis, size in reversed(list(enumerate(shape))):
        if size > 1:
            rows = range(0, len(blocks), size)
            blocks = [_concatenate(blocks[start : start + size], axis) for start in rows]
    return _block(blocks[0])


def _concatenate_sorted(arrays: Any, sorter: Any, axis: int) -> TracedBlock:
    return _take(_concatenate(list(arrays), axis), np.argsort(sorter[1]), axis)


def _take(block: Any, index: Any, axis: Any = None) -> TracedBlock:
    if axis is None:
        raise NotTraceable("a take from a flattened array")
    entries: list[Any] = [slice(None)] * len(_block(block).axes)
    entries[axis] = index
    taken: TracedBlock = _getitem(block, tuple(entries))
    return taken


def _transpose(block: Any, axes: Any = None) -> TracedBlock:
    count = len(_block(block).axes)
    order = tuple(reversed(range(count))) if axes is None else tuple(axes)
    order = tuple(axis + count if axis < 0 else axis for axis in order)
    if sorted(order) != list(range(count)):
        raise NotTraceable("not a permutation of the axes")
    return TracedBlock(block.name, tuple(block.axes[axis] for axis in order), block.fixed)


def _swapaxes(block: Any, axis1: int, axis2: int) -> TracedBlock:
    order = list(range(len(_block(block).axes)))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return _transpose(block, order)


def _broadcast_to(block: Any, shape: Any) -> TracedBlock:
    shape = tuple(shape)
    old = _block(block).axes
    new = len(shape) - len(old)
    if new < 0:
        raise NotTraceable("a broadcast to fewer axes")
    axes = [TracedAxis(None, range(size)) for size in shape[:new]]
    fixed = list(block.fixed)
    for axis, size in zip(old, shape[new:], strict=True):
        if len(axis.positions) == size:
            axes.append(axis)
        elif len(axis.positions) == 1:
            if axis.source is not None:
                fixed.append((axis.source, int(axis.positions[0])))
            axes.append(TracedAxis(None, range(size)))
        else:
            raise NotTraceable("shapes that do not broadcast")
    return TracedBlock(block.name, tuple(axes), tuple(sorted(fixed)))


def _cast(*items: Any, typ: type) -> Any:
    return list(items) if typ is list else tuple(items) if typ is tuple else refuse(typ)


def refuse(what: Any) -> Any:
    """Raise the error for what is not known to only move elements."""
    raise UnknownFunction(f"{what} is not known to only move elements")


#: For each function that only moves elements, its equivalent on traced blocks.
MOVES: Mapping[Hashable, Callable[..., Any]] = {
    operator.getitem: _getitem,
    getitem: _getitem,
    getter: _getter,
    getter_inline: _getter,
    getter_nofancy: _getter,
    concatenate3: _concatenate3,
    concatenate_shaped: _concatenate_shaped,
    shuffle_getitem: _boxed_getitem,
    shuffle_concatenate: _concatenate_sorted,
    np.concatenate: _concatenate,
    np.broadcast_to: _broadcast_to,
    np.transpose: _transpose,
    np.swapaxes: _swapaxes,
    np.take: _take,
    M.transpose: _transpose,
    M.swapaxes: _swapaxes,
    identity_cast: _cast,
}


def move_of(function: Any) -> Callable[..., Any] | None:
    """The equivalent of a function on traced blocks, or None."""
    try:
        return MOVES.get(function)
    except TypeError:  # unhashable
        return None


def is_transposition(function: Any) -> bool:
    """Whether a function transposes a block, whatever its shape."""
    return move_of(function) in (_transpose, _swapaxes)


def is_item(function: Any) -> bool:
    """Whether a function takes the elements of a block that an index stands for."""
    return move_of(function) is _getitem
