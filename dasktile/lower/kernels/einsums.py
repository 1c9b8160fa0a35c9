"""Extended Einstein summation, tile by tile, in the tensor-relational algebra.

An array in tiles is a tensor relation, from the place of a tile to the tile.  What is
computed of such relations is a *join* of the tiles that match, and an *aggregation* of
what the joins leave (EinDecomp, sections 4.2 and 4.3); a *repartition* is what gives them
the tiles.  The functions here are the kernels of the first two.
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
from dasktile.lower.emit import Emission, Emitted, emit
from dasktile.lower.kernels.blas import accumulate, multiply, total

#: Bytes of joined values that are there at a time: they should stay in a core's cache.
SLAB = 2**20

#: Elements along the last label below which it is not cut for the slabs.
RUN = 256

#: Ufuncs whose reduction takes whatever the values are for true or false.
_LOGICAL = (np.logical_and, np.logical_or, np.logical_xor)

#: Ufuncs whose reduction can be told to work in another type than the values have.
_WIDENING = (np.add, np.multiply)


# --- kernels ---------------------------------------------------------------------------


@singledispatch
def join(recipe: Any, *tiles: Any) -> Any:
    """The kernel of a join: tiles that match, joined and reduced over the labels within.

    This is the inner of the two nested sums of EinDecomp, section 4.3 (equation 4).

    Parameters
    ----------
    recipe
        An :class:`~dasktile.capture.rules.einsums.EinSum` or, for a sum of products, a
        :class:`~dasktile.capture.rules.blockwise.Contract`.
    *tiles
        One for every input.

    Returns
    -------
    The array over the output's labels.
    """
    raise TypeError(f"no join is known for a recipe of type {type(recipe).__name__}")


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
    steps = slab_steps(shape, max(1, SLAB // itemsize))
    # of the tiles' own kind: on the device that they are on
    whole = np.empty_like(tiles[0], dtype=recipe.dtype, order="C", shape=shape[:kept], subok=False)
    for outer in _slabs(shape[:kept], steps[:kept]):
        found: Any = None
        for inner in _slabs(shape[kept:], steps[kept:]):
            part = (*outer, *inner)
            values = recipe.join(*(_within(view, part) for view in views))
            extents = tuple(piece.stop - piece.start for piece in part)
            if np.shape(values) != extents:
                # of an operand that the function takes no notice of
                values = np.broadcast_to(values, extents)
            reduced = reduced_over(recipe, values, range(kept, len(order)))
            found = reduced if found is None else recipe.reduce(found, reduced)
        whole[outer] = found
    # what is left of an array without axes is a scalar, in NumPy as well
    return whole if kept else whole[()]


@singledispatch
def aggregate(recipe: Any, *partials: Any) -> Any:
    """The kernel of an aggregation: partial results of one place, made one.

    This is the outer of the two nested sums of EinDecomp, section 4.3 (equation 4).
    """
    raise TypeError(f"no aggregation is known for a recipe of type {type(recipe).__name__}")


@aggregate.register
def _(recipe: Contract, *partials: Any) -> Any:
    return total(*partials)


@aggregate.register
def _(recipe: EinSum, *partials: Any) -> Any:
    return functools.reduce(recipe.reduce, partials)


def join_onto(recipe: Recipe, before: Any, *tiles: Any) -> Any:
    """A join, aggregated at once with what came before."""
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
    """One half of the values with the other, until one is left."""
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

    Of a label that it has twice, the diagonal.
    """
    labels = list(labels)
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            tile = np.diagonal(tile, axis1=first, axis2=second)
            del labels[second], labels[first]
            labels.append(label)
    mine = [label for label in order if label in labels]
    view = np.transpose(tile, [labels.index(label) for label in mine])
    return view[tuple(slice(None) if label in mine else None for label in order)]


def slab_steps(shape: Sequence[int], room: int) -> tuple[int, ...]:
    """How far a slab of at most `room` elements goes along every axis.

    The longest axes are halved first, the last one not below :data:`RUN` while another
    can be: loops over short runs are slow.
    """
    steps = [max(1, size) for size in shape]
    while math.prod(steps) > room:
        longest = max(
            range(len(steps)),
            key=lambda axis: (
                steps[axis] > 1 and not (axis == len(steps) - 1 and steps[axis] <= RUN),
                steps[axis],
                -axis,
            ),
        )
        steps[longest] = -(-steps[longest] // 2)
    return tuple(steps)


def _slabs(shape: Sequence[int], steps: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    return product(
        *(
            [slice(at, min(at + step, size)) for at in range(0, size, step)]
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


# --- what runs in a graph that dasktile has not tiled ------------------------------------


def join_blocks(*blocks: Any, recipe: Recipe) -> Any:
    """A join whose result keeps the reduced labels, of size one, behind the others."""
    found = join(recipe, *blocks)
    return np.reshape(found, (*np.shape(found), *(1 for _ in reduced_labels(recipe))))


def joined(block: Any, axis: Any, keepdims: bool, *, recipe: Recipe) -> Any:
    """The result of a join as it is: the first step of a tree needs a function."""
    return block


def aggregate_blocks(blocks: Any, axis: tuple[int, ...], keepdims: bool, *, recipe: Recipe) -> Any:
    """The aggregation of results that are stacked along some axes."""
    if isinstance(recipe, Contract):
        found = blocks.sum(axis=axis, dtype=blocks.dtype)
    else:
        found = reduced_over(recipe, blocks, axis)
    return np.expand_dims(found, axis) if keepdims else found


# --- writing it for other tiles ----------------------------------------------------------

#: What stands in a task in the place of a contraction's own functions.
_INSTEAD: Mapping[Any, Any] = {multiply: join, accumulate: join_onto}


@emit.register
def _einsum(kernel: EinSum, emission: Emission) -> Emitted:
    """Write it as a contraction is written, with its own join and its own aggregation."""
    emitted = emit.dispatch(Contract)(kernel, emission)
    for name, layer in emitted.layers.items():
        tasks = {key: _own(kernel, key, task) for key, task in layer.items()}
        emitted.layers[name] = MaterializedLayer(tasks)
    return emitted


def _own(kernel: EinSum, key: Any, task: GraphNode) -> GraphNode:
    function = task.func if isinstance(task, Task) else None
    if function is total:
        return Task(key, aggregate, kernel, *task.args)  # type: ignore[attr-defined]
    if function in _INSTEAD:
        return Task(key, _INSTEAD[function], *task.args)  # type: ignore[attr-defined]
    return task
