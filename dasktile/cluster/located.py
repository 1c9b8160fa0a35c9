"""Where arrays that are in a cluster's memory already are: the plan starts from there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dasktile.capture.base import Captured
from dasktile.cluster.target import Machine
from dasktile.ir import Node, Program
from dasktile.schedule.placement import decode, primary
from dasktile.tiling.mesh import MAX_WORKERS, mesh_shape


def located(captured: Captured, machine: Machine) -> Captured:
    """A program that knows of its persisted arrays which workers have them.

    Only where tasks run where the plan says: elsewhere the places of a mesh are no
    workers in particular.
    """
    nodes = captured.program.nodes
    resident = [index for index, node in enumerate(nodes) if node.resident and node.size]
    if not machine.placed or machine.who_has is None or not resident:
        return captured
    blocks: dict[Any, Any] = {}
    for index in resident:
        blocks.update(captured.graph.layers[nodes[index].name])
    holders = machine.who_has(blocks)
    mesh = mesh_shape(min(machine.workers, MAX_WORKERS))
    places = math.prod(mesh)
    position = {
        address: number * places // len(machine.order)
        for number, address in enumerate(machine.order)
    }
    new = list(nodes)
    for index in resident:
        homes = tuple(_homes(nodes[index], holders, position, mesh))
        if any(homes):  # else it comes with the graph
            new[index] = replace(nodes[index], homes=homes)
    return replace(captured, program=Program(tuple(new), captured.program.outputs))


def _homes(
    node: Node,
    holders: Mapping[Any, Sequence[str]],
    positions: Mapping[str, int],
    mesh: tuple[int, ...],
) -> Iterable[tuple[int, ...]]:
    """For every block, the place in the mesh; none for one that is nowhere yet."""
    planned = decode(node.name)
    for index in itertools.product(*(range(len(sizes)) for sizes in node.chunks)):
        addresses = holders.get((node.name, *index), ())
        places = tuple(
            sorted({positions[address] for address in addresses if address in positions})
        )
        if len(places) > 1:
            # the rest are copies, which the cluster may drop before they are read
            places = (primary(index, places),)
        if not places and planned is not None and planned.mesh == mesh:
            # on its way
            places = (planned.position(index),)
        yield places
