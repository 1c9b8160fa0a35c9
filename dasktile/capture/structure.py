"""The structure of a graph: all of it that a plan may depend on, without names of keys and data.

Graphs with the same structure have the same tasks but for the names in their keys, the numbers in
their blocks, and constants that are no integers.  Sizes, chunks, data types, integers, slices,
positions, functions and the layout of stored arrays are part of it.  Functions count by module and
name: what else decides of them, as declarations of the user, is in the captured program.
"""

from __future__ import annotations

import marshal
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer

from dasktile.capture.columns import column, keys_column
from dasktile.capture.literals import Names, NoStructureError
from dasktile.capture.overlaps import overlap_of
from dasktile.capture.references import heads_of, tasks_of
from dasktile.capture.rules.sources import has_value
from dasktile.capture.seen import is_plain


@dataclass(frozen=True, slots=True)
class Structured:
    """A graph that was read.

    Parameters
    ----------
    graph
        The graph.
    names
        Numbers in place of its names, and its constants.
    digest
        Its structure.
    """

    graph: HighLevelGraph
    names: Names
    digest: bytes


def structured(graph: HighLevelGraph, data: Collection[str]) -> Structured | None:
    """The structure of a graph; None if it has parts of an unknown kind.

    Parameters
    ----------
    graph
        The graph.
    data
        Names of layers whose arrays are data.
    """
    names = Names(data)
    try:
        return Structured(graph, names, structure(graph, names))
    except (NoStructureError, ValueError, RecursionError):
        return None


def layers_of_data(graph: HighLevelGraph) -> frozenset[str]:
    """Names of the layers that have the blocks of an array in memory: futures, or arrays.

    Parameters
    ----------
    graph
        The graph.
    """
    return frozenset(
        name
        for name, layer in graph.layers.items()
        if not isinstance(layer, Blockwise)
        and not graph.dependencies.get(name)
        and _is_array(layer)
        and all(map(has_value, layer.values()))
    )


def _is_array(layer: Layer) -> bool:
    """Whether a layer has the blocks of an array, and nothing else."""
    chunks = (layer.collection_annotations or {}).get("chunks")
    return chunks is not None and len(layer) == math.prod(map(len, chunks))


def structure(graph: HighLevelGraph, names: Names) -> bytes:
    """The structure of a graph, as a digest.

    Parameters
    ----------
    graph
        The graph.
    names
        The numbers of the names, those of its layers are added in their order.

    Raises
    ------
    NoStructureError
        If a graph has parts of an unknown kind.
    """
    for name in graph.layers:
        names.number(name)
    for name, layer in graph.layers.items():
        if not isinstance(layer, Blockwise):
            for head in heads_of(name, layer):
                names.number(head)
    digest = blake2b(digest_size=32)
    for name, layer in graph.layers.items():
        reads = sorted(names.number(read) for read in graph.dependencies.get(name, ()))
        own = _layer(name, layer, names)
        digest.update(_dumped((names.number(name), reads, _notes(layer, names), own)))
    digest.update(_dumped(names.facts))
    return digest.digest()


def _dumped(value: Any) -> bytes:
    # version 2 writes equal values alike
    return marshal.dumps(value, 2)


def _notes(layer: Layer, names: Names) -> Any:
    """What is decided by the annotations of a layer."""
    notes = layer.collection_annotations or {}
    dtype, chunks = notes.get("dtype"), notes.get("chunks")
    if isinstance(dtype, np.dtype) and not is_plain(dtype):
        names.constants.cannot(f"an array of the data type {dtype}")
    own = layer.annotations
    return (
        getattr(dtype, "str", str(dtype)),
        bool(getattr(dtype, "hasobject", False)),
        repr(chunks),
        str(notes.get("chunk_type")),
        None if own is None else names.literal(own),
    )


def _layer(name: str, layer: Layer, names: Names) -> Any:
    kind = type(layer).__name__
    if isinstance(layer, Blockwise):
        return (kind, _blockwise(layer, names))
    if name in names.data:
        for block in layer.values():
            names.data_block(block)
        return (kind, "data", keys_column(names, list(layer)))
    overlap = overlap_of(name, layer)
    if overlap is not None:
        return (kind, names.number(overlap.array), overlap.edges, overlap.depths)
    tasks = tasks_of(layer)
    return (kind, keys_column(names, list(tasks)), column(names, list(tasks.values())))


def _blockwise(layer: Blockwise, names: Names) -> Any:
    def argument(part: Any, symbols: Sequence[Any] | None) -> Any:
        if symbols is not None:
            dep = layer.io_deps.get(part)
            number = names.number(part)
            return number if dep is None else (number, names.literal(dep))
        return names.literal(part)

    blocks = layer.output_blocks
    return (
        names.number(layer.output),
        layer.output_indices,
        tuple((argument(part, symbols), symbols) for part, symbols in layer.indices),
        tuple(tuple(count) for part, count in layer.numblocks.items() if part not in layer.io_deps),
        names.literal(layer.task),
        layer.concatenate,
        tuple((symbol, repr(size)) for symbol, size in layer.new_axes.items()),
        None if blocks is None else sorted(map(tuple, blocks)),
    )
