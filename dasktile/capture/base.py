"""The input and the results of recognisers, and the result of a capture.

Capture walks the graph from its outputs.  It calls the recognisers in order for every array
layer that is needed.  The first result that is an operation or a rechunk decides what the
layer is.  A recogniser may include layers below its own (the chunk step of a reduction, for
example) if the inputs that it names are arrays further down.  Layers that no operation names
as an input are not visited.  A layer without an operation is unchanged, with a reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer

from dasktile._compat.dask import Alias, GraphNode, convert_legacy_graph
from dasktile.capture.references import (
    Key,
    Keys,
    head_of,
    heads_of,
    listed_tuples,
    read_by,
    references,
    tasks_of,
)
from dasktile.ir import ArrayType, AxisMap, Chunks, Groups, Kind, Label, Picks, Program


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """The array that a layer computes; its keys are ``(name, *block)``.

    Of a result of unknown chunk sizes, `bounded` is True, and the sizes are those of what its
    blocks are selected from, or one element: its bytes are counted by them.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: Chunks
    bounded: bool = False

    @property
    def numblocks(self) -> tuple[int, ...]:
        return tuple(len(sizes) for sizes in self.chunks)


def added_axes(layer: Blockwise) -> dict[Any, Any]:
    """The symbols of axes that a layer adds to those of its inputs, with their sizes.

    When Dask fuses a layer with those below it, it enters the axes that these add into the mapping
    of the layer itself (``rewrite_blockwise``, in dask 2026.8.0 too); the layer's inputs have them.
    """
    read = {symbol for _, symbols in layer.indices for symbol in symbols or ()}
    return {symbol: size for symbol, size in layer.new_axes.items() if symbol not in read}


@dataclass(frozen=True, slots=True)
class Input:
    """An array that a recognised operation reads; see :class:`~dasktile.ir.Edge`."""

    layer: str
    axes: tuple[AxisMap, ...]
    chunks: Chunks | None = None
    within: tuple[int, int, int] | None = None
    spread: bool = False
    picks: Picks | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """A recognised operation; becomes an :class:`~dasktile.ir.Node`.

    `kernel` holds what the lowering of this kind of operation needs to write its tasks for
    other tiles.  The other fields are those of the node.
    """

    op: str
    kind: Kind
    labels: tuple[Label, ...]
    out: tuple[AxisMap, ...]
    kernel: Any
    inputs: tuple[Input, ...] = ()
    partial: float = 0.0
    work: float = 1.0
    stored: Chunks | None = None
    resident: bool = False
    reason: str = ""
    root: bool = False
    repeatable: bool = False
    groups: Groups | None = None
    windows: int = 1
    has_inner_tasks: bool = False


@dataclass(frozen=True, slots=True)
class Rechunked:
    """A rechunk: the array of another layer in other chunks."""

    layer: str


