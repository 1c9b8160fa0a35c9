"""What a recogniser sees of a dask graph, and what it answers.

Capture walks the graph from its outputs.  For every array layer that somebody needs it
asks the recognisers in turn; the first that answers decides what the layer is.  A
recogniser may swallow layers below the one it was asked about (the chunk step of a
reduction, say) by naming, as its inputs, arrays further down; what nobody names is
never visited.  A layer that no recogniser knows is left alone, with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer

from dasktile._compat.dask import GraphNode, convert_legacy_graph
from dasktile.capture.references import Key, Keys, head_of, read_by, references
from dasktile.ir import AxisMap, Chunks, Kind, Label, Program


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
            known = self.keys((name, *self.graph.dependencies.get(name, ())))
            self._tasks[name] = dict(convert_legacy_graph(dict(layer), known))
        return self._tasks[name]

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
        """What the keys of a layer start with: mostly nothing but its name."""
        if name not in self._heads:
            self._heads[name] = frozenset(map(head_of, self.layers[name]))
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
        heads = {head: other for other in sorted(names) for head in self._owned(other)}
        found: dict[str, None] = {}
        for key in read_by(layer) if isinstance(layer, Blockwise) else self._read_in(name):
            if (head := head_of(key)) in heads:
                found[heads[head]] = None
                if len(found) == len(names):
                    break
        return (*found, *(other for other in sorted(names) if other not in found))

    def _read_in(self, name: str) -> Iterable[Key]:
        return (key for task in self.tasks(name).values() for key in references(task))

    def _owned(self, name: str) -> Iterable[Any]:
        layer = self.layers.get(name)
        if layer is None or isinstance(layer, Blockwise):
            return (name,)
        return self.heads(name)


#: What a layer is; None if it does not belong to the recogniser's family.
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
