"""The reads of arrays: between which variables of a program tiles may have to be converted."""

from __future__ import annotations

from dataclasses import dataclass

from dasktile.ir import AxisMap, Edge, Kind
from dasktile.tiling.candidates import Space


@dataclass(frozen=True, slots=True)
class Read:
    """A read of one variable's array by another one.

    Parameters
    ----------
    source, reader
        The variables.
    edge
        What is read.
    fused
        Whether Dask fuses a block with the only block that reads it.
    alike
        A number that reads of equal maps and chunks, fused or not, share.
    """

    source: int
    reader: int
    edge: Edge
    fused: bool
    alike: int


def reads_of(space: Space) -> list[Read]:
    """All reads between the variables of a space, each once.

    Parameters
    ----------
    space
        The variables.
    """
    reads = []
    numbers: dict[object, int] = {}
    for reader, variable in enumerate(space.variables):
        node = space.program.nodes[variable.node]
        if variable.keep:
            axes = tuple(AxisMap(axis) for axis in range(len(node.shape)))
            made = space.made[variable.node]
            if variable.final is not None:
                made = space.source(variable.node)
            edges = [(made, Edge(variable.node, axes))]
        else:
            edges = [(space.source(edge.producer), edge) for edge in dict.fromkeys(node.edges)]
        for source, edge in edges:
            fused = _is_fused(space, source, reader)
            alike = numbers.setdefault((edge.axes, edge.chunks, fused), len(numbers))
            reads.append(Read(source, reader, edge, fused, alike))
    return reads


def _is_fused(space: Space, source: int, reader: int) -> bool:
    """True where Dask fuses a block with the only block that reads it."""
    made, variable = space.variables[source], space.variables[reader]
    program = space.program
    if made.keep or variable.keep or made.node in program.outputs:
        return False
    producer, node = program.nodes[made.node], program.nodes[variable.node]
    if len(program.consumers(made.node)) > 1 or producer.resident:
        return False
    if len(node.edges) == 1:
        # a chain, if each block is read by one block
        pieces = {axis.label for axis in node.edges[0].axes if axis.label is not None}
        alike = len(pieces) == len(node.labels) and node.kind in (Kind.MAP, Kind.VIEW)
        return alike and producer.kind in (Kind.MAP, Kind.VIEW, Kind.CONTRACT)
    return (
        producer.kind is Kind.MAP is node.kind
        and sum(edge.producer == made.node for edge in node.edges) == 1
        and len(producer.shape) == len(node.labels)
    )
