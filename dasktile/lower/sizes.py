"""Bytes of the results of the tasks of a graph, before anything runs.

The size of a block is that in the annotations of its layer, or that of the plan.  Sizes of slices,
stacks, products and QR decompositions of known blocks follow.  Others are guesses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import getitem as operator_getitem
from typing import Any, Protocol

import numpy as np
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph
from dask.utils import apply

from dasktile._compat.dask import (
    Alias,
    DataNode,
    GraphNode,
    TaskRef,
    arg_chunk,
    arg_combine,
    argtopk_aggregate,
    argtopk_preprocess,
    bincount_agg,
    chunk_argtopk,
    chunk_topk,
    fused_tasks,
    getitem,
    identity_cast,
    list_to_container,
    mean_chunk,
    mean_combine,
    moment_chunk,
    moment_combine,
    nannumel,
    slice_with_int_dask_array,
    topk_aggregate,
    wrapped_qr,
)
from dasktile._compat.flox import flox_names
from dasktile.capture.base import GraphView
from dasktile.capture.corrections import called_function
from dasktile.capture.measured import measured_arrays
from dasktile.capture.rules.sources import is_uniform
from dasktile.capture.rules.trees import unwrap
from dasktile.lower.grouped import Unique, grouped_result
from dasktile.lower.kernels.blas import total
from dasktile.lower.kernels.einsums import aggregate
from dasktile.lower.kernels.views import take
from dasktile.lower.known import KnownResult
from dasktile.lower.names import whole_layer_name
from dasktile.lower.reshard import getitem_any, join
from dasktile.lower.working import called, data_of, read_block
from dasktile.schedule.placement import SLICE_PREFIX

Key = Any

#: Functions that slice.
_SLICING = (operator_getitem, getitem, getitem_any)


#: Bytes of one element that is broadcast to a block.
_ELEMENT = 8

#: Functions that return the largest elements along an axis.
_LARGEST = (chunk_topk, topk_aggregate)

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
    measured = measured_arrays(GraphView(graph))
    flox = flox_names()
    for name, layer in graph.layers.items():
        notes = layer.collection_annotations or {}
        chunks: Any = measured[name].chunks if name in measured else notes.get("chunks")
        dtype: Any = notes.get("dtype")
        if notes.get("chunk_type") in _NO_ARRAYS:
            continue  # noted are the elements of what the tuples are made of
        function, options = called_function(layer)
        bins = _bins(graph, name) if function in (np.bincount, bincount_agg) else None
        if bins == 0:
            continue
        if function is slice_with_int_dask_array and name not in measured:
            continue  # noted are the elements of a block times the positions
        if flox is not None and flox.is_step(function):
            continue  # noted is the array that is reduced by groups
        reduced = options.get("axis", ()) if options.get("keepdims") is True else ()
        count = abs(options["k"]) if function in _LARGEST else 1
        try:
            cut = tuple(
                (bins or count,) * len(sizes) if bins or axis in reduced else tuple(map(int, sizes))
                for axis, sizes in enumerate(chunks)
            )
            if not dtype.hasobject:
                itemsize = dtype.itemsize * _arrays_of(function, options)
                # a layer of some of the tasks of another one has its keys
                noted[whole_layer_name(name)] = NotedBlocks(cut, itemsize)
        except (TypeError, ValueError, AttributeError):
            continue  # unknown chunks
    return noted


def _bins(graph: HighLevelGraph, name: str) -> int:
    """The bins of a step of `bincount`; 0 where they are unknown."""
    function, options = called_function(graph.layers[name])
    while function is bincount_agg and len(graph.dependencies[name]) == 1:
        [name] = graph.dependencies[name]
        if name not in graph.layers:
            return 0
        function, options = called_function(graph.layers[name])
    return int(options.get("minlength", 0)) if function is np.bincount else 0


def _arrays_of(function: Any, options: Mapping[str, Any]) -> int:
    """Arrays in a result: partial results of means, moments and extrema have several."""
    if function is mean_chunk:
        # other counts than those of NaNs are one number that is broadcast
        return 2 if options.get("numel") is nannumel else 1
    if function in (mean_combine, arg_chunk, arg_combine):
        return 2
    if function in (moment_chunk, moment_combine):
        return 1 + int(options.get("order", 2))
    return 1


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

    def block_numbers(self, number: int) -> Mapping[str, int]: ...

    def planned_size(self, number: int) -> int | None: ...

    def tile_size(self, number: int) -> int | None: ...

    def data(self, key: Key) -> Any: ...


def estimated_sizes(tasks: SizedTasks) -> tuple[list[int], set[int]]:
    """Bytes of every result, and the tasks for which they are a guess.

    Results that are on every worker count nothing.

    Parameters
    ----------
    tasks
        The tasks.
    """
    return _Estimate(tasks).sizes()


class _Estimate:
    def __init__(self, tasks: SizedTasks) -> None:
        self.tasks = tasks
        #: Results that were computed from others.
        self.computed: dict[int, KnownResult] = {}
        #: By result, the number of its slices.
        self.cut: dict[int, int] = {}
        #: Slices of data of the graph.
        self.sliced: dict[Key, Any] = {}
        #: By the identity of an array of the graph, or a slice of one, the labels that occur in it.
        self.labels: dict[int, np.ndarray] = {}

    def sizes(self) -> tuple[list[int], set[int]]:
        tasks = self.tasks
        sizes = [0] * len(tasks.keys)
        guessed: set[int] = set()
        unknown = set()
        for number in range(len(tasks.keys)):
            if tasks.is_free(number):
                continue
            size = (
                _ELEMENT
                if is_uniform(getattr(tasks.tasks[number], "func", None))
                else tasks.planned_size(number)
            )
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
            if (items := self.items(number)) and unknown.isdisjoint(items):
                # a dict of results
                sizes[number] = sum(sizes[item] for item in items)
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

    def items(self, number: int) -> list[int]:
        """The readers of a result that each take another item by its name; empty for others."""
        readers = {}
        for reader in self.tasks.readers[number]:
            task = self.tasks.tasks[reader]
            if getattr(task, "func", None) not in _SLICING or not _is_name(task.args[1]):
                return []
            readers[task.args[1]] = reader
        return list(readers.values())

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

    def noted(self, number: int) -> KnownResult | None:
        """A block: data of the graph, or what the annotations of its layer say; None for others."""
        value = getattr(self.tasks.tasks[number], "value", None)
        if isinstance(value, np.ndarray):
            return KnownResult((value.shape,), value.itemsize)
        key, noted = self.tasks.keys[number], self.tasks.noted.get(self.tasks.heads[number])
        shape = noted.shape(key[1:]) if noted is not None and type(key) is tuple else None
        return None if noted is None or shape is None else KnownResult((shape,), noted.itemsize)

    def known(self, number: int, size: int) -> KnownResult | None:
        """A result whose shape is known, of `size` bytes; None for others."""
        if number in self.computed:
            return self.computed[number]
        noted = self.noted(number)
        if noted is None:
            # the plan knows its size, but not which arrays it consists of
            return _value(self.tasks.tasks[number], self.graph(number, self.noted_of))
        nbytes = noted.nbytes
        if not nbytes or is_uniform(getattr(self.tasks.tasks[number], "func", None)):
            return noted
        # the plan knows better than the annotations of how many bytes an element has
        return KnownResult(noted.shapes, noted.itemsize * size / nbytes)

    def result_of(self, number: int, sizes: Sequence[int]) -> KnownResult | None:
        """A result that follows from known inputs; None for other tasks."""
        task = self.tasks.tasks[number]
        if getattr(task, "func", None) is take:
            return self.taken(task, sizes)
        return _value(task, self.graph(number, partial(self.read, sizes=sizes)))

    def graph(self, number: int, read: Callable[[Key], KnownResult | None]) -> _Graph:
        """What a task may read, by a function for keys."""
        inner = partial(self.merged, number=number)
        return _Graph(read, self.data, inner, self.unique)

    def data(self, key: Key) -> Any:
        """The value of a key that is data of the graph, or a slice of it; None for other keys."""
        value = self.tasks.data(key)
        if value is not None or key in self.sliced:
            return self.sliced.get(key, value)
        number = self.tasks.number.get(key)
        task: Any = None if number is None else self.tasks.tasks[number]
        if type(task) is Alias:
            return self.data(task.target)
        if getattr(task, "func", None) not in _SLICING or len(task.args) != 2:
            return None
        whole, index = (data_of(argument, self.tasks.data) for argument in task.args)
        if isinstance(whole, np.ndarray) and is_basic(index):
            value = self.sliced[key] = whole[index]
        return value

    def noted_of(self, key: Key) -> KnownResult | None:
        """The block of a key; None for others."""
        number = self.tasks.number.get(key)
        return None if number is None else self.noted(number)

    def merged(self, key: Key, number: int) -> KnownResult | None:
        """A block of a layer that Dask has merged with that of a task; None for other steps.

        The key is the name of the layer, and the axes of the task's block that give its numbers.
        """
        name, *axes = str(key).split("_.")
        noted, at = self.tasks.noted.get(name), self.tasks.block_numbers(number)
        if noted is None or len(axes) != len(noted.chunks):
            return None
        # blocks of axes in one block are the same for all blocks of the task
        block = tuple(
            0 if len(sizes) == 1 else at.get(f".{axis}")
            for sizes, axis in zip(noted.chunks, axes, strict=True)
        )
        shape = noted.shape(block)
        return None if shape is None else KnownResult((shape,), noted.itemsize)

    def unique(self, labels: np.ndarray) -> np.ndarray:
        """The labels that occur in an array of the graph."""
        if id(labels) not in self.labels:
            self.labels[id(labels)] = np.unique(labels)
        return self.labels[id(labels)]

    def read(self, key: Key, sizes: Sequence[int]) -> KnownResult | None:
        """What a reference to a key stands for; None if its size is unknown."""
        number = self.tasks.number.get(key)
        return None if number is None else self.known(number, sizes[number])

    def taken(self, task: Any, sizes: Sequence[int]) -> KnownResult | None:
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
            return KnownResult((arranged[1],), source.itemsize)
        return KnownResult(
            ((*shape[:axis], len(positions[1]), *shape[axis + 1 :]),), source.itemsize
        )


@dataclass(frozen=True, slots=True)
class _Graph:
    """What a task may read.

    Parameters
    ----------
    read
        What a key stands for that the task reads; None if its size is unknown.
    data
        The value of a key that is data of the graph, or a slice of it; None for other keys.
    inner
        What a step of a task makes, by its key; None if that is unknown.
    unique
        Finds the labels that occur in an array.
    """

    read: Callable[[Key], KnownResult | None]
    data: Callable[[Key], Any]
    inner: Callable[[Key], KnownResult | None]
    unique: Unique


def _value(task: Any, graph: _Graph) -> KnownResult | None:
    """The result of a task of a graph, or within another task; None if its size is unknown."""
    if isinstance(task, (Alias, TaskRef)):
        return graph.read(task.target if isinstance(task, Alias) else task.key)
    steps = fused_tasks(task)
    if steps:
        return _last_value(task, steps, graph)
    block = read_block(task, graph.data)
    if block is not None:
        shape, itemsize = block
        return KnownResult((shape,), itemsize)
    function = getattr(task, "func", None)
    if function is None:
        return None
    if function is apply and task.args[0] is np.full_like:
        return _filled(*task.args[1:])
    rule, call = _RULES.get(_name(function)), unwrap(function)
    if function is join:
        rule = _joined
    elif call.function in (chunk_argtopk, argtopk_aggregate):
        positions = call.function is argtopk_aggregate
        rule = partial(_largest_pairs, positions, **{**call.keywords, **task.kwargs})
    elif rule is None and any(_name(part).startswith("flox.") for part in called(function)):
        labels = data_of(task.args[1], graph.data) if len(task.args) > 1 else None
        rule = partial(_of_groups, function, labels, graph.unique)
    if rule is None:
        return None
    arguments = list(_flat(task.args))
    inputs = [_value(each, graph) for each in arguments if _is_task(each)]
    known = [each for each in inputs if each is not None]
    literals = [each for each in arguments if not _is_task(each)]
    return rule(known, literals) if len(known) == len(inputs) else None


def _last_value(task: Any, steps: Mapping[Key, Any], graph: _Graph) -> KnownResult | None:
    """The result of a task that runs several, that of the last one of them."""
    last, names, *arguments = task.args[1:]
    given = dict(zip(names, arguments, strict=False))

    def known(key: Key) -> Any:
        return data_of(given.get(key, TaskRef(key)), graph.data)

    @cache
    def result(key: Key) -> KnownResult | None:
        if key in steps:
            return graph.inner(key) or _value(steps[key], inner)
        return _value(given[key], graph) if key in given else graph.read(key)

    inner = replace(graph, read=result, data=known)
    return result(last)


def is_basic(index: Any) -> bool:
    """Whether an index takes a part of an array or a tuple without a copy.

    Parameters
    ----------
    index
        The index.
    """
    if type(index) is tuple:
        return all(part is None or part is ... or type(part) in (int, slice) for part in index)
    return type(index) in (int, slice)


def _is_name(index: Any) -> bool:
    """Whether an index is the name of a variable; xarray's own for an array is no string."""
    return type(index) is str or type(index).__name__ == "ReprObject"


