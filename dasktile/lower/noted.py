"""Blocks of layers according to their annotations, where these are right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.highlevelgraph import HighLevelGraph

from dasktile._compat.dask import (
    arg_chunk,
    arg_combine,
    bincount_agg,
    chunk_topk,
    mean_chunk,
    mean_combine,
    moment_chunk,
    moment_combine,
    nannumel,
    slice_with_int_dask_array,
    topk_aggregate,
)
from dasktile._compat.flox import flox_names
from dasktile.capture.base import GraphView
from dasktile.capture.corrections import called_function
from dasktile.capture.measured import measured_arrays
from dasktile.lower.known import KnownResult, known_array
from dasktile.lower.names import whole_layer_name

#: Functions that return the largest elements along an axis.
_LARGEST = (chunk_topk, topk_aggregate)

#: Types of blocks that are no arrays, as Dask notes them.
_NO_ARRAYS = ("tuple", "list", "dict")


@dataclass(frozen=True, slots=True)
class NotedBlocks:
    """The blocks of a layer, according to its annotations.

    Parameters
    ----------
    chunks
        Chunk sizes along each axis.
    dtype
        The type of the elements.
    arrays
        Arrays in each result.
    """

    chunks: tuple[tuple[int, ...], ...]
    dtype: np.dtype[Any]
    arrays: int = 1

    def shape(self, block: tuple[Any, ...]) -> tuple[int, ...] | None:
        """The shape of a block; None for places that are no block.

        Parameters
        ----------
        block
            Its place along each axis.
        """
        try:
            return tuple(sizes[at] for sizes, at in zip(self.chunks, block, strict=True))
        except (TypeError, ValueError, IndexError):
            return None

    def result(self, shape: tuple[int, ...]) -> KnownResult:
        """What is known of a block.

        Parameters
        ----------
        shape
            Its shape.
        """
        if self.arrays == 1:
            return known_array(shape, self.dtype)
        return KnownResult((shape,), self.dtype.itemsize * self.arrays)


def noted_blocks(graph: HighLevelGraph) -> dict[str, NotedBlocks]:
    """By layer, its blocks according to its annotations; not for layers of unknown sizes.

    Parameters
    ----------
    graph
        A graph whose layers are not merged: the chunks noted for the first step of a reduction are
        those of its input.
    """
    noted: dict[str, NotedBlocks] = {}
    measured = measured_arrays(GraphView(graph))
    flox = flox_names()
    for name, layer in graph.layers.items():
        notes = layer.collection_annotations or {}
        chunks: Any = measured[name].chunks if name in measured else notes.get("chunks")
        dtype: Any = notes.get("dtype")
        if notes.get("chunk_type") in _NO_ARRAYS:
            continue  # noted are the elements of what the tuples are made of
        function, options = called_function(layer)
        bins = _bins(graph, name) if function in (np.bincount, bincount_agg) else None
        if bins == 0:
            continue
        if function is slice_with_int_dask_array and name not in measured:
            continue  # noted are the elements of a block times the positions
        if flox is not None and flox.is_step(function):
            continue  # noted is the array that is reduced by groups
        reduced = options.get("axis", ()) if options.get("keepdims") is True else ()
        count = abs(options["k"]) if function in _LARGEST else 1
        try:
            cut = tuple(
                (bins or count,) * len(sizes) if bins or axis in reduced else tuple(map(int, sizes))
                for axis, sizes in enumerate(chunks)
            )
            if not dtype.hasobject:
                arrays = _arrays_of(function, options)
                # a layer of some of the tasks of another one has its keys
                noted[whole_layer_name(name)] = NotedBlocks(cut, np.dtype(dtype), arrays)
        except (TypeError, ValueError, AttributeError):
            continue  # unknown chunks
    return noted


def _bins(graph: HighLevelGraph, name: str) -> int:
    """The bins of a step of `bincount`; 0 where they are unknown."""
    function, options = called_function(graph.layers[name])
    while function is bincount_agg and len(graph.dependencies[name]) == 1:
        [name] = graph.dependencies[name]
        if name not in graph.layers:
            return 0
        function, options = called_function(graph.layers[name])
    return int(options.get("minlength", 0)) if function is np.bincount else 0


def _arrays_of(function: Any, options: Mapping[str, Any]) -> int:
    """Arrays in a result: partial results of means, moments and extrema have several."""
    if function is mean_chunk:
        # other counts than those of NaNs are one number that is broadcast
        return 2 if options.get("numel") is nannumel else 1
    if function in (mean_combine, arg_chunk, arg_combine):
        return 2
    if function in (moment_chunk, moment_combine):
        return 1 + int(options.get("order", 2))
    return 1
