"""Reading the tree of tasks that dask writes for a reduction.

A reduction is a *step* that turns every block into a partial result, layers that combine
neighbouring partials, and a last layer that finishes.  All tasks of a layer call one
function on a nested list of keys, a list for each reduced axis.  What is read here is
checked task by task, so that nothing is taken for a reduction that merely looks like one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from dask.blockwise import Blockwise
from tlz import compose  # type: ignore[import-untyped]

from dasktile._compat.dask import (
    Alias,
    GraphNode,
    Task,
    TaskRef,
    blockwise_token,
    concatenate2,
    identity_cast,
    list_to_container,
)
from dasktile.capture.base import GraphView
from dasktile.capture.references import reference

Block = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A function with what is bound to it: ``partial`` of ``partial`` opened up."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]


def unwrap(function: Callable[..., Any]) -> Call:
    """Open up nested :class:`functools.partial` objects."""
    args: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    while isinstance(function, partial):
        args = function.args + args
        keywords = {**function.keywords, **keywords}
        function = function.func
    return Call(function, args, keywords)


@dataclass(frozen=True, slots=True)
class Step:
    """A Blockwise layer that calls one function on every block of arrays cut alike.

    Parameters
    ----------
    call
        The function, opened up, without `axis` and `keepdims`.
    axis, keepdims
        What these are, None where they are not given.
    inputs
        Layers of the arrays, in the order of the arguments.
    blocks
        Number of blocks along every axis.
    """

    call: Call
    axis: Any
    keepdims: Any
    inputs: tuple[str, ...]
    blocks: Block


def read_step(view: GraphView, name: str) -> Step | None:
    """Read a Blockwise layer as a :class:`Step`; None where it is anything more."""
    layer = view.layers.get(name)
    if not isinstance(layer, Blockwise) or layer.annotations or layer.output_blocks:
        return None
    if layer.new_axes or layer.io_deps or layer.concatenate or not layer.indices:
        return None
    inputs = tuple(source for source, _ in layer.indices if isinstance(source, str))
    if len(inputs) != len(layer.indices) or any(
        symbols != layer.output_indices for _, symbols in layer.indices
    ):
        return None
    if layer.task.args != tuple(TaskRef(blockwise_token(at)) for at in range(len(inputs))):
        return None
    counts = {tuple(layer.numblocks[source]) for source in inputs}
    if len(counts) != 1 or len(set(layer.output_indices)) != len(layer.output_indices):
        return None
    call = unwrap(layer.task.func)
    keywords = {**call.keywords, **layer.task.kwargs}
    if any(isinstance(value, (GraphNode, TaskRef)) for value in keywords.values()):
        return None
    axis, keepdims = keywords.pop("axis", None), keywords.pop("keepdims", None)
    return Step(Call(call.function, call.args, keywords), axis, keepdims, inputs, counts.pop())


@dataclass(frozen=True, slots=True)
class Level:
    """What one layer of a tree does.

    Parameters
    ----------
    function
        Called by every task with a nested list of partial results.
    call
        The same, opened up, without `axis` and `keepdims`.
    joins
        True where the partials are concatenated before they are combined.
    axes, keepdims
        Axes reduced, and whether they stay with size one.
    """

    function: Callable[..., Any]
    call: Call
    joins: bool
    axes: tuple[int, ...]
    keepdims: bool


@dataclass(frozen=True, slots=True)
class Tree:
    """A whole reduction down to its step.

    Parameters
    ----------
    last
        The layer that finishes.
    between
        The layer that combines, or None where the tree has one level.
    step
        Name of the layer that makes the partials.
    """

    last: Level
    between: Level | None
    step: str


def read_tree(
    view: GraphView, name: str, steps: Callable[[GraphView, str], Block | None]
) -> Tree | None:
    """Read the reduction that ends in the layer `name`.

    Parameters
    ----------
    view, name
        The graph and the last layer.
    steps
        Tells of a layer the number of blocks along every axis if it is a step that
        makes partials, None if it is not.

    Returns
    -------
    None where the layers are not a reduction.
    """
    last = read_level(view, name)
    if last is None:
        return None
    names, between = [name], None
    while (blocks := steps(view, source := _source(view, names[-1]))) is None:
        level = read_level(view, source) if source else None
        if level is None or not level.keepdims or level.axes != last.axes:
            return None
        if between is not None and level.function is not between.function:
            return None
        names.append(source)
        between = level
    for at in reversed(range(len(names))):
        below = names[at + 1] if at + 1 < len(names) else source
        level = last if at == 0 else between
        assert level is not None
        found = _covered(view, names[at], below, level, blocks)
        if found is None:
            return None
        blocks = found
    if any(blocks[axis] != 1 for axis in last.axes):
        return None
    return Tree(last, between, source)


def read_level(view: GraphView, name: str) -> Level | None:
    """What a layer's first task does, if it looks like part of a tree."""
    layer = view.layers.get(name)
    if layer is None or isinstance(layer, Blockwise) or layer.annotations or not len(layer):
        return None
    task = next(iter(layer.values()))
    if isinstance(task, Task):
        function = task.func
    elif isinstance(task, tuple) and len(task) == 2 and callable(task[0]):
        function = task[0]
    else:
        return None
    inner, joins = function, False
    # tlz.compose(outer, inner), of toolz or of cytoolz
    outer: tuple[Callable[..., Any], ...] = getattr(function, "funcs", ())
    if len(outer) == 1:
        first = unwrap(function.first)  # type: ignore[attr-defined]
        if first.function is not concatenate2 or first.args or set(first.keywords) != {"axes"}:
            return None
        inner, joins = outer[0], True
    call = unwrap(inner)
    rest = dict(call.keywords)
    axes, keepdims = rest.pop("axis", None), rest.pop("keepdims", None)
    if not isinstance(axes, tuple) or not axes or not isinstance(keepdims, bool):
        return None
    if joins and list(first.keywords["axes"]) != sorted(axes):
        return None
    if sorted(set(axes)) != sorted(axes):
        return None
    return Level(function, Call(call.function, call.args, rest), joins, axes, keepdims)