def _adds(task: Any) -> bool:
    """Whether all inputs of a task are as large as its result."""
    return getattr(task, "func", None) in (total, aggregate)


def _is_task(argument: Any) -> bool:
    return isinstance(argument, (GraphNode, TaskRef))


def _flat(arguments: Iterable[Any]) -> Iterator[Any]:
    """The arguments of a task; those in lists and tuples of tasks one by one."""
    for argument in arguments:
        if getattr(argument, "func", None) in (tuple, list_to_container, identity_cast):
            yield from _flat(argument.args)
        else:
            yield argument


def _name(function: Any) -> str:
    """The module and the name of a function; modules of a package below its first one count."""
    module = str(getattr(function, "__module__", ""))
    return f"{module.partition('.')[0]}.{getattr(function, '__name__', '')}"


def _sliced(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    if len(sources) != 1 or len(literals) != 1:
        return None
    [source], [index] = sources, literals
    if not source.is_array:
        one = type(index) is int and 0 <= index < len(source.shapes)
        return KnownResult((source.shapes[index],), source.itemsize) if one else None
    [shape] = source.shapes
    index = index if type(index) is tuple else (index,)
    if len(index) > len(shape) or not all(type(part) in (slice, int) for part in index):
        return None
    cut = [
        len(range(*part.indices(size)))
        for part, size in zip(index, shape, strict=False)
        if type(part) is slice
    ]
    return KnownResult(((*cut, *shape[len(index) :]),), source.itemsize)


def _factors(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    """The factors Q and R of a matrix."""
    if not _are_matrices(sources, 1):
        return None
    [source] = sources
    rows, columns = source.shapes[0]
    inner = min(rows, columns)
    return KnownResult(((rows, inner), (inner, columns)), source.itemsize, is_array=False)


def _stacked(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    if not sources or not _are_matrices(sources, len(sources)):
        return None
    rows = sum(each.shapes[0][0] for each in sources)
    return KnownResult(((rows, sources[0].shapes[0][1]),), sources[0].itemsize)


def _joined(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    """A grid of blocks in one, see `join`."""
    [grid] = literals
    if not sources or not all(each.is_array for each in sources):
        return None
    numbers = np.arange(len(sources)).reshape(grid)
    shape = tuple(
        sum(
            sources[number].shapes[0][axis]
            for number in np.moveaxis(numbers, axis, -1).reshape(-1, count)[0]
        )
        for axis, count in enumerate(grid)
    )
    return KnownResult((shape,), sources[0].itemsize)


def _product(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    if not _are_matrices(sources[:1], 1) or len(sources) != 2 or not sources[1].is_array:
        return None
    first, second = sources
    return KnownResult(((first.shapes[0][0], *second.shapes[0][1:]),), first.itemsize)


def _are_matrices(sources: Sequence[KnownResult], count: int) -> bool:
    """Whether there are so many results, all of them matrices."""
    return len(sources) == count and all(
        each.is_array and len(each.shapes[0]) == 2 for each in sources
    )


def _triangular(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    """The factors P, L and U of a square matrix."""
    if not _are_matrices(sources, 1):
        return None
    return replace(sources[0], shapes=sources[0].shapes * 3, is_array=False)


def _singular(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    """The factors U and V of a matrix, and its singular values between them."""
    factors = _factors(sources, literals)
    if factors is None:
        return None
    left, right = factors.shapes
    return replace(factors, shapes=(left, left[1:], right))


def _zeros(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    # without another argument, numbers of double precision
    whole = not sources and all(isinstance(each, (int, np.integer)) for each in literals)
    return KnownResult((tuple(map(int, literals)),), 8) if whole else None


def _percentiles(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    """Percentiles of a block, and the number of its elements."""
    wanted = [each for each in literals if isinstance(each, np.ndarray)]
    return KnownResult((wanted[0].shape, (1,)), 8, is_array=False) if len(wanted) == 1 else None


def _transposed(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    if not _are_matrices(sources, 1) or literals:
        return None
    return replace(sources[0], shapes=(sources[0].shapes[0][::-1],))


def _broadcast(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    """An elementwise function of arrays of one type."""
    if not sources or not all(each.is_array for each in sources):
        return None
    try:
        shape = np.broadcast_shapes(*(each.shapes[0] for each in sources))
    except ValueError:
        return None
    return KnownResult((shape,), max(each.itemsize for each in sources))


def _like_last(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    """A result of the shape of the last input: a sum, or a solution."""
    return sources[-1] if sources and all(each.is_array for each in sources) else None


def _only(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    return sources[0] if len(sources) == 1 else None


def _filled(like: Any, options: Any) -> KnownResult | None:
    """Equal elements, before the first block of a running sum: a meta, their value and dtype."""
    shape = dict(options).get("shape")
    if type(like) is not tuple or not isinstance(shape, tuple):
        return None
    return KnownResult((shape,), like[-1].itemsize)


def _held(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    """A tuple of anything, as a variable of xarray."""
    size = sum(each.nbytes for each in sources)
    size += sum(getattr(each, "nbytes", 0) for each in flatten(literals, (list, tuple)))
    return KnownResult(((size,),), 1, is_array=False)


def _pair(sources: Sequence[KnownResult], literals: Sequence[Any]) -> KnownResult | None:
    """A tuple of two arrays; elements of both are counted as those of the first one."""
    if len(sources) != 2 or not all(each.is_array for each in sources):
        return None
    first, second = sources
    return KnownResult((*first.shapes, *second.shapes), first.itemsize, is_array=False)


def _largest_pairs(
    positions: bool,
    sources: Sequence[KnownResult],
    literals: Sequence[Any],
    k: int,
    axis: tuple[int, ...],
    keepdims: bool,
) -> KnownResult | None:
    """The largest of several tuples of elements and positions, or the positions alone."""
    if not sources or any(each.is_array or len(each.shapes) != 2 for each in sources):
        return None
    shape, [along] = sources[0].shapes[0], axis
    count = min(abs(k), sum(each.shapes[0][along] for each in sources))
    shape = (*shape[:along], count, *shape[along + 1 :])
    if positions:
        return KnownResult((shape,), np.dtype(np.intp).itemsize)
    return KnownResult((shape, shape), sources[0].itemsize, is_array=False)


def _of_groups(
    function: Any,
    labels: Any,
    unique: Unique,
    sources: Sequence[KnownResult],
    literals: Sequence[Any],
) -> KnownResult | None:
    return grouped_result(function, sources, labels, unique)


_Rule = Callable[[Sequence[KnownResult], Sequence[Any]], KnownResult | None]

#: By the name of a function, the result that follows from those of its inputs and from literals.
_RULES: Mapping[str, _Rule] = {
    **{_name(function): _sliced for function in _SLICING},
    **{_name(function): _factors for function in (np.linalg.qr, wrapped_qr)},
    "numpy.vstack": _stacked,
    "numpy.dot": _product,
    "numpy.transpose": _transposed,
    "numpy.zeros": _zeros,
    "numpy.svd": _singular,
    "scipy.lu": _triangular,
    "_operator.sub": _broadcast,
    "dask._cumsum_merge": _broadcast,
    "dask._cumprod_merge": _broadcast,
    "builtins.tuple": _held,
    "builtins.sum": _like_last,
    "dask.percentile": _percentiles,
    _name(argtopk_preprocess): _pair,
    "flox._zip_index": _pair,
    "flox.identity": _only,
    "dask._solve_triangular_lower": _like_last,
    "dask.solve_triangular_safe": _like_last,
}