@dataclass(frozen=True, slots=True)
class NotRecognised:
    """The recogniser supports operations like that of the layer, but not in this form.

    Parameters
    ----------
    reason
        Why the operation is unchanged, in terms of the call that the user made; empty if that of
        another recogniser, or the usual one, is better.
    known
        The operation that it would be otherwise: parts of its inputs that its blocks read, and its
        work.
    """

    reason: str
    known: Operation | None = None


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Kernel of an unchanged (opaque) node: the tasks of the graph are copied.

    Parameters
    ----------
    layers
        The graph layers of the node, the layer of its array last.
    reads
        For every edge, the layer whose keys those layers read.  It differs from the layer of
        the producer where rechunks, which are not part of the program, are between them.
    """

    layers: tuple[str, ...]
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Captured:
    """A program, and what is needed to write a dask graph from it.

    Parameters
    ----------
    program
        The operations, without functions and tasks.
    kernels
        One for each node.
    graph
        The graph that was captured.
    errors
        Exceptions inside capture; each is a defect of dasktile.
    near
        By the key of a task that reads data of other collections, the mesh position of the data.
    shapes
        By the key of such data, its shape and the type of its elements, where it is an array.
    fetched
        Bytes of such data that workers receive for blocks that are made of data on several.
    computing
        Bytes of persisted blocks of which it is unknown on which workers they are, mostly because
        they are being computed.
    divided
        Whether the homes of its arrays, and `near`, are not where data is, but chosen for a plan.
    inner
        By the key of a task that makes a part of an array, bytes of its result; those of other
        results follow from what their tasks do.
    """

    program: Program
    kernels: tuple[Any, ...]
    graph: HighLevelGraph
    errors: tuple[Exception, ...] = ()
    near: Mapping[Key, int] = field(default_factory=dict)
    shapes: Mapping[Key, ArrayType] = field(default_factory=dict)
    fetched: int = 0
    computing: int = 0
    divided: bool = False
    inner: Mapping[Key, int] = field(default_factory=dict)

    @property
    def is_in_memory(self) -> bool:
        """Whether workers have blocks of its arrays, or data that they are made of, in memory."""
        is_there = bool(self.near) or any(
            node.homes and node.resident for node in self.program.nodes
        )
        return is_there and not self.divided


@dataclass
class GraphView:
    """A high-level graph, with cached arrays, tasks and dependencies of its layers.

    Parameters
    ----------
    graph
        The graph.
    roots
        Arrays whose name, shape, dtype and chunks are known from the collections
        themselves.  They take precedence over the annotations of layers.
    solvers
        Calls of ``da.linalg`` that use factorisations, see :mod:`dasktile.capture.steps`; None
        until they are needed.
    errors
        Exceptions inside capture; each is a defect of dasktile.
    """

    graph: HighLevelGraph
    roots: Mapping[str, ArrayInfo] = field(default_factory=dict)
    _arrays: dict[str, ArrayInfo | None] = field(default_factory=dict, repr=False)
    _tasks: dict[str, dict[Key, GraphNode]] = field(default_factory=dict, repr=False)
    _heads: dict[str, frozenset[Any]] = field(default_factory=dict, repr=False)
    _reads: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    _known: dict[str, Keys] = field(default_factory=dict, repr=False)
    _listed: dict[str, Set[Key] | None] = field(default_factory=dict, repr=False)
    solvers: dict[str, str] | None = field(default=None, repr=False)
    errors: list[Exception] = field(default_factory=list, repr=False)

    @property
    def layers(self) -> Mapping[str, Layer]:
        return self.graph.layers

    def array(self, name: str) -> ArrayInfo | None:
        """The array of a layer; None if it is no array, or one of unknown shape or chunks."""
        if name not in self._arrays:
            root = self.roots.get(name)
            is_unknown = root is not None and root.bounded
            found = None if is_unknown else root or _annotated(name, self.layers.get(name))
            self._arrays[name] = found
        return self._arrays[name]

    def add(self, arrays: Mapping[str, ArrayInfo]) -> None:
        """Make the arrays of some layers known."""
        self._arrays.update(arrays)

    def result(self, name: str) -> ArrayInfo | None:
        """As :meth:`array`, also of a result of unknown chunk sizes."""
        return self.roots.get(name) or self.array(name)

    def tasks(self, name: str) -> dict[Key, GraphNode]:
        """The tasks of a layer as dask's task objects; tuples are converted."""
        if name not in self._tasks:
            tasks = tasks_of(self.layers[name])
            if any(map(_may_change, set(map(type, tasks.values())))):
                tasks = convert_legacy_graph(tasks, self._known_keys(name))
            self._tasks[name] = dict(tasks)
        return self._tasks[name]

    def listed_keys(self, name: str) -> Set[Key] | None:
        """The keys that a layer reads, if its tasks call functions of nested lists of them only.

        Such tasks are tuples that need no conversion; None for a layer with others.
        """
        if name not in self._listed:
            found = listed_tuples(tasks_of(self.layers[name]).values())
            are_keys = found is not None and self._known_keys(name).have(found)
            self._listed[name] = found if are_keys else None
        return self._listed[name]

    def needed_tasks(self, wanted: Iterable[Key]) -> dict[str, dict[Key, GraphNode | None]]:
        """By layer, the tasks that some keys depend on, in the order of the layer.

        Others are not converted, and layers of which none is needed not generated.  A key is None
        where its layer has the future of this key.
        """
        by_head: dict[Any, list[str]] = {}
        for name, layer in self.layers.items():
            heads = (layer.output,) if isinstance(layer, Blockwise) else self.heads(name)
            for head in heads:
                by_head.setdefault(head, []).append(name)
        layers: dict[str, Mapping[Key, Any]] = {}
        found: dict[str, dict[Key, GraphNode | None]] = {}
        missing = object()
        seen = set(wanted)
        stack = list(seen)
        while stack:
            key = stack.pop()
            for name in by_head.get(head_of(key), ()):
                if name not in layers:
                    layers[name], found[name] = tasks_of(self.layers[name]), {}
                task = layers[name].get(key, missing)
                if task is missing:
                    continue
                reads = task.dependencies if isinstance(task, GraphNode) else None
                if reads is None or (len(reads) == 1 and key in reads):
                    task = convert_legacy_graph({key: task}, self._known_keys(name)).get(key)
                    reads = frozenset() if task is None else task.dependencies
                found[name][key] = task
                if reads:
                    new = reads - seen
                    seen |= new
                    stack.extend(new)
        return {
            name: {key: tasks[key] for key in layers[name] if key in tasks}
            for name in self.layers
            if (tasks := found.get(name))
        }

    def _known_keys(self, name: str) -> Keys:
        """The keys that tasks of a layer may read."""
        if name not in self._known:
            self._known[name] = self.keys((name, *self.graph.dependencies.get(name, ())))
        return self._known[name]

    def keys(self, names: Iterable[str]) -> Keys:
        """The keys of some layers."""
        layers = {name: self.layers[name] for name in names if name in self.layers}
        heads = {
            name: self.heads(name)
            for name, layer in layers.items()
            if not isinstance(layer, Blockwise)
        }
        return Keys(layers, heads)

    def heads(self, name: str) -> frozenset[Any]:
        """The first items of the keys of a layer: usually only its name."""
        if name not in self._heads:
            self._heads[name] = frozenset(heads_of(name, self.layers[name]))
        return self._heads[name]

    def dependencies(self, name: str) -> tuple[str, ...]:
        """Names of the layers that a layer reads, in the order of the reads in its tasks.

        The order does not depend on the names, because programs must not depend on them.  Names
        need not be strings.
        """
        if name not in self._reads:
            self._reads[name] = self._in_order(name)
        return self._reads[name]

    def _in_order(self, name: str) -> tuple[str, ...]:
        """The dependencies of a layer in the order of the reads in its tasks."""
        names = self.graph.dependencies.get(name, ())
        if len(names) < 2:
            return tuple(names)
        layer, in_order = self.layers[name], sorted(names, key=str)
        heads = {head: other for other in in_order for head in self._key_heads(other)}
        ordered: dict[str, None] = {}
        for key in read_by(layer) if isinstance(layer, Blockwise) else self._task_reads(name):
            if (head := head_of(key)) in heads:
                ordered[heads[head]] = None
                if len(ordered) == len(names):
                    break
        return (*ordered, *(other for other in in_order if other not in ordered))

    def _task_reads(self, name: str) -> Iterable[Key]:
        """The keys that the tasks of a layer read, in order."""
        return (key for task in self.tasks(name).values() for key in references(task))

    def _key_heads(self, name: str) -> Iterable[Any]:
        """As :meth:`heads`; a Blockwise layer or one of another graph has only its name."""
        layer = self.layers.get(name)
        if layer is None or isinstance(layer, Blockwise):
            return (name,)
        return self.heads(name)