def bind(function: Callable[..., Any], like: Level) -> Callable[..., Any]:
    """`function` as the combining step of the tree that `like` finishes."""
    bound = partial(function, axis=like.axes, keepdims=True)
    if like.joins:
        joined: Callable[..., Any] = compose(bound, partial(concatenate2, axes=sorted(like.axes)))
        return joined
    return bound


def _source(view: GraphView, name: str) -> str:
    """The one layer that a layer reads, or the empty string."""
    names = view.dependencies(name)
    return names[0] if len(names) == 1 else ""


def _covered(view: GraphView, name: str, below: str, level: Level, blocks: Block) -> Block | None:
    """Check that a layer combines all blocks of the layer below, neighbours in order.

    Returns
    -------
    The number of blocks along every axis of what the layer makes, reduced axes kept.
    """
    axes = range(len(blocks))
    parts: list[dict[int, tuple[int, int]]] = [{} for _ in axes]
    tasks = view.tasks(name)
    for key, task in tasks.items():
        if not isinstance(task, Task) or isinstance(task, Alias) or task.kwargs:
            return None
        if task.func is not level.function or len(task.args) != 1:
            return None
        read = _refs(task.args[0], len(level.axes))
        out = key[1:] if isinstance(key, tuple) and key[0] == name else None
        if not read or out is None or any(len(ref) != len(blocks) + 1 for ref in read):
            return None
        lo, hi = read[0][1:], read[-1][1:]
        box = itertools.product(*(range(a, b + 1) for a, b in zip(lo, hi, strict=True)))
        if read != [(below, *block) for block in box]:
            return None
        own = _own_block(out, lo, level)
        if own is None:
            return None
        for axis in axes:
            if parts[axis].setdefault(own[axis], (lo[axis], hi[axis])) != (lo[axis], hi[axis]):
                return None
    found = []
    for axis in axes:
        ends = [parts[axis].get(index, (-1, -1)) for index in range(len(parts[axis]))]
        starts = [0, *(hi + 1 for _, hi in ends)]
        if [lo for lo, _ in ends] != starts[:-1] or starts[-1] != blocks[axis]:
            return None
        if axis not in level.axes and len(ends) != blocks[axis]:
            return None
        found.append(len(ends))
    count = 1
    for size in found:
        count *= size
    return tuple(found) if count == len(tasks) else None


def _own_block(out: Block, lo: Block, level: Level) -> Block | None:
    """A task's place with the reduced axes put back in."""
    if level.keepdims:
        return out if len(out) == len(lo) else None
    if len(out) != len(lo) - len(level.axes):
        return None
    rest = iter(out)
    return tuple(0 if axis in level.axes else next(rest) for axis in range(len(lo)))


def _refs(argument: Any, depth: int) -> list[Any]:
    """Keys in a list of lists, `depth` deep; nothing where it is anything else."""
    if depth == 0:
        key = reference(argument)
        return [] if key is None else [key]
    if not isinstance(argument, Task) or argument.func not in (identity_cast, list_to_container):
        return []
    found = []
    for item in argument.args:
        inner = _refs(item, depth - 1)
        if not inner:
            return []
        found += inner
    return found
