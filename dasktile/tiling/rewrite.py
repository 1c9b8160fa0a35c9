"""Arrays that are there twice: kept in a second tiling, or made again instead of kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dasktile.ir import AxisMap, Edge, Kind, Label, Node, Program, Role

#: A reader of an array: its node, and which of its edges reads it.
Reader = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Replica:
    """An array to be there twice.

    Parameters
    ----------
    nodes
        The nodes to run again, in order, the array's own one last; none to copy the array.
    node
        The array's own node.
    readers
        Who reads the second.
    """

    node: int
    readers: tuple[Reader, ...]
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ExtendedProgram:
    """A program with more nodes.

    Parameters
    ----------
    program
        The program.
    origin
        For every node, the one of the original that it is, or is a copy of.
    added
        For every node, whether it is not in the original.
    """

    program: Program
    origin: tuple[int, ...]
    added: tuple[bool, ...]


def extend(program: Program, changes: Sequence[Replica]) -> ExtendedProgram:
    """A program with some arrays there twice."""
    nodes: list[Node] = []
    origin: list[int] = []
    added: list[bool] = []
    place: dict[int, int] = {}
    times: Counter[int] = Counter()
    redirected: dict[Reader, int] = {}

    def add(node: Node, source: int, new: bool) -> int:
        nodes.append(node)
        origin.append(source)
        added.append(new)
        return len(nodes) - 1

    for index, node in enumerate(program.nodes):
        edges = tuple(
            replace(edge, producer=redirected.get((index, position), place[edge.producer]))
            for position, edge in enumerate(node.edges)
        )
        place[index] = add(replace(node, edges=edges), index, False)
        for change in [entry for entry in changes if entry.node == index]:
            if change.nodes:
                recomputed = dict(place)
                for member in change.nodes:
                    before = program.nodes[member]
                    reads = tuple(
                        replace(entry, producer=recomputed[entry.producer])
                        for entry in before.edges
                    )
                    times[member] += 1
                    clone = replace(before, edges=reads, copy=before.copy + times[member])
                    recomputed[member] = add(clone, member, True)
            else:
                times[index] += 1
                add(_copy(node, place[index], times[index]), index, True)
            redirected.update(dict.fromkeys(change.readers, len(nodes) - 1))
    outputs = tuple(place[index] for index in program.outputs)
    return ExtendedProgram(Program(tuple(nodes), outputs), tuple(origin), tuple(added))


def _copy(node: Node, source: int, number: int) -> Node:
    """A node that only has an array in tiles of its own."""
    axes = tuple(AxisMap(axis) for axis in range(len(node.shape)))
    return Node(
        node.name,
        "copy",
        Kind.VIEW,
        tuple(
            Label(size, Role.FREE, cuts) for size, cuts in zip(node.shape, node.chunks, strict=True)
        ),
        axes,
        node.shape,
        node.dtype,
        node.itemsize,
        node.chunks,
        (Edge(source, axes),),
        work=0.0,
        copy=node.copy + number,
    )
