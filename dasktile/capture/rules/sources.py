"""Recognisers of sources: arrays that are generated, read from storage, or in memory."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from dask.array.core import slices_from_chunks
from dask.blockwise import Blockwise
from dask.utils import key_split

from dasktile._compat.dask import (
    ArrayChunkShapeDep,
    ArraySliceDep,
    DataNode,
    GraphNode,
    Task,
    TaskRef,
    broadcast_trick,
    chunk_arange,
    chunk_linspace,
    getter,
    getter_inline,
    getter_nofancy,
)
from dasktile.capture.base import (
    ArrayInfo,
    GraphView,
    NotRecognised,
    Operation,
    Recogniser,
    Verbatim,
)
from dasktile.capture.corrections import called_function
from dasktile.capture.settings import SETTINGS
from dasktile.ir import AxisMap, Chunks, Kind, Label, Role, bounds


@dataclass(frozen=True, slots=True)
class Create:
    """An array generated block by block from the shape of the block alone.

    Parameters
    ----------
    layer
        A Blockwise layer whose only block-dependent arguments are
        :class:`dask.layers.ArrayChunkShapeDep`.
    """

    layer: Blockwise


@dataclass(frozen=True, slots=True)
class Read:
    """An array-like that is sliced when a tile is computed.

    A tile's task is ``getter(array, slices, **kwargs)``, with one ``slice`` per axis.

    Parameters
    ----------
    source
        Key (and layer) of the input graph that holds the array-like, which is copied; None where
        `array` itself is an argument of every task.
    array
        The array-like.
    getter
        Function that slices it.
    kwargs
        Keyword arguments of the getter: `asarray`, `lock`.
    """

    source: str | None
    array: Any
    getter: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InMemory:
    """A NumPy array; every tile is a view of it."""

    array: np.ndarray[Any, Any]


#: Packages whose array-likes return the same values each time they are read.
REPEATABLE = {"h5py", "netCDF4", "numpy", "tensorstore", "xarray", "zarr"}

#: Why ranges that are not of integers are unchanged; the name of the function comes before.
_ROUNDED = "is rounded differently in other chunks"

#: Bytes of an array, and its blocks, up to which blocks without common memory are copied into one
#: (chosen: labels of groups, coordinates, weights; larger ones may be persisted results).
MOST_COPIED, MOST_BLOCKS = 2**20, 10_000

#: Functions that slice an array-like, as ``getter(array, slices)``.
_GETTERS = (getter, getter_nofancy, getter_inline, operator.getitem)

# dask.array.wrap curries this function
_UNIFORM = getattr(broadcast_trick, "func", broadcast_trick)


def uniform(view: GraphView, name: str) -> Operation | None:
    """``ones``, ``zeros``, ``full``, ``empty``: one value, broadcast to the block."""
    layer, info = view.layers[name], view.array(name)
    if not isinstance(layer, Blockwise) or info is None or len(layer.indices) != 1:
        return None
    if layer.task.kwargs or not is_uniform(layer.task.func):
        return None
    argument, symbols = layer.indices[0]
    shape = layer.io_deps.get(str(argument))
    if type(shape) is not ArrayChunkShapeDep or symbols != layer.output_indices:
        return None
    return _source(info, Create(layer)) if _equal_chunks(shape.chunks, info.chunks) else None


def from_array(view: GraphView, name: str) -> Operation | None:
    """A lazy ``from_array``: zarr, HDF5, any array-like that is sliced in tasks."""
    layer, info = view.layers[name], view.array(name)
    if not isinstance(layer, Blockwise) or info is None or len(layer.indices) != 2:
        return None
    array: Any
    (array, none), (slices, symbols) = layer.indices
    if none is not None or symbols != layer.output_indices:
        return None
    function, kwargs = layer.task.func, layer.task.kwargs
    if function not in _GETTERS or set(kwargs) - {"asarray", "lock"}:
        return None
    places = layer.io_deps.get(str(slices))
    if type(places) is not ArraySliceDep or not _equal_chunks(places.chunks, info.chunks):
        return None
    source = None
    if isinstance(array, TaskRef):
        if not isinstance(array.key, str) or array.key not in view.layers:
            return None
        source = array.key
        array = _value(view.layers[source].get(source))
    if isinstance(array, (GraphNode, TaskRef)) or getattr(array, "shape", None) != info.shape:
        return None
    kernel = Read(source, array, function, dict(kwargs))
    repeatable = type(array).__module__.partition(".")[0] in REPEATABLE
    stored = _stored(array, info)
    source_of = _source(info, kernel, op="from_array", stored=stored, repeatable=repeatable)
    # blocks that cut stored chunks would be read again and again
    return replace(source_of, root=stored is None or _are_unions(info.chunks, stored))


def in_memory(view: GraphView, name: str) -> Operation | None:
    """Blocks in memory: a NumPy array, or a persisted array with fixed placement."""
    layer, info = view.layers[name], view.array(name)
    if isinstance(layer, Blockwise) or info is None or view.graph.dependencies.get(name):
        return None
    if len(layer) != math.prod(info.numblocks) or not has_value(next(iter(layer.values()))):
        return None
    blocks = {key: _value(block) for key, block in layer.items()}
    if not all(map(has_value, layer.values())):
        return None
    whole = _whole(blocks, info)
    if whole is None:
        whole = _joined(blocks, info)
    if whole is not None:
        # every block travels with its task, to the worker that reads it
        return replace(_source(info, InMemory(whole), op="array"), root=True)
    return Operation(
        op=key_split(name),
        kind=Kind.OPAQUE,
        labels=tuple(Label(sum(cuts), Role.PINNED, cuts) for cuts in info.chunks),
        out=tuple(AxisMap(axis) for axis in range(len(info.shape))),
        kernel=Verbatim((name,)),
        work=0.0,
        resident=True,
        reason="already in memory, in these chunks",
    )


def random(view: GraphView, name: str) -> NotRecognised | None:
    """Declines random numbers, because every chunk has its own seed."""
    module = getattr(called_function(view.layers[name])[0], "__module__", "")
    if module != "dask.array.random":
        return None
    return NotRecognised("random numbers depend on the chunks")


def arange(view: GraphView, name: str) -> Operation | NotRecognised | None:
    """``arange`` of integers, which has the same values in any chunks."""
    layer, info = view.layers[name], view.array(name)
    if isinstance(layer, Blockwise) or info is None or len(info.shape) != 1:
        return None
    first = next(iter(layer.values()), None)
    function = _innermost(first.func) if isinstance(first, Task) else None
    if function is chunk_arange:
        return _range(layer, info) or NotRecognised(f"arange of fractions {_ROUNDED}")
    return NotRecognised(f"linspace {_ROUNDED}") if function is chunk_linspace else None


def _range(layer: Mapping[Any, Any], info: ArrayInfo) -> Operation | None:
    places = bounds(info.chunks[0])
    values: range | None = None
    for index, size in enumerate(info.chunks[0]):
        task = layer.get((info.name, index))
        if not isinstance(task, Task) or task.kwargs or len(task.args) != 5:
            return None
        if not isinstance(task.func, partial) or set(task.func.keywords) != {"like"}:
            return None
        if not _numpy_like(task.func.keywords["like"]):
            return None
        start, _, step, length, dtype = task.args
        if not _whole_numbers(start, step) or np.dtype(dtype) != info.dtype or length != size:
            return None
        begin = int(start) - int(step) * places[index]
        block_values = range(begin, begin + int(step) * info.shape[0], int(step))
        if values is not None and block_values != values:
            return None
        values = block_values
    if values is None or len(layer) != len(info.chunks[0]) or not _exact(values, info.dtype):
        return None
    return _source(info, Read(None, values, take_range, {"dtype": info.dtype}), op="arange")


def eye(view: GraphView, name: str) -> Operation | None:
    """``eye``: ones on a diagonal."""
    layer, info = view.layers[name], view.array(name)
    if isinstance(layer, Blockwise) or info is None or len(info.shape) != 2:
        return None
    first = next(iter(layer.values()), None)
    if not isinstance(first, Task) or first.func not in (np.eye, np.zeros):
        return None
    rows, columns = (bounds(cuts) for cuts in info.chunks)
    offsets: set[int] = set()
    empty: list[tuple[int, int]] = []
    for i, j in itertools.product(*map(range, info.numblocks)):
        task = layer.get((name, i, j))
        if not isinstance(task, Task) or task.kwargs:
            return None
        shape = (info.chunks[0][i], info.chunks[1][j])
        if task.func is np.eye and task.args[:2] == shape and task.args[3] == info.dtype:
            offsets.add(task.args[2] + columns[j] - rows[i])
        elif task.func is np.zeros and task.args == (shape, info.dtype):
            empty.append((i, j))
        else:
            return None
    if len(offsets) != 1 or len(layer) != math.prod(info.numblocks):
        return None
    (offset,) = offsets
    for i, j in empty:
        shifted = offset + rows[i] - columns[j]
        if -info.chunks[0][i] < shifted < info.chunks[1][j]:
            return None
    return _source(info, Read(None, offset, take_eye, {"dtype": info.dtype}), op="eye")


def take_range(values: range, index: tuple[slice], dtype: np.dtype[Any]) -> Any:
    """A slice of the array of `values`."""
    part = values[index[0]]
    return np.arange(part.start, part.stop, part.step, dtype=dtype)


def take_eye(offset: int, index: tuple[slice, slice], dtype: np.dtype[Any]) -> Any:
    """A rectangle of the matrix that has ones on diagonal number `offset`."""
    rows, columns = index
    count = (rows.stop - rows.start, columns.stop - columns.start)
    return np.eye(*count, offset + rows.start - columns.start, dtype=dtype)


def _source(
    info: ArrayInfo,
    kernel: Any,
    op: str | None = None,
    stored: Chunks | None = None,
    repeatable: bool = True,
) -> Operation:
    return Operation(
        op=op or key_split(info.name),
        kind=Kind.SOURCE,
        labels=tuple(Label(sum(cuts), Role.FREE, cuts) for cuts in info.chunks),
        out=tuple(AxisMap(axis) for axis in range(len(info.shape))),
        kernel=kernel,
        stored=stored,
        repeatable=repeatable,
    )


def is_uniform(function: Any) -> bool:
    """Whether a function broadcasts one element to a block.

    Parameters
    ----------
    function
        The function.
    """
    return _innermost(function) is _UNIFORM


def _innermost(function: Any) -> Any:
    """The function inside partials and curried functions."""
    while is_partial(function):
        function = function.func
    return function


def is_partial(function: Any) -> bool:
    """Whether a function is another one with some arguments."""
    return isinstance(function, partial) or type(function).__name__ == "curry"


def _equal_chunks(chunks: Any, others: Chunks) -> bool:
    return tuple(tuple(int(size) for size in sizes) for sizes in chunks) == others


def store_of(array: Any) -> Any:
    """The array-like with chunks that an array-like is, or wraps; None if there is none.

    Parameters
    ----------
    array
        An array-like; wrappers of the same shape are unwrapped.
    """
    shape = getattr(array, "shape", None)
    for _ in range(SETTINGS.store_wrappers):
        if array is None or getattr(array, "shape", None) != shape:
            return None
        if isinstance(getattr(array, "chunks", None), tuple):
            return array
        inner = getattr(array, "array", None)
        array = getattr(array, "_array", None) if inner is None else inner
    return None


def _stored(array: Any, info: ArrayInfo) -> Chunks | None:
    """Chunks of the store.

    With sharding these are the chunks inside a shard, which can be read separately.
    """
    store = store_of(array)
    chunks = getattr(store, "chunks", ())
    if store is None or store.shape != info.shape or len(chunks) != len(info.shape):
        return None
    if not all(isinstance(size, int) and size > 0 for size in chunks):
        return None
    return tuple(
        tuple(min(size, length - start) for start in range(0, length, size)) or (0,)
        for size, length in zip(chunks, info.shape, strict=True)
    )


def _are_unions(chunks: Chunks, stored: Chunks) -> bool:
    """Whether every chunk consists of whole stored chunks."""
    return all(
        set(bounds(sizes)) <= set(bounds(whole))
        for sizes, whole in zip(chunks, stored, strict=True)
    )


def has_value(block: Any) -> bool:
    """True for a block that is an array or a future, not a task.

    Parameters
    ----------
    block
        What a layer has for a key.
    """
    block = _value(block)
    if isinstance(block, (GraphNode, tuple, list, str)):
        return False
    return hasattr(block, "__array__") or is_future(block)


def _value(block: Any) -> Any:
    return block.value if isinstance(block, DataNode) else block


def is_future(block: Any) -> bool:
    """Whether a block is a result on a worker.

    Parameters
    ----------
    block
        As for `has_value`.
    """
    kind = type(block)
    return kind.__name__ == "Future" and kind.__module__.startswith("distributed")


def _whole(blocks: Mapping[Any, Any], info: ArrayInfo) -> np.ndarray[Any, Any] | None:
    """The array of which all blocks are views, each at its own position."""
    first = next(iter(blocks.values()))
    if type(first) is not np.ndarray:
        return None
    whole = first if first.shape == info.shape else first.base
    if type(whole) is not np.ndarray or whole.shape != info.shape or whole.dtype != info.dtype:
        return None
    places = [bounds(cuts) for cuts in info.chunks]
    origin = whole.__array_interface__["data"][0]
    for block in itertools.product(*map(range, info.numblocks)):
        part = blocks.get((info.name, *block))
        shape = tuple(cuts[i] for cuts, i in zip(info.chunks, block, strict=True))
        if type(part) is not np.ndarray or part.shape != shape or part.dtype != whole.dtype:
            return None
        starts = (place[i] for place, i in zip(places, block, strict=True))
        offset = sum(a * b for a, b in zip(starts, whole.strides, strict=True))
        if part.__array_interface__["data"][0] != origin + offset:
            return None
        if part.strides != whole.strides or not (part is whole or part.base is whole):
            return None
    return whole


def _joined(blocks: Mapping[Any, Any], info: ArrayInfo) -> np.ndarray[Any, Any] | None:
    """A new array of all blocks, which share no memory once a graph was sent to a scheduler.

    None for large arrays, and for blocks that are not as the array says.
    """
    nbytes = math.prod(info.shape) * info.dtype.itemsize
    if info.dtype.hasobject or nbytes > MOST_COPIED or len(blocks) > MOST_BLOCKS:
        return None
    whole = None
    regions = slices_from_chunks(info.chunks)
    for block, region in zip(itertools.product(*map(range, info.numblocks)), regions, strict=True):
        part = blocks.get((info.name, *block))
        if type(part) is not np.ndarray or part.dtype != info.dtype:
            return None
        if whole is None:
            whole = np.empty(info.shape, info.dtype)
        if part.shape != whole[region].shape:
            return None
        whole[region] = part
    return whole


def _whole_numbers(*values: Any) -> bool:
    return all(
        isinstance(value, (int, np.integer)) or (isinstance(value, float) and value.is_integer())
        for value in values
    )


def _numpy_like(like: Any) -> bool:
    """True if arrays created with ``like=`` are NumPy arrays."""
    return like is None or type(like) is np.ndarray


def _exact(values: range, dtype: np.dtype[Any]) -> bool:
    """True if the dtype represents all values, and the end that arange computes, exactly."""
    reach = (values.start, values.start + values.step * (len(values) + 1))
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return all(limits.min <= value <= limits.max for value in (*reach, values.step))
    if dtype.kind == "f":
        return all(abs(value) < 2 ** (np.finfo(dtype).nmant + 1) for value in reach)
    return False


RECOGNISERS: tuple[Recogniser, ...] = (uniform, from_array, in_memory, random, arange, eye)
