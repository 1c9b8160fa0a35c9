"""The arrays in a user's collections, and the same collections with other arrays.

Lists, tuples and dicts are searched recursively; xarray objects contain the arrays of their
variables, and trees those of the datasets of all nodes.  Of any other dask collection only the keys
are public, so the arrays under these keys must keep their names and chunks.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dask.array.core import Array
from dask.base import is_dask_collection
from dask.highlevelgraph import HighLevelGraph

from dasktile._compat.expressions import is_readable
from dasktile.capture.base import ArrayInfo
from dasktile.collections.boundary import boundary, reachable, splice
from dasktile.collections.expressions import ExpressionArrays, optimised, written
from dasktile.ir import Chunks


@dataclass(frozen=True)
class Rewritten:
    """Arrays after lowering.

    Parameters
    ----------
    graph
        The graph that computes them.
    names
        The new name of every re-tiled array, by its old name.
    chunks
        Their new chunks, by the old name.
    """

    graph: HighLevelGraph
    names: Mapping[str, str]
    chunks: Mapping[str, Chunks]

    def array(self, old: Array) -> Array:
        """The array that replaces `old`; the same object if it was not re-tiled."""
        if old.name not in self.names:
            return old
        name = self.names[old.name]
        return Array(
            reachable(self.graph, [name]),
            name,
            self.chunks[old.name],
            dtype=old.dtype,
            meta=old._meta,
        )


@dataclass(frozen=True, slots=True)
class Member:
    """An array in an xarray object.

    Parameters
    ----------
    name
        Name of the array.
    dims
        Names of its dimensions.
    encoded
        For every dimension, the chunk size in the variable's encoding; empty if it has none.
    """

    name: str
    dims: tuple[Hashable, ...]
    encoded: tuple[int, ...] = ()


#: Makes a copy of a user's object with new arrays.
Rebuild = Callable[[Rewritten], Any]


@dataclass
class Holders:
    """All arrays in a user's objects.

    Parameters
    ----------
    arrays
        The arrays by name, in the order of the objects.
    graphs
        The graphs that they come from.
    keys
        The keys that are wanted.
    fixed
        Names of arrays that must keep their names and chunks.
    above
        Names of layers that are not part of the arrays' own graph but may read them.
    unknown
        Arrays with unknown chunk sizes: only the arrays they are computed from can be tiled.
    unsupported
        True if there are arrays of Dask's own array expressions, which are not supported.
    groups
        Arrays of one xarray object, which must have the same chunks along each shared dimension.
    titles
        The names of variables of xarray objects, with the number of the object, from 1, and the
        name of the array.
    expressions
        The arrays of the package ``dask_array``.
    failed
        Exceptions because of which arrays of ``dask_array`` were not read.
    """

    arrays: dict[str, ArrayInfo] = field(default_factory=dict)
    graphs: list[HighLevelGraph] = field(default_factory=list)
    keys: list[Any] = field(default_factory=list)
    fixed: set[str] = field(default_factory=set)
    above: dict[str, None] = field(default_factory=dict)
    unknown: dict[str, Array] = field(default_factory=dict)
    unsupported: bool = False
    groups: list[tuple[Member, ...]] = field(default_factory=list)
    titles: list[tuple[str, int, str]] = field(default_factory=list)
    expressions: ExpressionArrays = field(default_factory=ExpressionArrays)
    failed: list[Exception] = field(default_factory=list)
    _objects: int = 0

    @property
    def variables(self) -> dict[str, tuple[str, ...]]:
        """By the name of an array, the names of the variables of xarray objects that have it.

        Where other objects have variables of that name with other arrays, the position of the
        object comes first, as in ``2nd tas``.
        """
        arrays: dict[str, set[str]] = {}
        for title, _, name in self.titles:
            arrays.setdefault(title, set()).add(name)
        numbers: dict[str, set[int]] = {}
        for title, number, _ in self.titles:
            numbers.setdefault(title, set()).add(number)
        # in front, as reports shorten long names at their ends
        variables: dict[str, dict[str, None]] = {}
        for title, number, name in self.titles:
            is_shared = len(arrays[title]) > 1 and len(numbers[title]) > 1
            shown = f"{_ordinal(number)} {title}" if is_shared else title
            # the same array may be a variable of several objects
            variables.setdefault(name, {})[shown] = None
        return {name: tuple(titles) for name, titles in variables.items()}

    def open(self, value: Any, path: str | None = None) -> Rebuild:
        """Record the arrays in a value; returns a function that rebuilds the value.

        Parameters
        ----------
        value
            The value.
        path
            Of a dataset that is a node of a tree; the names of its variables begin with it.  None
            for other values.
        """
        if type(value) is Array:
            return self._array(value)
        if isinstance(value, Array):
            # the constructor of a subclass is not known
            return lambda new: value
        if type(value) in (list, tuple):
            return self._sequence(value, type(value))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self._sequence(value, lambda items: type(value)(*items))
        if type(value) is dict:
            return self._sequence(
                list(value.values()), lambda items: dict(zip(value, items, strict=True)), value
            )
        if is_readable(value):
            return self._expression(value)
        if is_expression(value):
            self.unsupported = True
        elif is_xarray(value):
            if path is None:
                self._objects += 1
            return self._xarray(value, path or "")
        elif is_tree(value):
            self._objects += 1
            datasets = datasets_of(value)
            return self._sequence(
                list(datasets.values()),
                lambda items: tree_of(value, dict(zip(datasets, items, strict=True))),
                value,
                ["" if path == "." else f"{path}/" for path in datasets],
            )
        elif is_dask_collection(value):
            return self._collection(value)
        return lambda new: value

    def _array(self, value: Array) -> Rebuild:
        if any(math.isnan(size) for sizes in value.chunks for size in sizes):
            self.unknown.setdefault(value.name, value)
            return self._collection(value)
        chunks = tuple(tuple(int(size) for size in sizes) for sizes in value.chunks)
        info = ArrayInfo(value.name, tuple(map(sum, chunks)), value.dtype, chunks)
        # the array's own chunks take precedence over the annotations of its layer
        self.arrays[value.name] = info
        self.graphs.append(value.dask)
        self.keys.append(value.__dask_keys__())
        return lambda new: new.array(value)

    def _expression(self, value: Any) -> Rebuild:
        try:
            array = self.expressions.read(value)
        except Exception as error:
            self.failed.append(error)
            return lambda new: value
        rebuild = self._array(array)

        def expression(new: Rewritten) -> Any:
            result = rebuild(new)
            if result is array:
                return value
            if array.name not in new.names:
                return written(value, result, optimised(result.dask, [result]))

            def results() -> list[Array]:
                read = self.expressions.arrays
                return [new.array(each) for each in read if each.name in new.names]

            return written(value, result, self.expressions.tasks(new.graph, results))

        return expression

    def _sequence(
        self,
        items: Sequence[Any],
        build: Callable[[Iterable[Any]], Any],
        whole: Any = None,
        paths: Sequence[str | None] = (),
    ) -> Rebuild:
        whole = items if whole is None else whole
        paths = paths or [None] * len(items)
        rebuilds = [self.open(item, path) for item, path in zip(items, paths, strict=True)]

        def sequence(new: Rewritten) -> Any:
            rebuilt = [rebuild(new) for rebuild in rebuilds]
            if all(item is old for item, old in zip(rebuilt, items, strict=True)):
                return whole
            return build(rebuilt)

        return sequence

    def _xarray(self, value: Any, path: str = "") -> Rebuild:
        xarray = sys.modules["xarray"]
        if isinstance(value, xarray.Variable):
            rebuild = self.open(value._data if is_dask_collection(value) else None)

            def variable(new: Rewritten) -> Any:
                data = rebuild(new)
                return value if data is None or data is value.data else value.copy(data=data)

            return variable
        if isinstance(value, xarray.DataArray):
            return self._data_array(value)
        names = [name for name in value.variables if is_dask_collection(value.variables[name])]
        rebuilds = [self._xarray(value.variables[name]) for name in names]
        self._tie([value.variables[name] for name in names])
        self._name({f"{path}{name}": value.variables[name] for name in names})

        def dataset(new: Rewritten) -> Any:
            changed = _changed(names, rebuilds, value.variables, new)
            if not changed:
                return value
            coords = {name: var for name, var in changed.items() if name in value.coords}
            data = {name: var for name, var in changed.items() if name not in value.coords}
            return value.assign_coords(coords).assign(data)

        return dataset

    def _tie(self, variables: Iterable[Any]) -> None:
        members = tuple(
            Member(name, variable.dims, _encoded(variable))
            for variable in variables
            if (name := self._recorded_name(variable._data)) is not None
        )
        if members:
            self.groups.append(members)

    def _name(self, variables: Mapping[str, Any]) -> None:
        for title, variable in variables.items():
            name = self._recorded_name(variable._data)
            if name is not None:
                self.titles.append((title, self._objects, name))

    def _recorded_name(self, data: Any) -> str | None:
        """The name under which an array is recorded, None if it is not."""
        if type(data) is Array:
            return str(data.name)
        return self.expressions.names.get(data.name) if is_readable(data) else None

    def _data_array(self, value: Any) -> Rebuild:
        names = [name for name in value.coords if is_dask_collection(value.coords[name].variable)]
        variables = {name: value.coords[name].variable for name in names}
        rebuilds = [self._xarray(variables[name]) for name in names]
        inner = self._xarray(value.variable)
        self._tie([value.variable, *variables.values()])
        self._name({str(name): variable for name, variable in variables.items()})
        if value.name is not None:
            self._name({str(value.name): value.variable})

        def data_array(new: Rewritten) -> Any:
            changed = _changed(names, rebuilds, variables, new)
            variable = inner(new)
            if variable is value.variable and not changed:
                return value
            return value.copy(deep=False, data=variable.data).assign_coords(changed)

        return data_array

    def _collection(self, value: Any) -> Rebuild:
        graph = value.__dask_graph__()
        if not isinstance(graph, HighLevelGraph) or not hasattr(value, "__dask_postpersist__"):
            return lambda new: value
        ends = boundary(graph, value.__dask_keys__())
        if ends is None:
            return lambda new: value
        names = [array.name for array in ends.arrays]
        for array in ends.arrays:
            self.arrays.setdefault(array.name, array)
        self.fixed.update(names)
        self.above.update(dict.fromkeys(ends.above))
        self.graphs.append(graph)
        self.keys.append(value.__dask_keys__())

        def rebuild(new: Rewritten) -> Any:
            if not new.names.keys() & names:
                return value
            top = reachable(new.graph, names)
            build, arguments = value.__dask_postpersist__()
            return build(splice(graph, ends, top), *arguments)

        return rebuild


def _ordinal(number: int) -> str:
    """``1st``, ``2nd``, ``3rd``, ``4th``, ``11th``, ``21st``."""
    last = 0 if number % 100 in (11, 12, 13) else number % 10
    return str(number) + {1: "st", 2: "nd", 3: "rd"}.get(last, "th")


def _changed(
    names: Sequence[Any], rebuilds: Sequence[Rebuild], old: Any, new: Rewritten
) -> dict[Any, Any]:
    rebuilt = {name: rebuild(new) for name, rebuild in zip(names, rebuilds, strict=True)}
    return {name: variable for name, variable in rebuilt.items() if variable is not old[name]}


def _encoded(variable: Any) -> tuple[int, ...]:
    """Chunk sizes of a variable's encoding, one for each of its dimensions."""
    # a task must write whole shards, if the store has shards
    sizes = variable.encoding.get("shards") or variable.encoding.get("chunks")
    if not isinstance(sizes, (list, tuple)) or len(sizes) != variable.ndim:
        return ()
    return tuple(sizes) if all(isinstance(size, int) and size > 0 for size in sizes) else ()


