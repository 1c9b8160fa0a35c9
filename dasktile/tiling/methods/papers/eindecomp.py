"""EinDecomp (Bourgeois et al. 2024): partition vectors, priced by upper bounds of bytes moved.

A partition vector is the number of parts of each label of an operation.  Each number is a power of
two, and their product is the number of workers.  A vector does not say which worker holds which
part.  Vectors are chosen by dynamic programming over the expression.  Where an array has several
readers, the longest paths come first, and costs between different paths are ignored.

Among the states that have the chosen vectors, the best are found exactly.  This favours the method:
in its own engine a scheduler places the parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dasktile.ir import AxisMap, Node, Role
from dasktile.tiling.cost import Costs
from dasktile.tiling.mesh import mesh_shape
from dasktile.tiling.methods.papers.partitions import aggregation_cost, join_cost, repartition_cost
from dasktile.tiling.methods.restricted import best_of, restricted
from dasktile.tiling.settings import Settings
from dasktile.tiling.solve.problem import Solution

__all__ = ["MAX_STATES", "eindecomp", "eindecomp_exact", "places", "restricted"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Candidates of one node: all of a matrix product on a mesh of four axes.
MAX_STATES = 640

#: Workers up to which the mesh has four axes, which gives nearly all vectors.
FOUR_AXES = 64


# Vertices and their vectors ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Vertex:
    """An operation: its partition vectors, and the states of its variable that have each."""

    node: Node
    variable: int
    vectors: Ints
    states: tuple[Ints, ...]

    def along(self, axes: Sequence[AxisMap]) -> Ints:
        """Parts along the axes of an array, for every vector."""
        ones = np.ones(len(self.vectors), dtype=np.int64)
        columns = [ones if axis.label is None else self.vectors[:, axis.label] for axis in axes]
        return np.stack(columns, axis=1) if columns else ones[:, None]


#: Costs of every vertex's vectors, and of pairs of vectors of two vertices, in bytes.
_Tables = tuple[Mapping[int, Floats], Mapping[tuple[int, int], Floats]]


def places(workers: int) -> tuple[int, ...]:
    """The mesh of the smallest power of two that is at least the number of workers.

    Up to 64 workers it gives every vector of three labels; for more workers some are left out.
    """
    power = 1 << max(workers - 1, 0).bit_length()
    return mesh_shape(power, 4 if power <= FOUR_AXES else 3)


def _vertices(costs: Costs) -> dict[int, _Vertex]:
    """The operations of a program; inputs are no vertices, and their tiling costs nothing."""
    space = costs.space
    shape = space.mesh.shape
    vertices = {}
    for index, node in enumerate(space.program.nodes):
        variable = space.variables[space.made[index]]
        boxes = variable.options[: len(variable.options) - len(variable.followed)]
        if not node.edges or not boxes:
            continue
        rows = np.ones((len(boxes), len(node.labels)), dtype=np.int64)
        for row, option in enumerate(boxes):
            for size, label in zip(shape, option.labels(len(shape)), strict=True):
                if label is not None:
                    rows[row, label] *= size
        # as many calls as there are workers, or as many as the labels allow
        calls = rows.prod(axis=1)
        full = np.flatnonzero(calls == calls.max())
        chosen, inverse = np.unique(rows[full], axis=0, return_inverse=True)
        inverse = inverse.reshape(-1)
        states = tuple(full[inverse == group] for group in range(len(chosen)))
        vertices[index] = _Vertex(node, space.made[index], chosen, states)
    return vertices


def _paper_tables(costs: Costs, vertices: Mapping[int, _Vertex]) -> _Tables:
    """Joins and aggregations of every vertex, repartitions of every edge, in bytes."""
    nodes = costs.space.program.nodes
    own: dict[int, Floats] = {}
    between: dict[tuple[int, int], Floats] = {}
    for index, vertex in vertices.items():
        calls = vertex.vectors.prod(axis=1).astype(np.float64)
        summed = vertex.vectors[:, [label.role is Role.REDUCE for label in vertex.node.labels]]
        partials = summed.prod(axis=1).astype(np.float64)
        result = vertex.node.size / vertex.along(vertex.node.out).prod(axis=1)
        tiles = []
        for edge in vertex.node.edges:
            read = nodes[edge.producer]
            tiles.append(_touched(vertex, edge.axes, read.shape) * read.itemsize)
            if edge.producer not in vertices:
                continue
            maker = vertices[edge.producer]
            table = _repartition(maker.along(read.out), vertex.along(edge.axes), read.size)
            pair = edge.producer, index
            between[pair] = between.get(pair, 0.0) + table * read.itemsize
        own[index] = np.asarray(
            join_cost(calls, *tiles)
            + aggregation_cost(calls, partials, result) * vertex.node.partial
        )
    return own, between


def _touched(vertex: _Vertex, axes: Sequence[AxisMap], shape: Sequence[int]) -> Floats:
    """Elements of an array that one call reads, for every vector."""
    total = np.ones(len(vertex.vectors))
    for axis, size in zip(axes, shape, strict=True):
        if axis.label is None:
            total *= size
            continue
        steps = vertex.node.labels[axis.label].size / vertex.vectors[:, axis.label]
        spanned = np.maximum(steps - 1, 0) * abs(axis.step) + np.minimum(steps, 1) * axis.width
        total *= np.minimum(spanned, size)
    return total


def _repartition(made: Ints, read: Ints, size: int) -> Floats:
    """:func:`repartition_cost` for (vectors of the producer, vectors of the consumer)."""
    if not size:
        return np.zeros((len(made), len(read)))
    finest = np.maximum(made[:, None, :], read[None, :, :]).prod(axis=2)
    cost = repartition_cost(
        float(size), size / made.prod(axis=1)[:, None], size / read.prod(axis=1)[None, :],
        size / finest,
    )  # fmt: skip
    return np.asarray(cost, dtype=np.float64)


def _exact_tables(costs: Costs, vertices: Mapping[int, _Vertex], tile_weight: float) -> _Tables:
    """Costs from the exact tables: the least of the states that have the vectors."""
    problem = costs.problem(tile_weight)
    space = costs.space
    own: dict[int, Floats] = {}
    between: dict[tuple[int, int], Floats] = {}
    for index, vertex in vertices.items():
        alone = np.asarray(problem.unary[vertex.variable], dtype=np.float64).copy()
        for producer in sorted({edge.producer for edge in vertex.node.edges}):
            source = space.source(producer)
            table = problem.pairwise[source, vertex.variable]
            if producer in vertices:
                maker = vertices[producer]
                read = _least(table, vertex.states, 1)
                if source == maker.variable:
                    between[producer, index] = _least(read, maker.states, 0)
                    continue
                kept = problem.pairwise[maker.variable, source] + problem.unary[source]
                kept = _least(kept, maker.states, 0)
                between[producer, index] = np.stack(
                    [(row[:, None] + read).min(axis=0) for row in kept]
                )
                continue
            # an input is read where it is needed
            reach = problem.unary[source]
            if source != space.made[producer]:
                made = problem.unary[space.made[producer]][:, None]
                reach = reach + (made + problem.pairwise[space.made[producer], source]).min(axis=0)
            alone += (reach[:, None] + table).min(axis=0)
        own[index] = _least(alone, vertex.states, 0)
    return own, between


def _least(table: Floats, groups: Sequence[Ints], axis: int) -> Floats:
    """The smallest entry of every group of rows or columns."""
    starts = np.cumsum([0, *(len(group) for group in groups[:-1])])
    taken = np.take(table, np.concatenate(groups), axis=axis)
    return np.minimum.reduceat(taken, starts, axis=axis)


# The search (sections 8.2 to 8.4) ---------------------------------------------------


def _label(
    order: Sequence[int], inputs: Mapping[int, Sequence[int]], tables: _Tables
) -> dict[int, int]:
    """The best vector of every vertex of a forest, by dynamic programming.

    The paper keeps the best of the vectors that partition a result in the same way.  Costs of a
    reader depend on nothing else, so keeping all vectors finds the same minimum.

    Parameters
    ----------
    order
        Vertices, producers first.
    inputs
        For every vertex, those of its producers that count; no two read the same one.
    tables
        Costs of vectors and of pairs of them.
    """
    own, between = tables
    best: dict[int, Floats] = {}
    back: dict[tuple[int, int], Ints] = {}
    read: set[int] = set()
    for vertex in order:
        total = own[vertex]
        for producer in inputs[vertex]:
            ways = best[producer][:, None] + between[producer, vertex]
            back[producer, vertex] = np.argmin(ways, axis=0)
            total = total + ways.min(axis=0)
            read.add(producer)
        best[vertex] = total
    chosen: dict[int, int] = {}
    for vertex in reversed(order):
        if vertex not in read:
            chosen[vertex] = int(np.argmin(best[vertex]))
        for producer in inputs[vertex]:
            chosen[producer] = int(back[producer, vertex][chosen[vertex]])
    return chosen


def _linear(producers: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Longest paths, one after another, until every vertex is on one."""
    paths = []
    left = sorted(producers)
    while left:
        length: dict[int, int] = {}
        before: dict[int, int] = {}
        for vertex in left:
            able = [producer for producer in producers[vertex] if producer in length]
            length[vertex] = 1
            if able:
                before[vertex] = max(able, key=lambda producer: (length[producer], -producer))
                length[vertex] += length[before[vertex]]
        path = [max(left, key=lambda vertex: (length[vertex], -vertex))]
        while path[-1] in before:
            path.append(before[path[-1]])
        paths.append(path[::-1])
        taken = set(path)
        left = [vertex for vertex in left if vertex not in taken]
    return paths


