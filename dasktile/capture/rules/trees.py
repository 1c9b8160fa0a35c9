"""The tree of tasks that dask writes for a reduction.

A reduction has a *step* that computes a partial result of every block, layers that combine
neighbouring partial results, and a last layer that finishes.  All tasks of a layer call the same
function on a nested list of keys, with one level of lists for each reduced axis.  Every task is
checked, so that a graph of similar structure is not recognised as a reduction.
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
from dasktile.capture.base import GraphView, added_axes
from dasktile.capture.references import Key, reference, tasks_of

#: Numbers of blocks along every axis, or the position of one block.
Blocks = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A function with its bound arguments, from nested ``partial`` objects."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]


def unwrap(function: Callable[..., Any]) -> Call:
    """The function and all bound arguments of nested :class:`functools.partial` objects."""
    args: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    while isinstance(function, partial):
        args = function.args + args
        keywords = {**function.keywords, **keywords}
        function = function.func
    return Call(function, args, keywords)


@dataclass(frozen=True, slots=True)
class Step:
    """A Blockwise layer that calls one function on every block of arrays with equal chunks.

    Parameters
    ----------
    call
        The call, without `axis` and `keepdims`.
    axis, keepdims
        Their values, None if they are not given.
    inputs
        Layers of the arrays, in the order of the arguments.
    blocks
        Number of blocks along every axis.
    """

    call: Call
    axis: Any
    keepdims: Any
    inputs: tuple[str, ...]
    blocks: Blocks


def read_step(view: GraphView, name: str) -> Step | None:
    """Read a Blockwise layer as a :class:`Step`; None for a layer of any other form."""
    layer = view.layers.get(name)
    if not isinstance(layer, Blockwise) or layer.annotations or layer.output_blocks:
        return None
    if added_axes(layer) or layer.io_deps or layer.concatenate or not layer.indices:
        return None
    inputs = tuple(source for source, _ in layer.indices if isinstance(source, str))
    if len(inputs) != len(layer.indices) or any(
        symbols != layer.output_indices for _, symbols in layer.indices
    ):
        return None
    if layer.task.args != tuple(TaskRef(blockwise_token(place)) for place in range(len(inputs))):
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
    """One layer of a tree.

    Parameters
    ----------
    function
        Called by every task with a nested list of partial results.
    call
        The call of `function`, without `axis` and `keepdims`.
    concatenates
        True if the partial results are concatenated before they are combined.
    axes, keepdims
        The reduced axes, and whether they are kept with size one.
    """

    function: Callable[..., Any]
    call: Call
    concatenates: bool
    axes: tuple[int, ...]
    keepdims: bool


@dataclass(frozen=True, slots=True)
class Tree:
    """A reduction down to its step.

    Parameters
    ----------
    last
        The layer that finishes.
    between
        The layer that combines, or None if the tree has one level.
    step
        Name of the layer that computes the partial results.
    """

    last: Level
    between: Level | None
    step: str


def read_tree(
    view: GraphView, name: str, steps: Callable[[GraphView, str], Blocks | None]
) -> Tree | None:
    """Read the reduction that ends in the layer `name`.

    Parameters
    ----------
    view, name
        The graph and the last layer.
    steps
        Returns, for a layer that is a step, the number of blocks along every axis, and None
        for any other layer.

    Returns
    -------
    The reduction, or None if the layers are not one.
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
    for depth in reversed(range(len(names))):
        below = names[depth + 1] if depth + 1 < len(names) else source
        level = last if depth == 0 else between
        assert level is not None
        covered = _covered(view, names[depth], below, level, blocks)
        if covered is None:
            return None
        blocks = covered
    if any(blocks[axis] != 1 for axis in last.axes):
        return None
    return Tree(last, between, source)


def read_level(view: GraphView, name: str) -> Level | None:
    """The level that the first task of a layer belongs to; None if it is not part of a tree."""
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
    inner, concatenates = function, False
    # tlz.compose(outer, inner), of toolz or of cytoolz
    outer: tuple[Callable[..., Any], ...] = getattr(function, "funcs", ())
    if len(outer) == 1:
        first = unwrap(function.first)  # type: ignore[attr-defined]
        if first.function is not concatenate2 or first.args or set(first.keywords) != {"axes"}:
            return None
        inner, concatenates = outer[0], True
    call = unwrap(inner)
    rest = dict(call.keywords)
    axes, keepdims = rest.pop("axis", None), rest.pop("keepdims", None)
    if not isinstance(axes, tuple) or not axes or not isinstance(keepdims, bool):
        return None
    if concatenates and list(first.keywords["axes"]) != sorted(axes):
        return None
    if sorted(set(axes)) != sorted(axes):
        return None
    return Level(function, Call(call.function, call.args, rest), concatenates, axes, keepdims)


