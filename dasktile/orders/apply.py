"""Collections whose tasks say in which order they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask._task_spec import Alias, Task, convert_legacy_graph
from dask.array.core import Array
from dask.base import collections_to_expr, tokenize
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from dasktile.capture.references import head_of, with_head
from dasktile.capture.tasks import without_aliases
from dasktile.runtime.scheduler.priorities import ORDER


@dataclass(frozen=True, slots=True)
class Low:
    """The tasks that run when collections are computed.

    Parameters
    ----------
    tasks
        By key.
    annotations
        What layers say of their tasks: by the annotation's name, values by key.
    wanted
        Keys that are asked for.
    """

    tasks: Mapping[Any, Any]
    annotations: Mapping[str, Mapping[Any, Any]]
    wanted: Sequence[Any]

    @classmethod
    def of(cls, collections: Sequence[Any]) -> Low:
        """Of collections, as Dask would optimise them together."""
        wanted = list(flatten([one.__dask_keys__() for one in collections]))
        # `dask.optimize` forgets annotations; checked with dask 2026.7.1 and 2026.8.0
        found: Any = collections_to_expr(collections).optimize()
        low = without_aliases(convert_legacy_graph(found.__dask_graph__()), wanted)
        return cls(low, found.__dask_annotations__(), wanted)

    def running(self) -> set[Any]:
        """Keys of what is a task, and no other name of one."""
        return {key for key, node in self.tasks.items() if not isinstance(node, Alias)}


class OrderedArray(Array):
    """An array whose graph is optimised already, and says in which order it runs."""

    __slots__ = ()
    __dask_optimize__ = None

    def __reduce__(self) -> Any:
        return _ordered_array, (self.dask, self.name, self.chunks, self.dtype, self._meta)


def _ordered_array(graph: Any, name: str, chunks: Any, dtype: Any, meta: Any) -> OrderedArray:
    return OrderedArray(graph, name, chunks, dtype=dtype, meta=meta)


class Values(dict[Any, Any]):
    """A value for some keys, to be called as annotations are."""

    def __call__(self, key: Any) -> Any:
        return self.get(key)

    def __reduce__(self) -> Any:
        return Values, (dict(self),)


def renamed(key: Any) -> Any:
    """The key of a task of an array that is put in order.

    Another than the task has otherwise, of which Dask may have made something else: the same
    key must always stand for the same task.
    """
    name = head_of(key)
    if not isinstance(name, str):
        return key
    op, dash, token = name.rpartition("-")
    return with_head(key, f"{op}{dash}{tokenize('in order', token)}")


def ordered(one: Any, low: Low, place: Mapping[Any, int]) -> Any:
    """A collection whose tasks say when they run.

    Parameters
    ----------
    one
        The collection.  Arrays get tasks of other keys.
    low
        Its tasks, and perhaps those of others.
    place
        The place of every task in the order.

    Raises
    ------
    TypeError
        If it is no dask collection.
    """
    keys = list(flatten([one.__dask_keys__()]))
    tasks = dict(HighLevelGraph.from_collections("plan", low.tasks).cull(keys))
    names = {}
    if type(one) in (Array, OrderedArray):
        # not what is data already, nor what is in a cluster's memory
        names = {key: renamed(key) for key, node in tasks.items() if isinstance(node, Task | Alias)}
    layers: dict[str, dict[Any, Any]] = {}
    for key, node in tasks.items():
        new = names.get(key, key)
        node = node.substitute(names, key=new)
        layers.setdefault(_name(new), {})[new] = node
    annotations = _annotations(low, tasks, place, names)
    graph = HighLevelGraph(
        {name: MaterializedLayer(some, annotations=annotations) for name, some in layers.items()},
        {
            name: {
                _name(read)
                for node in some.values()
                for read in node.dependencies
                if _name(read) in layers
            }
            - {name}
            for name, some in layers.items()
        },
    )
    if type(one) in (Array, OrderedArray):
        name = _name(names.get(keys[0], keys[0])) if keys else one.name
        return _ordered_array(graph, name, one.chunks, one.dtype, one._meta)
    rebuild, arguments = one.__dask_postpersist__()
    return rebuild(graph, *arguments)


def _name(key: Any) -> str:
    return str(head_of(key))


def _annotations(
    low: Low, tasks: Mapping[Any, Any], place: Mapping[Any, int], names: Mapping[Any, Any]
) -> dict[str, Values]:
    """What is said of tasks, in front of all where they are in the order."""
    found = {
        name: Values({names.get(key, key): values[key] for key in tasks if key in values})
        for name, values in low.annotations.items()
    }
    own = low.annotations.get("priority", {})
    positions = {key: place[key] for key in tasks if key in place}
    # a fraction, so that graphs of others wait no longer than for any other
    count = max(len(place), 1)
    found["priority"] = Values(
        {names.get(key, key): own.get(key, 0) - at / count for key, at in positions.items()}
    )
    found[ORDER] = Values({names.get(key, key): at for key, at in positions.items()})
    return {name: values for name, values in found.items() if values}