def _search(vertices: Mapping[int, _Vertex], tables: _Tables) -> dict[int, int]:
    """A vector for every vertex."""
    producers = {
        index: sorted({edge.producer for edge in vertex.node.edges if edge.producer in vertices})
        for index, vertex in vertices.items()
    }
    readers = [producer for inputs in producers.values() for producer in inputs]
    if len(readers) == len(set(readers)):
        return _label(list(vertices), producers, tables)
    chosen: dict[int, int] = {}
    for path in _linear(producers):
        along = {vertex: [before] for before, vertex in itertools.pairwise(path)}
        chosen |= _label(path, {path[0]: (), **along}, tables)
    return chosen


def _solution(
    costs: Costs, settings: Settings, tile_weight: float, price: Callable[..., _Tables]
) -> Solution:
    """The best states among those that have the vectors of the search."""
    vertices = _vertices(costs)
    chosen = _search(vertices, price(costs, vertices))
    allowed = [np.arange(len(variable.options)) for variable in costs.space.variables]
    for index, vertex in vertices.items():
        allowed[vertex.variable] = vertex.states[chosen[index]]
    return best_of(costs, settings, tile_weight, allowed)


def eindecomp(costs: Costs, settings: Settings, tile_weight: float) -> Solution:
    """EinDecomp as printed: upper bounds on what travels, in bytes (sections 7 and 8)."""
    return _solution(costs, settings, tile_weight, _paper_tables)


def eindecomp_exact(costs: Costs, settings: Settings, tile_weight: float) -> Solution:
    """The same search on exact bytes instead of the paper's upper bounds.

    Where arrays have several readers this is often worse than :func:`eindecomp`.  Many vectors of
    one path move no bytes, so their exact costs are equal, and only some of them agree with
    the path that it joins.
    """

    def price(costs: Costs, vertices: Mapping[int, _Vertex]) -> _Tables:
        return _exact_tables(costs, vertices, tile_weight)

    return _solution(costs, settings, tile_weight, price)
