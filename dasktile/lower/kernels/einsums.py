"""Extended Einstein summation, tile by tile, in the tensor-relational algebra.

A tiled array is a tensor relation: a map from the index of a tile to the tile.  An einsum of
such relations is a *join* of the tiles that match, and an *aggregation* of the results of the
joins (EinDecomp, sections 4.2 and 4.3).  A *repartition* reshards the inputs.  The functions
here are the kernels of joins and aggregations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import singledispatch
from itertools import product
from typing import Any

import numpy as np
from dask.highlevelgraph import MaterializedLayer

from dasktile._compat.dask import GraphNode, Task
from dasktile.capture.rules.blockwise import Contract
from dasktile.capture.rules.einsums import EinSum, Recipe, reduced_labels
from dasktile.lower.emit import EmittedLayers, LoweringContext, emit
from dasktile.lower.kernels.blas import accumulate, multiply, total
from dasktile.lower.settings import SlabSettings

#: Sizes of slabs.  The functions of tasks read it on the workers.
SLABS = SlabSettings()

#: Ufuncs whose reduction treats values of any type as true or false.
_LOGICAL = (np.logical_and, np.logical_or, np.logical_xor)

#: Ufuncs whose reduction can compute in another type than that of the values.
_WIDENING = (np.add, np.multiply)


# --- kernels ---------------------------------------------------------------------------


@singledispatch
def join(recipe: Any, *tiles: Any) -> Any:
    """Join tiles that match, and reduce the result over the labels that the output lacks.

    This is the inner of the two nested sums of EinDecomp, section 4.3 (equation 4).

    Parameters
    ----------
    recipe
        An :class:`~dasktile.capture.rules.einsums.EinSum` or, for a sum of products, a
        :class:`~dasktile.capture.rules.blockwise.Contract`.
    *tiles
        A tile of every input.

    Returns
    -------
    The array over the output's labels.
    """
    raise TypeError(f"no join is registered for a recipe of type {type(recipe).__name__}")


@join.register
def _(recipe: Contract, *tiles: Any) -> Any:
    return multiply(recipe, *tiles)


@join.register
def _(recipe: EinSum, *tiles: Any) -> Any:
    order = (*recipe.output, *reduced_labels(recipe))
    size = {
        label: extent
        for tile, labels in zip(tiles, recipe.spec, strict=True)
        for label, extent in zip(labels, tile.shape, strict=True)
    }
    views = [spread(tile, labels, order) for tile, labels in zip(tiles, recipe.spec, strict=True)]
    shape = tuple(size[label] for label in order)
    kept = len(recipe.output)
    itemsize = max([recipe.dtype.itemsize, *(tile.dtype.itemsize for tile in tiles)])
    steps = slab_steps(shape, max(1, SLABS.nbytes // itemsize))
    # an array of the tiles' type, so on their device
    whole = np.empty_like(tiles[0], dtype=recipe.dtype, order="C", shape=shape[:kept], subok=False)
    for outer in _slabs(shape[:kept], steps[:kept]):
        result: Any = None
        for inner in _slabs(shape[kept:], steps[kept:]):
            part = (*outer, *inner)
            values = recipe.join(*(_within(view, part) for view in views))
            extents = tuple(piece.stop - piece.start for piece in part)
            if np.shape(values) != extents:
                # the function does not use an operand
                values = np.broadcast_to(values, extents)
            reduced = reduced_over(recipe, values, range(kept, len(order)))
            result = reduced if result is None else recipe.reduce(result, reduced)
        whole[outer] = result
    # a result without axes is a scalar, as in NumPy
    return whole if kept else whole[()]


@singledispatch
def aggregate(recipe: Any, *partials: Any) -> Any:
    """Aggregate the partial results of one tile.

    This is the outer of the two nested sums of EinDecomp, section 4.3 (equation 4).
    """
    raise TypeError(f"no aggregation is registered for a recipe of type {type(recipe).__name__}")


@aggregate.register
def _(recipe: Contract, *partials: Any) -> Any:
    return total(*partials)


@aggregate.register
def _(recipe: EinSum, *partials: Any) -> Any:
    return functools.reduce(recipe.reduce, partials)


def join_onto(recipe: Recipe, before: Any, *tiles: Any) -> Any:
    """A join, aggregated with the partial result of the joins before it."""
    if isinstance(recipe, Contract):
        return accumulate(recipe, before, *tiles)
    return aggregate(recipe, before, join(recipe, *tiles))


def reduced_over(recipe: EinSum, values: Any, axes: Sequence[int]) -> Any:
    """Values reduced over some of their axes, in the type of the result."""
    function, dtype = recipe.reduce, recipe.dtype
    for axis in sorted(axes, reverse=True):
        if function in _LOGICAL:
            values = function.reduce(values, axis=axis)
        elif function in _WIDENING and dtype.kind in "biufc":
            values = function.reduce(values, axis=axis, dtype=dtype)
        else:
            values = values.astype(dtype, copy=False)
            if isinstance(function, np.ufunc):
                values = function.reduce(values, axis=axis)
            else:
                values = _in_pairs(function, values, axis)
    return values


def _in_pairs(function: Any, values: Any, axis: int) -> Any:
    """Reduce an axis by applying a function to halves of the values, until one is left."""
    values = np.moveaxis(values, axis, 0)
    while len(values) > 1:
        half = len(values) // 2
        paired = function(values[:half], values[half : 2 * half])
        if len(values) % 2:
            paired = np.concatenate([paired, values[2 * half :]])
        values = paired
    return values[0]


# --- slabs -----------------------------------------------------------------------------


def spread(tile: Any, labels: Sequence[int], order: Sequence[int]) -> Any:
    """A view of a tile with an axis for each label of `order`, of size one where it has none.

    For a repeated label, it has the diagonal.
    """
    labels = list(labels)
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            tile = np.diagonal(tile, axis1=first, axis2=second)
            del labels[second], labels[first]
            labels.append(label)
    present = [label for label in order if label in labels]
    view = np.transpose(tile, [labels.index(label) for label in present])
    return view[tuple(slice(None) if label in present else None for label in order)]


def slab_steps(shape: Sequence[int], room: int) -> tuple[int, ...]:
    """Elements along every axis of a slab of at most `room` elements.

    The longest axes are halved first.  The last axis is not halved below
    :attr:`~dasktile.lower.settings.SlabSettings.min_run` while another axis can be.
    """
    steps = [max(1, size) for size in shape]
    while math.prod(steps) > room:
        longest = max(
            range(len(steps)),
            key=lambda axis: (
                steps[axis] > 1 and not (axis == len(steps) - 1 and steps[axis] <= SLABS.min_run),
                steps[axis],
                -axis,
            ),
        )
        steps[longest] = -(-steps[longest] // 2)
    return tuple(steps)


def _slabs(shape: Sequence[int], steps: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    return product(
        *(
            [slice(start, min(start + step, size)) for start in range(0, size, step)]
            for size, step in zip(shape, steps, strict=True)
        )
    )


def _within(view: Any, part: Sequence[slice]) -> Any:
    """A part of a view, whole along axes of size one."""
    return view[
        tuple(
            piece if size > 1 else slice(None) for piece, size in zip(part, view.shape, strict=True)
        )
    ]


# --- functions of tasks in graphs that dasktile has not tiled ----------------------------


def join_blocks(*blocks: Any, recipe: Recipe) -> Any:
    """A join whose result also has the reduced labels, of size one, as its last axes."""
    result = join(recipe, *blocks)
    return np.reshape(result, (*np.shape(result), *(1 for _ in reduced_labels(recipe))))


def joined(block: Any, axis: Any, keepdims: bool, *, recipe: Recipe) -> Any:
    """The unchanged result of a join: the first step of a tree needs a function."""
    return block


def aggregate_blocks(blocks: Any, axis: tuple[int, ...], keepdims: bool, *, recipe: Recipe) -> Any:
    """The aggregation of results that are stacked along some axes."""
    if isinstance(recipe, Contract):
        result = blocks.sum(axis=axis, dtype=blocks.dtype)
    else:
        result = reduced_over(recipe, blocks, axis)
    return np.expand_dims(result, axis) if keepdims else result


# --- writing an einsum for other tiles ---------------------------------------------------

#: Functions of the tasks of an einsum, by those of a contraction that they replace.
_REPLACEMENTS: Mapping[Any, Any] = {multiply: join, accumulate: join_onto}


@emit.register
def _einsum(kernel: EinSum, context: LoweringContext) -> EmittedLayers:
    """Write the tasks of a contraction, with the functions of this join and aggregation."""
    emitted = emit.dispatch(Contract)(kernel, context)
    for name, layer in emitted.layers.items():
        tasks = {key: _replaced(kernel, key, task) for key, task in layer.items()}
        emitted.layers[name] = MaterializedLayer(tasks)
    return emitted


def _replaced(kernel: EinSum, key: Any, task: GraphNode) -> GraphNode:
    function = task.func if isinstance(task, Task) else None
    if function is total:
        return Task(key, aggregate, kernel, *task.args)  # type: ignore[attr-defined]
    if function in _REPLACEMENTS:
        return Task(key, _REPLACEMENTS[function], *task.args)  # type: ignore[attr-defined]
    return task