def is_expression(value: Any) -> bool:
    """Whether this is an array of dask's query planning, or of the package ``dask_array``."""
    # attributes of the class, because delayed objects have every attribute
    kind = type(value)
    return hasattr(kind, "expr") and hasattr(kind, "chunks") and is_dask_collection(value)


def is_xarray(value: Any) -> bool:
    """Whether this is a dataset, an array or a variable of xarray."""
    xarray = sys.modules.get("xarray")
    return xarray is not None and isinstance(
        value, (xarray.Dataset, xarray.DataArray, xarray.Variable)
    )


def is_tree(value: Any) -> bool:
    """Whether this is a tree of datasets of xarray, which is no dask collection."""
    tree = getattr(sys.modules.get("xarray"), "DataTree", None)
    return tree is not None and isinstance(value, tree)


def datasets_of(tree: Any) -> dict[str, Any]:
    """The datasets of all nodes of a tree, by their paths in it.

    Coordinates are those of a node itself, and for the first node also those that it inherits.
    """
    return {path: node.to_dataset(inherit=node is tree) for path, node in tree.subtree_with_keys}


def tree_of(like: Any, datasets: Mapping[str, Any]) -> Any:
    """A tree with other datasets; the same one if none of them was in Dask's chunks.

    Parameters
    ----------
    like
        The tree.
    datasets
        As :func:`datasets_of` returns them.
    """
    if not any(map(is_dask_collection, datasets_of(like).values())):
        return like
    paths = {"/" if path == "." else path: dataset for path, dataset in datasets.items()}
    return type(like).from_dict(paths, name=like.name)
