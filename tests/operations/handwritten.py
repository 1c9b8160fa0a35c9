"""Layers that users and other packages write by hand, in every form that dask takes.

Raw tuples, aliases, task objects, nested lists, block numbers of numpy's types, keys that are
not named after their layer; and what ``dask.graph_manipulation`` makes of graphs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
from dask._task_spec import Alias, DataNode, List, Task, TaskRef
from dask.base import tokenize
from dask.graph_manipulation import clone
from dask.highlevelgraph import HighLevelGraph

from tests.expressions import Expression, Value

Key = tuple[Any, ...]

#: Block numbers that equal one another and hash alike, but are of several types.
NUMBERS: tuple[Callable[[int], Any], ...] = (
    *(int, np.int64, np.int32, np.uint8, np.intp, np.int16),
    *(float, np.float64),
)


def same(block: Any) -> Any:
    return block


def first(blocks: Any) -> Any:
    while isinstance(blocks, (list, tuple)):
        blocks = blocks[0]
    return blocks


def labelled(block: Any, label: Any) -> Any:
    assert label == "label", label
    return block


def held(block: Any, data: Any) -> Any:
    assert isinstance(data, tuple), data
    return block


def raw_task(key: Key, read: Key) -> Any:
    return (same, read)


def raw_alias(key: Key, read: Key) -> Any:
    return read


def raw_list(key: Key, read: Key) -> Any:
    return (first, [[read], [read, read]])


def raw_nested(key: Key, read: Key) -> Any:
    return (labelled, (same, (first, [read])), "label")


def alias(key: Key, read: Key) -> Any:
    return Alias(key, read)


def task(key: Key, read: Key) -> Any:
    return Task(key, same, TaskRef(read))


def nested_task(key: Key, read: Key) -> Any:
    return Task(key, first, List(List(TaskRef(read)), Task(None, same, TaskRef(read))))


def keyword_task(key: Key, read: Key) -> Any:
    return Task(key, labelled, block=TaskRef(read), label="label")


def data_task(key: Key, read: Key) -> Any:
    """A task with a key as data, which is not a reference."""
    return Task(key, held, TaskRef(read), DataNode(None, read))


FORMS = (
    *(raw_task, raw_alias, raw_list, raw_nested),
    *(alias, task, nested_task, keyword_task, data_task),
)


def layer(e: Expression, x: Value) -> Value | None:
    """The same array through a hand-written layer."""
    if 0 in x.shape:
        return None
    form, own, read = e.pick(FORMS), e.pick(NUMBERS), e.pick(NUMBERS)
    between = e.chance(40)

    def wrap(array: da.Array) -> da.Array:
        name = f"handwritten-{tokenize(array.name, form.__name__, own, read, between)}"
        tasks: dict[Any, Any] = {}
        for block in itertools.product(*map(range, array.numblocks)):
            key, source = (name, *map(own, block)), (array.name, *map(read, block))
            if between:
                step = ("same", name, *map(read, block))
                tasks[step] = form(step, source)
                source = step
            tasks[key] = form(key, source)
        graph = HighLevelGraph.from_collections(name, tasks, dependencies=[array])
        return da.Array(graph, name, array.chunks, meta=array._meta)

    text = f"{form.__name__}(@, {own.__name__}, {read.__name__}, between={between})"
    return e.call(text, wrap, lambda a: a, x)


def cloned(e: Expression, x: Value) -> Value | None:
    """A clone, if the clone of dask can be computed."""

    def on_dask(array: da.Array) -> da.Array:
        other = clone(array, seed=7)
        try:
            other.compute(scheduler="sync")
            other.compute(scheduler="sync", optimize_graph=False)
        except Exception as error:
            raise ValueError("dask cannot compute its clone") from error
        # with such keys dask cannot compute what is made of the clone
        stale = (getattr(task, "key", key) not in (key, None) for key, task in other.dask.items())
        if any(stale):
            raise ValueError("the clone of dask has stale keys")
        return other

    return e.call("clone(@)", on_dask, lambda a: a, x)
