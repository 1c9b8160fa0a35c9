"""Collections whose tasks carry their position in a planned order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask.array.core import Array
from dask.base import tokenize
from dask.core import flatten
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from dasktile._compat.dask import (
    PLAN,
    Alias,
    Task,
    collections_to_expr,
    convert_legacy_graph,
    require,
)
from dasktile.capture.references import head_of, with_head
from dasktile.capture.tasks import without_aliases
from dasktile.collections.containers import unpack
from dasktile.collections.expressions import as_dask_arrays, has_expressions
from dasktile.runtime.scheduler.priorities import ORDER


def unpacked(
    given: Sequence[Any], allowed: str
) -> tuple[Sequence[Any], Callable[[Sequence[Any]], tuple[Any, ...]]]:
    """The dask collections in arguments, each once, and a function that puts others there.

    Parameters
    ----------
    given
        The arguments: dask collections, and lists, tuples and dicts of them.
    allowed
        What is allowed, for the message of an error.

    Raises
    ------
    TypeError
        If there is no argument, or one without a dask collection.
    """
    if not given or not all(unpack(each)[0] for each in given):
        kinds = ", ".join(type(each).__name__ for each in given) or "nothing"
        raise TypeError(f"{allowed}; got {kinds}")
    found, repack = unpack(*given)
    arrays = as_dask_arrays(found)
    if any(has_expressions(each) for each in arrays):
        raise TypeError(
            f"{allowed}; got an object of xarray made of arrays of dask_array: pass these arrays"
        )
    return arrays, repack


@dataclass(frozen=True, slots=True)
class TaskSet:
    """The tasks that run when collections are computed.

    Parameters
    ----------
    nodes
        Task-spec nodes by key.
    annotations
        By the name of an annotation, its value for each key.
    wanted
        Keys of the results.
    """

    nodes: Mapping[Any, Any]
    annotations: Mapping[str, Mapping[Any, Any]]
    wanted: Sequence[Any]

    @classmethod
    def of(cls, collections: Sequence[Any]) -> TaskSet:
        """The tasks of collections after Dask's own optimisation of all of them together.

        Raises
        ------
        TypeError
            If Dask renames the results of a collection, as it does for some dataframes.
        """
        require(PLAN, "planning the order of tasks")
        wanted = list(flatten([collection.__dask_keys__() for collection in collections]))
        # `dask.optimize` drops annotations; checked with dask 2026.7.1 and 2026.8.0
        optimized: Any = collections_to_expr(collections).optimize()
        nodes = without_aliases(convert_legacy_graph(optimized.__dask_graph__()), wanted)
        for collection in collections:
            if not nodes.keys() >= set(flatten([collection.__dask_keys__()])):
                raise TypeError(
                    f"the order of the tasks of this {type(collection).__name__} cannot be planned:"
                    " Dask rewrites its expression and renames its results when it is computed"
                )
        # the graph may still contain data that no task reads
        needed = HighLevelGraph.from_collections("plan", nodes).cull(wanted)
        return cls(dict(needed), optimized.__dask_annotations__(), wanted)

    def running(self) -> set[Any]:
        """Keys of all tasks, aliases excepted."""
        return {key for key, node in self.nodes.items() if not isinstance(node, Alias)}


class OrderedArray(Array):
    """An array whose graph is optimised and annotated with an order."""

    __slots__ = ()
    __dask_optimize__ = None

    def __reduce__(self) -> Any:
        return _ordered_array, (self.dask, self.name, self.chunks, self.dtype, self._meta)


def _ordered_array(graph: Any, name: str, chunks: Any, dtype: Any, meta: Any) -> OrderedArray:
    return OrderedArray(graph, name, chunks, dtype=dtype, meta=meta)


class Values(dict[Any, Any]):
    """Values of an annotation by key, callable as dask calls annotations."""

    def __call__(self, key: Any) -> Any:
        return self.get(key)

    def __reduce__(self) -> Any:
        return Values, (dict(self),)


def renamed(key: Any) -> Any:
    """The key of a task in an ordered array.

    It differs from the original key: the optimised task need not be the task that the original
    key stands for in another graph.
    """
    name = head_of(key)
    if not isinstance(name, str):
        return key
    op, dash, token = name.rpartition("-")
    return with_head(key, f"{op}{dash}{tokenize('in order', token)}")


def ordered(collection: Any, tasks: TaskSet, place: Mapping[Any, int]) -> Any:
    """The collection with an optimised graph whose tasks carry their position in an order.

    Parameters
    ----------
    collection
        The collection.  The tasks of arrays get new keys.
    tasks
        The tasks of this collection, among others.
    place
        The position of every task in the order, by key.

    Raises
    ------
    TypeError
        If it is not a dask collection.
    """
    keys = list(flatten([collection.__dask_keys__()]))
    needed = dict(HighLevelGraph.from_collections("plan", tasks.nodes).cull(keys))
    names = {}
    if type(collection) in (Array, OrderedArray):
        # data nodes and results in a cluster's memory keep their keys
        names = {
            key: renamed(key) for key, node in needed.items() if isinstance(node, Task | Alias)
        }
    # the layer of a delayed value has its key, which other delayed values may share in part
    alone = {names.get(key, key) for key in keys} if isinstance(collection, Delayed) else ()
    groups: dict[Any, dict[Any, Any]] = {}
    for key, node in needed.items():
        new = names.get(key, key)
        node = node.substitute(names, key=new)
        groups.setdefault(new if new in alone else _head(new), {})[new] = node
    own = {key if key in alone else _head(key) for key in (names.get(key, key) for key in keys)}
    layer_names = {
        group: group if group in own else _layer_name(group, some) for group, some in groups.items()
    }
    layer_of = {key: layer_names[group] for group, some in groups.items() for key in some}
    annotations = _annotations(tasks, needed, place, names)
    graph = HighLevelGraph(
        {
            layer_names[group]: MaterializedLayer(some, annotations=annotations)
            for group, some in groups.items()
        },
        {
            layer_names[group]: {
                layer_of[read]
                for node in some.values()
                for read in node.dependencies
                if read in layer_of
            }
            - {layer_names[group]}
            for group, some in groups.items()
        },
    )
    if type(collection) in (Array, OrderedArray):
        name = own.pop() if own else collection.name
        return _ordered_array(graph, name, collection.chunks, collection.dtype, collection._meta)
    rebuild, arguments = collection.__dask_postpersist__()
    return rebuild(graph, *arguments)


def _head(key: Any) -> str:
    return str(head_of(key))


def _layer_name(head: str, keys: Iterable[Any]) -> str:
    """The name of the layer of some tasks whose keys have one head.

    Another collection may need other tasks with this head.  Where both are computed together, only
    one of two layers of the same name would be left.
    """
    op, dash, token = head.rpartition("-")
    return f"{op}{dash}{tokenize(token, sorted(map(str, keys)))}"


def _annotations(
    tasks: TaskSet, needed: Mapping[Any, Any], place: Mapping[Any, int], names: Mapping[Any, Any]
) -> dict[str, Values]:
    """Annotations of the needed tasks by their new keys, with priority and position added."""
    annotations = {
        name: Values({names.get(key, key): values[key] for key in needed if key in values})
        for name, values in tasks.annotations.items()
    }
    own = tasks.annotations.get("priority", {})
    positions = {key: place[key] for key in needed if key in place}
    # fractions of 1: tasks of other graphs rank as they do beside any other graph
    count = max(len(place), 1)
    annotations["priority"] = Values(
        {
            names.get(key, key): own.get(key, 0) - position / count
            for key, position in positions.items()
        }
    )
    annotations[ORDER] = Values(
        {names.get(key, key): position for key, position in positions.items()}
    )
    return {name: values for name, values in annotations.items() if values}
