"""Where every element of a block came from, found by running its tasks on indices.

A view layer only moves elements.  Its tasks are run here on :class:`Block` objects,
which hold, instead of elements, the position in the source array that each index along
each axis stands for.  Only functions of :data:`RULES` run, in the meaning written here;
a task that calls anything else, or does what cannot be described axis by axis, raises
:class:`Unknown`.  Positions are ranges for as long as they can be, so that the cost does
not depend on the size of the blocks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from dask.utils import M

from dasktile._compat.dask import (
    DataNode,
    Dict,
    GraphNode,
    NestedContainer,
    Task,
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
from dasktile.capture.base import ArrayInfo, GraphView
from dasktile.capture.references import Key, head_of, is_block, reference
from dasktile.ir import bounds

#: What counts as an integer; asking the abstract class is far slower.
INTEGERS = (int, np.integer)

#: Positions along one axis of a source array.
Positions = range | np.ndarray[Any, np.dtype[np.int64]]


class Unknown(Exception):  # noqa: N818 - control flow inside capture, never seen outside
    """The layer does something that is not known to only move elements."""


class Foreign(Unknown):
    """The layer calls a function that is not known to only move elements."""


class Axis(NamedTuple):
    """One axis of a block.

    `source` is an axis of the source array and `positions` those on it; None is an
    axis along which the block repeats, `positions` then only have its length.
    """

    source: int | None
    positions: Positions


class Block(NamedTuple):
    """What a block consists of.

    `name` is the source array, `fixed` the (axis, position) pairs of those of its axes
    along which the block does not extend, sorted.
    """

    name: str
    axes: tuple[Axis, ...]
    fixed: tuple[tuple[int, int], ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(axis.positions) for axis in self.axes)


def same_positions(one: Positions, other: Positions) -> bool:
    """Whether two sequences of positions are equal."""
    if isinstance(one, range) and isinstance(other, range):
        return one == other
    return one is other or np.array_equal(np.asarray(one), np.asarray(other))


def joined(parts: Iterable[Positions]) -> list[Positions]:
    """Positions one after the other, as few pieces as plain extension gives."""
    found: list[Positions] = []
    for part in parts:
        if not len(part):
            continue
        previous = found[-1] if found else None
        if isinstance(part, range) and isinstance(previous, range):
            longer = _extended(previous, part)
            if longer is not None:
                found[-1] = longer
                continue
        found.append(part)
    return found


def _extended(one: range, other: range) -> range | None:
    if len(one) > 1:
        step = one.step
    elif len(other) > 1:
        step = other.step
    else:
        step = other[0] - one[0]
    if not step or other[0] != one[-1] + step or (len(other) > 1 and other.step != step):
        return None
    return range(one[0], other[-1] + (1 if step > 0 else -1), step)


def _merge(parts: Sequence[Positions]) -> Positions:
    pieces = joined(parts)
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return range(0)
    return np.concatenate([np.asarray(piece, dtype=np.int64) for piece in pieces])


# --- the functions that only move elements ---------------------------------------------


def _block(value: Any) -> Block:
    if not isinstance(value, Block):
        raise Foreign("an argument is not a block of an array")
    return value


def _getitem(block: Any, index: Any) -> Any:
    if not isinstance(block, Block):
        raise Foreign("an item of something that is not an array")
    entries = list(index) if isinstance(index, tuple) else [index]
    used = sum(1 for entry in entries if entry is not None and entry is not Ellipsis)
    where = [place for place, entry in enumerate(entries) if entry is Ellipsis]
    rest: list[Any] = [slice(None)] * (len(block.axes) - used)
    if used > len(block.axes) or len(where) > 1:
        raise Unknown("more indices than axes")
    if where:
        entries[where[0] : where[0] + 1] = rest
    else:
        entries += rest
    if _mixed(entries):
        raise Unknown("more than one array in an index")
    axes: list[Axis] = []
    fixed = list(block.fixed)
    todo = iter(block.axes)
    for entry in entries:
        if entry is None:
            axes.append(Axis(None, range(1)))
            continue
        axis = next(todo)
        size = len(axis.positions)
        if isinstance(entry, slice):
            axes.append(_picked(axis, axis.positions[entry]))
        elif isinstance(entry, INTEGERS) and not isinstance(entry, (bool, np.bool_)):
            if not -size <= int(entry) < size:
                raise Unknown("an index is out of bounds")
            if axis.source is not None:
                fixed.append((axis.source, int(axis.positions[int(entry)])))
        else:
            axes.append(_taken(axis, entry))
    return Block(block.name, tuple(axes), tuple(sorted(fixed)))


def _mixed(entries: Sequence[Any]) -> bool:
    # An integer beside an array takes part in the broadcasting of both and may move axes.
    arrays = [entry for entry in entries if not (entry is None or isinstance(entry, slice))]
    lists = [entry for entry in arrays if not isinstance(entry, INTEGERS)]
    return bool(lists) and len(arrays) > 1


def _picked(axis: Axis, index: Positions) -> Axis:
    return Axis(axis.source, index if axis.source is not None else range(len(index)))


def _taken(axis: Axis, entry: Any) -> Axis:
    if not isinstance(entry, (list, np.ndarray)):
        raise Unknown("an index of an unknown type")
    chosen = np.asarray(entry)
    size = len(axis.positions)
    if chosen.ndim != 1 or chosen.dtype.kind not in "biu":
        raise Unknown("an index array is not a list of positions")
    if chosen.dtype.kind == "b":
        if len(chosen) != size:
            raise Unknown("a mask of another length")
        chosen = np.flatnonzero(chosen)
    chosen = chosen.astype(np.int64)
    if len(chosen) and not (-size <= chosen.min() and chosen.max() < size):
        raise Unknown("an index is out of bounds")
    if isinstance(axis.positions, range):
        # without writing the range out: an axis may be long and the index short
        chosen = np.where(chosen < 0, chosen + size, chosen)
        return _picked(axis, axis.positions.start + axis.positions.step * chosen)
    return _picked(axis, axis.positions[chosen])


def _boxed_getitem(block: Any, index: Any) -> Any:
    return _getitem(block, index[1])


def _getter(block: Any, index: Any, asarray: bool = True, lock: Any = None) -> Any:
    entries = index if isinstance(index, tuple) else (index,)
    if None in [entry if entry is None else 0 for entry in entries]:
        raise Unknown("a new axis in a read")
    return _getitem(block, index)


def _concatenate(blocks: Any, axis: int = 0) -> Block:
    if not isinstance(blocks, (list, tuple)) or not blocks:
        raise Unknown("nothing to concatenate")
    first = _block(blocks[0])
    if len(blocks) == 1:
        return first
    axis = operator.index(axis)
    place = axis + len(first.axes) if axis < 0 else axis
    if not 0 <= place < len(first.axes):
        raise Unknown("an axis is out of bounds")
    parts = []
    for block in map(_block, blocks):
        if (block.name, block.fixed, len(block.axes)) != (
            first.name,
            first.fixed,
            len(first.axes),
        ):
            raise Unknown("blocks of several arrays in one")
        for number, (one, other) in enumerate(zip(first.axes, block.axes, strict=True)):
            if one.source != other.source or (
                number != place and not same_positions(one.positions, other.positions)
            ):
                raise Unknown("blocks that do not line up")
        parts.append(block.axes[place].positions)
    source = first.axes[place].source
    merged = _merge(parts) if source is not None else range(sum(map(len, parts)))
    axes = (*first.axes[:place], Axis(source, merged), *first.axes[place + 1 :])
    return Block(first.name, axes, first.fixed)


def _nested(arrays: Any, axis: int) -> Block:
    if isinstance(arrays, Block):
        return arrays
    if not isinstance(arrays, (list, tuple)):
        raise Foreign("a list that does not hold blocks")
    return _concatenate([_nested(part, axis + 1) for part in arrays], axis)


def _concatenate3(arrays: Any) -> Block:
    depth, inner = 0, arrays
    while isinstance(inner, (list, tuple)) and not isinstance(inner, Block):
        if not inner:
            raise Unknown("nothing to concatenate")
        depth, inner = depth + 1, inner[0]
    if depth and depth != len(_block(inner).axes):
        raise Unknown("lists nested deeper, or less deep, than the array has axes")
    return _nested(arrays, 0)


def _concatenate_shaped(arrays: Any, shape: Any) -> Block:
    shape = tuple(shape)
    blocks = list(arrays)
    if int(np.prod(shape, dtype=np.int64)) != len(blocks):
        raise Unknown("blocks that do not fill their shape")
    for size in reversed(shape):
        blocks = [blocks[start : start + size] for start in range(0, len(blocks), size)]
    return _concatenate3(blocks[0])


def _concatenate_sorted(arrays: Any, sorter: Any, axis: int) -> Block:
    return _take(_concatenate(list(arrays), axis), np.argsort(sorter[1]), axis)


def _take(block: Any, index: Any, axis: Any = None) -> Block:
    if axis is None:
        raise Unknown("a take from a flattened array")
    entries: list[Any] = [slice(None)] * len(_block(block).axes)
    entries[axis] = index
    found: Block = _getitem(block, tuple(entries))
    return found


def _transpose(block: Any, axes: Any = None) -> Block:
    count = len(_block(block).axes)
    order = tuple(reversed(range(count))) if axes is None else tuple(axes)
    order = tuple(axis + count if axis < 0 else axis for axis in order)
    if sorted(order) != list(range(count)):
        raise Unknown("not a permutation of the axes")
    return Block(block.name, tuple(block.axes[axis] for axis in order), block.fixed)


def _swapaxes(block: Any, axis1: int, axis2: int) -> Block:
    order = list(range(len(_block(block).axes)))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return _transpose(block, order)


def _broadcast_to(block: Any, shape: Any) -> Block:
    shape = tuple(shape)
    old = _block(block).axes
    new = len(shape) - len(old)
    if new < 0:
        raise Unknown("a broadcast to fewer axes")
    axes = [Axis(None, range(size)) for size in shape[:new]]
    fixed = list(block.fixed)
    for axis, size in zip(old, shape[new:], strict=True):
        if len(axis.positions) == size:
            axes.append(axis)
        elif len(axis.positions) == 1:
            if axis.source is not None:
                fixed.append((axis.source, int(axis.positions[0])))
            axes.append(Axis(None, range(size)))
        else:
            raise Unknown("shapes that do not broadcast")
    return Block(block.name, tuple(axes), tuple(sorted(fixed)))


def _cast(*items: Any, typ: type) -> Any:
    return list(items) if typ is list else tuple(items) if typ is tuple else _refuse(typ)


def _refuse(what: Any) -> Any:
    raise Foreign(f"{what} is not known to only move elements")


#: What the functions of a view layer do to blocks.
RULES: Mapping[Hashable, Callable[..., Any]] = {
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


# --- running a layer -------------------------------------------------------------------


class Trace:
    """The blocks that a layer makes, as positions in the arrays that it reads.

    Parameters
    ----------
    view
        The graph.
    names
        The layers, run as one: positions are those in the arrays that they read.
    """

    def __init__(self, view: GraphView, *names: str):
        self.tasks: dict[Key, GraphNode] = {}
        for name in names:
            self.tasks.update(view.tasks(name))
        reads = dict.fromkeys(read for name in names for read in view.dependencies(name))
        self._arrays = {
            name: info
            for name in reads
            if name not in names and (info := view.array(name)) is not None
        }
        self._bounds: dict[str, tuple[tuple[int, ...], ...]] = {}
        self._found: dict[Key, Any] = {}

    def block(self, key: Key) -> Any:
        """What a key stands for.

        Raises
        ------
        Unknown
            Where that is not known.
        """
        if key not in self._found:
            task = self.tasks.get(key)
            self._found[key] = self._source(key) if task is None else self._run(task)
        return self._found[key]

    def source(self, key: Key) -> ArrayInfo | None:
        """The array of another layer that a key is a block of."""
        head = head_of(key)
        info = self._arrays.get(head) if isinstance(head, str) else None
        return info if info is not None and is_block(key, info.name, info.numblocks) else None

    def _source(self, key: Key) -> Block:
        info = self.source(key)
        if info is None:
            raise Foreign("a key that is no block of a known array")
        edges = self._bounds.get(info.name)
        if edges is None:
            edges = self._bounds[info.name] = tuple(bounds(sizes) for sizes in info.chunks)
        axes = tuple(
            Axis(axis, range(edge[number], edge[number + 1]))
            for axis, (edge, number) in enumerate(zip(edges, map(int, key[1:]), strict=True))
        )
        return Block(info.name, axes)

    def _run(self, node: Any) -> Any:
        if (key := reference(node)) is not None:
            return self.block(key)
        if not isinstance(node, GraphNode):
            return node
        if isinstance(node, DataNode):
            return node.value
        if isinstance(node, Dict):
            return _refuse("a dictionary")
        if isinstance(node, NestedContainer):
            items = [self._run(item) for item in node.args]
            return items if node.klass is list else tuple(items)
        if not isinstance(node, Task):
            return _refuse(type(node).__name__)
        rule = rule_of(node.func)
        if rule is None:
            return _refuse(node.func)
        arguments = [self._run(item) for item in node.args]
        words = {word: self._run(item) for word, item in node.kwargs.items()}
        try:
            return rule(*arguments, **words)
        except (TypeError, ValueError, IndexError) as error:
            raise Foreign(f"arguments of an unforeseen form: {error}") from error


def rule_of(function: Any) -> Callable[..., Any] | None:
    """What a function does to blocks, or None where that is not known."""
    try:
        return RULES.get(function)
    except TypeError:  # unhashable
        return None
