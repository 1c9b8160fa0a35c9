"""The tasks of Blockwise layers, in less time than Dask takes to make them.

Dask substitutes one argument after the other in a task, which makes a task for each of them.  Most
layers read single blocks, so that their tasks are written at once here.  That small layers of the
installed Dask have the same tasks is checked once in a process; if not, Dask makes all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import product
from operator import add
from typing import Any

from dask.blockwise import Blockwise

from dasktile._compat.dask import DataNode, GraphNode, Task, TaskRef, blockwise_token, keep_tasks

#: For the block at a place, the part of its task at one position of the arguments.
_Part = Callable[[tuple[int, ...]], Any]


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
    """The tasks of a layer; None where they do not read single blocks and constants only."""
    task = layer.task
    if type(task) is not Task or layer.output_blocks is not None:
        return None
    if any(isinstance(value, (GraphNode, TaskRef)) for value in task.kwargs.values()):
        return None
    parts: dict[Any, _Part] = {}
    for number, (argument, symbols) in enumerate(layer.indices):
        key = blockwise_token(number)
        if key not in task.dependencies:
            continue
        part = _constant(argument, key) if symbols is None else _block(layer, argument, symbols)
        if part is None:
            return None
        parts[key] = part
    arguments: list[_Part] = []
    for value in task.args:
        if isinstance(value, GraphNode):
            return None
        is_replaced = isinstance(value, TaskRef) and value.key in parts
        arguments.append(parts[value.key] if is_replaced else _same(value))
    function, options, is_producer = task.func, task.kwargs, task.data_producer
    counts = [layer.dims[symbol] for symbol in layer.output_indices]
    tasks = {}
    for place in product(*map(range, counts)):
        values = [part(place) for part in arguments]
        own = (layer.output, *place)
        tasks[own] = Task(own, function, *values, _data_producer=is_producer, **options)
    return tasks


def _same(value: Any) -> _Part:
    return lambda place: value


def _constant(argument: Any, key: str) -> _Part | None:
    """An argument that is the same for all blocks; None if it is a task."""
    if isinstance(argument, TaskRef):
        return _same(argument)
    return None if isinstance(argument, GraphNode) else _same(DataNode(key, argument))


def _block(layer: Blockwise, argument: Any, symbols: tuple[Any, ...]) -> _Part | None:
    """The block of an array that is read; None if there are several, or if it is no array."""
    if argument in layer.io_deps or not set(symbols) <= set(layer.output_indices):
        return None
    columns = []
    for symbol, count in zip(symbols, layer.numblocks[argument], strict=True):
        # the only block along an axis is broadcast
        columns.append(None if count == 1 else layer.output_indices.index(symbol))
    if columns == list(range(len(layer.output_indices))):
        return lambda place: TaskRef((argument, *place))
    return lambda place: TaskRef(
        (argument, *[0 if column is None else place[column] for column in columns])
    )


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
