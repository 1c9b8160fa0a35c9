"""Where the arrays of a graph end and what was put on top of them begins.

``compute`` adds a task that puts the blocks of an array together; ``delayed`` objects,
arrays with units and other collections put their own layers over those of arrays.  Of such a
graph only the arrays underneath can be tiled, and they must keep their keys.  Results of unknown
chunk sizes are arrays, too, if they are made of known ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from dask.base import get_name_from_key
from dask.blockwise import Blockwise
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph

from dasktile._compat.dask import GraphNode, getitem_variadic, joins_blocks
from dasktile.capture.base import ArrayInfo, GraphView, has_all_blocks
from dasktile.capture.corrections import correct_arrays
from dasktile.capture.measured import measured_arrays
from dasktile.capture.references import is_block
from dasktile.ir import Chunks


@dataclass(frozen=True, slots=True)
class Boundary:
    """The arrays that wanted keys are made of, and the layers above them.

    Parameters
    ----------
    arrays
        The topmost arrays.
    above
        The layers that are no arrays; for each, the layers that it
        reads, also those that the graph does not declare.
    """

    arrays: tuple[ArrayInfo, ...]
    above: Mapping[str, frozenset[str]]


def boundary(graph: HighLevelGraph, keys: Any) -> Boundary | None:
    """Find the topmost arrays below `keys`.

    Parameters
    ----------
    graph
        A high-level graph.
    keys
        Keys that are wanted, nested in any way.

    Returns
    -------
    None where there is no array of known chunks, or where what is wanted of one does not
    fit what its layer says of it.
    """
    view = GraphView(graph)
    correct_arrays(view)
    view.add(measured_arrays(view))
    ends = _boundary(view, keys, lambda name: None)
    if ends is None or not any(_bounded(view, name) for name in ends.above):
        return ends
    # there are known arrays below results of unknown sizes, which are arrays of the plan then
    return _boundary(view, keys, partial(_bounded, view)) or ends


def _boundary(
    view: GraphView, keys: Any, bounded: Callable[[str], ArrayInfo | None]
) -> Boundary | None:
    """The same; `bounded` is a result of unknown chunk sizes, or None for other layers."""
    graph = view.graph
    arrays: dict[str, ArrayInfo] = {}
    above: dict[str, frozenset[str]] = {}
    pending = list(flatten([keys]))
    seen = set(pending)
    while pending:
        key = pending.pop()
        name = _layer_of(graph, key)
        if name is None:
            return None
        if name in above:
            continue
        info = arrays.get(name) or view.array(name) or bounded(name)
        if info is None:
            below = _read_by(graph, view, name)
            owners = (_layer_of(graph, read) for read in below)
            layers = {owner for owner in owners if owner is not None}
            above[name] = frozenset(graph.dependencies[name] | layers)
            pending.extend(read for read in below if read not in seen)
            seen.update(below)
        elif not is_block(key, name, info.numblocks):
            return None
        elif name not in arrays:
            if not has_all_blocks(graph.layers[name], info):
                return None
            arrays[name] = info
    if not arrays:
        return None
    return Boundary(tuple(arrays[name] for name in sorted(arrays)), above)


def _bounded(view: GraphView, name: str) -> ArrayInfo | None:
    """The array of a layer with unknown chunk sizes; None for other layers.

    Along these axes its blocks have at most the elements of those that they are selected from.
    """
    layer = view.layers[name]
    notes = layer.collection_annotations or {}
    chunks, dtype = notes.get("chunks"), notes.get("dtype")
    if chunks is None or dtype is None or view.array(name) is not None or layer.annotations:
        return None
    selects = isinstance(layer, Blockwise) and layer.task.func is getitem_variadic
    if not chunks or not (selects or _has_unknown(chunks)):
        return None
    dtype = np.dtype(dtype)
    if dtype.hasobject or dtype.kind == "V":
        return None
    bounds = _upper_bounds(view, name, chunks)
    return ArrayInfo(name, tuple(map(sum, bounds)), dtype, bounds, bounded=True)


def _upper_bounds(view: GraphView, name: str, chunks: Chunks) -> Chunks:
    """Chunk sizes of a layer, where unknown ones are those of the layers below.

    They are one element where these have other numbers of blocks.
    """
    while _has_unknown(chunks):
        reads = view.dependencies(name)
        name = reads[0] if reads else ""
        layer = view.layers.get(name)
        below = (layer.collection_annotations or {}).get("chunks") if layer is not None else None
        if below is None or tuple(map(len, below)) != tuple(map(len, chunks)):
            below = tuple((1,) * len(sizes) for sizes in chunks)
        chunks = tuple(
            other if _has_unknown([own]) else own for own, other in zip(chunks, below, strict=True)
        )
    return tuple(tuple(map(int, sizes)) for sizes in chunks)


def _has_unknown(chunks: Iterable[Sequence[float]]) -> bool:
    return any(math.isnan(size) for sizes in chunks for size in sizes)


def without_joins(
    graph: HighLevelGraph, ends: Boundary, keys: Any
) -> tuple[HighLevelGraph, Any, tuple[str, ...]]:
    """What is planned of a graph, without the tasks with which `compute` joins blocks.

    These have no part in a plan, so that it is the same whatever is done with the arrays.

    Parameters
    ----------
    graph, ends, keys
        The graph, its topmost arrays, and the wanted keys.

    Returns
    -------
    The graph, the wanted keys, and the names of layers above the arrays.
    """
    if not ends.above or not all(map(joins_blocks, ends.above)):
        return graph, keys, tuple(ends.above)
    blocks = [
        [(array.name, *block) for block in itertools.product(*map(range, array.numblocks))]
        for array in ends.arrays
    ]
    return reachable(graph, [array.name for array in ends.arrays]), blocks, ()


def splice(old: HighLevelGraph, ends: Boundary, new: HighLevelGraph) -> HighLevelGraph:
    """The layers above the arrays of `old`, on top of the same arrays in `new`."""
    layers = dict(new.layers)
    dependencies = {name: set(reads) for name, reads in new.dependencies.items()}
    for name in ends.above:
        layers[name] = old.layers[name]
    for name, reads in ends.above.items():
        # layers that are declared but not read may be missing now
        dependencies[name] = {read for read in reads if read in layers}
    return HighLevelGraph(layers, dependencies)


def reachable(graph: HighLevelGraph, names: Iterable[str]) -> HighLevelGraph:
    """The part of a graph that the layers `names` depend on, themselves included.

    Names of which the graph has no layer are ignored: no wanted key depends on them.
    """
    wanted: set[str] = set()
    pending = [name for name in names if name in graph.layers]
    while pending:
        name = pending.pop()
        if name not in wanted:
            wanted.add(name)
            pending.extend(graph.dependencies[name])
    if len(wanted) == len(graph.layers):
        return graph
    return HighLevelGraph(
        {name: layer for name, layer in graph.layers.items() if name in wanted},
        {name: reads for name, reads in graph.dependencies.items() if name in wanted},
    )


def _layer_of(graph: HighLevelGraph, key: Any) -> str | None:
    try:
        name = get_name_from_key(key)
    except TypeError:
        return None
    return name if name in graph.layers else None


def _read_by(graph: HighLevelGraph, view: GraphView, name: str) -> Sequence[Any]:
    """One key at least of every layer that a layer reads."""
    layer = graph.layers[name]
    if layer.is_materialized() and all(isinstance(task, GraphNode) for task in layer.values()):
        # Exact, where the graph's own dependencies name every leaf.
        reads = {key for task in layer.values() for key in task.dependencies}
        return sorted((key for key in reads if key not in layer), key=repr)
    keys: list[Any] = []
    for read in sorted(graph.dependencies[name], key=str):
        info = view.array(read)
        keys.append((read, *(0 for _ in info.chunks)) if info is not None else read)
    return keys
