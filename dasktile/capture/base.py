"""What a recogniser sees of a dask graph, and what it answers.

Capture walks the graph from its outputs.  For every array layer that somebody needs it
asks the recognisers in turn; the first that answers decides what the layer is.  A
recogniser may swallow layers below the one it was asked about (the chunk step of a
reduction, say) by naming, as its inputs, arrays further down; what nobody names is
never visited.  A layer that no recogniser knows is left alone, with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer

from dasktile._compat.dask import Alias, GraphNode, Task, TaskRef, convert_legacy_graph
from dasktile.ir import AxisMap, Chunks, Kind, Label, Program

Key = Any


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """The array that a layer makes: its keys are ``(name, *block)``."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: Chunks

    @property
    def numblocks(self) -> tuple[int, ...]:
        return tuple(len(sizes) for sizes in self.chunks)


@dataclass(frozen=True, slots=True)
class Input:
    """An array that a recognised operation reads; see :class:`~dasktile.ir.Edge`."""

    layer: str
    axes: tuple[AxisMap, ...]
    chunks: Chunks | None = None
    within: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A recognised operation; becomes an :class:`~dasktile.ir.Node`.

    `kernel` is whatever the lowering of this family needs to write the operation's
    tasks again for other tiles; the other fields are the node's.
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
    repeatable: bool = False


@dataclass(frozen=True, slots=True)
class Same:
    """The layer's array is that of another layer, only in other chunks (a rechunk)."""

    layer: str


@dataclass(frozen=True, slots=True)
class NotRecognised:
    """A layer of the recogniser's family, in a form that it does not take.

    Parameters
    ----------
    reason
        Why the operation is unchanged, in terms of the call that the user made.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Kernel of a node left alone.

    Parameters
    ----------
    layers
        The graph layers it consists of, its own one last.
    reads
        For every edge, the layer by whose keys those layers refer to the array.  It
        need not be the producer's own: between them there may be rechunks, which are
        not part of the program.
    """

    layers: tuple[str, ...]
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Captured:
    """A program, and what is needed to write it as a dask graph again.

    Parameters
    ----------
    program
        The pure part.
    kernels
        One for each node.
    graph
        The graph captured from.
    errors
        Exceptions that recognisers raised; each is a defect of dasktile.
    """

    program: Program
    kernels: tuple[Any, ...]
    graph: HighLevelGraph
    errors: tuple[Exception, ...] = ()


@dataclass
class GraphView:
    """A high-level graph with what recognisers ask of it again and again.

    Parameters
    ----------
    graph
        The graph.
    roots
        Arrays whose name, shape, dtype and chunks are known from the collections
        themselves; they outrank what layers say of themselves.
    """

    graph: HighLevelGraph
    roots: Mapping[str, ArrayInfo] = field(default_factory=dict)
    _arrays: dict[str, ArrayInfo | None] = field(default_factory=dict, repr=False)
    _tasks: dict[str, dict[Key, GraphNode]] = field(default_factory=dict, repr=False)
    _heads: dict[str, frozenset[Any]] = field(default_factory=dict, repr=False)
    _reads: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False)

    @property
    def layers(self) -> Mapping[str, Layer]:
        return self.graph.layers

    def array(self, name: str) -> ArrayInfo | None:
        """The array a layer makes, or None where it is none of known shape and chunks."""
        if name not in self._arrays:
            self._arrays[name] = self.roots.get(name) or _annotated(name, self.layers.get(name))
        return self._arrays[name]

    def tasks(self, name: str) -> dict[Key, GraphNode]:
        """The tasks of a layer, as dask's task objects whatever form they were in."""
        if name not in self._tasks:
            layer = self.layers[name]
            self._tasks[name] = dict(convert_legacy_graph(dict(layer), _Keys(self, name)))
        return self._tasks[name]

    def heads(self, name: str) -> frozenset[Any]:
        """What the keys of a layer start with: mostly nothing but its name."""
        if name not in self._heads:
            self._heads[name] = frozenset(map(_head, self.layers[name]))
        return self._heads[name]

    def dependencies(self, name: str) -> tuple[str, ...]:
        """Names of the layers that a layer reads, in the order in which its tasks do.

        Their names say nothing: programs must not depend on them.
        """
        if name not in self._reads:
            self._reads[name] = self._in_order(name)
        return self._reads[name]

    def _in_order(self, name: str) -> tuple[str, ...]:
        names = self.graph.dependencies.get(name, ())
        if len(names) < 2:
            return tuple(names)
        layer = self.layers[name]
        mentions: Iterable[Any]
        if isinstance(layer, Blockwise):
            mentions = (key for part in (layer.indices, layer.task) for key in mentioned(part))
        else:
            mentions = (key for task in layer.values() for key in mentioned(task))
        found: dict[str, None] = {}
        heads = {head: other for other in sorted(names) for head in self._owned(other)}
        for key in mentions:
            # of a plain tuple that is a key, the name is met by itself
            head = _head(key)
            if isinstance(head, str) and head in heads:
                found[heads[head]] = None
                if len(found) == len(names):
                    break
        return (*found, *(other for other in sorted(names) if other not in found))

    def _owned(self, name: str) -> Iterable[Any]:
        layer = self.layers.get(name)
        if layer is None or isinstance(layer, Blockwise):
            return (name,)
        return self.heads(name)


