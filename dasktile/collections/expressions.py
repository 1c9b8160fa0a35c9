"""Arrays of the package ``dask_array``: as Dask's arrays, and made of Dask's arrays again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dask.array.optimization
from dask.array.core import Array
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph
from dask.optimization import cull

from dasktile._compat.expressions import is_readable, output
from dasktile.capture.expressions import ExpressionReader

Tasks = Mapping[Any, Any]


def as_dask_arrays(collections: Sequence[Any]) -> list[Any]:
    """The same collections, with Dask's arrays for those of ``dask_array``."""
    reader = ExpressionReader()
    return [reader.array(each.expr) if is_readable(each) else each for each in collections]


def has_expressions(collection: Any) -> bool:
    """Whether this is an object of xarray made of arrays of ``dask_array``."""
    variables = getattr(type(collection), "variables", None) and collection.variables.values()
    if variables is None and hasattr(type(collection), "variable"):
        variables = [collection.variable, *(each.variable for each in collection.coords.values())]
    return any(is_readable(getattr(each, "_data", None)) for each in variables or ())


class ExpressionArrays:
    """The arrays of ``dask_array`` among a user's objects.

    Attributes
    ----------
    arrays
        Dask's arrays for them.
    names
        The names of these, by the names of the arrays of ``dask_array``.
    errors
        Exceptions of rules for nodes, which were then written by their tasks.
    """

    def __init__(self) -> None:
        self._reader = ExpressionReader()
        self._optimised: tuple[HighLevelGraph, Tasks] | None = None
        self.arrays: list[Array] = []
        self.names: dict[str, str] = {}

    @property
    def errors(self) -> Sequence[Exception]:
        return self._reader.errors

    def read(self, value: Any) -> Array:
        """An array of ``dask_array`` as one of Dask, which is also recorded."""
        array = self._reader.array(value.expr)
        self.arrays.append(array)
        self.names[value.name] = array.name
        return array

    def tasks(self, graph: HighLevelGraph, results: Callable[[], Sequence[Array]]) -> Tasks:
        """The tasks of all results, which are optimised together, so that they have the same ones.

        Parameters
        ----------
        graph
            The graph of the results.
        results
            Gives those that replace arrays of ``dask_array``, once for a graph.
        """
        if self._optimised is None or self._optimised[0] is not graph:
            self._optimised = graph, optimised(graph, results())
        return self._optimised[1]


def optimised(graph: HighLevelGraph, arrays: Sequence[Array]) -> Tasks:
    """The tasks of arrays as Dask optimises them when it computes arrays of its own.

    ``dask_array`` takes a graph as it is.
    """
    keys = [key for array in arrays for key in flatten(array.__dask_keys__())]
    return dict(dask.array.optimization.optimize(graph, keys))


def written(value: Any, array: Array, tasks: Tasks) -> Any:
    """What replaces an array of ``dask_array``.

    Parameters
    ----------
    value
        The array to replace.
    array, tasks
        The array of Dask with its values, and tasks that compute it, among others.
    """
    own, _ = cull(tasks, list(flatten(array.__dask_keys__())))
    return output(value, own, array.name, array.chunks)
