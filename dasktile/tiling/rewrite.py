"""Programs with replicas: arrays copied into a second sharding, or recomputed for some readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dasktile.ir import AxisMap, Edge, Kind, Label, Node, Program, Role

#: A reader of an array: the index of its node, and the position of the edge that reads it.
Reader = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Replica:
    """A second instance of an array, which some readers read instead of the first.

    Parameters
    ----------
    node
        Index of the array's node.
    readers
        The edges that read the replica.
    recomputed
        Nodes to run a second time, in topological order, the array's node last; empty where the
        replica is a copy of the first instance.
    """

    node: int
    readers: tuple[Reader, ...]
    recomputed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ExtendedProgram:
    """A program with nodes added for replicas.

    Parameters
    ----------
    program
        The program.
    origin
        For every node, the index in the original program of the same node, or of the node that it
        is a replica of.
    added
        For every node, True where it was added.
    """

    program: Program
    origin: tuple[int, ...]
    added: tuple[bool, ...]


def extend(program: Program, replicas: Sequence[Replica]) -> ExtendedProgram:
    """Add nodes for replicas to a program."""
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
        for replica in [entry for entry in replicas if entry.node == index]:
            if replica.recomputed:
                instances = dict(place)
                for member in replica.recomputed:
                    before = program.nodes[member]
                    reads = tuple(
                        replace(entry, producer=instances[entry.producer]) for entry in before.edges
                    )
                    times[member] += 1
                    clone = replace(before, edges=reads, copy=before.copy + times[member])
                    instances[member] = add(clone, member, True)
            else:
                times[index] += 1
                add(_copy(node, place[index], times[index]), index, True)
            redirected.update(dict.fromkeys(replica.readers, len(nodes) - 1))
    outputs = tuple(place[index] for index in program.outputs)
    more = replace(program, nodes=tuple(nodes), outputs=outputs)
    return ExtendedProgram(more, tuple(origin), tuple(added))


def is_copy(program: Program, index: int, origin: Sequence[int]) -> bool:
    """Whether a node was added to copy an array, and not to recompute one.

    Parameters
    ----------
    program, index
        A program with replicas, and one of its nodes.
    origin
        As in `ExtendedProgram`.
    """
    edges = program.nodes[index].edges
    return len(edges) == 1 and origin[edges[0].producer] == origin[index]


def extended_as(
    program: Program, part: Program, origin: Sequence[int], is_read: Sequence[Sequence[bool]]
) -> Program:
    """A program with the replicas that a part of it has.

    Parameters
    ----------
    program
        A program without replicas.
    part, origin
        The part with replicas, and for every node of it the index in `program` of the same node, or
        of the node that it is a replica of.
    is_read
        For every node of `program`, which of its edges the part has.
    """
    nodes = []
    for number, (node, index) in enumerate(zip(part.nodes, origin, strict=True)):
        same, reads = program.nodes[index], iter(node.edges)
        if is_copy(part, number, origin):
            nodes.append(_copy(same, node.edges[0].producer, node.copy - same.copy))
            continue
        # a node that is not needed has no edges in the part
        edges = tuple(
            replace(
                edge,
                producer=next(reads).producer
                if read and node.edges
                else origin.index(edge.producer),
            )
            for edge, read in zip(same.edges, is_read[index], strict=True)
        )
        nodes.append(replace(same, edges=edges, copy=node.copy))
    return Program(tuple(nodes), part.outputs)


def _copy(node: Node, source: int, number: int) -> Node:
    """A node that copies an array, so that the copy has its own tiling."""
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