def mentioned(part: Any) -> Iterator[Any]:
    """Everything in a task, or a part of one, that may be a key, from left to right."""
    stack = [part]
    while stack:
        at = stack.pop()
        if isinstance(at, TaskRef):
            yield at.key
        elif isinstance(at, Alias):
            yield at.target
        elif isinstance(at, Task):
            stack.extend(reversed([*at.args, *at.kwargs.values()]))
        elif isinstance(at, str):
            yield at
        elif isinstance(at, (list, tuple)):
            stack.extend(reversed(at))
        elif isinstance(at, dict):
            stack.extend(reversed(at.values()))


class _Keys:
    """What counts as a key in a layer: its own keys, and those of the layers it reads."""

    def __init__(self, view: GraphView, name: str) -> None:
        #: Numbers of blocks of Blockwise layers: to look a key up in one of those would
        #: write out all its tasks.
        self._blocks: dict[Any, tuple[int, ...]] = {}
        #: All other layers by what their keys start with: a node may read thousands.
        self._others: dict[Any, list[Layer]] = {}
        for other in (name, *view.graph.dependencies.get(name, ())):
            layer = view.layers.get(other)
            if isinstance(layer, Blockwise):
                dims = layer.dims
                self._blocks[other] = tuple(dims[symbol] for symbol in layer.output_indices)
            elif layer is not None:
                for head in view.heads(other):
                    self._others.setdefault(head, []).append(layer)

    def __contains__(self, key: Key) -> bool:
        if type(key) is tuple and key:
            blocks = self._blocks.get(key[0])
            if blocks is not None:
                if len(key) != len(blocks) + 1:
                    return False
                for place, count in zip(key[1:], blocks, strict=True):
                    if not isinstance(place, int) or not 0 <= place < count:
                        return False
                return True
        return any(key in layer for layer in self._others.get(_head(key), ()))


def _head(key: Key) -> Any:
    return key[0] if type(key) is tuple and key else key


#: What a layer is; None where it is not of the recogniser's family.
Recogniser = Callable[[GraphView, str], "Found | Same | NotRecognised | None"]


def _annotated(name: str, layer: Layer | None) -> ArrayInfo | None:
    notes = layer.collection_annotations if layer is not None else None
    if not notes or "chunks" not in notes or "dtype" not in notes:
        return None
    chunks = notes["chunks"]
    if chunks is None or notes["dtype"] is None:
        return None
    for sizes in chunks:
        for size in sizes:
            if not isinstance(size, (int, np.integer)):
                return None
    exact = tuple(tuple(int(size) for size in sizes) for sizes in chunks)
    return ArrayInfo(name, tuple(map(sum, exact)), np.dtype(notes["dtype"]), exact)
