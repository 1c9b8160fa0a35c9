"""Placement of persisted arrays, from which a plan starts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dasktile.capture.base import Captured
from dasktile.cluster.target import Machine
from dasktile.ir import Node, Program, workers_of_positions
from dasktile.schedule.placement import decode, primary
from dasktile.tiling.fewer import fewer_workers
from dasktile.tiling.mesh import MAX_WORKERS, mesh_shape


def located(captured: Captured, machine: Machine) -> Captured:
    """A program in which nodes of persisted arrays have the mesh positions of their blocks.

    It is unchanged where tasks do not run on the workers of the plan, since positions of the mesh
    are then not tied to workers.
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
        if any(homes):  # otherwise its blocks come with the graph
            new[index] = replace(nodes[index], homes=homes)
    return replace(captured, program=Program(tuple(new), captured.program.outputs))


def blocks_there(captured: Captured) -> dict[Any, int]:
    """The mesh position of every persisted block that a worker has.

    Parameters
    ----------
    captured
        A program with these positions.
    """
    return {
        (node.name, *index): places[0]
        for node in captured.program.nodes
        if node.homes
        for index, places in zip(_blocks(node), node.homes, strict=True)
        if places
    }


def _blocks(node: Node) -> Iterable[tuple[int, ...]]:
    """The indices of all blocks of an array."""
    return itertools.product(*(range(len(sizes)) for sizes in node.chunks))


def _homes(
    node: Node,
    holders: Mapping[Any, Sequence[str]],
    positions: Mapping[str, int],
    mesh: tuple[int, ...],
) -> Iterable[tuple[int, ...]]:
    """For every block, its position in the mesh; empty for a block that no worker has yet."""
    planned, workers = decode(node.name), math.prod(mesh)
    for index in _blocks(node):
        addresses = holders.get((node.name, *index), ())
        places = tuple(
            sorted({positions[address] for address in addresses if address in positions})
        )
        if len(places) > 1:
            # the other replicas may be dropped before they are read
            places = (primary(index, places),)
        if not places and planned is not None:
            # not computed yet: the position of an earlier plan
            if planned.mesh == mesh:
                places = (planned.position(index),)
            elif planned.workers in fewer_workers(workers):
                places = (workers_of_positions(planned.workers, workers)[planned.position(index)],)
        yield places
