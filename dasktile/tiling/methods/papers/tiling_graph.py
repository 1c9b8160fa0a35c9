"""Spartan's tiling graph: costs of pairs of tilings, and one greedy pass over it.

C.-C. Huang, "Scalable Machine Learning using Dataflow Graph Analysis" (New York University
2019), sections 2.3.1 for the costs of operators, 2.3.3 for the graph and the search, 2.3.4 for
duplication.  The cost profiles are rough: an array costs nothing if its cut suits the reader, and
its whole size otherwise.  The graph is a problem of unary and pairwise costs, so that the greedy
pass can be compared with the optimum of the same costs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dasktile.ir import Edge, Kind, Node, Program, Role
from dasktile.tiling.solve.eliminate import Problem
from dasktile.tiling.solve.problem import Table

#: For every axis of the mesh, the axis of the array that it cuts.  With two mesh axes
#: (0, 0) is by rows, (1, 1) by columns, (0, 1) in blocks; all None is duplicated.
Tile = tuple[int | None, ...]

#: In a tile seen through a view, or in labels of a reader: cut along an axis that does not exist.
LOST = -1

#: The tilings; cuts along a third or later axis count as columns.
TILINGS = ("row", "column", "block", "duplicate")


@dataclass(frozen=True, slots=True)
class PairCosts:
    """Bytes between two groups, (tilings of the producer, of the reader)."""

    producer: int
    reader: int
    table: Table


@dataclass(frozen=True, slots=True)
class TilingGraph:
    """A group of tilings for every array that is no view, and costs of pairs of tilings.

    Parameters
    ----------
    groups
        The nodes.
    tilings
        For every group, its tilings; the duplicate is the last.
    unary
        For every group, the costs of its tilings by themselves, in bytes: updates of joins.
    pair_costs
        For every array that a group reads, directly or through views.
    connectivity
        For every group, the number of adjacent nodes, including views.
    joins
        For every contraction, the label along which its inputs are joined.
    copies
        For every group, bytes of a duplicate; 0 where it has no such tiling.
    """

    groups: tuple[int, ...]
    tilings: tuple[tuple[Tile, ...], ...]
    unary: tuple[Table, ...]
    pair_costs: tuple[PairCosts, ...]
    connectivity: tuple[int, ...]
    joins: Mapping[int, int]
    copies: tuple[float, ...]

    def problem(self) -> Problem:
        """The graph as a problem of unary and pairwise costs, to be minimised exactly."""
        pairwise: dict[tuple[int, int], Table] = {}
        for pair in self.pair_costs:
            key = pair.producer, pair.reader
            pairwise[key] = pair.table + pairwise[key] if key in pairwise else pair.table
        return Problem(self.unary, pairwise)


def tiling_graph(
    program: Program,
    mesh_axes: int = 2,
    tilings: Sequence[str] = TILINGS,
) -> TilingGraph:
    """Build the tiling graph of a program (section 2.3.3).

    Parameters
    ----------
    program
        The expression.
    mesh_axes
        Axes of the worker mesh.
    tilings
        Those of :data:`TILINGS` that are allowed.  An array that is read once is never
        duplicated.
    """
    seen_as = views(program)
    groups = tuple(index for index, (base, _) in enumerate(seen_as) if base == index)
    place = {node: group for group, node in enumerate(groups)}
    reads = [
        (edge.producer, index, edge)
        for index in groups
        for edge in dict.fromkeys(program.nodes[index].edges)
    ]
    readers = [0] * len(program.nodes)
    for producer, _, _ in reads:
        readers[seen_as[producer][0]] += 1
    offers = tuple(
        _offer(program.nodes[index], mesh_axes, tilings, readers[index] > 1) for index in groups
    )
    nodes = [program.nodes[index] for index in groups]
    joins = {
        index: join_label(program, node)
        for index, node in zip(groups, nodes, strict=True)
        if node.kind is Kind.CONTRACT
    }
    pair_costs = []
    for producer, index, edge in reads:
        base, axes = seen_as[producer]
        made, used = offers[place[base]], offers[place[index]]
        size = float(program.nodes[producer].nbytes)
        table = np.full((len(made), len(used)), size)
        for row, tile in enumerate(made):
            seen = tuple(label_of(edge, LOST if axis is None else axes[axis]) for axis in tile)
            for column, reader_tile in enumerate(used):
                if whole(tile) or _agrees(
                    program.nodes[index], seen, reader_tile, joins.get(index)
                ):
                    table[row, column] = 0.0
        pair_costs.append(PairCosts(place[base], place[index], table))
    unary = tuple(_update(node, offer) for node, offer in zip(nodes, offers, strict=True))
    around = tuple(
        len({edge.producer for edge in node.edges} | set(program.consumers(index)))
        for index, node in zip(groups, nodes, strict=True)
    )
    copies = tuple(
        float(node.nbytes) if _duplicated(offer) else 0.0
        for node, offer in zip(nodes, offers, strict=True)
    )
    return TilingGraph(groups, offers, unary, tuple(pair_costs), around, joins, copies)


def greedy(graph: TilingGraph, budget: float = math.inf) -> tuple[int, ...]:
    """Decide group after group, the best connected first (figure 2.8).

    Every group takes its cheapest tiling, given the decided groups, and with the most suitable
    tiling of each undecided one.  Of equal costs the first tiling is taken.

    Parameters
    ----------
    graph
        The tiling graph.
    budget
        Bytes of duplicates that a worker may hold.

    Returns
    -------
    For every group, its tiling.
    """
    around: list[list[tuple[int, Table]]] = [[] for _ in graph.groups]
    for pair in graph.pair_costs:
        around[pair.producer].append((pair.reader, pair.table))
        around[pair.reader].append((pair.producer, pair.table.T))
    chosen = [-1] * len(graph.groups)

    def able(group: int) -> slice:
        """All tilings, or all but the duplicate (the last) if that exceeds the budget."""
        return slice(-1 if graph.copies[group] > budget else None)

    for group in sorted(range(len(chosen)), key=lambda group: (-graph.connectivity[group], group)):
        costs = graph.unary[group][able(group)]
        for other, table in around[group]:
            known = able(other) if chosen[other] < 0 else [chosen[other]]
            costs = costs + table[able(group), known].min(axis=1)
        chosen[group] = int(np.argmin(costs))
        if whole(graph.tilings[group][chosen[group]]):
            budget -= graph.copies[group]
    return tuple(chosen)


# -- the operators' profiles -----------------------------------------------------------


def _agrees(node: Node, seen: tuple[int, ...], tile: Tile, join: int | None) -> bool:
    """Whether an operator can read an array whose labels `seen` are cut (section 2.3.1)."""
    if join is not None:
        return all(label == join for label in seen)
    if node.kind in (Kind.FOLD, Kind.SCAN):
        along = (Role.REDUCE, Role.SCAN)
        return all(label != LOST and node.labels[label].role in along for label in seen)
    return not whole(tile) and seen == labels_of(node, tile)


def join_label(program: Program, node: Node) -> int:
    """The label of its first input along which a contraction is joined.

    It is the label with the least bytes: those of inputs without this label, which every task
    reads in whole, and those of updates of the result, which are its size.  For a matrix product
    this is Spartan's choice by shape (figure 2.5): along the sum unless the first matrix has more
    rows than columns.
    """

    def price(label: int) -> tuple[float, bool, int]:
        fetched = sum(
            program.nodes[edge.producer].nbytes
            for edge in node.edges
            if all(axis.label != label for axis in edge.axes)
        )
        summed = node.labels[label].role is Role.REDUCE
        return fetched + (node.nbytes if summed else 0), not summed, label

    able = [
        axis.label
        for axis in node.edges[0].axes
        if axis.label is not None and node.labels[axis.label].size > 1
    ]
    return min(able, key=price, default=0)


def _update(node: Node, offer: tuple[Tile, ...]) -> Table:
    """Costs of the tilings of a result by themselves: updates, and the bytes of a duplicate."""
    costs = np.full(len(offer), node.nbytes if node.kind is Kind.CONTRACT else 0.0)
    if _duplicated(offer) and node.kind in (Kind.CONTRACT, Kind.FOLD, Kind.SCAN):
        costs[-1] += node.nbytes
    return costs


# -- tilings, and their relation to readers and views -----------------------------------------


def _offer(node: Node, mesh_axes: int, tilings: Sequence[str], several: bool) -> tuple[Tile, ...]:
    """The tilings of a node's array."""
    able = [
        axis
        for axis, (seen, size) in enumerate(zip(node.out, node.shape, strict=True))
        if size > 1 and seen.label is not None and node.labels[seen.label].role is not Role.WHOLE
    ]
    tiles: list[Tile] = [
        (axis,) * mesh_axes for axis in able if ("row" if axis == 0 else "column") in tilings
    ]
    if "block" in tilings and mesh_axes > 1:
        half = -(-mesh_axes // 2)
        tiles += [
            (first,) * half + (second,) * (mesh_axes - half)
            for first, second in itertools.combinations(able, 2)
        ]
    if not tiles or ("duplicate" in tilings and several):
        tiles.append((None,) * mesh_axes)
    return tuple(dict.fromkeys(tiles))


def whole(tile: Tile) -> bool:
    """True for a duplicate, and for an array that cannot be cut."""
    return all(axis is None for axis in tile)


def _duplicated(offer: tuple[Tile, ...]) -> bool:
    return len(offer) > 1 and whole(offer[-1])


def labels_of(node: Node, tile: Tile) -> Tile:
    """The labels of the axes that a tile cuts."""
    return tuple(LOST if axis is None or axis < 0 else node.out[axis].label for axis in tile)


def label_of(edge: Edge, axis: int) -> int:
    """The reader's label along an axis of the array."""
    label = None if axis == LOST else edge.axes[axis].label
    return LOST if label is None else label


def views(program: Program) -> list[tuple[int, tuple[int, ...]]]:
    """For every node, the array that it is a view of, and the position of each of its axes."""
    bases: list[tuple[int, tuple[int, ...]]] = []
    for index, node in enumerate(program.nodes):
        if not _is_view(program, node):
            bases.append((index, tuple(range(len(node.shape)))))
            continue
        base, axes = bases[node.edges[0].producer]
        place = {
            axis.label: position for position, axis in enumerate(node.out) if axis.label is not None
        }
        bases.append(
            (base, tuple(place.get(label_of(node.edges[0], position), LOST) for position in axes))
        )
    return bases


def _is_view(program: Program, node: Node) -> bool:
    """Whether a node is a slice, a flip or a permutation of axes; a copy is not a view."""
    if len(node.edges) != 1 or node.edges[0].chunks is not None:
        return False
    edge = node.edges[0]
    if node.kind is Kind.VIEW:
        return edge.axes != node.out or program.nodes[edge.producer].shape != node.shape
    order = [-1 if axis.label is None else axis.label for axis in edge.axes]
    return node.kind is Kind.MAP and order != sorted(order)
