"""Recogniser of reductions of the elements that boolean masks select, as ``x[x > 0].mean()``.

How many elements a block has is unknown until it is computed.  A reduction that takes all of them
needs no sizes: every tile of the array and of the mask has a partial result, and these are combined
as those of any reduction.  A mask with the shape of the array selects of both in row-major order,
for which Dask reshapes them to one axis; the order does not matter here, and neither is reshaped.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.core import flatten
from tlz import compose  # type: ignore[import-untyped]

from dasktile._compat.dask import (
    Task,
    TaskRef,
    blockwise_token,
    chunk_max,
    chunk_min,
    count_block,
    enforce_dtype,
    getitem,
    getitem_variadic,
    mean_chunk,
    moment_chunk,
)
from dasktile.capture.base import (
    ArrayInfo,
    GraphView,
    Input,
    NotRecognised,
    Operation,
    Rechunked,
    added_axes,
)
from dasktile.capture.references import reference
from dasktile.capture.rules.fold_table import REDUCTIONS
from dasktile.capture.rules.folds import read_reduction
from dasktile.capture.rules.pointwise import is_pointwise_task, is_scalar
from dasktile.capture.rules.reshapes import Reshape, reshape
from dasktile.capture.rules.trees import Blocks, read_level, read_step, read_tree
from dasktile.capture.rules.views import moves, rechunk_p2p
from dasktile.ir import AxisMap, Chunks, Kind, Label, Role

#: Functions that begin a reduction and have a partial result for no elements.
_OF_NONE = (
    *(np.sum, np.prod, np.any, np.all, np.nansum, np.nanprod, np.count_nonzero),
    *(count_block, mean_chunk),
)

#: Those whose partial result for no elements has no elements: of a selection with one axis only.
_OF_NONE_1D = (chunk_min, chunk_max)


_GETITEM = (operator.getitem, getitem)


@dataclass(frozen=True, slots=True)
class _Space:
    """Which elements of arrays of one shape are selected.

    Parameters
    ----------
    shape, chunks
        Of the arrays.
    axes
        For every axis of the selection, the axes of the arrays of which it has elements.
    masks
        The masks, each with the axis that it selects along; None for all axes.
    """

    shape: tuple[int, ...]
    chunks: Chunks = field(compare=False)
    axes: tuple[tuple[int, ...], ...]
    masks: tuple[tuple[int | None, str], ...]

    @property
    def selected(self) -> frozenset[int]:
        """The axes of the arrays of which only some elements are selected."""
        along = {axis for axis, _ in self.masks}
        every = range(len(self.shape))
        return frozenset(every if None in along else (axis for axis in along if axis is not None))


@dataclass(frozen=True, slots=True)
class _Step:
    """A layer that works on selected elements.

    Parameters
    ----------
    task
        The task of a block.
    reads
        What its references stand for: the name of an array, or another argument.
    space
        Which elements it computes.
    """

    task: Task
    reads: Mapping[Any, Any]
    space: _Space


@dataclass(frozen=True, slots=True, eq=False)
class OfSelected:
    """The partial result of the elements that are selected of one tile.

    Parameters
    ----------
    steps
        Tasks, the last one with the elements that are reduced; each with what its references stand
        for: the number of a tile or, counted on, of a step, or another argument and None.
    chunk
        Computes the partial result.
    """

    steps: tuple[tuple[Task, tuple[tuple[Any, int | None, Any], ...]], ...]
    chunk: Callable[[Any], Any]

    def __call__(self, *tiles: Any) -> Any:
        values = list(tiles)
        for task, reads in self.steps:
            values.append(
                task({token: value if at is None else values[at] for token, at, value in reads})
            )
        return self.chunk(values[-1])


def reduced_selection(view: GraphView, name: str) -> Operation | NotRecognised | None:
    """A reduction of all elements that masks select, or of functions of them."""
    level, out = read_level(view, name), view.array(name)
    if level is None or out is None:
        return None
    if all(last is not level.call.function for _, last in REDUCTIONS):
        return None
    tree = read_tree(view, name, _blocks_of_unknown)
    step = read_step(view, tree.step) if tree else None
    if tree is None or step is None or len(step.inputs) != 1 or step.keepdims is not True:
        return None
    reader = _Reader(view)
    space = reader.read(step.inputs[0])
    dtype = _dtype(view, step.inputs[0])
    if space is None or dtype is None or step.axis != tree.last.axes:
        return None
    read = read_reduction(step, tree, dtype)
    if not isinstance(read, tuple):
        return read
    reduction, fold = read
    reduced = tuple(sorted(axis for place in fold.axes for axis in space.axes[place]))
    if not space.selected <= set(reduced):
        return None
    moments = step.call.function is moment_chunk and len(fold.axes) == 1
    if not moments and not _has_result_of_none(step.call.function, len(space.axes)):
        return NotRecognised(f"{reduction.op} of no elements of a tile is not defined")
    kept = [place for place in range(len(space.axes)) if place not in fold.axes]
    places = range(len(space.axes)) if tree.last.keepdims else kept
    maps = tuple(AxisMap(space.axes[place][0] if place in kept else None) for place in places)
    if out.shape != tuple(1 if each.label is None else space.shape[each.label] for each in maps):
        return None
    inputs = reader.inputs()
    labels = range(len(space.shape))
    # lists of partial results that are passed to the functions of Dask
    listed: list[Callable[[Any], Any]] = []
    if len(space.axes) < len(space.shape):
        listed.append(_in_one_list)
    if moments:
        listed.insert(0, _of_elements)
    return Operation(
        op=reduction.name(step.call),
        kind=Kind.FOLD,
        labels=tuple(
            Label(sum(cuts), Role.REDUCE if axis in reduced else Role.FREE, cuts)
            for axis, cuts in zip(labels, space.chunks, strict=True)
        ),
        out=maps,
        kernel=replace(
            fold,
            chunk=OfSelected(reader.numbered(), fold.chunk),
            combine=compose(fold.combine, *listed),
            aggregate=compose(fold.aggregate, *listed),
            axes=reduced,
            symbols=tuple(symbols for _, symbols in inputs),
        ),
        inputs=tuple(
            Input(
                array.name,
                tuple(
                    AxisMap(label if size == space.shape[label] else None)
                    for label, size in zip(symbols, array.shape, strict=True)
                ),
            )
            for array, symbols in inputs
        ),
        partial=reduction.partial(out.dtype, step.call),
        work=reduction.work,
    )


def _in_one_list(parts: Any) -> list[Any]:
    """Partial results in nested lists, one level for each axis, in one list."""
    return list(flatten(parts))


def _of_elements(parts: list[Any]) -> list[Any]:
    """Moments of some elements; those of none, of which the mean is undefined, if all are."""
    return [part for part in parts if np.any(part["n"])] or parts[:1]


def _has_result_of_none(function: Any, ndim: int) -> bool:
    known = _OF_NONE + (_OF_NONE_1D if ndim == 1 else ())
    return any(function is each for each in known)


def _blocks_of_unknown(view: GraphView, name: str) -> Blocks | None:
    """Number of blocks of a step that reads one array of unknown size; None for others."""
    if not isinstance(view.layers.get(name), Blockwise):
        return None
    step = read_step(view, name)
    unknown = step is not None and len(step.inputs) == 1 and view.array(step.inputs[0]) is None
    return step.blocks if step and unknown else None


def _dtype(view: GraphView, name: str) -> np.dtype[Any] | None:
    """The data type of an array of unknown size, by its annotations."""
    annotations = view.layers[name].collection_annotations or {}
    plain = str(annotations.get("chunk_type", "numpy.ndarray")) == "numpy.ndarray"
    dtype = annotations.get("dtype")
    return np.dtype(dtype) if plain and dtype is not None else None


class _Reader:
    """The layers between a selection and what is reduced of it."""

    def __init__(self, view: GraphView) -> None:
        self._view = view
        #: By layer, in the order of the computation.
        self._steps: dict[str, _Step] = {}
        #: Other names of these layers: their blocks, counted along one axis.
        self._aliases: dict[str, str] = {}
        #: The arrays that are read, each with the label of every axis.
        self._inputs: dict[str, tuple[ArrayInfo, tuple[int, ...]]] = {}

    def inputs(self) -> list[tuple[ArrayInfo, tuple[int, ...]]]:
        """The arrays that are read, each with the axis of the space that each of its axes is."""
        return list(self._inputs.values())

    def numbered(self) -> tuple[tuple[Task, tuple[tuple[Any, int | None, Any], ...]], ...]:
        """The steps of an :class:`OfSelected`."""
        numbers = {name: at for at, name in enumerate([*self._inputs, *self._steps])}
        return tuple(
            (
                step.task,
                tuple(
                    (token, numbers[read.name], None) if isinstance(read, _Name)
                    else (token, None, read)
                    for token, read in step.reads.items()
                ),
            )
            for step in self._steps.values()
        )  # fmt: skip

    def read(self, name: str) -> _Space | None:
        """Read all layers down to arrays of known sizes; None if one has another form."""
        stack = [name]
        while stack:
            last = stack[-1]
            if self._space(last) is not None:
                stack.pop()
                continue
            below = [each for each in self._unknown(last) if self._space(each) is None]
            if len(below) + len(stack) > len(self._view.layers):
                return None
            if below:
                stack.extend(below)
            elif not self._add(last):
                return None
        return self._space(name)

    def _space(self, name: str) -> _Space | None:
        step = self._steps.get(self._aliases.get(name, name))
        return None if step is None else step.space

    def _unknown(self, name: str) -> Iterable[str]:
        """The arrays of a layer that are parts of selections, not masked arrays themselves."""
        layer = self._view.layers.get(name)
        if layer is None:
            return ()
        if not isinstance(layer, Blockwise):
            return self._view.dependencies(name)
        return [
            source
            for source, symbols in layer.indices
            if symbols is not None
            and isinstance(source, str)
            and source in self._view.layers
            and self._view.array(source) is None
        ]

    def _add(self, name: str) -> bool:
        """Add a layer whose inputs are known; False if it has another form."""
        layer = self._view.layers.get(name)
        if layer is None or layer.annotations:
            return False
        if not isinstance(layer, Blockwise):
            return self._add_alias(name)
        if layer.output_blocks or layer.io_deps or layer.concatenate or added_axes(layer):
            return False
        if not isinstance(layer.task, Task):
            return False
        if layer.task.func is getitem_variadic:
            step = self._along_axes(layer)
        elif _is_getitem(layer.task):
            step = self._of_all(layer)
        else:
            step = self._elementwise(layer)
        if step is not None:
            self._steps[name] = step
        return step is not None

    def _add_alias(self, name: str) -> bool:
        """A layer that counts the blocks of one with one axis."""
        below = self._view.dependencies(name)
        space = self._space(below[0]) if len(below) == 1 else None
        if space is None or len(space.axes) != 1:
            return False
        for number, (key, task) in enumerate(dict(self._view.layers[name]).items()):
            if key != (name, number) or _key(task) != (below[0], number):
                return False
        layer = self._view.layers[self._aliases.get(below[0], below[0])]
        if isinstance(layer, Blockwise) and len(self._view.layers[name]) != len(layer):
            return False
        self._aliases[name] = self._aliases.get(below[0], below[0])
        return True

    def _along_axes(self, layer: Blockwise) -> _Step | None:
        """A selection by masks along axes."""
        (source, symbols), *rest = layer.indices
        array = self._view.array(source) if isinstance(source, str) else None
        if array is None or symbols != layer.output_indices or len(rest) != len(array.shape):
            return None
        if layer.task.kwargs or layer.task.args != _tokens(len(layer.indices)):
            return None
        masks: list[tuple[int | None, str]] = []
        reads: dict[Any, Any] = {blockwise_token(0): self._input(array, range(len(array.shape)))}
        for axis, (other, along) in enumerate(rest):
            token = blockwise_token(axis + 1)
            if along is None:
                if not isinstance(other, slice) or other != slice(None):
                    return None
                reads[token] = other
                continue
            mask = self._view.array(other) if isinstance(other, str) else None
            if mask is None or mask.dtype != bool or along != (symbols[axis],):
                return None
            if mask.chunks != (array.chunks[axis],):
                return None
            reads[token] = self._input(mask, (axis,))
            masks.append((axis, mask.name))
        axes = tuple((axis,) for axis in range(len(array.shape)))
        space = _Space(array.shape, array.chunks, axes, tuple(masks))
        return _Step(layer.task, reads, space) if masks else None

    def _of_all(self, layer: Blockwise) -> _Step | None:
        """A selection by a mask of the same shape, in arrays of one axis."""
        names = [source for source, symbols in layer.indices if symbols == layer.output_indices]
        if len(layer.indices) != 2 or len(layer.output_indices) != 1:
            return None
        if layer.task.args != _tokens(2) or not all(isinstance(name, str) for name in names):
            return None
        if len(names) != 2:
            return None
        source, other = map(str, names)
        space, mask_space = self._space(source), self._space(other)
        if space is not None:
            # of what is selected already
            if space != mask_space or _dtype(self._view, other) != np.dtype(bool):
                return None
            chosen, by = (_Name(self._aliases.get(name, name)) for name in (source, other))
            space = replace(space, masks=(*space.masks, (None, by.name)))
            return _Step(layer.task, {blockwise_token(0): chosen, blockwise_token(1): by}, space)
        array, mask = self._view.array(source), self._view.array(other)
        if array is None or mask is None or mask.dtype != bool or array.chunks != mask.chunks:
            return None
        before = _before_ravel(self._view, array), _before_ravel(self._view, mask)
        if before[0].shape == before[1].shape:
            array, mask = before
        every = range(len(array.shape))
        space = _Space(array.shape, array.chunks, (tuple(every),), ((None, mask.name),))
        reads = {blockwise_token(0): self._input(array, every),
                 blockwise_token(1): self._input(mask, every)}  # fmt: skip
        return _Step(layer.task, reads, space)

    def _elementwise(self, layer: Blockwise) -> _Step | None:
        """A function of selected elements, and of arrays along the other axes."""
        if not is_pointwise_task(layer.task):
            return None
        spaces: list[_Space | None] = []
        reads: dict[Any, Any] = {}
        known: list[tuple[Any, ArrayInfo]] = []
        for place, (source, symbols) in enumerate(layer.indices):
            token = blockwise_token(place)
            if symbols is None:
                if not is_scalar(source):
                    return None
                reads[token] = source
            elif not isinstance(source, str) or not _is_suffix(symbols, layer.output_indices):
                return None
            elif (array := self._view.array(source)) is not None:
                known.append((token, array))
            elif len(symbols) != len(layer.output_indices):
                return None
            else:
                spaces.append(self._space(source))
                reads[token] = _Name(self._aliases.get(source, source))
        space = spaces[0] if spaces else None
        if space is None or any(other != space for other in spaces):
            return None
        for token, array in known:
            axes = _last_axes(space, array)
            if axes is None:
                return None
            reads[token] = self._input(array, axes)
        return _Step(layer.task, reads, space)

    def _input(self, array: ArrayInfo, axes: Iterable[int]) -> _Name:
        self._inputs[array.name] = (array, tuple(axes))
        return _Name(array.name)


@dataclass(frozen=True, slots=True)
class _Name:
    """The name of an array among the arguments of a step."""

    name: str


def _tokens(count: int) -> tuple[TaskRef, ...]:
    return tuple(TaskRef(blockwise_token(place)) for place in range(count))


def _is_getitem(task: Task) -> bool:
    """Whether a task selects elements of a block by another."""
    if task.func is enforce_dtype:
        return task.kwargs.get("enforce_dtype_function") in _GETITEM
    return task.func in _GETITEM and not task.kwargs


def _key(task: Any) -> Any:
    """The key that an alias stands for."""
    return task if type(task) is tuple else reference(task)


def _is_suffix(symbols: tuple[str, ...], outer: tuple[str, ...]) -> bool:
    """Whether an array lies along the last axes of another one, as arrays broadcast."""
    return symbols == outer[len(outer) - len(symbols) :]


def _last_axes(space: _Space, array: ArrayInfo) -> tuple[int, ...] | None:
    """The axes of a space along which an array lies that is broadcast along the first ones."""
    places = range(len(space.axes) - len(array.shape), len(space.axes))
    axes = []
    for place, size, chunks in zip(places, array.shape, array.chunks, strict=True):
        if len(space.axes[place]) != 1 or space.axes[place][0] in space.selected:
            return None
        axis = space.axes[place][0]
        if size != 1 and chunks != space.chunks[axis]:
            return None
        axes.append(axis)
    return tuple(axes)


def _before_ravel(view: GraphView, array: ArrayInfo) -> ArrayInfo:
    """The array of several axes whose elements an array has in row-major order, or itself."""
    source = reshape(view, _before_rechunk(view, array.name))
    if source is None or not isinstance(source.kernel, Reshape):
        return array
    return view.array(_before_rechunk(view, source.inputs[0].layer)) or array


def _before_rechunk(view: GraphView, name: str) -> str:
    """The array that an array has the elements of, in other chunks maybe."""
    while True:
        answer = rechunk_p2p(view, name) or moves(view, name)
        if not isinstance(answer, Rechunked):
            return name
        name = answer.layer


RECOGNISERS = (reduced_selection,)