def bind(function: Callable[..., Any], level: Level) -> Callable[..., Any]:
    """The combining function of a tree that ends in the level `level`, which calls `function`."""
    bound = partial(function, axis=level.axes, keepdims=True)
    if level.concatenates:
        joined: Callable[..., Any] = compose(bound, partial(concatenate2, axes=sorted(level.axes)))
        return joined
    return bound


def _source(view: GraphView, name: str) -> str:
    """The only layer that a layer reads; empty if there are several, or none."""
    names = view.dependencies(name)
    return names[0] if len(names) == 1 else ""


def _covered(view: GraphView, name: str, below: str, level: Level, blocks: Blocks) -> Blocks | None:
    """Check that a layer combines all blocks of the layer below, neighbours in order.

    Returns
    -------
    The number of blocks of the result along every axis, including reduced axes.
    """
    axes = range(len(blocks))
    parts: list[dict[int, tuple[int, int]]] = [{} for _ in axes]
    is_listed = view.listed_keys(name) is not None
    tasks = tasks_of(view.layers[name]) if is_listed else view.tasks(name)
    for key, task in tasks.items():
        read = (_listed if is_listed else _referred)(task, level)
        out = key[1:] if isinstance(key, tuple) and key[0] == name else None
        if not read or out is None or not len(read[0]) == len(read[-1]) == len(blocks) + 1:
            return None
        lo, hi = read[0][1:], read[-1][1:]
        ranges = [range(a, b + 1) for a, b in zip(lo, hi, strict=True)]
        if read != list(itertools.product((below,), *ranges)):
            return None
        own = _own_block(out, lo, level)
        if own is None:
            return None
        for axis in axes:
            if parts[axis].setdefault(own[axis], (lo[axis], hi[axis])) != (lo[axis], hi[axis]):
                return None
    counts = []
    for axis in axes:
        ends = [parts[axis].get(index, (-1, -1)) for index in range(len(parts[axis]))]
        starts = [0, *(hi + 1 for _, hi in ends)]
        if [lo for lo, _ in ends] != starts[:-1] or starts[-1] != blocks[axis]:
            return None
        if axis not in level.axes and len(ends) != blocks[axis]:
            return None
        counts.append(len(ends))
    count = 1
    for size in counts:
        count *= size
    return tuple(counts) if count == len(tasks) else None


def _listed(task: Any, level: Level) -> list[Key]:
    """The keys that a task reads which calls the function of a level with nested lists of keys."""
    function, *keys = task
    if function is not level.function or len(keys) != 1:
        return []
    for _ in level.axes:
        if not all(type(item) is list and item for item in keys):
            return []
        keys = list(itertools.chain.from_iterable(keys))
    return keys if type(keys[0]) is tuple else []


def _referred(task: Any, level: Level) -> list[Key]:
    """As :func:`_listed`, of a task object."""
    if not isinstance(task, Task) or isinstance(task, Alias) or task.kwargs:
        return []
    if task.func is not level.function or len(task.args) != 1:
        return []
    return nested_keys(task.args[0], len(level.axes))


def _own_block(out: Blocks, lo: Blocks, level: Level) -> Blocks | None:
    """The position of a task's block, with the reduced axes included."""
    if level.keepdims:
        return out if len(out) == len(lo) else None
    if len(out) != len(lo) - len(level.axes):
        return None
    rest = iter(out)
    return tuple(0 if axis in level.axes else next(rest) for axis in range(len(lo)))


def nested_keys(argument: Any, depth: int) -> list[Any]:
    """Keys in lists nested `depth` levels deep; empty for any other argument."""
    if depth == 0:
        key = reference(argument)
        return [] if key is None else [key]
    if not isinstance(argument, Task) or argument.func not in (identity_cast, list_to_container):
        return []
    keys = []
    for item in argument.args:
        inner = nested_keys(item, depth - 1)
        if not inner:
            return []
        keys += inner
    return keys
