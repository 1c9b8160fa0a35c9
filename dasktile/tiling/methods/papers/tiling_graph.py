"""Spartan's tiling graph: what pairs of tilings cost, and one greedy pass over it.

C.-C. Huang, "Scalable Machine Learning using Dataflow Graph Analysis" (New York University
2019), sections 2.3.1 for what operators cost, 2.3.3 for the graph and the search, 2.3.4 for
duplication.  The profiles are rough: an array that is cut as its reader wants it costs
nothing, any other its whole size.  The graph is a problem of unary and pairwise costs, so
that the pass can be compared with the optimum of the same costs.
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

#: In a tile seen through a view, or in labels of a reader: cut along what is not there.
LOST = -1

#: The tilings that there are; an axis beyond the second is cut alone as a column is.
TILINGS = ("row", "column", "block", "duplicate")


@dataclass(frozen=True, slots=True)
class Link:
    """Bytes between two groups, (tilings of the producer, of the reader)."""

    producer: int
    reader: int
    table: Table


@dataclass(frozen=True, slots=True)
class TilingGraph:
    """A group of tilings for every array that is no view, and what pairs of them cost.

    Parameters
    ----------
    groups
        The nodes.
    tilings
        For every group, its tilings; a duplicate is the last.
    unary
        For every group, bytes that its tilings cost by themselves: updates of joins.
    links
        For every array that a group reads, directly or through views.
    connectivity
        For every group, the number of adjacent ones, views counted.
    joins
        For every contraction, the label along which its inputs are joined.
    copies
        For every group, bytes of a duplicate; none where it has no such tiling.
    """

    groups: tuple[int, ...]
    tilings: tuple[tuple[Tile, ...], ...]
    unary: tuple[Table, ...]
    links: tuple[Link, ...]
    connectivity: tuple[int, ...]
    joins: Mapping[int, int]
    copies: tuple[float, ...]

    def problem(self) -> Problem:
        """The same as unary and pairwise costs, to be minimised exactly."""
        pairwise: dict[tuple[int, int], Table] = {}
        for link in self.links:
            key = link.producer, link.reader
            pairwise[key] = link.table + pairwise[key] if key in pairwise else link.table
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
    links = []
    for producer, index, edge in reads:
        base, axes = seen_as[producer]
        made, used = offers[place[base]], offers[place[index]]
        size = float(program.nodes[producer].nbytes)
        table = np.full((len(made), len(used)), size)
        for row, tile in enumerate(made):
            seen = tuple(label_of(edge, LOST if axis is None else axes[axis]) for axis in tile)
            for column, wanted in enumerate(used):
                if whole(tile) or _agrees(program.nodes[index], seen, wanted, joins.get(index)):
                    table[row, column] = 0.0
        links.append(Link(place[base], place[index], table))
    unary = tuple(_update(node, offer) for node, offer in zip(nodes, offers, strict=True))
    around = tuple(
        len({edge.producer for edge in node.edges} | set(program.consumers(index)))
        for index, node in zip(groups, nodes, strict=True)
    )
    copies = tuple(
        float(node.nbytes) if _duplicated(offer) else 0.0
        for node, offer in zip(nodes, offers, strict=True)
    )
    return TilingGraph(groups, offers, unary, tuple(links), around, joins, copies)


def greedy(graph: TilingGraph, budget: float = math.inf) -> tuple[int, ...]:
    """Decide group after group, the best connected first (figure 2.8).

    Every group takes the tiling that costs it least, given what is decided and with what
    suits it best of what is not; the first of equals.

    Parameters
    ----------
    graph
        What to decide.
    budget
        Bytes of duplicates that a worker may hold.

    Returns
    -------
    For every group, its tiling.
    """
    around: list[list[tuple[int, Table]]] = [[] for _ in graph.groups]
    for link in graph.links:
        around[link.producer].append((link.reader, link.table))
        around[link.reader].append((link.producer, link.table.T))
    chosen = [-1] * len(graph.groups)

    def able(group: int) -> slice:
        """Without the duplicate, the last, if the budget has no room for it."""
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
    """Whether an array whose labels `seen` are cut suits an operator (section 2.3.1)."""
    if join is not None:
        return all(label == join for label in seen)
    if node.kind in (Kind.FOLD, Kind.SCAN):
        along = (Role.REDUCE, Role.SCAN)
        return all(label != LOST and node.labels[label].role in along for label in seen)
    return not whole(tile) and seen == labels_of(node, tile)


def join_label(program: Program, node: Node) -> int:
    """Along which label of its first input a contraction is joined.

    The one with which inputs that do not have it, of which every task reads all, and
    updates of the result, which are taken to move its size, cost least.  For a product of
    matrices that is Spartan's choice by shape (figure 2.5): along the sum unless the first
    matrix is taller than wide.
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
    """What tilings of a result cost by themselves: its updates, and those of a copy."""
    costs = np.full(len(offer), node.nbytes if node.kind is Kind.CONTRACT else 0.0)
    if _duplicated(offer) and node.kind in (Kind.CONTRACT, Kind.FOLD, Kind.SCAN):
        costs[-1] += node.nbytes
    return costs


# -- tilings, and how they look from elsewhere -----------------------------------------


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
    """True for a duplicate, and for what cannot be cut."""
    return all(axis is None for axis in tile)


def _duplicated(offer: tuple[Tile, ...]) -> bool:
    return len(offer) > 1 and whole(offer[-1])


def labels_of(node: Node, tile: Tile) -> Tile:
    """The labels that make the axes that a tile cuts."""
    return tuple(LOST if axis is None or axis < 0 else node.out[axis].label for axis in tile)


def label_of(edge: Edge, axis: int) -> int:
    """The reader's label that walks an axis of the array."""
    label = None if axis == LOST else edge.axes[axis].label
    return LOST if label is None else label


def views(program: Program) -> list[tuple[int, tuple[int, ...]]]:
    """For every node, the array that it is a view of and where that one's axes are in it."""
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
    """A slice or a flip, or the axes of one array in another order; a copy is none."""
    if len(node.edges) != 1 or node.edges[0].chunks is not None:
        return False
    edge = node.edges[0]
    if node.kind is Kind.VIEW:
        return edge.axes != node.out or program.nodes[edge.producer].shape != node.shape
    order = [-1 if axis.label is None else axis.label for axis in edge.axes]
    return node.kind is Kind.MAP and order != sorted(order)
