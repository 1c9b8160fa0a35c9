"""Collections whose tasks say in which order they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask._task_spec import Alias, convert_legacy_graph
from dask.array.core import Array
from dask.base import collections_to_expr, tokenize
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from dasktile.capture.tasks import without_aliases
from dasktile.runtime.ordered import ORDER


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


def ordered(one: Any, low: Low, place: Mapping[Any, int]) -> Any:
    """A collection whose tasks say when they run.

    Parameters
    ----------
    one
        The collection.
    low
        Its tasks, and perhaps those of others.
    place
        The place of every task in the order.
    """
    keys = list(flatten([one.__dask_keys__()]))
    tasks = dict(HighLevelGraph.from_collections("plan", low.tasks).cull(keys))
    positions = Values({key: place[key] for key in tasks if key in place})
    own = low.annotations.get("priority", {})
    # a fraction, so that graphs of others wait no longer than for any other
    priorities = Values(
        {key: own.get(key, 0) - at / max(len(place), 1) for key, at in positions.items()}
    )
    said = {
        name: Values({key: values[key] for key in tasks if key in values})
        for name, values in low.annotations.items()
    }
    layer = MaterializedLayer(
        tasks,
        annotations={
            **{name: values for name, values in said.items() if values},
            "priority": priorities,
            ORDER: positions,
        },
    )
    rebuild, arguments = one.__dask_postpersist__()
    layers = one.__dask_layers__() if hasattr(one, "__dask_layers__") else (tokenize(keys),)
    new = rebuild(HighLevelGraph({layers[0]: layer}, {layers[0]: set()}), *arguments)
    if type(new) is Array:
        return _ordered_array(new.dask, new.name, new.chunks, new.dtype, new._meta)
    return new