def _may_change(kind: type) -> bool:
    """Whether dask converts some tasks of a type, or leaves them out as it does futures."""
    return not issubclass(kind, GraphNode) or issubclass(kind, Alias)


#: The operation of a layer; None if the layer is not of a kind that the recogniser supports.
Recogniser = Callable[[GraphView, str], "Operation | Rechunked | NotRecognised | None"]

#: A note in the annotations of a layer with tiles of which its readers make views: its blocks have
#: fewer axes than their keys and the noted chunks.
OF_VIEWS = "dasktile_views"


def has_blocks(layer: Layer, array: ArrayInfo) -> bool:
    """Whether the blocks of the array are keys of the layer."""
    if isinstance(layer, Blockwise):
        dims = tuple(layer.dims[symbol] for symbol in layer.output_indices)
        return layer.output == array.name and dims == array.numblocks
    last = (count - 1 for count in array.numblocks)
    return (array.name, *last) in layer


def has_all_blocks(layer: Layer, array: ArrayInfo) -> bool:
    """As :func:`has_blocks`; of a materialised layer, every block is looked up."""
    if isinstance(layer, Blockwise) or not layer.is_materialized():
        return has_blocks(layer, array)
    grid = itertools.product(*map(range, array.numblocks))
    return all((array.name, *block) in layer for block in grid)


def _annotated(name: str, layer: Layer | None) -> ArrayInfo | None:
    """The array of a layer by its annotations; None if they are incomplete or sizes are unknown."""
    annotations = layer.collection_annotations if layer is not None else None
    if not annotations or "chunks" not in annotations or "dtype" not in annotations:
        return None
    if OF_VIEWS in annotations:
        return None
    chunks = annotations["chunks"]
    if chunks is None or annotations["dtype"] is None:
        return None
    kinds = set(map(type, itertools.chain.from_iterable(chunks)))
    if not all(issubclass(kind, (int, np.integer)) for kind in kinds):
        return None
    # arrays share the sizes that they have in common
    exact = tuple(tuple(sizes if kinds == {int} else map(int, sizes)) for sizes in chunks)
    return ArrayInfo(name, tuple(map(sum, exact)), np.dtype(annotations["dtype"]), exact)
