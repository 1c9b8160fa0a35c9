"""The tasks of Blockwise layers, in less time than Dask takes to make them.

Dask substitutes one argument after the other in a task, which makes a task for each of them.  Most
layers read single blocks, constants and shapes of blocks, so that their tasks are written at once
here: one column after the other of all tasks.  That small layers of the installed Dask have the
same tasks is checked once in a process; if not, Dask makes all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import product, repeat
from operator import add
from typing import Any

from dask.blockwise import Blockwise

from dasktile._compat.dask import (
    ArrayChunkShapeDep,
    DataNode,
    GraphNode,
    Task,
    TaskRef,
    blockwise_token,
    keep_tasks,
)


def blockwise_tasks(layer: Blockwise) -> Mapping[Any, Any]:
    """The tasks of a layer, which keeps them as if Dask had made them.

    Parameters
    ----------
    layer
        The layer.
    """
    if not layer.is_materialized() and _is_known():
        tasks = _written(layer)
        if tasks is not None:
            keep_tasks(layer, tasks)
            return tasks
    return dict(layer)


def _written(layer: Blockwise) -> dict[Any, Task] | None:
    """The tasks of a layer; None where they read anything else."""
    task = layer.task
    if type(task) is not Task or layer.output_blocks is not None:
        return None
    if any(isinstance(value, (GraphNode, TaskRef)) for value in task.kwargs.values()):
        return None
    counts = [layer.dims[symbol] for symbol in layer.output_indices]
    if not all(counts):
        return None
    columns = list(zip(*product(*map(range, counts)), strict=True))
    parts: dict[Any, Iterable[Any]] = {}
    for number, (argument, symbols) in enumerate(layer.indices):
        key = blockwise_token(number)
        if key not in task.dependencies:
            continue
        if symbols is None:
            part = _constant(argument, key)
        else:
            part = _blocks(layer, argument, symbols, columns, key)
        if part is None:
            return None
        parts[key] = part
    arguments: list[Iterable[Any]] = []
    for value in task.args:
        if isinstance(value, GraphNode):
            return None
        is_replaced = isinstance(value, TaskRef) and value.key in parts
        arguments.append(parts[value.key] if is_replaced else repeat(value))
    own = list(product((layer.output,), *map(range, counts)))
    make = partial(Task, _data_producer=task.data_producer, **task.kwargs)
    return dict(zip(own, map(make, own, repeat(task.func), *arguments), strict=False))


def _constant(argument: Any, key: str) -> Iterable[Any] | None:
    """An argument that is the same for all blocks; None if it is a task."""
    if isinstance(argument, TaskRef):
        return repeat(argument)
    return None if isinstance(argument, GraphNode) else repeat(DataNode(key, argument))


def _blocks(
    layer: Blockwise,
    argument: Any,
    symbols: tuple[Any, ...],
    columns: Sequence[tuple[int, ...]],
    key: str,
) -> Iterable[Any] | None:
    """For every block, that of an array that it reads; None for several blocks, or other values.

    Of an argument that has the shapes of blocks, these; `columns` are the numbers of all blocks,
    along each axis.
    """
    values = layer.io_deps.get(argument)
    if values is not None and type(values) is not ArrayChunkShapeDep:
        return None
    if not set(symbols) <= set(layer.output_indices):
        return None
    # the only block along an axis is broadcast
    places = [
        None if count == 1 else columns[layer.output_indices.index(symbol)]
        for symbol, count in zip(symbols, layer.numblocks[argument], strict=True)
    ]
    numbers = [repeat(0) if place is None else iter(place) for place in places]
    parts: list[Iterator[Any]] = [repeat(argument), *numbers]
    make: Callable[[Any], Any] = TaskRef
    if values is not None:
        parts = [
            map(sizes.__getitem__, at) for sizes, at in zip(values.chunks, numbers, strict=True)
        ]
        # most blocks have the same shape
        make = cache(partial(DataNode, key))
    if not any(places):
        return repeat(make(tuple(map(next, parts))))
    return list(map(make, zip(*parts, strict=False)))


@cache
def _is_known() -> bool:
    """Whether small layers of the installed Dask have the tasks that are written here."""
    try:
        for layer in _samples():
            own = _written(layer)
            if own is None or list(map(_parts, own.items())) != list(map(_parts, layer.items())):
                return False
    except Exception:
        return False
    return True


def _samples() -> Iterator[Blockwise]:
    """Layers that read blocks, one block for all, blocks in another order, and constants."""
    first, second, third = (TaskRef(blockwise_token(number)) for number in range(3))
    x, y = ("x", ("i", "j")), ("y", ("j",))
    task, counts = Task("z", add, first, second), {"x": (3, 2), "y": (1,)}
    yield Blockwise("z", ("i", "j"), task, [x, y], numblocks=counts)
    task = Task("z", print, third, 1, first, sep="")
    constant: Any = (2.0, None)
    yield Blockwise("z", ("j", "i"), task, [x, y, constant], numblocks={"x": (3, 2), "y": (2,)})
    task = Task("z", max, first, _data_producer=True)
    yield Blockwise("z", (), task, [(TaskRef("x"), None)], numblocks={})
    shapes: Any = ArrayChunkShapeDep(((3, 2), (4,)))
    task = Task("z", max, first, second)
    yield Blockwise("z", ("i", "j"), task, [(shapes, ("i", "j")), x], numblocks={"x": (2, 3)})


def _parts(item: tuple[Any, Any]) -> Any:
    """All that there is to a task and its key."""
    key, task = item
    args = [
        (type(value), getattr(value, "key", None), getattr(value, "value", value))
        if isinstance(value, (GraphNode, TaskRef))
        else value
        for value in task.args
    ]
    options = task.kwargs, task.data_producer, task.dependencies
    return key, type(task), task.key, task.func, args, options
