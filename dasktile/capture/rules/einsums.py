"""Recogniser of extended Einstein summation: a join of arrays, reduced over some labels.

:func:`dasktile.einsum` writes it as a Blockwise layer that joins tiles and reduces each result
within its block, and a tree that aggregates the partial results (EinDecomp, section 4.3).
The tasks of both have the recipe as an argument, by which they are recognised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.utils import funcname

from dasktile.capture.base import GraphView, Operation, Recogniser, added_axes
from dasktile.capture.rules.blockwise import Contract, Map, operands
from dasktile.capture.rules.trees import Level, read_level, read_step, read_tree
from dasktile.capture.settings import SETTINGS
from dasktile.ir import AxisMap, Kind, Label, Role


@dataclass(frozen=True, slots=True)
class EinSum:
    """A join of the inputs, reduced over the labels that are not in the output.

    Parameters
    ----------
    spec
        For every input, the label of each of its axes; a label may occur several times.
    output
        The label of each output axis.
    join
        Takes an array for each input, which broadcast against one another, and works
        element by element.
    reduce
        An associative and commutative function of two arrays: a ufunc, or any that works
        element by element.
    dtype
        Of the result, and of the partial results.
    """

    spec: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
    join: Callable[..., Any]
    reduce: Callable[[Any, Any], Any]
    dtype: np.dtype[Any]


#: The operation of an einsum: a sum of products is a :class:`Contract`.
Recipe = EinSum | Contract


def operation_name(recipe: Recipe) -> str:
    """Name of the operation in the notation of APL: the reduction, a dot, the join."""
    reduce: Any = "add"
    join: Any = "multiply"
    if isinstance(recipe, EinSum):
        reduce, join = recipe.reduce, recipe.join
    # a join of two arguments is not applied to a single operand
    names = [join] if len(recipe.spec) > 1 or not isinstance(join, (str, partial)) else []
    if reduced_labels(recipe):
        names.insert(0, reduce)
    return ".".join(map(_name, names)) or "transpose"


def _name(function: Any) -> str:
    while isinstance(function, partial) and function.args:
        function = function.args[0]
    return function if isinstance(function, str) else str(funcname(function))


def reduced_labels(recipe: Recipe) -> tuple[int, ...]:
    """Labels that are not in the output, in the order of the inputs."""
    named = (label for labels in recipe.spec for label in labels if label is not None)
    return tuple(dict.fromkeys(label for label in named if label not in recipe.output))


def einsum(view: GraphView, name: str) -> Operation | None:
    """A join, and the aggregation of its partial results."""
    layer, info = view.layers[name], view.array(name)
    joined = layer if isinstance(layer, Blockwise) else _aggregated(view, name)
    recipe = _recipe(joined) if joined is not None else None
    if info is None or joined is None or recipe is None:
        return None
    summed = reduced_labels(recipe)
    if summed and joined is layer:
        return None  # the layer that aggregates the join is recognised instead
    read = operands(view, joined)
    if read is None or joined.concatenate or added_axes(joined) or joined.io_deps:
        return None
    outer = joined.output_indices
    labels = {symbol: number for number, symbol in enumerate(outer)}
    if recipe.output != tuple(range(len(info.shape))) or len(labels) != len(outer):
        return None
    if summed != tuple(range(len(info.shape), len(outer))) or set(read.sizes) != set(outer):
        return None
    spec = tuple(tuple(labels[symbol] for symbol in symbols) for symbols in read.symbols)
    if spec != recipe.spec or len(read.positions) != len(joined.indices):
        return None
    sizes = [read.sizes[symbol] for symbol in outer]
    inputs = read.inputs(labels)
    if any(axis.label is None for source in inputs for axis in source.axes):
        return None
    if tuple(sizes[: len(info.shape)]) != info.chunks or recipe.dtype != info.dtype:
        return None
    operation = Operation(
        op=operation_name(recipe),
        kind=Kind.CONTRACT,
        labels=tuple(
            Label(sum(cuts), Role.REDUCE if number in summed else Role.FREE, cuts)
            for number, cuts in enumerate(sizes)
        ),
        out=tuple(AxisMap(number) for number in recipe.output),
        kernel=recipe,
        inputs=inputs,
        work=float(len(inputs)),
    )
    if not summed:
        # like any function of blocks, so that dask can fuse it with its neighbours
        return replace(operation, kind=Kind.MAP, kernel=Map(joined, labels, read.positions))
    work = operation.work if isinstance(recipe, Contract) else SETTINGS.join_work * operation.work
    return replace(operation, partial=float(info.dtype.itemsize), work=work)


def _recipe(layer: Blockwise) -> Recipe | None:
    """The recipe that a layer has as an argument; only layers of an einsum have one."""
    recipe = layer.task.kwargs.get("recipe")
    return recipe if set(layer.task.kwargs) == {"recipe"} and _is_recipe(recipe) else None


def _is_recipe(value: Any) -> bool:
    return isinstance(value, (EinSum, Contract))


def _aggregated(view: GraphView, name: str) -> Blockwise | None:
    """The layer of joins below a tree that aggregates them."""
    last = read_level(view, name)
    if last is None or last.keepdims or not _aggregates(last):
        return None
    tree = read_tree(view, name, _step_blocks)
    if tree is None or (tree.between is not None and not _alike(tree.between, last)):
        return None
    step = read_step(view, tree.step)
    joined = view.layers[step.inputs[0]] if step is not None else None
    if step is None or not isinstance(joined, Blockwise) or step.axis != last.axes:
        return None
    recipe = _recipe(joined)
    if recipe is None or recipe != last.call.keywords["recipe"]:
        return None
    # reduced labels come last, with size one in every block
    first = len(recipe.output)
    axes = tuple(range(first, first + len(reduced_labels(recipe))))
    return joined if last.axes == axes else None


def _aggregates(level: Level) -> bool:
    keywords = level.call.keywords
    return level.concatenates and set(keywords) == {"recipe"} and _is_recipe(keywords["recipe"])


def _alike(level: Level, other: Level) -> bool:
    return _aggregates(level) and level.call == other.call


def _step_blocks(view: GraphView, name: str) -> tuple[int, ...] | None:
    """Numbers of blocks of the layer between the joins and the tree."""
    step = read_step(view, name)
    if step is None or len(step.inputs) != 1 or step.keepdims is not True or step.call.args:
        return None
    joined = view.layers.get(step.inputs[0])
    recipe = _recipe(joined) if isinstance(joined, Blockwise) else None
    if recipe is None or set(step.call.keywords) != {"recipe"}:
        return None
    return step.blocks if step.call.keywords["recipe"] == recipe else None


RECOGNISERS: tuple[Recogniser, ...] = (einsum,)
