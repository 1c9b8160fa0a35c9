"""Arrays of the package ``dask_array``: as Dask's arrays, and made of Dask's arrays again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        self._written: tuple[HighLevelGraph, Tasks] | None = None
        self.arrays: list[Array] = []
        self.names: dict[str, str] = {}
        self.errors: list[Exception] = []

    def read(self, value: Any) -> Array:
        """An array of ``dask_array`` as one of Dask, which is also recorded."""
        array = self._reader.array(value.expr)
        self.errors = self._reader.errors
        self.arrays.append(array)
        self.names[value.name] = array.name
        return array

    def written(
        self, value: Any, array: Array, graph: HighLevelGraph, results: Sequence[Array]
    ) -> Any:
        """What replaces an array of ``dask_array``.

        Its graph has been optimised as Dask does when it computes arrays, because ``dask_array``
        takes it as it is.

        Parameters
        ----------
        value
            The array to replace.
        array
            The array of Dask with its values.
        graph, results
            The graph of all results, and those that replace arrays of ``dask_array``.  These are
            optimised together, so that they have the same tasks.
        """
        if all(array.name != result.name for result in results):
            tasks = _optimised(array.dask, [array])
        else:
            if self._written is None or self._written[0] is not graph:
                self._written = graph, _optimised(graph, results)
            tasks = self._written[1]
        own, _ = cull(tasks, list(flatten(array.__dask_keys__())))
        return output(value, own, array.name, array.chunks)


def _optimised(graph: HighLevelGraph, arrays: Sequence[Array]) -> Tasks:
    keys = [key for array in arrays for key in flatten(array.__dask_keys__())]
    return dict(dask.array.optimization.optimize(graph, keys))
