"""Bytes of the results of the tasks of a graph, before anything runs.

The size of a block is that in the annotations of its layer, or that of the plan.  Sizes of what is
made of known blocks follow (`dasktile.lower.results`).  Others are guesses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from dasktile._compat.dask import Alias, DataNode
from dasktile.capture.rules.sources import is_uniform
from dasktile.lower.bundle_limits import BundleLimits
from dasktile.lower.kernels.blas import total
from dasktile.lower.kernels.einsums import aggregate
from dasktile.lower.kernels.views import take
from dasktile.lower.known import KnownResult, known_array
from dasktile.lower.noted import NotedBlocks
from dasktile.lower.planned_sizes import PlannedSizes
from dasktile.lower.results import SLICING, ResultGraph, array_result, known_result
from dasktile.lower.working import data_of
from dasktile.schedule.placement import SLICE_PREFIX

Key = Any

#: Bytes of one element that is broadcast to a block.
_ELEMENT = 8


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
    limits: BundleLimits

    def is_free(self, number: int) -> bool: ...

    def block_numbers(self, number: int) -> Mapping[str, int]: ...

    def data(self, key: Key) -> Any: ...


class Sizes(NamedTuple):
    """Bytes of results.

    Parameters
    ----------
    nbytes
        Of every result.
    guessed
        The tasks for which they are a guess.
    held
        Of results that repeat elements of others, bytes where they are made.
    """

    nbytes: list[int]
    guessed: set[int]
    held: dict[int, int]


def estimated_sizes(tasks: SizedTasks) -> Sizes:
    """Bytes of every result.

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
        self.planned = PlannedSizes(tasks.limits)
        #: Results that were computed from others.
        self.computed: dict[int, KnownResult] = {}
        #: By result, the number of its slices.
        self.cut: dict[int, int] = {}
        #: Slices of data of the graph.
        self.sliced: dict[Key, Any] = {}
        #: By the identity of an array of the graph, or a slice of one, the labels that occur in it.
        self.labels: dict[int, np.ndarray] = {}

    def sizes(self) -> Sizes:
        tasks = self.tasks
        sizes = [0] * len(tasks.keys)
        guessed: set[int] = set()
        held: dict[int, int] = {}
        unknown = set()
        for number in range(len(tasks.keys)):
            if tasks.is_free(number):
                continue
            size = (
                _ELEMENT
                if is_uniform(getattr(tasks.tasks[number], "func", None))
                else self.planned.size(tasks.tasks[number], tasks.keys[number])
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
                if result.base is not None:
                    held[number] = min(result.base, result.nbytes)
                continue
            whole = self.planned.of_token(tasks.keys[number])
            if whole is not None:
                # a slice for this tile
                sizes[number] = whole
                continue
            if type(tasks.tasks[number]) is Alias and len(tasks.reads[number]) == 1:
                [read] = tasks.reads[number]
                sizes[number] = sizes[read]
                if read in guessed:
                    guessed.add(number)
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
            is_piece = bool(parts) and getattr(task, "func", None) in SLICING
            if not is_piece and type(task) is not DataNode:
                guessed.add(number)
        return Sizes(sizes, guessed, held)

    def items(self, number: int) -> list[int]:
        """The readers of a result that each take another item by its name; empty for others."""
        readers = {}
        for reader in self.tasks.readers[number]:
            task = self.tasks.tasks[reader]
            if getattr(task, "func", None) not in SLICING or not _is_name(task.args[1]):
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
        data = array_result(getattr(self.tasks.tasks[number], "value", None))
        if data is not None:
            return data
        key, noted = self.tasks.keys[number], self.tasks.noted.get(self.tasks.heads[number])
        if key in self.tasks.limits.shapes:
            return self.in_memory(key)
        shape = noted.shape(key[1:]) if noted is not None and type(key) is tuple else None
        return None if noted is None or shape is None else noted.result(shape)

    def known(self, number: int, size: int) -> KnownResult | None:
        """A result whose shape is known, of `size` bytes; None for others."""
        if number in self.computed:
            return self.computed[number]
        noted = self.noted(number) or self.planned.tile(self.tasks.keys[number])
        if noted is None:
            # the plan knows its size, but not which arrays it consists of
            return known_result(self.tasks.tasks[number], self.graph(number, self.noted_of))
        nbytes = noted.nbytes
        if not nbytes or size == _ELEMENT:
            return noted  # one element that is broadcast, as by what an alias names; or none
        # the plan knows better than the annotations of how many bytes an element has
        return replace(noted, itemsize=noted.itemsize * size / nbytes)

    def result_of(self, number: int, sizes: Sequence[int]) -> KnownResult | None:
        """A result that follows from known inputs; None for other tasks."""
        task = self.tasks.tasks[number]
        if type(task) is Alias:
            return self.read(task.target, sizes)
        if getattr(task, "func", None) is take:
            return self.taken(task, sizes)
        return known_result(task, self.graph(number, partial(self.read, sizes=sizes)))

    def graph(self, number: int, read: Callable[[Key], KnownResult | None]) -> ResultGraph:
        """What a task may read, by a function for keys."""
        inner = partial(self.merged, number=number)
        return ResultGraph(read, self.data, inner, self.unique)

    def data(self, key: Key) -> Any:
        """The value of a key that is data of the graph, or a slice of it; None for other keys."""
        value = self.tasks.data(key)
        if value is not None or key in self.sliced:
            return self.sliced.get(key, value)
        number = self.tasks.number.get(key)
        task: Any = None if number is None else self.tasks.tasks[number]
        if type(task) is Alias:
            return self.data(task.target)
        if getattr(task, "func", None) not in SLICING or len(task.args) != 2:
            return None
        whole, index = (data_of(argument, self.tasks.data) for argument in task.args)
        if isinstance(whole, np.ndarray) and is_basic(index):
            value = self.sliced[key] = whole[index]
        return value

    def noted_of(self, key: Key) -> KnownResult | None:
        """The block of a key; None for others."""
        number = self.tasks.number.get(key)
        return self.in_memory(key) if number is None else self.noted(number)

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
        return None if shape is None else noted.result(shape)

    def unique(self, labels: np.ndarray) -> np.ndarray:
        """The labels that occur in an array of the graph."""
        if id(labels) not in self.labels:
            self.labels[id(labels)] = np.unique(labels)
        return self.labels[id(labels)]

    def read(self, key: Key, sizes: Sequence[int]) -> KnownResult | None:
        """What a reference to a key stands for; None if its size is unknown."""
        number = self.tasks.number.get(key)
        return self.in_memory(key) if number is None else self.known(number, sizes[number])

    def in_memory(self, key: Key) -> KnownResult | None:
        """An array in the memory of a worker; None for other keys."""
        array = self.tasks.limits.shapes.get(key)
        return None if array is None else known_array(*array)

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
        taken = (*shape[:axis], len(positions[1]), *shape[axis + 1 :])
        return replace(source, shapes=(arranged[1] if arranged else taken,))


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
