"""Spartan's smart tiling, looked up among the candidates of the exact model.

The decision of :mod:`dasktile.tiling.methods.papers.tiling_graph`, made by rough cost profiles,
corresponds to one candidate for most arrays.  Where several correspond, or none does, the cheapest
by the exact model is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dasktile.ir import Kind, Node, Program, Role
from dasktile.tiling.candidates import Variable
from dasktile.tiling.cost import Costs
from dasktile.tiling.methods.papers.tiling_graph import (
    LOST,
    Tile,
    TilingGraph,
    greedy,
    label_of,
    labels_of,
    tiling_graph,
    views,
    whole,
)
from dasktile.tiling.methods.restricted import best_of
from dasktile.tiling.options import Option
from dasktile.tiling.settings import Settings
from dasktile.tiling.solve.eliminate import Solution

__all__ = ["mesh", "node_tiles", "spartan"]


def mesh(workers: int) -> tuple[int, ...]:
    """A mesh of two axes: the two factors of the number of workers nearest to its square root."""
    short = max(size for size in range(1, math.isqrt(workers) + 1) if workers % size == 0)
    return tuple(size for size in (workers // short, short) if size > 1)


def spartan(costs: Costs, settings: Settings, tile_weight: float) -> Solution:
    """Spartan's greedy tiling, in the candidates of the exact model.

    A duplicated array may be replicated, or kept in other cuts than it was made in, whichever
    moves fewer bytes.  All other arrays have no replicas.  Where the model has no corresponding
    candidate, the cheapest one given the other variables is taken.
    """
    space = costs.space
    graph = tiling_graph(space.program, len(space.mesh.shape))
    budget = math.inf if space.copy_limit is None else space.copy_limit
    tiles = node_tiles(graph, space.program, greedy(graph, budget))
    allowed = [_candidates(graph, space.program, variable, tiles)
               for variable in space.variables]  # fmt: skip
    return best_of(costs, settings, tile_weight, allowed)


def node_tiles(graph: TilingGraph, program: Program, chosen: Sequence[int]) -> tuple[Tile, ...]:
    """The tile of every node, views included, for a choice in every group."""
    decided = {
        node: offer[state]
        for node, offer, state in zip(graph.groups, graph.tilings, chosen, strict=True)
    }
    return tuple(
        tuple(None if axis is None else axes[axis] for axis in decided[base])
        for base, axes in views(program)
    )


# -- the candidates of the exact model -------------------------------------------------


def _candidates(
    graph: TilingGraph, program: Program, variable: Variable, tiles: Sequence[Tile]
) -> npt.NDArray[np.int64]:
    """Indices of the candidates of a variable that correspond to the decision."""
    node, tile = program.nodes[variable.node], tiles[variable.node]
    options = variable.options
    everything = np.arange(len(options), dtype=np.int64)
    if variable.keep:
        fitting = [whole(tile) or not option.is_replicated for option in options]
    else:
        labels = _work(graph, program, variable.node, tiles)
        same_labels = [
            option.follow is None and option.labels(len(labels)) == labels for option in options
        ]
        exact = [
            fits and _lands(node, option, tile)
            for fits, option in zip(same_labels, options, strict=True)
        ]
        fitting = exact if any(exact) else same_labels
    return everything[fitting] if any(fitting) else everything


def _work(graph: TilingGraph, program: Program, index: int, tiles: Sequence[Tile]) -> Tile:
    """The labels that the mesh cuts: of joins the join's label, of folds those of the input."""
    node = program.nodes[index]
    if index in graph.joins:
        return (graph.joins[index],) * len(tiles[index])
    if node.kind is Kind.FOLD and not whole(tiles[node.edges[0].producer]):
        edge = node.edges[0]
        return tuple(
            label_of(edge, LOST if axis is None else axis) for axis in tiles[edge.producer]
        )
    return labels_of(node, tiles[index])


def _lands(node: Node, option: Option, tile: Tile) -> bool:
    """Whether sums are scattered as in the tile."""
    axes = len(tile)
    return all(
        target == axis
        for label, target, axis in zip(option.labels(axes), option.targets(axes), tile, strict=True)
        if label is not None and node.labels[label].role is Role.REDUCE
    )
