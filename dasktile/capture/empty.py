"""Layers that lack blocks of their arrays, all of which are empty but one at most.

Elementwise functions of arrays without elements, or of one element along an axis, have a layer of
one block.  Their arrays have as many as those that they were made of.  Dask makes the others when
it culls the graph to the keys of the array.
"""

from __future__ import annotations

import itertools

from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer


def with_all_blocks(graph: HighLevelGraph) -> HighLevelGraph:
    """The same graph, whose layers have all blocks of arrays of which some are empty."""
    completed = {name: _completed(name, layer) for name, layer in graph.layers.items()}
    if all(completed[name] is layer for name, layer in graph.layers.items()):
        return graph
    return HighLevelGraph(completed, graph.dependencies)


def _completed(name: str, layer: Layer) -> Layer:
    chunks = (layer.collection_annotations or {}).get("chunks")
    if not isinstance(layer, Blockwise) or layer.output_blocks or chunks is None:
        return layer
    counts = tuple(map(len, chunks))
    made = tuple(layer.dims[symbol] for symbol in layer.output_indices)
    if made == counts or len(made) != len(counts) or not any(0 in sizes for sizes in chunks):
        return layer
    blocks = itertools.product(*map(range, counts))
    culled, _ = layer.cull({(name, *block) for block in blocks}, ())
    # Blockwise layers are merged as if they had the blocks of what they read
    completed = MaterializedLayer(dict(culled), annotations=layer.annotations)
    completed.collection_annotations = layer.collection_annotations
    return completed
