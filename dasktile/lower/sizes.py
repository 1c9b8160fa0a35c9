"""Bytes of the results of the tasks of a graph, before anything runs.

The size of a block is that in the annotations of its layer, or that of the plan.  Sizes of slices,
stacks, products and QR decompositions of known blocks follow.  Others are guesses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import getitem as operator_getitem
from typing import Any, Protocol

import numpy as np
from dask.highlevelgraph import HighLevelGraph

from dasktile._compat.dask import (
    Alias,
    DataNode,
    getitem,
    mean_chunk,
    moment_chunk,
    nannumel,
    slice_with_int_dask_array,
    wrapped_qr,
)
from dasktile.lower.kernels.blas import total
from dasktile.lower.kernels.einsums import aggregate
from dasktile.lower.kernels.views import take
from dasktile.lower.names import whole_layer_name
from dasktile.lower.reshard import getitem_any
from dasktile.schedule.placement import SLICE_PREFIX

Key = Any
Shape = tuple[int, ...]

#: Functions that slice.
_SLICING = (operator_getitem, getitem, getitem_any)

#: Functions that decompose a matrix in two factors.
_DECOMPOSING = (np.linalg.qr, wrapped_qr)

#: Functions whose results have sizes that follow from those of their inputs.
_SIZED = (*_SLICING, *_DECOMPOSING, np.vstack, np.dot, take)

#: Types of blocks that are no arrays, as Dask notes them.
_NO_ARRAYS = ("tuple", "list", "dict")


@dataclass(frozen=True, slots=True)
class NotedBlocks:
    """The blocks of a layer, according to its annotations.

    Parameters
    ----------
    chunks
        Chunk sizes along each axis.
    itemsize
        Bytes per element, of all arrays of a result.
    """

    chunks: tuple[tuple[int, ...], ...]
    itemsize: int

    def shape(self, block: tuple[Any, ...]) -> tuple[int, ...] | None:
        """The shape of a block; None for places that are no block.

        Parameters
        ----------
        block
            Its place along each axis.
        """
        try:
            return tuple(sizes[at] for sizes, at in zip(self.chunks, block, strict=True))
        except (TypeError, ValueError, IndexError):
            return None


def noted_blocks(graph: HighLevelGraph) -> dict[str, NotedBlocks]:
    """By layer, its blocks according to its annotations; not for layers of unknown sizes.

    Parameters
    ----------
    graph
        A graph whose layers are not merged: the chunks noted for the first step of a reduction are
        those of its input.
    """
    noted: dict[str, NotedBlocks] = {}
    for name, layer in graph.layers.items():
        notes = layer.collection_annotations or {}
        chunks: Any = notes.get("chunks")
        dtype: Any = notes.get("dtype")
        task: Any = getattr(layer, "task", None)
        if notes.get("chunk_type") in _NO_ARRAYS:
            continue  # noted are the elements of what the tuples are made of
        if getattr(task, "func", None) is slice_with_int_dask_array:
            continue  # noted are the elements of a block times the positions
        options = getattr(task, "kwargs", None) or {}
        reduced = options.get("axis", ()) if options.get("keepdims") is True else ()
        try:
            cut = tuple(
                (1,) * len(sizes) if axis in reduced else tuple(map(int, sizes))
                for axis, sizes in enumerate(chunks)
            )
            if not dtype.hasobject:
                # a layer of some of the tasks of another one has its keys
                noted[whole_layer_name(name)] = NotedBlocks(cut, dtype.itemsize * _arrays_of(task))
        except (TypeError, ValueError, AttributeError):
            continue  # unknown chunks
    return noted


def _arrays_of(task: Any) -> int:
    """Arrays in the result of a task: the first step of a mean or a moment returns several."""
    function, options = getattr(task, "func", None), dict(getattr(task, "kwargs", None) or {})
    while isinstance(function, partial):
        options = {**function.keywords, **options}
        function = function.func
    if function is None or function not in (mean_chunk, moment_chunk):
        return 1
    if function is mean_chunk:
        # other counts than those of NaNs are one number that is broadcast
        return 2 if options.get("numel") is nannumel else 1
    return 1 + int(options.get("order", 2))


class SizedTasks(Protocol):
    """The tasks of a graph by number, as `dasktile.lower.tasks.GraphTasks` has them."""

    keys: list[Key]
    heads: list[str]
    tasks: list[Any]
    number: dict[Key, int]
    reads: list[list[int]]
    readers: list[list[int]]
    inputs_first: list[int]
    noted: Mapping[str, NotedBlocks]

    def is_free(self, number: int) -> bool: ...

    def planned_size(self, number: int) -> int | None: ...

    def tile_size(self, number: int) -> int | None: ...


def estimated_sizes(tasks: SizedTasks) -> tuple[list[int], set[int]]:
    """Bytes of every result, and the tasks for which they are a guess.

    Results that are on every worker count nothing.

    Parameters
    ----------
    tasks
        The tasks.
    """
    return _Estimate(tasks).sizes()


@dataclass(frozen=True, slots=True)
class _Result:
    """A result of known size: an array, or a tuple of arrays.

    Parameters
    ----------
    shapes
        The shape of every array.
    itemsize
        Bytes per element.
    is_array
        Whether it is no tuple.
    """

    shapes: tuple[Shape, ...]
    itemsize: float
    is_array: bool = True

    @property
    def nbytes(self) -> int:
        return int(sum(map(math.prod, self.shapes)) * self.itemsize)


class _Estimate:
    def __init__(self, tasks: SizedTasks) -> None:
        self.tasks = tasks
        #: Results that were computed from others.
        self.computed: dict[int, _Result] = {}
        #: By result, the number of its slices.
        self.cut: dict[int, int] = {}

    def sizes(self) -> tuple[list[int], set[int]]:
        tasks = self.tasks
        sizes = [0] * len(tasks.keys)
        guessed: set[int] = set()
        unknown = set()
        for number in range(len(tasks.keys)):
            if tasks.is_free(number):
                continue
            size = tasks.planned_size(number)
            if size is None and (result := self.noted(number)) is not None:
                size = result.nbytes
            if size is None:
                unknown.add(number)
            else:
                sizes[number] = size
        for number in tasks.inputs_first:
            if number not in unknown:
                continue
            result = self.result_of(number, sizes)
            if result is not None:
                self.computed[number] = result
                sizes[number] = result.nbytes
                continue
            whole = tasks.tile_size(number)
            if whole is not None:
                # a slice for this tile
                sizes[number] = whole
                continue
            if type(tasks.tasks[number]) is Alias and len(tasks.reads[number]) == 1:
                sizes[number] = sizes[tasks.reads[number][0]]
                continue
            aliases = [
                reader
                for reader in tasks.readers[number]
                if reader not in unknown and type(tasks.tasks[reader]) is Alias
            ]
            if aliases:
                # a block that a delayed function makes
                sizes[number] = sizes[aliases[0]]
                continue
            pieces = self.pieces(number)
            if pieces:
                # a scattered sum: its pieces are of one size, or nearly so
                sizes[number] = sizes[tasks.reads[number][0]] // pieces
                continue
            inputs = max((sizes[read] for read in tasks.reads[number]), default=0)
            parts = [
                # a task adds its inputs, or joins them
                sizes[reader] // (1 if _adds(tasks.tasks[reader]) else len(tasks.reads[reader]))
                for reader in tasks.readers[number]
                if sizes[reader]
            ]
            sizes[number] = min(inputs, max(parts)) if parts else inputs
            task = tasks.tasks[number]
            # the slices that a task joins have the size of its result together, others alone
            is_piece = bool(parts) and getattr(task, "func", None) in _SLICING
            if not is_piece and type(task) is not DataNode:
                guessed.add(number)
        return sizes, guessed

    def pieces(self, number: int) -> int:
        """Pieces into which the only input of a slice is cut; 0 for other tasks."""
        tasks = self.tasks
        if len(tasks.reads[number]) != 1 or not tasks.heads[number].startswith(SLICE_PREFIX):
            return 0
        [read] = tasks.reads[number]
        if read not in self.cut:
            self.cut[read] = sum(
                tasks.heads[reader].startswith(SLICE_PREFIX) for reader in tasks.readers[read]
            )
        return self.cut[read]

    def noted(self, number: int) -> _Result | None:
        """A block: data of the graph, or what the annotations of its layer say; None for others."""
        value = getattr(self.tasks.tasks[number], "value", None)
        if isinstance(value, np.ndarray):
            return _Result((value.shape,), value.itemsize)
        key, noted = self.tasks.keys[number], self.tasks.noted.get(self.tasks.heads[number])
        shape = noted.shape(key[1:]) if noted is not None and type(key) is tuple else None
        return None if noted is None or shape is None else _Result((shape,), noted.itemsize)

    def known(self, number: int, size: int) -> _Result | None:
        """A result whose shape is known, of `size` bytes; None for others."""
        if number in self.computed:
            return self.computed[number]
        noted = self.noted(number)
        if noted is None or not noted.nbytes:
            return noted
        # the plan knows better than the annotations of how many bytes an element has
        return replace(noted, itemsize=noted.itemsize * size / noted.nbytes)

    def result_of(self, number: int, sizes: Sequence[int]) -> _Result | None:
        """A result that follows from known inputs; None for other tasks."""
        tasks = self.tasks
        task, reads = tasks.tasks[number], tasks.reads[number]
        function = getattr(task, "func", None)
        if type(task) is not Alias and function not in _SIZED:
            return None
        if function is take:
            return self.taken(task, sizes)
        inputs = [self.known(read, sizes[read]) for read in reads]
        known = [each for each in inputs if each is not None]
        if not known or not len(known) == len(reads) == len(task.dependencies):
            return None
        if type(task) is Alias:
            return known[0]
        if len(known) == 1 and function in _SLICING:
            return _sliced(known[0], task.args)
        if len(known) == 1 and function in _DECOMPOSING:
            return _decomposed(known[0])
        if function is np.vstack:
            return _stacked(known)
        if function is np.dot and len(known) == 2 and len(task.args) == 2:
            # reads are in the order of their numbers
            first = tasks.number.get(getattr(task.args[0], "key", None))
            return _product(known if first == reads[0] else known[::-1])
        return None

    def taken(self, task: Any, sizes: Sequence[int]) -> _Result | None:
        """Elements at positions of one axis of a block, whose axes are then arranged."""
        block, index, axis, *arranged = task.args
        read, places = (self.tasks.number.get(getattr(ref, "key", None)) for ref in (block, index))
        if read is None or places is None:
            return None
        source = self.known(read, sizes[read])
        positions = getattr(self.tasks.tasks[places], "value", None)
        if source is None or not source.is_array or type(positions) is not tuple:
            return None
        [shape] = source.shapes
        if arranged:
            return _Result((arranged[1],), source.itemsize)
        return _Result(((*shape[:axis], len(positions[1]), *shape[axis + 1 :]),), source.itemsize)


def _adds(task: Any) -> bool:
    """Whether all inputs of a task are as large as its result."""
    return getattr(task, "func", None) in (total, aggregate)


def _sliced(source: _Result, arguments: Sequence[Any]) -> _Result | None:
    if len(arguments) != 2:
        return None
    index = arguments[1]
    if not source.is_array:
        one = type(index) is int and 0 <= index < len(source.shapes)
        return _Result((source.shapes[index],), source.itemsize) if one else None
    [shape] = source.shapes
    index = index if type(index) is tuple else (index,)
    if len(index) > len(shape) or not all(type(part) in (slice, int) for part in index):
        return None
    cut = [
        len(range(*part.indices(size)))
        for part, size in zip(index, shape, strict=False)
        if type(part) is slice
    ]
    return _Result(((*cut, *shape[len(index) :]),), source.itemsize)


def _decomposed(source: _Result) -> _Result | None:
    """The factors Q and R of a matrix."""
    if not source.is_array or len(source.shapes[0]) != 2:
        return None
    rows, columns = source.shapes[0]
    inner = min(rows, columns)
    return _Result(((rows, inner), (inner, columns)), source.itemsize, is_array=False)


def _stacked(sources: Sequence[_Result]) -> _Result | None:
    if not all(each.is_array and len(each.shapes[0]) == 2 for each in sources):
        return None
    rows = sum(each.shapes[0][0] for each in sources)
    return _Result(((rows, sources[0].shapes[0][1]),), sources[0].itemsize)


def _product(sources: Sequence[_Result]) -> _Result | None:
    first, second = sources
    if not all(each.is_array and len(each.shapes[0]) == 2 for each in sources):
        return None
    return _Result(((first.shapes[0][0], second.shapes[0][1]),), first.itemsize)
